"""Rows alone as validation, where an objective learns from nothing else; where it does, that is said."""

import numpy as np
import pandas as pd
import pytest
import torch

import weft
from weft import Classifier, Learner
from weft.objectives import HMM, Gaussian, NaiveBayes, Regression
from weft.sources import Arrays

rng = np.random.default_rng(0)
X, FRESH = rng.normal(size=(2, 60, 2))
Y = (X[:, 0] > 0).astype(int)
TABLE, OTHER = (
    pd.DataFrame({"height": 170 + 10 * rows[:, 0], "ill": rows[:, 1] > 0}).astype({"ill": float}) for rows in (X, FRESH)
)


@pytest.mark.parametrize(
    ("rows", "held"),
    [(X, FRESH), (X, torch.as_tensor(FRESH)), (TABLE, OTHER), (X, FRESH.tolist())],
    ids=["array", "tensor", "table", "list"],
)
def test_rows_alone_are_the_pair_without_y(rows, held):
    own, pair = (
        Learner(Gaussian(), validation=given, dtype="float64", random_state=0).fit(rows)
        for given in (held, (held, None))
    )
    assert own.history_["valid_loss"] == pair.history_["valid_loss"]
    assert own.history_["valid_loss"] != own.history_["loss"]
    if rows is X:
        assert own.history_["valid_loss"][-1] == pytest.approx(-own.score(FRESH))


def test_sequences_of_several_lengths_and_a_run_that_goes_on(tmp_path):
    sequences = [rng.normal(size=(n, 1)) for n in (5, 8, 3, 6)]
    settings = {"random_state": 0, "dtype": "float64", "steps": 3}
    model = HMM(2, law="normal", inference="gradient")
    own, pair = (
        Learner(model, validation=v, **settings).fit(sequences) for v in (sequences[:2], (sequences[:2], None))
    )
    np.testing.assert_array_equal(own.history_["valid_loss"], pair.history_["valid_loss"])
    own.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", validation=sequences[:2])
    np.testing.assert_array_equal(again.fit(sequences).history_["valid_loss"], own.history_["valid_loss"])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda **own: Classifier(steps=1, **own), r"\(X, y\) for Classification, which learns from y"),
        (lambda **own: Learner(Regression(), steps=1, **own), r"\(X, y\) for Regression, which learns from y"),
        (lambda **own: Learner(NaiveBayes(), **own), r"\(X, y\) for NaiveBayes, which learns from y"),
    ],
)
@pytest.mark.parametrize("held", [FRESH, torch.as_tensor(FRESH), OTHER, [FRESH, Y]], ids=lambda v: type(v).__name__)
def test_what_learns_from_y_needs_it(make, told, held):
    kind = type(held).__name__
    with pytest.raises(ValueError, match=rf"expected validation={told} beside the rows, got rows alone \({kind}\)"):
        make(validation=held).fit(X, Y)


def test_rows_alone_beside_a_source():
    source = Arrays(torch.as_tensor(X), observed=torch.ones(X.shape) > 0)
    with pytest.raises(ValueError, match="expected validation to be a source, as Arrays is one"):
        Learner(Gaussian(), validation=FRESH, random_state=0).fit(source)
