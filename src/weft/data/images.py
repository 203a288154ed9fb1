"""Images and labels as arrays: MNIST, Fashion-MNIST and CIFAR-10, from a folder, the user's cache or the net.

A data set is looked for in the folder given, in the folders that `WEFT_DATA` lists (separated as `PATH` is), in
the user's cache, and is then downloaded into the cache by torchvision, where that is installed. In each folder

    mnist/train-images-idx3-ubyte.gz             or, as torchvision leaves it, MNIST/raw/train-images-idx3-ubyte
    fashion-mnist/train-images-idx3-ubyte.gz     or FashionMNIST/raw/...
    cifar10/train.npz (x, y)                     or, as its authors give it, cifar-10-batches-bin/data_batch_1.bin

and so on will do. Nothing that is read can run: no pickles.
"""

from __future__ import annotations

import gzip
import importlib
import io
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.data.places import sought

__all__ = ["cifar10", "fashion_mnist", "mnist", "read_idx", "write_idx"]

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images and their labels."""
Read = tuple[NDArray[np.uint8], NDArray[np.integer]]
Reader = Callable[[Path, str], Read | None]


def mnist(part: str = "train", *, folder: str | Path | None = None, download: bool = True) -> Pair:
    """Handwritten digits: 60,000 for training and 10,000 for the test, 28 x 28.

    Args:
        part: `train` or `test`.
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether it may be downloaded where it is not found.

    Returns:
        Images `(n, 1, 28, 28)` in float32, in [0, 1]; labels `(n,)` in int64.

    References:
        LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition",
        Proceedings of the IEEE 86, 1998.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_idx(folder / "mnist/t10k-images-idx3-ubyte.gz", np.full((5, 28, 28), 255))
        >>> write_idx(folder / "mnist/t10k-labels-idx1-ubyte.gz", np.arange(5))
        >>> x, y = mnist("test", folder=folder)
        >>> x.shape, x.max().item(), y.tolist()
        ((5, 1, 28, 28), 1.0, [0, 1, 2, 3, 4])
    """
    return _load("MNIST", _digits("mnist", "MNIST"), part, folder, download)


def fashion_mnist(part: str = "train", *, folder: str | Path | None = None, download: bool = True) -> Pair:
    """Ten kinds of clothes, in the size, number and form of MNIST.

    Args:
        part: `train` or `test`.
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether it may be downloaded where it is not found.

    Returns:
        Images `(n, 1, 28, 28)` in float32, in [0, 1]; labels `(n,)` in int64.

    References:
        Xiao, Rasul and Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
        algorithms", arXiv 1708.07747.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_idx(folder / "fashion-mnist/train-images-idx3-ubyte.gz", np.zeros((2, 28, 28)))
        >>> write_idx(folder / "fashion-mnist/train-labels-idx1-ubyte.gz", np.array([9, 0]))
        >>> fashion_mnist(folder=folder)[1].tolist()
        [9, 0]
    """
    return _load("FashionMNIST", _digits("fashion-mnist", "FashionMNIST"), part, folder, download)


def cifar10(part: str = "train", *, folder: str | Path | None = None, download: bool = True) -> Pair:
    """Small colour photographs of ten kinds of things: 50,000 for training and 10,000 for the test, 32 x 32.

    Args:
        part: `train` or `test`.
        folder: looked in before those of `WEFT_DATA` and the cache.
        download: whether it may be downloaded where it is not found.

    Returns:
        Images `(n, 3, 32, 32)` in float32, in [0, 1], red, green and blue; labels `(n,)` in int64.

    References:
        Krizhevsky, "Learning multiple layers of features from tiny images", technical report, 2009.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "cifar10").mkdir()
        >>> np.savez(folder / "cifar10/test.npz", x=np.full((2, 32, 32, 3), 51, np.uint8), y=np.array([3, 7]))
        >>> x, y = cifar10("test", folder=folder)
        >>> x.shape, round(x.mean().item(), 3), y.tolist()
        ((2, 3, 32, 32), 0.2, [3, 7])
    """
    return _load("CIFAR10", _photographs, part, folder, download)


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """The array in a file of idx format, packed by gzip or not: two zero bytes, the type (8: bytes), the number of
    axes, their lengths as big-endian 32-bit integers, then the values.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "some.gz"
        >>> write_idx(path, np.array([[1, 2], [3, 4]]))
        >>> read_idx(path).tolist()
        [[1, 2], [3, 4]]
    """
    path = Path(path)
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"expected a whole gzip file in {path}, got: {error}; get it anew") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"expected bytes in idx format in {path}, got one that begins with {data[:4]!r}; get it anew")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) != start + math.prod(shape):
        raise ValueError(
            f"expected {math.prod(shape)} values of shape {shape} in {path}, got {len(data) - start}; get it anew"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def write_idx(path: str | Path, values: ArrayLike) -> None:
    """Writes whole numbers in 0..255 in idx format, packed by gzip where the name ends in `.gz`."""
    values = np.asarray(values)
    if ((values < 0) | (values > 255) | (values != np.floor(values))).any():
        raise ValueError(f"expected whole numbers in 0..255, got {values.min()!r} to {values.max()!r}")
    lengths = b"".join(int(length).to_bytes(4, "big") for length in values.shape)
    data = bytes([0, 0, 8, values.ndim]) + lengths + values.astype(np.uint8).tobytes()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


# --- where it lies ----------------------------------------------------------------------------------


def _load(name: str, reader: Reader, part: str, folder: str | Path | None, download: bool) -> Pair:
    """Reads the first copy found, or one just downloaded, and brings it to float32 and int64."""
    if part not in ("train", "test"):
        raise ValueError(f"expected part to be 'train' or 'test', got {part!r}")
    images, labels = sought(name, lambda place: reader(place, part), _download if download else None, folder)
    if len(images) != len(labels) or not len(labels):
        raise ValueError(f"expected one label for each image of {name}, got {len(images)} images, {len(labels)} labels")
    return images.astype(np.float32) / np.float32(255.0), labels.astype(np.int64)


def _digits(*names: str) -> Reader:
    """Reads the four files of MNIST's form, as they are published or as torchvision keeps them."""

    def read(place: Path, part: str) -> Read | None:
        start = "train" if part == "train" else "t10k"
        for folder in (place / names[0], place / names[1] / "raw"):
            pair = []
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
                plain = folder / f"{start}-{kind}"
                packed = plain.with_name(f"{plain.name}.gz")
                pair += [path for path in (packed, plain) if path.is_file()][:1]
            if len(pair) == 2:
                images, labels = read_idx(pair[0]), read_idx(pair[1])
                if images.ndim != 3 or labels.ndim != 1:
                    raise ValueError(f"expected images and labels in {folder}, got {images.shape} and {labels.shape}")
                return images[:, None], labels
        return None

    return read


