"""Which Fisher information: exact, sampled, of the data's labels, or of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _permuted import QUICK, SHORT, Tasks, tuned

from weft.bench.claims import Claim, Report, mean_of
from weft.bench.pictures import GREEN, INK, ORANGE
from weft.core.strategy import Local
from weft.measures import average_accuracy
from weft.strategies import EWC


class BatchSquared(EWC):
    """What some libraries compute in the Fisher information's place: the square of a batch's mean gradient."""

    def measure(self, local: Local) -> tuple[dict[str, Any], float]:
        local.objective.eval()
        squares = {name: torch.zeros_like(p) for name, p in local.params.items()}
        count = 0
        for batch in local.batches():
            leaves = {name: p.detach().requires_grad_() for name, p in local.params.items()}
            loss = torch.func.functional_call(local.objective, leaves, (batch,)).losses.mean()
            for name, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                squares[name] += g.square()
            count += 1
        return squares, count


class Fishers(Claim):
    """EWC with each of them at equal settings, every one with the strength that suits it best."""

    title = "Which Fisher information"
    statement = (
        "EWC asks for the Fisher information: squares of single examples' gradients, averaged over the model's own "
        "labels. Drawing those labels once gives nearly the same; the data's labels give less where the net fits them; "
        "the square of a batch's mean gradient, which some libraries take for it, is another quantity, and remembers "
        "less whatever the strength."
    )
    reference = (
        "van de Ven, “On the computation of the Fisher information in continual learning”, arXiv 2502.11756; "
        "Kirkpatrick et al., arXiv 1612.00796"
    )
    tolerance = (
        "Van de Ven reports that the exact one is best and batches' squares are worst, by amounts that depend on the "
        "problem. Judged is the order: the exact Fisher at least 1 point above batches' squares, and the sampled one "
        "within 3 points of the exact. The data's labels are told. Strengths are chosen for each on rows held out. "
        "Full: five tasks, five epochs each."
    )
    quick = {"seeds": 2, **QUICK, "strengths": [30.0, 300.0], "larger": [300.0, 3000.0]}
    full = {"seeds": 3, **SHORT, "tasks": 5, "strengths": [3.0, 10.0, 30.0], "larger": [10.0, 1e2, 1e3, 1e4]}

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(8)
        data = Tasks(setting)
        kinds = {
            "exact": (EWC(), setting.strengths),
            "sampled": (EWC(fisher="sampled"), setting.strengths),
            "data's labels": (EWC(fisher="empirical"), setting.larger),
            "batches' squares": (BatchSquared(), setting.larger),
        }
        average, chosen = {}, {}
        for name, (strategy, strengths) in kinds.items():
            matrix, _, chosen[name] = tuned(data, strategy, strengths, setting, seeds, report, name)
            average[name] = 100 * average_accuracy(matrix)
        report.figure(
            "exact above batches' squares",
            mean_of(average["exact"] - average["batches' squares"]),
            unit="points",
            least=1.0,
        )
        apart = np.abs(np.mean(average["exact"] - average["sampled"]))
        report.figure("sampled to exact, distance of the means", float(apart), unit="points", most=3.0)
        report.figure(
            "exact above the data's labels", mean_of(average["exact"] - average["data's labels"]), unit="points"
        )
        report.table(
            f"Average accuracy in % after {setting.tasks} tasks",
            ["Fisher information", "strength chosen", "average", *(f"seed {seed}" for seed in seeds)],
            [[name, chosen[name], round(a.mean(), 2), *(round(v, 2) for v in a)] for name, a in average.items()],
        )
        with report.picture(
            "fishers",
            alt="Average accuracy of EWC by kind of Fisher information, seeds as dots; batches' squares are lowest.",
            caption="Average accuracy after the last task, each kind at its best strength: seeds and their mean.",
            size=(6.4, 3.0),
        ) as ax:
            for i, (name, a) in enumerate(average.items()):
                colour = {"exact": GREEN, "batches' squares": ORANGE}.get(name, INK)
                ax.plot(a, np.full(len(a), i), "o", color=colour, alpha=0.5)
                ax.plot([a.mean()] * 2, [i - 0.25, i + 0.25], color=colour)
            ax.set_yticks(range(len(average)), list(average))
            ax.set(xlabel="average accuracy in %", ylim=(len(average) - 0.5, -0.5))
