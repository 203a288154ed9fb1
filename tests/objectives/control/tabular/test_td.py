"""Temporal differences: returns by hand, both views of traces, fixed points, targets, and what is refused."""

import copy

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.data import CliffWalking, FiniteMDP, GridWorld, Pendulum, Taxi
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import begun
from weft.objectives import TD, PolicyEvaluation, TDControl, TrueOnlineTD, ValueIteration
from weft.objectives.control.tabular import td as td_file
from weft.objectives.control.tabular.returns import first_visits, returns
from weft.objectives.control.tabular.true_online_td import true_online
from weft.sources import Replay, Rollouts, Segments, Tables
from weft.strategies import ERM, ANDMask

SGD = Optimizer("sgd", lr=1.0)


def walk(states=5, horizon=100):
    """The random walk: from the middle left or right, worth 1 at the right end."""
    last = states + 1
    to = torch.tensor([[max(s - 1, 0), min(s + 1, last)] for s in range(last + 1)])
    reward = torch.zeros(last + 1, 2, last + 1)
    reward[last - 1, 1, last] = 1.0
    start = torch.zeros(last + 1)
    start[(last + 1) // 2] = 1.0
    ends = torch.zeros(last + 1, dtype=torch.bool)
    ends[[0, last]] = True
    return FiniteMDP(torch.eye(last + 1)[to], reward, start=start, ends=ends, horizon=horizon)


def state_of(objective, source, dtype=torch.float64):
    """(engine, state), before the first step."""
    built = build(copy.deepcopy(objective), source.spec, 0, dtype)
    engine = Engine(built, ERM(), {"": SGD}, grouped=source.grouped)
    state = engine.init([0], torch.device("cpu"))
    state.source = begun(source, state)
    return engine, state


def played(objective, source):
    """A batch, as it is learned from, with the engine and the state that has played it."""
    engine, state = state_of(objective, source)
    with torch.no_grad():
        for p in state.params.values():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))
    return engine, state, next(source.batches(state))


def gradient_of(engine, state, batch):
    return engine.gradient(state, engine.numbered(batch, grouped=engine.grouped), "")[0]


# --- returns -----------------------------------------------------------------------------------------------


def stretches(envs=6, time=7, seed=0):
    """Random play with ends and cuts in it."""
    torch.manual_seed(seed)
    ends = torch.rand(envs, time)
    batch = {"reward": torch.randn(envs, time).double(), "terminated": ends < 0.15, "truncated": ends > 0.85}
    return batch, torch.randn(envs, time).double(), torch.randn(envs, time).double()


def n_step(batch, after, i, t, n, discount):
    """r_t + ... + discount^(n-1) r + discount^n v, or less where it ends; and whether it could go on."""
    total, time = 0.0, batch["reward"].shape[1]
    for k in range(n):
        total += discount**k * batch["reward"][i, t + k]
        if batch["terminated"][i, t + k]:
            return total, False
        if batch["truncated"][i, t + k] or t + k == time - 1:
            return total + discount ** (k + 1) * after[i, t + k], False
    return total + discount**n * after[i, t + n - 1], True


@pytest.mark.parametrize("n", [1, 3, 50])
def test_n_step_returns_by_hand(n):
    """Where nothing begins anew, the state that is come to is the next one."""
    batch, value, after = stretches()
    value[:, 1:] = torch.where((batch["terminated"] | batch["truncated"])[:, :-1], value[:, 1:], after[:, :-1])
    found = returns(batch, value, after, discount=0.9, trace=1.0, steps=n)
    hand = [[n_step(batch, after, i, t, n, 0.9)[0] for t in range(7)] for i in range(6)]
    torch.testing.assert_close(found, torch.tensor(hand).double())


@pytest.mark.parametrize("trace", [0.0, 0.4, 1.0])
def test_lambda_returns_are_mixtures_of_n_step_returns(trace):
    """G = (1 - trace) sum_n trace^(n-1) G^(n), the last one with all that is left of the weight."""
    batch, value, after = stretches(seed=1)
    found = returns(batch, value, after, discount=0.9, trace=trace)
    for i in range(6):
        for t in range(7):
            total, n = 0.0, 1
            while True:
                each, on = n_step(batch, after, i, t, n, 0.9)
                total += (trace ** (n - 1)) * (each if not on else (1 - trace) * each)
                if not on:
                    break
                n += 1
            assert found[i, t] == pytest.approx(float(total))


