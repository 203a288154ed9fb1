"""The L2 anchor: earlier tasks hold every parameter alike."""

from __future__ import annotations

from weft.core.configured import Range
from weft.strategies.continual.laplace import Laplace

__all__ = ["L2Anchor"]


class L2Anchor(Laplace):
    """Stays near the parameters that earlier tasks reached: `Laplace` with the identity as its precision.

    Later tasks minimize

        loss(theta) + strength / 2 sum_t |theta - theta_t|^2,

    the baseline ("L2") against which elastic weight consolidation shows that it matters which parameters are
    held. No likelihood is asked for, so it holds any objective.

    Args:
        strength: of the hold.
        penalties: `per_task`; `latest` (all at the last anchor: strength times the number of tasks) or `online`,
            which with decay=0 holds to the last anchor once.
        decay: gamma, of `online`.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796 (there the
        baseline "L2").

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=L2Anchor(strength=0.1), epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    space = {"strength": Range(1e-3, 10.0, log=True)}
    curvature = "identity"
    fisher = "true"
    rank = 1
    normalize = True
    memory = 0

    def __init__(self, *, strength: float = 0.1, penalties: str = "per_task", decay: float = 1.0) -> None:
        self.strength = strength
        self.penalties = penalties
        self.decay = decay
