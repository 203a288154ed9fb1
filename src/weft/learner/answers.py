"""Answers: what a trained learner's objective can do, asked of the runs that answer and merged over them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.objective import DENSITY, Capability, Objective
from weft.core.source import Batch, Source
from weft.core.strategy import Strategy
from weft.core.trees import Params
from weft.core.vocabulary import Vocabulary
from weft.engine.answering import answers
from weft.engine.loop import History, progress_of
from weft.learner.asking import Question, Score
from weft.learner.columns import Columns, numbered_environments
from weft.learner.evaluating import Playing
from weft.learner.few import measured_by_episode
from weft.learner.questions import BayesFactor, Expectation, compared, expected
from weft.learner.reading import Reader, as_array, as_tensor
from weft.learner.runs import learned
from weft.learner.settings import DTYPES, as_strategy
from weft.learner.training import Run, Training, refuse_unfitted
from weft.learner.unlabelled import without_label
from weft.tables.recipe import Recipe

__all__ = ["Answers"]


def _answering(training: Training, best: int | None) -> list[Run]:
    """The runs that answer: of all replicas that did not diverge; after a sweep, of the best."""
    every = training.answering
    if best is not None:
        return every[best]
    if not any(state.stopped for _, state in training.runs):
        return every[0] if len(every) == 1 else [run for runs in every for run in runs]
    sound = [runs for runs, diverged in zip(every, training.diverged, strict=True) if not diverged]
    if not sound:
        raise NotFittedError("expected a trained replica, got none: every one has diverged; see stop_reason_")
    return [run for runs in sound for run in runs]


def _module_of(run: Run) -> Objective:
    """A copy of the objective that holds what a run has learned; what was not trained is marked as frozen."""
    engine, state = run
    module = copy.deepcopy(engine.objective).to(state.device)
    trained = {name for names in engine.names.values() for name in names}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.data = state.params[name].detach().clone()
            parameter.requires_grad_(name in trained)
        for name, buffer in module.named_buffers():
            buffer.data = state.buffers[name].detach().clone()
    return module.eval()


def _only(runs: list[Run]) -> Run:
    """The one run that answers."""
    if len(runs) > 1:
        raise ValueError(
            f"expected one set of parameters that answers, got {len(runs)}, which {runs[0].engine.strategy!r} keeps; "
            "they answer together and cannot be one module"
        )
    return runs[0]


def _offered(name: str) -> Callable[[Answers], bool]:
    """For `available_if`: whether the objective has this capability."""

    def check(self: Answers) -> bool:
        objective = self._objective()
        if name not in objective.capabilities():
            raise AttributeError(f"{type(self).__name__} has no {name!r}: {type(objective).__name__} does not offer it")
        return True

    return check


def _adapts(self: Answers) -> bool:
    objective = self._objective()
    if not objective.adapts and not as_strategy(self.strategy).does("adapt"):
        raise AttributeError(
            f"{type(self).__name__} has no 'adapt': expected a strategy that adapts, such as MAML(), or an objective "
            f"that does, got {type(objective).__name__}"
        )
    return True


def _expects(self: Answers) -> bool:
    objective = self._objective()
    offered = objective.capabilities()
    if "expectation" not in offered and ("sample" not in offered or offered["sample"].asks != "number"):
        raise AttributeError(
            f"{type(self).__name__} has no 'expectation': {type(objective).__name__} neither samples nor offers it"
        )
    return True


def _told(score: float, kind: str) -> float:
    return Score(score, kind) if kind in DENSITY[1:] else score


_OF_ROWS = {
    "log_prob": "tells no density of a row, neither exactly nor by a bound",
    "sample": "draws no rows",
    "impute": "does not fill in what is missing",
    "posterior": "tells no law of codes given a row",
}
"""What a model of rows offers, and what is said of one that does not."""
_CONDITIONAL = ("predict", "act", "adapt", "forecast", "expectation", "bayes_factor", "evaluate", "record")


class Answers(Playing):
    """What a Learner answers once it is fitted, by the capabilities of its objective."""

    strategy: Strategy | str | None
    replicas: int | dict[str, Sequence[Any]] | None
    dtype: str
    verbose: bool
    training_: Training
    objective_: Objective
    classes_: NDArray[Any]
    environments_: NDArray[Any]
    labels_: dict[str, NDArray[Any]]
    recipe_: Recipe
    vocabulary_: dict[str, Vocabulary]
    history_: History
    seeds_: list[int]
    predict_proba: Question
    log_prob: Question
    transform: Question
    inverse_transform: Question
    sample: Question

    def _objective(self) -> Objective:
        """What is learned."""
        raise NotImplementedError

    def replica(self, k: int) -> Self:
        """One replica as a fitted Learner of its own."""
        raise NotImplementedError

    @property
    def best_replica_(self) -> int:
        """The replica with the best progress measure (on validation, where there is one)."""
        values = [
            run.best["value"].reshape(-1).tolist() if run.best else [math.inf] * (run.replicas or 1)
            for _, run in self.training_.runs
        ]
        each = np.concatenate(values)
        if self.history_ and not any(run.best for _, run in self.training_.runs):  # solved, by an earlier version
            each = np.atleast_1d(progress_of(self.training_.runs[0].engine, self.history_[-1])[1])
        return int(np.argmin(np.where(np.isnan(each), math.inf, each)))

    def read(self, X: Any, y: Any = None, *, environment: Any = None, **fields: Any) -> dict[str, Any]:
        """Rows as training reads them: checked, and as tensors by field; for measures of what was learned."""
        rows = self._reader().read(Columns(X, y, environment, fields=fields))
        return {name: value for name, value in rows.items() if name not in ("drawn", "columns")}

    def _reader(self) -> Reader:
        check_is_fitted(self)
        return Reader(self, self.objective_, DTYPES[self.dtype], self.training_.spec, asked=True)

    def module(self, k: int | None = None) -> Objective:
        """The trained objective, an `nn.Module` in evaluation mode: a copy, apart from the learner.

        Its `net` is the net, where it has one, to be used without weft or exported (`torch.export`, ONNX).

        Args:
            k: which replica; None for the only one, or after a sweep the best.
        """
        check_is_fitted(self)
        every = self.training_.answering
        if k is None and len(every) > 1 and not isinstance(self.replicas, dict):
            raise ValueError(f"expected the number of one of {len(every)} replicas, got None; module(0) is the first")
        k = (self.best_replica_ if isinstance(self.replicas, dict) else 0) if k is None else k
        if not -len(every) <= k < len(every):
            raise IndexError(f"expected a replica in 0..{len(every) - 1}, got {k}")
        return _module_of(_only(every[k]))

    def _answering(self) -> list[Run]:
        return _answering(self.training_, self.best_replica_ if isinstance(self.replicas, dict) else None)

    def _inputs(self, X: Any) -> Params:
        return self._reader().inputs(X)

    if not TYPE_CHECKING:  # what is spelled wrong is still found there

        def __getattr__(self, name: str) -> Any:
            """Whatever the objective can do, under its name: `log_prob(X)`, `mass_predict(X)`, `prior_sample(n)`."""
            hidden = name.startswith("_") or name.endswith("_")
            if hidden or name in dir(type(self)) or name in self._get_param_names():
                return object.__getattribute__(self, name)  # which raises what was raised before
            if name not in self._offers():
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{self._instead(name)}")
            return Question(self, name)

    def _offers(self) -> dict[str, Capability]:
        try:
            return self._objective().capabilities()
        except (TypeError, ValueError):  # no objective yet, or one that cannot be made
            return {}

    def _instead(self, name: str) -> str:
        try:
            objective = self._objective()
            offered = objective.capabilities()
        except (TypeError, ValueError) as error:
            return f": {error}"
        whose, told = type(objective).__name__, ""
        if name in _OF_ROWS:
            such = "VAE() or FactorAnalysis()" if name == "posterior" else "VAE(), Independent() or Mixture()"
            told = f": {whose} {_OF_ROWS[name]}; take an objective that models the rows, such as {such}"
            if name == "log_prob" and "sample" in offered:
                told += ", or compare its samples with data: weft.report.compare_samples(X, learner.sample(len(X)))"
        return told + (f"; {whose} offers {', '.join(offered)}" if offered else "")

    def __dir__(self) -> list[str]:
        absent = [name for name in _CONDITIONAL if not hasattr(self, name)]
        return sorted({*super().__dir__(), *self._offers()} - {*absent})

    @available_if(_offered("predict"))
    def predict(self, X: Any, **named: Any) -> NDArray[Any]:
        """What the objective predicts for each row: a label or a value."""
        answer: NDArray[Any] = Question(self, "predict")(X, **named)
        if self.objective_.targets == "classes":
            labels: NDArray[Any] = self.classes_[answer]
            return labels
        whole = isinstance(X, Tensor) or self.objective_.targets == "multilabel"
        return answer if whole else answer.astype(np.float64)  # as scikit-learn's regressors answer

    @available_if(_offered("act"))
    def act(self, observation: Any, **named: Any) -> NDArray[Any]:
        """The action for an observation, or for rows of observations."""
        refuse_unfitted(self)
        rows = as_tensor(observation, DTYPES[self.dtype])
        one = rows.dim() == len(self.training_.spec[self.objective_.fields[0]].shape)
        answer: NDArray[Any] = Question(self, "act")(rows.unsqueeze(0) if one else rows, **named)
        return answer[0] if one else answer

    @available_if(_offered("forecast"))
    def forecast(self, X: Any, *, steps: int = 1, **named: Any) -> Any:
        """What follows each row, a series, in so many steps: shape `(n, steps, ...)`.

        Args:
            X: rows, each a series as those of training.
            steps: how many to look ahead.
            named: further fields by row, and the method's options; of K `draws`, paths of shape `(n, K, steps, ...)`.
        """
        if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
            raise ValueError(f"expected steps >= 1 to forecast, got {steps!r}")
        answer = Question(self, "forecast")(X, steps=int(steps), **named)
        axis = 2 if named.get("draws") is not None else 1
        for leaf in pytree.tree_leaves(answer):
            if np.ndim(leaf) <= axis or leaf.shape[axis] != steps:
                raise ValueError(
                    f"expected {steps} steps on axis {axis} of the forecast of {type(self.objective_).__name__}, got "
                    f"shape {np.shape(leaf)}"
                )
        return answer

    @available_if(_expects)
    def expectation(
        self,
        f: Callable[[Any], Any],
        n: int | None = None,
        *,
        level: float = 0.95,
        random_state: Any = None,
        **named: Any,
    ) -> Expectation:
        """E[f(X)] under the model, with an interval: by draws, or as the objective computes it where it does.

        By Student's t over independent draws (of replicas, shared out, which it takes as draws of all together); where
        `sample` runs a chain, over the means of successive batches. It tells of the model, not of the data.

        Args:
            f: of an array of rows, one number or one vector for each.
            n: how many draws; default 1,000. They are held in memory together.
            level: of the interval.
            random_state: what fixes the draws.
            named: further fields, with a value for each draw, and the options of `sample`.

        Example:
            >>> from weft import Learner
            >>> from weft.data import ring
            >>> from weft.objectives import GAN
            >>> game = Learner(GAN(latent=2, hidden=(8,)), steps=5, random_state=0).fit(ring(200))
            >>> game.expectation(lambda x: x[:, 0], 500, random_state=0).n
            500
        """
        if "expectation" in self._objective().capabilities():
            own = named if n is None else {**named, "n": n}
            answer: Expectation = Question(self, "expectation")(f, random_state=random_state, level=level, **own)
            return answer
        if not callable(f):
            raise TypeError(f"expected a function of rows for 'expectation', got {type(f).__name__}")
        sample = Question(self, "sample")
        return expected(lambda k: sample(k, random_state=random_state, **named), sample.kind, f, n, level)

    @available_if(_offered("log_prob"))
    def bayes_factor(self, other: Any, X: Any, *, level: float = 0.95, **named: Any) -> BayesFactor:
        """The log of the ratio of the evidence of two fitted learners on rows X, with its interval over rows.

        Args:
            other: the second; above 0 the first has the better evidence.
            X: rows that neither was trained on.
            level: of the interval.
            named: further fields by row that `log_prob` reads, and its options.
        """
        return compared(self, other, X, level, named)

    @available_if(_adapts)
    def adapt(
        self, X: Any, y: Any = None, *, environment: Any = None, sample_weight: Any = None, **fields: Any
    ) -> Self:
        """A Learner adapted to a few examples, by the strategy's inner loop or as the objective does it.

        Args:
            X, y, environment, sample_weight, fields: as in `fit`.
        """
        check_is_fitted(self)
        given: dict[str, Any] = {"environment": environment, "sample_weight": sample_weight, **fields}
        if isinstance(self.replicas, dict):
            return self.replica(self.best_replica_).adapt(X, y, **given)
        data = self._reader().read(Columns(X, y, environment, sample_weight, fields))
        if "environment" in data:
            data["environment"] = numbered_environments(self, environment, len(data["x"]))
        device = self.training_.runs[0].state.device
        seen = ("x", *self.objective_.fields, *self.objective_.companions, "weight")
        batch: Batch = {name: data[name].to(device) for name in seen if isinstance(data.get(name), Tensor)}
        adapted = copy.copy(self)
        runs = [run for k in range(len(self.seeds_)) for run in self.replica(k).training_.runs]
        for engine, state in runs:
            answer = _only([Run(engine, one) for one in answers(engine, state)]).state
            state.params, state.buffers = engine.adapt(answer, batch)
            state.statistics = {}
            engine.forget(state)
            engine.prepare(state)
        adapted.training_ = replace(self.training_, runs=runs)
        adapted.objective_ = learned(runs[0])
        return adapted

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy for classes, R squared for values, mean log-density for densities; a bound or estimate says so."""
        objective = self._objective()
        offered = objective.capabilities()
        if isinstance(X, Source):
            raise TypeError(
                f"expected rows to score, got {type(X).__name__}; of episodes measure(source) tells the means"
            )
        if "predict" in offered and y is not None:
            if objective.unlabelled:
                without_label(as_array(y), type(objective).__name__, asked=True)  # no prediction is -1
            rate = accuracy_score if objective.targets in ("classes", "multilabel") else r2_score
            return _told(
                float(rate(as_array(y), self.predict(X), sample_weight=sample_weight)), offered["predict"].kind
            )
        if "log_prob" in offered:
            named = {} if y is None or not self.log_prob.takes("y") else {"y": y}
            mean = float(np.average(self.log_prob(X, **named), weights=sample_weight))
            return _told(mean, self.log_prob.kind)
        raise AttributeError(f"{type(objective).__name__} has no score: expected predict (with y) or log_prob")

    def measure(
        self, source: Source, episodes: int = 600, *, level: float = 0.95, random_state: Any = 0
    ) -> dict[str, Expectation]:
        """What the objective measures of episodes, such as `accuracy` and `loss`: means, with intervals over them.

        A strategy that adapts, such as MAML, does so to each support part and is measured on the query part. With
        replicas the mean of what each measures. The interval is over episodes of the source's tasks, for this training.

        Args:
            source: of episodes, such as `Episodes((X, y), ways=5)` of classes that training has not seen.
            episodes: how many are drawn.
            level: of the intervals.
            random_state: what fixes the episodes: the same for every learner.

        Example:
            >>> from weft import Learner
            >>> from weft.data import sinusoids
            >>> from weft.objectives import Regression
            >>> from weft.sources import Episodes
            >>> from weft.strategies import MAML
            >>> few = Learner(Regression(hidden=(8,)), strategy=MAML(), steps=5, random_state=0)
            >>> few.fit(Episodes(sinusoids, tasks=5)).measure(Episodes(sinusoids), 100)["loss"].n
            100
        """
        return measured_by_episode(self, source, episodes, level, random_state)

    def replica_scores(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.float64]:
        """The score of each replica by itself, as `score` takes it; NaN where one has diverged.

        Example:
            >>> from sklearn.datasets import load_iris
            >>> from weft import Classifier
            >>> X, y = load_iris(return_X_y=True)
            >>> Classifier(replicas=3, epochs=1, random_state=0).fit(X, y).replica_scores(X, y).shape
            (3,)
        """
        check_is_fitted(self)
        scores = [
            math.nan if diverged else self.replica(k).score(X, y, sample_weight)
            for k, diverged in enumerate(self.training_.diverged)
        ]
        return np.array(scores)

    def progress(self) -> tuple[str, Any]:
        """The objective's progress measure in the last record: its name and value (less is better)."""
        check_is_fitted(self)
        return progress_of(self.training_.runs[0].engine, self.history_[-1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            objective = self._objective()
        except TypeError:
            return tags
        tags.input_tags.allow_nan = objective.gaps
        if "y" in objective.fields:
            tags.target_tags.required = True
            if objective.targets in ("classes", "multilabel"):
                several = objective.targets == "multilabel"
                tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_label=several)
            else:
                tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
                tags.target_tags.multi_output = True
                tags.target_tags.positive_only = objective.targets in ("counts", "amounts")
        return tags
