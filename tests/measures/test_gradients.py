"""Gradients of environments against closed forms for a line, and a loop of backward passes for a net."""

import numpy as np
import pytest
import torch

from weft import Classifier, Learner, Optimizer, Regressor
from weft.measures import environment_gradients, feature_signal, sign_agreement
from weft.nets import MLP
from weft.objectives import GAN
from weft.strategies import ANDMask

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)) * [1.0, 5.0, 0.2]
Y = RANDOM.normal(size=60)
SITE = np.repeat(["u", "v", "w"], [10, 20, 30])


@pytest.fixture(scope="module")
def line():
    return Regressor("linear", optimizer=Optimizer("sgd", lr=0.01), steps=3, random_state=0, dtype="float64").fit(X, Y)


def parts(line):
    w, b = (p.detach().numpy() for p in line.training_.runs[0][1].params.values())
    return w[0], b, X @ w[0] + b - Y


def test_gradients_of_a_line(line):
    _, _, error = parts(line)
    g = environment_gradients(line, X, Y, environment=SITE)
    for e, name in enumerate("uvw"):
        at = name == SITE
        np.testing.assert_allclose(g["net.1.weight"][e, 0], error[at] @ X[at] / at.sum(), rtol=1e-10)
        np.testing.assert_allclose(g["net.1.bias"][e, 0], error[at].mean(), rtol=1e-10)


def test_gradients_of_a_net_with_dropout_and_batch_statistics():
    def factory(inputs, outputs):
        return MLP(inputs, outputs, hidden=(7, 5), dropout=0.5, batch_norm=True)

    label = (Y > 0).astype(int)
    net = Classifier(factory, steps=5, random_state=1).fit(X, label)
    g = environment_gradients(net, X, label, environment=SITE)
    state = net.training_.runs[0][1]
    module = MLP(3, 2, hidden=(7, 5), dropout=0.5, batch_norm=True)
    held = {**state.params, **state.buffers}
    module.load_state_dict({n.removeprefix("net."): t.detach() for n, t in held.items()})
    module = module.double().eval()
    for e, name in enumerate("uvw"):
        at = torch.from_numpy(name == SITE)
        module.zero_grad()
        logits = module(torch.from_numpy(X).float().double()[at])
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(label)[at]).backward()
        for n, p in module.named_parameters():
            torch.testing.assert_close(g[f"net.{n}"][e], p.grad, rtol=1e-6, atol=1e-9)
    assert net.objective_.training == Classifier(factory, steps=1).fit(X, label).objective_.training


def test_agreement_counts_signs():
    g = torch.tensor([[1.0, 2.0, -1.0, 0.0], [3.0, -1.0, -2.0, 1.0], [1.0, 1.0, -1.0, 1.0], [5.0, 1.0, -1.0, 1.0]])
    # sums of signs: 4, 2, -4, 3
    for threshold, share in ((0.0, 1.0), (0.5, 1.0), (0.6, 0.75), (0.75, 0.75), (0.8, 0.5), (1.0, 0.5)):
        assert sign_agreement(g, threshold=threshold).share == share
    both = sign_agreement({"a": g, "b": g[:, :1]})
    assert both.tensors == {"a": 0.5, "b": 1.0}
    assert both.share == 3 / 5
    assert both.environments == 4


@pytest.mark.parametrize("d", [2, 3, 5, 8])
def test_agreement_of_random_gradients(d):
    n = 200_000
    g = torch.randn(d, n, generator=torch.Generator().manual_seed(d))
    expected = 2.0 ** (1 - d)
    assert sign_agreement(g).share == pytest.approx(expected, abs=4 * (expected / n) ** 0.5)


def test_agreement_is_what_the_mask_keeps():
    g = {"w": torch.randn(6, 50, generator=torch.Generator().manual_seed(0))}
    for threshold in (0.0, 0.3, 0.7, 1.0):
        mask = ANDMask(threshold=threshold, rescale=False)
        kept = mask.combine(g, torch.zeros(6), torch.full((6,), 1 / 6), {})[0]["w"] != 0
        assert sign_agreement(g, threshold=threshold).share == pytest.approx(float(kept.double().mean()))


