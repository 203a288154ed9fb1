"""What linear-Gaussian models with latents share: the exact posterior, the evidence, and EM over what is observed.

    z ~ N(0, I),    x = W z + mean + noise,    noise ~ N(0, diag(psi))

With o the observed entries of a row, W_o their rows of W and psi_o their noise, everything follows from the matrix
M = I + W_o' diag(psi_o)^-1 W_o, as small as the latents are few, in place of the covariance of x:

    p(z | x_o) = N(z; z^, M^-1),    z^ = M^-1 W_o' diag(psi_o)^-1 (x_o - mean_o)
    -2 log p(x_o) = (r' diag(psi_o)^-1 r + z^' z^) + log det M + sum log psi_o + |o| log 2 pi, r = x_o - mean_o - W_o z^

where the first bracket is the quadratic form of (W_o W_o' + diag(psi_o))^-1, as a sum of squares that does not cancel.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.core.legal import Number, Whole
from weft.core.objective import Iterations, Solution, capability
from weft.core.random import normal
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import Laws, laws_of
from weft.objectives.densities.normals import Patterns, whole
from weft.objectives.densities.rows import all_rows, refuse_rows, weights_of

__all__ = ["LINEAR", "LinearLatent", "Posterior", "canonical", "infer"]

LINEAR = {"latent": Whole(1), "tolerance": Number(0), "iterations": Whole(1)}
"""What all of them are set by."""


class Posterior(NamedTuple):
    """Of each row.

    Attributes:
        mean: of the latents, `(n, k)`.
        factor: the Cholesky factor of their precision M, `(n, k, k)`, or `(k, k)` where all rows have the same.
        evidence: log p of what is observed, `(n,)`.
    """

    mean: Tensor
    factor: Tensor
    evidence: Tensor


def infer(
    x: Tensor, masks: Tensor | None, mean: Tensor, loadings: Tensor, log_scale: Tensor, place: Tensor | None = None
) -> Posterior:
    """The posterior of the latents, and the evidence.

    Args:
        x: `(n, d)`.
        masks: which entries are observed, `(n, d)`, or the masks that there are; None where nothing is missing.
        mean, loadings, log_scale: `(d,)`, `(d, k)`, and the logs of the noise's deviations, `(d,)` or `(1,)`.
        place: which of the masks is each row's; by default each row has its own.
    """
    d, k = loadings.shape
    log_scale = log_scale.expand(d)
    precise = loadings * torch.exp(-2 * log_scale).unsqueeze(-1)
    eye = torch.eye(k, dtype=x.dtype, device=x.device)
    if masks is None:
        m = torch.ones_like(x)
        factor = torch.linalg.cholesky(eye + loadings.mT @ precise)
        away = x - mean
        z = torch.cholesky_solve((away @ precise).mT, factor).mT
    else:
        m = masks.to(x.dtype)
        products = (loadings.unsqueeze(-1) * precise.unsqueeze(-2)).reshape(d, k * k)
        factor = torch.linalg.cholesky(eye + (m @ products).reshape(-1, k, k))
        if place is not None:
            m, factor = m[place], factor[place]
        away = (x - mean) * m
        z = torch.cholesky_solve((away @ precise).unsqueeze(-1), factor).squeeze(-1)
    rest = (away - m * (z @ loadings.mT)) * torch.exp(-log_scale)
    squares = (rest**2).sum(-1) + (z**2).sum(-1)
    volume = 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1) + 2 * (m * log_scale).sum(-1)
    return Posterior(z, factor, -0.5 * (squares + volume + m.sum(-1) * math.log(2 * math.pi)))


def canonical(loadings: Tensor, variance: Tensor) -> Tensor:
    """The rotation of the loadings for which W' diag(psi)^-1 W is diagonal, largest first.

    The largest entry of each column is positive, so that equal models have equal numbers.
    """
    scale = variance.expand(len(loadings)).sqrt().unsqueeze(-1)
    u, s, _ = torch.linalg.svd(loadings / scale, full_matrices=False)
    turned = scale * u * s
    most = turned.gather(0, turned.abs().argmax(0, keepdim=True))
    return turned * torch.where(most < 0, -1.0, 1.0)


class LinearLatent(Density):
    """The base of probabilistic PCA and factor analysis; a subclass says how the noise is estimated.

    Attributes:
        shared: whether all columns have one variance of noise.
    """

    solved = True
    gaps = True
    shared: bool = False
    entries: Laws
    latent: int
    tolerance: float
    iterations: int

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], "normal" if not spec["x"].columns else "auto")
        self.entries.refuse_others("normal", type(self).__name__)
        (d,) = spec["x"].shape
        if self.latent >= d:
            raise ValueError(
                f"expected fewer latents than columns for {type(self).__name__}, got latent={self.latent} for {d} "
                f"column{'s' * (d != 1)}, which leaves nothing for the noise to explain; take latent="
                f"{max(d - 1, 1)} or less, or weft.objectives.Gaussian, which has every covariance"
            )
        self.mean = nn.Parameter(torch.zeros(d))
        self.loadings = nn.Parameter(torch.empty(d, self.latent))
        self.log_scale = nn.Parameter(torch.zeros(1 if self.shared else d))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Loadings at random, in units of each column's deviation: where EM begins."""
        nn.init.normal_(self.loadings, std=(2 * self.latent) ** -0.5)

    def free_parameters(self) -> int:
        """Mean, loadings less what a rotation of the latents takes away, and noise; at most what a Gaussian has."""
        d, k = self.loadings.shape
        return d + min(d * k - k * (k - 1) // 2 + len(self.log_scale), d * (d + 1) // 2)

    # --- the model ----------------------------------------------------------------------------------------

    def _infer(self, x: Tensor, observed: Tensor | None) -> Posterior:
        masks = None if whole(observed) else observed
        return infer(x, masks, self.mean, self.loadings, self.log_scale)

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """log p of what is observed of each row, exact."""
        return self._infer(x, observed).evidence

    @capability(merge="refuse", kind="direct", asks="rows", gives="")
    def posterior(self, x: Tensor, observed: Tensor | None = None, *, draws: int = 1) -> Tensor:
        """Latents drawn given what is observed of each row, `(n, draws, latent)`."""
        Whole(1).check(draws, "draws", 1)
        return self._latents(x, observed, draws)

    def _latents(self, x: Tensor, observed: Tensor | None, draws: int) -> Tensor:
        """z^ + L'^-1 e, with M = L L'."""
        found = self._infer(x, observed)
        e = normal((len(x), draws, self.latent), place="z", dtype=x.dtype)
        back = found.factor.mT.expand(len(x), self.latent, self.latent)
        return found.mean.unsqueeze(1) + torch.linalg.solve_triangular(back, e.mT, upper=True).mT

    @capability(merge="refuse")
    def transform(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """The posterior mean of each row's latents."""
        return self._infer(x, observed).mean

    @capability(merge="refuse")
    def inverse_transform(self, z: Tensor) -> Tensor:
        """W z + mean."""
        return z @ self.loadings.mT + self.mean

    def _noisy(self, z: Tensor) -> Tensor:
        """Rows drawn given latents."""
        place = self.inverse_transform(z)
        return place + self.log_scale.exp() * normal(place.shape, place="x", dtype=place.dtype)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Latents by their law, then rows given them."""
        return self._noisy(normal((n, self.latent), place="z", dtype=self.mean.dtype))

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows whose gaps are drawn given what is observed: latents of the posterior, then the gaps given them."""
        return torch.where(observed, x, self._noisy(self._latents(x, observed, 1).squeeze(1)))

    # --- what is found by the data ------------------------------------------------------------------------

    def _rows(self, source: Source, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows that count, about the columns' means, which of them is observed, how much each counts, and the means."""
        rows = all_rows(source, state)
        x, weight, seen = rows["x"].double(), weights_of(rows).double(), rows["observed"]
        varying = [] if self.shared else list(range(x.shape[1]))
        refuse_rows(type(self).__name__, x, seen, weight, varying, self.entries.names)
        x, weight, seen = x[weight > 0], weight[weight > 0], seen[weight > 0]
        mass = weight.unsqueeze(-1) * seen
        centre = (mass * x).sum(0) / mass.sum(0)
        return torch.where(seen, x - centre, 0), seen, weight, centre

    def _noise(self, squares: Tensor, count: Tensor, spread: Tensor) -> Tensor:
        """The variances of the noise, of expected squares and counts for each column, whose variances are `spread`."""
        raise NotImplementedError

    def _by_em(self, state: State, x: Tensor, seen: Tensor, weight: Tensor, centre: Tensor) -> Iterations:
        """EM over what is observed, in double precision, with the latents' own mean and covariance as parameters too.

        These two (Liu, Rubin and Wu) add nothing to the model, as they are put into the loadings and the mean at once,
        but the way is shorter; the likelihood still never falls.
        """
        mass = weight.unsqueeze(-1) * seen
        spread = (mass * x**2).sum(0) / mass.sum(0)
        if bool(seen.all()) and len(x) > 2 * x.shape[1]:
            x, seen, weight = _condensed(x, weight)
        patterns, total, last, gain = Patterns(x, seen), weight.sum(), -math.inf, math.inf
        mean, level = torch.zeros_like(centre), spread.mean().expand_as(spread) if self.shared else spread
        loadings = state.params["loadings"].detach().double() * level.sqrt().unsqueeze(-1)
        variance = self._noise(level / 2, torch.ones_like(level), spread)
        for _ in range(int(self.iterations)):
            sums = _expected(patterns, weight, mean, loadings, 0.5 * variance.log())
            solved = torch.linalg.solve(sums.second, sums.cross.unsqueeze(-1)).squeeze(-1)
            squares = (sums.squares - (solved * sums.cross).sum(-1)).clamp_min(0)
            variance = self._noise(squares, sums.second[:, -1, -1], spread)
            moved = sums.latent[-1, :-1] / total
            turn = torch.linalg.cholesky(sums.latent[:-1, :-1] / total - torch.outer(moved, moved))
            loadings, mean = solved[:, :-1] @ turn, solved[:, -1] + solved[:, :-1] @ moved
            now = float(sums.evidence / total)
            yield {"log_likelihood": now}
            last, gain = now, now - last
            if self.tolerance and gain <= self.tolerance:
                break
        if gain > self.tolerance > 0:
            warnings.warn(
                f"EM of {type(self).__name__} has not converged in {self.iterations} iterations: the last one gained "
                f"{gain:.2g} in mean log-likelihood, more than {self.tolerance:g}; allow more (iterations="
                f"{10 * self.iterations}), or a larger tolerance",
                stacklevel=2,
            )
        return self._solution(mean + centre, loadings, variance)

    def _solution(self, mean: Tensor, loadings: Tensor, variance: Tensor) -> Solution:
        return {"mean": mean, "loadings": canonical(loadings, variance), "log_scale": 0.5 * variance.log()}


class _Sums(NamedTuple):
    """What the M-step needs, as sums over rows by weight; (z, 1) are the latents with a constant behind them."""

    second: Tensor  # for each column, over the rows that tell of it: E of the products of (z, 1), (d, k + 1, k + 1)
    cross: Tensor  # x times E of (z, 1), (d, k + 1)
    squares: Tensor  # x squared, (d,)
    latent: Tensor  # over all rows: E of the products of (z, 1), (k + 1, k + 1)
    evidence: Tensor


def _expected(rows: Patterns, weight: Tensor, mean: Tensor, loadings: Tensor, log_scale: Tensor) -> _Sums:
    """The E-step."""
    d, k = loadings.shape
    width = k + 1
    second, cross, squares = mean.new_zeros(d, width**2), mean.new_zeros(d, width), mean.new_zeros(d)
    latent, evidence = mean.new_zeros(width**2), mean.new_zeros(())
    for numbers, x, masks, place in rows.parts(width**2 + d):
        w, m = weight[numbers].unsqueeze(-1), masks[place]
        found = infer(x, masks, mean, loadings, log_scale, place)
        one = torch.cat([found.mean, torch.ones_like(w)], -1)
        products = one.unsqueeze(-1) * one.unsqueeze(-2)
        products[:, :k, :k] += torch.cholesky_inverse(found.factor)
        second += (w * m).mT @ products.flatten(1)
        cross += (w * m * x).mT @ one
        squares += (w * m * x**2).sum(0)
        latent += w.squeeze(-1) @ products.flatten(1)
        evidence += w.squeeze(-1) @ found.evidence
    return _Sums(second.reshape(d, width, width), cross, squares, latent.reshape(width, width), evidence)


def _condensed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two rows for each column, with the weight, the mean (nought) and the covariance of all: the same likelihood."""
    d = x.shape[1]
    values, vectors = torch.linalg.eigh((weight.unsqueeze(-1) * x).mT @ x / weight.sum())
    half = (vectors * (d * values.clamp_min(0)).sqrt()).mT
    few = torch.cat([half, -half])
    return few, torch.ones_like(few, dtype=torch.bool), (weight.sum() / (2 * d)).expand(2 * d)
