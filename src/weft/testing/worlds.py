"""What every world must hold to."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.random import fold, key_of, unit
from weft.core.source import Field
from weft.core.world import World
from weft.testing.checks import _expect

__all__ = ["any_action", "check_world"]


def any_action(world: World[Any], position: object, keys: Tensor) -> Tensor:
    """An action for each episode, drawn evenly: among the legal ones, or between the bounds (else in [-3, 3]).

    Args:
        world: which says what actions there are.
        position: where the episodes stand.
        keys: one for each.
    """
    action = world.action
    if action.classes is not None:
        legal = getattr(world, "legal", None)
        weight = unit(keys, (action.classes,))
        return weight.argmax(-1) if legal is None else weight.masked_fill(~legal(position), -1.0).argmax(-1)
    shares = unit(keys, action.shape)
    if action.choices:
        return (shares * torch.tensor(action.choices, device=keys.device).reshape(action.shape)).long()
    if not action.low:
        return (6.0 * shares - 3.0).to(action.dtype)
    low, high = (torch.tensor(ends, device=keys.device).reshape(action.shape) for ends in (action.low, action.high))
    return (low + shares * (high - low)).to(action.dtype)


def check_world(world: World[Any], *, steps: int = 50, episodes: int = 8) -> None:
    """Checks that a world is a pure function of positions, actions and keys, row by row, as its fields say.

    Args:
        world: the world.
        steps: how many steps of random play to look at.
        episodes: how many episodes, side by side.

    Example:
        >>> from weft.data import CartPole
        >>> check_world(CartPole())
    """
    whole = isinstance(world.horizon, int) and not isinstance(world.horizon, bool)
    _expect(
        world.horizon is None or (whole and world.horizon > 0), f"expected horizon > 0 or None, got {world.horizon!r}"
    )
    action = world.action
    said = sum(map(bool, (action.classes is not None, action.choices)))
    _expect(said <= 1, f"expected actions with classes, choices or neither, got {action}")
    _expect(action.classes is None or action.shape == (), f"expected one class number as an action, got {action}")
    keys = fold(key_of(0), "check", torch.arange(episodes))
    position, observation = world.reset(keys)
    _expect_same(world.reset(keys), (position, observation), "reset twice from the same keys")
    few = world.reset(keys[1:3])
    _expect_same(few, _rows((position, observation), slice(1, 3)), "reset of two episodes against those among others")
    _fits(observation, world.observation, episodes, "observation")
    going = torch.ones(episodes, dtype=torch.bool)
    for t in range(steps):
        turn = fold(keys, "turn", t)
        chosen = any_action(world, position, fold(turn, "action"))
        _offers(world, position, episodes)
        before = copy.deepcopy(position)
        after = world.step(position, chosen, turn)
        _expect_same(position, before, "the position before a step against that after it (was it changed in place?)")
        _expect_same(world.step(position, chosen, turn), after, "the same step twice")
        pair = slice(1, 3)
        small = world.step(_rows(position, pair), chosen[pair], turn[pair])
        _expect_same(small, _rows(after, pair), "a step of two episodes against those among others")
        position, observation, reward, ended = after
        _fits(observation, world.observation, episodes, "observation", going)
        _expect(
            reward.shape == (episodes,) and reward.is_floating_point() and bool(reward[going].isfinite().all()),
            f"expected a finite reward for each episode, got {reward}",
        )
        right = ended.shape == (episodes,) and ended.dtype == torch.bool
        _expect(right, f"expected terminated as a truth for each episode, got {ended}")
        going = going & ~ended  # an ended one is played on: what comes of it does not matter, but must not fail


def _rows(tree: object, which: slice) -> Any:
    return pytree.tree_map(lambda leaf: leaf[which], tree)


def _expect_same(got: object, expected: object, what: str) -> None:
    left, right = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    same = len(left) == len(right) and all(
        map(partial(torch.allclose, rtol=1e-5, atol=1e-6, equal_nan=True), left, right)
    )
    _expect(same, f"expected {what} to be the same, got {left} and {right}")


def _fits(observation: Tensor, field: Field, episodes: int, what: str, going: Tensor | None = None) -> None:
    got = (tuple(observation.shape), observation.dtype)
    _expect(got == ((episodes, *field.shape), field.dtype), f"expected the {what} as {field}, got {got}")
    seen = observation if going is None else observation[going]
    if field.dtype.is_floating_point:
        _expect(bool(seen.isfinite().all()), f"expected finite numbers as {what}, got {seen}")
    if field.classes is not None and seen.numel():
        _expect(0 <= int(seen.min()) <= int(seen.max()) < field.classes, f"expected {what} in {field}, got {seen}")
    if field.low and seen.numel():
        low, high = (
            torch.tensor(ends).reshape(field.shape) - slack for ends, slack in ((field.low, 1e-4), (field.high, -1e-4))
        )
        _expect(
            bool(((seen >= low) & (seen <= high)).all()), f"expected the {what} between {field.low} and {field.high}"
        )


def _offers(world: World[Any], position: object, episodes: int) -> None:
    """What a world may say beyond what it must."""
    if hasattr(world, "legal"):
        legal = world.legal(position)
        wanted = ((episodes, world.action.classes), torch.bool)
        got = (tuple(legal.shape), legal.dtype)
        _expect(got == wanted, f"expected which actions are legal as {wanted}, got {got}")
        _expect(bool(legal.any(-1).all()), "expected an action that is legal in every position, got none in some")
    if hasattr(world, "render"):
        seen = world.render(position)
        pictures = seen.dim() == 4 and len(seen) == episodes and seen.shape[-1] == 3 and seen.dtype == torch.uint8
        _expect(pictures, f"expected pictures (n, H, W, 3) in torch.uint8, got {tuple(seen.shape)} in {seen.dtype}")
