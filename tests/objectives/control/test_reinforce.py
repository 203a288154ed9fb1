import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from weft import Learner, Optimizer
from weft.core import Field
from weft.core.objective import Output
from weft.data import CartPole, FiniteMDP
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import begun
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.strategies import ERM, EWC, MAML, AdversarialTraining, ANDMask

END = 2  # of three states the last one ends an episode: it keeps itself and pays nothing


class Ending(FiniteMDP):
    """A finite decision process whose episodes end in a state."""

    def step(self, state, action, keys):
        after, seen, reward, _ = super().step(state, action, keys)
        return after, seen, reward, after == END


def world(horizon=3):
    torch.manual_seed(0)
    transition = torch.rand(3, 2, 3, dtype=torch.float64)
    transition[END] = torch.tensor([0.0, 0.0, 1.0])
    reward = torch.randn(3, 2, dtype=torch.float64) + 1.0
    reward[END] = 0.0
    return Ending(
        transition / transition.sum(-1, keepdim=True),
        reward,
        start=torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64),
        horizon=horizon,
    )


def engine_of(objective, source):
    built = build(objective, source.spec, 0, torch.float64)
    engine = Engine(built, ERM(), {"": Optimizer("sgd", lr=0.1)}, grouped=source.grouped)
    state = engine.init([0], torch.device("cpu"))
    state.source = begun(source, state)
    return engine, state


def gradient_of(engine, state, batch):
    return engine.gradient(state, engine.numbered(batch, grouped=engine.grouped), "")[0]


def policy_of(engine, state):
    """Leaves, and pi(a | s) for each of the states as a function of them."""
    named = {n: p for n, p in state.params.items() if n.startswith("policy.")}
    leaves = {n: p.detach().clone().requires_grad_() for n, p in named.items()}
    net = {n.removeprefix("policy."): p for n, p in leaves.items()}
    logits = torch.func.functional_call(engine.objective.policy, net, (torch.eye(3, dtype=torch.float64),))
    return leaves, logits.softmax(-1)


def every_trajectory(mdp, policy):
    """All trajectories as a batch, each weighed by its probability."""
    states, actions, steps = 3, 2, mdp.horizon
    rows = list(itertools.product(*([range(states), range(actions)] * steps)))
    s, a = torch.tensor(rows)[:, 0::2], torch.tensor(rows)[:, 1::2]
    chance = mdp.start[s[:, 0]] * policy.detach()[s, a].prod(1)
    chance = chance * mdp.transition[s[:, :-1], a[:, :-1], s[:, 1:]].prod(1)
    mask = (s != END).double()
    return {
        "observation": one_hot(s, states).double(),
        "action": a,
        "reward": torch.where(mask > 0, mdp.reward[s, a], 99.0),  # what is masked must not matter
        "mask": mask,
        "weight": chance,
    }


def exact(mdp, leaves, policy, discount, whole):
    """The gradient by dynamic programming: of the discounted return (`whole`), or of the usual
    practice, whose states count undiscounted."""
    value, values = torch.zeros(3, dtype=torch.float64), []
    for _ in range(mdp.horizon):
        values.append(mdp.reward + discount * mdp.transition @ value)
        value = (policy * values[-1]).sum(-1)
    if whole:
        total = mdp.start @ value
    else:
        total, visits = torch.zeros((), dtype=torch.float64), mdp.start
        for q in reversed(values):
            total = total + visits @ (policy * q.detach()).sum(-1)
            visits = torch.einsum("s,sa,sax->x", visits, policy.detach(), mdp.transition)
    return dict(zip(leaves, torch.autograd.grad(-total, list(leaves.values())), strict=True))


