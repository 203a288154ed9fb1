"""Classic control: Acrobot, both mountain cars and the pendulum, for many episodes at once as tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.random import unit
from weft.core.source import Field
from weft.data.drawing import BLUE, DARK, GREEN, GREY, RED, YELLOW, Canvas

__all__ = ["Acrobot", "MountainCar", "MountainCarContinuous", "Pendulum"]

Step = tuple[Tensor, Tensor, Tensor, Tensor]


class Acrobot:
    """Swing the lower end of two links above a line, by a torque of -1 (0), 0 (1) or 1 (2) at the joint between them.

    With the links' angles p (from hanging down) and q (from the first link), one Runge-Kutta step of .2 s of

        p'' = -(d q'' + f) / c,   q'' = (torque + d f / c - p'^2 sin q / 2 - h) / (5/4 - d^2 / c),

        c = 7/2 + cos q,   d = 5/4 + cos q / 2,   h = g/2 sin(p + q),
        f = 3/2 g sin p + h - q'^2 sin q / 2 - p' q' sin q,   g = 9.8,

    after which angles are wrapped to [-pi, pi] and speeds are clipped to 4 pi and 9 pi. Seen are cos p, sin p, cos q,
    sin q, p', q'. An episode begins with all of (p, q, p', q') uniform in [-.1, .1]. It ends when the lower end is one
    link's length above the upper joint, -cos p - cos(p + q) > 1, or after 500 steps; a step is worth -1, the last 0.

    The dynamics are those of gymnasium's Acrobot-v1 (the book's, not the paper's), in double precision as there.

    References:
        Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding", NIPS 1995;
        Sutton and Barto, "Reinforcement learning: an introduction", 1998, section 11.3.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Acrobot()
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(3)))
        >>> state, observation, reward, ended = world.step(state, torch.tensor([0, 1, 2]))
        >>> observation.shape, reward, ended.any()
        (torch.Size([3, 6]), tensor([-1., -1., -1.]), tensor(False))
    """

    observation = Field(
        (6,),
        torch.float32,
        low=(-1.0, -1.0, -1.0, -1.0, -4 * math.pi, -9 * math.pi),
        high=(1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi),
    )
    action = Field((), torch.int64, classes=3)
    horizon = 500

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key: (p, q, p', q') in double precision, and as observed."""
        state = (unit(keys, (4,), torch.float64) - 0.5) * 0.2
        return state, self._see(state)

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> Step:
        """The state, observation, reward and end after a torque; nothing in it is random."""
        torque, h = action.to(state.dtype) - 1.0, 0.2
        first = self._slope(state, torque)
        second = self._slope(state + h / 2 * first, torque)
        third = self._slope(state + h / 2 * second, torque)
        fourth = self._slope(state + h * third, torque)
        p, q, p_speed, q_speed = (state + h / 6 * (first + 2 * second + 2 * third + fourth)).unbind(-1)
        fast = 4 * math.pi, 9 * math.pi
        speeds = p_speed.clamp(-fast[0], fast[0]), q_speed.clamp(-fast[1], fast[1])
        after = torch.stack([_wrapped(p), _wrapped(q), *speeds], -1)
        ended = -after[:, 0].cos() - (after[:, 0] + after[:, 1]).cos() > 1.0
        return after, self._see(after), ended.float() - 1.0, ended

    @staticmethod
    def _slope(state: Tensor, torque: Tensor) -> Tensor:
        p, q, p_speed, q_speed = state.unbind(-1)
        cos, sin, g = q.cos(), q.sin(), 9.8
        c, d, h = 3.5 + cos, 1.25 + cos / 2, g / 2 * (p + q).sin()
        f = 1.5 * g * p.sin() + h - q_speed.square() * sin / 2 - p_speed * q_speed * sin
        q_pull = (torque + d * f / c - p_speed.square() * sin / 2 - h) / (1.25 - d.square() / c)
        return torch.stack([p_speed, q_speed, -(d * q_pull + f) / c, q_pull], -1)

    @staticmethod
    def _see(state: Tensor) -> Tensor:
        p, q, p_speed, q_speed = state.unbind(-1)
        return torch.stack([p.cos(), p.sin(), q.cos(), q.sin(), p_speed, q_speed], -1).float()

    def render(self, state: Tensor) -> Tensor:
        """Both links, and the line to be reached."""
        canvas = Canvas(len(state), (-2.2, 2.2, -2.2, 2.2), width=96, device=state.device)
        p, both = state[:, 0], state[:, 0] + state[:, 1]
        x, y = p.sin(), -p.cos()
        canvas.line((-2.2, 1.0), (2.2, 1.0), 0.04, GREY)
        canvas.line((0.0, 0.0), (x, y), 0.2, BLUE)
        canvas.line((x, y), (x + both.sin(), y - both.cos()), 0.2, GREEN)
        canvas.disc((0.0, 0.0), 0.1, YELLOW)
        canvas.disc((x, y), 0.1, YELLOW)
        return canvas.pictures()


