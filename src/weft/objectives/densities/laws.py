"""Laws of one number given parameters, and rows of such: what a model's outputs mean, by the kind of a column.

They are one idea, each a few lines beside the others, which is why the file is long.

A law is described by `size` unconstrained numbers, so that a net may give them, a gradient move them and EM set them:

    law          for                    its numbers
    normal       numbers                mean, log of the deviation
    student      numbers, heavy tails   location, log of the scale
    bernoulli    true or false          the logit of true
    categorical  classes 0..k-1         k logits
    poisson      counts 0, 1, 2, ...    log of the rate

`Laws` are those of all entries of a row, independent given their parameters: of one kind for an array, by the kind of
each column for a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.configured import closest
from weft.core.random import bernoulli, categorical, normal, uniform
from weft.core.source import Field

__all__ = ["LAWS", "Bernoulli", "Categorical", "Law", "Laws", "Normal", "Poisson", "Student", "laws_of", "mapped"]


@dataclass(frozen=True)
class Law:
    """The law of a number x given `size` numbers.

    Attributes:
        name: as a model's setting spells it.
        size: how many numbers describe it.
        continuous: whether it is a density; else probabilities of whole numbers.
        holds: what x may be, in words.
        outcomes: how many there are, 0..outcomes-1; 0 where there is no end of them.
        width: how many numbers `read` makes of x.
    """

    name = ""
    size = 1
    continuous = False
    holds = "numbers"
    outcomes = 0
    width = 1

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        """log p(x), for parameters `(..., size)` and numbers `(...)`."""
        raise NotImplementedError

    def draw(self, theta: Tensor, place: str) -> Tensor:
        """A draw for each of `(n, ..., size)` parameters, in their dtype."""
        raise NotImplementedError

    def mean(self, theta: Tensor) -> Tensor:
        """The mean of the law; of classes the likeliest."""
        raise NotImplementedError

    def variance(self, theta: Tensor) -> Tensor:
        """The variance of the law, where its outcomes are numbers."""
        raise NotImplementedError(f"the law {self.name!r} is of classes, which have no variance")

    def allows(self, x: Tensor) -> Tensor:
        """Where numbers are in the support."""
        return torch.isfinite(x)

    def read(self, x: Tensor) -> Tensor:
        """Numbers as a net reads them where other entries depend on them, `(..., width)`."""
        return x.unsqueeze(-1)

    def tempered(self, theta: Tensor, temperature: float) -> Tensor:
        """The parameters of the law in proportion to p(x)^(1 / temperature), where it is one of its kind."""
        if temperature == 1:
            return theta
        raise ValueError(
            f"expected temperature=1 for the law {self.name!r}, of which no power is a law of its kind, got "
            f"{temperature:g}; leave it out, or take one of 'bernoulli', 'categorical' and 'normal'"
        )

    def likeliest(self, theta: Tensor, count: int) -> Tensor:
        """The parameters of the law given that x is one of so many likeliest classes."""
        raise ValueError(
            f"expected no top_k for the law {self.name!r}, which is none of classes, got {count}; leave it out (a "
            "temperature below 1 draws nearer to the likeliest), or take the law 'categorical'"
        )

    def estimate(self, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        """The parameters of largest weighted likelihood.

        Args:
            x: numbers, `(..., n)`.
            weight: how much each counts, `(..., n)`.
            floor: the least variance of a density; of probabilities so many imagined draws of each outcome.

        Returns:
            `(..., size)`.
        """
        raise NotImplementedError(f"the law {self.name!r} has no maximum likelihood in closed form; descend to it")

    def improve(self, theta: Tensor | None, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        """A step of EM from parameters, or from none: where there is a closed form, that of largest likelihood."""
        return self.estimate(x, weight, floor)

    def free(self) -> int:
        """How many of its numbers are free."""
        return self.size


class Normal(Law):
    """N(mean, deviation^2): log p(x) = -(x - mean)^2 / (2 deviation^2) - log deviation - log(2 pi) / 2."""

    name, size, continuous = "normal", 2, True

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        mean, log_scale = theta.unbind(-1)
        away = (x - mean) * torch.exp(-log_scale - 0.5 * math.log(2))
        return -log_scale - 0.5 * math.log(2 * math.pi) - away * away

    def draw(self, theta: Tensor, place: str) -> Tensor:
        mean, log_scale = theta.unbind(-1)
        return mean + log_scale.exp() * normal(mean.shape, place=place, dtype=mean.dtype)

    def mean(self, theta: Tensor) -> Tensor:
        return theta[..., 0]

    def variance(self, theta: Tensor) -> Tensor:
        return torch.exp(2 * theta[..., 1])

    def tempered(self, theta: Tensor, temperature: float) -> Tensor:
        """With its variance times the temperature."""
        return theta + theta.new_tensor([0.0, 0.5 * math.log(temperature)])

    def estimate(self, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        mass = weight.sum(-1).clamp_min(torch.finfo(x.dtype).tiny)
        mean = (weight * x).sum(-1) / mass
        variance = (weight * (x - mean.unsqueeze(-1)) ** 2).sum(-1) / mass + floor
        return torch.stack([mean, 0.5 * variance.log()], -1)


@dataclass(frozen=True)
class Student(Law):
    """Student's t around a location, with heavier tails for fewer degrees of freedom.

    It is a normal whose precision is drawn from a Gamma, which is how EM weighs outliers down.

    Attributes:
        freedom: the degrees of freedom.
    """

    freedom: float = 4.0
    name, size, continuous = "student", 2, True

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        location, log_scale = theta.unbind(-1)
        f, z = self.freedom, (x - location) * torch.exp(-log_scale)
        constant = math.lgamma((f + 1) / 2) - math.lgamma(f / 2) - 0.5 * math.log(f * math.pi)
        return constant - log_scale - (f + 1) / 2 * torch.log1p(z * z / f)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        """By Bailey's polar method, from two uniforms."""
        location, log_scale = theta.unbind(-1)
        u = uniform((*location.shape, 2), place=place, dtype=torch.float64)
        tail = torch.expm1(-2 / self.freedom * torch.log1p(-u[..., 0]))
        z = (self.freedom * tail).sqrt() * torch.cos(2 * math.pi * u[..., 1])
        return location + log_scale.exp() * z.to(location.dtype)

    def mean(self, theta: Tensor) -> Tensor:
        return theta[..., 0]

    def variance(self, theta: Tensor) -> Tensor:
        spread = self.freedom / (self.freedom - 2) if self.freedom > 2 else math.inf
        return torch.exp(2 * theta[..., 1]) * spread

    def weigh(self, theta: Tensor, x: Tensor) -> Tensor:
        """The expected precision of each number given it, relative to the scale's: (f + 1) / (f + z^2)."""
        location, log_scale = theta.unbind(-1)
        return (self.freedom + 1) / (self.freedom + ((x - location) * torch.exp(-log_scale)) ** 2)

    def improve(self, theta: Tensor | None, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        """With precisions u expected: location sum w u x / sum w u, squared scale sum w u (x - location)^2 / sum w."""
        if theta is None:
            return Normal().estimate(x, weight, floor)
        tiny = torch.finfo(x.dtype).tiny
        trusted = weight * self.weigh(theta.unsqueeze(-2), x)
        location = (trusted * x).sum(-1) / trusted.sum(-1).clamp_min(tiny)
        square = (trusted * (x - location.unsqueeze(-1)) ** 2).sum(-1) / weight.sum(-1).clamp_min(tiny) + floor
        return torch.stack([location, 0.5 * square.log()], -1)


class Bernoulli(Law):
    """True (1) with probability sigmoid(logit)."""

    name, holds, outcomes = "bernoulli", "0 or 1", 2

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        logit = theta[..., 0]
        return -F.softplus(torch.where(x > 0.5, -logit, logit))

    def draw(self, theta: Tensor, place: str) -> Tensor:
        return bernoulli(theta[..., 0].sigmoid(), place=place)

    def mean(self, theta: Tensor) -> Tensor:
        return theta[..., 0].sigmoid()

    def variance(self, theta: Tensor) -> Tensor:
        share = theta[..., 0].sigmoid()
        return share * (1 - share)

    def allows(self, x: Tensor) -> Tensor:
        return (x == 0) | (x == 1)

    def tempered(self, theta: Tensor, temperature: float) -> Tensor:
        return theta / temperature

    def estimate(self, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        ones, mass = (weight * x).sum(-1) + floor, weight.sum(-1) + 2 * floor
        return (ones.log() - (mass - ones).log()).unsqueeze(-1)


@dataclass(frozen=True)
class Categorical(Law):
    """One of k classes, with probabilities softmax(logits).

    Attributes:
        classes: k.
    """

    classes: int = 2
    name = "categorical"

    @property
    def size(self) -> int:  # type: ignore[override]
        return self.classes

    @property
    def outcomes(self) -> int:  # type: ignore[override]
        return self.classes

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.classes

    @property
    def holds(self) -> str:  # type: ignore[override]
        return f"classes 0..{self.classes - 1}"

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        code = x.long().clamp(0, self.classes - 1).unsqueeze(-1)
        logits, code = torch.broadcast_tensors(theta.log_softmax(-1), code.expand(*code.shape[:-1], self.classes))
        return logits.gather(-1, code[..., :1]).squeeze(-1)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        return categorical(theta, place=place).to(theta.dtype)

    def mean(self, theta: Tensor) -> Tensor:
        return theta.argmax(-1).to(theta.dtype)

    def allows(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x < self.classes) & (x == x.floor())

    def read(self, x: Tensor) -> Tensor:
        """One entry for each class."""
        return (x.unsqueeze(-1) == torch.arange(self.classes, device=x.device)).to(x.dtype)

    def tempered(self, theta: Tensor, temperature: float) -> Tensor:
        return theta / temperature

    def likeliest(self, theta: Tensor, count: int) -> Tensor:
        """Of classes that are alike, those that stand first."""
        if count > self.classes:
            raise ValueError(
                f"expected a top_k of at most the {self.classes} classes, got {count}; leave it out for all"
            )
        rank = torch.argsort(theta, dim=-1, descending=True, stable=True).argsort(-1)
        return torch.where(rank < count, theta, -torch.inf)

    def estimate(self, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        each = torch.arange(self.classes, device=x.device, dtype=x.dtype)
        counts = (weight.unsqueeze(-1) * (x.unsqueeze(-1) == each)).sum(-2) + floor
        return counts.log() - counts.sum(-1, keepdim=True).log()

    def free(self) -> int:
        return self.classes - 1


class Poisson(Law):
    """A count with rate exp(log rate): log p(x) = x log rate - rate - log x!."""

    name, holds = "poisson", "counts 0, 1, 2, ..."

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        log_rate = theta[..., 0]
        return x * log_rate - log_rate.exp() - torch.lgamma(x + 1)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        """By the inverse of the distribution function, which is found by halving."""
        rate = theta[..., 0].exp().double()
        u = uniform(rate.shape, place=place, dtype=torch.float64)
        low, high = -torch.ones_like(rate), (rate + 12 * rate.sqrt() + 40).ceil()
        for _ in range(int(math.log2(float(high.max()) + 2)) + 1 if not mapped(high) else 40):
            middle = ((low + high) / 2).floor()
            enough = torch.special.gammaincc(middle.clamp_min(0) + 1, rate) > u
            enough = enough & (middle >= 0)
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high.to(theta.dtype)

    def mean(self, theta: Tensor) -> Tensor:
        return theta[..., 0].exp()

    def variance(self, theta: Tensor) -> Tensor:
        return theta[..., 0].exp()

    def allows(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x == x.floor()) & torch.isfinite(x)

    def read(self, x: Tensor) -> Tensor:
        """log(1 + x), as counts may be large."""
        return torch.log1p(x).unsqueeze(-1)

    def estimate(self, x: Tensor, weight: Tensor, floor: float) -> Tensor:
        rate = ((weight * x).sum(-1) + floor) / (weight.sum(-1) + floor).clamp_min(torch.finfo(x.dtype).tiny)
        return rate.log().unsqueeze(-1)


def mapped(tensor: Tensor) -> bool:
    """Whether a vmap is around it, under which no number can be read."""
    return torch._C._functorch.is_batchedtensor(tensor)


LAWS = ("normal", "student", "bernoulli", "categorical", "poisson")
"""The laws by name."""
_BY_KIND = {"number": "normal", "boolean": "bernoulli", "category": "categorical", "count": "poisson"}


class Laws:
    """The laws of a row's entries, independent given their parameters, which stand one after another in `(..., size)`.

    Args:
        laws: one for each entry.
        names: of the entries, for messages.

    Attributes:
        size: how many parameters there are.
        places: where those of each entry stand among them.

    Example:
        >>> laws = Laws([Normal(), Bernoulli()])
        >>> laws.size, laws.log_prob(torch.zeros(3), torch.tensor([[0.0, 1.0]])).round(decimals=3)
        (3, tensor([[-0.9190, -0.6930]]))
    """

    def __init__(self, laws: Sequence[Law], names: Sequence[str] = ()) -> None:
        self.laws = tuple(laws)
        self.names = tuple(names) or tuple(f"column {j}" for j in range(len(laws)))
        self.size = sum(law.size for law in laws)
        kinds: dict[Law, list[int]] = {}
        for j, law in enumerate(self.laws):
            kinds.setdefault(law, []).append(j)
        ends = list(accumulate(law.size for law in self.laws))
        self.places = [slice(end - law.size, end) for law, end in zip(self.laws, ends, strict=True)]
        self._groups = [
            (law, entries, [i for j in entries for i in range(self.places[j].start, self.places[j].stop)])
            for law, entries in kinds.items()
        ]

    def __len__(self) -> int:
        return len(self.laws)

    def __deepcopy__(self, memo: dict[int, object]) -> Laws:
        return self  # nothing of it changes, and there may be thousands of entries

    @property
    def continuous(self) -> bool:
        """Whether some entry has a density."""
        return any(law.continuous for law in self.laws)

    @property
    def free(self) -> int:
        """How many of the numbers are free."""
        return sum(law.free() for law in self.laws)

    def _of(self, theta: Tensor, law: Law, entries: list[int], places: list[int]) -> Tensor:
        """The parameters of the entries of one law, `(..., entries, size)`."""
        whole = len(entries) == len(self.laws)
        own = theta if whole else theta[..., places]
        return own.unflatten(-1, (len(entries), law.size))

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        """log p of each entry, `(..., d)`; of a row it is the sum, over what is observed."""
        found = [
            law.log_prob(self._of(theta, law, entries, places), x if len(entries) == len(self) else x[..., entries])
            for law, entries, places in self._groups
        ]
        return self._in_order(found)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        """A row for each of `(n, ..., size)` parameters."""
        return self._in_order(
            [
                law.draw(self._of(theta, law, e, p), f"{place}, {law.name} {i}")
                for i, (law, e, p) in enumerate(self._groups)
            ]
        )

    def read(self, x: Tensor) -> Tensor:
        """Rows as a net reads them, each entry's `width` numbers in the order of the entries."""
        if len(self._groups) == 1:
            return self.laws[0].read(x).flatten(-2)
        return torch.cat([law.read(x[..., j]) for j, law in enumerate(self.laws)], -1)

    def mean(self, theta: Tensor) -> Tensor:
        """The mean of each entry; of classes the likeliest."""
        return self._in_order([law.mean(self._of(theta, law, e, p)) for law, e, p in self._groups])

    def variance(self, theta: Tensor) -> Tensor:
        """The variance of each entry."""
        return self._in_order([law.variance(self._of(theta, law, e, p)) for law, e, p in self._groups])

    def _in_order(self, found: list[Tensor]) -> Tensor:
        if len(found) == 1:
            return found[0]
        order = [j for _, entries, _ in self._groups for j in entries]
        back = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(found, -1)[..., back]

    def estimate(
        self,
        x: Tensor,
        weight: Tensor,
        observed: Tensor | None,
        floor: float,
        smoothing: float | None = None,
        theta: Tensor | None = None,
    ) -> Tensor:
        """The parameters of largest weighted likelihood of each of K components; by a step of EM where it has no form.

        Args:
            x: rows, `(..., n, d)`.
            weight: `(..., n, K)`.
            observed: which entries count, of the shape of x, or None for all.
            floor: see `Law.estimate`.
            smoothing: the floor of laws of whole numbers, where it is another.
            theta: parameters to step from, `(..., K, size)`, or None.

        Returns:
            `(..., K, size)`.
        """
        values, mass = x.mT.unsqueeze(-3), weight.mT.unsqueeze(-2)  # (..., 1, d, n) and (..., K, 1, n)
        if observed is not None:
            mass = mass * observed.mT.unsqueeze(-3)
        found: list[Tensor] = []
        starts: list[int] = []
        for law, entries, places in self._groups:
            own = mass if observed is None else mass[..., entries, :]
            own = own.expand(*own.shape[:-2], len(entries), own.shape[-1])
            least = floor if law.continuous or smoothing is None else smoothing
            before = None if theta is None else self._of(theta, law, entries, places)
            found.append(law.improve(before, values[..., entries, :], own, least).flatten(-2))
            starts += places
        back = sorted(range(len(starts)), key=starts.__getitem__)
        return torch.cat(found, -1)[..., back]

    def refuse_others(self, name: str, whose: str) -> None:
        """Raises where an entry has another law than the one of this name."""
        for law, column in zip(self.laws, self.names, strict=True):
            if law.name != name:
                raise ValueError(
                    f"expected columns whose law is {name!r} for {whose}, got {column}, which holds {law.holds}; leave "
                    "it out, or take Mixture(), which has a law for each kind of column"
                )

    def refuse(self, x: Tensor, observed: Tensor | None = None) -> None:
        """Raises where rows are outside of the support: how many, in which columns."""
        if len(self._groups) == 1:
            wrong = ~self.laws[0].allows(x)
        else:
            wrong = torch.zeros_like(x, dtype=torch.bool)
            for law, entries, _ in self._groups:
                wrong[..., entries] = ~law.allows(x[..., entries])
        if observed is not None:
            wrong &= observed
        if not bool(wrong.any()):
            return
        rows, columns = wrong.any(-1), torch.nonzero(wrong.reshape(-1, len(self)).any(0)).flatten().tolist()
        first = columns[0]
        got = x.reshape(-1, len(self))[wrong.reshape(-1, len(self))[:, first], first][0]
        named = ", ".join(self.names[j] for j in columns[:5]) + (", ..." if len(columns) > 5 else "")
        raise ValueError(
            f"expected {self.laws[first].holds} in {self.names[first]}, whose law is {self.laws[first].name!r}, got "
            f"{got.item():g}; {int(rows.sum())} of {rows.numel()} rows are outside of the support, in {named}: choose "
            "another law, or mend those rows"
        )


def laws_of(field: Field, law: str | Law, *, classes: int | None = None, freedom: float = 4.0) -> Laws:
    """The laws of a row: those of its columns' kinds (`auto`), or one law for all entries.

    Args:
        field: what a row is.
        law: a name among `LAWS`, or `auto`: of a table by the kinds of its columns, of an array of real numbers normal;
            or a law itself, for all entries.
        classes: of `categorical` for an array, how many there are.
        freedom: of `student`, the degrees of freedom.
    """
    if len(field.shape) != 1:
        raise ValueError(
            f"expected rows of numbers, got rows of shape {field.shape}; flatten them: X.reshape(len(X), -1)"
        )
    if isinstance(law, Law):
        return Laws([law] * field.shape[0], [part.name for part in field.columns])
    if law != "auto" and law not in LAWS:
        raise closest(law, ("auto", *LAWS), "a law")
    names = [part.name for part in field.columns]
    kinds = [_BY_KIND[part.kind] for part in field.columns] or ["normal"] * field.shape[0]
    if law == "auto" and not field.columns and not field.dtype.is_floating_point:
        raise ValueError(
            f"expected real numbers for a density, got whole ones ({field.dtype}), which have probabilities: name "
            "their law ('categorical', 'poisson' or 'bernoulli'), or make them real by dequantizing: "
            "X + rng.random(X.shape)"
        )
    sizes = [part.classes for part in field.columns] or [classes] * field.shape[0]
    made: list[Law] = []
    for kind, size in zip(kinds if law == "auto" else [law] * len(kinds), sizes, strict=True):
        if kind == "categorical":
            if size is None:
                raise ValueError("expected the number of classes for the law 'categorical', got none; give classes=...")
            made.append(Categorical(size))
        else:
            made.append(Student(freedom) if kind == "student" else _PLAIN[kind])
    if classes is not None and (field.columns or not any(isinstance(own, Categorical) for own in made)):
        raise ValueError(
            f"expected no classes for {'a table, whose categories are counted' if field.columns else 'these laws'}, "
            f"got classes={classes}; leave it out, or name law='categorical' for an array of whole numbers"
        )
    return Laws(made, names)


_PLAIN: dict[str, Law] = {"normal": Normal(), "bernoulli": Bernoulli(), "poisson": Poisson()}
