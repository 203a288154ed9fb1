"""Folders and files that are not what they should be: a clear error, and nothing already written is lost."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer, Regressor, weave
from weft.core.files import sealed, unsealed
from weft.engine import checkpoint
from weft.objectives import GAN, Classification, LeastSquares
from weft.strategies import EWC, ANDMask

from .hostile import reseal, unlisted

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
ROOT = Path(__file__).parent.parent.parent


def kept(folder, **settings):
    return Classifier(epochs=2, random_state=0, folder=folder, **settings).fit(X, Y)


@pytest.mark.filterwarnings("ignore:expected tasks for")
@pytest.mark.filterwarnings("ignore:expected rows held out beside patience")
@pytest.mark.parametrize(
    "learner",
    [
        Classifier(epochs=2, hidden=(4,), class_weight="balanced"),
        Classifier(epochs=2, strategy=weave(EWC(strength=3.0), ANDMask(threshold=0.5)), replicas=2),
        Classifier(epochs=2, optimizer=Optimizer("sgd", lr=0.1, groups={"*.bias": {"lr": 0.0}}), schedule="cosine"),
        Classifier(epochs=2, strategy="and-mask", replicas={"strategy__threshold": [0.0, 1.0]}, validation=0.2),
        Learner(Classification("linear"), epochs=2, dtype="float64", patience=1),
    ],
    ids=repr,
)
def test_what_is_saved_is_loaded(learner, tmp_path):
    learner.set_params(random_state=0).fit(X, Y, environment=np.arange(40) % 2)
    learner.save(tmp_path / "run")
    twin = weft.load(tmp_path / "run")
    assert repr(twin.get_params()) == repr(learner.get_params())
    np.testing.assert_array_equal(twin.predict_proba(X), learner.predict_proba(X))
    np.testing.assert_array_equal(twin.predict(X), learner.predict(X))
    np.testing.assert_array_equal(twin.history_["loss"], learner.history_["loss"])
    assert twin.stop_reason_ == learner.stop_reason_
    # and it can go on learning, as the other would
    for one in (learner, twin):
        one.partial_fit(X, Y, environment=np.arange(40) % 2)
    np.testing.assert_array_equal(twin.predict_proba(X), learner.predict_proba(X))


def test_only_values_are_written(tmp_path):
    kept(tmp_path / "run")
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names[:3] == ["config.json", "manifest.json", "metrics.jsonl"]
    assert [n.rpartition(".")[2] for n in names] == ["json", "json", "jsonl", "safetensors", "json"]
    for name in names:
        data = (tmp_path / "run" / name).read_bytes()
        assert not data.startswith((b"\x80", b"PK")), "a pickle or an archive"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_a_module_of_ones_own_must_be_given_again(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    learner = kept(tmp_path / "run", net=net)
    with pytest.raises(ValueError, match=r"expected net \(Sequential\) again.*net=\.\.\."):
        weft.load(tmp_path / "run")
    for name in ("module", "net"):  # whatever the parameter is called, or by its name
        twin = weft.load(tmp_path / "run", **{name: net})
        np.testing.assert_array_equal(twin.predict_proba(X), learner.predict_proba(X))
    with pytest.raises(ValueError, match="a module of the shape that was trained"):
        weft.load(tmp_path / "run", module=nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    game = Learner(GAN(latent=2, generator=nn.Linear(2, 3), critic=nn.Linear(3, 1)), steps=2, random_state=0)
    game.set_params(folder=tmp_path / "game").fit(X)
    with pytest.raises(ValueError, match="generator"):
        weft.load(tmp_path / "game")
    twin = weft.load(tmp_path / "game", generator=nn.Linear(2, 3), critic=nn.Linear(3, 1))
    np.testing.assert_array_equal(twin.sample(3), game.sample(3))


def test_a_function_must_be_given_again_to_go_on_but_not_to_answer(tmp_path):
    Regressor(epochs=2, schedule=lambda t: 1 - t, folder=tmp_path / "run", random_state=0).fit(X, X[:, 0])
    twin = weft.load(tmp_path / "run")
    assert twin.predict(X).shape == (40,)
    with pytest.raises(ValueError, match="expected 'schedule' again"):
        twin.resume(X, X[:, 0])


# --- hostile files -----------------------------------------------------------------------------------


class Evil:
    """Unpickling this would run a command."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.system, (f"touch {self.mark}",))


