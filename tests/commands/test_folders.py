"""Folders of runs: made, replaced when asked to, never taken from others."""

import json
import shutil

import numpy as np
import pytest
from tests.commands.command_cases import fit, refused, run

import weft


def test_nothing_is_overwritten_without_force(table, tmp_path):
    folder = tmp_path / "run"
    assert fit(table, folder, "-q").output == ""
    before = (folder / "state.json").read_bytes()
    refused(fit(table, folder), "with a run in it", "--force", f"weft resume {folder}")
    assert (folder / "state.json").read_bytes() == before
    for bad in (["--strategy", "and-mask"], ["--steps", "3"], ["--optimizer", "sgd(rate=1)"]):
        refused(fit(table, folder, "--force", *bad), "expected" if bad[0] != "--strategy" else "compares environments")
    assert (folder / "state.json").read_bytes() == before  # not given up for a run that cannot begin
    assert fit(table, folder, "--force", "--seed", "2").exit_code == 0
    assert (folder / "state.json").read_bytes() != before
    (folder / "thesis.txt").write_text("mine")
    refused(fit(table, folder, "--force"), "what is not a run's ('thesis.txt')")
    assert (folder / "thesis.txt").read_text() == "mine"


def test_foreign_folders_are_left_alone(table, tmp_path):
    for content in ({"config.json": "{}"}, {"config.json": '{"weft": 1}'}, {"notes.txt": "x"}, {"state.json": "[]"}):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
        refused(fit(table, folder, "--force"), "what is not a run's")
        assert {p.name: p.read_text() for p in folder.iterdir()} == content
        for command in ("resume", "show"):
            refused(run(command, str(folder)), "another kind of folder")
        refused(run("predict", str(folder), str(table)), "another kind of folder")
    refused(fit(table, table, "--force"), "got the file")
    for command in ("resume", "show"):
        refused(run(command, str(tmp_path / "nowhere")), "which is not there")
        refused(run(command, str(table)), "got the file")


def test_default_folders_do_not_collide(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/people", "runs/people-2"):
        result = run("fit", str(table), "--target", "kind", "--epochs", "1", "--json")
        assert json.loads(result.stdout)["run"] == name


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: {**plain, "format": 7},
        lambda plain: {**plain, "options": {**plain["options"], "epochs": "many"}},
        lambda plain: {**plain, "options": {**plain["options"], "shell": "rm"}},
        lambda plain: {**plain, "recipe": {**plain["recipe"], "columns": 3}},
        lambda plain: {"weft": "0", "recipe": {}},
    ],
)
def test_damaged_recipes_are_refused(fitted, table, tmp_path, change):
    folder = tmp_path / "run"
    shutil.copytree(fitted[0], folder)
    plain = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps(change(plain)))
    refused(run("predict", str(folder), str(table)), "damaged or foreign")
    (folder / "recipe.json").write_text("{")
    refused(run("predict", str(folder), str(table)), "damaged or foreign")


def test_runs_made_in_python_are_told_apart(table, tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 2))
    weft.Classifier(epochs=1, folder=tmp_path / "run", random_state=0).fit(X, X[:, 0] > 0)
    refused(run("predict", str(tmp_path / "run"), str(table)), "made in Python")
    assert "loss" in run("show", str(tmp_path / "run")).stdout
