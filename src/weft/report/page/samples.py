"""What a run has drawn: samples, and rows beside their reconstructions."""

from __future__ import annotations

import base64
import io
import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.report.page import charts
from weft.report.page.charts import Dot
from weft.report.page.markup import Markup, Sections, el, num, table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SAMPLES", "kept_columns", "reconstructions", "samples"]

Array = NDArray[np.float64]
SAMPLES = 400  # rows drawn for a scatter
IMAGES = 24


def side(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width, where a row looks like a picture.

    >>> side((8, 8)), side((1, 28, 28)), side((64,)), side((2,)), side((10,))
    ((8, 8), (28, 28), (8, 8), None, None)
    """
    if len(shape) == 3 and shape[0] in (1, 3):
        shape = shape[1:]
    if len(shape) == 2 and min(shape) >= 4:
        return int(shape[0]), int(shape[1])
    root = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (root, root) if root >= 8 and root * root == shape[0] else None


def image(row: Array, low: float, high: float, alt: str) -> Markup:
    """A row as a small picture."""
    from PIL import Image

    size = side(row.shape)
    channels = 3 if row.ndim == 3 and row.shape[0] == 3 else 1
    grey = np.clip((row - low) / (high - low or 1.0) * 255, 0, 255).astype(np.uint8)
    pixels = grey.transpose(1, 2, 0) if channels == 3 else grey.reshape(size)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return el("img", src=f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}", alt=alt)


def samples(rows: Array, data: NDArray[np.generic] | None, sections: Sections) -> list[Markup]:
    """Samples as small pictures, as points in the plane, or in a table beside the data's numbers."""
    good = rows[np.isfinite(rows.reshape(len(rows), -1)).all(1)]
    if not len(good):
        return [el("p", "No sample is finite.", class_="note")]
    if side(good.shape[1:]):
        low, high = float(good.min()), float(good.max())
        shown = [image(row, low, high, f"sample {i + 1}") for i, row in enumerate(good[:IMAGES])]
        return [el("div", *shown, class_="samples"), el("p", f"The first {len(shown)} samples.", class_="note")]
    flat = good.reshape(len(good), -1)
    known = None if data is None else np.asarray(data, dtype=float).reshape(len(data), -1)
    parts = []
    if flat.shape[1] == 2:
        parts.append(_plane(flat, known, "samples", sections))
    parts.append(_summary(flat, known, sections))
    return parts


def _plane(rows: Array, data: Array | None, what: str, sections: Sections) -> Markup:
    dots = [] if data is None else [Dot(float(a), float(b), 7) for a, b in data[:SAMPLES]]
    dots += [Dot(float(a), float(b), 0) for a, b in rows]
    beside = " beside the held-out data" if data is not None else ""
    picture = charts.scatter(
        dots,
        title=f"{len(rows)} {what}{beside}",
        describe=f"Points of {what} in the plane; their means and deviations are in the table below.",
        names=sections.names,
        x_label="first value",
        y_label="second value",
        height=340,
        equal=True,
    )
    named = [(what, 0), *([("data", 7)] if data is not None else [])]
    return el("div", charts.legend(named, line=False), charts.figure(picture, f"{len(rows)} {what}{beside}."))


def _summary(rows: Array, data: Array | None, sections: Sections, most: int = 100) -> Markup:
    cells = []
    for j in range(min(rows.shape[1], most)):
        column = rows[:, j]
        ends = [float(v) for v in (column.mean(), column.std(), *np.quantile(column, (0.05, 0.5, 0.95)))]
        beside = [] if data is None else [float(data[:, j].mean()), float(data[:, j].std())]
        cells.append([j + 1, *ends, *beside])
    heads = [
        "value",
        "mean",
        "deviation",
        "5%",
        "median",
        "95%",
        *([] if data is None else ["data's mean", "its deviation"]),
    ]
    return table(f"What {len(rows)} samples are like.", heads, cells, names=sections.names, file="samples")


def reconstructions(rows: Array, again: Array, sections: Sections) -> list[Markup]:
    """Rows beside their reconstructions."""
    error = float(np.mean((rows - again) ** 2))
    parts = [el("p", f"The mean squared error of {len(rows)} held-out rows is {num(error)}.")]
    if side(rows.shape[1:]):
        low, high = float(rows.min()), float(rows.max())
        shown = []
        for i, (row, made) in enumerate(zip(rows[: IMAGES // 2], again, strict=False)):
            shown += [image(row, low, high, f"row {i + 1}"), image(made, low, high, f"row {i + 1} reconstructed")]
        parts += [
            el("div", *shown, class_="samples"),
            el("p", "Each row, and after it its reconstruction.", class_="note"),
        ]
        return parts
    flat, made = rows.reshape(len(rows), -1), again.reshape(len(again), -1)
    cells = [
        [j + 1, float(flat[:, j].std()), float(np.sqrt(((flat - made)[:, j] ** 2).mean()))]
        for j in range(min(flat.shape[1], 100))
    ]
    heads = ["value", "deviation of the data", "root mean squared error"]
    parts.append(table("How each value is kept.", heads, cells, names=sections.names, file="reconstructions"))
    return parts


def kept_columns(frame: pd.DataFrame, again: pd.DataFrame, sections: Sections, most: int = 100) -> list[Markup]:
    """How the columns of a table are kept by a reconstruction: what is observed of them."""
    from pandas.api.types import is_numeric_dtype

    cells: list[list[object]] = []
    for name in again.columns[:most]:
        seen = frame[name].notna().to_numpy()
        given, made = frame[name][seen], again[name][seen]
        if is_numeric_dtype(made):
            a, b = given.to_numpy(np.float64), made.to_numpy(np.float64)
            cells.append([str(name), float(a.std()), float(np.sqrt(((a - b) ** 2).mean())), None])
        else:
            same = (given.astype(str).to_numpy() == made.astype(str).to_numpy()).mean()
            cells.append([str(name), None, None, float(same)])
    heads = ["column", "deviation of the data", "root mean squared error", "share kept"]
    said = f"How each column of {num(len(frame))} rows is kept; of categories, the share."
    return [table(said, heads, cells, names=sections.names, file="reconstructions")]
