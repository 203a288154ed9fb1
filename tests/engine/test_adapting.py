"""`state.adapt`: a view with adapted parameters, by which a source lets the adapted policy play its own query."""

import pytest
import torch
from torch import nn

from weft import Learner, Optimizer
from weft.core import Objective, Output
from weft.core.optimizer import as_optimizer
from weft.core.random import categorical, fold, unit
from weft.core.source import Field, Source
from weft.data import sinusoids
from weft.engine.acting import Acting
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.gradients.loss import base_loss
from weft.objectives import Regression
from weft.sources import Episodes, Mapped
from weft.sources.cast import Cast
from weft.strategies import ERM, MAML

ARMS, RATE = 3, 2.0


class Scored(Objective):
    """The score function on a bandit: logits are parameters, beside what is observed."""

    on_policy = True
    fields = ("observation", "action", "reward")
    progress = ("loss", "min")

    def build(self, spec):
        self.net = nn.Linear(1, ARMS, bias=False)

    def forward(self, batch, player=""):
        score = self.net(batch["observation"]).log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        return Output(-batch["reward"] * score)

    def sample_action(self, observation):
        return categorical(self.net(observation), place="action")


class Bandits(Source):
    """Each task pays 1 for one arm, the first or the second, and -1 for others; the adapted policy plays the query."""

    grouped = episodic = stacks = acts = adapts = True

    def __init__(self, tasks=4, shots=5):
        self.tasks, self.shots = tasks, shots
        self.spec = {
            "observation": Field((1,), torch.float32),
            "action": Field((), torch.int64, classes=ARMS),
            "reward": Field((), torch.float32),
        }

    def played(self, state, name, good):
        """Actions and rewards, `(replicas, tasks, shots)` as `good` is `(replicas, tasks)`."""
        rows = good.numel() // (state.replicas or 1) * self.shots
        lead = () if state.replicas is None else (state.replicas,)
        seen = torch.ones(*lead, rows, 1, dtype=state.dtype)
        with Acting(state, "sample_action", state.key(name).unsqueeze(-1), torch.arange(rows)) as own:
            action = own(0, seen, {}).reshape(*good.shape, self.shots)
        reward = torch.where(action == good.unsqueeze(-1), 1.0, -1.0)
        return {"observation": seen.reshape(*good.shape, self.shots, 1), "action": action, "reward": reward}

    def batches(self, state):
        while True:
            keys = fold(state.key("task").unsqueeze(-1), torch.arange(self.tasks))
            good = (unit(keys, ()) < 0.5).long()
            support = self.played(state, "support", good)
            view = state.adapt(support, grouped=True)
            yield {"support": support, "query": self.played(view, "query", good)}


def held(strategy, seeds=(0,), source=None):
    built = build(Scored(), (source or Bandits()).spec, 0, torch.float32)
    optimizers = {"": as_optimizer(Optimizer("sgd", lr=0.5))}
    kind = {"grouped": True, "episodic": True} if strategy.sight.episodic else {}
    engine = Engine(built, strategy, optimizers, replicas=len(seeds) if len(seeds) > 1 else None, **kind)
    return engine, engine.init(list(seeds), torch.device("cpu"))


def one_step(weight, support):
    """The weights after one explicit gradient step on a task's rows."""
    weight = weight.clone().requires_grad_()
    score = (support["observation"] @ weight.T).log_softmax(-1).gather(-1, support["action"].unsqueeze(-1))
    loss = -(support["reward"] * score.squeeze(-1)).mean()
    return (weight - RATE * torch.autograd.grad(loss, weight)[0]).detach()


def test_after_adaptation_the_policy_has_made_one_gradient_step():
    engine, state = held(MAML(inner_lr=RATE, acts=True))
    support = next(engine.batches(Bandits(), state))["support"]
    before = state.params["net.weight"].clone()
    view = state.adapt(support, grouped=True)
    assert view.replicas == 4
    assert len(set(view.seeds.tolist())) == 4  # the tasks draw apart
    for t in range(4):
        rows = {name: value[t] for name, value in support.items()}
        step = one_step(before, rows)
        assert not torch.allclose(step, before)
        torch.testing.assert_close(view.params["net.weight"][t], step)
        torch.testing.assert_close(state.adapt(rows).params["net.weight"], step)
    torch.testing.assert_close(state.params["net.weight"], before)  # a view: what is trained stays


