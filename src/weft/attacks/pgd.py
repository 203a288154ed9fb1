"""Projected gradient descent on the input, in the maximum norm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from weft.core import random
from weft.core.configured import Configured
from weft.core.legal import Choice, Number, Such, Whole
from weft.core.source import Batch
from weft.core.strategy import Loss
from weft.core.trees import Params

__all__ = ["PGD"]


def _pair(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _ordered(low: object, high: object) -> bool:
    return all(map(Number().allows, (low, high))) and bool(low < high)  # type: ignore[operator]


class PGD(Configured):
    """Raises the loss by signed gradient steps on the input, kept within a box around it.

        x <- clip(x + step sign(grad_x loss), x0 - eps, x0 + eps)

    and within the range that inputs can have at all, such as [0, 1] for pixels. One step from x0 itself with step = eps
    is the fast gradient sign method.

    Args:
        eps: the largest change of a component.
        steps: gradient steps.
        step: their size; default: eps for one step, else 2.5 eps / steps.
        start: where to begin: `clean` or `random` (uniform in the box).
        bounds: the range of a component, such as `(0.0, 1.0)`; `rows` for that of the training rows, from the least
            value of any component to the largest (called by itself, of the rows given); None for none.

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
        "bounds": Choice("rows")
        | Such("two numbers (low, high), low first", _pair, lambda given: _ordered(*given))  # type: ignore[misc]
        | None,
    }

    def __init__(
        self,
        *,
        eps: float = 0.1,
        steps: int = 1,
        step: float | None = None,
        start: str = "clean",
        bounds: str | tuple[float, float] | tuple[Tensor, Tensor] | None = "rows",
    ) -> None:
        self.eps = eps
        self.steps = steps
        self.step = step
        self.start = start
        self.bounds = bounds

    def __call__(self, loss: Loss, params: Params, batch: Batch) -> Tensor:
        """The perturbed inputs; they carry no gradient to the parameters."""
        clean = batch["x"].detach()
        if not clean.is_floating_point():
            raise TypeError(f"expected inputs of a floating-point dtype to perturb, got {clean.dtype}")
        fixed = {name: p.detach() for name, p in params.items()}
        size = self.step if self.step is not None else self.eps * (1.0 if self.steps == 1 else 2.5 / self.steps)
        low, high = self._range(clean)
        x = clean
        if self.start == "random":
            draw = random.uniform(clean.shape, place="attack", rows=batch.get("row"), dtype=clean.dtype)
            x = torch.clamp(clean + self.eps * (2.0 * draw - 1.0), low, high)
        for _ in range(self.steps):
            slope = grad(lambda z: loss(fixed, {**batch, "x": z}).losses.sum())(x)
            x = torch.clamp(x + size * torch.sign(slope), clean - self.eps, clean + self.eps)
            x = torch.clamp(x, low, high)
        return x.detach()

    def _range(self, clean: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the largest value that a component may have."""
        if self.bounds == "rows":
            low, high = clean.aminmax()
            return low, high
        ends = (-torch.inf, torch.inf) if self.bounds is None else self.bounds
        low, high = (torch.as_tensor(end, dtype=clean.dtype, device=clean.device) for end in ends)
        return low, high
