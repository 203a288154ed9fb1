"""PixelCNN: an image pixel by pixel, each by convolutions over those before it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.legal import Flag, Several, Whole
from weft.nets.pixels import GatedLayer, MaskedLayer, PixelNet
from weft.objectives.densities.pixels import Images

__all__ = ["PixelCNN"]


class PixelCNN(Images):
    """Images by masked convolutions: all conditionals in one pass, whose cost does not grow with what they see.

        p(x) = prod_i p(x_i | x_<i)   over pixels row by row, red before green before blue in each

    `gated` has two stacks of features, of the rows above a pixel and of its own row, gated by tanh(a) sigmoid(b): they
    see all that comes before a pixel within their reach. Without it they are rectified masked convolutions, which are
    blind to some of it: what is to the right in the rows above, beyond a slope.

    A draw computes for each pixel only what has just become determined: the stack of the rows above once a row, the
    rest at the one pixel. The draws are those of the naive loop, which asks the whole net for every pixel.

    Args:
        layers: how many.
        width: features of a layer, shared out among the channels.
        kernel: columns that a layer sees, an odd number; rows above half as many.
        gated: whether in two gated stacks.
        dilations: pixels from tap to tap, of the layers after the first in turn; (1, 2, 4) reaches far in few layers.
        law, classes, parts, conditional: see `weft.objectives.densities.pixels.Images`.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.
        van den Oord et al., "Conditional image generation with PixelCNN decoders", arXiv 1606.05328.
        Salimans, Karpathy, Chen and Kingma, "PixelCNN++", arXiv 1701.05517 (the mixture of logistics).
        Yu and Koltun, "Multi-scale context aggregation by dilated convolutions", arXiv 1511.07122.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bars = np.zeros((4, 1, 3, 3))
        >>> bars[[0, 1, 2], 0, :, [0, 1, 2]] = 1  # a column each, and none
        >>> model = PixelCNN(layers=2, width=8, kernel=3)
        >>> learner = Learner(model, steps=200, optimizer=Optimizer("adam", lr=0.02), random_state=0).fit(bars)
        >>> bool(np.exp(learner.log_prob(bars)).sum() > 0.9)
        True
        >>> learner.sample(1, prefix=(0, 1)).shape
        (1, 1, 3, 3)
    """

    legal = {
        "layers": Whole(1),
        "width": Whole(1),
        "kernel": Whole(3),
        "gated": Flag(),
        "dilations": Several("steps from tap to tap such as (1, 2, 4)", Whole(1), least=1),
    }

    def __init__(
        self,
        *,
        layers: int = 7,
        width: int = 64,
        kernel: int = 5,
        gated: bool = True,
        dilations: Sequence[int] = (1,),
        law: str = "bernoulli",
        classes: int | None = None,
        parts: int = 10,
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, conditional=conditional)
        self.layers = layers
        self.width = width
        self.kernel = kernel
        self.gated = gated
        self.dilations = dilations

    def validate(self) -> None:
        super().validate()
        self.refuse_even(self.kernel)
        if len(self.dilations) >= self.layers and any(d != 1 for d in self.dilations):
            raise ValueError(
                f"expected at most {self.layers - 1} dilations for {self.layers} layers of PixelCNN, the first having "
                f"none, got {tuple(self.dilations)}; take more layers"
            )

    def connect(self) -> None:
        kind = GatedLayer if self.gated else MaskedLayer
        before, after = self.channels_of(int(self.width))
        layers = [
            kind(
                after if i else before,
                after,
                kernel=int(self.kernel),
                dilation=int(self.dilations[(i - 1) % len(self.dilations)]) if i else 1,
                given=self.given,
                first=not i,
            )
            for i in range(int(self.layers))
        ]
        self.net = PixelNet(layers, **self.reading)
