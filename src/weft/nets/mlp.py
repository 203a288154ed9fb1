"""Multilayer perceptrons, and the linear map as the smallest of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.core.legal import WIDTHS, Choice, Flag, Legal, Number, Whole, check

__all__ = ["MLP", "Linear"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "sigmoid": nn.Sigmoid,
}


class MLP(nn.Module):
    """A multilayer perceptron: layers of W h + b and a nonlinearity; the last one is linear.

    Args:
        inputs: features of a row; rows of any shape are flattened.
        outputs: values of a row's answer.
        hidden: widths of the hidden layers.
        activation: by name.
        dropout: share of hidden units dropped, after each hidden layer.
        batch_norm: whether hidden layers are normalized over the batch.
        init: `torch` (PyTorch's own), `kaiming` (normal, gain of the rectifier, biases .01) or `orthogonal` (gain
            sqrt 2, biases 0).
        gain: of the last layer, where they are orthogonal.

    >>> MLP(2, 1, hidden=(3,))(torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    legal: ClassVar[dict[str, Legal]] = {
        "inputs": Whole(1),
        "outputs": Whole(1),
        "hidden": WIDTHS,
        "activation": Choice(*ACTIVATIONS),
        "dropout": Number(0, 1, "[)"),
        "batch_norm": Flag(),
        "init": Choice("torch", "kaiming", "orthogonal"),
        "gain": Number(0, ends="()"),
    }

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int] = (128, 128),
        activation: str = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        init: str = "torch",
        gain: float = 1.0,
    ) -> None:
        check(MLP, locals())
        if gain != 1.0 and init != "orthogonal":
            raise ValueError(f"expected init='orthogonal' beside gain={gain}, got {init!r}, which reads none")
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers.append(_linear(inputs, width, init, 2.0**0.5))
            if batch_norm:
                layers.append(nn.BatchNorm1d(width))
            layers.append(ACTIVATIONS[activation]())
            if dropout:
                layers.append(nn.Dropout(dropout))
            inputs = width
        super().__init__()
        self.features = nn.Sequential(*layers)
        self.head = _linear(inputs, outputs, init, gain)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _linear(inputs: int, outputs: int, init: str, gain: float) -> nn.Linear:
    if init == "orthogonal":
        return OrthogonalLinear(inputs, outputs, gain=gain)
    return nn.Linear(inputs, outputs) if init == "torch" else KaimingLinear(inputs, outputs)


class OrthogonalLinear(nn.Linear):
    """A linear layer with orthogonal weights times a gain and biases 0 (Saxe, McClelland and Ganguli, 1312.6120)."""

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0) -> None:
        self.gain = gain
        super().__init__(inputs, outputs)

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight, self.gain)
        nn.init.zeros_(self.bias)


class KaimingLinear(nn.Linear):
    """A linear layer with weights N(0, 2/fan_in) and biases .01 (He et al., arXiv 1502.01852)."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight)
        if self.bias is not None:
            nn.init.constant_(self.bias, 0.01)


class Linear(nn.Sequential):
    """A linear map W x + b of the flattened row, starting at zero.

    >>> Linear(2, 1)(torch.ones(5, 2)).sum()
    tensor(0., grad_fn=<SumBackward0>)
    """

    legal: ClassVar[dict[str, Legal]] = {"inputs": Whole(1), "outputs": Whole(1), "bias": Flag()}

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        check(Linear, locals())
        super().__init__(nn.Flatten(), _ZeroLinear(inputs, outputs, bias=bias))


class _ZeroLinear(nn.Linear):
    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
