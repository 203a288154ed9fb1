"""CartPole: a pole balanced on a cart, for many carts at once as tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.random import unit
from weft.core.source import Field
from weft.data.drawing import BROWN, DARK, GREY, YELLOW, Canvas

__all__ = ["CartPole"]


class CartPole:
    """Balance a pole on a cart by pushing it left (0) or right (1); each step is worth 1.

    With the cart's position x, the pole's angle q, force F = +-10, masses M = 1 and m = .1 and half
    length l = .5, one Euler step of .02 s of

        q'' = (g sin q - cos q u) / (l (4/3 - m cos^2 q / (M + m))),   u = (F + m l q'^2 sin q) / (M + m)
        x'' = u - m l q'' cos q / (M + m).

    An episode begins with all four of (x, x', q, q') uniform in [-.05, .05] and ends when |x| > 2.4,
    |q| > 12 degrees, or after 500 steps. The dynamics are those of gymnasium's CartPole-v1, in double
    precision as there; observations are float32. It is an environment for `weft.sources.Rollouts`.

    References:
        Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning
        control problems", IEEE Transactions on Systems, Man, and Cybernetics 13, 1983.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = CartPole()
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(3)))
        >>> state, observation, reward, done = world.step(state, torch.tensor([0, 1, 1]))
        >>> observation.shape, reward, done.any()
        (torch.Size([3, 4]), tensor([1., 1., 1.]), tensor(False))
    """

    observation = Field((4,), torch.float32)
    action = Field((), torch.int64, classes=2)
    horizon = 500

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key: (x, x', q, q') in double precision, and as observed."""
        state = (unit(keys, (4,), torch.float64) - 0.5) * 0.1
        return state, state.float()

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The state, observation, reward and end after a push; nothing in it is random."""
        speed, angle, spin = state[:, 1:].unbind(-1)
        force = action.to(state.dtype) * 20.0 - 10.0
        cos, sin = angle.cos(), angle.sin()
        push = (force + 0.05 * spin.square() * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos.square() / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        after = state + 0.02 * torch.stack([speed, pull, spin, twist], -1)
        done = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 12 * 2 * math.pi / 360)
        return after, after.float(), torch.ones_like(force, dtype=torch.float32), done

    def render(self, state: Tensor) -> Tensor:
        """The track, the cart and the pole."""
        canvas = Canvas(len(state), (-2.4, 2.4, -0.5, 1.5), width=144, device=state.device)
        x, angle = state[:, 0], state[:, 2]
        canvas.line((-2.4, -0.2), (2.4, -0.2), 0.04, GREY)
        canvas.box((x, -0.1), (0.25, 0.13), DARK)
        canvas.line((x, 0.0), (x + angle.sin(), angle.cos()), 0.1, BROWN)  # as long as the pole, 2 l = 1
        canvas.disc((x, 0.0), 0.05, YELLOW)
        return canvas.pictures()
