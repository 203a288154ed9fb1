"""Laws of actions: what a policy's net tells of a row becomes a distribution over a world's actions.

Each law reads `size` numbers of a row, `told`, of shape `(..., size)`, and answers about actions `(..., *shape)`. What
is drawn is keyed, as everywhere (`weft.core.random`): the leading axis of `told` is the rows in force, and all replicas
may be asked at once (`vmap`), as no law looks at values to decide what to do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.nn.functional import pad, softplus

from weft.core.random import categorical, normal
from weft.core.source import Field

__all__ = ["Choices", "Classes", "Clipped", "Law", "Normals", "Squashed", "law_of"]


class Law(ABC):
    """A family of distributions over actions.

    Attributes:
        size: how many numbers are told of a row.
        name: the family, in torch's words and small letters.
    """

    size: int
    name: str

    @abstractmethod
    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        """An action for each row."""

    @abstractmethod
    def best(self, told: Tensor) -> Tensor:
        """The action that a policy would take that draws no more."""

    @abstractmethod
    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        """Its log-probability, or log-density, of the shape of the leading axes."""

    @abstractmethod
    def entropy(self, told: Tensor) -> Tensor:
        """In nats."""

    @abstractmethod
    def kl(self, told: Tensor, other: Tensor) -> Tensor:
        """KL(told || other), in nats."""

    @abstractmethod
    def distribution(self, told: Tensor) -> Distribution:
        """As torch has it, with the rows on the leading axes; of numbers, before they are squashed or clipped."""

    def masked(self, told: Tensor, legal: Tensor | None) -> Tensor:
        """What is told, once only some actions are legal, `(..., classes)`; None where all are."""
        if legal is None:
            return told
        raise ValueError(f"expected {type(self).__name__} without a mask of legal actions, got one; see Classes")


class Classes(Law):
    """One of finitely many actions, by logits: pi(a) = exp(told_a) / sum_b exp(told_b).

    What is not legal has probability 0, exactly, and log-probability the least finite number, so that no gradient is
    NaN.

    Args:
        count: of the actions.

    Example:
        >>> law, told = Classes(3), torch.tensor([[1.0, 2.0, 5.0]])
        >>> heard = law.masked(told, torch.tensor([[True, True, False]]))
        >>> law.best(told), law.best(heard), heard.softmax(-1)[0, 2]
        (tensor([2]), tensor([1]), tensor(0.))
    """

    name = "categorical"

    def __init__(self, count: int) -> None:
        self.size = int(count)

    def masked(self, told: Tensor, legal: Tensor | None) -> Tensor:
        return told if legal is None else told.masked_fill(~legal, torch.finfo(told.dtype).min)

    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        return categorical(told, place=place)

    def best(self, told: Tensor) -> Tensor:
        return told.argmax(-1)

    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        return told.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, told: Tensor) -> Tensor:
        log = told.log_softmax(-1)
        return -(log.exp() * log).sum(-1)

    def kl(self, told: Tensor, other: Tensor) -> Tensor:
        log = told.log_softmax(-1)
        return (log.exp() * (log - other.log_softmax(-1))).sum(-1)

    def distribution(self, told: Tensor) -> Distribution:
        return Categorical(logits=told, validate_args=False)


class Choices(Law):
    """Several choices at once, each of its own number of options: pi(a) = prod_i pi_i(a_i), by the logits of each.

    Args:
        counts: of the options of each choice.
        shape: of an action; default: one axis.

    Example:
        >>> Choices((2, 3)).best(torch.tensor([[0.0, 1.0, 5.0, 6.0, 7.0]]))
        tensor([[1, 2]])
    """

    name = "categorical"

    def __init__(self, counts: tuple[int, ...], shape: tuple[int, ...] | None = None) -> None:
        self.counts, self.size = tuple(map(int, counts)), sum(counts)
        self.shape = (len(counts),) if shape is None else shape

    def _each(self, told: Tensor) -> Tensor:
        """The logits of each choice, `(..., choices, most options)`; an option that it has not is never drawn."""
        most, least = max(self.counts), torch.finfo(told.dtype).min
        parts = told.split(self.counts, -1)
        return torch.stack([pad(p, (0, most - p.shape[-1]), value=least) for p in parts], -2)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        return self._shaped(categorical(self._each(told), place=place))

    def best(self, told: Tensor) -> Tensor:
        return self._shaped(self._each(told).argmax(-1))

    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        chosen = action.reshape(*told.shape[:-1], len(self.counts), 1)
        return self._each(told).log_softmax(-1).gather(-1, chosen).squeeze(-1).sum(-1)

    def entropy(self, told: Tensor) -> Tensor:
        log = self._each(told).log_softmax(-1)
        return -(log.exp() * log).sum((-2, -1))

    def kl(self, told: Tensor, other: Tensor) -> Tensor:
        log = self._each(told).log_softmax(-1)
        return (log.exp() * (log - self._each(other).log_softmax(-1))).sum((-2, -1))

    def distribution(self, told: Tensor) -> Distribution:
        return Independent(Categorical(logits=self._each(told), validate_args=False), 1)


class Normals(Law):
    """Numbers, each normal by itself: `told` holds their means and then the logarithms of their deviations.

    Args:
        shape: of an action.

    Example:
        >>> law = Normals((1,))
        >>> law.size, law.entropy(torch.tensor([[3.0, 0.0]]))  # log sqrt(2 pi e)
        (2, tensor([1.4189]))
    """

    name = "normal"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.entries = tuple(shape), math.prod(shape)
        self.size = 2 * self.entries

    def _parts(self, told: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the deviation, of each entry."""
        mean, log = told.chunk(2, -1)
        return mean, log

    def _flat(self, action: Tensor) -> Tensor:
        return action.reshape(*action.shape[: action.dim() - len(self.shape)], self.entries)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def _draw(self, told: Tensor, place: str) -> Tensor:
        mean, log = self._parts(told)
        return mean + log.exp() * normal(mean.shape, place=place, dtype=mean.dtype)

    def _log_normal(self, told: Tensor, value: Tensor) -> Tensor:
        mean, log = self._parts(told)
        return -0.5 * ((value - mean) * (-log).exp()).square() - log - 0.5 * math.log(2 * math.pi)

    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        return self._shaped(self._draw(told, place))

    def best(self, told: Tensor) -> Tensor:
        return self._shaped(self._parts(told)[0])

    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        return self._log_normal(told, self._flat(action)).sum(-1)

    def entropy(self, told: Tensor) -> Tensor:
        return (self._parts(told)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, told: Tensor, other: Tensor) -> Tensor:
        (mean, log), (its_mean, its_log) = self._parts(told), self._parts(other)
        apart = (2 * (log - its_log)).exp() + ((mean - its_mean) * (-its_log).exp()).square()
        return (its_log - log + 0.5 * apart - 0.5).sum(-1)

    def distribution(self, told: Tensor) -> Distribution:
        mean, log = self._parts(told)
        return Independent(Normal(mean, log.exp(), validate_args=False), 1)


