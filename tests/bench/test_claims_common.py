"""What claims have in common: searching and refitting, work in parts, tables and the usual pictures."""

from functools import partial

import numpy as np
import pytest

from weft import Classifier, Learner
from weft.bench.claims import Report, chances, chosen_by, curve, dumbbells, hits_of, mean_of, sheets, swept, tuned
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
        made.append(lists.get("random_state"))
        return line(lists, patience=100)[0]

    _, x, y = line(None)
    train = lambda learner: fitted.append(learner.fit(x, y))
    learner, best = tuned(make, train, {"optimizer__lr": (1e-6, 0.05)}, [0, 1, 2], search=(7, 8))
    assert made[-2:] == [[7, 8, 7, 8], [0, 1, 2]]
    assert best == {"optimizer__lr": 0.05}
    assert learner is fitted[-1]
    assert learner.seeds_ == [0, 1, 2]
    assert learner.get_params()["optimizer__lr"] == 0.05
    made.clear()
    assert tuned(make, train, {"optimizer__lr": (0.01,)}, [0], search=(7,))[1] == {"optimizer__lr": 0.01}
    assert made == [[0]], "one point needs no search"
    with pytest.raises(ValueError, match=r"expected other seeds for the search than \[0, 7\], got \[7, 8\]"):
        tuned(make, train, {"optimizer__lr": (1e-6, 0.05)}, [0, 7], search=(7, 8))


def test_points_are_trained_at_once_where_replicas_may_differ_and_each_only_once():
    made, fitted = [], []

    def make(lists):
        made.append(lists)
        return line(lists)[0]

    def train(learner):
        fitted.append((learner.get_params()["objective__noise"], learner.fit(x, y)))

    _, x, y = line(None)
    points = [{"optimizer__lr": lr, "objective__noise": s, "random_state": 3} for lr, s in ((0.05, 1.0), (1e-6, 2.0))]
    points = [*points, {**points[0], "optimizer__lr": 1e30}, points[0]]
    found = swept(make, train, points, lambda net: net.score(x, y), lost=-7.0)
    assert made[1:] == [
        {"optimizer__lr": [0.05, 1e30], "random_state": [3, 3]},
        {"optimizer__lr": [1e-6], "random_state": [3]},
    ]
    assert [noise for noise, _ in fitted] == [1.0, 2.0]
    (_, first), (_, second) = fitted
    assert found == [first.replica(0).score(x, y), second.replica(0).score(x, y), -7.0, found[0]]


def test_a_diverged_replica_is_right_about_no_row():
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

    def repeated(name, n):
        return name * n

    def more(n, by):
        return n + by

    assert report.every([("a", 1), ("b", 2)], repeated) == {("a", 1): "a", ("b", 2): "bb"}
    assert report.every((3, 4), partial(more, by=1)) == {3: 4, 4: 5}
    assert sorted(parts.digests()) == ["more: 3", "more: 4", "repeated: a, 1", "repeated: b, 2"]
    with pytest.raises(ValueError, match="expected keys that read differently, got more: 1, more: 1; rename one"):
        report.every((1, "1"), more)
    with pytest.raises(ValueError, match="expected each part of a run once, got 'more: 4' again"):
        report.every((4,), partial(more, by=2))
    assert Report(parts=parts).every((4,), partial(more, by=2)) == {4: 5}, "a run that goes on has it already"


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


def coloured(n, share, seed):
    """Rows of two columns: the second agrees with the label in a share of the rows."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    hint = np.where(rng.uniform(size=n) < share, y, 1 - y)
    x = np.stack([y + 0.9 * rng.normal(size=n), 3.0 * hint], axis=1).astype(np.float32)
    return x, y


def test_three_rules_choose_among_the_same_settings_and_only_the_oracle_sees_the_test():
    """By training rows the net that may use the hint is best, in the test the one that may not."""
    parts = [coloured(200, 0.95, seed) for seed in (0, 1)]
    x, y = (np.stack([part[i] for part in parts], axis=1).reshape(400, -1) for i in (0, 1))
    train, test = (x, y[:, 0], np.arange(400) % 2), (*coloured(300, 0.05, 2), np.full(300, 2))
    seen = []

    class Watching(Report):
        def fit(self, learner, x, y, environment, what):
            seen.append((learner.replicas["random_state"], len(x), environment))
            return super().fit(learner, x, y, environment=environment, what=what)

    def make(lists):
        return Classifier(hidden=(4,), steps=60, batch_size=None, replicas=lists)

    points = [{"optimizer__lr": lr, "random_state": seed} for lr, seed in ((0.1, 0), (1e-9, 1), (1e30, 2))]
    found = chosen_by(make, points, train, test, [7, 8], Watching())
    assert [(seeds, n) for seeds, n, _ in seen] == [
        ([0, 1, 2], 320),
        ([0, 1, 2], 200),
        ([0, 1, 2], 200),
        ([7, 8] * 2, 400),
    ]
    assert all(set(environment) == {0, 1} for _, _, environment in seen), "what is left alone is cut in two"
    assert found["training-domain"]["setting"] == found["leave one out"]["setting"] == "lr 0.1"
    assert found["oracle"]["setting"] == "lr 1e-09"
    for rule, one in found.items():
        assert one["right"].shape == (2, 150), rule
        assert set(np.unique(one["right"])) <= {0, 100}
    assert found["training-domain"]["right"].mean() < 30
    assert found["training-domain"]["score"] > 80
    assert found["oracle"]["right"].mean() > 30
    order = np.argsort(test[1], kind="stable")
    turns = np.empty(300, dtype=int)
    turns[::2], turns[1::2] = order[:150], order[150:]
    with pytest.raises(ValueError, match="expected rows in random order, so that each part of them holds every label"):
        chosen_by(make, points, train, tuple(part[turns] for part in test), [7, 8], Report())


def test_what_a_net_believes_is_averaged_over_the_other_columns():
    class Net:
        def predict_proba(self, rows):
            chance = (rows[:, 0] > 0) * 0.5 + rows[:, 2] / 4
            return np.stack([1 - chance, chance], axis=1)

    x = np.array([[2.0, -1.0, 9.0]])
    found = chances(Net(), x, np.array([[0.0], [2.0]]), resolution=4)
    assert found.tolist() == [[0.25, 0.25, 0.75, 0.75]] * 4


def test_sheets_show_images_in_two_rows_under_their_titles():
    images = np.random.default_rng(0).uniform(size=(9, 2, 3, 4))
    with Report().picture("sheets", alt="a", caption="b") as ax:
        sheets(ax, {"first": images, "second": images}, columns=3)
        assert [text.get_text() for text in ax.texts] == ["first", "second"]
        assert len(ax.images) == 4, "of each title the two channels"
        shown = ax.images[0].get_array()[..., 3]
        assert shown.shape == (6, 12)
        assert np.allclose(shown[3:, 4:8] * images[:6, 0].max(), images[3, 0])
