"""The worlds to act in that go by a name: `weft list worlds` shows them, `Learner.fit("cart-pole")` plays in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.data.cartpole import CartPole
    from weft.data.catch import Catch
    from weft.data.classic import Acrobot, MountainCar, MountainCarContinuous, Pendulum
    from weft.data.corridors import ShortCorridor, TMaze
    from weft.data.grids import GridWorld
    from weft.data.minatar.asterix import Asterix
    from weft.data.minatar.breakout import Breakout
    from weft.data.minatar.freeway import Freeway
    from weft.data.minatar.seaquest import Seaquest
    from weft.data.minatar.space_invaders import SpaceInvaders
    from weft.data.platform import Platform
    from weft.data.toytext import CliffWalking, FrozenLake, Taxi

__getattr__, __dir__, __all__ = flat(__name__, __file__)
