"""Memory aware synapses: a parameter matters as much as the learned function depends on it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from weft.core.objective import Output
from weft.core.source import Batch
from weft.core.strategy import Local, StrategyState
from weft.strategies.continual.importance import Importance

__all__ = ["MAS"]


class MAS(Importance):
    """Holds parameters by how sensitive the learned function is to them.

    When task t ends, a parameter's importance is the mean over the task's examples of

        Omega_t,i = mean_n | d |f(x_n)|^2 / d theta_i |,

    with f the net's outputs (logits, or a regression's mean): no label is asked for. It is exact, one absolute value
    for each example, in evaluation mode. Importances of tasks add up, and the next task minimizes

        loss(theta) + strength sum_i Omega_i (theta_i - theta_t,i)^2,    Omega = sum_t Omega_t.

    Args:
        strength: lambda.

    References:
        Aljundi, Babiloni, Elhoseiny, Rohrbach and Tuytelaars, "Memory aware synapses: learning what (not) to forget",
        arXiv 1711.09601.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=MAS(strength=0.1), epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    reads = frozenset({"logits"})

    def __init__(self, *, strength: float = 1.0) -> None:
        super().__init__(strength=strength)

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        sums, examples = local.squares(_size, absolute=True)
        if not examples > 0:
            raise ValueError(f"expected the task {task!r} to have examples to consolidate, got none")
        total = {name: state["importance"][name] + s / examples for name, s in sums.items()}
        return self.held(total, local.params, state, task)


def _size(output: Output, batch: Batch) -> Iterator[tuple[Tensor, None]]:
    """|f(x)|^2 of each example."""
    logits: Tensor = output.logits  # type: ignore[assignment]
    yield logits.square().reshape(len(logits), -1).sum(1), None
