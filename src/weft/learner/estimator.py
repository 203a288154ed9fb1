"""The Learner: scikit-learn's conventions around an objective, a strategy and the engine.

What `fit` is given is read in `reading`; the runs that it trains are in `runs`.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.catalogue import find
from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.optimizer import Optimizer, as_optimizer
from weft.core.source import Batch, Source
from weft.core.strategy import Strategy
from weft.engine import distributed
from weft.engine.engine import Diverged
from weft.engine.loop import History, Plan, progress_of
from weft.engine.schedule import as_schedule
from weft.learner.folder import Folder, save
from weft.learner.reading import DTYPES, as_tensor, inputs, match, plain, read, sources, take, unpack
from weft.learner.runs import ask, draw, go_on, records, settings, single, solve_all, start, train_all
from weft.sources.cast import Cast

__all__ = ["Learner"]

_COUNTS = {"epochs": 0, "steps": 0, "batch_size": 1, "accumulate": 1, "patience": 1, "memory": 1}


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


def _shown(given: Any) -> str:
    """What came, for a message; a class where an instance should be is the commonest slip."""
    return f"the class {given.__name__}; make one: {given.__name__}()" if inspect.isclass(given) else repr(given)


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
        folder: where to keep the run while it trains, to go on after a crash: `weft.load(folder).resume(...)`.

    Attributes:
        objective_: the built objective.
        history_: one record per evaluation; `history_["loss"]` is a column.
        stop_reason_: why training ended; with replicas a list.
        seeds_: the seed of each replica.
        tasks_: the tasks consolidated so far.
        environments_: the environments' names by number, where the objective reads them.
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
        folder: Any = None,
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
        self.folder = folder

    # --- what the parameters mean ---------------------------------------------------------------------

    def _objective(self) -> Objective:
        if not isinstance(self.objective, Objective):
            raise TypeError(
                f"expected an objective such as Classification(), got {_shown(self.objective)}; a plain nn.Module goes "
                "into an objective, as in Classification(module), or into Classifier(module)"
            )
        return self.objective

    def _strategy(self) -> Strategy:
        if self.strategy is None or isinstance(self.strategy, str):
            return find("strategies", self.strategy or "erm")
        if not isinstance(self.strategy, Strategy):
            raise TypeError(
                f"expected a strategy such as ANDMask(threshold=0.8), its name or None, got {_shown(self.strategy)}"
            )
        return self.strategy

    def _optimizers(self, objective: Objective) -> dict[str, Optimizer]:
        players = objective.players or ("",)
        given = objective.optimizer if self.optimizer is None else self.optimizer
        if not isinstance(given, dict):
            return {player: as_optimizer(given) for player in players}
        for name in given:
            if not objective.players:
                raise ValueError(
                    f"expected one optimizer, as {type(objective).__name__} has one player, got optimizers by player "
                    f"({', '.join(map(repr, given))}); pass the optimizer itself"
                )
            if name not in players:
                raise closest(str(name), players, f"a player of {type(objective).__name__}")
        own = objective.optimizer
        defaults = own if isinstance(own, dict) else dict.fromkeys(players, own)
        return {player: as_optimizer(given.get(player, defaults.get(player, "adam"))) for player in players}

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `optimizer__lr` and `strategy__threshold` work on names and defaults too."""
        known = self.get_params(deep=False)
        for name in params:
            if name.partition("__")[0] not in known:
                raise closest(name.partition("__")[0], known, f"a parameter of {type(self).__name__}")
        super().set_params(**{name: value for name, value in params.items() if "__" not in name})
        nested = {name: value for name, value in params.items() if "__" in name}
        for name in [name for name in nested if name.startswith("optimizer__")]:
            self._set_optimizer(name.removeprefix("optimizer__"), nested.pop(name))
        if any(name.startswith("strategy__") for name in nested):
            if self.strategy is None:
                raise ValueError(f"expected a strategy to set {sorted(nested)} of, got None; give strategy first")
            self.strategy = self._strategy()
        super().set_params(**nested)
        return self

    def _set_optimizer(self, name: str, value: Any) -> None:
        """Sets one of the optimizer's settings; in a game `player__lr` that of a player, `lr` that of all."""
        given = self._objective().optimizer if self.optimizer is None else self.optimizer
        player, _, inner = name.partition("__")
        if not inner and not isinstance(given, dict):
            self.optimizer = as_optimizer(given).having(**{name: value})
            return
        each = self._optimizers(self._objective())
        if inner and player not in each:
            raise closest(player, each, f"a player of {type(self._objective()).__name__}")
        changed = {p: each[p].having(**{inner or name: value}) for p in ([player] if inner else each)}
        self.optimizer = {**each, **changed}

    def _check(self, objective: Objective, strategy: Strategy) -> None:
        """Raises for parameters out of range."""
        strategy.validate()
        reason = strategy.refuses(objective)
        if reason:
            raise ValueError(f"{strategy!r} cannot train {type(objective).__name__}: {reason}")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"expected epochs or steps, got both ({self.epochs} and {self.steps}); leave one out")
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name not in ("accumulate", "memory"):
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"expected {name} to be an integer >= {least}, got {value!r}")
        if self.clip is not None and not (isinstance(self.clip, Real) and self.clip > 0):
            raise ValueError(f"expected clip to be a norm > 0 or None, got {self.clip!r}")
        for name, known in (("weighting", ("example", "group")), ("init", ("reset", "keep")), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise closest(str(getattr(self, name)), known, name)
        if not isinstance(self.callbacks, Sequence) or not all(callable(callback) for callback in self.callbacks):
            raise TypeError(f"expected callbacks to be a list of functions of a record, got {self.callbacks!r}")
        as_schedule(self.schedule)

    def _device(self) -> torch.device:
        if self.device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise ValueError(
                f"expected a device that PyTorch finds here, such as 'cpu' or 'cuda:0', got {self.device!r}: {error}"
            ) from error
        return torch.device(self.device)

    def _seed(self) -> int:
        state = self.random_state
        if isinstance(state, Integral):
            return int(state)
        return distributed.agree(int(check_random_state(state).randint(2**31)))  # drawn, but the same on all processes

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
        return self._fit(X, y, environment, task, sample_weight, fresh=not (self.warm_start and hasattr(self, "_runs")))

    def _fit(
        self, X: Any, y: Any, environment: Any, task: Any, sample_weight: Any, *, fresh: bool, resumed: bool = False
    ) -> Self:
        if task is None or isinstance(X, Source):
            return self._learn(X, y, environment, sample_weight, fresh=fresh, task=task, resumed=resumed)
        X, y = unpack(X, y)
        names = np.asarray(task)
        if names.shape != (len(X),):
            raise ValueError(f"expected task to name one task for each of the {len(X)} rows, got shape {names.shape}")
        missing = [i for i, name in enumerate(names.tolist()) if name is None or name != name]
        if missing:
            raise ValueError(f"expected a task for every row, got none in row {missing[0]}; name it or drop the row")
        classes = np.unique(plain(y)) if self._objective().targets == "classes" and fresh and y is not None else None
        left = list(names[np.sort(np.unique(names, return_index=True)[1])])
        if resumed:
            if self._phase["task"] not in map(str, left):
                raise ValueError(f"expected the task {self._phase['task']!r}, which was the last, among {left}")
            resumed = bool(self._phase["runs"])  # else that task has ended, and the next is to begin
            left = left[list(map(str, left)).index(self._phase["task"]) + (not resumed) :]
        for name in left:
            rows = np.flatnonzero(names == name)
            part = [take(values, rows) for values in (X, y, environment, sample_weight)]
            self._learn(*part, fresh=fresh, task=name, classes=classes, resumed=resumed)
            fresh = resumed = False
        return self

    def resume(
        self, X: Any, y: Any = None, *, environment: Any = None, task: Any = None, sample_weight: Any = None
    ) -> Self:
        """Goes on with an interrupted `fit` or `partial_fit`, given the same data, to where it would have ended.

        Bit for bit, on one kind of machine with as many threads; sources that cannot be put back
        (gymnasium's) begin their rollout anew.
        """
        check_is_fitted(self)
        if missing := [name for name in getattr(self, "_missing", []) if name in ("schedule", "validation")]:
            raise ValueError(f"expected {missing[0]!r} again to go on, got none; load(folder, {missing[0]}=...)")
        if self.folder is None:
            self.folder = getattr(self, "_kept_in", None)
        columns = task is not None and not isinstance(task, str) and not isinstance(X, Source)
        if not columns and not self._phase["runs"]:
            return self  # it had ended
        if not columns:
            return self._learn(X, y, environment, sample_weight, fresh=False, task=self._phase["task"], resumed=True)
        return self._fit(X, y, environment, task, sample_weight, fresh=False, resumed=True)

    def save(self, folder: Any, *, force: bool = False) -> None:
        """Writes what was learned to a folder, to be read by `weft.load`."""
        check_is_fitted(self)
        save(self, folder, force=force)

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
        fresh = not hasattr(self, "_runs")
        return self._learn(X, y, environment, sample_weight, fresh=fresh, task=task, classes=classes, once=task is None)

    def _learn(
        self,
        X: Any,
        y: Any,
        environment: Any,
        sample_weight: Any,
        *,
        fresh: bool,
        task: Any,
        classes: Any = None,
        once: bool = False,
        resumed: bool = False,
    ) -> Self:
        """One task (or one pass of it): reads the data, starts or goes on, trains, consolidates."""
        distributed.start(self._device())
        objective, strategy = self._objective(), self._strategy()
        self._check(objective, strategy)
        if isinstance(X, Source):
            if any(given is not None for given in (y, environment, sample_weight)):
                raise ValueError(
                    f"{type(X).__name__} brings its own fields, got y, environment or sample_weight beside it"
                )
            validation = match(self, X, strategy, reset=fresh)
            source: Source = Cast(X, DTYPES[self.dtype])
        else:
            source, validation = sources(
                self, read(self, X, y, environment, sample_weight, reset=fresh, classes=classes)
            )
        name = None if task is None else str(task)
        if resumed:
            once = self._phase["once"]
        elif fresh:
            self._replica_settings = settings(self.replicas, self._seed())
            self.seeds_ = [int(s["random_state"]) for s in self._replica_settings]
            self.history_ = History()
            self._spec = source.spec
            self._runs = start(self, objective, strategy, source)
            self.objective_ = self._runs[0][0].objective
        else:
            self._runs = go_on(self, self._runs, source, carry=once)
        if not resumed:
            self._phase: dict[str, Any] = {"task": name, "once": once, "runs": []}
        folder = Folder(self.folder)
        if fresh:
            folder.claim()
        if hasattr(objective, "solve"):
            solve_all(self._runs, source)
            self._conclude()
            folder.keep(self)
            return self
        try:
            with folder.interruptible() as paused:
                plan = replace(self._plan(source, validation, once), paused=paused)
                train_all(self._runs, source, plan, self._phase, keep=partial(folder.keep, self), shown=self.verbose)
        except KeyboardInterrupt:
            folder.keep(self)
            raise
        except Diverged as error:
            raise Diverged(f"{error}{folder.told()}") from error
        finally:
            self._conclude_phase()
        return self

    def _conclude_phase(self) -> None:
        """A phase of training has ended: its records join the others."""
        self.history_.extend(records(self._phase))
        self._phase["runs"] = []
        self._conclude()

    def _plan(self, source: Source, validation: Source | None, once: bool) -> Plan:
        if self.epochs is not None and source.epoch is None:
            raise ValueError(
                f"{type(source).__name__} has no end to a pass: give steps instead of epochs={self.epochs}"
            )
        if once and source.epoch is not None:
            steps, every = source.epoch, source.epoch
        elif self.steps is not None or source.epoch is None:
            steps = 1000 if self.steps is None else int(self.steps)
            every = max(1, steps // 50)
        else:
            steps = (50 if self.epochs is None else int(self.epochs)) * source.epoch
            every = source.epoch
        return Plan(steps=steps, every=every, patience=self.patience, validation=validation, observers=self.callbacks)

    def _conclude(self) -> None:
        """What the runs tell of the training."""
        reasons = [run.stopped.get(k, "") for _, run in self._runs for k in range(run.replicas or 1)]
        self.stop_reason_ = reasons[0] if self.replicas is None else reasons
        self.n_steps_ = max(run.step for _, run in self._runs)
        self.n_iter_ = max(1, len(self.history_))  # scikit-learn's name for passes over the data
        self.tasks_ = list(self._runs[0][1].tasks)

    # --- what was learned -----------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_runs")

    def replica(self, k: int) -> Self:
        """One replica as a fitted Learner of its own."""
        check_is_fitted(self)
        return single(self, k)

    @property
    def best_replica_(self) -> int:
        """The replica with the best progress measure (on validation, where there is one)."""
        values = [
            run.best["value"].reshape(-1).tolist() if run.best else [math.inf] * (run.replicas or 1)
            for _, run in self._runs
        ]
        return int(np.argmin([math.inf if math.isnan(v) else v for part in values for v in part]))

    def progress(self) -> tuple[str, Any]:
        """The objective's progress measure in the last record: its name and value (less is better)."""
        check_is_fitted(self)
        return progress_of(self._runs[0][0], self.history_[-1])

    @available_if(_offered("predict"))
    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """What the objective predicts for each row: a label or a value."""
        check_is_fitted(self)
        answer = ask(self, "predict", inputs(self, X, reset=False))
        if self._objective().targets == "classes":
            return self.classes_[answer]
        return answer if isinstance(X, Tensor) else answer.astype(np.float64)  # as scikit-learn's regressors answer

    @available_if(_offered("predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Class probabilities, one column per entry of `classes_`, averaged over replicas."""
        check_is_fitted(self)
        return ask(self, "predict_proba", inputs(self, X, reset=False))

    @available_if(_offered("log_prob"))
    def log_prob(self, X: Any) -> np.ndarray[Any, Any]:
        """The log-density of each row; over replicas, of their mixture."""
        check_is_fitted(self)
        return ask(self, "log_prob", inputs(self, X, reset=False))

    @available_if(_offered("transform"))
    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """The representation of each row."""
        check_is_fitted(self)
        return ask(self, "transform", inputs(self, X, reset=False))

    @available_if(_offered("inverse_transform"))
    def inverse_transform(self, Z: Any) -> np.ndarray[Any, Any]:
        """Rows from representations."""
        check_is_fitted(self)
        return ask(self, "inverse_transform", as_tensor(self, Z))

    @available_if(_offered("act"))
    def act(self, observation: Any) -> np.ndarray[Any, Any]:
        """The action for an observation, or for rows of observations."""
        check_is_fitted(self)
        rows = as_tensor(self, observation)
        field: Any = self.objective_.observed
        one = rows.dim() == len(field.shape)
        answer = ask(self, "act", rows.unsqueeze(0) if one else rows)
        return answer[0] if one else answer

    @available_if(_offered("sample"))
    def sample(self, n: int = 1) -> np.ndarray[Any, Any]:
        """Draws rows; replicas share them out."""
        check_is_fitted(self)
        if not isinstance(n, Integral) or n < 1:
            raise ValueError(f"expected a positive number of samples, got {n!r}")
        return draw(self, int(n))

    @available_if(_adapts)
    def adapt(self, X: Any, y: Any = None) -> Self:
        """A Learner adapted to a few examples by the strategy's inner loop."""
        check_is_fitted(self)
        if isinstance(self.replicas, dict):
            return self.replica(self.best_replica_).adapt(X, y)
        data = read(self, X, y, None, None, reset=False)
        batch: Batch = {name: data[name].to(self._runs[0][1].device) for name in ("x", "y") if name in data}
        adapted = copy.copy(self)
        adapted._runs = [run for k in range(len(self.seeds_)) for run in self.replica(k)._runs]
        for engine, state in adapted._runs:
            state.params = engine.adapt(state, batch)
            engine.prepare(state)
        return adapted

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy for classes, R squared for values, mean log-density for densities."""
        offered = self._objective().capabilities()
        if "predict" in offered and y is not None:
            rate = accuracy_score if self._objective().targets == "classes" else r2_score
            return float(rate(plain(y), self.predict(X), sample_weight=sample_weight))
        if "log_prob" in offered:
            return float(np.average(self.log_prob(X), weights=sample_weight))
        raise AttributeError(f"{type(self._objective()).__name__} has no score: expected predict (with y) or log_prob")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            objective = self._objective()
        except TypeError:
            return tags
        if "y" in objective.fields:
            tags.target_tags.required = True
            if objective.targets == "classes":
                tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
            else:
                tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
                tags.target_tags.multi_output = True
        return tags
