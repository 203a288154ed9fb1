"""Labels come back as what they were, and gaps are not taken for values."""

import numpy as np
import pandas as pd
import pytest
import torch

import weft
from weft import Classifier, Learner, Regressor
from weft.data import sinusoids
from weft.objectives import Classification
from weft.sources import Arrays, Episodes

X = np.random.default_rng(0).normal(size=(60, 3))
NUMBER = np.arange(60) % 3
DATES = np.array(["2020-01-01", "2021-05-05", "2022-02-02"], dtype="datetime64[D]")
KINDS = {
    "days": DATES[NUMBER],
    "moments": DATES.astype("datetime64[ns]")[NUMBER],
    "a column of moments": pd.Series(DATES.astype("datetime64[us]")[NUMBER]),
    "spans of time": (DATES - DATES[0])[NUMBER],
    "categories": pd.Categorical(np.array(["low", "mid", "high"])[NUMBER]),
    "a column of categories": pd.Series(np.array(["low", "mid", "high"])[NUMBER]).astype("category"),
    "categories of moments": pd.Series(pd.Categorical(DATES.astype("datetime64[ns]")[NUMBER])),
    "categories of numbers": pd.Series(pd.Categorical(np.array([5, 3, 9])[NUMBER])),
    "text": np.array(["a", "b", "c"])[NUMBER],
    "text as objects": np.array(["a", "b", "c"], dtype=object)[NUMBER],
    "numbers": NUMBER,
    "true and false": NUMBER > 0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_come_back_as_what_they_were(kind, tmp_path):
    y = KINDS[kind]
    learner = Classifier(hidden=(4,), epochs=1, random_state=0).fit(X, y)
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    for one in (learner, again):
        answers = one.predict(X)
        assert answers.dtype == np.asarray(y).dtype
        assert set(answers.tolist()) <= set(np.asarray(y).tolist())
    assert again.classes_.dtype == learner.classes_.dtype
    np.testing.assert_array_equal(again.predict(X), learner.predict(X))
    assert again.score(X, y) == learner.score(X, y)
    again.partial_fit(X, y)  # the same labels are known


GAPPY = np.ma.masked_array(X, mask=(np.arange(60)[:, None] == 7) & np.array([True, False, False]))
FEW = np.ma.masked_array(NUMBER, mask=np.arange(60) == 7)


@pytest.mark.parametrize(
    "use",
    {
        "rows": lambda: Classifier(epochs=1).fit(GAPPY, NUMBER),
        "labels": lambda: Classifier(epochs=1).fit(X, FEW),
        "targets": lambda: Regressor(epochs=1).fit(X, FEW.astype(float)),
        "weights": lambda: Classifier(epochs=1).fit(X, NUMBER, sample_weight=FEW.astype(float)),
        "environments": lambda: Classifier(epochs=1).fit(X, NUMBER, environment=FEW),
        "tasks": lambda: Classifier(epochs=1).fit(X, NUMBER, task=FEW),
        "rows by task": lambda: Classifier(epochs=1).fit(GAPPY, NUMBER, task=NUMBER),
        "validation": lambda: Classifier(epochs=1, validation=(GAPPY, NUMBER)).fit(X, NUMBER),
        "rows to predict": lambda: Classifier(epochs=1).fit(X, NUMBER).predict(GAPPY),
        "labels to score": lambda: Learner(Classification(), epochs=1).fit(X, NUMBER).score(X, FEW),
        "a source": lambda: Arrays(GAPPY, NUMBER),
    }.items(),
    ids=lambda use: use[0],
)
def test_a_masked_array_with_gaps_is_refused(use):
    with pytest.raises(ValueError, match=r"expected an array without gaps, got a masked one with 1 .*in row 7.*filled"):
        use[1]()


def test_a_masked_array_without_gaps_is_an_array():
    whole = Classifier(epochs=1, random_state=0).fit(np.ma.masked_array(X), np.ma.masked_array(NUMBER))
    plain = Classifier(epochs=1, random_state=0).fit(X, NUMBER)
    np.testing.assert_array_equal(whole.predict_proba(X), plain.predict_proba(X))


def test_validation_by_episodes_is_refused_where_rows_are_learned_from():
    episodes = Episodes(sinusoids, tasks=2, shots=2)
    with pytest.raises(ValueError, match="expected validation to give rows, as training does, got Episodes"):
        Regressor(epochs=1, validation=episodes).fit(X[:, :1], X[:, 0])


def test_validation_without_what_is_learned_is_refused():
    rows, labels = torch.randn(20, 3), torch.arange(20) % 2
    learner = Learner(Classification(hidden=(4,)), steps=1, validation=Arrays(rows))
    with pytest.raises(ValueError, match=r"expected validation with the field 'y' as in training, got \['x'\]"):
        learner.fit(Arrays(rows, labels, classes=2))
    learner.validation = Arrays(rows[:, :2], labels, classes=2)
    with pytest.raises(ValueError, match=r"expected validation with 'x' of shape \(3,\) as in training, got \(2,\)"):
        learner.fit(rows.numpy(), labels.numpy())
