"""A variational autoencoder whose code is choices, with the ways to a gradient through them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Capability, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical, place
from weft.core.source import Batch, Spec
from weft.nets.make import NetLike
from weft.objectives.densities.laws import mapped
from weft.objectives.latent.choices import Chosen, Listed, every_code, hot, outcomes_of
from weft.objectives.latent.coded import Coded
from weft.objectives.latent.explained import Guess

__all__ = ["MOST", "DiscreteVAE"]

MOST = 4096
"""So many codes are enumerated, at most: each of them is decoded in every step."""
_BLOCK = 256  # codes whose rows are compared at once
_SOFT = ("relaxation", "straight-through")


class DiscreteVAE(Coded):
    """x is drawn by a net from a code of `latent` variables with `choices` outcomes each, and a second net guesses it.

        log p(x) = log sum_z p(z) p(x | z) >= E_q [log p(x | z)] - KL(q(z | x) || p(z)),   q(z | x) = prod_j q(z_j | x)

    No gradient goes through a choice. The KL is a closed form; that of E_q [log p(x | z)] in q is, by `gradient`,

    - `enumeration`: exact, by the sum over all choices**latent codes, of which there may be 4096;
    - `score`: mean_k (f_k - mean_{i != k} f_i) d log q(z_k | x), f_k = log p(x | z_k): no bias, as each draw is
      compared with the others and not with itself; noisy where a code is long;
    - `relaxation`: through softmax((logits + Gumbel noise) / temperature) in the place of a draw (the concrete, or
      Gumbel-softmax, law): little noise, and the decoder learns from points between codes, which is the bias; both turn
      around as the temperature falls, to `cooled` in `cooling` steps;
    - `straight-through`: the decoder sees the nearest code, and the gradient goes as if it were that point: biased.

    `inference="enumeration"` has no guess: the posterior is Bayes' rule over all codes, and what is learned by is
    -log p(x) itself.

    `log_prob` is exact where the codes are few enough to be enumerated, however it was trained, and else the lower
    bound of so many draws. Codes are outcome numbers `(n, latent)` in `transform`, `posterior` and `inverse_transform`.

    Args:
        latent: the variables of a code.
        choices: the outcomes of each; 2 for bits.
        hidden, encoder, decoder, law, classes, parts, noise, scale, conditional, gaps: see
            `weft.objectives.latent.coded.Coded`; the encoder gives `latent` x `choices` values, and the decoder reads
            as many zeros and ones.
        prior: `uniform`, or `learned`: a probability for each outcome of each variable.
        inference: `amortized` or `enumeration`.
        gradient: see above.
        draws: codes drawn for a row in training; at least 2 by `score`.
        temperature, cooled, cooling: of `relaxation` and `straight-through`, see above.

    References:
        Maddison, Mnih and Teh, "The concrete distribution", arXiv 1611.00712.
        Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax", arXiv 1611.01144.
        Mnih and Rezende, "Variational inference for Monte Carlo objectives", arXiv 1602.06725 (the other draws).
        Kool, van Hoof and Welling, "Buy 4 REINFORCE samples, get a baseline for free", ICLR workshops 2019.
        Bengio, Léonard and Courville, "Estimating or propagating gradients through stochastic neurons",
        arXiv 1308.3432 (straight-through).

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bits = np.repeat([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], 50, 0).astype(float)
        >>> model = DiscreteVAE(2, hidden=(16,), law="bernoulli")
        >>> learner = Learner(model, optimizer=Optimizer("adam", lr=0.02), steps=400, random_state=0).fit(bits)
        >>> learner.log_prob.kind, learner.transform(bits[:3]).shape, learner.posterior(bits[:3], draws=5).shape
        ('exact', (3, 2), (3, 5, 2))
        >>> bool(np.exp(learner.log_prob(bits[::50])).sum() > 0.8), len(np.unique(learner.transform(bits), axis=0))
        (True, 4)
    """

    prior: str  # type: ignore[assignment]
    seen: Tensor
    optimizer = Optimizer("adam", lr=1e-3)
    space = {"latent": Range(2, 64, log=True, whole=True)}
    chains = False
    refines = False
    spreads = False
    legal = {
        "choices": Whole(2),
        "prior": Choice("uniform", "learned"),
        "inference": Choice("amortized", "enumeration"),
        "gradient": Choice("enumeration", "score", *_SOFT),
        "draws": Whole(1),
        "temperature": Number(0, ends="()"),
        "cooled": Number(0, ends="()") | None,
        "cooling": Whole(0),
    }

    def __init__(
        self,
        latent: int = 10,
        *,
        choices: int = 2,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 1,
        noise: str | float = "net",
        scale: str = "exp",
        prior: str = "uniform",
        inference: str = "amortized",
        gradient: str = "score",
        draws: int = 4,
        temperature: float = 1.0,
        cooled: float | None = None,
        cooling: int = 0,
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
            inference=inference,
            conditional=conditional,
            gaps=gaps,
        )
        self.choices = choices
        self.prior = prior
        self.gradient = gradient
        self.draws = draws
        self.temperature = temperature
        self.cooled = cooled
        self.cooling = cooling

    def validate(self) -> None:
        super().validate()
        listed, soft = "enumeration" in (self.inference, self.gradient), self.gradient in _SOFT
        if listed and not self.enumerable:
            raise ValueError(
                f"expected at most {MOST} codes to enumerate, got {int(self.choices)}**{int(self.latent)} = "
                f"{int(self.choices) ** int(self.latent)}; take gradient='score', 'relaxation' or 'straight-through' "
                "with inference='amortized', or fewer latent variables or choices"
            )
        rules = {
            "gradient='enumeration' beside inference='enumeration'": (
                self.inference == "amortized" or self.gradient == "enumeration"
            ),
            "draws of at least 2 beside gradient='score', which compares each with the others": (
                self.gradient != "score" or self.draws > 1
            ),
            "no draws beside gradient='enumeration', which draws none": (
                self.gradient != "enumeration" or self.draws == 4
            ),
            f"gradient='relaxation' or 'straight-through' beside temperature, cooled or cooling, not "
            f"{self.gradient!r}": (soft or (self.temperature == 1 and self.cooled is None and not self.cooling)),
            "cooled and cooling together, or neither": (self.cooled is None) == (not self.cooling),
            "a cooled of at most temperature": self.cooled is None or self.cooled <= self.temperature,
        }
        for rule, kept in rules.items():
            if not kept:
                raise ValueError(f"expected {rule} of DiscreteVAE, got {self!r}")

    # --- traits -------------------------------------------------------------------------------------------

    @property
    def enumerable(self) -> bool:
        """Whether all codes may be enumerated."""
        return int(self.choices) ** int(self.latent) <= MOST

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return self.gradient != "relaxation"  # whose loss is of points that are no codes

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("seen",) if self.cooling else ()

    def capabilities(self) -> dict[str, Capability]:
        """log_prob is exact where all codes may be enumerated."""
        marks = super().capabilities()
        return {**marks, "log_prob": replace(marks["log_prob"], kind="exact" if self.enumerable else "lower bound")}

    # --- nets ---------------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[int, ...]:
        return (int(self.latent) * int(self.choices),)

    def build(self, spec: Spec) -> None:
        super().build(spec)
        if self.cooling:
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def make_recognition(self, spec: Spec) -> nn.Module:
        if self.inference == "enumeration":
            return nn.Identity()
        return _Choosing(self.make_encoder(self.layers[0]), int(self.latent), int(self.choices))

    def make_prior(self) -> None:
        if self.prior == "learned":
            self.preferences = nn.Parameter(torch.zeros(int(self.latent), int(self.choices)))

    # --- the model ----------------------------------------------------------------------------------------

    def log_shares(self) -> Tensor:
        """log p of each outcome of each variable, `(latent, choices)`."""
        if self.prior == "learned":
            return self.preferences.log_softmax(-1)
        like = next(self.generator.parameters())
        return like.new_zeros(int(self.latent), int(self.choices)).log_softmax(-1)

    def log_prior(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        return z @ self.log_shares().flatten()

    def draw_prior(self, n: int, y: Tensor | None = None) -> Tensor:
        shares = self.log_shares()
        return hot(categorical(shares.expand(n, -1, -1), place="z"), int(self.choices), shares.dtype)

    def log_joint(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """log p(x, z) of every code by its number, `(n, codes)`."""
        every = every_code(int(self.latent), int(self.choices), next(self.generator.parameters()))
        found = []
        for codes in every.split(_BLOCK):
            # without a class the codes are decoded once for all rows
            z = codes.expand(1 if y is None else x.shape[0], -1, -1)
            found.append(self.log_given(x, z, observed, y) + self.log_prior(codes))
        return torch.cat(found, -1)

    def listed(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Listed:
        """p(z | x) by enumeration."""
        return Listed(self.log_joint(x, observed, self._told(y)), int(self.latent), int(self.choices))

    def guess(  # type: ignore[override]
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, index: Tensor | None = None
    ) -> Chosen | Listed:
        if self.inference == "enumeration":
            return self.listed(x, observed, y)
        return super().guess(x, observed, y, index)  # type: ignore[return-value]

    def refine(self, q: Guess, x: Tensor, observed: Tensor | None, y: Tensor | None, steps: int) -> Guess:
        raise ValueError(
            f"expected refine=0 of DiscreteVAE, whose guess has no numbers to descend in, got {steps}; "
            "inference='enumeration' gives the posterior itself"
        )

    def resampled(self, x: Tensor, observed: Tensor, y: Tensor | None, draws: int) -> Tensor:
        if not self.enumerable:
            return super().resampled(x, observed, y, draws)
        return self.listed(x, observed, y).draw(1, "z").squeeze(1)

    # --- learning -----------------------------------------------------------------------------------------

    def forward(self, batch: Batch, player: str = "") -> Output:
        x, observed, y, found = self.taken(batch)
        q: Chosen | Listed = found  # type: ignore[assignment]
        if isinstance(q, Listed):
            return Output(-q.joint.logsumexp(-1))
        if self.gradient == "enumeration":
            return Output(-self._enumerated(x, q, observed, y))
        draws = int(self.draws)
        if self.gradient == "score":
            given = self._scored(x, q, draws, observed, y)
        else:
            given = self.log_given(x, self._soft(q, draws), observed, y).mean(-1)
        return Output(q.rate(self.log_shares()) - given)

    def _enumerated(self, x: Tensor, q: Chosen, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """sum_z q(z | x) [log p(x, z) - log q(z | x)]."""
        logs = q.log_prob(every_code(int(self.latent), int(self.choices), q.logits).unsqueeze(0))
        return (logs.exp() * (self.log_joint(x, observed, y) - logs)).sum(-1)

    def _scored(self, x: Tensor, q: Chosen, draws: int, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """log p(x | z), with the score-function gradient in q."""
        z = q.draw(draws, "z")
        given, logs = self.log_given(x, z, observed, y), q.log_prob(z)
        value = given.detach()
        surrogate = (given + (value - baseline(value)) * logs).mean(-1)
        return value.mean(-1) + surrogate - surrogate.detach()

    def _soft(self, q: Chosen, draws: int) -> Tensor:
        """Points between codes, or codes whose gradient is theirs; where nothing is learned, codes."""
        if not self.training:
            return q.draw(draws, "z")
        points = q.relaxed(draws, "z", self._heat())
        if self.gradient == "relaxation":
            return points
        nearest = hot(outcomes_of(points, int(self.choices)), int(self.choices), points.dtype)
        return nearest + (points - points.detach())

    def _heat(self) -> float | Tensor:
        """The temperature, as far as it has fallen: by the same factor in each step."""
        if self.cooled is None:
            return self.temperature
        share = (self.seen / self.cooling).clamp_max(1.0)
        self.seen = self.seen + 1
        return self.temperature * (self.cooled / self.temperature) ** share

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, the rate and the distortion."""
        found = {"loss": self(batch).losses}
        with place("measured"):
            x, observed, y, told = self.taken(batch)
            q: Chosen | Listed = told  # type: ignore[assignment]
            given = self.log_given(x, q.draw(1, "z"), observed, y).mean(-1)
        return {**found, "rate": q.rate(self.log_shares()), "distortion": -given}

    # --- answers ------------------------------------------------------------------------------------------

    ais = None  # type: ignore[assignment]  # its moves go along a gradient in the code

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def log_prob(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int | None = None
    ) -> Tensor:
        """log p(x) (given y), of what is observed: exact where there are at most 4096 codes, else a lower bound.

        Args:
            x, observed, y: rows.
            draws: of the lower bound, 64 by default: the nearer, the more.
        """
        if not self.enumerable:
            return super().log_prob(x, observed, y, draws=64 if draws is None else draws)
        if draws is not None:
            raise ValueError(
                f"expected no draws for log_prob of DiscreteVAE with {int(self.choices) ** int(self.latent)} codes, "
                f"which is exact, got {draws!r}; leave them out, or ask elbo(X, draws=...)"
            )
        return self.log_joint(x, observed, self._told(y)).logsumexp(-1)

    @capability(merge="mean", kind="exact")
    def rate(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """R = KL(q(z | x) || p(z)), in nats: what the code of a row costs."""
        return self.guess(x, observed, y).rate(self.log_shares())

    def posterior(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 1
    ) -> Tensor:
        """Draws of q(z | x), outcome numbers `(n, draws, latent)`."""
        return outcomes_of(super().posterior(x, observed, y, draws=draws), int(self.choices))

    def transform(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The likeliest outcome of each variable, `(n, latent)`; by enumeration, those of the likeliest code."""
        return self.guess(x, observed, y).likeliest

    def inverse_transform(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given outcome numbers `(n, latent)`; of classes the likeliest."""
        latent, choices = int(self.latent), int(self.choices)
        wrong = z.dim() != 2 or z.shape[1] != latent
        if wrong or (not mapped(z) and bool(((z < 0) | (z >= choices) | (z != z.floor())).any())):
            raise ValueError(
                f"expected codes of {latent} whole numbers 0..{choices - 1} each, got {tuple(z.shape)} between "
                f"{z.min().item():g} and {z.max().item():g}; they are as transform gives them"
            )
        return self.mean_given(hot(z.long(), choices, next(self.generator.parameters()).dtype), y)

    def reconstruct(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The mean of x given its likeliest code."""
        likeliest = self.guess(x, observed, y).likeliest
        return self.mean_given(hot(likeliest, int(self.choices), next(self.generator.parameters()).dtype), y)


def baseline(value: Tensor) -> Tensor:
    """The mean of a row's other draws, `(n, draws)`: what a draw would be worth, told without it."""
    return (value.sum(-1, keepdim=True) - value) / (value.shape[-1] - 1)


class _Choosing(nn.Module):
    """A net that gives the logits of each variable."""

    def __init__(self, net: nn.Module, latent: int, choices: int) -> None:
        super().__init__()
        self.net, self.latent, self.choices = net, latent, choices

    def forward(self, inputs: Tensor, index: Tensor | None = None) -> Chosen:
        return Chosen(self.net(inputs).unflatten(-1, (self.latent, self.choices)))
