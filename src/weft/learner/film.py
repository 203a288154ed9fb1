"""Film: episodes as pictures, one after another, in a GIF."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.files import write_bytes
from weft.sources.stage import Kept, Moved, Stage

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Film", "Filmed", "place", "written"]


@dataclass(frozen=True, eq=False)
class Film:
    """A film of episodes, one after another.

    >>> Film(Path("film.gif"), np.array([12.0]), 13, 25.0)
    film.gif (13 pictures, 25 in a second; return 12)

    Attributes:
        path: of the file.
        returns: of each episode.
        pictures: how many there are: of an episode those at its beginning and after each step.
        fps: how many are shown in a second.
    """

    path: Path
    returns: NDArray[np.float64]
    pictures: int
    fps: float

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        each = ", ".join(f"{value:.4g}" for value in self.returns)
        word = "return" if len(self.returns) == 1 else "returns"
        return f"{self.path} ({self.pictures} pictures, {self.fps:.4g} in a second; {word} {each})"


class Filmed:
    """A stage that keeps a picture of every episode at its beginning and after each step.

    Args:
        stage: which draws.
        name: what the messages call the world.

    Attributes:
        pictures: of each turn, of each episode.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name = stage, name
        self.pictures: list[list[Image]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        kept, observation = self.stage.begin(keys)
        self.pictures = [self._drawn(kept, len(keys))]
        return kept, observation

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        moved = self.stage.step(kept, action, keys)
        self.pictures.append(self._drawn(moved.kept, len(keys)))
        return moved

    def _drawn(self, kept: Kept, count: int) -> list[Image]:
        from PIL import Image

        seen = self.stage.render(kept)
        wanted = "render(position) -> (n, H, W, 3) in torch.uint8"
        if seen is None:
            raise TypeError(f"expected a world that draws, with {wanted}, got {self.name}, which draws nothing")
        if seen.dim() != 4 or (len(seen), seen.shape[-1], seen.dtype) != (count, 3, torch.uint8):
            raise ValueError(
                f"expected {self.name} to draw {count} pictures by {wanted}, got {tuple(seen.shape)} in {seen.dtype}"
            )
        colours = Image.Palette.ADAPTIVE  # a third of the room, and what a GIF has in any case
        return [Image.fromarray(one).convert("P", palette=colours) for one in seen.cpu().numpy()]


def place(path: Any) -> Path:
    """Where a film is to be put; raises where it cannot."""
    path = Path(path)
    if path.suffix.lower() != ".gif":
        raise ValueError(f"expected a path that ends in .gif, got {str(path)!r}; a film is a GIF")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder to put the film in, got {path.parent}, which is not there")
    return path


def written(path: Path, pictures: list[list[Image]], lengths: NDArray[Any], returns: NDArray[Any], fps: float) -> Film:
    """The film of episodes, each up to its end, as a file."""
    shown = [pictures[t][e] for e, length in enumerate(lengths) for t in range(int(length) + 1)]
    hundredths = max(2, round(100.0 / fps))
    held = [hundredths * 10] * len(shown)
    file, last = io.BytesIO(), 0
    for length in lengths:  # the last picture of an episode stands for a while
        last += int(length) + 1
        held[last - 1] = 500
    shown[0].save(file, format="GIF", save_all=True, append_images=shown[1:], duration=held, loop=0)
    write_bytes(path, file.getvalue())
    return Film(path, returns, len(shown), 100.0 / hundredths)
