"""Ten tasks of permuted MNIST with EWC, 20 epochs each: an MLP 784-400-400-10, batches of 128, SGD with momentum.

Twenty epochs are the paper's; so that a turn takes a minute and not twenty, each task has 3,000 images, a twentieth.
Training steps and Fisher information are then in the same proportion as in the whole run. With EPOCHS=1 ROWS=60000 in
the environment the steps are as many, and the Fisher information counts twenty times as much.

Weft's turn is `partial_fit` task after task: reading and checking the data, training, and at each task's end the
exact Fisher information, in expectation over all ten labels, of all of its images. Avalanche's EWC squares the mean
gradient of each batch instead, at the data's labels: not the Fisher information, and less work. In millions of
operations per image a training step takes 2.9, Avalanche's pass as many, and the exact one 5.2: forward 1, ten
labels backward to the layers' outputs 3.3, and 1 for the products. With the data's labels (`empirical`, squares of
single images' gradients all the same) it takes 2.2. `per_task` is beside Avalanche's `separate`, `latest` beside
its `online` with decay 1, which keep as much.

Avalanche comes as its guide shows it, from its own `PermutedMNIST` and with its usual evaluator, and at its best:
images permuted beforehand, as tensors in memory, without task labels, workers or evaluation, and with the fused SGD.
Nobody evaluates while the clock runs, and making the permuted images of a task counts for nobody but in the guide's
way, which permutes each image when it is read.

The bounds do nothing but the arithmetic, on this net only: `plain steps` are the training steps without any EWC;
`bare loop` is EWC too. There all tasks' penalties are one, since their gradients sum up to

    strength (sum_t F_t theta - sum_t F_t theta_t),

and the Fisher information goes backward by hand through three layers.

TASKS, ROWS, EPOCHS and BATCH in the environment change the sizes, for a try. With each turn the accuracy is written
down: the mean over the tasks, after the last, on 1,000 of the images trained on (but in the guide's way, whose images
are other ones). It is there to show that everybody learned; the strengths were not chosen.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Comparison, Turn, mlp, mnist, serve
from mnist_epoch import _declare_operators
from torch import Tensor

USUAL = {"TASKS": 10, "ROWS": 3000, "EPOCHS": 20, "BATCH": 128}
TASKS, ROWS, EPOCHS, BATCH = (int(os.environ.get(name, usual)) for name, usual in USUAL.items())
WIDTHS, RATE, MOMENTUM, STRENGTH = (784, 400, 400, 10), 0.01, 0.9, 100.0

Learn = Callable[[int, Tensor, Tensor], Any]
"""Learns a task, given its number, images and labels."""
Answer = Callable[[Tensor], Tensor] | None
"""The classes of images; None where a contestant has other images."""


def _in_sequence(begin: Callable[[], tuple[Learn, Answer]], prepare: Callable[..., Any] | None = None) -> Turn:
    """A turn: all tasks, learned afresh. The first turn, which does not count, is two tasks of 1,000 images.

    Args:
        begin: makes a net and gives what learns a task and what answers.
        prepare: what makes a task's data of its number, images and labels before the clock runs, in place of the
            images and labels themselves.
    """
    x, y = (t[:ROWS] for t in mnist())
    if any(given != usual for given, usual in zip((TASKS, ROWS, EPOCHS, BATCH), USUAL.values(), strict=True)):
        print(f"note: continual with {TASKS} tasks of {len(x)} rows, {EPOCHS} epochs, batch {BATCH}", file=sys.stderr)
    turns = 0

    def turn() -> dict[str, float]:
        nonlocal turns
        turns += 1
        tasks, rows = (2, 1000) if turns == 1 else (TASKS, len(x))
        learn, answer = begin()
        clock = work = 0.0
        for t in range(tasks):
            images, labels = _permuted(x[:rows], t), y[:rows]
            data = (images, labels) if prepare is None else (prepare(t, images, labels), labels)
            started, busy = time.perf_counter(), time.process_time()
            learn(t, *data)
            clock += time.perf_counter() - started
            work += time.process_time() - busy
        measured = {"seconds": clock, "processor": work}
        if answer is not None:
            right = [(answer(_permuted(x[:1000], t)) == y[:1000]).float().mean() for t in range(tasks)]
            measured["accuracy"] = round(float(torch.stack(right).mean()), 4)
        return measured

    return turn


def _permuted(x: Tensor, task: int) -> Tensor:
    return x[:, torch.from_numpy(np.random.default_rng(task).permutation(x.shape[1]))]


def _weft(penalties: str, fisher: str = "true") -> Turn:
    from weft import Learner, Optimizer
    from weft.objectives import Classification
    from weft.strategies import EWC

    def begin() -> tuple[Learn, Answer]:
        optimizer = Optimizer("sgd", lr=RATE, momentum=MOMENTUM)
        options: dict[str, Any] = {"optimizer": optimizer, "epochs": EPOCHS, "batch_size": BATCH, "device": "cpu"}
        strategy = EWC(strength=STRENGTH, fisher=fisher, penalties=penalties)
        learner = Learner(Classification(hidden=WIDTHS[1:-1]), strategy=strategy, random_state=0, **options)

        def learn(task: int, x: Tensor, y: Tensor) -> None:
            learner.partial_fit(x, y, classes=range(10), task=task)

        return learn, lambda x: torch.as_tensor(learner.predict(x))

    return _in_sequence(begin)


def _bare(*, ewc: bool) -> Turn:
    def begin() -> tuple[Learn, Answer]:
        net = mlp(*WIDTHS)
        params = list(net.parameters())
        optimizer = torch.optim.SGD(params, lr=RATE, momentum=MOMENTUM, fused=True)
        precision = [torch.zeros_like(p) for p in params]
        pull = [torch.zeros_like(p) for p in params]  # sum_t F_t theta_t

        def learn(task: int, x: Tensor, y: Tensor) -> None:
            for _ in range(EPOCHS):
                for rows in torch.randperm(len(x)).split(BATCH):
                    loss = F.cross_entropy(net(x[rows]), y[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    if ewc and task:
                        with torch.no_grad():
                            grads = [p.grad for p in params]
                            torch._foreach_addcmul_(grads, precision, params, value=STRENGTH)
                            torch._foreach_add_(grads, pull, alpha=-STRENGTH)
                    optimizer.step()
            if ewc:
                with torch.no_grad():
                    fisher = _fisher(params, x)
                    torch._foreach_add_(precision, fisher)
                    torch._foreach_addcmul_(pull, fisher, params)

        return learn, lambda x: net(x).argmax(-1)

    return _in_sequence(begin)


def _fisher(params: list[Tensor], x: Tensor) -> list[Tensor]:
    """The diagonal Fisher information of the net, a mean over the rows: every label's gradients, layer by layer."""
    weights, biases = params[::2], params[1::2]
    total = [torch.zeros_like(p) for p in params]
    for part in x.split(1024):
        inputs = [part]
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(torch.addmm(bias, inputs[-1], weight.T).relu_())
        p = torch.addmm(biases[-1], inputs[-1], weights[-1].T).softmax(-1)
        energies = [torch.zeros(len(part), len(bias)) for bias in biases]
        for label in range(p.shape[1]):
            g = -p
            g[:, label] += 1.0
            for layer in reversed(range(len(weights))):
                energies[layer].addcmul_(p[:, label, None], g.square())
                if layer:
                    g = (g @ weights[layer]).mul_(inputs[layer] > 0)
        for layer, energy in enumerate(energies):
            total[2 * layer].addmm_(energy.T, inputs[layer].square())
            total[2 * layer + 1].add_(energy.sum(0))
    return [sum_ / len(x) for sum_ in total]