def assert_same(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, g in expected.items():
        assert g.abs().max() > 1e-4
        torch.testing.assert_close(found[name], g, **(tolerance or {"rtol": 1e-10, "atol": 1e-12}))


@pytest.mark.parametrize(
    ("discount", "whole"), [(1.0, False), (1.0, True), (0.9, True), (0.9, False), (0.0, True), (0.0, False)]
)
def test_expected_gradient_is_exact(discount, whole):
    mdp = world()
    objective = REINFORCE(hidden=(5,), discount=discount, exact=whole, baseline="none")
    engine, state = engine_of(objective, Rollouts(mdp))
    leaves, policy = policy_of(engine, state)
    batch = every_trajectory(mdp, policy)
    assert batch["weight"].sum().item() == pytest.approx(1.0, abs=1e-12)
    expected = exact(mdp, leaves, policy, discount, whole)
    assert_same(gradient_of(engine, state, batch), expected)

    # A baseline that depends on time and state, but not on the action, leaves the expectation alone.
    seen = batch["observation"].argmax(-1)
    shift = torch.randn(3, mdp.horizon, dtype=torch.float64)[seen, torch.arange(mdp.horizon)]
    advantage = engine.objective.credit(batch)["advantage"] - shift
    assert_same(gradient_of(engine, state, {**batch, "advantage": advantage}), expected)


def pairs(objective, single):
    """All pairs of independent trajectories, each pair credited together."""
    parts, weights = [], []
    for i, j in itertools.product(range(len(single["weight"])), repeat=2):
        weight = single["weight"][i] * single["weight"][j]
        if weight > 0:
            pair = {n: v[[i, j]] for n, v in single.items() if n != "weight"}
            parts.append({**pair, **objective.credit(pair)})
            weights.append(weight.expand(2))
    return {**{n: torch.cat([p[n] for p in parts]).detach() for n in parts[0]}, "weight": torch.cat(weights)}


def of_the_policy(gradient):
    return {name: g for name, g in gradient.items() if name.startswith("policy.")}


@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("baseline", ["time", "leave-one-out", "optimal", "learned"])
def test_baselines_are_unbiased(baseline, discount):
    """Over all pairs of independent trajectories, each the other's baseline."""
    mdp = world(horizon=2)
    objective = REINFORCE(hidden=(5,), discount=discount, exact=True, baseline=baseline)
    engine, state = engine_of(objective, Rollouts(mdp))
    leaves, policy = policy_of(engine, state)
    batch = pairs(engine.objective, every_trajectory(mdp, policy))
    expected = exact(mdp, leaves, policy, discount, True)
    assert_same(of_the_policy(gradient_of(engine, state, batch)), expected)
    assert batch["advantage"].sub(objective._return(batch) * batch["mask"]).abs().max() > 0.1


def test_the_mutant_whose_own_actions_move_its_baseline_is_biased():
    class Own(REINFORCE):
        def _baseline(self, gain, batch):
            return gain * 0.5 + super()._baseline(gain, batch) * 0.5

    mdp = world(horizon=2)
    engine, state = engine_of(Own(hidden=(5,), discount=1.0), Rollouts(mdp))
    leaves, policy = policy_of(engine, state)
    found = gradient_of(engine, state, pairs(engine.objective, every_trajectory(mdp, policy)))
    expected = exact(mdp, leaves, policy, 1.0, True)
    assert max((found[n] - g).abs().max() for n, g in expected.items()) > 1e-3


def test_the_mean_of_all_shrinks_the_gradient_and_nothing_else():
    mdp = world(horizon=2)
    engine, state = engine_of(REINFORCE(hidden=(5,), discount=1.0, baseline="mean"), Rollouts(mdp))
    leaves, policy = policy_of(engine, state)
    single = every_trajectory(mdp, policy)
    seen = single["observation"].argmax(-1)
    single |= {"mask": torch.ones_like(single["mask"]), "reward": mdp.reward[seen, single["action"]]}
    expected = {n: 0.5 * g for n, g in exact(mdp, leaves, policy, 1.0, True).items()}  # 1 - 1 / 2
    assert_same(gradient_of(engine, state, pairs(engine.objective, single)), expected)


@pytest.mark.parametrize(("baseline", "variance"), [("none", 0.0009), ("time", 0.0576), ("optimal", 0.0)])
def test_a_baseline_may_raise_the_variance(baseline, variance):
    """Two arms, chosen with .9 and .1, worth 1 and 0: of the gradient in the first logit."""
    bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[1.0, 0.0]]), horizon=1)
    engine, _ = engine_of(REINFORCE("linear(bias=False)", baseline=baseline), Rollouts(bandit))
    objective = engine.objective
    with torch.no_grad():
        next(objective.policy.parameters()).copy_(torch.tensor([[0.9], [0.1]]).log())
    action = (torch.arange(10_000) >= 9_000).long()[:, None]
    ones = torch.ones(10_000, 1, dtype=torch.float64)
    batch = {"observation": ones[..., None], "action": action, "reward": (action == 0).double(), "mask": ones}
    advantage = objective.credit(batch)["advantage"][:, 0]
    score = (action[:, 0] == 0).double() - 0.9
    found = (advantage * score).var(correction=0).item()
    assert found == pytest.approx(variance, abs=1e-6 + 2e-3 * variance)
    if baseline == "optimal":  # of the others, to b = .1
        assert (advantage - batch["reward"][:, 0] + 0.1).abs().max() < 2e-3
        for b in np.linspace(-0.5, 1.5, 41):
            assert ((batch["reward"][:, 0] - b) * score).var(correction=0).item() >= found - 1e-9


