"""Studies: the protocol keeps the test apart, interruptions change nothing, bad input is told."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_iris
from typer.testing import CliRunner

import weft.bench.comparing as comparing
from weft.bench import Study, compare
from weft.bench.data import Data
from weft.bench.methods import Method, suitable
from weft.bench.trainings import fit_batch
from weft.commands.app import app
from weft.data import digits_sites
from weft.data.sites import SITES

ROOT = Path(__file__).parent.parent.parent
TINY = {"budget": 4, "batch": 2, "seeds": 2, "steps": 12, "workers": 1}
SMALL = {**TINY, "selection": "training-domain"}
TIMES = {"date", "seconds", "command", "name", "ledger", "sha256"}


def plain(results):
    """What must not depend on when and where a study was run."""
    if isinstance(results, dict):
        return {k: plain(v) for k, v in results.items() if k not in TIMES}
    return [plain(v) for v in results] if isinstance(results, list | tuple) else results


def read(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The small bundled study, uninterrupted."""
    folder = tmp_path_factory.mktemp("study") / "whole"
    compare(out=folder, **SMALL)
    return folder


def test_a_study(whole):
    found = read(whole)
    assert [row["name"] for row in found["methods"]] == ["erm", "and-mask"]
    assert all(len(row["scores"]) == 2 for row in found["methods"])
    assert len(found["trials"]) == 8
    assert {t["state"] for t in found["trials"]} == {"complete"}
    parts = found["protocol"]["split"]["rows"]
    assert sum(parts.values()) == 1797
    assert found["protocol"]["split"]["test_environments"] == ["Helsinki"]
    assert [line["what"] for line in found["ledger"]] == ["test", "test"]
    assert found["sentences"][0].startswith(
        "Nothing is judged here: 2 seeds cannot tell how much trainings vary; at least 5"
    )
    assert [c["verdict"] for c in found["comparisons"]] == ["not judged"]
    for row in found["methods"]:
        assert row["mean"] == pytest.approx(np.mean(row["scores"]))
        assert row["interval"] is None  # of two seeds
        assert set(row["environments"]) == set(SITES)
        means = {name: np.mean(place["scores"]) for name, place in row["environments"].items()}
        assert row["worst"] == {"environment": min(means, key=means.get), "score": pytest.approx(min(means.values()))}
        best = max(t["value"] for t in found["trials"] if t["method"] == row["name"])
        assert row["validation"] == best
        assert any(t["setting"] == row["setting"] and t["value"] == best for t in found["trials"])


def test_the_scores_are_those_of_a_learner_made_by_hand(whole):
    """The final figures again, without the bench."""
    from weft import Learner, Optimizer
    from weft.objectives import Classification

    found = read(whole)
    row = next(row for row in found["methods"] if row["name"] == "erm")
    data = Data.read(Study.make())
    both = data.train.plus(data.validation)
    rate = row["setting"]["optimizer__lr"]
    for seed, score in zip(found["protocol"]["seeds"], row["scores"], strict=True):
        learner = Learner(
            Classification(hidden=(64, 64)),
            optimizer=Optimizer("adam", lr=rate),
            steps=12,
            batch_size=448,
            random_state=seed,
        )
        assert learner.fit(both.X, both.y).score(data.test.X, data.test.y) == pytest.approx(score, abs=1e-6)


def test_a_finished_study_is_not_run_again(whole, monkeypatch):
    before = read(whole)
    monkeypatch.setattr(comparing, "fit_batch", lambda *args: pytest.fail("a recorded trial was run again"))
    monkeypatch.setattr(comparing, "refit", lambda *args: pytest.fail("a recorded training was run again"))
    assert plain(compare(out=whole, **SMALL)) == plain(before)