def test_a_pickle_in_place_of_the_tensors_is_refused(tmp_path):
    import pickle

    folder, mark = tmp_path / "run", tmp_path / "mark"
    kept(folder)
    evil = pickle.dumps(Evil(mark))
    reseal(folder, safetensors=evil)
    with pytest.raises(ValueError, match="expected safetensors"):
        weft.load(folder)
    reseal(folder, state_json=evil)
    with pytest.raises(ValueError, match="expected JSON in"):
        weft.load(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        {"$method": "os.system", "params": {"command": "true"}},
        {"$method": "strategies/../../os", "params": {}},
        {"$method": "subprocess.Popen", "params": {"args": "true"}},
    ],
)
def test_a_class_that_a_file_names_is_not_imported(value, tmp_path):
    kept(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["params"]["strategy"] = value
    reseal(tmp_path / "run", config_json=config)
    with pytest.raises(ValueError, match="expected a method of weft's catalogue"):
        weft.load(tmp_path / "run")


def test_a_learner_that_a_file_names_is_one_of_ours(tmp_path):
    kept(tmp_path / "run")
    text = (tmp_path / "run" / "config.json").read_text()
    reseal(tmp_path / "run", config_json=text.replace('"Classifier"', '"__import__"').encode())
    with pytest.raises(ValueError, match="expected weft's configuration"):
        weft.load(tmp_path / "run")


def test_tensors_elsewhere_are_refused(tmp_path):
    kept(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    plain = unsealed(path)
    plain["files"]["../../etc/passwd"] = plain["files"].pop("config.json")
    path.write_text(sealed(plain))
    with pytest.raises(ValueError, match="of files beside it"):
        weft.load(tmp_path / "run")
    kept(tmp_path / "old")
    unlisted(tmp_path / "old")
    path = tmp_path / "old" / "state.json"
    header = json.loads(path.read_text())
    header["tensors"] = "../../etc/passwd"
    path.write_text(json.dumps(header))
    with pytest.raises(ValueError, match=r"beside state\.json"):
        weft.load(tmp_path / "old")


# --- damaged, foreign, unwritable ----------------------------------------------------------------------


def test_a_truncated_file(tmp_path):
    kept(tmp_path / "run")
    (path,) = (tmp_path / "run").glob("state-*.safetensors")
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="truncated or was changed"):
        weft.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(ValueError, match="no such file"):
        weft.load(tmp_path / "run")


def test_another_version(tmp_path):
    kept(tmp_path / "run")
    text = (tmp_path / "run" / "state.json").read_text()
    reseal(tmp_path / "run", state_json=text.replace('"format": 4', '"format": 7').encode())
    with pytest.raises(ValueError, match=r"format 4 .* got format 7, which another version"):
        weft.load(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    path.write_text(sealed({**unsealed(path), "format": 7}))
    with pytest.raises(ValueError, match=r"manifest of format 1 .* which another version"):
        weft.load(tmp_path / "run")


def test_no_run_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="which is not there"):
        weft.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no manifest\.json"):
        weft.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "state.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="another kind of file"):
        weft.load(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    first = kept(tmp_path / "run")
    before = checkpoint.read(tmp_path / "run")["history"]
    with pytest.raises(ValueError, match=r"expected an empty or new folder.*a run of weft"):
        kept(tmp_path / "run")
    assert len(checkpoint.read(tmp_path / "run")["history"]) == len(before)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"'chapter.tex' and perhaps more"):
        kept(tmp_path / "thesis")
    with pytest.raises(ValueError, match="got the file"):
        kept(tmp_path / "thesis" / "chapter.tex")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    with pytest.raises(ValueError, match="expected an empty or new folder"):
        first.save(tmp_path / "run")
    first.save(tmp_path / "run", force=True)
    assert weft.load(tmp_path / "run").predict(X).shape == (40,)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="expected a folder that can be written"):
        kept(tmp_path / "file" / "run")


