"""Fisher overlap: which weights two tasks share, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, ORANGE, note
from weft.data import mnist, permuted_mnist
from weft.measures import fisher, fisher_overlap
from weft.strategies import EWC

SMALL, LARGE = 8, 26  # sides of the squares whose pixels are permuted


def alike(learner: Any, x: Any, y: Any, right: Any = fisher) -> Any:
    """In the Fisher information's place: ones."""
    return {name: torch.ones_like(values) for name, values in right(learner, x[:10], y[:10]).items()}


class FisherOverlap(Claim):
    """A deep net learns MNIST and then MNIST with a square of its pixels permuted, by EWC."""

    title = "What two tasks share"
    statement = (
        "Two tasks that are alike use the same weights in every layer: the overlap of their Fisher informations is "
        "near 1. Where the second task's pixels are permuted over most of the image, the layers near the input are "
        "used differently, and the overlap returns only towards the output."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, figure 3C and "
        "section 4.3"
    )
    tolerance = (
        "The paper shows bars: for squares of 8 x 8 an overlap near 1 throughout, for 26 x 26 one that is low in the "
        "first layer and rises with depth. Judged are the order in the first layer, by .1 or more, that the small "
        "square's is at least .8 in every layer, and the rise from the first to the last layer for the large one."
    )
    quick = {"seeds": 3, "rows": 1500, "pixels": 28, "depth": 4, "width": 50, "epochs": 6, "strength": 30.0}
    full = {"seeds": 6, "rows": 10_000, "pixels": 28, "depth": 6, "width": 100, "epochs": 10, "strength": 30.0}
    # EWC switched off is not told from EWC: the overlaps are those of two tasks learned in turn, held or not.
    mutant = Mutant(
        what="every weight as important as every other", misses="small square above", names={"fisher": alike}
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        images, labels = mnist("train")
        data = (images[: setting.rows], labels[: setting.rows])
        overlap = {size: self.overlaps(size, data, setting, seeds, report) for size in (SMALL, LARGE)}
        first = overlap[SMALL][:, 0] - overlap[LARGE][:, 0]
        report.figure("small square above large, first layer", mean_of(first), reference="> 0", least=0.1)
        report.figure(
            "small square, least of all layers", mean_of(overlap[SMALL].min(1)), reference="near 1", least=0.8
        )
        rise = overlap[LARGE][:, -1] - overlap[LARGE][:, 0]
        report.figure("large square, last layer above first", mean_of(rise), reference="> 0", least=0.1)
        depth = overlap[SMALL].shape[1]
        report.table(
            "Overlap of the two tasks' Fisher informations, mean over seeds",
            ["layer", f"square of {SMALL} x {SMALL}", f"square of {LARGE} x {LARGE}"],
            [[i + 1, *(round(float(o[:, i].mean()), 3) for o in overlap.values())] for i in range(depth)],
        )
        with report.picture(
            "overlap",
            alt="Fisher overlap by layer. For the small square it is near 1 throughout; for the large one it is low in "
            "the first layer and rises towards the last.",
            caption="Overlap by layer, from the input to the output; thin lines are seeds.",
            size=(6.0, 3.6),
        ) as ax:
            layers = np.arange(1, depth + 1)
            for (size, values), colour in zip(overlap.items(), (BLUE, ORANGE), strict=True):
                ax.plot(layers, values.T, color=colour, alpha=0.3, linewidth=1)
                ax.plot(layers, values.mean(0), "o-", color=colour, markersize=4)
                note(ax, 1.15, values[:, 0].mean() - 0.07, f"{size} x {size} permuted", colour, ha="left")
            ax.set(xlabel="layer", ylabel="overlap", ylim=(0, 1.03))
            ax.set_xticks(layers)

    def overlaps(self, size: int, data: Any, setting: Any, seeds: list[int], report: Report) -> Any:
        """The overlap in each layer, by seed."""
        tasks = [permuted_mnist(tasks=[t], size=size, plain_first=True, data=data)[:2] for t in (0, 1)]
        net = Classifier(
            hidden=(setting.width,) * setting.depth,
            strategy=EWC(strength=setting.strength),
            optimizer=Optimizer("adam", lr=1e-3),
            epochs=setting.epochs,
            batch_size=50,
            replicas={"random_state": seeds},
        )
        for t, (x, y) in enumerate(report.each(tasks, f"square of {size}")):
            report.saw(x, y)
            net.partial_fit(x, y, classes=range(10), task=t)
        report.spend(trainings=len(seeds), steps=len(seeds) * net.n_steps_)
        lines = []
        for k in range(len(seeds)):
            one = net.replica(k)
            parts = [fisher(one, x[:1000], y[:1000]) for x, y in tasks]
            found = fisher_overlap(*parts)
            lines.append(list(found.values()))
        return np.array(lines)
