"""Dilated convolutions against their formula in NumPy."""

import numpy as np
import pytest
import torch

from weft.nets import DilatedConvolutions


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(net, x):
    """Step by step and tap by tap: what is before the first step is zero."""
    own = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    h = x @ own["enter.weight"].T + own["enter.bias"]
    skips = 0.0
    for b, block in enumerate(net.blocks):
        look, bias = own[f"blocks.{b}.look.weight"], own[f"blocks.{b}.look.bias"]
        onward, more = own[f"blocks.{b}.onward.weight"][:, :, 0], own[f"blocks.{b}.onward.bias"]
        seen = np.zeros((len(x), len(bias))) + bias
        for t in range(len(x)):
            for j in range(block.kernel):
                source = t - (block.kernel - 1 - j) * block.dilation
                if source >= 0:
                    seen[t] += look[:, :, j] @ h[source]
        filtered, gate = np.split(seen, 2, -1)
        added, skip = np.split((np.tanh(filtered) * sigmoid(gate)) @ onward.T + more, 2, -1)
        h, skips = h + added, skips + skip
    hidden = np.maximum(np.maximum(skips, 0) @ own["mix.weight"].T + own["mix.bias"], 0)
    return hidden @ own["head.weight"].T + own["head.bias"]


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stacks", [1, 2])
def test_it_is_the_formula(kernel, stacks):
    torch.manual_seed(0)
    net = DilatedConvolutions(3, 2, width=4, layers=3, kernel=kernel, stacks=stacks).double()
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    for row, answer in zip(x.numpy(), net(x).detach().numpy(), strict=True):
        np.testing.assert_allclose(answer, by_hand(net, row), rtol=1e-10, atol=1e-10)
    assert net.reach == 1 + (kernel - 1) * 7 * stacks
