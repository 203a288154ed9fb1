"""Fields of a kind: tokens, sequences and boxes of another length in every row, and images, as tensors.

Rows of unequal length are padded with 0 to the longest, and how long each is stands beside them, in `x_length` for `x`.
What stands after a row's end means nothing: an objective must mask it, and `weft.testing.check_objective` tells whether
it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.objective import RAGGED
from weft.core.vocabulary import Vocabulary, decoded, encoded, learned, size_of
from weft.sources.arrays import as_array

__all__ = [
    "Typed",
    "as_tokens",
    "characters",
    "decoded_tokens",
    "is_ragged",
    "named_tokens",
    "read_typed",
    "rows_in",
    "unequal",
]

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Typed:
    """A field as it was read.

    Attributes:
        values: a row each, padded.
        length: how long each row is; None where they have no length.
        classes: how many tokens there are.
        vocabulary: what text becomes tokens by, where it was text.
    """

    values: Tensor
    length: Tensor | None = None
    classes: int | None = None
    vocabulary: Vocabulary | None = None

    def fields(self, name: str) -> dict[str, Tensor]:
        """The tensors by name."""
        return {name: self.values} | ({} if self.length is None else {f"{name}_length": self.length})


def rows_in(values: object) -> int | None:
    """How many rows are given; None for a single value."""
    if isinstance(values, list | tuple):
        return len(values)
    array = as_array(values)
    return None if array.ndim == 0 else len(array)


def is_ragged(values: object) -> bool:
    """Whether it is a list of rows that have no shape in common."""
    if isinstance(values, np.ndarray):
        values = list(values) if values.dtype.kind == "O" and values.ndim == 1 else ()
    if not isinstance(values, list | tuple):
        return False
    sizes = {tuple(row.shape) if isinstance(row, np.ndarray | Tensor) else _length(row) for row in values}
    return len(sizes) > 1 and all(size != () for size in sizes)


def _length(row: object) -> tuple[int, ...]:
    return (len(row),) if isinstance(row, Sequence) and not isinstance(row, str | bytes) else ()


def unequal(name: str, objective: str) -> ValueError:
    """The error for rows of unequal length that nobody has declared."""
    return ValueError(
        f"expected rows of one shape in {name}, as {objective} declares nothing else, got some of unequal length; an "
        f"objective for such rows says of what kind they are: kinds = {{{name.lower()!r}: 'tokens'}} for text and "
        "token numbers, 'sequences' for numbers over time, 'boxes'; or cut or pad them all to one length"
    )


def _listed(values: Any) -> list[Any] | NDArray[Any]:
    """Rows as a list, or as an array where they are all of one shape."""
    if isinstance(values, list | tuple):
        return list(values)
    array = as_array(values)
    return list(array) if array.dtype.kind in "OUT" else array


def characters(values: Any, spelling: str = "characters") -> Vocabulary | int:
    """The vocabulary of a field of text, every character in order; of token numbers, how many there are."""
    rows = _listed(values)
    if isinstance(rows, list) and rows and all(isinstance(row, str) for row in rows):
        return learned(spelling, rows)
    return 1 + max((int(np.max(as_array(row))) for row in rows if np.size(as_array(row))), default=0)


def named_tokens(name: str, classes: Any, spelling: str) -> tuple[int | None, Vocabulary | None]:
    """How many tokens a field has, and its vocabulary, where they are named before it is read."""
    if isinstance(classes, Integral | None):
        return None if classes is None else int(classes), None
    if isinstance(classes, dict):  # byte pairs, learned from all tasks
        return size_of(classes), classes
    if spelling != "characters":
        raise ValueError(
            f"expected no characters of {name} to be named where the vocabulary is {spelling!r}, which has every byte, "
            "got some; leave them out"
        )
    every = sorted(set(classes))
    return len(every), every


def as_tokens(name: str, given: Any, learner: Any) -> Any:
    """An option that is text as a tuple of tokens, where rows are text; what is none stays."""
    vocabulary = getattr(learner, "vocabulary_", {}).get("x")
    if not isinstance(given, str) or vocabulary is None:
        return given
    if isinstance(vocabulary, list):
        _refuse_strange(name, [given], vocabulary)
    return tuple(encoded(vocabulary, given))


def read_typed(
    kind: str,
    name: str,
    values: Any,
    dtype: torch.dtype,
    *,
    width: int = 1,
    classes: int | None = None,
    vocabulary: Vocabulary | None = None,
    spelling: str = "characters",
    gaps: bool = False,
) -> Typed:
    """A field of one of the kinds tokens, sequences, boxes and images.

    Args:
        kind: which.
        name: the field's, for messages.
        values: rows.
        dtype: of numbers.
        width: the least length to pad to.
        classes, vocabulary: what tokens there are, where that is known already.
        spelling: how a vocabulary is to be learned, where it is not.
        gaps: whether numbers may be NaN.
    """
    if kind == "images":
        return Typed(_images(name, values, dtype))
    rows = _listed(values)
    if not len(rows):
        raise ValueError(f"expected at least one row in {name}, got none")
    if kind == "tokens":
        return _tokens(name, rows, width, classes, vocabulary, spelling)
    if isinstance(rows, np.ndarray) and rows.ndim in (2, 3) and kind == "sequences":  # of one length, read at once
        whole = _finite(name, np.asarray(rows, dtype=np.float64), gaps)
        return Typed(*_filled(whole, width, dtype))
    arrays = [_numbers(kind, name, row, i, gaps) for i, row in enumerate(rows)]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"expected rows of {name} with as many values at each step, got (length, ...) with {sorted(shapes)[:4]}"
        )
    return Typed(*_padded(arrays, width, dtype))


def _numbers(kind: str, name: str, row: Any, i: int, gaps: bool) -> NDArray[np.float64]:
    """A row of sequences or boxes."""
    try:
        array = np.asarray(as_array(row), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected numbers in row {i} of {name}, of {kind}, got others ({error})") from error
    if kind == "boxes":
        array = array.reshape(0, 4) if array.size == 0 else array
        if array.ndim != 2 or array.shape[1] != 4:
            raise ValueError(f"expected boxes of 4 numbers each in row {i} of {name}, (k, 4), got shape {array.shape}")
    elif array.ndim == 0 or array.ndim > 2:
        raise ValueError(
            f"expected a sequence in row {i} of {name}, (length,) or (length, values), got shape {array.shape}"
        )
    return _finite(name, array[None], gaps, i)[0]


def _finite(name: str, rows: NDArray[np.float64], gaps: bool, first: int = 0) -> NDArray[np.float64]:
    fine = np.isfinite(rows) | (gaps & np.isnan(rows))
    if not fine.all():
        row = first + int(np.argmin(fine.reshape(len(rows), -1).all(1)))
        raise ValueError(
            f"Input {name} contains NaN or infinity, first in row {row}: expected finite numbers; impute or drop them"
        )
    return rows


def _filled(rows: NDArray[Any], width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of one length, padded to a width."""
    whole = np.zeros((len(rows), max(width, rows.shape[1]), *rows.shape[2:]), dtype=rows.dtype)
    whole[:, : rows.shape[1]] = rows
    return torch.as_tensor(whole).to(dtype), torch.full((len(rows),), rows.shape[1])


