"""What all mixtures share: one joint density p(x, z), and EM and gradients over it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Such, Whole
from weft.core.objective import Iterations, Solution, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import Laws
from weft.objectives.densities.rows import all_rows, refuse_rows, shared, weights_of
from weft.objectives.densities.starts import STARTS, clusters

__all__ = ["LOST", "MIXING", "Mixing", "Rows", "Start", "first_of", "named", "spread_of"]

LOST = 1e-12
"""Of a column's variance, below which a component's is rounding."""

Start = str | Mapping[str, Any]
"""A name, or parameters by name, as arrays or nested lists."""
_GIVEN = Such("parameters by name", lambda value: isinstance(value, Mapping))
MIXING = {
    "components": Whole(1),
    "inference": Choice("em", "gradient"),
    "start": Choice("auto", *STARTS, "random") | _GIVEN,
    "floor": Number(0),
    "tolerance": Number(0),
    "iterations": Whole(1),
}
"""What the settings that all mixtures have may be."""


class Rows(NamedTuple):
    """The rows of all replicas, `(R, n, ...)`, or `(1, n, ...)` where they share them, in double precision."""

    x: Tensor
    observed: Tensor
    weight: Tensor

    def of(self, live: Tensor) -> Rows:
        """Those of some replicas."""
        return Rows(*(own if len(own) == 1 else own[live] for own in self))


class Mixing(Density):
    """A density p(x) = sum_k share_k p(x | k), with shares softmax(logits).

    A subclass makes its parameters in `build` after `self.logits`, names them in `numbers`, and states `log_given`,
    log p(x | k) as a function of them; with `draw` and `fill`, all answers follow. For EM it gives `step`, an E-step
    and an M-step of all replicas at once.
    """

    gaps = True
    solves = "together"
    optimizer = Optimizer("adam", lr=0.02)
    numbers: tuple[str, ...] = ()

    components: int
    inference: str
    start: Start
    floor: float
    tolerance: float
    iterations: int
    entries: Laws
    logits: nn.Parameter

    @property
    def solved(self) -> bool:  # type: ignore[override]
        return self.inference == "em"

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        """The components; and where EM knows one, the floor."""
        found = {"components": Range(1, 30, log=True, whole=True)}
        return {**found, "floor": Range(1e-6, 1e-1, log=True)} if self.solved else found

    def validate(self) -> None:
        super().validate()
        if self.inference == "gradient" and self.start in STARTS:
            raise ValueError(
                f"expected start='random' or parameters by name with inference='gradient', which begins before it has "
                f"seen a row, got {self.start!r}; fit by EM for a few iterations and give what it found: "
                "Learner(..., init={'*': learner})"
            )
        if self.inference == "em" and self.start == "random":
            raise ValueError(f"expected one of {', '.join(STARTS)} as the start of EM, got 'random'; try start='rows'")

    # --- the model ------------------------------------------------------------------------------------

    def log_given(self, theta: Solution, x: Tensor, observed: Tensor | None) -> Tensor:
        """log p(x | k) of what is observed, `(..., n, K)`, for parameters by name with the same leading axes."""
        raise NotImplementedError

    def draw(self, component: Tensor) -> Tensor:
        """A row of each of these components."""
        raise NotImplementedError

    def fill(self, x: Tensor, observed: Tensor, component: Tensor) -> Tensor:
        """Rows of these components with their gaps drawn."""
        raise NotImplementedError

    def _theta(self) -> Solution:
        return {name: getattr(self, name) for name in self.numbers}

    def log_joint(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """log p(x, k) for each component, `(n, K)`."""
        return self.logits.log_softmax(-1) + self.log_given(self._theta(), x, observed)

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log sum_k p(x, k), of what is observed."""
        return torch.logsumexp(self.log_joint(x, observed), -1)

    @capability(merge="refuse")
    def transform(self, x: Tensor, observed: Tensor) -> Tensor:
        """The responsibilities p(k | x): how probable it is that each component has made a row."""
        return self.log_joint(x, observed).softmax(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Rows: a component by its share, then a row of it."""
        return self.draw(categorical(self.logits.expand(n, -1), place="component"))

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows whose gaps are drawn given what is observed: a component by p(k | x), then what it lacks."""
        return self.fill(x, observed, categorical(self.log_joint(x, observed), place="component"))

    # --- where it begins ------------------------------------------------------------------------------

    def declare(self, shapes: Mapping[str, tuple[int, ...]], random: Mapping[str, float]) -> None:
        """Makes the parameters, `logits` and those in `numbers`.

        Args:
            shapes: of each.
            random: how widely a gradient's start is spread, by name; 0 where it says nothing.
        """
        self._random = random
        if not isinstance(self.start, str) and self.start.keys() != shapes.keys():
            raise ValueError(
                f"expected start with {', '.join(sorted(shapes))} for {type(self).__name__}, got "
                f"{', '.join(sorted(self.start)) or 'nothing'}; a fitted one's are learner.objective_.state_dict()"
            )
        for name, shape in shapes.items():
            if not isinstance(self.start, str) and np.shape(self.start[name]) != shape:
                raise ValueError(
                    f"expected {name!r} of start in the shape {shape}, got {np.shape(self.start[name])}; it has the "
                    f"components, {self.components}, on its leading axis"
                )
            setattr(self, name, nn.Parameter(torch.zeros(shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The parameters as `start` gives them, or drawn."""
        for name in ("logits", *self.numbers):
            own = getattr(self, name)
            with torch.no_grad():
                own.copy_(self._given(name) if not isinstance(self.start, str) else self._drawn(name, own))

    def _given(self, name: str) -> Tensor:
        if isinstance(self.start, str):
            raise TypeError(f"expected parameters by name, got {self.start!r}")
        return torch.as_tensor(np.asarray(self.start[name]), dtype=torch.float64)

    def _drawn(self, name: str, like: Tensor) -> Tensor:
        return self._random.get(name, 0.0) * torch.randn(like.shape)

    # --- EM -------------------------------------------------------------------------------------------

    def prepare(self, rows: Rows) -> object:
        """What `step` is shown of the rows."""
        return rows

    def step(self, shown: Any, theta: Solution) -> tuple[Solution, Tensor, Tensor]:
        """An iteration of EM for R replicas.

        Args:
            shown: what `prepare` made of their rows.
            theta: their parameters, with logits that are logs of shares.

        Returns:
            The parameters after it; log p of each row at those before it, `(R, n)`; and for each replica the first
            component that has collapsed, or -1.
        """
        raise NotImplementedError

    def begin(self, rows: Rows, part: Tensor) -> tuple[Solution, Tensor]:
        """Parameters for given weights of each row in each component, `(R, n, K)`, and who has collapsed, as `step`."""
        raise NotImplementedError

    def features(self, rows: Rows) -> Tensor:
        """The rows as k-means sees them: numbers without gaps."""
        raise NotImplementedError

    def solve(self, source: Source, state: State) -> Iterations:
        """EM from `start` until the mean log-likelihood gains less than `tolerance`; each replica by its own seed."""
        taken = all_rows(source, state)
        read = (taken["x"], taken["observed"], weights_of(taken, 2))
        x, observed, weight = (shared(own) for own in read)
        if len({len(x), len(observed), len(weight)}) > 1:
            x, observed, weight = (own.expand(len(taken["x"]), *own.shape[1:]) for own in (x, observed, weight))
        rows = Rows(x.double(), observed, weight.double())
        self._refuse(rows)
        count = len(taken["x"])
        theta, lost = self._start(rows, state, count)
        total = rows.weight.sum(-1).expand(count)
        told = torch.full_like(total, -torch.inf)
        live, turn = torch.arange(count, device=total.device), 0
        self._mark(theta, told, live, lost)
        shown, held = self.prepare(rows), count
        live = live[lost < 0]
        while len(live) and turn < self.iterations:
            turn += 1
            if len(live) == count:  # as mostly; then nothing is put apart
                theta, evidence, lost = self.step(shown, theta)
                now, before = (rows.weight * evidence).sum(-1) / total, told
                told = now
            else:
                own = rows.of(live)
                if len(rows.x) > 1 and len(live) != held:
                    held, shown = len(live), self.prepare(own)
                found, evidence, lost = self.step(shown, {name: value[live] for name, value in theta.items()})
                now, before = (own.weight * evidence).sum(-1) / total[live], told[live]
                theta = {name: value.index_copy(0, live, found[name]) for name, value in theta.items()}
                told = told.index_copy(0, live, now)
            stays = lost < 0
            if self.tolerance:
                stays &= (now - before).abs() > self.tolerance
            self._mark(theta, told, live, lost)
            yield {"log_likelihood": told}
            live = live if bool(stays.all()) else live[stays]
        if len(live) and self.tolerance:
            warnings.warn(
                f"EM of {type(self).__name__} has not converged in {self.iterations} iterations{named(live, count)}: "
                f"the last one gained more than the tolerance, {self.tolerance:g}; give more iterations or a larger "
                "tolerance (0 for a number of iterations that is meant)",
                stacklevel=2,
            )
        self.warn(theta)
        return theta

    def _start(self, rows: Rows, state: State, count: int) -> tuple[Solution, Tensor]:
        """The parameters that EM begins with, for so many replicas."""
        if not isinstance(self.start, str):
            given = {name: self._given(name).to(rows.x.device) for name in ("logits", *self.numbers)}
            given["logits"] = given["logits"].log_softmax(-1)
            theta = {name: value.expand(count, *value.shape).clone() for name, value in given.items()}
            return theta, torch.full((count,), -1, device=rows.x.device)
        how = STARTS[0] if self.start == "auto" else self.start
        found = clusters(self.features(rows), rows.weight, self.components, how, state.key("start"))
        part = torch.nn.functional.one_hot(found, self.components).to(rows.x.dtype)
        return self.begin(rows, part * rows.weight.unsqueeze(-1))

    def _mark(self, theta: Solution, told: Tensor, live: Tensor, lost: Tensor) -> None:
        """Says who has collapsed, and makes the solution of these NaN; raises where nobody is left."""
        if not bool((lost >= 0).any()):
            return
        gone = live[lost >= 0]
        what = (
            f"component {int(lost[lost >= 0][0])} of {type(self).__name__} has collapsed{named(gone, len(told))}: it "
            "holds too few rows for its covariance, and the likelihood has no bound there; take a larger floor, fewer "
            "components, a prior, or a covariance with fewer numbers (diagonal, tied, spherical)"
        )
        told[gone] = torch.nan
        if bool(told.isnan().all()):
            raise ValueError(f"expected components that hold several rows each, got one that does not: {what}")
        warnings.warn(what, stacklevel=3)
        for value in theta.values():
            value[gone] = torch.nan

    def warn(self, theta: Solution) -> None:
        """Says what is odd in a solution."""

    def _refuse(self, rows: Rows) -> None:
        there = (rows.weight > 0).sum(-1)
        if int(there.min()) < self.components:
            raise ValueError(
                f"expected at least as many rows as components, {self.components}, for {type(self).__name__}, got "
                f"{int(there.min())}; take fewer components, or more rows"
            )
        varying = [j for j, law in enumerate(self.entries.laws) if law.continuous]
        refuse_rows(type(self).__name__, rows.x, rows.observed, rows.weight, varying, self.entries.names)


def named(replicas: Tensor, count: int) -> str:
    """Which replicas, for messages."""
    if count == 1:
        return ""
    few = ", ".join(str(int(k)) for k in replicas[:3]) + (", ..." if len(replicas) > 3 else "")
    return f" in {len(replicas)} of {count} replicas ({few})"


def spread_of(x: Tensor, observed: Tensor) -> Tensor:
    """The variance of each column, `(..., d)`."""
    seen = observed.to(x.dtype)
    count = seen.sum(-2).clamp_min(1)
    mean = (x * seen).sum(-2) / count
    return (seen * (x - mean.unsqueeze(-2)) ** 2).sum(-2) / count


def first_of(lost: Tensor) -> Tensor:
    """The number of the first that is, along the last axis, or -1."""
    if not bool(lost.any()):
        return lost.new_full(lost.shape[:-1], -1, dtype=torch.int64)
    return torch.where(lost.any(-1), lost.to(torch.int8).argmax(-1), -1)
