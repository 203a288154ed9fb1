"""The Learner: scikit-learn's conventions around an objective, a strategy and the engine."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from weft.core.catalogue import find
from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.random import fold, key_of
from weft.core.source import Source
from weft.core.state import State
from weft.core.strategy import Strategy
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.loop import History, Plan, progress_of, train
from weft.engine.optim import Optimizer, as_optimizer, as_schedule, is_torch_scheduler
from weft.engine.progress import Bar
from weft.engine.vectorize import VectorizationWarning, blame
from weft.sources import Arrays

__all__ = ["Classifier", "Learner", "Regressor"]

_ROWS = 8192  # rows at a time when a capability is asked
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def _offered(name: str) -> Callable[[Any], bool]:
    """For `available_if`: whether the objective (or the strategy) has this capability."""

    def check(self: Learner) -> bool:
        objective = self._objective()
        if name not in objective.capabilities():
            raise AttributeError(f"{type(self).__name__} has no {name!r}: {type(objective).__name__} does not offer it")
        return True

    return check


def _adapts(self: Learner) -> bool:
    if not self._strategy().does("adapt"):
        raise AttributeError(f"{type(self).__name__} has no 'adapt': expected a strategy that adapts, such as MAML()")
    return True


class Learner(BaseEstimator):
    """Trains an objective by a strategy, and answers with what the objective can do.

    Args:
        objective: what is learned.
        strategy: how the loss becomes an update: a `Strategy`, its name, or None for ERM.
        optimizer: a name, a class, a factory, an `Optimizer`, a dictionary of those by player, or
            None for the objective's own default.
        schedule: the learning rate's factor by progress in [0, 1): a name (`constant`, `linear`,
            `cosine`, `step`), a function, or a class of `torch.optim.lr_scheduler` (stepped per update).
        epochs: passes over the data. Default: 50, where the source has an end.
        steps: updates instead of passes. Default: 1,000, where the source has no end.
        batch_size: rows per update (per environment, where the strategy works on environments), or
            None for all of them.
        accumulate: batches whose gradients are accumulated into one update.
        clip: the largest norm of a gradient.
        weighting: how environments of unequal size count: by `example` or by `group`.
        validation: a share of the rows held out by the seed, `(X, y)`, or a source.
        patience: evaluations without progress after which training stops and the best parameters
            are put back; None to train to the end.
        replicas: how many independent copies to train at once, with seeds `random_state`,
            `random_state + 1`, ...; or lists by parameter name, a sweep.
        init: `reset` draws a given module's parameters anew from the seed, `keep` keeps them.
        warm_start: whether `fit` goes on from the last one.
        random_state: the seed; None takes one from NumPy's global state, as scikit-learn does.
        device: a PyTorch device; None takes CUDA where there is one.
        dtype: `float32`, `float64` or `bfloat16`.
        memory: bytes that vectorized passes over groups or examples may take.
        callbacks: functions called with each record of `history_`; they observe.
        verbose: whether to show a progress bar.

    Attributes:
        objective_: the built objective.
        history_: one record per evaluation; `history_["loss"]` is a column.
        stop_reason_: why training ended; with replicas a list.
        seeds_: the seed of each replica.
        tasks_: the tasks consolidated so far.
        n_steps_: updates made.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft.objectives import Classification
        >>> X, y = load_iris(return_X_y=True)
        >>> learner = Learner(Classification(hidden=(32,)), epochs=30, random_state=0).fit(X, y)
        >>> learner.predict(X[:2]).tolist(), len(learner.history_)
        ([0, 0], 30)
    """

    def __init__(
        self,
        objective: Objective | None = None,
        *,
        strategy: Strategy | str | None = None,
        optimizer: Any = None,
        schedule: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = 64,
        accumulate: int = 1,
        clip: float | None = None,
        weighting: str = "example",
        validation: Any = None,
        patience: int | None = None,
        replicas: int | dict[str, Sequence[Any]] | None = None,
        init: str = "reset",
        warm_start: bool = False,
        random_state: Any = None,
        device: Any = None,
        dtype: str = "float32",
        memory: int = 2**30,
        callbacks: Sequence[Callable[[dict[str, Any]], Any]] = (),
        verbose: bool = False,
    ) -> None:
        self.objective = objective
        self.strategy = strategy
        self.optimizer = optimizer
        self.schedule = schedule
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.clip = clip
        self.weighting = weighting
        self.validation = validation
        self.patience = patience
        self.replicas = replicas
        self.init = init
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.callbacks = callbacks
        self.verbose = verbose

    # --- what the parameters mean ---------------------------------------------------------------------

    def _objective(self) -> Objective:
        if not isinstance(self.objective, Objective):
            raise TypeError(
                f"expected an objective such as Classification(), got {self.objective!r}; a plain nn.Module goes into "
                "an objective, as in Classification(module), or into Classifier(module)"
            )
        return self.objective

    def _strategy(self) -> Strategy:
        if self.strategy is None:
            return find("strategies", "erm")
        if isinstance(self.strategy, str):
            return find("strategies", self.strategy)
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"expected a strategy such as ANDMask(threshold=0.8), its name or None, got {self.strategy!r}")
        return self.strategy

    def _optimizers(self, objective: Objective) -> dict[str, Optimizer]:
        players = objective.players or ("",)
        given = objective.optimizer if self.optimizer is None else self.optimizer
        if isinstance(given, dict):
            for name in given:
                if name not in players:
                    raise closest(str(name), players, f"a player of {type(objective).__name__}")
            given = {player: as_optimizer(given.get(player, "adam")) for player in players}
            return given
        return {player: as_optimizer(given) for player in players}

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `optimizer__lr` and `strategy__threshold` work on names too."""
        if any(name.startswith("optimizer__") for name in params) and not hasattr(self.optimizer, "set_params"):
            fallback = self._objective().optimizer if self.optimizer is None else self.optimizer
            self.optimizer = as_optimizer(fallback).having()
        if any(name.startswith("strategy__") for name in params) and isinstance(self.strategy, str):
            self.strategy = self._strategy()
        super().set_params(**params)
        return self

    def _check(self, objective: Objective, strategy: Strategy) -> None:
        strategy.validate()
        reason = strategy.refuses(objective)
        if reason:
            raise ValueError(f"{strategy!r} cannot train {type(objective).__name__}: {reason}")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"expected epochs or steps, got both ({self.epochs} and {self.steps}); leave one out")
        for name in ("epochs", "steps", "accumulate", "patience"):
            value = getattr(self, name)
            least = 0 if name in ("epochs", "steps") else 1
            if value is not None and (not isinstance(value, int | np.integer) or value < least):
                raise ValueError(f"expected {name} to be an integer >= {least}, got {value!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"expected clip > 0 or None, got {self.clip!r}")
        for name, known in (("weighting", ("example", "group")), ("init", ("reset", "keep")), ("dtype", _DTYPES)):
            if getattr(self, name) not in known:
                raise closest(str(getattr(self, name)), known, name)
        as_schedule(self.schedule)

    def _device(self) -> torch.device:
        if self.device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _seed(self) -> int:
        state = self.random_state
        return int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(2**31))

    def _settings(self) -> list[dict[str, Any]]:
        """What distinguishes each replica: parameter values by name."""
        seed = self._seed()
        if self.replicas is None:
            return [{"random_state": seed}]
        if isinstance(self.replicas, int | np.integer) and not isinstance(self.replicas, bool):
            if self.replicas < 1:
                raise ValueError(f"expected replicas >= 1, got {self.replicas}")
            return [{"random_state": seed + k} for k in range(int(self.replicas))]
        if not isinstance(self.replicas, dict) or not self.replicas:
            raise TypeError(
                f"expected replicas to be a number or lists by parameter name, got {self.replicas!r}; for example "
                'replicas=8 or replicas={"optimizer__lr": [1e-3, 1e-2]}'
            )
        lengths = {name: len(values) for name, values in self.replicas.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"expected lists of one length in replicas, got {lengths}")
        count = next(iter(lengths.values()))
        return [{"random_state": seed, **{n: v[k] for n, v in self.replicas.items()}} for k in range(count)]

    # --- data -----------------------------------------------------------------------------------------

    def _tensor(self, values: Any) -> Tensor:
        """As a tensor of our dtype; integers in a tensor stay integers (token numbers)."""
        if isinstance(values, Tensor):
            return values.to(_DTYPES[self.dtype]) if values.is_floating_point() else values
        return torch.as_tensor(np.ascontiguousarray(values)).to(_DTYPES[self.dtype])

    def _inputs(self, X: Any, *, reset: bool) -> Tensor:
        """Checked rows."""
        name = self._objective().fields[0]
        if isinstance(X, Tensor):
            if X.is_floating_point() and not bool(torch.isfinite(X).all()):
                raise ValueError("Input X contains NaN or infinity: expected finite numbers; impute or drop those rows")
            if X.dim() < 2:
                raise ValueError(
                    f"Expected 2D array, got {X.dim()}D tensor instead for {name}: Reshape your data using "
                    "X[:, None] if it has one feature"
                )
            if reset:
                self.n_features_in_ = X.shape[1]
            elif X.shape[1] != self.n_features_in_:
                raise ValueError(
                    f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                    "features as input"
                )
            if not len(X):
                raise ValueError(f"Found array with 0 sample(s) (shape={tuple(X.shape)}) while a minimum of 1 is required.")
            return self._tensor(X)
        array = validate_data(self, X, reset=reset, allow_nd=True, dtype="numeric", ensure_all_finite=True)
        return self._tensor(array)

    def _labels(self, y: Any, *, reset: bool, classes: Any = None) -> Tensor:
        """Class numbers; the labels themselves are kept in `classes_`."""
        labels = column_or_1d(y.cpu().numpy() if isinstance(y, Tensor) else y, warn=True)
        check_classification_targets(labels)
        if reset:
            given = np.asarray(list(classes)) if classes is not None else labels
            self.classes_ = np.unique(given)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"expected at least two classes, got one class only ({self.classes_.tolist()}); "
                    "name all of them with partial_fit(..., classes=...) if the others come later"
                )
        position = np.searchsorted(self.classes_, labels).clip(0, len(self.classes_) - 1)
        unknown = np.unique(labels[self.classes_[position] != labels])
        if len(unknown):
            raise ValueError(f"expected labels among {self.classes_.tolist()}, got also {unknown.tolist()}")
        return torch.as_tensor(position)

    def _values(self, y: Any, *, reset: bool) -> Tensor:
        """Numbers to be predicted, (n,) or (n, outputs)."""
        array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if array.ndim == 2 and array.shape[1] == 1 and not isinstance(y, Tensor | list):
            array = column_or_1d(array, warn=True)
        if array.dtype.kind not in "fiub":
            try:
                array = array.astype(float)
            except (TypeError, ValueError) as error:
                raise ValueError(f"expected numbers to predict, got {array.dtype}: {error}") from error
        if not np.isfinite(array).all():
            raise ValueError("Input y contains NaN or infinity: expected finite numbers; drop those rows")
        return self._tensor(array)

    def _read(
        self, X: Any, y: Any, environment: Any, sample_weight: Any, *, reset: bool, classes: Any = None
    ) -> dict[str, Any]:
        """The arguments of `fit` as tensors by field."""
        objective = self._objective()
        if isinstance(X, torch.utils.data.Dataset):
            X, y = _from_dataset(X, y)
        if y is None and "y" in objective.fields:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None; call fit(X, y)"
            )
        x = self._inputs(X, reset=reset)
        data: dict[str, Any] = {"x": x}
        weight = None
        if y is not None and "y" in objective.fields:
            if len(y) != len(x):
                raise ValueError(
                    f"Found input variables with inconsistent numbers of samples: expected y to have {len(x)} rows as "
                    f"X has, got {len(y)}"
                )
            if objective.targets == "classes":
                data["y"] = self._labels(y, reset=reset, classes=classes)
                weight = self._class_weight(objective, data["y"])
                data["classes"] = len(self.classes_)
            else:
                data["y"] = self._values(y, reset=reset)
        if sample_weight is not None:
            plain = sample_weight.cpu().numpy() if isinstance(sample_weight, Tensor) else sample_weight
            own = _check_sample_weight(plain, np.empty(len(x)), dtype=np.float64, ensure_non_negative=True)
            if not own.sum() > 0:
                raise ValueError("expected some sample_weight to be positive, got none")
            weight = own if weight is None else weight * own
        if weight is not None:
            data["weight"] = torch.as_tensor(weight).to(_DTYPES[self.dtype])
        if environment is not None:
            names = environment.cpu().numpy() if isinstance(environment, Tensor) else np.asarray(environment)
            if names.shape != (len(x),):
                raise ValueError(
                    f"expected environment to name one environment for each of the {len(x)} rows, got shape {names.shape}"
                )
            data["environment"] = names
        return data

    def _class_weight(self, objective: Objective, numbers: Tensor) -> np.ndarray[Any, Any] | None:
        given = getattr(objective, "class_weight", None)
        if given is None:
            return None
        labels = self.classes_[numbers.numpy()]
        if isinstance(given, dict | str):
            present = np.unique(labels)
            table = dict(zip(present.tolist(), compute_class_weight(given, classes=present, y=labels), strict=True))
            return np.array([table[label] for label in labels.tolist()], dtype=np.float64)
        if len(given) != len(self.classes_):
            raise ValueError(f"expected {len(self.classes_)} class weights, one per class, got {len(given)}")
        return np.asarray(given, dtype=np.float64)[numbers.numpy()]

    def _sources(self, data: dict[str, Any]) -> tuple[Source, Source | None]:
        """The training source and, where wanted, the validation source."""
        strategy, device = self._strategy(), self._device()
        grouped = strategy.needs == "group" or strategy.per_group
        if strategy.episodic:
            raise ValueError(
                f"{strategy!r} learns from episodes with a support and a query part, got arrays; "
                "call fit(Episodes(...)), see weft.sources.Episodes"
            )
        environment = data.pop("environment", None)
        if grouped:
            if environment is None:
                raise ValueError(
                    f"{strategy!r} compares environments, got none; call fit(X, y, environment=...) with the "
                    "environment (site, subject, level) of each row"
                )
            if len(np.unique(environment)) < 2:
                raise ValueError(
                    f"{strategy!r} compares environments, got one only ({np.unique(environment).tolist()[0]!r}); "
                    "with a single environment use ERM()"
                )
        data = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in data.items()}
        share = self.validation if isinstance(self.validation, float) else 0.0
        if isinstance(self.validation, int | np.integer) and not isinstance(self.validation, bool):
            raise TypeError(f"expected validation to be a share such as 0.1, (X, y) or a source, got {self.validation!r}")
        if isinstance(self.validation, float) and not 0.0 < self.validation < 1.0:
            raise ValueError(f"expected validation to be a share in (0, 1), got {self.validation!r}")
        strata = data["y"].cpu().numpy() if "classes" in data and not grouped and share else None
        size = None if self.batch_size is None else self.batch_size * self.accumulate
        common = {"holdout": share, "strata": strata, "environment": environment, "grouped": grouped}
        source = Arrays(**data, **common, batch_size=size)
        if share:
            return source, Arrays(**data, **{**common, "grouped": False}, part="validation")
        if isinstance(self.validation, Source) or self.validation is None:
            return source, self.validation
        held = self._read(*self.validation, None, None, reset=False)
        return source, Arrays(**{n: v.to(device) if isinstance(v, Tensor) else v for n, v in held.items()})

    # --- training -------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        environment: Any = None,
        task: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Trains from the start (with `warm_start`, from where the last fit ended).

        Args:
            X: rows (array, DataFrame, tensor), a data set, or a source.
            y: labels or values, where the objective learns them.
            environment: the environment of each row, for strategies that compare environments.
            task: the task of each row; tasks are learned in the order of their first appearance, each
                consolidated at its end. With a source, one name.
            sample_weight: a weight for each row.
        """
        fresh = not (self.warm_start and hasattr(self, "_runs"))
        if task is not None and not isinstance(X, Source):
            names = np.asarray(task)
            if names.shape != (len(X),):
                raise ValueError(f"expected task to name one task for each of the {len(X)} rows, got shape {names.shape}")
            order = names[np.sort(np.unique(names, return_index=True)[1])]
            if self._objective().targets == "classes" and fresh:
                self._labels(y, reset=True)
            for name in order:
                rows = np.flatnonzero(names == name)
                part = [_rows(values, rows) for values in (X, y, environment, sample_weight)]
                self._learn(*part, fresh=fresh, keep_classes=True, task=str(name))
                fresh = False
            return self
        return self._learn(X, y, environment, sample_weight, fresh=fresh, task=None if task is None else str(task))

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        classes: Any = None,
        environment: Any = None,
        task: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Goes on training: on one task to its end, then consolidating it; without a task, one pass.

        Args:
            classes: all classes that will ever come, at the first call.
            task: the task's name; the same name again replaces what that task left.
            X, y, environment, sample_weight: as in `fit`.
        """
        return self._learn(
            X,
            y,
            environment,
            sample_weight,
            fresh=not hasattr(self, "_runs"),
            classes=classes,
            task=None if task is None else str(task),
            once=task is None,
        )

    def _learn(
        self,
        X: Any,
        y: Any,
        environment: Any,
        sample_weight: Any,
        *,
        fresh: bool,
        task: str | None,
        classes: Any = None,
        once: bool = False,
        keep_classes: bool = False,
    ) -> Self:
        objective, strategy = self._objective(), self._strategy()
        self._check(objective, strategy)
        if isinstance(X, Source):
            source, validation = X, self.validation if isinstance(self.validation, Source) else None
            self._match(source, strategy)
        else:
            named = self.classes_ if keep_classes else classes
            data = self._read(X, y, environment, sample_weight, reset=fresh, classes=named)
            source, validation = self._sources(data)
        if hasattr(objective, "solve"):
            return self._solve(objective, source)
        if fresh:
            self._start(objective, strategy, source)
        plan = self._plan(source, validation, once)
        self._train(source, plan, task, fresh, once)
        self.tasks_ = list(self._runs[0][1].tasks)
        return self

    def _match(self, source: Source, strategy: Strategy) -> None:
        wanted = strategy.needs == "group" or strategy.per_group
        if strategy.episodic and not source.episodic:
            raise ValueError(f"{strategy!r} learns from episodes, got {type(source).__name__}; wrap it in Episodes")
        if source.episodic and not strategy.episodic:
            raise ValueError(
                f"{type(source).__name__} gives episodes with a support and a query part, which {strategy!r} does not "
                "know; use MAML(), with inner_steps=0 to train on the query parts"
            )
        if wanted and not source.grouped:
            raise ValueError(f"{strategy!r} compares environments, got {type(source).__name__} without any")

    def _plan(self, source: Source, validation: Source | None, once: bool) -> Plan:
        if self.epochs is not None and source.epoch is None:
            raise ValueError(f"{type(source).__name__} has no end to a pass: give steps instead of epochs={self.epochs}")
        if once and source.epoch is not None:
            steps, every = source.epoch, source.epoch
        elif self.steps is not None or source.epoch is None:
            steps = 1000 if self.steps is None else int(self.steps)
            every = max(1, steps // 50)
        else:
            steps = (50 if self.epochs is None else int(self.epochs)) * source.epoch
            every = source.epoch
        return Plan(steps=steps, every=every, patience=self.patience, validation=validation, observers=self.callbacks)

    def _start(self, objective: Objective, strategy: Strategy, source: Source) -> None:
        """Builds the objective and the state of every run: one, stacked replicas, or one run each."""
        settings = self._settings()
        device = self._device()
        self.seeds_ = [int(s["random_state"]) for s in settings]
        self.history_ = History()
        self._source_kind = {"grouped": source.grouped, "episodic": source.episodic}
        stacked = self._stackable(objective, strategy, settings)
        if stacked:
            swept = {n: [s[n] for s in settings] for n in settings[0] if n != "random_state"}
            tensors = {_inner(n): torch.tensor(v, dtype=_DTYPES[self.dtype], device=device) for n, v in swept.items()}
            built = build(objective, source.spec, self.seeds_[0], _DTYPES[self.dtype])
            first = self._with(settings[0]) if swept else self
            engine = first._engine(built, source, swept=tensors, replicas=len(settings))
            state = engine.init(self.seeds_, device, self.init)
            if self._vectorizes(engine, state, source):
                self._runs = [(engine, state)]
                self.objective_ = built
                return
        self._runs = []
        for setting in settings:
            own = self._with(setting) if self.replicas is not None else self
            built = build(own._objective(), source.spec, int(setting["random_state"]), _DTYPES[self.dtype])
            engine = own._engine(built, source)
            self._runs.append((engine, engine.init([int(setting["random_state"])], device, self.init)))
        self.objective_ = self._runs[0][0].objective

    def _with(self, setting: dict[str, Any]) -> Learner:
        """A single run's learner, with a replica's own settings."""
        own = clone(self).set_params(**{n: v for n, v in setting.items()}, replicas=None)
        strategy = own._strategy()
        strategy.validate()
        return own

    def _stackable(self, objective: Objective, strategy: Strategy, settings: list[dict[str, Any]]) -> bool:
        """Whether the replicas can be trained as one; says once why not, where that is not plain."""
        if self.replicas is None:
            return False
        fixed = [
            name
            for name in settings[0]
            if name not in ("random_state", "optimizer__lr")
            and not (name.startswith("strategy__") and _inner(name) in strategy.sweeps)
        ]
        odd = [o for o in self._optimizers(objective).values() if not o.elementwise]
        reason = ""
        if fixed:
            reason = f"{fixed[0]!r} changes what is computed"
        elif odd:
            reason = f"{odd[0]!r} does not act on each component by itself"
        elif is_torch_scheduler(self.schedule):
            reason = "a torch scheduler keeps one learning rate"
        elif "optimizer__lr" in settings[0] and isinstance(self.optimizer, dict):
            reason = "each player has an optimizer of its own"
        if reason:
            warnings.warn(f"replicas are trained one after another: {reason}", VectorizationWarning, stacklevel=4)
        return not reason

    def _vectorizes(self, engine: Engine, state: State, source: Source) -> bool:
        """Tries one gradient over all replicas; False where a layer has no rule for it."""
        try:
            batch = engine.numbered(next(engine.batches(source, state)))
            engine.objective.train()
            for player in engine.players:
                engine.gradient(state, batch, player)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            warnings.warn(
                f"replicas are trained one after another: {blame(error)} cannot be vectorized by torch.vmap "
                f"({str(error).splitlines()[0][:120]})",
                VectorizationWarning,
                stacklevel=5,
            )
            return False
        return True

    def _engine(
        self, built: Objective, source: Source, *, swept: dict[str, Tensor] | None = None, replicas: int | None = None
    ) -> Engine:
        return Engine(
            built,
            self._strategy(),
            self._optimizers(built),
            grouped=source.grouped,
            episodic=source.episodic,
            clip=self.clip,
            pieces=self.accumulate,
            memory=self.memory,
            weighting=self.weighting,
            schedule=self.schedule,
            swept=swept,
            replicas=replicas,
        )

    def _train(self, source: Source, plan: Plan, task: str | None, fresh: bool, once: bool) -> None:
        """Runs the plan in every run, then consolidates the task."""
        histories = []
        for engine, state in self._runs:
            state.best = {}
            state.stopped = {k: why for k, why in state.stopped.items() if "diverged" in why}
            alive = [k not in state.stopped for k in range(state.replicas or 1)]
            state.active = torch.tensor(alive if state.replicas else alive[0], device=state.device)
            engine.total = plan.steps
            if task is not None:
                engine.release(state, task)
            if not fresh and not once:
                engine.prepare(state)
            with Bar(plan, engine, shown=bool(self.verbose)) as bar:
                own = Plan(**{**plan.__dict__, "observers": [*plan.observers, bar.update]})
                try:
                    histories.append(train(engine, state, source, own))
                finally:
                    self._conclude()
            if task is not None:
                engine.consolidate(state, source, task)
        self.history_.extend(_merged(histories, task))
        self._conclude()

    def _conclude(self) -> None:
        reasons = [run.stopped.get(k, "") for _, run in self._runs for k in range(run.replicas or 1)]
        self.stop_reason_ = reasons[0] if self.replicas is None else reasons
        steps = [run.step for _, run in self._runs]
        self.n_steps_ = max(steps)
        # scikit-learn's name for it: passes over the data
        self.n_iter_ = max(1, len(self.history_))

    def _solve(self, objective: Objective, source: Source) -> Self:
        """For objectives that are solved: parameters in closed form, the same conventions around."""
        self._start(objective, find("strategies", "erm"), source)
        for engine, state in self._runs:
            for k in range(state.replicas or 1):
                run = state.replica(k)
                for name, value in engine.objective.solve(source, run).items():  # type: ignore[operator]
                    run.params[name].copy_(value.reshape(run.params[name].shape))
                state.stopped[k] = "solved"
        self._conclude()
        self.tasks_: list[str] = []
        return self

    # --- what was learned -----------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_runs")

    def _replicas(self) -> list[tuple[Engine, State]]:
        """Every replica as a single run."""
        check_is_fitted(self)
        return [(engine, state.replica(k)) for engine, state in self._runs for k in range(state.replicas or 1)]

    def replica(self, k: int) -> Learner:
        """One replica as a fitted Learner of its own."""
        singles = self._replicas()
        if not -len(singles) <= k < len(singles):
            raise IndexError(f"expected a replica in 0..{len(singles) - 1}, got {k}")
        engine, state = singles[k]
        single = copy.copy(self)
        single.replicas, single.seeds_ = None, [self.seeds_[k]]
        source: Any = type("Kind", (), self._source_kind)
        own = Engine.__new__(Engine)
        own.__dict__.update(engine.__dict__)
        if engine.replicas is not None:
            strategy = engine.strategy.having(**{n: v[k].item() for n, v in engine.swept.items()})
            own = single._engine(engine.objective, source)
            own.strategy = strategy
            own.prepare(state)
        single._runs = [(own, state)]
        single.history_ = History({n: _pick(v, k) for n, v in record.items()} for record in self.history_)
        single._conclude()
        return single

    @property
    def best_replica_(self) -> int:
        """The replica with the best progress measure (on validation, where there is one)."""
        values = [
            run.best["value"].reshape(-1).tolist() if run.best else [math.inf] * (run.replicas or 1)
            for _, run in self._runs
        ]
        flat = [math.inf if math.isnan(v) else v for part in values for v in part]
        return int(np.argmin(flat))

    def _answering(self) -> list[tuple[Engine, State]]:
        """The replicas that answer: all that did not diverge; after a sweep, the best."""
        singles = self._replicas()
        if isinstance(self.replicas, dict):
            return [singles[self.best_replica_]]
        sound = [(e, s) for e, s in singles if not any("diverged" in why for why in s.stopped.values())]
        if not sound:
            raise NotFittedError("expected a trained replica, got none: every one has diverged; see stop_reason_")
        return sound

    def _ask(self, name: str, x: Tensor) -> np.ndarray[Any, Any]:
        """A capability that works row by row, merged over replicas."""
        mark = self._objective().capabilities()[name]
        runs = self._answering()
        if mark.merge == "refuse" and len(runs) > 1:
            raise ValueError(
                f"expected one replica to answer {name!r}, got {len(runs)}, whose answers cannot be averaged; "
                f"ask one of them: .replica(0).{name}(...)"
            )
        parts: list[Tensor] = []
        device = self._device()
        for start in range(0, len(x), _ROWS):
            chunk = x[start : start + _ROWS].to(device)
            rows = torch.arange(start, start + len(chunk), device=device)
            answers = [e.call(s, name, chunk, key=fold(key_of(s.seeds), name), rows=rows) for e, s in runs]
            merged = torch.stack(answers) if len(answers) > 1 else answers[0].unsqueeze(0)
            if mark.merge == "logmeanexp":
                combined = torch.logsumexp(merged, 0) - math.log(len(answers))
            else:
                combined = merged.mean(0) if len(answers) > 1 else merged[0]
            parts.append(mark.finish(combined) if mark.finish else combined)
        return torch.cat(parts).cpu().numpy()

    @available_if(_offered("predict"))
    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """What the objective predicts for each row: a label or a value."""
        check_is_fitted(self)
        answer = self._ask("predict", self._inputs(X, reset=False))
        return self.classes_[answer] if self._objective().targets == "classes" else answer

    @available_if(_offered("predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Class probabilities, one column per entry of `classes_`, averaged over replicas."""
        check_is_fitted(self)
        return self._ask("predict_proba", self._inputs(X, reset=False))

    @available_if(_offered("log_prob"))
    def log_prob(self, X: Any) -> np.ndarray[Any, Any]:
        """The log-density of each row; over replicas, of their mixture."""
        check_is_fitted(self)
        return self._ask("log_prob", self._inputs(X, reset=False))

    @available_if(_offered("transform"))
    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """The representation of each row."""
        check_is_fitted(self)
        return self._ask("transform", self._inputs(X, reset=False))

    @available_if(_offered("inverse_transform"))
    def inverse_transform(self, Z: Any) -> np.ndarray[Any, Any]:
        """Rows from representations."""
        check_is_fitted(self)
        return self._ask("inverse_transform", self._tensor(Z))

    @available_if(_offered("act"))
    def act(self, observation: Any) -> np.ndarray[Any, Any]:
        """The action for an observation, or for rows of observations."""
        check_is_fitted(self)
        rows = self._tensor(observation)
        field = self._runs[0][1].objective.observed  # type: ignore[attr-defined]
        single = rows.dim() == len(field.shape)
        answer = self._ask("act", rows.unsqueeze(0) if single else rows)
        return answer[0] if single else answer

    @available_if(_offered("sample"))
    def sample(self, n: int = 1) -> np.ndarray[Any, Any]:
        """Draws rows; replicas share them out."""
        check_is_fitted(self)
        if not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"expected a positive number of samples, got {n!r}")
        runs = self._answering()
        edges = [k * int(n) // len(runs) for k in range(len(runs) + 1)]
        drawn = []
        for (engine, state), a, b in zip(runs, edges[:-1], edges[1:], strict=True):
            if b > a:
                rows = torch.arange(a, b, device=state.device)
                drawn.append(engine.call(state, "sample", b - a, key=fold(key_of(state.seeds), "sample"), rows=rows))
        return torch.cat(drawn).cpu().numpy()

    @available_if(_adapts)
    def adapt(self, X: Any, y: Any = None) -> Learner:
        """A Learner adapted to a few examples by the strategy's inner loop."""
        adapted = copy.copy(self)
        x = self._tensor(X if isinstance(X, Tensor) else np.asarray(X))
        device = self._device()
        batch: dict[str, Any] = {"x": x.to(device)}
        if y is not None:
            if len(y) != len(x):
                raise ValueError(f"expected y to have {len(x)} rows as X has, got {len(y)}")
            numbers = hasattr(self, "classes_")
            values = self._labels(y, reset=False) if numbers else self._target(y)
            batch["y"] = values.to(device)
        runs = []
        for engine, state in self._replicas():
            fitted = copy.copy(state)
            fitted.params = engine.adapt(state, batch)
            runs.append((engine, fitted))
        adapted._runs = runs
        return adapted

    def _target(self, y: Any) -> Tensor:
        values = y if isinstance(y, Tensor) else torch.as_tensor(np.asarray(y))
        return values if self._objective().targets == "classes" else values.to(_DTYPES[self.dtype])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy for classes, R squared for values, mean log-density for densities."""
        from sklearn.metrics import accuracy_score, r2_score

        offered = self._objective().capabilities()
        if "predict" in offered and y is not None:
            rate = accuracy_score if self._objective().targets == "classes" else r2_score
            return float(rate(y, self.predict(X), sample_weight=sample_weight))
        if "log_prob" in offered:
            return float(np.average(self.log_prob(X), weights=sample_weight))
        raise AttributeError(f"{type(self._objective()).__name__} has no score: expected predict or log_prob")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            objective = self._objective()
        except TypeError:
            return tags
        if "y" in objective.fields:
            tags.target_tags.required = True
            tags.estimator_type = "classifier" if objective.targets == "classes" else "regressor"
        return tags

    def progress(self) -> tuple[str, Any]:
        """The objective's progress measure in the last record: its name and value (less is better)."""
        return progress_of(self._runs[0][0], self.history_[-1])


class _Preset(Learner):
    """A Learner with its objective made from a few parameters of its own."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        own = super()._get_param_names()
        shared = [name for name in Learner._get_param_names() if name != "objective"]
        return sorted({*own, *shared})


class Classifier(ClassifierMixin, _Preset):
    """A classifier in scikit-learn's manner: `Learner(Classification(module))`.

    Args:
        module: an `nn.Module` with one output per class, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        class_weight: weights by label, `"balanced"`, or None.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> Classifier(random_state=0).fit(X, y).predict(X[:3]).tolist()
        [0, 0, 0]
    """

    def __init__(
        self, module: Any = None, *, hidden: Sequence[int] = (128, 128), class_weight: Any = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.module = module
        self.hidden = hidden
        self.class_weight = class_weight

    def _objective(self) -> Objective:
        from weft.objectives import Classification

        return Classification(self.module, hidden=self.hidden, class_weight=self.class_weight)


class Regressor(RegressorMixin, _Preset):
    """A regressor in scikit-learn's manner: `Learner(Regression(module))`.

    Args:
        module: an `nn.Module` with one output per target, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> Regressor(random_state=0).fit(X, y / 100).predict(X[:3]).shape
        (3,)
    """

    def __init__(self, module: Any = None, *, hidden: Sequence[int] = (128, 128), **settings: Any) -> None:
        super().__init__(**settings)
        self.module = module
        self.hidden = hidden

    def _objective(self) -> Objective:
        from weft.objectives import Regression

        return Regression(self.module, hidden=self.hidden)


def _inner(name: str) -> str:
    """`strategy__threshold` as the strategy calls it; the learning rate as `lr`."""
    return name.partition("__")[2]


def _rows(values: Any, rows: np.ndarray[Any, Any]) -> Any:
    if values is None:
        return None
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    return values[torch.as_tensor(rows)] if isinstance(values, Tensor) else np.asarray(values)[rows]


def _pick(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, np.ndarray) else value


def _from_dataset(dataset: Any, y: Any) -> tuple[Any, Any]:
    """A map-style data set as tensors: rows alone, or pairs of row and target."""
    items = [dataset[i] for i in range(len(dataset))]
    if not items:
        raise ValueError("expected at least one row, got an empty data set")
    if not isinstance(items[0], tuple | list):
        return torch.stack([torch.as_tensor(x) for x in items]), y
    return torch.stack([torch.as_tensor(i[0]) for i in items]), torch.stack([torch.as_tensor(i[1]) for i in items])


def _merged(histories: list[History], task: str | None) -> Iterator[dict[str, Any]]:
    """Records of runs made one after another, side by side; what stopped early has NaN from there on."""
    for i in range(max(len(h) for h in histories)):
        records = [h[i] if i < len(h) else {} for h in histories]
        whole = dict(max(records, key=len))
        if len(histories) > 1:
            fixed = ("step", "epoch", "seconds")
            whole = {n: v if n in fixed else np.array([r.get(n, math.nan) for r in records]) for n, v in whole.items()}
        yield {**whole, "task": task} if task is not None else whole


