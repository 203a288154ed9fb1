"""SemiSupervisedVAE: its loss by hand with and without labels, labels that are -1, what rows without are for."""

import contextlib
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.pipeline import make_pipeline

from weft import Classifier, Learner, Optimizer
from weft.core.random import key_of, keyed, place
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import MADE, VAE, Classification, Heads, SemiSupervisedVAE
from weft.testing import every_row

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
WHICH = rng.integers(0, 3, 400)
X = rng.normal(size=(400, 2)) * 0.4 + np.array([[0.0, 2.0], [2.0, 0.0], [-2.0, -1.0]])[WHICH]
FEW = np.where(np.arange(400) < 30, WHICH, -1)
KEEP = np.arange(400) >= 30


def made(**options):
    """Built in double precision, with parameters that are drawn."""
    spec = {"x": Field((2,), torch.float64), "y": Field((), torch.int64, classes=3)}
    model = build(SemiSupervisedVAE(2, hidden=(8,), noise=0.5, **options), spec, 0, torch.float64).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def losses(model, y, c=None):
    """Of the first rows; of a model of one class at a time, with the draws that one of several makes for class c."""
    within = contextlib.nullcontext() if c is None else place("class", c)
    with torch.no_grad(), keyed(key_of(0), torch.arange(len(y))), within:
        return model({"x": torch.as_tensor(X[: len(y)]), "y": torch.as_tensor(y)}).losses


def by_hand(model, rows, c):
    """-log p(x | y, z), the divergence, and q(y | x), with torch's own distributions, of one class for all rows."""
    y = np.full(rows, c)
    x, hot = torch.as_tensor(X[:rows]), torch.eye(3, dtype=torch.float64)[y]
    with torch.no_grad(), keyed(key_of(0), torch.arange(rows)), place("class", c):
        mean, log_scale = model.recognition.net(torch.cat([x, hot], -1)).chunk(2, -1)
        q = torch.distributions.Normal(mean, log_scale.exp())
        z = model.guess(x, None, torch.as_tensor(y)).draw(1, "z")[:, 0]
        given = torch.distributions.Normal(model.generator(torch.cat([z, hot], -1)), 0.5)
        rate = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0 * mean, 1.0)).sum(-1)
        classes = torch.distributions.Categorical(logits=model.told(x))
    return -given.log_prob(x).sum(-1), rate, classes


def test_rows_with_labels_by_hand():
    """A conditional VAE's bound, the class's share, and alpha times the cross-entropy."""
    model, y = made(alpha=3.0), WHICH[:7]
    for c in range(3):
        distortion, rate, classes = by_hand(model, 7, c)
        expected = distortion + rate + math.log(3) - 3 * classes.log_prob(torch.tensor(c))
        torch.testing.assert_close(losses(model, y)[y == c], expected[y == c])
    plain = VAE(2, hidden=(8,), noise=0.5, conditional=True)  # an independent way to the same bound
    spec = {"x": Field((2,), torch.float64), "y": Field((), torch.int64, classes=3)}
    plain = build(plain, spec, 0, torch.float64).double().eval()
    held = {name: p for name, p in model.state_dict().items() if not name.startswith("told")}
    plain.load_state_dict(held)
    model.alpha = 0.0
    for c in range(3):
        torch.testing.assert_close(losses(model, y)[y == c], losses(plain, y, c)[y == c] + math.log(3))


def test_rows_without_labels_by_hand():
    model = made()
    every = [by_hand(model, 7, c) for c in range(3)]
    bounds = torch.stack([-distortion - rate - math.log(3) for distortion, rate, _ in every], -1)
    classes = every[0][2]
    expected = -((classes.probs * bounds).sum(-1) + classes.entropy())
    torch.testing.assert_close(losses(model, np.full(7, -1)), expected)
    mixed = losses(model, np.array([WHICH[0], -1, WHICH[2], -1, -1, -1, -1]))
    torch.testing.assert_close(mixed[[1, 3, 4, 5, 6]], expected[[1, 3, 4, 5, 6]])
    torch.testing.assert_close(mixed[0], losses(model, WHICH[:1])[0])
    without = -(classes.probs * bounds).sum(-1)  # the mutant that forgets the entropy
    assert ((without - expected).abs() > 1e-3).all()


def test_the_bound_is_tight_at_the_posterior_of_the_class():
    """U(x) = log sum_y exp L(x, y) where q(y | x) is in proportion to exp L; below it elsewhere."""
    model = made()
    bounds = torch.randn(50, 3, dtype=torch.float64) * 3
    best = model._summed(bounds, bounds.log_softmax(-1))
    torch.testing.assert_close(best, bounds.logsumexp(-1))
    assert (model._summed(bounds, torch.randn(50, 3).double().log_softmax(-1)) < best).all()


def test_bits_sum_to_one_over_classes_and_codes():
    bits = ((rng.random((200, 1)) < 0.5) ^ (rng.random((200, 3)) < 0.2)).astype(float)
    y = np.where(np.arange(200) < 50, bits[:, 0].astype(int), -1)
    model = SemiSupervisedVAE(1, hidden=(8,), law="bernoulli")
    learner = Learner(model, steps=100, optimizer=FAST, dtype="float64", random_state=0).fit(bits, y)
    rows = every_row([2] * 3).astype(float)
    share = np.exp(np.asarray(learner.log_prob(rows, draws=1000)))
    assert share.sum() == pytest.approx(1, abs=0.02)
    by_class = [np.exp(np.asarray(learner.log_prob(rows, y=np.full(8, c), draws=1000))) for c in (0, 1)]
    assert [own.sum() for own in by_class] == pytest.approx([1, 1], abs=0.03)
    assert np.mean(by_class, 0) == pytest.approx(share, abs=0.01)
    seen = np.bincount((learner.sample(4000, random_state=0) @ [4, 2, 1]).astype(int), minlength=8)
    assert stats.chisquare(seen, 4000 * share / share.sum()).pvalue > 1e-4
    elbo, tight = np.asarray(learner.elbo(bits)), np.asarray(learner.log_prob(bits, draws=500))
    assert elbo.mean() < tight.mean()