FULL = """
import resource, signal, sys
import numpy as np
from weft import Classifier
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3)); Y = (X[:, 0] > 0).astype(int)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(record):
    if record["epoch"] == 2:  # from here on no file may be longer than this: the disk is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import weft.learner.folder
weft.learner.folder.SECONDS = 0.0
Classifier(epochs=4, random_state=0, folder=sys.argv[1], callbacks=[fill]).fit(X, Y)
"""


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    assert resource.RLIMIT_FSIZE is not None
    assert signal.SIGXFSZ is not None
    command = [sys.executable, "-c", FULL, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "the last checkpoint there is whole" in done.stderr
    assert not list((tmp_path / "run").glob(".*"))
    twin = weft.load(tmp_path / "run")
    y = (X[:, 0] > 0).astype(int)
    twin.resume(X, y)
    whole = Classifier(epochs=4, random_state=0).fit(X, y)
    np.testing.assert_array_equal(twin.predict_proba(X), whole.predict_proba(X))


def test_divergence_names_step_and_last_checkpoint(tmp_path):
    learner = Regressor(optimizer=Optimizer("sgd", lr=1e30), epochs=2, random_state=0, folder=tmp_path / "run")
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+.*last good checkpoint is of step \d+, in"):
        learner.fit(X, X[:, 0])


def test_control_c_keeps_the_step_at_hand(tmp_path):
    """Interrupted in the middle of an epoch; what is resumed ends as if nothing had been."""

    class Interrupt:
        def __call__(self, record):
            if record["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    y = (X[:, 0] > 0).astype(int)
    learner = Classifier(epochs=5, batch_size=8, random_state=0, folder=tmp_path / "run", callbacks=[Interrupt()])
    with pytest.raises(KeyboardInterrupt):
        learner.fit(X, y)
    assert learner.n_steps_ == 10
    twin = weft.load(tmp_path / "run").resume(X, y)
    whole = Classifier(epochs=5, batch_size=8, random_state=0).fit(X, y)
    np.testing.assert_array_equal(twin.predict_proba(X), whole.predict_proba(X))
    np.testing.assert_array_equal(twin.history_["loss"], whole.history_["loss"])


def test_what_is_solved_is_kept_too(tmp_path):
    solved = Learner(LeastSquares(ridge=1.0), folder=tmp_path / "run").fit(X, X[:, 0])
    np.testing.assert_array_equal(weft.load(tmp_path / "run").predict(X), solved.predict(X))


def test_validation_data_is_given_again(tmp_path):
    pair = (X[:10], Y[:10])
    kept(tmp_path / "run", validation=pair)
    assert weft.load(tmp_path / "run", validation=pair).validation is pair
    with pytest.raises(ValueError, match="expected 'validation' again"):
        weft.load(tmp_path / "run").resume(X, Y)


def test_trees_survive(tmp_path):
    tree = {
        "a": torch.arange(3),
        "b": {1: (2.5, float("nan"), None), "c": [True, "text", {"$odd": -0.0}]},
        "d": torch.tensor(1.5, dtype=torch.bfloat16),
        "e": {},
    }
    checkpoint.write(tmp_path, tree)
    found = checkpoint.read(tmp_path)
    assert torch.equal(found["a"], tree["a"])
    assert repr(found["b"]) == repr(tree["b"])
    assert found["d"].dtype == torch.bfloat16
    with pytest.raises(TypeError, match="expected tensors, numbers"):
        checkpoint.write(tmp_path, {"f": object()})
    assert torch.equal(checkpoint.read(tmp_path)["a"], tree["a"]), "a failed write leaves the last one"
