"""A Learner from its folder, as it was when it was kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.core import manifest
from weft.core.files import parsed
from weft.core.source import Field, Part, Spec
from weft.core.state import State
from weft.core.trees import tree_map
from weft.core.values import Json, Missing, rebuild
from weft.engine import checkpoint
from weft.engine.engine import Engine
from weft.engine.loop import History
from weft.learner.folder import FITTED, LATER, STATE
from weft.learner.kept import chosen, files_of
from weft.learner.runs import assemble
from weft.learner.training import Begun, Phase, Run, Training
from weft.tables.recipe import Recipe

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["load"]


def load(path: str | Path, *, checkpoint: str | int | None = None, **given: Any) -> Learner:
    """A Learner from its folder, as it was when it was kept.

    Args:
        path: the run's folder.
        checkpoint: one of the best that `Learner(keep=...)` has kept there, by its name (`step-120`, see `weft show`)
            or its rank, 0 for the best; None for the last. It answers, and `resume` goes on from there, in no folder
            or in another one: set_params(folder=...).
        given: what weft cannot rebuild by name, by the name of its parameter: `module` (a user's net,
            whatever its parameter is called: `net`, ...), `generator`, `schedule`, `validation`, ...

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Classifier(epochs=2, random_state=0).fit(X, y).save(folder)
        ...     load(folder).predict(X[:2]).shape
        (2,)
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a run's folder, got {folder}, which is not there")
    try:
        return _loaded(folder, given, None if checkpoint is None else chosen(folder, checkpoint))
    except RecursionError as error:
        raise ValueError(f"expected a run of weft in {folder}, got files that are nested too deeply") from error


def _loaded(folder: Path, given: dict[str, Any], which: str | None) -> Learner:
    from weft.learner.estimator import Learner
    from weft.learner.presets import Classifier, Regressor

    if not checkpoint.kept(folder):
        raise FileNotFoundError(
            f"expected a run of weft in {folder}, got no {manifest.NAME} there; the right folder? A run that was "
            "killed before its first checkpoint is begun again with fit"
        )
    files = {} if which is None else {"files": files_of(which)}
    found, tree, (text,) = checkpoint.opened(folder, "config.json", **files)
    config = parsed(text, folder / "config.json")
    try:
        classes = {"Learner": Learner, "Classifier": Classifier, "Regressor": Regressor}
        cls = classes[config["learner"]]
        params = _of_today(cls, config["params"]).items()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected weft's configuration in {folder / 'config.json'}, got {error!r}") from error
    missing: list[Missing] = []
    asked = {name: rebuild(value, given, name, missing) for name, value in params}
    aside = ("schedule", "validation", "augment", "device", "random_state")  # needed to go on, not to answer
    needed = [m for m in missing if m.name not in aside]
    if needed:
        raise ValueError(
            f"expected {', '.join(map(repr, needed))} again, which weft cannot rebuild by name, got none; "
            f"load({str(folder)!r}, {needed[0].name}=...)"
        )
    learner: Learner = cls(**asked)
    if which is not None:
        learner.keep = None  # it goes on in no folder
    fitted = {name: _arrays(value) for name, value in tree["fitted"].items()}
    told, phase = [_of_today(cls, own) for own in fitted.pop("_replica_settings")], fitted.pop("_phase")
    drawn = fitted.pop("_drawn", 0)  # which runs kept by earlier versions do not have
    recipe = fitted.pop("_recipe", None)
    if recipe is not None:
        learner.recipe_ = Recipe.from_json(recipe)
    for name in FITTED:
        if name in fitted:
            setattr(learner, name, fitted[name])
    learner.history_ = History(_arrays(record) for record in tree["history"])
    begun = [Begun(History(run["records"]), run["done"]) for run in phase["runs"]]
    learner.training_ = replace(
        _training(learner, tree, told, folder),
        phase=Phase(phase["task"], phase["once"], begun, {} if found is None else found.data, phase.get("kept", [])),
        folder=folder if which is None else None,
        drawn=drawn,
        missing=tuple(m.name for m in missing),
    )
    if found is not None and which is None:
        learner.training_.run = found.run
    learner.objective_ = learner.training_.runs[0].engine.objective
    if len(begun) == len(learner.training_.runs) and all(run.done for run in begun):
        learner._conclude_phase()
    else:
        learner._conclude()
    return learner