def test_first_visits_by_hand():
    torch.manual_seed(0)
    seen, ends = torch.randint(3, (5, 12)), torch.rand(5, 12) < 0.2
    batch = {"observation": torch.eye(3)[seen], "terminated": ends, "truncated": ends & False}
    found = first_visits(batch)
    for i in range(5):
        known = set()
        for t in range(12):
            assert found[i, t] == (int(seen[i, t]) not in known)
            known = set() if ends[i, t] else known | {int(seen[i, t])}


# --- both views --------------------------------------------------------------------------------------------


def ignoring(**changed):
    """The mutant: returns with a setting that is ignored."""
    return lambda *args, **settings: returns(*args, **{**settings, **changed})


def backward(batch, weight, discount, trace):
    """The sum over an episode of delta_t z_t, z an accumulating trace, by the values before the episode."""
    total = torch.zeros_like(weight)
    for i in range(len(batch["reward"])):
        eligible = torch.zeros_like(weight)
        for t in range(int(batch["mask"][i].sum())):
            seen, then = batch["observation"][i, t], batch["next_observation"][i, t]
            error = batch["reward"][i, t] + discount * (weight @ then) * ~batch["terminated"][i, t] - weight @ seen
            eligible = discount * trace * eligible + seen
            total += error * eligible
    return total


