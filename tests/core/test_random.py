import math

import pytest
import torch
from scipy import stats

from weft.core import random
from weft.core.random import fold, key_of, keyed, place


def test_the_hash_is_splitmix64():
    """The first outputs of SplitMix64 from state 0, as published with its reference code."""
    words = random._mix(torch.arange(1, 4) * random._GOLDEN)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(w) % 2**64 for w in words] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_and_normal_follow_their_laws(dtype):
    with keyed(key_of(1), torch.arange(200)):
        u = random.uniform((200, 200), place="u", dtype=dtype).flatten()
        z = random.normal((200, 200), place="z", dtype=dtype).flatten()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(z.double().numpy(), "norm").pvalue > 1e-3
    # no correlation between rows, between neighbours, or between places
    rows = z.reshape(200, 200)
    assert abs(float((rows[:-1] * rows[1:]).mean())) < 4 / math.sqrt(200 * 199)
    assert abs(float((rows[:, :-1] * rows[:, 1:]).mean())) < 4 / math.sqrt(200 * 199)


def test_categorical_has_the_right_frequencies():
    p = torch.tensor([0.1, 0.2, 0.7])
    with keyed(key_of(0), torch.arange(20_000)):
        drawn = random.categorical(p.log().expand(20_000, 3), place="a")
    counts = torch.bincount(drawn, minlength=3)
    assert stats.chisquare(counts.numpy(), (p * 20_000).numpy()).pvalue > 1e-3


def test_draws_depend_on_seed_step_place_and_row_only():
    def draw(seed, step, where, rows):
        with keyed(fold(key_of(seed), step), rows):
            return random.normal((len(rows), 3), place=where)

    rows = torch.arange(6)
    whole = draw(0, 0, "z", rows)
    torch.manual_seed(123)
    assert torch.equal(whole, draw(0, 0, "z", rows))
    assert torch.equal(whole[[4, 1]], draw(0, 0, "z", rows[[4, 1]]))
    for other in (draw(1, 0, "z", rows), draw(0, 1, "z", rows), draw(0, 0, "y", rows), draw(0, 0, "z", rows + 6)):
        assert not torch.isclose(whole, other).any()


def test_places_nest():
    with keyed(key_of(0), torch.arange(3)):
        plain = random.uniform((3,), place="u")
        with place("inner", 0):
            first = random.uniform((3,), place="u")
        with place("inner", 1):
            second = random.uniform((3,), place="u")
        assert torch.equal(plain, random.uniform((3,), place="u"))
    assert not torch.equal(plain, first)
    assert not torch.equal(first, second)


def test_rows_times_positions():
    """A draw over rows x positions, flattened, follows its rows."""
    with keyed(key_of(0), torch.arange(4)):
        whole = random.uniform((12, 2), place="u")
    with keyed(key_of(0), torch.arange(2, 4)):
        part = random.uniform((6, 2), place="u")
    assert torch.equal(whole[6:], part)


def test_a_draw_outside_says_so():
    with pytest.raises(RuntimeError, match="no key is in force"):
        random.uniform((2,), place="u")


def test_permutation_is_uniform():
    keys = fold(key_of(0), torch.arange(6000))
    orders = random.permutation(keys, 3)
    code = orders[:, 0] * 9 + orders[:, 1] * 3 + orders[:, 2]
    _, counts = code.unique(return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
