"""PixelRNN: an image pixel by pixel, each by LSTMs that run over those before it."""

from __future__ import annotations

from weft.core.legal import Choice, Whole
from weft.nets.pixel_cells import DiagonalLSTM, RowLSTM
from weft.nets.pixels import MaskedLayer, PixelLayer, PixelNet
from weft.objectives.densities.pixels import Images

__all__ = ["PixelRNN"]


class PixelRNN(Images):
    """Images by recurrent layers over a masked convolution.

        p(x) = prod_i p(x_i | x_<i)   over pixels row by row, red before green before blue in each

    `row` has LSTMs that go down the rows, each pixel with the states around it in the row above: it sees a triangle of
    what comes before. `diagonal` has two LSTMs along the diagonals, from either side: it sees all of it (in the paper's
    net the last pixel of the row above is not seen by most, as no feature of its own row sees it: here the LSTM from
    the right reads the pixels of the row above too). Training takes
    a step for each row, or for each diagonal. A draw takes one for each pixel: that a row is drawn in one pass is true
    of neither, as each pixel depends on the one left of it; the states of the rows above are kept.

    Args:
        kind: `row` or `diagonal`.
        layers: how many LSTMs.
        width: features and hidden units of a layer, shared out among the channels.
        kernel: columns that the convolution and a row's LSTM see, an odd number.
        law, classes, parts, conditional: see `weft.objectives.densities.pixels.Images`.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bars = np.zeros((4, 1, 3, 3))
        >>> bars[[0, 1, 2], 0, :, [0, 1, 2]] = 1  # a column each, and none
        >>> model = PixelRNN(kind="diagonal", layers=1, width=8, kernel=3)
        >>> learner = Learner(model, steps=150, optimizer=Optimizer("adam", lr=0.03), random_state=0).fit(bars)
        >>> bool(np.exp(learner.log_prob(bars)).sum() > 0.9)
        True
    """

    legal = {"kind": Choice("row", "diagonal"), "layers": Whole(1), "width": Whole(1), "kernel": Whole(3)}

    def __init__(
        self,
        *,
        kind: str = "row",
        layers: int = 3,
        width: int = 64,
        kernel: int = 3,
        law: str = "bernoulli",
        classes: int | None = None,
        parts: int = 10,
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, conditional=conditional)
        self.kind = kind
        self.layers = layers
        self.width = width
        self.kernel = kernel

    def validate(self) -> None:
        super().validate()
        self.refuse_even(self.kernel)

    def connect(self) -> None:
        before, after = self.channels_of(int(self.width))
        kernel, given = int(self.kernel), self.given
        layers: list[PixelLayer] = [MaskedLayer(before, after, kernel=kernel, dilation=1, given=given, first=True)]
        for _ in range(int(self.layers)):
            if self.kind == "row":
                layers.append(RowLSTM(after, after, kernel=kernel, given=given))
            else:
                layers.append(DiagonalLSTM(after, after, above=len(before), given=given))
        self.net = PixelNet(layers, **self.reading)
