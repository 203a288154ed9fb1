"""What the claims on permuted MNIST share: the tasks' rows, the net, and learning task after task."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from weft import Classifier, Optimizer
from weft.bench.claims import Report
from weft.data import mnist, permuted_mnist
from weft.measures import average_accuracy, task_scores
from weft.nets import MLP
from weft.strategies import EWC

# Dropout: of pixels, and of hidden units.
QUICK = {
    "tasks": 3,
    "rows": 2000,
    "test": 500,
    "pixels": 14,
    "width": 50,
    "dropout": (0.0, 0.0),
    "epochs": 4,
    "batch": 100,
    "rate": 0.05,
}
FULL = {
    "tasks": 10,
    "rows": 55_000,
    "test": 10_000,
    "pixels": 28,
    "width": 400,
    "dropout": (0.0, 0.0),
    "epochs": 20,
    "batch": 256,
    "rate": 0.01,
}
SHORT = {**FULL, "epochs": 5}  # where many kinds are compared
DRAW = 1  # of the permutations
CHOOSING = 1000  # the seed of what is trained to choose by


class Forgetful(EWC):
    """A mutant: EWC whose Fisher information is nought."""

    def measure(self, local: Any) -> Any:
        squares, rows = super().measure(local)
        return {name: 0 * values for name, values in squares.items()}, rows


class Tasks:
    """The tasks' rows, made when asked for: training, rows held out of it to choose by, and test."""

    def __init__(self, setting: Any) -> None:
        images, labels = mnist("train")
        self.train = self.small((images[: setting.rows], labels[: setting.rows]), setting)
        self.held = self.small((images[-setting.test // 2 :], labels[-setting.test // 2 :]), setting)
        images, labels = mnist("test")
        self.test = self.small((images[: setting.test], labels[: setting.test]), setting)

    def small(self, rows: Any, setting: Any) -> Any:
        """At the quick scale means over squares of pixels."""
        images = np.asarray(rows[0]).reshape(len(rows[1]), 28, 28)
        size = 28 // setting.pixels
        return images.reshape(-1, setting.pixels, size, setting.pixels, size).mean((2, 4)), rows[1]

    def rows(self, part: str, tasks: list[int], some: int | None = None) -> tuple[Any, Any, Any]:
        """X, y and task of some tasks, of `train`, `held` or `test`."""
        images, labels = getattr(self, part)
        return permuted_mnist(tasks=tasks, data=(images[:some], labels[:some]), random_state=DRAW)


def learner(strategy: Any, setting: Any, **settings: Any) -> Classifier:
    """Two hidden layers, by SGD with momentum: an adaptive optimizer would take the penalty for noise of the loss."""
    visible, hidden = setting.dropout

    def net(inputs: int, outputs: int) -> nn.Module:
        layers = MLP(inputs, outputs, hidden=(setting.width, setting.width), dropout=hidden)
        return nn.Sequential(nn.Dropout(visible), layers) if visible else layers

    return Classifier(
        net,
        strategy=strategy,
        optimizer=Optimizer("sgd", lr=setting.rate, momentum=0.9),
        epochs=setting.epochs,
        batch_size=setting.batch,
        **settings,
    )


def in_sequence(
    data: Tasks, part: str, strategy: Any, setting: Any, sweep: dict[str, Any], report: Report, what: str
) -> tuple[Any, Any]:
    """Accuracies by replica, after each task and on each; and of three tasks, where there are no more, by epoch."""
    net = learner(strategy, setting, replicas=sweep)
    shown = data.rows(part, list(range(setting.tasks)), some=1000)
    measured = data.rows(part, list(range(setting.tasks)))
    curve: list[Any] = []

    def look(record: dict[str, Any]) -> None:
        curve.append(task_scores(net, *shown[:2], task=shown[2]))

    net.set_params(callbacks=[look] if part == "test" and setting.tasks == 3 else [])

    def learned() -> tuple[Any, Any]:
        lines = []
        for t in report.each(range(setting.tasks), what):
            x, y, _ = data.rows("train", [t])
            report.saw(x, y)
            net.partial_fit(x, y, classes=range(10), task=t)
            lines.append(task_scores(net, *measured[:2], task=measured[2]))
        count = len(sweep["random_state"])
        report.spend(trainings=count, steps=net.n_steps_ * count)
        return np.stack(lines, axis=1), np.array(curve)

    return report.part(what, learned)  # type: ignore[no-any-return]


def tuned(
    data: Tasks, strategy: Any, strengths: Any, setting: Any, seeds: list[int], report: Report, name: str
) -> tuple[Any, Any, float | None]:
    """A method at the strength that does best on rows held out: accuracies, curves, and that strength."""
    best = None
    if len(strengths) > 1:
        sweep = {"strategy__strength": list(strengths), "random_state": [CHOOSING] * len(strengths)}
        matrix, _ = in_sequence(data, "held", strategy, setting, sweep, report, f"{name}, choosing")
        average = np.nan_to_num(average_accuracy(matrix), nan=-1.0)  # a strength too great for the rate diverges
        best = strengths[int(np.argmax(average))]
        strategy.set_params(strength=best)
    matrix, curve = in_sequence(data, "test", strategy, setting, {"random_state": seeds}, report, name)
    return matrix, curve, best
