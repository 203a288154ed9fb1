"""Laplace's approximation, carried from task to task: earlier tasks as a Gaussian prior on the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributions

from weft.core import random
from weft.core.configured import Range
from weft.core.legal import Choice, Flag, Number, Whole
from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.core.strategy import Local, Penalty, StrategyState
from weft.core.trees import Params
from weft.nets.causal import transformed
from weft.strategies.continual.curvature import (
    CURVATURES,
    Curvature,
    Diagonal,
    Full,
    Identity,
    Kronecker,
    LowRank,
    Precision,
    Term,
)

__all__ = ["Laplace"]

_FISHERS = ("true", "sampled", "empirical")
_PENALTIES = ("per_task", "latest", "online")


class Laplace(Penalty):
    """Carries an approximate posterior along: what earlier tasks left is the prior of the next.

    Since log p(theta | D_1, D_2) = log p(D_2 | theta) + log p(theta | D_1) + const, the posterior of earlier tasks
    is all that a new one needs of them. It is approximated by a Gaussian around the parameters theta_t reached,
    whose precision is the Fisher information F_t, summed over the task's examples. Later tasks minimize

        loss(theta) + strength / 2 sum_t (theta - theta_t)^T F_t (theta - theta_t).

    With `penalties="per_task"` the sum has a term for each task. By the identity above a task's posterior already
    holds its predecessors', so that one anchor, the latest, with the sum of all F_t is enough (`latest`); `online`
    lets the sum decay by gamma at each task.

    Args:
        strength: lambda. Since the loss is a mean and F_t a sum over examples, a Bayesian reading on a
            task of n examples takes strength = 1 / n; `normalize` divides F_t by the task's examples.
        curvature: the form of F_t: `diagonal`, `kronecker` (a product for each layer), `low_rank` (leading
            eigenvectors and the diagonal of the rest) or `full`; or `identity`, which knows nothing of the task.
        fisher: `true` (expectation over the model's own labels), `sampled` (one draw of them per example)
            or `empirical` (the data's labels).
        penalties: `per_task`, `latest` or `online`; the last two take the memory of one task.
        decay: gamma, of `online`.
        rank: eigenvectors, of `low_rank`.
        normalize: F_t as a mean over the task's examples, as EWC's paper has it, instead of the sum.
        memory: bytes that a `full` F_t may take.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796; Huszár, "On
        quadratic penalties in elastic weight consolidation", arXiv 1712.03847 (one anchor); Schwarz et al.,
        "Progress and compress", arXiv 1805.06370 (online); Ritter, Botev and Barber, "Online structured Laplace
        approximations for overcoming catastrophic forgetting", arXiv 1805.07810 (Kronecker); on the variants of F:
        van de Ven, "On the computation of the Fisher information in continual learning", arXiv 2502.11756.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> carried = Laplace(strength=100.0, curvature="kronecker", penalties="latest")
        >>> clf = Classifier(strategy=carried, epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    neutral = {"strength": 0.0}
    sweeps = ("strength",)
    space = {"strength": Range(1.0, 1e4, log=True)}
    legal = {
        "strength": Number(0),
        "curvature": Choice(*CURVATURES),
        "fisher": Choice(*_FISHERS),
        "penalties": Choice(*_PENALTIES),
        "decay": Number(0, 1),
        "rank": Whole(1),
        "normalize": Flag(),
        "memory": Whole(1, 2**50),
    }

    def __init__(
        self,
        *,
        strength: float = 1000.0,
        curvature: str = "kronecker",
        fisher: str = "true",
        penalties: str = "latest",
        decay: float = 1.0,
        rank: int = 16,
        normalize: bool = True,
        memory: int = 2**30,
    ) -> None:
        self.strength = strength
        self.curvature = curvature
        self.fisher = fisher
        self.penalties = penalties
        self.decay = decay
        self.rank = rank
        self.normalize = normalize
        self.memory = memory

    def validate(self) -> None:
        super().validate()
        if float(self.decay) != 1.0 and self.penalties != "online":
            raise ValueError(f"expected decay=1 with penalties={self.penalties!r}, got {self.decay!r}; use 'online'")

    def refuses(self, objective: Objective) -> str | None:
        known = objective.likelihood if self.fisher == "empirical" else "distribution" in objective.provides
        if not known and self.curvature != "identity":
            if objective.likelihood:
                return (
                    "the Fisher information is an expectation over labels that the model itself predicts, and "
                    f"{type(objective).__name__} does not tell their distribution (it provides no 'distribution'); "
                    "fisher='empirical' takes the labels of the data"
                )
            return (
                "the Fisher information is the variance of a log-likelihood's gradient, and this loss is not a "
                "log-likelihood"
            )
        drawn = self.fisher == "sampled" and self.curvature != "identity"
        if drawn and (other := self.unlawful(objective, ("categorical", "normal"))):
            return (
                f"fisher='sampled' draws labels of classes, and normal values, and {other}; fisher='true' takes the "
                "expectation over them, 'empirical' those of the data"
            )
        return super().refuses(objective)

    def form(self) -> Curvature:
        """The kind of curvature."""
        made = {"identity": Identity, "diagonal": Diagonal, "kronecker": Kronecker}
        if self.curvature in made:
            return made[self.curvature]()
        return LowRank(self.rank) if self.curvature == "low_rank" else Full(self.memory)

    def init(self, params: Params) -> StrategyState:
        """`tasks`: for each penalty its `anchor` (theta_t) and `precision` (F_t).

        With one penalty for all tasks that is the one called "all", and `seen` has the tasks in it. `sum` has one
        term equal to the sum of all, where the form of curvature has one: a step then costs as much after ten tasks
        as after one (while a task is repeated it is empty, and the terms are taken one by one).
        """
        return {"tasks": {}, "seen": {}, "sum": {}}

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        form, total = self.form(), next(iter(params.values())).new_zeros(())
        for term in self._terms(state):
            total = total + form.quadratic(term["precision"], _apart(params, term)) + term.get("constant", 0.0)
        return 0.5 * self.strength * total

    def pull(self, params: Params, state: StrategyState) -> Params:
        form, total = self.form(), None
        for term in self._terms(state):
            product = form.times(term["precision"], _apart(params, term))
            total = product if total is None else {name: p + product[name] for name, p in total.items()}
        if total is None:  # before the end of the first task
            return {name: torch.zeros_like(p) for name, p in params.items()}
        return {name: self.strength * p for name, p in total.items()}

    def _terms(self, state: StrategyState) -> list[Term]:
        return list((state["sum"] or state["tasks"]).values())

    def measure(self, local: Local) -> tuple[Precision, float]:
        """F_t of the task that has ended, summed over its examples, and their number."""
        return self.form().measure(local, self.readout(local.objective))

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        form = self.form()
        precision, examples = self.measure(local)
        if not examples > 0:
            raise ValueError(f"expected the task {task!r} to have examples to consolidate, got none")
        if self.normalize:
            precision = form.scale(precision, 1 / examples)
        anchor = {name: p.clone() for name, p in local.params.items()}
        if self.penalties == "per_task":
            tasks = {**state["tasks"], task: {"anchor": anchor, "precision": precision}}
            one = form.one(list(tasks.values())) if len(tasks) > 1 else None
            return {**state, "tasks": tasks, "sum": {} if one is None else {"all": one}}
        if "all" in state["tasks"]:
            precision = form.add(state["tasks"]["all"]["precision"], precision, float(self.decay))
        seen = {**state["seen"], task: torch.ones((), device=next(iter(anchor.values())).device)}
        return {"tasks": {"all": {"anchor": anchor, "precision": precision}}, "seen": seen, "sum": {}}

    def release(self, state: StrategyState, task: str) -> StrategyState:
        if task in state["seen"]:
            raise ValueError(
                f"expected a new task, got {task!r} again: with penalties={self.penalties!r} its share of the sum of "
                "precisions can no longer be told; penalties='per_task' replaces a task that is repeated"
            )
        if self.penalties != "per_task" or task not in state["tasks"]:
            return state
        return {**state, "tasks": {name: kept for name, kept in state["tasks"].items() if name != task}, "sum": {}}

    def readout(self, objective: Objective) -> Callable[..., Iterator[tuple[Tensor, Tensor | None]]]:
        def readout(output: Output, batch: Batch) -> Iterator[tuple[Tensor, Tensor | None]]:
            if self.fisher == "empirical":
                yield output.losses, None
                return
            told = objective.distribution(output)
            each = told if isinstance(told, tuple) else (told,)  # several are independent: their informations add up
            if self.fisher == "sampled":
                drawn = [d.log_prob(_draw(d, "label" if not i else f"label {i}")) for i, d in enumerate(each)]
                yield -sum(drawn[1:], drawn[0]), None
            else:
                for distribution in each:
                    yield from _scores(distribution)

        return readout


def _apart(params: Params, term: Term) -> Params:
    return {name: p - term["anchor"][name] for name, p in params.items()}


def _base(distribution: distributions.Distribution) -> distributions.Distribution:
    return distribution.base_dist if isinstance(distribution, distributions.Independent) else distribution


def _draw(distribution: distributions.Distribution, place: str) -> Tensor:
    base = _base(distribution)
    if isinstance(base, distributions.Categorical):
        return random.categorical(base.logits.detach(), place=place)
    if not isinstance(base, distributions.Normal):
        raise ValueError(f"expected labels that can be drawn (Categorical or Normal), got {type(base).__name__}")
    mean = base.mean.detach()
    return mean + base.stddev.detach() * random.normal(mean.shape, place=place, dtype=mean.dtype)


def _scores(distribution: distributions.Distribution) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Scalars s_k with weights w_k such that sum_k w_k (grad s_k)^2 is the Fisher information's diagonal.

    Over a finite set of labels: s_k = log p(k), w_k = p(k). Elsewhere the distribution's own parameters, which are
    orthogonal, each with its information. Independent labels of one example (the steps of a trajectory) add up.
    """
    base = _base(distribution)
    if base.has_enumerate_support:
        for label in base.enumerate_support():
            score = base.log_prob(label)
            for column in score.reshape(len(score), -1).unbind(1):
                yield column, column.detach().exp()
        return
    for score, weight in _informed(base):
        weights = None if weight is None else weight.detach().reshape(len(score), -1).unbind(1)
        for k, column in enumerate(score.reshape(len(score), -1).unbind(1)):
            yield column, None if weights is None else weights[k]


def _informed(base: distributions.Distribution) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Parameters of a distribution with the information in a value about each: E[(d log p / ds)^2]."""
    if isinstance(base, distributions.Normal):
        yield base.mean / base.stddev.detach(), None
        if base.scale.requires_grad or transformed():  # where nothing says so of itself, and a constant gives zero
            yield base.scale.log(), torch.full_like(base.scale, 2.0)
    elif isinstance(base, distributions.Laplace) and not base.scale.requires_grad:
        yield base.loc / base.scale, None
    elif isinstance(base, distributions.Poisson):
        yield base.rate.log(), base.rate
    elif isinstance(base, distributions.NegativeBinomial) and not base.total_count.requires_grad:
        yield base.logits, base.total_count * base.probs
    elif isinstance(base, distributions.Gamma) and not base.concentration.requires_grad:
        yield base.rate.log(), base.concentration
    else:
        raise ValueError(
            "expected a distribution whose Fisher information has a closed form (finite support, normal, Poisson; "
            f"Laplace, gamma or negative binomial of fixed shape), got {type(base).__name__}; use fisher='empirical'"
        )
