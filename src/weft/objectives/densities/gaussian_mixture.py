"""Mixtures of Gaussians, with covariances of four forms."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from weft.core.legal import Choice, Number
from weft.core.objective import Solution
from weft.core.random import normal
from weft.core.source import Spec
from weft.objectives.densities.laws import laws_of
from weft.objectives.densities.mixing import LOST, MIXING, Mixing, Rows, Start, first_of, named, spread_of
from weft.objectives.densities.normals import (
    Moments,
    Patterns,
    covariance_of,
    factor_of,
    filled,
    gathered,
    log_normal,
)
from weft.objectives.densities.quadratics import Quadratics

__all__ = ["GaussianMixture"]


class GaussianMixture(Mixing):
    """A mixture of normals, p(x) = sum_k share_k N(x; mean_k, C_k).

    The covariances C_k are `full`, `diagonal`, `spherical` (a variance times the identity) or `tied` (a full one that
    all components share). With responsibilities r_ik = p(k | x_i) an iteration of EM is

        share_k = sum_i r_ik / n,    mean_k = sum_i r_ik x_i / sum_i r_ik,
        C_k = (sum_i r_ik (x_i - mean_k)(x_i - mean_k)' + prior I) / (sum_i r_ik + prior) + floor I

    where what is missing of a row counts by its expectation given the rest and the component. Without prior and floor
    the likelihood never falls, but it has no bound: a component that closes in on a few rows is worth ever more. With a
    floor it has one, and it is said where a component sits on it. Densities of rows with gaps are marginals and
    `impute` draws from the conditional, both exact. An anomaly score is `-log_prob`; `transform` gives the
    responsibilities.

    By EM all restarts (`replicas=50`) are solved together, the best is `learner.best_replica_`; by gradient the same
    joint density is descended, under any strategy.

    Args:
        components: how many.
        covariance: `full`, `diagonal`, `tied` or `spherical`.
        inference: `em`, or `gradient`.
        start: of EM `k-means` (`auto`), `k-means++` or `rows` (nearest to rows drawn); of a gradient `random`, for rows
            of about unit scale; or for both the parameters by name: `{"logits": (K,), "mean": (K, d), "scale": ...}`,
            with scale the Cholesky factors, their diagonals as logs (`weft.objectives.densities.normals.packed`), or of
            diagonal and spherical covariances the logs of the deviations, `(K, d)` or `(K, 1)`.
        floor: is added to each variance by EM; a gradient knows none.
        prior: so many imagined rows of unit covariance for each component (maximum a posteriori), by EM.
        tolerance: the gain in mean log-likelihood at which EM ends; 0 for all iterations.
        iterations: the most of EM.

    References:
        Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39, 1977;
        Ghahramani and Jordan, "Supervised learning from incomplete data via an EM approach", NIPS 1993.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(400, 2)) + 6 * rng.integers(0, 2, (400, 1))
        >>> learner = Learner(GaussianMixture(2), dtype="float64", replicas=5, random_state=0).fit(X)
        >>> best = learner.replica(learner.best_replica_)
        >>> best.impute([[6.0, np.nan], [0.0, np.nan]], random_state=0)[:, 1].round() > 3
        array([ True, False])
    """

    numbers = ("mean", "scale")
    mean: nn.Parameter
    scale: nn.Parameter
    legal = {**MIXING, "covariance": Choice("full", "diagonal", "tied", "spherical"), "prior": Number(0)}

    def __init__(
        self,
        components: int = 2,
        *,
        covariance: str = "full",
        inference: str = "em",
        start: Start = "auto",
        floor: float = 1e-6,
        prior: float = 0.0,
        tolerance: float = 1e-6,
        iterations: int = 1000,
    ) -> None:
        super().__init__()
        self.components = components
        self.covariance = covariance
        self.inference = inference
        self.start = start
        self.floor = floor
        self.prior = prior
        self.tolerance = tolerance
        self.iterations = iterations

    def validate(self) -> None:
        super().validate()
        if self.inference == "gradient" and self.prior:
            raise ValueError(
                f"expected no prior with inference='gradient', which descends the likelihood alone, got {self.prior:g}"
                "; leave it out, or take inference='em'"
            )

    @property
    def full(self) -> bool:
        """Whether columns may depend on each other within a component."""
        return self.covariance in ("full", "tied")

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], "normal" if not spec["x"].columns else "auto")
        self.entries.refuse_others("normal", type(self).__name__)
        k, d = self.components, spec["x"].shape[0]
        shape = {"full": (k, d, d), "tied": (1, d, d), "diagonal": (k, d), "spherical": (k, 1)}[self.covariance]
        self.declare({"logits": (k,), "mean": (k, d), "scale": shape}, random={"mean": 1.0})

    def log_given(self, theta: Solution, x: Tensor, observed: Tensor | None) -> Tensor:
        return log_normal(x, observed, theta["mean"], theta["scale"], self.full)

    def _scale(self, component: Tensor) -> Tensor:
        scale = self.scale.expand(self.components, *self.scale.shape[1:])[component]
        return scale if self.full else scale.expand(-1, self.mean.shape[-1])

    def draw(self, component: Tensor) -> Tensor:
        mean, scale = self.mean[component], self._scale(component)
        z = normal(mean.shape, place="x", dtype=mean.dtype)
        return mean + ((factor_of(scale) @ z.unsqueeze(-1)).squeeze(-1) if self.full else z * scale.exp())

    def fill(self, x: Tensor, observed: Tensor, component: Tensor) -> Tensor:
        drawn = self.draw(component)
        if not self.full:
            return torch.where(observed, x, drawn)
        return filled(x, observed, drawn, covariance_of(self._scale(component), True))

    # --- EM -------------------------------------------------------------------------------------------

    def prepare(self, rows: Rows) -> list[_Shown]:
        """For the replicas together where they share their rows, else for each."""
        return [_Shown(*each, self.full) for each in zip(*rows, strict=True)]

    def step(self, shown: list[_Shown], theta: Solution) -> tuple[Solution, Tensor, Tensor]:
        log_share, mean, scale = theta["logits"], theta["mean"], theta["scale"]
        if len(shown) == 1:
            moments = shown[0].expect(log_share, mean, scale)
            found, lost = self._maximize(moments, shown[0].spread)
            return found, moments.evidence, lost
        each = zip(shown, log_share, mean, scale, strict=True)
        every = [own.expect(*(value[None] for value in values)) for own, *values in each]
        found, lost = _stacked([self._maximize(own, one.spread) for own, one in zip(every, shown, strict=True)])
        return found, torch.cat([moments.evidence for moments in every]), lost

    def begin(self, rows: Rows, part: Tensor) -> tuple[Solution, Tensor]:
        """Of hard clusters, with the column's mean at the gaps of what has full covariances."""
        found = []
        for r, (x, observed, _) in enumerate(zip(*rows, strict=True)):
            if self.full:
                x, observed = self.features(Rows(x, observed, x)), torch.ones_like(observed)
            own = Quadratics(x, observed, self.full).sums(part if len(rows.x) == 1 else part[r : r + 1])
            found.append(self._maximize(own, spread_of(x, observed)))
        return _stacked(found)

    def features(self, rows: Rows) -> Tensor:
        """The rows, with the column's mean at gaps."""
        seen = rows.observed.to(rows.x.dtype)
        return torch.where(rows.observed, rows.x, (rows.x * seen).sum(-2, keepdim=True) / seen.sum(-2, keepdim=True))

    def _maximize(self, found: Moments, spread: Tensor) -> tuple[Solution, Tensor]:
        """The M-step, and the first component of each replica that has collapsed, or -1."""
        tiny = torch.finfo(spread.dtype).tiny
        mass, moved = found.mass.clamp_min(tiny), found.first / found.told.clamp_min(tiny)
        theta = {"logits": (mass / mass.sum(-1, keepdim=True)).log_(), "mean": found.about + moved}
        prior, d = self.prior, moved.shape[-1]
        if not self.full:
            squares, count = (found.second - found.told * moved**2).clamp_min(0), found.told
            if self.covariance == "spherical":
                squares, count, prior = squares.sum(-1, keepdim=True), count.sum(-1, keepdim=True), prior * d
            variance = (squares + prior) / (count + prior).clamp_min(tiny) + self.floor
            lost = (variance < LOST * spread).any(-1)
            theta["scale"] = 0.5 * variance.clamp_min(tiny).log()
            return theta, first_of(lost)
        squares = found.second - found.first.unsqueeze(-1) * moved.unsqueeze(-2)
        if self.covariance == "tied":
            squares, mass = squares.sum(1, keepdim=True), mass.sum(1, keepdim=True)
        if prior:
            squares.diagonal(dim1=-2, dim2=-1).add_(prior)
        covariance = squares.div_((mass + prior).unsqueeze(-1).unsqueeze(-1))
        variance = covariance.diagonal(dim1=-2, dim2=-1).add_(self.floor)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        # A pivot that is but rounding of its variance is none: the factor would be of noise.
        pivot = factor.diagonal(dim1=-2, dim2=-1)
        there = (pivot.square() > 8 * d * torch.finfo(pivot.dtype).eps * variance) & (variance >= LOST * spread)
        pivot.log_()  # which packs the factor
        return {**theta, "scale": factor}, first_of(~(there.all(-1) & (failed == 0)))

    def warn(self, theta: Solution) -> None:
        """Says where a component sits on the floor: its density tells of the floor, not of the rows."""
        covariance = covariance_of(theta["scale"].nan_to_num(), self.full)
        least = torch.linalg.eigvalsh(covariance)[..., 0]
        low = least <= 2 * self.floor
        if not bool(low.any()):
            return
        replicas = torch.nonzero(low.any(-1)).flatten()
        warnings.warn(
            f"component {int(torch.nonzero(low)[0, 1])} of {type(self).__name__} sits on the floor, "
            f"{self.floor:g}{named(replicas, len(low))}: it holds few rows, or rows in a plane, and its likelihood "
            "tells of the floor; take a larger one, fewer components, a prior, or choose by rows that are held out",
            stacklevel=2,
        )

    def free_parameters(self) -> int:
        k, d = self.mean.shape
        scale = {"full": k * d * (d + 1) // 2, "tied": d * (d + 1) // 2, "diagonal": k * d, "spherical": k}
        return k - 1 + k * d + scale[self.covariance]


class _Shown:
    """Rows as EM looks at them: by products of their entries where that is precise, else one by one."""

    def __init__(self, x: Tensor, observed: Tensor, weight: Tensor, full: bool) -> None:
        self.x, self.observed, self.weight, self.full = x, observed, weight, full
        self.spread = spread_of(x, observed)
        complete = not full or bool(observed.all())
        self.quadratics = Quadratics(x, observed, full) if complete else None
        self.patterns: Patterns | None = None

    def expect(self, log_share: Tensor, mean: Tensor, scale: Tensor) -> Moments:
        """The E-step of R replicas."""
        if self.quadratics is None:
            return self._one_by_one(log_share, mean, scale)
        inverse = self.quadratics.inverse(mean, scale)
        precise = self.quadratics.precise(inverse)
        if bool(precise.all()):
            return self.quadratics.expect(log_share, mean, scale, inverse, self.weight)
        parts = []
        for r, fast in enumerate(precise.tolist()):
            own = (log_share[r : r + 1], mean[r : r + 1], scale[r : r + 1])
            form = inverse[r : r + 1]
            found = self.quadratics.expect(*own, form, self.weight) if fast else self._one_by_one(*own)
            told, about = (value.expand_as(found.first) for value in (found.told, found.about))
            parts.append(found._replace(told=told, about=about))
        return Moments(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _one_by_one(self, log_share: Tensor, mean: Tensor, scale: Tensor) -> Moments:
        if self.full:
            self.patterns = self.patterns or Patterns(self.x, self.observed)
            covariance = covariance_of(scale, True).expand(-1, mean.shape[1], -1, -1)
            return gathered(self.patterns, self.weight, log_share, mean, covariance)
        seen = self.observed.to(mean.dtype)
        joint = log_share.unsqueeze(1) + log_normal(self.x.expand(len(mean), -1, -1), self.observed, mean, scale, False)
        evidence = torch.logsumexp(joint, -1)
        part = (joint - evidence.unsqueeze(-1)).exp() * self.weight[:, None]
        away = (self.x[:, None] - mean.unsqueeze(1)) * seen[:, None]
        first, second = (torch.einsum("rnk,rnkd->rkd", part, away**power) for power in (1, 2))
        return Moments(part.sum(1), part.mT @ seen, mean, first, second, evidence)


def _stacked(found: list[tuple[Solution, Tensor]]) -> tuple[Solution, Tensor]:
    every = {name: torch.cat([one[name] for one, _ in found]) for name in found[0][0]}
    return every, torch.cat([lost for _, lost in found])
