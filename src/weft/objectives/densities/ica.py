"""Independent component analysis by maximum likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Solution, Told, capability
from weft.core.optimizer import Optimizer
from weft.core.random import bernoulli, normal, uniform
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import Laws, laws_of
from weft.objectives.densities.rows import all_rows, weights_of

__all__ = ["ICA"]

_SECH = -math.log(math.pi)
_FLOOR = 1e-2  # of the curvature: where it is less, or negative, a Newton step would be too long or go uphill
_TRIALS = 12  # halvings of a step


class ICA(Density):
    """Independent component analysis: sources that are independent, mixed by a matrix that is learned.

        s = W P (x - m),      log p(x) = sum_j log p(s_j) + log |det W| + log |det P|

    with m the mean of the data and P their whitening, which are taken from the data before anything is learned, and W
    the unmixing matrix. The law of a source is fixed, and its scale with it; sources are found up to their order and
    sign. `super` is the hyperbolic secant, p(s) = 1 / (pi cosh s), heavier in the tails than the normal law, `sub` half
    N(1, 1) and half N(-1, 1), lighter, and `mixed` a mixture of both with a share that is learned for each source.
    Where some sources are of the other kind than the law, they are not found: the likelihood of a wrong law has its
    maximum elsewhere.

    By `newton` the likelihood of all rows is maximized by relative Newton steps: with phi = -(log p)' and averages over
    the rows, the gradient at W' = (I + E) W is G = mean(phi(s) s^T) - I, its Hessian nearly block-diagonal, where the
    sources are independent,

        H_ij = mean(phi'(s_i)) mean(s_j^2),      E_ij, E_ji solve  [[H_ij, 1], [1, H_ji]] (E_ij, E_ji) = -(G_ij, G_ji),

    its eigenvalues held above a floor, and a step that does not raise the likelihood is halved. By `gradient` the
    Learner descends, with its optimizer, batches and strategy.

    Args:
        prior: the law of the sources, `super`, `sub` or `mixed`.
        inference: `newton` or `gradient`.
        tolerance: newton ends where no entry of the gradient is larger.
        iterations: most Newton steps.

    References:
        Pham and Garat, "Blind separation of mixture of independent sources through a quasi-maximum likelihood
        approach", IEEE Transactions on Signal Processing 45, 1997.
        Lee, Girolami and Sejnowski, "Independent component analysis using an extended infomax algorithm for mixed
        subgaussian and supergaussian sources", Neural Computation 11, 1999.
        Ablin, Cardoso and Gramfort, "Faster independent component analysis by preconditioning with Hessian
        approximations", IEEE Transactions on Signal Processing 66, 2018.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> sources = np.random.default_rng(0).laplace(size=(500, 2))
        >>> learner = Learner(ICA(), random_state=0).fit(sources @ [[1.0, 0.5], [-0.3, 2.0]])
        >>> found = learner.transform(sources @ [[1.0, 0.5], [-0.3, 2.0]])
        >>> bool(np.abs(np.corrcoef(found.T, sources.T)[:2, 2:]).max(1).min() > 0.98)
        True
    """

    entries: Laws
    mean: Tensor
    whitening: Tensor
    optimizer = Optimizer("adam", lr=0.01)
    carried = ("mean", "whitening")
    legal = {
        "prior": Choice("super", "sub", "mixed"),
        "inference": Choice("newton", "gradient"),
        "tolerance": Number(0, ends="()"),
        "iterations": Whole(1),
    }

    def __init__(
        self, *, prior: str = "super", inference: str = "newton", tolerance: float = 1e-6, iterations: int = 200
    ) -> None:
        super().__init__()
        self.prior = prior
        self.inference = inference
        self.tolerance = tolerance
        self.iterations = iterations

    @property
    def solved(self) -> bool:  # type: ignore[override]
        return self.inference == "newton"

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], "auto")
        if odd := [n for n, law in zip(self.entries.names, self.entries.laws, strict=True) if not law.continuous]:
            raise ValueError(
                f"expected columns of real numbers for ICA, got {odd[0]}, whose values have probabilities, not a "
                "density; leave it out"
            )
        columns = len(self.entries)
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("whitening", torch.eye(columns))
        self.unmixing = nn.Parameter(torch.empty(columns, columns))
        if self.prior == "mixed":
            self.share = nn.Parameter(torch.empty(columns))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A rotation at random; of mixed laws half of each."""
        nn.init.orthogonal_(self.unmixing)
        if self.prior == "mixed":
            nn.init.zeros_(self.share)

    def free_parameters(self) -> int:
        return super().free_parameters() + len(self.mean)  # the whitening adds nothing to the unmixing

    # --- the model ----------------------------------------------------------------------------------------

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x), exact."""
        volume = torch.linalg.slogdet(self.unmixing)[1] + torch.linalg.slogdet(self.whitening)[1]
        share = self.share if self.prior == "mixed" else None
        return log_law(self.transform(x), self.prior, share).sum(-1) + volume

    @capability(merge="refuse")
    def transform(self, x: Tensor) -> Tensor:
        """The sources of each row."""
        return (x - self.mean) @ self.whitening.mT @ self.unmixing.mT

    @capability(merge="refuse")
    def inverse_transform(self, s: Tensor) -> Tensor:
        """The rows of given sources."""
        return torch.linalg.solve(self.unmixing @ self.whitening, s.mT).mT + self.mean

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Draws sources by their laws and mixes them."""
        shape, dtype = (n, len(self.mean)), self.mean.dtype
        u = uniform(shape, place="u", dtype=torch.float64).clamp_min(2.0**-54)
        heavy = torch.log(torch.tan(math.pi / 2 * u)).to(dtype)  # the inverse of 2/pi arctan(exp s)
        if self.prior == "super":
            return self.inverse_transform(heavy)
        side = 2 * bernoulli(torch.full(shape, 0.5, dtype=dtype, device=self.mean.device), place="side") - 1
        light = side + normal(shape, place="light", dtype=dtype)
        if self.prior == "sub":
            return self.inverse_transform(light)
        which = bernoulli(self.share.sigmoid().expand(shape), place="which")
        return self.inverse_transform(torch.where(which > 0.5, heavy, light))

    # --- what is found by the data ------------------------------------------------------------------------

    def survey(self, source: Source, state: State) -> Solution:
        """The mean and the whitening of the data."""
        rows = all_rows(source, state)
        return self._whitened(rows["x"].double(), weights_of(rows).double())

    def _whitened(self, x: Tensor, weight: Tensor) -> Solution:
        """m and P = D^(-1/2) V^T of the covariance V D V^T; raises where it has none."""
        self.refuse_constant(x[weight > 0], self.entries.names)
        share = weight / weight.sum()
        mean = share @ x
        covariance = (share[:, None] * (x - mean)).T @ (x - mean)
        scale = covariance.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(covariance / scale / scale[:, None])  # of columns of unit variance
        least = len(x) * torch.finfo(torch.float64).eps
        if len(x) <= x.shape[1] or float(values[0]) < max(least, 1e-10):
            largest = vectors[:, 0].abs().argsort(descending=True)[:3].tolist()
            named = ", ".join(self.entries.names[j] for j in sorted(j for j in largest if vectors[j, 0].abs() > 0.1))
            raise ValueError(
                f"expected columns none of which follows from the others, and more rows than columns, got {len(x)} "
                f"rows of {x.shape[1]} columns of which {int((values < max(least, 1e-10)).sum())} follow(s), such as "
                f"among {named}: their covariance cannot be whitened; leave some out"
            )
        return {"mean": mean, "whitening": (vectors / values.sqrt()).T / scale}

    def solve(self, source: Source, state: State) -> Generator[Told, None, Solution]:
        """Relative Newton steps on the likelihood of all rows, in double precision."""
        rows = all_rows(source, state)
        x, weight = rows["x"].double(), weights_of(rows).double()
        found = self._whitened(x, weight)
        share = weight / weight.sum()
        white = (x - found["mean"]) @ found["whitening"].T
        unmixing = state.params["unmixing"].detach().double()
        logit = state.params["share"].detach().double() if self.prior == "mixed" else None

        def likelihood(w: Tensor) -> Tensor:
            return share @ log_law(white @ w.T, self.prior, logit).sum(-1) + torch.linalg.slogdet(w)[1]

        value, steepest = likelihood(unmixing), math.inf
        for _ in range(int(self.iterations)):
            s = white @ unmixing.T
            slope, bend = _slopes(s, self.prior, logit)
            gradient = (share[:, None] * slope).T @ s - torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
            step = _newton(gradient, share @ bend, share @ s**2, share @ (bend * s**2))
            size = 1.0
            for _ in range(_TRIALS):
                tried = unmixing + size * step @ unmixing
                reached = likelihood(tried)
                if bool(reached > value):
                    unmixing, value = tried, reached
                    break
                size /= 2
            stuck = not bool(reached >= value)
            if logit is not None:
                moved = _shares(white @ unmixing.T, share, logit)
                stuck = stuck and bool((moved - logit).abs().max() < 1e-4)
                logit = moved
                value = likelihood(unmixing)
            steepest = float(gradient.abs().max())
            yield {"log_likelihood": value + torch.linalg.slogdet(found["whitening"])[1], "gradient": steepest}
            if steepest < self.tolerance or stuck:
                break
        if steepest > max(1e-3, 10 * self.tolerance):
            warnings.warn(
                f"ICA has not converged in {self.iterations} iterations: an entry of the gradient is {steepest:.2g}, "
                f"not below {self.tolerance:g}; allow more iterations, or choose another prior",
                stacklevel=2,
            )
        return {**found, "unmixing": unmixing, **({} if logit is None else {"share": logit})}


