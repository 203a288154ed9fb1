"""Recurrent nets against torch's own modules."""

import pytest
import torch
from torch import nn

from weft.nets import Recurrent, recurrent

TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def pair(kind, layers):
    """A net and torch's module with the same parameters, and their gradients of one loss."""
    torch.manual_seed(0)
    own = Recurrent(3, 2, kind=kind, layers=layers, width=5).double()
    theirs = TORCH[kind](3, 5, layers, batch_first=True).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    with torch.no_grad():
        for i, layer in enumerate(own.layers):
            for name in names:
                getattr(theirs, f"{name}_l{i}").copy_(getattr(layer, name))
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    answers = [own(x), own.head(theirs(x)[0])]
    ours = [getattr(layer, name) for layer in own.layers for name in names]
    slopes = [torch.autograd.grad(answers[0].square().sum(), ours)]
    slopes.append(torch.autograd.grad(answers[1].square().sum(), list(theirs.parameters())))
    return answers, slopes


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("way", ["kernel", "cells"])
def test_it_is_torchs_by_its_kernel_and_by_its_cells(kind, layers, way, monkeypatch):
    monkeypatch.setattr(recurrent, "transformed", lambda: way == "cells")
    (ours, theirs), slopes = pair(kind, layers)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", TORCH)
def test_a_gate_in_another_place_is_caught(kind, monkeypatch):
    """The mutant: cells that read the gates in another order."""
    monkeypatch.setattr(recurrent, "transformed", lambda: True)
    step = recurrent.Cell.step

    def turned(self, read, state):
        return step(self, read.flip(-1) if kind == "rnn" else read.roll(self.width, -1), state)

    monkeypatch.setattr(recurrent.Cell, "step", turned)
    (ours, theirs), _ = pair(kind, 1)
    assert (ours - theirs).abs().max() > 1e-3


def test_it_begins_as_torchs_do():
    torch.manual_seed(0)
    net = Recurrent(3, 2, width=400)
    for parameter in net.layers[0].parameters():
        assert abs(parameter.abs().max().item() - 0.05) < 0.001
        assert abs(parameter.std().item() - 0.05 / 3**0.5) < 0.003


def test_what_is_dropped_is_on_the_way_up():
    net = Recurrent(3, 2, layers=2, width=50, dropout=0.5).train()
    torch.manual_seed(0)
    x = torch.randn(1, 200, 3)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
