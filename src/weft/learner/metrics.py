"""Metrics of what is held out: scikit-learn's scorers and torchmetrics' metrics, taken at each record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.metrics._scorer import _BaseScorer
from torch import Tensor

from weft.core.configured import closest
from weft.core.legal import told
from weft.core.objective import Objective
from weft.core.source import Batch, Source
from weft.core.state import State
from weft.engine.engine import Engine
from weft.engine.replicas import apart, fresh
from weft.learner.watching import present

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["Judge", "check_metrics", "metrics_of", "monitored"]

_ROWS = 2**16
Metric = Any
"""A scorer `scorer(estimator, X, y)`, or a `torchmetrics.Metric`."""


def _is_torch(metric: object) -> bool:
    """Whether it is one of torchmetrics' or a class of theirs, which are imported only where one is given."""
    kind = metric if isinstance(metric, type) else type(metric)
    return any(cls.__module__.partition(".")[0] == "torchmetrics" for cls in kind.__mro__)


def _named(name: str) -> Metric:
    """A scorer of scikit-learn's, or a class of torchmetrics', by its name."""
    if name in get_scorer_names():
        return get_scorer(name)
    if not name[:1].isupper():
        raise closest(name, get_scorer_names(), "the name of a scorer of scikit-learn")
    try:
        import torchmetrics
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        raise ImportError(
            f"expected torchmetrics for the metric {name!r}, got none ({error}); pip install 'weft[vision]'"
        ) from error
    known = [each for each in torchmetrics.__all__ if isinstance(getattr(torchmetrics, each), type)]
    if name not in known:
        raise closest(name, known, "the name of a metric of torchmetrics")
    return getattr(torchmetrics, name)


def _made(name: str, metric: Metric, objective: Objective, classes: int) -> Metric:
    """An object of torchmetrics to be asked once; one given by name is made for the targets at hand."""
    if not isinstance(metric, type):
        return metric.clone()
    asked: dict[str, object] = {}
    if "task" in signature(metric.__new__).parameters:
        asked = {"task": "multiclass", "num_classes": classes}
        if objective.targets == "multilabel":
            asked = {"task": "multilabel", "num_labels": classes}
        elif objective.targets == "classes" and classes == 2:
            asked = {"task": "binary"}
    try:
        return metric(**asked)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected a metric of torchmetrics that needs no settings, got {name}: {error}; give the object itself"
        ) from error


def metrics_of(given: object) -> dict[str, Metric]:
    """The `metrics` parameter by name: scikit-learn's scorers and torchmetrics' objects, or their names."""
    if isinstance(given, str) or not isinstance(given, Mapping | list | tuple):
        raise TypeError(f"expected a list of metrics such as ['roc_auc'], or metrics by name, got {told(given)}")
    found: dict[str, Metric] = {}
    for name, metric in given.items() if isinstance(given, Mapping) else [(None, metric) for metric in given]:
        if isinstance(metric, str):
            called, metric = metric, _named(metric)
        elif isinstance(metric, _BaseScorer):
            called = metric._score_func.__name__
        elif _is_torch(metric):
            called = type(metric).__name__
        elif callable(metric) and not isinstance(metric, type):
            called = getattr(metric, "__name__", type(metric).__name__)
        else:
            raise TypeError(
                "expected a metric's name, a scorer (sklearn.metrics.make_scorer) or an object of torchmetrics, got "
                f"{told(metric)}"
            )
        called = str(called if name is None else name)
        if called in found:
            raise ValueError(f"expected metrics with names of their own, got {called!r} twice; give them by name")
        found[called] = metric
    return found


def monitored(learner: Learner) -> tuple[str, str] | None:
    """The progress measure that `monitor` names, or None for the objective's own."""
    if learner.monitor is None:
        return None
    known = metrics_of(learner.metrics)
    if learner.monitor not in known:
        raise closest(str(learner.monitor), known, "one of the learner's metrics to monitor")
    metric = known[learner.monitor]
    rises: bool | None = True  # by scikit-learn's convention
    if _is_torch(metric):
        rises = _made(learner.monitor, metric, learner._objective(), 2).higher_is_better
    if rises is None:
        raise ValueError(
            f"expected a metric that says whether more of it is better, to be monitored, got {learner.monitor!r}, "
            "whose higher_is_better is None"
        )
    return learner.monitor, "max" if rises else "min"


