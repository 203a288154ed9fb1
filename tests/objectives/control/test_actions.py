"""Laws of actions against torch.distributions, numerical integrals, and draws."""

import math

import pytest
import torch
from torch import distributions as D

from weft.core import Field
from weft.core.random import key_of, keyed
from weft.objectives.control.actions import Choices, Classes, Clipped, Normals, Squashed, _log_below, law_of

ROWS = torch.arange(5)
LAWS = {
    "classes": Classes(4),
    "choices": Choices((2, 4, 3)),
    "normal": Normals((3,)),
    "clipped": Clipped((3,), (-1.0, -math.inf, 0.5), (2.0, 0.5, math.inf)),
    "squashed": Squashed((3,), (-2.0, 0.0, 1.0), (2.0, 1.0, 5.0)),
}


def told_of(law, rows=5, scale=1.0):
    torch.manual_seed(0)
    return scale * torch.randn(rows, law.size, dtype=torch.float64)


def drawn(law, told, seed=0):
    with keyed(key_of(seed), torch.arange(len(told))):
        return law.sample(told)


def theirs(law, told):
    """The same law as torch has it, made apart."""
    if isinstance(law, Classes):
        return D.Categorical(logits=told)
    mean, log = told.chunk(2, -1)
    plain = D.Normal(mean, log.exp())
    if not isinstance(law, Squashed):
        return D.Independent(plain, 1)
    low, high = (torch.tensor(ends, dtype=told.dtype) for ends in (law.low, law.high))
    bent = [D.TanhTransform(), D.AffineTransform((low + high) / 2, (high - low) / 2)]
    return D.Independent(D.TransformedDistribution(plain, bent), 1)


@pytest.mark.parametrize("name", ["classes", "normal", "squashed"])
def test_log_prob_is_torchs(name):
    law = LAWS[name]
    told = told_of(law)
    action = drawn(law, told)
    torch.testing.assert_close(law.log_prob(told, action), theirs(law, told).log_prob(action))
    torch.testing.assert_close(  # any leading axes
        law.log_prob(told.reshape(1, 5, -1), action.unsqueeze(0)), law.log_prob(told, action).unsqueeze(0)
    )


@pytest.mark.parametrize("name", ["classes", "normal"])
def test_entropy_and_kl_are_torchs(name):
    law = LAWS[name]
    told, other = told_of(law), told_of(law).flip(0)
    mine, its = theirs(law, told), theirs(law, other)
    torch.testing.assert_close(law.entropy(told), mine.entropy())
    torch.testing.assert_close(law.kl(told, other), D.kl_divergence(mine, its))
    torch.testing.assert_close(law.kl(told, told), torch.zeros(5, dtype=torch.float64))


def test_choices_are_the_product_of_their_classes():
    law = LAWS["choices"]
    told, other = told_of(law), told_of(law).flip(0)
    action = drawn(law, told)
    each = [Classes(count) for count in law.counts]
    parts = list(zip(each, told.split(law.counts, -1), other.split(law.counts, -1), strict=True))
    log_prob = sum(one.log_prob(p, action[:, i]) for i, (one, p, _) in enumerate(parts))
    torch.testing.assert_close(law.log_prob(told, action), log_prob)
    torch.testing.assert_close(law.entropy(told), sum(one.entropy(p) for one, p, _ in parts))
    torch.testing.assert_close(law.kl(told, other), sum(one.kl(p, q) for one, p, q in parts))
    assert torch.equal(law.best(told), torch.stack([one.best(p) for one, p, _ in parts], -1))
    ways = torch.cartesian_prod(*map(torch.arange, law.counts))
    whole = law.log_prob(told[:1].expand(len(ways), -1), ways).exp().sum()
    assert whole.item() == pytest.approx(1.0, abs=1e-12)
    shaped = Choices((2, 2, 3, 3), (2, 2))
    told = told_of(shaped)
    assert drawn(shaped, told).shape == (5, 2, 2)
    assert shaped.log_prob(told, drawn(shaped, told)).shape == (5,)


def masses(law, told):
    """The integral of each entry's density and the probabilities at its bounds, by a fine grid."""
    single = told.reshape(2, -1)
    for i in range(law.entries):
        own = single[:, i : i + 1].reshape(1, 2)
        ends = (law.low[i], law.high[i]) if hasattr(law, "low") else (-math.inf, math.inf)
        mean, deviation = own[0, 0].item(), own[0, 1].exp().item()
        reach = [max(ends[0], mean - 12 * deviation), min(ends[1], mean + 12 * deviation)]
        one = type(law)((1,), *([(e,) for e in ends] if hasattr(law, "low") else []))
        cells = 200_000
        width = (reach[1] - reach[0]) / cells
        grid = reach[0] + width * (torch.arange(cells, dtype=torch.float64) + 0.5)
        whole = one.log_prob(own.expand(cells, -1), grid.unsqueeze(-1)).exp().sum().item() * width
        if isinstance(law, Clipped):
            whole += sum(one.log_prob(own, torch.tensor([[e]])).exp().item() for e in ends if math.isfinite(e))
        yield whole


