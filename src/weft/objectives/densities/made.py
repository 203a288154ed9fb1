"""MADE: an autoencoder made autoregressive by masks, over one order, several, or any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import WIDTHS, Choice, Flag, Whole
from weft.core.objective import Output
from weft.core.random import turns, uniform
from weft.core.source import Batch
from weft.nets.masked import MaskedMLP, ranks_of
from weft.nets.mlp import ACTIVATIONS
from weft.objectives.densities.autoregressive import random_order
from weft.objectives.densities.masked import Masked

__all__ = ["MADE"]


class MADE(Masked):
    """The masked autoencoder for distribution estimation: a net of any depth, all conditionals in one pass.

    A hidden unit of degree m sees the first m entries of the order; the output for an entry reads the units whose
    degree is lower than its place. So p(x) = prod_i p(x_o(i) | x_o(<i)) is exact, by one pass for a row.

    With several orders or masks the density is the mean of their probabilities, p(x) = mean_m p_m(x). A step of
    training draws one of them, as the paper does, whose mean loss is at least -log p(x); that a hidden unit sees an
    input, which may be 0, it knows by a weight of its own. `agnostic` draws an order among all at each step: then one
    net has learned every conditional, and `impute` fills any gap, by an order in which what is observed comes first.

    With law="normal-mixture" it is a masked autoregressive density of reals with as many hills as there are parts.

    Args:
        hidden: widths of the hidden layers; more than there are entries, or some conditionals share their units.
        masks: how many assignments of the hidden units' degrees.
        orderings: how many orders; those after the first are random, always the same.
        agnostic: whether each step of training draws an order among all. Asked, it is the mean over `orderings`.
        activation: of the hidden units, by name.
        law, classes, parts, order, conditional: see `weft.objectives.densities.autoregressive.Autoregressive`.

    References:
        Germain, Gregor, Murray and Larochelle, "MADE: masked autoencoder for distribution estimation",
        arXiv 1502.03509.
        Uria, Murray and Larochelle, "A deep and tractable density estimator", arXiv 1310.1757.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bits = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])  # the last is the xor
        >>> model = MADE((32, 32), law="bernoulli", agnostic=True, orderings=2)
        >>> learner = Learner(model, epochs=400, optimizer=Optimizer("adam", lr=0.01), random_state=0).fit(bits)
        >>> bool(np.exp(learner.log_prob(bits)).sum() > 0.9)
        True
        >>> learner.impute([[np.nan, 1.0, 0.0]], random_state=0)
        array([[1., 1., 0.]], dtype=float32)
    """

    space = {"masks": Range(1, 32, log=True, whole=True)}
    legal = {
        "hidden": WIDTHS,
        "masks": Whole(1),
        "orderings": Whole(1),
        "agnostic": Flag(),
        "activation": Choice(*ACTIVATIONS),
    }
    ranks: Tensor

    def __init__(
        self,
        hidden: Sequence[int] = (128, 128),
        *,
        masks: int = 1,
        orderings: int = 1,
        agnostic: bool = False,
        activation: str = "relu",
        law: str = "auto",
        classes: int | None = None,
        parts: int = 10,
        order: str | Sequence[int] = "given",
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, order=order, conditional=conditional)
        self.hidden = hidden
        self.masks = masks
        self.orderings = orderings
        self.agnostic = agnostic
        self.activation = activation

    def connect(self) -> None:
        d, masks = len(self.entries), int(self.masks)
        orders = [self.sequences[0], *(random_order(d, k) for k in range(1, int(self.orderings)))]
        self.sequences = [order for order in orders for _ in range(masks)]
        self.register_buffer("ranks", torch.stack([ranks_of(order) for order in orders]))
        self.net = MaskedMLP(
            self.reads,
            self.answers,
            order=orders[0],
            hidden=self.hidden,
            sets=masks,
            told=self.agnostic or self.members > 1,
            activation=self.activation,
        )

    def assignment(self, member: int) -> int:
        return member % int(self.masks)

    def masks_of(self, member: int) -> list[Tensor]:
        if member == 0:
            return super().masks_of(0)
        return self.net.masks(self.ranks[member // int(self.masks)], self.assignment(member))

    def forward(self, batch: Batch, player: str = "") -> Output:
        """In training, under an order and masks that are drawn for the step, one for all rows."""
        if not self.training or (self.members == 1 and not self.agnostic):
            return super().forward(batch, player)
        u = uniform((2,), place="member", shared=True, dtype=torch.float64)
        if self.agnostic:
            any_order = uniform((len(self.entries),), place="order", shared=True, dtype=torch.float64)
            ranks = any_order.argsort(-1).argsort(-1) + 1
        else:
            ranks = self.ranks.index_select(0, (u[:1] * len(self.ranks)).long())[0]
        which = (u[1:] * int(self.masks)).long()
        x, observed = batch["x"], batch["observed"]
        x = torch.where(observed, x, 0)
        inputs = self.read(x, batch["y"] if self.conditional else None)
        theta = self.net(inputs, self.net.masks(ranks, which))
        return Output(-self.log_given(theta, x, observed))

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(rows, training=training)
        observed = rows.get("observed")
        if training and self.agnostic and observed is not None and not bool(observed.all()):
            raise ValueError(
                "expected rows without gaps to train MADE(agnostic=True), whose orders are drawn for all rows at once, "
                f"got gaps in {int((~observed.all(-1)).sum())} of {len(observed)} rows; leave those rows out, or fill "
                "them first, and give rows with gaps to impute"
            )

    @property
    def mend(self) -> str:  # type: ignore[override]
        return "impute fills them in any order" if self.agnostic else super().mend

    def impute(self, x: Tensor, observed: Tensor, y: Tensor | None = None) -> Tensor:
        """Rows whose gaps are drawn given the rest.

        It is exact where what is missing comes last in the order, or orders. Of an agnostic model it is by another
        order elsewhere: of each row, one of the orders with what is observed moved to its front. The conditionals of
        such an order are those that training has learned for it, which need not agree with those that `log_prob` has.
        """
        if not self.agnostic:
            return super().impute(x, observed, y)
        n, d = x.shape
        k = (uniform((n,), place="order", dtype=torch.float64) * len(self.ranks)).long()
        late = self.ranks.index_select(0, k) + d * (~observed).long()
        ranks = late.argsort(-1).argsort(-1) + 1
        masks = self.net.masks(ranks)
        x = torch.where(observed, x, 0)
        for t in turns("entry", d):
            theta = self.net(self.read(x, y), masks)
            x = torch.where((ranks == t + 1) & ~observed, self.entries.draw(theta, "x"), x)
        return x
