"""NADE: conditionals that share the weights of what they see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Whole
from weft.objectives.densities.autoregressive import Autoregressive

__all__ = ["NADE"]


class NADE(Autoregressive):
    """The neural autoregressive distribution estimator: hidden layers of all conditionals share their weights.

        h_i = sigmoid(c + W_{<i} x_<i),      theta_i = b_i + V_i h_i

    Since W_{<i+1} x_<i+1 = W_{<i} x_<i + W_i x_i, all conditionals of d entries with H hidden units cost O(dH), and so
    does drawing a row, which carries that sum from entry to entry.

    Args:
        hidden: how many units H.
        law, classes, parts, order, conditional: see `weft.objectives.densities.autoregressive.Autoregressive`.

    References:
        Larochelle and Murray, "The neural autoregressive distribution estimator", AISTATS 2011.
        Uria, Murray and Larochelle, "RNADE: the real-valued neural autoregressive density-estimator", arXiv 1306.0186.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bits = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])  # the last is the xor
        >>> adam = Optimizer("adam", lr=0.05)
        >>> learner = Learner(NADE(16, law="bernoulli"), epochs=400, optimizer=adam, random_state=0).fit(bits)
        >>> bool(np.exp(learner.log_prob(bits)).sum() > 0.9)
        True
    """

    space = {"hidden": Range(16, 1024, log=True, whole=True)}
    legal = {"hidden": Whole(1)}
    along: Tensor
    before: Tensor
    owners: Tensor

    def __init__(
        self,
        hidden: int = 128,
        *,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 10,
        order: str | Sequence[int] = "given",
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, order=order, conditional=conditional)
        self.hidden = hidden

    def connect(self) -> None:
        self.net = _Shared(len(self.reads), int(self.hidden), self.entries.size)
        # Inputs in the order of their entries, how many come before each entry, and whose hidden units a parameter has.
        sequence = self.sequences[0]
        along = [*range(self.given), *(i for j in sequence for i in range(self.spans[j].start, self.spans[j].stop))]
        self.register_buffer("along", torch.tensor(along))
        before = [self.given]
        for j in sequence[:-1]:
            before.append(before[-1] + self.entries.laws[j].width)
        self.register_buffer("before", torch.tensor(before))
        turn = {j: t for t, j in enumerate(sequence)}
        owners = [turn[j] for j, law in enumerate(self.entries.laws) for _ in range(law.size)]
        self.register_buffer("owners", torch.tensor(owners))

    def conditionals(self, inputs: Tensor, member: int = 0) -> Tensor:
        net = self.net
        each = inputs[:, self.along].unsqueeze(-1) * net.weight[self.along]  # what each input adds to the hidden units
        sums = torch.cat([torch.zeros_like(each[:, :1]), each.cumsum(1)], 1)
        h = (net.c + sums[:, self.before]).sigmoid()  # (n, d, hidden)
        return net.b + (h[:, self.owners] * net.v).sum(-1)

    def begin(self, inputs: Tensor, member: int = 0) -> dict[str, Tensor]:
        return {"sum": torch.addmm(self.net.c, inputs[:, : self.given], self.net.weight[: self.given])}

    def advance(self, known: int, inputs: Tensor, kept: dict[str, Tensor], member: int = 0) -> Tensor:
        if known:
            span = self.spans[self.sequences[0][known - 1]]
            kept["sum"] = torch.addmm(kept["sum"], inputs[:, span], self.net.weight[span])
        places = self.entries.places[self.sequences[0][known]]
        return F.linear(kept["sum"].sigmoid(), self.net.v[places], self.net.b[places])


class _Shared(nn.Module):
    """NADE's weights."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, hidden))
        self.c = nn.Parameter(torch.empty(hidden))
        self.v = nn.Parameter(torch.empty(outputs, hidden))
        self.b = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a linear layer begins, of all inputs and of all hidden units; no biases."""
        for matrix, fan in ((self.weight, len(self.weight)), (self.v, self.v.shape[1])):
            nn.init.uniform_(matrix, -(fan**-0.5), fan**-0.5)
        nn.init.zeros_(self.c)
        nn.init.zeros_(self.b)
