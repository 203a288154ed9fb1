"""Causal attention, and the Transformer made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.legal import Choice, Flag, Legal, Number, Whole, check
from weft.nets.causal import Causal, transformed

__all__ = ["CausalAttention", "Transformer"]


@dataclass
class Remembered:
    """Keys and values of the steps so far, `(n, heads, steps, width / heads)`, and how many there are."""

    keys: Tensor
    values: Tensor
    steps: int = 0


class CausalAttention(nn.Module):
    """Each step takes the mean of the values of the steps up to it, by how well its query fits their keys.

        attention(Q, K, V) = softmax(Q K' / sqrt(d) + M) V,  M = 0 for steps up to one's own, -infinity after it

    Args:
        width: of a step.
        heads: how many such means, of `width / heads` values each, stand side by side.
        dropout: share of the softmax's weights that is dropped.
        rotary: whether queries and keys are turned by angles that grow with their steps, so that their product depends
            on how far they are apart.
        bias: whether the linear maps have one.

    References:
        Vaswani et al., "Attention is all you need", arXiv 1706.03762; Su et al., "RoFormer: enhanced transformer with
        rotary position embedding", arXiv 2104.09864.

    >>> CausalAttention(8, heads=2)(torch.zeros(5, 7, 8)).shape
    torch.Size([5, 7, 8])
    """

    legal: ClassVar[dict[str, Legal]] = {
        "width": Whole(1),
        "heads": Whole(1),
        "dropout": Number(0, 1, "[)"),
        "rotary": Flag(),
        "bias": Flag(),
    }

    def __init__(
        self, width: int, *, heads: int = 4, dropout: float = 0.0, rotary: bool = False, bias: bool = True
    ) -> None:
        check(CausalAttention, locals())
        if width % heads or (rotary and width // heads % 2):
            even = " with an even number of values each" if rotary else ""
            raise ValueError(f"expected a width that {heads} heads{even} share equally, got {width}")
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._split(x)
        if self.rotary:
            step = torch.arange(x.shape[1], device=x.device)
            q, k = turned(q, step), turned(k, step)
        return self.out(self._mean(q, k, v, causal=True).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `(n, heads, T, d)` each."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def _mean(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        """By the fused kernel, or by the formula as it stands where the kernel has no rule, or would draw by itself."""
        if not transformed() and not (self.training and self.dropout.p > 0):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        shares = scores.softmax(-1)
        return (self.dropout(shares) if self.dropout.p else shares) @ v

    def begin(self, like: Tensor, steps: int) -> Remembered:
        """Room for the keys and values of so many steps."""
        width = self.out.in_features
        zeros = (like[:, :1] * 0).expand(-1, width).unflatten(-1, (self.heads, 1, -1)).to(self.qkv.weight.dtype)
        return Remembered(*(zeros.repeat(1, 1, steps, 1) for _ in range(2)))

    def advance(self, x: Tensor, kept: Remembered) -> Tensor:
        """The next step's answer, `(n, width)`, by the keys and values that are kept, its own among them."""
        q, k, v = self._split(x.unsqueeze(1))
        t = kept.steps
        if self.rotary:
            step = torch.arange(t, t + 1, device=x.device)
            q, k = turned(q, step), turned(k, step)
        kept.keys[:, :, t : t + 1] = k
        kept.values[:, :, t : t + 1] = v
        kept.steps = t + 1
        answer = self._mean(q, kept.keys[:, :, : t + 1], kept.values[:, :, : t + 1], causal=False)
        return self.out(answer.transpose(1, 2).flatten(1))


def turned(x: Tensor, step: Tensor) -> Tensor:
    """Pairs of values `(..., T, d)` turned by step / 10000^(2 i / d), i counting the pairs.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> turned(x, torch.arange(2))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    half = x.shape[-1] // 2
    pair = torch.arange(half, device=x.device, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    angle = step.to(pair.dtype).unsqueeze(-1) * torch.exp(pair * (-math.log(10_000.0) / half))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Transformer(Causal):
    """Blocks of causal attention and a perceptron, each added to what it was given, which is normalized first (GPT-2).

        h = x + attention(norm(x)),  x' = h + W2 gelu(W1 norm(h))

    Args:
        inputs, outputs: values of a step; where `inputs` is not the width, a linear map comes first.
        context: the most steps; may be None with rotary positions, which have no end.
        layers: how many blocks.
        heads: of attention.
        width: of a step inside.
        dropout: share that is dropped of the inputs, of attention's weights and of what is added.
        positions: `learned`, a vector for each step that is added to the first block's input; or `rotary`.
        bias: whether linear maps and norms have one.

    References:
        Radford et al., "Language models are unsupervised multitask learners", 2019; Xiong et al., "On layer
        normalization in the transformer architecture", arXiv 2002.04745.

    >>> Transformer(3, 2, context=7, layers=1, heads=2, width=8)(torch.zeros(5, 7, 3)).shape
    torch.Size([5, 7, 2])
    """

    legal: ClassVar[dict[str, Legal]] = {
        "inputs": Whole(1),
        "outputs": Whole(1),
        "context": Whole(1) | None,
        "layers": Whole(1),
        "heads": Whole(1),
        "width": Whole(1),
        "dropout": Number(0, 1, "[)"),
        "positions": Choice("learned", "rotary"),
        "bias": Flag(),
    }

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        context: int | None = None,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
        positions: str = "learned",
        bias: bool = True,
    ) -> None:
        check(Transformer, locals())
        if context is None and positions == "learned":
            raise ValueError("expected the context, as positions are learned for each step, got None; give context=...")
        super().__init__()
        self.context = context
        rotary = positions == "rotary"
        self.enter = nn.Identity() if inputs == width else nn.Linear(inputs, width, bias=bias)
        self.positions = None if rotary or context is None else nn.Parameter(torch.empty(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout, rotary, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, outputs, bias=bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights N(0, .02^2), those that are added in a block smaller by sqrt(2 layers); biases 0."""
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Linear):
                added = name.endswith((".attention.out", ".second"))
                layer.weight.normal_(std=0.02 / math.sqrt(2 * len(self.blocks)) if added else 0.02)
                if layer.bias is not None:
                    layer.bias.zero_()
        if self.positions is not None:
            self.positions.normal_(std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self._enter(x, slice(0, x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def _enter(self, x: Tensor, steps: slice) -> Tensor:
        if self.context is not None and steps.stop > self.context:
            raise ValueError(f"expected at most {self.context} steps, the context, got {steps.stop}; cut the rows")
        x = self.enter(x)
        if self.positions is not None:
            x = x + self.positions[steps]
        return self.dropout(x) if self.dropout.p else x

    def begin(self, like: Tensor, steps: int) -> list[Remembered]:
        return [block.attention.begin(like, steps) for block in self.blocks]  # type: ignore[union-attr, operator]

    def advance(self, x: Tensor, kept: list[Remembered]) -> Tensor:
        t = kept[0].steps
        x = self._enter(x.unsqueeze(1), slice(t, t + 1)).squeeze(1)
        for block, own in zip(self.blocks, kept, strict=True):
            x = block.advance(x, own)  # type: ignore[operator]
        return self.head(self.norm(x))


class _Block(nn.Module):
    """Attention and a perceptron of four times the width, each normalized before and added after."""

    def __init__(self, width: int, heads: int, dropout: float, rotary: bool, bias: bool) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, bias=bias)
        self.attention = CausalAttention(width, heads=heads, dropout=dropout, rotary=rotary, bias=bias)
        self.second_norm = nn.LayerNorm(width, bias=bias)
        self.first = nn.Linear(width, 4 * width, bias=bias)
        self.second = nn.Linear(4 * width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self._perceptron(x + self._dropped(self.attention(self.first_norm(x))))

    def advance(self, x: Tensor, kept: Remembered) -> Tensor:
        return self._perceptron(x + self._dropped(self.attention.advance(self.first_norm(x), kept)))

    def _perceptron(self, x: Tensor) -> Tensor:
        return x + self._dropped(self.second(F.gelu(self.first(self.second_norm(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return self.dropout(x) if self.dropout.p else x
