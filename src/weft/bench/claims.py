"""Claims: statements of papers as files that can be run, with a verdict that can fail.

A claim is one short file in a folder: a subclass of `Claim` that says what is stated, by whom, in which
settings it is run here (`quick`, in seconds; `full`, in minutes) and how far from the paper's figures the
measured ones may be, and why. Its `run` trains, and tells a `Report` what it measured:

    class Coin(Claim):
        title = "A fair coin"
        statement = "Half of the throws show heads."
        reference = "Jakob Bernoulli, Ars Conjectandi, 1713"
        tolerance = "Within .02 of one half, four standard errors of 10,000 throws."
        quick = {"seeds": 4, "throws": 10_000}
        full = {"seeds": 16, "throws": 1_000_000}

        def run(self, setting, seeds, report):
            heads = [np.random.default_rng(s).integers(2, size=setting.throws).mean() for s in seeds]
            report.figure("heads", mean_of(heads), reference="1/2", near=0.5, within=0.02)

The texts must be plain literals: `weft claims` lists a folder by reading its files, and runs none of them.
`weft reproduce` does run them: a claim is Python code, to be trusted like any other program.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

if TYPE_CHECKING:
    from weft.bench.parts import Parts

__all__ = [
    "SCALES",
    "Claim",
    "Estimate",
    "Listed",
    "Report",
    "claims_folder",
    "last",
    "listed",
    "load",
    "mean_of",
    "mean_over",
    "median_of",
    "reproduce",
    "share_of",
]

FORMAT = 1
SCALES = ("quick", "full")
HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run at this scale"
_TEXTS = ("title", "statement", "reference", "tolerance")
Item = TypeVar("Item")
Progress = Callable[[float, str], None]


# --- figures with intervals ---------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A measured value, its 95 % interval (None where one replica tells nothing of it) and the replicas."""

    value: float
    interval: tuple[float, float] | None
    replicas: int


