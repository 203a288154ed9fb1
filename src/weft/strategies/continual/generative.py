"""Generative replay: samples of earlier tasks' rows are learned again, with the old net's answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core import random
from weft.core.legal import Such
from weft.core.objective import Objective
from weft.core.source import Batch
from weft.core.strategy import Local, StrategyState
from weft.strategies.continual.replay import Replay

__all__ = ["GenerativeReplay"]

Generator = Any
"""An estimator with `fit(X)` and `sample(n)`."""


def _learns(given: object) -> bool:
    return not isinstance(given, type | str | Objective) and callable(getattr(given, "fit", None))


def _answer(field: str) -> str:
    """The capability that tells a target: `predict` of `y`, `mass_predict` of `mass_y`; "" where none does."""
    return f"{field.removesuffix('y')}predict" if field == "y" or field.endswith("_y") else ""


class GenerativeReplay(Replay):
    """Learns each batch B together with rows M that a generator drew, answered by the net as it was.

    When a task ends, a generator G learns p(x) of its rows, and a sample x' ~ G takes the place of each row in the
    memory that `Replay` keeps, with y*(x') the answer that the net predicts for it then; no row itself is kept. The
    loss of the next task is

        (1 - share) mean_B loss(x_i, y_i) + share mean_M loss(x'_i, y*(x'_i)).

    An objective without labels learns x' as it is, and where it can sample (a GAN, a density) is its own generator.
    With a perfect generator and a net that fits its rows, it is `Replay`.

    The paper keeps one generator, which learns its own samples again with each task. So does an objective that is its
    own generator; its samples are of all tasks so far, and a task that is repeated counts again. A separate generator
    learns one task, and its samples are kept: errors do not add up, and a task that is repeated replaces its own.
    For the net's probabilities as targets instead of its answers: `weave(LwF(), GenerativeReplay())`. In a game a
    separate generator is trained once for each player, to the same end.

    Args:
        generator: what draws rows: a learner whose objective can sample, such as `Learner(GAN(), steps=1000)`, or any
            estimator with `fit(X)` and `sample(n)` (scikit-learn's `KernelDensity`). One that is not fitted is cloned
            and fitted anew to each task's rows; one that is fitted is asked as it is. None for the objective itself,
            where it can sample, as it is at the task's end.
        size: rows in the memory.
        rows: rows drawn for each batch.
        share: the memory's share of the loss, in [0, 1).

    References:
        Shin, Lee, Kim and Kim, "Continual learning with deep generative replay", arXiv 1705.08690.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> from weft import Classifier, Learner, Optimizer
        >>> from weft.objectives import GAN
        >>> X, y = make_blobs([100, 100, 100], centers=[[0, 0], [6, 0], [0, 6]], random_state=0)
        >>> replay = GenerativeReplay(generator=Learner(GAN(), steps=300), size=100)
        >>> clf = Classifier(strategy=replay, optimizer=Optimizer("adam", lr=0.01), epochs=30, random_state=0)
        >>> for task in ([0, 1], [2]):
        ...     rows = [label in task for label in y]
        ...     clf = clf.partial_fit(X[rows], y[rows], classes=range(3), task=str(task))
        >>> bool(clf.score(X, y) > 0.9)
        True
    """

    legal = {"generator": Such("a learner that can sample, such as Learner(GAN(), steps=1000)", _learns) | None}

    def __init__(
        self, *, generator: Generator | None = None, size: int = 1000, rows: int = 64, share: float = 0.5
    ) -> None:
        super().__init__(size=size, rows=rows, share=share)
        self.generator = generator

    def validate(self) -> None:
        super().validate()
        given = self.generator
        if given is None:
            return
        if callable(settings := getattr(given, "settings", None)):
            settings()  # a Learner's own hyperparameters are checked now, not when the first task has ended
        if not callable(getattr(given, "sample", None)):
            raise ValueError(
                "expected GenerativeReplay's generator to be a learner that can sample, such as "
                f"Learner(GAN(), steps=1000), got {given!r}, which cannot; to keep rows themselves use Replay()"
            )

    def _itself(self, objective: Objective) -> bool:
        """Whether the rows are drawn from the objective that is trained."""
        return self.generator is None and "sample" in objective.capabilities()

    def refuses(self, objective: Objective) -> str | None:
        if reason := super().refuses(objective):
            return reason
        if objective.episodic:
            return f"a generator draws rows x, and a row of {type(objective).__name__} is an episode, with many of them"
        for name in objective.companions:
            return f"a generator draws rows x, and nothing tells the {name!r} of a row drawn"
        for name in objective.fields:
            told = _answer(name)
            if name != "x" and not told:
                return f"a generator draws rows x, the net predicts y, and nothing tells the {name!r} of a row drawn"
            if told and told not in objective.capabilities():
                return f"the net answers for rows drawn, and {type(objective).__name__} does not predict {name!r}"
        if self.generator is None and "sample" not in objective.capabilities():
            return (
                f"it learns rows that are drawn again, {type(objective).__name__} draws none and no generator was "
                "given; give one: generator=Learner(GAN(), steps=1000)"
            )
        return None

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        batches = list(local.batches())
        if not batches:
            return super().consolidate(local, state, task)  # which tells that there are no rows
        x = torch.cat([batch["x"] for batch in batches])
        weight = torch.cat([batch["weight"] for batch in batches]) if "weight" in batches[0] else None
        row = torch.cat([batch["row"] for batch in batches])
        own = self._itself(local.objective)
        if own:
            samples = local.ask("sample", len(x), rows=row).to(x.dtype)
        else:
            samples = self._samples(x, weight, next(iter(local.params.values())).dtype, task)
            try:
                local.refuse({"x": samples})
            except ValueError as error:
                raise ValueError(
                    f"expected the generator to draw rows that {type(local.objective).__name__} can learn from, got "
                    f"others: {error}; give a generator of such rows"
                ) from error
        drawn: Batch = {"x": samples, "row": row}
        if weight is not None:
            drawn["weight"] = weight.mean().expand(len(x))
        sizes = [len(batch["x"]) for batch in batches]  # as many at a time as fit the memory
        chunks = list(zip(samples.split(sizes), row.split(sizes), strict=True))
        for name in [name for name in batches[0] if _answer(name)]:
            finish = local.objective.capabilities()[_answer(name)].finish
            answer = torch.cat([local.ask(_answer(name), rows, rows=numbers) for rows, numbers in chunks])
            drawn[name] = (finish(answer) if finish else answer).to(batches[0][name].dtype)
        instead = replace(local, batches=lambda: [drawn])
        # The objective itself has learned all tasks so far: its samples replace the memory, and are of no one task.
        return super().consolidate(instead, self.init({}) if own else state, "" if own else task)

    def _samples(self, x: Tensor, weight: Tensor | None, dtype: torch.dtype, task: str) -> Tensor:
        """As many rows as the task has, from a generator that has learned them; seeded by the key in force."""
        model: Generator = self.generator
        known = model.get_params(deep=False)
        seed = int(random.uniform((1,), place="generator", dtype=torch.float64) * 2**53)
        ours = "device" in known  # a Learner; others know neither tensors nor such large seeds
        try:
            check_is_fitted(model)
            fixed = {"random_state": seed} if ours else {}  # else it would go on from its last draw, whoever made it
        except NotFittedError:
            model, fixed = clone(model), {}
            own = {"random_state": seed if ours else seed % 2**32, "device": x.device, "dtype": str(dtype)[6:]}
            model.set_params(**{name: value for name, value in own.items() if name in known})
            weights = {} if weight is None else {"sample_weight": weight if ours else weight.cpu().numpy()}
            model.fit(x if ours else x.cpu().numpy(), **weights)
        drawn = model.sample(len(x), **fixed)
        drawn = drawn[0] if isinstance(drawn, tuple) else drawn  # scikit-learn's mixtures tell the component, too
        samples = torch.as_tensor(drawn, device=x.device).to(x.dtype)
        if samples.shape != x.shape:
            raise ValueError(
                f"expected the generator to draw rows like those of the task {task!r}, {tuple(x.shape[1:])}, got "
                f"{tuple(samples.shape[1:])}; check {self.generator!r}"
            )
        return samples