@pytest.mark.parametrize("when", [1, 3, 5, 8, 9])
def test_an_interrupted_study_comes_to_the_same_table(whole, tmp_path, when, monkeypatch):
    """Stopped when so many things are done; what is recorded is not run again."""

    def stop(done, total, what):
        if done >= when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(out=tmp_path / "torn", heard=stop, **SMALL)
    recorded = json.loads((tmp_path / "torn" / "progress.json").read_text())["done"]
    ran = []
    run = comparing.fit_batch
    monkeypatch.setattr(comparing, "fit_batch", lambda *args: (ran.extend(args[3]), run(*args))[1])
    assert plain(compare(out=tmp_path / "torn", **SMALL)) == plain(read(whole))
    assert len(ran) == 8 - min(recorded, 8)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.turns("src/weft/bench/*")
def test_killed_at_random_moments(tmp_path, seed):
    command = [sys.executable, "-m", "tests.bench.study_worker", str(tmp_path / "kills"), "6", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] >= 2
    assert plain(found["torn"]) == plain(found["whole"])
    assert len(found["torn"]["trials"]) == 8


def test_workers_give_what_one_process_gives(whole, tmp_path):
    found = compare(out=tmp_path / "two", **{**SMALL, "workers": 2})
    assert plain(json.loads(json.dumps(found))) == plain(read(whole))


def test_a_worker_that_is_killed(whole, tmp_path):
    """The study says so, stays intact and goes on."""
    me = os.getpid()

    def children():
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes()
            except (OSError, NotADirectoryError):
                continue
            if fields[1] == str(me) and b"loky" in line and b"resource_tracker" not in line:
                found.append(int(entry.name))
        return found

    def assassin():
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for pid in children():
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True, kill_workers=True)
    hand = threading.Thread(target=assassin)
    hand.start()
    with pytest.raises(RuntimeError, match=r"was lost.*run the same command again"):
        compare(out=tmp_path / "torn", **{**SMALL, "workers": 2, "steps": 12})
    hand.join()
    assert plain(compare(out=tmp_path / "torn", **SMALL)) == plain(read(whole))


def test_the_trials_do_not_see_the_test():
    """Other labels and inputs in the test environment change no trial."""
    table = digits_sites()
    study = Study.make(methods=["and-mask"], steps=10, selection="training-domain")
    method = Method.parse("and-mask", True)
    setting = [{"optimizer__lr": 0.01, "strategy__threshold": 0.5}]
    far = table["site"] == "Helsinki"
    other = {**table, "mark 0": np.where(far, 99.0, table["mark 0"])}
    other["label"] = np.where(far, "five or more", table["label"])
    values = [fit_batch(study, Data.read(study, t), method, setting)[0]["value"] for t in (table, other)]
    assert values[0] == values[1]


def test_selection_rules_look_where_they_say():
    table = digits_sites()
    for rule in ("training-domain", "leave-one-out", "oracle"):
        study = Study.make(selection=rule, methods=["erm"], steps=15)
        data = Data.read(study, table)
        result = fit_batch(study, data, Method.parse("erm", True), [{"optimizer__lr": 0.01}])[0]
        assert result["state"] == "complete"
        if rule == "oracle":
            assert set(data.hold.labels) == {"Helsinki"}
            assert len(data.hold) + len(data.test) == int((table["site"] == "Helsinki").sum())
        else:
            assert data.hold is None


def test_an_oracle_is_in_the_ledger(tmp_path):
    found = compare(out=tmp_path / "s", **{**SMALL, "selection": "oracle", "methods": ["erm"], "budget": 2})
    assert [line["what"].split(":")[0] for line in found["ledger"]] == ["selection by oracle", "test"]
    assert any("upper bound" in note for note in found["protocol"]["notes"])


def test_tasks_give_the_matrix(tmp_path):
    iris = load_iris(as_frame=True).frame
    iris["month"] = np.where(np.arange(len(iris)) % 2, "April", "May")  # May comes first
    some = {**TINY, "steps": 30, "methods": ["erm", "ewc"]}
    found = compare(table=iris, target="target", task="month", out=tmp_path / "s", **some)
    for row in found["methods"]:
        assert np.shape(row["matrix"]) == (2, 2)
        assert row["task_names"] == ["May", "April"]
        last = [np.mean(row["tasks"][name]["scores"]) for name in ("May", "April")]
        np.testing.assert_allclose(row["matrix"][-1], last)
        R, kept = row["matrix"], row["continual"]
        assert kept["average"] == pytest.approx(np.mean(last))
        assert kept["forgetting_max"] == kept["forgetting_learned"] == pytest.approx(R[0][0] - R[1][0])
        assert kept["backward_transfer"] == pytest.approx(R[1][0] - R[0][0])


