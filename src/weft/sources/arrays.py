"""Arrays that fit in memory: resident on the device, a batch is an index gather."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.legal import Choice, Flag, Legal, Number, Such, Whole, check
from weft.core.random import bits, fold, key_of
from weft.core.source import Batch, Field, Part, Source
from weft.core.state import State

__all__ = ["CLASSES", "Arrays", "as_array", "numbered_by", "refuse_masked"]


def _has_rows(given: object) -> bool:
    """Whether it is numbers with rows on the leading axis."""
    try:
        return torch.as_tensor(given).dim() > 0
    except (TypeError, ValueError, RuntimeError):
        return False


def _all_rows(fields: object) -> bool:
    return isinstance(fields, dict) and all(map(_has_rows, fields.values()))


def _one_each(given: object) -> bool:
    """Whether it is a list of values, be they numbers or names."""
    return not isinstance(given, str | bytes | Mapping) and as_array(given).ndim > 0


_ROWS = Such("a tensor or array with rows on its leading axis", _has_rows) | None
CLASSES = (
    Whole(1)
    | Such(
        "numbers of classes by field",
        lambda given: isinstance(given, Mapping),
        lambda given: all(map(Whole(1).allows, dict(given).values())),  # type: ignore[call-overload]
    )
    | None
)
_MASK = Such("True for each row that is held out", lambda given: getattr(given, "dtype", None) in (bool, torch.bool))
_EACH = Such("an array or list with one value for each row", _one_each) | None


class Arrays(Source):
    """Rows of tensors, shuffled anew in every pass; by environment, stacked as groups.

    A pass of S = ceil(n / batch_size) steps sees every row once: step i takes the rows from i n / S to
    (i + 1) n / S of the shuffled order, so that batches differ by at most one row. With groups each
    one is spread over the pass in this way, and `batch_size` counts rows of the largest.

    Args:
        x: rows on the leading axis; any further fields by name (`y`, `observation`, ...).
        environment: the group of each row, as numbers or names.
        weight: a weight for each row.
        batch_size: rows per step (per environment where grouped), or None for all.
        grouped: whether environments are stacked on a leading axis.
        with_environment: whether batches carry each row's environment, numbered in the order of
            `environments`, as the field `environment`, for objectives that read it.
        holdout: the share of each stratum kept out for validation, chosen by the run's seed; or True for each row that
            is kept out, whatever the seed.
        part: `train` or `validation`, the part of the rows that this source gives.
        strata: the stratum of each row for the hold-out; default: the environment.
        classes: how many classes `y` numbers; or such numbers by field, where others number classes too.
        columns: which entries of `x` are which column of a table, where it was one.

    Example:
        >>> import torch
        >>> from weft.core.state import State
        >>> source = Arrays(torch.arange(6.0)[:, None], batch_size=4)
        >>> source.epoch, source.spec["x"].shape
        (2, (1,))
    """

    stacks = True
    legal: ClassVar[dict[str, Legal]] = {
        "x": _ROWS,
        "y": _ROWS,
        "environment": _EACH,
        "weight": _ROWS,
        "batch_size": Whole(1) | None,
        "grouped": Flag(),
        "with_environment": Flag(),
        "holdout": Number(0, 1, "[)") | _MASK,
        "part": Choice("train", "validation"),
        "strata": _EACH,
        "classes": CLASSES,
        "columns": Such("the parts of a row, in order", lambda given: isinstance(given, tuple)),
        "fields": Such("fields by name, rows of numbers", lambda given: isinstance(given, dict), _all_rows),
    }

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None = None,
        *,
        environment: Any = None,
        weight: Tensor | None = None,
        batch_size: int | None = None,
        grouped: bool = False,
        with_environment: bool = False,
        holdout: float | NDArray[np.bool_] | Tensor = 0.0,
        part: str = "train",
        strata: Any = None,
        classes: int | Mapping[str, int] | None = None,
        columns: tuple[Part, ...] = (),
        **fields: Tensor,
    ) -> None:
        check(Arrays, locals())
        named = {"x": x, "y": y, "weight": weight, **fields}
        for values in named.values():
            refuse_masked(values)
        self.fields: dict[str, Tensor] = {name: torch.as_tensor(t) for name, t in named.items() if t is not None}
        if not self.fields:
            raise ValueError("expected rows x or fields by name, got none; for example Arrays(x) or Arrays(None, y=y)")
        self.rows = len(next(iter(self.fields.values())))
        for name, t in self.fields.items():
            if len(t) != self.rows:
                raise ValueError(f"expected {self.rows} rows in {name!r} as in the others, got {len(t)}")
        if self.rows == 0:
            raise ValueError("expected at least one row, got none; check the filter that made this data")
        device = next(iter(self.fields.values())).device
        self.grouped, self.batch_size, self.part = grouped, batch_size, part
        told = None if isinstance(holdout, float | int) else torch.as_tensor(holdout, device=device)
        if told is not None and told.shape != (self.rows,):
            raise ValueError(f"expected holdout to say of {self.rows} rows whether each is held out, got {told.shape}")
        self._told = told
        self.holdout: float = holdout if isinstance(holdout, float | int) else 0.0
        self.environments: np.ndarray[Any, Any] = np.zeros(1)
        self._group = torch.zeros(self.rows, dtype=torch.int64, device=device)
        if environment is not None:
            self.environments, codes = np.unique(as_array(environment), return_inverse=True)
            if len(codes) != self.rows:
                raise ValueError(f"expected {self.rows} environments, one for each row, got {len(codes)}")
            self._group = torch.as_tensor(codes.reshape(-1), device=device)
        layers = self._group if strata is None else torch.as_tensor(np.unique(as_array(strata), return_inverse=True)[1])
        self._strata = layers.reshape(-1).to(device)
        numbered = numbered_by(classes, self.fields)
        self.spec = {
            name: Field(tuple(t.shape[1:]), t.dtype, numbered.get(name), columns if name == "x" else ())
            for name, t in self.fields.items()
        }
        if with_environment:
            if environment is None:
                raise ValueError("expected environment=... where batches are to carry it, got none")
            self.fields["environment"] = self._group
            self.spec["environment"] = Field((), torch.int64, len(self.environments))
        sizes = self._sizes() if grouped else torch.tensor([self._count()])
        if int(sizes.min()) == 0:
            whose = " of every environment" if grouped else ""
            raise ValueError(
                f"expected rows{whose} in the {part} part, got none; with so few rows pass validation=(X, y) instead "
                "of a share"
            )
        self.group_sizes = sizes.to(device)
        largest = int(sizes.max())
        self.size = int(sizes.sum())
        self.epoch = -(-largest // min(batch_size or largest, largest))
        self._cache: tuple[Any, Tensor] | None = None

    # --- which rows ----------------------------------------------------------------------------------

    def _held(self) -> Tensor:
        """How many rows of each stratum are held out (at least one remains on each side where possible)."""
        counts = torch.bincount(self._strata)
        held = (counts * self.holdout).round().long()
        if self.holdout > 0:
            held = torch.where(counts > 1, held.clamp_min(1), held).minimum((counts - 1).clamp_min(0))
        return held

    def _count(self) -> int:
        held = int((self._held() if self._told is None else self._told).sum())
        return held if self.part == "validation" else self.rows - held

    def _sizes(self) -> Tensor:
        """Rows of this part in each group."""
        chosen = self._chosen(key_of(torch.zeros((), dtype=torch.int64, device=self._group.device)))
        return torch.bincount(self._group[chosen], minlength=len(self.environments)).cpu()

    def _chosen(self, key: Tensor) -> Tensor:
        """Row numbers of this part, ascending: (..., m) for keys of shape (...)."""
        if self._told is not None:
            chosen = torch.nonzero(self._told if self.part == "validation" else ~self._told)[:, 0]
            return chosen.expand(*key.shape, len(chosen))
        if self.holdout == 0.0:
            every = torch.arange(self.rows, device=key.device)
            return every.expand(*key.shape, self.rows)
        words = bits(fold(key, "split"), (self.rows,))
        order = torch.argsort(words, dim=-1)
        order = order.gather(-1, torch.argsort(self._strata[order], dim=-1, stable=True))  # by stratum, then at random
        counts = torch.bincount(self._strata)
        rank = torch.arange(self.rows, device=key.device) - (counts.cumsum(0) - counts)[self._strata[order[..., :]]]
        out = rank < self._held()[self._strata[order]]
        wanted = out if self.part == "validation" else ~out
        return order[wanted].reshape(*key.shape, self._count()).sort(-1).values

    def _shuffled(self, key: Tensor, place: tuple[int | str | Tensor, ...]) -> Tensor:
        """The part's rows in a random order; grouped, (..., G, largest) with padding at the end."""
        chosen = self._chosen(key)
        words = bits(fold(key, *place), (self.rows,)).gather(-1, chosen)
        order = chosen.gather(-1, torch.argsort(words, dim=-1))
        if not self.grouped:
            return order
        order = order.gather(-1, torch.argsort(self._group[order], dim=-1, stable=True))
        starts = self.group_sizes.cumsum(0) - self.group_sizes
        within = torch.arange(int(self.group_sizes.max()), device=key.device)
        index = starts[:, None] + within.minimum(self.group_sizes[:, None] - 1)  # padding repeats the last real row
        return order[..., index]

    # --- batches -------------------------------------------------------------------------------------

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, each pass in its own order."""
        if state.device != self._group.device:
            self.to(state.device)
        while True:
            turn, i = divmod(state.step - state.origin, self.epoch or 1)
            late = None if state.late is None else tuple(state.late.tolist())
            tag = (turn, state.origin, late, tuple(state.seeds.reshape(-1).tolist()))
            if self._cache is None or self._cache[0] != tag:
                place = ("shuffle", state.own(state.origin), turn)
                self._cache = (tag, self._shuffled(key_of(state.seeds), place))
            yield self._gather(self._cache[1], i)

    def _gather(self, order: Tensor, i: int) -> Batch:
        steps = self.epoch or 1
        if not self.grouped:
            n = order.shape[-1]
            return self._rows(order[..., i * n // steps : (i + 1) * n // steps])
        start, stop = i * self.group_sizes // steps, (i + 1) * self.group_sizes // steps
        width = -(-int(self.group_sizes.max()) // steps)
        position = start[:, None] + torch.arange(width, device=order.device)
        real = position < stop[:, None]
        # Padding repeats a real row of the group (the last one taken), at weight 0.
        last = (stop - 1).clamp_min(0)
        position = position.minimum(last[:, None])
        index = order.gather(-1, position.expand(*order.shape[:-1], width))
        batch = self._rows(index)
        if not bool(real.all()):
            weight = batch.get("weight", torch.ones(index.shape, dtype=self._float(), device=order.device))
            batch["weight"] = weight * real
        return batch

    def _rows(self, index: Tensor) -> Batch:
        flat = index.reshape(-1)  # index_select over rows is faster than indexing
        return {name: t.index_select(0, flat).reshape(*index.shape, *t.shape[1:]) for name, t in self.fields.items()}

    def _float(self) -> torch.dtype:
        floats = [t.dtype for t in self.fields.values() if t.is_floating_point()]
        return floats[0] if floats else torch.get_default_dtype()

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """This part's rows in their own order."""
        if state.device != self._group.device:
            self.to(state.device)
        lead = (
            tuple(state.seeds.shape) if self.holdout == 0.0 else ()
        )  # replicas that share all rows share their memory
        chosen = self._chosen(key_of(state.seeds.reshape(-1)[0] if lead else state.seeds))
        for start in range(0, chosen.shape[-1], rows):
            batch = self._rows(chosen[..., start : start + rows])
            yield {name: values.expand(*lead, *values.shape) for name, values in batch.items()} if lead else batch

    def contents(self) -> dict[str, Any]:
        """Its fields, the environment of each row, and what is held out."""
        held = {"holdout": f"{self.holdout} {self.part}", "strata": self._strata} if self.holdout else {}
        if self._told is not None:
            held = {"holdout": self._told if self.part == "validation" else ~self._told}
        groups = {"environment": self.environments[self._group.cpu().numpy()]} if len(self.environments) > 1 else {}
        return {**self.fields, **groups, **held}

    def extent(self, field: str) -> tuple[float, float] | None:
        """The least and the largest value of a field, those held out included."""
        low, high = self.fields[field].aminmax()
        return low.item(), high.item()

    def to(self, device: torch.device) -> Arrays:
        """Moves the arrays to a device."""
        self.fields = {name: t.to(device) for name, t in self.fields.items()}
        self._group, self._strata = self._group.to(device), self._strata.to(device)
        self._told = None if self._told is None else self._told.to(device)
        self.group_sizes = self.group_sizes.to(device)
        return self


def numbered_by(classes: int | Mapping[str, int] | None, fields: Mapping[str, Tensor]) -> dict[str, int]:
    """How many classes each field numbers, where `y` alone may be told by a number."""
    numbered = dict(classes) if isinstance(classes, Mapping) else {} if classes is None else {"y": classes}
    if unknown := [name for name in numbered if name not in fields]:
        raise ValueError(
            f"expected classes of fields among {sorted(fields)}, got them of {unknown[0]!r}; give that field, or say "
            "whose they are, for example classes={'species_y': 3}"
        )
    return numbered


def refuse_masked(values: object) -> None:
    """Raises for a masked array with gaps, whose mask would be lost: its values there are no values."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        first = int(np.argwhere(np.ma.getmaskarray(values))[0, 0])
        raise ValueError(
            f"expected an array without gaps, got a masked one with {np.ma.count_masked(values)} of them, first in row "
            f"{first}; fill them in, by values.filled(...), or drop those rows"
        )


def as_array(values: object) -> NDArray[Any]:
    """A NumPy array of whatever holds numbers or names."""
    refuse_masked(values)
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
