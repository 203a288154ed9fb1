"""What densities of images share: pixels row by row, from left to right, and the channels of a pixel in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from weft.core.legal import Choice
from weft.core.source import Field
from weft.nets.pixels import PixelNet, spread
from weft.objectives.densities.autoregressive import Autoregressive
from weft.objectives.densities.laws import Laws

__all__ = ["Images"]


class Images(Autoregressive):
    """p(x) = prod p(x_rck | all rows above, the row's pixels left of it, the pixel's channels before k), of images.

    Images are `(channels, height, width)` of whole numbers: bits, classes or levels. A model makes `net` in `connect`,
    such as a `weft.nets.pixels.PixelNet`, or writes `conditionals`, `begin` and `advance`, for which `image`, `told`
    and `where` lay the inputs out.

    What may be missing is what comes last, such as the lower part of an image, and `impute` paints it. A `prefix` of
    `sample` is in the order of the pixels, the channels of each together.

    Args:
        law: `bernoulli` for black and white, `categorical` for classes, `logistic-mixture` for levels whose neighbours
            are alike, such as bytes.
        classes: how many classes or levels there are; of bytes 256.
        parts: of `logistic-mixture`, how many.
        conditional: whether it is p(x | y), of images with a class each.
    """

    legal = {"law": Choice("bernoulli", "categorical", "logistic-mixture")}
    net: PixelNet

    def __init__(
        self, *, law: str = "bernoulli", classes: int | None = None, parts: int = 10, conditional: bool = False
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, conditional=conditional)

    def _laws(self, field: Field) -> Laws:
        if len(field.shape) != 3:
            fix = "; give them an axis of channels: X[:, None]" if len(field.shape) == 2 else ""
            raise ValueError(
                f"expected images of shape (channels, height, width) for {type(self).__name__}, got rows of shape "
                f"{field.shape}{fix}"
            )
        channels, height, width = field.shape
        if channels > 4 >= width:
            raise ValueError(
                f"expected images of shape (channels, height, width) for {type(self).__name__}, got {field.shape}, "
                "which seem to have their channels last; X.transpose(0, 3, 1, 2)"
            )
        names = [
            f"row {r}, column {c}" + (f", channel {k}" if channels > 1 else "")
            for k in range(channels)
            for r in range(height)
            for c in range(width)
        ]
        return Laws(super()._laws(replace(field, shape=(len(names),))).laws, names)

    def _sequence(self) -> list[int]:
        channels, height, width = self.shape
        return [(k * height + r) * width + c for r in range(height) for c in range(width) for k in range(channels)]

    @property
    def prefixed(self) -> Sequence[int]:
        return self.sequences[0]

    mend = "what is missing of an image must be the end of it, row by row, with all channels of a pixel"

    def validate(self) -> None:
        super().validate()
        if self.law == "bernoulli" and self.classes is not None:
            raise ValueError(
                f"expected classes for the laws 'categorical' and 'logistic-mixture' alone, got {self.classes} with "
                "law='bernoulli', which has two; leave them out, or name one of these laws"
            )

    def refuse_even(self, kernel: int) -> None:
        """Raises where a kernel has no middle."""
        if kernel % 2 == 0:
            raise ValueError(
                f"expected an odd kernel for {type(self).__name__}, with the pixel in its middle, got {kernel}; try "
                f"{kernel + 1}"
            )

    # --- what a net reads and answers -----------------------------------------------------------------------

    @property
    def reading(self) -> dict[str, int]:
        """How many numbers each channel of a pixel is read as, and how many describe its law."""
        return {"inputs": self.entries.laws[0].width, "outputs": self.entries.laws[0].size}

    def channels_of(self, width: int) -> tuple[list[int], list[int]]:
        """The channel of each number that a pixel is read as, and of each of so many features."""
        channels = self.shape[0]
        if width < channels:
            raise ValueError(
                f"expected a width of at least {channels} for {type(self).__name__}, a feature for each channel, got "
                f"{width}"
            )
        return [k for k in range(channels) for _ in range(self.entries.laws[0].width)], spread(width, channels)

    def image(self, inputs: Tensor) -> Tensor:
        """Inputs as an image, `(n, channels, height, width, width of the law)`."""
        return inputs[:, self.given :].unflatten(-1, (*self.shape, self.entries.laws[0].width))

    def told(self, inputs: Tensor) -> Tensor | None:
        """What each image is given, `(n, classes)`."""
        return inputs[:, : self.given] if self.given else None

    def where(self, known: int) -> tuple[int, int, int]:
        """Row, column and channel of the entry that is next once so many are known."""
        channels, _, width = self.shape
        pixel, channel = divmod(known, channels)
        return *divmod(pixel, width), channel

    def conditionals(self, inputs: Tensor, member: int = 0) -> Tensor:
        return self.net(self.image(inputs), self.told(inputs)).flatten(1)

    def begin(self, inputs: Tensor, member: int = 0) -> Any:
        return self.net.begin(self.image(inputs), self.told(inputs))

    def advance(self, known: int, inputs: Tensor, kept: Any, member: int = 0) -> Tensor:
        return self.net.advance(self.where(known), self.image(inputs), kept)