def _avalanche(
    prepare: Callable[..., Any], mode: str, *, ours: bool, fused: bool | None = None, **options: Any
) -> Turn:
    from avalanche.training import EWC

    def begin() -> tuple[Learn, Answer]:
        net = torch.nn.Sequential(torch.nn.Flatten(), mlp(*WIDTHS))
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=fused)
        usual: dict[str, Any] = {"criterion": torch.nn.CrossEntropyLoss(), "train_mb_size": BATCH}
        usual |= {"train_epochs": EPOCHS, "ewc_lambda": STRENGTH, "mode": mode}
        if mode == "online":
            usual["decay_factor"] = 1.0
        strategy = EWC(model=net, optimizer=optimizer, **usual, **options)
        answer = (lambda x: net(x).argmax(-1)) if ours else None
        return lambda task, experience, _: strategy.train(experience), answer

    return _in_sequence(begin, prepare)


def _guide(mode: str) -> Turn:
    """Avalanche as its guide shows it, with its own images permuted in its own order."""
    _declare_operators()
    from avalanche.benchmarks.classic import PermutedMNIST

    streams: dict[int, Any] = {}

    def prepare(task: int, images: Tensor, labels: Tensor) -> Any:
        if len(images) not in streams:
            x, y = (t[: len(images)] for t in mnist())
            with tempfile.TemporaryDirectory() as folder:
                _write_idx(Path(folder) / "MNIST" / "raw", x, y)
                streams[len(images)] = PermutedMNIST(TASKS, seed=0, dataset_root=folder).train_stream
        return streams[len(images)][task]

    return _avalanche(prepare, mode, ours=False)