def test_tasks_with_values_and_what_is_printed(tmp_path, capsys):
    from weft.commands.compare import _print

    frame = load_diabetes(as_frame=True).frame
    frame["year"] = [f"y{i % 2}" for i in range(len(frame))]
    some = {**TINY, "steps": 10, "methods": ["erm"]}
    found = compare(table=frame, target="target", task="year", out=tmp_path / "s", **some)
    (row,) = found["methods"]
    R, kept = row["matrix"], row["continual"]
    assert kept["backward_transfer"] == pytest.approx(R[0][0] - R[1][0])  # a smaller error is a gain
    assert kept["forgetting_max"] == pytest.approx(R[1][0] - R[0][0])
    _print(found, tmp_path / "s", None)
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("erm: mse on each task (columns) after each (lines)")
    assert lines[start + 1].split() == ["y0", "y1"]
    assert lines[start + 3].split() == ["after", "y1", *(f"{v:.4g}" for v in R[1])]
    assert "what is kept, from the mean over seeds:" in lines
    assert any("forgetting (max)" in line and "backward transfer" in line for line in lines)


def test_groups_stay_together_and_values_are_predicted(tmp_path):
    frame = load_diabetes(as_frame=True).frame
    frame["clinic"] = [f"c{i % 10}" for i in range(len(frame))]
    study = Study.make(data="x", target="target", group="clinic")
    data = Data.read(study, frame)
    parts = [set(part.labels) for part in (data.train, data.validation, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10
    methods = ["erm", "least-squares"]
    found = compare(table=frame, target="target", group="clinic", methods=methods, out=tmp_path / "s", **TINY)
    assert found["measure"] == {"name": "mse", "direction": "min"}
    row = next(row for row in found["methods"] if row["name"] == "least-squares")
    assert set(row["setting"]) == {"objective__ridge"}
    assert row["mean"] < 1.0  # better than the mean of the training rows
    assert row["curves"] is None


def test_failures_are_recorded_and_do_not_stop_the_study(tmp_path, monkeypatch):
    run = comparing.fit_batch

    def failing(study, data, method, settings):
        if method.name == "and-mask":
            return [{"value": None, "state": "failed", "why": "RuntimeError: broken", "seconds": 0.1} for _ in settings]
        return run(study, data, method, settings)

    monkeypatch.setattr(comparing, "fit_batch", failing)
    found = compare(out=tmp_path / "s", **SMALL)
    lost = next(row for row in found["methods"] if row["name"] == "and-mask")
    assert lost["trials"] == {"complete": 0, "failed": 4, "diverged": 0}
    assert lost["mean"] is None
    assert "and-mask could not be trained" in " ".join(found["sentences"])
    assert {t["why"] for t in found["trials"] if t["method"] == "and-mask"} == {"RuntimeError: broken"}


def test_a_diverged_setting_does_not_spoil_its_batch():
    data = Data.read(Study.make())
    study = Study.make(methods=["erm"], steps=8)
    settings = [{"optimizer__lr": 0.01}, {"optimizer__lr": 1e30}]
    good, bad = fit_batch(study, data, Method.parse("erm", True), settings)
    assert good["state"] == "complete"
    assert bad["state"] == "diverged"


@pytest.mark.parametrize("method", ["sgld", "l2+lbfgs"])
@pytest.mark.turns("src/weft/bench/*")
def test_what_chooses_its_own_step_is_given_plain_sgd(method, tmp_path):
    found = compare(methods=[method, "ema"], out=tmp_path / "study", **TINY)
    own, other = found["methods"]
    assert own["scores"]
    assert Method.parse(method, True).space["optimizer__lr"].high == 1.0
    assert Method.parse("ema", True).space["optimizer__lr"].high == 3e-2
    assert other["scores"]


def test_default_methods_follow_the_data():
    environments = suitable(Study.make(data="x.csv", target="y", environment="e"), True)
    assert {"erm", "and-mask"} <= set(environments)
    assert "ewc" not in environments
    tasks = suitable(Study.make(data="x.csv", target="y", task="t"), True)
    assert {"erm", "ewc"} <= set(tasks)
    assert "and-mask" not in tasks
    assert Study.make().methods == ("erm", "and-mask")
    assert "least-squares" in suitable(Study.make(data="x.csv", target="y"), False)


# --- what is judged -----------------------------------------------------------------------------------


def evidence(tables, *, seeds=6, diverged=0, values=None, budget=16, setting=None, kind="classes"):
    """What a study would have of these scores (method, seed, row), without any training."""
    from weft.bench.conclusion import Evidence
    from weft.bench.trainings import Final

    frame = (load_iris if kind == "classes" else load_diabetes)(as_frame=True).frame
    study = Study.make(data="x", target="target", seeds=seeds, budget=budget)
    data = Data.read(study, frame)
    methods = [Method.parse(name, kind == "classes") for name in tables]
    chosen, finals = {}, {}
    for name, scores in tables.items():
        own = {"optimizer__lr": 0.003} if setting is None else setting
        value = (values or {}).get(name, 0.95 if kind == "classes" else 0.5)
        chosen[name] = {
            "method": name,
            "number": 0,
            "setting": own,
            "value": value,
            "state": "complete",
            "why": "",
            "seconds": 0.0,
        }
        lost = diverged if name == "erm" else 0
        table = np.broadcast_to(scores, (seeds, len(data.test)))[: seeds - lost]
        finals[name] = Final(table, list(range(seeds - lost)), lost, None, None, None, "", "", 0.0)
    trials = {name: [chosen[name]] for name in tables}
    return Evidence(study, data, methods, list(range(seeds)), trials, chosen, finals).conclude()


def test_whole_numbers_of_a_density_are_searched(tmp_path):
    text = "class-conditional(density=gaussian-mixture(covariance='diagonal'))"
    frame = load_iris(as_frame=True).frame
    found = compare(table=frame, target="target", methods=[text, "naive-bayes"], out=tmp_path / "s", **TINY)
    settings = {name: [t["setting"] for t in found["trials"] if t["method"] == name] for name in (text, "naive-bayes")}
    tried = [setting["objective__density__components"] for setting in settings[text]]
    assert tried[0] == 2
    assert len(set(tried)) > 1
    assert all(isinstance(k, int) and 1 <= k <= 30 for k in tried)
    assert set(settings["naive-bayes"][0]) == {"objective__floor", "objective__smoothing"}
    assert {t["state"] for t in found["trials"] if t["method"] == "naive-bayes"} == {"complete"}
    assert all(row["mean"] > 0.8 for row in found["methods"])


def test_the_default_is_tried_first(whole, tmp_path):
    for name in ("erm", "and-mask"):
        first = next(t for t in read(whole)["trials"] if t["method"] == name and t["number"] == 0)
        assert first["setting"] == Method.parse(name, True).default(Study.make(), Data.read(Study.make()))
        assert first["setting"]["optimizer__lr"] == 1e-3
    ridge = Method.parse("least-squares", False)
    study = Study.make(data="x", target="target")
    data = Data.read(study, load_diabetes(as_frame=True).frame)
    assert ridge.default(study, data) == {"objective__ridge": 1e-4}  # 0 is not in its range


def test_the_base_rate_is_that_of_one_answer(whole):
    study = Study.make(selection="training-domain")
    data = Data.read(study)
    both = data.train.plus(data.validation)
    values, counts = np.unique(both.y, return_counts=True)
    base = read(whole)["base"]
    assert base["answer"] == str(values[counts.argmax()])
    assert base["test"] == pytest.approx(np.mean(data.test.y == values[counts.argmax()]))
    found = evidence({"least-squares": 0.5}, kind="values", setting={"objective__ridge": 1.0})
    study = Study.make(data="x", target="target", seeds=6)
    data = Data.read(study, load_diabetes(as_frame=True).frame)
    mean = data.train.plus(data.validation).y.mean()
    assert found["base"]["test"] == pytest.approx(np.mean((data.test.y - mean) ** 2), rel=1e-5)


def test_a_diverged_training_counts_with_the_worst_score():
    both = {"optimizer__lr": 0.003, "strategy__strength": 1e-3}
    plain = evidence({"erm": 0.9, "l2": 0.9}, setting=both)
    found = evidence({"erm": 0.9, "l2": 0.9}, diverged=2, setting=both)
    assert plain["methods"][0]["mean"] == pytest.approx(0.9)
    row = found["methods"][0]
    assert row["scores"] == pytest.approx([0.9] * 4 + [0.0] * 2)
    assert (row["diverged"], row["mean"]) == (2, pytest.approx(0.6))
    assert "2 of 6 trainings of erm diverged and count with the worst score" in found["sentences"][0]
    errors = evidence({"erm": 0.9, "l2": 99.0}, diverged=1, kind="values", setting=both)
    assert errors["methods"][0]["scores"] == pytest.approx([0.9] * 5 + [99.0])  # the largest of any method


def test_the_sentence_warns():
    usual = {"erm": 0.9}
    assert "But" not in evidence(usual)["sentences"][0]
    for options, told in (
        ({"setting": {"optimizer__lr": 3e-2}}, "the lr chosen for erm is at the edge of what was searched"),
        ({"setting": {"optimizer__lr": 1.02e-4}}, "at the edge of what was searched"),
        ({"values": {"erm": 0.4}}, "no method is better than the base rate on validation"),
        ({"budget": 8}, "8 settings each are too few to tell"),
    ):
        assert told in evidence(usual, **options)["sentences"][0]
    both = {"optimizer__lr": 0.003, "strategy__strength": 1e-3}
    one = evidence({"erm": 0.9, "l2": 0.9}, values={"l2": 0.35}, setting=both)
    assert "l2 is not better than the base rate on validation" in one["sentences"][0]
    decay = {"optimizer__lr": 0.003, "strategy__decay": 0.9}
    assert "the decay chosen for ema is at the edge" in evidence({"ema": 0.9}, setting=decay)["sentences"][0]
    flat = evidence(usual, values={"erm": 3.0}, kind="values")
    assert "no method is better than the base rate" in flat["sentences"][0]


def test_scores_of_other_kinds_are_said(tmp_path, monkeypatch, capsys):
    """A method whose answers are estimates, against an exact one: in the sentence, the table and the page."""
    from weft.commands.compare import _print
    from weft.core import capability
    from weft.objectives import LeastSquares, Regression
    from weft.report.writing import write

    guess = capability(merge="mean", kind="estimate")(lambda self, x: Regression.predict(self, x))
    monkeypatch.setattr(LeastSquares, "predict", guess)
    monkeypatch.setattr(LeastSquares.predict, "__name__", "predict")
    frame = load_diabetes(as_frame=True).frame
    some = {**TINY, "steps": 10, "methods": ["erm", "least-squares"], "workers": 1}
    found = compare(table=frame, target="target", out=tmp_path / "s", **some)
    assert [row["kind"] for row in found["methods"]] == ["", "estimate"]
    told = "the scores are not of one kind (erm exact, least-squares estimate)"
    assert told in found["sentences"][0]
    monkeypatch.setenv("COLUMNS", "300")
    _print(found, tmp_path / "s", None)
    shown = capsys.readouterr().out
    assert told in " ".join(shown.split())
    assert f"{found['methods'][1]['mean']:.4g} (estimate)" in shown
    write([tmp_path / "s"])
    page = (tmp_path / "s" / "report.html").read_text()
    assert "(estimate)" in page
    assert "A score in whose brackets a kind stands is not exact." in page
    again = read(tmp_path / "s")
    assert again["methods"][1]["kind"] == "estimate"


def test_scores_of_one_kind_are_not_spoken_of(whole):
    assert "of one kind" not in " ".join(read(whole)["sentences"])


def test_a_share_has_no_edge_to_warn_of():
    from weft.bench.conclusion import _at_edge
    from weft.core.configured import Range

    assert not _at_edge(1.0, Range(0.0, 1.0))  # and-mask's threshold: nothing lies beyond
    assert _at_edge(1.0, Range(0.5, 1.0))


def test_every_look_at_the_test_is_in_the_ledger_and_there_is_one(tmp_path, monkeypatch):
    import weft.bench.trainings as trainings

    looks, scored = [], []
    refit, each = comparing.refit, trainings._scored
    monkeypatch.setattr(comparing, "refit", lambda *args: (looks.append(args[2].name), refit(*args))[1])
    monkeypatch.setattr(trainings, "_scored", lambda *args: (scored.append(1), each(*args))[1])
    found = compare(out=tmp_path / "s", **SMALL)
    assert looks == [line["method"] for line in found["ledger"]] == ["erm", "and-mask"]
    assert len(scored) == 2 * SMALL["seeds"]  # every training once
    (tmp_path / "s" / "finals" / "0.npz").unlink()  # as if an interruption had come before it was kept
    again = compare(out=tmp_path / "s", **SMALL)
    assert [line["what"].split(":")[0] for line in again["ledger"]] == ["test", "test", "test, again"]
    assert plain(again) == plain(found)  # the same trainings: a second look, and nothing chosen by it


# --- files --------------------------------------------------------------------------------------------


def test_a_study_file_gives_the_same_study(tmp_path):
    study = Study.make(data="a b.csv", target='quo"te', environment="site", methods=["erm", "and-mask(each='example')"])
    path = tmp_path / "study.toml"
    path.write_text(study.to_toml())
    again = Study.read(path)
    assert again == Study.make(**{**vars(study), "data": str(tmp_path / "a b.csv")})
    assert Study.read(path, budget=3).budget == 3
    bundled = tmp_path / "bundled.toml"
    bundled.write_text(Study.make(budget=5).to_toml())
    assert Study.read(bundled) == Study.make(budget=5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("budget = ", "expected a study file in TOML"),
        ("budget = 'many'", "expected the study's budget to be of type int"),
        ("bugdet = 3", "did you mean 'budget'"),
        ("budget = 0", "expected the study's budget >= 1, got 0"),
    ],
)
def test_bad_study_files(tmp_path, text, told):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError), match=told):
        Study.read(path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "expected the column to be predicted"),
        ({"target": "y", "environment": "a", "task": "b"}, "expected one of environment, task and group"),
        ({"target": "y", "selection": "oracle"}, "expected environments for the selection rule"),
        ({"target": "y", "environment": "a", "selection": "orakel"}, "did you mean 'oracle'"),
        ({"target": "y", "test": ["a"]}, "expected test environments only with"),
        ({"target": "y", "holdout": 0.7}, r"expected the study's holdout in \(0, 0.5\)"),
        ({"target": "y", "level": 95.0}, "expected the study's level"),
    ],
)
def test_bad_studies(given, told):
    with pytest.raises(ValueError, match=told):
        Study.make(data="x.csv", **given)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("and-musk", "did you mean 'and-mask'"),
        ("maml", "learns from episodes"),
        ("gan", "expected methods that predict a target"),
        ("regression", "expected methods for classes"),
        ("ewc", "expected tasks for 'ewc'"),
        ("and-mask(threshold=2)", r"threshold to be a number in \[0, 1\]"),
        ("mlp(dropuot=0.5)", "did you mean 'dropout'"),
        ("mlp(dropout=1.5)/and-mask", "MLP.s dropout to be a number in .*, got 1.5"),
    ],
)
def test_bad_methods(tmp_path, method, told):
    with pytest.raises(ValueError, match=told):
        compare(out=tmp_path / "s", methods=[method], **SMALL)
    assert not (tmp_path / "s").exists()