class _Bounded(Normals):
    """Numbers between bounds."""

    def __init__(self, shape: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> None:
        super().__init__(shape)
        self.low, self.high = low, high

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (torch.tensor(ends, dtype=like.dtype, device=like.device) for ends in (self.low, self.high))
        return low, high


def _log_below(x: Tensor) -> Tensor:
    """log Phi(x), as `torch.special.log_ndtr`, which has no rule under `vmap`."""
    tail = x < -1.0
    near, far = torch.where(tail, 0.0, x), torch.where(tail, x, -1.0)
    beyond = torch.special.erfcx(-far * 0.5**0.5).log() - math.log(2.0) - 0.5 * far.square()
    return torch.where(tail, beyond, torch.log1p(-0.5 * torch.special.erfc(near * 0.5**0.5)))


class Clipped(_Bounded):
    """Normal numbers put between their bounds: what lies beyond one is taken at it, with the probability of all of it.

        p(a) = N(a; mean, deviation) between the bounds,   P(low) = Phi((low - mean) / deviation),   P(high) likewise.

    Told the density of the normal itself, as is usual, a gradient is as well unbiased where the number before clipping
    is kept; this one has the lower variance, and asks only for the action that was done. Entropy and KL are those of
    the normals: the KL is an upper bound.

    Args:
        shape: of an action.
        low, high: the bounds of each entry, infinite where it has none.

    References:
        Fujita and Maeda, "Clipped action policy gradient", arXiv 1802.07564.

    Example:
        >>> law = Clipped((1,), (-1.0,), (1.0,))
        >>> law.log_prob(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0]])).exp()  # half of it lies beyond 1
        tensor([0.5000])
    """

    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        drawn = self._draw(told, place)
        return self._shaped(torch.clamp(drawn, *self._bounds(drawn)))

    def best(self, told: Tensor) -> Tensor:
        mean = self._parts(told)[0]
        return self._shaped(torch.clamp(mean, *self._bounds(mean)))

    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        value = self._flat(action).to(told.dtype)
        low, high = self._bounds(value)
        (mean, log), below, above = self._parts(told), value <= low, value >= high
        sign = torch.where(below, 1.0, -1.0).to(told.dtype)
        scaled = (value - mean) * (-log).exp()
        return torch.where(below | above, _log_below(sign * scaled), self._log_normal(told, value)).sum(-1)


class Squashed(_Bounded):
    """Normal numbers squashed between their bounds: a = middle + half tanh(u), u ~ N(mean, deviation).

        log p(a) = log N(u) - log half - log(1 - tanh(u)^2),    u = artanh((a - middle) / half).

    The KL is that of the normals, exactly. The entropy is

        H(N) + log half + E log(1 - tanh(u)^2),

    the mean by Gauss and Hermite's rule with 64 points. The best action is that of the mean of u.

    Args:
        shape: of an action.
        low, high: the finite bounds of each entry.

    References:
        Haarnoja, Zhou, Abbeel and Levine, "Soft actor-critic", arXiv 1801.01290, appendix C.

    Example:
        >>> law = Squashed((1,), (-2.0,), (2.0,))
        >>> law.best(torch.tensor([[100.0, 0.0]]))
        tensor([[2.]])
    """

    def _to(self, u: Tensor) -> Tensor:
        low, high = self._bounds(u)
        return self._shaped(torch.clamp((low + high) / 2 + (high - low) / 2 * torch.tanh(u), low, high))

    def _log_slope(self, u: Tensor) -> Tensor:
        """log da/du."""
        low, high = self._bounds(u)
        return ((high - low) / 2).log() + 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))

    def sample(self, told: Tensor, *, place: str = "action") -> Tensor:
        return self._to(self._draw(told, place))

    def drawn(self, told: Tensor, *, place: str = "action") -> tuple[Tensor, Tensor]:
        """An action for each row and its log-density, through both of which gradients reach `told`."""
        u = self._draw(told, place)
        return self._to(u), (self._log_normal(told, u) - self._log_slope(u)).sum(-1)

    def best(self, told: Tensor) -> Tensor:
        return self._to(self._parts(told)[0])

    def log_prob(self, told: Tensor, action: Tensor) -> Tensor:
        value = self._flat(action).to(told.dtype)
        low, high = self._bounds(value)
        most = 1.0 - torch.finfo(told.dtype).eps  # at a bound itself u would be infinite
        u = torch.atanh(((2.0 * value - low - high) / (high - low)).clamp(-most, most))
        return (self._log_normal(told, u) - self._log_slope(u)).sum(-1)

    def entropy(self, told: Tensor) -> Tensor:
        mean, log = self._parts(told)
        at, weight = (torch.from_numpy(part).to(mean) for part in np.polynomial.hermite_e.hermegauss(64))
        low, high = self._bounds(mean)
        u = mean.unsqueeze(-1) + log.exp().unsqueeze(-1) * at
        bent = (2.0 * (math.log(2.0) - u - softplus(-2.0 * u)) * (weight / weight.sum())).sum(-1)
        return super().entropy(told) + (((high - low) / 2).log() + bent).sum(-1)