def test_signal_of_a_line(line):
    w, _, error = parts(line)
    G = error @ X / 60
    signal = feature_signal(line, X, Y, features=[0, 2])
    assert signal.share == pytest.approx((G[[0, 2]] ** 2).sum() / (G**2).sum())
    assert signal.norm == pytest.approx(np.linalg.norm(G[[0, 2]]))
    assert signal.rest == pytest.approx(abs(G[1]))
    # what a line reads now is what its weights are, whatever the rows
    assert feature_signal(line, X, Y, features=[1], of="inputs").share == pytest.approx(w[1] ** 2 / (w**2).sum())
    shares = [feature_signal(line, X, Y, features=[j]).share for j in range(3)]
    assert sum(shares) == pytest.approx(1.0)


def test_signal_of_environments_and_of_a_mask(line):
    _, _, error = parts(line)
    g = np.stack([error[name == SITE] @ X[name == SITE] / (name == SITE).sum() for name in "uvw"])
    mean = g.mean(0)
    found = feature_signal(line, X, Y, features=[1], environment=SITE)
    assert found.share == pytest.approx(mean[1] ** 2 / (mean**2).sum())
    # rows of which feature 0 means the same everywhere, and the others do not
    z = RANDOM.normal(size=60) + np.where(np.arange(60) % 2, 1, -1) * 2
    sign = np.sign(z)
    flips = {"u": 1, "v": -1, "w": 1}
    flip = np.array([flips[s] for s in SITE])
    rows = np.stack([sign * 0.1, sign * flip * 3, -sign * flip * 3], 1)
    fresh = Regressor("linear", optimizer=Optimizer("sgd", lr=1e-9), steps=1, random_state=3).fit(rows, sign * 10)
    plain = feature_signal(fresh, rows, sign * 10, features=[0], environment=SITE)
    masked = feature_signal(fresh, rows, sign * 10, features=[0], environment=SITE, strategy=ANDMask(threshold=1.0))
    assert plain.share < 0.02
    assert masked.share == 1.0
    assert masked.rest == 0.0


def test_nothing_to_learn_has_no_share():
    rows = torch.zeros(4, 2)
    line = Regressor("linear", steps=1, random_state=0).fit(rows, torch.zeros(4))
    assert np.isnan(feature_signal(line, rows, torch.zeros(4), features=[0]).share)


def test_bad_input(line):
    for threshold in (-0.1, 1.5):
        with pytest.raises(ValueError, match=r"expected threshold in \[0, 1\]"):
            sign_agreement(torch.ones(2, 2), threshold=threshold)
    with pytest.raises(ValueError, match="environments on the leading axis"):
        sign_agreement({"a": torch.ones(2, 2), "b": torch.ones(3, 2)})
    for features in ([3], [-1], []):
        with pytest.raises(ValueError, match=r"expected features to be numbers in 0\.\.2"):
            feature_signal(line, X, Y, features=features)
    with pytest.raises(ValueError, match="expected of to be 'weights' or 'inputs'"):
        feature_signal(line, X, Y, features=[0], of="outputs")
    with pytest.raises(ValueError, match="expected neither environment nor strategy"):
        feature_signal(line, X, Y, features=[0], of="inputs", environment=SITE)
    both = Regressor("linear", steps=1, replicas=2).fit(X, Y)
    with pytest.raises(ValueError, match=r"measure one: learner.replica\(0\)"):
        environment_gradients(both, X, Y, environment=SITE)
    assert environment_gradients(both.replica(1), X, Y, environment=SITE)["net.1.bias"].shape == (3, 1)
    gan = Learner(GAN(), steps=1).fit(X)
    with pytest.raises(ValueError, match="a game of players"):
        environment_gradients(gan, X, environment=SITE)
    images = torch.zeros(4, 1, 4, 4)
    net = Regressor(steps=1).fit(images, torch.zeros(4))
    with pytest.raises(ValueError, match="flatten them"):
        feature_signal(net, images, torch.zeros(4), features=[0])
    other = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 3)), torch.nn.Conv1d(1, 1, 3), torch.nn.Flatten())
    net = Regressor(other, steps=1).fit(X, Y)
    with pytest.raises(ValueError, match="expected a net whose first layer is linear in the 3 features"):
        feature_signal(net, X, Y, features=[0])
    assert 0 < feature_signal(net, X, Y, features=[0], of="inputs").share < 1


def test_agreement_has_no_ties_by_rounding():
    """Three of five signs at threshold .6: 0.6 * 5 is a little more than 3 in floating point."""
    g = torch.tensor([[1.0], [1.0], [1.0], [1.0], [-1.0]])
    assert sign_agreement(g, threshold=0.6).share == 1.0
    assert sign_agreement(g, threshold=0.61).share == 0.0
