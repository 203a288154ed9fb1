"""What a run has done so far, kept part by part, so that one that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.files import read_json, write_text
from weft.report.digests import code, digest

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Cost", "Parts", "claim_digests", "identity"]


class Cost(NamedTuple):
    """What a part cost: its share of the plan, trainings, steps and seconds; and the digests of the data it saw."""

    done: float = 0.0
    trainings: int = 0
    steps: int = 0
    seconds: float = 0.0
    data: tuple[str, ...] = ()


class Parts:
    """What a claim's run has done so far, in one file; it counts only for the same code, setting and seeds.

    Without a path it is kept in memory.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self.path, self._key = path, key
        try:
            kept = read_json(path) if path is not None else {}
        except (OSError, ValueError):
            kept = {}
        right = isinstance(kept, dict) and kept.get("key") == key
        self._parts: Json = kept["parts"] if right else {}

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def keep(self, name: str, value: object, cost: Cost) -> None:
        """Writes a part down."""
        self._parts[name] = {"value": _packed(value), "cost": cost}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps({"key": self._key, "parts": self._parts}) + "\n")

    def read(self, name: str) -> tuple[Any, Cost]:
        """A part, and what it cost."""
        done, trainings, steps, seconds, data = self._parts[name]["cost"]
        return _unpacked(self._parts[name]["value"]), Cost(done, trainings, steps, seconds, tuple(data))

    def digests(self) -> dict[str, str]:
        """The digest of what each part gave."""
        return {name: digest(self._parts[name]["value"]) for name in sorted(self._parts)}


def _packed(value: object) -> Any:
    """As JSON has it: arrays, tuples and dictionaries say what they are."""
    if isinstance(value, np.ndarray | np.generic):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, dict):
        return {"items": [[_packed(k), _packed(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(v) for v in value]}
    return [_packed(v) for v in value] if isinstance(value, list) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = np.array(value["array"], dtype=value["dtype"])
        return array if array.ndim else array[()]
    if "tuple" in value:
        return tuple(_unpacked(v) for v in value["tuple"])
    return {_unpacked(k): _unpacked(v) for k, v in value["items"]}


def claim_digests(path: Path, setting: Json) -> dict[str, str]:
    """The digests of a claim's file, with its neighbours that begin with `_`, and of a setting."""
    files = [path, *sorted(path.parent.glob("_*.py"))]
    return {"claim": digest([digest(file.read_bytes()) for file in files]), "setting": digest(repr(setting))}


def identity(path: Path, setting: Json, seeds: list[int]) -> str:
    """A digest of all that a run's parts depend on: weft's code, the claim's and its neighbours', setting and seeds."""
    return digest([code(), claim_digests(path, setting), seeds])
