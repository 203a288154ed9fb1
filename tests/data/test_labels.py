import numpy as np
import pytest

from weft.data import random_labels

N = 40_000
Y = np.random.default_rng(0).integers(0, 10, N)


def close(share, expected, n=N):
    """Within four standard errors."""
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / n), (share, expected)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_shares(share):
    y, redrawn, changed = random_labels(Y, share=share, random_state=3)
    close(redrawn.mean(), share) if share < 1 else np.testing.assert_array_equal(redrawn, True)
    close(changed.mean(), 0.9 * share)
    np.testing.assert_array_equal(changed, y != Y)
    assert not (changed & ~redrawn).any()
    for k in range(10):  # uniform, whatever the label was
        close((y[redrawn] == k).mean(), 0.1, redrawn.sum())
        was = redrawn & (k == Y)
        close((y[was] == (k + 1) % 10).mean(), 0.1, was.sum())


def test_no_share_changes_nothing():
    y, redrawn, changed = random_labels(Y, share=0.0)
    np.testing.assert_array_equal(y, Y)
    assert not redrawn.any()
    assert not changed.any()


def test_draws_belong_to_the_row():
    whole = random_labels(Y, share=0.5, random_state=1)
    np.testing.assert_array_equal(random_labels(Y[:100], share=0.5, random_state=1).y, whole.y[:100])
    smaller = random_labels(Y, share=0.2, random_state=1)
    assert not (smaller.redrawn & ~whole.redrawn).any()
    np.testing.assert_array_equal(smaller.y[smaller.redrawn], whole.y[smaller.redrawn])
    other = random_labels(Y, share=0.5, random_state=2)
    close((other.redrawn & whole.redrawn).mean(), 0.25)


def test_labels_of_any_kind():
    names = np.array(["ape", "bee", "cow", "dodo"])[Y % 4]
    y, _, changed = random_labels(names)
    assert y.dtype == names.dtype
    assert set(y) == {"ape", "bee", "cow", "dodo"}
    close(changed.mean(), 0.75)
    assert random_labels([True, False] * 5).y.dtype == bool
    assert set(random_labels([-5, 7] * 50).y.tolist()) == {-5, 7}


@pytest.mark.parametrize(
    ("y", "share", "message"),
    [
        (Y.reshape(2, -1), 0.5, "expected one label for each row"),
        ([], 0.5, "expected one label for each row"),
        ([1.0, np.nan], 0.5, "1 that are missing"),
        (Y, 1.5, r"expected share in \[0, 1\], got 1.5"),
        (Y, float("nan"), "expected share"),
    ],
)
def test_bad_input(y, share, message):
    with pytest.raises(ValueError, match=message):
        random_labels(y, share=share)
