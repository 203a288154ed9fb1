"""The table and the page of two samples."""

import sys

import numpy as np
import pandas as pd
import pytest
from tests.report.report_cases import ATTACK

from weft.report import compare_samples
from weft.report.comparing import Measured, _corrected
from weft.scores import c2st, density_coverage, energy_distance, mmd, precision_recall, sliced_wasserstein

MEASURES = ["MMD²", "energy distance", "classifier accuracy (logistic)", "classifier accuracy (knn)"]
OTHERS = ["sliced Wasserstein", "Wasserstein", "precision", "recall", "density", "coverage"]


def samples(columns=3, n=60):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, columns)), 0.5 + 1.5 * rng.normal(size=(n + 20, columns))


def test_the_table_holds_every_measure_as_it_is_alone():
    X, Y = samples()
    found = compare_samples(X, Y, permutations=49, random_state=3)
    frame = found.to_frame()
    assert list(frame.index) == MEASURES + OTHERS
    energy = energy_distance(X, Y, permutations=49, random_state=3)
    assert tuple(frame.loc["energy distance", ["value", "p_value"]]) == (energy.value, energy.p_value)
    kernel = mmd(X, Y, scales=(0.25, 0.5, 1.0, 2.0), permutations=49, random_state=3)
    assert tuple(frame.loc["MMD²", ["value", "p_value"]]) == (kernel.value, kernel.p_value)
    for name in ("logistic", "knn"):
        alone = c2st(X, Y, classifier=name, random_state=3)
        assert tuple(frame.loc[f"classifier accuracy ({name})", ["value", "p_value"]]) == (alone.value, alone.p_value)
    assert frame.value["sliced Wasserstein"] == sliced_wasserstein(X, Y, random_state=3)
    assert tuple(frame.value[["precision", "recall"]]) == precision_recall(X, Y)
    assert tuple(frame.value[["density", "coverage"]]) == density_coverage(X, Y)
    assert frame.p_value[OTHERS].isna().all()
    assert str(found).splitlines()[1].split()[0] == "MMD²"


def test_the_correction_is_holm_s():
    lines = [Measured(str(i), 0.0, "", p, None, "") for i, p in enumerate((0.01, None, 0.04, 0.03, 0.005))]
    assert [line.holm for line in _corrected(lines)] == [
        pytest.approx(p) if p else None for p in (0.03, None, 0.06, 0.06, 0.02)
    ]


def test_it_concludes_by_the_corrected_p():
    X, Y = samples()
    assert "are told apart by" in compare_samples(X, Y, names=("data", "model")).conclusion
    alike = compare_samples(X, X[::-1] + 1e-9)
    assert alike.told_apart == ()
    assert alike.conclusion.startswith("None of 4 tests tells X from Y at 5%: with 60 and 60 rows this is no proof")


def test_what_cannot_be_measured_says_why(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setitem(sys.modules, "ot", None)
    found = compare_samples(rng.integers(2, size=(40, 1)), rng.integers(2, size=(40, 1)), permutations=9)
    frame = found.to_frame()
    assert frame.value[["precision", "recall", "density", "coverage", "Wasserstein"]].isna().all()
    assert "expected POT" in frame.about["Wasserstein"]
    assert "leave duplicates out" in frame.about["density"]
    assert "precision: expected real rows that differ" in str(found)
    assert frame.value["energy distance"] >= 0


def test_many_rows_are_drawn_and_columns_may_be_standardized():
    X, Y = samples(columns=2, n=50)
    found = compare_samples(
        X * [1.0, 100.0], Y * [1.0, 100.0], most_rows=40, standardize=True, permutations=9
    ).to_frame()
    assert found.about.drop("Wasserstein").str.contains("of at most 40 rows of each sample; columns standardized").all()
    scaled = compare_samples(X, Y, standardize=True, permutations=9).to_frame().value
    again = compare_samples(X * [1.0, 100.0], Y * [1.0, 100.0], standardize=True, permutations=9).to_frame().value
    assert again.drop("Wasserstein").values == pytest.approx(scaled.drop("Wasserstein").values)
    still = compare_samples(np.c_[X, np.ones(50)], np.c_[Y, np.ones(70)], standardize=True, permutations=9).to_frame()
    assert still.value["energy distance"] == pytest.approx(scaled["energy distance"])


def test_bad_input_is_told():
    X, Y = samples()
    with pytest.raises(ValueError, match=r"got \(n, 2\) and \(n, 3\)"):
        compare_samples(X[:, :2], Y)
    with pytest.raises(ValueError, match="finite numbers in Y"):
        compare_samples(X, np.where(Y > 2, np.nan, Y))
    with pytest.raises(ValueError, match="at least 10 rows in X, got 9"):
        compare_samples(X[:9], Y)
    with pytest.raises(ValueError, match="a name for each of 3 columns, got 1"):
        compare_samples(X, Y, columns=["a"])
    with pytest.raises(ValueError, match="expected permutations to be an integer >= 1, got 0"):
        compare_samples(X, Y, permutations=0)


def test_the_page_shows_both_samples_and_escapes_names(tmp_path, visit):
    X, Y = samples(columns=6)
    frame = pd.DataFrame(X, columns=[ATTACK, *"bcdef"])
    found = compare_samples(frame, Y, names=(ATTACK, "model"), permutations=19)
    path = found.save(tmp_path / "new" / "two.html")
    page = visit(path.as_uri())
    assert page.said == []
    assert page.asked == [path.as_uri()]
    assert page.locator("h1").inner_text().startswith(ATTACK[:40])
    assert page.locator("svg.chart").count() == 6 + 6  # columns, and pairs of the four that differ most
    cells = page.locator("table").first.locator("tbody tr").all_inner_texts()
    assert len(cells) == len(found.table)
    assert page.locator("main").inner_text().count("The 4 of 6 columns whose distributions differ most") == 1
    one = compare_samples(X[:, 0], Y[:, 0], permutations=19).save(tmp_path / "one.html").read_text()
    assert "Pairs of columns" not in one
    assert "rows of 1 number." in one


def test_a_page_overwrites_nothing_but_a_page(tmp_path):
    X, Y = samples()
    found = compare_samples(X, Y, permutations=9)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="expected a new file or an older report"):
        found.save(tmp_path / "notes.txt")
    found.save(tmp_path / "a.html")
    found.save(tmp_path / "a.html")
