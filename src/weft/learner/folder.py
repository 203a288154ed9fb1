"""A run's folder: what a Learner is, what it has learned, and how far it has come.

    config.json                what was asked for: the Learner's parameters, by the catalogue's names
    metrics.jsonl              one line per record of `history_`
    state.json, state-N.safetensors, state-N.blocks   the checkpoint, see `weft.engine.checkpoint`
    kept.json, kept-NAME.*     the best checkpoints, where some are kept, see `weft.learner.kept`
    manifest.json              which files these are, with digests of them and of the data, see `weft.core.manifest`

They are switched all at once, by one writer at a time, which holds `.lock`.
Nothing in these files is code, and no class is imported because a file names it: what is not in weft's
catalogue (a user's `nn.Module`, a function) is noted as *given* and must be given again to `load`.
"""

from __future__ import annotations

import json
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from weft import __version__
from weft.core import manifest
from weft.core.files import alone as alone_in
from weft.core.objective import inexact
from weft.core.source import Field
from weft.core.values import Given, Json, describe, jsonable
from weft.engine import checkpoint
from weft.engine.distributed import start, world
from weft.engine.engine import Engine
from weft.engine.loop import Pause, Record
from weft.learner.kept import Kept
from weft.learner.pretrained import noted
from weft.learner.runs import records
from weft.learner.settings import as_device
from weft.learner.training import Training

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["FITTED", "LATER", "STATE", "Folder", "alone", "save", "tidied"]

P = ParamSpec("P")
L = TypeVar("L", bound="Learner")

STATE = ("params", "buffers", "seeds", "strategy", "step", "origin", "active", "stopped", "best", "tally", "tasks")
LATER = ("statistics", "late", "ended", "planned", "source")  # which runs kept by earlier versions do not have
_BESIDE = (
    "recipe.json",
    "risk.json",
    "risk.png",
    "tasks.json",
    "tasks.png",
    "evaluation.json",
    "film.gif",
    "report.html",
)
SECONDS = 2.0  # between checkpoints at records; those that begin or end a task are always written
FITTED = ("classes_", "labels_", "environments_", "vocabulary_", "n_features_in_", "feature_names_in_", "seeds_")


# --- what was asked for -------------------------------------------------------------------------------


def _config(learner: Learner) -> dict[str, Any]:
    params = {n: v for n, v in learner.get_params(deep=False).items() if n not in ("callbacks", "folder", "verbose")}
    if not isinstance(learner.random_state, int):
        params["random_state"] = learner.seeds_[0]  # what chance or a generator has chosen
    if not (params["validation"] is None or isinstance(params["validation"], float)):
        params["validation"] = Given(params["validation"])  # data is not configuration
    params["init"] = noted(params["init"])
    kinds = inexact(learner.objective_)
    return {
        "weft": __version__,
        "format": checkpoint.FORMAT,
        "learner": type(learner).__name__,
        "params": {name: describe(value) for name, value in params.items()},
        **({"kinds": kinds} if kinds else {}),  # which a user's own objective tells nobody who has but the folder
    }


# --- what was learned ---------------------------------------------------------------------------------


def _tree(learner: Learner) -> Json:
    training = learner.training_
    runs = []
    for engine, state in training.runs:
        kept = {name: getattr(state, name) for name in (*STATE, *LATER)}
        if state.resumes == "restart":
            kept["source"] = {}
        kept["optimizers"] = {player: optimizer.state_dict() for player, optimizer in state.optimizers.items()}
        kept["schedulers"] = {player: s.state_dict() for player, s in engine.schedulers.items()}
        runs.append(kept)
    engine, phase = training.runs[0].engine, training.phase
    begun = [{"records": list(run.records), "done": run.done} for run in phase.runs]
    return {
        "runs": runs,
        "stacked": engine.replicas is not None,
        "kind": {"grouped": engine.grouped, "episodic": engine.episodic},
        "spec": {n: [list(f.shape), str(f.dtype), f.classes, *_further(f)] for n, f in training.spec.items()},
        "fitted": {
            **{name: getattr(learner, name) for name in FITTED if hasattr(learner, name)},
            "_replica_settings": training.settings,
            "_drawn": training.drawn,
            **({"_recipe": learner.recipe_.to_json()} if hasattr(learner, "recipe_") else {}),
            "_phase": {"task": phase.task, "once": phase.once, "runs": begun, "kept": phase.kept},
        },
        "history": list(learner.history_),
    }


def _further(field: Field) -> list[Any]:
    """The columns of a field, and what its entries may be, as far as it says that."""
    columns = [list(astuple(part)) for part in field.columns]
    said = {name: list(ends) for name in ("choices", "low", "high") if (ends := getattr(field, name))}
    return [columns, said] if said else [columns] if columns else []


# --- the folder ---------------------------------------------------------------------------------------


