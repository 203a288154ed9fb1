"""Coloured MNIST as the authors of IRM train on it: the data, the net, and where L2 acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from weft import Learner, Optimizer
from weft.core.strategy import Strategy
from weft.core.weave import weave
from weft.data import coloured_mnist, mnist
from weft.objectives import DANN, Classification

DRAW = 0  # of the data, the same for all restarts


def data(setting: Any, *, grey: bool = False) -> list[Any]:
    """For training and for the test: images (at the quick scale few and small), labels, environments."""
    images, digits = mnist("train")
    some, side, size = (images[: setting.images], digits[: setting.images]), setting.pixels, 14 // setting.pixels
    parts = [coloured_mnist(part, data=some, grey=grey, random_state=DRAW) for part in ("train", "test")]
    return [(x.reshape(len(x), -1, side, size, side, size).mean((3, 5)), y, e) for x, y, e in parts]


class Decay(Strategy):
    """L2 as a part of the loss, so that IRM's division of the loss by lambda acts on it, as in the authors' code."""

    def __init__(self, *, strength: float = 0.0) -> None:
        self.strength = strength

    def wrap(self, loss: Any, state: Any) -> Any:
        def decayed(params: Any, batch: Any) -> Any:
            output = loss(params, batch)
            size = torch.stack([p.square().sum() for p in params.values()]).sum()
            return replace(output, losses=output.losses + self.strength * size)

        return decayed


class Xavier(nn.Linear):
    """A linear layer that starts as in the authors' code."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


class Logit(Xavier):
    """The authors' head: one logit for the second class beside 0 for the first. A head with two outputs learns faster
    at the same rate, and pays half the L2 for the same answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(super().forward(x), (1, 0))


def make(name: str, strategy: Strategy, setting: Any, replicas: Any) -> Learner:
    """The authors' net of two hidden layers, trained on all rows at each step (MMD's kernel allows some only).

    Args:
        name: of the method.
        strategy: its own.
        setting: width, l2, rate and steps.
        replicas: the learner's.
    """
    late = name in ("AND-mask", "SAND-mask", "geometric mean", "DANN")  # L2 acts after the mask

    def net(inputs: int, outputs: int) -> nn.Sequential:
        hidden = [Xavier(inputs, setting.width), nn.ReLU(), Xavier(setting.width, setting.width), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, Logit(setting.width, outputs - 1))

    return Learner(
        DANN(Classification(net)) if name == "DANN" else Classification(net),
        strategy=weave(Decay(strength=0.0 if late else setting.l2), strategy),
        optimizer=Optimizer("adam", lr=setting.rate, weight_decay=2 * setting.l2 if late else 0.0),
        steps=setting.steps,
        batch_size=512 if name == "MMD" else None,
        memory=2**35,
        replicas=replicas,
    )
