"""What claims have in common: searching and refitting, work in parts, tables and the usual pictures."""

import numpy as np
import pytest

from weft import Learner
from weft.bench.claims import Report, curve, dumbbells, hits_of, mean_of, tuned
from weft.bench.claims.parts import Parts
from weft.objectives import Regression


def line(lists, steps=40, **more):
    x = np.linspace(-1, 1, 30)[:, None]
    held = (x, 2 * x[:, 0])
    objective = Regression(hidden=(4,))
    return Learner(objective, steps=steps, batch_size=None, replicas=lists, validation=held, **more), x, held[1]


def test_a_setting_is_searched_with_its_own_seeds_and_judged_with_others():
    made, fitted = [], []

    def make(lists):
        made.append(lists["random_state"])
        return line(lists, patience=100)[0]

    _, x, y = line(None)
    train = lambda learner: fitted.append(learner.fit(x, y))
    learner, best = tuned(make, train, {"optimizer__lr": (1e-6, 0.05)}, [0, 1, 2], search=(7, 8))
    assert made == [[7, 8, 7, 8], [0, 1, 2]]
    assert best == {"optimizer__lr": 0.05}
    assert learner is fitted[-1]
    assert learner.seeds_ == [0, 1, 2]
    assert learner.get_params()["optimizer__lr"] == 0.05
    made.clear()
    assert tuned(make, train, {"optimizer__lr": (0.01,)}, [0], search=(7,))[1] == {"optimizer__lr": 0.01}
    assert made == [[0]], "one point needs no search"
    with pytest.raises(ValueError, match=r"expected other seeds for the search than \[0, 7\], got \[7, 8\]"):
        tuned(make, train, {"optimizer__lr": (1e-6, 0.05)}, [0, 7], search=(7, 8))


def test_a_diverged_replica_is_right_about_no_row():
    from weft import Classifier

    x = np.linspace(-1, 1, 30)[:, None].astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    lists = {"optimizer__lr": [0.05, 1e30], "random_state": [0, 0]}
    learner = Classifier(hidden=(4,), steps=40, batch_size=None, replicas=lists, validation=(x, y)).fit(x, y)
    hits = hits_of(learner, x, y)
    assert (hits[0] == 100 * (learner.replica(0).predict(x) == y)).all()
    assert hits[0].mean() > 50
    assert hits.shape == (2, 30)
    assert (hits[1] == 0).all()


def test_work_for_every_key_is_in_parts_of_its_own():
    parts = Parts()
    report = Report(parts=parts)
    assert report.every([("a", 1), ("b", 2)], lambda name, n: name * n) == {("a", 1): "a", ("b", 2): "bb"}
    assert report.every((3, 4), lambda n: n + 1) == {3: 4, 4: 5}
    assert sorted(parts.digests()) == ["3", "4", "a, 1", "b, 2"]
    with pytest.raises(ValueError, match="expected keys that read differently, got 1, 1; rename one"):
        report.every((1, "1"), lambda n: n)


def test_a_table_shows_estimates_with_their_intervals():
    report = Report()
    rows = [["a", mean_of([1.0, 2.0, 3.0, 4.0, 5.0]), mean_of([2.0]), np.float32(1.26), 7, float("nan")]]
    report.table("t", list("abcdef"), rows, digits=1)
    report.table("t", list("abcdef"), rows)
    assert report.tables[0]["rows"] == [["a", "3.0 [-0.6, 6.6]", "2.0", 1.3, 7, None]]
    assert report.tables[1]["rows"][0][1:3] == ["3 [-0.583, 6.58]", "2"]


def test_curves_and_dumbbells_show_every_seed_and_their_middle():
    report = Report()
    with report.picture("both", alt="a", caption="b", panels=2) as (left, right):
        curve(left, [0, 1], [[1, 2], [3, 9], [8, 4]], "#000000", middle=np.median)
        assert [list(found.get_ydata()) for found in left.lines] == [[1, 2], [3, 9], [8, 4], [3, 4]]
        scores = {"first": {"a": [1, 3], "b": [5, 7]}, "second": {"a": [0, 1], "b": 2}}
        dumbbells(right, scores, {"a": "#000000", "b": "#ffffff"})
        seen = [(found.get_xdata().tolist(), found.get_ydata().tolist()) for found in right.lines]
        first = [([2, 6], [0, 0]), ([1, 3], [0, 0]), ([2], [0]), ([5, 7], [0, 0]), ([6], [0])]
        assert seen[:5] == first
        assert seen[-1] == ([2], [1])
        assert [label.get_text() for label in right.get_yticklabels()] == ["first", "second"]
        assert right.get_ylim() == (1.5, -0.5), "the first on top"
        assert [text.get_text() for text in right.get_legend().get_texts()] == ["a", "b"]
