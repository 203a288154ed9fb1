"""Compression: digits in as many bits as a model says, beside what PNG, WebP and xz make of them."""

from __future__ import annotations

import copy
import io
import lzma
from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE
from weft.data import mnist
from weft.objectives import MADE
from weft.objectives.densities import coding
from weft.objectives.densities.coding import compress, decompress

ACROSS = 32  # images beside each other in one large image
FLUSH = 64  # bits: the coder ends on a whole word of 32, and keeps one more in hand


def digits(part: str, count: int, side: int, levels: int) -> Any:
    """The first images of MNIST, pooled to a side and cut into equal levels: rows of whole numbers."""
    X = mnist(part)[0][:count, 0]
    small = X.reshape(count, side, 28 // side, side, 28 // side).mean((2, 4))
    return np.minimum(small * levels, levels - 1).astype(np.int64).reshape(count, -1)


def tiled(X: Any, side: int, across: int) -> Any:
    """All images as one, so many beside each other."""
    rows = -(-len(X) // across)
    whole = np.zeros((rows * across, side, side), dtype=np.uint8)
    whole[: len(X)] = X.reshape(-1, side, side)
    return whole.reshape(rows, across, side, side).swapaxes(1, 2).reshape(rows * side, across * side)


def packed(X: Any, side: int, levels: int) -> dict[str, int]:
    """Bits by each common format, each in the best of the ways that it offers."""
    from PIL import Image

    def saved(form: str, image: Any, **options: Any) -> int:
        held = io.BytesIO()
        image.save(held, form, **options)
        return 8 * held.tell()

    depth = int(levels - 1).bit_length()
    png, webp = [], []
    for across in (1, ACROSS):
        table = tiled(X, side, across)
        if levels == 2:
            indexed = Image.fromarray(table * 255).convert("1")
        else:
            indexed = Image.fromarray(table).convert("P")
            indexed.putpalette([17 * (i // 3) for i in range(48)])
        png.append(saved("PNG", indexed, optimize=True, **({} if levels == 2 else {"bits": depth})))
        if max(table.shape) < 16384:  # the largest that WebP takes
            grey = Image.fromarray(table * (255 // (levels - 1))).convert("RGB")
            webp.append(saved("WEBP", grey, lossless=True, quality=100, method=6))
    each = np.unpackbits(X.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth :]
    ways = [X.astype(np.uint8).tobytes(), np.packbits(each.reshape(-1)).tobytes()]
    xz = [8 * len(lzma.compress(way, preset=9 | lzma.PRESET_EXTREME)) for way in ways]
    return {"PNG": min(png), "WebP": min(webp), "xz": min(xz)}


def spoiled(density: Any, words: Any, n: int) -> Any:
    """The mutant: decoded by a model whose parameters are off by a little; zeros where the coder gives up."""
    other = copy.deepcopy(density)
    with torch.no_grad():
        next(other.parameters()).mul_(1.001)
    try:
        return coding.decompress(other, words, n)
    except (ValueError, AssertionError):
        return np.zeros((n, len(density.entries)), dtype=np.int64)


class Compression(Claim):
    """MADE and a range coder on images of MNIST's test part, beside common formats."""

    title = "A likelihood is a file's length"
    statement = (
        "An arithmetic coder with a model's conditional probabilities makes as many bits of images as the model's "
        "-log2 p says, but for the end of the file, and gives them back bit for bit; they are fewer than PNG, lossless "
        "WebP and xz make of the same images."
    )
    reference = (
        "Shannon, “A mathematical theory of communication”, 1948; Bamler, “Understanding entropy coding with "
        "asymmetric numeral systems”, 2022 (constriction); the formats by Pillow and Python's lzma"
    )
    tolerance = (
        "The code of all test images may be 64 bits (two words) and one bit in a thousand longer than -log2 p, since "
        "probabilities are rounded to 24 bits, and no shorter than -log2 p less one bit in a thousand (single "
        "precision). Not one pixel may come back wrong. The code must be shorter than each format's best: PNG and WebP "
        "get all images as one, 1 or 32 of them beside each other, PNG at its least depth; xz gets bytes or packed "
        "bits. The net's own size is not counted, as both sides have it. It has one hidden layer and a random order, "
        "chosen after a run with two layers from left to right, as little trained, of which xz was shorter."
    )
    quick = {"seeds": 5, "data": {"bits, 14 x 14": (14, 2)}, "rows": 5000, "test": 200, "hidden": 128, "steps": 300}
    full = {
        "seeds": 5,
        "data": {"bits, 28 x 28": (28, 2), "4 bits, 14 x 14": (14, 16)},
        "rows": 60_000,
        "test": 1000,
        "hidden": 400,
        "steps": 700,
    }
    mutant = Mutant(
        what="decoding by a model whose first weights are off by a thousandth",
        misses="pixels that come back wrong",
        names={"decompress": spoiled},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(setting.data))
        tables: dict[str, Any] = {}
        for name, (side, levels) in setting.data.items():
            X, asked = (
                digits(part, count, side, levels) for part, count in (("train", setting.rows), ("test", setting.test))
            )
            law: dict[str, Any] = {"law": "bernoulli"}
            if levels > 2:
                law = {"law": "logistic-mixture", "classes": levels, "parts": 3}
            model = MADE((setting.hidden,), order="random", **law)
            learner = report.fit(self.learner(model, seeds, setting), X.astype(np.float32), what=name)
            words, said, wrong = [], [], []
            for k in range(len(seeds)):
                alone = learner.replica(k)
                code = compress(alone.objective_, asked)
                words.append(32.0 * len(code))
                said.append(-float(alone.log_prob(asked.astype(np.float32)).sum(dtype=np.float64)) / np.log(2))
                wrong.append(int((decompress(alone.objective_, code, len(asked)) != asked).sum()))
            bits, ideal, formats = np.array(words), np.array(said), packed(asked, side, levels)
            report.worst(f"{name}: pixels that come back wrong, of all seeds", wrong, most=0)
            spare = FLUSH + ideal / 1000
            report.figure(f"{name}: bits of the code beyond -log2 p", mean_of(bits - ideal), unit="bits")
            report.figure(
                f"{name}: furthest code from -log2 p, over what is allowed",
                float(np.where(bits > ideal, (bits - ideal) / spare, 1000 * (ideal - bits) / ideal).max()),
                most=1,
                exact=True,
            )
            for form, size in formats.items():
                report.figure(f"{name}: {form} over the code", mean_of(size / bits), unit="times", least=1)
            tables[name] = {"code": mean_of(bits / len(asked)), "-log2 p": mean_of(ideal / len(asked))}
            tables[name] |= {form: size / len(asked) for form, size in formats.items()}
            tables[name]["as it is"] = side * side * np.log2(levels)
        columns = list(next(iter(tables.values())))
        report.table(
            f"Bits for an image, of {setting.test:,}",
            ["images", *columns],
            [[name, *(found[column] for column in columns)] for name, found in tables.items()],
            digits=1,
        )
        with report.picture(
            "compression",
            alt="Bars of bits for an image: the code and -log2 p are equal and the shortest, then the common formats, "
            "and far above them the raw bits.",
            caption="Bits for an image by the coder, by the likelihood, and by common formats.",
            panels=len(tables),
            size=(4.8 * len(tables), 3.6),
        ) as axes:
            for ax, (name, found) in zip([axes] if len(tables) == 1 else axes, tables.items(), strict=True):
                heights = [getattr(value, "value", value) for value in found.values()]
                ax.bar(range(len(heights)), heights, color=[BLUE, GREEN, *[ORANGE] * 3, INK])
                ax.set_xticks(range(len(heights)), list(found), fontsize=8)
                ax.set(ylabel="bits for an image", title=name)

    def learner(self, model: Any, seeds: list[int], setting: Any) -> Learner:
        """All seeds at once."""
        return Learner(
            model,
            steps=setting.steps,
            batch_size=100,
            optimizer=Optimizer("adam", lr=0.006),
            schedule="cosine",
            replicas=len(seeds),
            random_state=seeds[0],
        )
