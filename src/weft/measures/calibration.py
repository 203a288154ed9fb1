"""The posterior over parameters that a strategy carries from task to task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.func import jacrev

from weft.core.trees import Params, tree_map
from weft.engine.verbs import penalties
from weft.learner.estimator import Learner

__all__ = ["Posterior", "posterior"]


@dataclass(frozen=True)
class Posterior:
    """A normal distribution of the parameters.

    Attributes:
        mean: by parameter name.
        covariance: of all parameters, flattened one after another, (d, d).
    """

    mean: Params
    covariance: Tensor

    @property
    def deviation(self) -> Params:
        """The standard deviation of each parameter."""
        flat = self.covariance.diagonal().sqrt()
        parts = flat.split([m.numel() for m in self.mean.values()])
        return {name: part.reshape(m.shape) for (name, m), part in zip(self.mean.items(), parts, strict=True)}


def posterior(learner: Learner, *, rows: float = 1.0, prior: float = 0.0, most: int = 4096) -> Posterior:
    """The posterior that a strategy such as `Laplace` carries after the tasks learned so far.

    Later tasks of n rows minimize a mean loss plus the strategy's penalty P, so n times that is a negative
    log-posterior, and n P the negative logarithm of the Gaussian that earlier tasks left:

        N(theta, Lambda^-1),    Lambda = n grad^2 P(theta) + prior I,

    theta the parameters reached. With `Laplace(strength=1/n, normalize=False)` Lambda is the sum of the F_t.

    Args:
        learner: fitted on tasks, by a strategy with a quadratic penalty; one replica.
        rows: n.
        prior: the precision of the prior on every parameter that F_t does not hold.
        most: parameters that it may have, for Lambda is made whole.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796, section 2;
        MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation 4, 1992.

    Example:
        >>> from weft import Regressor
        >>> from weft.strategies import Laplace
        >>> X, y = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), torch.zeros(4)
        >>> kept = Laplace(strength=1.0, normalize=False, curvature="full")
        >>> line = Regressor("linear", strategy=kept, steps=10, random_state=0).partial_fit(X, y, task="first")
        >>> {name: s.flatten().tolist() for name, s in posterior(line).deviation.items()}
        {'net.1.weight': [0.5], 'net.1.bias': [0.5]}
    """
    check_is_fitted(learner)
    if len(learner.seeds_) > 1 or learner.objective_.players:
        raise ValueError("expected one trained run of one player, got several; measure one: learner.replica(0)")
    engine, state = learner.training_.alone
    if not penalties(engine.strategy, state.strategy[""]) or not state.tasks:
        raise ValueError(
            f"expected a learner that has consolidated tasks by a penalty, such as Laplace's, got {engine.strategy!r} "
            f"after the tasks {state.tasks}; give partial_fit a task"
        )
    mean = {name: state.params[name].detach().double() for name in engine.names[""]}
    size = sum(m.numel() for m in mean.values())
    if size > most:
        raise ValueError(
            f"expected at most {most:,} parameters, whose covariance is made whole, got {size:,}, which takes "
            f"{8 * size**2 / 2**30:.3g} GiB; raise most"
        )
    kept = tree_map(lambda t: t.double() if t.is_floating_point() else t, state.strategy[""])

    def penalty(flat: Tensor) -> Tensor:
        parts = flat.split([m.numel() for m in mean.values()])
        given = {name: part.reshape(m.shape) for (name, m), part in zip(mean.items(), parts, strict=True)}
        return torch.stack([part.penalty(given, own) for part, own in penalties(engine.strategy, kept)]).sum()

    flat = torch.cat([m.flatten() for m in mean.values()])
    precision = float(rows) * jacrev(jacrev(penalty))(flat).detach()
    precision += float(prior) * torch.eye(size, dtype=flat.dtype, device=flat.device)
    factor, failed = torch.linalg.cholesky_ex((precision + precision.T) / 2)
    if int(failed):
        raise ValueError(
            "expected a precision without flat directions, got one that tasks leave undetermined; give prior > 0"
        )
    return Posterior(mean, torch.cholesky_inverse(factor))
