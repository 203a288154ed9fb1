"""The best checkpoints are kept beside the last one, read by name or rank, and gone on from."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
import weft.learner.folder
from weft import Classifier, Learner, Optimizer
from weft.core import manifest
from weft.engine import VectorizationWarning
from weft.objectives import LeastSquares

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
Y = (X[:, 0] + 0.7 * rng.normal(size=80) > 0).astype(int)
COMMON = {"epochs": 8, "batch_size": 20, "random_state": 0, "device": "cpu", "dtype": "float64", "validation": 0.3}
WILD = {**COMMON, "optimizer": Optimizer("sgd", lr=2.0)}


def kept(folder):
    return json.loads((folder / "kept.json").read_text())["kept"]


@pytest.mark.parametrize("seconds", [0.0, 100.0])
@pytest.mark.parametrize("replicas", [None, 3])
def test_the_best_are_kept_and_answer_as_then(tmp_path, monkeypatch, seconds, replicas):
    monkeypatch.setattr(weft.learner.folder, "SECONDS", seconds)
    folder = tmp_path / "run"
    learner = Classifier(folder=folder, keep=3, replicas=replicas, **WILD).fit(X, Y)
    losses = learner.history_["valid_loss"].reshape(8, -1).mean(1)
    best = np.argsort(losses, kind="stable")[:3]
    steps = learner.history_["step"][best].astype(int)
    assert [entry["name"] for entry in kept(folder)] == [f"step-{step}" for step in steps]
    np.testing.assert_allclose([entry["value"] for entry in kept(folder)], losses[best])
    for rank, epoch in enumerate(best):
        short = Classifier(replicas=replicas, **{**WILD, "epochs": int(epoch) + 1}).fit(X, Y)
        for which in (rank, f"step-{steps[rank]}"):
            then = weft.load(folder, checkpoint=which)
            np.testing.assert_array_equal(then.predict_proba(X), short.predict_proba(X))
    np.testing.assert_array_equal(weft.load(folder).predict_proba(X), learner.predict_proba(X))
    names = {path.name for path in folder.iterdir()}
    assert names == {*manifest.opened(folder).files, manifest.NAME, ".lock"} - ({".lock"} - names)
    assert len([name for name in names if name.startswith("kept-")]) == 6


def test_it_goes_on_from_there_and_leaves_the_folder_alone(tmp_path):
    learner = Classifier(folder=tmp_path / "run", keep=2, **WILD).fit(X, Y)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    again = weft.load(tmp_path / "run", checkpoint=1).resume(X, Y)
    np.testing.assert_array_equal(again.predict_proba(X), learner.predict_proba(X))
    np.testing.assert_array_equal(again.history_["valid_loss"], learner.history_["valid_loss"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    weft.load(tmp_path / "run", checkpoint=0).set_params(folder=tmp_path / "other").resume(X, Y)
    assert weft.load(tmp_path / "other").n_steps_ == learner.n_steps_


def test_an_interrupted_run_keeps_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(weft.learner.folder, "SECONDS", 0.0)

    def interrupt(record):
        if record["epoch"] == 5:
            raise RuntimeError("pulled")

    with pytest.raises(RuntimeError, match="pulled"):
        Classifier(folder=tmp_path / "run", keep=2, callbacks=[interrupt], **WILD).fit(X, Y)
    assert len(kept(tmp_path / "run")) == 2
    weft.load(tmp_path / "run").resume(X, Y)
    Classifier(folder=tmp_path / "whole", keep=2, **WILD).fit(X, Y)
    assert kept(tmp_path / "run") == kept(tmp_path / "whole")
    for rank in (0, 1):
        one, two = (weft.load(tmp_path / name, checkpoint=rank) for name in ("run", "whole"))
        state, other = one.training_.runs[0].state, two.training_.runs[0].state
        assert all(torch.equal(state.params[n], other.params[n]) for n in state.params)


def test_tasks_replicas_one_by_one_and_what_is_solved(tmp_path):
    tasks = Classifier(folder=tmp_path / "tasks", keep=2, **COMMON).fit(X, Y, task=np.arange(80) // 40)
    assert all(entry["step"] > tasks.n_steps_ // 2 for entry in kept(tmp_path / "tasks"))
    with pytest.warns(VectorizationWarning):
        Classifier(folder=tmp_path / "apart", keep=20, replicas={"hidden": [(4,), (8,)]}, **COMMON).fit(X, Y)
    names = {entry["name"].rpartition("-step-")[0] for entry in kept(tmp_path / "apart")}
    assert names == {"replica-0", "replica-1"}
    Learner(LeastSquares(), folder=tmp_path / "solved", keep=3).fit(X, X[:, 0])
    assert [entry["name"] for entry in kept(tmp_path / "solved")] == ["step-0"]


def test_a_copy_elsewhere_has_the_last_alone(tmp_path):
    learner = Classifier(folder=tmp_path / "run", keep=2, **COMMON).fit(X, Y)
    learner.save(tmp_path / "copy")
    assert not (tmp_path / "copy" / "kept.json").exists()
    weft.load(tmp_path / "copy")
    with pytest.raises(ValueError, match=r"checkpoints beside the last one in .*got none"):
        weft.load(tmp_path / "copy", checkpoint=0)


@pytest.mark.parametrize(
    ("which", "error", "match"),
    [
        ("step-1", ValueError, "a checkpoint kept in .*got 'step-1'"),
        (2, ValueError, "among the 2 best, 0 to 1, got 2"),
        (-1, ValueError, "got -1"),
        (1.5, TypeError, "a checkpoint's name, or its rank"),
    ],
)
def test_what_is_not_there_is_told(tmp_path, which, error, match):
    Classifier(folder=tmp_path / "run", keep=2, **{**COMMON, "epochs": 3}).fit(X, Y)
    with pytest.raises(error, match=match):
        weft.load(tmp_path / "run", checkpoint=which)


def test_wrong_settings_are_refused(tmp_path):
    for settings, match in (
        ({"keep": 2}, "expected a folder beside keep=2"),
        ({"keep": 0, "folder": tmp_path / "run"}, "keep to be an integer in"),
        ({"replicas": {"keep": [1, 2]}}, "got 'keep': they share"),
    ):
        with pytest.raises(ValueError, match=match):
            Classifier(**settings, **COMMON).fit(X, Y)


def test_a_damaged_one_is_refused_and_the_last_is_read(tmp_path):
    Classifier(folder=tmp_path / "run", keep=1, **{**COMMON, "epochs": 3}).fit(X, Y)
    (path,) = (tmp_path / "run").glob("kept-*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"kept-.*safetensors as manifest.json says"):
        weft.load(tmp_path / "run", checkpoint=0)
    weft.load(tmp_path / "run")


def test_show_names_them(tmp_path):
    from weft.commands.app import app

    Classifier(folder=tmp_path / "run", keep=2, **{**COMMON, "epochs": 3}).fit(X, Y)
    said = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output
    assert "checkpoints kept: step-" in said
    plain = json.loads(CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"]).output)
    assert [entry["name"] for entry in plain["checkpoints"]] == [entry["name"] for entry in kept(tmp_path / "run")]
