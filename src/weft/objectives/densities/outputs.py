"""Laws with several hills, for models whose nets give their parameters: mixtures of normals, and of binned logistics.

They have no maximum likelihood in closed form; the other laws, which have, are in `weft.objectives.densities.laws`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.random import categorical, normal, uniform
from weft.core.source import Field
from weft.objectives.densities.laws import Law, Laws, Normal, laws_of

__all__ = ["MIXTURES", "LogisticMixture", "NormalMixture", "output_laws", "refuse_parts"]

MIXTURES = ("normal-mixture", "logistic-mixture")
"""The mixtures by name."""


@dataclass(frozen=True)
class _Parts(Law):
    """A mixture of `parts` laws of a location and a scale: its numbers are their logits, locations and log scales.

    Attributes:
        parts: how many there are.
    """

    parts: int = 5

    @property
    def size(self) -> int:  # type: ignore[override]
        return 3 * self.parts

    def free(self) -> int:
        return 3 * self.parts - 1

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, locations and log scales, `(..., parts)` each."""
        logits, location, log_scale = theta.unflatten(-1, (3, self.parts)).unbind(-2)
        return logits, location, log_scale

    def chosen(self, theta: Tensor, place: str) -> tuple[Tensor, Tensor]:
        """Location and log scale of a part that is drawn."""
        logits, location, log_scale = self.split(theta)
        which = categorical(logits, place=f"{place}, part").unsqueeze(-1)
        return location.gather(-1, which).squeeze(-1), log_scale.gather(-1, which).squeeze(-1)


class NormalMixture(_Parts):
    """p(x) = sum_k softmax(logits)_k N(x; m_k, s_k^2): real numbers, with as many hills as there are parts.

    References:
        Bishop, "Mixture density networks", technical report NCRG/94/004, Aston University, 1994.

    Example:
        >>> law = NormalMixture(2)
        >>> theta = torch.tensor([0.0, 0.0, -1.0, 1.0, 0.0, 0.0])  # even logits, at -1 and 1, of unit deviation
        >>> law.mean(theta), law.variance(theta)
        (tensor(0.), tensor(2.))
    """

    name, continuous = "normal-mixture", True

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        logits, location, log_scale = self.split(theta)
        z = (x.unsqueeze(-1) - location) * torch.exp(-log_scale)
        each = -0.5 * z**2 - log_scale - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(logits.log_softmax(-1) + each, -1)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        location, log_scale = self.chosen(theta, place)
        return location + log_scale.exp() * normal(location.shape, place=place, dtype=location.dtype)

    def mean(self, theta: Tensor) -> Tensor:
        logits, location, _ = self.split(theta)
        return (logits.softmax(-1) * location).sum(-1)

    def variance(self, theta: Tensor) -> Tensor:
        logits, location, log_scale = self.split(theta)
        square = torch.exp(2 * log_scale) + location**2
        return (logits.softmax(-1) * square).sum(-1) - self.mean(theta) ** 2


@dataclass(frozen=True)
class LogisticMixture(_Parts):
    """Whole numbers 0..levels-1 by a mixture of logistic laws, each level the mass of its bin.

        P(x) = sum_k softmax(logits)_k [sigmoid((x + h - m_k) / s_k) - sigmoid((x - h - m_k) / s_k)]

    on levels scaled to [-1, 1], with h half of the way to the next; the first and the last bin reach to infinity, so
    that all levels together have probability 1. Neighbouring levels share what is learned of each other, unlike the
    classes of `categorical`.

    Attributes:
        levels: how many there are; 256 of a byte.

    References:
        Salimans, Karpathy, Chen and Kingma, "PixelCNN++", arXiv 1701.05517.

    Example:
        >>> law = LogisticMixture(2, levels=4)
        >>> theta = torch.zeros(4, 6)
        >>> law.log_prob(theta, torch.arange(4.0)).exp().round(decimals=3), law.mean(theta[0])
        (tensor([0.3390, 0.1610, 0.1610, 0.3390]), tensor(1.5000))
    """

    levels: int = 256
    name = "logistic-mixture"

    @property
    def holds(self) -> str:  # type: ignore[override]
        return f"whole numbers 0..{self.levels - 1}"

    @property
    def outcomes(self) -> int:  # type: ignore[override]
        return self.levels

    def read(self, x: Tensor) -> Tensor:
        """Scaled to [-1, 1]."""
        return (2 * x / (self.levels - 1) - 1).unsqueeze(-1)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        logits, location, log_scale = self.split(theta)
        log_scale = log_scale.clamp_min(-7.0)  # narrower than any bin of a byte: the mass is in one level anyhow
        x, half = x.unsqueeze(-1), 1.0 / (self.levels - 1)
        apart = (2 * half * x - 1 - location) * torch.exp(-log_scale)
        reach = half * torch.exp(-log_scale)
        upper, lower = apart + reach, apart - reach
        # sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b)), without cancellation however far out
        inside = F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log(-torch.expm1(-2 * reach))
        mass = torch.where(x <= 0, F.logsigmoid(upper), torch.where(x >= self.levels - 1, F.logsigmoid(-lower), inside))
        return torch.logsumexp(logits.log_softmax(-1) + mass, -1)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        location, log_scale = self.chosen(theta, place)
        u = uniform(location.shape, place=place, dtype=torch.float64)
        at = location + log_scale.clamp_min(-7.0).exp() * torch.logit(u, eps=1e-15).to(location.dtype)
        return ((at + 1) * (self.levels - 1) / 2).round().clamp(0, self.levels - 1)

    def mean(self, theta: Tensor) -> Tensor:
        share, level = self._shares(theta)
        return (share * level).sum(-1)

    def variance(self, theta: Tensor) -> Tensor:
        share, level = self._shares(theta)
        return (share * level**2).sum(-1) - (share * level).sum(-1) ** 2

    def _shares(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        level = torch.arange(self.levels, device=theta.device, dtype=theta.dtype)
        return self.log_prob(theta.unsqueeze(-2), level).exp(), level

    def allows(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x < self.levels) & (x == x.floor())


def output_laws(field: Field, law: str, *, classes: int | None = None, parts: int = 10) -> Laws:
    """The laws of a row whose parameters a net gives: those of `laws_of`, or a mixture.

    Args:
        field: what a row is.
        law: see `laws_of`; `normal-mixture` is `auto` with mixtures of normals for real numbers, `logistic-mixture` is
            for whole numbers 0..classes-1.
        classes: of `categorical` and `logistic-mixture`, for an array, how many there are.
        parts: of the mixtures, how many.
    """
    if law == "logistic-mixture":
        if classes is None:
            raise ValueError(
                "expected the number of levels for the law 'logistic-mixture', got none; give classes=..., of bytes "
                "classes=256"
            )
        return laws_of(field, LogisticMixture(parts, classes))
    if law == "normal-mixture":
        plain, mixed = laws_of(field, "auto", classes=classes), NormalMixture(parts)
        return Laws([mixed if isinstance(own, Normal) else own for own in plain.laws], plain.names)
    return laws_of(field, law, classes=classes)


def refuse_parts(laws: Laws, parts: int, default: int, whose: str) -> None:
    """Raises for `parts` other than by default where no law is a mixture, so that nothing would read them."""
    if parts != default and not any(isinstance(law, _Parts) for law in laws.laws):
        raise ValueError(
            f"expected parts of {whose} beside a law that has some, 'normal-mixture' or 'logistic-mixture', got "
            f"{parts} beside {', '.join(sorted({law.name for law in laws.laws}))}; leave them out"
        )