class Throw:
    """One throw at a mark: the reward is minus the squared distance."""

    observation, action, horizon = Field((1,), torch.float32), Field((2,), torch.float32), 1

    def reset(self, keys):
        return torch.zeros(len(keys)), torch.ones(len(keys), 1)

    def step(self, position, action, keys):
        reward = -(action - torch.tensor([1.0, -0.5])).square().sum(-1)
        return position, torch.ones(len(keys), 1), reward, torch.ones_like(position, dtype=torch.bool)


@pytest.mark.parametrize("baseline", ["none", "optimal"])
def test_numbers_as_actions_have_the_exact_gradient(baseline):
    """d/dmean E = - 2 (mean - mark), d/dlog deviation E = - 2 deviation^2."""
    source = Rollouts(Throw(), envs=40_000)
    engine, state = engine_of(REINFORCE("linear", baseline=baseline, deviation=0.5), source)
    batch = next(source.batches(state))
    output = engine.objective(batch)
    each = torch.autograd.grad(output.losses.mean(), [output.logits], retain_graph=True)[0][:, 0] * len(batch["mask"])
    expected = torch.tensor([-2.0, 1.0, 0.5, 0.5]).double()
    error = each.std(0) / len(each) ** 0.5
    assert ((each.mean(0) - expected).abs() < 4 * error).all()
    assert (error < 0.05).all()
    learner = Learner(REINFORCE("linear"), optimizer=Optimizer("adam", lr=0.05), steps=150, random_state=0)
    found = learner.fit(Rollouts(Throw(), envs=64)).act([[1.0]])
    np.testing.assert_allclose(found, [[1.0, -0.5]], atol=0.15)


def test_only_legal_actions_are_drawn():
    from tests.sources.test_masks import CELLS, Ledge

    for baseline in ("optimal", "learned"):
        objective = REINFORCE(hidden=(16,), baseline=baseline, entropy_weight=0.01)
        played = objective.plays(Ledge(), envs=8)
        learner = Learner(objective, steps=40, random_state=0, validation=Rollouts(Ledge(), envs=2, greedy=True))
        learner.fit(played)
        assert learner.history_["valid_return"][-1] == pytest.approx(1 - 0.05 * (CELLS - 1), abs=1e-5)


