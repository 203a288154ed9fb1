"""The command `weft`."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import weft
from weft.commands.app import app
from weft.commands.job import Job
from weft.core.catalogue import entries
from weft.learner.folder import Folder


def run(*args):
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"weft {weft.__version__}\n"


@pytest.mark.parametrize("room", ["objectives", "strategies", "sources", "nets", "attacks"])
def test_lists_a_room_by_family(room):
    result = run("list", room)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    others = {e.name for e in entries()} - {e.name for e in entries(room)}
    names = {line.split("│")[1].strip() for line in lines if line.startswith("│")}
    assert {e.name for e in entries(room)} <= names
    assert not names & others
    titles = {line.strip() for line in lines if line.startswith(room)}
    assert titles == {f"{room}: {e.family}" if e.family else room for e in entries(room)}


def test_lists_everything_with_summary_and_reference():
    text = " ".join(run("list").output.replace("│", " ").split())
    for entry in entries():
        assert entry.name in text
    assert "Follows a gradient component only where enough environments agree on its sign." in text
    assert "arXiv 2009.00329" in text


def test_unknown_room_suggests_the_closest():
    result = run("list", "strategy")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "got 'strategy'; did you mean 'strategies'?" in result.stderr


def test_starts_without_torch():
    code = "import sys, weft.commands.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- tables -------------------------------------------------------------------------------------------

QUICK = ["--epochs", "3", "--seed", "1"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table with numbers, categories, true/false, gaps, a site and a formula as a class."""
    rng = np.random.default_rng(0)
    lines = ["age,colour,smokes,site,price,--target,kind"]
    for i in range(120):
        age, colour = rng.normal(40, 12), ["red", "green", "blue"][rng.integers(3)]
        cell = "" if i % 10 == 3 else f"{age:.2f}"
        kind = "=1+1" if (age > 40) != (colour == "red") else "no"
        smokes = ["true", "false"][rng.integers(2)]
        lines.append(f"{cell},{colour},{smokes},{'abc'[i % 3]},{5000 + 100 * age:.1f},{i % 2},{kind}")
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    """A run with environments and replicas, and what `weft fit --json` said."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ["--target", "kind", "--environment", "site", "--strategy", "and-mask(threshold=0.3)"]
    result = run("fit", str(table), *options, "--replicas", "2", "--epochs", "20", "--out", str(folder), "--json")
    assert result.exit_code == 0, result.stderr
    return folder, json.loads(result.stdout)


def refused(result, *messages, status=1):
    """An error is one line on stderr, and nothing on stdout."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    for message in messages:
        assert message in result.stderr


def test_fit_tells_the_result_as_json(fitted):
    folder, result = fitted
    assert result["rows"] == {"training": 96, "held_out": 24}
    assert result["measure"] == "accuracy"
    assert result["held_out"] > 0.6
    assert result["interval"][0] < result["held_out"] < result["interval"][1]
    assert result["environments"].keys() == {"a", "b", "c"}
    assert sum(part["rows"] for part in result["environments"].values()) == 24
    assert len(result["replicas"]) == 2
    assert result["strategy"] == "ANDMask(threshold=0.3)"
    assert {p.name for p in folder.iterdir()} >= {"config.json", "recipe.json", "metrics.jsonl", "state.json"}


def test_held_out_score_is_of_rows_that_were_not_trained_on(fitted, table):
    folder, result = fitted
    job = Job.open(folder)
    arrays = job.recipe.apply(job.read(), quiet=True)
    learner = weft.load(folder)
    assert learner.score(arrays.X[arrays.held], arrays.y[arrays.held]) == pytest.approx(result["held_out"])
    assert learner.score(arrays.X[~arrays.held], arrays.y[~arrays.held]) == pytest.approx(result["training"])


