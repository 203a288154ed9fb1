"""Fisher overlap: which weights two tasks share, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, ORANGE, note
from weft.data import mnist, permuted_mnist
from weft.measures import fisher, fisher_overlap
from weft.strategies import EWC

SMALL, LARGE = 8, 26  # sides of the squares whose pixels are permuted


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
    quick = {"seeds": 6, "rows": 1500, "pixels": 28, "depth": 4, "width": 50, "epochs": 4, "strength": 30.0}
    full = {"seeds": 6, "rows": 10_000, "pixels": 28, "depth": 6, "width": 100, "epochs": 10, "strength": 30.0}
    mutant = Mutant(what="EWC switched off", misses="moved by the second", names={"EWC": altered(EWC, strength=0.0)})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        images, labels = mnist("train")
        data = (images[: setting.rows], labels[: setting.rows])
        found = {size: self.learned(size, data, setting, seeds, report) for size in (SMALL, LARGE)}
        overlap = {size: one["overlap"] for size, one in found.items()}
        first = overlap[SMALL][:, 0] - overlap[LARGE][:, 0]
        report.figure("small square above large, first layer", mean_of(first), reference="> 0", least=0.1)
        least = mean_of(overlap[SMALL].min(1))  # no overlap is more than 1
        report.figure("small square, least of all layers", least, reference="near 1", least=0.8, most=1.0)
        rise = overlap[LARGE][:, -1] - overlap[LARGE][:, 0]
        report.figure("large square, last layer above first", mean_of(rise), reference="> 0", least=0.1)
        # Without this the overlaps are the same where EWC is switched off: those of a task and of one forgotten.
        for size, one in found.items():
            name = f"square of {size}: weights that the first task uses, moved by the second, of all weights' move"
            report.figure(name, mean_of(one["moved"]), reference="< 1: they are held", most=0.2)
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

    def learned(self, size: int, data: Any, setting: Any, seeds: list[int], report: Report) -> dict[str, Any]:
        """By seed: the overlap in each layer, and how far the second task moved the weights that the first one uses."""
        tasks = [permuted_mnist(tasks=[t], size=size, plain_first=True, data=data)[:2] for t in (0, 1)]
        net = Classifier(
            hidden=(setting.width,) * setting.depth,
            strategy=EWC(strength=setting.strength),
            optimizer=Optimizer("adam", lr=1e-3),
            epochs=setting.epochs,
            batch_size=50,
            replicas={"random_state": seeds},
        )

        def look(net: Any) -> list[tuple[Any, Any]]:
            each = [net.replica(k) for k in range(len(seeds))]
            return [
                (one.training_.runs[0][1].params, [fisher(one, x[:1000], y[:1000]) for x, y in tasks]) for one in each
            ]

        before, after = report.in_turn(net, tasks, look, f"square of {size}", classes=range(10))
        return {
            "overlap": np.array([list(fisher_overlap(*of).values()) for _, of in after]),
            "moved": [moved(p, q, of[0]) for (p, of), (q, _) in zip(before, after, strict=True)],
        }


def moved(before: Any, after: Any, used: Any) -> float:
    """The mean squared move of the weights, each counted as much as it is used, of that where all count alike."""
    squares = torch.cat([(after[name] - before[name]).square().flatten() for name in used])
    share = torch.cat([values.flatten() for values in used.values()])
    return float((share * squares).sum() / share.sum() / squares.mean())
