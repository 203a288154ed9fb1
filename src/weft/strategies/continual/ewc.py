"""Elastic weight consolidation: earlier tasks as a Gaussian prior on the parameters."""

from __future__ import annotations

from weft.strategies.continual.laplace import Laplace

__all__ = ["EWC"]


class EWC(Laplace):
    """Remembers earlier tasks by holding fast what they depend on: `Laplace` with a diagonal precision.

    After each task t its posterior is approximated by a Gaussian around the parameters theta_t reached,
    with the diagonal of the Fisher information F_t as its precision. Later tasks minimize

        loss(theta) + strength / 2 sum_t sum_i F_t,i (theta_i - theta_t,i)^2.

    With `fisher="true"` F_t is exact: the expectation, over the model's own distribution of labels,
    of squared single-example gradients, in evaluation mode, over all of the task's data.

    Args:
        strength: lambda. Since the loss is a mean and F_t a sum over examples, a Bayesian reading on a
            task of n examples takes strength = 1 / n; `normalize` divides F_t by the task's examples.
        fisher: `true` (expectation over the model's labels), `sampled` (one draw of them per example)
            or `empirical` (the data's labels).
        penalties: `per_task`, as in the paper; `latest` (one anchor, summed precision) or `online`.
        decay: gamma, of `online`.
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

    curvature = "diagonal"
    rank = 1
    memory = 0

    def __init__(
        self,
        *,
        strength: float = 1000.0,
        fisher: str = "true",
        penalties: str = "per_task",
        decay: float = 1.0,
        normalize: bool = True,
    ) -> None:
        self.strength = strength
        self.fisher = fisher
        self.penalties = penalties
        self.decay = decay
        self.normalize = normalize
