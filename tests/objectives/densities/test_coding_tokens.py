"""Lossless compression of token sequences: they come back, in as many bits as their probability says."""

import numpy as np
import pytest

from weft import Learner, Optimizer
from weft.core.vocabulary import decoded, encoded
from weft.objectives import CausalTransformer, CharRNN

pytest.importorskip("constriction", reason="the entropy coder is not installed: pip install 'weft[coding]'")
from weft.objectives.densities.coding_tokens import compress_tokens, decompress_tokens

WORDS = ["abab", "", "baba", "ab", "cabab", "c", "abc"] * 8
SETTINGS = {"steps": 80, "optimizer": Optimizer("adam", lr=0.02), "random_state": 0}


@pytest.mark.parametrize(
    "model", [CharRNN(width=8), CausalTransformer(layers=1, heads=2, width=8)], ids=["lstm", "gpt"]
)
def test_texts_come_back_and_cost_their_probability(model):
    learner = Learner(model, **SETTINGS).fit(WORDS)
    known = learner.vocabulary_["x"]
    rows = [encoded(known, word) for word in [*WORDS, "ccc", "bbbb"]]  # some unlike those that were learned from
    words = compress_tokens(learner.objective_, rows)
    back = decompress_tokens(learner.objective_, words, len(rows))
    assert [decoded(known, row) for row in back] == [*WORDS, "ccc", "bbbb"]
    bits = -learner.log_prob([*WORDS, "ccc", "bbbb"]).sum(dtype=np.float64) / np.log(2)
    assert bits - 1 < 32 * len(words) < bits + 64
    assert 32 * len(words) < sum(len(word) + 1 for word in WORDS) * 2  # two bits a character would be no model


def test_windows_come_back_given_their_class():
    X, y = np.random.default_rng(0).integers(0, 3, (60, 5)), np.arange(60) % 2
    learner = Learner(CharRNN(width=8, ends=False, conditional=True), **SETTINGS).fit(X, y)
    words = compress_tokens(learner.objective_, X.tolist(), y)
    assert decompress_tokens(learner.objective_, words, 60, y, length=5) == X.tolist()
    with pytest.raises(ValueError, match="expected length for a model without ends alone"):
        decompress_tokens(learner.objective_, words, 60, y)
    with pytest.raises(ValueError, match="expected rows of one length"):
        compress_tokens(learner.objective_, [[0], [1, 2]], [0, 1])


def test_what_cannot_be_coded_is_refused():
    learner = Learner(CausalTransformer(layers=1, heads=2, width=8), **{**SETTINGS, "steps": 1}).fit(WORDS)
    with pytest.raises(ValueError, match=r"expected token numbers 0\.\.2, got 7 in row 1"):
        compress_tokens(learner.objective_, [[0], [7]])
    with pytest.raises(ValueError, match="expected rows of at most 5 tokens, the context, got 6 in row 0"):
        compress_tokens(learner.objective_, [[0] * 6])
    words = compress_tokens(learner.objective_, [[0, 1]] * 40)
    with pytest.raises(ValueError, match="expected the words of 2 rows by this very model"):
        decompress_tokens(learner.objective_, words, 2)
