"""Masked convolutions against PyTorch's own, by taps, and over replicas at once."""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from weft.nets.pixel_cells import DiagonalLSTM, RowLSTM, skewed, straight
from weft.nets.pixels import GatedLayer, MaskedConv2d, MaskedLayer, PixelNet, before_pixel, spread


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("kernel", [3, 5])
def test_it_is_an_ordinary_convolution_with_zeros_in_its_kernel(kernel, dilation):
    reach, groups = kernel // 2, spread(6, 3)
    layer = MaskedConv2d(before_pixel(groups, [0, 1, 2], kernel, itself=False), left=reach, dilation=dilation)
    plain = torch.nn.Conv2d(3, 6, kernel, padding=reach * dilation, dilation=dilation)
    with torch.no_grad():
        plain.weight.zero_()
        plain.weight[:, :, : reach + 1] = layer.weight * layer.mask
        plain.bias.copy_(layer.bias)
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(layer(x), plain(x))


def test_masks_a_and_b_by_channel():
    a, b = (before_pixel([0, 1, 2], [0, 1, 2], 3, itself=itself)[:, :, 1, 1] for itself in (False, True))
    assert a.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert b.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_weights_begin_by_the_taps_that_are_seen():
    layer = MaskedConv2d(before_pixel([0] * 500, [0], 3, itself=False), left=1)
    assert layer.weight.abs().max() <= 4**-0.5  # four taps of six
    assert layer.weight.abs().max() > 0.9 * 4**-0.5
    with pytest.raises(ValueError, match=r"expected a mask of 0 and 1 of shape \(outputs, inputs, rows, columns\)"):
        MaskedConv2d(torch.ones(2, 2))
    with pytest.raises(ValueError, match="expected a mask of 0 and 1"):
        MaskedConv2d(2 * torch.ones(1, 1, 1, 1))
    with pytest.raises(ValueError, match="expected a convolution with a bias, got one without"):
        MaskedConv2d(torch.ones(1, 1, 1, 1), bias=False).at_pixel([0])


def test_what_is_skewed_comes_back():
    x = torch.randn(2, 3, 4, 6)
    assert torch.equal(straight(skewed(x), 6), x)
    assert skewed(x).shape == (2, 3, 4, 9)
    for r in range(4):
        assert torch.equal(skewed(x)[:, :, r, r : r + 6], x[:, :, r])


LAYERS = {
    "masked": lambda: MaskedLayer([0] * 6, [0] * 6, kernel=3, dilation=2, given=2, first=False),
    "gated": lambda: GatedLayer([0] * 6, [0] * 6, kernel=3, dilation=2, given=2, first=False),
    "row": lambda: RowLSTM([0] * 6, [0] * 6, kernel=3, given=2),
    "diagonal": lambda: DiagonalLSTM([0] * 6, [0] * 6, above=1, given=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_replicas_at_once_are_replicas_one_by_one(name):
    def net():
        first = GatedLayer if name == "gated" else MaskedLayer
        begins = first([0], [0] * 6, kernel=3, dilation=1, given=2, first=True)
        return PixelNet([begins, LAYERS[name]()], inputs=1, outputs=2).double()

    nets = [net() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x, given = torch.randn(4, 1, 3, 5, 1).double(), torch.randn(4, 2).double()
    both = vmap(lambda p, b: functional_call(nets[0], (p, b), (x, given)))(params, buffers)
    torch.testing.assert_close(both, torch.stack([one(x, given) for one in nets]))
    # Pixel by pixel as well, also of a net whose features reach beyond the image.
    with torch.no_grad():
        kept = nets[0].begin(x, given)
        for r in range(3):
            for c in range(5):
                torch.testing.assert_close(nets[0].advance((r, c, 0), x, kept), both[0][:, 0, r, c].detach())
