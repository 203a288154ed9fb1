"""Inference: where the guess q(z | x) of a row comes from. A model states its joint density; these are passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.random import turns
from weft.core.source import Spec
from weft.objectives.latent.explained import Guess

__all__ = ["INFERENCES", "Amortized", "PerDatum", "numbered", "refined", "searched"]

_LEAST = 1e-6  # a scale below it is none
_SPREAD = math.log(0.1)  # of the guess of a row that nothing is known about yet


def log_scale_of(raw: Tensor, scale: str) -> Tensor:
    """The log of exp(raw), or of log(1 + exp(raw))."""
    return raw if scale == "exp" else F.softplus(raw).clamp_min(_LEAST).log()


class Amortized(nn.Module):
    """One net guesses for all rows: q(z | x) = N(mean(x), scale(x)^2), also for rows that it has never seen.

    References:
        Kingma and Welling, "Auto-encoding variational Bayes", arXiv 1312.6114.
        Rezende, Mohamed and Wierstra, "Stochastic backpropagation", arXiv 1401.4082.
    """

    def __init__(self, net: nn.Module, scale: str) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, inputs: Tensor, index: Tensor | None = None) -> Guess:
        mean, raw = self.net(inputs).chunk(2, -1)
        return Guess(mean, log_scale_of(raw, self.scale))


class PerDatum(nn.Module):
    """Each training row has a mean and a scale of its own, by its number; others are searched for.

    References:
        Hoffman, Blei, Wang and Paisley, "Stochastic variational inference", JMLR 14, 2013.
    """

    def __init__(self, rows: int, latent: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(rows, latent))
        self.log_scale = nn.Parameter(torch.full((rows, latent), _SPREAD))

    def reset_parameters(self) -> None:
        """Near the origin, apart from each other."""
        nn.init.normal_(self.mean, std=0.1)
        nn.init.constant_(self.log_scale, _SPREAD)

    def forward(self, inputs: Tensor, index: Tensor | None = None) -> Guess:
        if index is None:  # the prior's middle: where a search begins
            middle = self.mean.new_zeros(inputs.shape[0], self.mean.shape[1])
            return Guess(middle, middle + _SPREAD)
        return Guess(self.mean[index], self.log_scale[index])


def numbered(spec: Spec, whose: str) -> int:
    """How many rows there are to learn from, each of which has something of its own by its number."""
    rows = spec["index"].classes if "index" in spec else None
    if not rows:
        raise ValueError(
            f"expected rows with their number in 'index', and how many there are, for {whose}, which keeps a code of "
            f"each, got {'no number of rows' if 'index' in spec else 'no index'} from the source; give rows to fit, or "
            "Arrays(X, index=torch.arange(n), classes={'index': n})"
        )
    return rows


INFERENCES = ("amortized", "per-datum")
"""The schemes by name."""


def refined(bound: Callable[[Guess], Tensor], q: Guess, steps: int) -> Guess:
    """The guess after so many steps up the bound, each row's by itself.

    Args:
        bound: one number for each row, whose noise is drawn anew in each turn.
        q: where to begin.
        steps: how many.
    """

    def total(mean: Tensor, log_scale: Tensor) -> Tensor:
        return -bound(Guess(mean, log_scale)).sum()

    mean, log_scale = searched(torch.func.grad(total, argnums=(0, 1)), [q.mean, q.log_scale], steps, rate=0.05)
    return Guess(mean, log_scale)


def searched(
    slopes: Callable[..., Sequence[Tensor]],
    start: Sequence[Tensor],
    steps: int,
    *,
    rate: float,
    project: Callable[[Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """Where so many steps of Adam lead, each row by itself; the rate falls to zero along half a cosine.

    Args:
        slopes: of what is to be small, in each of the tensors.
        start: these tensors, to begin with.
        steps: how many.
        rate: Adam's.
        project: puts each tensor back on a set after a step.
    """
    values = list(start)
    first, second = ([torch.zeros_like(v) for v in values] for _ in range(2))
    for t in turns("refine", steps):
        own = rate * 0.5 * (1 + math.cos(math.pi * t / steps))
        for i, slope in enumerate(slopes(*values)):
            first[i] = 0.9 * first[i] + 0.1 * slope
            second[i] = 0.99 * second[i] + 0.01 * slope**2
            step = first[i] / (1 - 0.9 ** (t + 1)) / ((second[i] / (1 - 0.99 ** (t + 1))).sqrt() + 1e-8)
            moved = values[i] - own * step
            values[i] = moved if project is None else project(moved)
    return values
