import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.func import vmap

from weft import Learner
from weft.core.objective import Objective, Output
from weft.core.random import key_of, keyed
from weft.engine.ambient import refuse_hidden_randomness
from weft.engine.serving import serving


def run(module, x, rows, seed=0):
    with keyed(key_of(seed), rows), serving(module, module, (x,), rows, ""):
        return module(x)


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x) + 0.1 * torch.rand(x.shape) + torch.normal(x * 0, 1.0)


class Sampled(nn.Module):
    def forward(self, x):
        return F.gumbel_softmax(x, tau=0.7) + torch.bernoulli(torch.full_like(x, 0.3)) + torch.empty_like(x).normal_()


STOCHASTIC = {
    "dropout": lambda: nn.Dropout(0.4),
    "dropout1d": lambda: nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Dropout1d(0.4), nn.Flatten()),
    "dropout2d": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Dropout2d(0.4), nn.Flatten()),
    "alpha": lambda: nn.AlphaDropout(0.3),
    "noise": Noisy,
    "sampled": Sampled,
    "transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True), nn.Flatten()
    ),
}


@pytest.mark.parametrize("name", STOCHASTIC)
def test_a_chunk_draws_what_the_whole_draws(name):
    torch.manual_seed(0)
    module = STOCHASTIC[name]()
    x, rows = torch.randn(6, 8), torch.arange(6)
    whole = run(module, x, rows)
    parts = torch.cat([run(module, x[:2], rows[:2]), run(module, x[2:], rows[2:])])
    torch.testing.assert_close(whole, parts)
    assert torch.equal(whole, run(module, x, rows)), "the same key draws the same"
    assert not torch.allclose(whole, run(module, x, rows, seed=1)), "another seed draws otherwise"


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_same_under_vmap(name):
    torch.manual_seed(0)
    module = STOCHASTIC[name]()
    x, rows = torch.randn(6, 8), torch.arange(6)
    whole = run(module, x, rows)
    groups = vmap(lambda a, r: run(module, a, r))(x.reshape(3, 2, 8), rows.reshape(3, 2))
    torch.testing.assert_close(whole, groups.reshape(6, 8))


def test_dropout_keeps_the_mean_and_the_share():
    x, rows = torch.ones(2000, 50), torch.arange(2000)
    y = run(nn.Dropout(0.3), x, rows)
    kept = (y != 0).double().mean()
    assert stats.binomtest(int((y != 0).sum()), y.numel(), 0.7).pvalue > 1e-3
    torch.testing.assert_close(y.max(), torch.tensor(1 / 0.7))
    assert abs(float(y.mean()) - 1) < 0.02, kept


def test_alpha_dropout_keeps_mean_and_variance():
    x = torch.randn(4000, 50, generator=torch.Generator().manual_seed(0))
    y = run(nn.AlphaDropout(0.2), x, torch.arange(4000))
    assert abs(float(y.mean())) < 0.02
    assert abs(float(y.var()) - 1) < 0.02


def test_evaluation_mode_draws_nothing():
    x, rows, module = torch.randn(4, 8), torch.arange(4), nn.Dropout(0.5)
    assert torch.equal(run(module.eval(), x, rows), x)
    assert not torch.equal(run(module.train(), x, rows), x)
    assert torch.equal(run(module.eval(), x, rows), x)


def test_attention_dropout_has_the_expected_value_of_none():
    torch.manual_seed(0)
    q, k, v = (torch.randn(4000, 1, 3, 4)[:1].expand(4000, 1, 3, 4) for _ in range(3))

    class Attention(nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, k[: len(q)], v[: len(q)], dropout_p=0.2, is_causal=True)

    k, v = k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)
    y = run(Attention(), q, torch.arange(4000))
    k, v = k[:4000], v[:4000]
    torch.testing.assert_close(
        y.mean(0), F.scaled_dot_product_attention(q, k, v, is_causal=True)[0], atol=0.05, rtol=0.05
    )


def test_randomness_inside_a_kernel_is_refused():
    with pytest.raises(ValueError, match=r"LSTM with dropout=0.5.*set dropout=0"):
        refuse_hidden_randomness(nn.Sequential(nn.LSTM(3, 4, num_layers=2, dropout=0.5)))


