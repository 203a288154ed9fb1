"""Measures of a corpus are concluded from all rows, however they were cut."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from weft import Learner, Optimizer
from weft.core import Corpus
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ANDMask
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 4))
Y = (X[:, 0] + rng.normal(size=90) > 0.4).astype(int)
FRESH = rng.normal(size=(53, 4))
TRUE = (FRESH[:, 0] + rng.normal(size=53) > 0.4).astype(int)
COMMON = {"epochs": 2, "random_state": 0, "dtype": "float64", "device": "cpu", "optimizer": Optimizer("sgd", lr=0.3)}


def f1_of(sums):
    return 2 * sums["hit"] / (sums["said"] + sums["true"])


def precision_of(rows):
    return average_precision_score(rows["true"].numpy(), rows["score"].numpy(), sample_weight=rows["weight"].numpy())


class Judged(Classification):
    """Tells F1 from sums and average precision from rows."""

    def measure(self, batch):
        logits, true = self(batch).logits, batch["y"]
        said = logits.argmax(-1)
        sums = {"hit": said * true, "said": said, "true": true}
        rows = {"score": (logits[:, 1] - logits[:, 0]).detach(), "true": true}
        return {
            **super().measure(batch),
            "f1": Corpus(sums=sums, conclude=f1_of),
            "precision": Corpus(rows=rows, conclude=precision_of),
        }


def expected(learner, weight=None):
    said = learner.predict_proba(FRESH)[:, 1]
    return (
        f1_score(TRUE, learner.predict(FRESH), sample_weight=weight),
        average_precision_score(TRUE, said, sample_weight=weight),
    )


@pytest.mark.parametrize("memory", [2**30, 1])
@pytest.mark.parametrize("replicas", [None, 3])
def test_it_is_that_of_all_rows(memory, replicas):
    learner = Learner(Judged(hidden=(8,)), validation=(FRESH, TRUE), memory=memory, replicas=replicas, **COMMON)
    learner.fit(X, Y)
    last = learner.history_[-1]
    for k in range(replicas or 1):
        one = learner.replica(k)
        for name, value in zip(("valid_f1", "valid_precision"), expected(one), strict=True):
            assert np.atleast_1d(last[name])[k] == pytest.approx(value, rel=1e-12)


def test_weights_count_and_padding_does_not():
    weight = rng.uniform(0.0, 2.0, size=53)
    weight[::7] = 0.0
    held = Arrays(torch.as_tensor(FRESH), torch.as_tensor(TRUE), weight=torch.as_tensor(weight), classes=2)
    learner = Learner(Judged(hidden=(8,)), validation=held, memory=1, **COMMON).fit(X, Y)
    for name, value in zip(("valid_f1", "valid_precision"), expected(learner, weight), strict=True):
        assert learner.history_[-1][name] == pytest.approx(value, rel=1e-12)
    # Ragged environments are padded at weight 0; the record of a full batch is that of all rows.
    site = np.repeat([0, 1], [70, 20])
    settings = {**COMMON, "batch_size": None, "epochs": 1, "optimizer": Optimizer("sgd", lr=0.0)}
    grouped = Learner(Judged(hidden=(8,)), strategy=ANDMask(threshold=0.0), **settings).fit(X, Y, environment=site)
    assert grouped.history_[-1]["f1"] == pytest.approx(f1_score(Y, grouped.predict(X)), rel=1e-12)


def test_it_may_be_the_progress():
    class Watched(Judged):
        progress = ("f1", "max")

    learner = Learner(Watched(hidden=(8,)), validation=(FRESH, TRUE), replicas=3, **COMMON).fit(X, Y)
    assert learner.progress()[0] == "valid_f1"
    assert learner.best_replica_ == int(np.argmax(learner.history_["valid_f1"].max(0)))


def test_the_contract_holds_and_lies_are_found():
    source = Arrays(torch.as_tensor(X), torch.as_tensor(Y), batch_size=30, classes=2)
    check_objective(Judged(hidden=(8,)), source)

    class Mean(Judged):
        def measure(self, batch):
            rows = len(batch["y"])
            return {**super().measure(batch), "odd": Corpus(sums={"n": batch["y"] / rows}, conclude=lambda n: n["n"])}

    with pytest.raises(ContractError, match="'odd' of a batch in two parts"):
        check_objective(Mean(hidden=(8,)), source)


@pytest.mark.parametrize(
    ("corpus", "error", "match"),
    [
        (Corpus(conclude=f1_of), TypeError, r"Corpus\(sums=..., conclude=...\)"),
        (Corpus(sums={"a": torch.zeros(2)}), TypeError, r"Corpus\(sums=..., conclude=...\)"),
        (Corpus(sums={"a": torch.zeros(2)}, conclude=f1_of), ValueError, "'odd' of a value for each of the 16 rows"),
        (Corpus(sums={"a": 1.0}, conclude=f1_of), ValueError, "each of the 16 rows, got 1.0"),
        (Corpus(rows={"weight": torch.zeros(16)}, conclude=f1_of), ValueError, "without 'weight', which is added"),
        (
            Corpus(rows={"a": torch.zeros(16)}, conclude=lambda rows: rows["a"]),
            ValueError,
            r"one number, got shape \(16,\)",
        ),
    ],
)
def test_wrong_ones_are_refused(corpus, error, match):
    class Odd(Classification):
        def measure(self, batch):
            return {**super().measure(batch), "odd": corpus}

    with pytest.raises(error, match=match):
        Learner(Odd(hidden=(8,)), batch_size=16, **COMMON).fit(X[:16], Y[:16])
