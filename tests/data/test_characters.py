import os
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.data import held_classes, omniglot
from weft.sources import Episodes

NAMES = ("Greek/character01", "Greek/character02", "Latin/character01")


def stroke(i):
    """A black bar near the top, its length by the drawing."""
    ink = np.full((105, 105), 255, np.uint8)
    ink[8:20, 10 : 20 + 8 * i] = 0
    return Image.fromarray(ink).convert("1")


def write(folder, name="images_background"):
    for k, character in enumerate(NAMES):
        place = folder / name / character
        place.mkdir(parents=True)
        for i in range(4):
            stroke(4 * k % 8 + i).save(place / f"{k:04}_{i + 1:02}.png")
    return folder / name


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Nothing but what a test puts there."""
    monkeypatch.setenv("WEFT_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_characters_are_classes_of_alphabets(alone):
    write(alone / "omniglot")
    x, y, alphabet = omniglot(folder=alone, download=False)
    assert x.shape == (12, 1, 28, 28)
    assert x.dtype == np.float32
    assert y[::4].tolist() == list(NAMES)
    assert alphabet.tolist() == ["Greek"] * 8 + ["Latin"] * 4
    assert x.min() == 0.0
    assert x.max() == 1.0  # ink
    assert x[0, 0, 14:].max() == 0.0
    share = np.asarray(stroke(3)).astype(float)
    assert x[3].mean() == pytest.approx(1 - share.mean(), abs=0.01)
    assert omniglot(folder=alone, size=105, download=False).x[3, 0].mean() == pytest.approx(1 - share.mean())


def test_turned_characters_are_classes_of_their_own(alone):
    write(alone / "omniglot-py")  # where torchvision leaves them
    plain, turned = (omniglot(folder=alone, rotations=r, download=False) for r in (False, True))
    assert len({*turned.y.tolist()}) == 12
    assert [name for name in np.unique(turned.y) if "Latin" in name] == [
        "Latin/character01",
        *(f"Latin/character01 {angle}" for angle in (180, 270, 90)),
    ]
    for turn in range(4):
        rows = turned.x[turned.y == ("Greek/character01" + (f" {90 * turn}" if turn else ""))]
        np.testing.assert_array_equal(rows, np.rot90(plain.x[:4], turn, (2, 3)))
    assert all(name.startswith(alphabet) for name, alphabet in zip(turned.y, turned.alphabet, strict=True))


def test_it_is_read_packed(alone):
    folder = write(alone / "omniglot", "images_evaluation")
    plain = omniglot("test", folder=alone, download=False)
    with zipfile.ZipFile(alone / "omniglot/images_evaluation.zip", "w") as packed:
        for path in sorted(folder.rglob("*.png"), reverse=True):
            packed.write(path, path.relative_to(folder.parent))
            path.unlink()
        packed.writestr("__MACOSX/images_evaluation/Greek/._0001_01.png", b"no picture")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()
    again = omniglot("test", folder=alone, download=False)
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"part": "small3"}, "part to be one of 'train', 'test', 'small1', 'small2', got 'small3'"),
        ({"size": 0}, r"size in 1\.\.105"),
        ({"size": 200}, r"size in 1\.\.105"),
    ],
)
def test_bad_input(alone, how, message):
    with pytest.raises(ValueError, match=message):
        omniglot(**how, folder=alone, download=False)


def test_what_is_not_there_or_broken_says_so(alone):
    with pytest.raises(
        FileNotFoundError, match=r"Omniglot \(images_background\).*downloading was not allowed.*WEFT_DATA"
    ):
        omniglot(folder=alone, download=False)
    with pytest.raises(FileNotFoundError, match=r"Omniglot \(images_background_small1\)"):
        omniglot("small1", folder=alone)  # which nobody downloads
    (alone / "omniglot").mkdir()
    (alone / "omniglot/images_background.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match="expected a whole zip file"):
        omniglot(folder=alone, download=False)
    with zipfile.ZipFile(alone / "omniglot/images_background.zip", "w") as packed:
        packed.writestr("images_background/readme.png", b"")
    with pytest.raises(ValueError, match=r"drawings as alphabet/character/name\.png, got none"):
        omniglot(folder=alone, download=False)
    place = write(alone / "omniglot") / NAMES[0]
    Image.new("1", (28, 28)).save(place / "small.png")
    with pytest.raises(ValueError, match=r"105 x 105 pixels, got \(28, 28\) in .*small\.png"):
        omniglot(folder=alone, download=False)


def test_torchvision_puts_it_into_the_cache(alone, monkeypatch):
    asked = []

    class Omniglot:
        def __init__(self, root, background, download):
            asked.append((background, download))
            if not background:
                raise RuntimeError("no mirror answered")
            write(Path(root) / "omniglot-py")

    monkeypatch.setitem(sys.modules, "torchvision.datasets", types.SimpleNamespace(Omniglot=Omniglot))
    assert len(omniglot().x) == len(omniglot().x) == 12
    with pytest.raises(FileNotFoundError, match="no mirror answered"):
        omniglot("test")
    assert asked == [(True, True), (False, True)]
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(FileNotFoundError, match="pip install torchvision"):
        omniglot("test")


# --- classes held out -----------------------------------------------------------------------------------


def test_classes_are_held_out_whole():
    y = np.repeat([f"c{k}" for k in range(10)], 7)
    np.random.default_rng(0).shuffle(y)
    held = held_classes(y, 0.3)
    assert len({*y[held]}) == 3
    assert not {*y[held]} & {*y[~held]}
    np.testing.assert_array_equal(held, held_classes(y, 0.3))
    assert any(not np.array_equal(held, held_classes(y, 0.3, random_state=s)) for s in range(1, 4))
    assert len({*y[held_classes(y, 0.01)]}) == 1
    assert len({*y[held_classes(y, 0.99)]}) == 9


def test_alphabets_are_held_out_whole():
    alphabet = np.repeat(["a", "b", "c", "d"], [6, 9, 6, 9])
    y = np.array([f"{name}{i % 3}" for i, name in enumerate(alphabet)])
    held = held_classes(y, 0.5, within=alphabet)
    assert len({*alphabet[held]}) == 2
    assert not {*alphabet[held]} & {*alphabet[~held]}
    one, other = (Episodes((np.eye(30, dtype=np.float32)[m], y[m]), ways=3, shots=1) for m in (held, ~held))
    assert one.shared(other) == ""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"y": ["a"] * 4}, "at least two classes, got"),
        ({"y": [0, 1], "within": [0, 0]}, "at least two of within"),
        ({"y": [0, 1, 0], "within": ["a", "a", "b"]}, "to belong to one of within, got '0' in several"),
        ({"y": [0, 1], "within": [0]}, "one class for each row"),
        ({"y": [[0, 1]]}, "one class for each row"),
        ({"y": [0, 1], "share": 1.0}, r"share in \(0, 1\), got 1.0"),
    ],
)
def test_what_cannot_be_held_out(how, message):
    with pytest.raises(ValueError, match=message):
        held_classes(**how)


def test_the_small_parts_are_as_published():
    places = [Path(entry) for entry in os.environ.get("WEFT_DATA", "").split(os.pathsep) if entry]
    if not any((place / "omniglot").is_dir() for place in places):
        pytest.skip("WEFT_DATA does not have omniglot")
    for part, alphabets, characters in (("small1", 5, 136), ("small2", 5, 156)):
        x, y, alphabet = omniglot(part, download=False)
        assert len(x) == 20 * characters
        assert {np.sum(y == name) for name in np.unique(y)} == {20}
        assert len({*alphabet.tolist()}) == alphabets
        assert 0.05 < x.mean() < 0.12