def law_of(action: Field, *, bounds: Literal["squash", "clip"] = "squash") -> Law:
    """The law of a world's actions.

    Args:
        action: what one of them is.
        bounds: what becomes of numbers that have bounds: `squash` or `clip`.

    Example:
        >>> law_of(Field((), torch.int64, classes=4)).size
        4
        >>> type(law_of(Field((2,), torch.float32, low=(-1.0, -1.0), high=(1.0, 1.0)))).__name__
        'Squashed'
    """
    if action.classes is not None:
        return Classes(action.classes)
    if action.choices:
        return Choices(action.choices, action.shape)
    if not action.dtype.is_floating_point:
        raise ValueError(
            f"expected actions that are classes, choices or floating-point numbers, got {action}; let the world say "
            "classes or choices"
        )
    if not any(map(math.isfinite, (*action.low, *action.high))):
        return Normals(action.shape)
    if bounds == "clip":
        return Clipped(action.shape, action.low, action.high)
    if not all(map(math.isfinite, (*action.low, *action.high))) or any(
        a == b for a, b in zip(action.low, action.high, strict=True)
    ):
        raise ValueError(
            f"expected finite bounds, one below the other, of each entry of an action that is squashed between them, "
            f"got low {action.low} and high {action.high}; clip it (bounds='clip')"
        )
    return Squashed(action.shape, action.low, action.high)
