"""Vocabularies: characters and byte pairs, there and back, and with a run."""

import json

import numpy as np
import pytest

import weft
from weft import Learner, Optimizer
from weft.core.vocabulary import VOCABULARY, decoded, encoded, learned, size_of
from weft.measures import bits_per_character
from weft.objectives import CharRNN
from weft.sources import Windows

pytest.importorskip("tokenizers")
TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "naïve café ☕"] * 5


@pytest.mark.parametrize("spelling", ["characters", "byte-pairs(size=280)"])
def test_there_and_back(spelling):
    vocabulary = learned(spelling, TEXTS)
    assert json.loads(json.dumps(vocabulary)) == vocabulary
    for text in [*TEXTS, ""]:
        tokens = encoded(vocabulary, text)
        assert all(0 <= k < size_of(vocabulary) for k in tokens)
        assert decoded(vocabulary, tokens) == text
    assert learned(spelling, TEXTS) == vocabulary


def test_byte_pairs_are_those_that_come_most_often():
    vocabulary = learned("byte-pairs(size=280)", TEXTS)
    assert size_of(vocabulary) == 280
    assert len(encoded(vocabulary, "the cat sat")) < 6 < len("the cat sat")
    unseen = "zebra Ω\n\t"
    assert decoded(vocabulary, encoded(vocabulary, unseen)) == unseen  # there is a token for every byte
    assert decoded(vocabulary, [200]).encode()  # bytes that make no character are still text


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("words", ValueError), ("byte-pairs(size=256)", ValueError), ("byte-pairs(size='9')", ValueError),
     ("byte-pairs(length=300)", ValueError), ("characters(size=300)", ValueError), (3, TypeError)],
)  # fmt: skip
def test_other_vocabularies_are_refused(wrong, error):
    with pytest.raises(error, match="expected the vocabulary to be 'characters' or 'byte-pairs"):
        VOCABULARY.check(wrong, "the vocabulary")


def test_a_run_keeps_its_byte_pairs(tmp_path):
    model = CharRNN(width=16, vocabulary="byte-pairs(size=280)")
    fast = {"steps": 60, "optimizer": Optimizer("adam", lr=0.02), "random_state": 0}
    learner = Learner(model, validation=TEXTS[:4], **fast).fit(TEXTS)
    assert learner.training_.spec["x"].classes == 280
    assert learner.generate(["the cat"], length=8, top_k=1) == ["the cat sat on the mat"]
    assert all(row.startswith("a dog") for row in learner.sample(3, prefix="a dog", length=8))
    assert "valid_bits_per_character" not in learner.history_
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    assert again.vocabulary_ == learner.vocabulary_
    np.testing.assert_array_equal(again.log_prob(TEXTS[:4]), learner.log_prob(TEXTS[:4]))
    assert again.sample(3, random_state=0) == learner.sample(3, random_state=0)
    bits = bits_per_character(learner, TEXTS[:4])
    assert bits == pytest.approx(-learner.log_prob(TEXTS[:4]).sum() / sum(map(len, TEXTS[:4])) / np.log(2))


def test_byte_pairs_of_all_tasks_are_learned_at_once():
    model, task = CharRNN(width=4, vocabulary="byte-pairs(size=270)"), ["one", "two"] * 10
    learner = Learner(model, steps=2, random_state=0).fit(TEXTS, task=task)
    assert learner.vocabulary_["x"] == learned("byte-pairs(size=270)", TEXTS)
    with pytest.raises(ValueError, match="expected no characters of x to be named where the vocabulary is 'byte-pairs"):
        Learner(model, steps=1).partial_fit(TEXTS, classes={"x": "abc"})


def test_a_source_and_an_objective_have_one_vocabulary():
    source = Windows(TEXTS[0] * 3, context=8, vocabulary="byte-pairs(size=260)")
    with pytest.raises(ValueError, match="expected x as characters, which CharRNN says, got Windows with byte-pairs"):
        Learner(CharRNN(width=4, ends=False), steps=1).fit(source)
    model = CharRNN(width=4, ends=False, vocabulary="byte-pairs(size=260)")
    assert isinstance(Learner(model, steps=1).fit(source).sample(1)[0], str)


def test_bits_a_character_are_asked_of_text(monkeypatch):
    learner = Learner(CharRNN(width=4), steps=1, random_state=0).fit([[0, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match="expected a learner of text, got one of token numbers"):
        bits_per_character(learner, ["ab"])
