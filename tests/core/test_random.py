import math

import pytest
import torch
from scipy import stats

from weft.core import random
from weft.core.random import fold, key_of, keyed, place, turns


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
    with keyed(key_of(0), torch.arange(3)):
        assert torch.equal(plain, random.uniform((3,), place="u"))
    assert not torch.equal(plain, first)
    assert not torch.equal(first, second)


def test_the_leading_axis_is_the_rows_or_the_draw_is_shared():
    with keyed(key_of(0), torch.arange(4)):
        whole = random.uniform((4, 3, 2), place="three of a row")
        shared = random.uniform((4, 2), place="shared", shared=True)
        for wrong in ((12, 2), (2,), (), (3, 4)):
            with pytest.raises(
                ValueError, match=r"rows in force, of shape \(4, \.\.\.\).*\(4, K, \.\.\.\).*shared=True"
            ):
                random.uniform(wrong, place=f"wrong {wrong}")
    with keyed(key_of(0), torch.arange(2, 4)):
        assert torch.equal(whole[2:], random.uniform((2, 3, 2), place="three of a row"))
        assert torch.equal(shared, random.uniform((4, 2), place="shared", shared=True))
        given = random.normal((3, 2, 5), place="given", rows=torch.arange(6).reshape(3, 2))
        with pytest.raises(ValueError, match=r"\(3, 2, \.\.\.\), got \(3, 5\)"):
            random.normal((3, 5), place="given", rows=torch.arange(6).reshape(3, 2))
    with keyed(key_of(0)):
        assert torch.equal(given[1, 1], random.normal((1, 5), place="given", rows=torch.tensor([3]))[0])
        random.normal((7,), place="without rows every draw is shared")


def test_a_place_draws_once():
    with keyed(key_of(0), torch.arange(3)):
        random.normal((3,), place="z")
        with pytest.raises(ValueError, match=r"second draw at 'z'.*turns\('z', count\)"):
            random.normal((3,), place="z")
        with pytest.raises(ValueError, match="second draw"):
            random.uniform((3,), place="z", shared=True)
    with keyed(key_of(0), torch.arange(3), again=True):
        assert torch.equal(random.normal((3,), place="z"), random.normal((3,), place="z"))


def test_loops_draw_by_turns():
    """An AR(1) chain has the deviation that it should: with one noise for all turns it had that of a sum."""
    with keyed(key_of(0), torch.arange(20_000)):
        x = torch.zeros(20_000)
        for _ in turns("chain", 60):
            x = 0.9 * x + random.normal((20_000,), place="noise")
        after = random.normal((20_000,), place="noise")
    truth = (1 / (1 - 0.9**2)) ** 0.5
    assert abs(float(x.std()) - truth) < 0.05
    with keyed(key_of(0), torch.arange(20_000)):
        assert torch.equal(after, random.normal((20_000,), place="noise")), "the turns end with the loop"


def test_a_loop_left_by_an_error_leaves_no_place_behind():
    with keyed(key_of(0), torch.arange(2)):
        before = random.uniform((2,), place="u")
    with keyed(key_of(0), torch.arange(2)):
        loop = turns("loop", 3)  # somebody holds it, as a traceback may
        next(loop)
    with keyed(key_of(0), torch.arange(2)):
        assert torch.equal(before, random.uniform((2,), place="u")), loop


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [2**20, 7])
def test_what_a_loop_draws_ahead_is_what_its_turns_draw(dtype, block, monkeypatch):
    """Bit for bit, of several draws in a turn, shared ones too, at any size of the block, inside another place."""
    monkeypatch.setattr(random, "_AHEAD", block)

    def drawn(ahead):
        found = []
        with keyed(key_of(3), torch.tensor([5, 2, 9])), place("outer", 1):
            for t in turns("loop", 5, ahead=ahead):
                found.append(random.uniform((3,), place="u", dtype=dtype))
                found.append(random.normal((3, 2), place="z", dtype=dtype).mul_(t + 1))
                found.append(random.normal((4,), place="all", shared=True, dtype=dtype))
                found.append(random.categorical(torch.zeros(3, 4, dtype=dtype), place="c"))
                with place("inner"):
                    found.append(random.uniform((3,), place="u", dtype=dtype))
                if t == 2:  # a draw that other turns do not have
                    found.append(random.uniform((3, 3), place="once", dtype=dtype))
        return found

    for one, other in zip(drawn(True), drawn(False), strict=True):
        assert torch.equal(one, other)


def test_turns_that_draw_ahead_draw_once_for_each_replica_and_again_where_that_is_meant():
    def last(key):
        with keyed(key, torch.arange(4)):
            return [random.normal((4,), place="z") for _ in turns("loop", 3, ahead=True)][-1]

    keys = key_of(torch.arange(2))
    both = torch.func.vmap(last)(keys)
    for k in range(2):
        assert torch.equal(both[k], last(keys[k]))
    with keyed(key_of(0), torch.arange(3)):
        for _ in turns("loop", 2, ahead=True):
            random.normal((3,), place="z")
            with pytest.raises(ValueError, match="second draw at 'z'"):
                random.normal((3,), place="z")
    with keyed(key_of(0), torch.arange(3), again=True):
        for _ in turns("loop", 2, ahead=True):
            first = random.normal((3,), place="z").clone()
            random.normal((3,), place="z").mul_(2)
            assert torch.equal(first, random.normal((3,), place="z"))
    with keyed(key_of(0), torch.arange(3)):  # another key in force within the loop has its own
        for _ in turns("loop", 2, ahead=True):
            one = random.normal((3,), place="z")
            with keyed(key_of(1), torch.arange(3)):
                assert not torch.equal(one, random.normal((3,), place="z"))
