"""Fishr: single-example gradients with the same variance in every environment."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad

from weft.core.configured import Range
from weft.core.legal import Number, Whole
from weft.core.objective import Output
from weft.core.source import Batch
from weft.core.strategy import Loss, StrategyState, by_group
from weft.core.trees import Params
from weft.strategies.invariance.aligning import Aligning, shares_by_group

__all__ = ["Fishr"]


class Fishr(Aligning):
    """Aligns between environments the variance of the head's single-example gradients.

    With v_e the variance, over the examples of environment e, of each component of the gradient of an
    example's loss with respect to the head, and v the mean of the v_e, adds to the loss

        strength mean_e |v_e - v|^2 / p

    for the p parameters of the head. The head is linear, logits = W f + b, so with
    delta_i = d loss_i / d logits_i an example's gradient is delta_i f_i' for W and delta_i for b, and

        v_e = mean_i (delta_i^2) (f_i^2)' - ( mean_i delta_i f_i' )^2

    takes two products of matrices and no gradient of any single example. Batches are small, so v_e is
    smoothed: with the moving average m_e <- ema m_e + (1 - ema) v_e of earlier batches,
    v_e + ema / (1 - ema) m_e is compared in its place, which is the new average divided by 1 - ema, as in
    the authors' code, so that the present batch keeps its weight.

    Args:
        strength: lambda.
        anneal: steps before the penalty sets in; the averages begin at once.
        ema: how much of a moving average is kept, in [0, 1); 0 for none.

    References:
        Ramé, Dancette and Cord, "Fishr: invariant gradient variances for out-of-distribution
        generalization", arXiv 2109.02934.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> aligned = Classifier(strategy=Fishr(strength=1.0), epochs=30, batch_size=20, random_state=0)
        >>> bool(aligned.fit(X, y, environment=[0, 1, 2] * 50).score(X, y) > 0.9)
        True
    """

    reads = frozenset({"features", "rescore"})
    space = {"strength": Range(10.0, 1e4, log=True)}  # the paper's, in DomainBed
    legal = {"anneal": Whole(0), "ema": Number(0, 1, "[)")}

    def __init__(self, *, strength: float = 1000.0, anneal: int = 0, ema: float = 0.95) -> None:
        super().__init__(strength=strength)
        self.anneal = anneal
        self.ema = ema

    def init(self, params: Params) -> StrategyState:
        """`step`: the steps made; from the first one on `average`: m_e, of shape (environments, p)."""
        return {"step": torch.zeros((), dtype=torch.int64)}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def aligned(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            variance, present = gradient_variance(output, batch)
            smooth = variance + self.ema / (1.0 - self.ema) * self._average(state, variance)
            count = present.sum().clamp_min(1.0)
            apart = (smooth - (present @ smooth) / count).square().mean(1) @ present / count
            on = (state["step"] >= self.anneal).to(apart.dtype)
            left = {"variance": variance.detach(), "present": present}
            return replace(output, losses=output.losses + self.strength * on * apart, left=(*output.left, left))

        return aligned

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """One gradient, of the pass over all groups; what that left moves the averages."""
        before = self._average(state, state["variance"])
        after = torch.lerp(state["variance"], before, self.ema)
        average = torch.where(state["present"].unsqueeze(1) > 0, after, before)
        return {name: g[0] for name, g in gradients.items()}, {"step": state["step"] + 1, "average": average}

    def _average(self, state: StrategyState, like: Tensor) -> Tensor:
        """The moving averages; zero at first, and where the environments are others than before."""
        kept = state.get("average")
        return kept if kept is not None and kept.shape == like.shape else torch.zeros_like(like)


def gradient_variance(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """The variance of the head's single-example gradients, (groups, p), and 1 for groups with rows, else 0."""
    shares, present = shares_by_group(output, batch)
    delta = grad(lambda z: output.rescore(z).sum())(output.logits)  # type: ignore[misc]
    features = output.features.flatten(1)  # type: ignore[union-attr]
    ones = torch.ones_like(features[:, :1])
    f = by_group(torch.cat([features, ones], 1), batch)  # the bias is the weight of a feature that is 1
    d = by_group(delta.reshape(len(features), -1), batch)
    mean = torch.einsum("gn,gnk,gnj->gkj", shares, d, f)
    square = torch.einsum("gn,gnk,gnj->gkj", shares, d.square(), f.square())
    return (square - mean.square()).flatten(1), present
