"""Invariant learning consistency: the closed form, the search against it, and regions that are not convex."""

import numpy as np
import pytest
import torch

from weft import Classifier, Optimizer, Regressor
from weft.measures import consistency, learner_consistency, quadratic_consistency


def positive(seed, environments=3, d=4):
    """Random symmetric matrices with eigenvalues between about .1 and 10."""
    rng = np.random.default_rng(seed)
    turns = np.linalg.qr(rng.normal(size=(environments, d, d)))[0]
    return np.einsum("eij,ej,ekj->eik", turns, 10 ** rng.uniform(-0.5, 0.5, (environments, d)), turns)


def quadratics(H, optimum=0.0, values=0.0):
    H, v = torch.as_tensor(H, dtype=torch.float64), torch.as_tensor(values, dtype=torch.float64)
    return lambda s: torch.einsum("i,eij,j->e", s - optimum, H, s - optimum) / 2 + v


def test_the_papers_closed_form_for_two_diagonals():
    a, b = np.random.default_rng(0).uniform(0.1, 10, (2, 6))
    expected = 0.03 * max(np.maximum(a / b, b / a))
    assert quadratic_consistency([a, b], epsilon=0.03) == pytest.approx(-expected)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]  # a rotation changes nothing
    both = [turn @ np.diag(h) @ turn.T for h in (a, b)]
    assert quadratic_consistency(both, epsilon=0.03) == pytest.approx(-expected)


@pytest.mark.parametrize("seed", range(3))
def test_closed_form_against_points_of_the_ellipsoid(seed):
    H, epsilon = positive(seed, environments=2, d=2), 0.2
    angle = np.linspace(0, np.pi, 20_001)
    ray = np.stack([np.cos(angle), np.sin(angle)], 1)
    own = [np.einsum("ni,ij,nj->n", ray, h, ray) for h in H]
    v = np.array([0.3, 0.1])
    worst = 0.0
    for e in range(2):
        for f in range(2):
            highest = v[f] + epsilon * (own[f] / own[e]).max()  # on the border, where the own loss rose by epsilon
            worst = max(worst, abs(v[f] - v[e]), abs(highest - v[e]))
    assert quadratic_consistency(H, epsilon=epsilon, values=v) == pytest.approx(-worst, rel=1e-6)


def test_flat_directions():
    assert quadratic_consistency([[1.0, 0.0], [1.0, 1.0]], epsilon=0.1) == -np.inf
    assert quadratic_consistency([[1.0, 0.0], [2.0, 0.0]], epsilon=0.1) == pytest.approx(-0.2)
    assert quadratic_consistency([[0.0], [0.0]], epsilon=0.1, values=[0.0, 0.7]) == pytest.approx(-0.7)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_closed_form(seed):
    H, optimum = positive(seed), torch.full((4,), 2.0, dtype=torch.float64)
    values = np.array([0.0, 0.05, 0.02]) * seed
    exact = quadratic_consistency(H, epsilon=0.1, values=values)
    found = consistency(quadratics(H, optimum, values), optimum, epsilon=0.1)
    assert found.value == pytest.approx(exact, rel=1e-3)
    assert found.value >= exact - 1e-9  # what is found is there
    assert found.settled > 0.9
    assert (found.epsilon, found.steps, found.restarts) == (0.1, 200, 2)


def test_one_step_is_not_enough_and_says_so():
    found = consistency(quadratics(positive(0)), torch.zeros(4), epsilon=0.1, steps=3)
    assert found.settled < 0.1
    assert found.value > quadratic_consistency(positive(0), epsilon=0.1) * 0.9


def two_wells(s):
    """The first has optima at 1 and -1 with a barrier of 1 between them, the second only that at 1."""
    return torch.cat([(s**2 - 1) ** 2, 10 * (s - 1) ** 2])


