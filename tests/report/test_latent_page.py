"""The page of a run that has codes or draws: what it gets wrong, which entries it uses, what codes stand for."""

import base64
import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.commands.command_cases import run
from tests.report.test_pages import Reader

from weft import Learner, Optimizer
from weft.core.objective import Objective, Output, capability
from weft.objectives import VAE, Independent, ProbabilisticPCA
from weft.report.page import checks as checked
from weft.report.page.latent import GRID, STEPS, Codes
from weft.report.page.markup import Names, Sections
from weft.report.writing import render

FAST = Optimizer("adam", lr=0.01)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """A small VAE of a table, one of whose columns is too skew for it."""
    folder, random = tmp_path_factory.mktemp("latent"), np.random.default_rng(0)
    z = random.normal(size=400)
    frame = pd.DataFrame(
        {
            "height": 1.7 + 0.1 * z + 0.03 * random.normal(size=400),
            "wait": random.exponential(3.0, 400) ** 2,
            "leaf": np.where(z + random.normal(size=400) > 0, "long", "round"),
        }
    )
    frame.to_csv(folder / "data.csv", index=False)
    options = ["--objective", "vae(latent=2, hidden=(8,))", "--steps", "300"]
    result = run("fit", str(folder / "data.csv"), *options, "--out", str(folder / "run"), "-q")
    assert result.exit_code == 0, result.stderr
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checked, "PATIENCE", np.inf)  # however slow the machine
        return Reader(render([folder / "run"]))


def test_a_table_is_checked_and_what_is_planted_is_found(skewed):
    rows = skewed.table("Statistics of the 80 held-out rows")
    assert [row[0] for row in rows[1:3]] == ["mean of height", "deviation of height"]
    assert len(rows) == 1 + 2 * 5 + 1 + 1
    assert "unlike what the model draws in" in " ".join(skewed.words)
    (skewness,) = [row for row in rows if row[0] == "skewness of wait"]
    assert float(skewness[4]) <= 0.05


def test_a_table_has_its_samples_reconstructions_and_codes(skewed):
    words = " ".join(skewed.words)
    assert "None could be drawn" not in words
    assert "samples beside the 80 held-out rows" in words
    kept = skewed.table("How each column of 80 rows is kept")
    assert [row[0] for row in kept[1:]] == ["height", "wait", "leaf"]
    assert 0 <= float(kept[3][3]) <= 1
    assert re.search(r"\d of 2 entries of the code are active; a code tells", words)
    way = skewed.table("Of held-out rows: from the code of one")
    assert [row[0] for row in way] == ["way", *(f"{100 * k / (STEPS - 1):.1f}%" for k in range(STEPS))]
    assert {row[3] for row in way[1:]} <= {"long", "round"}
    assert len(skewed.table("By how much each value of a row moves")) == 3


def codes_of(objective, X, **more):
    learner = Learner(objective, random_state=0, **more).fit(X)
    return learner, Codes(learner, X, "rows", Sections(Names()))


def test_moves_of_a_linear_model_are_known():
    """Of x = W z + mean, an entry of the code moves x by 4 deviations of the code times W."""
    random = np.random.default_rng(1)
    X = random.normal(size=(3000, 2)) @ np.array([[2.0, 1.0, 0.0], [0.0, 0.5, 1.0]]) + 0.3 * random.normal(
        size=(3000, 3)
    )
    learner, codes = codes_of(ProbabilisticPCA(2), X, dtype="float64")
    W = learner.inverse_transform(np.eye(2)) - learner.inverse_transform(np.zeros((2, 2)))
    (rows,) = Reader("".join(codes.along())).files()
    for entry, spread, *moved in rows[1:]:
        j = int(entry) - 1
        assert float(spread) == pytest.approx(codes.codes[:, j].std(), rel=1e-6)
        assert np.array(moved, float) == pytest.approx(4 * codes.drawn[:, j].std() * W[j], rel=1e-3, abs=1e-3)
    assert codes.drawn.std(0) == pytest.approx([1, 1], abs=0.1)  # draws are about the prior, means of codes are not
    (way,) = Reader("".join(codes.between())).files()
    ends = learner.inverse_transform(codes.codes[[0, codes._far(0)]])
    assert np.array([way[1][1:], way[-1][1:]], float) == pytest.approx(ends, abs=1e-4)
    assert np.array(way[5][1:], float) == pytest.approx(ends.mean(0), abs=1e-4)  # half of the way
    assert codes.grid() == []  # no pictures


def pictures(parts):
    held = re.findall(r"base64,([^\"]+)", "".join(parts))
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one))), dtype=float) for one in held]