def test_baselines_are_methods_of_one_line(tmp_path):
    """Dropout and batch normalization by the net, penalties as strategies, the game by its objective."""
    methods = ["mlp(dropout=0.5)", "mlp(batch_norm=True)/and-mask(threshold=0.5)", "l1", "l2", "dann"]
    small = {**SMALL, "budget": 1, "batch": 1}
    found = compare(out=tmp_path / "s", methods=methods, **small)["methods"]
    assert [row["name"] for row in found] == methods
    assert all(row["trials"]["complete"] == 1 and len(row["scores"]) == 2 for row in found)
    assert found[0]["objective"] == "Classification(net='mlp(dropout=0.5)', hidden=(64, 64))"
    assert (found[1]["objective"], found[1]["strategy"]) == (
        "Classification(net='mlp(batch_norm=True)', hidden=(64, 64))",
        "ANDMask(threshold=0.5)",
    )
    values = Method.parse("mlp(dropout=0.5)", False)
    assert values.objective == "Regression(net='mlp(dropout=0.5)', hidden=(64, 64))"


def test_environments_are_needed_by_who_compares_them(tmp_path):
    iris = load_iris(as_frame=True).frame
    with pytest.raises(ValueError, match="expected environments for 'and-mask'"):
        compare(table=iris, target="target", methods=["and-mask"], out=tmp_path / "s", **TINY)
    with pytest.raises(ValueError, match="expected environments for 'dann'"):
        compare(table=iris, target="target", methods=["dann"], out=tmp_path / "s", **TINY)
    iris["site"] = "one"
    with pytest.raises(ValueError, match="expected at least two environments to learn from"):
        compare(table=iris, target="target", environment="site", out=tmp_path / "s", **SMALL)


