"""Bayes' rule over densities: p(x, y) = p(y) p(x | y), a density for each class."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Such
from weft.core.objective import Iterations, Output, Solution, capability
from weft.core.random import categorical, place
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.independent import Independent
from weft.objectives.densities.rows import all_rows, of_part, weights_of

__all__ = ["ClassConditional"]


def _number(share: Tensor) -> Tensor:
    return share.argmax(-1)


class ClassConditional(Density):
    """A copy of a density for each class, and the classes' shares: p(x, y) = p(y) p(x | y).

    By Bayes' rule it classifies, p(y | x) = p(x | y) p(y) / sum_c p(x | c) p(c). Since it models the rows themselves it
    does so with gaps in them (where the density has them), draws rows of a class (`sample(n, y=...)`) and tells how
    usual a row is: `log_prob(X, y=...)` is log p(x | y), without y that of the marginal, log sum_c p(x, c).

    A density that is solved is solved for each class, on the rows of it; one that is descended is descended, with the
    loss -log p(x, y).

    Args:
        density: what each class has one of; None for `Independent()`, which is naive Bayes.

    References:
        Duda and Hart, "Pattern classification and scene analysis", 1973.

    Example:
        >>> import numpy as np
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> from weft.objectives import Gaussian
        >>> X, y = load_iris(return_X_y=True)
        >>> learner = Learner(ClassConditional(Gaussian()), dtype="float64", random_state=0).fit(X, y)
        >>> learner.score(X, y)
        0.98
        >>> learner.predict([[5.0, np.nan, 1.4, np.nan]])
        array([0])
        >>> learner.sample(2, y=[0, 2], random_state=0).shape
        (2, 4)
    """

    fields = ("x", "y")
    targets = "classes"
    legal = {
        "density": Such("a density such as Gaussian()", lambda v: v is None or isinstance(v, Density)),
    }

    def __init__(self, density: Density | None = None) -> None:
        super().__init__()
        self.density = density

    def each(self) -> Density:
        """What each class has a copy of."""
        given = vars(self).get("density", self._modules.get("density"))
        return Independent() if given is None else given

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
    def columns(self) -> str:  # type: ignore[override]
        return self.each().columns

    @property
    def varies(self) -> bool:  # type: ignore[override]
        return self.each().varies

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"parts.*.{name}" for name in self.each().carried)

    @property
    def surveys(self) -> bool:
        return self.each().surveys

    def build(self, spec: Spec) -> None:
        classes = spec["y"].classes
        if classes is None:
            raise ValueError(
                f"expected the number of classes for {type(self).__name__}, got none in the source's spec; give "
                "classes=... to it"
            )
        self.parts = nn.ModuleList(copy.deepcopy(self.each()) for _ in range(classes))
        for part in self.densities():
            part.build({name: field for name, field in spec.items() if name != "y"})
        self.entries = self.parts[0].entries  # type: ignore[assignment]
        self.logits = nn.Parameter(torch.zeros(classes))

    def densities(self) -> list[Density]:
        """That of each class."""
        return list(self.parts)  # type: ignore[arg-type]

    # --- the model ------------------------------------------------------------------------------------

    def log_given(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """log p(x | c) for each class, `(n, classes)`."""
        told = [x] if observed is None else [x, observed]
        return torch.stack([part.log_prob(*told) for part in self.densities()], -1)

    def log_joint(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """log p(x, c) for each class."""
        return self.logits.log_softmax(-1) + self.log_given(x, observed)

    def forward(self, batch: Batch, player: str = "") -> Output:
        joint = self.log_joint(batch["x"], batch.get("observed"))
        return Output(-joint.gather(-1, batch["y"].long().unsqueeze(-1)).squeeze(-1))

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """log p(x | y), or without y log p(x)."""
        if y is None:
            return torch.logsumexp(self.log_joint(x, observed), -1)
        return self.log_given(x, observed).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)

    @capability(merge="mean")
    def predict_proba(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """p(y | x) by Bayes' rule, one column per class."""
        return self.log_joint(x, observed).softmax(-1)

    @capability(merge="mean", finish=_number)
    def predict(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """The most probable class."""
        return self.predict_proba(x, observed)

    @capability(merge="share", kind="direct", gives="x")
    def sample(self, n: int, y: Tensor | None = None) -> Tensor:
        """Rows of these classes, or of classes by their shares."""
        y = categorical(self.logits.expand(n, -1), place="class") if y is None else y.long()
        drawn = []
        for c, part in enumerate(self.densities()):
            with place("class", c):
                drawn.append(part.sample(n))  # type: ignore[operator]
        every = torch.stack(drawn, 1)
        return every.gather(1, y.reshape(n, 1, *(1,) * (every.dim() - 2)).expand(n, 1, *every.shape[2:])).squeeze(1)

    def survey(self, source: Source, state: State) -> Solution:
        """What each part asks about the rows of its class."""
        found: Solution = {}
        for c, part in enumerate(self.densities()):
            told = part.survey(_Class(source, c), of_part(state, f"parts.{c}.", part))
            found |= {f"parts.{c}.{name}": value for name, value in told.items()}
        return found

    # --- solved for each class ------------------------------------------------------------------------

    def solve(self, source: Source, state: State) -> Iterations:
        """Each part on the rows of its class: the others count nothing."""
        axes = 1 if state.replicas is None else 2
        taken = all_rows(source, state)
        weight, y = weights_of(taken, axes).double(), taken["y"]
        mass = torch.stack([(weight * (y == c)).sum(-1) for c in range(len(self.parts))], -1)
        if bool((mass <= 0).any()):
            c = int(torch.nonzero(mass <= 0)[0, -1])
            raise ValueError(
                f"expected rows of every class for {type(self).__name__}, got none of the class of number {c}: nothing "
                "is known of p(x | y) there; leave the class out, or give rows of it"
            )
        found: Solution = {"logits": (mass / mass.sum(-1, keepdim=True)).log()}
        turns: dict[int, Iterations] = {}
        last: dict[int, Solution] = {}
        for c, part in enumerate(self.parts_for(taken, weight)):
            own = of_part(state, f"parts.{c}.", part)
            solution = part.solve(_Class(source, c), own)
            if isinstance(solution, dict):
                found |= {f"parts.{c}.{name}": value for name, value in solution.items()}
            else:
                turns[c] = solution
        told: dict[str, float | Tensor] = {}
        while turns:
            for c, turn in list(turns.items()):
                try:
                    given = next(turn)
                except StopIteration as end:
                    del turns[c]
                    found |= {f"parts.{c}.{name}": value for name, value in (end.value or last[c]).items()}
                    continue
                record, last[c] = given if isinstance(given, tuple) else (given, {})
                told |= {f"{name} of class {c}": value for name, value in record.items()}
            if turns:
                yield dict(told)
        return found

    def parts_for(self, taken: Batch, weight: Tensor) -> list[Density]:
        """The parts as they are solved on these rows."""
        return self.densities()

    def free_parameters(self) -> int:
        return len(self.parts) - 1 + sum(part.free_parameters() for part in self.densities())


class _Class(Source):
    """The rows of a source, where those of other classes count nothing."""

    stacks = True

    def __init__(self, source: Source, number: int) -> None:
        self.source, self.number, self.spec, self.size = source, number, source.spec, source.size

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        axes = 1 if state.replicas is None else 2
        for batch in self.source.once(state, rows):
            weight = weights_of(batch, axes) * (batch["y"] == self.number)
            yield {**batch, "weight": weight}
