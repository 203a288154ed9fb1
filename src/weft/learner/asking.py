"""Asking: a capability as the Learner offers it. What is asked is read, cut to fit the memory, and merged over runs.

An estimate draws by a hash of the row as it was read, so that it does not matter among which others it stands. What is
a draw itself draws by position, from where the learner's last draw has ended, or from `random_state`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from numbers import Integral
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.configured import closest
from weft.core.objective import TARGETS, Capability
from weft.core.random import fold, key_of, row_hash
from weft.core.trees import Params
from weft.engine.asking import call, call_all, together
from weft.engine.memory import rows_at_a_time
from weft.engine.progress import pieces
from weft.learner.columns import as_tensor, numbered_environments
from weft.learner.decoding import decoded
from weft.learner.merging import as_numpy, each, joined, leaves, merged, refuse_other
from weft.learner.questions import Expectation, values_of
from weft.learner.ragged import as_tokens, is_ragged, rows_in, unequal
from weft.learner.reading import Reader, as_array
from weft.learner.settings import DTYPES, as_seed
from weft.learner.training import Run, refuse_unfitted

if TYPE_CHECKING:
    from weft.learner.answers import Answers

__all__ = ["Question", "Score"]

_MOST = 8192  # rows at a time when a capability is asked
_known: WeakKeyDictionary[Callable[..., Any], list[inspect.Parameter]] = WeakKeyDictionary()


class Score(float):
    """A score that is not exact, and prints what it is.

    >>> Score(-1.5, "lower bound")
    -1.5 (lower bound)
    """

    kind: str

    def __new__(cls, value: float, kind: str = "") -> Self:
        score = super().__new__(cls, value)
        score.kind = kind
        return score

    def __repr__(self) -> str:
        return f"{float(self)!r} ({self.kind})"


class Question:
    """A capability of a learner's objective, to be called.

    Args:
        learner: who is asked.
        name: what.
    """

    def __init__(self, learner: Answers, name: str) -> None:
        self.learner, self.name = learner, name
        self.__name__ = name  # by which scikit-learn's scorers tell the ways to answer apart
        self.__doc__ = getattr(type(learner._objective()), name, None).__doc__

    def __repr__(self) -> str:
        return f"{type(self.learner).__name__}.{self.name}{f' ({self.kind})' if self.kind else ''}"

    @property
    def mark(self) -> Capability:
        """How it is asked and merged; once there is a fitted objective, as that one says, which knows its shapes."""
        fitted = getattr(self.learner, "objective_", objective := self.learner._objective())
        return (fitted if type(fitted) is type(objective) else objective).capabilities()[self.name]

    @property
    def kind(self) -> str:
        """Of a density: exact, lower bound, upper bound or estimate; of a draw: direct, sequential or chain."""
        return self.mark.kind

    def takes(self, argument: str) -> bool:
        """Whether it takes an argument of this name beside the first."""
        return argument in self.arguments

    @property
    def arguments(self) -> list[str]:
        """The names of its arguments beside the first."""
        return [p.name for p in self._further()]

    def _further(self) -> list[inspect.Parameter]:
        return _parameters(getattr(self.learner._objective(), self.name))[1:]

    def __call__(self, asked: Any = None, /, *, random_state: Any = None, **named: Any) -> Any:
        """The answer, one for each row.

        Args:
            asked: rows, or of what draws them how many, by default one.
            random_state: of a draw, what fixes it.
            named: further fields, with a value for each row, and the method's options.
        """
        learner, mark = self.learner, self.mark
        refuse_unfitted(learner)
        if mark.asks == "function":
            return self._mean_of(asked, random_state, named)
        drawn = mark.draws(self.name)
        if random_state is not None and not drawn:
            raise TypeError(
                f"expected random_state for what is a draw, got it for {self.name!r}, whose answer is a function of "
                "the row; leave it out"
            )
        rows, beside = self._asked(asked, mark)
        fields, options = self._named(named, mark, len(rows) if isinstance(rows, Tensor) else rows, beside)
        seed = None if random_state is None else as_seed(random_state)
        first = learner.training_.drawn if drawn and seed is None else 0
        question = _Asked(self.name, mark, rows, fields, options, drawn, seed, first)
        answer = _answered(learner._answering(), question, shown=bool(learner.verbose))
        if drawn and seed is None:
            learner.training_.drawn += question.count
        return decoded(learner, self.name, mark, asked, beside, answer)

    def _mean_of(self, f: Any, random_state: Any, named: dict[str, Any]) -> Expectation:
        """The mean of a function under the model, as the objective computes it; over replicas the mean of theirs."""
        level = named.pop("level", 0.95)
        if not callable(f):
            raise TypeError(f"expected a function of rows for {self.name!r}, got {type(f).__name__}")
        if random_state is not None and self.kind == "exact":
            raise TypeError(f"expected random_state for what draws, got it for {self.name!r}, which is exact")
        fields, options = self._named(named, self.mark, -1, {})
        if fields:
            raise TypeError(f"expected no values for each row in {self.name!r}, got {', '.join(fields)}")

        def of_tensor(rows: Tensor) -> Tensor:
            return torch.as_tensor(values_of(f, as_numpy(rows), len(rows))).to(rows.device, DTYPES[self.learner.dtype])

        runs = self.learner._answering()
        if self.mark.merge == "refuse" and len(runs) > 1:
            raise ValueError(_one_replica(self.name, len(runs)))
        found = []
        for _, state in runs:
            key = fold(key_of(state.seeds), self.name)
            key = key if random_state is None else fold(key, "random_state", as_seed(random_state))
            answer = call(state, self.name, of_tensor, key=key, options=options)
            found.append(answer if isinstance(answer, tuple) else (answer, None))
        for leaf in [part for one in found for part in one if part is not None]:
            if not isinstance(leaf, Tensor) or leaf.dim() > 1:
                got = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
                raise ValueError(
                    f"expected {self.name!r} to give a mean, a tensor of one number or one vector, or that and its "
                    f"standard error, got {got}"
                )
        means, errors = zip(*found, strict=True)
        error = None if any(e is None for e in errors) else torch.stack(errors).square().sum(0).sqrt() / len(runs)
        mean = torch.stack(means).mean(0)
        told = None if error is None else as_numpy(error)
        return Expectation.around(as_numpy(mean), told, self.kind, level)

    def _asked(self, asked: Any, mark: Capability) -> tuple[Tensor | int, Params]:
        """The rows, or how many are to be drawn, and what comes along with rows."""
        if mark.asks == "number":
            asked = 1 if asked is None else asked
            if not isinstance(asked, Integral) or isinstance(asked, bool) or asked < 1:
                raise ValueError(f"expected a positive number of samples, got {asked!r}")
            return int(asked), {}
        if asked is None:
            raise TypeError(f"expected rows to ask {self.name!r} about, got none; call {self.name}(X)")
        if mark.reads and self.learner.objective_.fields[:1] == ("x",):
            beside = self.learner._inputs(asked)
            self.learner.objective_.refuse_rows(beside, training=False)
            return beside.pop("x"), beside
        return as_tensor(asked, DTYPES[self.learner.dtype]), {}

    def _fill(self, beside: Params, names: list[str], anything: bool) -> Params:
        """What comes along with rows, for the arguments of these names; raises where it is needed and not taken."""
        for name, values in beside.items():
            if name in names or anything:
                continue
            whole = values.all() if name == "observed" else (values == values.max()).all()
            if not bool(whole):
                what = "without gaps" if name == "observed" else "of one length"
                raise ValueError(
                    f"expected rows {what} for {self.name!r}, which takes no argument {name!r} to tell them apart, got "
                    f"others, first in row {_first(name, values)}"
                )
        return {name: values for name, values in beside.items() if name in names or anything}

    def _named(
        self, named: dict[str, Any], mark: Capability, rows: int, beside: Params
    ) -> tuple[Params, dict[str, object]]:
        """The fields, read, and the options, of the arguments by name."""
        known = self._further()
        if not named and not beside and not known:
            return {}, {}
        objective = self.learner.objective_
        names = [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        anything = any(p.kind == p.VAR_KEYWORD for p in known)
        by_row = {*objective.fields, *self.learner.training_.spec, *mark.rows}
        fields, options = self._fill(beside, names, anything), {}
        for name, value in named.items():
            if name in objective.companions:
                raise TypeError(
                    f"expected {name!r} to be filled in by what {self.name!r} is asked about, got it as an argument; "
                    "put NaN at gaps, and give rows of their own lengths"
                )
            if name not in names and not anything:
                if not names:
                    raise TypeError(f"expected no argument of {self.name!r} beside the first, got {name!r}")
                raise closest(name, names, f"an argument of {self.name!r}")
            if name in by_row:
                if value is not None:
                    found = self._field(name, value, rows)
                    fields |= {name: found.pop(name), **self._fill(found, names, anything)}
            elif isinstance(value, np.ndarray | Tensor | list) or hasattr(value, "iloc"):
                raise TypeError(
                    f"expected one value of {name!r} for all rows of {self.name!r}, got {type(value).__name__}; give "
                    f"several values that are one option as a tuple, and what has a value for each row is declared: "
                    f"capability(rows=({name!r},))"
                )
            else:
                options[name] = as_tokens(name, value, self.learner) if name in mark.texts else value
        for p in known:
            if p.name in names and p.default is p.empty and p.name not in {*named, *fields}:
                each = ", with a value for each row" if p.name in by_row else ""
                raise TypeError(f"expected {p.name!r} to be given to {self.name!r}{each}, got none")
        return fields, options

    def _field(self, name: str, given: Any, rows: int) -> Params:
        """A field as training reads it, with what comes along."""
        learner = self.learner
        reader: Reader = learner._reader()
        count = rows_in(given)
        if count != rows:
            got = "a single value" if count is None else count
            raise ValueError(f"expected {name!r} to have a value for each of the {rows} rows, got {got}")
        if name in learner.objective_.fields and learner.objective_.holds(name) not in TARGETS:
            return reader.field(name, given)
        if is_ragged(given):
            raise unequal(name, type(learner.objective_).__name__)
        return {name: self._plain_field(reader, name, given, rows)}

    def _plain_field(self, reader: Reader, name: str, given: Any, rows: int) -> Tensor:
        """Labels, environments and numbers."""
        learner, column = self.learner, as_array(given)
        if name == "index" and name in learner.objective_.fields:
            return reader.numbers_of_rows(given)
        spec = learner.training_.spec.get(name)
        labelled = hasattr(learner, "classes_") if name == "y" else name in getattr(learner, "labels_", {})
        if labelled and learner.objective_.holds(name) == "classes":
            return reader.labels(given, name=name)
        if name == "environment" and hasattr(learner, "environments_"):
            return numbered_environments(learner, given, rows)
        values = reader.targets(given) if name == "y" else as_tensor(column, _dtype(column, DTYPES[learner.dtype]))
        if spec is None:
            return values
        if spec.shape != tuple(values.shape[1:]):
            raise ValueError(
                f"expected rows of {name!r} of shape {spec.shape} as when training began, got {tuple(values.shape[1:])}"
            )
        return values.to(spec.dtype)


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a bound method takes; looked up once for the function behind it."""
    known = _known.get(function := getattr(method, "__func__", method))
    if known is None:
        known = _known[function] = list(inspect.signature(method).parameters.values())
    return known


