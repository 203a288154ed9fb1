"""Laws of one number: densities against scipy, draws against probabilities, estimates against the gradient."""

import numpy as np
import pytest
import torch
from scipy import stats

from weft.core.random import key_of, keyed
from weft.core.source import Field, Part
from weft.objectives.densities.laws import Bernoulli, Categorical, Laws, Normal, Poisson, Student, laws_of
from weft.objectives.densities.outputs import LogisticMixture, NormalMixture

ROWS = 4000
CASES = {
    "normal": (Normal(), [0.7, -0.3], stats.norm(0.7, np.exp(-0.3))),
    "student": (Student(3.0), [0.7, -0.3], stats.t(3.0, 0.7, np.exp(-0.3))),
    "bernoulli": (Bernoulli(), [0.4], stats.bernoulli(1 / (1 + np.exp(-0.4)))),
    "poisson": (Poisson(), [1.3], stats.poisson(np.exp(1.3))),
    "many counts": (Poisson(), [6.0], stats.poisson(np.exp(6.0))),
}


def drawn(law, theta, rows=ROWS):
    with keyed(key_of(0), torch.arange(rows)):
        return law.draw(torch.tensor(theta, dtype=torch.float64).expand(rows, -1), "x").numpy()


@pytest.mark.parametrize("case", CASES)
def test_densities_are_scipys_and_draws_follow_them(case):
    law, theta, peer = CASES[case]
    x = drawn(law, theta)
    assert law.allows(torch.tensor(x)).all()
    logs = law.log_prob(torch.tensor(theta, dtype=torch.float64), torch.tensor(x))
    np.testing.assert_allclose(logs, peer.logpdf(x) if law.continuous else peer.logpmf(x), rtol=1e-9)
    if law.continuous:
        assert stats.kstest(x, peer.cdf).pvalue > 1e-3
    else:
        each = np.arange(x.max() + 2)
        cells = np.minimum((np.cumsum(peer.pmf(each)) * 20).astype(int), 19)
        wanted = np.bincount(cells, weights=peer.pmf(each), minlength=20)
        seen = np.bincount(cells[x.astype(int)], minlength=20)
        full = wanted > 1e-3
        assert stats.chisquare(seen[full], wanted[full] / wanted[full].sum() * seen[full].sum()).pvalue > 1e-3
    assert abs(float(law.mean(torch.tensor(theta, dtype=torch.float64))) - peer.mean()) < 1e-9


def test_categories_are_softmaxes():
    law, logits = Categorical(4), [0.0, 1.0, -1.0, 0.5]
    share = np.exp(logits) / np.exp(logits).sum()
    x = drawn(law, logits)
    assert stats.chisquare(np.bincount(x.astype(int), minlength=4), ROWS * share).pvalue > 1e-3
    theta = torch.tensor(logits, dtype=torch.float64)
    np.testing.assert_allclose(law.log_prob(theta, torch.arange(4.0)), np.log(share), rtol=1e-9)
    assert law.free() == 3


@pytest.mark.parametrize("law", [Normal(), Bernoulli(), Categorical(3), Poisson()], ids=lambda law: law.name)
def test_estimates_are_where_the_gradient_of_the_weighted_likelihood_is_zero(law):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.integers(0, 2, 50) if law.name == "bernoulli" else rng.integers(0, 3, 50)).double()
    weight = torch.tensor(rng.random(50))
    theta = law.estimate(x, weight, 0.0).requires_grad_()
    (weight * law.log_prob(theta, x)).sum().backward()
    assert theta.grad.abs().max() < 1e-9


def test_a_row_of_several_laws_is_their_product_in_the_columns_order():
    parts = (
        Part("a", "count"),
        Part("b", "number"),
        Part("c", "category", classes=3),
        Part("d", "number"),
        Part("e", "boolean"),
    )
    laws = laws_of(Field((5,), torch.float64, columns=parts), "auto")
    assert [law.name for law in laws.laws] == ["poisson", "normal", "categorical", "normal", "bernoulli"]
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.normal(size=(2, 7, laws.size)))
    with keyed(key_of(0), torch.arange(2)):
        x = laws.draw(theta, "x")
    each, start = [], 0
    for j, law in enumerate(laws.laws):
        each.append(law.log_prob(theta[..., start : start + law.size], x[..., j]))
        start += law.size
    np.testing.assert_allclose(laws.log_prob(theta, x), torch.stack(each, -1))
    assert laws.free == 1 + 2 + 2 + 2 + 1
    weight, seen = torch.tensor(rng.random((7, 3))), torch.tensor(rng.random((7, 5)) > 0.3)
    found, start = laws.estimate(x[0], weight, seen, 0.1), 0
    for j, law in enumerate(laws.laws):
        for k in range(3):
            alone = law.estimate(x[0, seen[:, j], j], weight[seen[:, j], k], 0.1)
            np.testing.assert_allclose(found[k, start : start + law.size], alone, rtol=1e-9)
        start += law.size


