"""Sourcing: what was read becomes a training and a validation source; a user's own source is checked to fit."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from weft.core.objective import Objective
from weft.core.source import Source
from weft.engine.replicas import called
from weft.learner.columns import Columns
from weft.learner.evaluating import refuse_labels
from weft.learner.few import judging
from weft.learner.reading import COLUMNS, Reader, unpack
from weft.learner.settings import Settings, rows_alone
from weft.learner.worlds import evaluating_in, is_world
from weft.sources import Arrays, Mapped, batchwise
from weft.sources.cast import Cast
from weft.sources.drawn import DrawnAnew
from weft.sources.rowed import Rowed

__all__ = ["match", "sources"]


def sources(
    reader: Reader, settings: Settings, data: dict[str, Any], told: NDArray[np.bool_] | None = None
) -> tuple[Source, Source | None]:
    """The training source and, where wanted, the validation source; of a table the rows held out are `told`."""
    strategy, objective = settings.strategy, settings.objective
    grouped = strategy.sight.grouped
    environment = data.pop("environment", None)
    if strategy.sight.episodic:
        raise ValueError(
            f"{strategy!r} learns from episodes with a support and a query part, got arrays; call fit(Episodes(...)), "
            "see weft.sources.Episodes"
        )
    if objective.episodic:
        raise ValueError(
            f"{type(objective).__name__} learns from episodes with a support and a query part, got arrays; call "
            "fit(Episodes(...)), see weft.sources.Episodes"
        )
    if grouped and environment is None:
        raise ValueError(
            f"{strategy!r} compares environments, got none; call fit(X, y, environment=...) with the environment "
            "(site, subject, level) of each row"
        )
    if grouped and len(np.unique(environment)) < 2:
        raise ValueError(
            f"{strategy!r} compares environments, got one only ({np.unique(environment).tolist()[0]!r}); with a single "
            "environment use ERM()"
        )
    reads = "environment" in objective.fields
    if reads and environment is None:
        raise ValueError(
            f"{type(objective).__name__} reads the environment of each row, got none; call fit(X, y, environment=...)"
        )
    held = _validation(settings)
    if held is not None and "index" in objective.fields:
        raise ValueError(
            f"expected validation=None for {type(objective).__name__}, which has something of its own for each row of "
            "training, got rows that are held out; measure others by what it offers for them"
        )
    share: float | NDArray[np.bool_] = held if isinstance(held, float) else 0.0
    if told is not None and isinstance(held, float):
        share = told
    labelled = objective.targets == "classes" and "y" in data and data["y"].dim() == 1
    strata = data["y"].numpy() if labelled and not grouped and isinstance(share, float) and share else None
    size = None if settings.batch_size is None else settings.batch_size * settings.accumulate
    data = _moved(data, settings.device)
    common = {"holdout": share, "strata": strata, "environment": environment, "grouped": grouped}
    common["with_environment"] = reads
    drawn = data.pop("drawn", None)
    make = Arrays if drawn is None else partial(DrawnAnew, drawn)
    arrays = make(**data, **common, batch_size=size)
    if grouped:
        _warn_of_absent(arrays)
    source = arrays if settings.augment is None else Mapped(arrays, settings.augment)
    if isinstance(held, float):
        apart: Source = Arrays(**data, **{**common, "grouped": False}, part="validation")
        return source, Mapped(apart, source.function) if isinstance(source, Mapped) and source.changes else apart
    if isinstance(held, tuple):
        # What training began with is known now.
        later = Reader(reader.learner, objective, settings.dtype, source.spec, asked=True)
        rows = _moved(later.read(Columns(held[0], held[1], fields=dict(*held[2:]))), settings.device)
        rows.pop("drawn", None)
        return source, Arrays(**rows)
    if held is not None:
        _refuse_validation(held, source, objective.fields)
        if held.acts:
            refuse_labels(reader.learner, held.spec["action"], "played in for validation")
    return source, held


def _refuse_validation(held: Source, source: Source, fields: tuple[str, ...]) -> None:
    """Raises where a validation source does not give rows like those of training."""
    if held.episodic and not source.episodic:
        raise ValueError(
            f"expected validation to give rows, as training does, got {called(held)}, whose episodes ask for "
            "adaptation before they are judged; train on episodes as well, by MAML() or by an objective that reads them"
        )
    if held.acts and "x" in fields:  # what has learned from labels, played
        for own, there in (("x", "observation"), ("y", "action")):
            kinds = [(field.shape, field.classes) for field in (source.spec.get(own), held.spec[there]) if field]
            if any(kind != kinds[0] for kind in kinds):
                said = [f"shape {shape}" + f" and {count} classes" * (count is not None) for shape, count in kinds]
                raise ValueError(
                    f"expected validation in a world whose {there} has {said[0]}, as {own!r} has in training, got "
                    f"{called(held)} with {said[1]}"
                )
        return
    for field in fields:
        if field in source.spec and field not in held.spec:
            raise ValueError(f"expected validation with the field {field!r} as in training, got {sorted(held.spec)}")
        if field in source.spec and held.spec[field].shape != source.spec[field].shape:
            raise ValueError(
                f"expected validation with {field!r} of shape {source.spec[field].shape} as in training, got "
                f"{held.spec[field].shape}"
            )
        known, given = (one.spec[field].classes if field in one.spec else None for one in (source, held))
        if known is not None and given is not None and given > known:
            raise ValueError(
                f"expected validation with at most {known} classes of {field!r}, as training has, got {given}"
            )


def _refuse_vocabulary(objective: Objective, source: Source) -> None:
    """Raises where text became tokens otherwise than the objective says."""
    for name, known in source.vocabulary.items():
        said, got = objective.vocabulary, "characters" if isinstance(known, list) else "byte-pairs"
        if not said.startswith(got):
            raise ValueError(
                f"expected {name} as {said}, which {type(objective).__name__} says, got {type(source).__name__} with "
                f"{got}; give both one vocabulary"
            )


def _warn_of_absent(source: Arrays) -> None:
    """An environment with fewer rows than a pass has steps is not in every batch."""
    sizes, steps = source.group_sizes.tolist(), source.epoch or 1
    few = [f"{name!r} ({size})" for name, size in zip(source.environments.tolist(), sizes, strict=True) if size < steps]
    if few:
        warnings.warn(
            f"expected rows of every environment in every batch, got fewer rows than the {steps} batches of a pass in "
            f"{', '.join(few[:5])}{', ...' if len(few) > 5 else ''}: where absent they count for nothing; take a "
            "larger batch_size, or None for all rows",
            stacklevel=5,
        )


def _moved(data: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in data.items()}


def _validation(settings: Settings) -> float | tuple[Any, ...] | Source | None:
    """The `validation` parameter as a share, X and y (and further fields by name), a source, or None."""
    given = settings.validation
    if given is None:
        return None
    texts = settings.objective.holds("x") == "tokens"
    if is_world(given, acts=not texts):
        given = evaluating_in(given, settings.objective)
    if isinstance(given, Source):
        return Cast(given, settings.dtype)
    if isinstance(given, Dataset):
        return unpack(given, None)
    if rows_alone(given, texts=texts):
        return given, None
    return given if isinstance(given, tuple) else float(given)


def match(reader: Reader, settings: Settings, source: Source) -> tuple[Source, Source | None]:
    """A user's source in the learner's dtype, if it fits the objective and the strategy; and the validation source."""
    name, objective, strategy = type(source).__name__, settings.objective, settings.strategy
    if strategy.sight.episodic and not source.episodic:
        raise ValueError(f"{strategy!r} learns from episodes, got {name}; wrap it in Episodes")
    if objective.episodic and not source.episodic:
        raise ValueError(
            f"{type(objective).__name__} learns from episodes, got {name}; give it Episodes((X, y), ways=...), or "
            "another source of episodes"
        )
    if source.episodic and not strategy.sight.episodic and not objective.episodic:
        raise ValueError(
            f"{name} gives episodes with a support and a query part, which neither {strategy!r} nor "
            f"{type(objective).__name__} reads; use MAML() (with inner_steps=0 to train on the query parts), or an "
            "objective that reads episodes (episodic = True)"
        )
    if strategy.sight.grouped and not source.grouped:
        way = "give a list of worlds" if source.acts else "make it with grouped=True"
        raise ValueError(f"{strategy!r} compares environments, got {name} without any; {way}")
    first = objective.fields[0]
    if first not in source.spec:
        raise ValueError(
            f"expected batches with {first!r}, which {type(objective).__name__} reads, got {name} with "
            f"{sorted(source.spec)}; choose an objective for what this source gives"
        )
    missing = [field for field in objective.fields if field not in source.spec] if source.acts else []
    if missing:
        raise ValueError(
            f"expected play with {missing[0]!r}, which {type(objective).__name__} reads, got {name} with "
            f"{sorted(source.spec)}; whole episodes are played by Rollouts, stretches by Segments, steps by Replay"
        )
    for field in objective.companions:
        if field not in source.spec:
            raise ValueError(
                f"expected batches with {field!r}, which comes along with what {type(objective).__name__} reads, got "
                f"{name} with {sorted(source.spec)}; give the source that field, or call fit with arrays or lists"
            )
    if source.acts and not objective.declares("on_policy"):
        raise TypeError(
            f"expected {type(objective).__name__}, whose batches its own actions draw, to say whether on_policy is "
            "True or False (whether rows of an earlier policy must not be learned from), got neither"
        )
    if objective.on_policy and not source.acts:
        raise ValueError(
            f"{type(objective).__name__} learns from what the current policy does, got {name}, whose rows are given; "
            "use a source that acts, such as Rollouts"
        )
    if objective.on_policy and source.episodic and not source.adapts:
        raise ValueError(
            f"{strategy!r} learns a policy from queries that the adapted policy plays, got {name}, which does not say "
            "that it plays them so (adapts = True); let it play the query by state.adapt(support)"
        )
    if objective.on_policy and source.stale:
        raise ValueError(
            f"{type(objective).__name__} learns from what the current policy does, got {name}, whose rows an earlier "
            "one has played; play anew for each update, by Rollouts or by Segments(passes=1, batch_size=None)"
        )
    if objective.class_weight is not None:
        raise ValueError(
            f"expected class_weight=None with a source, which brings its own weights, got {objective.class_weight!r}; "
            f"give {name} the field 'weight', or call fit(X, y)"
        )
    rows, target = source.spec[first], source.spec.get("y")
    declared = None if target is None else target.classes
    if reader.spec is None:
        for kept in ("labels_", "vocabulary_", "recipe_"):
            reader.learner.__dict__.pop(kept, None)
        _refuse_vocabulary(objective, source)
        if source.vocabulary:
            reader.learner.vocabulary_ = dict(source.vocabulary)
        if rows.shape:
            reader.learner.n_features_in_ = rows.shape[0]
        if objective.targets == "classes" and declared is not None:
            reader.learner.classes_ = np.arange(declared)
    else:
        known = reader.spec[first].shape
        if known != rows.shape:
            raise ValueError(
                f"expected rows of shape {known} as when training began, got {name} with {rows.shape}; {COLUMNS}"
            )
        classes = getattr(reader.learner, "classes_", None)
        if classes is not None and declared is not None and declared > len(classes):
            raise ValueError(
                f"expected the {len(classes)} classes declared when training began, or fewer, got {name} with "
                f"{declared}: the head has no output for the others; declare all classes that will ever come in the "
                "first source"
            )
    held = _validation(settings)
    if held is not None and not isinstance(held, Source):
        fix = "pass a world to play in, a source or None" if source.acts else "pass a source or None"
        raise ValueError(f"expected validation to be a source, as {name} is one, got {held!r}; {fix}")
    if held is not None:
        _refuse_validation(held, source, objective.fields)
        held = judging(reader.learner, objective, held, source)
    if settings.augment is not None:
        mapped = Mapped(source, settings.augment)
        if not isinstance(settings.augment, batchwise) and mapped.field not in objective.fields:
            raise ValueError(
                f"expected augment to change what {type(objective).__name__} reads, {objective.fields}, got a function "
                f"of a row of {mapped.field!r}, the first field of {name}; mark one of the whole batch @batchwise"
            )
        source = mapped
    return Cast(Rowed(source) if objective.episodic else source, settings.dtype), held
