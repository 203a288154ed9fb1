"""Omniglot: twenty drawings of each of many characters, and classes of which all rows are held out."""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.data.places import sought

__all__ = ["Characters", "held_classes", "omniglot"]

_PARTS = {
    "train": "images_background",
    "test": "images_evaluation",
    "small1": "images_background_small1",
    "small2": "images_background_small2",
}
Drawings = dict[tuple[str, str], list[NDArray[np.uint8]]]
"""Images by alphabet and character."""


class Characters(NamedTuple):
    """Drawings of characters.

    Attributes:
        x: images `(n, 1, size, size)` in float32, in [0, 1], ink being 1.
        y: of which character each is, by name: `Greek/character01`, turned `Greek/character01 90`.
        alphabet: of which alphabet that is.
    """

    x: NDArray[np.float32]
    y: NDArray[np.str_]
    alphabet: NDArray[np.str_]


def omniglot(
    part: str = "train",
    *,
    rotations: bool = False,
    size: int = 28,
    folder: str | Path | None = None,
    download: bool = True,
) -> Characters:
    """Characters of 50 alphabets, each drawn by 20 people: 964 of 30 alphabets for training, 659 of 20 for the test.

    It is looked for in the folder given, in those that `WEFT_DATA` lists and in the user's cache, as
    `omniglot/images_background.zip` or unpacked, and is then downloaded by torchvision, where that is installed.

    Args:
        part: `train` or `test`, whose alphabets are apart; or `small1`, `small2`, five alphabets each of training's.
        rotations: whether characters turned by 90, 180 and 270 degrees are there too, as classes of their own.
        size: pixels a side, of the 105 that were drawn on.
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether it may be downloaded where it is not found.

    References:
        Lake, Salakhutdinov and Tenenbaum, "Human-level concept learning through probabilistic program induction",
        Science 350, 2015. Turned characters as classes: Santoro, Bartunov, Botvinick, Wierstra and Lillicrap,
        "One-shot learning with memory-augmented neural networks", arXiv 1605.06065.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for i, name in enumerate(("Greek/character01", "Latin/character01")):
        ...     (folder / "omniglot/images_background" / name).mkdir(parents=True)
        ...     Image.new("1", (105, 105), i).save(folder / f"omniglot/images_background/{name}/000{i}_01.png")
        >>> x, y, alphabet = omniglot(folder=folder, rotations=True)
        >>> x.shape, y[:2].tolist(), alphabet[-1].item()
        ((8, 1, 28, 28), ['Greek/character01', 'Greek/character01 90'], 'Latin')
    """
    if part not in _PARTS:
        raise ValueError(f"expected part to be one of {', '.join(map(repr, _PARTS))}, got {part!r}")
    if not 1 <= size <= 105:
        raise ValueError(f"expected a size in 1..105, the pixels that were drawn on, got {size!r}")
    fetch = _download if download and part in ("train", "test") else None
    drawings = sought(f"Omniglot ({_PARTS[part]})", lambda place: _found(place, _PARTS[part], size), fetch, folder)
    images, names, alphabets = [], [], []
    for (alphabet, character), drawn in sorted(drawings.items()):
        for turn in range(4 if rotations else 1):
            images.append(np.rot90(np.stack(drawn), turn, (1, 2)))
            names += [f"{alphabet}/{character}{f' {90 * turn}' if turn else ''}"] * len(drawn)
            alphabets += [alphabet] * len(drawn)
    ink = np.float32(1.0) - np.concatenate(images)[:, None].astype(np.float32) / np.float32(255.0)
    return Characters(ink, np.array(names), np.array(alphabets))


