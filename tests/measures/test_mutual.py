"""InfoNCE and MINE: below the information of Gaussians and near it where it is small; broken ones are caught."""

import math

import numpy as np
import pytest
import torch

import weft.measures.critics as critics
import weft.measures.mutual as mutual
from weft.measures import infonce, mine

QUICK = {"among": 64, "steps": 150, "hidden": (32,)}
BOUNDS = {"infonce": infonce, "mine": mine}


def gaussians(rho, d, n=2000, seed=0):
    """Two arrays whose columns correlate by rho, and I = -d/2 log(1 - rho^2)."""
    x, noise = np.random.default_rng(seed).normal(size=(2, n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * noise, -0.5 * d * math.log(1 - rho**2)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(("rho", "d"), [(0.0, 2), (0.5, 1), (0.8, 1)])
def test_below_the_truth_and_near_it(name, rho, d):
    x, z, truth = gaussians(rho, d)
    found = BOUNDS[name](x, z, **QUICK)
    low, high = found.interval
    assert low <= truth
    assert truth - 0.12 < found.value < truth + 0.1
    assert low < found.value < high
    assert found.kind == "lower bound"
    assert float(found) == found.value


def test_infonce_is_at_most_log_k():
    x, z, truth = gaussians(0.99, 5)
    with pytest.warns(UserWarning, match=r"at most log K = 2\.77 nats"):
        found = infonce(x, z, among=16, steps=500)
    assert truth > 9
    assert 0.8 * math.log(16) < found.value < found.interval[1] < math.log(16) == found.ceiling


def test_more_than_so_many_rows_can_tell_is_warned_of():
    with pytest.warns(UserWarning, match="more than about the log of the held-out rows, 6.91 nats"):
        critics.bound_of("mine", [6.0, 6.5], "lower bound", None, math.log(1000), "")


def test_a_larger_k_tells_more():
    x, z, truth = gaussians(0.95, 3)
    few, many = (infonce(x, z, among=k, steps=200).value for k in (8, 128))
    assert few < math.log(8) < many < truth == pytest.approx(3.49, abs=0.01)


# --- mutants -------------------------------------------------------------------------------------------------------


def test_without_log_k_it_is_far_below(monkeypatch):
    monkeypatch.setattr(mutual, "infonce_of", lambda own, every: own - every.logsumexp(-1))
    x, z, truth = gaussians(0.8, 1)
    assert infonce(x, z, **QUICK).value < truth - 3


@pytest.mark.parametrize("name", BOUNDS)
def test_a_critic_that_is_judged_by_what_it_learned_from_is_caught(monkeypatch, name):
    """Of independent rows a critic that has seen them tells much, and one that has not tells nothing."""
    x, z, _ = gaussians(0.0, 20, n=400)
    quick = {"among": 50, "steps": 300}
    honest = BOUNDS[name](x, z, **quick)
    assert honest.interval[0] <= 0
    assert honest.value < 0.1
    plain = mutual.parts

    def same(*given):
        learned, _, key = plain(*given)
        return learned, list(learned.split(50)), key

    monkeypatch.setattr(mutual, "parts", same)
    monkeypatch.setattr(critics, "_NEAR", 2)
    assert BOUNDS[name](x, z, **quick).interval[0] > 0.3


def test_pairs_that_are_not_apart_are_caught(monkeypatch):
    """The mutant: what is to be drawn apart is drawn together."""
    told = critics.Pairs.told
    monkeypatch.setattr(critics.Pairs, "told", lambda self, batch: (told(self, batch)[0],) * 2)
    x, z, truth = gaussians(0.8, 1)
    assert mine(x, z, **QUICK).value < truth - 0.4


def test_the_tangent_bounds_where_a_log_of_few_does_not():
    """p = q and T ~ N(0, 4): the bound is -log E e^T = -2. By blocks of 8, -log of the mean is too high on average."""
    rng = np.random.default_rng(0)
    own = torch.as_tensor(rng.normal(scale=2, size=(6000, 8)))
    others = torch.as_tensor(rng.normal(scale=2, size=(6000, 8)))
    blocks = list(zip(own, others, strict=True))
    found = np.array(critics.tangent(blocks[:3000], blocks[3000:]))
    error = found.std() / math.sqrt(3000)
    assert -2 - 4 * error < found.mean() < -2 + 3 * error
    naive = np.array([float(a.mean() - critics.others_mean(b)) for a, b in blocks[3000:]])
    assert naive.mean() > -2 + 10 * naive.std() / math.sqrt(3000)


def test_what_is_apart_in_a_batch_is_off_the_diagonal():
    every = torch.tensor([[9.0, 1.0], [2.0, 9.0]])
    assert float(critics.others_mean(every)) == pytest.approx(math.log((math.e + math.e**2) / 2))


def test_the_seed_decides():
    x, z, _ = gaussians(0.5, 1, n=500)
    quick = {"among": 32, "steps": 20, "hidden": (8,)}
    assert mine(x, z, **quick) == mine(torch.as_tensor(x), z, **quick)
    assert mine(x, z, **quick).value != mine(x, z, **quick, random_state=1).value


X = np.zeros((300, 2)) + np.arange(300)[:, None]
WRONG = {
    "as many rows in Z as in X": {"Z": X[:-1]},
    "two blocks of among=128": {"Z": X},
    "NaN or infinity in 300": {"Z": X * np.nan},
    "expected rows of real numbers in Z": {"Z": 1.0},
    "expected among to be": {"Z": X, "among": 1},
    "expected held to be": {"Z": X, "held": 1.0},
    "expected steps to be": {"Z": X, "steps": 0, "among": 32},
    "expected features to be": {"Z": X, "features": 0, "among": 32},
}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("told", WRONG, ids=str)
def test_wrong_questions_are_refused(name, told):
    with pytest.raises(ValueError, match=told):
        BOUNDS[name](X, **WRONG[told])
