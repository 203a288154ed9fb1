"""Units of likelihoods, against laws whose entropy is known."""

import math

import numpy as np
import pytest

from weft.scores import bits, bits_per_dimension, perplexity, r_squared, r_squared_interval

rng = np.random.default_rng(0)


def test_bits_of_a_fair_coin():
    assert bits(-math.log(0.5)) == pytest.approx(1.0)
    flips = np.full(10, 7 * math.log(0.5))
    told = bits_per_dimension(flips, 7)
    assert told == pytest.approx(1.0)
    assert (told.kind, told.dequantized, repr(told)) == ("", "", "1 bits per dimension")


def test_uniform_dequantization_bounds_the_bits_from_above():
    """Levels with probabilities q, a density that is not flat within a level: Jensen's gap is positive."""
    q = np.array([0.5, 0.25, 0.125, 0.125])
    entropy = -(q * np.log2(q)).sum()
    levels = rng.choice(4, p=q, size=200_000)
    noise = rng.random(levels.shape)
    flat = np.log(q[levels])
    tilted = flat + np.log(2 * noise)  # integrates to q over a level as well
    exact, bound = (bits_per_dimension(rows, 1, dequantized="uniform") for rows in (flat, tilted))
    assert exact == pytest.approx(entropy, abs=0.01)
    assert bound == pytest.approx(entropy + (1 - math.log(2)) / math.log(2), abs=0.01)  # E log 2u = log 2 - 1
    assert bound.kind == "upper bound"
    assert repr(bound).endswith("bits per dimension by uniform dequantization (upper bound)")
    scaled = bits_per_dimension(tilted + math.log(4), 1, dequantized="uniform", step=1 / 4)  # of (x + u) / 4
    assert float(scaled) == pytest.approx(float(bound))


@pytest.mark.parametrize(
    ("kind", "dequantized", "told"),
    [
        ("exact", None, ""),
        ("lower bound", None, "upper bound"),
        ("upper bound", None, "lower bound"),
        ("estimate", None, "estimate"),
        ("exact", "uniform", "upper bound"),
        ("lower bound", "variational", "upper bound"),
        ("upper bound", "uniform", "no bound"),
        ("estimate", "uniform", "estimate"),
    ],
)
def test_a_bound_is_turned_around(kind, dequantized, told):
    assert bits_per_dimension([-1.0], 2, kind=kind, dequantized=dequantized).kind == told


def test_perplexity_of_a_die_and_of_a_mixture_of_lengths():
    assert perplexity(np.full(3, -math.log(6))) == pytest.approx(6.0)
    found = perplexity([4 * math.log(0.5), 1 * math.log(0.25)], [4, 1], kind="lower bound")
    assert found == pytest.approx(2 ** (6 / 5))
    assert found.kind == "upper bound"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: bits_per_dimension([[-1.0]], 1), "expected one log-density for each row"),
        (lambda: bits_per_dimension([-1.0, np.nan], 1), "got NaN in 1 of 2 rows"),
        (lambda: bits_per_dimension([-1.0], 0), "number of entries of a row"),
        (lambda: bits_per_dimension([-1.0], 2, step=0.5), "got step=0.5 alone"),
        (lambda: bits_per_dimension([-1.0], 2, dequantized="unifrom"), "did you mean 'uniform'"),
        (lambda: bits_per_dimension([-1.0], 2, kind="bound"), "expected a kind"),
        (lambda: perplexity([-1.0, -2.0], [1]), "a length >= 1 for each of 2 rows"),
        (lambda: perplexity([-1.0], [0]), "a length >= 1 for each"),
    ],
)
def test_bad_input_speaks(ask, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ask()


def test_the_interval_of_r_squared_is_as_wide_as_the_bootstraps():
    y = rng.normal(size=400)
    answers = 0.8 * y + 0.4 * rng.normal(size=400)
    low, high = r_squared_interval(y, answers)
    assert low < r_squared(y, answers) < high
    index = rng.integers(0, 400, (2000, 400))
    again = [r_squared(y[i], answers[i]) for i in index]
    assert (high - low) / 2 == pytest.approx(1.966 * np.std(again), rel=0.15)
    assert r_squared_interval([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert r_squared_interval([0.0, 0.0, 1.0], [0.0, 0.0, 1.0]) is None  # which without the last does not vary
