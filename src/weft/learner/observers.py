"""Observers: callbacks that write a training's records to where others look at them.

    Learner(..., callbacks=[TensorBoard("out")])

An observer writes each record as it comes. It opens nothing before the first one, so that it can be
copied and pickled with its Learner, and a copy starts by itself. When the step goes back, another
training has begun (`fit` anew, or the next of replicas that are trained one after another), and it is
written as another run. Of several processes the first writes.

With replicas a column `loss` becomes `loss/0`, `loss/1`, ... and `loss/mean`, the mean over those that
are still going. What is undefined (None, NaN) is left out.

A failure of an observer's own (a full disk, a server that is gone) is told once and ends the observing,
not the training; the records are in `history_` in any case.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from weft.core.configured import Configured
from weft.core.values import jsonable
from weft.engine.distributed import world

__all__ = ["JSONL", "MLflow", "TensorBoard"]


def _require(package: str, extra: str) -> None:
    """Raises where a package is missing; looks for it without importing it, which would take seconds."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"expected the package {package!r}, got none; pip install 'weft[{extra}]'")


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """A record's numbers by tag.

    >>> list(_scalars({"step": 3, "loss": np.array([1.0, np.nan, 2.0]), "lr": 0.1, "accuracy": None}))
    [('loss/0', 1.0), ('loss/2', 2.0), ('loss/mean', 1.5), ('lr', 0.1)]
    """
    for name, value in record.items():
        if name == "step" or isinstance(value, str):
            continue
        values = np.asarray(value, dtype=float)
        defined = {k: float(v) for k, v in enumerate(values.reshape(-1)) if not np.isnan(v)}
        if values.ndim == 0:
            yield from ((name, v) for v in defined.values())
        elif defined:
            yield from ((f"{name}/{k}", v) for k, v in defined.items())
            yield f"{name}/mean", sum(defined.values()) / len(defined)


class _Observer(Configured):
    """What observers share: runs, several processes, failures, the end.

    State, which copies do not take along:
        _step: the last step written; a smaller one begins another run.
        _run: the run's number.
        _end: closes what is open: on `close`, when the observer is no more, or when Python exits.
        _failed: whether a failure has ended the observing of this run.
    """

    _step = -1
    _run = 1
    _end: weakref.finalize[..., Any] | None = None
    _failed = False

    def __call__(self, record: dict[str, Any]) -> None:
        """Writes a record of `history_`."""
        if world()[0] != 0:
            return
        step = int(record["step"])
        if step <= self._step:
            self.close()
            self._run += 1
            self._failed = False
        self._step = step
        if not self._failed:
            self._try(lambda: self._write(step, record))

    def close(self) -> None:
        """Closes what is open. A later record opens it again."""
        end, self._end = self._end, None
        if end is not None:
            self._try(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.get_params(deep=False)

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            self._failed = True
            end, self._end = self._end, None
            if end is not None:
                end.detach()  # what has failed is not tried again at exit
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"{type(self).__name__} stops observing: {type(error).__name__}: {reason}; the training goes on, and "
                "its records are in history_",
                RuntimeWarning,
                stacklevel=3,
            )

    def _write(self, step: int, record: dict[str, Any]) -> None:
        if self._end is None:
            self._end = weakref.finalize(self, self._open(step))
        self._put(step, record)

    def _open(self, step: int) -> Callable[[], Any]:
        """Opens what `_put` writes to, and returns what closes it, which must not refer to the observer."""
        return lambda: None

    def _put(self, step: int, record: dict[str, Any]) -> None:
        raise NotImplementedError


