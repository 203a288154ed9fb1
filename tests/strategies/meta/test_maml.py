import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner
from weft.core.random import key_of
from weft.core.source import Field, number_rows
from weft.data import sinusoids
from weft.engine.build import build, initialize
from weft.engine.gradients.gradient import gradient
from weft.engine.gradients.loss import Place
from weft.engine.gradients.route import look
from weft.engine.vectorize import Mapper
from weft.objectives import Classification, Regression
from weft.sources import Arrays, Episodes
from weft.strategies import MAML

SPEC = {"x": Field((4,), torch.float64), "y": Field((1,), torch.float64)}


def episodes(tasks=3, shots=5):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(tasks, 2 * shots, 4, generator=g, dtype=torch.float64)
    y = x.sum(-1, keepdim=True) * torch.randn(tasks, 1, 1, generator=g, dtype=torch.float64)
    return {
        "support": number_rows({"x": x[:, :shots], "y": y[:, :shots]}, 2),
        "query": number_rows({"x": x[:, shots:], "y": y[:, shots:]}, 2),
    }


class Attention(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.inputs = nn.Linear(1, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, outputs)

    def forward(self, x):
        h = self.inputs(x[..., None])
        return self.head(self.attention(h, h, h, need_weights=False)[0].mean(1))


def meta(net, strategy):
    built = build(Regression(net), SPEC, 0, torch.float64)
    params, buffers = initialize(built, 0, "reset")
    built.train()

    def run(p):
        at, batch = Place(p, {}, buffers, key_of(0)), episodes()
        route = look(built, "", at, batch, strategy, grouped=True)
        return gradient(route, Mapper(), at, batch, strategy, {})

    return params, run


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)),
    "attention": Attention,
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_meta_gradient_is_the_finite_difference(name, inner_steps):
    params, run = meta(NETS[name](), MAML(inner_lr=0.05, inner_steps=inner_steps))
    gradient, *_ = run(params)
    rng = np.random.default_rng(0)
    for which, p in params.items():
        flat = int(rng.integers(p.numel()))
        step = torch.zeros(p.numel(), dtype=p.dtype)
        step[flat] = 1e-5
        up, down = (run({**params, which: p + s * step.reshape(p.shape)})[1] for s in (1, -1))
        slope = (up - down) / 2e-5
        torch.testing.assert_close(gradient[which].flatten()[flat], slope, rtol=1e-5, atol=1e-7)


def test_first_order_leaves_second_derivatives_out():
    """FOMAML is the query's gradient at the adapted parameters."""
    strategy = MAML(inner_lr=0.05, inner_steps=2, first_order=True)
    params, run = meta(NETS["mlp"](), strategy)
    gradient, *_ = run(params)
    full, *_ = meta(NETS["mlp"](), MAML(inner_lr=0.05, inner_steps=2))[1](params)
    batch = episodes()

    def loss(p, x, y):
        h = torch.tanh(x @ p["net.0.weight"].T + p["net.0.bias"])
        return ((h @ p["net.2.weight"].T + p["net.2.bias"] - y).square() / 2).mean()

    total = {n: torch.zeros_like(p) for n, p in params.items()}
    for t in range(3):
        p = {n: v.clone() for n, v in params.items()}
        for _ in range(2):
            p = {n: v.detach().requires_grad_() for n, v in p.items()}
            found = torch.autograd.grad(loss(p, batch["support"]["x"][t], batch["support"]["y"][t]), list(p.values()))
            p = {n: (v - 0.05 * g).detach() for (n, v), g in zip(p.items(), found, strict=True)}
        p = {n: v.requires_grad_() for n, v in p.items()}
        found = torch.autograd.grad(loss(p, batch["query"]["x"][t], batch["query"]["y"][t]), list(p.values()))
        for n, g in zip(p, found, strict=True):
            total[n] += g / 3
    for n in params:
        torch.testing.assert_close(gradient[n], total[n])
    assert not torch.allclose(gradient["net.0.weight"], full["net.0.weight"])


