"""The first weights of multilayer perceptrons."""

import pytest
import torch

from weft.nets import MLP


def test_orthogonal_weights_keep_lengths_times_their_gain():
    net = MLP(8, 3, hidden=(8, 6), activation="tanh", init="orthogonal", gain=0.01)
    first, second = (layer.weight for layer in net.features if hasattr(layer, "weight"))
    torch.testing.assert_close(first @ first.T, 2.0 * torch.eye(8), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(second @ second.T, 2.0 * torch.eye(6), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(net.head.weight @ net.head.weight.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0.0)
    assert all((p == 0).all() for name, p in net.named_parameters() if name.endswith("bias"))


def test_a_gain_that_nothing_reads_speaks():
    with pytest.raises(ValueError, match=r"expected init=.orthogonal. beside gain=0\.1, got .torch."):
        MLP(2, 1, gain=0.1)