@pytest.mark.parametrize("baseline", ["time", "none"])
def test_rollouts_gradient_agrees_with_the_exact_one(baseline):
    mdp = world()
    source = Rollouts(mdp, envs=128)
    engine, state = engine_of(REINFORCE(hidden=(4,), discount=0.9, exact=True, baseline=baseline), source)
    leaves, policy = policy_of(engine, state)
    expected = exact(mdp, leaves, policy, 0.9, True)
    stream, found = source.batches(state), []
    for _ in range(60):
        gradient = gradient_of(engine, state, next(stream))
        found.append(torch.cat([gradient[n].reshape(-1) for n in expected]))
        state.step += 1
    draws = torch.stack(found)
    error = draws.std(0) / len(draws) ** 0.5
    truth = torch.cat([g.reshape(-1) for g in expected.values()])
    live = error > 1e-12  # units that never fire have no gradient
    assert ((draws.mean(0) - truth).abs()[live] < 4.0 * error[live]).all()
    assert error[live].norm() < 0.2 * truth.norm()


def test_time_baseline_leaves_a_trajectory_itself_out():
    engine, _ = engine_of(REINFORCE(discount=1.0), Rollouts(world()))
    batch = {
        "reward": torch.tensor([[1.0, 1.0, 9.0], [2.0, 2.0, 2.0], [4.0, 9.0, 9.0]]).double(),
        "mask": torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]).double(),
    }
    # Returns-to-go: (2, 1, -), (6, 4, 2), (4, -, -).
    expected = torch.tensor([[2.0 - 5.0, 1.0 - 4.0, 0.0], [6.0 - 3.0, 4.0 - 1.0, 2.0], [4.0 - 4.0, 0.0, 0.0]]).double()
    torch.testing.assert_close(engine.objective.credit(batch)["advantage"], expected)


def test_loss_of_a_trajectory_stands_by_itself():
    engine, state = engine_of(REINFORCE(), Rollouts(world(), envs=6))
    batch = next(Rollouts(world(), envs=6).batches(state))
    whole = engine.objective(batch).losses
    alone = torch.cat([engine.objective({n: v[i : i + 1] for n, v in batch.items()}).losses for i in range(6)])
    assert whole.shape == (6,)
    torch.testing.assert_close(whole, alone)


def test_distribution_is_of_whole_trajectories_and_constant_after_their_end():
    engine, state = engine_of(REINFORCE(discount=1.0), Rollouts(world(), envs=16))
    batch = next(Rollouts(world(), envs=16).batches(state))
    assert 0 < batch["mask"].sum() < batch["mask"].numel()
    output = engine.objective({**batch, "advantage": torch.ones_like(batch["reward"])})
    assert isinstance(output, Output)
    blank = (1.0 - batch["mask"]).sum(-1) * np.log(2.0)
    score = engine.objective.distribution(output).log_prob(batch["action"])
    torch.testing.assert_close(score, -output.losses - blank)
    scores = torch.autograd.grad(score.sum(), list(engine.objective.parameters()), retain_graph=True)
    losses = torch.autograd.grad(-output.losses.sum(), list(engine.objective.parameters()))
    for a, b in zip(scores, losses, strict=True):
        torch.testing.assert_close(a, b)


def test_fisher_information_of_trajectories_is_exact():
    """EWC's precision, against all sequences of actions for the observations that were made."""
    mdp = world()
    source = Rollouts(mdp, envs=5)
    built = build(REINFORCE(hidden=(4,)), source.spec, 0, torch.float64)
    engine = Engine(built, EWC(normalize=False), {"": Optimizer("sgd", lr=0.1)})
    state = engine.init([0], torch.device("cpu"))
    engine.consolidate(state, source, "task")
    found = state.strategy[""]["tasks"]["task"]["precision"]
    batch = next(source.once(state, 5))
    expected = {n: torch.zeros_like(p) for n, p in state.params.items()}
    for i, actions in itertools.product(range(5), itertools.product(range(2), repeat=mdp.horizon)):
        leaves = {n: p.detach().clone().requires_grad_() for n, p in state.params.items()}
        row = {n: v[i : i + 1] for n, v in batch.items()}
        row |= {"action": torch.tensor([actions]), "advantage": torch.ones(1, mdp.horizon).double()}
        output = torch.func.functional_call(built, leaves, (row,))
        blank = (1.0 - row["mask"]).sum() * np.log(2.0)
        chance = (-output.losses - blank).exp().item()
        for name, g in zip(leaves, torch.autograd.grad(output.losses.sum(), list(leaves.values())), strict=True):
            expected[name] += chance * g.square()
    assert_same(found, expected)


