"""The methods of a study: as they are written, with what is tuned of them, and those that suit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.bench.data import Data
from weft.bench.study import Study
from weft.core.configured import Range
from weft.core.spelling import parse

if TYPE_CHECKING:
    from weft.learner.estimator import Learner
    from weft.objectives import Classification, Regression

__all__ = ["Method", "suitable"]

RATE = Range(1e-4, 3e-2, log=True)  # of Adam
PLAIN = Range(1e-2, 1.0, log=True)  # of SGD, for what chooses its own step


@dataclass(frozen=True)
class Method:
    """An objective with a strategy, as it was written, and what is tuned of it.

    Attributes:
        name: as it was written.
        objective, strategy: as text that `weft.core.spelling.parse` reads; "" for what the target asks for, or ERM.
        space: the range of each setting that is tuned, by its name in a Learner.
    """

    name: str
    objective: str
    strategy: str
    space: dict[str, Range]

    @classmethod
    def parse(cls, text: str, classes: bool) -> Method:
        """A method from text such as `and-mask`, `least-squares`, `mlp(dropout=0.5)/and-mask`."""
        from weft.core.catalogue import named, spelled

        left, slash, right = _halves(text)
        bare = spelled(left.partition("(")[0].strip())
        first = slash or bare in named("objectives") or bare in named("nets")
        objective, strategy = (left, right) if first else ("", left)
        if bare in named("nets"):  # the usual objective, with that net
            objective = repr(_default(classes).having(net=left))
        made = parse(objective, "objectives") if objective else _default(classes)
        way = parse(strategy, "strategies") if strategy else parse("erm", "strategies")
        way.validate()
        made.validate()
        if isinstance(getattr(made, "net", None), str):
            _try_net(made.net, text)
        if made.fields not in (("x", "y"), ("x", "y", "environment")):
            raise ValueError(
                f"expected methods that predict a target from rows, got {text!r}, which learns from "
                f"{', '.join(made.fields)}"
            )
        if (made.targets == "classes") != classes:
            kind = "classes" if classes else "values"
            raise ValueError(f"expected methods for {kind}, as the target has, got {text!r}; leave it out")
        if way.sight.episodic:
            raise ValueError(f"expected methods that learn from rows, got {text!r}, which learns from episodes")
        if reason := way.refuses(made):
            raise ValueError(f"expected methods that go together, got {text!r}: {reason}")
        space = {} if made.solved else {"optimizer__lr": PLAIN if way.own_step else RATE}
        for outer, part, written in (("objective", made, objective), ("strategy", way, strategy)):
            for inner, limits in part.space.items():
                if inner.rpartition("__")[2] + "=" not in written.replace(" ", ""):
                    space[f"{outer}__{inner}"] = limits
        return cls(text, objective, strategy, space)

    def check(self, by: str) -> None:
        """Raises where it needs environments or tasks and the study's data is not split by them."""
        way = parse(self.strategy, "strategies") if self.strategy else None
        reads = self.objective and "environment" in parse(self.objective, "objectives").fields
        if way is not None and way.sight.grouped:
            reads = True
        if reads and by != "environment":
            raise ValueError(
                f"expected environments for {self.name!r}, which compares them, got none; name their column with "
                "--environment"
            )
        if way is not None and way.does("consolidate") and by != "task":
            raise ValueError(
                f"expected tasks for {self.name!r}, which remembers them, got none; name their column with --task"
            )

    def default(self, study: Study, data: Data) -> dict[str, float]:
        """What is tuned of it at its defaults; one that lies outside its range, at the range's edge."""
        values = {"optimizer__lr": 1e-3, **self.learner(study, data).get_params()}  # torch's, of Adam and of SGD
        return {name: r.nearest(values[name]) for name, r in self.space.items()}

    def learner(self, study: Study, data: Data, replicas: dict[str, Sequence[float]] | None = None) -> Learner:
        """An untrained Learner of it; `replicas` holds a list of values for each setting that varies."""
        from weft.core.optimizer import Optimizer
        from weft.learner.estimator import Learner

        objective = parse(self.objective, "objectives") if self.objective else _default(data.classes is not None)
        strategy = parse(self.strategy, "strategies") if self.strategy else None
        grouped = strategy is not None and strategy.sight.grouped
        # As many rows per update for everybody: one that works on environments takes so many of each.
        rows = study.rows * (len(data.names) if data.by == "environment" and not grouped else 1)
        own = Optimizer("sgd" if strategy is not None and strategy.own_step else "adam")
        descent: dict[str, Any] = (
            {} if objective.solved else {"optimizer": own, "steps": study.steps, "batch_size": rows}
        )
        return Learner(objective, strategy=strategy, device="cpu", replicas=replicas, **descent)


def _halves(text: str) -> tuple[str, str, str]:
    """Parts at the slash outside brackets, if there is one."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "/" and depth == 0:
            return text[:i], "/", text[i + 1 :]
    return text, "", ""


def _default(classes: bool) -> Classification | Regression:
    from weft.objectives import Classification, Regression

    return Classification(hidden=(64, 64)) if classes else Regression(hidden=(64, 64))


def _try_net(net: str, text: str) -> None:
    """Raises where the net of a method cannot be made, before anything is trained."""
    import torch

    from weft.core.source import Field
    from weft.nets import make_net

    try:
        with torch.random.fork_rng(devices=[]):
            make_net(net, Field((2,), torch.float32), 2)
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected a net for {text!r}, got {net!r}: {error}") from error


# What works with another method is spelled with one.
_WITH = {
    "adversarial-training": "adversarial-training(attack=pgd())",
    "generative-replay": "generative-replay(generator=learner(objective=gan))",
}


def suitable(study: Study, classes: bool) -> list[str]:
    """The methods of the catalogue that make use of what the study's data tells."""
    from weft.core.catalogue import entries

    chosen = ["erm"]
    for entry in sorted(entries("strategies"), key=lambda entry: entry.name):
        way = entry.cls()
        if way.sight.episodic or entry.name == "erm":
            continue
        if (way.sight.grouped and study.environment) or (way.does("consolidate") and study.task):
            chosen.append(_WITH.get(entry.name, entry.name))
    if study.environment or study.task:
        return chosen
    if not classes:
        chosen.append("least-squares")
    return [*chosen, _WITH["adversarial-training"]]
