"""Intervals and corrections: their level by simulation with the benchmark's own cells, and closed forms."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from weft.bench import statistics
from weft.bench.claims import estimates
from weft.bench.statistics import Comparison, compare, differences, half_width, holm, interval, p_value, sentences

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import null_studies  # noqa: E402

sys.path.pop(0)


def table(random, seeds=8, points=150, mean=0.0, spread=0.3, noise=1.0):
    """Scores with an effect of the seed and one of the point."""
    return mean + spread * random.standard_normal((seeds, 1)) + noise * random.standard_normal((seeds, points))


# --- the simulation -----------------------------------------------------------------------------------


def quick(trials=2000):
    """A few of the hardest cells."""
    cells = null_studies.grid(trials, seeds=(5, 8), points=(100,))
    return {"trials": trials, "cells": cells, "claims": null_studies.claims(2 * trials), "accuracies": []}


def test_the_level_is_kept_where_something_is_judged():
    result = quick()
    assert not null_studies.missed(result)
    assert all(cell["judged"] for cell in result["cells"])


def test_an_interval_half_as_wide_is_caught(monkeypatch):
    whole = statistics._reach
    monkeypatch.setattr(statistics, "_reach", lambda count, miss: whole(count, miss) / 2)
    statistics._reaches.cache_clear()
    told = " ".join(null_studies.missed(quick(500)))
    statistics._reaches.cache_clear()
    assert "coverage" in told
    assert "false claims" in told
    assert "of a mean" in told


def test_holm_left_out_is_caught(monkeypatch):
    monkeypatch.setattr(statistics, "holm", lambda p: p)
    told = null_studies.missed(quick(1000))
    assert any("false claims" in line and "methods 4" in line for line in told)


def test_a_level_without_regard_to_skew_is_caught(monkeypatch):
    monkeypatch.setattr(statistics, "SKEW", 0.0)
    statistics._reaches.cache_clear()
    told = null_studies.missed(quick(1000))
    statistics._reaches.cache_clear()
    assert any("skew 2" in line for line in told)


def test_means_drawn_apart_are_those_of_whole_tables():
    """The benchmark draws means by seed and by point; the same studies as whole tables come to the same figures."""
    random = np.random.default_rng(0)
    rows, columns = null_studies.studies(random, 4000, 2, 5, 20, 0.2, 0, False)
    half = np.sqrt(0.5)
    whole = 0.2 * random.standard_normal((4000, 2, 5, 1)) + half * random.standard_normal((4000, 2, 1, 20))
    whole += half * random.standard_normal((4000, 2, 5, 20))
    again = statistics.summarized(whole)
    for one, other in zip((rows, columns), again, strict=True):
        assert one.mean(-1).var() == pytest.approx(other.mean(-1).var(), rel=0.06)
        assert one.var(-1).mean() == pytest.approx(other.var(-1).mean(), rel=0.04)
    np.testing.assert_allclose(rows.mean(-1), columns.mean(-1), atol=1e-5)


def test_the_page_holds_what_the_result_says():
    result = json.loads(null_studies.RESULT.read_text())
    assert result["digest"] == null_studies.digest(), f"the code has changed since; run {result['command']}"
    assert result["trials"] >= 5000
    assert (len(result["cells"]), len(result["accuracies"])) == (576, 72)
    assert result["missed"] == null_studies.missed(result) == []
    assert null_studies.PAGE.read_text(encoding="utf-8") == null_studies.page(result)


# --- closed forms -------------------------------------------------------------------------------------


def test_the_width_is_the_formula():
    random = np.random.default_rng(1)
    values = table(random, seeds=6, points=40)
    low, high = interval(values)
    q = [stats.t.isf(0.025 / (1 + 30 / n), n - 1) for n in (6, 40)]
    rows, columns = values.mean(1), values.mean(0)
    half = np.sqrt(q[0] ** 2 * rows.var(ddof=1) / 6 + q[1] ** 2 * columns.var(ddof=1) / 40)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half))


def test_the_p_value_is_where_the_interval_ends():
    random = np.random.default_rng(2)
    values = np.stack([table(random, mean=m) for m in (0.3, 0.6, 1.0)])
    rows, columns = statistics.summarized(values)
    for r, c, p in zip(rows, columns, p_value(rows, columns), strict=True):
        assert float(half_width(r, c, float(p))) == pytest.approx(abs(r.mean()), rel=1e-3)
    nothing = np.zeros((5, 30))
    assert p_value(*statistics.summarized(nothing)) == 1.0
    assert p_value(*statistics.summarized(nothing + 1.0)) <= 1e-11  # always the same difference


def test_trials_at_once_are_trials_one_by_one():
    random = np.random.default_rng(3)
    rows, columns = null_studies.studies(random, 7, 3, 5, 30, 0.5, 1, True)
    together = differences(rows, columns)
    for k in range(7):
        for one, several in zip(differences(rows[k], columns[k]), together, strict=True):
            np.testing.assert_allclose(one, several[k])


def test_a_test_without_an_error_is_not_certainty():
    every = np.ones((8, 40))
    assert interval(every) == (1.0, 1.0)
    low, high = interval(every, share=True)
    assert (high, low < 0.95) == (1.0, True)
    far = interval(np.ones((8, 4000)), share=True)
    assert 0.99 < far[0] < 1.0
    low, high = interval(1 - every, share=True)
    assert (low, high > 0.05) == (0.0, True)


def test_groups_count_as_one_point():
    """Ten copies of each point tell no more than one of each."""
    random = np.random.default_rng(2)
    values = np.repeat(random.standard_normal((1, 60)), 5, axis=0)
    copies, groups = np.repeat(values, 10, axis=1), np.repeat(np.arange(60), 10)
    assert interval(copies, groups=groups) == pytest.approx(interval(values))
    torn, whole = (np.ptp(interval(copies, groups=g)) for g in (None, groups))
    assert torn < 0.5 * whole  # pretends to know three times as much


def test_holm_against_an_independent_implementation():
    random = np.random.default_rng(3)
    for _ in range(20):
        p = random.random(6) ** 2
        order = np.argsort(p)
        expected = np.empty(6)
        expected[order] = np.minimum(1, np.maximum.accumulate(p[order] * (6 - np.arange(6))))
        np.testing.assert_allclose(holm(p), expected)


def test_a_clear_difference_is_found_and_named_by_direction():
    random = np.random.default_rng(5)
    tables = {"low": table(random, mean=0.0), "high": table(random, mean=2.0)}
    assert compare(tables, rising=True)[0].verdict == "high is better"
    assert compare(tables, rising=False)[0].verdict == "low is better"


def test_pairing_makes_differences_sharper():
    random = np.random.default_rng(6)
    hard = random.standard_normal(400)  # points differ much, and alike for both
    a = hard + 0.1 * random.standard_normal((6, 400)) + 0.05
    b = hard + 0.1 * random.standard_normal((6, 400))
    assert compare({"a": a, "b": b}, rising=True)[0].verdict == "a is better"
    assert stats.ttest_ind(a.mean(0), b.mean(0)).pvalue > 0.2  # unpaired, nothing could be said


# --- refusals and sentences ---------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "points", "told"), [(1, 100, "one seed"), (4, 100, "4 seeds"), (8, 19, "19 test")])
def test_too_little_is_not_judged(seeds, points, told):
    random = np.random.default_rng(7)
    tables = {"a": table(random, seeds, points), "b": table(random, seeds, points, mean=50.0)}
    (found,) = compare(tables, rising=True)
    assert (found.verdict, found.interval, found.p) == ("not judged", None, None)
    assert interval(tables["a"]) is None
    lacks = statistics.lacking(seeds, points)
    assert lacks.startswith(told)
    assert "needed" in lacks
    options = {"rising": True, "measure": "accuracy", "level": 0.95, "points": points}
    first, *others = sentences({"a": 0.5, "b": 0.9}, [found], **options, lacks=lacks)
    assert first == f"Nothing is judged here: {lacks}."
    assert not any("confidence" in line for line in others)


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
    warned = sentences(means, none, **options, warnings=["x", "y"])
    assert warned[0] == "a, b and c are not distinguishable here. But x; y."


def test_estimates_say_what_they_lack():
    assert estimates.mean_of(range(4)).lacks.startswith("an interval needs at least 5 replicas")
    assert estimates.median_of(range(5)).interval is None
    assert estimates.mean_over(np.ones((6, 3))).lacks == "an interval needs at least 20 test points"
    assert estimates.mean_of(range(5)).lacks == estimates.median_of(range(6)).lacks == ""


# --- what has no score ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("whose", ["a", "b", "c"])
def test_what_has_no_score_neither_wins_nor_loses(whose, gap):
    random = np.random.default_rng(0)
    tables = {name: table(random, mean=mean) for name, mean in (("a", 0.0), ("b", 1.0), ("c", 2.0))}
    tables[whose][3, 7] = gap
    with pytest.raises(ValueError, match="expected finite scores, got 1 not so, first of seed 3 at point 7"):
        compare(tables, rising=True)
    with pytest.raises(ValueError, match="expected finite scores"):
        interval(tables[whose])


def test_a_mean_that_is_none_stands_last():
    for rising in (True, False):
        for means in ({"a": np.nan, "b": 1.0}, {"b": 1.0, "a": np.nan}):
            told = sentences(means, [], rising=rising, measure="mse", level=0.95, points=30)
            assert told[0] == "b and a are not distinguishable here."
            assert "b 1, a none" in told[1]


def test_a_claims_figure_without_a_score_fails_without_an_interval():
    scores = np.ones((8, 30))
    scores[0, 0] = np.nan
    found = estimates.mean_over(scores)
    assert np.isnan(found.value)
    assert found.interval is None


def test_a_trial_without_a_score_is_not_the_best():
    from types import SimpleNamespace

    from weft.bench.comparing import Comparing

    trials = [{"value": v, "state": "complete", "number": k} for k, v in enumerate((np.nan, 2.0, 1.0, None, -np.inf))]
    for rising, number in ((True, 1), (False, 2)):
        study = SimpleNamespace(data=SimpleNamespace(rising=rising))
        assert Comparing._best(study, trials)["number"] == number
        assert Comparing._best(study, trials[:1]) is None
