"""Convolutional nets of images: one that makes numbers of an image, and one that makes an image of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from weft.core.legal import Choice, Flag, Legal, Several, Whole, check
from weft.nets.mlp import ACTIVATIONS

__all__ = ["ConvDecoder", "ConvEncoder"]

SHAPE = Several("a shape such as (1, 28, 28)", Whole(1), least=1)
WIDTHS = Several("widths of layers such as (32, 64)", Whole(1), least=1)


class ConvEncoder(nn.Module):
    """Strided convolutions, each of which halves the image, and a linear map of what is left.

        h_0 = x,  h_i = act(W_i * h_{i-1} + b_i) at every second pixel,  answer = V h_L + c

    Kernels are 4 x 4, a pixel of zeros stands around the image, and an odd last row or column is left over.

    Args:
        inputs: an image's shape, (channels, height, width), or (height, width) where there is one channel.
        outputs: values of a row's answer, or its shape, of which only the size counts.
        widths: channels of the layers.
        activation: by name.

    References:
        LeCun et al., "Gradient-based learning applied to document recognition", Proceedings of the IEEE 86, 1998;
        Radford, Metz and Chintala, "Unsupervised representation learning with deep convolutional generative adversarial
        networks", arXiv 1511.06434 (strides instead of pooling).

    >>> import torch
    >>> ConvEncoder((1, 28, 28), 10)(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """

    shaped = True
    legal: ClassVar[dict[str, Legal]] = {
        "inputs": SHAPE,
        "outputs": Whole(1) | SHAPE,
        "widths": WIDTHS,
        "activation": Choice(*ACTIVATIONS),
    }

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: int | Sequence[int],
        *,
        widths: Sequence[int] = (32, 64),
        activation: str = "relu",
    ) -> None:
        check(ConvEncoder, locals())
        super().__init__()
        self.image = _image(inputs, "ConvEncoder", "inputs", "give it rows that are images, or take 'mlp'")
        channels, *size = self.image
        sizes = _halved(size, widths, "ConvEncoder")
        layers: list[nn.Module] = []
        for before, width in zip((channels, *widths), widths, strict=False):
            layers += [nn.Conv2d(before, width, 4, stride=2, padding=1), ACTIVATIONS[activation]()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        count = outputs if isinstance(outputs, int) else math.prod(outputs)
        self.head = nn.Linear(widths[-1] * math.prod(sizes[-1]), count)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x.reshape(len(x), *self.image)))


class ConvDecoder(nn.Module):
    """A linear map to a small image, and transposed convolutions, each of which doubles it.

        h_0 = act(V z + c),  h_i = act(W_i *ᵀ h_{i-1} + b_i),  the last one without act

    Heights and widths are those of `ConvEncoder` in reverse, so that any image comes out exactly as large as asked.

    Args:
        inputs: values of a row, or its shape, of which only the size counts.
        outputs: the answer's shape, (channels, height, width), or (height, width) for one channel.
        widths: channels of the layers, the one next to the image first, as an encoder has them.
        activation: by name.
        flat: whether an answer is a row of numbers rather than an image.

    References:
        Radford, Metz and Chintala, "Unsupervised representation learning with deep convolutional generative adversarial
        networks", arXiv 1511.06434.

    >>> import torch
    >>> ConvDecoder(2, (1, 7, 9))(torch.zeros(5, 2)).shape
    torch.Size([5, 1, 7, 9])
    >>> ConvDecoder(2, (7, 9), flat=True)(torch.zeros(5, 2)).shape
    torch.Size([5, 63])
    """

    shaped = True
    legal: ClassVar[dict[str, Legal]] = {
        "inputs": Whole(1) | SHAPE,
        "outputs": SHAPE,
        "widths": WIDTHS,
        "activation": Choice(*ACTIVATIONS),
        "flat": Flag(),
    }

    def __init__(
        self,
        inputs: int | Sequence[int],
        outputs: Sequence[int],
        *,
        widths: Sequence[int] = (32, 64),
        activation: str = "relu",
        flat: bool = False,
    ) -> None:
        check(ConvDecoder, locals())
        super().__init__()
        channels, *size = _image(outputs, "ConvDecoder", "outputs", "it answers with images; for other rows take 'mlp'")
        sizes = _halved(size, widths, "ConvDecoder")
        self.shape = (math.prod(outputs),) if flat else tuple(outputs)
        count = inputs if isinstance(inputs, int) else math.prod(inputs)
        small = (widths[-1], *sizes[-1])
        self.begin = nn.Sequential(nn.Flatten(), nn.Linear(count, math.prod(small)), nn.Unflatten(1, small))
        layers: list[nn.Module] = []
        for i in reversed(range(len(widths))):
            odd = (sizes[i][0] % 2, sizes[i][1] % 2)  # what halving left over
            after = widths[i - 1] if i else channels
            layers.append(ACTIVATIONS[activation]())
            layers.append(nn.ConvTranspose2d(widths[i], after, 4, stride=2, padding=1, output_padding=odd))
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(self.begin(z)).reshape(len(z), *self.shape)


def _image(shape: Sequence[int], owner: str, what: str, fix: str) -> tuple[int, int, int]:
    """(channels, height, width) of images of a shape."""
    if len(shape) not in (2, 3):
        raise ValueError(
            f"expected {owner}'s {what} to be an image's shape, (channels, height, width) or (height, width), got "
            f"{tuple(shape)}; {fix}"
        )
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


def _halved(size: Sequence[int], widths: Sequence[int], owner: str) -> list[tuple[int, int]]:
    """Height and width of an image and after each layer."""
    least = 2 ** len(widths)
    if min(size) < least:
        raise ValueError(
            f"expected images of at least {least} x {least} for {owner}'s {len(widths)} widths, each of which halves "
            f"them, got {size[0]} x {size[1]}; give fewer widths"
        )
    return [(size[0] >> i, size[1] >> i) for i in range(len(widths) + 1)]