@pytest.mark.parametrize("name", ["normal", "clipped", "squashed"])
@pytest.mark.parametrize("scale", [0.2, 0.4])
def test_densities_integrate_to_one(name, scale):
    law = LAWS[name]
    for whole in masses(law, told_of(law, 1, scale)[0]):
        assert whole == pytest.approx(1.0, abs=1e-5)


def test_the_mutant_without_the_slope_does_not_integrate_to_one():
    class Bare(Squashed):
        def _log_slope(self, u):
            return torch.zeros_like(u)

    law = Bare((1,), (-2.0,), (2.0,))
    assert abs(next(masses(law, told_of(law, 1)[0])) - 1.0) > 0.1


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law(name):
    law = LAWS[name]
    rows = 40_000
    told = told_of(law, 1, 0.7).expand(rows, -1)
    action = drawn(law, told)
    assert torch.isfinite(law.log_prob(told, action)).all()
    if isinstance(law, Classes | Choices):
        share = torch.stack([(action == a).double().mean(0) for a in range(4)])
        if isinstance(law, Classes):
            torch.testing.assert_close(share, told[0].softmax(-1), atol=0.012, rtol=0.0)
        else:
            torch.testing.assert_close(share[:, 1], told[0, 2:6].softmax(-1), atol=0.012, rtol=0.0)
    error = 4 * law.log_prob(told, action).std() / rows**0.5
    if not isinstance(law, Clipped):  # whose masses at the bounds are no density
        assert abs(-law.log_prob(told, action).mean() - law.entropy(told)[0]) < error + 1e-4
    if name == "clipped":
        assert (action[:, 0] >= -1).all()
        assert (action[:, 1] <= 0.5).all()
        at = (action[:, 0] == 2.0).double().mean()
        edge = Clipped((1,), (-1.0,), (2.0,)).log_prob(told[:1, [0, 3]], torch.tensor([[2.0]])).exp()
        assert at.item() == pytest.approx(edge.item(), abs=0.01)
    if name == "squashed":
        assert (action >= torch.tensor(law.low)).all()
        assert (action <= torch.tensor(law.high)).all()


@pytest.mark.parametrize("deviation", [0.1, 1.0, 3.0])
def test_entropy_of_the_squashed_by_a_fine_grid(deviation):
    law = Squashed((1,), (-2.0,), (2.0,))
    told = torch.tensor([[0.7, math.log(deviation)]], dtype=torch.float64)
    u = 0.7 + deviation * torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    log = D.Normal(0.7, deviation).log_prob(u)
    slope = 2.0 * (1 - torch.tanh(u).square()).clamp_min(1e-300)
    slope = torch.where(u.abs() > 15, torch.log(torch.tensor(8.0)) - 2 * u.abs(), slope.log())
    expected = (-(log - slope) * log.exp()).sum() * (u[1] - u[0])
    assert law.entropy(told).item() == pytest.approx(expected.item(), abs=2e-3)


def test_the_kl_of_the_squashed_is_that_of_its_draws():
    law = LAWS["squashed"]
    told = told_of(law, 2, 0.5)
    rows = told[:1].expand(100_000, -1)
    with keyed(key_of(1), torch.arange(100_000)):
        action, log = law.drawn(rows)
    torch.testing.assert_close(log, law.log_prob(rows, action), atol=1e-5, rtol=1e-5)
    apart = log - law.log_prob(told[1:].expand(100_000, -1), action)
    assert abs(apart.mean() - law.kl(told[:1], told[1:])[0]) < 4 * apart.std() / 100_000**0.5


def test_gradients_flow_through_what_is_drawn():
    """By the reparametrized draw: d/dmean E[a] where a = tanh u, against a difference of grids."""
    law = Squashed((1,), (-1.0,), (1.0,))
    told = torch.tensor([[0.3, -0.5]], dtype=torch.float64, requires_grad=True)
    with keyed(key_of(0), torch.arange(200_000)):
        action, _ = law.drawn(told.expand(200_000, -1))
    found = torch.autograd.grad(action.mean(), told)[0]
    at = torch.linspace(-9, 9, 20_001, dtype=torch.float64)

    def mean(m, s):
        return (torch.tanh(m + s * at) * D.Normal(0.0, 1.0).log_prob(at).exp()).sum() * (at[1] - at[0])

    s = math.exp(-0.5)
    expected = [
        (mean(0.3 + 1e-4, s) - mean(0.3 - 1e-4, s)) / 2e-4,
        (mean(0.3, s + 1e-4) - mean(0.3, s - 1e-4)) / 2e-4 * s,
    ]
    torch.testing.assert_close(found[0], torch.stack(expected), atol=4e-3, rtol=0.0)