def _padded(arrays: list[NDArray[Any]], width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(array) for array in arrays])
    whole = np.zeros((len(arrays), max(width, int(lengths.max())), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(whole, arrays, strict=True):
        row[: len(array)] = array
    return torch.as_tensor(whole).to(dtype), lengths


def _tokens(
    name: str,
    rows: list[Any] | NDArray[Any],
    width: int,
    classes: int | None,
    vocabulary: Vocabulary | None,
    spelling: str,
) -> Typed:
    text = [isinstance(row, str) for row in rows]
    if any(text) and not all(text):
        raise ValueError(f"expected text or token numbers in {name}, got both, as in row {text.index(not text[0])}")
    if classes is not None and (vocabulary is not None) != all(text):
        began, got = ("text", "numbers") if vocabulary is not None else ("token numbers", "text")
        raise ValueError(f"expected {began} in {name}, as training began with, got {got}")
    if all(text):
        known = learned(spelling, [str(row) for row in rows]) if vocabulary is None else vocabulary
        if isinstance(known, list):
            _refuse_strange(name, rows, known)
        arrays = [np.array(encoded(known, str(row)), dtype=np.int64) for row in rows]
        return Typed(*_padded(arrays, width, torch.int64), size_of(known), known)
    arrays = []
    for i, row in enumerate(rows):
        array = as_array(row)
        array = array.astype(np.int64) if array.size == 0 else array
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(
                f"expected text or a sequence of token numbers in row {i} of {name}, got {array.dtype} of shape "
                f"{array.shape}"
            )
        arrays.append(array.astype(np.int64))
    every = np.concatenate(arrays)
    most = int(every.max(initial=0)) + 1 if classes is None else classes
    wrong = (every < 0) | (every >= most)
    if wrong.any():
        first = next(i for i, row in enumerate(arrays) if ((row < 0) | (row >= most)).any())
        raise ValueError(
            f"expected token numbers 0..{most - 1} in {name}, got {every[wrong][0]}, first in row {first}; name how "
            f"many there are at the first partial_fit(..., classes={{{name!r}: ...}}), or fit anew"
        )
    return Typed(*_padded(arrays, width, torch.int64), most)


def _refuse_strange(name: str, rows: list[Any] | NDArray[Any], known: list[str]) -> None:
    """Raises for characters that there is no token for."""
    strange = sorted(set().union(*rows) - set(known))
    if strange:
        first = next(i for i, row in enumerate(rows) if strange[0] in row)
        raise ValueError(
            f"expected characters in {name} that training has seen ({''.join(known)!r}), got also "
            f"{''.join(strange)!r}, first in row {first}; name all of them at the first partial_fit(..., "
            f"classes={{{name!r}: ...}}), or fit anew"
        )
    if not known:
        raise ValueError(f"expected some character in {name}, got empty rows only")


def _images(name: str, values: Any, dtype: torch.dtype) -> Tensor:
    """Images as numbers, channels first: bytes in [0, 1], others as they are."""
    if isinstance(values, list | tuple):
        shapes = {np.shape(image) for image in values}
        if len(shapes) > 1:
            raise ValueError(f"expected images of one size in {name}, got {sorted(shapes)[:4]}; resize them")
        values = np.stack([np.asarray(as_array(image)) for image in values])
    images = torch.as_tensor(as_array(values).copy())
    shape = tuple(images.shape)
    if images.dim() not in (3, 4) or 0 in shape:
        raise ValueError(
            f"expected images in {name}, (n, height, width), (n, height, width, channels) or (n, channels, height, "
            f"width), got shape {shape}"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ValueError(
            f"expected images in {name} as bytes (uint8, 0 to 255) or as floats, got {images.dtype}; "
            ".astype('uint8') if they are from 0 to 255"
        )
    if images.dim() == 3:
        images = images.unsqueeze(1)
    else:
        first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
        if images.dtype == torch.uint8 and first == last:
            which = "both the second and the last axis look" if first else "neither the second nor the last axis looks"
            raise ValueError(
                f"expected images in {name} with 1, 3 or 4 channels on their second or on their last axis, got shape "
                f"{shape}, where {which} like channels; give floats in [0, 1], channels first: "
                "images.transpose(0, 3, 1, 2) / 255"
            )
        if images.is_floating_point() and last and not first:
            raise ValueError(
                f"expected floats in {name} as (n, channels, height, width), got shape {shape}, which looks like "
                "channels last; images.transpose(0, 3, 1, 2)"
            )
        if last and not first:
            images = images.permute(0, 3, 1, 2)
    if images.dtype == torch.uint8:
        return images.to(dtype).div(255).contiguous()
    if not bool(torch.isfinite(images).all()):
        raise ValueError(f"Input {name} contains NaN or infinity: expected finite numbers; drop such images")
    return images.to(dtype).contiguous()


def decoded_tokens(answer: Any, name: str, vocabulary: Vocabulary | None) -> Any:
    """Rows of tokens as text, or as arrays of their own lengths.

    Args:
        answer: (n, length); a list with an entry for each row; or those and their lengths, by name.
        name: the field's, `x`.
        vocabulary: what they become text by; None where they never were text.
    """
    if isinstance(answer, dict):
        if answer.keys() != {name, f"{name}_length"}:
            raise ValueError(f"expected rows as {name!r} and '{name}_length', got {sorted(answer)}")
        answer = [row[:length] for row, length in zip(answer[name], answer[f"{name}_length"], strict=True)]
    if vocabulary is None:
        return answer
    if isinstance(answer, np.ndarray) and answer.ndim != 2:
        raise ValueError(f"expected rows of tokens, (n, length), as the answer, got shape {answer.shape}")
    most = size_of(vocabulary)
    wrong = [int(k) for row in answer for k in row if not 0 <= int(k) < most]
    if wrong:
        raise ValueError(
            f"expected tokens 0..{most - 1} as the answer, got {wrong[0]}; cut rows before what ends them: "
            f"give a list of rows, or {{{name!r}: ..., '{name}_length': ...}}"
        )
    return [decoded(vocabulary, row) for row in answer]


def refuse_other_shape(kind: str, name: str, values: Tensor, known: tuple[int, ...]) -> None:
    """Raises where rows are of another shape than when training began, lengths aside."""
    first = 2 if kind in RAGGED else 1
    own = tuple(values.shape[first:])
    if own != known[first - 1 :]:
        raise ValueError(
            f"expected rows of {name} of shape {known} as when training began, got {tuple(values.shape[1:])}; give "
            f"{name} that shape, or fit anew"
        )
