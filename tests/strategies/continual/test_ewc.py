from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from weft import Classifier, Learner, Optimizer
from weft.core.random import key_of
from weft.core.source import number_rows
from weft.core.strategy import Local
from weft.core.trees import tree_map
from weft.engine.gradients.curvature import factors, products
from weft.engine.gradients.squares import Passes, squares
from weft.objectives import Classification, Regression
from weft.strategies import EWC


def fitted(module, x, y, objective=Classification, **settings):
    learner = Learner(objective(module, **settings), epochs=2, dtype="float64", random_state=0).fit(x, y)
    return learner.objective_, learner.training_.runs[0][1]


def precision(strategy, objective, run, x, y, weight=None, rows=1000):
    batch = {"x": torch.as_tensor(x), "y": torch.as_tensor(y)}
    if weight is not None:
        batch["weight"] = torch.as_tensor(weight)
    batch = number_rows(batch, 1)
    parts = [tree_map(lambda t: t[i : i + rows], batch) for i in range(0, len(x), rows)]
    passes = Passes(objective, run.params, {}, run.buffers, lambda: parts, key_of(0))
    local = Local(objective, run.params, *(partial(sums, passes) for sums in (squares, factors, products)))
    return strategy.consolidate(local, strategy.init(run.params), "t")["tasks"]["t"]["precision"]


rng = np.random.default_rng(0)
X = rng.normal(size=(12, 4))
LABELS = rng.integers(3, size=12)
VALUES = rng.normal(size=(12, 2))


def loop_over_labels(objective, run, x, weight):
    """E over the model's own labels of squared gradients, one example and one label at a time."""
    objective.eval()
    total = {n: torch.zeros_like(p) for n, p in run.params.items()}
    for row, w in zip(torch.as_tensor(x), weight, strict=True):
        for label in range(3):
            leaves = {n: p.clone().requires_grad_() for n, p in run.params.items()}
            batch = {"x": row[None], "y": torch.tensor([label])}
            log_p = -torch.func.functional_call(objective, (leaves, run.buffers), (batch,)).losses[0]
            for n, g in zip(leaves, torch.autograd.grad(log_p, list(leaves.values())), strict=True):
                total[n] += w * log_p.detach().exp() * g.square()
    return total


NET = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_exact_fisher_is_the_loop_over_labels(weighted):
    objective, run = fitted(NET(), X, LABELS)
    weight = rng.uniform(0.5, 2, size=12) if weighted else None
    found = precision(EWC(normalize=False), objective, run, X, LABELS, weight)
    truth = loop_over_labels(objective, run, X, weight if weighted else np.ones(12))
    for n in truth:
        torch.testing.assert_close(found[n], truth[n])


