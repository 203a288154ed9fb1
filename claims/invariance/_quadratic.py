"""Quadratic losses of several environments: what is drawn, how they are descended, and two wells."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Report
from weft.objectives import Regression

RATE, STEPS = 0.1, 22  # SGD's: a direction of curvature 1 is then nine tenths learned


def hessians(seed: int) -> tuple[Any, Any]:
    """Three random Hessians, and the generator that drew them."""
    rng = np.random.default_rng([seed, 0])
    turns = np.linalg.qr(rng.normal(size=(3, 4, 4)))[0]
    return np.einsum("eij,ej,ekj->eik", turns, 10 ** rng.uniform(-0.5, 0.5, (3, 4)), turns), rng


def pair(ratio: Any) -> Any:
    """Curvatures of two environments along each direction, of arithmetic mean 1 and with the ratios given."""
    return np.stack([2 / (1 + ratio), 2 * ratio / (1 + ratio)])


def rows(curved: Any) -> tuple[Any, Any, Any]:
    """Rows along the axes, such that the loss of an environment is sum_i h_i (w_i - 1)^2 / 2."""
    axes = np.concatenate([np.eye(curved.shape[1]), -np.eye(curved.shape[1])])
    x = np.concatenate([np.sqrt(len(h) * h) * axes for h in curved])
    return x, x.sum(1), np.repeat(np.arange(len(curved)), len(axes))


def descend(curved: Any, strategy: Any, rule: str, steps: int, report: Report) -> tuple[Any, Learner]:
    """The weights from step to step, beginning at zero, and the learner."""
    x, y, environment = rows(curved)
    net = torch.nn.Linear(x.shape[1], 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    seen = [np.zeros(x.shape[1])]
    learner = Learner(
        Regression(net),
        strategy=strategy,
        optimizer=Optimizer(rule, lr=RATE if rule == "sgd" else RATE / 2),
        steps=steps,
        batch_size=None,
        init="keep",
        dtype="float64",
        device="cpu",
        callbacks=[lambda _: seen.append(learner.predict(np.eye(x.shape[1])))],
    )
    report.fit(learner, x, y, environment=environment, what=f"{rule} by {type(strategy).__name__}")
    return np.stack(seen), learner


def combined(strategy: Any, g: Any) -> Any:
    """What a strategy makes of gradients, environments on the leading axis and all of one weight."""
    weights = torch.full((len(g),), 1 / len(g), dtype=g.dtype)
    return strategy.combine({"": g}, weights, weights, {})[0][""]


def wells(strategy: Any, starts: int, seed: int) -> Any:
    """Where descent on -log(exp(-q) + exp(-q_e)) ends: 1 in the well q that environments share, 2 in that of q_e, or 0.

    The wells are as deep and as steep as each other for the arithmetic mean; q_e is curved as in the paper's figure 3.
    """
    own = torch.tensor([[[0.05, 1.0]], [[1.0, 0.05]]], dtype=torch.float64)
    at = torch.as_tensor(np.random.default_rng(seed).uniform(-4, 4, (starts, 2)))
    for _ in range(2_000):
        shared = 0.525 * (at + 2).square().sum(1) / 2
        first = torch.sigmoid((own * (at - 2) ** 2).sum(2) / 2 - shared)[:, :, None]  # the part of q's well
        at = at - 0.3 * combined(strategy, first * 0.525 * (at + 2) + (1 - first) * own * (at - 2))
    return np.where((at + 2).norm(dim=1) < 0.5, 1, np.where((at - 2).norm(dim=1) < 0.5, 2, 0))