def test_another_study_in_the_folder_is_refused(whole):
    before = {p.name: p.read_bytes() for p in whole.iterdir() if p.is_file()}
    with pytest.raises(ValueError, match="differs in seeds"):
        compare(out=whole, **{**SMALL, "seeds": 3})
    assert {p.name: p.read_bytes() for p in whole.iterdir() if p.is_file()} == before


def test_foreign_and_damaged_folders(tmp_path, whole):
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").write_text("rain")
    with pytest.raises(ValueError, match=r"expected a new folder or a study's.*monday\.txt"):
        compare(out=tmp_path / "diary", **SMALL)
    import shutil

    for name, told in (("study.db", "expected the study's database"), ("plan.json", "expected weft's plan")):
        broken = tmp_path / name
        shutil.copytree(whole, broken)
        (broken / name).write_bytes(b"not at all" * 100)
        with pytest.raises(ValueError, match=told):
            compare(out=broken, **SMALL)
    broken = tmp_path / "finals"
    shutil.copytree(whole, broken)
    (broken / "finals" / "0.npz").write_bytes(b"short")
    with pytest.raises(ValueError, match="expected a method's scores"):
        compare(out=broken, **SMALL)


def test_what_was_changed_in_a_finished_study_is_refused(whole, tmp_path):
    from weft.report.writing import render

    shutil.copytree(whole, tmp_path / "study")
    assert render([tmp_path / "study"])
    path = tmp_path / "study" / "results.json"
    path.write_text(path.read_text().replace('"mean": 0.', '"mean": 1.', 1))
    with pytest.raises(ValueError, match=r"results\.json as weft wrote it"):
        render([tmp_path / "study"])
    ledger, plan = tmp_path / "study" / "ledger.jsonl", tmp_path / "study" / "plan.json"
    ledger.write_text(ledger.read_text().replace("{", "#{", 1))
    with pytest.raises(ValueError, match=r"expected JSON in .*ledger\.jsonl"):
        compare(out=tmp_path / "study", **SMALL)
    plan.write_text("[" * 10**5)
    with pytest.raises(ValueError, match="expected weft's plan in"):
        compare(out=tmp_path / "study", **SMALL)