def check_metrics(learner: Learner, objective: Objective) -> None:
    """Raises for metrics that could not be taken."""
    found = metrics_of(learner.metrics)
    monitored(learner)
    offered = objective.capabilities()
    if found and "y" not in objective.fields:
        raise ValueError(
            f"expected an objective that learns y beside metrics={list(found)}, got {type(objective).__name__}; report "
            "what it measures by its measure()"
        )
    for name, metric in found.items():
        wanted = getattr(metric, "_response_method", "predict") if not _is_torch(metric) else ()
        needs = [wanted] if isinstance(wanted, str) else list(wanted)
        needs = ["predict"] if needs == ["default"] else needs
        if needs and not any(need in offered for need in needs):
            raise ValueError(
                f"expected an objective that offers {' or '.join(needs)}, which the metric {name!r} asks, got "
                f"{type(objective).__name__}, which offers {', '.join(offered)}; choose another metric or loss"
            )


class Judge:
    """Takes a Learner's metrics of a run, replica by replica, on the validation's rows.

    Every process takes them of all rows.
    """

    def __init__(self, learner: Learner, validation: Source) -> None:
        self.learner, self.validation, self.metrics = learner, validation, metrics_of(learner.metrics)

    def __call__(self, engine: Engine, state: State) -> dict[str, Tensor]:
        """By name, for each replica."""
        seen = present(self.learner, engine, state, kept=False)
        looking = fresh(self.validation, state)
        columns: dict[str, list[float]] = {name: [] for name in self.metrics}
        for k in range(state.replicas or 1):
            lost = not bool(state.active.reshape(-1)[k]) and k in state.stopped
            one = seen if state.replicas is None else None if lost else seen.replica(k)
            rows = self._rows(looking.replica(k))
            for name, metric in self.metrics.items():
                columns[name].append(math.nan if one is None else self._taken(name, metric, one, rows))
        values = {
            name: torch.tensor(column, dtype=torch.float64, device=state.device) for name, column in columns.items()
        }
        return {name: value if state.replicas else value[0] for name, value in values.items()}

    def _rows(self, run: State) -> Batch:
        parts = list(self.validation.once(apart(run), _ROWS))
        rows: Batch = {
            name: torch.cat([part[name] for part in parts]).cpu() for name in ("x", "y", "weight") if name in parts[0]
        }
        if not run.objective.unlabelled:
            return rows
        known = rows["y"] >= 0
        if not bool(known.any()):
            raise ValueError(
                "expected some rows with a label to hold out, of which metrics tell, got -1 in all of them"
            )
        return {name: values[known] for name, values in rows.items()}

    def _taken(self, name: str, metric: Metric, learner: Learner, rows: Batch) -> float:
        x, y, weight = rows["x"], rows["y"], rows.get("weight")
        if _is_torch(metric):
            return self._by_torch(name, metric, learner, rows)
        true = learner.classes_[y.numpy()] if learner.objective_.targets == "classes" else y.numpy()
        if weight is None:
            return float(metric(learner, x, true))
        if not isinstance(metric, _BaseScorer):
            raise ValueError(
                f"expected rows without weights for the metric {name!r}, a plain function, got some; make it a scorer: "
                "sklearn.metrics.make_scorer"
            )
        return float(metric(learner, x, true, sample_weight=weight.numpy()))

    def _by_torch(self, name: str, metric: Metric, learner: Learner, rows: Batch) -> float:
        if "weight" in rows:
            raise ValueError(
                f"expected rows without weights for torchmetrics' {name!r}, got some; take a scorer instead"
            )
        y = rows["y"]
        many = y.shape[-1] if y.dim() > 1 else len(getattr(learner, "classes_", ()))
        own = _made(name, metric, learner.objective_, many)
        own.sync_on_compute = False  # every process has all rows
        offered: Callable[[str], bool] = learner.objective_.capabilities().__contains__
        if offered("predict_proba"):
            said = np.asarray(learner.predict_proba(rows["x"]))
            said = said[:, 1] if learner.objective_.targets == "classes" and said.shape[1] == 2 else said
        else:
            said = np.asarray(learner.predict(rows["x"]))
        own.update(torch.as_tensor(said), y)
        value = own.compute()
        if not isinstance(value, Tensor) or value.dim():
            raise ValueError(f"expected one number of the metric {name!r}, got {told(value)}; choose its average")
        return float(value)
