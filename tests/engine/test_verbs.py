"""What the engine gives to a strategy's verbs, and in which order it asks them."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer, weave
from weft.core.strategy import VERBS, Move, Penalty, Strategy, Summing, weighted_mean
from weft.core.trees import tree_leaves
from weft.engine import verbs
from weft.objectives import Regression
from weft.sources import Episodes
from weft.strategies import AGEM, EMA, EWC, IRM, L1, L2, MAML, SGLD, ANDMask, SynapticIntelligence, TemporalANDMask
from weft.testing import ContractError, check_strategy

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3))
W = np.array([1.0, -2.0, 0.5])
Y = X @ W + 0.1 * rng.normal(size=30)
SITE = np.repeat([0, 1], [20, 10])


def line(strategy, **settings):
    """A linear regression without intercept from zero, whose gradients can be written out."""
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    settings = {"optimizer": Optimizer("sgd", lr=0.1), "steps": 3, "batch_size": None, **settings}
    return Learner(Regression(net), strategy=strategy, init="keep", dtype="float64", random_state=0, **settings)


def gradient(w, rows=slice(None)):
    return X[rows].T @ (X[rows] @ w - Y[rows]) / len(X[rows])


def risk(w, rows=slice(None)):
    return float(((X[rows] @ w - Y[rows]) ** 2).mean() / 2)


class Recording(Strategy):
    """Keeps what `steer` and `update` are given."""

    def __init__(self, *, shift=0.0):
        self.shift = shift

    def init(self, params):
        zero = torch.zeros((), dtype=torch.float64)
        like = {name: torch.zeros_like(p) for name, p in params.items()}
        return {
            "here": zero,
            "there": zero,
            "rows": zero,
            "lr": zero,
            "after": zero,
            "count": zero,
            "g": like,
            "slope": like,
        }

    def steer(self, gradient, params, loss, gradient_at, state):
        moved = {name: p + 1.0 for name, p in params.items()}
        rows = {"x": torch.ones(1, 3, dtype=torch.float64), "y": torch.zeros(1, dtype=torch.float64)}
        found = {"here": loss(params), "there": loss(moved), "rows": loss(params, rows)}
        return gradient, {**state, **found, "g": gradient, "slope": gradient_at(moved)}

    def update(self, move, state):
        after = {name: p + move.step[name] for name, p in move.params.items()}
        assert move.data_rows == 30
        count = torch.zeros_like(move.lr) + move.batch_rows
        return move.step, {**state, "lr": move.lr, "after": move.loss(after), "count": count}


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("pieces", [1, 3])
def test_steer_has_the_loss_and_the_gradient_at_other_parameters(replicas, pieces):
    settings = {"batch_size": 10, "accumulate": 3} if pieces > 1 else {}
    learner = line(Recording(), replicas=replicas, schedule="linear", **settings)
    learner.fit(X, Y)
    w = np.zeros(3)
    for factor in (1.0, 2 / 3, 1 / 3):
        before, lr = w, 0.1 * factor
        w = w - lr * gradient(w)
    kept = learner.training_.every[0].state.strategy[""]
    for name, value in {
        "here": risk(before),
        "there": risk(before + 1.0),
        "rows": before.sum() ** 2 / 2,
        "lr": lr,
        "count": 30,
        "after": risk(w),
    }.items():
        np.testing.assert_allclose(float(kept[name]), value, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(kept["g"]["net.weight"].numpy()[0], gradient(before), rtol=1e-9)
    np.testing.assert_allclose(kept["slope"]["net.weight"].numpy()[0], gradient(before + 1.0), rtol=1e-9)


@pytest.mark.parametrize("weighting", ["example", "group"])
def test_the_own_loss_of_groups_counts_them_as_the_gradient_does(weighting):
    """Under a neutral mask the gradient is that of the loss that `steer` is given."""
    learner = line(weave(ANDMask(threshold=0.0), Recording()), weighting=weighting, steps=1)
    learner.fit(X, Y, environment=SITE)
    kept = learner.training_.every[0].state.strategy[""]["recording"]
    shares = np.array([2 / 3, 1 / 3]) if weighting == "example" else np.array([0.5, 0.5])
    assert float(kept["count"]) == 30, "not the rows that pad the smaller one"
    value = sum(s * risk(np.ones(3), e == SITE) for e, s in enumerate(shares))
    np.testing.assert_allclose(float(kept["there"]), value, rtol=1e-9)
    slope = sum(s * gradient(np.ones(3), e == SITE) for e, s in enumerate(shares))
    np.testing.assert_allclose(kept["slope"]["net.weight"].numpy()[0], slope, rtol=1e-9)


def test_the_gradient_at_other_parameters_is_masked_as_the_step_is():
    learner = line(weave(ANDMask(threshold=1.0, rescale=False), Recording()), steps=1).fit(X, Y, environment=SITE)
    kept = learner.training_.every[0].state.strategy[""]["recording"]
    each = np.stack([gradient(np.ones(3), e == SITE) for e in (0, 1)])
    masked = np.where(np.abs(np.sign(each).sum(0)) == 2, np.array([2 / 3, 1 / 3]) @ each, 0.0)
    assert 0 < (masked == 0).sum() < 3
    np.testing.assert_allclose(kept["slope"]["net.weight"].numpy()[0], masked, rtol=1e-9)


def test_of_episodes_it_is_the_loss_of_the_queries():
    class Asking(Strategy):
        def init(self, params):
            return {"loss": torch.zeros((), dtype=torch.float64)}

        def steer(self, gradient, params, loss, gradient_at, state):
            return gradient, {"loss": loss(params)}

    source = Episodes((X, Y, SITE), tasks=2, shots=3, queries=4)
    learner = line(weave(MAML(inner_lr=0.1), Asking()), steps=1).fit(source)
    state = learner.training_.runs[0].state
    state.step = 0
    query = next(source.batches(state))["query"]
    expected = float((query["y"].double().square() / 2).mean())
    np.testing.assert_allclose(float(state.strategy[""]["asking"]["loss"]), expected, rtol=1e-6)


def test_what_a_look_changes_of_the_buffers_is_discarded():
    class Looking(Strategy):
        def steer(self, gradient, params, loss, gradient_at, state):
            loss(params)
            gradient_at(params)
            return gradient, state

        def update(self, move, state):
            move.loss(move.params)
            return move.step, state

    def statistics(strategy):
        net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.3), nn.Linear(3, 1))
        learner = Learner(Regression(net), strategy=strategy, steps=3, dtype="float64", random_state=0).fit(X, Y)
        return {**learner.training_.runs[0].state.buffers, **learner.training_.runs[0].state.params}

    for name, value in statistics(None).items():
        assert torch.equal(statistics(Looking())[name], value), name


class Doubling(Strategy):
    def steer(self, gradient, params, loss, gradient_at, state):
        return {name: 2.0 * g for name, g in gradient.items()}, state


class Shifting(Strategy):
    def steer(self, gradient, params, loss, gradient_at, state):
        return {name: g + 1.0 for name, g in gradient.items()}, state


@pytest.mark.parametrize("replicas", [None, 2])
def test_update_acts_behind_clipping_and_the_optimizer(replicas):
    class Seen(Strategy):
        def init(self, params):
            return {"step": {name: torch.zeros_like(p) for name, p in params.items()}}

        def update(self, move, state):
            return {name: 3.0 * s for name, s in move.step.items()}, {"step": move.step}

    learner = line(Seen(), steps=1, clip=0.01, replicas=replicas).fit(X, Y)
    g = gradient(np.zeros(3))
    clipped = -0.1 * 0.01 * g / np.linalg.norm(g)
    kept = learner.training_.every[0].state.strategy[""]["step"]["net.weight"]
    np.testing.assert_allclose(kept.numpy()[0], clipped, rtol=1e-9)
    np.testing.assert_allclose(learner.predict(np.eye(3)), 3.0 * clipped, rtol=1e-9)


@pytest.mark.parametrize("order", [(Doubling(), Shifting()), (Shifting(), Doubling())], ids=str)
def test_steers_act_in_the_order_of_the_weave(order):
    w = line(weave(*order), steps=1).fit(X, Y).predict(np.eye(3))
    g = gradient(np.zeros(3))
    np.testing.assert_allclose(w, -0.1 * (2 * g + 1 if isinstance(order[0], Doubling) else 2 * (g + 1)), rtol=1e-9)


@pytest.mark.parametrize("order", [(L2(strength=0.5), Doubling()), (Doubling(), L2(strength=0.5))], ids=str)
def test_penalties_are_added_after_all_steers_wherever_they_stand(order):
    w = line(weave(*order), steps=2).fit(X, Y).predict(np.eye(3))
    expected = np.zeros(3)
    for _ in range(2):
        expected = expected - 0.1 * (2.0 * gradient(expected) + 0.5 * expected)
    np.testing.assert_allclose(w, expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_neither_a_projection_nor_a_path_ever_sees_a_penalty():
    strong = L2(strength=5.0)
    for order in ((strong, SynapticIntelligence()), (SynapticIntelligence(), strong)):
        learner = line(weave(*order), steps=1).fit(X, Y)
        kept = learner.training_.runs[0].state.strategy[""]["synapticintelligence"]
        np.testing.assert_allclose(kept["gradient"]["net.weight"].numpy()[0], gradient(np.zeros(3)), rtol=1e-9)
    assert weave(EWC(), ANDMask()).parts[0].strength == 1000.0


def test_a_pull_counts_only_for_its_own_penalty():
    class Square(Penalty):
        def penalty(self, params, state):
            return sum(p.square().sum() for p in params.values())

        def pull(self, params, state):
            return {name: 2.0 * p for name, p in params.items()}

    class Cube(Square):
        def penalty(self, params, state):
            return sum(p.pow(3).sum() for p in params.values())

    class Sharp(Square):
        def pull(self, params, state):
            return super().pull(params, state)

    params = {"w": torch.tensor([2.0])}
    assert (Square().pulls, Cube().pulls, Sharp().pulls, L1().pulls, EWC().pulls) == (True, False, True, True, True)
    assert verbs.pull(Cube(), params, {})["w"].tolist() == [12.0]
    assert verbs.pull(weave(Square(), Cube()), params, {"square": {}, "cube": {}})["w"].tolist() == [16.0]
    assert verbs.pull(ANDMask(), params, {}) is None


def test_a_state_begins_where_the_parameters_are():
    """Counters too, which a strategy makes without asking where: else a recorded step would count on the host."""
    params = {"w": torch.zeros(2, device="meta")}
    state = verbs.init(weave(TemporalANDMask(), SGLD(draws=2), EMA()), params)
    leaves = list(tree_leaves(state))
    assert len(leaves) == 8
    assert {leaf.device.type for leaf in leaves} == {"meta"}


def test_every_verb_has_an_identity():
    plain, params, state = Strategy(), {"w": torch.tensor([1.0, 2.0])}, {"kept": torch.ones(1)}
    loss = lambda params, batch: None
    assert plain.init(params) == {}
    assert plain.begin(None, state) is state
    assert plain.wrap(loss, state) is loss
    mean, after = plain.combine({"w": torch.tensor([[1.0], [3.0]])}, torch.zeros(2), torch.tensor([0.5, 0.5]), state)
    assert mean["w"].tolist() == [2.0]
    assert after is state
    assert plain.steer(params, params, loss, None, state) == (params, state)
    assert plain.update(Move(params, params, torch.tensor(0.1), 1, None, loss, None), state) == (params, state)
    assert plain.answer(params, state) == [params]
    assert plain.consolidate(None, state, "task") is state
    assert plain.release(state, "task") is state
    assert plain.adapt(loss, params, {}, state) is params
    assert not any(plain.does(verb) for verb in VERBS)


def test_a_weave_itself_is_not_asked():
    woven = weave(EWC(), ANDMask())
    for verb in VERBS:
        with pytest.raises(TypeError, match="expected one of the weave's parts to be asked"):
            getattr(woven, verb)({}, {})


class Looking(Strategy):
    """Looks at the outputs of a step's rows, at its parameters and at others."""

    def init(self, params):
        return {"apart": torch.zeros(2)}

    def update(self, move, state):
        there = {name: p + s for name, (p, s) in ((n, (p, move.step[n])) for n, p in move.params.items())}
        own = move.mean(lambda output: output.losses, there) - move.loss(there)
        both = move.mean(lambda now, then: then.losses - now.losses, move.params, there)
        return move.step, {"apart": torch.stack([own, both - move.loss(there) + move.loss(move.params)])}


