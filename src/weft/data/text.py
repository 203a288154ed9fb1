"""Text: the tiny Shakespeare of character models, and first names.

They are looked for as images are (`weft.data.images`): `tinyshakespeare.txt` and `names.txt` in a folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from weft.data.places import sought

__all__ = ["names", "tiny_shakespeare"]

_KARPATHY = "https://raw.githubusercontent.com/karpathy"
_WHERE = {
    "tinyshakespeare.txt": (
        f"{_KARPATHY}/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "names.txt": (
        f"{_KARPATHY}/makemore/master/names.txt",
        "0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d",
    ),
}
"""Of each file, its address and SHA-256."""


def tiny_shakespeare(part: str = "train", *, folder: str | Path | None = None, download: bool = True) -> str:
    """A million characters of Shakespeare's plays, of 65 kinds: the first 90 % to train on, the rest to test.

    Args:
        part: `train`, `test` or `all`.
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether it may be downloaded where it is not found.

    References:
        Karpathy, "char-rnn", 2015, which put the file together; the split is that of his "nanoGPT".

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> written = (folder / "tinyshakespeare.txt").write_text("To be, or not")
        >>> tiny_shakespeare(folder=folder), tiny_shakespeare("test", folder=folder)
        ('To be, or n', 'ot')
    """
    if part not in ("train", "test", "all"):
        raise ValueError(f"expected part to be 'train', 'test' or 'all', got {part!r}")
    text = _read("tinyshakespeare.txt", folder, download)
    cut = int(0.9 * len(text))
    return {"train": text[:cut], "test": text[cut:], "all": text}[part]


def names(*, folder: str | Path | None = None, download: bool = True) -> list[str]:
    """32,033 first names in small letters, the commonest first.

    Args:
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether they may be downloaded where they are not found.

    References:
        Karpathy, "makemore", 2022, from the United States' Social Security Administration.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> written = (folder / "names.txt").write_text("emma\\nava\\n")
        >>> names(folder=folder)
        ['emma', 'ava']
    """
    return _read("names.txt", folder, download).split()


def _read(name: str, folder: str | Path | None, download: bool) -> str:
    def read(place: Path) -> str | None:
        path = place / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return sought(name, read, _download if download else None, folder)


def _download(name: str, cache: Path) -> str:
    """Fetches a file and keeps it if it is the one that is meant; says what went wrong."""
    from urllib.error import URLError
    from urllib.request import urlopen

    from weft.core.files import write_bytes

    address, digest = _WHERE[name]
    try:
        with urlopen(address, timeout=30) as answer:
            data: bytes = answer.read()
    except (URLError, OSError) as error:
        return f"it could not be downloaded ({error})"
    if hashlib.sha256(data).hexdigest() != digest:
        return "what was downloaded is not the file that is meant: its SHA-256 is another"
    cache.mkdir(parents=True, exist_ok=True)
    write_bytes(cache / name, data)
    return "it was downloaded and is gone again"
