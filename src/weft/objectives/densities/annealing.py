"""Annealed importance sampling: the normalizer of a density that is known up to it, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.core.random import turns

__all__ = ["Annealed", "Tempered", "ais"]

_LEVEL = Number(0, 1, "()")
_CHAINS, _TEMPERATURES = Whole(2), Whole(2)


class Tempered(Protocol):
    """A family of unnormalized densities from one that is easy (beta = 0) to the one that is asked for (beta = 1).

    Draws are shared by all rows (`shared=True`), and at places of their own names.
    """

    def log_base(self) -> Tensor:
        """log Z at beta = 0, a number."""

    def draw_base(self, n: int) -> Tensor:
        """Draws at beta = 0, on the leading axis."""

    def log_tempered(self, v: Tensor, beta: Tensor) -> Tensor:
        """The unnormalized log-density at beta, of each draw."""

    def move(self, v: Tensor, beta: Tensor) -> Tensor:
        """One step of a Markov chain that leaves the density at beta as it is."""


@dataclass(frozen=True)
class Annealed:
    """What a run of annealed importance sampling has found.

    Attributes:
        log_weights: of each chain; the mean of their exponentials estimates Z without bias.
    """

    log_weights: Tensor

    @property
    def log_normalizer(self) -> Tensor:
        """log of the mean weight: an estimate of log Z, on average a little too low."""
        return torch.logsumexp(self.log_weights, -1) - math.log(self.log_weights.shape[-1])

    @property
    def error(self) -> Tensor:
        """The standard error of `log_normalizer`: deviation of the weights over their mean, by root of the chains."""
        share = torch.exp(self.log_weights - self.log_weights.max(-1, keepdim=True).values)
        return share.std(-1) / share.mean(-1) / math.sqrt(share.shape[-1])

    @property
    def effective(self) -> Tensor:
        """How many chains of equal weight would tell as much, (sum w)^2 / sum w^2: of few the interval is no good."""
        share = torch.softmax(self.log_weights, -1)
        return 1 / (share**2).sum(-1)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Around `log_normalizer`, by Student's law with one degree of freedom less than chains.

        Args:
            level: how often such intervals are to hold log Z; they do where `effective` is not much below the chains.
        """
        from scipy.stats import t

        _LEVEL.check(level, "the interval's level")
        reach = float(t.ppf((1 + level) / 2, self.log_weights.shape[-1] - 1)) * self.error
        return self.log_normalizer - reach, self.log_normalizer + reach


def ais(model: Tempered, *, chains: int = 100, temperatures: int = 1000) -> Annealed:
    """Annealed importance sampling: chains go from an easy density to the one in question, and weigh what they saw.

    With p*_t the unnormalized density at beta_t, 0 = beta_0 < ... < beta_T = 1, v_1 drawn at beta_0 and v_{t+1} by a
    step at beta_t from v_t, a chain's weight is

        w = Z_0 prod_t p*_t(v_t) / p*_{t-1}(v_t),        E w = Z_T,

    whatever the chains' mixing; with more temperatures the weights differ less. Draws are keyed: call it within
    `weft.core.random.keyed`, as the engine does around every capability.

    Args:
        model: tempered densities, see `Tempered`.
        chains: how many, independent of each other.
        temperatures: steps from beta = 0 to 1, of equal size.

    References:
        Neal, "Annealed importance sampling", Statistics and Computing 11, 2001.
        Salakhutdinov and Murray, "On the quantitative analysis of deep belief networks", ICML 2008.

    Example:
        >>> from weft.core.random import key_of, keyed
        >>> from weft.objectives import RBM
        >>> from weft.objectives.densities.rbm import Units
        >>> units = Units(visible=6, hidden=4, base=torch.zeros(6))
        >>> with keyed(key_of(0)), torch.no_grad():
        ...     found = ais(units, chains=50, temperatures=100)
        >>> bool((found.log_normalizer - units.log_normalizer()).abs() < 0.05)
        True
    """
    _CHAINS.check(chains, "the chains of ais")
    _TEMPERATURES.check(temperatures, "the temperatures of ais")
    v = model.draw_base(chains)
    like = model.log_base()
    betas = torch.linspace(0, 1, temperatures + 1, dtype=like.dtype, device=like.device)
    weight = like.expand(chains)
    for t in turns("ais", temperatures):
        weight = weight + model.log_tempered(v, betas[t + 1]) - model.log_tempered(v, betas[t])
        if t + 1 < temperatures:
            v = model.move(v, betas[t + 1])
    return Annealed(weight)
