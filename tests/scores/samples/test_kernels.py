"""MMD and energy distance: closed forms, the naive way, the level under one law, power off it."""

import numpy as np
import pytest
import torch
from scipy import stats

from weft.scores import energy_distance, mmd
from weft.scores.samples import kernels, reading


def naive(X, Y, kernel, unbiased):
    """By the formula, one matrix after another."""
    m, n = len(X), len(Y)
    gram = [kernel(np.linalg.norm(A[:, None] - B, axis=-1)) for A, B in ((X, X), (Y, Y), (X, Y))]
    if unbiased:
        within = [(K.sum() - np.trace(K)) / (len(K) * (len(K) - 1)) for K in gram[:2]]
        return sum(within) - 2 * gram[2].sum() / (m * n)
    return gram[0].mean() + gram[1].mean() - 2 * gram[2].mean()


KERNELS = {"gaussian": lambda d, h: np.exp(-(d**2) / (2 * h * h)), "laplace": lambda d, h: np.exp(-d / h)}


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
@pytest.mark.parametrize("columns", [1, 3, 50])
def test_it_is_the_formula(kernel, unbiased, columns):
    rng = np.random.default_rng(columns)
    X, Y = rng.normal(size=(17, columns)) + 1e3, rng.normal(size=(29, columns)) + 1e3 + 0.3
    widths = (0.5, 2.0)
    expected = np.mean([naive(X, Y, lambda d, h=h: KERNELS[kernel](d, h), unbiased) for h in widths])
    found = mmd(X, Y, kernel=kernel, bandwidth=widths, unbiased=unbiased).value
    assert found == pytest.approx(expected, abs=1e-10)
    assert mmd(X, Y, kernel=kernel, bandwidth=1.0, scales=widths, unbiased=unbiased).value == pytest.approx(found)
    assert mmd(Y, X, kernel=kernel, bandwidth=widths, unbiased=unbiased).value == pytest.approx(found, abs=1e-10)


def test_of_two_gaussians_it_is_the_closed_form():
    # E k between N(a, s^2) and N(b, t^2) is h / sqrt(h^2 + s^2 + t^2) exp(-(a - b)^2 / 2(h^2 + s^2 + t^2))
    def mean(shift, variance, h=0.8):
        return h / np.sqrt(h * h + variance) * np.exp(-(shift**2) / (2 * (h * h + variance)))

    truth = mean(0, 2.0) + mean(0, 2 * 1.5**2) - 2 * mean(0.7, 1 + 1.5**2)
    rng = np.random.default_rng(0)
    found = [mmd(rng.normal(size=80), 0.7 + 1.5 * rng.normal(size=120), bandwidth=0.8).value for _ in range(300)]
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - truth) < 4 * error < 0.15 * truth


def test_energy_distance_is_scipy_s():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=40), rng.exponential(size=25)
    assert energy_distance(X, Y).value == pytest.approx(stats.energy_distance(X, Y) ** 2)
    both = rng.normal(size=(20, 60)), rng.normal(size=(30, 60))
    assert energy_distance(*both).value == pytest.approx(naive(*both, lambda d: -d, False))
    assert energy_distance(X, X).value == pytest.approx(0.0, abs=1e-15)


def test_every_permutation_is_answered_as_if_alone():
    rng = np.random.default_rng(0)
    rows = torch.as_tensor(rng.normal(size=(21, 2)))
    chosen = kernels._assigned(kernels.key_of(3), 0, 12, 8, 21)
    assert chosen.sum(0).tolist() == [8.0] * 12
    assert chosen[:8, 0].tolist() == [1.0] * 8
    assert len({tuple(column) for column in chosen.T.tolist()}) == 12
    for diagonal in (1.0, None):
        found, _ = kernels._discrepancies(rows, chosen, 8, lambda s: torch.exp(-s / 2), diagonal)
        for column, value in zip(chosen.T.bool().numpy(), found.tolist(), strict=True):
            X, Y = rows.numpy()[column], rows.numpy()[~column]
            assert value == pytest.approx(naive(X, Y, lambda d: np.exp(-(d**2) / 2), diagonal is not None), abs=1e-12)


def test_blocks_are_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(45, 3)) + 0.2
    whole = [mmd(X, Y, permutations=50), energy_distance(X, Y, permutations=50)]
    monkeypatch.setattr(reading, "MEMORY", 8 * 4 * 105 * 7)  # seven rows, seven permutations at a time
    parts = [mmd(X, Y, permutations=50), energy_distance(X, Y, permutations=50)]
    for one, other in zip(whole, parts, strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12)
        assert one.p_value == other.p_value


