"""Windows of a long text: which ones a step draws, which ones are judged, and that a run goes on."""

import numpy as np
import pytest
import torch

import weft
from weft import Learner
from weft.core.state import State
from weft.objectives import CharRNN
from weft.sources import Windows

TEXT = "a stitch in time saves nine; a rolling stone gathers no moss. " * 6


def state(seeds, step=0):
    held = State(None, {}, {}, torch.tensor(seeds), replicas=None if isinstance(seeds, int) else len(seeds))
    held.step = step
    return held


def test_windows_are_pieces_of_the_text_that_begin_anywhere():
    source = Windows(np.arange(50) % 50, context=8, batch_size=2000)
    x = next(source.batches(state(0)))["x"]
    assert torch.equal(x - x[:, :1], torch.arange(8).expand(2000, 8))
    counts = torch.bincount(x[:, 0], minlength=50)
    assert (counts[:43] > 15).all()  # 46.5 each
    assert (counts[43:] == 0).all()  # else they would go over the end


def test_steps_and_seeds_draw_apart_and_again_the_same():
    source = Windows(TEXT, context=8, batch_size=16)
    first, again, later, other = (next(source.batches(state(*at)))["x"] for at in [(0,), (0,), (0, 1), (1,)])
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)
    both = next(source.batches(state([0, 1])))
    assert torch.equal(both["x"], torch.stack([first, other]))
    assert both["x_length"].shape == (2, 16)


def test_those_side_by_side_have_every_token_once():
    source = Windows(np.arange(50), context=8)
    batches = list(source.once(state(0), 3))
    read = torch.cat([row[:long] for b in batches for row, long in zip(b["x"], b["x_length"], strict=True)])
    assert torch.equal(read, torch.arange(50))
    assert (source.size, source.epoch, batches[-1]["x_length"].tolist()) == (7, 1, [2])


def test_what_is_held_out_is_the_end_of_the_text():
    parts = [Windows(TEXT, context=8, holdout=0.25, part=part) for part in ("train", "validation")]
    assert torch.equal(torch.cat([part.tokens for part in parts]), Windows(TEXT, context=8).tokens)
    assert abs(len(parts[1].tokens) / len(TEXT) - 0.25) < 0.01
    assert parts[0].vocabulary == parts[1].vocabulary == {"x": sorted(set(TEXT))}
    later = Windows(TEXT[:20], context=8, vocabulary=parts[0].vocabulary["x"])
    assert later.spec == parts[0].spec


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_run_that_was_stopped_ends_where_it_would_have(tmp_path, replicas):
    train, held = (Windows(TEXT, context=8, batch_size=4, holdout=0.2, part=p) for p in ("train", "validation"))
    options = {"random_state": 0, "every": 2, "validation": held}
    options |= {} if replicas is None else {"replicas": replicas}

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record):
        if record["step"] >= 6:
            raise Stop

    model = CharRNN(width=8, dropout=0.2, ends=False)
    whole = Learner(model, steps=10, folder=tmp_path / "whole", **options).fit(train)
    with pytest.raises(Stop):
        Learner(model, steps=10, folder=tmp_path / "run", callbacks=[stop], **options).fit(train)
    other = Windows(TEXT[::-1], context=8, batch_size=4, holdout=0.2)
    with pytest.raises(ValueError, match="tokens"):
        weft.load(tmp_path / "run", validation=held).resume(other)
    resumed = weft.load(tmp_path / "run", validation=held).resume(train)
    for name, value in whole.module(0).state_dict().items():
        assert torch.equal(value, resumed.module(0).state_dict()[name]), name
    asked = ["a rolling", "stone"]
    np.testing.assert_array_equal(whole.log_prob(asked), resumed.log_prob(asked))
    assert resumed.replica(0).generate(["a st"], length=3, random_state=0)[0].startswith("a st")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"text": "short"}, ValueError, "expected a text of at least 256 tokens in the train part.*got 5"),
        ({"text": TEXT, "context": 100, "holdout": 0.1, "part": "validation"}, ValueError, "in the validation part"),
        ({"text": TEXT, "vocabulary": ["a", "b"]}, ValueError, "expected characters that the vocabulary has, got ' '"),
        ({"text": TEXT, "classes": 4}, ValueError, "expected classes for token numbers alone, got 4 for a text"),
        ({"text": np.arange(400), "classes": 7}, ValueError, "expected token numbers 0..6, got 0 to 399"),
        ({"text": np.arange(400) - 1}, ValueError, "expected token numbers 0..398, got -1 to 398"),
        ({"text": np.zeros(400)}, TypeError, "a text, or a sequence of token numbers"),
        ({"text": [TEXT]}, TypeError, "a text, or a sequence of token numbers"),
    ],
)
def test_bad_texts(given, error, message):
    with pytest.raises(error, match=message):
        Windows(**given)
