"""Short spoken words from wave files."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.data.places import cache, sought

__all__ = ["read_wave", "speech", "write_wave"]

_DEBIAN = Path("/usr/share/sounds/alsa")
Sound = NDArray[np.float32]


def speech(*, rate: int = 8000, folder: str | Path | None = None) -> dict[str, Sound]:
    """The spoken names of loudspeakers ("front left", ...) that come with Debian's package `alsa-utils`.

    They are looked for as `speech/*.wav` in the folder given, in those of `WEFT_DATA` and in the user's cache, then
    where that package puts them. "Noise" among them is none of speech, and is left out.

    Args:
        rate: samples a second to bring them to, one that divides theirs (48,000): the mean of so many in a row.
        folder: looked in first.

    Returns:
        Waves in [-1, 1] by name.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_wave(folder / "speech" / "Beep.wav", np.sin(np.arange(4800) / 9), 48_000)
        >>> {name: len(wave) for name, wave in speech(folder=folder).items()}
        {'Beep': 800}
    """

    def read(place: Path) -> dict[str, Sound] | None:
        paths = sorted((place / "speech").glob("*.wav"))
        if not paths and place == cache():  # the last place that is looked in
            paths = sorted(_DEBIAN.glob("*.wav"))
        return {path.stem: _slower(*read_wave(path), rate, path) for path in paths if path.stem != "Noise"} or None

    return sought("spoken words (speech/*.wav)", read, _absent, folder)


def _absent(name: str, cache: Path) -> str:
    return "Debian's package alsa-utils, which has them, is not installed (apt-get install alsa-utils)"


def read_wave(path: str | Path) -> tuple[Sound, int]:
    """The samples of a wave file of 16 bits, the mean of its channels, in [-1, 1]; and how many there are a second."""
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"expected samples of 16 bits in {path}, got {8 * file.getsampwidth()}; convert it")
        whole = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        rate = file.getframerate()
    return (whole.mean(1) / 32768.0).astype(np.float32), rate


def write_wave(path: str | Path, samples: NDArray[np.floating], rate: int) -> None:
    """Writes samples in [-1, 1] as a wave file of 16 bits, one channel."""
    if not np.isfinite(samples).all() or np.abs(samples).max(initial=0.0) > 1:
        raise ValueError("expected samples in [-1, 1], got others; scale them by their largest")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples, np.float64) * 32767.0).round().astype("<i2").tobytes())


def _slower(samples: Sound, own: int, rate: int, path: Path) -> Sound:
    """At a lower rate, which divides its own."""
    if rate < 1 or own % rate:
        raise ValueError(f"expected a rate that divides {own}, that of {path}, got {rate}; such as {own // 6}")
    every = own // rate
    return samples[: len(samples) // every * every].reshape(-1, every).mean(1)
