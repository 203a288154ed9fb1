"""A decoder by the chain rule: each entry of a row from its code and from the entries before it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.core.random import place, turns
from weft.core.source import Field
from weft.objectives.densities.autoregressive import Autoregressive
from weft.objectives.densities.made import MADE

if TYPE_CHECKING:
    from weft.objectives.densities.laws import Laws

__all__ = ["Chained", "refuse_decoder"]

_DRAWS = 16  # over which a mean is taken: it has no closed form


class Chained(nn.Module):
    """p(x | z) = prod_i p(x_i | x_<i, z): an autoregressive density whose every entry is also given the code.

    The code enters where a class does, as inputs that belong to no entry, which all of them may see; an entry itself
    and those after it reach none of the numbers of its law.

    Args:
        density: as it was given; a copy is made and built.
        field: of a row.
        given: the entries of a code, and one for each class.

    References:
        Chen et al., "Variational lossy autoencoder", arXiv 1611.02731.
        Gulrajani et al., "PixelVAE", arXiv 1611.05013.
    """

    def __init__(self, density: Autoregressive, field: Field, given: int) -> None:
        super().__init__()
        self.density = copy.deepcopy(density)
        self.density.conditional = True
        self.density.build({"x": field, "y": Field((given,), torch.get_default_dtype())})

    @property
    def entries(self) -> Laws:
        """The laws of a row's entries."""
        return self.density.entries

    def log_prob(self, x: Tensor, codes: Tensor, observed: Tensor | None = None) -> Tensor:
        """log p(x | z) of what is observed, `(n, K)`, for rows `(n, ...)` and codes `(n, K, given)`."""
        draws = codes.shape[1]

        def each(rows: Tensor) -> Tensor:
            return rows.unsqueeze(1).expand(-1, draws, *rows.shape[1:]).flatten(0, 1)

        there = None if observed is None else each(observed)
        return self.density._log_prob(each(x), there, codes.flatten(0, 1)).unflatten(0, codes.shape[:2])

    def draw(self, code: Tensor) -> Tensor:
        """x ~ p(x | z), entry by entry, for codes `(n, given)`."""
        with place("x"):
            return self.density.sample(code.shape[0], code)

    def complete(self, x: Tensor, observed: Tensor, code: Tensor) -> Tensor:
        """What is missing drawn given the code and what is observed, which must come first in the order."""
        with place("x"):
            return self.density.impute(x, observed, code)

    def mean(self, code: Tensor) -> Tensor:
        """The mean of x given z over 16 draws; of classes the one drawn most often."""
        drawn = torch.stack([self.draw(code).flatten(1) for _ in turns("mean", _DRAWS)], -1)
        found = drawn.mean(-1)
        classes = [j for j, law in enumerate(self.entries.laws) if law.width > 1]
        if classes:
            own = drawn[:, classes]
            votes = (own.unsqueeze(-1) == own.unsqueeze(-2)).sum(-1).argmax(-1, keepdim=True)
            found[:, classes] = own.gather(-1, votes).squeeze(-1)
        return found.unflatten(-1, self.density.shape)


def refuse_decoder(decoder: object, whose: str) -> None:
    """Raises for an objective that cannot be the decoder of a model of codes."""
    kind = type(decoder).__name__
    if not isinstance(decoder, Autoregressive):
        raise ValueError(
            f"expected a net as the decoder of {whose}, or an autoregressive density such as MADE(), got {kind}"
        )
    decoder.validate()
    if decoder.conditional:
        raise ValueError(
            f"expected a decoder of {whose} that is not conditional itself, got {decoder!r}; give conditional=True to "
            f"{whose}, which tells its decoder the class"
        )
    if isinstance(decoder, MADE) and decoder.agnostic:
        raise ValueError(
            f"expected a decoder of {whose} with an order, got {decoder!r}; leave agnostic out, or take orderings=..."
        )
