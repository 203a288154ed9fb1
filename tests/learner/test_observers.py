"""Observers: what they write is read back by the readers of those who look at it."""

import copy
import json
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from weft import Classifier
from weft.engine.vectorize import VectorizationWarning
from weft.learner.observers import JSONL, MLflow, TensorBoard

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
SMALL = {"epochs": 3, "hidden": (4,), "batch_size": 20, "random_state": 0, "validation": 0.2}


def curves(folder):
    """{tag: [(step, value), ...]} by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An MLflow store of one file, without a server."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(store):
    from mlflow import MlflowClient

    return MlflowClient(store)


def metrics(client, run_id):
    """{metric: [(step, value), ...]} by MLflow's own client."""
    names = client.get_run(run_id).data.metrics
    return {name: [(m.step, m.value) for m in client.get_metric_history(run_id, name)] for name in names}


def runs(client, experiment):
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return sorted(found, key=lambda run: run.info.run_name)


def assert_same(read, history, tolerance=0.0):
    """What was read is every column of the history, step by step."""
    columns = {name for record in history for name in record} - {"step"}
    assert set(read) == columns
    for name in columns:
        steps, values = zip(*read[name], strict=True)
        assert list(steps) == history["step"].tolist()
        np.testing.assert_allclose(values, history[name], rtol=tolerance)


def assert_same_replicas(read, history, count, tolerance=0.0):
    for k in range(count):
        np.testing.assert_allclose([v for _, v in read[f"loss/{k}"]], history["loss"][:, k], rtol=tolerance)
    np.testing.assert_allclose([v for _, v in read["loss/mean"]], history["loss"].mean(1), rtol=max(tolerance, 1e-12))
    assert [s for s, _ in read["loss/mean"]] == history["step"].tolist()
    assert "loss" not in read
    assert len(read["seconds"]) == len(history)


# --- JSONL ------------------------------------------------------------------------------------------


def test_jsonl_has_the_lines_of_a_runs_folder(tmp_path):
    observer = JSONL(tmp_path / "deep" / "metrics.jsonl")
    Classifier(callbacks=[observer], folder=tmp_path / "run", replicas=2, **SMALL).fit(X, Y)
    assert (tmp_path / "deep" / "metrics.jsonl").read_text() == (tmp_path / "run" / "metrics.jsonl").read_text()


def test_jsonl_appends_and_writes_what_json_knows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    JSONL(str(path))({"step": 1, "loss": np.array([1.0, np.nan])})
    JSONL(str(path))({"step": 2, "loss": np.float64("inf"), "task": "june", "accuracy": None})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": [1.0, None]},
        {"step": 2, "loss": None, "task": "june", "accuracy": None},
    ]


# --- TensorBoard ------------------------------------------------------------------------------------


def test_tensorboard_has_every_column(tmp_path):
    with TensorBoard(tmp_path) as observer:
        clf = Classifier(callbacks=[observer], **SMALL).fit(X, Y)
        assert_same(curves(tmp_path), clf.history_, 1e-6)  # flushed with each record, not at the end
    assert "valid_accuracy" in curves(tmp_path)


def test_tensorboard_has_every_replica(tmp_path):
    with TensorBoard(tmp_path) as observer:
        clf = Classifier(callbacks=[observer], replicas=3, **SMALL).fit(X, Y)
    assert_same_replicas(curves(tmp_path), clf.history_, 3, 1e-6)


def test_tensorboard_leaves_out_what_is_undefined(tmp_path):
    with TensorBoard(tmp_path) as observer:
        observer({"step": 1, "loss": np.array([1.0, 3.0]), "accuracy": None, "recall": float("nan"), "task": "june"})
        observer({"step": 2, "loss": np.array([np.nan, 2.0]), "accuracy": 0.5, "score": np.array([np.nan, np.nan])})
    assert curves(tmp_path) == {
        "loss/0": [(1, 1.0)],
        "loss/1": [(1, 3.0), (2, 2.0)],
        "loss/mean": [(1, 2.0), (2, 2.0)],
        "accuracy": [(2, 0.5)],
    }


def test_tensorboard_goes_on_where_a_training_is_resumed(tmp_path):
    with TensorBoard(tmp_path) as killed:
        for step in (1, 2, 3):
            killed({"step": step, "loss": 1.0})
    with TensorBoard(tmp_path) as resumed:  # from the checkpoint of step 2
        for step in (3, 4):
            resumed({"step": step, "loss": 0.5})
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.5)]


def test_another_training_is_another_run(tmp_path):
    with TensorBoard(tmp_path) as observer:
        clf = Classifier(callbacks=[observer], **SMALL).fit(X, Y)
        first = clf.history_
        clf.set_params(random_state=1).fit(X, Y)
    assert_same(curves(tmp_path / "run-2"), clf.history_, 1e-6)
    assert_same(curves(tmp_path), first, 1e-6)