@pytest.mark.parametrize("trace", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("horizon", [100, 4])
def test_the_forward_view_is_the_backward_view(trace, horizon, monkeypatch):
    objective, source = TD(discount=0.9, trace=trace), Rollouts(walk(), envs=6, horizon=horizon)

    def both():
        engine, state, batch = played(objective, source)
        weight = state.params["net.weight"].squeeze(-1)
        _, whole = source.whole(state, state.key("rollout"))
        rows = batch["reward"].numel() if "weight" not in batch else float(batch["weight"].sum())
        return -gradient_of(engine, state, batch)["net.weight"].squeeze(-1) * rows, backward(whole, weight, 0.9, trace)

    forward, back = both()
    torch.testing.assert_close(forward, back, rtol=1e-9, atol=1e-12)
    if trace > 0:
        monkeypatch.setattr(td_file, "returns", ignoring(trace=0.0))
        forward, back = both()
        assert not torch.allclose(forward, back, rtol=1e-3)


@pytest.mark.parametrize("trace", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cut", [False, True])
def test_true_online_is_the_online_forward_view(trace, cut):
    """At each step h all states of the episode are gone through anew, towards lambda-returns known by h."""
    torch.manual_seed(0)
    time, entries, discount, step = 9, 4, 0.9, 0.2
    seen = torch.randn(time + 1, entries).double()
    over = torch.zeros(time, dtype=torch.bool)
    over[-1] = not cut
    episode = {"observation": seen[:-1], "next_observation": seen[1:], "reward": torch.randn(time).double()}
    begun = torch.randn(entries).double()
    found, errors = true_online(begun, {**episode, "terminated": over}, discount, trace, step)

    weights = [begun]  # those at time h bootstrap what is known at h + 1
    for h in range(1, time + 1):
        now = begun
        for k in range(h):

            def bootstrapped(n, k=k):
                ends = bool(over[k + n - 1])
                value = 0.0 if ends else weights[k + n - 1] @ seen[k + n]
                rewards = sum(discount**j * episode["reward"][k + j] for j in range(n))
                return rewards + discount**n * value

            last = h - k
            goal = (1 - trace) * sum(trace ** (n - 1) * bootstrapped(n) for n in range(1, last))
            goal = goal + trace ** (last - 1) * bootstrapped(last)
            now = now + step * (goal - now @ seen[k]) * seen[k]
        weights.append(now)
    torch.testing.assert_close(found, weights[-1])
    assert errors.shape == (time,)


# --- fixed points ------------------------------------------------------------------------------------------

WALK = np.arange(1, 6) / 6


@pytest.mark.turns("src/weft/objectives/control/tabular/*")
@pytest.mark.parametrize(
    "settings",
    [
        {"trace": 0.0},
        {"trace": 1.0, "steps": 3},
        {"trace": 0.8},
        {"trace": 1.0},
        {"trace": 1.0, "visit": "first"},
    ],
    ids=str,
)
def test_the_random_walk_is_learned(settings):
    """Values of 1/6 to 5/6, to the noise of a step size that falls."""
    objective = TD(discount=1.0, initial=0.5, **settings)
    learner = Learner(objective, optimizer=SGD, schedule="linear", steps=200, random_state=0)
    learner.fit(Rollouts(walk(), envs=128))
    np.testing.assert_allclose(learner.value(np.eye(7)[1:6]), WALK, atol=0.03)


def test_the_random_walk_is_learned_online():
    learner = Learner(TrueOnlineTD(discount=1.0, trace=0.8, step=0.01, episodes=1500), random_state=0)
    learner.fit(Rollouts(walk(), envs=50))
    np.testing.assert_allclose(learner.value(np.eye(7)[1:6]), WALK, atol=0.06)
    assert learner.history_[-1]["episodes"] == 1500


class Away(TD):
    """The mutant: with the sign of the error turned round."""

    def forward(self, batch, player=""):
        output = super().forward(batch)
        output.losses = -output.losses
        return output


@pytest.mark.filterwarnings("ignore")
def test_with_the_wrong_sign_it_diverges():
    far = Learner(Away(discount=1.0, initial=0.5), optimizer=SGD, steps=60, random_state=0)
    far.fit(Segments(walk(), envs=32, length=8))
    assert np.abs(far.value(np.eye(7)[1:6])).max() > 10


def every_step(seed=0, states=4, actions=3):
    """A process, two policies, and all its steps (s, a, s') as rows with their chances under the first."""
    rng = np.random.default_rng(seed)
    p, r = rng.dirichlet(np.ones(states), (states, actions)), rng.normal(size=(states, actions))
    played, judged = rng.dirichlet(np.ones(actions), (2, states))
    s, a, t = (torch.as_tensor(index).flatten() for index in np.indices((states, actions, states)))
    rows = {
        "observation": torch.eye(states, dtype=torch.float64)[s],
        "action": a,
        "reward": torch.as_tensor(r)[s, a],
        "next_observation": torch.eye(states, dtype=torch.float64)[t],
        "terminated": torch.zeros(len(s), dtype=torch.bool),
        "weight": torch.as_tensor(played[s, a] * p[s, a, t]),
    }
    world = FiniteMDP(torch.as_tensor(p), torch.as_tensor(r))
    return world, played, judged, rows


@pytest.mark.parametrize("ratio", [True, False])
def test_off_policy_the_values_of_the_other_policy_stand_still(ratio, monkeypatch):
    """By all steps, each with its chance: v of the judged policy is where the mean update is nothing."""
    world, played_by, judged, rows = every_step()
    if not ratio:
        monkeypatch.setattr(TD, "_ratio", lambda self, batch: None)
    engine, state = state_of(TD(policy=played_by, target=judged, discount=0.9), Segments(world))
    true = Learner(PolicyEvaluation(judged, discount=0.9), dtype="float64").fit(Tables(world)).value(np.eye(4))
    state.params["net.weight"] = torch.as_tensor(true)[:, None].clone().requires_grad_()
    moved = gradient_of(engine, state, rows)["net.weight"].abs().max()
    assert (moved < 1e-12) == ratio


def test_off_policy_returns_keep_the_mean():
    """n-step returns weighed by ratios, averaged over play, are those of the judged policy."""
    world, played_by, judged, _ = every_step(1)
    true = Learner(PolicyEvaluation(judged, discount=0.9), dtype="float64").fit(Tables(world)).value(np.eye(4))
    objective = TD(policy=played_by, target=judged, discount=0.9, trace=1.0, steps=4)
    _, state = state_of(objective, source := Segments(world, envs=4000, length=4))
    state.params["net.weight"] = torch.as_tensor(true)[:, None] + 0.5  # all as wrong
    batch = next(source.batches(state))
    goal = batch["goal"].reshape(4000, 4)[:, 0]
    wrong = goal - torch.as_tensor(true)[batch["observation"].reshape(4000, 4, 4)[:, 0].argmax(-1)]
    error = float(wrong.std()) / 4000**0.5
    assert abs(float(wrong.mean()) - 0.5 * 0.9**4) < 4 * error


# --- control -----------------------------------------------------------------------------------------------


def step(reward=1.0, terminated=False, action=0):
    return {
        "observation": torch.eye(3, dtype=torch.float64)[:1],
        "action": torch.tensor([action]),
        "reward": torch.tensor([reward], dtype=torch.float64),
        "next_observation": torch.eye(3, dtype=torch.float64)[1:2],
        "terminated": torch.tensor([terminated]),
        "truncated": torch.tensor([False]),
    }


TABLE = torch.tensor([[1.0, 2.0], [3.0, 7.0], [0.0, 0.0]], dtype=torch.float64)
OTHER = torch.tensor([[10.0, 20.0], [60.0, 40.0], [0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "goals"),
    [
        ({"target": "q"}, {1 + 0.9 * 7}),
        ({"target": "expected", "epsilon": 0.2}, {1 + 0.9 * (0.9 * 7 + 0.1 * 3)}),
        ({"target": "double"}, {1 + 0.9 * 40, 1 + 0.9 * 3}),
        ({"target": "q", "discount": 0.0}, {1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("terminated", [False, True])
def test_targets_by_hand(settings, goals, terminated):
    _, state = state_of(TDControl(**{"discount": 0.9, **settings}), Segments(GridWorld(["S.G"])))
    both = settings["target"] == "double"
    state.objective.net.weight.data = torch.cat([TABLE, OTHER], 1) if both else TABLE
    state.objective.actions = 2
    from weft.core.random import key_of, keyed

    found = set()
    for seed in range(12):
        with keyed(key_of(seed), torch.arange(1)):
            q, goal = state.objective._goal(step(terminated=terminated))
        found.add(round(float(goal), 9))
        if both:
            chosen = TABLE if torch.equal(q[0], TABLE[0]) else OTHER
            assert torch.equal(q[0], chosen[0])
            if not terminated:  # the table that learns chooses, the other one judges
                assert float(goal) == pytest.approx(1 + 0.9 * (40 if chosen is TABLE else 3))
    assert found == ({1.0} if terminated else {round(goal, 9) for goal in goals})


def test_sarsa_takes_the_action_that_was_played():
    """And at a cut, and at the last step, the mean over actions there."""
    _, state = state_of(TDControl(target="sarsa", discount=0.9, epsilon=0.2), Segments(GridWorld(["S.G"])))
    objective = state.objective
    objective.net.weight.data, objective.actions = TABLE, 2
    rows = torch.eye(3, dtype=torch.float64)
    batch = {
        "observation": rows[[0, 1, 0]][None],
        "next_observation": rows[[1, 1, 1]][None],
        "action": torch.tensor([[1, 0, 1]]),
        "reward": torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64),
        "terminated": torch.zeros(1, 3, dtype=torch.bool),
        "truncated": torch.tensor([[False, True, False]]),
    }
    mean = 0.9 * 7 + 0.1 * 3
    expected = torch.tensor([[1 + 0.9 * 3, 1 + 0.9 * mean, 1 + 0.9 * mean]], dtype=torch.float64)
    torch.testing.assert_close(objective.credit(batch)["goal"], expected)
    batch["terminated"] = torch.tensor([[False, True, False]])
    assert objective.credit(batch)["goal"][0, 1] == 1.0


def test_the_policy_is_epsilon_greedy_evenly_among_the_best():
    objective = TDControl(epsilon=0.3)
    q = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 3.0]])
    legal = torch.tensor([[True, True, True], [True, True, False]])
    expected = torch.tensor([[0.45, 0.45, 0.1], [0.15, 0.85, 0.0]])
    torch.testing.assert_close(objective._law(q, legal), expected)


@pytest.mark.turns("src/weft/objectives/control/tabular/*")
@pytest.mark.parametrize("target", ["q", "double", "expected", "sarsa"])
def test_off_the_cliff(target):
    """Q-learning walks along the edge (-13); SARSA, which knows that it stumbles, keeps away from it."""
    objective = TDControl(target=target, discount=1.0, epsilon=0.1)
    learner = Learner(objective, optimizer=Optimizer("sgd", lr=8.0), env_steps=32_000, random_state=0)
    learner.fit(Segments(CliffWalking(), envs=16, length=1 if target != "sarsa" else 2, horizon=200))
    found = learner.evaluate(CliffWalking(), 1, horizon=60).mean
    assert found == -13 if target == "q" else -60 < found <= -13


@pytest.mark.parametrize("target", ["q", "double"])
def test_q_learning_finds_the_best_values_from_any_play(target):
    world = GridWorld(["..G", ".#P", "S.."], step=-0.04)
    best = Learner(ValueIteration(discount=0.9), dtype="float64").fit(Tables(world))
    objective = TDControl(target=target, discount=0.9, epsilon=1.0)
    learner = Learner(objective, optimizer=Optimizer("sgd", lr=8.0), steps=1000, random_state=0)
    learner.fit(Segments(world, envs=64, length=1))
    states = [s for s in range(8) if s not in (2, 4)]
    np.testing.assert_allclose(learner.q(np.eye(8))[states], best.q(np.eye(8))[states], atol=0.01)


# --- composing ---------------------------------------------------------------------------------------------


def test_masked_over_worlds_is_a_loop_by_hand():
    """AND-mask of TD's gradients in two worlds, those that agree in sign alone moving."""
    worlds = [walk(), walk(horizon=3)]
    objective, source = TD(discount=0.9, trace=0.5), Segments(worlds, envs=4, length=6)
    built = build(copy.deepcopy(objective), source.spec, 0, torch.float64)
    engine = Engine(built, ANDMask(threshold=1.0, rescale=False), {"": SGD}, grouped=True)
    state = engine.init([0], torch.device("cpu"))
    state.source = begun(source, state)
    with torch.no_grad():
        state.params["net.weight"].copy_(torch.linspace(-1, 1, 7)[:, None])
    batch = next(source.batches(state))
    weight = state.params["net.weight"].detach()[:, 0]
    each = torch.stack(
        [
            ((goal - seen @ weight)[:, None] * -seen).mean(0)
            for goal, seen in zip(batch["goal"], batch["observation"], strict=True)
        ]
    )
    expected = each.mean(0) * (each.sign().sum(0).abs() == 2)
    torch.testing.assert_close(gradient_of(engine, state, batch)["net.weight"][:, 0], expected)
    assert 0 < (expected != 0).sum() < 7


def test_any_net_learns():
    learner = Learner(TD("mlp", discount=0.9, hidden=(16,)), optimizer=Optimizer("adam", lr=0.01), steps=200)
    learner.fit(Segments(walk(), envs=16, length=8))
    assert (np.diff(learner.value(np.eye(7)[1:6])) > 0).all()


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TD(steps=3), "trace > 0 beside steps=3"),
        (lambda: TD(trace=1.5), "trace"),
        (lambda: TD(visit="last"), "visit"),
        (lambda: TD("mlp", initial=1.0), "initial with the weights that a table has"),
        (lambda: TD(policy=[[0.5, 0.5]] * 2), "table of 7 states and 2 actions"),
        (lambda: TD(target=[[0.5, 0.6]] * 7), "sum to 1"),
        (lambda: TDControl(target="max"), "target"),
        (lambda: TDControl(target="q", trace=0.5), "trace=0 and no steps with target='q'"),
        (lambda: TDControl(target="sarsa", steps=2), "trace > 0 beside steps=2"),
        (lambda: TrueOnlineTD(step=0.0), "step"),
        (lambda: TrueOnlineTD(policy=[[1.0, 0.0]]), "table of 7 states and 2 actions"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        Learner(make()).fit(Rollouts(walk(), envs=2))


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(ValueError, match="TD learns from what the current policy does, got Replay"):
        Learner(TD(trace=0.5), steps=1).fit(Replay(walk()))
    with pytest.raises(ValueError, match="TDControl learns from what the current policy does, got Replay"):
        Learner(TDControl(target="sarsa"), steps=1).fit(Replay(walk()))
    for make in (TD, TDControl):
        message = rf"expected finitely many actions for {make.__name__}, got numbers of shape \(1,\); PPO, SAC"
        with pytest.raises(ValueError, match=message):
            Learner(make(), steps=1).fit(Segments(Pendulum(), envs=2, length=2))
    with pytest.raises(ValueError, match="expected finitely many actions for TrueOnlineTD, got numbers"):
        Learner(TrueOnlineTD()).fit(Rollouts(Pendulum(), envs=2))
    with pytest.raises(ValueError, match="expected whole episodes for TrueOnlineTD, got rows of observation, action"):
        Learner(TrueOnlineTD()).fit(Segments(walk()))


def test_a_policy_that_would_do_nothing_legal_is_refused():
    """Going down alone, which is not always open to a taxi."""
    down = TD(policy=np.eye(6)[[0] * 500].tolist())
    with pytest.raises(ValueError, match="expected actions to be a class number"):
        Learner(down, steps=50).fit(Segments(Taxi(), envs=16, length=16))
    even = Learner(TD(), steps=2, random_state=0).fit(Segments(Taxi(), envs=16, length=16))
    assert np.isfinite(even.value(np.eye(500))).all()


def test_objectives_say_what_they_learn_from():
    assert isinstance(TD(trace=1.0).plays(walk()), Rollouts)
    assert TD().plays(walk(), length=4).length == 4
    assert TDControl().plays(walk()).length == 1
    assert TDControl(target="sarsa").plays(walk()).length == 16
    assert isinstance(TrueOnlineTD().plays(walk()), Rollouts)
