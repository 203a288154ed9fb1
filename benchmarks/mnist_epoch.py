"""One epoch of MNIST: an MLP 784-256-256-10, batches of 128, Adam.

Weft's turn is a whole `Learner.fit`: reading and checking the data, building, the epoch, its record. The
bound is a loop that does nothing but the arithmetic, over tensors that lie in memory, with the fused Adam.

skorch and Avalanche come twice: as their guides show them, and at their best, that is with the fused Adam
and, for skorch, a data set that hands out whole batches; for Avalanche, without its evaluation plugin. Neither
evaluates or splits off anything, and Avalanche's data carry no task labels, which one task does not need
and which would slow its loader down.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, mlp, mnist, serve, timed

BATCH, RATE, WIDTHS = 128, 1e-3, (784, 256, 256, 10)


def weft() -> Turn:
    from weft import Learner, Optimizer
    from weft.objectives import Classification

    x, y = mnist()
    objective, optimizer = Classification(hidden=WIDTHS[1:-1]), Optimizer("adam", lr=RATE)
    options: dict[str, Any] = {"optimizer": optimizer, "epochs": 1, "batch_size": BATCH, "device": "cpu"}
    return timed(lambda: Learner(objective, random_state=0, **options).fit(x, y))


def bare_loop() -> Turn:
    x, y = mnist()

    def epoch() -> None:
        net = mlp(*WIDTHS)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(net(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return timed(epoch)


class Batches(torch.utils.data.TensorDataset):
    """Hands out the rows of a batch at once, where the usual data set hands them out one by one."""

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, ...]:
        index = torch.tensor(rows)
        return tuple(t[index] for t in self.tensors)


def _whole(batch: Any) -> Any:
    return batch


def _skorch(data: Any, y: Any, **options: Any) -> Turn:
    from skorch import NeuralNetClassifier

    usual: dict[str, Any] = {"criterion": torch.nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": RATE}
    usual |= {"batch_size": BATCH, "max_epochs": 1, "iterator_train__shuffle": True, "train_split": None, "verbose": 0}
    return timed(lambda: NeuralNetClassifier(mlp(*WIDTHS), **usual, **options).fit(data, y))


def skorch() -> Turn:
    x, y = mnist()
    return _skorch(x.numpy(), y.numpy())


def skorch_best() -> Turn:
    return _skorch(Batches(*mnist()), None, optimizer__fused=True, iterator_train__collate_fn=_whole)


def _avalanche(*, fused: bool | None = None, **options: Any) -> Turn:
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils.utils import as_classification_dataset
    from avalanche.training import Naive

    x, y = mnist()
    data: Any = torch.utils.data.TensorDataset(x, y)
    data.targets = y.tolist()
    experience = benchmark_from_datasets(train=[as_classification_dataset(data)]).train_stream[0]

    def epoch() -> None:
        net = mlp(*WIDTHS)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=fused)
        usual: dict[str, Any] = {"criterion": torch.nn.CrossEntropyLoss(), "train_mb_size": BATCH, "train_epochs": 1}
        Naive(model=net, optimizer=optimizer, **usual, **options).train(experience)

    return timed(epoch)


def avalanche() -> Turn:
    _declare_operators()
    return _avalanche()


def avalanche_best() -> Turn:
    _declare_operators()
    from avalanche.training.plugins import EvaluationPlugin

    return _avalanche(fused=True, evaluator=EvaluationPlugin())


def _declare_operators() -> None:
    """Lets Avalanche import torchvision where that was built for another kind of torch and lacks its operators.

    None of them is used here, so that declaring the two it stumbles over is enough.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        global _OPERATORS
        _OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


CONTESTANTS = {
    "weft": weft,
    "bare loop": bare_loop,
    "skorch": skorch,
    "skorch, at its best": skorch_best,
    "Avalanche": avalanche,
    "Avalanche, at its best": avalanche_best,
}
PEERS = {name for name in CONTESTANTS if name.startswith(("skorch", "Avalanche"))}
ROUNDS = 7
COMPARISONS = [
    Comparison("weft", "bare loop", price=1.15),
    Comparison("weft", "skorch", faster=2.0),
    Comparison("weft", "skorch, at its best", faster=2.0),
    Comparison("weft", "Avalanche", faster=3.0),
    Comparison("weft", "Avalanche, at its best", faster=3.0),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
