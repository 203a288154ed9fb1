"""The memory is a uniform sample; replay is weighted least squares on it, written out; and it composes."""

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer, weave
from weft.core.random import key_of, keyed
from weft.core.source import number_rows
from weft.core.strategy import Local
from weft.core.trees import tree_map
from weft.objectives import Regression
from weft.sources import Arrays, Episodes
from weft.strategies import CORAL, ERM, MAML, ANDMask, Replay

rng = np.random.default_rng(0)
TASKS = []
for _ in range(3):
    x = rng.normal(size=(50, 3))
    TASKS.append((x, x @ rng.normal(size=3) + 0.3 * rng.normal(size=50)))


def remember(strategy, tasks, seed=0, rows=7):
    """The memory after tasks of so many rows; row i of task t holds 100 t + i."""
    state = strategy.init({"w": torch.zeros(1)})
    for t, count in tasks:
        whole = number_rows({"x": 100.0 * t + torch.arange(float(count))}, 1)
        parts = [tree_map(lambda v: v[i : i + rows], whole) for i in range(0, count, rows)]
        local = Local(None, {"w": torch.zeros(1)}, None, None, None, lambda parts=parts: parts)
        state = strategy.release(state, str(t))
        with keyed(key_of(seed + 1000 * t)):
            state = strategy.consolidate(local, state, str(t))
    return state["memory"]


def kept(memory):
    return memory["rows"]["x"][memory["rows"]["weight"] > 0].tolist()


def test_every_row_is_kept_with_the_same_probability():
    """Over tasks of unequal size, whatever the task: 15 of 60 rows."""
    count = np.zeros(60)
    rows = np.concatenate([np.arange(10), 100 + np.arange(50)])
    for seed in range(800):
        found = kept(remember(Replay(size=15), [(0, 10), (1, 50)], seed, rows=30))
        assert len(set(found)) == 15
        count += np.isin(rows, found)
    off = (count - 200) / np.sqrt(800 * 0.25 * 0.75)
    assert np.abs(off).max() < 4.0
    assert 0.6 < np.mean(off**2) < 1.6


def test_it_does_not_depend_on_how_rows_are_cut_into_batches():
    a, b = (remember(Replay(size=15), [(0, 10), (1, 50)], rows=rows) for rows in (3, 50))
    assert sorted(kept(a)) == sorted(kept(b))


def test_few_rows_are_all_kept_and_a_repeated_task_replaces():
    assert sorted(kept(remember(Replay(size=15), [(0, 4)]))) == [0, 1, 2, 3]
    again = remember(Replay(size=15), [(0, 4), (1, 3), (0, 4)])
    assert sorted(kept(again)) == [0, 1, 2, 3, 100, 101, 102]
    fewer = remember(Replay(size=15), [(0, 10), (1, 3), (0, 4)])
    assert sorted(kept(fewer)) == [0, 1, 2, 3, 100, 101, 102]


def line(strategy, **settings):
    settings = {"optimizer": Optimizer("sgd", lr=0.1), "steps": 600, "batch_size": None, **settings}
    return Learner(
        Regression(nn.Linear(3, 1, bias=False)), strategy=strategy, dtype="float64", random_state=0, **settings
    )


def memory(learner):
    return learner.training_.runs[0][1].strategy[""]["memory"]["rows"]


def test_replay_of_the_whole_memory_in_closed_form():
    learner = line(Replay(size=20, rows=20, share=0.3))
    for i, (X, y) in enumerate(TASKS):
        if i:
            rows = memory(learner)
            M, m = rows["x"].numpy(), rows["y"].numpy()
            matrix = 0.7 * X.T @ X / 50 + 0.3 * M.T @ M / 20
            expected = np.linalg.solve(matrix, 0.7 * X.T @ y / 50 + 0.3 * M.T @ m / 20)
        learner.partial_fit(X, y, task=i)
        if i:
            np.testing.assert_allclose(learner.predict(np.eye(3)), expected, rtol=1e-8)
    held = {tuple(row) for row in memory(learner)["x"].numpy()}
    assert len(held) == 20
    assert held < {tuple(row) for X, _ in TASKS for row in X}


def test_at_the_rows_own_share_it_is_the_rows_put_together():
    """50 rows and 50 remembered at a half: joint least squares."""
    learner = line(Replay(size=50, rows=50, share=0.5))
    learner.partial_fit(*TASKS[0], task=0).partial_fit(*TASKS[1], task=1)
    X, y = (np.concatenate([a, b]) for a, b in zip(*TASKS[:2], strict=True))
    np.testing.assert_allclose(learner.predict(np.eye(3)), np.linalg.lstsq(X, y, rcond=None)[0], rtol=1e-8)
    joint = line(ERM()).fit(X, y)  # joint training, and cumulative training at this task
    np.testing.assert_allclose(learner.predict(np.eye(3)), joint.predict(np.eye(3)), rtol=1e-8)


def in_sequence(settings, strategy=None, tasks=TASKS):
    learner = line(strategy or Replay(size=30, rows=8, share=0.4), **{"steps": 12, "batch_size": 10, **settings})
    for i, (X, y) in enumerate(tasks):
        learner.partial_fit(X, y, task=i, sample_weight=np.linspace(0.5, 1.5, 50))
    return learner


