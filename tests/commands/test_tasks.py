"""Tasks in sequence: the scores on each after each."""

import json

import numpy as np
import pytest
from tests.commands.command_cases import refused, run

import weft
from weft.commands.job import Job
from weft.core.manifest import unsealed_beside


def test_the_matrix_of_tasks_is_told_and_drawn(table, tmp_path, uninterrupted):
    matrix = unsealed_beside(uninterrupted / "tasks.json")
    assert (matrix["task"], matrix["part"], matrix["measure"], matrix["direction"]) == (
        "site",
        "held-out",
        "accuracy",
        "max",
    )
    job = Job.open(uninterrupted)
    arrays = job.data.recipe.apply(job.data.read(), quiet=True)
    first = [list(arrays.task[~arrays.held]).index(name) for name in matrix["names"]]
    assert first == sorted(first)  # learned in the order of their first rows
    learner = weft.load(uninterrupted)
    assert learner.tasks_ == matrix["names"]
    for j, name in enumerate(matrix["names"]):
        rows = arrays.held & (arrays.task == name)
        assert matrix["rows"][j] == rows.sum()
        last = [learner.replica(k).score(arrays.X[rows], arrays.y[rows]) for k in range(2)]
        assert [run["matrix"][-1][j] for run in matrix["replicas"]] == pytest.approx(last)
        assert matrix["matrix"][-1][j] == pytest.approx(np.mean(last))
    R = np.array([run["matrix"] for run in matrix["replicas"]])
    assert matrix["measures"]["average"]["value"] == pytest.approx(R[:, -1].mean())
    lost = [np.mean([r[j, j] - r[-1, j] for j in range(len(r) - 1)]) for r in R]
    assert matrix["measures"]["forgetting_learned"]["replicas"] == pytest.approx(lost)
    assert (uninterrupted / "tasks.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("show", str(uninterrupted), "--json").stdout)["matrix"] == matrix
    shown = run("show", str(uninterrupted), "--png", str(tmp_path / "all.png")).stdout
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    lines = shown.splitlines()
    start = lines.index("accuracy on each task (columns) after each (lines), held-out rows, of a replica alone:")
    assert lines[start + 1].split() == matrix["names"]
    assert lines[start + 2].split() == ["before", *(f"{v:.3f}" for v in matrix["before"])]
    assert f"average accuracy {matrix['measures']['average']['value']:.3f}" in " ".join(shown.split())


def test_the_matrix_is_that_of_partial_fit(table, tmp_path, uninterrupted):
    from weft.measures import accuracy_matrix

    matrix = json.loads((uninterrupted / "tasks.json").read_text())
    job = Job.open(uninterrupted)
    arrays = job.data.recipe.apply(job.data.read(), quiet=True)
    learner = job.options.make_learner(job.data.recipe, arrays, None, verbose=False)
    parts = [[values[rows] for values in (arrays.X, arrays.y, arrays.task)] for rows in (~arrays.held, arrays.held)]
    X, y, task = parts[0]
    again = accuracy_matrix(learner, X, y, task=task, test=tuple(parts[1]))
    assert again.names == matrix["names"]
    np.testing.assert_allclose(again.values, [run["matrix"] for run in matrix["replicas"]])
    np.testing.assert_allclose(again.before, [run["before"] for run in matrix["replicas"]])


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
    matrix = json.loads(result.stdout)["matrix"]
    assert matrix["measure"] not in ("accuracy", "R2")
    assert np.shape(matrix["matrix"]) == (2, 2)