def _write_idx(folder: Path, x: Tensor, y: Tensor) -> None:
    """The files that torchvision reads; those for testing, which nobody uses here, are the same."""
    folder.mkdir(parents=True)
    images, labels = (x * 255).round().to(torch.uint8).numpy(), y.to(torch.uint8).numpy()
    for part in ("train", "t10k"):
        shape = np.array([0x803, len(x), 28, 28], ">i4").tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(shape + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            np.array([0x801, len(y)], ">i4").tobytes() + labels.tobytes()
        )


def _at_its_best(mode: str) -> Turn:
    _declare_operators()
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin

    def prepare(task: int, images: Tensor, labels: Tensor) -> Any:
        data: Any = torch.utils.data.TensorDataset(images, labels)
        data.targets = labels.tolist()
        return benchmark_from_datasets(train=[as_classification_dataset(data)]).train_stream[0]

    return _avalanche(prepare, mode, ours=True, fused=True, evaluator=EvaluationPlugin())


CONTESTANTS = {
    "weft, per_task": lambda: _weft("per_task"),
    "weft, latest": lambda: _weft("latest"),
    "weft, per_task, empirical": lambda: _weft("per_task", "empirical"),
    "weft, latest, empirical": lambda: _weft("latest", "empirical"),
    "plain steps": lambda: _bare(ewc=False),
    "bare loop": lambda: _bare(ewc=True),
    "Avalanche, separate": lambda: _guide("separate"),
    "Avalanche, separate, at its best": lambda: _at_its_best("separate"),
    "Avalanche, online": lambda: _guide("online"),
    "Avalanche, online, at its best": lambda: _at_its_best("online"),
}
PEERS = {name for name in CONTESTANTS if name.startswith("Avalanche")}
ROUNDS = 2
COMPARISONS = [
    Comparison("weft, per_task", "plain steps"),
    Comparison("weft, per_task", "bare loop"),
    Comparison("weft, per_task", "Avalanche, separate", faster=3.0),
    Comparison("weft, per_task", "Avalanche, separate, at its best", faster=3.0),
    Comparison("weft, latest", "plain steps"),
    Comparison("weft, latest", "bare loop"),
    Comparison("weft, latest", "Avalanche, online", faster=3.0),
    Comparison("weft, latest", "Avalanche, online, at its best", faster=3.0),
    Comparison("weft, per_task, empirical", "Avalanche, separate, at its best"),
    Comparison("weft, latest, empirical", "Avalanche, online, at its best"),
    Comparison("bare loop", "Avalanche, online, at its best"),
    Comparison("plain steps", "Avalanche, online, at its best"),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