@pytest.mark.parametrize("fisher", ["true", "sampled", "empirical"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_fisher_does_not_depend_on_the_batch_size(fisher, normalize):
    objective, run = fitted(NET(), X, LABELS)
    strategy = EWC(fisher=fisher, normalize=normalize)
    whole = precision(strategy, objective, run, X, LABELS)
    for rows in (1, 5):
        parts = precision(strategy, objective, run, X, LABELS, rows=rows)
        for n in whole:
            torch.testing.assert_close(whole[n], parts[n])


def test_the_sampled_fisher_averages_to_the_true_one():
    objective, run = fitted(nn.Linear(4, 3), X, LABELS)
    many = np.repeat(X, 3000, axis=0)
    sampled = precision(EWC(fisher="sampled"), objective, run, many, np.zeros(len(many), dtype=int), rows=10**6)
    true = precision(EWC(), objective, run, X, LABELS)
    for n in true:
        torch.testing.assert_close(sampled[n], true[n], rtol=0.1, atol=0.01)


def test_the_fisher_of_a_regression_is_in_closed_form():
    """For a linear map with noise sigma: the sum of x^2 / sigma^2, whatever y is."""
    objective, run = fitted("linear", X, VALUES, Regression, noise=0.5)
    found = precision(EWC(normalize=False), objective, run, X, VALUES)
    expected = torch.as_tensor((X**2).sum(0) / 0.25).expand(2, 4)
    torch.testing.assert_close(found["net.1.weight"], expected)
    torch.testing.assert_close(found["net.1.bias"], torch.full((2,), 12 / 0.25, dtype=torch.float64))


@pytest.mark.turns("src/weft/strategies/continual/*")
def test_two_tasks_in_sequence_are_the_joint_posterior():
    """Orthogonal designs, where the diagonal is exact: mean and precision equal those of all the data."""
    truth = np.array([1.0, -2.0, 0.5])

    def task(seed, n):
        r = np.random.default_rng(seed)
        q, _ = np.linalg.qr(np.column_stack([np.ones(n), r.normal(size=(n, 3))]))
        x = q[:, 1:] * r.uniform(1, 3, size=3) * np.sqrt(n)  # orthogonal columns, orthogonal to the intercept
        return x, x @ truth + 0.3 + r.normal(size=n)

    (x1, y1), (x2, y2) = task(1, 30), task(2, 50)
    learner = Learner(
        Regression("linear"),
        strategy=EWC(strength=1 / 50, normalize=False),  # the loss is a mean over the second task's 50 rows
        optimizer=Optimizer("sgd", lr=0.08),
        steps=4000,
        batch_size=None,
        dtype="float64",
        random_state=0,
    )
    learner.partial_fit(x1, y1, task="first").partial_fit(x2, y2, task="second")
    design = np.column_stack([np.ones(80), np.concatenate([x1, x2])])
    joint = np.linalg.lstsq(design, np.concatenate([y1, y2]), rcond=None)[0]
    run = learner.training_.runs[0][1]
    np.testing.assert_allclose(run.params["net.1.weight"][0], joint[1:], rtol=1e-6)
    np.testing.assert_allclose(run.params["net.1.bias"], joint[:1], rtol=1e-6)
    tasks = run.strategy[""]["tasks"]
    total = sum(t["precision"]["net.1.weight"][0] for t in tasks.values())
    np.testing.assert_allclose(total, np.diag(design.T @ design)[1:])
    # without it, the second task alone
    plain = Learner(Regression("linear"), optimizer=Optimizer("sgd", lr=0.08), steps=4000, batch_size=None)
    plain.set_params(dtype="float64", random_state=0).partial_fit(x1, y1, task="first").partial_fit(
        x2, y2, task="second"
    )
    alone = np.linalg.lstsq(design[30:], y2, rcond=None)[0]
    np.testing.assert_allclose(plain.training_.runs[0][1].params["net.1.weight"][0], alone[1:], rtol=1e-6)
    assert np.abs(alone - joint).max() > 1e-2


@pytest.mark.turns("src/weft/strategies/continual/*")
def test_permuted_digits_are_remembered():
    x, y = load_digits(return_X_y=True)
    a, b, c, d = train_test_split(x / 16, y, random_state=0, stratify=y)
    orders = [np.random.RandomState(t).permutation(64) for t in range(3)]

    def run(strength):
        clf = Classifier(strategy=EWC(strength=strength), epochs=20, random_state=0)
        for t, order in enumerate(orders):
            clf.partial_fit(a[:, order], c, classes=range(10), task=t)
        return [clf.score(b[:, order], d) for order in orders]

    plain, held = run(0.0), run(100.0)
    assert np.mean(held[:2]) > np.mean(plain[:2]) + 0.15, (plain, held)
    assert np.mean(held) > np.mean(plain) + 0.07, (plain, held)
    assert min(held) > 0.75


def test_the_same_task_again_replaces():
    clf = Classifier(strategy=EWC(strength=1.0), epochs=2, random_state=0)
    for task in ("a", "b", "a"):
        clf.partial_fit(X, LABELS, classes=range(3), task=task)
    kept = clf.training_.runs[0][1].strategy[""]["tasks"]
    assert list(kept) == ["b", "a"]
    assert clf.tasks_ == ["b", "a"]


def test_fit_with_a_task_column():
    both = np.concatenate([X, -X])
    labels = np.concatenate([LABELS, LABELS])
    month = np.repeat(["may", "april"], 12)
    one = Classifier(strategy=EWC(strength=1.0), epochs=2, random_state=0).fit(both, labels, task=month)
    two = Classifier(strategy=EWC(strength=1.0), epochs=2, random_state=0)
    two.partial_fit(X, LABELS, classes=range(3), task="may").partial_fit(-X, LABELS, task="april")
    assert one.tasks_ == two.tasks_ == ["may", "april"]
    np.testing.assert_array_equal(one.predict_proba(X), two.predict_proba(X))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"strength": -1.0}, "strength to be a number >= 0"), ({"fisher": "exact"}, "'true', 'sampled', 'emp")],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Classifier(strategy=EWC(**settings)).fit(X, LABELS)
