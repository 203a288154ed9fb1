import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.core.state import State
from weft.core.strategy import Move
from weft.objectives import Classification, Regression
from weft.sources import Arrays
from weft.strategies import ANDMask, TemporalANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.5 * rng.normal(size=60)
SITE = np.repeat([0, 1, 2], [30, 20, 10])  # unequal


def naive(threshold, decay, each, shrink, steps, batch):
    """Adam written out, with the average of signs and the mask on its step, on a linear least-squares problem."""
    w, m, v, a = (np.zeros(3) for _ in range(4))
    kept = []
    for t in range(1, steps + 1):
        rows = batch(t)
        g = X[rows].T @ (X[rows] @ w - Y[rows]) / len(rows)
        s = np.sign(g)
        if each == "environment":
            parts = [rows[SITE[rows] == e] for e in np.unique(SITE[rows])]
            s = np.mean([np.sign(X[r].T @ (X[r] @ w - Y[r])) for r in parts], axis=0)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        a = decay * a + (1 - decay) * s
        step = -0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        mask = np.abs(a) / (1 - decay**t) >= threshold - 1e-5
        kept.append(mask.mean())
        w = w + np.where(mask, step, 0.0) - shrink * w
    return w, np.mean(kept)


@pytest.mark.parametrize("each", ["batch", "environment"])
@pytest.mark.parametrize(("threshold", "decay", "shrink"), [(0.6, 0.8, 0.0), (1.0, 0.5, 0.0), (0.6, 0.0, 0.01)])
def test_masked_adam_written_out(each, threshold, decay, shrink):
    net = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    strategy = TemporalANDMask(threshold=threshold, decay=decay, each=each, shrink=shrink)
    learner = Learner(Regression(net), strategy=strategy, init="keep", steps=120, batch_size=None, dtype="float64")
    learner.set_params(optimizer=Optimizer("adam", lr=0.05)).fit(X, Y, environment=SITE)
    expected, kept = naive(threshold, decay, each, shrink, 120, lambda t: np.arange(60))
    assert 0.0 < kept < 1.0 or (each == "batch" and decay == 0.0)
    np.testing.assert_allclose(learner.predict(np.eye(3)), expected, rtol=1e-8)


def test_plain_batches_need_no_environments():
    """Batches of 20 rows, one after another, against Adam written out on the same rows."""
    net = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    strategy = TemporalANDMask(threshold=0.6, decay=0.8)
    settings = {"init": "keep", "steps": 90, "batch_size": 20, "dtype": "float64", "random_state": 4}
    learner = Learner(Regression(net), strategy=strategy, optimizer=Optimizer("adam", lr=0.05), **settings).fit(X, Y)
    source = Arrays(torch.as_tensor(X), batch_size=20, number=torch.arange(60))
    state, rows = State(None, {}, {}, torch.tensor(4)), []
    stream = source.batches(state)
    for state.step in range(90):
        rows.append(next(stream)["number"].numpy())
    expected, kept = naive(0.6, 0.8, "batch", 0.0, 90, lambda t: rows[t - 1])
    assert 0.0 < kept < 0.9
    np.testing.assert_allclose(learner.predict(np.eye(3)), expected, rtol=1e-8)
    sites = Learner(Regression(net), strategy=strategy, optimizer=Optimizer("adam", lr=0.05), **settings)
    np.testing.assert_array_equal(sites.fit(X, Y, environment=SITE).predict(X), learner.predict(X))


def test_without_memory_and_by_sgd_it_is_the_mask():
    """A step of plain SGD is the gradient, so that masking one is masking the other."""
    settings = {"steps": 20, "batch_size": 8, "dtype": "float64", "random_state": 0}
    settings["optimizer"] = Optimizer("sgd", lr=0.1)
    one = TemporalANDMask(threshold=0.5, decay=0.0, each="environment")
    other = ANDMask(threshold=0.5, rescale=False)
    found, expected = (
        Learner(Regression(hidden=(8,)), strategy=s, **settings).fit(X, Y, environment=SITE).predict(X)
        for s in (one, other)
    )
    np.testing.assert_allclose(found, expected, atol=1e-8)


def moved(step):
    return Move({"w": step}, {"w": torch.zeros_like(step)}, torch.tensor(0.1), 1, None, None, None)


def test_signs_that_alternate_are_masked_and_signs_that_last_are_not():
    mask, weights = TemporalANDMask(threshold=0.5, decay=0.9), torch.tensor([0.5, 0.5])
    params = {"w": torch.zeros(2)}
    state = mask.init(params)
    for t in range(20):
        g = torch.tensor([1.0, 1e6 * (-1.0) ** t])
        _, state = mask.combine({"w": torch.stack([g, g])}, torch.zeros(2), weights, state)
    step, _ = mask.update(moved(torch.ones(2)), state)
    assert step["w"].tolist() == [1.0, 0.0]


def test_an_absent_environment_is_not_counted():
    mask = TemporalANDMask(threshold=1.0, decay=0.5, each="environment")
    state = mask.init({"w": torch.zeros(1)})
    g = {"w": torch.tensor([[1.0], [2.0], [0.0]])}
    _, state = mask.combine(g, torch.zeros(3), torch.tensor([0.5, 0.5, 0.0]), state)
    assert mask.update(moved(torch.ones(1)), state)[0]["w"].item() == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 1.1}, r"threshold to be a number in \[0, 1\], got 1.1"),
        ({"decay": 1.0}, r"decay to be a number in \[0, 1\), got 1.0"),
        ({"each": "example"}, "each to be one of .batch., .environment., got 'example'"),
        ({"shrink": -0.1}, r"shrink to be a number in \[0, 1\), got -0.1"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"TemporalANDMask's {message}"):
        Learner(Classification(), strategy=TemporalANDMask(**settings)).fit(np.eye(2), [0, 1], environment=[0, 1])