def test_the_median_is_numpy_s_and_knows_no_order():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 2))
    i, j = np.triu_indices(60, 1)
    distances = np.sort(np.linalg.norm(rows[i] - rows[j], axis=-1))
    assert kernels.median_distance(torch.as_tensor(rows)) == pytest.approx(distances[(len(distances) - 1) // 2])
    many = torch.as_tensor(rng.normal(size=(2500, 2)))
    mixed = many[torch.as_tensor(rng.permutation(2500))]
    assert kernels.median_distance(many) == pytest.approx(kernels.median_distance(mixed), abs=1e-12)


@pytest.mark.parametrize("law", ["normal", "coins"])
@pytest.mark.parametrize("test", [mmd, energy_distance])
def test_the_level_holds(test, law):
    """At B = 19 the chance of p <= .05 is .05 exactly under one law of no ties, and at most .05 with ties."""
    rng = np.random.default_rng(0)
    draw = rng.normal if law == "normal" else lambda size: rng.integers(2, size=size) * 1.0
    options = {} if test is energy_distance else {"bandwidth": 1.0}
    p = [
        test(draw(size=(6, 2)), draw(size=(9, 2)), permutations=19, random_state=i, **options).p_value
        for i in range(800)
    ]
    hits = sum(value <= 0.05 for value in p)
    assert hits <= stats.binom.ppf(0.9999, len(p), 0.05)
    if law == "normal":
        assert hits >= stats.binom.ppf(0.0001, len(p), 0.05)
        assert stats.kstest(np.array(p) - rng.uniform(0, 0.05, len(p)), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("test", [mmd, energy_distance])
def test_it_has_power(test):
    rng = np.random.default_rng(0)
    shifted = [
        test(rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 0.8, permutations=99).p_value for _ in range(40)
    ]
    wider = [test(rng.normal(size=(80, 2)), 2 * rng.normal(size=(80, 2)), permutations=99).p_value for _ in range(40)]
    assert np.mean(np.array(shifted) <= 0.05) > 0.9
    assert np.mean(np.array(wider) <= 0.05) > 0.9


def test_p_is_never_nought_and_equal_rows_are_no_evidence():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    assert mmd(X, X + 50, permutations=99).p_value == 0.01
    assert energy_distance(X, X + 50, permutations=99).p_value == 0.01
    assert mmd(X, X, permutations=99).p_value == 1.0
    assert energy_distance(np.ones(5), np.ones(7), permutations=99).p_value == 1.0
    assert mmd(X, X).p_value is None


def test_the_seed_decides():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 0.3
    p = [mmd(X, Y, permutations=199, random_state=seed).p_value for seed in (0, 0, 1)]
    assert p[0] == p[1] != p[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_tensors_are_as_good_as_arrays(dtype):
    rng = np.random.default_rng(0)
    X, Y = rng.integers(5, size=(20, 2)), rng.integers(7, size=(20, 2))
    one = mmd(X, Y, permutations=20)
    assert mmd(torch.as_tensor(X, dtype=dtype), torch.as_tensor(Y, dtype=dtype), permutations=20) == one


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernel": "gausian"}, ValueError, "one of 'gaussian', 'laplace', got 'gausian'; did you mean 'gaussian'"),
        ({"bandwidth": 0.0}, ValueError, "expected bandwidth to be a number > 0, got 0.0"),
        ({"bandwidth": [1.0, -2.0]}, ValueError, "expected bandwidth to be a number > 0, got -2.0"),
        ({"bandwidth": float("nan")}, ValueError, "expected bandwidth to be a number > 0, got nan"),
        ({"bandwidth": []}, ValueError, "at least one number in bandwidth"),
        ({"bandwidth": "mean"}, ValueError, "expected bandwidth to be 'median', got 'mean'"),
        ({"scales": (0.0,)}, ValueError, "expected scales to be a number > 0, got 0.0"),
        ({"permutations": -1}, ValueError, "expected permutations to be an integer >= 0, got -1"),
        ({"permutations": 9.5}, ValueError, "expected permutations to be an integer >= 0"),
        ({"unbiased": 1}, TypeError, "expected unbiased to be True or False, got 1"),
        ({"random_state": -1}, ValueError, "expected random_state to be an integer"),
        ({"random_state": None}, TypeError, "expected random_state to be an integer"),
    ],
)
def test_bad_settings_are_told(options, error, message):
    with pytest.raises(error, match=message):
        mmd(np.arange(6.0), np.arange(5.0), **options)


def test_rows_that_are_all_equal_have_no_median():
    X = np.ones((10, 2))
    with pytest.raises(ValueError, match=r"median distance is > 0, got 0: at least half .* give bandwidth="):
        mmd(X, X)
    assert mmd(X, X, bandwidth=1.0, permutations=9).p_value == 1.0
    mostly = np.r_[np.zeros(40), np.arange(5.0)]
    with pytest.raises(ValueError, match="duplicates"):
        mmd(mostly, mostly)
    one_constant = np.c_[np.arange(10.0), np.ones(10)]  # a constant column alone does no harm
    assert mmd(one_constant, one_constant + [0.5, 0.0]).value == pytest.approx(
        mmd(one_constant[:, 0], one_constant[:, 0] + 0.5).value
    )