def test_what_is_outside_of_the_support_is_told_by_row_and_column():
    laws = Laws([Poisson(), Bernoulli()], ["visits", "ill"])
    laws.refuse(torch.tensor([[3.0, 1.0]]))
    with pytest.raises(
        ValueError, match=r"expected counts 0, 1, 2, ... in visits.*got -1; 2 of 3 rows .* in visits, ill"
    ):
        laws.refuse(torch.tensor([[3.0, 1.0], [-1.0, 0.0], [2.0, 0.5]]))
    laws.refuse(torch.tensor([[-1.0, 0.0]]), torch.tensor([[False, True]]))
    with pytest.raises(ValueError, match=r"name their law .* or make them real by dequantizing"):
        laws_of(Field((2,), torch.int64), "auto")
    with pytest.raises(ValueError, match="number of classes for the law 'categorical'"):
        laws_of(Field((2,), torch.int64), "categorical")
    with pytest.raises(ValueError, match="rows of shape"):
        laws_of(Field((2, 2), torch.float32), "normal")
    with pytest.raises(ValueError, match="normal"):
        laws_of(Field((2,), torch.float32), "norml")


# --- laws with several hills -----------------------------------------------------------------------------

HILLS = [0.3, -0.5, 0.1, -0.8, 0.1, 0.9, -1.0, -2.5, -1.5]  # logits, locations, log scales of three parts
SHARES = np.exp(HILLS[:3]) / np.exp(HILLS[:3]).sum()


def by_scipy(kind):
    return [kind(m, np.exp(s)) for m, s in zip(HILLS[3:6], HILLS[6:], strict=True)]


def test_a_mixture_of_normals_is_scipys_and_its_draws_follow_it():
    law, theta, parts = NormalMixture(3), torch.tensor(HILLS, dtype=torch.float64), by_scipy(stats.norm)
    x = drawn(law, HILLS)
    wanted = sum(share * part.pdf(x) for share, part in zip(SHARES, parts, strict=True))
    np.testing.assert_allclose(law.log_prob(theta, torch.tensor(x)).exp(), wanted, rtol=1e-9)
    assert stats.kstest(x, lambda x: sum(s * part.cdf(x) for s, part in zip(SHARES, parts, strict=True))).pvalue > 1e-3
    mean = sum(s * part.mean() for s, part in zip(SHARES, parts, strict=True))
    assert float(law.mean(theta)) == pytest.approx(mean)
    square = sum(s * part.moment(2) for s, part in zip(SHARES, parts, strict=True))
    assert float(law.variance(theta)) == pytest.approx(square - mean**2)
    assert law.free() == 8


@pytest.mark.parametrize("levels", [2, 7, 256])
def test_binned_logistics_are_differences_of_scipys_and_sum_to_one(levels):
    law, theta, parts = LogisticMixture(3, levels=levels), torch.tensor(HILLS, dtype=torch.float64), []
    edges = np.concatenate([[-np.inf], (2 * np.arange(levels - 1) + 1) / (levels - 1) - 1, [np.inf]])
    parts = [np.diff(part.cdf(edges)) for part in by_scipy(stats.logistic)]
    wanted = sum(share * part for share, part in zip(SHARES, parts, strict=True))
    found = law.log_prob(theta, torch.arange(levels).double()).exp().numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-14)
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    assert float(law.mean(theta)) == pytest.approx(wanted @ np.arange(levels))
    assert float(law.variance(theta)) == pytest.approx(wanted @ np.arange(levels) ** 2 - float(law.mean(theta)) ** 2)
    x = drawn(law, HILLS).astype(int)
    full = wanted * ROWS > 5
    seen = np.bincount(x, minlength=levels)
    rest = [seen[~full].sum()], [wanted[~full].sum() * ROWS]
    seen, due = np.append(seen[full], rest[0]), np.append(wanted[full] * ROWS, rest[1])
    assert stats.chisquare(seen[due > 0], due[due > 0]).pvalue > 1e-3
    assert law.allows(torch.tensor(x)).all()
    assert not law.allows(torch.tensor([-1.0, 0.5, float(levels), np.nan])).any()


def test_binned_logistics_have_a_gradient_however_far_out():
    law = LogisticMixture(1)
    theta = torch.tensor([0.0, 0.9, -9.0], requires_grad=True)  # float32, a narrow part far from the level
    logs = law.log_prob(theta, torch.tensor([3.0, 0.0, 255.0]))
    logs.sum().backward()
    assert torch.isfinite(logs).all()
    assert torch.isfinite(theta.grad).all()
    assert theta.grad[1] != 0


def test_a_law_itself_may_be_named():
    laws = laws_of(Field((3,), torch.float32), NormalMixture(2))
    assert laws.size == 18
    assert laws.continuous
    with pytest.raises(
        ValueError, match=r"expected whole numbers 0\.\.3 in column 1, whose law is 'logistic-mixture', got 4"
    ):
        laws_of(Field((2,), torch.float32), LogisticMixture(2, levels=4)).refuse(torch.tensor([[0.0, 4.0]]))