class LookingAtGroups(Looking):
    sees = "groups"


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (Looking, {}),
        (Looking, {"accumulate": 3}),
        (Looking, {"replicas": 2}),
        (LookingAtGroups, {}),
        (LookingAtGroups, {"replicas": 2}),
    ],
)
def test_a_strategy_may_take_means_of_outputs_as_losses_are_taken(strategy, settings):
    torch.manual_seed(0)
    X, y, site = torch.randn(60, 3), torch.randn(60), torch.arange(60) % 7 // 3
    given = {"environment": site} if strategy is LookingAtGroups else {}
    learner = Learner(
        Regression(hidden=(4,)),
        strategy=strategy(),
        steps=3,
        batch_size=18,
        random_state=0,
        dtype="float64",
        **settings,
    ).fit(X, y, sample_weight=torch.rand(60), **given)
    assert learner.training_.runs[0].state.strategy[""]["apart"].abs().max() < 1e-12
    assert learner.training_.runs[0].state.strategy[""]["apart"].shape[-1] == 2


# --- a step of one's own ---------------------------------------------------------------------------------


class Own(Strategy):
    own_step = True

    def update(self, move, state):
        return move.step, state


@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        "adam",
        Optimizer("sgd", lr=0.1, momentum=0.9),
        Optimizer("sgd", lr=0.1, weight_decay=0.1),
        Optimizer("sgd", lr=0.1, maximize=True),
        Optimizer("sgd", lr=0.1, groups={"*": {"lr": 0.2}}),
        torch.optim.RMSprop,
    ],
    ids=str,
)
def test_who_chooses_its_own_step_refuses_any_optimizer_but_plain_sgd(optimizer):
    with pytest.raises(ValueError, match=r"expected plain SGD with Own\(\).*Optimizer\('sgd', lr="):
        line(Own(), optimizer=optimizer).fit(X, Y)
    with pytest.raises(ValueError, match=r"expected plain SGD with Own\(\)"):
        line(weave(L2(), Own()), optimizer=optimizer).fit(X, Y)