def test_the_region_is_connected():
    # |s^2 - 1| <= sqrt(.5): around 1 the interval ends at sqrt(1 - sqrt(.5)), where the second has 10 (s - 1)^2
    expected = 10 * (np.sqrt(1 - np.sqrt(0.5)) - 1) ** 2
    found = consistency(two_wells, [1.0], epsilon=0.5)
    assert found.value == pytest.approx(-expected, rel=1e-3)
    assert found.pair == (0, 1)
    # with more than the barrier's height the other well belongs to it: up to -sqrt(1 + sqrt(1.2))
    wide = consistency(two_wells, [1.0], epsilon=1.2)
    assert wide.value == pytest.approx(-10 * (np.sqrt(1 + np.sqrt(1.2)) + 1) ** 2, rel=1e-3)


def test_the_mean_over_optima():
    both = consistency(two_wells, [[1.0], [-1.0]], epsilon=0.5)
    ones = [consistency(two_wells, [t], epsilon=0.5, random_state=0).value for t in (1.0, -1.0)]
    assert both.optima == pytest.approx(ones, rel=1e-3)
    assert both.value == pytest.approx(np.mean(ones), rel=1e-3)
    assert ones[1] < 10 * ones[0]  # the optimum that only one environment has


@pytest.mark.turns("src/weft/measures/*")
def test_a_learner_with_replicas():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2)) * np.repeat([[1.0, 1.0], [1.0, 3.0]], 40, 0)
    y, site = X @ [1.0, -1.0], np.repeat(["near", "far"], 40)
    lines = Regressor(
        "linear", optimizer=Optimizer("sgd", lr=0.1), steps=300, batch_size=None, replicas=2, random_state=0
    ).fit(X, y)
    full = np.concatenate([X, np.ones((80, 1))], 1)
    H = [full[name == site].T @ full[name == site] / 40 for name in ("near", "far")]
    exact = quadratic_consistency(H, epsilon=0.05)
    found = learner_consistency(lines, X, y, environment=site, epsilon=0.05)
    assert len(found.optima) == 2
    np.testing.assert_allclose(found.optima, exact, rtol=2e-3)
    assert found.pair == ("near", "far")


def test_a_net_at_least_as_much_as_random_rays_find():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y, site = (X[:, 0] * X[:, 1] > 0).astype(int), np.arange(60) % 3
    X[site == 2, 1] *= 3
    net = Classifier(hidden=(6,), steps=300, random_state=0, dtype="float64").fit(X, y)
    epsilon = 0.05
    found = learner_consistency(net, X, y, environment=site, epsilon=epsilon, steps=60, restarts=1)
    params = {name: p.detach() for name, p in net.training_.runs[0][1].params.items()}

    def risks(values):
        h = torch.relu(torch.from_numpy(X) @ values["net.features.1.weight"].T + values["net.features.1.bias"])
        logits = h @ values["net.head.weight"].T + values["net.head.bias"]
        losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="none")
        return torch.stack([losses[site == e].mean() for e in range(3)])

    start, worst = risks(params), 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        ray = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in params.items()}
        for e in range(3):
            for length in np.arange(0.02, 3, 0.02):
                now = risks({name: p + length * ray[name] for name, p in params.items()})
                if abs(now[e] - start[e]) > epsilon:
                    break
                worst = max(worst, float((now - start[e]).abs().max()))
    assert worst > epsilon
    assert -found.value >= worst
    assert len(found.optima) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quadratic_consistency([[1.0, -1.0]], epsilon=0.1), "expected a minimum, got an eigenvalue of -1"),
        (lambda: quadratic_consistency([1.0], epsilon=0.1), "expected hessians of shape"),
        (lambda: quadratic_consistency([[[1.0, 2.0], [0.0, 1.0]]], epsilon=0.1), "expected finite symmetric"),
        (lambda: quadratic_consistency([[1.0]], epsilon=0.1, values=[0, 1]), "expected one value for each"),
        (lambda: quadratic_consistency([[1.0]], epsilon=0), "expected epsilon to be a positive number, got 0"),
        (lambda: consistency(two_wells, [1.0], epsilon=-1.0), "expected epsilon to be a positive number"),
        (lambda: consistency(two_wells, [1.0], epsilon=0.1, steps=0), "expected steps to be an integer >= 1, got 0"),
        (lambda: consistency(two_wells, 1.0, epsilon=0.1), "expected optima of shape"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