class Drawn(nn.Module):
    """What a function of the rows draws."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return self.draw(x)


def test_randomness_that_cannot_be_keyed_is_refused():
    x, rows = torch.rand(2, 3), torch.arange(2)
    for draw, name in (
        (lambda x: torch.multinomial(x, 1), "multinomial"),
        (lambda x: torch.empty_like(x).cauchy_(), "cauchy_"),
        (lambda x: torch.empty_like(x).random_(3), "random_"),
        (lambda x: torch.randint_like(x, 3), "randint_like"),
        (lambda x: torch.distributions.Gamma(x, 1.0).sample(), "_standard_gamma"),
        (lambda x: F.feature_alpha_dropout(x, training=True), "feature_alpha_dropout"),
        (lambda x: F.rrelu(x, training=True), "rrelu"),
    ):
        with pytest.raises(NotImplementedError, match=rf"{name}.*weft\.core\.random"):
            run(Drawn(draw), x, rows)


def test_every_spelling_of_randint_and_randperm():
    x, rows = torch.randn(6, 3), torch.arange(6)
    for draw in (
        lambda x: torch.randint(5, (len(x), 40)),
        lambda x: torch.randint(5, size=(len(x), 40)),
        lambda x: torch.randint(0, 5, (len(x), 40)),
        lambda x: torch.randint(0, 5, size=(len(x), 40)),
        lambda x: torch.randint(low=0, high=5, size=(len(x), 40)),
        lambda x: torch.randint(high=5, size=(len(x), 40)),
    ):
        whole = run(Drawn(draw), x, rows)
        assert whole.dtype == torch.int64
        assert set(whole.unique().tolist()) == {0, 1, 2, 3, 4}
        assert torch.equal(whole[4:], run(Drawn(draw), x[4:], rows[4:]))
    for draw in (
        lambda x: torch.randint(3, 5, (len(x), 40)),
        lambda x: torch.randint(low=3, high=5, size=(len(x), 40)),
    ):
        assert set(run(Drawn(draw), x, rows).unique().tolist()) == {3, 4}
    order = run(Drawn(lambda x: torch.randperm(9)), x, rows)
    assert sorted(order.tolist()) == list(range(9))
    assert torch.equal(order, run(Drawn(lambda x: torch.randperm(9)), x[:1], rows[:1])), "shared by all rows"
    with pytest.raises(ValueError, match=r"randperm over the rows.*mixes examples"):
        run(Drawn(lambda x: x[torch.randperm(len(x))]), x, rows)


class DropConnect(nn.Module):
    """As many outputs as there are rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 8))

    def forward(self, x):
        return x @ F.dropout(self.weight, 0.5).T


class TimeFirst(nn.Module):
    """As many times as there are rows."""

    def forward(self, x):
        y = x[:, :, None].expand(-1, -1, 4).transpose(0, 1)[:6]  # (time, row, feature)
        return F.dropout(y, 0.5).transpose(0, 1)


class Flat(nn.Module):
    """Rows times positions."""

    def forward(self, x):
        return F.dropout(x.reshape(-1, 2), 0.5).reshape(len(x), -1)


class Chains(nn.Module):
    """Twice as many chains as there are rows: they are nobody's."""

    def forward(self, x):
        return x + torch.randn(12, 8).cumsum(0)[-1]


class Skipping(nn.Module):
    """Goes one of two ways for all rows, and draws in either."""

    def forward(self, x):
        return x + torch.randn_like(x) if torch.rand(()) < 0.5 else x - torch.randn_like(x)


@pytest.mark.parametrize("make", [DropConnect, TimeFirst, Flat, Chains, Skipping])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_not_guessed_from_shapes(make, size):
    torch.manual_seed(0)
    x, rows, module = torch.randn(6, 8), torch.arange(6), make()
    whole = run(module, x, rows)
    apart = [run(make(), x[i : i + size], rows[i : i + size]) for i in range(0, 6, size)]
    torch.testing.assert_close(whole, torch.cat(apart))
    groups = vmap(lambda a, r: run(make(), a, r))(x.reshape(-1, size, 8), rows.reshape(-1, size))
    torch.testing.assert_close(whole, groups.flatten(0, 1))


def test_what_cannot_be_told_apart_is_refused():
    x, rows = torch.randn(6, 8), torch.arange(6)
    with pytest.raises(ValueError, match=r"rows along one axis.*\(6, 6\) for 6 rows and \(12, 12\)"):
        run(Drawn(lambda x: torch.rand(len(x), len(x))), x, rows)
    with pytest.raises(ValueError, match="as often for 12 rows as for 6"):
        run(Drawn(lambda x: [torch.rand(len(x)) for _ in range(len(x))]), x, rows)
    switched = {"on": False}

    def sometimes(x):
        y = torch.randn_like(x)
        return y + torch.randn_like(x) if switched["on"] else y

    module = Drawn(sometimes)
    run(module, x, rows)
    switched["on"] = True
    with pytest.raises(ValueError, match=r"draws as often for every batch.*draw more.*\(6, 8\)"):
        run(module, x, rows)
    shape = {"of": (6, 8)}
    module = Drawn(lambda x: torch.rand(shape["of"]) if shape["of"][0] != 6 else torch.rand_like(x))
    run(module, x, rows)
    shape["of"] = (4, 8)
    with pytest.raises(ValueError, match=r"expected 6 along axis 0.*got \(4, 8\)"):
        run(module, x, rows)


def test_a_dropout_that_begins_at_none_may_rise():
    module, x, rows = nn.Dropout(0.0), torch.ones(6, 8), torch.arange(6)
    assert torch.equal(run(module, x, rows), x)
    module.p = 0.5
    assert torch.equal(run(module, x, rows)[:2], run(module, x[:2], rows[:2]))
    assert (run(module, x, rows) == 0).any()


def test_learning_the_rows_leaves_no_trace():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            return F.dropout(self.norm(x), 0.3)

    noisy, plain = (Learner(Counted(net), steps=1, random_state=0) for net in (Counts(), nn.BatchNorm1d(8)))
    x, y = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32), np.arange(12.0, dtype=np.float32)
    noisy.fit(x, y), plain.fit(x, y)
    moved, truth = (dict(learner.training_.runs[0][1].buffers) for learner in (noisy, plain))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(moved[f"net.norm.{name}"], truth[f"net.{name}"])


class Counted(Objective):
    progress = ("loss", "least")
    fields = ("x", "y")

    def __init__(self, net):
        super().__init__()
        self.net = net

    def build(self, spec):
        pass

    def forward(self, batch, player=""):
        return Output((self.net(batch["x"]).mean(1) - batch["y"]).square())
