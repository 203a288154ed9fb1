"""Two samples beside each other: every measure in one table, and a page with pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from weft.core.legal import Flag, Whole
from weft.core.random import fold, key_of, permutation
from weft.scores.correcting import holm
from weft.scores.samples.classifier import c2st
from weft.scores.samples.kernels import energy_distance, mmd
from weft.scores.samples.reading import Samples, TwoSample, pair, seeded
from weft.scores.samples.support import density_coverage, precision_recall
from weft.scores.samples.transport import sliced_wasserstein, wasserstein

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Measured", "SampleComparison", "compare_samples"]

SCALES = (0.25, 0.5, 1.0, 2.0)
EXACT = 1000  # rows of each sample for exact transport, whose time grows with their cube
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A line of the table.

    Attributes:
        measure: its name.
        value: the number, or None where it could not be measured.
        alike: what it would be, had both samples one law.
        p_value: of that, where there is a test.
        holm: the same, corrected for the number of tests by Holm's rule.
        about: how it was measured, or why not.
    """

    measure: str
    value: float | None
    alike: str
    p_value: float | None
    holm: float | None
    about: str


@dataclass(frozen=True, repr=False)
class SampleComparison:
    """What `compare_samples` found; printed, it is the table.

    Attributes:
        table: a `Measured` for each measure.
        names: of the two samples.
        columns: of their columns.
        rows: both samples as they came, flat.
        level: at which tests are judged.
    """

    table: tuple[Measured, ...]
    names: tuple[str, str]
    columns: tuple[str, ...]
    rows: tuple[Array, Array]
    level: float = 0.05

    @property
    def told_apart(self) -> tuple[str, ...]:
        """The tests that tell the samples apart, Holm's correction for their number included."""
        return tuple(line.measure for line in self.table if line.holm is not None and line.holm <= self.level)

    @property
    def conclusion(self) -> str:
        """What the tests say, in a sentence."""
        tests = [line for line in self.table if line.p_value is not None]
        if self.told_apart:
            return f"{self.names[0]} and {self.names[1]} are told apart by {_listed(self.told_apart)}."
        sizes = " and ".join(f"{len(rows):,}" for rows in self.rows)
        return (
            f"None of {len(tests)} tests tells {self.names[0]} from {self.names[1]} at {self.level:.0%}: "
            f"with {sizes} rows this is no proof that they have one law."
        )

    def to_frame(self) -> pd.DataFrame:
        """The table as a DataFrame, a row for each measure."""
        import pandas as pd

        return pd.DataFrame([vars(line) for line in self.table]).set_index("measure")

    def save(self, path: str | Path) -> Path:
        """Writes the page, in one file that asks nothing of the network; gives its path."""
        from weft.report.page.two_samples import page
        from weft.report.writing import put

        put(Path(path), page(self))
        return Path(path)

    def __str__(self) -> str:
        heads = ["measure", "value", "of one law", "p", "Holm's p"]
        lines = [[m.measure, _short(m.value), m.alike, _short(m.p_value), _short(m.holm)] for m in self.table]
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        shown = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *lines)
        ]
        why = [f"{m.measure}: {m.about}" for m in self.table if m.value is None]
        return "\n".join([*shown, *why, self.conclusion])

    __repr__ = __str__


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def compare_samples(
    X: Samples,
    Y: Samples,
    *,
    names: tuple[str, str] = ("X", "Y"),
    columns: Sequence[str] | None = None,
    standardize: bool = False,
    permutations: int = 199,
    most_rows: int = 5000,
    random_state: int = 0,
    device: torch.device | str | None = None,
) -> SampleComparison:
    """All two-sample measures in one table, with p-values where there are tests.

    MMD (unbiased, a Gaussian kernel at 1/4, 1/2, 1 and 2 times the median distance), energy distance and two
    classifiers are tested; Wasserstein distances (exact transport of 1,000 rows of each sample at most), precision and
    recall, density and coverage are told. What could not be measured (POT is missing; most rows are duplicates) says
    why in its line. The four tests' p-values stand beside those that Holm's rule corrects for there being four.

    Args:
        X: the sample to be compared with: data, real rows.
        Y: the other: a model's, generated rows.
        names: what to call them.
        columns: what to call the columns; by default those of a DataFrame, or numbers.
        standardize: whether columns are divided by their deviation over both samples before anything is measured:
            else a column of large numbers decides. The page shows them as they came.
        permutations: of MMD and energy distance; the least p-value is 1 / (1 + permutations).
        most_rows: of each sample; of more, so many are drawn by key, and the lines say so.
        random_state: the seed of permutations, folds, projections and drawn rows.
        device: where to compute; by default where X is.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = compare_samples(rng.normal(size=(300, 2)), 1.5 * rng.normal(size=(300, 2)), names=("data", "model"))
        >>> print(found.conclusion)
        data and model are told apart by MMD², energy distance and classifier accuracy (knn).
        >>> found.to_frame().loc["MMD²", "p_value"]
        np.float64(0.005)
    """
    Flag().check(standardize, "standardize", False)
    Whole(1).check(permutations, "permutations", 199)
    Whole(10).check(most_rows, "most_rows", 5000)
    left, right = pair(X, Y, least=10, device=device)
    called = _columns(X, columns, left.shape[1])
    whole = left.cpu().double().numpy(), right.cpu().double().numpy()
    if standardize:
        deviation = torch.cat([left, right]).std(0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        left, right = left / deviation, right / deviation
    left, right = (_drawn(rows, most_rows, random_state, i) for i, rows in enumerate((left, right)))
    few = [_drawn(rows, EXACT, random_state, i) for i, rows in enumerate((left, right))]
    lines = [
        *_lines(
            {"MMD²": "about 0"},
            partial(mmd, left, right, scales=SCALES, permutations=permutations, random_state=random_state),
        ),
        *_lines(
            {"energy distance": "near 0"},
            partial(energy_distance, left, right, permutations=permutations, random_state=random_state),
        ),
        *(
            line
            for name in ("logistic", "knn")
            for line in _lines(
                {f"classifier accuracy ({name})": "about 0.5"},
                partial(c2st, left, right, classifier=name, random_state=random_state),
            )
        ),
        *_lines({"sliced Wasserstein": "near 0"}, partial(sliced_wasserstein, left, right, random_state=random_state)),
        *_lines({"Wasserstein": "falls with the rows"}, partial(wasserstein, *few)),
        *_lines({"precision": "near 1", "recall": "near 1"}, partial(precision_recall, left, right)),
        *_lines({"density": "about 1", "coverage": "near 1"}, partial(density_coverage, left, right)),
    ]
    scaled = "columns standardized" if standardize else ""
    told = []
    for line in lines:
        most = min(most_rows, EXACT) if line.measure == "Wasserstein" else most_rows
        drawn = f"of at most {most:,} rows of each sample" if max(map(len, whole)) > most else ""
        told.append(_noted(line, drawn, scaled))
    return SampleComparison(_corrected(told), (str(names[0]), str(names[1])), called, whole)


def _lines(alike: dict[str, str], work: Callable[[], TwoSample | float | tuple[float, ...]]) -> list[Measured]:
    """A line for each number that comes of some work, or each with the reason why none came."""
    try:
        found = work()
    except (ValueError, ImportError) as error:  # the samples are sound: what is refused is this measure of them
        return [Measured(name, None, of_one_law, None, None, str(error)) for name, of_one_law in alike.items()]
    if isinstance(found, TwoSample):
        return [Measured(*one, found.p_value, None, found.about) for one in _with(alike, (found.value,))]
    numbers = found if isinstance(found, tuple) else (found,)
    return [Measured(*one, None, None, "") for one in _with(alike, numbers)]


def _with(alike: dict[str, str], values: Sequence[float]) -> list[tuple[str, float, str]]:
    return [(name, value, alike[name]) for name, value in zip(alike, values, strict=True)]


def _columns(X: Samples, given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    own = getattr(X, "columns", None) if given is None else given
    called = tuple(map(str, own)) if own is not None else tuple(f"column {j + 1}" for j in range(count))
    if len(called) != count:
        raise ValueError(f"expected a name for each of {count} columns, got {len(called)}")
    return called


def _drawn(rows: torch.Tensor, most: int, random_state: int, number: int) -> torch.Tensor:
    if len(rows) <= most:
        return rows
    key = fold(key_of(seeded(random_state), rows.device), "rows", number)
    return rows[permutation(key, len(rows))[:most]]


def _noted(line: Measured, *more: str) -> Measured:
    if line.value is None:
        return line
    return replace(line, about="; ".join(filter(None, (line.about, *more))))


def _corrected(lines: Sequence[Measured]) -> tuple[Measured, ...]:
    corrected = iter(holm([line.p_value for line in lines if line.p_value is not None]).tolist())
    return tuple(line if line.p_value is None else replace(line, holm=next(corrected)) for line in lines)