def _first(name: str, values: Tensor) -> int:
    """The first row with a gap, or shorter than the longest."""
    odd = ~values.flatten(1).all(1) if name == "observed" else values != values.max()
    return int(torch.nonzero(odd)[0, 0])


def _dtype(column: NDArray[Any], number: torch.dtype) -> torch.dtype:
    """Whole numbers stay whole, and what is true or false stays so."""
    return {"i": torch.int64, "u": torch.int64, "b": torch.bool}.get(column.dtype.kind, number)


@dataclass(eq=False, slots=True)
class _Asked:
    """A question as it was read.

    Attributes:
        name, mark: the capability.
        rows: what it is asked about, or how many are to be drawn.
        fields, options: the further arguments.
        drawn: whether the answer is a draw.
        seed: what fixes it, or None for the learner's own.
        first: the position of its first row among all that the learner has drawn.
    """

    name: str
    mark: Capability
    rows: Tensor | int
    fields: Params
    options: dict[str, object]
    drawn: bool
    seed: int | None
    first: int

    @property
    def count(self) -> int:
        return len(self.rows) if isinstance(self.rows, Tensor) else self.rows

    def alone(self, run: Run) -> Any:
        """What one run answers about all rows at once."""
        state, asked = run.state, self.rows
        device = state.device
        if isinstance(asked, Tensor) and asked.device != device:
            asked = asked.to(device)
        fields = {name: values.to(device) for name, values in self.fields.items()}
        key = state.root(self.name)
        if self.seed is not None:
            key = fold(key, "random_state", self.seed)

        def rows() -> Tensor:
            if self.drawn or not isinstance(asked, Tensor):
                return torch.arange(self.first, self.first + self.count, device=device)
            return row_hash(asked, *(fields[name] for name in sorted(fields)))

        answer = call(state, self.name, asked, key=key, rows=rows, fields=fields, options=self.options)
        for leaf in leaves(answer) if self.mark.finish else ():  # else it is looked at in a moment
            refuse_other(leaf, self.count, self.name)
        return answer

    def of(self, runs: list[Run], spans: list[tuple[int, int]]) -> list[Any]:
        """What each run answers about its rows, from a to b: all of them about the same, or each about its own."""
        states, apart = [state for _, state in runs], len(set(spans)) > 1
        device, size, (first, last) = states[0].device, max(b - a for a, b in spans), spans[0]
        index = held = None
        if apart:  # of shares that are not equal, the shorter are asked one row too many
            index = torch.stack([torch.arange(a, a + size) for a, _ in spans])
            held = index.clamp_max(self.count - 1)

        def part(values: Tensor) -> Tensor:
            some = values[first:last] if held is None else values[held]
            return some.to(device)

        asked = part(self.rows) if isinstance(self.rows, Tensor) else size
        fields = {name: part(values) for name, values in self.fields.items()} if self.fields else {}
        keys = [state.root(self.name) for state in states]
        if self.seed is not None:
            keys = [fold(key, "random_state", self.seed) for key in keys]
        given = asked if not self.drawn and isinstance(asked, Tensor) else None

        def rows() -> Tensor:
            if given is None:
                return (self.first + (torch.arange(first, last) if index is None else index)).to(device)
            return row_hash(given, *(fields[name] for name in sorted(fields)))

        answers = call_all(
            states, self.name, asked, keys=keys, rows=rows, fields=fields, options=self.options, apart=apart
        )
        for answer in answers:
            for leaf in leaves(answer):
                refuse_other(leaf, size, self.name)
        return [
            answer if b - a == size else each(itemgetter(slice(b - a)), answer)
            for answer, (a, b) in zip(answers, spans, strict=True)
        ]

    def at_a_time(self, runs: list[Run]) -> int:
        """How many rows are asked about at a time, or drawn by each run."""
        if self.count < 2:
            return _MOST
        engine, memory = runs[0].engine, runs[0].engine.memory * (runs[0].engine.replicas or 1)
        at_once = together([state for _, state in runs], self.name)
        shared, given = self.mark.merge == "share", isinstance(self.rows, Tensor)

        def compute(n: int) -> object:
            asked = self.rows[:n].clone() if isinstance(self.rows, Tensor) else n
            if at_once:
                answers = self.of(runs, [(k * n * shared, (k * shared + 1) * n) for k in range(len(runs))])
            else:  # one after another, whose answers wait for each other where they are merged
                answer = self.of(runs[:1], [(0, n)])[0]
                answers = [answer, *(each(Tensor.clone, answer) for _ in runs[1:] if not shared)]
            return asked, answers if shared else merged(self.mark.merge, answers)

        like = [self.rows, *self.fields.values()] if isinstance(self.rows, Tensor) else [*self.fields.values()]
        shapes = tuple((tuple(t.shape[1:]), str(t.dtype)) for t in like)
        kind = (self.name, shapes, len(runs), at_once, repr(self.options))
        most = _MOST if given else self.count
        few = max(2, 16 // len(runs)) if at_once else 16  # what is tried must fit as well
        return rows_at_a_time(engine.objective, kind, lambda: compute, min(self.count, few), memory, most)


def _answered(runs: list[Run], asked: _Asked, *, shown: bool) -> Any:
    """The answer, merged over the runs or shared out among them; what is done leaves the device piece by piece."""
    mark, n = asked.mark, asked.count
    if mark.merge == "refuse" and len(runs) > 1:
        raise ValueError(_one_replica(asked.name, len(runs)))
    at_a_time = asked.at_a_time(runs)

    def checked(answer: Any, rows: int) -> Any:
        answer = mark.finish(answer) if mark.finish else answer
        for leaf in leaves(answer):
            refuse_other(leaf, rows, asked.name)
        return answer

    def finished(answer: Any, rows: int) -> Any:
        return each(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, checked(answer, rows))

    if len(runs) == 1 and n <= at_a_time:  # nothing to merge, nothing to share out
        return each(joined, checked(asked.alone(runs[0]), n))
    parts: list[Any] = []
    if mark.merge != "share":
        spans = [(first, min(first + at_a_time, n)) for first in range(0, n, at_a_time)]
        with pieces(asked.name, n, len(spans), shown=shown) as done:
            for a, b in spans:
                parts.append(finished(merged(mark.merge, asked.of(runs, [(a, b)] * len(runs))), b - a))
                done(b - a)
        return each(joined, *parts)
    edges = [k * n // len(runs) for k in range(len(runs) + 1)]
    shares = [[(first, min(first + at_a_time, b)) for first in range(a, b, at_a_time)] for a, b in pairwise(edges)]
    found: dict[tuple[int, int], Any] = {}
    turns = list(zip_longest(*shares))  # a piece of each run's share at once
    with pieces(asked.name, n, len(turns), shown=shown) as done:
        for turn in turns:
            asking = [(run, span) for run, span in zip(runs, turn, strict=True) if span is not None]
            spans = [span for _, span in asking]
            for span, answer in zip(spans, asked.of([run for run, _ in asking], spans), strict=True):
                found[span] = finished(answer, span[1] - span[0])
                done(span[1] - span[0])
    return each(joined, *(found[span] for share in shares for span in share))


def _one_replica(name: str, runs: int) -> str:
    return (
        f"expected one replica to answer {name!r}, got {runs}, whose answers cannot be averaged; ask one of them: "
        f".replica(0).{name}(...)"
    )
