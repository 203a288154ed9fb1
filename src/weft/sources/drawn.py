"""Data sets whose items are drawn anew at each reading: random crops, flips, noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from weft.core.random import fold, key_of
from weft.core.source import Batch
from weft.core.state import State
from weft.sources.arrays import Arrays

__all__ = [
    "TRIED",
    "Drawn",
    "DrawnAnew",
    "ambient_draws",
    "first_seeds",
    "read_items",
    "seeded",
    "seeds_of",
    "stacked",
]

TRIED = 64
"""Items that are read twice, to see whether they are drawn."""
_NUMBER = "drawn number"


@contextmanager
def _generators_put_back() -> Iterator[None]:
    """PyTorch's, NumPy's and Python's generators are afterwards as they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextmanager
def ambient_draws(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Tells whether PyTorch's (also the device's), NumPy's or Python's generator was drawn from; puts them back."""
    with _generators_put_back():
        before = _generators(device)
        yield lambda: _generators(device) != before


def _generators(device: torch.device) -> tuple[object, ...]:
    """Where the generators are."""
    of_device = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    _, words, *rest = np.random.get_state()
    of_torch = torch.default_generator.get_state().numpy().tobytes()
    return of_torch, of_device, np.asarray(words).tobytes(), tuple(rest), random.getstate()


def seeded(function: Callable[[Any], Any], given: Iterable[Any], seeds: Sequence[int]) -> list[Any]:
    """What a function makes of each, with PyTorch's, NumPy's and Python's generators set to a seed for each."""
    made = []
    with _generators_put_back():
        for value, seed in zip(given, seeds, strict=True):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed goes to every device, at 100 times the price
            np.random.seed(seed % 2**32)
            random.seed(seed)
            made.append(function(value))
    return made


def read_items(data: Dataset[Any], rows: Sequence[int], seeds: Sequence[int]) -> list[Any]:
    """Items of a data set, each read with the generators set to its own seed."""
    return seeded(data.__getitem__, rows, seeds)


def seeds_of(keys: Tensor) -> list[int]:
    """A seed for each key."""
    return (keys & (2**63 - 1)).reshape(-1).tolist()


def first_seeds(rows: Sequence[int], turn: int = 0) -> list[int]:
    """The seeds with which a data set is read before training."""
    return seeds_of(fold(key_of(turn), "read", torch.tensor(rows, dtype=torch.int64)))


def stacked(items: Sequence[Any]) -> NDArray[np.str_] | Tensor:
    """Items as one tensor, or names as an array."""
    if isinstance(items[0], str):
        return np.asarray(items)
    try:
        return torch.stack([torch.as_tensor(item) for item in items])
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"expected a data set whose items are tensors, arrays or numbers of one shape, got "
            f"{type(items[0]).__name__}: {error}; give the data set a transform that makes them so, for images such as "
            "torchvision.transforms.ToTensor()"
        ) from error


class Drawn(Dataset[Any]):
    """A map-style data set whose items differ from one reading to the next, and its first reading.

    Args:
        data: the data set.
        x: the rows as they were first read, one for each number.
        numbers: which items of the data set these are.
    """

    def __init__(self, data: Dataset[Any], x: Tensor, numbers: NDArray[np.int64]) -> None:
        self.data, self.x, self.numbers = data, x, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Any:
        return self.data[int(self.numbers[i])]

    def of(self, rows: NDArray[np.int64]) -> Drawn:
        """Some of its rows."""
        return Drawn(self.data, self.x[torch.as_tensor(rows)], self.numbers[rows])

    def read(self, rows: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """Rows drawn anew, each from its seed."""
        items = read_items(self, rows, seeds)
        found = stacked([item[0] if isinstance(item, tuple | list) else item for item in items])
        if not isinstance(found, Tensor) or found.shape[1:] != self.x.shape[1:]:
            got = tuple(found.shape[1:])
            raise ValueError(f"expected items of shape {tuple(self.x.shape[1:])} at each reading, got {got}")
        return found


class DrawnAnew(Arrays):
    """Rows of a data set that are drawn anew in every pass, by the run's seed, the step and the row.

    Whatever the data set draws from PyTorch's, NumPy's or Python's own generator depends on these alone; what it draws
    from others cannot be repeated. Rows that are looked at apart from training are those first read.

    Args:
        drawn: the data set.
        arrays: what `Arrays` takes, of the rows as first read.
    """

    def __init__(self, drawn: Drawn, **arrays: Any) -> None:
        super().__init__(**arrays)
        self.drawn = drawn
        self.fields[_NUMBER] = torch.arange(self.rows, device=self._group.device)

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, each row read when its turn comes."""
        for batch in super().batches(state):
            rows, key, before = batch.pop(_NUMBER), state.key("drawn"), batch["x"]
            seeds = seeds_of(fold(key.reshape(*key.shape, *(1,) * (rows.dim() - key.dim())), rows))
            x = self.drawn.read(rows.reshape(-1).tolist(), seeds)
            x = x.reshape(before.shape).to(device=before.device, dtype=before.dtype)
            if not bool(torch.isfinite(x).all()):
                raise ValueError(f"expected finite numbers, got others when rows were read at step {state.step}")
            yield {**batch, "x": x}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The rows as they were first read, in their own order."""
        for batch in super().once(state, rows):
            yield {name: value for name, value in batch.items() if name != _NUMBER}