def test_rows_without_labels_help():
    """Three labels of each class, which is long along the one axis: the other rows tell where classes end."""
    gains = []
    for seed in range(3):
        own = np.random.default_rng(seed)
        which = own.integers(0, 2, 300)
        points = own.normal(size=(300, 2)) * [3.0, 0.4] + np.where(which[:, None] > 0, [0.0, 1.5], [0.0, -1.5])
        y = np.full(300, -1)
        for c in (0, 1):
            y[np.flatnonzero(which == c)[:3]] = c
        few, told = y >= 0, {"optimizer": FAST, "random_state": 0}
        learner = Learner(SemiSupervisedVAE(1, hidden=(16,), noise="shared"), steps=200, batch_size=100, **told)
        alone = Learner(Classification(hidden=(16,)), steps=100, **told).fit(points[few], which[few])
        scores = [one.score(points[~few], which[~few]) for one in (learner.fit(points, y), alone)]
        gains.append(scores[0] - scores[1])
    assert min(gains) > -0.01
    assert np.mean(gains) > 0.05


def test_labels_of_any_kind_and_metrics():
    names = np.array(["ape", "bee", "cat"], dtype=object)[WHICH]
    names[30:] = -1
    model = SemiSupervisedVAE(1, hidden=(16,), noise="shared")
    learner = Learner(
        model, steps=60, optimizer=FAST, validation=(X[:30], names[:30]), metrics=["accuracy"], random_state=0
    ).fit(X, names)
    assert learner.classes_.tolist() == ["ape", "bee", "cat"]
    assert set(learner.predict(X)) <= {"ape", "bee", "cat"}
    assert learner.predict_proba(X).shape == (400, 3)
    floats = Learner(model, steps=5, random_state=0).fit(X, FEW.astype(float))
    assert floats.classes_.tolist() == [0, 1, 2]
    held = Learner(model, steps=20, validation=0.2, metrics=["accuracy"], random_state=0).fit(X, FEW)
    assert 0 <= held.history_[-1]["valid_accuracy"] <= 1
    assert learner.transform(X[:4], y=["ape", "bee", "cat", "ape"]).shape == (4, 1)
    assert learner.elbo(X[:4], y=["ape", "bee", "cat", "ape"]).shape == (4,)


def test_a_decoder_may_be_autoregressive_and_replicas_agree():
    bits = (X > 0).astype(float)
    model = SemiSupervisedVAE(1, hidden=(8,), decoder=MADE((8,), law="bernoulli"))
    learner = Learner(model, steps=10, replicas=2, random_state=0).fit(bits, FEW)
    assert learner.predict_proba(bits).sum(1) == pytest.approx(np.ones(400), abs=1e-5)


def test_codes_of_a_vae_then_a_classifier():
    """M1 is a pipeline; with few labels, the VAE learns from all rows first."""
    vae = Learner(VAE(2, hidden=(16,), noise=0.5), steps=200, optimizer=FAST, random_state=0)
    first = make_pipeline(vae, Classifier(hidden=(16,), epochs=20, random_state=0)).fit(X, WHICH)
    assert first.score(X, WHICH) > 0.9
    vae.fit(X)
    head = Classifier(hidden=(16,), epochs=100, random_state=0).fit(vae.transform(X[~KEEP]), WHICH[~KEEP])
    assert head.score(vae.transform(X[KEEP]), WHICH[KEEP]) > 0.9


def test_wrong_labels_are_refused():
    model = SemiSupervisedVAE(1, hidden=(4,))
    learner = Learner(model, steps=2, random_state=0).fit(X, FEW)
    refused = {
        "some rows with a label": lambda: Learner(model, steps=1).fit(X, np.full(400, -1)),
        "at least two classes": lambda: Learner(model, steps=1).fit(X, np.where(FEW == 0, 0, -1)),
        "the text '-1'": lambda: Learner(model, steps=1).fit(X, FEW.astype(str)),
        "without -1, which is": lambda: Learner(model).partial_fit(X, FEW, classes=[-1, 0, 1, 2]),
        "requires y": lambda: Learner(model, steps=1).fit(X),
        "got -1, which is none": lambda: learner.log_prob(X, y=FEW),
        "leave y out": lambda: learner.score(X, FEW),
        "expected a class y": lambda: learner.transform(X),
        "refine=0": lambda: learner.elbo(X, refine=3),
        "draws": lambda: learner.elbo(X, draws=0),
        "alpha": lambda: Learner(SemiSupervisedVAE(alpha=-1.0), steps=1).fit(X, FEW),
    }
    for told, wrong in refused.items():
        with pytest.raises((ValueError, TypeError), match=told):
            wrong()
    plain = Learner(Classification(hidden=(4,)), steps=1).fit(X, FEW)
    assert plain.classes_.tolist() == [-1, 0, 1, 2]  # to others -1 is a label as any


def test_as_a_part_it_is_refused():
    """A composer would read -1 as one more class."""
    y = np.where(np.arange(60) < 20, np.arange(60) % 2, -1)
    parts = {"label": SemiSupervisedVAE(1, hidden=(4,), noise=0.5), "other": VAE(1, hidden=(4,), noise=0.5)}
    rows = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(ValueError, match="-1 would be taken for a class"):
        Learner(Heads(parts), steps=1).fit(rows, label_y=y)
