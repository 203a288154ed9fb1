"""What codes are like: which entries are used, and what rows become as a code moves; of any model that has codes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.report.page import charts
from weft.report.page.charts import Dot, Series
from weft.report.page.markup import Markup, Sections, el, table
from weft.report.page.samples import image, side

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["Codes"]

Array = NDArray[np.float64]
GRID, STEPS, PAIRS, ENTRIES, COLUMNS = 12, 9, 4, 10, 8
SPAN = 2.0  # deviations that a traversal goes to each side


class Codes:
    """Pictures of codes, by what the objective offers: `transform`, `inverse_transform`, and `posterior` where it does.

    Args:
        learner: fitted, one replica.
        rows: as the learner takes them, two or more.
        whose: what these rows are, in words.
        sections: of the page.
        given: the class of all rows, of a model of rows given their class.
    """

    def __init__(self, learner: Learner, rows: Any, whose: str, sections: Sections, given: Any = None) -> None:
        self.learner, self.whose, self.sections = learner, whose, sections
        self.rows, self.given = rows, given
        named = self.named(len(rows))
        self.codes = np.asarray(learner.transform(rows, **named), dtype=np.float64)
        self.drawn = self.codes
        if "posterior" in learner.objective_.capabilities():
            draws = np.asarray(learner.posterior(rows, draws=1, random_state=0, **named), dtype=np.float64)
            if draws.shape == (len(self.codes), 1, *self.codes.shape[1:]):
                self.drawn = draws[:, 0]  # all together they are about the prior, which their means are not

    def named(self, n: int) -> dict[str, Any]:
        """What is told beside so many rows or codes."""
        return {} if self.given is None else {"y": [self.given] * n}

    @property
    def moves(self) -> bool:
        """Whether codes are rows of real numbers, between and beyond which there are others."""
        flat = self.codes.ndim == 2 and len(self.codes) > 1 and bool(np.isfinite(self.codes).all())
        return flat and not bool((self.codes == np.round(self.codes)).all())

    def decoded(self, codes: Array) -> Any:
        """Rows of codes."""
        made = self.learner.inverse_transform(codes.astype(np.float32), **self.named(len(codes)))
        return made if hasattr(made, "iloc") else np.asarray(made, dtype=np.float64)

    # --- sections ---------------------------------------------------------------------------------------

    def used(self) -> list[Markup | None]:
        """How many entries are used, and codes as points."""
        parts: list[Markup | None] = []
        if "posterior" in self.learner.objective_.capabilities():
            from weft.measures.codes import active_units

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is said in the page
                found = active_units(self.learner, self.rows, **self.named(len(self.rows)))
            parts.append(el("p", found.conclusion, class_="warn" if found.collapsed else "lead"))
            said = (
                f"An entry is active where its posterior mean varies by more than {found.threshold:g} over rows, here"
            )
            parts.append(el("p", f"{said} {len(self.codes)} {self.whose}.", class_="note"))
        if self.codes.shape[1] < 2:
            return parts
        first, second = sorted(np.argsort(-self.codes.var(0), kind="stable")[:2].tolist())
        few = self.codes[charts.thin(len(self.codes), 400)]
        picture = charts.scatter(
            [Dot(float(row[first]), float(row[second])) for row in few],
            title=f"Codes of {len(few)} {self.whose}",
            describe=f"Points of codes in the plane of their entries {first + 1} and {second + 1}.",
            names=self.sections.names,
            x_label=f"entry {first + 1}",
            y_label=f"entry {second + 1}",
            height=340,
            equal=True,
        )
        most = "" if self.codes.shape[1] == 2 else f"; of {self.codes.shape[1]} entries the two that vary most"
        return [*parts, charts.figure(picture, f"Codes of {len(few)} {self.whose}{most}.")]

    def grid(self) -> list[Markup | None]:
        """What codes of two entries stand for, over the plane: only pictures can be shown so."""
        if self.codes.shape[1] != 2:
            return []
        at = np.linspace(0.02, 0.98, GRID)
        across, up = (np.quantile(self.drawn[:, j], at) for j in range(2))
        made = self.decoded(np.array([[a, b] for b in up[::-1] for a in across]))
        if not _pictures(made):
            return []
        said = (
            "What each code stands for: the first entry from left to right, the second from below, over the quantiles "
            f"from 2 to 98 % of the codes of {self.whose}."
        )
        return [self.mosaic(made, GRID, f"A grid of {GRID} by {GRID} pictures over the plane of codes.", said)]

    def between(self) -> list[Markup | None]:
        """From the code of one row to that of another, in equal steps."""
        share = np.linspace(0.0, 1.0, STEPS)[:, None]
        ends = [(2 * k, self._far(2 * k)) for k in range(min(PAIRS, len(self.codes) // 2))]
        paths = [(1 - share) * self.codes[a] + share * self.codes[b] for a, b in ends]
        made = self.decoded(np.concatenate(paths))
        said = f"Of {self.whose}: from the code of one to that of another far from it, in {STEPS} equal steps."
        if _pictures(made):
            told = f"{len(paths)} lines of {STEPS} pictures, each from one row to another."
            return [self.mosaic(made, STEPS, told, said)]
        first = made[:STEPS]
        wide = first.shape[1] if hasattr(first, "iloc") else int(np.prod(first.shape[1:]))
        if wide > COLUMNS and not hasattr(first, "iloc"):
            flat = first.reshape(STEPS, -1)
            lines = [
                Series(f"{share[k, 0]:.0%}", np.arange(1.0, wide + 1), flat[k], number=n)
                for n, k in enumerate(range(0, STEPS, 2))
            ]
            picture = charts.lines(
                lines,
                title="Rows between two codes",
                describe=f"{len(lines)} rows as curves over their entries, from the first code to the second.",
                names=self.sections.names,
                x_label="entry of the row",
                y_label="value",
            )
            return [charts.legend([(line.name, line.number) for line in lines]), charts.figure(picture, said)]
        cells = [[f"{s:.1%}", *_cells(first, k)] for k, s in enumerate(share[:, 0])]
        return [table(said, ["way", *_names(first)], cells, names=self.sections.names, file="between", sorts=False)]

    def along(self) -> list[Markup | None]:
        """What each entry does by itself."""
        order = np.argsort(-self.codes.var(0), kind="stable")[:ENTRIES]
        middle, spread = self.drawn.mean(0), self.drawn.std(0)
        paths = np.repeat(middle[None, None], STEPS, 1).repeat(len(order), 0)
        for k, j in enumerate(order):
            paths[k, :, j] += np.linspace(-SPAN, SPAN, STEPS) * spread[j]
        made = self.decoded(paths.reshape(-1, paths.shape[-1]))
        few = f" The {len(order)} of {len(spread)} that vary most." if len(order) < len(spread) else ""
        if _pictures(made):
            entries = ", ".join(str(j + 1) for j in order)
            said = (
                f"One entry of the code at a time, from −{SPAN:g} to {SPAN:g} deviations about the mean code, the one "
                f"that varies most first (entries {entries}).{few}"
            )
            return [self.mosaic(made, STEPS, f"{len(order)} lines of {STEPS} pictures, a line for each entry.", said)]
        ends = [(k * STEPS, (k + 1) * STEPS - 1) for k in range(len(order))]
        cells = [
            [j + 1, float(self.codes[:, j].std()), *_moves(made, a, b)] for j, (a, b) in zip(order, ends, strict=True)
        ]
        said = (
            f"By how much each value of a row moves as an entry of the code goes from −{SPAN:g} to {SPAN:g} deviations "
            f"about the mean code; a category as it changes.{few}"
        )
        heads = ["entry", "deviation over rows", *_names(made)]
        return [table(said, heads, cells, names=self.sections.names, file="traversals")]

    # --- parts ------------------------------------------------------------------------------------------

    def _far(self, a: int) -> int:
        """The row, of some, whose code is furthest from that of row a."""
        away = ((self.codes[:100] - self.codes[a]) ** 2).sum(1)
        return int(np.argmax(away))

    def mosaic(self, made: Array, wide: int, alt: str, said: str) -> Markup:
        """Pictures in lines of so many, as one."""
        size, colours = side(made.shape[1:]), made.ndim == 4 and made.shape[1] == 3
        high, across = size if size is not None else (1, 1)
        tiles = made.reshape(len(made) // wide, wide, 3 if colours else 1, high, across)
        low, top = float(made.min()), float(made.max())
        tiles = np.pad(tiles, [(0, 0)] * 3 + [(0, 1), (0, 1)], constant_values=(low + top) / 2)
        whole = tiles.transpose(2, 0, 3, 1, 4).reshape(tiles.shape[2], tiles.shape[0] * (high + 1), wide * (across + 1))
        whole = whole[:, :-1, :-1]
        shown = image(whole if colours else whole[0], low, top, alt)
        return el("figure", el("div", shown, class_="mosaic"), el("figcaption", said))


def _pictures(made: Any) -> bool:
    return not hasattr(made, "iloc") and side(made.shape[1:]) is not None


def _names(made: Any) -> list[str]:
    if hasattr(made, "iloc"):
        return [str(name) for name in made.columns[:COLUMNS]]
    return [f"value {j + 1}" for j in range(min(COLUMNS, int(np.prod(made.shape[1:]))))]


def _cells(made: Any, k: int) -> Sequence[object]:
    if not hasattr(made, "iloc"):
        return [float(v) for v in made[k].reshape(-1)[:COLUMNS]]
    return [_plain(made[name].iloc[k]) for name in made.columns[:COLUMNS]]


def _moves(made: Any, a: int, b: int) -> list[object]:
    out: list[object] = []
    for before, after in zip(_cells(made, a), _cells(made, b), strict=True):
        if isinstance(before, float) and isinstance(after, float):
            out.append(after - before)
        else:
            out.append(f"{before} to {after}" if before != after else "–")
    return out


def _plain(value: object) -> object:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return float(value) if number else str(value)  # type: ignore[arg-type]