def mean_of(values: Any) -> Estimate:
    """The mean, with Student's interval over the replicas.

    >>> mean_of([1.0, 2.0, 3.0])
    Estimate(value=2.0, interval=(-0.484..., 4.484...), replicas=3)
    """
    import numpy as np
    from scipy import stats

    x = _numbers(values)
    if len(x) < 2 or not np.isfinite(x).all():
        return Estimate(float(x.mean()), None, len(x))
    half = float(stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Estimate(float(x.mean()), (float(x.mean()) - half, float(x.mean()) + half), len(x))


def median_of(values: Any) -> Estimate:
    """The median, between two order statistics: right for any distribution, and for outliers.

    The k-th smallest and k-th largest of n values hold the median with probability 1 - 2 P(B < k), B binomial
    (n, 1/2); k is the largest for which that is .95 or more. Below six values it is their whole range.

    References:
        David and Nagaraja, "Order Statistics", 2003, section 7.1.

    >>> median_of(range(10))
    Estimate(value=4.5, interval=(1.0, 8.0), replicas=10)
    """
    import numpy as np
    from scipy import stats

    x = np.sort(_numbers(values))
    if len(x) < 2:
        return Estimate(float(x[0]), None, len(x))
    k = max(int(stats.binom.ppf(0.025, len(x), 0.5)), 1)
    return Estimate(float(np.median(x)), (float(x[k - 1]), float(x[-k])), len(x))


def share_of(hits: Any) -> Estimate:
    """The share of replicas for which something is true, in %, with Wilson's interval.

    >>> share_of([True, True, True, False])
    Estimate(value=75.0, interval=(30.06..., 95.44...), replicas=4)
    """
    from scipy import stats

    x = _numbers(hits)
    found = stats.binomtest(int((x != 0).sum()), len(x))
    low, high = found.proportion_ci(method="wilson")
    return Estimate(100.0 * found.statistic, (100.0 * float(low), 100.0 * float(high)), len(x))


def mean_over(table: Any, beside: Any = None) -> Estimate:
    """The mean of a table of seeds by test points, with an interval that draws both anew.

    Args:
        table: shape (seeds, points).
        beside: another such table, of the same seeds and points; then the ratio of the two means.

    >>> mean_over([[1.0, 3.0], [1.0, 3.0]], beside=[[2.0, 6.0], [2.0, 6.0]])
    Estimate(value=0.5, interval=(0.5, 0.5), replicas=2)
    """
    import numpy as np

    from weft.bench.statistics import Resampling

    x = np.asarray(table, dtype=float)
    y = np.ones_like(x) if beside is None else np.asarray(beside, dtype=float)
    if x.ndim != 2 or x.shape != y.shape or not x.size:
        raise ValueError(f"expected tables of one shape (seeds, points), got {x.shape} and {y.shape}")
    resampling = Resampling(*x.shape)
    low, high = np.quantile(resampling.means(x) / resampling.means(y), [0.025, 0.975])
    return Estimate(float(x.mean() / y.mean()), (float(low), float(high)), len(x))


def _numbers(values: Any) -> Any:
    import numpy as np

    x = np.asarray(list(values) if isinstance(values, range) else values, dtype=float).reshape(-1)
    if not len(x):
        raise ValueError("expected the values of at least one replica, got none")
    return x


# --- a claim and what it reports ----------------------------------------------------------------------


class Claim:
    """A statement of a paper that can be run; the base class of every claim file.

    Attributes:
        title: a few words.
        statement: what is claimed, in a sentence or two.
        reference: the paper.
        tolerance: how far from the paper's figures the measured ones may be, and why.
        quick, full: the settings at the two scales; `seeds` in them is the number of replicas.
        first_seed: the first of the seeds.
    """

    title: ClassVar[str] = ""
    statement: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    tolerance: ClassVar[str] = ""
    quick: ClassVar[dict[str, Any]] = {}
    full: ClassVar[dict[str, Any]] = {}
    first_seed: ClassVar[int] = 0

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        """Measures, and tells the report.

        Args:
            setting: the scale's setting, its values as attributes; `setting.scale` is the scale.
            seeds: one for each replica.
            report: takes figures, tables and pictures.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define run(setting, seeds, report)")

    def check(self) -> None:
        """Raises ValueError for a claim that says too little."""
        for name in _TEXTS:
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"expected {type(self).__name__}.{name} to be a text, got {text!r}; say it")
        for scale in SCALES:
            setting = getattr(self, scale)
            count = setting.get("seeds") if isinstance(setting, dict) else None
            if not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"expected {type(self).__name__}.{scale} to be a dictionary with a number of 'seeds' >= 1, "
                    f"got {setting!r}"
                )


class Report:
    """What a claim's `run` tells: figures against their references, tables, pictures, and what it cost."""

    def __init__(self, name: str = "claim", *, progress: Progress | None = None, parts: Parts | None = None) -> None:
        self.name = name
        self.figures: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self.pictures: list[dict[str, str]] = []
        self.drawings: dict[str, str] = {}
        self.trainings = self.steps = 0
        self.seconds = 0.0  # of earlier runs
        self._progress, self._kept = progress, parts
        self._parts, self._done, self._what = 1, 0.0, ""

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
    ) -> None:
        """One measured figure; without a bound (and without `holds`) it is told but not judged.

        Args:
            name: what it is.
            measured: an `Estimate`, or a number with `interval` beside it where there is one.
            reference: the paper's figure, or the exact one, as text.
            unit: as `%`.
            interval: of a plain number.
            least, most: bounds of what holds.
            near, within: the value expected and the distance allowed.
            holds: the judgement itself, where no bound says it.
        """
        value = float(measured.value if isinstance(measured, Estimate) else measured)
        interval = measured.interval if isinstance(measured, Estimate) else interval
        bounds, kept = [], []
        if least is not None:
            bounds.append(f"at least {least:g}")
            kept.append(value >= least)
        if most is not None:
            bounds.append(f"at most {most:g}")
            kept.append(value <= most)
        if (near is None) != (within is None):
            raise ValueError(f"expected both near and within for the figure {name!r}, got only one of them")
        if near is not None and within is not None:
            bounds.append(f"{near:.4g} ± {within:.2g}")
            kept.append(abs(value - near) <= within)
        if kept:
            holds = all(kept) and holds is not False
        held = f"{' and '.join(bounds)}{f' {unit}' if unit else ''}"
        if not math.isfinite(value) and holds is not None:
            holds = False
        self.figures.append(
            {
                "name": name,
                "reference": f"{reference}; here {held}"
                if reference and bounds
                else reference or (held if kept else ""),
                "measured": value if math.isfinite(value) else None,
                "interval": [float(b) for b in interval] if interval and all(map(math.isfinite, interval)) else None,
                "unit": unit,
                "holds": None if holds is None else bool(holds),
            }
        )

    def not_run(self, name: str, *, reference: str = "", unit: str = "") -> None:
        """A figure of the paper that this scale does not reach."""
        self.figures.append(
            {"name": name, "reference": reference, "measured": None, "interval": None, "unit": unit, "holds": None}
        )

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table of numbers and texts."""
        plain = [[_plain(value) for value in row] for row in rows]
        for row in plain:
            if len(row) != len(columns):
                raise ValueError(f"expected rows of {len(columns)} cells in the table {title!r}, got {row}")
        self.tables.append({"title": title, "columns": list(columns), "rows": plain})

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

    def fit(self, learner: Any, *data: Any, what: str = "", **columns: Any) -> Any:
        """`learner.fit(*data, **columns)`, counted in the budget and shown as it goes."""
        kept, begun = learner.callbacks, self._done
        total = learner.steps

        def watch(record: dict[str, Any]) -> None:
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

    def each(self, items: Iterable[Item], what: str = "") -> Iterator[Item]:
        """The items, one after another, as one part of the work."""
        items = list(items)
        begun = self._done
        for i, item in enumerate(items):
            self._moved(begun + i / len(items), what)
            yield item
        self._moved(begun + 1.0, what)

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work()` gives, kept as soon as it is there: a run that was stopped begins with what it has.

        Args:
            name: the part's own.
            work: gives numbers, texts, arrays, lists and dictionaries of such; it may `fit`, `spend` and go through
                `each`, and tells no figures.
        """
        if self._kept is None:
            return work()
        if name not in self._kept:
            before, begun = (self._done, self.trainings, self.steps), time.perf_counter()
            value = work()
            cost = [now - was for now, was in zip((self._done, self.trainings, self.steps), before, strict=True)]
            self._kept.keep(name, value, [*cost, time.perf_counter() - begun])
            return value
        value, (done, trainings, steps, seconds) = self._kept.read(name)
        self.seconds += seconds
        self.spend(trainings=int(trainings), steps=int(steps))
        self._moved(self._done + done, name)
        return value

    def spend(self, *, trainings: int = 0, steps: int = 0) -> None:
        """Counts trainings, and updates summed over them, that `fit` did not."""
        self.trainings += int(trainings)
        self.steps += int(steps)

    def _moved(self, done: float, what: str) -> None:
        self._done, self._what = done, what or self._what
        if self._progress is not None:
            self._progress(min(done / self._parts, 1.0), self._what)

    def verdict(self) -> tuple[str, str]:
        """The verdict and why: it fails if one judged figure does, and is not run if none is judged."""
        judged = [f for f in self.figures if f["holds"] is not None]
        skipped = [f["name"] for f in self.figures if f["holds"] is None and f["measured"] is None]
        left = f" Not run at this scale: {'; '.join(skipped)}." if skipped else ""
        if not judged:
            return NOT_RUN, f"No figure was judged.{left}"
        missed = [f for f in judged if not f["holds"]]
        if missed:
            told = "; ".join(f"{f['name']}: {shown(f)} (expected: {f['reference'] or 'true'})" for f in missed)
            return FAILS, f"{len(missed)} of {len(judged)} judged figures missed. {told}.{left}"
        all_of = f"All {len(judged)} judged figures are" if len(judged) > 1 else "The judged figure is"
        return HOLDS, f"{all_of} within the tolerance.{left}"


