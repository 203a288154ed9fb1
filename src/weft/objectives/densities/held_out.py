"""How probable documents that were held out are, topics being known: by draws of their shares, whole or in halves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.random import uniform
from weft.objectives.densities.dirichlet import log_dirichlet, log_shares
from weft.objectives.densities.topics import tokens

__all__ = ["drawn_shares", "halves", "log_completed", "log_words"]


def drawn_shares(near: Tensor, prior: float, draws: int) -> tuple[Tensor, Tensor]:
    """Draws of each document's shares, `log theta` of shape (n, draws, topics), and the logs of their weights.

    Half of them are by a law near the posterior, half by the prior, weighed by the prior over the mixture of both, so
    that no weight is without bound: the weighted mean of f(theta) has the expectation of f under the prior.

    Args:
        near: concentrations of the law near the posterior, `(n, topics)`.
        prior: the concentration a of the prior.
        draws: how many.
    """
    far = torch.full_like(near, prior)
    half = draws // 2
    each = torch.cat([near[:, None].expand(-1, half, -1), far[:, None].expand(-1, draws - half, -1)], 1)
    log_theta = log_shares(each, "shares")
    share = half / draws
    proposed = torch.logaddexp(
        log_dirichlet(near[:, None], log_theta) + math.log(share),
        log_dirichlet(far[:, None], log_theta) + math.log1p(-share),
    )
    return log_theta, log_dirichlet(far[:, None], log_theta) - proposed - math.log(draws)


def log_words(x: Tensor, log_theta: Tensor, topics: Tensor) -> Tensor:
    """log p of each document's words, in their order, given each draw of its shares: `(n, draws)`."""
    words = log_theta.exp() @ topics
    return torch.einsum("nv,nsv->ns", x, words.clamp_min(torch.finfo(words.dtype).tiny).log())


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The counts of two halves of each document's words, drawn without regard to which they are.

    Of an odd number of words the second half has one more.
    """
    words, there = tokens(x)
    u = uniform(words.shape, place="halves", dtype=torch.float64).masked_fill(~there, torch.inf)
    first = u.argsort(-1).argsort(-1) < torch.div(x.sum(1, keepdim=True), 2, rounding_mode="floor")
    held = torch.zeros_like(x).scatter_add(1, words, first.to(x.dtype))
    return held, x - held


def log_completed(first: Tensor, second: Tensor, topics: Tensor, prior: float, near: Tensor, draws: int) -> Tensor:
    """log p(second half | first half), each document's shares known from the first half alone.

    With theta_s drawn and weighed by w_s as `drawn_shares` says,

        p(second | first) = p(first, second) / p(first) ~ sum_s w_s p(first | theta_s) p(second | theta_s)
                                                          / sum_s w_s p(first | theta_s)

    Args:
        first, second: counts of words.
        topics: the share of each word in each topic.
        prior: the concentration a of the shares.
        near: concentrations of a law near the posterior given the first half.
        draws: how many.
    """
    log_theta, weight = drawn_shares(near, prior, draws)
    known = weight + log_words(first, log_theta, topics)
    return torch.logsumexp(known + log_words(second, log_theta, topics), 1) - torch.logsumexp(known, 1)
