"""Total correlation: that of Gaussians, without the excess of few rows; a bound for others; mutants are caught."""

import math

import numpy as np
import pytest
import torch

import weft.measures.critics as critics
from weft.measures import total_correlation

rng = np.random.default_rng(0)
MIX = rng.normal(size=(4, 4))
COVARIANCE = MIX @ MIX.T + 0.1 * np.eye(4)
CORRELATION = COVARIANCE / np.sqrt(np.outer(np.diag(COVARIANCE), np.diag(COVARIANCE)))
TRUTH = -0.5 * np.linalg.slogdet(CORRELATION)[1]
QUICK = {"by": "critic", "among": 64, "steps": 300, "hidden": (32,)}


def codes(n, seed=0):
    return np.random.default_rng(seed).multivariate_normal(np.ones(4), COVARIANCE, n)


def test_of_gaussians():
    found = total_correlation(codes(5000))
    assert found.interval[0] < TRUTH < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.15
    assert found.value == pytest.approx(np.mean(found.interval))
    scaled = total_correlation(torch.as_tensor(codes(5000) * [1, 10, 1e3, 1e-3] + 5))
    assert scaled.value == pytest.approx(found.value)


def test_few_rows_are_not_in_excess():
    """Over many samples of ten rows the mean is the truth, and without the correction far above it."""
    each = np.array([total_correlation(codes(10, seed)).value for seed in range(600)])
    error = each.std() / math.sqrt(len(each))
    assert abs(each.mean() - TRUTH) < 4 * error
    plain = [-0.5 * np.linalg.slogdet(np.corrcoef(codes(10, seed).T))[1] for seed in range(600)]
    assert np.mean(plain) - TRUTH > 8 * error


def test_intervals_hold_the_truth():
    held = [low < TRUTH < high for low, high in (total_correlation(codes(300, s)).interval for s in range(200))]
    assert 0.88 < np.mean(held) <= 0.99


def test_a_critic_bounds_from_below():
    found = total_correlation(codes(4000), **QUICK)
    assert found.kind == "lower bound"
    assert found.interval[0] < TRUTH
    assert TRUTH - 0.25 < found.value < TRUTH + 0.1
    alone = total_correlation(rng.normal(size=(2000, 3)), **QUICK)
    assert -0.1 < alone.value < 0.05


def test_what_depends_without_correlating_needs_a_critic():
    first = rng.normal(size=3000)
    Z = np.stack([first, np.abs(first) + 0.3 * rng.normal(size=3000)], 1)
    assert total_correlation(Z).value < 0.02
    assert total_correlation(Z, **QUICK).value > 0.2


def test_entries_that_are_not_apart_are_caught(monkeypatch):
    """The mutants: rows against themselves, and rows all of whose entries are shifted alike."""
    told = critics.Columns.told
    monkeypatch.setattr(critics.Columns, "told", lambda self, batch: (told(self, batch)[0],) * 2)
    assert total_correlation(codes(4000), **QUICK).value < TRUTH - 0.5
    monkeypatch.setattr(
        critics.Columns, "told", lambda self, b: (self.net(b["x"])[:, 0], self.net(b["x"].roll(1, 0))[:, 0])
    )
    assert total_correlation(codes(4000), **QUICK).value < TRUTH - 0.5


def test_no_entries_of_a_row_come_from_one_row():
    seen = []
    critic = critics.Columns()
    critic.net = lambda x: seen.append(x) or x[:, :1]
    for n, d in ((9, 3), (4, 4), (64, 5)):
        critic.told({"x": torch.arange(n)[:, None].expand(n, d)})
        apart = seen[-1]
        assert all(len(set(row)) == d for row in apart.tolist())
        assert len(apart) == n * min(8, (n - 1) // (d - 1))


WRONG = {
    "at least two entries": {"Z": codes(50)[:, :1]},
    "entries that vary": {"Z": codes(50) * [1, 1, 0, 1]},
    "more rows than entries": {"Z": codes(5)},
    "none is a sum of others": {"Z": codes(50)[:, [0, 1, 0]]},
    "expected by to be": {"Z": codes(50), "by": "kernel"},
    "as many rows in a block": {"Z": codes(50), "by": "critic", "among": 3},
}


@pytest.mark.parametrize("told", WRONG, ids=str)
def test_wrong_questions_are_refused(told):
    with pytest.raises(ValueError, match=told):
        total_correlation(**WRONG[told])
