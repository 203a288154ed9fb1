"""Attention against the formula in NumPy."""

import numpy as np
import pytest
import torch

from weft.nets import Transformer, attention
from weft.nets.attention import CausalAttention


def by_hand(layer, x):
    """The formula, head by head and step by step."""
    weight, bias = layer.qkv.weight.detach().numpy(), layer.qkv.bias.detach().numpy()
    width, heads = x.shape[-1], layer.heads
    d = width // heads
    answer = np.zeros_like(x)
    for n, row in enumerate(x):
        q, k, v = np.split(row @ weight.T + bias, 3, -1)
        for h in range(heads):
            own = slice(h * d, (h + 1) * d)
            for t in range(len(row)):
                at = [k[s, own] for s in range(t + 1)]
                mine = q[t, own]
                if layer.rotary:
                    mine, at = spun(mine, t), [spun(key, s) for s, key in enumerate(at)]
                score = np.array([mine @ key for key in at]) / np.sqrt(d)
                share = np.exp(score) / np.exp(score).sum()
                answer[n, t, own] = sum(p * v[s, own] for s, p in enumerate(share))
    return answer @ layer.out.weight.detach().numpy().T + layer.out.bias.detach().numpy()


def spun(vector, step):
    """A complex number for each pair, turned."""
    half = len(vector) // 2
    pair = vector[:half] + 1j * vector[half:]
    pair = pair * np.exp(1j * step * 10_000.0 ** (-np.arange(half) / half))
    return np.concatenate([pair.real, pair.imag])


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("way", ["kernel", "formula"])
def test_it_is_the_formula(rotary, way, monkeypatch):
    monkeypatch.setattr(attention, "transformed", lambda: way == "formula")
    torch.manual_seed(0)
    layer = CausalAttention(8, heads=2, rotary=rotary).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64)
    np.testing.assert_allclose(layer(x).detach().numpy(), by_hand(layer, x.numpy()), rtol=1e-10, atol=1e-10)


def test_rotary_scores_depend_on_how_far_apart_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    scores = [
        attention.turned(q, torch.tensor([t + 3])) @ attention.turned(k, torch.tensor([t])).mT for t in (0, 5, 40)
    ]
    torch.testing.assert_close(scores[0], scores[1])
    torch.testing.assert_close(scores[0], scores[2])


def test_it_begins_as_gpt_2_does():
    torch.manual_seed(0)
    net = Transformer(64, 64, context=32, layers=8, width=64)
    assert abs(net.blocks[0].attention.qkv.weight.std().item() - 0.02) < 0.001
    assert abs(net.blocks[3].attention.out.weight.std().item() - 0.005) < 0.0005
    assert abs(net.blocks[3].second.weight.std().item() - 0.005) < 0.0005
    assert net.head.bias.abs().max() == 0


def test_a_row_alone_is_as_among_others():
    torch.manual_seed(0)
    net = Transformer(8, 2, context=9, layers=2, heads=2, width=8).double()
    x = torch.randn(4, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(net(x)[1:2, :5], net(x[1:2, :5]), rtol=1e-12, atol=1e-12)
