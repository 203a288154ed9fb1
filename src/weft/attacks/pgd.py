"""Projected gradient descent on the input, in the maximum norm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from weft.core import random
from weft.core.configured import Configured
from weft.core.legal import Choice, Number, Whole
from weft.core.source import Batch
from weft.core.strategy import Loss
from weft.core.trees import Params

__all__ = ["PGD"]


class PGD(Configured):
    """Raises the loss by signed gradient steps on the input, kept within a box around it.

        x <- clip(x + step sign(grad_x loss), x0 - eps, x0 + eps)

    One step from x0 itself with step = eps is the fast gradient sign method.

    Args:
        eps: the largest change of a component.
        steps: gradient steps.
        step: their size; default: eps for one step, else 2.5 eps / steps.
        start: where to begin: `clean` or `random` (uniform in the box).

    References:
        Madry et al., arXiv 1706.06083; Goodfellow, Shlens and Szegedy, arXiv 1412.6572 (one step).

    Example:
        >>> PGD(eps=0.3, steps=40, step=0.01, start="random")
        PGD(eps=0.3, steps=40, step=0.01, start='random')
    """

    legal = {
        "eps": Number(0),
        "steps": Whole(1),
        "step": Number(0, ends="()") | None,
        "start": Choice("clean", "random"),
    }

    def __init__(self, *, eps: float = 0.1, steps: int = 1, step: float | None = None, start: str = "clean") -> None:
        self.eps = eps
        self.steps = steps
        self.step = step
        self.start = start

    def __call__(self, loss: Loss, params: Params, batch: Batch) -> Tensor:
        """The perturbed inputs; they carry no gradient to the parameters."""
        clean = batch["x"].detach()
        if not clean.is_floating_point():
            raise TypeError(f"expected inputs of a floating-point dtype to perturb, got {clean.dtype}")
        fixed = {name: p.detach() for name, p in params.items()}
        size = self.step if self.step is not None else self.eps * (1.0 if self.steps == 1 else 2.5 / self.steps)
        x = clean
        if self.start == "random":
            draw = random.uniform(clean.shape, place="attack", rows=batch.get("row"), dtype=clean.dtype)
            x = clean + self.eps * (2.0 * draw - 1.0)
        for _ in range(self.steps):
            slope = grad(lambda z: loss(fixed, {**batch, "x": z}).losses.sum())(x)
            x = torch.clamp(x + size * torch.sign(slope), clean - self.eps, clean + self.eps)
        return x.detach()
