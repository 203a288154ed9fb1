"""Learning without forgetting: closed forms, and the divergence against PyTorch's own."""

import numpy as np
import pytest
import torch
from torch import distributions as d
from torch import nn

from weft import Classifier, Learner, Optimizer, weave
from weft.objectives import Classification, Heads, Regression
from weft.strategies import EWC, L2, Laplace, LwF
from weft.strategies.continual.lwf import divergence

rng = np.random.default_rng(0)


def test_divergence_is_that_of_the_tempered_distributions():
    p, q = (torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    found = divergence(d.Categorical(logits=p), d.Categorical(logits=q), 3.0)
    torch.testing.assert_close(found, d.kl_divergence(d.Categorical(logits=p / 3), d.Categorical(logits=q / 3)))
    a, b = d.Normal(p, p.exp()), d.Normal(q, q.exp())
    wide = [d.Normal(n.mean, n.stddev * 3.0**0.5) for n in (a, b)]
    torch.testing.assert_close(divergence(a, b, 3.0), d.kl_divergence(*wide).sum(1))
    with pytest.raises(ValueError, match="expected what LwF distills to be of the laws that it names, got Poisson"):
        divergence(d.Poisson(p.exp()), d.Poisson(q.exp()), 1.0)


def test_regression_in_closed_form():
    """Two quadratics of one design: the minimizer is between what the task asks and what was known."""
    first, second = (rng.normal(size=(30, 3)) for _ in range(2))
    known = np.array([1.0, 2.0, -1.0])
    y2 = second @ np.array([-1.0, 1.0, 0.5]) + rng.normal(size=30)
    learner = Learner(Regression(nn.Linear(3, 1, bias=False)), strategy=LwF(strength=3.0, temperature=2.0))
    learner.set_params(optimizer=Optimizer("sgd", lr=0.2), steps=300, batch_size=None, dtype="float64")
    learner.partial_fit(first, first @ known, task="a").partial_fit(second, y2, task="b")
    asked = np.linalg.lstsq(second, y2, rcond=None)[0]
    np.testing.assert_allclose(learner.predict(np.eye(3)), (asked + 1.5 * known) / 2.5, rtol=1e-6)


def test_classification_written_out():
    """Two tasks of full-batch gradient descent on a linear softmax, with the paper's cross-entropy."""
    parts = [(torch.as_tensor(rng.normal(size=(24, 3))), torch.as_tensor(rng.integers(3, size=24))) for _ in range(2)]
    w, before = torch.zeros(3, 3, dtype=torch.float64), None
    for x, y in parts:
        for _ in range(40):
            leaf = w.clone().requires_grad_()
            z = x @ leaf.T
            loss = nn.functional.cross_entropy(z, y)
            if before is not None:
                soft = (x @ before.T / 2.0).softmax(-1)
                loss = loss - 0.7 * (soft * (z / 2.0).log_softmax(-1)).sum(-1).mean()
            w = w - 0.3 * torch.autograd.grad(loss, leaf)[0]
        before = w
    net = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(net.weight)
    learner = Learner(Classification(net), strategy=LwF(strength=0.7), optimizer=Optimizer("sgd", lr=0.3), init="keep")
    learner.set_params(steps=40, batch_size=None, dtype="float64", random_state=0)
    for i, (x, y) in enumerate(parts):
        learner.partial_fit(x, y, classes=range(3), task=i)
    torch.testing.assert_close(learner.training_.runs[0][1].params["net.weight"], w)


def test_it_remembers_what_the_new_rows_can_tell():
    x = rng.normal(size=(400, 6))
    old = (x[:, 0] > 0).astype(int)
    new = np.where(x[:, 1] > 0, 2, 3)
    scores = {}
    for strength in (0.0, 1.0):
        clf = Classifier(strategy=LwF(strength=strength), hidden=(32,), epochs=40, random_state=0)
        clf.set_params(optimizer=Optimizer("adam", lr=1e-2))
        clf.partial_fit(x[:200], old[:200], classes=range(4), task="old").partial_fit(x[200:], new[200:], task="new")
        scores[strength] = float((clf.predict_proba(x)[:, :2].argmax(1) == old).mean())
    assert scores[1.0] > max(scores[0.0], 0.95), scores


def test_bad_input():
    for wrong, message in (
        ({"strength": -1.0}, "strength to be a number >= 0"),
        ({"temperature": 0.0}, "temperature to be a number > 0, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            Classifier(strategy=LwF(**wrong)).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("strategy", [LwF(), EWC(fisher="sampled"), Laplace(fisher="sampled", curvature="kronecker")])
def test_laws_that_it_does_not_know_are_refused_before_the_first_task(strategy):
    X, y = rng.normal(size=(20, 3)), rng.poisson(2.0, size=20)
    counts = Learner(Regression(loss="poisson"), strategy=strategy, epochs=1, random_state=0)
    with pytest.raises(ValueError, match=r"cannot train Regression: .*what Regression predicts is poisson"):
        counts.settings()
    with pytest.raises(ValueError, match="what Regression predicts is poisson"):
        counts.partial_fit(X, y, task="first")
    both = Heads({"a": Regression(loss="poisson"), "b": Classification()})
    with pytest.raises(ValueError, match="what Heads predicts is poisson"):
        Learner(both, strategy=strategy, epochs=1).fit(X, a_y=y, b_y=y > 2, task=["one"] * 20)

    class Undeclared(Regression):
        laws = frozenset()

    assert "is of no family that it names in laws" in strategy.refuses(Undeclared())
    woven = weave(strategy, L2())
    assert woven.refuses(Regression(loss="poisson")) is not None
    assert woven.refuses(Regression(loss="gaussian")) is None