def shown(figure: dict[str, Any]) -> str:
    """A figure's measured value with its unit and interval.

    >>> shown({"measured": 97.91, "unit": "%", "interval": [96.0, 98.5]})
    '97.9 % [96, 98.5]'
    """
    if figure["measured"] is None:
        return "none"
    unit = f" {figure['unit']}" if figure["unit"] else ""
    between = f" [{figure['interval'][0]:.3g}, {figure['interval'][1]:.3g}]" if figure["interval"] else ""
    return f"{figure['measured']:.3g}{unit}{between}"


def _plain(value: Any) -> Any:
    """A cell as JSON has it."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


# --- a folder of claims -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """A claim as its file states it."""

    name: str
    path: Path
    title: str
    statement: str
    reference: str
    tolerance: str


def claims_folder() -> Path:
    """weft's own claims: in the source tree, or those packed with an installed weft."""
    import weft

    home = Path(str(weft.__file__)).parent
    tree = home.parents[1] / "claims"
    return tree if tree.is_dir() and (home.parents[1] / "pyproject.toml").exists() else home / "_claims"


def listed(folder: Path | None = None) -> list[Listed]:
    """The claims of a folder and of its families, the folders within, by name; their files are read, not run."""
    folder = claims_folder() if folder is None else Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder of claims, got {folder}, which is not there; give --folder")
    paths: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        if path.name.startswith("_"):
            continue
        if path.stem in paths:
            raise ValueError(f"expected one claim of each name, got {paths[path.stem]} and {path}; rename one of them")
        paths[path.stem] = path
    return [_read(paths[name]) for name in sorted(paths)]


