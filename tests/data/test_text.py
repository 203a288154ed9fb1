"""Text and sound from files: found, split, refused."""

import hashlib
import io
import os
from pathlib import Path

import numpy as np
import pytest

from weft.data import names, read_wave, speech, text, tiny_shakespeare, write_wave


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither WEFT_DATA nor a cache holds anything."""
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_parts_are_the_whole_and_apart():
    if "WEFT_DATA" not in os.environ:
        pytest.skip("needs tinyshakespeare.txt in a folder of WEFT_DATA")
    whole = tiny_shakespeare("all")
    assert len(whole) == 1_115_394
    assert len(set(whole)) == 65
    assert tiny_shakespeare() + tiny_shakespeare("test") == whole
    assert len(names()) == 32_033
    for name, (_, digest) in text._WHERE.items():
        found = next(p for place in os.environ["WEFT_DATA"].split(os.pathsep) if (p := Path(place) / name).is_file())
        assert hashlib.sha256(found.read_bytes()).hexdigest() == digest


def test_absent_text_is_said(nowhere):
    with pytest.raises(FileNotFoundError, match=r"tinyshakespeare\.txt in one of .* downloading was not allowed"):
        tiny_shakespeare(download=False)
    with pytest.raises(ValueError, match="expected part to be 'train'"):
        tiny_shakespeare("valid")


def test_what_is_downloaded_is_checked(nowhere, monkeypatch):
    """The wrong file is refused, and the right one kept."""
    from urllib import request

    monkeypatch.setattr(request, "urlopen", lambda address, timeout: io.BytesIO(b"<html>gone</html>"))
    with pytest.raises(FileNotFoundError, match="SHA-256 is another"):
        names()
    right = b"emma\nava\n"
    monkeypatch.setattr(request, "urlopen", lambda address, timeout: io.BytesIO(right))
    monkeypatch.setitem(text._WHERE, "names.txt", ("", hashlib.sha256(right).hexdigest()))
    assert names() == ["emma", "ava"]
    monkeypatch.setattr(request, "urlopen", None)
    assert names() == ["emma", "ava"]  # from the cache


def test_waves_come_back(tmp_path):
    samples = np.sin(np.arange(480) / 7).astype(np.float32)
    write_wave(tmp_path / "a.wav", samples, 48_000)
    back, rate = read_wave(tmp_path / "a.wav")
    assert rate == 48_000
    np.testing.assert_allclose(back, samples, atol=1e-4)
    with pytest.raises(ValueError, match=r"expected samples in \[-1, 1\]"):
        write_wave(tmp_path / "b.wav", 2 * samples, 48_000)


def test_speech_at_another_rate(nowhere, monkeypatch):
    from weft.data import sound

    monkeypatch.setattr(sound, "_DEBIAN", nowhere / "debian")
    with pytest.raises(FileNotFoundError, match="apt-get install alsa-utils"):
        speech()
    ramp = np.repeat(np.linspace(-1, 1, 100), 6)
    for name in ("Front_Left", "Noise"):
        write_wave(nowhere / "debian" / f"{name}.wav", ramp, 48_000)
    found = speech(rate=8000)
    assert list(found) == ["Front_Left"]
    np.testing.assert_allclose(found["Front_Left"], np.linspace(-1, 1, 100), atol=1e-4)
    with pytest.raises(ValueError, match="expected a rate that divides 48000"):
        speech(rate=7000)