def played(learner, envs=128, greedy=False):
    """The mean return of fresh episodes."""
    _, state = learner.training_.runs[0]
    batch = next(Rollouts(CartPole(), envs=envs, greedy=greedy).once(state, envs))
    return (batch["reward"] * batch["mask"]).sum(1).mean().item()


@pytest.mark.parametrize("kind", ["tensors", "gymnasium"])
@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/rollouts.py")
def test_cartpole_is_solved(kind):
    if kind == "gymnasium":
        pytest.importorskip("gymnasium")
    environment = CartPole() if kind == "tensors" else "CartPole-v1"
    learner = Learner(REINFORCE(), optimizer=Optimizer("adam", lr=0.03), steps=30, random_state=0)
    learner.fit(Rollouts(environment, envs=32))
    assert learner.history_["return"][0] < 50
    assert played(learner) >= 475
    assert played(learner, greedy=True) >= 475
    assert learner.act(np.zeros((3, 4))).shape == (3,)
    assert learner.act([0.0, 0.0, 0.2, 1.0]) == 1
    assert learner.act([0.0, 0.0, -0.2, -1.0]) == 0


def test_replica_is_the_single_run():
    settings = {"steps": 4}
    source = Rollouts(CartPole(), envs=8, horizon=60)
    both = Learner(REINFORCE(hidden=(8,)), replicas=2, random_state=3, **settings).fit(source)
    for k in range(2):
        alone = Learner(REINFORCE(hidden=(8,)), random_state=3 + k, **settings).fit(source)
        for name, value in alone.training_.runs[0][1].params.items():
            torch.testing.assert_close(both.replica(k).training_.runs[0][1].params[name], value)
    with pytest.raises(ValueError, match="expected one replica to answer 'act'"):
        both.act(np.zeros(4))


def test_and_mask_over_levels():
    levels = [CartPole(), CartPole()]
    learner = Learner(REINFORCE(hidden=(8,)), strategy=ANDMask(threshold=0.5), steps=3, random_state=0)
    learner.fit(Rollouts(levels, envs=4, horizon=30))
    assert np.isfinite(learner.history_["return"]).all()
    with pytest.raises(ValueError, match="compares environments"):
        learner.fit(Rollouts(CartPole(), envs=4))


def test_validation_is_by_greedy_episodes_for_each_replica():
    fresh = Rollouts(CartPole(), envs=4, horizon=30, greedy=True)
    learner = Learner(REINFORCE(hidden=(8,)), steps=2, replicas=2, validation=fresh, random_state=0)
    learner.fit(Rollouts(CartPole(), envs=4, horizon=30))
    assert learner.history_["valid_return"].shape == (2, 2)
    assert (learner.history_["valid_return"] >= 1).all()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (REINFORCE(discount=1.5), "expected REINFORCE's discount to be a number in"),
        (REINFORCE(baseline="tme"), "did you mean 'time'"),
        (REINFORCE(torch.nn.Linear(4, 3)), "expected a policy whose answer"),
        (REINFORCE(critic="mlp"), "expected baseline='learned' beside a critic"),
        (REINFORCE(bounds="squash"), "expected actions that are numbers for REINFORCE"),
    ],
)
def test_bad_settings(objective, message):
    with pytest.raises(ValueError, match=message):
        Learner(objective, steps=1).fit(Rollouts(CartPole(), envs=2))


def test_what_cannot_be():
    with pytest.raises(TypeError, match=r"expected a world that REINFORCE learns in by acting.*got array"):
        Learner(REINFORCE(), steps=1).fit(np.zeros((4, 2)))
    for strategy in (MAML(), AdversarialTraining()):
        with pytest.raises(ValueError, match="cannot train REINFORCE"):
            Learner(REINFORCE(), strategy=strategy, steps=1).fit(Rollouts(CartPole(), envs=2))
