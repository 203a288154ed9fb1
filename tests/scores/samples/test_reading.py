"""How samples are read: what is refused, by every measure alike."""

import numpy as np
import pandas as pd
import pytest
import torch

from weft.scores import c2st, density_coverage, energy_distance, mmd, precision_recall, sliced_wasserstein, wasserstein
from weft.scores.samples import reading

MEASURES = [mmd, energy_distance, c2st, sliced_wasserstein, wasserstein, precision_recall, density_coverage]
GOOD = np.random.default_rng(0).normal(size=(12, 2))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (GOOD[:, :1], ValueError, r"rows of the same shape, got \(n, 1\) and \(n, 2\); give the same columns"),
        (np.where(GOOD > 1, np.nan, GOOD), ValueError, "finite numbers in X, got NaN or infinity in .* of 12 rows"),
        (np.where(GOOD > 1, np.inf, GOOD), ValueError, "finite numbers in X"),
        (np.empty((0, 2)), ValueError, r"expected rows of numbers in X, got shape \(0, 2\)"),
        (np.array(3.0), ValueError, r"expected rows of numbers in X, got shape \(\)"),
        (GOOD.astype(str), TypeError, "expected numbers in X, got values of type <U"),
        (GOOD + 1j, TypeError, "expected numbers in X, got values of type complex"),
        (torch.as_tensor(GOOD) + 1j, TypeError, "expected real numbers in X"),
    ],
)
def test_bad_samples_are_told(measure, X, error, message):
    with pytest.raises(error, match=message):
        measure(X, GOOD)


@pytest.mark.parametrize(
    ("measure", "least"), [(mmd, 2), (energy_distance, 2), (c2st, 4), (precision_recall, 4), (density_coverage, 6)]
)
def test_too_few_rows_are_told(measure, least):
    with pytest.raises(ValueError, match=f"expected at least {least} rows in Y, got {least - 1}; draw more"):
        measure(GOOD, GOOD[: least - 1])


def test_rows_of_any_shape_are_laid_flat():
    images = np.arange(48.0).reshape(4, 3, 2, 2)
    X, Y = reading.pair(images, torch.as_tensor(images))
    assert X.shape == (4, 12)
    assert X.dtype == Y.dtype == torch.float64
    assert reading.pair(pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), [[1, 2], [3, 4]])[0].shape == (2, 2)
    with pytest.raises(ValueError, match=r"\(n, 3, 2, 2\) and \(n, 12\)"):
        reading.pair(images, images.reshape(4, 12))


@pytest.mark.parametrize("columns", [2, 40])
def test_distances_are_exact_and_those_of_equal_rows_nought(columns):
    rows = np.random.default_rng(0).normal(size=(30, columns))
    rows[1] = rows[0]
    found = reading.between(torch.as_tensor(rows), torch.as_tensor(rows)).numpy()
    assert found == pytest.approx(((rows[:, None] - rows) ** 2).sum(-1), abs=1e-10)
    assert (np.diag(found) == 0).all()
    assert found[0, 1] == 0
