"""Laws of one number: densities against scipy, draws against probabilities, estimates against the gradient."""

import numpy as np
import pytest
import torch
from scipy import stats

from weft.core.random import key_of, keyed
from weft.core.source import Field, Part
from weft.objectives.densities.laws import Bernoulli, Categorical, Laws, Normal, Poisson, Student, laws_of

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
