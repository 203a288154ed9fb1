"""Whole numbers under a density of real ones: each is spread over the unit above it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Such, Whole
from weft.core.objective import Capability, Iterations, Output, Solution, capability
from weft.core.random import fold, uniform, unit
from weft.core.source import Batch, Field, Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.gaussian import Gaussian
from weft.objectives.densities.laws import Law, laws_of
from weft.objectives.densities.rows import of_part

__all__ = ["Dequantized"]


@dataclass(frozen=True)
class Levels(Law):
    """Whole numbers 0..levels-1, whose probabilities a density of real numbers gives."""

    levels: int = 256
    name = "dequantized"

    @property
    def holds(self) -> str:  # type: ignore[override]
        return f"whole numbers 0..{self.levels - 1}"

    def allows(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x < self.levels) & (x == x.floor())


class Dequantized(Density):
    """A density p of real numbers, for whole ones 0..levels-1 such as bytes: P(x) is the mass of the cell above x.

        log P(x) = log int_[0,1)^d p(x + u) du >= E_u log p(x + u),      u uniform

    A density on whole numbers alone has no bound, since it may put a spike on each; spread over their cells they are
    real numbers, and what is maximized is a lower bound of the log-probability of the whole ones. `log_prob` is that
    bound, by the mean over some draws of u, in nats for x as it was given (`weft.scores.bits_per_dimension(...,
    dequantized="uniform")` names it so).

    The density sees (x + u) / levels, between 0 and 1.

    Args:
        density: of rows of real numbers, such as `GaussianMixture(5)`, solved or descended; None for `Gaussian()`.
        levels: how many whole numbers there are.
        draws: of u for `log_prob`; the bound is the same in expectation, with less noise.

    References:
        Uria, Murray and Larochelle, "RNADE: the real-valued neural autoregressive density-estimator", arXiv 1306.0186.
        Theis, van den Oord and Bethge, "A note on the evaluation of generative models", arXiv 1511.01844.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> from weft.objectives import Gaussian
        >>> X = np.random.default_rng(0).binomial(15, 0.3, size=(500, 2))
        >>> learner = Learner(Dequantized(Gaussian(), levels=16), random_state=0).fit(X)
        >>> learner.log_prob.kind, learner.sample(3, random_state=0).dtype, bool(learner.score(X) < 0)
        ('lower bound', dtype('float32'), True)
    """

    legal = {
        "density": Such("a density such as Gaussian()", lambda v: v is None or isinstance(v, Density)),
        "levels": Whole(2),
        "draws": Whole(1),
    }

    inner: Density

    def __init__(self, density: Density | None = None, *, levels: int = 256, draws: int = 1) -> None:
        super().__init__()
        self.density = density
        self.levels = levels
        self.draws = draws

    def each(self) -> Density:
        """The density as it was given."""
        given = vars(self).get("density", self._modules.get("density"))
        return Gaussian() if given is None else given

    def validate(self) -> None:
        super().validate()
        part = self.each()
        part.validate()
        if part.fields != ("x",) or part.players:
            raise ValueError(
                f"expected a density of rows alone for {type(self).__name__}, got {type(part).__name__}, which reads "
                f"{', '.join(part.fields)}"
            )

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        """What may be searched of the density."""
        return {} if self.density is None else {f"density__{name}": r for name, r in self.each().space.items()}

    @property
    def solved(self) -> bool:  # type: ignore[override]
        return self.each().solved

    @property
    def solves(self) -> str:  # type: ignore[override]
        return self.each().solves

    @property
    def optimizer(self) -> object:
        return self.each().optimizer

    @property
    def gaps(self) -> bool:  # type: ignore[override]
        return self.each().gaps

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"inner.{name}" for name in self.each().carried)

    @property
    def surveys(self) -> bool:
        return self.each().surveys

    def capabilities(self) -> dict[str, Capability]:
        """What the density can do of this; of an estimate there is but an estimate of a bound."""
        marks, own = super().capabilities(), self.each().capabilities()
        if own["log_prob"].kind == "estimate":
            marks["log_prob"] = replace(marks["log_prob"], kind="estimate")
        if "sample" not in own:
            return {name: mark for name, mark in marks.items() if name != "sample"}
        return {**marks, "sample": replace(marks["sample"], kind=own["sample"].kind)}

    def build(self, spec: Spec) -> None:
        field = spec["x"]
        self.entries = laws_of(field, Levels(int(self.levels)))
        self.inner = copy.deepcopy(self.each())
        self.inner.build({**spec, "x": Field(field.shape, torch.get_default_dtype())})
        laws = self.inner.entries
        if laws is not None and not all(law.continuous for law in laws.laws):
            raise ValueError(
                f"expected a density of real numbers for {type(self).__name__}, got {self.each()!r}, which gives whole "
                "ones probabilities: fit it to them as it is"
            )

    def forward(self, batch: Batch, player: str = "") -> Output:
        x = batch["x"].to(torch.get_default_dtype())
        spread = (x + uniform(x.shape, place="cell", dtype=x.dtype)) / self.levels
        return self.inner({**batch, "x": spread}, player)

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """E_u log p(x + u), by the mean over draws: at most log P(x), in expectation."""
        x, told = x.to(torch.get_default_dtype()), [] if observed is None else [observed]
        found = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for k in range(int(self.draws)):
            spread = (x + uniform(x.shape, place=f"cell {k}", dtype=x.dtype)) / self.levels
            found = found + self.inner.log_prob(spread, *told)
        there = x[0].numel() if observed is None else observed.flatten(1).sum(1)
        return found / int(self.draws) - there * torch.log(x.new_tensor(float(self.levels)))

    @capability(merge="share", kind="direct", gives="x")
    def sample(self, n: int) -> Tensor:
        """Rows of the density, each number by the cell that it is in; what is outside of all goes to the nearest."""
        drawn: Tensor = self.inner.sample(n)  # type: ignore[operator]
        return (drawn * self.levels).floor().clamp(0, self.levels - 1)

    def survey(self, source: Source, state: State) -> Solution:
        """What the density asks about rows that are spread."""
        return _named(self.inner.survey(_Spread(source, int(self.levels)), of_part(state, "inner.", self.inner)))

    def solve(self, source: Source, state: State) -> Iterations:
        """The density's own, on rows that are spread once."""
        found = self.inner.solve(_Spread(source, int(self.levels)), of_part(state, "inner.", self.inner))
        if isinstance(found, dict):
            return _named(found)
        last: Solution = {}
        while True:
            try:
                given = next(found)
            except StopIteration as end:
                return _named(end.value or last)
            record, last = given if isinstance(given, tuple) else (given, last)
            yield (record, _named(last)) if last else record

    def free_parameters(self) -> int:
        return self.inner.free_parameters()


def _named(solution: Solution) -> Solution:
    return {f"inner.{name}": value for name, value in solution.items()}


class _Spread(Source):
    """The rows of a source, each number somewhere in its cell."""

    stacks = True

    def __init__(self, source: Source, levels: int) -> None:
        self.source, self.levels, self.size = source, levels, source.size
        self.spec = {**source.spec, "x": Field(source.spec["x"].shape, torch.get_default_dtype())}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        done, lead = 0, () if state.replicas is None else (state.replicas,)
        for batch in self.source.once(state, rows):
            x = batch["x"].to(torch.float64)
            number = torch.arange(done, done + x.shape[len(lead)], device=x.device)
            keys = fold(state.key("cell").reshape(*lead, 1), number)
            done += x.shape[len(lead)]
            yield {**batch, "x": (x + unit(keys, x.shape[len(lead) + 1 :], x.dtype)) / self.levels}
