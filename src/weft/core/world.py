"""World: what is acted in. Many episodes at once, as pure functions of tensors."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from weft.core.source import Field

__all__ = ["World"]

Position = TypeVar("Position")


@runtime_checkable
class World(Protocol[Position]):
    """What sources that act play in: many episodes at once, a row each, as pure functions of tensors.

    A position is a tensor or a tree of them (dictionaries, tuples), with the episodes on the leading axis; it says all
    that there is to know of an episode. Whatever is random is drawn from the keys (by `unit`, `gauss` and `bits` of
    `weft.core.random`), one for each row, so that an episode depends on nothing else, neither on the other rows nor on
    what was played before. Who plays counts the steps and cuts an episode at the horizon (`truncated`); a world says
    only where an episode ends by itself (`terminated`: nothing comes after, and nothing more is earned). What it is
    asked about episodes that have ended does not matter, but must not fail. `weft.data.CartPole` is an example.

    A world may offer more, by methods of these names:

        legal(position) -> (n, actions)    which actions are legal, as booleans (finitely many actions)
        render(position) -> (n, H, W, 3)   pictures for a film, in torch.uint8

    and say by a truth, `endless`, that an episode may get to where it can never end by itself though rewards go on, so
    that without a discount there are no values.

    Attributes:
        observation: shape and dtype of one observation.
        action: of one action: `classes`, where it is one of finitely many; `choices`, how many there are for each entry
            of a row of them; or `low` and `high`, where it is numbers.
        horizon: steps after which an episode is cut, or None where there is no limit.
    """

    observation: Field
    action: Field
    horizon: int | None

    def reset(self, keys: Tensor) -> tuple[Position, Tensor]:
        """(position, observation) at the start of one episode for each key."""

    def step(self, position: Position, action: Tensor, keys: Tensor) -> tuple[Position, Tensor, Tensor, Tensor]:
        """(position, observation, reward, terminated) after an action in each episode."""