def test_replicas_adapt_for_themselves():
    engine, state = held(MAML(inner_lr=RATE, acts=True), seeds=(0, 1, 2))
    batch = next(engine.batches(Bandits(), state))
    view = state.adapt(batch["support"], grouped=True)
    assert view.params["net.weight"].shape == (12, ARMS, 1)
    assert batch["query"]["action"].shape == (3, 4, 5)
    for k in range(3):
        alone, run = held(MAML(inner_lr=RATE, acts=True), seeds=(k,))
        own = next(alone.batches(Bandits(), run))
        apart = run.adapt(own["support"], grouped=True).params["net.weight"]
        torch.testing.assert_close(apart, view.params["net.weight"][4 * k : 4 * k + 4])
        for part in ("support", "query"):
            assert torch.equal(own[part]["action"], batch[part]["action"][k])


def test_the_query_is_played_by_the_adapted_policy():
    """Where a step is so long that an arm is all that is left, the query has that arm alone."""
    source = Bandits(tasks=64, shots=1)
    engine, state = held(MAML(inner_lr=1e4, acts=True), source=source)
    batch = next(engine.batches(source, state))
    right = batch["support"]["reward"] > 0
    assert right.any()
    assert not right.all()
    assert torch.equal(batch["query"]["action"][right], batch["support"]["action"][right])
    assert (batch["query"]["action"][~right] != batch["support"]["action"][~right]).all()


def test_the_meta_gradient_is_that_of_the_loss_after_adaptation():
    engine, state = held(MAML(inner_lr=RATE, acts=True))
    state.params["net.weight"] = state.params["net.weight"].double()
    batch = next(engine.batches(Bandits(), state))
    batch = {p: {n: v.double() if v.is_floating_point() else v for n, v in part.items()} for p, part in batch.items()}
    gradient = engine.gradient(state, engine.numbered(batch, grouped=True), "")[0]["net.weight"]

    def meta(weight):
        total = 0.0
        for t in range(4):
            rows, query = ({n: v[t] for n, v in batch[part].items()} for part in ("support", "query"))
            after = one_step(weight, rows)
            score = (query["observation"] @ after.T).log_softmax(-1).gather(-1, query["action"].unsqueeze(-1))
            total -= (query["reward"] * score.squeeze(-1)).mean() / 4
        return total

    for arm in range(ARMS):
        ahead, behind = (state.params["net.weight"].clone() for _ in range(2))
        ahead[arm] += 1e-5
        behind[arm] -= 1e-5
        torch.testing.assert_close(gradient[arm, 0], (meta(ahead) - meta(behind)) / 2e-5, rtol=1e-5, atol=1e-7)


def test_it_adapts_as_training_does_dropout_included():
    """The loss of a step is that of the query parts at the view's parameters."""
    source = Episodes(sinusoids, tasks=3, shots=4)
    net = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    engine = Engine(
        build(Regression(net), source.spec, 0, torch.float32),
        MAML(inner_lr=0.1),
        {"": as_optimizer("sgd")},
        grouped=True,
        episodic=True,
    )
    state = engine.init([0], torch.device("cpu"))
    state.step = 3
    batch = engine.numbered(next(engine.batches(source, state)), grouped=True)
    view = state.adapt(batch["support"], grouped=True)
    loss = base_loss(state.objective, {}, {}, state.key("step", ""), "")
    each = []
    for t in range(3):
        params = {name: value[t] for name, value in view.params.items()}
        each.append(loss(params, {name: value[t] for name, value in batch["query"].items()}).losses.mean())
    torch.testing.assert_close(torch.stack(each).mean(), engine.gradient(state, batch, "")[1])


class Mean(Objective):
    """Adapts by itself: remembers the mean of what it is shown."""

    adapts = True
    fields = ("x",)

    def build(self, spec):
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(spec["x"].shape))

    def forward(self, batch, player=""):
        return Output((self.scale * (batch["x"] - self.mean)).square().sum(-1))

    def adapt(self, batch):
        return {"mean": batch["x"].mean(0)}


