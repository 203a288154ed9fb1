"""A run's folder holds one run, whole: one writer at a time, one switch for all its files, one set of data."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
import weft.learner.folder
from weft import Classifier, Learner, Regressor
from weft.core import files, manifest
from weft.learner import digests
from weft.objectives import Classification
from weft.sources import Arrays, Episodes
from weft.strategies import EWC, MAML, ANDMask

from .hostile import reseal, unlisted

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
SITE = np.arange(40) % 2
MONTH = np.repeat(["may", "june"], 20)
WEIGHT = rng.uniform(1, 2, size=40)
ROOT = Path(__file__).parent.parent.parent


class CrashError(BaseException):
    """Ends what is being done as a kill would: nobody catches it."""


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(weft.learner.folder, "SECONDS", 0.0)


def interrupted(folder, data, *, at=2, **settings):
    """A run that came no further than to a record."""

    def crash(record):
        if record["epoch"] == at:
            raise CrashError

    settings = {"epochs": 4, "batch_size": 8, "random_state": 0, "hidden": (4,), **settings}
    with pytest.raises(CrashError):
        Classifier(folder=folder, callbacks=[crash], **settings).fit(**data)
    return folder


# --- one writer -----------------------------------------------------------------------------------------


def test_one_writer_at_a_time(tmp_path):
    other = Classifier(epochs=1, random_state=1).fit(X, Y)

    def busy(record):
        with pytest.raises(ValueError, match=rf"write alone in .*process {os.getpid()}\); wait until it has ended"):
            other.save(folder, force=True)
        with pytest.raises(ValueError, match="another writer at work"):
            Classifier(epochs=1, folder=folder).fit(X, Y)
        if record["epoch"] > 1:
            with pytest.raises(ValueError, match="another writer at work"):
                weft.load(folder).resume(X, Y)
        seen.append(record)

    folder, seen = tmp_path / "run", []
    learner = Classifier(epochs=3, random_state=0, folder=folder, callbacks=[busy]).fit(X, Y)
    assert len(seen) == 3
    assert not (folder / ".lock").exists()
    np.testing.assert_array_equal(weft.load(folder).predict_proba(X), learner.predict_proba(X))
    other.save(folder, force=True)  # nobody is at work there any more
    np.testing.assert_array_equal(weft.load(folder).predict_proba(X), other.predict_proba(X))


WRITER = """
import sys, time
import numpy as np
from weft import Classifier
def wait(record):
    print("at work", flush=True)
    sys.stdin.readline()
Classifier(epochs=2, random_state=0, folder=sys.argv[1], callbacks=[wait]).fit(np.eye(4), [0, 1, 0, 1])
"""


def test_a_writer_in_another_process_and_one_that_was_killed(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "at work\n"
        with pytest.raises(ValueError, match=rf"process {process.pid}\)"):
            weft.load(folder).resume(np.eye(4), [0, 1, 0, 1])
        process.kill()
    assert (folder / ".lock").exists(), "which holds nobody off, now that its holder is dead"
    assert weft.load(folder).resume(np.eye(4), [0, 1, 0, 1]).n_steps_ == 2
    assert not list(folder.glob(".*"))


def test_what_fails_lets_go_of_the_folder_and_leaves_none(tmp_path):
    learner = Classifier(epochs=1, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="inconsistent numbers"):
        learner.fit(X, Y[:5])
    assert not (tmp_path / "run").exists()
    learner.fit(X, Y)
    with pytest.raises(ValueError, match="features"):
        learner.partial_fit(X[:, :2], Y)
    learner.partial_fit(X, Y)


def test_a_lock_that_its_holder_removed_is_not_taken_for_one(tmp_path, monkeypatch):
    """Opened before its holder let go, locked after another took the folder: that file is nobody's any more."""
    flock, path, other = files.fcntl.flock, tmp_path / ".lock", []

    def late(file, how):
        if not other:
            path.unlink()
            other.append(open(path, "a+"))  # noqa: SIM115
            flock(other[0], how)
        return flock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with pytest.raises(ValueError, match="another writer at work"), files.alone(tmp_path):
        pass
    other[0].close()


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(files.errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="nothing keeps two writers apart"), files.alone(tmp_path):
        pass