class JSONL(_Observer):
    """Appends each record to a file as a line of JSON, as a run's folder has them in `metrics.jsonl`.

    What JSON has no number for (NaN, infinity) is null, and a value over replicas is a list.

    Args:
        path: the file; it and its folder are made where they are not there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     JSONL(f"{folder}/metrics.jsonl")({"step": 10, "loss": np.array([0.5, np.nan])})
        ...     print(Path(folder, "metrics.jsonl").read_text())
        {"step": 10, "loss": [0.5, null]}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def _put(self, step: int, record: dict[str, Any]) -> None:
        line = f"{json.dumps(jsonable(record))}\n".encode()
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            length = file.tell()
            if file.write(line) < len(line):
                file.truncate(length)  # half a line would make the whole file unreadable to many
                raise OSError(errno.ENOSPC, f"no space left for a line in {self.path}")


class TensorBoard(_Observer):
    """Writes each column of the records as a scalar for TensorBoard: `tensorboard --logdir FOLDER`.

    Args:
        folder: where the event files go, one folder for one training (a further run of the same
            observer is in `run-2` within it, and so on). A training that is resumed goes on there:
            what was written from its first step on is hidden by TensorBoard.

    Example:
        >>> import tempfile
        >>> from weft import Regressor
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TensorBoard(folder) as board:
        ...         model = Regressor(epochs=2, callbacks=[board]).fit(X, X[:, 0])
        ...     print([file.name.partition(".")[0] for file in Path(folder).iterdir()])
        ['events']
    """

    def __init__(self, folder: str | Path) -> None:
        _require("tensorboard", "tensorboard")
        self.folder = folder

    def _open(self, step: int) -> Callable[[], Any]:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(self.folder) if self._run == 1 else Path(self.folder) / f"run-{self._run}"
        self._writer = SummaryWriter(str(folder), purge_step=step)
        return self._writer.close

    def _put(self, step: int, record: dict[str, Any]) -> None:
        for tag, value in _scalars(record):
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()


class MLflow(_Observer):
    """Writes each column of the records as a metric of an MLflow run, which is ended by `close` or at exit.

    MLflow's active run and settings are left alone. A server that does not answer is asked again for some
    minutes, by MLflow's own rules (`MLFLOW_HTTP_REQUEST_MAX_RETRIES`), before the observing ends.

    Args:
        experiment: the experiment's name; it is made where it is not there.
        tracking_uri: a server or a store, such as `sqlite:///mlflow.db`; None for MLflow's own setting.
        run_name: the run's name, a further run's with a number behind; None for one of MLflow's making.
        run_id: a run to write into instead of a new one (that of a training which is resumed, or MLflow's
            active one); to end it is left to you.
        params: what to note as a new run's parameters, such as `learner.get_params()`.

    Attributes:
        run_id_: the run that was written last.

    Example:
        >>> from weft import Classifier
        >>> observer = MLflow(experiment="iris", tracking_uri="sqlite:///mlflow.db", params={"hidden": 64})
        >>> clf = Classifier(hidden=(64,), callbacks=[observer])  # then clf.fit(X, y), and observer.close()
    """

    def __init__(
        self,
        *,
        experiment: str = "weft",
        tracking_uri: str | None = None,
        run_name: str | None = None,
        run_id: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        _require("mlflow", "mlflow")
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.run_name = run_name
        self.run_id = run_id
        self.params = params

    def _open(self, step: int) -> Callable[[], Any]:
        from mlflow import MlflowClient

        self._client = client = MlflowClient(tracking_uri=self.tracking_uri)
        if self.run_id is not None and self._run == 1:
            self.run_id_ = self.run_id
            return lambda: None
        if getattr(self, "_opened", 0) == self._run:
            client.update_run(self.run_id_, status="RUNNING")  # closed, and now gone on with
        else:
            name = self.run_name if self.run_name is None or self._run == 1 else f"{self.run_name}-{self._run}"
            self.run_id_ = client.create_run(self._experiment(), run_name=name).info.run_id
            self._opened = self._run
            self._note_params()
        return partial(client.set_terminated, self.run_id_)

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(self.experiment)
        if known is None:
            try:
                return self._client.create_experiment(self.experiment)
            except MlflowException:  # another process may have been quicker
                known = self._client.get_experiment_by_name(self.experiment)
                if known is None:
                    raise
        return known.experiment_id

    def _note_params(self) -> None:
        from mlflow.entities import Param

        noted = [Param(_named(name), str(value)) for name, value in (self.params or {}).items()]
        for first in range(0, len(noted), 100):  # as many as MLflow takes at once; of metrics 1,000
            self._client.log_batch(self.run_id_, params=noted[first : first + 100], synchronous=True)

    def _put(self, step: int, record: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_named(tag), value, now, step) for tag, value in _scalars(record)]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self.run_id_, metrics=metrics[first : first + 1000], synchronous=True)


def _named(tag: str) -> str:
    """A name of characters that MLflow takes.

    >>> _named("top-1 accuracy (%)")
    'top-1 accuracy ___'
    """
    return re.sub(r"[^\w.\- :/]", "_", tag)
