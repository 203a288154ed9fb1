"""Convolutions that see nothing but what comes before a pixel, and nets of them, of whole images or pixel by pixel.

Pixels come row by row, from left to right, and the channels of a pixel in order. Every feature belongs to a channel: at
its own pixel it sees the channels before that one, everywhere else what comes before the pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nets.masked import follows

__all__ = ["GatedLayer", "MaskedConv2d", "MaskedLayer", "PixelLayer", "PixelNet", "before_pixel", "spread"]


def spread(features: int, channels: int) -> list[int]:
    """The channel of each feature, evenly and in order.

    >>> spread(5, 2)
    [0, 0, 0, 1, 1]
    """
    return [i * channels // features for i in range(features)]


def before_pixel(after: Sequence[int], before: Sequence[int], kernel: int, *, itself: bool) -> Tensor:
    """The mask of a convolution over what comes before a pixel, `(after, before, kernel // 2 + 1, kernel)`.

    Its last row is that of the pixel, which stands in the middle of it: what is right of it is not seen, and at the
    pixel a feature sees those of the channels before its own (mask A) or of its own too (mask B, `itself`).

    >>> before_pixel([0], [0], 3, itself=False)[0, 0]
    tensor([[1, 1, 1],
            [1, 0, 0]], dtype=torch.uint8)
    """
    reach = kernel // 2
    mask = torch.ones(len(after), len(before), reach + 1, kernel, dtype=torch.uint8)
    mask[:, :, reach, reach + 1 :] = 0
    mask[:, :, reach, reach] = follows(torch.tensor(after), torch.tensor(before), strictly=not itself)
    return mask


class MaskedConv2d(nn.Module):
    """A convolution that leaves taps out; the last row of its kernel is that of the pixel itself.

    A feature begins with weights and a bias drawn as those of a layer that has only the taps that it sees.

    Args:
        mask: 0 and 1, `(outputs, inputs, rows, columns)`. It is no parameter, and stays.
        left: how many columns of the kernel are left of the pixel.
        dilation: how many pixels there are from tap to tap.
        bias: whether it has one.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.

    >>> layer = MaskedConv2d(before_pixel([0], [0], 3, itself=False), left=1)
    >>> x = torch.zeros(1, 1, 2, 3, requires_grad=True)
    >>> (torch.autograd.grad(layer(x)[0, 0, 1, 1], x)[0] != 0).long()
    tensor([[[[1, 1, 1],
              [1, 0, 0]]]])
    """

    mask: Tensor

    def __init__(self, mask: Tensor, *, left: int = 0, dilation: int = 1, bias: bool = True) -> None:
        super().__init__()
        if mask.dim() != 4 or not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError(
                f"expected a mask of 0 and 1 of shape (outputs, inputs, rows, columns), got shape {tuple(mask.shape)}"
            )
        self.left, self.dilation = left, dilation
        self.weight = nn.Parameter(torch.empty(mask.shape))
        self.bias = nn.Parameter(torch.empty(mask.shape[0])) if bias else None
        # Bytes and not bools, as processes exchange no bools; nor floats, which would be averaged as statistics are.
        self.register_buffer("mask", mask.to(torch.uint8))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(taps that a feature sees)."""
        bound = self.mask.sum((1, 2, 3)).clamp_min(1).to(self.weight.dtype).rsqrt()
        with torch.no_grad():
            self.weight.uniform_(-1.0, 1.0).mul_(bound.reshape(-1, 1, 1, 1))
            if self.bias is not None:
                self.bias.uniform_(-1.0, 1.0).mul_(bound)

    @property
    def seen(self) -> Tensor:
        """Its weights, 0 where the mask is."""
        return self.weight * self.mask

    def forward(self, x: Tensor) -> Tensor:
        """Of images `(n, inputs, height, width)`, one feature map for each output, as large."""
        rows, columns = self.mask.shape[2:]
        d, left = self.dilation, self.left
        x = F.pad(x, (left * d, (columns - 1 - left) * d, (rows - 1) * d, 0))
        return F.conv2d(x, self.seen, self.bias, dilation=d)

    def taps(self, chosen: Sequence[int]) -> Tensor:
        """Of some outputs, the weights of the pixel's own row up to it, `(columns * inputs, outputs)`."""
        return self.seen[list(chosen), :, -1, : self.left + 1].permute(2, 1, 0).flatten(0, 1)

    def at_pixel(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of some outputs of a 1 x 1 convolution, weights `(outputs, inputs)` and biases, for a single pixel."""
        if self.bias is None:
            raise ValueError("expected a convolution with a bias, got one without")
        return self.seen[list(chosen), :, 0, 0], self.bias[list(chosen)]


Kept = dict[str, Any]
"""What a layer keeps from pixel to pixel: `row`, its inputs in the row at hand, columns before features; `base`, by
channel, what is known of its sums when the row begins; weights as a single pixel needs them; and more of its own."""


class PixelLayer(nn.Module):
    """A layer of a `PixelNet`: sums at a pixel, made active, mixed by a 1 x 1 convolution and added to what came in.

    A layer writes `forward`, of whole images, and for one pixel after another `row`, which does what can be done when
    a row begins, for all of its pixels at once, and `active`. What the net gives so is what `forward` gives.

    Args:
        before, after: the channel of each feature that comes in and that goes out.
        parts: how many sums there are for a feature.
        across: the convolution over the pixel's own row, whose outputs are the sums.
        given: how many numbers each image is given, such as its class.
        told: how many of its sums they are added to.
        first: whether nothing is added to what came in.

    Attributes:
        step, pad: how many columns there are from tap to tap, and how many its taps reach to the left.
    """

    across: MaskedConv2d

    def __init__(
        self, before: Sequence[int], after: Sequence[int], across: MaskedConv2d, *, given: int, told: int, first: bool
    ) -> None:
        super().__init__()
        self.before, self.after = list(before), list(after)
        self.across, self.first = across, first
        self.step, self.pad = across.dilation, across.left * across.dilation
        self.out = MaskedConv2d(follows(torch.tensor(after), torch.tensor(after))[..., None, None])
        self.told = nn.Linear(given, told, bias=False) if given else None
        channels, features, sums = max(after) + 1, len(after), across.mask.shape[0]
        every = [[i for i in range(features) if after[i] == channel] for channel in range(channels)]
        self.owns = [slice(own[0], own[-1] + 1) for own in every]
        self.sums = [[p * features + i for p in range(sums // features) for i in own] for own in every]

    def tell(self, given: Tensor | None, parts: int = 1) -> tuple[Tensor | float, ...]:
        """What is added to the sums of each image, `(n, told, 1, 1)` in so many parts."""
        if self.told is None or given is None:
            return (0.0,) * parts
        return self.told(given)[..., None, None].chunk(parts, 1)

    def mixed(self, active: Tensor, here: Tensor) -> Tensor:
        """What goes out."""
        return self.out(active) if self.first else here + self.out(active)

    def forward(self, above: Tensor, here: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features of the rows above each pixel's, which see all of them, and those of the pixel."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(above, here, given)")

    def begin(self, like: Tensor, height: int, width: int, given: Tensor | None) -> Kept:
        """What is kept, before the first row of images as many as `like` has rows, and of its kind."""
        n = len(like)
        return {
            "given": given,
            "row": like.new_zeros(n, self.pad + width, len(self.before)),
            "mixed": like.new_zeros(n, len(self.after)),
            "taps": [self.across.taps(own) for own in self.sums],
            "out": [self.out.at_pixel(range(own.start, own.stop)) for own in self.owns],
        }

    def row(self, kept: Kept, number: int, above: Tensor) -> Tensor:
        """A row begins, and all before it are known; sets `base`.

        Args:
            kept: what `begin` gave, with `row` as the row before has left it.
            number: of the row.
            above: its features of the rows above, `(n, features, width)`.

        Returns:
            Those that go out.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define row(kept, number, above)")

    def active(self, kept: Kept, column: int, channel: int, sums: Tensor) -> Tensor:
        """The features of a channel at a pixel of the row, of their sums, `(n, parts * features)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define active(kept, column, channel, sums)")

    def base(self, kept: Kept, sums: Tensor) -> None:
        """Keeps sums of a row, `(n, sums, width)`, channel by channel."""
        along = sums.mT
        kept["base"] = [along] if len(self.owns) == 1 else [along[..., own] for own in self.sums]

    def pixel(self, kept: Kept, column: int, channel: int) -> Tensor:
        """What goes out at a pixel of the features of a channel, once all before it is known."""
        own, pad = self.owns[channel], self.pad
        seen = kept["row"][:, column : column + pad + 1 : self.step].flatten(1)
        sums = torch.addmm(kept["base"][channel][:, column], seen, kept["taps"][channel])
        active = self.active(kept, column, channel, sums)
        if len(self.owns) > 1:  # beside those of the channels before
            kept["mixed"][:, own] = active
            active = kept["mixed"]
        new = F.linear(active, *kept["out"][channel])
        return new if self.first else kept["row"][:, column + pad, own] + new


class MaskedLayer(PixelLayer):
    """A masked convolution, rectified, as PixelCNN's first ones were: h + W relu(K * h).

    Its kernel sees the rows above a pixel and what is left of it. However many are stacked, some of what comes before
    is never seen: what is right of the pixel in the rows above, beyond a slope (the blind spot).

    Args:
        before, after, given, first: see `PixelLayer`.
        kernel: how many columns its kernel has.
        dilation: of the kernel.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.
    """

    def __init__(
        self, before: Sequence[int], after: Sequence[int], *, kernel: int, dilation: int, given: int, first: bool
    ) -> None:
        mask = before_pixel(after, before, kernel, itself=not first)
        across = MaskedConv2d(mask, left=kernel // 2, dilation=dilation)
        super().__init__(before, after, across, given=given, told=len(after), first=first)

    def forward(self, above: Tensor, here: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (told,) = self.tell(given)
        return above, self.mixed((self.across(here) + told).relu(), here)

    def begin(self, like: Tensor, height: int, width: int, given: Tensor | None) -> Kept:
        shape = (len(like), len(self.before), height + self.pad, width + 2 * self.pad)
        rows_above = self.across.seen[:, :, :-1]
        return {**super().begin(like, height, width, given), "map": like.new_zeros(shape), "above": rows_above}

    def row(self, kept: Kept, number: int, above: Tensor) -> Tensor:
        d, pad = self.across.dilation, self.pad
        if number:
            kept["map"][:, :, number - 1 + pad, pad : kept["map"].shape[-1] - pad] = kept["row"][:, pad:].mT
        strip = kept["map"][:, :, number : number + pad - d + 1]
        (told,) = self.tell(kept["given"])
        self.base(kept, (F.conv2d(strip, kept["above"], self.across.bias, dilation=d) + told).squeeze(2))
        return above

    def active(self, kept: Kept, column: int, channel: int, sums: Tensor) -> Tensor:
        return sums.relu()


class GatedLayer(PixelLayer):
    """Two stacks of gated features, which together see all that comes before: those of the rows above, and the row's.

        above' = tanh(a) sigmoid(b),                     (a, b) = V * above
        here'  = here + W tanh(c) sigmoid(d),            (c, d) = H * here + L (V * above)

    V is a convolution over whole rows, that of the pixel included: `above` has been moved down by a row before the
    first layer. H sees the pixel's row up to it. What an image is given is added to a, b, c and d.

    Args:
        before, after, given, first: see `PixelLayer`.
        kernel: how many columns V has; it has half as many rows.
        dilation: of both convolutions.

    References:
        van den Oord et al., "Conditional image generation with PixelCNN decoders", arXiv 1606.05328.
    """

    def __init__(
        self, before: Sequence[int], after: Sequence[int], *, kernel: int, dilation: int, given: int, first: bool
    ) -> None:
        reach, inputs, sums = kernel // 2, len(before), 2 * len(after)
        mask = before_pixel([*after, *after], before, kernel, itself=not first)[:, :, -1:, : reach + 1]
        across = MaskedConv2d(mask, left=reach, dilation=dilation)
        super().__init__(before, after, across, given=given, told=2 * sums, first=first)
        self.down = MaskedConv2d(torch.ones(sums, inputs, reach + 1, kernel), left=reach, dilation=dilation)
        self.link = MaskedConv2d(torch.ones(sums, sums, 1, 1), bias=False)

    def forward(self, above: Tensor, here: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        over, side = self.tell(given, 2)
        down = self.down(above)
        active = _gated(self.across(here) + self.link(down) + side)
        return _gated(down + over), self.mixed(active, here)

    def begin(self, like: Tensor, height: int, width: int, given: Tensor | None) -> Kept:
        shape = (len(like), len(self.before), height + self.pad, width + 2 * self.pad)
        return {**super().begin(like, height, width, given), "map": like.new_zeros(shape), "down": self.down.seen}

    def row(self, kept: Kept, number: int, above: Tensor) -> Tensor:
        pad = self.pad
        over, side = self.tell(kept["given"], 2)
        kept["map"][:, :, number + pad, pad : kept["map"].shape[-1] - pad] = above
        strip = kept["map"][:, :, number : number + pad + 1]
        down = F.conv2d(strip, kept["down"], self.down.bias, dilation=self.down.dilation)
        bias = self.across.bias.reshape(-1, 1, 1)  # type: ignore[union-attr]
        self.base(kept, (self.link(down) + side + bias).squeeze(2))
        return _gated(down + over).squeeze(2)

    def active(self, kept: Kept, column: int, channel: int, sums: Tensor) -> Tensor:
        return _gated(sums)


def _gated(sums: Tensor) -> Tensor:
    """tanh of the first half times the sigmoid of the second."""
    first, second = sums.chunk(2, 1)
    return first.tanh() * second.sigmoid()


class PixelNet(nn.Module):
    """Layers over images, the first of which sees strictly less than its pixel, and two 1 x 1 convolutions at the end.

    `forward` answers for all pixels of whole images in one pass. `begin` and `advance` answer for one channel of one
    pixel after another, and compute only the features that have just become determined.

    Args:
        layers: they follow each other: what goes out of one comes into the next.
        inputs: how many numbers each channel of a pixel is read as.
        outputs: how many there are to answer for each.
    """

    def __init__(self, layers: Sequence[PixelLayer], *, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.inputs, last = inputs, layers[-1].after
        self.owns = layers[-1].owns
        answers = [channel for channel in range(len(self.owns)) for _ in range(outputs)]
        self.hidden = MaskedConv2d(follows(torch.tensor(last), torch.tensor(last))[..., None, None])
        self.answer = MaskedConv2d(follows(torch.tensor(answers), torch.tensor(last))[..., None, None])
        self.outputs = outputs

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        """Of `(n, channels, height, width, inputs)` all answers, `(n, channels, height, width, outputs)`."""
        n, channels, height, width, _ = x.shape
        here = x.permute(0, 1, 4, 2, 3).reshape(n, channels * self.inputs, height, width)
        above = F.pad(here, (0, 0, 1, 0))[:, :, :height]
        for layer in self.layers:
            above, here = layer(above, here, given)
        answer = self.answer(self.hidden(here.relu()).relu())
        return answer.unflatten(1, (channels, self.outputs)).permute(0, 1, 3, 4, 2)

    def begin(self, x: Tensor, given: Tensor | None = None) -> list[Kept]:
        """What `advance` keeps, of each layer and of the end."""
        height, width = x.shape[2:4]
        kept = [layer.begin(x, height, width, given) for layer in self.layers]  # type: ignore[operator]
        features = len(self.hidden.mask)
        end: Kept = {"last": x.new_zeros(len(x), features), "hidden": x.new_zeros(len(x), features)}
        end["hides"] = [self.hidden.at_pixel(range(own.start, own.stop)) for own in self.owns]
        answers = [range(g * self.outputs, (g + 1) * self.outputs) for g in range(len(self.owns))]
        end["answers"] = [self.answer.at_pixel(own) for own in answers]
        return [*kept, end]

    def advance(self, where: tuple[int, int, int], x: Tensor, kept: list[Kept]) -> Tensor:
        """The answers for a channel of a pixel, `(n, outputs)`: asked in order, each once.

        Args:
            where: its row, column and channel.
            x: as for `forward`, with anything in place of what is not known.
            kept: what `begin` gave; it is filled in.
        """
        row, column, channel = where
        layers: list[PixelLayer] = list(self.layers)  # type: ignore[arg-type]
        first, pad = kept[0]["row"], layers[0].pad
        if column == channel == 0:
            above = x.new_zeros(len(x), first.shape[2], x.shape[3])
            if row:
                whole = x[:, :, row - 1].transpose(1, 2).flatten(2)
                first[:, pad:] = whole
                above = whole.mT
            for layer, own in zip(layers, kept, strict=False):
                above = layer.row(own, row, above)
        else:
            at, new = (column, channel - 1) if channel else (column - 1, len(self.owns) - 1)
            first[:, pad + at, new * self.inputs : (new + 1) * self.inputs] = x[:, new, row, at]
        for number, layer in enumerate(layers):
            feature = layer.pixel(kept[number], column, channel)
            if number + 1 < len(layers):
                kept[number + 1]["row"][:, layers[number + 1].pad + column, layer.owns[channel]] = feature
        end, own_last = kept[-1], self.owns[channel]
        end["last"][:, own_last] = feature
        end["hidden"][:, own_last] = F.linear(end["last"].relu(), *end["hides"][channel]).relu()
        return F.linear(end["hidden"], *end["answers"][channel])