def test_a_full_disk_keeps_what_is_recorded(whole, tmp_path):
    """A limit on files' sizes stands for the full disk; with room again the study goes on to the same table."""

    def fill(done, total, what):
        if done >= 3:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    child = os.fork()
    if child == 0:
        status = 0
        try:
            compare(out=tmp_path / "full", heard=fill, **SMALL)
        except OSError as error:
            status = 7 if str(error).startswith("expected to ") else 9
        except BaseException:
            status = 8
        finally:
            os._exit(status)
    status = os.WEXITSTATUS(os.waitpid(child, 0)[1])
    assert status == 7
    assert plain(compare(out=tmp_path / "full", **SMALL)) == plain(read(whole))


def test_two_at_once_are_refused(whole):
    with (
        comparing.Comparing(comparing.continued(whole), whole),
        pytest.raises(ValueError, match="another process at work"),
    ):
        compare(out=whole, **SMALL)


def test_another_database(tmp_path, whole):
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    found = compare(out=tmp_path / "s", storage=url, **SMALL)
    assert plain(found) == plain(read(whole))
    assert not (tmp_path / "s" / "study.db").exists()


# --- the command --------------------------------------------------------------------------------------


def weft(*args):
    return CliRunner().invoke(app, ["compare", *map(str, args)])


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = pd.DataFrame(digits_sites())
    digits.to_csv("digits.csv", index=False)
    columns = ["digits.csv", "--target", "label", "--environment", "site", "--test", "Helsinki"]
    columns += ["--methods", "erm", "--methods", "and-mask"]
    small = ["--budget", 2, "--batch", 2, "--seeds", 2, "--steps", 12, "--workers", 1]
    done = weft(*columns, *small)
    assert done.exit_code == 0, done.output
    assert "Nothing is judged here: 2 seeds cannot tell" in done.output
    assert "base rate" in done.output
    assert "looks at the test: 2" in done.output
    assert "accuracy by environment, mean over seeds:" in done.output
    assert "the worst" in done.output
    folder = tmp_path / "studies" / "digits"
    assert (folder / "report.html").exists()
    again = weft("--out", folder, "--json")
    assert again.exit_code == 0, again.output
    found = json.loads(again.output)
    assert "digits.csv --target label --environment site --test Helsinki --methods erm" in found["command"]
    other = weft(*columns, "--json", "--seeds", 3, *small[:4], *small[6:])
    assert json.loads(other.output)["folder"] == "studies/digits-2"


