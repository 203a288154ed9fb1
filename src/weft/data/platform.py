"""A platform world in levels: every level looks different, in all of them one moves and wins in the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.random import fold, key_of, unit
from weft.core.source import Field

__all__ = ["Platform", "PlatformState", "platform_clones"]

SIZE = 16


class PlatformState(NamedTuple):
    """Where an episode stands.

    Attributes:
        height: of the ground in each column, (n, 16); 0 is a pit.
        x, coin: the columns of the player and of the coin, (n,).
        look: which of the world's levels it is drawn as, (n,), counted from 0.
    """

    height: Tensor
    x: Tensor
    coin: Tensor
    look: Tensor


class Platform:
    """Get to the coin over uneven ground: walk left (0) or right (1), or hop left (2) or right (3).

    The ground has 16 columns, whose heights differ by at most 2 from one to the next, but for pits of one column. A
    walk leads to the next column if that is not higher than one's own, a fall into a pit ends the episode. A hop
    climbs the next column if that is up to 2 higher; else it flies over it and lands two columns on, if the ground
    there is at most 1 higher, or else on the next one. What cannot be done leaves one where one is. The coin is worth
    1 and ends the episode. Ground, start and coin are drawn anew for each episode.

    A level is a look: colours of sky and ground, their textures and stripes, shades of the player and the coin. It
    changes nothing of what happens, so that a policy which reads the ground, the player and the coin is right in all
    levels, while much else tells the levels apart. With `signs`, the top row of the picture is a signpost that says
    what the expert does next, in the level's own script:

        row = 1/2 + signs glyph_level[expert],     each pixel and colour of a glyph +1 or -1 at random.

    Who has learned the scripts of some levels can play those without looking at the ground, and no other level.

    It has the role of CoinRun and the interface of `CartPole`: an environment for `weft.sources.Rollouts`.

    Args:
        levels: the numbers of the levels that episodes are drawn from, all with the same probability; the looks of
            a number are always the same.
        variety: how much levels differ in looks, in [0, 1]; at 0 they are all alike.
        signs: the contrast of the signposts, in [0, 1/2]; at 0 there are none.
        camera: None shows the whole world. A number r shows 2 r + 1 rows and columns with the player in the middle,
            as CoinRun does: black beyond the world's edge, and a coin beyond the picture's edge shown at that edge.

    References:
        Cobbe, Klimov, Hesse, Kim and Schulman, "Quantifying generalization in reinforcement learning", arXiv
        1812.02341; for cloning Parascandolo et al., arXiv 2009.00329, section 4.3.

    Example:
        >>> world = Platform(range(64))
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(100)))
        >>> observation.shape
        torch.Size([100, 3, 16, 16])
        >>> won = torch.zeros(100)
        >>> for _ in range(15):
        ...     state, observation, reward, done = world.step(state, world.expert(state))
        ...     won = won.maximum(reward)
        >>> won.mean()
        tensor(1.)
    """

    action = Field((), torch.int64, classes=4)
    horizon = 32

    def __init__(
        self,
        levels: Sequence[int] = range(64),
        *,
        variety: float = 1.0,
        signs: float = 0.0,
        camera: int | None = None,
    ) -> None:
        self.levels = [int(level) for level in levels]
        if not self.levels or min(self.levels) < 0:
            raise ValueError(f"expected numbers of levels, each 0 or more, got {list(levels)[:5]}")
        if not 0.0 <= variety <= 1.0 or not 0.0 <= signs <= 0.5:
            raise ValueError(
                f"expected variety in [0, 1] and signs in [0, 1/2], got variety={variety!r} and signs={signs!r}"
            )
        if camera is not None and not (isinstance(camera, int | np.integer) and 1 <= camera < SIZE):
            raise ValueError(f"expected camera to be a whole number from 1 to {SIZE - 1}, or None, got {camera!r}")
        self.variety, self.signs, self.camera = variety, signs, camera
        side = SIZE if camera is None else 2 * int(camera) + 1
        self.observation = Field((3, side, side), torch.float32)
        self.looks = _looks(torch.tensor(self.levels), variety, side)

    def reset(self, keys: Tensor) -> tuple[PlatformState, Tensor]:
        """One episode's start for each key, and what is seen of it."""
        state = self.start(keys)
        return state, self.see(state)

    def start(self, keys: Tensor) -> PlatformState:
        """Ground, player, coin and level of one episode for each key."""
        steps = (unit(fold(keys, "ground"), (SIZE,), torch.float64) * 5).long() - 2
        columns = [3 + (unit(fold(keys, "first"), (), torch.float64) * 5).long()]
        for step in steps.unbind(1)[1:]:
            columns.append((columns[-1] + step).clamp(2, 9))
        height = torch.stack(columns, 1)
        x = (unit(fold(keys, "start"), (), torch.float64) * SIZE).long()
        coin = (x + 1 + (unit(fold(keys, "coin"), (), torch.float64) * (SIZE - 1)).long()) % SIZE
        # Pits lie in odd columns, so that there is ground on both sides, and where they can be leapt both ways.
        c = torch.arange(SIZE, device=keys.device)
        level = (height.roll(1, 1) - height.roll(-1, 1)).abs() <= 1
        free = (c % 2 == 1) & (c < SIZE - 1) & (c != x[:, None]) & (c != coin[:, None])
        pit = free & level & (unit(fold(keys, "pit"), (SIZE,)) < 0.5)
        look = (unit(fold(keys, "level"), (), torch.float64) * len(self.levels)).long()
        return PlatformState(height.masked_fill(pit, 0), x, coin, look)

    def step(
        self, state: PlatformState, action: Tensor, keys: Tensor | None = None
    ) -> tuple[PlatformState, Tensor, Tensor, Tensor]:
        """The state, observation, reward and end after an action; nothing in it is random."""
        after, reward, done = self.move(state, action)
        return after, self.see(after), reward, done

    def move(self, state: PlatformState, action: Tensor) -> tuple[PlatformState, Tensor, Tensor]:
        """A step without looking: state, reward and end."""
        way = 2 * (action % 2) - 1

        def ground(x: Tensor) -> Tensor:
            return state.height.gather(1, x.clamp(0, SIZE - 1)[:, None])[:, 0]

        x, near, far = state.x, state.x + way, state.x + 2 * way
        here, ahead, beyond = ground(x), ground(near), ground(far)
        reach = (far >= 0) & (far < SIZE) & (beyond <= here + 1)
        hop = torch.where(ahead > here, torch.where(ahead <= here + 2, near, x), torch.where(reach, far, near))
        walk = torch.where(ahead <= here, near, x)
        after = torch.where(action >= 2, hop, walk)
        after = torch.where((near < 0) | (near >= SIZE), x, after)
        won = after == state.coin
        return state._replace(x=after), won.float(), won | (ground(after) == 0)

    def expert(self, state: PlatformState) -> Tensor:
        """The scripted player: towards the coin, walking where that is possible and hopping where it is not."""
        right = (state.coin > state.x).long()
        near = (state.x + 2 * right - 1).clamp(0, SIZE - 1)  # out of the world only once the coin is taken
        ahead, here = (state.height.gather(1, x[:, None])[:, 0] for x in (near, state.x))
        return right + 2 * ((ahead == 0) | (ahead > here)).long()

    def see(self, state: PlatformState) -> Tensor:
        """The picture, (n, 3, rows, columns) in [0, 1]: sky and ground, the player and the coin on it, the signpost."""
        looks = {name: table.to(state.x.device)[state.look] for name, table in self.looks.items()}
        cells = torch.arange(SIZE, device=state.x.device)
        up = (SIZE - 1 - cells)[:, None]  # the first row of a picture is the highest
        solid = (up < state.height[:, None, :])[:, None]
        picture = torch.where(solid, looks["ground"], looks["sky"])
        for column, name in ((state.coin, "coin"), (state.x, "player")):
            spot = (cells == column[:, None, None]) & (up == self._stands(state, column)[:, None, None])
            picture = torch.where(spot[:, None], looks[name][:, :, None, None], picture)
        if self.camera is not None:
            picture = self._follow(picture, state, looks["coin"], int(self.camera))
        if self.signs:
            glyph = looks["script"][torch.arange(len(state.x), device=cells.device), self.expert(state)]
            picture = torch.cat([0.5 + self.signs * glyph[:, :, None], picture[:, :, 1:]], 2)
        return picture.clamp(0.0, 1.0)

    @staticmethod
    def _stands(state: PlatformState, column: Tensor) -> Tensor:
        """How high one stands in a column."""
        return state.height.gather(1, column[:, None])[:, 0]

    def _follow(self, picture: Tensor, state: PlatformState, coin: Tensor, r: int) -> Tensor:
        """The part of the picture around the player, with the coin at its edge where it lies beyond."""
        own = self._stands(state, state.x)
        around = torch.arange(2 * r + 1, device=picture.device)
        rows, columns = (SIZE - 1 - own)[:, None] + around, state.x[:, None] + around  # counted with a margin of r
        n = torch.arange(len(own), device=picture.device)[:, None, None]
        wide = torch.nn.functional.pad(picture, (r, r, r, r)).permute(0, 2, 3, 1)
        part = wide[n, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        along = (state.coin - state.x).clamp(-r, r) + r
        down = (own - self._stands(state, state.coin)).clamp(-r, r) + r
        spot = (around == along[:, None, None]) & (around[:, None] == down[:, None, None])
        spot &= (state.coin != state.x)[:, None, None]  # the player stands before a coin it has taken
        return torch.where(spot[:, None], coin[:, :, None, None], part)


def _looks(levels: Tensor, variety: float, side: int) -> dict[str, Tensor]:
    """What each level looks like.

    `sky` and `ground` (levels, 3, 16, 16), `player` and `coin` (levels, 3), `script` (levels, 4 actions, 3, side).
    """
    keys = fold(key_of(0), "platform", levels)

    def drawn(name: str, *shape: int) -> Tensor:
        return variety * (unit(fold(keys, name), shape) - 0.5)  # around 0, up to a half

    cells = torch.arange(SIZE)
    colour = 0.6 + 0.6 * drawn("sky", 3, 1, 1)
    tables = {}
    for name, base in (("sky", colour), ("ground", colour - 0.25)):
        wave = 1.0 + 2.0 * drawn(f"{name} waves", 2, 1, 1)
        across = wave[:, :1] * cells + wave[:, 1:] * cells[:, None] + 2 * math.pi * drawn(f"{name} phase", 1, 1, 1)
        stripes = 0.3 * drawn(f"{name} stripes", 3, 1, 1) * torch.sin(across)
        tables[name] = base + stripes + 0.2 * drawn(f"{name} grain", 3, SIZE, SIZE)
    tables["player"] = torch.tensor([1.0, 0.0, 0.8]) + 0.3 * drawn("player", 3)
    tables["coin"] = torch.tensor([1.0, 0.9, 0.0]) + 0.3 * drawn("coin", 3)
    tables["script"] = torch.where(unit(fold(keys, "script"), (4, 3, side)) < 0.5, -1.0, 1.0)
    return tables


def platform_clones(
    n_per_level: int = 1000,
    *,
    levels: Sequence[int] = range(64),
    stray: float = 0.2,
    variety: float = 1.0,
    signs: float = 0.0,
    camera: int | None = None,
    random_state: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """What the expert of `Platform` does in states of several levels: data to clone it from.

    Each row is an episode of its own, played for 0 to 7 steps (each number equally often) by the expert, who with
    probability `stray` is pushed to an action at random, and in which the expert is then asked once more. What would
    end an episode is not done.

    Args:
        n_per_level: rows of each level.
        levels: which levels; others are unseen ones.
        stray: in [0, 1].
        variety, signs, camera: those of `Platform`.
        random_state: the seed.

    Returns:
        X of shape (n, 3, 16, 16), or what the camera shows, in float32; the expert's action; and the level of each
        row, its environment.

    References:
        The role of the states of CoinRun in Parascandolo et al., arXiv 2009.00329, section 4.3 (64 levels of 1,000
        states each, and 2,000 unseen ones).

    Example:
        >>> X, action, level = platform_clones(50, levels=range(4))
        >>> X.shape, np.unique(action).tolist(), np.bincount(level).tolist()
        ((200, 3, 16, 16), [0, 1, 2, 3], [50, 50, 50, 50])
    """
    if not isinstance(n_per_level, int | np.integer) or n_per_level < 1:
        raise ValueError(f"expected n_per_level to be an integer >= 1, got {n_per_level!r}")
    if not 0.0 <= stray <= 1.0:
        raise ValueError(f"expected stray in [0, 1], got {stray!r}")
    world = Platform(levels, variety=variety, signs=signs, camera=camera)
    look = torch.arange(len(world.levels)).repeat_interleave(n_per_level)
    number = torch.tensor(world.levels)[look]
    turn = torch.arange(n_per_level).repeat(len(world.levels))
    keys = fold(fold(key_of(random_state), "clones", number), turn)
    state = world.start(keys)._replace(look=look)
    steps = (unit(fold(keys, "steps"), (), torch.float64) * 8).long()
    for t in range(7):
        chance, pick = unit(fold(keys, "stray", t), (2,), torch.float64).unbind(1)
        action = torch.where(chance < stray, (pick * 4).long(), world.expert(state))
        after, _, done = world.move(state, action)
        state = state._replace(x=torch.where((t < steps) & ~done, after.x, state.x))
    seen = torch.cat([world.see(PlatformState(*part)) for part in zip(*(v.split(8192) for v in state), strict=True)])
    return seen.numpy(), world.expert(state).numpy(), number.numpy()
