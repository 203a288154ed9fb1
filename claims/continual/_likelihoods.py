"""Two likelihoods that are no classifiers, as a user would write them, and tasks for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, distributions, nn

from weft.core.objective import Objective, Output, capability

NOISE, ROWS, BUMPS = 0.1, 100, 24
DIGITS = (0, 1, 4, 7)  # one task each


class Bits(Objective):
    """An autoregressive density of bits: p(x) = prod_i p(x_i | x_1 ... x_{i-1}), each given by one net.

    The net sees the bits before and which is asked for. As a user would write it: nothing of it is known to EWC.
    """

    likelihood = True
    provides = frozenset({"logits", "distribution"})
    fields = ("x",)

    def __init__(self, *, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = hidden

    def build(self, spec: Any) -> None:
        (d,) = spec["x"].shape
        self.register_buffer("before", torch.ones(d, d).tril(-1))
        self.register_buffer("which", torch.eye(d))
        self.net = nn.Sequential(nn.Linear(2 * d, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def forward(self, batch: Any, player: str = "") -> Output:
        before = batch["x"][:, None, :] * self.before
        logits = self.net(torch.cat([before, self.which.expand_as(before)], -1)).squeeze(-1)
        return Output(-self.distribution(Output(logits, logits=logits)).log_prob(batch["x"]), logits=logits)

    def distribution(self, output: Output) -> distributions.Distribution:
        """Every bit given the data's bits before it."""
        bits = distributions.Bernoulli(logits=output.logits, validate_args=False)
        return distributions.Independent(bits, 1, validate_args=False)

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x), exact."""
        return -self({"x": x}).losses


class Bumps(nn.Module):
    """A number as Gaussian bumps along the axis."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", torch.linspace(-3, 3, BUMPS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-(((x - self.at) / 0.4) ** 2) / 2)


def curve_tasks(seed: int) -> list[Any]:
    """Three intervals: training, validation and test rows (the last without noise)."""
    tasks = []
    for k in range(3):
        random = np.random.default_rng([seed, k])
        x = [random.uniform(2 * k - 3, 2 * k - 1, (rows, 1)) for rows in (ROWS, ROWS, 4 * ROWS)]
        noise = (NOISE, NOISE, 0.0)
        tasks.append([(a, truth(a) + s * random.normal(size=len(a))) for a, s in zip(x, noise, strict=True)])
    return tasks


def truth(x: Any) -> Any:
    """The curve."""
    return np.sin(2 * x[:, 0]) + 0.3 * x[:, 0]


def digit_tasks(seed: int) -> list[Any]:
    """scikit-learn's digits, each a task, as 4 x 4 bits: half to train, a quarter each for validation and test."""
    x, y = load_digits(return_X_y=True)
    bits = (x.reshape(-1, 4, 2, 4, 2).mean((2, 4)) >= 8).astype(np.float32).reshape(-1, 16)
    tasks = []
    for digit in DIGITS:
        own = np.random.default_rng([seed, digit]).permutation(bits[y == digit])
        cut = [len(own) // 2, 3 * len(own) // 4]
        tasks.append([(part,) for part in np.split(own, cut)])
    return tasks


def squared(learner: Any, x: Any, y: Any) -> float:
    """Mean squared error in units of the noise's variance."""
    return float(np.mean((learner.predict(x) - y) ** 2) / NOISE**2)


def missing(learner: Any, x: Any) -> float:
    """-log p(x), a mean over rows."""
    return -float(np.mean(learner.log_prob(x)))
