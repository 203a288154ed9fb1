import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.func import vmap

from weft.core.random import key_of, keyed
from weft.engine.ambient import ambient, refuse_hidden_randomness


def run(module, x, rows, seed=0):
    with keyed(key_of(seed), rows), ambient():
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
    x, rows = torch.randn(4, 8), torch.arange(4)
    assert torch.equal(run(nn.Dropout(0.5).eval(), x, rows), x)


def test_attention_dropout_has_the_expected_value_of_none():
    torch.manual_seed(0)
    q, k, v = (torch.randn(4000, 1, 3, 4)[:1].expand(4000, 1, 3, 4) for _ in range(3))
    with keyed(key_of(0), torch.arange(4000)), ambient():
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
    torch.testing.assert_close(
        y.mean(0), F.scaled_dot_product_attention(q, k, v, is_causal=True)[0], atol=0.05, rtol=0.05
    )


def test_randomness_inside_a_kernel_is_refused():
    with pytest.raises(ValueError, match=r"LSTM with dropout=0.5.*set dropout=0"):
        refuse_hidden_randomness(nn.Sequential(nn.LSTM(3, 4, num_layers=2, dropout=0.5)))


def test_randomness_that_cannot_be_keyed_is_refused():
    class Shuffles(nn.Module):
        def forward(self, x):
            return x[:, torch.randperm(x.shape[1])]

    with pytest.raises(NotImplementedError, match=r"randperm.*weft\.core\.random"):
        run(Shuffles(), torch.randn(2, 3), torch.arange(2))
