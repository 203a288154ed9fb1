"""Rows as a net makes them of codes, judged by how far off they are: what autoencoders and GLO share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.legal import WIDTHS, Choice, Whole
from weft.core.objective import Objective, capability
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net

__all__ = ["Decoded"]

LOSSES = ("squared", "absolute", "bernoulli")


class Decoded(Objective):
    """x is about g(z), a net's answer to a code z. How far off it is, summed over the entries of a row, is

        `squared`    sum (x - g)^2
        `absolute`   sum |x - g|
        `bernoulli`  -sum x log g + (1 - x) log (1 - g),   g a sigmoid of the net, x in [0, 1].

    A number is no density: nothing is said of how probable a row is, so there is no `log_prob` and no `posterior`.
    Rows with a shape, such as images, come back in it. Whole numbers are taken as numbers, true and false as 1 and 0.
    A table's columns come back in their units, those of counts and of true and false at the nearest of these; its
    categories are refused.

    Args:
        latent: the entries of a code.
        hidden: hidden widths of the default decoder, reversed.
        decoder: from a code to a row, a net as a user may give it; `conv-decoder` for images.
        loss: one of the three.
    """

    fields: tuple[str, ...] = ("x",)
    columns = "values"
    legal = {"latent": Whole(1), "hidden": WIDTHS, "decoder": NET, "loss": Choice(*LOSSES)}

    def __init__(self, latent: int, *, hidden: Sequence[int], decoder: NetLike, loss: str) -> None:
        super().__init__()
        self.latent = latent
        self.hidden = hidden
        self.decoder = decoder
        self.loss = loss

    def build(self, spec: Spec) -> None:
        field = spec["x"]
        for part in field.columns or ():
            if part.kind == "category":
                raise ValueError(
                    f"expected numbers for {type(self).__name__}, whose loss is a distance, got the category "
                    f"{part.name!r}; give an entry for each of its values, pandas.get_dummies(X), or take VAE(), which "
                    "models categories"
                )
        kinds = [part.kind for part in field.columns or ()]
        self.most = [{"boolean": 1.0, "count": math.inf}.get(kind) for kind in kinds]  # of columns of whole numbers
        self.shape = tuple(field.shape)
        self.build_decoder(Field((int(self.latent),), torch.get_default_dtype()))

    def build_decoder(self, code: Field) -> None:
        """Makes the net g of rows like `code`."""
        back = tuple(reversed(tuple(self.hidden)))
        answer = self.shape if len(self.shape) > 1 else math.prod(self.shape)
        self.decoder = make_net(self.decoder, code, answer, hidden=back, what="decoder")

    def raw(self, z: Tensor) -> Tensor:
        """What the net says to codes `(n, latent)`: rows, or under `bernoulli` their logits."""
        said: Tensor = self.decoder(z)  # type: ignore[operator, misc, assignment]
        return said.reshape(len(z), *self.shape)

    def mean(self, raw: Tensor) -> Tensor:
        """Rows g, of what the net says, as they are given back."""
        g = raw.sigmoid() if self.loss == "bernoulli" else raw
        if not any(self.most):
            return g
        whole = torch.tensor([most is not None for most in self.most], device=g.device)
        most = torch.tensor([math.inf if most is None else most for most in self.most], dtype=g.dtype, device=g.device)
        return torch.where(whole, torch.minimum(g.round().clamp_min(0), most), g)

    def off(self, raw: Tensor, x: Tensor) -> Tensor:
        """How far off each row is."""
        if self.loss == "squared":
            each = (x - raw) ** 2
        elif self.loss == "absolute":
            each = (x - raw).abs()
        else:
            each = F.softplus(raw) - x * raw
        return each.flatten(1).sum(-1)

    def numbers(self, x: Tensor) -> Tensor:
        """Rows as the nets read them."""
        return x.to(next(self.parameters()).dtype)

    @capability(merge="refuse")
    def inverse_transform(self, z: Tensor) -> Tensor:
        """g(z), for codes `(n, latent)`."""
        if tuple(z.shape[1:]) != (int(self.latent),):
            raise ValueError(
                f"expected codes of {self.latent} entries, as transform gives them, got shape {tuple(z.shape)}"
            )
        return self.mean(self.raw(self.numbers(z)))

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        x = rows["x"]
        if self.loss == "bernoulli" and bool(((x < 0) | (x > 1)).any()):
            raise ValueError(
                f"expected entries in [0, 1] for {type(self).__name__}(loss='bernoulli'), got {x.min().item():g} to "
                f"{x.max().item():g}; scale them, or take loss='squared'"
            )
