"""The contract of worlds, and the broken ones that it must catch."""

import pytest
import torch

from weft.core.random import unit
from weft.core.source import Field
from weft.core.world import World
from weft.data import CartPole, FiniteMDP, Platform
from weft.testing import ContractError, any_action, check_world

WORLDS = {
    "cartpole": CartPole(),
    "finite": FiniteMDP(torch.full((3, 2, 3), 1 / 3), torch.eye(3, 2), horizon=5),
    "platform": Platform(range(3)),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_worlds_hold_to_the_contract(world):
    assert isinstance(world, World)
    check_world(world, steps=20)


class Walk:
    """A walk in one dimension."""

    observation = Field((1,), torch.float32, low=(-50.0,), high=(50.0,))
    action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))
    horizon = None

    def reset(self, keys):
        start = unit(keys, (1,))
        return start, start

    def step(self, position, action, keys):
        after = position + action
        return after, after, action[:, 0], after[:, 0].abs() > 3


def step_mixed(self, position, action, keys):
    after = position + action - position.mean()
    return after, after, action[:, 0], after[:, 0].abs() > 3


def step_in_place(self, position, action, keys):
    position += action
    return position, position.clone(), action[:, 0], position[:, 0].abs() > 3


def step_ambient(self, position, action, keys):
    after = position + torch.randn_like(action)
    return after, after, action[:, 0], after[:, 0].abs() > 3


def step_far(self, position, action, keys):
    return position, position + 100.0, action[:, 0], torch.zeros(len(action), dtype=torch.bool)


def step_nan(self, position, action, keys):
    return position, position * torch.nan, action[:, 0], torch.zeros(len(action), dtype=torch.bool)


def step_double(self, position, action, keys):
    return position, position.double(), action[:, 0], torch.zeros(len(action), dtype=torch.bool)


def step_numbers(self, position, action, keys):
    return position, position, action[:, 0], torch.zeros(len(action))


def step_column(self, position, action, keys):
    return position, position, action, torch.zeros(len(action), dtype=torch.bool)


BROKEN = {
    "rows mixed": (step_mixed, "a step of two episodes against those among others"),
    "in place": (step_in_place, "changed in place"),
    "ambient draws": (step_ambient, "the same step twice"),
    "out of bounds": (step_far, "between"),
    "NaN": (step_nan, "finite numbers as observation"),
    "another dtype": (step_double, "expected the observation as"),
    "ended as numbers": (step_numbers, "expected terminated as a truth"),
    "reward as a column": (step_column, "expected a finite reward for each episode"),
}


@pytest.mark.parametrize(("step", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_worlds_are_caught(step, said):
    broken = type("Broken", (Walk,), {"step": step})()
    with pytest.raises(ContractError, match=said):
        check_world(broken, steps=3)


def test_what_a_world_offers_is_checked():
    with pytest.raises(ContractError, match="expected horizon > 0 or None"):
        check_world(type("Broken", (Walk,), {"horizon": 0})())
    never = type("Broken", (CartPole,), {"legal": lambda self, p: torch.zeros(len(p), 2, dtype=torch.bool)})()
    with pytest.raises(ContractError, match="expected an action that is legal in every position"):
        check_world(never)
    dark = type("Broken", (CartPole,), {"render": lambda self, p: torch.zeros(len(p), 4, 4, 3)})()
    with pytest.raises(ContractError, match=r"expected pictures \(n, H, W, 3\) in torch.uint8"):
        check_world(dark)
    check_world(Walk(), steps=3)


def test_any_action_is_legal():
    left = type("Left", (CartPole,), {"legal": lambda self, p: torch.tensor([[True, False]]).expand(len(p), 2)})()
    keys = torch.arange(100)
    assert any_action(left, *left.reset(keys)[:1], keys).unique().tolist() == [0]
    assert any_action(CartPole(), None, keys).unique().tolist() == [0, 1]
    pull = any_action(Walk(), None, keys)
    assert pull.shape == (100, 1)
    assert pull.abs().max() <= 1
    assert pull.std() > 0.4
