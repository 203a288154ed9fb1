"""The best checkpoints of a run: so many are kept beside the last one, by the progress measure.

    kept-NAME.json, kept-NAME.safetensors    a checkpoint as it was at a record, such as `step-120`
    kept.json                                which there are, the best first

They are switched with the last checkpoint, under one manifest. Between two writes they are in memory.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.core import manifest
from weft.core.configured import closest
from weft.core.files import parsed
from weft.core.values import Json
from weft.engine import checkpoint
from weft.engine.engine import Engine
from weft.engine.loop import Record, progress_of

if TYPE_CHECKING:
    from weft.learner.training import Training

__all__ = ["NAME", "Kept", "chosen", "files_of", "listed"]

NAME = "kept.json"


def files_of(name: str) -> tuple[str, str]:
    """The two files of a checkpoint that was kept."""
    return f"kept-{name}.json", f"kept-{name}.safetensors"


def listed(folder: Path) -> list[Json]:
    """The checkpoints kept in a folder, the best first: name, step, measure and value of each."""
    found = manifest.opened(folder)
    if found is None or NAME not in found.files:
        return []
    plain = parsed(manifest.contents(folder, NAME)[0], folder / NAME)
    entries = plain.get("kept") if isinstance(plain, dict) else None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and "name" in e for e in entries):
        raise ValueError(f"expected weft's list of checkpoints in {folder / NAME}, got another kind of file")
    return entries


def chosen(folder: Path, which: str | int) -> str:
    """The name of a checkpoint that was kept: by itself, or by its rank, 0 for the best."""
    names = [str(entry["name"]) for entry in listed(folder)]
    if not names:
        raise ValueError(
            f"expected checkpoints beside the last one in {folder}, got none; train with Learner(folder=..., keep=3)"
        )
    if isinstance(which, bool) or not isinstance(which, int | str):
        raise TypeError(f"expected a checkpoint's name, or its rank with 0 for the best, got {which!r}")
    if isinstance(which, int):
        if not 0 <= which < len(names):
            raise ValueError(f"expected a checkpoint among the {len(names)} best, 0 to {len(names) - 1}, got {which}")
        return names[which]
    if which not in names:
        raise closest(which, names, f"a checkpoint kept in {folder}")
    return which


class Kept:
    """The best checkpoints that a training has on its way to a folder.

    Attributes:
        pending: files that are not written yet.
    """

    def __init__(self) -> None:
        self.pending: dict[str, bytes] = {}

    def note(self, training: Training, engine: Engine, record: Record, tree: Json, most: int) -> None:
        """A record: what there is by now is kept, if it is among the best; replicas count by their mean."""
        try:
            measure, progress = progress_of(engine, record)
        except ValueError:  # an iteration of what is solved, whose solution is not told
            return
        value = float(np.mean(progress))
        entries = training.phase.kept
        if math.isnan(value) or (len(entries) >= most and value >= entries[-1]["progress"]):
            return
        runs = [run.engine for run in training.runs]
        name = f"step-{record['step']}" if len(runs) == 1 else f"replica-{runs.index(engine)}-step-{record['step']}"
        told = float(np.mean(record[measure]))
        entry = {"name": name, "step": int(record["step"]), "measure": measure, "value": told, "progress": value}
        # Of equals the first stays before the others.
        training.phase.kept = sorted([*entries, entry], key=lambda one: one["progress"])[:most]
        self.pending |= checkpoint.packed(tree, *files_of(name))
        going = {file for one in training.phase.kept for file in files_of(one["name"])}
        self.pending = {file: data for file, data in self.pending.items() if file in going}

    def files(self, training: Training, folder: Path, *, own: bool) -> tuple[dict[str, bytes], list[str]]:
        """What is to be written with the next checkpoint, and what is there already and stays."""
        found = manifest.opened(folder) if own else None
        there = set() if found is None else set(found.files)
        entries = [e for e in training.phase.kept if set(files_of(e["name"])) <= there | self.pending.keys()]
        if not entries:
            return {}, []
        stays = [file for e in entries for file in files_of(e["name"]) if file not in self.pending]
        text = json.dumps({"kept": [{n: v for n, v in e.items() if n != "progress"} for e in entries]}, indent=1)
        return {**self.pending, NAME: text.encode()}, stays
