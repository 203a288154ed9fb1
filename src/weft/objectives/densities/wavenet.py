"""WaveNet: sound, sample by sample, by dilated convolutions over its quantized past."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number, Whole
from weft.core.objective import capability
from weft.core.source import Batch, Spec
from weft.nets.causal import Causal
from weft.nets.make import NetLike
from weft.nets.wavenet import DilatedConvolutions
from weft.objectives.densities.sequences import inside
from weft.objectives.densities.tokens import TokenDensity

__all__ = ["WaveNet", "companded", "expanded"]


class WaveNet(TokenDensity):
    """A wave in [-1, 1] whose samples are quantized by the mu-law, each predicted from those before it.

        q = levels of (sign(x) log(1 + mu |x|) / log(1 + mu)),  mu = levels - 1;  p(q) = prod_t p(q_t | q_(<t))

    Small amplitudes, where the ear hears more, have finer levels. `log_prob` is the log-probability of the quantized
    wave, in nats, given its length; it is no density of the real numbers. Draws are waves again, at the middle of their
    levels.

    Args:
        net: see `weft.objectives.densities.tokens.TokenDensity`, in place of all that follows up to `dropout`.
        levels: how many.
        width: channels of the net.
        layers: how many dilations, 1, 2, 4, ..., 2^(layers - 1).
        stacks: how often these are repeated.
        kernel: steps that a convolution reads.
        dropout: share of the gated values that is dropped.
        context: the most samples that a wave may have; None for no bound.
        conditional: whether it is p(x | y), of waves with a class each.

    References:
        van den Oord et al., "WaveNet: a generative model for raw audio", arXiv 1609.03499; ITU-T recommendation G.711.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> waves = 0.5 * np.sin(np.arange(32) * np.pi / 4 + np.arange(4)[:, None])
        >>> model = WaveNet(levels=16, width=8, layers=3)
        >>> learner = Learner(model, steps=150, optimizer=Optimizer("adam", lr=0.01), random_state=0).fit(waves)
        >>> ahead = learner.forecast(waves[:, :16], steps=8, temperature=0.1)
        >>> bool(np.abs(ahead - waves[:, 16:24]).mean() < 0.1)
        True
    """

    space = {"width": Range(16, 128, log=True, whole=True), "layers": Range(4, 10, whole=True)}
    kinds: Mapping[str, str] = {"x": "sequences"}
    legal = {
        "levels": Whole(2),
        "layers": Whole(1),
        "stacks": Whole(1),
        "kernel": Whole(2),
        "dropout": Number(0, 1, "[)"),
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        levels: int = 256,
        width: int = 32,
        layers: int = 8,
        stacks: int = 1,
        kernel: int = 2,
        dropout: float = 0.0,
        context: int | None = None,
        conditional: bool = False,
    ) -> None:
        super().__init__(net, width=width, ends=False, context=context, conditional=conditional)
        self.levels = levels
        self.layers = layers
        self.stacks = stacks
        self.kernel = kernel
        self.dropout = dropout

    def _count(self, spec: Spec) -> int:
        if len(spec["x"].shape) != 1:
            raise ValueError(
                f"expected waves of one number at each step for WaveNet, got steps of shape {spec['x'].shape[1:]}; "
                "give one channel, (length,)"
            )
        return self.levels

    def connect(self, inputs: int, outputs: int, steps: int) -> Causal:
        return DilatedConvolutions(
            inputs,
            outputs,
            width=self.width,
            layers=self.layers,
            stacks=self.stacks,
            kernel=self.kernel,
            dropout=self.dropout,
        )

    def encode(self, x: Tensor) -> Tensor:
        return companded(x, self.levels)

    def decode(self, tokens: Tensor) -> Tensor:
        return expanded(tokens, self.levels).to(self.embed.weight.dtype)

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(rows, training=training)
        if "x_length" not in rows:
            return
        x = rows["x"]
        out = (x.abs() > 1) & inside(rows["x_length"], x.shape[1])
        if bool(out.any()):
            row, t = torch.nonzero(out)[0].tolist()
            raise ValueError(
                f"expected waves in [-1, 1] for WaveNet, got {x[row, t].item():g} at step {t} of row {row}; divide by "
                "the largest amplitude, of 16-bit integers by 32768"
            )

    def _prefix(self, prefix: tuple[float, ...]) -> Tensor:
        if not isinstance(prefix, tuple):
            raise TypeError(f"expected a prefix as a tuple of amplitudes in [-1, 1], got {prefix!r}")
        wrong = [a for a in prefix if not Number(-1, 1).allows(a)]
        if wrong:
            raise ValueError(f"expected a prefix of amplitudes in [-1, 1], got {wrong[0]!r}")
        like = self.embed.weight
        return self.encode(torch.tensor([prefix], dtype=like.dtype, device=like.device).reshape(1, -1))

    @capability(merge="share", kind="sequential", asks="rows", gives="")
    def forecast(
        self,
        x: Tensor,
        x_length: Tensor,
        y: Tensor | None = None,
        *,
        steps: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> Tensor:
        """Drawn samples that follow each wave, `(n, steps)`."""
        ahead = self._steps(steps, "steps", 1)
        tokens, _ = self._drawn(self.encode(x), x_length, y, ahead, temperature, top_k, True)
        place = x_length.unsqueeze(-1) + torch.arange(ahead, device=x.device)
        return self.decode(tokens.gather(1, place))


def companded(x: Tensor, levels: int) -> Tensor:
    """The level of each amplitude in [-1, 1], by the mu-law: 0..levels-1.

    >>> companded(torch.tensor([-1.0, -0.01, 0.0, 0.01, 1.0]), 256)
    tensor([  0,  98, 128, 157, 255])
    """
    mu = levels - 1
    bent = torch.sign(x) * torch.log1p(mu * x.abs()) / math.log1p(mu)
    return ((bent + 1) / 2 * mu + 0.5).floor().clamp(0, mu).long()


def expanded(level: Tensor, levels: int) -> Tensor:
    """The amplitude of each level, in double precision.

    >>> expanded(torch.tensor([0, 98, 255]), 256).float()
    tensor([-1.0000, -0.0102,  1.0000])
    """
    mu = levels - 1
    bent = 2 * level.double() / mu - 1
    return torch.sign(bent) * torch.expm1(bent.abs() * math.log1p(mu)) / mu
