"""Where samples lie: precision and recall, density and coverage, and the modes that are hit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.scores.samples.reading import Samples, between, blocks, pair

__all__ = ["DensityCoverage", "Modes", "PrecisionRecall", "density_coverage", "modes", "precision_recall"]


class PrecisionRecall(NamedTuple):
    """The share of generated rows that look real, and the share of real rows that are generated."""

    precision: float
    recall: float


class DensityCoverage(NamedTuple):
    """How densely generated rows lie where real ones do, and the share of real rows with a generated one near."""

    density: float
    coverage: float


class Modes(NamedTuple):
    """How many modes have a good sample, the share of good samples, and the good samples of each mode."""

    modes: int
    share: float
    counts: tuple[int, ...]


def precision_recall(
    real: Samples, generated: Samples, *, neighbours: int = 3, device: torch.device | str | None = None
) -> PrecisionRecall:
    """Fidelity and variety, by balls around the rows that reach to their k-th nearest neighbour in their own sample:

        precision = share of *generated* rows within the ball of some *real* row,
        recall    = share of *real* rows within the ball of some *generated* row.

    A generator that drops modes keeps its precision and loses recall; one that scatters loses precision. A single
    outlier's large ball raises both: see `density_coverage`.

    Args:
        real, generated: the samples, in this order: the other way round precision and recall change places.
        neighbours: k; the paper's is 3.
        device: where to compute; by default where `real` is.

    References:
        Kynkäänniemi, Karras, Laine, Lehtinen and Aila, "Improved precision and recall metric for assessing generative
        models", arXiv 1904.06991.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> real = np.r_[rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) + 20]
        >>> precise, recalled = precision_recall(real, rng.normal(size=(400, 2)))
        >>> precise > 0.9, 0.4 < recalled < 0.55
        (True, True)
    """
    left, right = _both(real, generated, neighbours, device)
    precision = (_inside(right, left, _radii(left, neighbours, "real")) > 0).double().mean()
    recall = (_inside(left, right, _radii(right, neighbours, "generated")) > 0).double().mean()
    return PrecisionRecall(float(precision), float(recall))


def density_coverage(
    real: Samples, generated: Samples, *, neighbours: int = 5, device: torch.device | str | None = None
) -> DensityCoverage:
    """Fidelity and variety by balls around real rows only, each counted, so that an outlier has little say:

        density  = 1/(k n) sum over generated rows of the number of real balls they are in,
        coverage = share of real rows with a generated one in their ball,

    n generated rows, balls up to the k-th nearest real neighbour. Of two samples of one law the density is about 1 (it
    may exceed it) and, of equal sizes, the coverage about 1 - 2^-k.

    Args:
        real, generated: the samples, in this order.
        neighbours: k; the paper's is 5.
        device: where to compute; by default where `real` is.

    References:
        Naeem, Oh, Uh, Choi and Yoo, "Reliable fidelity and diversity metrics for generative models", arXiv 2002.09797.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> real = np.r_[rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) + 20]
        >>> density, coverage = density_coverage(real, rng.normal(size=(400, 2)))
        >>> density > 0.9, 0.4 < coverage < 0.55
        (True, True)
    """
    left, right = _both(real, generated, neighbours, device)
    radii = _radii(left, neighbours, "real")
    in_balls = _inside(right, left, radii).double().mean()
    near = torch.cat(
        [between(left[a:b], right).amin(1) <= radii[a:b] for a, b in blocks(len(left), len(right), copies=6)]
    )
    return DensityCoverage(float(in_balls / neighbours), float(near.double().mean()))


def modes(samples: Samples, centres: Samples, *, within: float, device: torch.device | str | None = None) -> Modes:
    """Which of some known modes samples hit.

    A sample is good if it lies no further than `within` from its nearest centre; a mode is hit if it has a good
    sample. The custom for Gaussians of deviation s is within = 3 s.

    Args:
        samples: rows.
        centres: a row for each mode.
        within: a distance > 0.
        device: where to compute; by default where `samples` are.

    References:
        Srivastava, Valkov, Russell, Gutmann and Sutton, "VEEGAN", arXiv 1705.07761; Lin, Khetan, Fanti and Oh,
        "PacGAN", arXiv 1712.04086.

    Example:
        >>> modes([[1.0, 0.0], [1.0, 0.02], [0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], within=0.03)
        Modes(modes=2, share=0.75, counts=(2, 1, 0))
    """
    Number(0, ends="(]").check(within, "within")
    rows, middle = pair(samples, centres, least=1, device=device)
    nearest = [between(rows[a:b], middle).min(1) for a, b in blocks(len(rows), len(middle))]
    good = torch.cat([found.values for found in nearest]) <= within**2
    counts = torch.bincount(torch.cat([found.indices for found in nearest])[good], minlength=len(middle))
    return Modes(int((counts > 0).sum()), float(good.double().mean()), tuple(counts.tolist()))


def _both(
    real: Samples, generated: Samples, neighbours: int, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    Whole(1).check(neighbours, "neighbours")
    left, right = pair(real, generated, least=neighbours + 1, device=device)
    middle = left.mean(0)
    return left - middle, right - middle


def _radii(rows: Tensor, neighbours: int, name: str) -> Tensor:
    """The squared distance of each row's k-th nearest neighbour among the others."""
    found = []
    for start, stop in blocks(len(rows), len(rows), copies=6):
        squared = between(rows[start:stop], rows)
        squared[torch.arange(stop - start, device=rows.device), torch.arange(start, stop, device=rows.device)] = -1.0
        found.append(squared.kthvalue(neighbours + 1, dim=1).values)
    radii = torch.cat(found)
    still = float((radii == 0).double().mean())
    if still > 0.5:
        raise ValueError(
            f"expected {name} rows that differ, got {100 * still:.0f} % of them with {neighbours} or more equal ones, "
            f"whose balls hold nothing else; leave duplicates out, or take more neighbours"
        )
    return radii


def _inside(rows: Tensor, centres: Tensor, radii: Tensor) -> Tensor:
    """In how many balls each row is."""
    return torch.cat(
        [(between(rows[a:b], centres) <= radii).sum(1) for a, b in blocks(len(rows), len(centres), copies=6)]
    )