def _photographs(place: Path, part: str) -> Read | None:
    """Reads CIFAR-10's arrays (rows, columns, colours), or its binary files (label, colours, rows, columns)."""
    whole = place / "cifar10" / f"{part}.npz"
    if whole.is_file():
        with np.load(whole, allow_pickle=False) as arrays:
            missing = [name for name in ("x", "y") if name not in arrays.files]
            if missing:
                raise ValueError(f"expected arrays x and y in {whole}, got {', '.join(arrays.files) or 'none'}")
            x, y = arrays["x"], arrays["y"]
        if x.shape[1:] != (32, 32, 3) or x.dtype != np.uint8:
            raise ValueError(f"expected x of shape (n, 32, 32, 3) in uint8 in {whole}, got {x.shape} in {x.dtype}")
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if part == "train" else ["test_batch.bin"]
    paths = [place / "cifar-10-batches-bin" / name for name in names]
    if not all(path.is_file() for path in paths):
        return None
    data = b"".join(path.read_bytes() for path in paths)
    if len(data) % 3073:
        raise ValueError(f"expected records of 3,073 bytes in {paths[0].parent}, got {len(data)} bytes; get it anew")
    rows = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _download(name: str, cache: Path) -> str:
    """Lets torchvision, which knows the mirrors and checksums, fetch both parts; says what went wrong."""
    try:
        datasets = importlib.import_module("torchvision.datasets")
    except ImportError:
        return "torchvision, which downloads it, is not installed (pip install torchvision)"
    except (RuntimeError, OSError, AttributeError) as error:  # built for another torch than the one at hand
        return f"torchvision, which downloads it, does not import beside this torch ({' '.join(str(error).split())})"
    try:
        for part in ("train", "test"):
            fetched = getattr(datasets, name)(str(cache), train=part == "train", download=True)
            if name == "CIFAR10":  # torchvision keeps pickles, which it has checked; we keep the arrays
                _keep(cache / "cifar10" / f"{part}.npz", np.asarray(fetched.data), np.asarray(fetched.targets))
    except (OSError, RuntimeError) as error:
        return f"torchvision could not download it ({' '.join(str(error).split())})"
    return "torchvision left no files of it"


def _keep(path: Path, x: NDArray[np.uint8], y: NDArray[np.integer]) -> None:
    from weft.core.files import write_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    held = io.BytesIO()
    np.savez_compressed(held, x=x, y=y)
    write_bytes(path, held.getvalue())