def test_risk_by_environment_is_told_and_drawn(fitted, table, tmp_path):
    folder, result = fitted
    found = result["risk"]
    assert (found["environment"], found["part"], found["measure"]) == ("site", "held-out", "loss")
    job = Job.open(folder)
    arrays = job.recipe.apply(job.read(), quiet=True)
    learner = weft.load(folder)
    for name, part in found["environments"].items():
        rows = arrays.held & (arrays.environment == name)
        each = []
        for k in range(2):
            p = learner.replica(k).predict_proba(arrays.X[rows])
            numbers = np.searchsorted(learner.classes_, arrays.y[rows])
            each.append(-np.log(p[np.arange(len(p)), numbers]).mean())
        assert part["rows"] == rows.sum()
        assert part["replicas"] == pytest.approx(each, rel=1e-4)
        assert part["risk"] == pytest.approx(np.mean(each), rel=1e-4)
        assert part["score"] == result["environments"][name]["score"]
        assert result["environments"][name]["risk"] == part["risk"]
    assert found["worst"] == max(found["environments"], key=lambda name: found["environments"][name]["risk"])
    assert (folder / "risk.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "risk.json").read_text()) == found
    assert json.loads(run("show", str(folder), "--json").stdout)["risk"] == found
    shown = run("show", str(folder)).stdout
    assert "risk by environment: mean loss of the held-out rows, of a replica alone" in shown
    worst = next(line for line in shown.splitlines() if line.rstrip().endswith("the worst"))
    assert worst.split()[:2] == [found["worst"], str(found["environments"][found["worst"]]["rows"])]


def test_risk_of_a_regression_and_of_training_rows(table, tmp_path):
    options = ["--target", "price", "--drop", "kind", "--environment", "site", "--epochs", "5", "--validation", "0"]
    result = run("fit", str(table), *options, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    assert "risk by environment: mean loss of the training rows\n" in result.stdout
    lines = result.stdout.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("site ")))
    assert lines[start].split() == ["site", "rows", "R2", "loss"]
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["a", "b", "c"]
    assert sum("the worst" in line for line in lines[start + 1 : start + 4]) == 1
    assert f"picture: {tmp_path / 'run'}/risk.png" in result.stdout
    (tmp_path / "run" / "risk.json").write_text('{"environments": {"a": 3}}')
    refused(run("show", str(tmp_path / "run")), "expected the risk by environment", "damaged or foreign")
    assert fit(table, tmp_path / "run", "--force").exit_code == 0  # the old run's own files go
    assert not (tmp_path / "run" / "risk.json").exists()


def test_the_worst_of_many_environments_are_shown(tmp_path):
    data = tmp_path / "many.csv"
    rows = [f"{i % 7},{i % 30},{(i * i) % 11}" for i in range(240)]
    data.write_text("x,site,y\n" + "\n".join(rows))
    options = ["--target", "y", "--environment", "site", "--objective", "regression", "--epochs", "1"]
    result = run("fit", str(data), *options, "--out", str(tmp_path / "run"))
    assert "; the 20 worst of 30\n" in result.stdout
    lines = result.stdout.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("site ")))
    risks = [float(line.split()[3]) for line in lines[start + 1 : start + 21]]
    assert risks == sorted(risks, reverse=True)
    assert lines[start + 1].rstrip().endswith("the worst")


def test_net_schedule_patience_and_device_reach_the_learner(table, tmp_path):
    folder = tmp_path / "run"
    options = ["--net", "mlp(hidden=(8,), dropout=0.5, batch_norm=True)", "--schedule", "cosine", "--device", "cpu"]
    result = fit(table, folder, *options, "--patience", "1", "--optimizer", "sgd(lr=0.0)")
    assert result.exit_code == 0, result.stderr
    learner = weft.load(folder)
    kinds = [type(layer).__name__ for layer in learner.objective_.net.features]
    assert kinds == ["Flatten", "Linear", "BatchNorm1d", "ReLU", "Dropout"]
    assert learner.objective_.net.features[-1].p == 0.5
    assert (learner.schedule, learner.patience, learner.device) == ("cosine", 1, "cpu")
    assert "without progress" in learner.stop_reason_ or learner.n_steps_ < 6
    assert run("resume", str(folder)).exit_code == 0


def test_predict_writes_csv_that_spreadsheets_do_not_run(fitted, table, tmp_path):
    folder, _ = fitted
    result = run("predict", str(folder), str(table), "--proba")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == 120
    assert {row["prediction"] for row in rows} == {"'=1+1", "no"}
    for row in rows:
        assert float(row["p(=1+1)"]) + float(row["p(no)"]) == pytest.approx(1.0, abs=1e-5)
        assert row["prediction"] == ("no" if float(row["p(no)"]) > 0.5 else "'=1+1")
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    plain = json.loads(run("predict", str(folder), str(table), "--json").stdout)
    assert plain["predictions"] == [row["prediction"].lstrip("'") for row in rows]
    assert plain["measure"] == "accuracy"
    assert plain["score"] > 0.6


