"""MNIST and its kin: where they are looked for, and that what is read is what was written."""

import gzip
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from weft.data import cifar10, fashion_mnist, mnist
from weft.data.images import read_idx, write_idx

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (7, 28, 28))
LABELS = RANDOM.integers(0, 10, 7)
PHOTOS = RANDOM.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No data but what a test makes."""
    given = os.environ.get("WEFT_DATA", "")
    monkeypatch.delenv("WEFT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    return given


def place(folder, part="train", packed=".gz", images=IMAGES, labels=LABELS):
    write_idx(folder / f"{part}-images-idx3-ubyte{packed}", images)
    write_idx(folder / f"{part}-labels-idx1-ubyte{packed}", labels)


def expect(found):
    x, y = found
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    np.testing.assert_allclose(x[:, 0] * 255, IMAGES, atol=1e-4)
    np.testing.assert_array_equal(y, LABELS)


def test_the_real_digits(nowhere, monkeypatch):
    if not nowhere:
        pytest.skip("WEFT_DATA is not set")  # where it is, the digits must be there
    monkeypatch.setenv("WEFT_DATA", nowhere)
    for part, rows, first in (("train", 60_000, [5, 0, 4, 1, 9]), ("test", 10_000, [7, 2, 1, 0, 4])):
        x, y = mnist(part, download=False)
        assert x.shape == (rows, 1, 28, 28)
        assert y[:5].tolist() == first  # as published
        assert (x.min(), x.max()) == (0.0, 1.0)
    assert np.bincount(y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(
    ("folder", "packed"), [("mnist", ".gz"), ("mnist", ""), ("MNIST/raw", ".gz"), ("MNIST/raw", "")]
)
def test_every_layout_is_read(tmp_path, monkeypatch, folder, packed):
    place(tmp_path / "b" / folder, packed=packed)
    monkeypatch.setenv("WEFT_DATA", os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]))
    expect(mnist("train"))


def test_the_order_of_places(tmp_path, monkeypatch):
    place(tmp_path / "cache/weft/mnist")
    expect(mnist())
    place(tmp_path / "listed/mnist", labels=LABELS * 0 + 1)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "listed"))
    assert mnist()[1].tolist() == [1] * 7
    place(tmp_path / "given/mnist", labels=LABELS * 0 + 2)
    assert mnist(folder=tmp_path / "given")[1].tolist() == [2] * 7


def test_parts_and_kin_are_kept_apart(tmp_path):
    place(tmp_path / "mnist", "t10k", labels=LABELS * 0)
    place(tmp_path / "fashion-mnist", "t10k")
    expect(fashion_mnist("test", folder=tmp_path))
    assert not mnist("test", folder=tmp_path)[1].any()
    with pytest.raises(FileNotFoundError, match="expected MNIST in one of"):
        mnist("train", folder=tmp_path)
    with pytest.raises(ValueError, match="expected part to be 'train' or 'test', got 'valid'"):
        mnist("valid", folder=tmp_path)


def test_what_is_missing_names_where_was_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_DATA", os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
    with pytest.raises(FileNotFoundError) as error:
        mnist(folder=tmp_path / "given")
    for name in ("given", "one", "two", "cache/weft", "pip install torchvision"):
        assert name in str(error.value)
    with pytest.raises(FileNotFoundError, match="downloading was not allowed"):
        cifar10(download=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "expected 5488 values of shape"),
        (lambda data: data[: len(data) // 2], "expected a whole gzip file"),
        (lambda data: b"not an image", "expected bytes in idx format"),
    ],
)
def test_damaged_files(tmp_path, damage, message):
    place(tmp_path / "mnist")
    path = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        mnist(folder=tmp_path)


def test_images_and_labels_must_match(tmp_path):
    place(tmp_path / "mnist", labels=LABELS[:-1])
    with pytest.raises(ValueError, match="expected one label for each image of MNIST, got 7 images, 6 labels"):
        mnist(folder=tmp_path)
    place(tmp_path / "mnist", images=IMAGES[0])
    with pytest.raises(ValueError, match="expected images and labels in"):
        mnist(folder=tmp_path)


def test_idx_of_any_shape(tmp_path):
    values = RANDOM.integers(0, 256, (2, 3, 4, 5))
    write_idx(tmp_path / "some", values)
    assert (tmp_path / "some").read_bytes()[:8] == b"\0\0\x08\x04\0\0\0\x02"
    np.testing.assert_array_equal(read_idx(tmp_path / "some"), values)
    for wrong in (np.array([256]), np.array([-1]), np.array([0.5])):
        with pytest.raises(ValueError, match=r"expected whole numbers in 0\.\.255"):
            write_idx(tmp_path / "some", wrong)


def test_photographs_in_both_forms(tmp_path):
    labels = np.arange(6)
    (tmp_path / "a/cifar10").mkdir(parents=True)
    np.savez(tmp_path / "a/cifar10/train.npz", x=PHOTOS, y=labels)
    (tmp_path / "b/cifar-10-batches-bin").mkdir(parents=True)
    records = np.concatenate([labels[:, None], PHOTOS.transpose(0, 3, 1, 2).reshape(6, -1)], 1).astype(np.uint8)
    for i in range(1, 6):  # two in the first file, one in each of the others
        part = records[:2] if i == 1 else records[i : i + 1]
        (tmp_path / f"b/cifar-10-batches-bin/data_batch_{i}.bin").write_bytes(part.tobytes())
    for folder in ("a", "b"):
        x, y = cifar10("train", folder=tmp_path / folder)
        assert x.shape == (6, 3, 32, 32)
        np.testing.assert_allclose(x[4, 1, 2, 3] * 255, PHOTOS[4, 2, 3, 1], atol=1e-4)
        assert y.tolist() == [0, 1, 2, 3, 4, 5]
    np.savez(tmp_path / "a/cifar10/train.npz", x=PHOTOS.astype(float), y=labels)
    with pytest.raises(ValueError, match="expected x of shape"):
        cifar10("train", folder=tmp_path / "a")
    (tmp_path / "b/cifar-10-batches-bin/data_batch_2.bin").write_bytes(b"half a record")
    with pytest.raises(ValueError, match="expected records of 3,073 bytes"):
        cifar10("train", folder=tmp_path / "b")


def test_downloads_go_to_the_cache(tmp_path, monkeypatch):
    asked = []

    class MNIST:
        def __init__(self, root, train, download):
            asked.append((Path(root), train, download))
            place(Path(root) / "MNIST/raw", "train" if train else "t10k")

    class CIFAR10:
        data, targets = PHOTOS, [5, 4, 3, 2, 1, 0]

        def __init__(self, root, train, download):
            asked.append((Path(root), train, download))

    class FashionMNIST:
        def __init__(self, root, train, download):
            raise RuntimeError("no mirror answered")

    fake = types.SimpleNamespace(MNIST=MNIST, CIFAR10=CIFAR10, FashionMNIST=FashionMNIST)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", fake)
    cache = tmp_path / "cache/weft"
    both = [(cache, True, True), (cache, False, True)]
    expect(mnist("test"))
    assert asked == both
    mnist("train")  # is there by now
    assert cifar10("test")[1].tolist() == [5, 4, 3, 2, 1, 0]
    assert asked == both + both
    np.testing.assert_array_equal(cifar10("train")[0] * 255, PHOTOS.transpose(0, 3, 1, 2))
    assert asked == both + both
    with pytest.raises(FileNotFoundError, match="no mirror answered"):
        fashion_mnist()


def test_a_torchvision_that_does_not_import_is_told(monkeypatch):
    """PyPI's build beside another torch fails by a RuntimeError."""

    def broken(name):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("weft.data.images.importlib.import_module", broken)
    with pytest.raises(FileNotFoundError, match=r"does not import beside this torch \(operator torchvision::nms"):
        mnist()
