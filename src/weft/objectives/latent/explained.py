"""Models that explain a row by something unseen: what a joint density of both and a guess of the unseen can answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.legal import Choice, Whole
from weft.core.objective import capability
from weft.core.random import categorical, normal, turns
from weft.objectives.densities.density import Density

__all__ = ["Explained", "Guess"]

_BLOCK = 50  # draws for a row that are held at once
_DRAWS = Whole(1)


@dataclass(frozen=True)
class Guess:
    """q(z | x) = N(mean, exp(log_scale)^2), independent entries: what inference says of the unseen of each row.

    Attributes:
        mean, log_scale: `(n, latent)`.
    """

    mean: Tensor
    log_scale: Tensor

    def draw(self, draws: int, place: str) -> Tensor:
        """So many of each row, `(n, draws, latent)`: mean + scale * noise, so that a gradient goes through them."""
        shape = (self.mean.shape[0], draws, self.mean.shape[1])
        noise = normal(shape, place=place, dtype=self.mean.dtype)
        return self.mean.unsqueeze(1) + self.log_scale.exp().unsqueeze(1) * noise

    def log_prob(self, z: Tensor) -> Tensor:
        """log q of draws, `(n, draws)`."""
        return log_normal(z, self.mean.unsqueeze(1), self.log_scale.unsqueeze(1))

    def each_rate(self) -> Tensor:
        """KL(q || N(0, 1)) of each entry, `(n, latent)`: (mean^2 + scale^2 - 1) / 2 - log scale."""
        return 0.5 * (self.mean**2 + torch.expm1(2 * self.log_scale)) - self.log_scale

    def detached(self) -> Guess:
        """The same, of which no gradient is taken."""
        return Guess(self.mean.detach(), self.log_scale.detach())


def log_normal(z: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """log N(z; mean, exp(log_scale)^2), summed over the last axis."""
    away = (z - mean) * torch.exp(-log_scale)
    return (-0.5 * away**2 - log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)


class Explained(Density):
    """p(x) = int p(z) p(x | z) dz: a model of rows by something unseen, and a guess q(z | x) of it.

    A model states its joint density and how to draw from it:

        log_prior(z, y)              log p(z), `(n, K)`, for z of `(n, K, latent)`
        log_given(x, z, observed, y) log p(x | z) of what is observed, `(n, K)`
        draw_prior(n, y)             z ~ p(z), `(n, latent)`
        draw_given(z, y), mean_given(z, y)     x ~ p(x | z) and its mean, `(n, ...)`, for z of `(n, latent)`
        guess(x, observed, y)        q(z | x), a `Guess`, whatever inference it comes from

    What follows from these is written here once: bounds, draws of the posterior, reconstruction, imputation. With
    w_k = p(x, z_k) / q(z_k | x) for draws z_1, ..., z_K of q,

        E log (1/K sum_k w_k) <= log p(x),

    which is the evidence lower bound for K = 1 and comes nearer with more of them (Burda et al., arXiv 1509.00519).

    Attributes:
        refines: whether the guess of a row has numbers of its own, which can be searched for.
    """

    targets = "classes"
    refines: bool = True

    def log_prior(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """log p(z)."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prior(z)")

    def log_given(self, x: Tensor, z: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """log p(x | z) of what is observed."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_given(x, z)")

    def draw_prior(self, n: int, y: Tensor | None = None) -> Tensor:
        """z ~ p(z)."""
        raise NotImplementedError(f"{type(self).__name__} does not define draw_prior(n)")

    def draw_given(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """x ~ p(x | z)."""
        raise NotImplementedError(f"{type(self).__name__} does not define draw_given(z)")

    def mean_given(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given z; of classes the likeliest."""
        raise NotImplementedError(f"{type(self).__name__} does not define mean_given(z)")

    def guess(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Guess:
        """q(z | x)."""
        raise NotImplementedError(f"{type(self).__name__} does not define guess(x)")

    # --- what follows -------------------------------------------------------------------------------------

    def log_weights(
        self, x: Tensor, q: Guess, draws: int, observed: Tensor | None = None, y: Tensor | None = None
    ) -> Tensor:
        """log p(x, z_k) - log q(z_k | x) for draws of q, `(n, draws)`."""
        z = q.draw(draws, "z")
        return self.log_given(x, z, observed, y) + self.log_prior(z, y) - q.log_prob(z)

    def refine(self, q: Guess, x: Tensor, observed: Tensor | None, y: Tensor | None, steps: int) -> Guess:
        """The guess of each row improved by itself."""
        from weft.objectives.latent.inference import refined

        return refined(lambda own: self.log_weights(x, own, 4, observed, y).mean(-1), q, steps)

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def log_prob(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 64
    ) -> Tensor:
        """log (1/K sum_k w_k), in expectation at most log p(x) (given y): the nearer, the more draws.

        Args:
            x, observed, y: rows.
            draws: K; 1 for the evidence lower bound.
        """
        _DRAWS.check(draws, "the draws of log_prob")
        q, found = self.guess(x, observed, y), None
        for block in turns("weights", -(-int(draws) // _BLOCK)):
            own = self.log_weights(x, q, min(_BLOCK, int(draws) - block * _BLOCK), observed, y).logsumexp(-1)
            found = own if found is None else torch.logaddexp(found, own)
        if found is None:
            raise ValueError("expected some draws, got none")
        return found - math.log(int(draws))

    @capability(merge="mean", kind="lower bound", gives="density")
    def elbo(
        self,
        x: Tensor,
        observed: Tensor | None = None,
        y: Tensor | None = None,
        *,
        draws: int = 8,
        refine: int = 0,
    ) -> Tensor:
        """-distortion - rate.

        Args:
            x, observed, y: rows.
            draws: over which it is averaged.
            refine: steps by which the guess of each row is improved by itself first.
        """
        Whole(0).check(refine, "the refine of elbo")
        Whole(1).check(draws, "the draws of elbo")
        q = self.guess(x, observed, y)
        if refine:
            q = self.refine(q, x, observed, y, int(refine))
        return self.log_weights(x, q, int(draws), observed, y).mean(-1)

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def ais(
        self,
        x: Tensor,
        observed: Tensor | None = None,
        y: Tensor | None = None,
        *,
        chains: int = 16,
        steps: int = 100,
        leaps: int = 5,
        start: str = "prior",
    ) -> Tensor:
        """log of the mean weight of chains that go from p(z) to p(x, z): at most log p(x) in expectation.

        Annealed importance sampling: where q is a poor guess, draws of it need astronomical numbers to come near
        log p(x), and chains that move do not need q at all. The mean weight has the expectation p(x), so its log is too
        low on average, by about half the relative variance of the mean, the less the more temperatures and chains; for
        one row it may be too high. See `weft.objectives.latent.annealed.annealed` for moves and how their steps are
        found. It costs (chains + 4) x steps x (leaps + 1) decodings of a row with their gradients.

        Args:
            x, observed, y: rows.
            chains: of each row.
            steps: temperatures; 1 for weighted draws of the start alone, thousands for images (the paper's 10,000).
            leaps: leapfrogs of a move between two temperatures.
            start: where chains begin, `prior` or `guess` (q, nearer where it is good; where q is narrower than the
                posterior, its tails are found late).

        References:
            Neal, "Annealed importance sampling", Statistics and Computing 11, 2001.
            Wu, Burda, Salakhutdinov and Grosse, "On the quantitative analysis of decoder-based generative models",
            arXiv 1611.04273.
        """
        from weft.objectives.latent.annealed import annealed

        for name, value in {"chains": chains, "steps": steps, "leaps": leaps}.items():
            _DRAWS.check(value, f"the {name} of ais")
        Choice("prior", "guess").check(start, "the start of ais")
        q = self.guess(x, observed, y) if start == "guess" else None

        def draw(count: int) -> Tensor:
            if q is not None:
                return q.draw(count, "z")
            return torch.stack([self.draw_prior(x.shape[0], y) for _ in turns("chain", count)], 1)

        def joint(z: Tensor) -> Tensor:
            return self.log_given(x, z, observed, y) + self.log_prior(z, y)

        def first(z: Tensor) -> Tensor:
            return self.log_prior(z, y) if q is None else q.log_prob(z)

        with torch.no_grad():
            logs = annealed(first, joint, draw, chains=int(chains), steps=int(steps), leaps=int(leaps))
        return logs.logsumexp(-1) - math.log(int(chains))

    @capability(merge="mean", kind="estimate")
    def rate(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 8) -> Tensor:
        """R = KL(q(z | x) || p(z)), in nats: what the code of a row costs."""
        _DRAWS.check(draws, "the draws of rate")
        q = self.guess(x, observed, y)
        z = q.draw(int(draws), "z")
        return (q.log_prob(z) - self.log_prior(z, y)).mean(-1)

    @capability(merge="mean", kind="estimate", gives="surprise")
    def distortion(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 8
    ) -> Tensor:
        """D = -E_q log p(x | z), in nats: what is left to be told of a row once its code is known."""
        _DRAWS.check(draws, "the draws of distortion")
        z = self.guess(x, observed, y).draw(int(draws), "z")
        return -self.log_given(x, z, observed, y).mean(-1)

    @capability(merge="refuse", kind="direct")
    def posterior(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 1
    ) -> Tensor:
        """Draws of q(z | x), `(n, draws, latent)`."""
        _DRAWS.check(draws, "the draws of posterior")
        return self.guess(x, observed, y).draw(int(draws), "z")

    @capability(merge="refuse")
    def transform(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The mean of q(z | x)."""
        return self.guess(x, observed, y).mean

    @capability(merge="refuse")
    def inverse_transform(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given z; of classes the likeliest."""
        return self.mean_given(z, y)

    @capability(merge="refuse", gives="x")
    def reconstruct(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The mean of x given the mean of its code."""
        return self.mean_given(self.guess(x, observed, y).mean, y)

    @capability(merge="share", kind="direct", gives="x")
    def sample(self, n: int, y: Tensor | None = None) -> Tensor:
        """Rows of x ~ p(x | z) for z ~ p(z)."""
        return self.draw_given(self.draw_prior(n, y), y)

    def resampled(self, x: Tensor, observed: Tensor, y: Tensor | None, draws: int) -> Tensor:
        """z given what is observed: one of so many draws of q, in proportion to its weight."""
        q = self.guess(x, observed, y)
        z = q.draw(draws, "z")
        logs = self.log_given(x, z, observed, y) + self.log_prior(z, y) - q.log_prob(z)
        which = categorical(logs, place="which").reshape(-1, 1, 1)
        return z.gather(1, which.expand(-1, 1, z.shape[-1])).squeeze(1)
