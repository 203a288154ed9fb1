"""The deterministic actor and its twin critics: targets by hand, cadence, and what is refused."""

import math

import numpy as np
import pytest
import torch
from tests.contract.cases import Target
from tests.objectives.control.test_dqn import Two
from tests.objectives.control.test_sac import SMALL, SPEC, Unbounded, batch_of, state_of_game
from torch import nn

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed, normal
from weft.data import CartPole, Pendulum
from weft.objectives import TD3
from weft.sources import Replay
from weft.testing import check_objective


def built(cls=TD3, **settings):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        objective = cls(**{"hidden": (8,), "discount": 0.5, "jitter": 0.6, "most": 0.5, **settings})
        objective.build(SPEC)
    finally:
        torch.set_default_dtype(torch.float32)
    for value in (*objective.slow.buffers(), *objective.slow_actor.buffers()):
        if value.is_floating_point():
            value.mul_(0.7).add_(0.1)  # another word than that of now
    return objective.double().eval()


def by_hand(objective, batch, key):
    """The critics' losses, in a loop over the rows; actions of the world lie in [-2, 2]."""
    rows = len(batch["reward"])
    with keyed(key, torch.arange(rows)):
        z = normal((rows, 1), place="jitter", dtype=torch.float64)
    found = []
    for i in range(rows):
        after, here = batch["next_observation"][i : i + 1], batch["observation"][i : i + 1]
        jitter = min(max(0.6 * z[i].item(), -0.5), 0.5)
        unit = min(max(math.tanh(objective.slow_actor(after).item()) + jitter, -1.0), 1.0)
        worth = objective.slow(after, torch.tensor([[unit]]).double()).min()
        goal = batch["reward"][i] + (0.0 if batch["terminated"][i] else 0.5 * worth)
        found.append((objective.critics(here, batch["action"][i : i + 1] / 2) - goal).square().sum())
    return torch.stack(found)


class Ended(TD3):
    """A mutant: takes a step that was cut for one that has ended."""

    def _surprise(self, batch):
        return super()._surprise({**batch, "terminated": batch["terminated"] | batch["truncated"]})


class Quick(TD3):
    """A mutant: its targets are not slow."""

    def _surprise(self, batch):
        slow, self._modules["slow"] = self.slow, self.critics
        try:
            return super()._surprise(batch)
        finally:
            self._modules["slow"] = slow


@pytest.mark.parametrize("cls", [TD3, Ended, Quick])
def test_targets_by_hand(cls):
    objective, batch = built(cls), batch_of(9)
    with keyed(key_of(4), torch.arange(9)):
        losses = objective(batch, "critics").losses
    assert torch.allclose(losses, by_hand(objective, batch, key_of(4))) == (cls is TD3)


def test_the_actor_follows_the_first_critics_slope():
    """By the chain rule: dQ_1/da through tanh."""
    objective, batch = built(), batch_of(6)
    seen = batch["observation"]
    slopes = torch.autograd.grad(objective(batch, "actor").losses.sum(), list(objective.actor.parameters()))
    unit = objective.actor(seen).tanh().detach().requires_grad_()
    (steep,) = torch.autograd.grad(objective.critics(seen, unit)[0].sum(), unit)
    expected = torch.autograd.grad((-steep * objective.actor(seen).tanh()).sum(), list(objective.actor.parameters()))
    for mine, theirs in zip(slopes, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_actor_and_the_slow_copies_move_now_and_then():
    engine, state = state_of_game(Replay(Target(), **SMALL), TD3(hidden=(4,), rate=0.5, actor_every=3))
    stream, moved, followed = engine.batches(Replay(Target(), **SMALL), state), [], []
    for _ in range(9):
        before = {n: v.clone() for n, v in {**state.params, **state.buffers}.items()}
        engine.step(state, next(stream))
        moved.append(not torch.equal(before["actor.head.weight"], state.params["actor.head.weight"]))
        name = "slow.nets__0__head__weight"
        followed.append(not torch.equal(before[name], state.buffers[name]))
    assert moved == [t % 3 == 0 for t in range(9)]
    assert followed == moved


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/replay.py")
def test_it_learns_what_is_to_be_said():
    source = Replay(Target(), envs=4, start=256, batch_size=64, every=4, updates_each=4, explore=0.5)
    settings = {"optimizer": Optimizer("adam", lr=3e-3), "schedule": "linear", "steps": 1500, "random_state": 0}
    learner = Learner(TD3(hidden=(64, 64), discount=0.5, rate=0.05), **settings).fit(source)
    shown = np.linspace(-0.9, 0.9, 7, dtype=np.float32)[:, None]
    np.testing.assert_allclose(learner.act(shown), -shown / 2, atol=0.15)
    assert learner.value(shown).max() < 0.2
    assert learner.q(shown, action=-shown / 2).mean() > learner.q(shown, action=1 - shown / 2).mean() + 0.5


def test_what_is_played_has_noise_between_the_bounds():
    objective = built(noise=0.3)
    seen = torch.zeros(4000, 2, dtype=torch.float64)
    with keyed(key_of(0), torch.arange(4000)):
        apart = objective.sample_action(seen) - objective.act(seen)
    assert apart.std().item() == pytest.approx(0.6, abs=0.03)  # in the world's units
    with keyed(key_of(0), torch.arange(4000)):
        assert built(noise=5.0).sample_action(seen).abs().max().item() == 2.0


def test_the_contract_and_replicas():
    check_objective(TD3(hidden=(8,)), Replay(Pendulum(), **SMALL))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": -1.0}, "expected TD3's noise to be a number >= 0"),
        ({"actor_every": 0}, "expected TD3's actor_every to be an integer >= 1"),
        ({"actor": nn.Linear(3, 2)}, r"expected a actor whose answer .* has shape \(2, 1\)"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(TD3(**settings), steps=1).fit(Replay(Pendulum()))


def test_what_cannot_be():
    for world in (CartPole, Two):
        with pytest.raises(ValueError, match=r"expected actions between finite bounds for TD3, got finitely many; DQN"):
            Learner(TD3(), steps=1).fit(Replay(world()))
    with pytest.raises(ValueError, match=r"got numbers without bounds; let the world say low and high"):
        Learner(TD3(), steps=1).fit(Replay(Unbounded(), explore=0.0))
    with pytest.raises(TypeError, match=r"expected a world that TD3 learns in by acting.*got array"):
        Learner(TD3(), steps=1).fit(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="a player of TD3"):
        built()(batch_of(2), "critic")