def test_what_is_not_legal_has_probability_zero_and_no_gradient_is_nan():
    law = Classes(4)
    told = told_of(law).requires_grad_()
    legal = torch.tensor([[True, False, True, False]] * 4 + [[False, True, False, False]])
    heard = law.masked(told, legal)
    assert (heard.softmax(-1)[~legal] == 0).all()
    torch.testing.assert_close(heard[:, [0, 2]].softmax(-1)[:4], told[:, [0, 2]].softmax(-1)[:4])
    assert legal.gather(-1, drawn(law, heard.detach()).unsqueeze(-1)).all()
    assert torch.equal(law.best(heard)[4:], torch.tensor([1]))
    only = D.Categorical(logits=told[:4, [0, 2]])
    torch.testing.assert_close(law.entropy(heard)[:4], only.entropy())
    assert law.entropy(heard)[4].item() == 0.0
    other = law.masked(told.flip(0), legal)
    total = law.entropy(heard).sum() + law.kl(heard, other).sum() + law.log_prob(heard, law.best(heard)).sum()
    gradient = torch.autograd.grad(total, told)[0]
    assert torch.isfinite(gradient).all()
    assert (gradient[:4, [1, 3]] == 0).all()
    with pytest.raises(ValueError, match="expected Normals without a mask"):
        LAWS["normal"].masked(told, legal)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacked_runs_are_single_ones(name, dtype):
    law = LAWS[name]
    told = torch.stack([told_of(law), told_of(law).flip(0)]).to(dtype)

    def one(told, key):
        with keyed(key, ROWS):
            action = law.sample(told)
        return action, law.log_prob(told, action), law.entropy(told), law.kl(told, told.flip(0)), law.best(told)

    keys = key_of(torch.tensor([3, 4]))
    for k in range(2):
        both = torch.func.vmap(one)(told, keys)
        for found, alone in zip(both, one(told[k], keys[k]), strict=True):
            torch.testing.assert_close(found[k], alone)
            assert found.dtype == (alone.dtype if alone.dtype == torch.int64 else dtype)

    def gradient(told, action):
        return torch.func.grad(lambda t: (law.log_prob(t, action) + law.entropy(t) + law.kl(t, t.flip(0))).sum())(told)

    found = torch.func.vmap(gradient)(told, both[0])
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[1], gradient(told[1], both[0][1]))


@pytest.mark.parametrize("name", ["clipped", "squashed"])
def test_far_beyond_the_bounds_everything_is_finite(name):
    law = type(LAWS[name])((1,), (-1.0,), (1.0,))
    told = torch.tensor([[50.0, 0.0], [-50.0, -3.0], [0.0, -8.0]], requires_grad=True)
    action = drawn(law, told.detach())
    log = law.log_prob(told, action)
    assert torch.isfinite(log).all()
    assert torch.isfinite(torch.autograd.grad(log.sum() + law.entropy(told).sum(), told)[0]).all()
    assert (action.abs() <= 1).all()


def test_law_of_a_world():
    number = Field((2,), torch.float32, low=(-1.0, 0.0), high=(1.0, 3.0))
    half = Field((1,), torch.float32, low=(0.0,), high=(math.inf,))
    assert isinstance(law_of(Field((), torch.int64, classes=3)), Classes)
    assert law_of(Field((2,), torch.int64, choices=(2, 3))).size == 5
    assert isinstance(law_of(number), Squashed)
    assert isinstance(law_of(number, bounds="clip"), Clipped)
    assert isinstance(law_of(half, bounds="clip"), Clipped)
    assert type(law_of(Field((1,), torch.float32, low=(-math.inf,), high=(math.inf,)))) is Normals
    assert type(law_of(Field((2, 2), torch.float32))) is Normals
    with pytest.raises(ValueError, match=r"clip it \(bounds='clip'\)"):
        law_of(half)
    with pytest.raises(ValueError, match="expected actions that are classes, choices or floating-point numbers"):
        law_of(Field((), torch.int64))


def test_the_logarithm_of_the_tail_is_torchs():
    x = torch.linspace(-30, 8, 1001, dtype=torch.float64)
    torch.testing.assert_close(_log_below(x), torch.special.log_ndtr(x), atol=1e-12, rtol=1e-12)
