"""The Learner: scikit-learn's conventions around an objective, a strategy and the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from weft.core.configured import closest
from weft.core.legal import Legal
from weft.core.objective import Objective
from weft.core.source import Source
from weft.core.strategy import Strategy
from weft.engine import distributed
from weft.engine.engine import Diverged
from weft.engine.loop import History
from weft.learner import digests, tabular
from weft.learner.answers import Answers
from weft.learner.columns import Columns
from weft.learner.folder import Folder, alone, save, tidied
from weft.learner.planning import plan_of
from weft.learner.pretrained import Taking
from weft.learner.reading import Reader, names_of_rows, unpack
from weft.learner.runs import admit, copied, go_on, learned, records, start, train_all
from weft.learner.settings import (
    LEGAL,
    Settings,
    as_device,
    as_objective,
    as_seed,
    as_strategy,
    changed_optimizer,
    check,
    refuse_count,
    refuse_start,
    replica_settings,
    warn_of_idle,
)
from weft.learner.sourcing import match, sources
from weft.learner.training import Run, Training
from weft.learner.watching import Watching
from weft.learner.worlds import played

__all__ = ["Learner"]


class Learner(Taking, Answers):
    """Trains an objective by a strategy, and answers with what the objective can do.

    Args:
        objective: what is learned.
        strategy: how the loss becomes an update: a `Strategy`, its name, or None for ERM.
        optimizer: a name, a class, a factory, an `Optimizer`, a dictionary of those by player, or
            None for the objective's own default.
        schedule: the learning rate's factor by progress in [0, 1): a name (`constant`, `linear`,
            `cosine`, `step`), a function, or a class of `torch.optim.lr_scheduler` (stepped per update;
            `ReduceLROnPlateau` by the progress measure of each record, for each replica by itself).
        epochs: passes over the data. Default: 50, where the source has an end.
        steps: updates instead of passes. Default: 1,000, where the source has no end.
        env_steps: the same in steps of the worlds (of each replica), where the source acts.
        batch_size: rows per update (per environment, where the strategy works on environments), or
            None for all of them.
        accumulate: batches whose gradients are accumulated into one update.
        clip: the largest norm of a gradient.
        weighting: how environments of unequal size count: by `example` or by `group`.
        validation: a share of the rows held out by the seed, `(X, y)`, `(X, y, fields)`, a source, or X alone where the
            objective learns from nothing else; or a world: 10 fresh episodes there, and the best policy is put back.
        every: updates (or iterations) between two records; None for a pass, or a fiftieth of `steps`.
        metrics: what else to take of the rows held out at each record, as `valid_roc_auc`: scorers of scikit-learn or
            their names, objects of torchmetrics; a list, or by name.
        monitor: the one of the metrics that says how training goes; None for the objective's own progress measure.
        patience: evaluations without progress after which training stops and the best parameters
            are put back; None to train to the end.
        replicas: how many independent copies to train at once, with seeds `random_state`,
            `random_state + 1`, ...; or lists by parameter name, a sweep.
        augment: a function of a training row's `x`, such as a transform of torchvision, or one of a batch that is
            marked `weft.sources.batchwise`; it draws anew at each step. Validation and answers see rows as given.
        init: `reset` draws given modules anew, `keep` keeps them; by pattern, or from a learner, module or file.
        warm_start: whether `fit` goes on from the last one.
        random_state: the seed; None takes one from NumPy's global state, as scikit-learn does.
        device: a PyTorch device; None takes CUDA where there is one.
        dtype: `float32`, `float64` or `bfloat16`.
        precision: `bf16` lets matrix products and convolutions compute in bfloat16 over float32 parameters, with losses
            and statistics in float32; None computes in `dtype`.
        memory: bytes that passes over groups or examples, evaluations and answers may take, beside the data.
        callbacks: functions of each record of `history_`; where they take two arguments, also of the learner as it is
            by then, a fitted copy with all replicas that are trained at once. One that returns True ends the run.
        verbose: whether to show a progress bar.
        folder: where to keep the run while it trains, to go on after a crash: `weft.load(folder).resume(...)`.
        keep: how many of the best checkpoints (by progress) stay in the folder: `weft.load(folder, checkpoint=0)`.

    Attributes:
        objective_: the objective with what was learned; of replicas, what the first of them has.
        history_: one record per evaluation; `history_["loss"]` is a column, `history_["lr"]` the last step's rate.
        stop_reason_: why training ended; with replicas a list.
        seeds_: the seed of each replica.
        tasks_: the tasks consolidated so far.
        environments_: the environments' names by number, where the objective reads them.
        labels_: the labels by number of each further field that holds classes.
        recipe_: how the columns of a table became numbers, where X was one that is more than numbers.
        vocabulary_: of each field that holds text, its characters by number, or its byte pairs.
        n_steps_: updates made.
        training_: the runs themselves, with what distinguishes each replica (see `weft.learner.training.Training`).

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft.objectives import Classification
        >>> X, y = load_iris(return_X_y=True)
        >>> learner = Learner(Classification(hidden=(32,)), epochs=30, random_state=0).fit(X, y)
        >>> learner.predict(X[:2]).tolist(), len(learner.history_)
        ([0, 0], 30)
    """

    legal: ClassVar[dict[str, Legal]] = LEGAL

    def __init__(
        self,
        objective: Objective | None = None,
        *,
        strategy: Strategy | str | None = None,
        optimizer: Any = None,
        schedule: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        env_steps: int | None = None,
        batch_size: int | None = 64,
        accumulate: int = 1,
        clip: float | None = None,
        weighting: str = "example",
        validation: Any = None,
        every: int | None = None,
        metrics: Sequence[Any] | dict[str, Any] = (),
        monitor: str | None = None,
        patience: int | None = None,
        replicas: int | dict[str, Sequence[Any]] | None = None,
        augment: Callable[..., Any] | None = None,
        init: Any = "reset",
        warm_start: bool = False,
        random_state: Any = None,
        device: Any = None,
        dtype: str = "float32",
        precision: str | None = None,
        memory: int = 2**30,
        callbacks: Sequence[Callable[..., Any]] = (),
        verbose: bool = False,
        folder: Any = None,
        keep: int | None = None,
    ) -> None:
        self.objective = objective
        self.strategy = strategy
        self.optimizer = optimizer
        self.schedule = schedule
        self.epochs = epochs
        self.steps = steps
        self.env_steps = env_steps
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.clip = clip
        self.weighting = weighting
        self.validation = validation
        self.every = every
        self.metrics = metrics
        self.monitor = monitor
        self.patience = patience
        self.replicas = replicas
        self.augment = augment
        self.init = init
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.precision = precision
        self.memory = memory
        self.callbacks = callbacks
        self.verbose = verbose
        self.folder = folder
        self.keep = keep

    # --- what the parameters mean ---------------------------------------------------------------------

    def _objective(self) -> Objective:
        """What is learned; a preset makes it from parameters of its own."""
        return as_objective(self.objective)

    def settings(self) -> Settings:
        """What the parameters mean now: names looked up, defaults filled in; raises where one is out of range."""
        objective, strategy = self._objective(), as_strategy(self.strategy)
        check(self, objective, strategy)
        return Settings.of(self, objective)

    def _with(self, own: dict[str, Any]) -> Self:
        """A single run's learner, with a replica's own values."""
        if not isinstance(self.replicas, dict):
            return self  # the seeds differ, nothing else
        one = copy.copy(self)
        for outer in {name.partition("__")[0] for name in own if "__" in name}:
            setattr(one, outer, clone(getattr(one, outer, None), safe=False))
        return one.set_params(**own, replicas=None)

    def _settings_of(self, replica: dict[str, Any]) -> Settings:
        one = self._with(replica)
        return one.settings() if one is not self else Settings.of(self, self._objective())

    @classmethod
    def _unknown(cls, name: str) -> ValueError:
        """The error for a parameter that there is none of."""
        return closest(name, cls._get_param_names(), f"a parameter of {cls.__name__}")

    def set_params(self, **params: Any) -> Self:
        """Sets parameters; `optimizer__lr` and `strategy__threshold` work on names and defaults too."""
        known = self.get_params(deep=False)
        for name in params:
            if name.partition("__")[0] not in known:
                raise self._unknown(name.partition("__")[0])
        super().set_params(**{name: value for name, value in params.items() if "__" not in name})
        nested = {name: value for name, value in params.items() if "__" in name}
        for name in [name for name in nested if name.startswith("optimizer__")]:
            self.optimizer = changed_optimizer(self.optimizer, self._objective(), name, nested.pop(name))
        if any(name.startswith("strategy__") for name in nested):
            if self.strategy is None:
                raise ValueError(f"expected a strategy to set {sorted(nested)} of, got None; give strategy first")
            self.strategy = as_strategy(self.strategy)
        super().set_params(**nested)
        return self

    # --- training -------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        environment: Any = None,
        task: Any = None,
        sample_weight: Any = None,
        **fields: Any,
    ) -> Self:
        """Trains from the start (with `warm_start`, from where the last fit ended).

        Args:
            X: rows (array, DataFrame, tensor; lists, where the objective reads text or sequences), a data set, or a
                source; for what acts a world (a gymnasium id, a name of `weft list worlds`, a world of tensors, an
                environment or what makes one), or a list of those, each a group. A DataFrame with text, categories,
                true and false or gaps becomes numbers, by a recipe learned from it and applied to every later table.
            y: labels or values, where the objective learns them.
            environment: the environment of each row, for strategies that compare environments.
            task: the task of each row; tasks are learned in the order of their first appearance, each
                consolidated at its end. With a source, one name.
            sample_weight: a weight for each row.
            fields: whatever else the objective reads of a row, by the names in its `fields`; what each holds (values,
                classes, ...) its `kinds` say.
        """
        fresh = not (self.warm_start and hasattr(self, "training_"))
        return self._fit(Columns(X, y, environment, sample_weight, fields), task, fresh=fresh)

    def _fit(self, given: Columns, task: Any, *, fresh: bool, resumed: bool = False) -> Self:
        given = played(self._objective(), given)
        if task is None or isinstance(given.X, Source):
            return self._learn(given, fresh=fresh, task=task, resumed=resumed)
        X, y = unpack(given.X, given.y)
        given = replace(given, X=X, y=y)
        names = names_of_rows(task, len(X), "task")
        given = tabular.begun(self, given, fresh=fresh, task=names)
        classes = given.classes(self._objective()) if fresh else None
        left = list(names[np.sort(np.unique(names, return_index=True)[1])])
        columns = {} if self.folder is None else digests.of_columns(X=X, **given.beside, task=names)
        if resumed:
            left, resumed = digests.tasks_left(self.training_, left, columns)
        for name in left:
            part = given.take(np.flatnonzero(names == name))
            self._learn(part, fresh=fresh, task=name, classes=classes, columns=columns, resumed=resumed)
            fresh = resumed = False
        return self

    def resume(
        self,
        X: Any,
        y: Any = None,
        *,
        environment: Any = None,
        task: Any = None,
        sample_weight: Any = None,
        **fields: Any,
    ) -> Self:
        """Goes on with an interrupted `fit` or `partial_fit`, given the same data, to where it would have ended.

        Bit for bit, on one kind of machine with as many threads; sources that cannot be put back
        (gymnasium's) begin their rollout anew.
        """
        check_is_fitted(self)
        phase = self.training_.phase
        if missing := [name for name in self.training_.missing if name in ("schedule", "validation", "augment")]:
            raise ValueError(f"expected {missing[0]!r} again to go on, got none; load(folder, {missing[0]}=...)")
        if self.folder is None:
            self.folder = self.training_.folder
        given = Columns(X, y, environment, sample_weight, fields)
        columns = task is not None and not isinstance(task, str) and not isinstance(X, Source)
        if not columns and not phase.runs:
            return tidied(self)  # it had ended
        if not columns:
            return self._learn(given, fresh=False, task=phase.task, resumed=True)
        return self._fit(given, task, fresh=False, resumed=True)

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
        **fields: Any,
    ) -> Self:
        """Goes on training: on one task to its end, then consolidating it; without a task, one pass.

        Args:
            classes: all classes that will ever come, at the first call; by field where others than y have classes.
            task: the task's name; the same name again replaces what that task left.
            X, y, environment, sample_weight, fields: as in `fit`.
        """
        given, fresh = Columns(X, y, environment, sample_weight, fields), not hasattr(self, "training_")
        return self._learn(given, fresh=fresh, task=task, classes=classes, once=task is None)

    @alone
    def _learn(
        self,
        given: Columns,
        *,
        fresh: bool,
        task: Any,
        classes: Any = None,
        columns: dict[str, str] | None = None,
        once: bool = False,
        resumed: bool = False,
    ) -> Self:
        """One task (or one pass of it): reads the data, starts or goes on, trains, consolidates."""
        distributed.start(as_device(self.device))
        settings = self.settings()
        refuse_start(self, settings.objective, again=once and not fresh and not resumed, task=task)
        reader = Reader(self, settings.objective, settings.dtype, None if fresh else self.training_.spec)
        given = played(settings.objective, given)
        if isinstance(given.X, Source):
            source, validation = match(reader, settings, given.X)
        else:
            given = given if given.held is not None else tabular.begun(self, given, fresh=fresh)
            data = reader.read(given, classes)
            source, validation = sources(reader, settings, data, given.held)
        if fresh:
            self._start(settings, source, validation)
        elif not resumed:
            self.training_.runs = admit(self._go_on(source, carry=once), source, validation)
        training = self.training_
        training.phase = digests.phase(self, source, validation, task, once, columns, resumed=resumed)
        folder = Folder(self.folder)
        if fresh:
            folder.claim()
        try:
            with folder.interruptible() as pause:
                plan = plan_of(self, source, validation, settings.objective, once=training.phase.once, pause=pause)
                train_all(
                    training.runs,
                    source,
                    plan,
                    training.phase,
                    watch=Watching(self, source),
                    note=lambda engine, record: folder.note(self, engine, record),
                    keep=lambda must: folder.keep(self, must),
                    shown=self.verbose,
                )
        except KeyboardInterrupt:
            folder.keep(self)
            raise
        except Diverged as error:
            raise Diverged(f"{error}{folder.told()}") from error
        finally:
            self._conclude_phase()
        return self

    def _start(self, settings: Settings, source: Source, validation: Source | None) -> None:
        """A training before its first step."""
        told = replica_settings(self.replicas, as_seed(self.random_state))
        each = [self._settings_of(own) for own in told]  # values out of range are refused before anything else
        for own in each:
            if own.objective.targets != settings.objective.targets:
                raise ValueError(
                    f"expected replicas that learn {settings.objective.targets}, as y was read, got one that learns "
                    f"{own.objective.targets}: {own.objective!r}; train a learner for each"
                )
        warn_of_idle(self, each)
        runs = start(settings, each, told, source, replicated=self.replicas is not None)
        admit(runs, source, validation)
        self.training_ = Training(told, source.spec, runs)
        self.seeds_ = [int(own["random_state"]) for own in told]
        self.history_ = History()
        self._conclude()

    def _go_on(self, source: Source, *, carry: bool) -> list[Run]:
        """The runs, for parameters that may have changed since."""
        refuse_count(self.replicas, len(self.seeds_))
        each = [self._settings_of(own) for own in self.training_.settings]
        return go_on(self.training_, each, source, carry=carry)

    def _conclude_phase(self) -> None:
        """A phase of training has ended: its records join the others."""
        self.history_.extend(records(self.training_.phase))
        self.training_.phase.runs = []
        self._conclude()

    def _conclude(self) -> None:
        """What the runs tell of the training."""
        runs = self.training_.runs
        reasons = [state.stopped.get(k, "") for _, state in runs for k in range(state.replicas or 1)]
        self.stop_reason_ = reasons[0] if self.replicas is None else reasons
        self.n_steps_ = max(state.step_of(k) for _, state in runs for k in range(state.replicas or 1))
        self.n_iter_ = max(1, len(self.history_))  # scikit-learn's name for passes over the data
        self.tasks_, self.objective_ = list(runs[0].state.tasks), learned(runs[0])

    # --- what was learned -----------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "training_")

    def replica(self, k: int) -> Self:
        """One replica as a fitted Learner of its own, with copies of its tensors."""
        check_is_fitted(self)
        every = self.training_.every
        if not -len(every) <= k < len(every):
            raise IndexError(f"expected a replica in 0..{len(every) - 1}, got {k}")
        k %= len(every)
        told = self.training_.settings[k]
        own = copy.copy(self._with(told))
        run = copied(every[k], Settings.of(own, own._objective()))
        own.replicas, own.folder, own.keep, own.seeds_ = None, None, None, [self.seeds_[k]]
        own.training_ = replace(self.training_, settings=[told], runs=[run])
        own.history_ = History(
            {n: v[k] if isinstance(v, np.ndarray) else v for n, v in record.items()} for record in self.history_
        )
        own._conclude()
        return own