# --- one run --------------------------------------------------------------------------------------------


def test_force_killed_anywhere_leaves_one_run_whole(tmp_path, monkeypatch):
    one = Classifier(epochs=2, hidden=(4,), random_state=0).fit(X, Y)
    two = Classifier(epochs=3, hidden=(5,), random_state=1).fit(X, Y)
    told = {repr(learner.get_params()): learner for learner in (one, two)}
    found, number = set(), 0
    while "the last point is passed":
        number += 1
        folder, seen = tmp_path / str(number), []
        one.save(folder)

        def crash(name, seen=seen, number=number):
            seen.append(name)
            if len(seen) == number:
                raise CrashError

        with monkeypatch.context() as patch:
            patch.setattr(files, "point", crash)
            try:
                two.save(folder, force=True)
            except CrashError:
                pass
            else:
                break
        twin = weft.load(folder)
        whose = told[repr(twin.get_params())]
        np.testing.assert_array_equal(twin.predict_proba(X), whose.predict_proba(X))
        assert len(twin.history_) == len(whose.history_)
        found.add((seen[-1], whose is two))
        whose.save(folder, force=True)  # and it can be written again
        np.testing.assert_array_equal(weft.load(folder).predict_proba(X), whose.predict_proba(X))
        assert {p.name for p in folder.iterdir()} == {*manifest.opened(folder).files, manifest.NAME}
    assert ("before rename .json", False) in found
    assert {("after rename .json", True), ("before naming .safetensors", True)} <= found
    assert number > 10


def test_a_crash_between_switch_and_names_is_not_undone_by_the_next_one(tmp_path, monkeypatch):
    """Files that count but still lie aside are not written over before the next switch."""

    def crashing(when):
        def crash(name):
            if name == when:
                raise CrashError

        return crash

    learner = Classifier(epochs=2, random_state=0).fit(X, Y)
    for when in ("after rename .json", "during .json"):
        monkeypatch.setattr(files, "point", crashing(when))
        with pytest.raises(CrashError):
            learner.save(tmp_path / "run", force=when.startswith("during"))
    np.testing.assert_array_equal(weft.load(tmp_path / "run").predict_proba(X), learner.predict_proba(X))


def test_the_folder_of_another_run_is_not_gone_on_in(tmp_path):
    one = Classifier(epochs=1, random_state=0, folder=tmp_path / "run").fit(X, Y)
    two = Classifier(epochs=1, random_state=1).fit(X, Y).set_params(folder=tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match="with another run in it; choose another folder"):
        two.partial_fit(X, Y)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    one.partial_fit(X, Y)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"'chapter\.tex' and perhaps more"):
        two.set_params(folder=tmp_path / "thesis").partial_fit(X, Y)
    several = Classifier(epochs=1, random_state=0, replicas=2, folder=tmp_path / "two").fit(X, Y)
    several.replica(0).partial_fit(X, Y)
    assert weft.load(tmp_path / "two").seeds_ == [0, 1], "a replica of its own is not kept in the folder of all"


def test_the_configuration_follows_the_learner(tmp_path):
    learner = Classifier(epochs=1, random_state=0, folder=tmp_path / "run").fit(X, Y)
    learner.set_params(epochs=3, strategy="sam").partial_fit(X, Y)
    twin = weft.load(tmp_path / "run")
    assert twin.epochs == 3
    assert twin.strategy == "sam"


