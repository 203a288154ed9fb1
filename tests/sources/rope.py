"""A world in which small mistakes compound, and who knows it."""

import torch

from weft.core import Field
from weft.core.random import unit


class Rope:
    """Keep x within [-1, 1] though it grows by half each step, in a wind that is seen: x' = 1.5 x + a - w(u).

    Whoever answers the wind exactly stays at x = 0 for ever, and never sees what to do elsewhere.
    """

    observation = Field((2,), torch.float32)
    action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))
    horizon = 100

    @staticmethod
    def wind(u):
        return 0.2 * torch.sin(3.0 * u)

    def reset(self, keys):
        at = torch.stack([torch.zeros(len(keys)), 2.0 * unit(keys, ()) - 1.0], 1)
        return at, at

    def step(self, at, action, keys):
        x, u = at.unbind(1)
        x = 1.5 * x + (action[:, 0] - self.wind(u))
        at = torch.stack([x, 2.0 * unit(keys, ()) - 1.0], 1)
        return at, at, torch.ones(len(x)), x.abs() > 1


def walker(observation):
    x, u = observation.unbind(1)
    return (Rope.wind(u) - 1.5 * x).clamp(-1, 1).unsqueeze(1)