def test_the_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = weft("--dry-run", "--budget", 4, "--steps", 50, "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.output)
    assert [row["name"] for row in plan["methods"]] == ["erm", "and-mask"]
    assert plan["seconds"] > 0
    assert not list(tmp_path.iterdir())


def test_bad_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for args, told in (
        (["nothing.csv", "--target", "y"], "which is not there"),
        (["--target", "y"], "expected no columns for the bundled data"),
        (["--on", "moon", "--budget", 1, "--steps", 1], "expected --on joblib, ray or a Ray cluster's address"),
        (["--workers", 0], "expected --workers >= 1"),
    ):
        done = weft(*args)
        assert done.exit_code == 1
        assert told in done.output
        assert len(done.output.strip().splitlines()) == 1, done.output


# --- on Ray -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")  # Ray's own
@pytest.mark.turns("src/weft/bench/*")
def test_ray_gives_what_one_process_gives_and_may_be_lost(whole, tmp_path):
    """First its raylet is killed in the middle of a study; then the study goes on, on Ray again."""
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "tests.bench.ray_worker", str(tmp_path / "ray")]
    lost = subprocess.run([*command, "strike"], cwd=ROOT, capture_output=True, text=True, check=False)
    told = re.search("the Ray cluster was lost.*run the same command again", lost.stderr)
    assert lost.returncode != 0
    assert told or "Traceback" not in lost.stderr, lost.stderr[-3000:]  # Ray may abort its driver, which tells nothing
    assert "struck" in lost.stdout
    assert not (tmp_path / "ray" / "results.json").exists()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert plain(read(tmp_path / "ray")) == plain(read(whole))


def test_no_ray_cluster_at_the_address(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(OSError, match=r"expected a Ray cluster at 127\.0\.0\.1:1, which does not answer"):
        compare(out=tmp_path / "s", on="127.0.0.1:1", **SMALL)
