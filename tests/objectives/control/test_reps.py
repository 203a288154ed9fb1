"""Policies regularized by KL: what they are fitted to is their closed form, in either direction."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from tests.objectives.control.test_actor_critic import WORLDS
from torch import nn

from weft import Learner, Optimizer
from weft.data import CartPole, FiniteMDP
from weft.engine.build import build
from weft.objectives import PPO, REPS
from weft.objectives.control.reps import temperature_of, tilted
from weft.sources import Replay, Rollouts, Segments
from weft.strategies import TrustRegion
from weft.testing import check_objective

STATES, ACTIONS = 3, 4
PLAIN = {"hidden": (), "normalize": False, "trace": 1.0}


def bandits():
    """Episodes of one step, in one of three states."""
    torch.manual_seed(4)
    over = torch.ones(STATES, ACTIONS, STATES, dtype=torch.float64)
    reward = torch.randn(STATES, ACTIONS, dtype=torch.float64)
    start = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return FiniteMDP(over / STATES, reward, start=start, ends=over.bool())


def made(cls, **settings):
    """An objective of tables, its policy drawn."""
    tables = {name: nn.Linear(STATES, n, bias=False) for name, n in (("policy", ACTIONS), ("critic", 1))}
    objective = build(cls(**PLAIN, **tables, **settings), Segments(bandits(), envs=2).spec, 0, torch.float64)
    with torch.no_grad():
        for p in objective.parameters():
            p.copy_(torch.randn_like(p))
    return objective


def everything(objective):
    """Each action in each state once, with the probability that the policy does it, and what it is credited with."""
    world, eye = bandits(), torch.eye(STATES, dtype=torch.float64)
    s, a = torch.meshgrid(torch.arange(STATES), torch.arange(ACTIONS), indexing="ij")
    s, a = s.reshape(-1, 1), a.reshape(-1, 1)
    over = torch.ones_like(s, dtype=torch.bool)
    batch = {
        "observation": eye[s],
        "action": a,
        "reward": world.reward[s, a],
        "next_observation": eye[s],
        "terminated": over,
        "truncated": ~over,
    }
    chance = world.start[s[:, 0]] * played(objective)[s[:, 0], a[:, 0]]
    batch = {name: value.detach() for name, value in {**batch, **objective.credit(batch)}.items()}
    return {name: value[:, 0] for name, value in batch.items()}, chance


def played(objective):
    return objective.told(torch.eye(STATES, dtype=torch.float64)).softmax(-1).detach()


def slope_at(objective, policy, batch, chance):
    """The gradient of the expected loss where the policy is this one."""
    with torch.no_grad():
        objective.policy.weight.copy_(policy.log().T)
    loss = (objective(batch).losses * chance).sum()
    return torch.autograd.grad(loss, objective.policy.weight)[0].abs().max().item()


def tilted_by(p, gain):
    q = p * gain.exp()
    return q / q.sum(-1, keepdim=True)


def drawn_in(p, gain):
    """argmax_q E_q[gain] - KL(p || q): p / (c - gain), by halving the interval in which c is."""
    low, high = gain.amax(-1, keepdim=True), gain.amax(-1, keepdim=True) + 1.0
    for _ in range(200):
        c = (low + high) / 2
        large = (p / (c - gain)).sum(-1, keepdim=True) > 1
        low, high = torch.where(large, c, low), torch.where(large, high, c)
    return p / (high - gain)


FORMS = {
    "reps": (lambda: made(REPS, temperature=0.7), lambda p, r: tilted_by(p, r / 0.7)),
    "reverse": (lambda: made(PPO, near="reverse", beta=0.7), lambda p, r: tilted_by(p, r / 0.7)),
    "penalty": (lambda: made(PPO, near="penalty", beta=0.7), lambda p, r: drawn_in(p, r / 0.7)),
}


@pytest.mark.parametrize("name", FORMS)
def test_over_all_actions_the_loss_is_least_at_the_closed_form(name):
    """Of each direction its own; the other's is no minimum of it, nor is another temperature's."""
    make, form = FORMS[name]
    objective, reward = make(), bandits().reward
    batch, chance = everything(objective)
    p = played(objective)
    assert slope_at(objective, form(p, reward), batch, chance) < 1e-12
    opposite = tilted_by if name == "penalty" else drawn_in
    for other in (p, form(p, 2 * reward), opposite(p, reward / 0.7)):
        assert slope_at(objective, other, batch, chance) > 1e-3


def test_the_closed_form_is_the_best_of_many():
    """E_q[R] - temperature KL(q || p) at it, and at policies drawn around it."""
    p, reward = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([1.0, 0.0, -2.0]).double()

    def worth(q):
        return (q * reward).sum(-1) - 0.7 * (q * (q / p).log()).sum(-1)

    best = tilted_by(p, reward / 0.7)
    torch.manual_seed(0)
    others = (best.log() + 0.3 * torch.randn(1000, 3).double()).softmax(-1)
    assert (worth(others) < worth(best)).all()
    assert worth(best).item() == pytest.approx(0.7 * (p * (reward / 0.7).exp()).sum().log().item())


def test_what_it_learns_by_acting_is_the_closed_form_of_what_was_played():
    """One segment, until nothing changes: exactly by its frequencies, by the true ones as far as chance lets it."""
    policy = nn.Linear(STATES, ACTIONS, bias=False)
    objective = REPS(policy, critic=nn.Linear(STATES, 1), **PLAIN, temperature=0.7)
    source = Segments(bandits(), envs=16, length=64, passes=1000)
    learner = Learner(
        objective, optimizer=Optimizer("adam", lr=0.2), schedule="linear", steps=1000, dtype="float64", random_state=0
    ).fit(source)
    segment = learner.training_.runs[0].state.source["segment"]
    states, reward = segment["observation"].argmax(-1), bandits().reward
    p = torch.stack([segment["told"][states == s][0] for s in range(STATES)]).softmax(-1)
    found = learner.module().told(torch.eye(STATES, dtype=torch.float64)).softmax(-1)
    weight = torch.zeros(STATES, ACTIONS, dtype=torch.float64)
    weight.index_put_((states, segment["action"]), (reward / 0.7).exp()[states, segment["action"]], accumulate=True)
    torch.testing.assert_close(found, weight / weight.sum(-1, keepdim=True), atol=1e-4, rtol=0)
    assert (found - tilted_by(p, reward / 0.7)).abs().max() < 0.1
    assert (p - tilted_by(p, reward / 0.7)).abs().max() > 0.3


def test_the_temperature_of_a_radius_is_the_least_of_the_dual():
    torch.manual_seed(1)
    gain, counts = torch.randn(6, 50).double(), (torch.rand(6, 50) < 0.7).double()
    own = gain[counts > 0].numpy()

    def dual(log, radius):
        return np.exp(log) * (radius + np.log(np.mean(np.exp((own - own.max()) / np.exp(log))))) + own.max()

    for radius in (1e-3, 0.1, 2.0):
        found = temperature_of(gain, counts, radius).item()
        around = (math.log(found) - 1, math.log(found) + 1)
        assert minimize_scalar(dual, around, args=(radius,)).x == pytest.approx(math.log(found), abs=1e-4)
        weight = tilted(gain, counts, found)
        assert (torch.special.xlogy(weight, weight).sum() / counts.sum()).item() == pytest.approx(radius, rel=1e-6)
        assert weight.sum().item() == pytest.approx(counts.sum().item())
        assert not weight[counts == 0].any()
    alike, one = torch.full((2, 3), 5.0), torch.ones(2, 3)
    assert torch.equal(tilted(alike, one, temperature_of(alike, one, 0.1)), one)


def test_a_radius_is_kept_in_every_segment():
    objective = REPS(temperature=None, radius=0.2, hidden=(8,))
    learner = Learner(objective, steps=3, every=1, random_state=0, replicas=2)
    learner.fit(Segments(CartPole(), envs=4, length=32))
    share = learner.training_.runs[0].state.source["segment"]["share"].flatten(1)
    kl = torch.special.xlogy(share, share).mean(1)
    torch.testing.assert_close(kl, torch.full((2,), 0.2), rtol=1e-3, atol=0)
    np.testing.assert_allclose(learner.history_["heard"][-1], 1 / share.square().mean(1), rtol=1e-4)


@pytest.mark.parametrize(
    ("at", "memory", "near"),
    [
        ("classes", None, {}),
        ("numbers", None, {"temperature": None, "radius": 0.1}),
        ("classes", "gru", {"temperature": None, "radius": 0.1}),
    ],
)
def test_a_replica_is_the_single_run(at, memory, near):
    def fitted(**settings):
        objective = REPS(hidden=(8,), memory=memory, **near)
        source = Segments(WORLDS[at](), envs=4, length=6, horizon=5, passes=2, batch_size=2 if memory else 12)
        return Learner(objective, steps=5, every=1, dtype="float64", **settings).fit(source)

    both = fitted(replicas=2, random_state=3)
    for k in range(2):
        alone = fitted(random_state=3 + k)
        for name, value in alone.training_.runs[0].state.params.items():
            torch.testing.assert_close(both.replica(k).training_.runs[0].state.params[name], value)
        for name in ("loss", "kl", "heard"):
            np.testing.assert_allclose(both.history_[name][:, k], alone.history_[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("objective", "at"),
    [
        (REPS(hidden=(8,)), "choices"),
        (REPS(hidden=(8,), memory="gru"), "classes"),
        (PPO(hidden=(8,), near="reverse"), "numbers"),
    ],
)
def test_they_hold_to_what_they_declare(objective, at):
    check_objective(objective, Segments(WORLDS[at](), envs=4, length=6, horizon=5))


def test_a_trust_region_keeps_it_near():
    source = Segments(CartPole(), envs=8, length=32)
    settings = {"steps": 4, "random_state": 0, "every": 1, "optimizer": Optimizer("sgd", lr=0.01)}
    learner = Learner(REPS(hidden=(8,)), strategy=TrustRegion(radius=0.01), **settings).fit(source)
    assert 0 < learner.history_["kl"].max() <= 0.01 * (1 + 1e-4)


def test_what_cannot_be():
    def begun(**settings):
        Learner(REPS(**settings), steps=1).fit(Segments(CartPole(), envs=2, length=4))

    for settings in ({"temperature": 0.0}, {"temperature": -1.0}, {"temperature": None, "radius": 0.0}):
        wrong = next(name for name, value in settings.items() if value is not None)
        with pytest.raises(ValueError, match=f"expected REPS's {wrong}"):
            begun(**settings)
    for settings in ({"radius": 0.1}, {"temperature": None}):
        with pytest.raises(ValueError, match="expected a temperature or a radius for REPS"):
            begun(**settings)
    with pytest.raises(ValueError, match=r"expected a radius below 2\.08 nats, as far as a policy of these 8 steps"):
        begun(temperature=None, radius=2.5)
    with pytest.raises((ValueError, TypeError), match="together"):
        Learner(REPS(), steps=1).fit(Replay(CartPole(), envs=2))
    with pytest.raises(TypeError, match="expected a world that REPS learns in by acting"):
        Learner(REPS(), steps=1).fit(np.zeros((4, 2)))


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/segments.py")
def test_it_learns_to_balance():
    objective = REPS(discount=0.98, trace=0.8)
    source = objective.plays(CartPole(), envs=16, length=32, passes=8, batch_size=512)
    learner = Learner(objective, optimizer=Optimizer("adam", lr=3e-3), clip=0.5, env_steps=80_000, random_state=1)
    learner.fit(source)
    batch = next(Rollouts(CartPole(), envs=64, greedy=True).once(learner.training_.runs[0].state, 64 * 500))
    assert batch["reward"].mul(batch["weight"]).sum().item() / 64 > 400
