"""Generative replay: samples of earlier tasks' rows are learned again, with the old net's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.core import random
from weft.core.catalogue import find
from weft.core.objective import Objective, Output
from weft.core.source import Batch, rows_of
from weft.core.strategy import Local, Loss, Params, StrategyState
from weft.strategies.replay import Replay

__all__ = ["GenerativeReplay"]


class GenerativeReplay(Replay):
    """Learns each batch B together with rows M that a generator drew, answered by the net as it was.

    When a task ends, a generator G learns p(x) of its rows, and a sample x' ~ G takes the place of each row in the
    memory that `Replay` keeps; no row itself is kept. With theta* the parameters that the last task reached and
    y*(x) = argmax_y p(y | x, theta*) the net's own answer (of a normal, its mean), the loss of the next task is

        (1 - share) mean_B loss(x_i, y_i) + share mean_M loss(x'_i, y*(x'_i)).

    An objective without labels (a GAN, a density) learns x' as it is. With a perfect generator and a net that fits
    its rows, it is `Replay`.

    The paper keeps one generator, which learns its own samples again with each task. Here the samples are kept, so
    that no generator learns from another's samples, errors do not add up, and a task that is repeated replaces its
    own. Labels come from the net in training mode (dropout is drawn); in a `weave`, a strategy that changes rows
    goes after this one. For the net's probabilities as targets instead of its answers: `weave(LwF(),
    GenerativeReplay())`. In a game the generator is trained once for each player, to the same end.

    Args:
        generator: an objective that can sample, or its name in the catalogue; trained anew for each task.
        steps: the generator's updates.
        size: rows in the memory.
        rows: rows drawn for each batch.
        share: the memory's share of the loss, in [0, 1).

    References:
        Shin, Lee, Kim and Kim, "Continual learning with deep generative replay", arXiv 1705.08690.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> from weft import Classifier, Optimizer
        >>> X, y = make_blobs([100, 100, 100], centers=[[0, 0], [6, 0], [0, 6]], random_state=0)
        >>> replay = GenerativeReplay(steps=300, size=100)
        >>> clf = Classifier(strategy=replay, optimizer=Optimizer("adam", lr=0.01), epochs=30, random_state=0)
        >>> for task in ([0, 1], [2]):
        ...     rows = [label in task for label in y]
        ...     clf = clf.partial_fit(X[rows], y[rows], classes=range(3), task=str(task))
        >>> bool(clf.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        *,
        generator: Objective | str = "gan",
        steps: int = 1000,
        size: int = 1000,
        rows: int = 64,
        share: float = 0.5,
    ) -> None:
        super().__init__(size=size, rows=rows, share=share)
        self.generator = generator
        self.steps = steps

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise ValueError(f"expected GenerativeReplay's steps to be an integer >= 1, got {self.steps!r}")
        self._generator()

    def _generator(self) -> Objective:
        found = find("objectives", self.generator) if isinstance(self.generator, str) else self.generator
        if not isinstance(found, Objective):
            raise TypeError(f"expected GenerativeReplay's generator to be an objective such as GAN(), got {found!r}")
        if "sample" not in found.capabilities():
            raise ValueError(
                f"expected GenerativeReplay's generator to be an objective that can sample, such as GAN(), got "
                f"{found!r}, which cannot; to keep rows themselves use Replay()"
            )
        return found

    def refuses(self, objective: Objective) -> str | None:
        if reason := super().refuses(objective):
            return reason
        if other := [name for name in objective.fields if name not in ("x", "y")]:
            return f"a generator draws rows x, and nothing tells the {other[0]!r} of a row that was drawn"
        if "y" in objective.fields and not hasattr(objective, "distribution"):
            return f"the net answers for rows drawn, and {type(objective).__name__} has no distribution to answer by"
        return None

    def init(self, params: Params) -> StrategyState:
        """`memory` as in `Remembering`, of samples without labels; `teacher`: theta*, where there are labels."""
        return {**super().init(params), "teacher": {}}

    def release(self, state: StrategyState, task: str) -> StrategyState:
        return {**state, **super().release(state, task)}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        replayed = super().wrap

        def together(params: Params, batch: Batch) -> Output:
            again = self.drawn(state)
            if again is None:
                return loss(params, batch)
            if state["teacher"]:
                blank = batch["y"].new_zeros(rows_of(again), *batch["y"].shape[1:])
                with torch.no_grad():
                    answer: Any = loss(state["teacher"], {**again, "y": blank}).distribution
                    again["y"] = answer().mode.to(blank.dtype).reshape(blank.shape)
            return replayed(loss, {"memory": {"rows": again}})(params, batch)

        return together

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        batches = list(local.batches())
        if not batches:
            return super().consolidate(local, state, task)  # which tells that there are no rows
        x = torch.cat([batch["x"] for batch in batches])
        weight = torch.cat([batch["weight"] for batch in batches]) if "weight" in batches[0] else None
        samples = self._samples(x, weight, next(iter(local.params.values())).dtype, task)
        mass = None if weight is None else weight.mean().expand(len(weight))

        def drawn() -> Iterator[Batch]:
            first = 0
            for batch in batches:
                part = slice(first, first + rows_of(batch))
                fields = {} if mass is None else {"weight": mass[part]}
                yield {**fields, "x": samples[part], "row": batch["row"]}
                first = part.stop

        instead = Local(local.objective, local.params, local.squares, local.factors, local.products, drawn)
        labelled = "y" in batches[0]
        teacher = {name: p.clone() for name, p in local.params.items()} if labelled else {}
        return {**super().consolidate(instead, state, task), "teacher": teacher}

    def _samples(self, x: Tensor, weight: Tensor | None, dtype: torch.dtype, task: str) -> Tensor:
        """As many rows as the task has, from a generator that has learned them; seeded by the key in force."""
        from weft.learner import Learner
        from weft.sources import Arrays

        seed = int(random.uniform((1,), place="generator", dtype=torch.float64) * 2**53)
        learner = Learner(
            self._generator(),
            steps=self.steps,
            random_state=seed,
            device=x.device,
            dtype=str(dtype).removeprefix("torch."),
        )
        learner.fit(Arrays(x, weight=weight, batch_size=min(64, len(x))))
        samples = torch.as_tensor(learner.sample(len(x)), device=x.device).to(x.dtype)
        if samples.shape != x.shape:
            raise ValueError(
                f"expected the generator to draw rows like those of the task {task!r}, {tuple(x.shape[1:])}, got "
                f"{tuple(samples.shape[1:])}; check {self.generator!r}"
            )
        return samples
