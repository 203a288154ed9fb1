"""The image Transformer: pixels as a sequence, each by attention to all before it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.nets.attention import Transformer
from weft.objectives.densities.pixels import Images

__all__ = ["PixelTransformer"]


class PixelTransformer(Images):
    """An image as the sequence of its pixels, row by row, each by attention to all that come before it.

        p(x) = prod_t p(x_t | h_t),   h = blocks of causal attention and perceptrons over start, x_1, ..., x_(t-1)

    Every step has a vector of its own for its place, from which the net learns what stands above and beside what. It
    sees all pixels before one from the first block on, whatever the distance, where a PixelCNN needs many layers.

    A draw keeps the keys and values of what it has read, so that a pixel costs one step.

    Args:
        layers: how many blocks.
        heads: of attention.
        width: of a step.
        dropout: share that is dropped of a step's input, of attention's weights and of what blocks add.
        positions: `learned`, or `rotary`, by which attention sees only how many steps lie between.
        law, classes, parts, conditional: see `weft.objectives.densities.pixels.Images`.

    References:
        Parmar et al., "Image Transformer", arXiv 1802.05751; Chen et al., "Generative pretraining from pixels",
        ICML 2020.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bars = np.zeros((4, 1, 3, 3))
        >>> bars[[0, 1, 2], 0, :, [0, 1, 2]] = 1  # a column each, and none
        >>> model = PixelTransformer(layers=1, heads=2, width=16)
        >>> learner = Learner(model, steps=300, optimizer=Optimizer("adam", lr=0.01), random_state=0).fit(bars)
        >>> bool(np.exp(learner.log_prob(bars)).sum() > 0.9)
        True
    """

    space = {"layers": Range(2, 8, whole=True), "dropout": Range(0.0, 0.3)}
    legal = {
        "layers": Whole(1),
        "heads": Whole(1),
        "width": Whole(1),
        "dropout": Number(0, 1, "[)"),
        "positions": Choice("learned", "rotary"),
    }
    along: Tensor
    places: Tensor
    net: Transformer  # type: ignore[assignment]

    def __init__(
        self,
        *,
        layers: int = 4,
        heads: int = 4,
        width: int = 64,
        dropout: float = 0.0,
        positions: str = "learned",
        law: str = "bernoulli",
        classes: int | None = None,
        parts: int = 10,
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, conditional=conditional)
        self.layers = layers
        self.heads = heads
        self.width = width
        self.dropout = dropout
        self.positions = positions

    def connect(self) -> None:
        order = torch.tensor(self.sequences[0])
        self.register_buffer("along", order)  # entries in their order, and the turn of each
        self.register_buffer("places", order.argsort())
        self.net = Transformer(
            self.reading["inputs"] + 1 + self.given,
            self.reading["outputs"],
            context=len(order),
            layers=int(self.layers),
            heads=int(self.heads),
            width=int(self.width),
            dropout=self.dropout,
            positions=self.positions,
        )

    def steps(self, read: Tensor, inputs: Tensor, first: bool) -> Tensor:
        """What the net is given: entries as they are read, `(n, T, width)`, whether a step is the start, the class."""
        began = F.pad(torch.zeros_like(read[:, 1:, :1]), (0, 0, 1, 0), value=float(first))
        given = inputs[:, None, : self.given].expand(-1, read.shape[1], -1)
        return torch.cat([read, began, given], -1)

    def conditionals(self, inputs: Tensor, member: int = 0) -> Tensor:
        read = self.image(inputs).flatten(1, 3)[:, self.along[:-1]]
        theta = self.net(self.steps(F.pad(read, (0, 0, 1, 0)), inputs, True))
        return theta[:, self.places].flatten(1)

    def begin(self, inputs: Tensor, member: int = 0) -> Any:
        return self.net.begin(inputs, len(self.entries))

    def advance(self, known: int, inputs: Tensor, kept: Any, member: int = 0) -> Tensor:
        if known:
            read = inputs[:, self.spans[self.sequences[0][known - 1]]]
        else:
            read = torch.zeros_like(inputs[:, self.spans[0]])
        return self.net.advance(self.steps(read.unsqueeze(1), inputs, not known).squeeze(1), kept)
