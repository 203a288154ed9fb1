"""The page of a run that acts: returns over the steps of its worlds, what the policy earns, and its film."""

import base64
import re

import numpy as np
import pytest
from scipy.stats import trim_mean
from typer.testing import CliRunner

from weft import Learner, load
from weft.commands.app import app
from weft.data import CartPole, Catch
from weft.objectives import REINFORCE
from weft.report.curves import curves, lasts
from weft.report.folder import about, records
from weft.report.page.acting import evaluated, middle_half, returns, together
from weft.report.page.markup import Names, Sections
from weft.report.page.run import commanded, run_title
from weft.report.writing import render

ASKED = [
    "cart-pole",
    "--objective",
    "reinforce(hidden=(4,))",
    "--plays",
    "envs=2",
    "--env-steps",
    "400",
    "--replicas",
    "5",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acting") / "run"
    result = CliRunner().invoke(app, ["train", *ASKED, "--episodes", "4", "--film", "--out", str(folder), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder


def test_it_shows_what_the_policy_earns_its_returns_and_its_film(run):
    page = render([run])
    told = [re.sub(r"<[^>]+>", "", title) for title in re.findall(r"<h2[^>]*>(.*?)</h2>", page)]
    assert told[:5] == ["How it went", "What it earns", "Returns", "A film", "Learning curves"]
    found = load(run, validation=None).evaluate(CartPole(), 4)
    assert f"cart-pole: {found!r}" in page
    assert base64.b64encode((run / "film.gif").read_bytes()).decode() in page
    assert "steps of the world" in page
    assert page.count("curve thin") == 2 * 5  # of training and of the evaluations, each seed
    assert "no finite value" not in page
    assert run_title(run)[1].startswith("cart-pole · reinforce")
    assert commanded(run, about(run)).startswith(
        "weft train cart-pole --objective 'reinforce(hidden=(4,))' --plays envs=2"
    )


def test_the_middle_half_is_scipys_trimmed_mean():
    values = np.random.default_rng(0).normal(size=(3, 11))
    np.testing.assert_allclose(middle_half(values), trim_mean(values, 0.25, axis=1))
    values[1, :4] = np.nan
    assert middle_half(values)[1] == pytest.approx(trim_mean(values[1, 4:], 0.25))


def test_the_middle_is_told_as_far_as_all_seeds_have_come(run):
    learner = load(run, validation=None)
    steps, told = learner.history_["env_steps"], learner.history_["return"]
    x, middle, low, high = together(steps, told)
    ends = [steps[np.isfinite(steps[:, k]), k][-1] for k in range(5)]
    assert x[-1] == min(ends) < max(ends)  # else those that are left would make the mean
    at = x[len(x) // 2]
    each = [
        np.interp(at, *(column[np.isfinite(steps[:, k])] for column in (steps[:, k], told[:, k]))) for k in range(5)
    ]
    assert middle[len(x) // 2] == pytest.approx(trim_mean(each, 0.25))
    assert (low[len(x) // 2], high[len(x) // 2]) == pytest.approx((min(each), max(each)))


def test_the_last_of_each_replica_is_told_though_they_end_apart(run):
    lines = curves(records(run))
    line = next(one for one in lines if (one.measure, one.part) == ("return", "training"))
    assert np.isnan(line.values[-1]).any()
    assert np.isfinite(lasts(line, lines)).all()
    assert np.isnan(lasts(line, [line])).any()  # of what does not act, the last record


def test_a_single_run_and_one_made_in_python(tmp_path):
    Learner(REINFORCE(hidden=(4,)), steps=3, every=1, random_state=0, folder=tmp_path / "run").fit(Catch(rows=4))
    page = render([tmp_path / "run"])
    assert "Returns" in page
    assert "curve thin" not in page
    assert "What it earns" not in page
    (tmp_path / "run" / "film.gif").write_bytes(b"no film")
    assert "The film in the run&#x27;s folder is no GIF." in render([tmp_path / "run"])


def test_what_does_not_act_has_no_such_parts():
    sections = Sections(Names(), 2)
    lines = curves([{"step": 1, "loss": 1.0, "return": 2.0}])
    assert returns(lines, sections) == []
    assert evaluated(None, sections) == []