def _read(path: Path) -> Listed:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"expected a claim in {path}, got no Python: {error}") from error
    for part in tree.body:
        if isinstance(part, ast.ClassDef) and any(_ends(base, "Claim") for base in part.bases):
            texts = dict.fromkeys(_TEXTS, "")
            for line in part.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                value = getattr(line, "value", None)
                if isinstance(target, ast.Name) and target.id in texts and isinstance(value, ast.Constant):
                    texts[target.id] = str(value.value)
            return Listed(name=path.stem, path=path, **texts)
    raise ValueError(f"expected a subclass of weft.bench.claims.Claim in {path}, got none")


def _ends(base: ast.expr, name: str) -> bool:
    return getattr(base, "id", None) == name or getattr(base, "attr", None) == name


def load(path: Path) -> Claim:
    """The claim of a file. This runs the file, which may import others of its folder that begin with `_`."""
    name = f"weft_claim_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"expected the file of a claim, got {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"expected a claim in {path}, got {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
        for other in [n for n in sys.modules if n.startswith("_") and (Path(folder) / f"{n}.py").is_file()]:
            del sys.modules[other]  # another folder may have its own of that name
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Claim) and v.__module__ == name]
    if len(own) != 1:
        raise ValueError(f"expected one subclass of Claim in {path}, got {len(own)}; one file, one claim")
    claim: Claim = own[0]()
    claim.check()
    return claim


def last(name: str, out: Path) -> dict[str, Any] | None:
    """The last result of a claim under `out`, or None."""
    path = out / "claims" / name / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    right = isinstance(result, dict) and result.get("kind") == "claim" and result.get("format") == FORMAT
    return result if right else None


# --- running ------------------------------------------------------------------------------------------


def reproduce(
    path: Path,
    *,
    scale: str = "quick",
    seeds: int | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs the claim of a file, and keeps the result in `out/claims/NAME`.

    A run that was stopped goes on where it was, part by part, if the claim has parts.

    Args:
        path: the claim's file.
        scale: `quick` or `full`.
        seeds: how many, in place of the setting's.
        out: where results are kept; None keeps nothing.
        progress: called with the share done and what is being done.

    Returns:
        The result, as written to `result.json`.
    """
    from datetime import UTC, datetime

    from weft import __version__
    from weft.bench.machine import machine, versions
    from weft.bench.parts import Parts, identity

    if scale not in SCALES:
        raise ValueError(f"expected scale to be 'quick' or 'full', got {scale!r}")
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
        raise ValueError(f"expected a number of seeds >= 1, got {seeds!r}")
    path = Path(path)
    claim = load(path)
    setting = {**getattr(claim, scale), **({} if seeds is None else {"seeds": seeds})}
    chosen = list(range(claim.first_seed, claim.first_seed + setting["seeds"]))
    folder = None if out is None else Path(out) / "claims" / path.stem
    parts = None if folder is None else Parts(folder / "parts.json", identity(path, setting, chosen))
    report = Report(path.stem, progress=progress, parts=parts)
    date, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    claim.run(SimpleNamespace(scale=scale, **setting), chosen, report)
    seconds = time.perf_counter() - begun + report.seconds
    verdict, why = report.verdict()
    told = "" if seeds is None else f" --seeds {seeds}"
    own = path.resolve().is_relative_to(claims_folder().resolve())
    elsewhere = "" if own else f" --folder {path.parent}"
    result = {
        "format": FORMAT,
        "kind": "claim",
        "name": path.stem,
        "title": claim.title,
        "statement": claim.statement,
        "reference": claim.reference,
        "scale": scale,
        "seeds": chosen,
        "setting": {name: str(value) for name, value in setting.items()},
        "figures": report.figures,
        "verdict": verdict,
        "why": why,
        "tolerance": claim.tolerance,
        "tables": report.tables,
        "pictures": report.pictures,
        "budget": {"seconds": round(seconds, 3), "trainings": report.trainings, "steps": report.steps},
        "weft": __version__,
        "date": date,
        "versions": versions(),
        "machine": machine(),
        "command": f"weft reproduce {path.stem} --{scale}{told}{elsewhere}",
    }
    if folder is not None:
        _keep(result, report.drawings, folder)
    return result


def _keep(result: dict[str, Any], drawings: dict[str, str], folder: Path) -> None:
    """Writes the pictures, then the result that names them, then removes pictures of earlier runs and the parts."""
    from weft.core.files import write_text

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawings.items():
        write_text(folder / name, text)
    write_text(folder / "result.json", json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    for old in folder.glob("*.svg"):
        if old.name not in drawings:
            old.unlink()
    (folder / "parts.json").unlink(missing_ok=True)