def test_predict_does_not_overwrite(fitted, table, tmp_path):
    folder, _ = fitted
    out = tmp_path / "p.csv"
    assert run("predict", str(folder), str(table), "--out", str(out)).exit_code == 0
    before = out.read_text()
    assert before.startswith("row,prediction\n1,")
    refused(run("predict", str(folder), str(table), "--out", str(out)), "--force replaces it")
    refused(run("predict", str(folder), str(table), "--out", str(tmp_path)), "a folder")
    assert run("predict", str(folder), str(table), "--out", str(out), "--force", "-q").output == ""
    assert out.read_text() == before


def test_predict_counts_new_categories_and_names_missing_columns(fitted, tmp_path):
    folder, _ = fitted
    later = tmp_path / "later.csv"
    later.write_text("age,colour,smokes,price,--target\n41,teal,true,9000,1\n,red,false,8000,0\n")
    result = run("predict", str(folder), str(later))
    assert result.stdout.count("\n") == 3
    assert result.stderr == (
        "warning: categories that training has not seen, encoded as none of them: 'colour' in 1 rows\n"
    )
    later.write_text("age,color,smokes,price,--target\n41,red,true,9000,1\n")
    refused(run("predict", str(folder), str(later)), "got none called 'colour'; is it the one that is called 'color'")


def test_a_target_in_the_thousands_trains(table, tmp_path):
    options = ["--target", "price", "--drop", "kind", "--epochs", "60", "--out", str(tmp_path / "run")]
    result = json.loads(run("fit", str(table), *options, "--json").stdout)
    assert result["measure"] == "R2"
    assert result["held_out"] > 0.6
    predicted = json.loads(run("predict", str(tmp_path / "run"), str(table), "--json").stdout)
    assert 7_000 < np.mean(predicted["predictions"]) < 11_000
    refused(run("predict", str(tmp_path / "run"), str(table), "--proba"), "drop --proba")


