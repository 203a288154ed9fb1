"""Intervals and corrections: their coverage by simulation, and closed forms."""

import numpy as np
import pytest
from scipy import stats

from weft.bench.statistics import Comparison, Resampling, compare, holm, sentences


def table(random, seeds=8, points=150, mean=0.0, spread=0.3, noise=1.0):
    """Scores with an effect of the seed and one of the point."""
    return mean + spread * random.standard_normal((seeds, 1)) + noise * random.standard_normal((seeds, points))


def test_the_interval_covers_the_truth():
    random = np.random.default_rng(0)
    hits = 0
    for k in range(200):
        low, high = Resampling(8, 150, draws=400, random_state=k).interval(table(random), 0.95)
        hits += low <= 0.0 <= high
    assert 0.87 <= hits / 200 <= 0.99  # few seeds make percentile intervals a little narrow: about .9


def test_the_draws_have_the_variance_of_both_axes():
    random = np.random.default_rng(1)
    values = table(random, seeds=40, points=300)
    drawn = Resampling(40, 300, draws=20_000).means(values)
    rows, columns = values.mean(1), values.mean(0)
    within = values - rows[:, None] - columns + values.mean()
    expected = rows.var() / 40 + columns.var() / 300 + within.var() / (40 * 300)
    assert drawn.mean() == pytest.approx(values.mean(), abs=4 * np.sqrt(expected / 20_000))
    assert drawn.var() == pytest.approx(expected, rel=0.06)


def test_groups_are_drawn_whole():
    """Ten copies of each point tell no more than one of each."""
    random = np.random.default_rng(2)
    values = np.repeat(random.standard_normal((1, 60)), 4, axis=0)
    alone = np.subtract(*Resampling(4, 60, draws=4000).interval(values, 0.95))
    copies = np.repeat(values, 10, axis=1)
    groups = np.repeat(np.arange(60), 10)
    whole = np.subtract(*Resampling(4, 600, groups=groups, draws=4000).interval(copies, 0.95))
    torn = np.subtract(*Resampling(4, 600, draws=4000).interval(copies, 0.95))
    assert whole == pytest.approx(alone, rel=0.1)
    assert torn > 0.5 * alone  # negative widths: the torn one pretends to know three times as much


def test_holm_against_an_independent_implementation():
    random = np.random.default_rng(3)
    for _ in range(20):
        p = random.random(6) ** 2
        order = np.argsort(p)
        expected = np.empty(6)
        expected[order] = np.minimum(1, np.maximum.accumulate(p[order] * (6 - np.arange(6))))
        np.testing.assert_allclose(holm(p.tolist()), expected)


def test_no_difference_is_seldom_called_one():
    random = np.random.default_rng(4)
    false = 0
    for k in range(120):
        tables = {name: table(random, points=100) for name in ("a", "b", "c")}
        found = compare(tables, Resampling(8, 100, draws=400, random_state=k), rising=True)
        false += any(c.verdict != "not distinguishable" for c in found)
    assert false / 120 <= 0.12  # 5 % is meant; eight seeds make it a little more


def test_a_clear_difference_is_found_and_named_by_direction():
    random = np.random.default_rng(5)
    tables = {"low": table(random, mean=0.0), "high": table(random, mean=2.0)}
    resampling = Resampling(8, 150, draws=1000)
    assert compare(tables, resampling, rising=True)[0].verdict == "high is better"
    assert compare(tables, resampling, rising=False)[0].verdict == "low is better"


def test_pairing_makes_differences_sharper():
    random = np.random.default_rng(6)
    hard = random.standard_normal(400)  # points differ much, and alike for both
    a = hard + 0.1 * random.standard_normal((6, 400)) + 0.05
    b = hard + 0.1 * random.standard_normal((6, 400))
    paired = compare({"a": a, "b": b}, Resampling(6, 400, draws=1000), rising=True)[0]
    assert paired.verdict == "a is better"
    assert stats.ttest_ind(a.mean(0), b.mean(0)).pvalue > 0.2  # unpaired, nothing could be said


def pair(a, b, verdict):
    return Comparison(a, b, 0.1, (0.05, 0.15), 0.01, 0.02, verdict)


def test_the_sentence_says_what_the_evidence_allows():
    means = {"a": 0.9, "b": 0.85, "c": 0.7}
    options = {"rising": True, "measure": "accuracy", "level": 0.95, "points": 10}
    alike = [pair("a", "b", "not distinguishable"), pair("a", "c", "a is better"), pair("b", "c", "b is better")]
    assert sentences(means, alike, **options)[0] == "a and b are not distinguishable here; a is better than c."
    ahead = [pair("a", "b", "a is better"), pair("a", "c", "a is better"), pair("b", "c", "not distinguishable")]
    assert sentences(means, ahead, **options)[0].startswith(
        "a is better than b and c here (by 5 to 15 percentage points"
    )
    none = [pair(x, y, "not distinguishable") for x, y in (("a", "b"), ("a", "c"), ("b", "c"))]
    assert sentences(means, none, **options)[0] == "a, b and c are not distinguishable here."
    assert "nothing to compare" in sentences({"a": 0.5}, [], **options)[0]
