"""Codes of choices: variables with a few outcomes each, laid out as zeros and ones, and guesses of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.random import categorical, uniform

__all__ = ["Chosen", "Listed", "code_of", "every_code", "hot", "number_of", "outcomes_of"]


def hot(outcomes: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
    """Outcome numbers `(..., latent)` as a one among zeros for each variable, `(..., latent * choices)`.

    >>> hot(torch.tensor([2, 0]), 3, torch.float32)
    tensor([0., 0., 1., 1., 0., 0.])
    """
    each = torch.arange(choices, device=outcomes.device)
    return (outcomes.unsqueeze(-1) == each).to(dtype).flatten(-2)


def outcomes_of(z: Tensor, choices: int) -> Tensor:
    """The outcome numbers of a code, or the likeliest ones of what lies between codes."""
    return z.unflatten(-1, (-1, choices)).argmax(-1)


def _places(latent: int, choices: int, device: torch.device) -> Tensor:
    return torch.tensor([choices**j for j in reversed(range(latent))], device=device)


def code_of(number: Tensor, latent: int, choices: int, dtype: torch.dtype) -> Tensor:
    """The code of a number 0..choices**latent - 1, its digits being the outcomes."""
    return hot(number.unsqueeze(-1) // _places(latent, choices, number.device) % choices, choices, dtype)


def number_of(z: Tensor, choices: int) -> Tensor:
    """The number of a code."""
    outcomes = outcomes_of(z, choices)
    return (outcomes * _places(outcomes.shape[-1], choices, z.device)).sum(-1)


def every_code(latent: int, choices: int, like: Tensor) -> Tensor:
    """All choices**latent codes by their numbers, `(codes, latent * choices)`.

    >>> outcomes_of(every_code(2, 2, torch.zeros(())), 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return code_of(torch.arange(choices**latent, device=like.device), latent, choices, like.dtype)


@dataclass(frozen=True)
class Chosen:
    """q(z | x) = prod_j Categorical(z_j; softmax(logits_j)): independent variables.

    Attributes:
        logits: `(n, latent, choices)`.
    """

    logits: Tensor

    @property
    def mean(self) -> Tensor:
        """The probabilities, `(n, latent * choices)`."""
        return self.logits.softmax(-1).flatten(-2)

    @property
    def likeliest(self) -> Tensor:
        """The likeliest outcomes, `(n, latent)`."""
        return self.logits.argmax(-1)

    def _spread(self, draws: int) -> Tensor:
        return self.logits.unsqueeze(1).expand(-1, draws, -1, -1)

    def draw(self, draws: int, place: str) -> Tensor:
        """So many codes of each row, `(n, draws, latent * choices)`, through which no gradient goes."""
        drawn = categorical(self._spread(draws).detach(), place=place)
        return hot(drawn, self.logits.shape[-1], self.logits.dtype)

    def relaxed(self, draws: int, place: str, temperature: float | Tensor) -> Tensor:
        """softmax((logits + Gumbel noise) / temperature): a point between codes, through which a gradient goes.

        The nearest code is what `draw` draws at the same place, and the point comes to it as the temperature falls.
        """
        logits = self._spread(draws)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        u = uniform(logits.shape, place=place, dtype=wide)
        gumbel = -torch.log(-torch.log(u.clamp_min(torch.finfo(wide).tiny)))
        return ((logits + gumbel.to(logits.dtype)) / temperature).softmax(-1).flatten(-2)

    def log_prob(self, z: Tensor) -> Tensor:
        """log q of codes, `(n, draws)`."""
        return (z * self.logits.log_softmax(-1).flatten(-2).unsqueeze(1)).sum(-1)

    def rate(self, prior: Tensor) -> Tensor:
        """KL(q || p) of each row, given the log-probabilities of a prior with independent variables."""
        logs = self.logits.log_softmax(-1)
        return (logs.exp() * (logs - prior)).sum((-1, -2))


@dataclass(frozen=True)
class Listed:
    """p(z | x) = p(x, z) / sum_z p(x, z), Bayes' rule over a list of all codes.

    Attributes:
        joint: log p(x, z) of every code by its number, `(n, codes)`.
        latent, choices: what a code is.
    """

    joint: Tensor
    latent: int
    choices: int

    @property
    def mean(self) -> Tensor:
        """The probability of each outcome of each variable, `(n, latent * choices)`."""
        return self.joint.softmax(-1) @ every_code(self.latent, self.choices, self.joint)

    @property
    def likeliest(self) -> Tensor:
        """The outcomes of the likeliest code, `(n, latent)`."""
        code = code_of(self.joint.argmax(-1), self.latent, self.choices, self.joint.dtype)
        return outcomes_of(code, self.choices)

    def draw(self, draws: int, place: str) -> Tensor:
        """So many codes of each row, `(n, draws, latent * choices)`, through which no gradient goes."""
        number = categorical(self.joint.detach().unsqueeze(1).expand(-1, draws, -1), place=place)
        return code_of(number, self.latent, self.choices, self.joint.dtype)

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z | x) of codes, `(n, draws)`."""
        return self.joint.log_softmax(-1).gather(-1, number_of(z, self.choices).expand(len(self.joint), -1))

    def rate(self, prior: Tensor) -> Tensor:
        """KL(p(z | x) || p(z)) of each row, given the log-probabilities of a prior with independent variables."""
        logs = self.joint.log_softmax(-1)
        every = every_code(self.latent, self.choices, self.joint)
        return (logs.exp() * (logs - every @ prior.flatten())).sum(-1)