def test_replicas_one_after_another_are_runs(tmp_path):
    sweep = {"clip": [0.1, 1.0]}
    with TensorBoard(tmp_path) as observer, pytest.warns(VectorizationWarning):
        clf = Classifier(callbacks=[observer], replicas=sweep, **{**SMALL, "batch_size": 20}).fit(X, Y)
    second = [v for _, v in curves(tmp_path / "run-2")["loss"]]
    np.testing.assert_allclose(second, clf.history_["loss"][:, 1], rtol=1e-6)


# --- MLflow -----------------------------------------------------------------------------------------


def test_mlflow_has_every_column_and_the_parameters(store, client):
    clf = Classifier(**SMALL)
    with MLflow(experiment="one", tracking_uri=store, run_name="first", params=clf.get_params()) as observer:
        clf.set_params(callbacks=[observer]).fit(X, Y)
        assert client.get_run(observer.run_id_).info.status == "RUNNING"
    (run,) = runs(client, "one")
    assert (run.info.run_name, run.info.status, run.info.run_id) == ("first", "FINISHED", observer.run_id_)
    assert_same(metrics(client, run.info.run_id), clf.history_)
    assert run.data.params["hidden"] == "(4,)"
    assert run.data.params["epochs"] == "3"


def test_mlflow_has_every_replica_and_leaves_out_what_is_undefined(store, client):
    with MLflow(experiment="replicas", tracking_uri=store) as observer:
        clf = Classifier(callbacks=[observer], replicas=3, **SMALL).fit(X, Y)
    assert_same_replicas(metrics(client, observer.run_id_), clf.history_, 3)
    with MLflow(experiment="replicas", tracking_uri=store) as observer:
        observer({"step": 1, "loss": np.array([np.nan, 2.0]), "accuracy": None, "recall (%)": 50.0, "task": "june"})
    read = {"loss/1": [(1, 2.0)], "loss/mean": [(1, 2.0)], "recall ___": [(1, 50.0)]}
    assert metrics(client, observer.run_id_) == read


def test_mlflow_takes_more_replicas_than_it_takes_at_once(store, client):
    with MLflow(experiment="many", tracking_uri=store, params={f"p{i}": i for i in range(150)}) as observer:
        observer({"step": 1, "loss": np.arange(1200.0)})
    data = client.get_run(observer.run_id_).data
    assert data.metrics["loss/1199"] == 1199.0
    assert len(data.metrics) == 1201
    assert data.params["p149"] == "149"


def test_mlflow_runs(store, client):
    observer = MLflow(experiment="runs", tracking_uri=store, run_name="a")
    observer({"step": 1, "loss": 3.0})
    observer.close()
    observer({"step": 2, "loss": 2.0})  # gone on with, as by partial_fit
    assert client.get_run(observer.run_id_).info.status == "RUNNING"
    observer({"step": 1, "loss": 1.0})  # fit anew
    observer.close()
    first, second = runs(client, "runs")
    assert [first.info.run_name, second.info.run_name] == ["a", "a-2"]
    assert {first.info.status, second.info.status} == {"FINISHED"}
    assert metrics(client, first.info.run_id) == {"loss": [(1, 3.0), (2, 2.0)]}
    assert metrics(client, second.info.run_id) == {"loss": [(1, 1.0)]}


def test_mlflow_writes_into_a_given_run_and_leaves_its_end_to_its_owner(store, client):
    experiment = client.create_experiment("given")
    given = client.create_run(experiment).info.run_id
    with MLflow(tracking_uri=store, run_id=given) as observer:
        observer({"step": 1, "loss": 3.0})
    assert metrics(client, given) == {"loss": [(1, 3.0)]}
    assert client.get_run(given).info.status == "RUNNING"


# --- all of them ------------------------------------------------------------------------------------


def made(kind, tmp_path, store):
    if kind is JSONL:
        return JSONL(tmp_path / "metrics.jsonl")
    return TensorBoard(tmp_path / "board") if kind is TensorBoard else MLflow(experiment="all", tracking_uri=store)


KINDS = pytest.mark.parametrize("kind", [JSONL, TensorBoard, MLflow])


@KINDS
def test_copies_start_by_themselves(kind, tmp_path, store):
    observer = made(kind, tmp_path, store)
    assert pickle.loads(pickle.dumps(observer)).get_params() == observer.get_params()
    observer({"step": 5, "loss": 1.0})
    for twin in (pickle.loads(pickle.dumps(observer)), copy.deepcopy(observer), clone(observer, safe=False)):
        assert twin.get_params() == observer.get_params()
        assert twin._end is None
        twin({"step": 1, "loss": 1.0})
        twin.close()
    learner = Classifier(callbacks=[observer])
    assert repr(pickle.loads(pickle.dumps(learner)).callbacks) == repr(clone(learner).callbacks) == repr([observer])
    observer.close()
    observer.close()