def test_what_told_of_a_replaced_run_goes_with_it(tmp_path):
    one, two = (Classifier(epochs=1, random_state=k).fit(X, Y) for k in range(2))
    one.save(tmp_path / "run")
    for name in ("recipe.json", "risk.json", "notes.txt"):
        (tmp_path / "run" / name).write_text("{}")
    one.save(tmp_path / "run", force=True)
    assert "recipe.json" in manifest.opened(tmp_path / "run").files
    two.save(tmp_path / "run", force=True)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert not names & {"recipe.json", "risk.json"}
    assert "notes.txt" in names


def test_a_run_is_read_whole_while_it_is_written(tmp_path):
    """Readers see the old checkpoint or the new one, whatever is renamed meanwhile."""
    folder, ended = tmp_path / "run", threading.Event()
    learners = [Classifier(epochs=k, random_state=k).fit(X, Y) for k in (1, 2)]
    learners[0].save(folder)

    def write():
        for k in range(30):
            learners[(k + 1) % 2].save(folder, force=True)
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not ended.is_set():
        twin = weft.load(folder)
        (whose,) = [learner for learner in learners if learner.epochs == twin.epochs]
        np.testing.assert_array_equal(twin.predict_proba(X), whose.predict_proba(X))
        seen.add(twin.epochs)
    thread.join()
    assert seen


# --- one set of data ------------------------------------------------------------------------------------