class Folder:
    """Keeps a training in a folder while it goes on; without a path, it keeps nothing.

    Args:
        path: a folder that does not exist, is empty, or is this very run's; None for none.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self.step: int | None = None
        self.kept = -math.inf
        self.wait = 0.0
        self.best = Kept()

    def claim(self) -> None:
        """Makes the folder for a new run; what is there already is never overwritten."""
        if self.path is None or world()[0] > 0:
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"expected a folder for the run, got the file {self.path}; choose another name")
        names = sorted(p.name for p in self.path.iterdir() if p.name != ".lock") if self.path.exists() else []
        # What a run leaves that was killed before its first checkpoint is nothing to lose.
        begun = [n for n in names if n in ("recipe.json", "config.json") or re.fullmatch(r"\..+\.(tmp|next)", n)]
        if not checkpoint.kept(self.path):
            begun += [n for n in names if n.startswith("state-") and n.endswith((".safetensors", ".blocks"))]
        foreign = [n for n in names if n not in begun]
        if foreign:
            what = "a run of weft" if checkpoint.kept(self.path) else f"{foreign[0]!r} and perhaps more"
            raise ValueError(
                f"expected an empty or new folder for the run, got {self.path} with {what} in it; choose another, "
                "remove it, or go on with it: weft.load(folder).resume(...)"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in begun:
                if name != "recipe.json":
                    (self.path / name).unlink()
        except OSError as error:
            raise OSError(f"expected a folder that can be written, got {self.path}: {error.strerror}") from error

    def note(self, learner: Learner, engine: Engine, record: Record) -> None:
        """A record has been made: where the best checkpoints are kept, this may be one of them."""
        if self.path is not None and world()[0] == 0 and learner.keep is not None:
            self.best.note(learner.training_, engine, record, _tree(learner), learner.keep)

    def keep(self, learner: Learner, must: bool = True) -> None:
        """Writes the checkpoint; a failure leaves the last one as it was. Of several processes the first writes.

        Unless it `must`, it writes only if the last time was some while ago.
        """
        if self.path is None or world()[0] > 0 or (not must and time.monotonic() - self.kept < self.wait):
            return
        started = time.monotonic()
        training = learner.training_
        lines = [json.dumps(jsonable(record)) for record in [*learner.history_, *records(training.phase)]]
        files = {
            "config.json": json.dumps(_config(learner), indent=1),
            "metrics.jsonl": "".join(f"{line}\n" for line in lines),
        }
        try:
            own = self._own(training)
            beside = ["recipe.json"] if own and (self.path / "recipe.json").exists() else []
            new, stays = self.best.files(training, self.path, own=own)
            whole: dict[str, str | bytes] = {**files, **new}
            checkpoint.write(
                self.path,
                _tree(learner),
                files=whole,
                run=training.run,
                data=training.phase.data,
                beside=[*beside, *stays],
            )
            self.best.pending = {}
            for name in () if own else _BESIDE:  # they tell of the run that was replaced
                (self.path / name).unlink(missing_ok=True)
            self.step = max(state.step for _, state in learner.training_.runs)
            self.kept = time.monotonic()
            self.wait = SECONDS * max(1.0, 5.0 * (self.kept - started))  # a large state is written less often
        except OSError as error:
            raise OSError(
                f"expected to keep the run in {self.path}, got: {error.strerror or error}; the last checkpoint there "
                "is whole, mend that and go on with weft.load(folder).resume(...)"
            ) from error

    def _own(self, training: Training) -> bool:
        """Whether what the folder holds, if anything, is of this very training."""
        if self.path is None or not checkpoint.kept(self.path):
            return True
        found = manifest.opened(self.path)
        if found is not None:
            return found.run == training.run
        return training.folder is not None and training.folder.resolve() == self.path.resolve()

    @contextmanager
    def held(self, training: Training | None = None) -> Iterator[None]:
        """Within it this process alone writes in the folder.

        Args:
            training: the one that goes on there; None where one begins, or replaces another.
        """
        if self.path is None or world()[0] > 0:
            yield
            return
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"expected a folder for the run, got the file {self.path}; choose another name")
        with ExitStack() as stack:
            try:
                if not self.path.exists():
                    self.path.mkdir(parents=True)
                    stack.callback(_remove_empty, self.path)
                stack.enter_context(alone_in(self.path))
            except OSError as error:
                raise OSError(f"expected a folder that can be written, got {self.path}: {error.strerror}") from error
            if training is not None and not self._own(training):
                raise ValueError(
                    f"expected the folder of the run that goes on, or a new one, got {self.path} with another run in "
                    "it; choose another folder"
                )
            if training is not None and not checkpoint.kept(self.path):
                self.claim()
            yield

    def told(self) -> str:
        """Where the last good state is, for an error's message."""
        return "" if self.step is None else f"; the last good checkpoint is of step {self.step}, in {self.path}"

    @contextmanager
    def interruptible(self) -> Iterator[Pause]:
        """Within it Ctrl-C asks to stop after the step at hand, so that the state can be kept; twice, at once."""
        pause = Pause()
        if self.path is None or threading.current_thread() is not threading.main_thread():
            yield pause
            return

        def note(number: int, frame: object) -> None:
            if pause.asked:
                raise KeyboardInterrupt
            pause.asked = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield pause
        finally:
            signal.signal(signal.SIGINT, before)


def _remove_empty(folder: Path) -> None:
    """Removes a folder into which nothing came."""
    with suppress(OSError):
        folder.rmdir()


def alone(learn: Callable[Concatenate[L, P], L]) -> Callable[Concatenate[L, P], L]:
    """A Learner's method that writes to its folder, in which nobody else writes meanwhile."""

    @wraps(learn)
    def held(learner: L, *args: P.args, **kwargs: P.kwargs) -> L:
        start(as_device(learner.device))  # of several processes the first one writes
        with Folder(learner.folder).held(None if kwargs["fresh"] else learner.training_):
            return learn(learner, *args, **kwargs)

    return held


def tidied(learner: L) -> L:
    """The learner, with its folder as if nobody had been killed there; where another writes, that one tidies up."""
    folder = Folder(learner.folder)
    if folder.path is not None:
        with suppress(ValueError, OSError), folder.held(learner.training_):
            checkpoint.tidy(folder.path)
    return learner


def save(learner: Learner, path: str | Path, *, force: bool = False) -> None:
    """Writes a fitted Learner to a folder."""
    folder = Folder(path)
    with folder.held():
        if not (force and checkpoint.kept(Path(path))):
            folder.claim()
        folder.keep(learner)
