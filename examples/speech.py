"""WaveNet on spoken words: trains for a few minutes and writes what it draws to out/speech.wav, to be heard.

    python examples/speech.py [STEPS]

The words are those of Debian's package alsa-utils (`speech/*.wav` in a folder of WEFT_DATA will do). The file has a
word as it was spoken, and then two waves that the net draws after a tenth of a second of it. So small a net, from
seven words, babbles: it has the sound of a voice, and no words.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from weft import Learner, Optimizer
from weft.data import speech, write_wave
from weft.objectives import WaveNet

RATE, WINDOW = 8000, 1024


def main(steps: int) -> None:
    waves = [0.9 * wave / np.abs(wave).max() for wave in speech(rate=RATE).values()]
    rows = np.concatenate([wave[: len(wave) // WINDOW * WINDOW].reshape(-1, WINDOW) for wave in waves])
    held = rows[::10]
    learner = Learner(
        WaveNet(width=32, layers=9, dropout=0.1),
        steps=steps,
        batch_size=8,
        optimizer=Optimizer("adam", lr=3e-3),
        schedule="cosine",
        validation=held,
        every=max(1, steps // 20),
        patience=6,
        random_state=0,
    ).fit(np.delete(rows, np.s_[::10], 0))
    bits = -learner.log_prob(held).mean() / (WINDOW * np.log(2))
    print(f"{bits:.2f} bits a sample on windows that were held out, of 8 bits without a model")
    spoken, silence = waves[0][: 2 * RATE], np.zeros(RATE // 4)
    begun = np.repeat(spoken[None, RATE // 2 : RATE // 2 + RATE // 10], 2, 0)
    drawn = learner.forecast(begun, steps=RATE // 2, random_state=0)
    parts = [spoken, *(part for wave in drawn for part in (silence, wave))]
    out = Path("out") / "speech.wav"
    write_wave(out, np.clip(np.concatenate(parts), -1, 1), RATE)
    print(f"wrote {out}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