DATA = {"X": X, "y": Y, "environment": SITE, "sample_weight": WEIGHT}
OTHER = {
    "a value": ("x", {"X": X + np.eye(40, 3) * 1e-3}),
    "a label": ("y", {"y": np.where(np.arange(40) == 7, 1 - Y, Y)}),
    "order": ("x", {name: values[::-1] for name, values in DATA.items()}),
    "order of labels": ("y", {"y": Y[::-1]}),
    "fewer rows": ("x", {name: values[:-1] for name, values in DATA.items()}),
    "more rows": ("x", {name: np.concatenate([values, values[:2]]) for name, values in DATA.items()}),
    "environments": ("environment", {"environment": np.arange(40) // 20}),
    "names of environments": ("environment", {"environment": np.where(SITE, "a", "b")}),
    "weights": ("weight", {"sample_weight": WEIGHT[::-1]}),
    "no weights": ("weight", {"sample_weight": None}),
}


@pytest.mark.parametrize("kind", OTHER)
def test_resume_refuses_other_data(kind, tmp_path):
    folder = interrupted(tmp_path / "run", DATA, strategy=ANDMask(threshold=0.2))
    name, change = OTHER[kind]
    with pytest.raises(ValueError, match=rf"expected the data that the run was begun with, got other .*\b{name}\b"):
        weft.load(folder).resume(**{**DATA, **change})


def test_resume_takes_the_same_data_in_another_guise(tmp_path):
    import pandas as pd

    whole = Classifier(epochs=4, batch_size=8, random_state=0, hidden=(4,)).fit(X, Y)
    for k, given in enumerate([X.tolist(), np.asfortranarray(pd.DataFrame(X)), torch.tensor(X)]):
        folder = interrupted(tmp_path / str(k), {"X": X, "y": Y})
        twin = weft.load(folder).resume(given, Y.astype(np.int32))
        np.testing.assert_array_equal(twin.predict_proba(X), whole.predict_proba(X))


def test_resume_refuses_other_validation_data(tmp_path):
    folder = interrupted(tmp_path / "run", {"X": X, "y": Y}, validation=(X[:10], Y[:10]))
    with pytest.raises(ValueError, match="got other x of validation, y of validation"):
        weft.load(folder, validation=(X[10:20], Y[10:20])).resume(X, Y)
    assert weft.load(folder, validation=(X[:10], Y[:10])).resume(X, Y).n_steps_ == 20


@pytest.mark.parametrize("where", ["gone by", "at hand", "to come"])
def test_resume_over_tasks_refuses_other_rows_of_any_task(where, tmp_path):
    months = np.repeat(["april", "may", "june"], [10, 15, 15])
    data = {"X": X, "y": Y, "task": months}

    def crash(record):
        seen.append(record)
        if len(seen) == 6:
            raise CrashError

    seen, row = [], {"gone by": 3, "at hand": 12, "to come": 30}[where]
    learner = Classifier(epochs=4, batch_size=8, random_state=0, strategy=EWC(), folder=tmp_path / "run")
    with pytest.raises(CrashError):
        learner.set_params(callbacks=[crash]).fit(**data)
    other = X.copy()
    other[row] += 1
    with pytest.raises(ValueError, match="got other X of all tasks"):
        weft.load(tmp_path / "run").resume(**{**data, "X": other})
    with pytest.raises(ValueError, match="task of all tasks"):
        weft.load(tmp_path / "run").resume(**{**data, "task": np.where(months == "june", "july", months)})
    twin = weft.load(tmp_path / "run").resume(**data)
    whole = Classifier(epochs=4, batch_size=8, random_state=0, strategy=EWC()).fit(**data)
    np.testing.assert_array_equal(twin.predict_proba(X), whole.predict_proba(X))


def test_resume_of_a_task_by_its_name(tmp_path):
    """One that `partial_fit` had begun: its rows alone are given and compared."""

    def crash(record):
        if hasattr(learner, "tasks_") and learner.tasks_:
            raise CrashError

    learner = Classifier(epochs=2, random_state=0, strategy=EWC(), folder=tmp_path / "run", callbacks=[crash])
    may, june = ({"X": X[name == MONTH], "y": Y[name == MONTH]} for name in ("may", "june"))
    learner.partial_fit(**may, classes=[0, 1], task="may")
    with pytest.raises(CrashError):
        learner.partial_fit(**june, task="june")
    with pytest.raises(ValueError, match="got other x"):
        weft.load(tmp_path / "run").resume(**may, task="june")
    assert weft.load(tmp_path / "run").resume(**june, task="june").tasks_ == ["may", "june"]


def test_resume_of_a_source_refuses_another(tmp_path):
    def source(shift=0.0, size=8):
        rows = torch.tensor(X, dtype=torch.float32)
        return Arrays(rows + shift, torch.tensor(Y), batch_size=size, classes=2)

    def crash(record):
        raise CrashError

    learner = Learner(Classification("linear"), epochs=3, random_state=0, folder=tmp_path / "run", callbacks=[crash])
    with pytest.raises(CrashError):
        learner.fit(source())
    for other, name in ((source(1.0), "x"), (source(size=10), "source")):
        with pytest.raises(ValueError, match=f"got other {name}"):
            weft.load(tmp_path / "run").resume(other)
    assert weft.load(tmp_path / "run").resume(source()).n_steps_ == 15


def test_resume_of_episodes_refuses_others(tmp_path):
    def crash(record):
        raise CrashError

    def episodes(y=Y, shots=2):
        return Episodes((X, y.astype(float), MONTH), tasks=3, shots=shots)

    learner = Learner("regression", strategy=MAML(), steps=4, random_state=0, folder=tmp_path / "run")
    from weft.objectives import Regression

    learner.set_params(objective=Regression("linear"), callbacks=[crash])
    with pytest.raises(CrashError):
        learner.fit(episodes())
    for other in (episodes(Y[::-1]), episodes(shots=3)):
        with pytest.raises(ValueError, match="expected the data that the run was begun with"):
            weft.load(tmp_path / "run").resume(other)
    weft.load(tmp_path / "run").resume(episodes())


def test_data_is_digested_once_a_fit_and_in_pieces(tmp_path, monkeypatch):
    calls = []
    digest = digests.digest
    monkeypatch.setattr(digests, "digest", lambda values: calls.append(values) or digest(values))
    Regressor(epochs=5, random_state=0).fit(X, X[:, 0])
    assert not calls, "where nothing is kept, nothing is digested"
    Regressor(epochs=5, random_state=0, folder=tmp_path / "run").fit(X, X[:, 0])
    assert len([values for values in calls if len(values) == 40]) == 2
    whole = digest(X), digest(torch.tensor(X)), digest(["a"] * 40)
    assert (digest(X.tolist()), digest(X[::-1][::-1])) == (whole[0], whole[0])
    large = []
    parts = digests._bytes
    monkeypatch.setattr(digests, "_bytes", lambda part: large.append(len(part)) or parts(part))
    monkeypatch.setattr(digests, "_BYTES", 8 * 3 * 7)
    digest(np.memmap(tmp_path / "large", dtype=np.float64, mode="w+", shape=(40, 3)))
    assert large == [7, 7, 7, 7, 7, 5]


# --- earlier versions -----------------------------------------------------------------------------------


def test_a_run_of_an_earlier_version_is_read_with_a_note_and_gets_a_manifest(tmp_path):
    folder = interrupted(tmp_path / "run", {"X": X, "y": Y})
    unlisted(folder)
    with pytest.warns(UserWarning, match=r"kept by an earlier version of weft, without manifest\.json"):
        twin = weft.load(folder)
    twin.resume(X, Y)
    whole = Classifier(epochs=4, batch_size=8, random_state=0, hidden=(4,)).fit(X, Y)
    np.testing.assert_array_equal(twin.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(weft.load(folder).predict_proba(X), whole.predict_proba(X))
    assert len(list(folder.glob("state-*.safetensors"))) == 1


def test_a_run_that_lost_its_manifest_is_refused(tmp_path):
    Classifier(epochs=1, random_state=0, folder=tmp_path / "run").fit(X, Y)
    (tmp_path / "run" / manifest.NAME).unlink()
    with pytest.raises(ValueError, match=r"manifest\.json, which says what belongs to the run, got no such file"):
        weft.load(tmp_path / "run")


# --- files that are no files, or too deep ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "state.json", "state-0.safetensors"])
def test_a_pipe_is_not_waited_for(name, tmp_path):
    Classifier(epochs=1, random_state=0).fit(X, Y).save(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(ValueError, match=rf"expected a file at .*{name}, got a folder, a pipe or a device"):
        weft.load(tmp_path / "run")


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("name", ["state_json", "config_json"])
def test_json_that_is_nested_too_deeply(name, depth, tmp_path):
    Classifier(epochs=1, random_state=0).fit(X, Y).save(tmp_path / "run")
    text = (tmp_path / "run" / name.replace("_", ".")).read_text()
    plain = json.loads(text)
    key = "tree" if name == "state_json" else "params"
    text = json.dumps({**plain, key: {"strategy": "HERE"}}).replace('"HERE"', "[" * depth + "]" * depth)
    reseal(tmp_path / "run", **{name: text.encode()})
    with pytest.raises((ValueError, TypeError), match="expected"):
        weft.load(tmp_path / "run")
    path = tmp_path / "run" / manifest.NAME
    path.write_text("[" * depth + "]" * depth)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        weft.load(tmp_path / "run")


# --- what is left of a write ----------------------------------------------------------------------------


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path, monkeypatch):
    path = tmp_path / "a file.json"

    def die(name):
        os._exit(9)

    child = os.fork()
    if not child:
        files.point = die
        files.write_bytes(path, b"1234")
    assert os.waitpid(child, 0)[1]
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".another.json.1.tmp").write_text("")
    files.write_bytes(path, b"12")
    assert {p.name for p in tmp_path.iterdir()} == {"a file.json", ".another.json.1.tmp"}


def test_what_is_being_written_is_not_taken_for_a_leftover(tmp_path, monkeypatch):
    path = tmp_path / "file.json"

    def meanwhile(name):
        if name.startswith("during"):
            monkeypatch.setattr(files, "point", lambda name: None)
            monkeypatch.setattr(files.os, "getpid", lambda: 17)
            files.write_bytes(path, b"another's")

    monkeypatch.setattr(files, "point", meanwhile)
    files.write_bytes(path, b"the last")
    assert path.read_bytes() == b"the last"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