@pytest.mark.parametrize("optimizer", [Optimizer("sgd", lr=0.1, momentum=0.0), Optimizer(torch.optim.SGD, lr=0.1)])
def test_plain_sgd_is_taken(optimizer):
    line(Own(), optimizer=optimizer).fit(X, Y)
    line(weave(L2(), Own()), optimizer=optimizer, clip=1.0, schedule="cosine").fit(X, Y)


def test_two_who_choose_their_own_step_are_named():
    with pytest.raises(ValueError, match=r"at most one strategy that chooses a step of its own, got Own\(\) and Own"):
        weave(Own(), Own())
    weave(TemporalANDMask(), Own())
    weave(IRM(anneal=3), Own())


@pytest.mark.parametrize(
    ("verb", "fix"),
    [("penalty", "weft.core.Penalty"), ("summarize", "Summing"), ("observe", "Output.left"), ("recall", "loss")],
)
def test_a_verb_that_nobody_asks_is_refused(verb, fix):
    old = type("Old", (Strategy,), {verb: lambda self, *given: None})
    with pytest.raises(TypeError, match=f"expected Old .* got '{verb}', which nobody asks.*{fix}"):
        line(old()).fit(X, Y)
    with pytest.raises(TypeError, match="which nobody asks"):
        line(weave(EWC(), old())).fit(X, Y)