@KINDS
def test_only_the_first_process_writes(kind, tmp_path, store, monkeypatch):
    monkeypatch.setattr("weft.learner.observers.world", lambda: (1, 2))
    observer = made(kind, tmp_path, store)
    observer({"step": 1, "loss": 1.0})
    assert observer._end is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "package"), [(TensorBoard, "tensorboard"), (MLflow, "mlflow")])
def test_a_missing_package_is_named_with_its_extra(kind, package, tmp_path, store, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"expected the package '{package}'.*weft\[{package}\]"):
        made(kind, tmp_path, store)


@pytest.mark.parametrize("kind", ["folder", "device", "board", "store", "server"])
def test_a_failing_observer_is_told_once_and_the_training_goes_on(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "file").write_text("in the way")
    observer = {
        "folder": lambda: JSONL(tmp_path / "file" / "metrics.jsonl"),
        "device": lambda: JSONL("/dev/full"),
        "board": lambda: TensorBoard(tmp_path / "file"),
        "store": lambda: MLflow(tracking_uri="nosuch://store"),
        "server": lambda: MLflow(tracking_uri="http://127.0.0.1:9"),
    }[kind]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        watched = Classifier(callbacks=[observer], **SMALL).fit(X, Y)
    said = [w for w in told if "stops observing" in str(w.message)]
    assert len(said) == 1
    assert said[0].category is RuntimeWarning
    assert f"{type(observer).__name__} stops observing: " in str(said[0].message)
    alone = Classifier(**SMALL).fit(X, Y)
    np.testing.assert_array_equal(watched.history_["loss"], alone.history_["loss"])
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_server_that_goes_away_is_not_asked_again(store, monkeypatch):
    def gone(*args, **kwargs):
        raise ConnectionError("no route")

    observer = MLflow(experiment="gone", tracking_uri=store)
    observer({"step": 1, "loss": 3.0})
    end = observer._end
    monkeypatch.setattr(observer._client, "log_batch", gone)
    with pytest.warns(RuntimeWarning, match="MLflow stops observing: ConnectionError: no route; the training goes on"):
        observer({"step": 2, "loss": 2.0})
    assert not end.alive  # nor at exit
    observer({"step": 3, "loss": 2.0})
    observer.close()
    monkeypatch.setattr("mlflow.MlflowClient.log_batch", gone)
    with pytest.warns(RuntimeWarning, match="stops observing"):
        observer({"step": 1, "loss": 2.0})  # another training is another attempt


FULL = """
import resource, signal, sys, threading
import numpy as np
from weft import Regressor
from weft.learner.observers import JSONL, TensorBoard
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
threading.excepthook = lambda args: None  # tensorboard's thread
def fill(record):
    if record["epoch"] == 3:  # from here on no file may be longer than this: the disk is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
X = np.linspace(0, 1, 20)[:, None]
observers = [fill, JSONL(sys.argv[1] + "/m.jsonl"), TensorBoard(sys.argv[1] + "/board")]
model = Regressor(epochs=8, hidden=(2,), random_state=0, callbacks=observers).fit(X, X[:, 0])
print(len(model.history_))
"""


@pytest.mark.turns("src/weft/learner/observers.py")
def test_a_disk_that_fills_up_keeps_what_was_written(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "8\n"
    assert done.stderr.count("JSONL stops observing: OSError") == 1
    assert done.stderr.count("TensorBoard stops observing: OSError") == 1
    lines = (tmp_path / "m.jsonl").read_text()
    assert lines.endswith("\n")
    steps = [json.loads(line)["step"] for line in lines.splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    assert 2 <= len(steps) < 8
    assert [step for step, _ in curves(tmp_path / "board")["loss"]][:2] == [1, 2]


EXIT = """
import sys
from weft.learner.observers import MLflow
observer = MLflow(experiment="exit", tracking_uri=sys.argv[1])
observer({"step": 1, "loss": 1.0})
"""


@pytest.mark.turns("src/weft/learner/observers.py")
def test_what_is_open_is_closed_at_exit(store, client):
    done = subprocess.run([sys.executable, "-c", EXIT, store], capture_output=True, text=True, check=True)
    (run,) = runs(client, "exit")
    assert run.info.status == "FINISHED"
    assert "Traceback" not in done.stderr


def test_importing_the_observers_imports_neither_package():
    code = "import sys, weft.learner.observers; sys.exit(bool({'tensorboard', 'mlflow'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
