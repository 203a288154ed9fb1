"""Linear units that learn task after task, and the Gaussian posteriors of all their rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import multivariate_normal

from weft import Learner, Optimizer
from weft.bench.claims import Report
from weft.objectives import Regression

ROWS, SIZE = 40, 4  # rows of a task, weights
TRUTH = np.array([1.0, -0.5, 0.5, 1.5])
PRIOR = 4.0  # the prior's precision, learned as a first task: rows along the axes, with targets 0


def unit(inputs: int, strategy: Any, optimizer: Optimizer, steps: int) -> Learner:
    """A linear unit that begins at nought and sees all rows of a task at every step, in double precision."""
    net = torch.nn.Linear(inputs, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    exact: dict[str, Any] = {"batch_size": None, "init": "keep", "dtype": "float64", "device": "cpu"}
    return Learner(Regression(net), strategy=strategy, optimizer=optimizer, steps=steps, **exact)


def carried(strategy: Any, tasks: list[Any], steps: int, report: Report) -> list[tuple[Any, Any]]:
    """Mean and precision after each task, learned in sequence by descent."""
    whole = strategy.having(strength=1.0)  # its penalty is d^T precision d / 2

    def look(learner: Learner) -> tuple[Any, Any]:
        run = learner.training_.runs[0][1]
        (name, weight), *_ = run.params.items()

        def penalty(w: Any) -> Any:
            return whole.penalty({name: w.reshape(weight.shape)}, run.strategy[""])

        square = torch.autograd.functional.hessian(penalty, weight.flatten())
        return weight.flatten().numpy().copy(), square.numpy()

    optimizer = Optimizer("sgd", lr=0.25, momentum=0.45)  # for curvatures between .4 and 11
    return report.in_turn(unit(tasks[0][0].shape[1], strategy, optimizer, steps), tasks, look)


def design(random: Any) -> Any:
    """Rows whose columns are correlated: second moments of eigenvalues 2, 1, .6 and .4 along random axes."""
    q, _ = np.linalg.qr(random.normal(size=(ROWS, SIZE)))
    axes, _ = np.linalg.qr(random.normal(size=(SIZE, SIZE)))
    return np.sqrt(ROWS) * q * np.sqrt([2.0, 1.0, 0.6, 0.4]) @ axes.T


def task(seed: int, number: int) -> tuple[Any, Any]:
    """A linear regression with unit noise."""
    random = np.random.default_rng([seed, number])
    x = design(random)
    return x, x @ TRUTH + random.normal(size=ROWS)


def pair(seed: int, tilt: float) -> list[Any]:
    """Two tasks of two weights, with columns orthogonal at tilt 0."""
    tasks = []
    for k in range(2):
        random = np.random.default_rng([seed, k, 7])
        q, _ = np.linalg.qr(random.normal(size=(ROWS, 2)))
        x = q * random.uniform(0.7, 1.3, size=2) * np.sqrt(ROWS) @ np.array([[1.0, tilt], [0.0, 1.0]])
        tasks.append((x, x @ TRUTH[:2] + random.normal(size=ROWS)))
    return tasks


def tied(seed: int, rho: float) -> tuple[list[Any], tuple[Any, Any]]:
    """Two tasks that measure the same units, a unit's two errors correlated by rho; and their joint posterior.

    The likelihood of each task by itself is right; only what ties the tasks together is left out of it.
    """
    random = np.random.default_rng([seed, 99])
    x = [design(random), design(random)]
    shared = [[1.0, rho], [rho, 1.0]]
    noise = np.linalg.cholesky(shared) @ random.normal(size=(2, ROWS))
    tasks = [(a, a @ TRUTH + e) for a, e in zip(x, noise, strict=True)]
    both, values = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
    weights = np.linalg.inv(np.kron(shared, np.eye(ROWS)))
    precision = both.T @ weights @ both
    return tasks, (np.linalg.solve(precision, both.T @ weights @ values), precision)


def prior() -> tuple[Any, Any]:
    """The prior N(0, 1 / PRIOR) as rows."""
    return np.sqrt(PRIOR) * np.eye(SIZE), np.zeros(SIZE)


def joint(tasks: list[Any]) -> tuple[Any, Any]:
    """Mean and precision of the posterior of all rows at once."""
    x, y = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
    return np.linalg.solve(x.T @ x, x.T @ y), x.T @ x


def distance(mean: Any, truth: Any, precision: Any) -> float:
    """In posterior standard deviations, root mean square over the parameters."""
    return float(np.sqrt((mean - truth) @ precision @ (mean - truth) / len(truth)))


def apart(path: list[Any], exact: list[Any]) -> tuple[float, float, float]:
    """The furthest mean (in standard deviations) and precision of any task, and the divergence after the last."""
    off = [distance(mean, *one) for (mean, _), one in zip(path, exact, strict=True)]
    relative = [np.abs(p - q).max() / np.abs(q).max() for (_, p), (_, q) in zip(path, exact, strict=True)]
    (mean, p), (truth, q) = path[-1], exact[-1]
    far = np.trace(np.linalg.solve(q, p)) - len(q) + (mean - truth) @ p @ (mean - truth)
    return max(off), max(relative), (far - np.linalg.slogdet(p)[1] + np.linalg.slogdet(q)[1]) / 2


def normalizers(first: tuple[Any, Any], tasks: list[Any]) -> tuple[Any, Any]:
    """log p(D₂ | θ) + log p(θ | D₁) - c - log p(θ | D₁, D₂) at draws of θ, for c = log p(D₂ | D₁) and c = log p(D₂).

    Args:
        first: mean and precision of p(θ | D₁), as they are carried.
        tasks: the prior, D₁ and D₂.
    """
    mean, precision = joint(tasks[:3])
    x, y = tasks[2]
    thetas = mean + np.random.default_rng(0).normal(size=(50, SIZE))
    likelihood = -((y - thetas @ x.T) ** 2).sum(1) / 2 - len(y) * np.log(2 * np.pi) / 2
    off = likelihood + normal(*first).logpdf(thetas) - normal(mean, precision).logpdf(thetas)
    return off - evidence(tasks[2], *first), off - evidence(tasks[2], np.zeros(SIZE), PRIOR * np.eye(SIZE))


def normal(mean: Any, precision: Any) -> Any:
    """The Gaussian."""
    return multivariate_normal(mean, np.linalg.inv(precision))


def evidence(data: tuple[Any, Any], mean: Any, precision: Any) -> float:
    """log p(D) where θ has this mean and precision."""
    x, y = data
    return float(multivariate_normal(x @ mean, np.eye(len(y)) + x @ np.linalg.solve(precision, x.T)).logpdf(y))
