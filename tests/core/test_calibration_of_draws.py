"""The laws of keyed draws, on millions of them: moments, tails, and what must not go together."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from weft.core import random
from weft.core.random import fold, gauss, key_of, keyed, permutation, unit

N = 2_000_000
ROOT = fold(key_of(12), "calibration")


def together(a, b):
    """The correlation of two standardized samples, in its own standard errors."""
    return float((a.double() * b.double()).mean()) * math.sqrt(a.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_moments_of_uniforms(dtype):
    u = unit(ROOT, (N,), dtype).double()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    digits = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}[dtype]
    assert torch.equal(u * 2**digits, (u * 2**digits).round()), "multiples of the last digit"
    v = u + 0.5 ** (digits + 1) - 0.5  # from below a cell to its middle
    for power, moment, spread in ((1, 0.0, 1 / 12), (2, 1 / 12, 1 / 180), (3, 0.0, 1 / 448), (4, 1 / 80, 1 / 3600)):
        assert abs(float((v**power).mean()) - moment) < 4.5 * math.sqrt(spread / N), power
    counts = torch.histc(u, 256, 0, 1).numpy()
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_and_tails_of_normals(dtype):
    z = gauss(ROOT, (N,), dtype).double()
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(float((z**power).mean()) - moment) < 4.5 * math.sqrt(spread / N), power
    assert stats.kstest(z[:200_000].numpy(), "norm").pvalue > 1e-4
    for edge in (2, 3, 4):
        for tail in ((z > edge).sum(), (z < -edge).sum()):
            assert stats.binomtest(int(tail), N, stats.norm.sf(edge)).pvalue > 1e-4, edge


def test_the_tails_beyond_five_deviations():
    beyond = [0, 0]
    for turn in range(20):
        z = gauss(fold(ROOT, turn), (N,))
        assert bool(torch.isfinite(z).all())
        beyond[0] += int((z > 5).sum())
        beyond[1] += int((z < -5).sum())
    for tail in beyond:
        assert stats.poisson.cdf(tail, 20 * N * stats.norm.sf(5)) > 1e-4, beyond
        assert stats.poisson.sf(tail - 1, 20 * N * stats.norm.sf(5)) > 1e-4, beyond


@pytest.mark.parametrize("draw", [unit, gauss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_must_not_go_together(draw, dtype):
    def standard(key, shape):
        x = draw(key, shape, dtype)
        return (x - 0.5) * math.sqrt(12) if draw is unit else x

    flat = standard(ROOT, (N,))
    rows = standard(fold(ROOT, torch.arange(1001)), (1000,))
    pairs = {
        "neighbours": (flat[1:], flat[:-1]),
        "the two of a word": (flat[: N // 2], flat[N // 2 :]),
        "neighbouring uniforms of a word": (flat[0::2], flat[1::2]),
        "rows": (rows[1:], rows[:-1]),
        "columns": (rows[:, 1:], rows[:, :-1]),
        "steps": (standard(fold(ROOT, 7), (N,)), standard(fold(ROOT, 8), (N,))),
        "places": (standard(fold(ROOT, "a"), (N,)), standard(fold(ROOT, "b"), (N,))),
        "seeds": (standard(key_of(0), (N,)), standard(key_of(1), (N,))),
        "a row and the draw for all": (rows[0], standard(ROOT, (1000,))),
    }
    for name, (a, b) in pairs.items():
        assert abs(together(a, b)) < 4.5, name
        a2, b2 = ((x.double().square() - 1) for x in (a, b))
        scale = (a2.square().mean() * b2.square().mean()).sqrt()
        assert abs(together(a2, b2) / float(scale)) < 4.5, f"squares of {name}"
    lines = rows[:1000].double()
    assert abs(float(lines.mean(1).square().mean()) * 1000 - 1) < 4.5 * math.sqrt(2 / 1000), "means of rows"
    assert abs(float(lines.mean(0).square().mean()) * 1000 - 1) < 4.5 * math.sqrt(2 / 1000), "means of columns"


def test_the_two_normals_of_a_word_fill_the_plane():
    z = gauss(ROOT, (N,)).reshape(2, -1).double()
    angle = torch.atan2(z[1], z[0])
    assert stats.chisquare(torch.histc(angle, 64, -math.pi, math.pi).numpy()).pvalue > 1e-4
    radius = z.square().sum(0)
    assert stats.kstest(radius[:300_000].numpy(), "chi2", args=(2,)).pvalue > 1e-4
    assert abs(together((angle / math.pi) * math.sqrt(3), radius / 2 - 1)) < 4.5


def test_the_two_uniforms_of_a_word_share_no_bit():
    first, second = (unit(ROOT, (2 * N,)).double() * 2**24).long().reshape(2, -1)
    ends = {"first": lambda x: x >> 16, "last": lambda x: x & 255}
    for one, a in ends.items():
        for other, b in ends.items():
            cells = torch.bincount(a(first) * 256 + b(second), minlength=65536)
            assert stats.chisquare(cells.numpy()).pvalue > 1e-4, f"{one} bits against {other}"


def test_an_odd_number_and_one_of_a_row():
    keys = fold(ROOT, torch.arange(N // 10))
    for shape in ((), (1,), (3,)):
        z = gauss(keys, shape)
        assert z.shape == (N // 10, *shape)
        assert stats.kstest(z.flatten().double().numpy(), "norm").pvalue > 1e-4
        assert stats.kstest(unit(keys, shape).flatten().double().numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.001, 0.5, 0.995])
def test_rare_events_are_as_rare_as_said(dtype, p):
    chance = torch.full((1000, 1000), p, dtype=dtype)
    with keyed(ROOT, torch.arange(1000)):
        hits = random.bernoulli(chance, place="b")
    assert hits.dtype == dtype
    assert stats.binomtest(int(hits.double().sum()), hits.numel(), float(chance[0, 0])).pvalue > 1e-4


def test_classes_in_bfloat16():
    p = torch.tensor([0.002, 0.018, 0.08, 0.9])
    logits = p.log().bfloat16()
    with keyed(ROOT, torch.arange(300_000)):
        drawn = random.categorical(logits.expand(300_000, 4), place="c")
    truth = logits.double().softmax(-1)
    assert stats.chisquare(torch.bincount(drawn, minlength=4).numpy(), truth.numpy() * 300_000).pvalue > 1e-4


def test_permutations():
    orders = permutation(fold(ROOT, torch.arange(240_000)), 4).numpy()
    codes = np.unique(orders @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(codes) == 24
    assert stats.chisquare(codes).pvalue > 1e-4
    long = permutation(fold(ROOT, "long"), 100_000).double()
    assert abs(together((long[1:] / 1e5 - 0.5) * math.sqrt(12), (long[:-1] / 1e5 - 0.5) * math.sqrt(12))) < 4.5
