"""What a claim tells when it is run: figures against their references, tables, pictures, and what it cost."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.bench.claims.estimates import Estimate
from weft.bench.claims.judging import FAILS, HOLDS, Figure, concluded, judged
from weft.bench.claims.parts import Cost, Parts
from weft.bench.fanout import pool
from weft.report.digests import digest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["Progress", "Report"]

Item = TypeVar("Item")
Key = TypeVar("Key", bound=str | float | tuple[str | float, ...])
Value = TypeVar("Value")
Trained = TypeVar("Trained", bound="Learner")
Progress = Callable[[float, str], None]


class Report:
    """What a claim's `run` tells: figures against their references, tables, pictures, and what it cost."""

    def __init__(
        self,
        name: str = "claim",
        *,
        progress: Progress | None = None,
        parts: Parts | None = None,
        workers: int = 1,
    ) -> None:
        self.name = name
        self.figures: list[Figure] = []
        self.tables: list[Json] = []
        self.pictures: list[dict[str, str]] = []
        self.drawings: dict[str, str] = {}
        self.trainings = self.steps = 0
        self.data: set[str] = set()  # digests
        self.seconds = 0.0  # of earlier runs and of other processes
        self.processes = 1  # among which parts were shared out
        self._progress, self._workers, self._kept = progress, workers, Parts() if parts is None else parts
        self._parts, self._done, self._what = 1, 0.0, ""
        self._asked: set[str] = set()  # the parts' names

    def __getstate__(self) -> Json:
        """As another process needs it, to count there: nothing kept, and nobody to show progress to."""
        return {**vars(self), "_progress": None, "_workers": 1, "_kept": Parts(), "data": set(), "drawings": {}}

    def figure(
        self,
        name: str,
        measured: Estimate | float,
        *,
        reference: str = "",
        unit: str = "",
        interval: tuple[float, float] | None = None,
        least: float | None = None,
        most: float | None = None,
        near: float | None = None,
        within: float | None = None,
        holds: bool | None = None,
        exact: bool = False,
    ) -> None:
        """One measured figure; without a bound (and without `holds`) it is told but not judged.

        It holds where its whole interval is on the right side of the bounds, fails where the whole interval is on the
        wrong one, and is not settled in between; so is what one replica says.

        Args:
            name: what it is.
            measured: an `Estimate`, or a number with `interval` beside it where there is one.
            reference: the paper's figure, or the exact one, as text.
            unit: as `%`.
            interval: of a plain number.
            least, most: bounds of what holds; give both where too good is a fault too.
            near, within: the value expected and the distance allowed, on both sides.
            holds: the judgement itself, where no bound says it.
            exact: the number has no interval, since it is no estimate: it would be the same with other seeds, or it
                is the worst of all that were looked at.
        """
        value = float(measured.value if isinstance(measured, Estimate) else measured)
        between = measured.interval if isinstance(measured, Estimate) else interval
        if (near is None) != (within is None):
            raise ValueError(f"expected both near and within for the figure {name!r}, got only one of them")
        bounds = [f"at least {least:g}"] if least is not None else []
        bounds += [f"at most {most:g}"] if most is not None else []
        if near is not None and within is not None:
            bounds.append(f"{near:.4g} ± {within:.2g}")
            least = max(near - within, -math.inf if least is None else least)
            most = min(near + within, math.inf if most is None else most)
        if exact and between is not None:
            raise ValueError(f"expected no interval beside the exact figure {name!r}, got {between}; leave one out")
        if bounds and between is None and not exact and not isinstance(measured, Estimate):
            raise ValueError(
                f"expected an interval for the figure {name!r}, which is judged, got the number {value:g}; give an "
                f"estimate as mean_of(scores), or say exact=True if it is none"
            )
        if bounds and holds is not None:
            raise ValueError(f"expected bounds or holds for the figure {name!r}, got both; leave one out")
        verdict = judged(value, between, least, most, exact=exact)
        if holds is not None:
            verdict = HOLDS if holds and math.isfinite(value) else FAILS
        held = f"{' and '.join(bounds)}{f' {unit}' if unit else ''}"
        self._told(
            name,
            reference=f"{reference}; here {held}" if reference and bounds else reference or (held if bounds else ""),
            unit=unit,
            measured=value if math.isfinite(value) else None,
            interval=[float(b) for b in between] if between and all(map(math.isfinite, between)) else None,
            verdict=verdict,
            least=least,
            most=most,
            exact=exact,
            by=measured.by if isinstance(measured, Estimate) else "",
            scores=[s if math.isfinite(s) else None for s in getattr(measured, "scores", ())],
            margins=getattr(measured, "margins", None) if bounds and math.isfinite(value) else None,
        )

    def worst(self, name: str, off: ArrayLike, *, most: float, unit: str = "", reference: str = "0") -> None:
        """The furthest of all that should be nought, but for rounding or chance; judged as it is, without an interval.

        Args:
            name: what it is.
            off: how far each is.
            most: how far the furthest may be.
            unit, reference: see `figure`.
        """
        furthest = float(np.abs(np.asarray(off, dtype=float)).max())
        self.figure(name, furthest, reference=reference, unit=unit, most=most, exact=True)

    def not_run(self, name: str, *, reference: str = "", unit: str = "") -> None:
        """A figure of the paper that this scale does not reach."""
        self._told(name, reference=reference, unit=unit)

    def _told(self, name: str, **more: Any) -> None:
        nothing: Figure = {
            "name": name,
            "reference": "",
            "measured": None,
            "interval": None,
            "unit": "",
            "verdict": None,
            "least": None,
            "most": None,
            "exact": False,
            "by": "",
            "scores": [],
            "margins": None,
        }
        self.figures.append({**nothing, **more})  # type: ignore[typeddict-item]

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, digits: int | None = None
    ) -> None:
        """A table of numbers, estimates (shown with their intervals) and texts.

        Args:
            title: what it shows.
            columns: their names.
            rows: a cell for each column.
            digits: after the point, to which numbers and estimates are rounded.
        """
        cells = [[_cell(value, digits) for value in row] for row in rows]
        for row in cells:
            if len(row) != len(columns):
                raise ValueError(f"expected rows of {len(columns)} cells in the table {title!r}, got {row}")
        self.tables.append({"title": title, "columns": list(columns), "rows": cells})

    @contextmanager
    def picture(
        self,
        name: str,
        *,
        alt: str,
        caption: str,
        panels: int = 1,
        size: tuple[float, float] | None = None,
        **layout: Any,
    ) -> Iterator[Any]:
        """Axes to draw into (a list of them for several panels), kept as an SVG file when the block ends.

        Args:
            name: the file's, without its ending.
            alt: what it shows, for those who do not see it.
            caption: what to look at.
            panels, size, layout: see `weft.bench.pictures.canvas`.
        """
        from weft.bench.pictures import canvas, svg

        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or f"{name}.svg" in self.drawings:
            raise ValueError(f"expected a new name of small letters and digits for a picture, got {name!r}")
        with canvas(panels, size=size, **layout) as (figure, axes):
            yield axes
            self.drawings[f"{name}.svg"] = svg(figure, name=f"{self.name}-{name}", alt=alt)
        self.pictures.append({"file": f"{name}.svg", "alt": alt, "caption": caption})

    # What it cost, and how far it is.

    def plan(self, parts: int) -> None:
        """How many parts the work has: each `fit` and each `each` is one of them."""
        self._parts = max(int(parts), 1)

    def fit(self, learner: Trained, *data: Any, what: str = "", **columns: Any) -> Trained:
        """`learner.fit(*data, **columns)`, counted in the budget and shown as it goes."""
        self.saw(*data, *columns.values())
        kept, begun = learner.callbacks, self._done
        total = learner.steps

        def watch(record: Json) -> None:
            if total:
                self._moved(begun + min(record["step"] / total, 1.0), what)

        learner.callbacks = [*kept, watch]
        try:
            learner.fit(*data, **columns)
        finally:
            learner.callbacks = kept
        self.spend(trainings=len(learner.seeds_), steps=learner.n_steps_ * len(learner.seeds_))
        self._moved(begun + 1.0, what)
        return learner

    def in_turn(
        self,
        learner: Learner,
        tasks: Sequence[Sequence[Any]],
        look: Callable[[Learner], Value],
        what: str = "",
        **columns: Any,
    ) -> list[Value]:
        """What is seen of a learner after each of some tasks, learned one after another; one part of the work.

        Args:
            learner: learns by `partial_fit(*rows, task=number, **columns)`.
            tasks: the rows of each.
            look: called with the learner after each task.
            what: is shown.
            columns: further arguments of `partial_fit`, such as `classes`.
        """
        seen = []
        for number in self.each(range(len(tasks)), what):
            self.saw(*tasks[number])
            learner.partial_fit(*tasks[number], task=number, **columns)
            seen.append(look(learner))
        self.spend(trainings=len(learner.seeds_), steps=learner.n_steps_ * len(learner.seeds_))
        return seen

    def each(self, items: Iterable[Item], what: str = "") -> Iterator[Item]:
        """The items, one after another, as one part of the work."""
        items = list(items)
        begun = self._done
        for i, item in enumerate(items):
            self._moved(begun + i / len(items), what)
            yield item
        self._moved(begun + 1.0, what)

    def part(self, name: str, work: Callable[[], Value]) -> Value:
        """What `work()` gives, kept as soon as it is there: a run that was stopped begins with what it has.

        Args:
            name: the part's own.
            work: gives numbers, texts, arrays, lists and dictionaries of such; it may `fit`, `spend` and go through
                `each`, and tells no figures.
        """
        return self.parts({name: work})[name]

    def parts(self, works: Mapping[str, Callable[[], Value]]) -> dict[str, Value]:
        """What pieces of work give that do not depend on each other; in several processes where the run has workers.

        Args:
            works: by name; see `part`. What one changes, another does not see.
        """
        for name in works:
            if name in self._asked:
                raise ValueError(f"expected each part of a run once, got {name!r} again; give it a name of its own")
            self._asked.add(name)
        found: dict[str, Value] = {}
        for name in [name for name in works if name in self._kept]:
            found[name], cost = self._kept.read(name)
            self._spent(cost, name)
        left = [name for name in works if name not in found]
        if self._workers > 1 and len(left) > 1:
            begun = time.perf_counter()
            self.processes = max(self.processes, min(self._workers, len(left)))
            with pool("joblib", self._workers) as run:
                for i, (value, cost) in run([(_elsewhere, (self, works[name])) for name in left]):
                    found[left[i]] = value
                    self._kept.keep(left[i], value, cost)
                    self._spent(cost, left[i])
            self.seconds -= time.perf_counter() - begun  # the processes' seconds count, not the waiting for them
        else:
            for name in left:
                found[name], cost = self._counted(works[name])
                self._kept.keep(name, found[name], cost)
        return {name: found[name] for name in works}

    def every(self, keys: Iterable[Key], work: Callable[..., Value]) -> dict[Key, Value]:
        """What `work` gives for every key, each a part of its own; see `parts`.

        Args:
            keys: what the pieces of work differ in; a tuple's items are several arguments.
            work: called with a key; its name is the beginning of the parts' names.
        """
        given = {key: key if isinstance(key, tuple) else (key,) for key in keys}
        what = getattr(work.func if isinstance(work, partial) else work, "__name__", "part")
        names = {key: f"{what}: {', '.join(map(str, words))}" for key, words in given.items()}
        if len(set(names.values())) < len(names):
            raise ValueError(f"expected keys that read differently, got {', '.join(names.values())}; rename one")
        found = self.parts({names[key]: partial(work, *words) for key, words in given.items()})
        return {key: found[name] for key, name in names.items()}

    def _counted(self, work: Callable[[], Value]) -> tuple[Value, Cost]:
        """What a piece of work gives, and what it cost."""
        before, outside, begun = (self._done, self.trainings, self.steps), self.data, time.perf_counter()
        self.data = set()
        try:
            value = work()
        finally:
            own, self.data = self.data, outside | self.data
        done, trainings, steps = before
        spent = (self._done - done, self.trainings - trainings, self.steps - steps, time.perf_counter() - begun)
        return value, Cost(*spent, data=tuple(sorted(own)))

    def _spent(self, cost: Cost, name: str) -> None:
        """Counts what was done earlier, or elsewhere."""
        self.seconds += cost.seconds
        self.data |= set(cost.data)
        self.spend(trainings=cost.trainings, steps=cost.steps)
        self._moved(self._done + cost.done, name)

    def saw(self, *data: object) -> None:
        """Notes the digest of data that were trained on; `fit` does so by itself.

        Args:
            data: arrays count by their bytes, anything else (a source, a world) by its name.
        """
        for value in data:
            array = np.ascontiguousarray(value) if hasattr(value, "__array__") else None
            known = array is not None and array.dtype != object
            about = [str(array.dtype), array.shape] if array is not None and known else [type(value).__name__]
            self.data.add(digest([*about, digest(array.tobytes()) if array is not None and known else ""]))

    def spend(self, *, trainings: int = 0, steps: int = 0) -> None:
        """Counts trainings, and updates summed over them, that `fit` did not."""
        self.trainings += int(trainings)
        self.steps += int(steps)

    def _moved(self, done: float, what: str) -> None:
        self._done, self._what = done, what or self._what
        if self._progress is not None:
            self._progress(min(done / self._parts, 1.0), self._what)

    def verdict(self) -> tuple[str, str]:
        """The verdict and why."""
        return concluded(self.figures)


def _elsewhere(report: Report, work: Callable[[], Value]) -> tuple[Value, Cost]:
    """A piece of work in another process; `report` is the copy of it that the work tells there."""
    return report._counted(work)


def _cell(value: object, digits: int | None = None) -> float | str | None:
    """A table's cell as JSON has it; what JSON does not have, as text.

    >>> _cell(Estimate(0.25, (0.125, 0.375), 8), 1), _cell(0.125, 2), _cell(3, 1)
    ('0.2 [0.1, 0.4]', 0.12, 3)
    """
    if isinstance(value, Estimate):
        kind = ".3g" if digits is None else f".{digits}f"
        return f"{value.value:{kind}}" + (
            f" [{value.interval[0]:{kind}}, {value.interval[1]:{kind}}]" if value.interval else ""
        )
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else round(value, digits)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