def test_a_verb_that_takes_something_else_is_refused():
    class Old(Strategy):
        def update(self, step, params, state):
            return step, state

    with pytest.raises(
        TypeError, match=r"expected Old to define update\(move, state\), got update\(step, params, state"
    ):
        line(Old()).fit(X, Y)


# --- the contract ----------------------------------------------------------------------------------------


class Hoarding(Summing):
    """Its sums are the gradients themselves: no memory bound."""

    sees = "groups"

    def summarize(self, gradients, weights):
        return {"all": gradients}

    def conclude(self, sums, losses, weights, state):
        return weighted_mean(sums["all"], weights), state


class Whole(ANDMask):
    """Takes the bound away by a combine of its own."""

    def combine(self, gradients, losses, weights, state):
        return super().combine(gradients, losses, weights, state)


@pytest.mark.parametrize(
    ("broken", "message"), [(Whole(threshold=0.5), "a combine of its own"), (Hoarding(), "memory bound")]
)
def test_a_combiner_that_keeps_no_memory_bound_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_strategy(broken)


def test_a_combine_of_its_own_is_asked_where_memory_is_short():
    class Zero(ANDMask):
        def combine(self, gradients, losses, weights, state):
            return {name: torch.zeros_like(g[0]) for name, g in gradients.items()}, state

    learner = Classifier(strategy=Zero(), memory=1, steps=2, random_state=0, init="keep", net=nn.Linear(3, 2))
    before = learner.net.weight.detach().clone()
    learner.fit(X, (Y > 0).astype(int), environment=SITE)
    assert torch.equal(learner.training_.runs[0].state.params["net.weight"], before)


def test_two_memories_of_agem_are_legal():
    assert [type(part) for part in weave(AGEM(), AGEM()).parts] == [AGEM, AGEM]
