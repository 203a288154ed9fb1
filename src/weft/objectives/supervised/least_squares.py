"""Linear least squares: solved, not descended."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.supervised.labelled import Regression

__all__ = ["LeastSquares"]


class LeastSquares(Regression):
    """Fits a linear map in closed form: ordinary least squares, or ridge.

    The minimizer over w and b of

        sum_i weight_i |y_i - w x_i - b|^2 + ridge |w|^2

    comes from the normal equations of the centred data; the intercept b is not penalized.

    Args:
        ridge: the penalty's strength; 0 is ordinary least squares.

    References:
        Hoerl and Kennard, "Ridge regression: biased estimation for nonorthogonal problems",
        Technometrics 12, 1970.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> x = torch.linspace(-1, 1, 8)[:, None]
        >>> Learner(LeastSquares()).fit(x, 2 * x[:, 0] + 1).predict(torch.tensor([[3.0]])).round(3)
        array([7.], dtype=float32)
    """

    solved = True
    space = {"ridge": Range(1e-4, 1e4, log=True)}
    legal = {"ridge": Number(0)}

    def __init__(self, *, ridge: float = 0.0) -> None:
        super().__init__("linear")
        self.ridge = ridge

    def solve(self, source: Source, state: State) -> dict[str, Tensor]:
        """The minimizer's parameters, from one pass over the data in double precision."""
        batches = list(source.once(state, 2**20))
        x = torch.cat([b["x"] for b in batches]).flatten(1).double()
        y = torch.cat([b["y"] for b in batches]).reshape(len(x), -1).double()
        w = torch.cat([b["weight"] for b in batches]).double() if "weight" in batches[0] else x.new_ones(len(x))
        share = (w / w.sum())[:, None]
        centre_x, centre_y = (share * x).sum(0), (share * y).sum(0)
        root = w.sqrt()[:, None]
        a, b = root * (x - centre_x), root * (y - centre_y)
        if self.ridge:
            a = torch.cat([a, self.ridge**0.5 * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)])
            b = torch.cat([b, b.new_zeros(a.shape[1], b.shape[1])])
        weight = torch.linalg.lstsq(a, b, driver="gelsd" if a.device.type == "cpu" else None).solution
        return {"net.1.weight": weight.T, "net.1.bias": centre_y - centre_x @ weight}