def test_images_are_shown_as_grids_that_stand_where_they_should(tmp_path):
    X = np.random.default_rng(2).random((100, 64)).astype(np.float32)
    learner, codes = codes_of(VAE(2, hidden=(8,), law="normal", noise=0.1), X, steps=60, optimizer=FAST)
    (grid,) = pictures(codes.grid())
    assert grid.shape == (9 * GRID - 1, 9 * GRID - 1)
    corner = [np.quantile(codes.drawn[:, 0], 0.02), np.quantile(codes.drawn[:, 1], 0.98)]
    made = np.asarray(learner.inverse_transform(np.array([corner], dtype=np.float32)))[0].reshape(8, 8)
    assert np.corrcoef(grid[:8, :8].ravel(), made.ravel())[0, 1] > 0.999  # above on the left
    assert pictures(codes.along())[0].shape == (2 * 9 - 1, 9 * STEPS - 1)
    assert pictures(codes.between())[0].shape == (4 * 9 - 1, 9 * STEPS - 1)
    colours = np.random.default_rng(3).random((40, 3, 8, 8)).astype(np.float32)
    _, seen = codes_of(VAE(2, hidden=(8,), law="normal", noise=0.1), colours, steps=2)
    assert pictures(seen.along())[0].shape == (2 * 9 - 1, 9 * STEPS - 1, 3)
    long = np.random.default_rng(4).random((40, 20)).astype(np.float32)
    _, seen = codes_of(VAE(2, hidden=(8,)), long, steps=2)
    assert "Rows between two codes" in "".join(seen.between())


def test_without_data_the_codes_are_of_rows_that_the_model_drew_and_collapse_is_said(tmp_path):
    X = np.random.default_rng(5).normal(size=(200, 3)).astype(np.float32)
    model = VAE(2, hidden=(), beta=100.0, noise="shared")
    Learner(model, steps=400, optimizer=FAST, random_state=0, folder=tmp_path / "run").fit(X)
    page = render([tmp_path / "run"])
    assert "0 of 2 entries of the code are active" in page
    assert "collapsed into the prior" in page
    assert "Codes of 400 rows that the model drew" in page
    assert "What it gets wrong" not in page  # there is nothing to check it with


def test_a_model_given_classes_shows_codes_of_one_class(tmp_path):
    random = np.random.default_rng(9)
    right = random.random(200) < 0.4
    frame = pd.DataFrame(random.normal(size=(200, 3)) + 3 * right[:, None], columns=list("abc"))
    frame.assign(side=np.where(right, "right", "left")).to_csv(tmp_path / "data.csv", index=False)
    options = ["--objective", "vae(latent=2, hidden=(8,), conditional=True)", "--target", "side", "--steps", "100"]
    result = run("fit", str(tmp_path / "data.csv"), *options, "--out", str(tmp_path / "run"), "-q")
    assert result.exit_code == 0, result.stderr
    page = render([tmp_path / "run"])
    assert "None could be drawn" not in page
    assert re.search(r"\d of 2 entries of the code are active", page)
    assert re.search(r"codes of \d+ held-out rows of left", page, re.IGNORECASE)
    assert "The mean log-likelihood of the" in page


class Whole(Objective):
    """Codes of whole numbers, between which there are none."""

    fields = ("x",)

    def build(self, spec):
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch):
        return Output((self.scale * batch["x"]).square().sum(1))

    @capability(merge="refuse")
    def transform(self, x):
        return x.round()

    @capability(merge="refuse")
    def inverse_transform(self, z):
        return z


def test_codes_of_whole_numbers_have_none_between_them():
    _, codes = codes_of(Whole(), 5 * np.random.default_rng(6).normal(size=(20, 2)), steps=1)
    assert not codes.moves


def test_checks_that_would_take_too_long_are_left_out_and_say_how_to_make_them(monkeypatch):
    X = np.random.default_rng(7).normal(size=(50, 2))
    learner = Learner(Independent(), random_state=0).fit(X)
    monkeypatch.setattr(checked, "PATIENCE", np.inf)
    assert "conservative" in "".join(checked.checks(learner, X, Sections(Names()), trained=True))
    monkeypatch.setattr(checked, "PATIENCE", 0.0)
    said = "".join(checked.checks(learner, X, Sections(Names()), trained=True))
    assert "Not made: 999 data sets of 50 rows would take about" in said


def test_the_page_works_in_a_browser(tmp_path, visit):
    X = np.random.default_rng(8).random((60, 64)).astype(np.float32)
    model = VAE(2, hidden=(8,), law="normal", noise=0.1)
    Learner(model, steps=20, random_state=0, folder=tmp_path / "run").fit(X)
    (tmp_path / "page.html").write_text(render([tmp_path / "run"]))
    page = visit((tmp_path / "page.html").as_uri())
    assert page.said == []
    assert page.locator(".mosaic img").count() == 3
    wide = page.locator(".mosaic img").first.bounding_box()
    assert 300 < wide["width"] <= 600
    assert page.evaluate("[...document.querySelectorAll('.mosaic img')].every((i) => i.complete && i.naturalWidth)")