def test_solved_objectives_and_columns_named_like_options(table, tmp_path):
    folder = tmp_path / "run"
    options = ["--target", "--target", "--drop", "kind", "--objective", "least-squares(ridge=0.1)"]
    result = run("fit", str(table), *options, "--out", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "held-out R2" in result.stdout
    assert run("resume", str(folder)).exit_code == 0
    assert "no records" in run("show", str(folder)).stdout
    refused(run("show", str(folder), "--png", str(tmp_path / "c.png")), "expected records to draw")


def test_objectives_without_a_target(table, tmp_path):
    options = ["--drop", "kind", "--objective", "gan(latent=2, hidden=(8,))", "--steps", "2"]
    result = run("fit", str(table), *options, "--out", str(tmp_path / "run"), "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["progress"]) == 1
    refused(run("predict", str(tmp_path / "run"), str(table)), "expected a run that predicts")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name it with --target COLUMN"),
        (["--target", "knd"], "did you mean 'kind'?"),
        (["--target", "kind", "--environment", "sight"], "did you mean 'site'?"),
        (["--target", "kind", "--task", "age"], "task"),
        (["--target", "kind", "--drop", "colours"], "did you mean 'colour'?"),
        (["--target", "kind", "--strategy", "and-musk"], "did you mean 'and-mask'?"),
        (["--target", "kind", "--strategy", "and-mask(treshold=1)"], "did you mean 'threshold'?"),
        (["--target", "kind", "--strategy", "and-mask(threshold=2)", "--environment", "site"], "threshold in [0, 1]"),
        (["--target", "kind", "--strategy", "and-mask"], "compares environments, got none"),
        (["--target", "kind", "--strategy", "erm+erm+"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(strength=__import__('os'))"], "expected"),
        (["--target", "kind", "--strategy", "ewc(strength=1 + 1)"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(3)"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(**{})"], "expected a name"),
        (["--target", "kind", "--strategy", "__import__('os').system('true')"], "expected a name"),
        (["--target", "kind", "--strategy", "maml"], "learns from episodes"),
        (["--target", "kind", "--objective", "clasification"], "did you mean 'classification'?"),
        (["--target", "kind", "--objective", "reinforce"], "learns from rows"),
        (["--target", "kind", "--objective", "regression"], "expected numbers in column 'kind', got '=1+1' in row"),
        (["--target", "kind", "--objective", "gan"], "leave --target out"),
        (["--target", "kind", "--optimizer", "adamm"], "did you mean 'adam'?"),
        (["--target", "kind", "--optimizer", "sgd(rate=1)"], "rate"),
        (["--target", "kind", "--epochs", "3", "--steps", "3"], "epochs or steps"),
        (["--target", "kind", "--batch-size", "-1"], "batch_size"),
        (["--target", "kind", "--replicas", "0"], "replicas"),
        (["--target", "kind", "--validation", "1.5"], "share"),
        (["--target", "kind", "--dtype", "float23"], "did you mean 'float32'?"),
        (["--target", "kind", "--schedule", "cosin"], "did you mean 'cosine'?"),
        (["--target", "kind", "--patience", "0"], "patience to be an integer >= 1"),
        (["--target", "kind", "--device", "gpu"], "expected a device that PyTorch finds here"),
        (["--target", "kind", "--net", "mpl"], "did you mean 'mlp'?"),
        (["--target", "kind", "--net", "mlp(dropuot=0.5)"], "did you mean 'dropout'?"),
        (["--target", "kind", "--net", "mlp(hidden=8)"], "expected hidden to be widths of layers"),
        (["--target", "kind", "--net", "mlp(dropout=open('x'))"], "expected a number, text or a tuple for dropout"),
        (["--objective", "gan", "--net", "mlp", "--drop", "kind"], "expected an objective with one net"),
        (["--target", "kind", "--objective", "classification(net=mpl())"], "did you mean 'mlp'?"),
        (["--target", "kind", "--strategy", "erm()(x=1)"], "expected a name"),
        (["--target", "kind", "--encoding", "nope"], "expected an encoding"),
    ],
)
def test_fit_refuses_in_one_line_and_leaves_nothing(table, tmp_path, options, message):
    folder = tmp_path / "run"
    refused(run("fit", str(table), *options, "--out", str(folder)), message)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "x.csv", "--tragte", "y"], "--target"),
        (["fit", "x.csv", "--epochs", "many"], "'--epochs'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_takes_one_line(args, message):
    refused(run(*args), message, "--help", status=2)


def test_without_a_command_there_is_help():
    assert "predict" in run().output
    for name in ("fit", "predict", "resume", "show", "list"):
        assert run(name, "--help").exit_code == 0


def test_debug_shows_where():
    result = run("fit", "nowhere.csv", "--target", "y", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: expected a file with a table, got 'nowhere.csv'")


def test_names_in_a_file_reach_the_terminal_without_control_characters(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"\x1b[31mred",[bold]y\n' + "\n".join(f"{i},{'ab'[i % 2]}" for i in range(20)))
    refused(run("fit", str(path), "--target", "z"), "'\\x1b[31mred', '[bold]y'")
    result = run("fit", str(path), "--target", "[bold]y", "--epochs", "1", "--environment", "[bold]y")
    refused(result, "one use of column '[bold]y'")
    result = run("fit", str(path), "--target", "[bold]y", "--epochs", "1", "--out", str(tmp_path / "[red]\x1b"))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "[red]" in result.stdout


# --- folders ------------------------------------------------------------------------------------------


def fit(table, folder, *more):
    return run("fit", str(table), "--target", "kind", *QUICK, "--out", str(folder), *more)


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


# --- going on -----------------------------------------------------------------------------------------


def parameters(folder):
    return {f"{i}.{n}": p for i, (_, s) in enumerate(weft.load(folder)._runs) for n, p in s.params.items()}


def same(one, other):
    one, other = parameters(one), parameters(other)
    return one.keys() == other.keys() and all(torch.equal(p, other[n]) for n, p in one.items())


OPTIONS = ["--task", "site", "--strategy", "ewc(strength=10)", "--replicas", "2"]


@pytest.fixture(scope="module")
def uninterrupted(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert fit(table, folder, *OPTIONS).exit_code == 0
    return folder


def test_the_matrix_of_tasks_is_told_and_drawn(table, tmp_path, uninterrupted):
    found = json.loads((uninterrupted / "tasks.json").read_text())
    assert (found["task"], found["part"], found["measure"], found["direction"]) == (
        "site",
        "held-out",
        "accuracy",
        "max",
    )
    job = Job.open(uninterrupted)
    arrays = job.recipe.apply(job.read(), quiet=True)
    first = [list(arrays.task[~arrays.held]).index(name) for name in found["names"]]
    assert first == sorted(first)  # learned in the order of their first rows
    learner = weft.load(uninterrupted)
    assert learner.tasks_ == found["names"]
    for j, name in enumerate(found["names"]):
        rows = arrays.held & (arrays.task == name)
        assert found["rows"][j] == rows.sum()
        last = [learner.replica(k).score(arrays.X[rows], arrays.y[rows]) for k in range(2)]
        assert [run["matrix"][-1][j] for run in found["replicas"]] == pytest.approx(last)
        assert found["matrix"][-1][j] == pytest.approx(np.mean(last))
    R = np.array([run["matrix"] for run in found["replicas"]])
    assert found["measures"]["average"]["value"] == pytest.approx(R[:, -1].mean())
    lost = [np.mean([r[j, j] - r[-1, j] for j in range(len(r) - 1)]) for r in R]
    assert found["measures"]["forgetting_learned"]["replicas"] == pytest.approx(lost)
    assert (uninterrupted / "tasks.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("show", str(uninterrupted), "--json").stdout)["matrix"] == found
    shown = run("show", str(uninterrupted), "--png", str(tmp_path / "all.png")).stdout
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    lines = shown.splitlines()
    start = lines.index("accuracy on each task (columns) after each (lines), held-out rows, of a replica alone:")
    assert lines[start + 1].split() == found["names"]
    assert lines[start + 2].split() == ["before", *(f"{v:.3f}" for v in found["before"])]
    assert f"average accuracy {found['measures']['average']['value']:.3f}" in " ".join(shown.split())


def test_the_matrix_is_that_of_partial_fit(table, tmp_path, uninterrupted):
    from weft.measures import accuracy_matrix

    found = json.loads((uninterrupted / "tasks.json").read_text())
    job = Job.open(uninterrupted)
    arrays = job.recipe.apply(job.read(), quiet=True)
    learner = job.options.make_learner(job.recipe, arrays, None, verbose=False)
    parts = [[values[rows] for values in (arrays.X, arrays.y, arrays.task)] for rows in (~arrays.held, arrays.held)]
    X, y, task = parts[0]
    again = accuracy_matrix(learner, X, y, task=task, test=tuple(parts[1]))
    assert again.names == found["names"]
    np.testing.assert_allclose(again.values, [run["matrix"] for run in found["replicas"]])
    np.testing.assert_allclose(again.before, [run["before"] for run in found["replicas"]])


def test_the_matrix_of_values_of_training_rows_and_of_many_tasks(tmp_path):
    data = tmp_path / "many.csv"
    rows = [f"{i % 7},t{i // 15},{(i * i) % 11 + 0.5}" for i in range(240)]
    data.write_text("x,month,y\n" + "\n".join(rows))
    options = ["--target", "y", "--task", "month", "--epochs", "1", "--validation", "0"]
    result = run("fit", str(data), *options, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    start = lines.index("R2 on each task (columns) after each (lines), training rows:")
    assert lines[start + 1].split() == ["learned", "at", "the", "end"]
    assert [line.split()[0] for line in lines[start + 2 : start + 18]] == [f"t{i}" for i in range(16)]
    assert f"picture: {tmp_path / 'run'}/tasks.png" in lines
    for broken in ('{"names": ["a"]}', "[", '{"names": ["a"], "replicas": [], "before": null, "matrix": [[1, 2]]}'):
        (tmp_path / "run" / "tasks.json").write_text(broken)
        refused(run("show", str(tmp_path / "run")), "expected scores by task", "damaged or foreign")
    assert (
        run("fit", str(data), "--target", "y", "--drop", "month", "--out", str(tmp_path / "run"), "--force").exit_code
        == 0
    )
    assert not (tmp_path / "run" / "tasks.json").exists()  # the old run's own files go


def test_a_density_on_tasks_is_measured_by_its_progress(tmp_path):
    data = tmp_path / "draws.csv"
    data.write_text("a,b,month\n" + "\n".join(f"{i % 7},{(i * i) % 11},{'xy'[i // 40]}" for i in range(80)))
    result = run(
        "fit",
        str(data),
        "--objective",
        "gan",
        "--task",
        "month",
        "--steps",
        "3",
        "--out",
        str(tmp_path / "run"),
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["matrix"]
    assert found["measure"] not in ("accuracy", "R2")
    assert np.shape(found["matrix"]) == (2, 2)


@pytest.mark.parametrize("moment", [1, 3, 7])
def test_ctrl_c_saves_and_resume_ends_as_if_nothing_had_happened(table, tmp_path, monkeypatch, uninterrupted, moment):
    folder, calls, keep = tmp_path / "run", [], Folder.keep

    def interrupt(self, learner, **options):
        keep(self, learner, **options)
        calls.append(1)
        if len(calls) == moment:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "keep", interrupt)
        result = fit(table, folder, *OPTIONS)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == f"interrupted; go on with: weft resume {folder}\n"
    assert not same(folder, uninterrupted)
    result = run("resume", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "resumed at step" in result.stdout
    assert same(folder, uninterrupted)
    assert (folder / "tasks.json").read_text() == (uninterrupted / "tasks.json").read_text()
    assert "it had already ended" in run("resume", str(folder)).stdout
    assert (folder / "tasks.json").read_text() == (uninterrupted / "tasks.json").read_text()


def test_a_run_without_a_checkpoint_begins_anew(table, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("recipe.json", "config.json"):
        shutil.copy(uninterrupted / name, folder / name)
    refused(run("predict", str(folder), str(table)), "had not come to a checkpoint")
    assert run("resume", str(folder), "-q").output == ""
    assert same(folder, uninterrupted)


def test_resume_wants_the_same_data(table, tmp_path):
    data, folder = tmp_path / "data.csv", tmp_path / "run"
    shutil.copy(table, data)
    assert fit(data, folder).exit_code == 0
    data.rename(tmp_path / "moved.csv")
    refused(run("resume", str(folder)), "which is not there; if it was moved: --data PATH")
    assert run("resume", str(folder), "--data", str(tmp_path / "moved.csv")).exit_code == 0
    data.write_text(table.read_text().replace("red", "rot"))
    refused(run("resume", str(folder)), "put the file back, or fit anew")


# --- curves -------------------------------------------------------------------------------------------


def test_show_draws_the_curves(fitted, tmp_path):
    folder, result = fitted
    shown = run("show", str(folder), "--png", str(tmp_path / "c.png")).stdout
    assert "loss   . training, o validation   (median of 2 replicas)" in shown
    assert "accuracy" in shown
    assert f"at step {result['steps']}:" in shown
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    refused(run("show", str(folder), "--png", str(tmp_path / "c.png")), "--force replaces it")
    told = json.loads(run("show", str(folder), "--json").stdout)
    assert len(told["records"]) == 20
    assert told["records"][-1]["step"] == result["steps"]
    assert len(told["records"][0]["valid_loss"]) == 2


def test_show_reads_what_a_crash_has_left(fitted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fitted[0], folder)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-40])
    assert len(json.loads(run("show", str(folder), "--json").stdout)["records"]) == 19
    (folder / "metrics.jsonl").write_text("{]\n" + text)
    refused(run("show", str(folder)), "line 1")


# --- as a process -------------------------------------------------------------------------------------


def command(*args, **env):
    code = "import sys; from weft.commands.app import app; sys.argv[0] = 'weft'; app()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def test_piped_output_has_no_control_characters_and_ctrl_c_ends_with_130(table, tmp_path):
    folder = tmp_path / "run"
    going = command("fit", table, "--target", "kind", "--epochs", "100000", "--out", folder)
    deadline = time.monotonic() + 60
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=60)
    assert going.returncode == 130
    assert (out, err) == ("", f"interrupted; go on with: weft resume {folder}\n")
    ended = command("show", folder)
    out, err = ended.communicate(timeout=60)
    assert ended.returncode == 0
    assert err == ""
    assert "loss" in out
    assert all(c.isprintable() or c == "\n" for c in out)


def test_shell_completion():
    going = command(_WEFT_COMPLETE="complete_bash", COMP_WORDS="weft fit --tar", COMP_CWORD="2")
    assert "--target" in going.communicate(timeout=60)[0]
