"""Generative replay: samples of earlier tasks' rows are learned again, with the old net's answers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.core import random
from weft.core.catalogue import find
from weft.core.objective import Objective
from weft.core.source import Batch
from weft.core.strategy import Local, StrategyState
from weft.strategies.continual.replay import Replay

__all__ = ["GenerativeReplay"]


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
        generator: an objective that can sample, or its name in the catalogue, trained anew for each task; None for
            the objective itself where it can sample, as it is at the task's end, else a GAN.
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
        generator: Objective | str | None = None,
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
        given = "gan" if self.generator is None else self.generator
        found = find("objectives", given) if isinstance(given, str) else given
        if not isinstance(found, Objective):
            raise TypeError(f"expected GenerativeReplay's generator to be an objective such as GAN(), got {found!r}")
        if "sample" not in found.capabilities():
            raise ValueError(
                f"expected GenerativeReplay's generator to be an objective that can sample, such as GAN(), got "
                f"{found!r}, which cannot; to keep rows themselves use Replay()"
            )
        return found

    def _itself(self, objective: Objective) -> bool:
        """Whether the rows are drawn from the objective that is trained."""
        return self.generator is None and "sample" in objective.capabilities()

    def refuses(self, objective: Objective) -> str | None:
        if reason := super().refuses(objective):
            return reason
        if other := [name for name in objective.fields if name not in ("x", "y")]:
            return f"a generator draws rows x, and nothing tells the {other[0]!r} of a row that was drawn"
        if "y" in objective.fields and "predict" not in objective.capabilities():
            return f"the net answers for rows drawn, and {type(objective).__name__} does not predict"
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
        drawn: Batch = {"x": samples, "row": row}
        if weight is not None:
            drawn["weight"] = weight.mean().expand(len(x))
        if "y" in batches[0]:
            finish = local.objective.capabilities()["predict"].finish
            parts = [local.ask("predict", p, rows=r) for p, r in zip(samples.split(1024), row.split(1024), strict=True)]
            answer = torch.cat(parts)
            drawn["y"] = (finish(answer) if finish else answer).to(batches[0]["y"].dtype)
        instead = replace(local, batches=lambda: [drawn])
        # The objective itself has learned all tasks so far: its samples replace the memory, and are of no one task.
        return super().consolidate(instead, self.init({}) if own else state, "" if own else task)

    def _samples(self, x: Tensor, weight: Tensor | None, dtype: torch.dtype, task: str) -> Tensor:
        """As many rows as the task has, from a generator that has learned them; seeded by the key in force."""
        from weft.learner.estimator import Learner
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
