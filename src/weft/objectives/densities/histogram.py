"""Histogram: the share of the rows in each cell of a grid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import capability
from weft.core.random import normal, uniform
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.numbers import moments, numbers_of
from weft.objectives.densities.rows import all_rows, weights_of

__all__ = ["Histogram"]

_MOST = 10_000_000


class Histogram(Density):
    """A density that is constant on each cell of a grid: the share of the rows there, over the cell's volume.

        p(x) = share of cell(x) / (width_1 ... width_d) within the grid, 0 outside

    The grid goes from each column's least to its largest value, in bins of equal width; several columns have as many
    cells as the product of their bins, so it is for few. Where p is 0, in an empty cell or outside of the grid,
    `log_prob` is -inf and says so; `tails` avoids that. Weights count rows: one of weight 2 is the row twice.

    Args:
        bins: how many there are in each column: a number, or a rule for their width: `freedman-diaconis`, 2 IQR
            n^(-1/(d+2)); `scott`, (24 sqrt(pi))^(1/3) deviation n^(-1/(d+2)); `sturges`, log2(n) + 1 bins. In one
            dimension these are NumPy's; in more the exponent knows that a cell has fewer rows.
        tails: the share of the probability that is spread as a normal law of the rows' means and deviations, so that
            the density is nowhere 0; it is then no longer constant on the cells.

    References:
        Freedman and Diaconis, "On the histogram as a density estimator: L2 theory", Zeitschrift für
        Wahrscheinlichkeitstheorie 57, 1981. Scott, "On optimal and data-based histograms", Biometrika 66, 1979.
        Sturges, "The choice of a class interval", JASA 21, 1926.

    Example:
        >>> from weft import Learner
        >>> histogram = Learner(Histogram(bins=2)).fit([[0.0], [1.0], [1.5], [4.0]])
        >>> histogram.log_prob([[1.9], [3.0], [4.1]]).round(2)  # 3/4 and 1/4 over 2, and outside
        array([-0.98, -2.08,  -inf], dtype=float32)
    """

    low: Tensor
    width: Tensor
    mean: Tensor
    deviation: Tensor
    counts: Tensor
    log_share: Tensor
    solved = True
    space = {"bins": Range(2, 200, log=True, whole=True)}
    legal = {
        "bins": Choice("freedman-diaconis", "scott", "sturges") | Whole(1),
        "tails": Number(0, 1, "[)"),
    }

    def __init__(self, *, bins: int | str = "freedman-diaconis", tails: float = 0.0) -> None:
        super().__init__()
        self.bins = bins
        self.tails = tails

    def build(self, spec: Spec) -> None:
        self.names = numbers_of(spec["x"], type(self).__name__)
        d = len(self.names)
        for name in ("low", "width", "mean", "deviation"):
            self.register_buffer(name, torch.zeros(d))
        self.register_buffer("counts", torch.zeros(d, dtype=torch.int64))
        self.register_buffer("log_share", torch.empty(0))

    def solve(self, source: Source, state: State) -> dict[str, Tensor]:
        given = all_rows(source, state)
        weight = weights_of(given).double()
        x, weight = given["x"][weight > 0].double(), weight[weight > 0]
        self.refuse_constant(x, self.names)
        mean, covariance = moments(x, weight)
        low, high = x.amin(0), x.amax(0)
        wide = [self._bins(x[:, j], weight, float(high[j] - low[j])) for j in range(len(self.names))]
        cells = math.prod(wide)
        if cells > _MOST:
            raise ValueError(
                f"expected a grid of at most {_MOST:,} cells, got {cells:,} for {len(wide)} columns; set bins to a "
                "smaller number, take fewer columns, or use KernelDensity"
            )
        counts = torch.tensor(wide, device=x.device)
        width = (high - low) / counts
        place, _ = _cells(x, low, width, counts)
        mass = weight.new_zeros(cells).index_add(0, place, weight)
        found = {"low": low, "width": width, "counts": counts, "log_share": (mass / weight.sum()).log()}
        return {**found, "mean": mean, "deviation": covariance.diagonal().sqrt()}

    def _bins(self, x: Tensor, weight: Tensor, span: float) -> int:
        """How many bins a column has."""
        n, d = float(weight.sum()), len(self.names)
        if isinstance(self.bins, int):
            return self.bins
        if self.bins == "sturges":
            return math.ceil(math.log2(n) + 1)
        if self.bins == "scott":
            deviation = float(((x - weight @ x / n) ** 2 @ weight / n).sqrt())
            width = (24 * math.sqrt(math.pi)) ** (1 / 3) * deviation * n ** (-1 / (d + 2))
        else:
            width = 2 * float(_quantile(x, weight, 0.75) - _quantile(x, weight, 0.25)) * n ** (-1 / (d + 2))
            if width <= 0:
                raise ValueError(
                    "expected quartiles that differ for bins='freedman-diaconis', got a column of which half of the "
                    "rows are equal; choose bins='scott', or a number"
                )
        return math.ceil(span / width)

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p of each row; -inf where no row was."""
        place, inside = _cells(x.double(), self.low.double(), self.width.double(), self.counts)
        own = self.log_share[place] - self.width.log().sum()
        own = torch.where(inside, own, -torch.inf)
        if not self.tails:
            return own.to(x.dtype)
        z = (x - self.mean) / self.deviation
        tail = -0.5 * (z * z + math.log(2 * math.pi)).sum(-1) - self.deviation.log().sum()
        return torch.logaddexp(own + math.log1p(-self.tails), tail + math.log(self.tails)).to(x.dtype)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """A cell by its share, a place in it by chance; with `tails`, now and then a normal row."""
        share = self.log_share.double().exp().cumsum(0)
        u = uniform((n,), place="cell", dtype=torch.float64) * share[-1]
        flat = torch.searchsorted(share, u, right=True).clamp_max(len(share) - 1)
        index: list[Tensor] = []
        for j in reversed(range(len(self.names))):
            index.insert(0, flat % self.counts[j])
            flat = flat // self.counts[j]
        within = uniform((n, len(self.names)), place="within", dtype=self.low.dtype)
        x = self.low + self.width * (torch.stack(index, 1) + within)
        if not self.tails:
            return x
        tail = self.mean + self.deviation * normal(x.shape, place="tail", dtype=x.dtype)
        return torch.where(uniform((n, 1), place="part", dtype=torch.float64) < self.tails, tail, x)

    def free_parameters(self) -> int:
        """The shares, which sum to 1."""
        return max(len(self.log_share) - 1, 0)


def _cells(x: Tensor, low: Tensor, width: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each row's cell, and whether it is within the grid, whose last edge belongs to the last cell."""
    scaled = (x - low) / width
    inside = ((scaled >= 0) & (scaled <= counts * (1 + 1e-9))).all(-1)
    index = torch.minimum(scaled.floor().clamp_min(0).long(), counts - 1)
    place = torch.zeros_like(index[..., 0])
    for j in range(x.shape[-1]):
        place = place * counts[j] + index[..., j]
    return place, inside


def _quantile(x: Tensor, weight: Tensor, q: float) -> Tensor:
    """That of the rows repeated by their weights, by linear interpolation."""
    x, order = x.sort()
    upto = weight[order].cumsum(0)
    at = q * (float(upto[-1]) - 1)
    below, above = (
        x[torch.searchsorted(upto, upto.new_tensor(math.floor(at) + k), right=True).clamp_max(len(x) - 1)]
        for k in (0, 1)
    )
    return below + (at - math.floor(at)) * (above - below)
