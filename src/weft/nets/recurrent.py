"""Recurrent nets: cells in plain operations where replicas are trained at once, one fused kernel elsewhere."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.legal import Choice, Legal, Number, Whole, check
from weft.nets.causal import Causal, transformed

__all__ = ["Cell", "Recurrent"]

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
Hidden = tuple[Tensor, ...]
"""What a layer carries from step to step: h, and of an LSTM its cell."""


class Recurrent(Causal):
    """Layers that carry a state from step to step, and a linear map of the last one's.

        rnn:   h' = tanh(W x + U h + b)
        lstm:  c' = f c + i g,  h' = o tanh(c'),  with gates i, f, o = sigmoid(...) and g = tanh(...) of W x + U h + b
        gru:   h' = (1 - z) n + z h,  with r, z = sigmoid(W x + U h + b) and n = tanh(W x + b + r (U h + b'))

    Parameters are laid out and begin as those of torch's `nn.RNN`, `nn.LSTM` and `nn.GRU`, whose fused kernels compute
    a single run; they have no rule under `vmap`, where the cells are written out, to the same answers.

    Args:
        inputs, outputs: values of a step.
        kind: `rnn`, `lstm` or `gru`.
        layers: how many, one above the other.
        width: of the hidden states.
        dropout: share of a layer's outputs that is dropped, on their way up and never on their way to the next step.

    References:
        Elman, "Finding structure in time", Cognitive Science 14, 1990; Hochreiter and Schmidhuber, "Long short-term
        memory", Neural Computation 9, 1997; Cho et al., "Learning phrase representations using RNN encoder-decoder",
        arXiv 1406.1078; Zaremba, Sutskever and Vinyals, "Recurrent neural network regularization", arXiv 1409.2329.

    >>> Recurrent(3, 2, kind="gru", width=8)(torch.zeros(5, 7, 3)).shape
    torch.Size([5, 7, 2])
    """

    legal: ClassVar[dict[str, Legal]] = {
        "inputs": Whole(1),
        "outputs": Whole(1),
        "kind": Choice(*GATES),
        "layers": Whole(1),
        "width": Whole(1),
        "dropout": Number(0, 1, "[)"),
    }

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kind: str = "lstm",
        layers: int = 1,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        check(Recurrent, locals())
        super().__init__()
        self.kind, self.width = kind, width
        self.layers = nn.ModuleList(Cell(inputs if i == 0 else width, width, kind) for i in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.dropout.p or transformed()):
            return self.head(_fused(list(self.layers), x))
        for layer in self.layers:
            x = layer(x)
            if self.dropout.p:
                x = self.dropout(x)
        return self.head(x)

    def begin(self, like: Tensor, steps: int) -> list[Hidden]:
        return [layer.start(like) for layer in self.layers]  # type: ignore[operator]

    def advance(self, x: Tensor, kept: list[Hidden]) -> Tensor:
        for i, layer in enumerate(self.layers):
            kept[i] = layer.step(layer.reads(x), kept[i])  # type: ignore[operator]
            x = kept[i][0]
        return self.head(x)


class Cell(nn.Module):
    """One layer, with parameters as torch has them: gates one above the other.

    Args:
        inputs: values of a step.
        width: of the state.
        kind: `rnn`, `lstm` or `gru`.
    """

    def __init__(self, inputs: int, width: int, kind: str) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        rows = GATES[kind] * width
        self.weight_ih = nn.Parameter(torch.empty(rows, inputs))
        self.weight_hh = nn.Parameter(torch.empty(rows, width))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(width)."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.width**-0.5), self.width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The states of all steps, `(n, T, width)`."""
        if not transformed():
            return _fused([self], x)
        state, states = self.start(x[:, 0]), []
        for read in self.reads(x).unbind(1):
            state = self.step(read, state)
            states.append(state[0])
        return torch.stack(states, 1)

    def start(self, like: Tensor) -> Hidden:
        """Zeros, of the rows' number."""
        zeros = like.new_zeros(len(like), self.width)
        return (zeros, zeros) if self.kind == "lstm" else (zeros,)

    def reads(self, x: Tensor) -> Tensor:
        """W x + b, of one step or of all at once."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, read: Tensor, state: Hidden) -> Hidden:
        """The next state, given what was read of the input."""
        h = state[0]
        recurs = F.linear(h, self.weight_hh, self.bias_hh)
        if self.kind == "rnn":
            return (torch.tanh(read + recurs),)
        if self.kind == "lstm":
            i, f, g, o = (read + recurs).chunk(4, -1)
            cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            return o.sigmoid() * cell.tanh(), cell
        read_r, read_z, read_n = read.chunk(3, -1)
        r, z, n = recurs.chunk(3, -1)
        r, z = (read_r + r).sigmoid(), (read_z + z).sigmoid()
        n = (read_n + r * n).tanh()
        return (n + z * (h - n),)


def _fused(layers: list[Any], x: Tensor) -> Tensor:
    """The states of the last of some layers, by torch's kernel."""
    first = layers[0]
    weights = [w for own in layers for w in (own.weight_ih, own.weight_hh, own.bias_ih, own.bias_hh)]
    zeros = x.new_zeros(len(layers), len(x), first.width)
    options = (True, len(layers), 0.0, first.training, False, True)
    kernel = getattr(torch._VF, "rnn_tanh" if first.kind == "rnn" else first.kind)
    with warnings.catch_warnings() if x.is_cuda else nullcontext():
        if x.is_cuda:  # where cuDNN would say that the weights do not lie in one piece
            warnings.simplefilter("ignore")
        answer: Tensor = kernel(x, (zeros, zeros) if first.kind == "lstm" else zeros, weights, *options)[0]
    return answer
