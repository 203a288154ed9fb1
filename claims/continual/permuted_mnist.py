"""Elastic weight consolidation on permuted MNIST: tasks in sequence, remembered."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from _permuted import FULL, QUICK, Forgetful, Tasks, tuned

from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.measures import average_accuracy, forgetting
from weft.strategies import ERM, EWC, L2Anchor

COLOURS = {"plain": ORANGE, "L2": BLUE, "EWC": GREEN}


class Learned(NamedTuple):
    """What came of some tasks, by method."""

    matrix: dict[str, Any]
    curves: dict[str, Any]
    chosen: dict[str, float | None]

    @property
    def one(self) -> Any:
        """The accuracy of a net that has learned one task only, by seed."""
        return self.matrix["plain"][:, 0, 0]


class PermutedMNIST(Claim):
    """Every method learns the tasks one after another; strengths are chosen on rows held out of training."""

    title = "Tasks in sequence, remembered"
    statement = (
        "A net that learns permutations of MNIST one after another forgets the first ones by plain training, and less "
        "where all weights are held alike (L2, as strong as suits it best); holding each weight as much as the Fisher "
        "information of earlier tasks says (EWC) keeps the most: after ten tasks 94 % on average."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, section 2.1 "
        "and figure 3"
    )
    tolerance = (
        "The paper shows curves: with EWC ten tasks stay near what a net reaches on one, by plain training they fall. "
        "Here, at the full setting, EWC's average after ten tasks must be 94 % or more (a known library reaches 83 %); "
        "after three it must be 1 point above plain training and L2, after ten above plain training. Ten tasks are "
        "learned, as in the paper, without L2 and with dropout of a fifth of the pixels and half of the hidden units; "
        "there are 2 x 400 of them (there up to 2,000). It was taken after runs without it had kept less on rows "
        "held out. Quick: three tasks of 2,000 images of 14 x 14 pixels, where EWC must be 4 points above both."
    )
    quick = {"seeds": 2, **QUICK, "strengths": [30.0, 100.0], "anchors": [0.01, 0.03], "least": None, "above": 4.0}
    quick |= {"stages": ({"methods": ("plain", "L2", "EWC")},)}
    full = {"seeds": 3, **FULL, "strengths": [10.0, 30.0, 100.0], "anchors": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]}
    full |= {
        "least": 94.0,
        "above": 1.0,
        "stages": (
            {"tasks": 3, "methods": ("plain", "L2", "EWC")},
            {"methods": ("plain", "EWC"), "dropout": (0.2, 0.5), "strengths": [30.0, 100.0]},
        ),
    }
    mutant = Mutant(what="EWC that measures nothing", misses="EWC above plain", names={"EWC": Forgetful})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        stages = [SimpleNamespace(**{**vars(setting), **own}) for own in setting.stages]
        report.plan(sum(2 * len(stage.methods) - 1 for stage in stages))
        data = Tasks(setting)
        results = [self.learned(data, stage, seeds, report) for stage in stages]
        for stage, found in zip(stages, results, strict=True):
            self.tell(stage, found, report)
        if setting.least is None:
            report.not_run("10 tasks: EWC's average accuracy", reference="94", unit="%")
        self.draw(results[0], results[-1], setting, report)

    def learned(self, data: Tasks, setting: Any, seeds: list[int], report: Report) -> Learned:
        """All methods on a number of tasks."""
        known = {"plain": (ERM(), []), "L2": (L2Anchor(), setting.anchors), "EWC": (EWC(), setting.strengths)}
        found = Learned({}, {}, {})
        whole = {name: f"{setting.tasks} tasks, {name}" for name in setting.methods}
        works = {
            f"{what}, all": partial(tuned, data, *known[name], setting, seeds, report, what)
            for name, what in whole.items()
        }
        for name, results in zip(whole, report.parts(works).values(), strict=True):
            found.matrix[name], found.curves[name], found.chosen[name] = results
        return found

    def tell(self, setting: Any, found: Learned, report: Report) -> None:
        """Figures and a table of a number of tasks; the paper's figure is that of ten."""
        average = {name: 100 * average_accuracy(matrix) for name, matrix in found.matrix.items()}
        bound = {"least": setting.least, "reference": "94"} if setting.tasks == 10 else {}
        after = f"{setting.tasks} tasks: "
        report.figure(f"{after}EWC's average accuracy", mean_of(average["EWC"]), unit="%", **bound)
        for name in setting.methods[:-1]:
            apart = mean_of(average["EWC"] - average[name])
            report.figure(f"{after}EWC above {name}", apart, unit="points", reference="> 0", least=setting.above)
        report.figure(f"{after}EWC below one task alone", mean_of(100 * found.one - average["EWC"]), unit="points")
        report.table(
            f"After {setting.tasks} tasks, in % (means over seeds)",
            ["method", "strength chosen", "average", "first task", "last task", "forgetting"],
            [
                [
                    name,
                    found.chosen[name],
                    *(round(100 * float(np.mean(v)), 2) for v in (m[:, -1], m[:, -1, 0], m[:, -1, -1], forgetting(m))),
                ]
                for name, m in found.matrix.items()
            ],
        )

    def draw(self, few: Learned, many: Learned, setting: Any, report: Report) -> None:
        """Three tasks while they are learned, and what is kept of many."""
        with report.picture(
            "permuted",
            alt="Left: accuracy on the first task while three are learned; plain training's falls, EWC's stays. "
            "Middle: the third task, which all learn. Right: average accuracy by the number of tasks.",
            caption="Accuracy on the first and on the third task while three are learned one after another, and the "
            "average over all tasks so far as their number grows (means over seeds).",
            panels=3,
            size=(12.0, 3.6),
        ) as (left, centre, right):
            done = np.arange(1, 3 * setting.epochs + 1) / setting.epochs
            for ax, t in ((left, 0), (centre, 2)):
                for name, curve in few.curves.items():
                    ax.plot(done[done > t], 100 * curve[:, :, t].mean(1)[done > t], color=COLOURS[name], label=name)
                for edge in range(t + 1, 3):
                    ax.axvline(edge, color=INK, linewidth=0.8, linestyle=":")
                ax.set(xlabel="tasks learned", ylabel="accuracy in %")
                ax.set_title(f"task {t + 1}")
            left.legend(loc="lower left")
            for name, matrix in many.matrix.items():
                tasks = np.arange(1, matrix.shape[1] + 1)
                so_far = [100 * matrix[:, i - 1, :i].mean() for i in tasks]
                right.plot(tasks, so_far, "o-", color=COLOURS[name], markersize=4)
                note(right, tasks[-1], so_far[-1], f"  {name}", COLOURS[name], ha="left")
            one = 100 * float(many.one.mean())
            right.axhline(one, color=INK, linewidth=1.0, linestyle="--")
            note(right, tasks[-1], one + 1.5, "one task alone", INK, ha="right")
            right.set(xlabel="tasks", xlim=(0.8, 1.2 * tasks[-1]), ylim=(None, one + 4))
            right.set_title("average so far")
