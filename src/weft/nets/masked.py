"""Layers that some inputs do not reach: what makes a net autoregressive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.random import fold, key_of, unit
from weft.nets.mlp import ACTIVATIONS

__all__ = ["MaskedLinear", "MaskedMLP", "Walk", "follows", "ranks_of"]


def follows(after: Tensor, before: Tensor, *, strictly: bool = False) -> Tensor:
    """A mask by degrees: 1 where a unit of `after` may see one of `before`, of no higher degree, or of a lower one.

    >>> follows(torch.tensor([1, 2]), torch.tensor([1, 2, 3]))
    tensor([[1, 0, 0],
            [1, 1, 0]], dtype=torch.uint8)
    """
    after, before = after.unsqueeze(-1), before.unsqueeze(-2)
    return (after > before if strictly else after >= before).to(torch.uint8)


class MaskedLinear(nn.Module):
    """A linear layer that leaves connections out: (W * mask) x + b.

    A unit begins with weights and a bias drawn as those of a layer that has only the inputs that it sees. It is no
    `nn.Linear`: whoever knows how that one works must not take it for one.

    Args:
        mask: 0 and 1, `(outputs, inputs)`. It is no parameter, and stays.

    >>> layer = MaskedLinear(torch.tensor([[1, 0], [1, 1]]))
    >>> x = torch.zeros(2, requires_grad=True)
    >>> torch.autograd.grad(layer(x)[0], x)[0][1]
    tensor(0.)
    """

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        if mask.dim() != 2 or not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError(f"expected a mask of 0 and 1 of shape (outputs, inputs), got shape {tuple(mask.shape)}")
        self.weight = nn.Parameter(torch.empty(mask.shape))
        self.bias = nn.Parameter(torch.empty(mask.shape[0]))
        # Bytes and not bools, as processes exchange no bools; nor floats, which would be averaged as statistics are.
        self.register_buffer("mask", mask.to(torch.uint8))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(inputs that a unit sees)."""
        bound = self.mask.sum(1).clamp_min(1).to(self.weight.dtype).rsqrt()
        with torch.no_grad():
            self.weight.uniform_(-1.0, 1.0).mul_(bound.unsqueeze(1))
            self.bias.uniform_(-1.0, 1.0).mul_(bound)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The answer to rows, under its own mask, another one, or one for each row: `(n, outputs, inputs)`."""
        weight = self.weight * (self.mask if mask is None else mask)
        if mask is None or mask.dim() == 2:
            return F.linear(x, weight, self.bias)
        return (weight @ x.unsqueeze(-1)).squeeze(-1) + self.bias


class MaskedMLP(nn.Module):
    """A multilayer perceptron whose output for an entry depends on the entries before it in an order.

    Every unit has a degree: an input the place of its entry in the order (1..d; 0 where it belongs to none, and all may
    see it), a hidden unit one that stays, and an output the place of its entry. A unit sees those of the layer below
    whose degree is no higher than its own, an output those whose degree is lower: what it depends on comes before it.

    Inputs of no entry reach the outputs directly as well, or the first in the order would depend on none of them.
    Since the hidden degrees do not depend on the order, any order can be asked for, one for each row too.

    Args:
        inputs, outputs: the entry that each belongs to, -1 for an input of none; outputs in the order of the entries.
        order: the entries in the order that the net has of itself; None for that in which they stand.
        hidden: widths of the hidden layers.
        sets: how many assignments of hidden degrees there are. The first spreads them evenly; those of others are
            drawn, always the same.
        told: whether each input has a companion beside it that is always 1, by which a unit knows that it sees that
            input, be it 0 or not: needed where orders or sets change (the paper's conditioning weights).
        activation: by name.

    References:
        Germain, Gregor, Murray and Larochelle, "MADE: masked autoencoder for distribution estimation",
        arXiv 1502.03509.

    >>> _ = torch.manual_seed(0)
    >>> net = MaskedMLP([0, 1, 2], [0, 1, 2], order=[1, 2, 0], hidden=(64,))
    >>> x = torch.ones(1, 3, requires_grad=True)
    >>> [(torch.autograd.grad(net(x)[0, i], x, retain_graph=True)[0] != 0).long().tolist() for i in range(3)]
    [[[0, 1, 1]], [[0, 0, 0]], [[0, 1, 0]]]
    """

    belongs: Tensor
    answers: Tensor
    layers: nn.ModuleList

    def __init__(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        order: Sequence[int] | None = None,
        hidden: Sequence[int] = (128, 128),
        sets: int = 1,
        told: bool = False,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        if list(outputs) != sorted(outputs):
            raise ValueError(f"expected outputs in the order of their entries, got {list(outputs)!r}; sort them")
        entries = max(outputs) + 1
        low = 0 if entries == 1 else 1
        self.activation = ACTIVATIONS[activation]()
        self.register_buffer("belongs", torch.tensor([*inputs, *inputs] if told else inputs, dtype=torch.int64) + 1)
        self.told = told
        self.register_buffer("answers", torch.tensor(outputs, dtype=torch.int64) + 1)
        sets_of_degrees = [_degrees(hidden, low, entries - 1, k) for k in range(sets)]
        self._by_degree = [[_by_degree(own, entries) for own in degrees] for degrees in sets_of_degrees]
        self._widths = tuple(hidden)
        self._sizes = [list(outputs).count(entry) for entry in range(entries)]
        for layer in range(len(hidden)):
            every = torch.tensor([degrees[layer] for degrees in sets_of_degrees], dtype=torch.int64)
            self.register_buffer(f"degrees{layer}", every)
        ranks = ranks_of(range(entries) if order is None else order)
        self.layers = nn.ModuleList(map(MaskedLinear, self.masks(ranks)))
        self._free = [i for i, owner in enumerate(inputs) if owner < 0] if hidden else []
        if self._free:
            self.direct = nn.Linear(len(self._free), len(outputs), bias=False)

    def masks(self, ranks: Tensor, which: int | Tensor = 0) -> list[Tensor]:
        """The mask of each layer.

        Args:
            ranks: the place of each entry in an order, from 1: `(d,)`, or `(n, d)` of an order for each row.
            which: the assignment of hidden degrees; where it is drawn, of shape `(1,)`.
        """
        place = torch.cat([torch.zeros_like(ranks[..., :1]), ranks], -1)
        degrees = [place[..., self.belongs]]
        for layer in range(len(self._widths)):
            every: Tensor = getattr(self, f"degrees{layer}")
            degrees.append(every[which] if isinstance(which, int) else every.index_select(0, which)[0])
        found = [follows(after, before) for before, after in pairwise(degrees)]
        return [*found, follows(place[..., self.answers], degrees[-1], strictly=True)]

    def forward(self, x: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
        """The outputs for rows of inputs, under its own masks or others."""
        answer = self._beside(x)
        for layer, own in enumerate(self.layers):
            answer = own(self.activation(answer) if layer else answer, None if masks is None else masks[layer])
        return answer + self.direct(x[:, self._free]) if self._free else answer

    def _beside(self, x: Tensor) -> Tensor:
        """Inputs with their companions."""
        return torch.cat([x, torch.ones_like(x)], -1) if self.told else x

    def begin(self, x: Tensor, masks: Sequence[Tensor], which: int = 0) -> Walk:
        """What `advance` keeps: weights masked once, by the degrees of their units, and hidden units that it fills in.

        Args:
            x: inputs, those of no entry as they are, with anything in place of others.
            masks: of an order, as `masks` gives them for this one of the assignments.
            which: the assignment of hidden degrees.
        """
        kept = Walk()
        layers: list[MaskedLinear] = list(self.layers)  # type: ignore[arg-type]
        below: list[int] | None = None
        for layer, own in enumerate(layers):
            weight, bias = own.weight * masks[layer], own.bias + 0
            if self.told and not layer:  # companions are always 1: what they add does not change
                bias = bias + weight[:, x.shape[1] :].sum(1)
                weight = weight[:, : x.shape[1]]
            if below is not None:
                weight = weight[:, below]
            if own is layers[-1]:
                kept.outputs = list(zip(weight.split(self._sizes), bias.split(self._sizes), strict=True))
                if self._free:
                    kept.given = list(self.direct(x[:, self._free]).split(self._sizes, 1))
                break
            below, counts = self._by_degree[which][layer]
            hidden = weight.new_zeros(()) + x.new_zeros(len(x), len(bias))  # one for each replica, if there are some
            kept.hidden.append(hidden)
            parts = weight[below].split(counts), bias[below].split(counts), hidden.split(counts, 1)
            kept.units.append([found if len(found[1]) else None for found in zip(*parts, strict=True)])
        return kept

    def advance(self, known: int, x: Tensor, kept: Walk, entry: int) -> Tensor:
        """The outputs of the entry that is next in the order, once so many are known.

        Only the hidden units whose last entry has just become known are computed: over all entries it is the work of
        one pass, and not of one for each.

        Args:
            known: how many entries are.
            x: inputs, with anything in place of what is not known.
            kept: what `begin` gave; it is filled in.
            entry: the next.
        """
        below = x
        for hidden, units in zip(kept.hidden, kept.units, strict=True):
            if (new := units[known]) is not None:
                weight, bias, place = new
                place.copy_(self.activation(F.linear(below, weight, bias)))
            below = hidden
        answer = F.linear(below, *kept.outputs[entry])
        return answer + kept.given[entry] if kept.given else answer


class Walk:
    """What a masked net keeps while entries become known one by one.

    Attributes:
        hidden: of each layer, its units sorted by degree, `(n, width)`.
        units: of each layer and degree, the weights and biases of its units and their place in `hidden`; None for none.
        outputs: of each entry, the weights and biases of its outputs.
        given: of each entry, what inputs of no entry add to its outputs, `(n, outputs)`; empty where there are none.
    """

    def __init__(self) -> None:
        self.hidden: list[Tensor] = []
        self.units: list[list[tuple[Tensor, Tensor, Tensor] | None]] = []
        self.outputs: list[tuple[Tensor, Tensor]] = []
        self.given: list[Tensor] = []


def ranks_of(order: Sequence[int]) -> Tensor:
    """The place of each entry in an order, from 1.

    >>> ranks_of([2, 0, 1])
    tensor([2, 3, 1])
    """
    return torch.argsort(torch.tensor(list(order), dtype=torch.int64)) + 1


def _degrees(widths: Sequence[int], low: int, high: int, number: int) -> list[list[int]]:
    """Of each layer, those of its units: spread evenly, or drawn, none lower than all of the layer below."""
    found: list[list[int]] = []
    for layer, width in enumerate(widths):
        u = unit(fold(key_of(0), "degrees", number, layer), (width,), torch.float64) if number else None
        u = (torch.arange(width) + 0.5) / width if u is None else u
        found.append((low + (u * (high - low + 1)).floor().long().clamp_max(high - low)).tolist())
        low = min(found[-1])
    return found


def _by_degree(degrees: list[int], entries: int) -> tuple[list[int], list[int]]:
    """Units sorted by degree, and how many there are of each.

    >>> _by_degree([2, 1, 2], 3)
    ([1, 0, 2], [0, 1, 2])
    """
    order = sorted(range(len(degrees)), key=degrees.__getitem__)
    return order, [degrees.count(degree) for degree in range(entries)]
