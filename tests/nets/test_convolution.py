"""Convolutional nets: shapes, their formulas, over replicas at once; and nets that are made of shapes."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from weft import Learner
from weft.core.source import Field
from weft.nets import MLP, ConvDecoder, ConvEncoder, make_net
from weft.objectives import GAN, Classification

SIZES = [(28, 28), (32, 32), (14, 14), (8, 8), (7, 7), (4, 4), (64, 64), (5, 6), (13, 4), (61, 63)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_become_numbers_and_numbers_images_of_any_size(size, channels):
    shape = (channels, *size)
    encoder = make_net("conv-encoder", Field(shape, torch.float32), 5)
    decoder = make_net("conv-decoder", Field((5,), torch.float32), shape)
    code = encoder(torch.randn(3, *shape))
    assert code.shape == (3, 5)
    assert decoder(code).shape == (3, *shape)
    flat = make_net("conv-decoder(flat=True)", Field((5,), torch.float32), shape)
    assert flat(code).shape == (3, channels * size[0] * size[1])


def test_every_pixel_is_seen_and_made():
    shape = (2, 8, 12)
    x = torch.randn(1, *shape, requires_grad=True)
    ConvEncoder(shape, 1, activation="tanh")(x).sum().backward()
    assert (x.grad != 0).all()
    z = torch.zeros(1, 3)
    decoder = ConvDecoder(3, shape, activation="tanh")
    assert len(decoder(z).unique()) > 8 * 12  # no row, column or channel is a copy of another, nor padding
    first, second = decoder(z), decoder(z + 1)
    assert (first != second).all()


def test_a_layer_is_its_formula():
    net = ConvEncoder((1, 4, 6), 2, widths=(3,)).double()
    x = torch.randn(2, 1, 4, 6).double()
    kernel, bias = (value.detach().numpy() for value in net.features[0].parameters())
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    made = np.zeros((2, 3, 2, 3))
    for i in range(2):
        for j in range(3):
            patch = padded[:, :, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4]
            made[:, :, i, j] = np.einsum("nchw,ochw->no", patch, kernel) + bias
    weight, shift = (value.detach().numpy() for value in net.head.parameters())
    expected = np.maximum(made, 0).reshape(2, -1) @ weight.T + shift
    np.testing.assert_allclose(net(x).detach().numpy(), expected, atol=1e-12)


def test_a_transposed_layer_is_the_convolution_transposed():
    decoder = ConvDecoder(2, (1, 6, 8), widths=(3,)).double()
    up = decoder.layers[-1]
    down = nn.Conv2d(1, 3, 4, stride=2, padding=1, bias=False).double()
    with torch.no_grad():
        down.weight.copy_(up.weight)
        up.bias.zero_()
    small, large = torch.randn(1, 3, 3, 4).double(), torch.randn(1, 1, 6, 8).double()
    torch.testing.assert_close((down(large) * small).sum(), (large * up(small)).sum())


@pytest.mark.parametrize("size", [(8, 8), (7, 5)], ids=str)
@pytest.mark.parametrize("cls", [ConvEncoder, ConvDecoder])
def test_replicas_at_once_are_replicas_one_by_one(cls, size):
    shape = (2, *size)
    sides = (shape, 3) if cls is ConvEncoder else (3, shape)
    nets = [cls(*sides, widths=(4, 5)).double() for _ in range(3)]
    params, buffers = stack_module_state(nets)
    x = torch.randn(4, *(shape if cls is ConvEncoder else (3,))).double()

    def losses(params, net=nets[0]):
        return (functional_call(net, (params, buffers), (x,)) ** 2).flatten(1).sum(1)

    at_once = vmap(losses)(params)
    torch.testing.assert_close(at_once, torch.stack([(net(x) ** 2).flatten(1).sum(1) for net in nets]))
    slopes = vmap(torch.func.grad(lambda p: losses(p).sum()))(params)
    for k, net in enumerate(nets):
        (net(x) ** 2).sum().backward()
        for name, value in net.named_parameters():
            torch.testing.assert_close(slopes[name][k], value.grad)


def test_one_channel_may_be_left_out():
    net = ConvEncoder((8, 8), 3)
    x = torch.randn(2, 8, 8)
    assert torch.equal(net(x), net(x[:, None]))
    assert ConvDecoder((2, 2), (8, 8))(torch.zeros(3, 2, 2)).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ConvEncoder((64,), 3),
            "inputs to be an image's shape, (channels, height, width) or (height, width)",
        ),
        (lambda: make_net("conv-encoder", Field((64,), torch.float32), 3), "got (64,); give it rows that are images"),
        (lambda: make_net("conv-decoder", Field((2,), torch.float32), 64), "outputs to be an image's shape"),
        (lambda: ConvEncoder((1, 3, 9), 3), "expected images of at least 4 x 4 for ConvEncoder's 2 widths"),
        (lambda: ConvDecoder(3, (1, 4, 4), widths=(8, 8, 8)), "8 x 8 for ConvDecoder's 3 widths, each of which halves"),
        (lambda: ConvEncoder((1, 8, 8), 3, widths=()), "expected ConvEncoder's widths to be widths of layers such as"),
        (lambda: ConvEncoder((1, 8, 8), 0), "expected ConvEncoder's outputs to be an integer >= 1"),
        (lambda: ConvDecoder(0, (1, 8, 8)), "expected ConvDecoder's inputs to be an integer >= 1"),
        (lambda: ConvDecoder(2, (0, 8, 8)), "expected ConvDecoder's outputs to be a shape such as (1, 28, 28)"),
        (lambda: make_net("conv-encoder(width=3)", Field((8, 8), torch.float32), 3), "did you mean 'widths'?"),
    ],
)
def test_what_cannot_be_is_told(make, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make()


class Shaped(nn.Module):
    """A user's net that is made of shapes."""

    shaped = True

    def __init__(self, inputs, outputs):
        super().__init__()
        self.made_of = (inputs, outputs)
        self.layer = nn.Linear(inputs[-1], outputs[-1])

    def forward(self, x):
        return self.layer(x)


def test_a_net_that_says_so_is_made_of_shapes_and_any_other_of_sizes():
    rows = Field((3, 4), torch.float32)
    assert make_net(Shaped, rows, (3, 2)).made_of == ((3, 4), (3, 2))
    assert make_net(Shaped, Field((4,), torch.float32), 2).made_of == ((4,), (2,))
    told = []
    make_net(lambda inputs, outputs: (told.append((inputs, outputs)), MLP(inputs, outputs))[1], rows, (3, 2))
    assert told == [(12, 6)]
    assert make_net(None, rows, (3, 2))(torch.zeros(5, 3, 4)).shape == (5, 6)
    with pytest.raises(ValueError, match=r"has shape \(2, 6\) or \(2, 3, 2\), got \(2, 5\); give its last layer 6"):
        make_net(MLP(12, 5), rows, (3, 2))
    with pytest.raises(ValueError, match=r"has shape \(2, 6\), got \(2, 3, 2\)"):
        make_net(Shaped((3, 4), (3, 2)), rows, 6)


def test_objectives_take_them_by_name():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randn(60, 1, 8, 8, generator=generator) * 0.3
    x[:, :, 2:6, 2:6] += y[:, None, None, None] * 1.0
    learner = Learner(Classification(net="conv-encoder(widths=(4, 8))"), steps=60, random_state=0).fit(x, y)
    assert learner.score(x, y) > 0.95
    gan = Learner(GAN(generator="conv-decoder(widths=(4,))", critic="conv-encoder(widths=(4,))"), steps=2).fit(x)
    assert gan.sample(3).shape == (3, 1, 8, 8)
