"""Draws that are made ahead are those that would have been made, bit for bit."""

import pytest
import torch

from weft.core import foresight
from weft.core.foresight import Foresight
from weft.core.random import bernoulli, categorical, fold, key_of, keyed, normal, place, uniform

ROWS = torch.arange(3)
KEYS = fold(key_of(5), torch.arange(8))
LAWS = {
    "normal": lambda: normal((3, 2), place="a"),
    "uniform": lambda: uniform((3,), place=1, dtype=torch.float64),
    "bernoulli": lambda: bernoulli(torch.full((3, 2), 0.4), place="b"),
    "categorical": lambda: categorical(torch.zeros(3, 4), place="c"),
    "shared": lambda: normal((2,), place="d", shared=True),
}


def forward(laws):
    """Draws by all of the laws, one of them in a room of its own."""
    found = [LAWS[law]() for law in laws]
    with place("inner"):
        return [*found, LAWS[laws[0]]()]


def ahead(laws, keys=KEYS, rows=ROWS):
    sight, found, asked = Foresight(keys, rows), [], []
    for t in range(len(keys)):
        with keyed(keys[t], rows, foreseen=sight.at(t)) as frame:
            found.append(forward(laws))
        asked.append(len(frame.asked))
        sight.learn(frame.asked)
    return found, asked


def in_turn(laws, keys=KEYS, rows=ROWS):
    found = []
    for key in keys:
        with keyed(key, rows):
            found.append(forward(laws))
    return found


@pytest.mark.parametrize("laws", [*((law,) for law in LAWS), tuple(LAWS)], ids=lambda laws: "+".join(laws))
@pytest.mark.parametrize("most", [2**20, 7])
def test_they_are_the_same(laws, most, monkeypatch):
    monkeypatch.setattr(foresight, "MOST", most)  # blocks of a turn or so
    found, asked = ahead(laws)
    for now, then in zip(found, in_turn(laws), strict=True):
        for a, b in zip(now, then, strict=True):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype
    assert asked[0] == len(laws) + 1
    assert not any(asked[1:])  # from the second on, nothing is drawn in the forward


def test_replicas_have_their_own():
    keys = torch.stack([KEYS, fold(key_of(6), torch.arange(8))])
    sight = Foresight(keys, ROWS)
    with keyed(keys[0, 0], ROWS) as frame:
        forward(tuple(LAWS))
    sight.learn(frame.asked)
    for t in (3, 4, 0, 7):
        drawn = sight.at(t)
        for k in range(2):
            with keyed(keys[k, t], ROWS, foreseen={asked: value[k] for asked, value in drawn.items()}) as own:
                now = forward(tuple(LAWS))
            assert not own.asked
            for a, b in zip(now, in_turn(tuple(LAWS), keys[k, t : t + 1])[0], strict=True):
                assert torch.equal(a, b)


def test_what_is_asked_later_is_drawn_then():
    """A forward that draws more in some turns than in others."""

    def some(t):
        found = [LAWS["normal"]()]
        return [*found, LAWS["categorical"]()] if t % 3 == 2 else found

    sight = Foresight(KEYS, ROWS)
    for t in range(len(KEYS)):
        with keyed(KEYS[t], ROWS, foreseen=sight.at(t)) as frame:
            now = some(t)
        sight.learn(frame.asked)
        with keyed(KEYS[t], ROWS):
            then = some(t)
        assert all(map(torch.equal, now, then))


def test_a_place_still_draws_once_only():
    sight = Foresight(KEYS, ROWS)
    with keyed(KEYS[0], ROWS) as frame:
        LAWS["normal"]()
    sight.learn(frame.asked)
    with keyed(KEYS[1], ROWS, foreseen=sight.at(1)):
        LAWS["normal"]()
        with pytest.raises(ValueError, match="place"):
            LAWS["normal"]()
