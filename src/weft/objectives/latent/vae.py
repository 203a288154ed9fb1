"""The variational autoencoder, and its kin: weighted, with a target rate, importance-weighted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Output, reduce
from weft.core.optimizer import Optimizer
from weft.core.random import place
from weft.core.source import Batch, Spec
from weft.nets.make import NetLike
from weft.objectives.densities.density import Density
from weft.objectives.latent.coded import Coded
from weft.objectives.latent.explained import Guess

__all__ = ["VAE"]

_PATIENCE = 0.02  # by which the price of a nat follows the rate that is too high or too low, in each step


class VAE(Coded):
    """The variational autoencoder: x is drawn by a net from a code z ~ p(z), and a second net guesses the code of x.

        log p(x) >= E_q [log p(x | z)] - KL(q(z | x) || p(z)) = -distortion - rate

    `bound="elbo"` learns by -log p(x | z) + beta KL, z drawn as mean + scale * noise; the KL is a closed form where the
    prior is N(0, I), and an average over the draws else. beta is 1 in the bound; below it the code tells more, above it
    less (the beta-VAE). `target_rate` holds the mean rate R of a batch at a number T instead: what a nat costs is not
    given but found, price + (R - T) with the price raised by a fiftieth of R - T in each step, so that it comes to the
    slope -dD/dR at T, whatever that is; |R - T| with a fixed weight holds T only where the weight exceeds that slope.
    `free_bits` charges no entry of the code for less than so many nats in a batch's mean; `warm_up` raises beta from 0
    in so many steps. `bound="iwae"` learns by the tighter bound of several draws,

        log p(x) >= E log (1/K sum_k w_k),      w_k = p(x, z_k) / q(z_k | x).

    The gradient in q goes through the draws (`path`). Of many draws under `iwae` its signal vanishes beside its noise,
    and the doubly reparametrized one is better: sum_k (w_k / sum w)^2 d log w_k / dz_k dz_k / dq (`doubly`). `score` is
    the score-function estimate with the mean of the other draws as baseline, for comparison: it has far more noise.

    `log_prob(X, draws=K)` is the bound of K draws, whatever was trained by; `elbo(X, refine=200)` improves the guess of
    each row by itself first, so that the difference to `elbo(X)` is what amortization costs.

    The decoder may be an autoregressive density, `VAE(decoder=MADE())`: p(x | z) = prod_i p(x_i | x_<i, z). One that is
    strong enough models the rows alone, and then no code is cheaper than one that is not read: the rate falls to 0
    though the bound is good. `free_bits`, `target_rate` or a weaker decoder (the lossy autoencoder) keep it in use.

    Args:
        latent: the entries of a code.
        hidden, encoder, decoder, law, classes, parts, noise, scale, prior, inference, conditional, gaps: see
            `weft.objectives.latent.coded.Coded`.
        draws: codes drawn for a row in training.
        bound: `elbo` or `iwae`.
        gradient: `path`, `doubly` or `score`.
        beta, warm_up, free_bits, target_rate: see above.

    References:
        Kingma and Welling, "Auto-encoding variational Bayes", arXiv 1312.6114.
        Burda, Grosse and Salakhutdinov, "Importance weighted autoencoders", arXiv 1509.00519.
        Tucker, Lawson, Gu and Maddison, "Doubly reparameterized gradient estimators", arXiv 1810.04152.
        Alemi et al., "Fixing a broken ELBO", arXiv 1711.00464.
        Shao et al., "ControlVAE", arXiv 2004.05988 (the price of a target rate).
        Higgins et al., "beta-VAE", ICLR 2017.
        Kingma et al., "Improved variational inference with inverse autoregressive flow", arXiv 1606.04934 (free bits).
        Mattei and Frellsen, "MIWAE", arXiv 1812.02633 (gaps).
        Chen et al., "Variational lossy autoencoder", arXiv 1611.02731 (autoregressive decoders).

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> angle = np.random.default_rng(0).uniform(0, 6.28, 400)
        >>> X = np.stack([np.cos(angle), np.sin(angle)], 1)
        >>> fast = Optimizer("adam", lr=0.01)
        >>> learner = Learner(VAE(2, hidden=(32,), noise=0.1), optimizer=fast, steps=300, random_state=0).fit(X)
        >>> learner.log_prob.kind, learner.transform(X[:3]).shape, learner.posterior(X[:3], draws=5).shape
        ('lower bound', (3, 2), (3, 5, 2))
        >>> bool(np.abs(np.linalg.norm(learner.sample(200, random_state=0), axis=1) - 1).mean() < 0.3)
        True
    """

    seen: Tensor
    price: Tensor
    optimizer = Optimizer("adam", lr=1e-3)
    progress = ("loss", "min")
    space = {"beta": Range(0.1, 10, log=True), "latent": Range(2, 64, log=True, whole=True)}
    legal = {
        "draws": Whole(1),
        "bound": Choice("elbo", "iwae"),
        "gradient": Choice("path", "doubly", "score"),
        "beta": Number(0),
        "warm_up": Whole(0),
        "free_bits": Number(0),
        "target_rate": Number(0) | None,
    }

    def __init__(
        self,
        latent: int = 10,
        *,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 1,
        noise: str | float = "net",
        scale: str = "exp",
        prior: int | Density | None = None,
        inference: str = "amortized",
        draws: int = 1,
        bound: str = "elbo",
        gradient: str = "path",
        beta: float = 1.0,
        warm_up: int = 0,
        free_bits: float = 0.0,
        target_rate: float | None = None,
        conditional: bool = False,
        gaps: bool = False,
    ) -> None:
        super().__init__(
            latent,
            hidden=hidden,
            encoder=encoder,
            decoder=decoder,
            law=law,
            classes=classes,
            parts=parts,
            noise=noise,
            scale=scale,
            prior=prior,
            inference=inference,
            conditional=conditional,
            gaps=gaps,
        )
        self.draws = draws
        self.bound = bound
        self.gradient = gradient
        self.beta = beta
        self.warm_up = warm_up
        self.free_bits = free_bits
        self.target_rate = target_rate

    def validate(self) -> None:
        super().validate()
        plain = self.beta == 1 and not self.warm_up and not self.free_bits and self.target_rate is None
        rules = {
            "bound='elbo' beside beta, warm_up, free_bits or target_rate, which weigh the rate": (
                self.bound == "elbo" or plain
            ),
            "bound='iwae' beside gradient='doubly'": self.gradient != "doubly" or self.bound == "iwae",
            "bound='elbo' and draws of at least 2 beside gradient='score'": (
                self.gradient != "score" or (self.bound == "elbo" and self.draws > 1)
            ),
            "at most one of free_bits and target_rate": not (self.free_bits and self.target_rate is not None),
            "prior=None and gradient='path' beside free_bits, which are counted entry by entry": (
                not self.free_bits or (self.prior is None and self.gradient == "path")
            ),
            "gradient='path', beta=1 and no warm_up beside target_rate, which finds what a nat costs": (
                self.target_rate is None or (self.gradient == "path" and self.beta == 1 and not self.warm_up)
            ),
            "draws of at least 2 beside bound='iwae'": self.bound == "elbo" or self.draws > 1,
        }
        for rule, kept in rules.items():
            if not kept:
                raise ValueError(f"expected {rule} of VAE, got {self!r}")

    # --- traits -------------------------------------------------------------------------------------------

    @property
    def decomposable(self) -> bool:  # type: ignore[override]
        return not self.free_bits and self.target_rate is None

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return self.decomposable and self.beta == 1

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("seen",) if self.warm_up else ()  # the price is a statistic: linear in a batch's mean rate

    def build(self, spec: Spec) -> None:
        super().build(spec)
        if self.warm_up:
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        if self.target_rate is not None:
            self.register_buffer("price", torch.ones(()))

    # --- learning -----------------------------------------------------------------------------------------

    def forward(self, batch: Batch, player: str = "") -> Output:
        x, observed, y, q = self.taken(batch)
        draws = int(self.draws)
        if self.bound == "iwae":
            return Output(-self._many(x, q, draws, observed, y))
        if self.gradient == "score":
            return Output(-self._scored(x, q, draws, observed, y))
        z = q.draw(draws, "z")
        distortion = -self.log_given(x, z, observed, y).mean(-1)
        return Output(distortion + self._weight() * self._charged(self.each_rate(q, z, y), batch.get("weight")))

    def each_rate(self, q: Guess, z: Tensor, y: Tensor | None) -> Tensor:
        """The rate of each row, `(n, latent)` by the entries of its code; `(n, 1)` where there is no closed form."""
        return q.each_rate() if self.prior is None else (q.log_prob(z) - self.log_prior(z, y)).mean(-1, keepdim=True)

    def _charged(self, each: Tensor, weight: Tensor | None) -> Tensor:
        """What is charged for the rate of each row, given that of each entry of its code; a batch's means by weight."""
        rate = each.sum(-1)
        if self.target_rate is not None:
            above = reduce(rate.detach(), weight) - self.target_rate
            price = self.price + above
            if self.training:
                self.price = self.price + _PATIENCE * above
            return price * (rate - self.target_rate)
        if self.free_bits:
            paid = reduce(each.detach().mT, weight) > self.free_bits
            return torch.where(paid, each, self.free_bits).sum(-1)
        return rate

    def _weight(self) -> float | Tensor:
        """beta, as far as it has been raised."""
        if not self.warm_up or not self.training:
            return self.beta
        share = ((self.seen + 1) / self.warm_up).clamp_max(1.0)
        self.seen = self.seen + 1
        return self.beta * share

    def _many(self, x: Tensor, q: Guess, draws: int, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """log (1/K sum_k w_k), with the gradient that was asked for."""
        if self.gradient == "path":
            return self.log_weights(x, q, draws, observed, y).logsumexp(-1) - math.log(draws)
        z, held = q.draw(draws, "z"), q.detached()

        def logs(codes: Tensor) -> Tensor:
            return self.log_given(x, codes, observed, y) + self.log_prior(codes, y) - held.log_prob(codes)

        with torch.no_grad():
            share = logs(z.detach()).softmax(-1).detach()
        # the same codes, through which a gradient comes back multiplied by the share
        codes = z.detach() + share.unsqueeze(-1) * (z - z.detach())
        found = logs(codes)
        surrogate = (share * found).sum(-1)
        return (found.logsumexp(-1) - math.log(draws)).detach() + surrogate - surrogate.detach()

    def _scored(self, x: Tensor, q: Guess, draws: int, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """-distortion - beta rate, with the score-function gradient in q."""
        z, beta = q.draw(draws, "z").detach(), self._weight()
        joint = self.log_given(x, z, observed, y) + beta * self.log_prior(z, y)
        logs = q.log_prob(z)
        value = (joint - beta * logs).detach()
        others = (value.sum(-1, keepdim=True) - value) / (draws - 1)
        surrogate = (joint + (value - others) * logs).mean(-1)
        return value.mean(-1) + surrogate - surrogate.detach()

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, the rate and the distortion."""
        found = {"loss": self(batch).losses}
        with place("measured"):
            x, observed, y, q = self.taken(batch)
            z = q.draw(1, "z")
        given = self.log_given(x, z, observed, y).mean(-1)
        return {**found, "rate": (q.log_prob(z) - self.log_prior(z, y)).mean(-1), "distortion": -given}

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(rows, training=training)
        if training and self.target_rate is not None and self.target_rate > math.log(len(rows["x"])):
            warnings.warn(
                f"expected a target_rate of at most the log of the training rows, {math.log(len(rows['x'])):.2f} nats, "
                f"which tells every row from every other, got {self.target_rate:g}: the rest of the rate is noise",
                stacklevel=7,
            )
