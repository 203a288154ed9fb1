"""Dilated causal convolutions: each layer looks twice as far back as the one below."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.legal import Legal, Number, Whole, check
from weft.nets.causal import Causal

__all__ = ["DilatedConvolutions"]


class DilatedConvolutions(Causal):
    """WaveNet's net: gated convolutions with dilations 1, 2, 4, ..., each added to its input and read by the output.

        z = tanh(F * x) sigmoid(G * x),  x' = x + R z,  skip = S z;  the answer is B relu(A relu(sum of the skips))

    with `*` a convolution of the steps t, t - dilation, t - 2 dilation, ...: padded on the left alone, so that nothing
    comes from later.

    Args:
        inputs, outputs: values of a step.
        width: channels inside.
        layers: how many dilations, 1, 2, 4, ..., 2^(layers - 1).
        stacks: how often these are repeated, one above the other.
        kernel: steps that a convolution reads.
        dropout: share of the gated values that is dropped.

    Attributes:
        reach: how many steps, up to its own, an output depends on.

    References:
        van den Oord et al., "WaveNet: a generative model for raw audio", arXiv 1609.03499; Le Paine et al., "Fast
        Wavenet generation algorithm", arXiv 1611.09482, whose queues `advance` keeps.

    >>> net = DilatedConvolutions(3, 2, width=8, layers=3)
    >>> net(torch.zeros(5, 7, 3)).shape, net.reach
    (torch.Size([5, 7, 2]), 8)
    """

    legal: ClassVar[dict[str, Legal]] = {
        "inputs": Whole(1),
        "outputs": Whole(1),
        "width": Whole(1),
        "layers": Whole(1),
        "stacks": Whole(1),
        "kernel": Whole(2),
        "dropout": Number(0, 1, "[)"),
    }

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        width: int = 32,
        layers: int = 8,
        stacks: int = 1,
        kernel: int = 2,
        dropout: float = 0.0,
    ) -> None:
        check(DilatedConvolutions, locals())
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        dilations = [2**i for _ in range(stacks) for i in range(layers)]
        self.blocks = nn.ModuleList(_Gated(width, kernel, dilation, dropout) for dilation in dilations)
        self.reach = 1 + (kernel - 1) * sum(dilations)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x).mT  # channels first
        skips: Tensor | None = None
        for block in self.blocks:
            x, skip = block(x)
            skips = skip if skips is None else skips + skip
        return self._leave(skips.mT)  # type: ignore[union-attr]

    def _leave(self, skips: Tensor) -> Tensor:
        return self.head(F.relu(self.mix(F.relu(skips))))

    def begin(self, like: Tensor, steps: int) -> list[deque[Tensor]]:
        """A queue for each convolution, of the inputs that it will read again."""
        zeros = (like[:, :1] * 0).expand(-1, self.mix.in_features).to(self.mix.weight.dtype)
        return [deque([zeros] * block.past, block.past) for block in self.blocks]  # type: ignore[call-overload, operator]

    def advance(self, x: Tensor, kept: list[deque[Tensor]]) -> Tensor:
        x = self.enter(x)
        skips: Tensor | None = None
        for block, queue in zip(self.blocks, kept, strict=True):
            x, skip = block.advance(x, queue)  # type: ignore[operator]
            skips = skip if skips is None else skips + skip
        return self._leave(skips)  # type: ignore[arg-type]


class _Gated(nn.Module):
    """One dilated convolution with its gate, `(n, width, T)`."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.kernel, self.dilation, self.past = kernel, dilation, (kernel - 1) * dilation
        self.look = nn.Conv1d(width, 2 * width, kernel, dilation=dilation)
        self.onward = nn.Conv1d(width, 2 * width, 1)  # what is added to the input, and the skip
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._onward(x, self.look(F.pad(x, (self.past, 0))))

    def _onward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = seen.chunk(2, 1)
        z = filtered.tanh() * gate.sigmoid()
        z = self.dropout(z) if self.dropout.p else z
        added, skip = self.onward(z).chunk(2, 1)
        return x + added, skip

    def advance(self, x: Tensor, queue: deque[Tensor]) -> tuple[Tensor, Tensor]:
        """One step, `(n, width)`: the oldest of the queue and every dilation-th after it, and x itself."""
        steps = torch.stack([*(queue[i] for i in range(0, self.past, self.dilation)), x], -1)
        queue.append(x)
        onward, skip = self._onward(x.unsqueeze(-1), F.conv1d(steps, self.look.weight, self.look.bias))
        return onward.squeeze(-1), skip.squeeze(-1)