def held_classes(
    y: ArrayLike, share: float = 0.2, *, within: ArrayLike | None = None, random_state: int = 0
) -> NDArray[np.bool_]:
    """True for all rows of some classes, for validation by classes that training has not seen.

    Args:
        y: the class of each row.
        share: of the classes; at least one is held out, and one is left.
        within: what each row's class belongs to (an alphabet): then a share of those is held out, with all of their
            classes.
        random_state: chooses them.

    Example:
        >>> y = np.repeat(["a", "b", "c", "d", "e"], 3)
        >>> held = held_classes(y, 0.4)
        >>> int(held.sum()), set(y[held]) & set(y[~held])
        (6, set())
    """
    labels = np.asarray(y)
    kinds = labels if within is None else np.asarray(within)
    if labels.ndim != 1 or kinds.shape != labels.shape:
        raise ValueError(f"expected one class for each row, and one of within, got {labels.shape} and {kinds.shape}")
    if not 0.0 < share < 1.0:
        raise ValueError(f"expected a share in (0, 1), got {share!r}")
    names = np.unique(kinds)
    if len(names) < 2:
        raise ValueError(f"expected at least two {'classes' if within is None else 'of within'}, got {names.tolist()}")
    if within is not None:
        pairs = np.unique(np.stack([labels.astype(str), kinds.astype(str)]), axis=1)
        label, counts = np.unique(pairs[0], return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"expected each class to belong to one of within, got {label[counts.argmax()].item()!r} in several: "
                "its rows would be on both sides; name the classes of each differently"
            )
    count = min(max(1, round(share * len(names))), len(names) - 1)
    return np.isin(kinds, np.random.default_rng(random_state).permutation(names)[:count])


# --- where it lies ----------------------------------------------------------------------------------------


def _found(place: Path, name: str, size: int) -> Drawings | None:
    """Reads a zip file or a folder, as they are published or as torchvision keeps them."""
    for base in (place / "omniglot", place / "omniglot-py"):
        packed, plain = base / f"{name}.zip", base / name
        if plain.is_dir():
            return _read(
                ((path.relative_to(base).as_posix(), path.read_bytes()) for path in plain.rglob("*.png")), size
            )
        if packed.is_file():
            try:
                with zipfile.ZipFile(packed) as file:
                    inside = [member for member in file.namelist() if member.endswith(".png")]
                    return _read(((member, file.read(member)) for member in inside), size)
            except (zipfile.BadZipFile, EOFError) as error:
                raise ValueError(f"expected a whole zip file in {packed}, got: {error}; get it anew") from error
    return None


def _read(files: Iterator[tuple[str, bytes]], size: int) -> Drawings:
    """Images by alphabet and character, in the order of their files' names."""
    from PIL import Image

    drawings: Drawings = {}
    for path, data in sorted(files):
        parts = PurePosixPath(path).parts
        if len(parts) != 4 or parts[0].startswith("__"):
            continue  # what a packer has left beside them
        with Image.open(io.BytesIO(data)) as image:
            if image.size != (105, 105):
                raise ValueError(f"expected drawings of 105 x 105 pixels, got {image.size} in {path}; get it anew")
            grey = image.convert("L").resize((size, size), Image.Resampling.LANCZOS)
        drawings.setdefault((parts[1], parts[2]), []).append(np.asarray(grey))
    if not drawings:
        raise ValueError("expected drawings as alphabet/character/name.png, got none; get it anew")
    return drawings


def _download(name: str, cache: Path) -> str:
    """Lets torchvision, which knows the mirrors and checksums, fetch it; says what went wrong."""
    try:
        datasets = importlib.import_module("torchvision.datasets")
    except ImportError:
        return "torchvision, which downloads it, is not installed (pip install torchvision)"
    except (RuntimeError, OSError, AttributeError) as error:  # built for another torch than the one at hand
        return f"torchvision, which downloads it, does not import beside this torch ({' '.join(str(error).split())})"
    try:
        datasets.Omniglot(str(cache), background="background" in name, download=True)
    except (OSError, RuntimeError) as error:
        return f"torchvision could not download it ({' '.join(str(error).split())})"
    return "torchvision left no files of it"