def _of_today(cls: type[Learner], params: Json) -> Json:
    """Parameters by the names that they have today: what is a preset's `net` was its `module`."""
    today: Json = {}
    for name, value in params.items():
        name = "net" if name == "module" and "net" in cls._get_param_names() else name
        today[name] = _of_today(cls, value) if name == "replicas" and isinstance(value, dict) else value
    return today


def _training(learner: Learner, tree: Json, told: list[Json], folder: Path) -> Training:
    """The runs as they were kept, with engines for the learner's parameters."""
    spec, kind = _spec(tree["spec"]), _Kind(**tree["kind"])
    settings, each = learner.settings(), [learner._settings_of(own) for own in told]
    parts = assemble(settings, each, told, spec, kind, stacked=tree["stacked"])
    try:
        runs = [
            Run(engine, _restore(engine, kept, settings.device))
            for (engine, _, _), kept in zip(parts, tree["runs"], strict=True)
        ]
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"expected a state that fits the configuration in {folder}, got: {error}") from error
    _check_shapes(runs, folder)
    return Training(told, spec, runs)


@dataclass(frozen=True)
class _Kind:
    """What the batches of a kept run were."""

    grouped: bool
    episodic: bool


def _check_shapes(runs: list[Run], folder: Path) -> None:
    """A module given to `load` must be of the kind that was trained."""
    for engine, state in runs:
        lead = () if engine.replicas is None else (engine.replicas,)
        wanted = {n: (*lead, *p.shape) for n, p in engine.objective.named_parameters() if n not in engine.open}
        kept = {n: tuple(p.shape) for n, p in state.params.items() if n not in engine.open}
        if wanted != kept:
            odd = sorted(set(wanted.items()) ^ set(kept.items()))[0]
            raise ValueError(f"expected a module of the shape that was trained in {folder}, got a difference at {odd}")


def _arrays(value: Any) -> Any:
    """Arrays as format 1 wrote them, which marked them by a name that a parameter could have had."""
    if isinstance(value, dict):
        if value.keys() == {"array"}:
            return value["array"].numpy()
        if value.keys() == {"labels"}:
            return np.array(value["labels"], dtype=str)
        return {name: _arrays(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_arrays(part) for part in value)
    return value


def _spec(kept: dict[str, Any]) -> Spec:
    names = {str(t): t for t in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)}
    names.update({str(t): t for t in (torch.uint8, torch.int16, torch.float16)})

    def field(shape: list[int], dtype: str, classes: int | None, columns: Any = (), said: Any = {}) -> Field:  # noqa: B006
        ends = {name: tuple(values) for name, values in said.items()}
        return Field(tuple(shape), names[dtype], classes, tuple(Part(*part) for part in columns), **ends)

    return {name: field(*told) for name, told in kept.items()}


def _restore(engine: Engine, kept: dict[str, Any], device: torch.device) -> State:
    def moved(value: Any) -> Any:
        return tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, value)

    fields = {name: moved(kept[name]) for name in STATE if name != "tally"}
    fields |= {name: moved(kept[name]) for name in LATER if name in kept}
    tally = {n: moved(v) if not isinstance(v, tuple) else tuple(map(moved, v)) for n, v in kept["tally"].items()}
    state = State(objective=engine.objective, replicas=engine.replicas, tally=tally, **fields)
    engine.prepare(state)
    for player, optimizer in state.optimizers.items():
        optimizer.load_state_dict(kept["optimizers"][player])
    for player, scheduler in engine.schedulers.items():
        scheduler.load_state_dict(kept["schedulers"][player])
    return state