def log_law(s: Tensor, prior: str, share: Tensor | None = None) -> Tensor:
    """log p of each source; `share` are the logits of the heavy law's share where they are mixed."""
    log_cosh = s.abs() + F.softplus(-2 * s.abs()) - math.log(2)
    heavy, light = _SECH - log_cosh, log_cosh - 0.5 * (s**2 + 1) - 0.5 * math.log(2 * math.pi)
    if share is None:
        return heavy if prior == "super" else light
    return torch.logaddexp(F.logsigmoid(share) + heavy, F.logsigmoid(-share) + light)


def _slopes(s: Tensor, prior: str, share: Tensor | None) -> tuple[Tensor, Tensor]:
    """phi = -(log p)' and phi' of each source; of a mixture the mean of both, the latter less the slopes' variance."""
    tanh = torch.tanh(s)
    heavy, light = (tanh, 1 - tanh**2), (s - tanh, tanh**2)
    if share is None:
        return heavy if prior == "super" else light
    r = torch.sigmoid(share + log_law(s, "super") - log_law(s, "sub"))
    spread = r * (1 - r) * (heavy[0] - light[0]) ** 2
    return r * heavy[0] + (1 - r) * light[0], r * heavy[1] + (1 - r) * light[1] - spread


def _shares(s: Tensor, weight: Tensor, share: Tensor) -> Tensor:
    """The heavy law's shares p after a Newton step on their likelihood, which is concave, or else one of EM.

    With r the probability of the heavy law given a source, EM's step is p = mean r; the derivative of log p(s) by p is
    d = r / p - (1 - r) / (1 - p), and its second derivative -d^2.
    """
    p = share.sigmoid()
    r = torch.sigmoid(share + log_law(s, "super") - log_law(s, "sub"))
    d = r / p - (1 - r) / (1 - p)
    steps = (weight @ r, p + weight @ d / (weight @ d**2).clamp_min(1e-300))
    em, newton = (torch.logit(step.clamp(1e-4, 1 - 1e-4)) for step in steps)
    better = weight @ log_law(s, "mixed", newton) > weight @ log_law(s, "mixed", em)
    return torch.where(better, newton, em)


def _newton(gradient: Tensor, bend: Tensor, square: Tensor, own: Tensor) -> Tensor:
    """The relative step: pairs (i, j) and (j, i) by two, each source's scale by itself."""
    h = bend[:, None] * square
    middle, apart = (h + h.T) / 2, ((h - h.T) ** 2 / 4 + 1).sqrt()
    h = h + (_FLOOR - (middle - apart)).clamp_min(0)
    step = (gradient.T - h.T * gradient) / (h * h.T - 1)
    scale = -gradient.diagonal() / (own + 1).clamp_min(_FLOOR)
    return step - torch.diag(step.diagonal()) + torch.diag(scale)
