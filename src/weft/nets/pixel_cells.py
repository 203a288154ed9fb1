"""Recurrent layers over images, written in plain operations, so that they vectorize over replicas."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.nets.masked import follows
from weft.nets.pixels import Kept, MaskedConv2d, PixelLayer, before_pixel

__all__ = ["DiagonalLSTM", "RowLSTM", "skewed", "straight"]


def lstm(sums: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """A step of an LSTM: its hidden units and cells, of the sums of its gates and the cells before.

        cell' = sigmoid(f) cell + sigmoid(i) tanh(g),      hidden = sigmoid(o) tanh(cell')

    References:
        Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9, 1997.
    """
    o, f, i, g = sums.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


class RowLSTM(PixelLayer):
    """An LSTM that goes down the rows: a pixel reads its row up to it, and the state of the row above around it.

        sums_r = K_input * x_r + K_state * hidden_{r-1}

    K_input is masked, K_state sees the row above on both sides: of the rows above a pixel sees a triangle. Rows follow
    one another, in training too, since each needs the one above it; the pixels of a row are computed at once. In a draw
    they are not, since a pixel reads the one before it.

    Args:
        before, after, given: see `PixelLayer`.
        kernel: how many columns K_state has, and K_input to both sides of the pixel.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.
    """

    def __init__(self, before: Sequence[int], after: Sequence[int], *, kernel: int, given: int) -> None:
        reach, width = kernel // 2, len(after)
        mask = before_pixel([*after] * 4, before, kernel, itself=True)[:, :, -1:, : reach + 1]
        across = MaskedConv2d(mask, left=reach)
        super().__init__(before, after, across, given=given, told=4 * width, first=False)
        self.state = MaskedConv2d(torch.ones(4 * width, width, 1, kernel), left=reach, bias=False)

    def forward(self, above: Tensor, here: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        (told,) = self.tell(given)
        hidden = cell = torch.zeros_like(here[:, :, :1])
        rows = []
        for sums in (self.across(here) + told).split(1, 2):
            hidden, cell = lstm(sums + self.state(hidden), cell)
            rows.append(hidden)
        return above, self.mixed(torch.cat(rows, 2), here)

    def begin(self, like: Tensor, height: int, width: int, given: Tensor | None) -> Kept:
        shape = (len(like), len(self.after), width)
        state = {"hidden": like.new_zeros(shape), "cell": like.new_zeros(shape)}
        return {**super().begin(like, height, width, given), **state}

    def row(self, kept: Kept, number: int, above: Tensor) -> Tensor:
        (told,) = self.tell(kept["given"])
        bias = self.across.bias.reshape(-1, 1, 1)  # type: ignore[union-attr]
        self.base(kept, (self.state(kept["hidden"].unsqueeze(2)) + told + bias).squeeze(2))
        return above

    def active(self, kept: Kept, column: int, channel: int, sums: Tensor) -> Tensor:
        own = self.owns[channel]
        hidden, cell = lstm(sums, kept["cell"][:, own, column])
        kept["hidden"][:, own, column], kept["cell"][:, own, column] = hidden, cell
        return hidden


class DiagonalLSTM(PixelLayer):
    """Two LSTMs along the diagonals, from the upper left and from the upper right: together they see all before.

        sums_rc = W_input x_rc + W_above hidden_{r-1,c} + W_beside hidden_{r,c-1}

    The other one is its mirror image, with weights of its own. It reads everything moved down by a row, as what is
    right of a pixel comes after it, and the pixels themselves beside the features: no feature of its own row sees the
    last pixel of a row, which would be seen too late otherwise. Rows are skewed, each by one more column than the one
    above it, so that a diagonal is a column and is computed at once: height + width - 1 steps.

    Args:
        before, after, given: see `PixelLayer`.
        above: how many features of the rows above come in.

    References:
        van den Oord, Kalchbrenner and Kavukcuoglu, "Pixel recurrent neural networks", arXiv 1601.06759.
    """

    def __init__(self, before: Sequence[int], after: Sequence[int], *, above: int, given: int) -> None:
        width = len(after)
        across = MaskedConv2d(follows(torch.tensor([*after] * 4), torch.tensor(before))[..., None, None])
        super().__init__(before, after, across, given=given, told=8 * width, first=False)
        self.mirror = MaskedConv2d(torch.ones(4 * width, len(before) + above, 1, 1))
        self.state, self.mirror_state = (MaskedConv2d(torch.ones(4 * width, width, 2, 1), bias=False) for _ in range(2))

    def forward(self, above: Tensor, here: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        told, mirrored = self.tell(given, 2)
        left = self._along(self.across(here) + told, self.state)
        down = torch.cat([F.pad(here, (0, 0, 1, 0))[:, :, :-1], above], 1)
        right = self._along((self.mirror(down) + mirrored).flip(-1), self.mirror_state).flip(-1)
        return above, self.mixed(left + right, here)

    def _along(self, sums: Tensor, state: MaskedConv2d) -> Tensor:
        """The hidden units of an LSTM from the upper left, of all pixels."""
        height, width = sums.shape[2:]
        columns = skewed(sums).split(1, 3)
        number = torch.arange(height, device=sums.device).reshape(1, 1, -1, 1)
        hidden = cell = torch.zeros_like(columns[0][:, : len(self.after)])
        found = []
        for j, column in enumerate(columns):
            hidden, cell = lstm(column + state(hidden), cell)
            inside = (number <= j) & (j < number + width)  # elsewhere there is no pixel, and no state
            hidden, cell = torch.where(inside, hidden, 0), torch.where(inside, cell, 0)
            found.append(hidden)
        return straight(torch.cat(found, 3), width)

    def begin(self, like: Tensor, height: int, width: int, given: Tensor | None) -> Kept:
        n, features = len(like), len(self.after)
        state = {
            "hidden": like.new_zeros(n, width + 1, features),  # with what is left of the row
            "cell": like.new_zeros(n, features),
            "mirror": like.new_zeros(n, width + 1, features),  # with what is right of it
        }
        return {**super().begin(like, height, width, given), **state}

    def row(self, kept: Kept, number: int, above: Tensor) -> Tensor:
        told, mirrored = self.tell(kept["given"], 2)
        width = kept["mirror"].shape[1] - 1
        down = torch.cat([kept["row"].mT, above], 1).unsqueeze(2)  # the row above is known as a whole
        self._mirrored(kept, (self.mirror(down) + mirrored).squeeze(2))
        kept["cell"] = torch.zeros_like(kept["cell"])
        bias = self.across.bias.reshape(1, -1, 1, 1)  # type: ignore[union-attr]
        self.base(kept, (bias + told + kept["row"].new_zeros(len(kept["row"]), 1, 1, width)).squeeze(2))
        return above

    def _mirrored(self, kept: Kept, sums: Tensor) -> None:
        """The mirrored states of a row, whose sums by its inputs are `(n, 4 * features, width)`, from right to left."""
        state, cell = self.mirror_state.seen.squeeze(-1), torch.zeros_like(kept["cell"])
        for c in reversed(range(sums.shape[2])):
            states = kept["mirror"][:, c] @ state[:, :, 0].mT + kept["mirror"][:, c + 1] @ state[:, :, 1].mT
            kept["mirror"][:, c], cell = lstm(sums[:, :, c] + states, cell)

    def active(self, kept: Kept, column: int, channel: int, sums: Tensor) -> Tensor:
        own, hidden = self.owns[channel], kept["hidden"]
        if channel == 0:  # at this place `hidden` is still that of the row above
            state = self.state.seen.squeeze(-1)
            kept["states"] = hidden[:, column + 1] @ state[:, :, 0].mT + hidden[:, column] @ state[:, :, 1].mT
        new, cell = lstm(sums + kept["states"][:, self.sums[channel]], kept["cell"][:, own])
        hidden[:, column + 1, own], kept["cell"][:, own] = new, cell
        return new + kept["mirror"][:, column, own]


def skewed(x: Tensor) -> Tensor:
    """Images whose rows begin each one column later than the one above, with 0 where nothing is.

    >>> skewed(torch.arange(1, 7).reshape(1, 1, 2, 3))
    tensor([[[[1, 2, 3, 0],
              [0, 4, 5, 6]]]])
    """
    height, width = x.shape[-2:]
    along = F.pad(x, (0, height)).flatten(-2)
    return along[..., : height * (height + width - 1)].unflatten(-1, (height, height + width - 1))


def straight(x: Tensor, width: int) -> Tensor:
    """What `skewed` was given.

    >>> straight(skewed(torch.arange(1, 7).reshape(1, 1, 2, 3)), 3)
    tensor([[[[1, 2, 3],
              [4, 5, 6]]]])
    """
    height = x.shape[-2]
    along = F.pad(x.flatten(-2), (0, height))
    return along.unflatten(-1, (height, height + width))[..., :width]