def _wrapped(angle: Tensor) -> Tensor:
    """By whole turns to [-pi, pi]; what lies there stays as it is."""
    turns = ((angle.abs() - math.pi) / (2 * math.pi)).ceil().clamp_min(0.0)
    return angle - angle.sign() * turns * (2 * math.pi)


class MountainCar:
    """Drive a weak car out of a valley by pushing it left (0), not at all (1) or right (2); each step is worth -1.

        v <- clip(v + .001 (a - 1) - .0025 cos 3x, [-.07, .07]),   x <- clip(x + v, [-1.2, .6]),

    and the wall at the left end stops the car. Seen are x and v. An episode begins at rest, x uniform in [-.6, -.4];
    it ends at x >= .5, or after 200 steps. The dynamics are those of gymnasium's MountainCar-v0, in double precision as
    there.

    References:
        Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = MountainCar()
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(3)))
        >>> for _ in range(150):  # push where it goes
        ...     state, observation, reward, ended = world.step(state, 2 * (state[:, 1] >= 0).long())
        ...     if ended.any():
        ...         break
        >>> ended.any(), reward
        (tensor(True), tensor([-1., -1., -1.]))
    """

    observation = Field((2,), torch.float32, low=(-1.2, -0.07), high=(0.6, 0.07))
    action = Field((), torch.int64, classes=3)
    horizon = 200
    goal = 0.5

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key: (x, v) in double precision, and as observed."""
        x = unit(keys, (), torch.float64) * 0.2 - 0.6
        state = torch.stack([x, torch.zeros_like(x)], -1)
        return state, state.float()

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> Step:
        """The state, observation, reward and end after a push; nothing in it is random."""
        after, ended = self._roll(state, (action.to(state.dtype) - 1.0) * 0.001)
        return after, after.float(), torch.full_like(after[:, 0], -1.0, dtype=torch.float32), ended

    def _roll(self, state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        """Where a push leads, and whether that is the goal."""
        x, v = state.unbind(-1)
        if push.shape != x.shape:
            raise ValueError(f"expected actions of shape {tuple(x.shape)}, got {tuple(push.shape)}")
        v = (v + push - 0.0025 * (3 * x).cos()).clamp(-0.07, 0.07)
        x = (x + v).clamp(-1.2, 0.6)
        v = v.masked_fill((x <= -1.2) & (v < 0), 0.0)
        return torch.stack([x, v], -1), (x >= self.goal) & (v >= 0)

    def render(self, state: Tensor) -> Tensor:
        """The valley, the car and a flag at the goal."""
        canvas = Canvas(len(state), (-1.2, 0.6, -0.05, 1.25), width=144, device=state.device)
        slope = 1.35 * (3 * canvas.x).cos()
        ground = 0.45 * (3 * canvas.x).sin() + 0.55
        canvas.fill((ground - canvas.y) / (1.0 + slope.square()).sqrt(), GREY)
        top = 0.45 * math.sin(3 * self.goal) + 0.55
        canvas.line((self.goal, top), (self.goal, top + 0.18), 0.015, DARK)
        canvas.box((self.goal + 0.04, top + 0.15), (0.04, 0.03), RED)
        x = state[:, 0].float()
        canvas.disc((x, 0.45 * (3 * x).sin() + 0.55 + 0.05), 0.05, BLUE)
        return canvas.pictures()


class MountainCarContinuous(MountainCar):
    """Drive a weak car out of a valley by pushes a in [-1, 1], and few of them: a step is worth -.1 a^2, the goal 100.

        v <- clip(v + .0015 a - .0025 cos 3x, [-.07, .07]),   x <- clip(x + v, [-1.2, .6]),

    and the wall at the left end stops the car. Seen are x and v. An episode begins at rest, x uniform in [-.6, -.4];
    it ends at x >= .45, or after 999 steps. A push beyond the bounds moves the car no more than the bound does, but
    costs what was asked for. All that is gymnasium's MountainCarContinuous-v0, which keeps x and v in single precision
    from step to step; so does this, and computes in double precision between.

    References:
        Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = MountainCarContinuous()
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(2)))
        >>> state, observation, reward, ended = world.step(state, torch.tensor([[0.5], [-3.0]]))
        >>> reward, ended.any()
        (tensor([-0.0250, -0.9000]), tensor(False))
    """

    action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))
    horizon = 999
    goal = 0.45

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> Step:
        """The state, observation, reward and end after a push; nothing in it is random."""
        asked = action[:, 0].to(state.dtype)
        after, ended = self._roll(state, asked.clamp(-1.0, 1.0) * 0.0015)
        seen = after.float()
        return seen.to(state.dtype), seen, (100.0 * ended - 0.1 * asked.square()).float(), ended


class Pendulum:
    """Swing a pendulum up and hold it there, by a torque u in [-2, 2]; a step is worth -(q^2 + .1 q'^2 + .001 u^2).

        q' <- clip(q' + .05 (15 sin q + 3 u), [-8, 8]),   q <- q + .05 q',

    with the angle q from the upright (in the reward it is wrapped to [-pi, pi)). Seen are cos q, sin q and q'. An
    episode begins with q uniform in [-pi, pi] and q' in [-1, 1], and lasts 200 steps; none ends by itself. A torque
    beyond the bounds acts and costs as the bound does. The dynamics are those of gymnasium's Pendulum-v1, in double
    precision as there.

    References:
        Åström and Furuta, "Swinging up a pendulum by energy control", Automatica 36, 2000, for the task.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Pendulum()
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(3)))
        >>> state, observation, reward, ended = world.step(state, torch.zeros(3, 1))
        >>> observation.shape, bool((reward <= 0).all()), ended.any()
        (torch.Size([3, 3]), True, tensor(False))
    """

    observation = Field((3,), torch.float32, low=(-1.0, -1.0, -8.0), high=(1.0, 1.0, 8.0))
    action = Field((1,), torch.float32, low=(-2.0,), high=(2.0,))
    horizon = 200
    endless = True

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key: (q, q') in double precision, and as observed."""
        q, speed = (2.0 * unit(keys, (2,), torch.float64) - 1.0).unbind(-1)
        state = torch.stack([q * math.pi, speed], -1)
        return state, self._see(state)

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> Step:
        """The state, observation, reward and end (never) after a torque; nothing in it is random."""
        q, speed = state.unbind(-1)
        torque = action[:, 0].to(state.dtype).clamp(-2.0, 2.0)
        angle = torch.remainder(q + math.pi, 2 * math.pi) - math.pi
        cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = (speed + 0.05 * (15.0 * q.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
        after = torch.stack([q + 0.05 * speed, speed], -1)
        return after, self._see(after), -cost.float(), torch.zeros_like(q, dtype=torch.bool)

    @staticmethod
    def _see(state: Tensor) -> Tensor:
        q, speed = state.unbind(-1)
        return torch.stack([q.cos(), q.sin(), speed], -1).float()

    def render(self, state: Tensor) -> Tensor:
        """The pendulum, upright where its angle is 0."""
        canvas = Canvas(len(state), (-1.3, 1.3, -1.3, 1.3), width=96, device=state.device)
        q = state[:, 0]
        canvas.line((0.0, 0.0), (-q.sin(), q.cos()), 0.2, RED)
        canvas.disc((0.0, 0.0), 0.06, DARK)
        return canvas.pictures()
