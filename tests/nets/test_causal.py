"""Causal nets: nothing comes from later, one step after another is all at once, replicas are single runs."""

import pytest
import torch
from tests.nets.causal_cases import NETS, STEPS, leaks, made, stacked, stepwise
from torch import nn
from torch.func import functional_call, grad

from weft.nets import DilatedConvolutions, Recurrent, Transformer, attention, recurrent, wavenet
from weft.nets.causal import Causal, make_causal

each_net = pytest.mark.parametrize("name", NETS)
later = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)


@each_net
def test_a_step_depends_on_no_later_one_and_on_its_own(name):
    slopes = leaks(*made(name))
    assert (slopes[later] == 0).all()
    assert (slopes.diagonal() > 0).all()
    assert (slopes[1:, 0] > 0).sum() >= 3  # and on what came before


@each_net
def test_one_step_after_another_is_all_at_once(name):
    net, x = made(name)
    torch.testing.assert_close(stepwise(net, x), net(x), rtol=1e-12, atol=1e-12)
    kept = []
    again = torch.stack([Causal.advance(net, step, kept) for step in x.unbind(1)], 1)  # what nets without a cache do
    torch.testing.assert_close(again, net(x), rtol=1e-12, atol=1e-12)


@each_net
def test_replicas_at_once_are_single_runs(name):
    nets = [made(name, seed)[0] for seed in range(3)]
    x = made(name)[1]
    alone = torch.stack([net(x) for net in nets])
    torch.testing.assert_close(stacked(nets, x), alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stacked(nets, x, stepwise), alone, rtol=1e-12, atol=1e-12)


@each_net
def test_gradients_and_their_gradients_are_the_same_by_either_way(name, monkeypatch):
    """A single run goes by fused kernels, torch.func by the formulas; of these there are second derivatives."""
    net, x = made(name)
    params = {n: p.detach() for n, p in net.named_parameters()}

    def loss(params):
        return functional_call(net, params, (x,)).square().sum()

    by_formula = grad(loss)(params)
    by_kernel = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    for (own, formula), kernel in zip(by_formula.items(), by_kernel, strict=True):
        torch.testing.assert_close(formula, kernel, rtol=1e-10, atol=1e-10, msg=own)
    curved = grad(lambda p: sum(g.square().sum() for g in grad(loss)(p).values()))(params)
    assert all(value.isfinite().all() for value in curved.values())
    assert any((value != 0).any() for value in curved.values())
    for module in (recurrent, attention):  # the formulas without torch.func
        monkeypatch.setattr(module, "transformed", lambda: True)
    torch.testing.assert_close(stacked([net], x)[0], net(x), rtol=1e-12, atol=1e-12)


# --- mutants: each is caught by what is asked above ---------------------------------------------------------


def test_attention_without_its_mask_is_caught(monkeypatch):
    net, x = made("transformer")
    plain = attention.F.scaled_dot_product_attention
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda q, k, v, is_causal: plain(q, k, v))
    assert (leaks(net, x)[later] > 0).any()


def test_a_cache_one_step_late_is_caught(monkeypatch):
    net, x = made("transformer")

    def late(self, x, kept):
        q, k, v = self._split(x.unsqueeze(1))
        t = kept.steps
        answer = self._mean(q, kept.keys[:, :, : t + 1], kept.values[:, :, : t + 1], causal=False)
        kept.keys[:, :, t : t + 1], kept.values[:, :, t : t + 1], kept.steps = k, v, t + 1
        return self.out(answer.transpose(1, 2).flatten(1))

    monkeypatch.setattr(attention.CausalAttention, "advance", late)
    assert (stepwise(net, x) - net(x)).abs().max() > 1e-3


def test_rotary_keys_that_are_not_turned_are_caught(monkeypatch):
    net, x = made("transformer, rotary")
    true = net(x)
    monkeypatch.setattr(attention, "turned", lambda x, step: x)
    assert (net(x) - true).abs().max() > 1e-3


@pytest.mark.parametrize("padding", [lambda past: (past - 1, 1), lambda past: (past // 2, past - past // 2)])
def test_a_convolution_that_is_not_shifted_is_caught(monkeypatch, padding):
    net, x = made("convolutions")
    plain = wavenet.F.pad
    monkeypatch.setattr(wavenet.F, "pad", lambda x, sides: plain(x, padding(sides[0])))
    assert (leaks(net, x)[later] > 0).any()


def test_a_queue_one_step_late_is_caught(monkeypatch):
    net, x = made("convolutions")
    start = DilatedConvolutions.begin
    monkeypatch.setattr(
        DilatedConvolutions, "begin", lambda *args: [type(q)([*q, q[0]], q.maxlen + 1) for q in start(*args)]
    )
    with pytest.raises((AssertionError, RuntimeError)):
        torch.testing.assert_close(stepwise(net, x), net(x))


def test_dilations_reach_as_far_as_is_said():
    net, x = made("convolutions")
    slopes = leaks(net, x)
    assert net.reach == 8
    assert (slopes[8, 1:] > 0).all()
    assert slopes[8, 0] == 0


# --- a user's own net ---------------------------------------------------------------------------------------


class Sums(nn.Module):
    """Causal, and no `Causal`: it has no cache."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.out = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.out(x.cumsum(1))


class Means(Sums):
    def forward(self, x):
        return self.out(x - x.mean(1, keepdim=True))


def test_a_net_of_ones_own_is_taken_if_it_is_causal():
    assert isinstance(make_causal(Sums, Recurrent, 3, 2, 4), Sums)
    assert isinstance(make_causal(Sums(3, 2), Recurrent, 3, 2, 4), Sums)
    assert isinstance(make_causal(None, Recurrent, 3, 2, 4), Recurrent)
    with pytest.raises(ValueError, match="expected a causal net, whose answer at a step depends on no later one"):
        make_causal(Means, Recurrent, 3, 2, 4)
    with pytest.raises(ValueError, match=r"to \(2, 4, 5\), got \(2, 4, 2\) from Sums; give its last layer 5 outputs"):
        make_causal(Sums(3, 2), Recurrent, 3, 5, 4)
    with pytest.raises(ValueError, match=r"takes \(n, T, 4\), got an error from Sums"):
        make_causal(Sums(3, 2), Recurrent, 4, 2, 4)
    with pytest.raises(TypeError, match=r"factory to return an nn.Module, got int"):
        make_causal(lambda inputs, outputs: 3, Recurrent, 4, 2, 4)


def test_bad_nets():
    with pytest.raises(ValueError, match="a width that 3 heads share equally, got 8"):
        Transformer(3, 2, context=4, heads=3, width=8)
    with pytest.raises(ValueError, match="4 heads with an even number of values each share equally, got 12"):
        Transformer(3, 2, positions="rotary", heads=4, width=12)
    with pytest.raises(ValueError, match="expected the context, as positions are learned"):
        Transformer(3, 2)
    with pytest.raises(ValueError, match="expected at most 4 steps, the context, got 5"):
        Transformer(3, 2, context=4, heads=2, width=8)(torch.zeros(1, 5, 3))
