"""The commands `weft train` and `weft play`, and `weft resume` of a run that acts."""

import json
import shutil
import signal

import numpy as np
import pytest
from PIL import Image
from tests.commands.command_cases import refused as refused_of
from tests.commands.command_cases import run

from weft import Learner, Optimizer, load
from weft.core.manifest import unsealed_beside
from weft.data import Catch
from weft.learner.folder import Folder
from weft.objectives import REINFORCE
from weft.report.folder import world_of
from weft.sources import Rollouts

WORLD = "catch(rows=4, columns=3)"
ASKED = [
    "--objective",
    "reinforce(hidden=(4,))",
    "--plays",
    "envs=4",
    "--optimizer",
    "adam(lr=0.02)",
    "--episodes",
    "8",
]
QUICK = [*ASKED, "--steps", "4", "--every", "1", "--replicas", "2"]


def refused(*args):
    result = run(*args)
    refused_of(result)
    return result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acting") / "run"
    result = run("train", WORLD, *QUICK, "--out", str(folder), "--film", "--json")
    assert result.exit_code == 0, result.stderr
    return folder, json.loads(result.stdout)


def test_it_is_what_python_trains_and_evaluates(trained):
    folder, told = trained
    world = Catch(rows=4, columns=3)
    learner = Learner(
        REINFORCE(hidden=(4,)),
        optimizer=Optimizer("adam", lr=0.02),
        steps=4,
        every=1,
        replicas=2,
        validation=Rollouts(world, envs=10, greedy=True),
        random_state=0,
    ).fit(Rollouts(world, envs=4))
    np.testing.assert_array_equal(load(folder, validation=None).history_["return"], learner.history_["return"])
    found = learner.evaluate(world, 8)
    kept = unsealed_beside(folder / "evaluation.json")["worlds"][0]
    assert kept == told["evaluation"]["worlds"][0]
    assert (kept["world"], kept["mean"], tuple(kept["interval"])) == (WORLD, found.mean, found.interval)
    assert kept["means"] == found.means.tolist()
    assert told["env_steps"] == int(learner.history_["env_steps"][-1].max())
    assert world_of(folder) == [WORLD]


def test_play_evaluates_and_films(trained, tmp_path):
    folder, _ = trained
    result = run("play", str(folder), "--gif", str(tmp_path / "film.gif"), "--bound", "1", "--episodes", "6")
    assert result.exit_code == 0, result.stderr
    found = load(folder, validation=None).evaluate(Catch(rows=4, columns=3), 6, bound=1)
    assert f"return in {WORLD}: {found!r}" in result.stdout
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 4  # the ball falls through three more rows
    with Image.open(folder / "film.gif") as film:
        assert film.n_frames == 4
    told = json.loads(run("play", str(folder), "--replica", "1", "--drawn", "--seed", "3", "--json").stdout)
    one = load(folder, validation=None).replica(1)
    assert told["worlds"][0]["mean"] == one.evaluate(Catch(4, 3), 10, deterministic=False, random_state=3).mean
    assert "there already" in refused("play", str(folder), "--gif", str(tmp_path / "film.gif"))
    assert run("play", str(folder), "--gif", str(tmp_path / "film.gif"), "--force").exit_code == 0
    assert "shape (1, 10, 5)" in refused("play", str(folder), "--world", "catch")


def test_an_interrupted_run_goes_on_in_its_world(trained, tmp_path, monkeypatch):
    folder, calls, keep = tmp_path / "run", [], Folder.keep

    def interrupt(self, learner, must=True):
        keep(self, learner, must)
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "keep", interrupt)
        patch.setattr("weft.learner.folder.SECONDS", 0.0)
        result = run("train", WORLD, *QUICK, "--out", str(folder))
    assert result.exit_code == 130
    assert result.stderr == f"interrupted; go on with: weft resume {folder}\n"
    told = json.loads(run("resume", str(folder), "--json").stdout)
    assert 0 < told["resumed_at"] < 4
    for name in ("return", "valid_return", "loss"):
        one, other = (load(path, validation=None).history_[name] for path in (folder, trained[0]))
        np.testing.assert_array_equal(one, other)
    assert told["evaluation"] == trained[1]["evaluation"]
    assert "leave it out" in refused("resume", str(folder), "--data", "x.csv")


def test_gymnasiums_worlds_and_groups(tmp_path):
    folder = tmp_path / "one"
    asked = [*ASKED, "--env-steps", "60", "--validation", "none"]
    result = run("train", "CartPole-v1(max_episode_steps=20)", *asked, "--out", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "return in CartPole-v1(max_episode_steps=20)" in result.stdout
    told = json.loads(run("play", str(folder), "--json").stdout)
    assert told["worlds"][0]["length"] <= 20
    assert "valid_return" not in load(folder).history_[-1]
    both = run("train", WORLD, WORLD, *QUICK, "--strategy", "and-mask", "--out", str(tmp_path / "two"), "--json")
    assert both.exit_code == 0, both.stderr
    assert len(json.loads(both.stdout)["evaluation"]["worlds"]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([WORLD], "expected an objective that acts, one of "),
        ([WORLD, "--objective", "classification"], "got classification; name it with --objective"),
        (["CartPol-v1", *ASKED], "did you mean 'CartPole-v1'"),
        (["cart-pol", *ASKED], "did you mean 'cart-pole'"),
        (["catch(rws=3)", *ASKED], "did you mean 'rows'"),
        ([WORLD, *ASKED, "--plays", "16"], "expected settings such as 'envs=16, length=64', got '16'"),
        ([WORLD, *ASKED, "--steps", "3", "--env-steps", "5"], "expected one of epochs, steps and env_steps"),
        (
            ["CartPole-v1(max_episode_steps=9)", "CartPole-v1", *ASKED],
            "several worlds without arguments of gymnasium's",
        ),
        (
            [WORLD, *ASKED, "--validation", "cart-pole", "--steps", "1"],
            "validation with 'observation' of shape (1, 4, 3)",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(options, said, tmp_path):
    assert said in refused("train", *options, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_folders_are_told_apart(trained, fitted, tmp_path):
    folder, _ = trained
    assert "got one that acts in catch(rows=4, columns=3); ask it by: weft play" in refused(
        "predict", str(folder), "rows.csv"
    )
    assert "name it with --world" in refused("play", str(fitted[0]))
    assert "with a run in it" in refused("train", WORLD, *QUICK, "--out", str(folder))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    again = run("train", WORLD, *QUICK, "--steps", "1", "--out", str(copy), "--force")
    assert again.exit_code == 0, again.stderr
    assert not (copy / "film.gif").exists()
    (copy / "evaluation.json").write_text("{}")
    assert "damaged or foreign" in refused("show", str(copy))
