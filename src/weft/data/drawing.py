"""Drawing: simple pictures of many episodes at once, as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLUE", "BROWN", "DARK", "GREEN", "GREY", "ICE", "RED", "WHITE", "YELLOW", "Canvas", "Colour"]

Colour = tuple[float, float, float]
WHITE, DARK, GREY = (1.0, 1.0, 1.0), (0.15, 0.17, 0.2), (0.72, 0.74, 0.77)
RED, GREEN, BLUE, YELLOW = (0.82, 0.22, 0.2), (0.12, 0.6, 0.36), (0.2, 0.4, 0.8), (0.95, 0.76, 0.2)
BROWN, ICE = (0.72, 0.5, 0.33), (0.84, 0.92, 0.97)


class Canvas:
    """A picture for each episode, white at first, on which shapes are drawn one over the other.

    Places and lengths are in the world's own units: numbers, the same for all pictures, or tensors with one for each.

    Args:
        count: how many pictures.
        view: what they show: the left, right, lower and upper end.
        width: pixels from left to right; the height follows, as pixels are squares.
        device: where to draw.

    Example:
        >>> canvas = Canvas(2, (-1.0, 1.0, -1.0, 1.0), width=8)
        >>> canvas.disc((torch.tensor([-0.5, 0.5]), 0.0), 0.4, DARK)
        >>> canvas.pictures()[:, 4, 2, 0]
        tensor([ 38, 255], dtype=torch.uint8)
    """

    def __init__(
        self, count: int, view: tuple[float, float, float, float], *, width: int, device: torch.device | None = None
    ) -> None:
        left, right, low, high = view
        self.pixel = (right - left) / width
        height = round((high - low) / self.pixel)
        self.x = left + (torch.arange(width, device=device) + 0.5) * self.pixel
        self.y = (high - (torch.arange(height, device=device) + 0.5) * self.pixel)[:, None]
        self.paint = torch.ones(count, height, width, 3, device=device)

    def _column(self, value: float | Tensor) -> Tensor:
        """A number for each picture, or one for all of them, to be compared with every pixel."""
        return torch.as_tensor(value, dtype=torch.float32, device=self.x.device).reshape(-1, 1, 1)

    def fill(self, depth: Tensor, colour: Colour) -> None:
        """Colours pixels by how deep in a shape they lie (below zero: beside it); a pixel on an edge in part."""
        share = (depth / self.pixel + 0.5).clamp(0.0, 1.0)[..., None]
        self.paint = self.paint + share * (torch.tensor(colour, device=share.device) - self.paint)

    def squares(self, cells: Tensor, colours: tuple[Colour, ...]) -> None:
        """Squares that fill the picture; `cells` (pictures, rows, columns) say by number which colour each has."""
        down, across = (size // parts for size, parts in zip(self.paint.shape[1:3], cells.shape[1:], strict=True))
        wide = cells.repeat_interleave(down, 1).repeat_interleave(across, 2)
        self.paint = torch.tensor(colours, device=cells.device)[wide].expand_as(self.paint)

    def disc(self, at: tuple[float | Tensor, float | Tensor], radius: float, colour: Colour) -> None:
        """A disc around a place."""
        x, y = map(self._column, at)
        self.fill(radius - torch.hypot(self.x - x, self.y - y), colour)

    def box(self, at: tuple[float | Tensor, float | Tensor], half: tuple[float, float], colour: Colour) -> None:
        """A box around a place, given half its sides."""
        x, y = map(self._column, at)
        self.fill(torch.minimum(half[0] - (self.x - x).abs(), half[1] - (self.y - y).abs()), colour)

    def line(
        self,
        start: tuple[float | Tensor, float | Tensor],
        end: tuple[float | Tensor, float | Tensor],
        thick: float,
        colour: Colour,
    ) -> None:
        """A line with round ends from one place to another."""
        (x, y), (to_x, to_y) = map(self._column, start), map(self._column, end)
        along_x, along_y = to_x - x, to_y - y
        share = ((self.x - x) * along_x + (self.y - y) * along_y) / (along_x.square() + along_y.square()).clamp_min(
            1e-9
        )
        share = share.clamp(0.0, 1.0)
        self.fill(thick / 2 - torch.hypot(self.x - x - share * along_x, self.y - y - share * along_y), colour)

    def pictures(self) -> Tensor:
        """What was drawn, `(n, H, W, 3)` in torch.uint8."""
        return (self.paint * 255.0).round().to(torch.uint8)