def one_step_errors(few, tasks=100, shots=10):
    batch = sinusoids(key_of(torch.arange(10**6, 10**6 + tasks)), shots + 20)
    before, after = [], []
    for x, y in zip(batch["x"], batch["y"], strict=True):
        adapted = few.adapt(x[:shots], y[:shots])
        truth = y[shots:].numpy()
        before.append(((few.predict(x[shots:]) - truth) ** 2).mean())
        after.append(((adapted.predict(x[shots:]) - truth) ** 2).mean())
    return np.mean(before), np.mean(after)


@pytest.mark.turns("src/weft/strategies/meta/*")
def test_sinusoids_are_learned_in_one_step():
    few = Learner(Regression(hidden=(40, 40)), strategy=MAML(inner_lr=0.01), steps=1500, random_state=0)
    few.fit(Episodes(sinusoids, tasks=25, shots=10))
    before, after = one_step_errors(few)
    assert after < 0.6 * before, (before, after)
    assert after < 1.8, "the paper's long training reaches about 0.8; an untrained net has about 4"
    # plain pretraining on all tasks does not adapt in one step
    pooled = Learner(Regression(hidden=(40, 40)), strategy=MAML(inner_steps=0), steps=1500, random_state=0)
    pooled.fit(Episodes(sinusoids, tasks=25, shots=10))
    pooled.strategy = MAML(inner_lr=0.01)
    pooled.training_.runs[0][0].strategy = pooled.strategy
    _, pretrained = one_step_errors(pooled)
    assert after < 0.6 * pretrained, (after, pretrained)


@pytest.mark.parametrize("name", ["batch norm", "attention"])
def test_batch_norm_and_attention_train_and_adapt(name):
    net = {
        "batch norm": lambda: nn.Sequential(nn.Linear(1, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 1)),
        "attention": Attention,
    }[name]
    few = Learner(Regression(net), strategy=MAML(inner_lr=0.01), steps=150, random_state=0, replicas=2)
    few.fit(Episodes(sinusoids, tasks=10, shots=10))
    losses = few.history_["loss"].mean(1)
    assert losses[-10:].mean() < losses[:5].mean()
    assert few.adapt([[0.0]] * 3, [[1.0]] * 3).predict([[0.5]]).shape == (1, 1)


def test_episodes_out_of_arrays():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    subject = np.repeat(np.arange(8), 50)
    slopes = rng.normal(size=(8, 3))
    y = ((X * slopes[subject]).sum(1) > 0).astype(int)
    few = Learner(Classification(hidden=(16,)), strategy=MAML(inner_lr=0.5, inner_steps=3), steps=200, random_state=0)
    few.fit(Episodes((X, y, subject), tasks=8, shots=10, classes=2))
    gain = []
    for s in range(8):
        rows = np.flatnonzero(subject == s)
        adapted = few.adapt(X[rows[:25]], y[rows[:25]])
        truth = y[rows[25:]]
        gain.append((adapted.predict(X[rows[25:]]) == truth).mean() - (few.predict(X[rows[25:]]) == truth).mean())
    assert np.mean(gain) > 0.1


def test_arrays_are_not_episodes():
    with pytest.raises(ValueError, match=r"learns from episodes.*Episodes"):
        Learner(Regression(), strategy=MAML()).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match="learns from episodes"):
        Learner(Regression(), strategy=MAML()).fit(Arrays(torch.zeros(4, 1), torch.zeros(4, 1)))
    with pytest.raises(ValueError, match=r"gives episodes.*use MAML"):
        Learner(Regression()).fit(Episodes(sinusoids))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"inner_lr": -1.0}, "inner_lr to be a number >= 0"), ({"inner_steps": -1}, "integer >= 0")],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(Regression(), strategy=MAML(**settings)).fit(Episodes(sinusoids))
