"""Folders of runs that weft 0.1.0 wrote before its rooms were built: they load, and answer as they did."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft

HERE = Path(__file__).parent / "folders"


def test_a_learner_s_folder_still_answers():
    told = json.loads((HERE / "expected.json").read_text())
    with pytest.warns(UserWarning, match="kept by an earlier version of weft, without manifest.json"):
        learner = weft.load(HERE / "learner")
    np.testing.assert_allclose(learner.predict_proba(told["X"]), told["predict_proba"], rtol=1e-6)
    assert learner.tasks_ == told["tasks"]
    assert learner.stop_reason_ == told["stop_reason"]
    assert learner.n_steps_ == told["steps"]


def test_a_learner_s_folder_can_be_gone_on_with(tmp_path):
    shutil.copytree(HERE / "learner", tmp_path / "run")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    with pytest.warns(UserWarning, match="kept by an earlier version"):
        learner = weft.load(tmp_path / "run")
    before = learner.n_steps_
    learner.partial_fit(X, y, environment=np.arange(60) % 3, task="july")
    assert learner.tasks_ == ["may", "june", "july"]
    assert learner.n_steps_ > before


def test_a_run_of_the_command_line_still_predicts(tmp_path):
    from weft.commands.app import app

    out = tmp_path / "predictions.csv"
    asked = ["predict", str(HERE / "fitted"), str(HERE / "table.csv"), "--proba", "--out", str(out)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    new, old = (np.genfromtxt(path, delimiter=",", dtype=str) for path in (out, HERE / "predictions.csv"))
    assert (new[:, 1] == old[:, 1]).all()
    np.testing.assert_allclose(new[1:, 2:].astype(float), old[1:, 2:].astype(float), rtol=1e-5)


def test_a_format_of_another_version_is_refused(tmp_path):
    shutil.copytree(HERE / "learner", tmp_path / "run")
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    state["format"] = 99
    (tmp_path / "run" / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="99"):
        weft.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["preset", "swept", "own"])
def test_a_preset_s_net_was_called_module(name):
    """Kept when `Classifier(module=...)` was its name."""
    told = json.loads((HERE / "presets.json").read_text())
    nets = {"module": torch.nn.Sequential(torch.nn.Linear(3, 2))} if name == "own" else {}
    learner = weft.load(HERE / name, **nets)
    np.testing.assert_allclose(learner.predict_proba(told["X"]), told[name], rtol=1e-6)
    assert callable(learner.module)
