"""Critics: nets that tell what belongs together from what does not, and the bounds that follow from them.

For any function T that knows nothing of the rows it is evaluated on, and a = E_q e^T,

    KL(p || q) >= E_p T - log a >= E_p T - a / c - log c + 1        for every number c > 0,

Donsker and Varadhan's bound and its tangent at c. A mean over rows in place of a makes the former too high on average,
since -log of a mean is convex; the latter is linear in a, so that it is a bound in expectation at any number of rows,
and the better the nearer c is to a, to second order.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.core.legal import WIDTHS, Number, Whole
from weft.core.objective import Objective, Output
from weft.core.optimizer import Optimizer
from weft.core.random import fold, integer, key_of, permutation
from weft.core.source import Batch, Spec
from weft.learner.estimator import Learner
from weft.nets.make import make_net
from weft.scores.predictions import mean_interval
from weft.scores.samples.reading import Samples, seeded

__all__ = ["Bound", "Columns", "Critic", "Pairs", "parts", "rows_of", "tangent", "trained"]

_SHIFTS = 8  # how often a row's entries are drawn apart
_NEAR = 0.8  # of a ceiling, from where on it hides what is above


@dataclass(frozen=True)
class Bound:
    """An estimate in nats by rows that were held out; `float(bound)` is its value.

    Attributes:
        name: of what.
        value: in nats.
        interval: of 95%, by blocks of held-out rows, which are independent of each other given the critic.
        kind: `lower bound` (in expectation), or `estimate`.
        ceiling: what the value cannot exceed, whatever the truth; None where there is no such number.
        about: how it was found, in words.
    """

    name: str
    value: float
    interval: tuple[float, float]
    kind: str
    ceiling: float | None
    about: str

    def __float__(self) -> float:
        return self.value


class Critic(Objective):
    """A net's numbers for what is drawn together and for what is drawn apart, within a batch.

    A subclass makes its nets, and says in `told` what both are.

    Args:
        bound: `infonce`, to tell the own among all of the batch, or `tangent`, Donsker and Varadhan's bound.
        hidden, features: widths of the nets.
    """

    decomposable = False
    optimizer = Optimizer("adam", lr=2e-3)

    def __init__(self, bound: str = "tangent", *, hidden: Sequence[int] = (64, 64), features: int = 32) -> None:
        super().__init__()
        self.bound = bound
        self.hidden = hidden
        self.features = features

    def told(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """T of each row, `(n,)`, and of what is apart: `(n, n)`, the own on the diagonal, or of any number, `(m,)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define told(batch)")

    def forward(self, batch: Batch, player: str = "") -> Output:
        own, others = self.told(batch)
        if self.bound == "infonce":
            return Output(-infonce_of(own, others))
        return Output(others_mean(others) - own)


class Pairs(Critic):
    """T(x, z) = f(x)' g(z) + a(x) + b(z): every x of a batch beside every z of it costs two passes and a product."""

    fields = ("x", "z")

    def build(self, spec: Spec) -> None:
        width = int(self.features) + 1
        self.left = make_net(None, spec["x"], width, hidden=self.hidden, what="critic")
        self.right = make_net(None, spec["z"], width, hidden=self.hidden, what="critic")

    def told(self, batch: Batch) -> tuple[Tensor, Tensor]:
        f, g = self.left(batch["x"]), self.right(batch["z"])
        every = f[:, :-1] @ g[:, :-1].mT / math.sqrt(self.features) + f[:, -1:] + g[:, -1]
        return every.diagonal(), every


class Columns(Critic):
    """T(z) of rows, and of rows whose entries come from different rows: the j-th column is shifted by m j places.

    For m of 1, 2, ... up to 8, as long as no two columns of a row come from one row again.
    """

    fields = ("x",)

    def build(self, spec: Spec) -> None:
        self.net = make_net(None, spec["x"], 1, hidden=self.hidden, what="critic")

    def told(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = batch["x"]
        (n, d), times = x.shape, range(1, 1 + max(1, min(_SHIFTS, (len(x) - 1) // max(x.shape[1] - 1, 1))))
        places = torch.arange(n, device=x.device)[:, None]
        apart = [x.gather(0, (places + m * torch.arange(d, device=x.device)) % n) for m in times]
        return self.net(x).squeeze(-1), self.net(torch.cat(apart)).squeeze(-1)


def infonce_of(own: Tensor, every: Tensor) -> Tensor:
    """log (e^T(x_i, z_i) / (1/K sum_j e^T(x_i, z_j))) of each row: at most log K."""
    return own - (every.logsumexp(-1) - math.log(every.shape[-1]))


def others_mean(others: Tensor) -> Tensor:
    """log of the mean of e^T over what is apart: of all pairs in a batch, those off the diagonal."""
    if others.dim() == 1:
        return others.logsumexp(0) - math.log(len(others))
    n = len(others)
    own = torch.eye(n, dtype=torch.bool, device=others.device)
    return others.masked_fill(own, -math.inf).flatten().logsumexp(0) - math.log(n * (n - 1))


def tangent(learned: list[tuple[Tensor, Tensor]], held: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The bound by each block of held-out rows, with c by the blocks that were learned from."""
    log_c = torch.stack([others_mean(others) for _, others in learned]).logsumexp(0) - math.log(len(learned))
    return [float(own.mean() - torch.exp(others_mean(others) - log_c) - log_c + 1) for own, others in held]


# --- rows ----------------------------------------------------------------------------------------------------------


def rows_of(values: Samples, name: str) -> Tensor:
    """Rows of numbers, laid flat, in double precision."""
    given = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if given.dim() < 1 or given.is_complex() or not given.numel():
        raise ValueError(f"expected rows of real numbers in {name}, got {given.dtype} of shape {tuple(given.shape)}")
    rows = given.double().reshape(len(given), -1)
    bad = int((~torch.isfinite(rows)).any(1).sum())
    if bad:
        raise ValueError(
            f"expected finite numbers in {name}, got NaN or infinity in {bad} of {len(rows)} rows; leave them out or "
            "fill them, and say which"
        )
    return rows


def parts(n: int, among: int, held: float, random_state: object) -> tuple[Tensor, list[Tensor], Tensor]:
    """Rows to learn from, blocks of rows that are held out, and the key of the rest."""
    Whole(2).check(among, "among", 128)
    Number(0, 1, "()").check(held, "held", 0.5)
    key = fold(key_of(seeded(random_state)), "critic")
    order = permutation(fold(key, "parts"), n)
    blocks = int(n * held) // among
    first = n - blocks * among
    if blocks < 2 or first < 2 * among:
        raise ValueError(
            f"expected rows for two blocks of among={among} to evaluate, held={held:g} of all, and as many to learn "
            f"from, got {n}; give more rows, or a smaller among"
        )
    return order[:first], list(order[first:].split(among)), key


def trained(
    critic: Critic, fields: dict[str, Tensor], learned: Tensor, blocks: list[Tensor], *, steps: int, key: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """What a critic says, trained on the rows to learn from alone: of blocks of these, and of those held out."""
    Whole(1).check(steps, "steps", 500)
    Whole(1).check(critic.features, "features", 32)
    WIDTHS.check(critic.hidden, "hidden", (64, 64))
    among = len(blocks[0])
    units = {}
    for name, rows in fields.items():
        mean, spread = rows[learned].mean(0), rows[learned].std(0)
        units[name] = ((rows - mean) / torch.where(spread > 0, spread, 1.0)).float()
    X, more = units.pop("x"), units
    learner = Learner(critic, steps=steps, batch_size=among, schedule="cosine", random_state=integer(key) % 2**32)
    learner.fit(X[learned].numpy(), **{name: rows[learned].numpy() for name, rows in more.items()})
    module = learner.module()

    def said(index: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            own, others = module.told({"x": X[index], **{name: rows[index] for name, rows in more.items()}})  # type: ignore[operator]
        return own.double(), others.double()

    return [said(index) for index in learned[: len(learned) // among * among].split(among)], [
        said(index) for index in blocks
    ]


def bound_of(name: str, values: list[float], kind: str, ceiling: float | None, near: float, about: str) -> Bound:
    """The blocks' mean, with a warning where it is near what cannot be exceeded, or cannot be known of so many rows."""
    value = float(np.mean(values))
    found = Bound(name, value, mean_interval(values), kind, ceiling, about)
    if value > _NEAR * near:
        fix = (
            f"{name} is at most log K = {near:.2f} nats, whatever the truth: take a larger among, or mine"
            if ceiling is not None
            else f"no bound that holds for every law can tell more than about the log of the held-out rows, {near:.2f} "
            "nats: the mean of e^T is that of pairs that were not seen; give more rows"
        )
        warnings.warn(f"expected {name} well below its ceiling, got {value:.2f} nats; {fix}", stacklevel=3)
    return found
