"""Priors of codes that are trained along: a mixture of normals, or any density of real numbers."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from weft.core.random import categorical, normal
from weft.core.source import Field
from weft.objectives.densities.density import Density
from weft.objectives.latent.explained import log_normal

__all__ = ["Mixed", "built_prior", "refuse_prior"]


class Mixed(nn.Module):
    """p(z) = sum_k w_k N(z; m_k, diag(s_k)^2), whose weights, means and scales are learned.

    References:
        Dilokthanakul et al., "Deep unsupervised clustering with Gaussian mixture variational autoencoders",
        arXiv 1611.02648.
    """

    def __init__(self, components: int, latent: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components))
        self.means = nn.Parameter(torch.zeros(components, latent))
        self.log_scales = nn.Parameter(torch.zeros(components, latent))

    def reset_parameters(self) -> None:
        """Even weights, unit scales, means apart."""
        nn.init.zeros_(self.logits)
        nn.init.normal_(self.means)
        nn.init.zeros_(self.log_scales)

    def log_prob(self, z: Tensor) -> Tensor:
        each = log_normal(z.unsqueeze(-2), self.means, self.log_scales)
        return (self.logits.log_softmax(-1) + each).logsumexp(-1)

    def draw(self, n: int) -> Tensor:
        which = categorical(self.logits.expand(n, -1), place="component")
        noise = normal((n, self.means.shape[1]), place="z", dtype=self.means.dtype)
        return self.means[which] + self.log_scales[which].exp() * noise


def refuse_prior(prior: Density) -> None:
    """Raises for a density that cannot be trained along with a model of codes, as their prior."""
    prior.validate()
    kind, marks = type(prior).__name__, prior.capabilities()
    if prior.solved or prior.surveys or prior.players or prior.fields != ("x",):
        raise ValueError(
            f"expected a prior of codes alone that is trained along by descent, got {kind}, which is solved, looks at "
            "all rows first, is a game or reads more; take MADE(), or a number of normals"
        )
    if "sample" not in marks or marks["log_prob"].kind != "exact":
        raise ValueError(f"expected a prior with an exact log_prob and a sample, got {kind}; take MADE()")


def built_prior(prior: Density, latent: int, whose: str) -> Density:
    """A copy of the density as it was given, over codes of so many real numbers."""
    inner = copy.deepcopy(prior)
    inner.build({"x": Field((latent,), torch.get_default_dtype())})
    whole = [law for law in (inner.entries.laws if inner.entries is not None else ()) if not law.continuous]
    if whole:
        raise ValueError(
            f"expected a prior of real numbers, which the codes of {whose} are, got {prior!r}, which is of "
            f"{whole[0].holds}; take law='normal' or 'normal-mixture'"
        )
    return inner
