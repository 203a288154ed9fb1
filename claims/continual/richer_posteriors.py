"""Posteriors richer than a diagonal: what they add, and how far each is from learning all tasks at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from _permuted import QUICK, SHORT, Tasks, learner, tuned

from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.measures import average_accuracy, task_scores
from weft.strategies import ERM, Laplace

COLOURS = {"diagonal": ORANGE, "low rank": BLUE, "Kronecker": GREEN}


class Uncorrelated(Laplace):
    """A mutant: Kronecker factors of which the diagonals alone are kept."""

    def measure(self, local: Any) -> Any:
        precision, rows = super().measure(local)
        layers = precision.get("layers", {}) if self.curvature == "kronecker" else {}
        for factors in layers.values():
            factors |= {side: torch.diag(torch.diagonal(factor)) for side, factor in factors.items()}
        return precision, rows


class RicherPosteriors(Claim):
    """One strategy, three forms of its curvature, at equal epochs, net and choice of strength."""

    title = "Posteriors richer than a diagonal"
    statement = (
        "EWC's posterior has no correlations. With a Kronecker-factored one, at equal settings, more of the earlier "
        "tasks is kept and more of the new ones learned: the distance to learning all tasks at once becomes smaller."
    )
    reference = (
        "Ritter, Botev and Barber, “Online structured Laplace approximations for overcoming catastrophic forgetting”, "
        "arXiv 1805.07810, section 4.1: on permuted MNIST Kronecker factors stay above the diagonal"
    )
    tolerance = (
        "The paper's figure has 50 tasks and shows the order. Judged: the Kronecker-factored posterior is at least "
        "half a point above the diagonal one, in the mean over seeds. The anchor is the latest, the "
        "precision summed; strengths are chosen for each on rows held out. Full: ten tasks, five epochs each. The "
        "low-rank one is told, and run at the quick scale only: for nets of this size it costs the most."
    )
    quick = {"seeds": 6, **QUICK, "strengths": [30.0, 100.0], "richer": [1.0, 3.0], "rank": 2}
    full = {"seeds": 3, **SHORT, "strengths": [3.0, 10.0, 30.0, 100.0], "richer": [3.0, 10.0, 30.0], "rank": 0}
    mutant = Mutant(
        what="Kronecker factors without their correlations",
        misses="Kronecker above diagonal",
        names={"Laplace": Uncorrelated},
        setting={"seeds": 12, "rank": 0},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        data = Tasks(setting)
        forms: dict[str, Any] = {
            "diagonal": (Laplace(curvature="diagonal"), setting.strengths),
            "Kronecker": (Laplace(curvature="kronecker"), setting.richer),
        }
        if setting.rank:
            forms["low rank"] = (Laplace(curvature="low_rank", rank=setting.rank), setting.richer)
        report.plan(2 * len(forms) + 1)
        found, chosen = {}, {}
        some = {"low rank": seeds[:2]}  # told only
        works = {
            f"{name}, all": partial(tuned, data, *form, setting, some.get(name, seeds), report, name)
            for name, form in forms.items()
        }
        for name, results in zip(forms, report.parts(works).values(), strict=True):
            found[name], _, chosen[name] = results
        joint = at_once(data, setting, seeds, report)
        average = {name: 100 * average_accuracy(matrix) for name, matrix in found.items()}
        gain = mean_of(average["Kronecker"] - average["diagonal"])
        report.figure("Kronecker above diagonal", gain, unit="points", reference="> 0", least=0.5)
        for name, a in average.items():
            report.figure(f"{name} below all tasks at once", mean_of(joint[: len(a)] - a), unit="points")
        if not setting.rank:
            report.not_run("low rank below all tasks at once", unit="points")
        report.table(
            f"Average accuracy in % after {setting.tasks} tasks",
            ["posterior", "strength chosen", "average", "first task", "last task"],
            [
                [name, chosen[name], *(round(100 * float(v.mean()), 2) for v in (m[:, -1], m[:, -1, 0], m[:, -1, -1]))]
                for name, m in found.items()
            ]
            + [["all tasks at once", None, round(float(joint.mean()), 2), None, None]],
        )
        with report.picture(
            "richer",
            alt="Average accuracy so far by the number of tasks: the Kronecker-factored posterior stays above the "
            "diagonal one, and learning all tasks at once above both.",
            caption="Average accuracy over the tasks so far (means over seeds, thin lines are seeds).",
            size=(6.4, 3.8),
        ) as ax:
            count = np.arange(1, setting.tasks + 1)
            for name, matrix in found.items():
                so_far = 100 * np.stack([matrix[:, i, : i + 1].mean(1) for i in range(setting.tasks)])
                ax.plot(count, so_far, color=COLOURS[name], alpha=0.3, linewidth=1)
                ax.plot(count, so_far.mean(1), "o-", color=COLOURS[name], markersize=4)
                note(ax, count[-1], so_far[-1].mean(), f"  {name}", COLOURS[name], ha="left")
            ax.axhline(float(joint.mean()), color=INK, linewidth=1.0, linestyle="--")
            note(ax, 1, float(joint.mean()) + 0.2, "all at once", INK, ha="left")
            ax.set(xlabel="tasks", ylabel="average accuracy in %", xlim=(0.8, 1.25 * setting.tasks))


def at_once(data: Tasks, setting: Any, seeds: list[int], report: Report) -> Any:
    """The average accuracy in % of a net that learns all tasks at once, by seed."""

    def learned() -> Any:
        x, y, _ = data.rows("train", list(range(setting.tasks)))
        net = learner(ERM(), setting, replicas={"random_state": seeds})
        report.fit(net, x, y, what="all tasks at once")
        measured = data.rows("test", list(range(setting.tasks)))
        return 100 * task_scores(net, *measured[:2], task=measured[2]).mean(1)

    return report.part("all tasks at once", learned)