def test_pieces_and_replicas_change_nothing():
    large, parts = in_sequence({"batch_size": 24}), in_sequence({"batch_size": 8, "accumulate": 3})
    np.testing.assert_allclose(parts.predict(np.eye(3)), large.predict(np.eye(3)), rtol=1e-9)
    whole = in_sequence({})
    many = in_sequence({"replicas": 2})
    np.testing.assert_allclose(many.replica(0).predict(np.eye(3)), whole.predict(np.eye(3)), rtol=1e-9)
    assert not np.allclose(*(sorted(rows[:, 0]) for rows in memory(many)["x"].numpy()))
    swept = in_sequence({"replicas": {"strategy__share": [0.4, 0.0]}})
    np.testing.assert_allclose(swept.replica(0).predict(np.eye(3)), whole.predict(np.eye(3)), rtol=1e-9)
    plain = in_sequence({}, ERM())
    np.testing.assert_allclose(swept.replica(1).predict(np.eye(3)), plain.predict(np.eye(3)), rtol=1e-9)


def test_resumed_is_uninterrupted(tmp_path):
    whole = in_sequence({})

    def stop(record):
        if record["step"] == 18:
            raise KeyboardInterrupt

    learner = line(Replay(size=30, rows=8, share=0.4), steps=12, batch_size=10, folder=tmp_path / "run")
    weight = np.linspace(0.5, 1.5, 50)
    learner.partial_fit(*TASKS[0], task=0, sample_weight=weight)
    with pytest.raises(KeyboardInterrupt):
        learner.set_params(callbacks=[stop]).partial_fit(*TASKS[1], task=1, sample_weight=weight)
    kept = weft.load(tmp_path / "run", module=nn.Linear(3, 1, bias=False))
    kept.resume(*TASKS[1], sample_weight=weight).partial_fit(*TASKS[2], task=2, sample_weight=weight)
    np.testing.assert_array_equal(kept.predict(np.eye(3)), whole.predict(np.eye(3)))


def test_with_groups_the_memory_joins_each():
    site = np.arange(50) % 2
    learner = line(weave(Replay(size=20, rows=20, share=0.3), ANDMask(threshold=0.0)), steps=1)
    pooled = line(Replay(size=20, rows=20, share=0.3), steps=1)
    for i, (X, y) in enumerate(TASKS):
        learner.partial_fit(X, y, task=i, environment=site)
        pooled.partial_fit(X, y, task=i)
    np.testing.assert_allclose(learner.predict(np.eye(3)), pooled.predict(np.eye(3)), rtol=1e-9)


def test_dropout_is_drawn_apart_for_rows_of_the_memory():
    """Row numbers of the batch and of the memory differ, so that no two rows share their noise."""
    seen = []

    class Seen(Regression):
        def forward(self, batch, player=""):
            seen.append(batch["row"])
            return super().forward(batch, player)

    learner = Learner(Seen("linear"), strategy=Replay(size=20, rows=20), steps=1, random_state=0)
    learner.partial_fit(*TASKS[0], task=0)
    seen.clear()
    learner.partial_fit(*TASKS[1], task=1)
    rows = next(r for r in seen if len(r) == 70 or len(r) == 20 + 32)
    assert len(set(rows.tolist())) == len(rows)


def test_bad_input():
    X, y = TASKS[0]
    for wrong, message in (
        ({"size": 0}, "Replay's size to be an integer >= 1, got 0"),
        ({"rows": 1.5}, "Replay's rows to be an integer >= 1, got 1.5"),
        ({"share": 1.0}, r"Replay's share to be a number in \[0, 1\), got 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            line(Replay(**wrong)).fit(X, y)
    learner = line(Replay(size=5), steps=1).partial_fit(Arrays(torch.as_tensor(X), torch.as_tensor(y)), task="a")
    named = Arrays(torch.as_tensor(X), torch.as_tensor(y), extra=torch.zeros(50))
    with pytest.raises(ValueError, match=r"with the fields of the rows remembered.*got \['extra'"):
        learner.partial_fit(named, task="b")
    few = Learner(Regression(), strategy=weave(Replay(), MAML()), steps=1)
    with pytest.raises(ValueError, match=r"expected the task 'a' to have rows .* got episodes"):
        few.partial_fit(Episodes((X, y, np.arange(50) % 5), tasks=2, shots=2), task="a")
    site = np.arange(50) % 2
    both = Learner(Regression(hidden=(4,)), strategy=weave(CORAL(), Replay(rows=4)), steps=1, random_state=0)
    both.partial_fit(X, y, task="a", environment=site)
    with pytest.raises(ValueError, match="does not go with a strategy that adds fields of its own"):
        both.partial_fit(X, y, task="b", environment=site)
    empty = Replay()
    with pytest.raises(ValueError, match="expected the task 'a' to have examples to consolidate, got none"):
        empty.consolidate(Local(None, {"w": torch.zeros(1)}, None, None, None), empty.init({}), "a")


def test_classes_come_one_after_another():
    X = rng.normal(size=(300, 2)) + np.repeat(6 * np.eye(3)[:, :2], 100, axis=0)
    y = np.repeat([0, 1, 2], 100)
    scores = {}
    for name, strategy in (("naive", ERM()), ("replay", Replay(size=30, rows=16))):
        clf = Classifier(strategy=strategy, hidden=(16,), epochs=40, optimizer=Optimizer("adam", lr=0.01))
        clf.set_params(random_state=0)
        for label in range(3):
            clf.partial_fit(X[y == label], y[y == label], classes=range(3), task=label)
        scores[name] = clf.score(X, y)
    assert scores["naive"] < 0.6 < 0.85 < scores["replay"], scores
