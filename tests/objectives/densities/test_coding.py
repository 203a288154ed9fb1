"""Lossless compression by a fitted density: rows come back bit for bit, in as many bits as their probability says."""

import numpy as np
import pytest

from weft import Learner, Optimizer
from weft.objectives import FVBN, MADE, NADE, NeuralBelief, PixelCNN, PixelRNN

pytest.importorskip("constriction", reason="the entropy coder is not installed: pip install 'weft[coding]'")
from weft.objectives.densities.coding import compress, decompress

rng = np.random.default_rng(0)
CODES = rng.integers(0, 3, (300, 5))
CODES[:, 2] = np.where(rng.random(300) < 0.9, CODES[:, 0], CODES[:, 2])
CODES[:, 4] = np.where(rng.random(300) < 0.9, (CODES[:, 1] + CODES[:, 3]) % 3, CODES[:, 4])
LABEL = CODES[:, 0] % 2
SETTINGS = {"steps": 60, "optimizer": Optimizer("adam", lr=0.03), "random_state": 0}
MODELS = {
    "fvbn": FVBN(law="categorical", classes=3, order="random"),
    "neural-belief": NeuralBelief(4, law="categorical", classes=3),
    "nade": NADE(16, law="categorical", classes=3, order=(4, 0, 1, 2, 3)),
    "made": MADE((32, 32), law="categorical", classes=3, agnostic=True),
    "levels": MADE((32,), law="logistic-mixture", parts=3, classes=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_come_back_and_cost_their_probability(name):
    learner = Learner(MODELS[name], **SETTINGS).fit(CODES)
    new = np.concatenate([CODES[:100], rng.integers(0, 3, (50, 5))])  # some unlike those that were learned from
    words = compress(learner.objective_, new)
    assert words.dtype == np.uint32
    assert np.array_equal(decompress(learner.objective_, words, len(new)), new)
    bits = -learner.log_prob(new).sum(dtype=np.float64) / np.log(2)
    assert bits - 1 < 32 * len(words) < bits + 64
    assert 32 * len(compress(learner.objective_, CODES)) < 300 * 5 * np.log2(3) or name == "levels"


def test_rows_come_back_given_their_class():
    learner = Learner(NADE(8, law="categorical", classes=3, conditional=True), **SETTINGS).fit(CODES, LABEL)
    words = compress(learner.objective_, CODES, LABEL)
    assert np.array_equal(decompress(learner.objective_, words, 300, LABEL), CODES)
    assert not np.array_equal(_or_none(learner, words, 1 - LABEL), CODES)
    with pytest.raises(ValueError, match=r"expected class numbers 0\.\.1 as y"):
        compress(learner.objective_, CODES, LABEL + 1)


def _or_none(learner, words, y):
    try:
        return decompress(learner.objective_, words, 300, y)
    except (ValueError, AssertionError):
        return None


def test_what_cannot_be_coded_is_refused():
    learner = Learner(FVBN(law="categorical", classes=3), **{**SETTINGS, "steps": 1}).fit(CODES)
    with pytest.raises(ValueError, match=r"expected classes 0\.\.2 in column 1, whose law is 'categorical', got 7"):
        compress(learner.objective_, [[0, 7, 0, 0, 0]])
    with pytest.raises(ValueError, match=r"expected rows of 5 numbers, got shape \(3, 4\)"):
        compress(learner.objective_, CODES[:3, :4])
    with pytest.raises(ValueError, match="expected the words of 5 rows by this very model"):
        decompress(learner.objective_, compress(learner.objective_, CODES), 5)
    several = Learner(MADE((8,), law="categorical", classes=3, orderings=2), **{**SETTINGS, "steps": 1}).fit(CODES)
    with pytest.raises(ValueError, match="expected a model with one order to code entries by, got the mean of 2"):
        compress(several.objective_, CODES)
    real = Learner(FVBN(law="normal"), **{**SETTINGS, "steps": 1}).fit(rng.normal(size=(20, 2)))
    with pytest.raises(ValueError, match=r"expected laws of finitely many outcomes .* got 'normal' of column 0"):
        compress(real.objective_, [[0.0, 1.0]])


@pytest.mark.parametrize(
    "model",
    [
        PixelCNN(layers=2, width=9, kernel=3, law="categorical", classes=3),
        PixelCNN(
            layers=2, width=9, kernel=3, gated=False, law="logistic-mixture", classes=3, parts=2, conditional=True
        ),
        PixelRNN(layers=1, width=9, law="categorical", classes=3),
        PixelRNN(kind="diagonal", layers=1, width=9, law="categorical", classes=3),
    ],
)
def test_images_come_back_and_cost_their_probability(model):
    images = rng.integers(0, 3, (40, 3, 4, 3))
    images[:, 1] = images[:, 0]
    y = images[:, 0, 0, 0] % 2 if model.conditional else None
    given = {} if y is None else {"y": y}
    learner = Learner(model, **{**SETTINGS, "steps": 20}).fit(images, **given)
    words = compress(learner.objective_, images, y)
    assert np.array_equal(decompress(learner.objective_, words, 40, y), images)
    bits = -learner.log_prob(images, **given).sum(dtype=np.float64) / np.log(2)
    assert bits - 1 < 32 * len(words) < bits + 64
    with pytest.raises(ValueError, match=r"expected rows of shape \(3, 4, 3\), got shape \(40, 36\)"):
        compress(learner.objective_, images.reshape(40, -1), y)
