"""Elastic weight consolidation: earlier tasks as a Gaussian prior on the parameters."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, distributions

from weft.core import random
from weft.core.configured import Range
from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.core.strategy import Local, Params, Strategy, StrategyState

__all__ = ["EWC"]


class EWC(Strategy):
    """Remembers earlier tasks by holding fast what they depend on.

    After each task t its posterior is approximated by a Gaussian around the parameters theta_t reached,
    with the diagonal of the Fisher information F_t, summed over the task's examples, as its precision.
    Later tasks minimize

        loss(theta) + strength / 2 sum_t sum_i F_t,i (theta_i - theta_t,i)^2.

    With `fisher="true"` F_t is exact: the expectation, over the model's own distribution of labels,
    of squared single-example gradients, in evaluation mode, over all of the task's data.

    Args:
        strength: lambda. Since the loss is a mean and F_t a sum over examples, a Bayesian reading on a
            task of n examples takes strength = 1 / n; `normalize` divides F_t by the task's examples.
        fisher: `true` (expectation over the model's labels), `sampled` (one draw of them per example)
            or `empirical` (the data's labels).
        normalize: F_t as a mean over the task's examples, as the paper's, instead of the sum.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796;
        on the variants of F: van de Ven, "On the computation of the Fisher information in continual
        learning", arXiv 2502.11756.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=EWC(strength=100.0), epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    neutral = {"strength": 0.0}
    sweeps = ("strength",)
    space = {"strength": Range(1.0, 1e4, log=True)}

    def __init__(self, *, strength: float = 1000.0, fisher: str = "true", normalize: bool = True) -> None:
        self.strength = strength
        self.fisher = fisher
        self.normalize = normalize

    def validate(self) -> None:
        if not float(self.strength) >= 0.0:
            raise ValueError(f"expected EWC's strength >= 0, got {self.strength!r}")
        if self.fisher not in ("true", "sampled", "empirical"):
            raise ValueError(f"expected EWC's fisher to be 'true', 'sampled' or 'empirical', got {self.fisher!r}")

    def refuses(self, objective: Objective) -> str | None:
        if self.fisher == "empirical":
            known = objective.likelihood
        else:
            known = hasattr(objective, "distribution")
        if not known:
            return (
                "the Fisher information is the variance of a log-likelihood's gradient, and this loss is not a "
                "log-likelihood"
            )
        return super().refuses(objective)

    def init(self, params: Params) -> StrategyState:
        """`tasks`: for each consolidated task its `anchor` (theta_t) and `precision` (F_t)."""
        return {"tasks": {}}

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        total = next(iter(params.values())).new_zeros(())
        for task in state["tasks"].values():
            for name, p in params.items():
                total = total + (task["precision"][name] * (p - task["anchor"][name]).square()).sum()
        return 0.5 * self.strength * total

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        def readout(output: Output, batch: Batch) -> Iterator[tuple[Tensor, Tensor | None]]:
            if self.fisher == "empirical":
                yield output.losses, None
                return
            distribution = local.objective.distribution(output)  # type: ignore[operator]
            if self.fisher == "sampled":
                yield -distribution.log_prob(_draw(distribution)), None
            else:
                yield from _scores(distribution)

        precision, examples = local.squares(readout)
        if self.normalize:
            precision = {name: p / examples for name, p in precision.items()}
        anchor = {name: p.clone() for name, p in local.params.items()}
        return {"tasks": {**state["tasks"], task: {"anchor": anchor, "precision": precision}}}

    def release(self, state: StrategyState, task: str) -> StrategyState:
        return {"tasks": {name: kept for name, kept in state["tasks"].items() if name != task}}


def _base(distribution: distributions.Distribution) -> distributions.Distribution:
    return distribution.base_dist if isinstance(distribution, distributions.Independent) else distribution


def _draw(distribution: distributions.Distribution) -> Tensor:
    base = _base(distribution)
    if isinstance(base, distributions.Categorical):
        return random.categorical(base.logits.detach(), place="label")
    if not isinstance(base, distributions.Normal):
        raise ValueError(f"expected labels that can be drawn (Categorical or Normal), got {type(base).__name__}")
    mean = base.mean.detach()
    return mean + base.stddev.detach() * random.normal(mean.shape, place="label", dtype=mean.dtype)


def _scores(distribution: distributions.Distribution) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Scalars s_k with weights w_k such that sum_k w_k (grad s_k)^2 is the Fisher information's diagonal.

    Over a finite set of labels: s_k = log p(k), w_k = p(k). For a normal with fixed noise: the
    standardized means themselves, since E[(grad log p)^2] = (grad mean)^2 / noise^2. Independent
    labels of one example (the steps of a trajectory) add up.
    """
    base = _base(distribution)
    if base.has_enumerate_support:
        for label in base.enumerate_support():
            score = base.log_prob(label)
            for column in score.reshape(len(score), -1).unbind(1):
                yield column, column.detach().exp()
        return
    if not isinstance(base, distributions.Normal) or base.scale.requires_grad:
        raise ValueError(
            f"expected a distribution whose Fisher information has a closed form (finite support, or a normal with "
            f"fixed noise), got {type(base).__name__}; use EWC(fisher='sampled')"
        )
    standard = base.mean / base.stddev.detach()
    for column in standard.reshape(len(standard), -1).unbind(1):
        yield column, None