def test_an_objective_that_adapts_is_asked_itself():
    engine = Engine(
        build(Mean(), {"x": Field((2,), torch.float32)}, 0, torch.float32), ERM(), {"": as_optimizer("sgd")}
    )
    state = engine.init([0], torch.device("cpu"))
    x = torch.randn(3, 5, 2)
    view = state.adapt({"x": x}, grouped=True)
    torch.testing.assert_close(view.buffers["mean"], x.mean(1))
    assert view.params["scale"].shape == (3,)
    torch.testing.assert_close(state.adapt({"x": x[0]}).buffers["mean"], x[0].mean(0))
    assert not state.buffers["mean"].any()


def test_replicas_adapt_at_rates_of_their_own():
    sweep = {"strategy__inner_lr": [0.0, RATE]}
    learner = Learner(Scored(), strategy=MAML(acts=True), replicas=sweep, steps=1, random_state=0).fit(Bandits())
    engine, state = learner.training_.runs[0]
    view = state.adapt(next(engine.batches(Bandits(), state))["support"], grouped=True)
    still, moved = (view.params["net.weight"][4 * k : 4 * k + 4] - state.params["net.weight"][k] for k in range(2))
    assert not still.any()
    assert moved.abs().amax((1, 2)).min() > 0.01


def test_it_learns_to_try_the_arms_that_can_be_good():
    source = Bandits(tasks=32, shots=10)
    strategy = MAML(inner_lr=RATE, acts=True)
    optimizer = Optimizer("sgd", lr=0.5)
    learner = Learner(Scored(), strategy=strategy, optimizer=optimizer, steps=150, replicas=2, random_state=0)
    ((engine, state),) = learner.fit(source).training_.runs
    fresh, begun = held(strategy, (0, 1), source)
    after, before = (
        next(e.batches(source, at))["query"]["reward"].mean((1, 2)) for e, at in ((engine, state), (fresh, begun))
    )
    assert (after > before + 0.1).all(), (before, after)
    probability = state.params["net.weight"].squeeze(-1).softmax(-1)
    assert (probability[:, 2] < 0.15).all(), probability
    assert (probability[:, :2] > 0.2).all(), probability


def test_the_same_seed_twice_is_the_same_run():
    source = Bandits()
    learner = Learner(Scored(), strategy=MAML(inner_lr=RATE, acts=True), steps=4, random_state=0)
    whole = learner.fit(source).objective_.net.weight
    again = Learner(Scored(), strategy=MAML(inner_lr=RATE, acts=True), steps=4, random_state=0).fit(source)
    assert torch.equal(whole, again.objective_.net.weight)


# --- what it refuses ----------------------------------------------------------------------------------


def test_a_strategy_that_does_not_adapt_says_so():
    _, state = held(ERM())
    with pytest.raises(
        TypeError, match=r"expected a strategy that adapts, such as MAML\(\), .* got ERM\(\) with Scored"
    ):
        state.adapt({"observation": torch.ones(2, 1), "action": torch.zeros(2).long(), "reward": torch.ones(2)})


def test_a_view_is_not_adapted_again():
    engine, state = held(MAML(inner_lr=RATE, acts=True))
    support = next(engine.batches(Bandits(), state))["support"]
    with pytest.raises(RuntimeError, match="or one that is adapted already"):
        state.adapt(support, grouped=True).adapt(support, grouped=True)


def test_what_passes_on_its_batches_says_the_same_of_the_query():
    assert Mapped(Bandits(), lambda x: x).adapts
    assert Cast(Bandits(), torch.float64).adapts
    assert not Cast(Episodes(sinusoids), torch.float64).adapts


def test_a_policy_s_query_is_played_by_the_adapted_policy_or_refused():
    class Before(Bandits):
        adapts = False

    with pytest.raises(ValueError, match="the meta-gradient is biased"):
        Learner(Scored(), strategy=MAML(), steps=1).fit(Bandits())
    with pytest.raises(ValueError, match=r"got Before, which does not say that it plays them so \(adapts = True\)"):
        Learner(Scored(), strategy=MAML(acts=True), steps=1).fit(Before())
