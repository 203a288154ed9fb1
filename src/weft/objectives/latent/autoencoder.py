"""The autoencoder: bottleneck, denoising, sparse, contractive."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Flag, Number
from weft.core.objective import Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import bernoulli, normal
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.nets.mlp import MLP, Linear
from weft.objectives.latent.decoded import Decoded

__all__ = ["Autoencoder"]

Bend = Callable[[Tensor], Tensor]
CODES: dict[str, tuple[Bend, Bend]] = {  # what bends the encoder's answer, and its slope as a function of the code
    "identity": (lambda a: a, torch.ones_like),
    "relu": (torch.relu, lambda z: (z > 0).to(z.dtype)),
    "sigmoid": (torch.sigmoid, lambda z: z * (1 - z)),
    "tanh": (torch.tanh, lambda z: 1 - z**2),
}


class Autoencoder(Decoded):
    """Learns a code of each row from which the row can be made again: z = s(f(x)), x about g(z).

        loss = off(x, g(z)) + l1 sum_j |z_j| + kl sum_j KL(target || mean z_j) + contraction |dz/dx|^2

    Each weight is 0 until it is given. Something must keep g(z) from being a mere copy of x; without it a code of as
    many entries as x warns:

    - a *bottleneck*: fewer entries in z than in x. With linear nets and squared error it finds the subspace of
      principal components.
    - *denoising*: the code is of a corrupted row, x + `noise` times a normal, or with a share `masking` of the entries
      set to 0, and is to give the row as it was. Rows are corrupted in training alone.
    - *sparse*: most entries of a code are near 0: by `l1`, or by `kl`, which holds the mean of each entry, a sigmoid,
      over the batch at `target`.
    - *contractive*: the code hardly moves as x does. |dz/dx|^2 is the sum of the squares of all derivatives at what the
      encoder sees, exactly: of a single layer in closed form, sum_j s'_j^2 |W_j|^2, else by a derivative for each entry
      of the code.

    A net can evade `l1` and `contraction` by smaller codes and larger weights in the decoder. `tied` weights, with one
    layer each, cannot: g(z) = W' z + c, with the encoder's W.

    Codes have no law, so there is nothing to draw a row from and no density of one: what a decoder makes of a random
    code need not look like data. `VAE` has both; `GLO` draws by a normal fitted to its codes.
    `reconstruction_error` scores how unlike the training data a row is.

    Args:
        latent: the entries of a code.
        hidden: hidden widths of the default nets, the encoder's first; the decoder has them reversed.
        encoder: from a row to `latent` values, a net as a user may give it; `conv-encoder` for images.
        decoder: from a code to a row; `conv-decoder` for images.
        loss: `squared`, `absolute` or `bernoulli`, see `weft.objectives.latent.decoded.Decoded`.
        codes: s: `identity`, `relu`, `sigmoid` or `tanh`.
        noise, masking, l1, kl, target, contraction, tied: see above.

    References:
        Hinton and Salakhutdinov, "Reducing the dimensionality of data with neural networks", Science 313, 2006.
        Baldi and Hornik, "Neural networks and principal component analysis", Neural Networks 2, 1989.
        Vincent, Larochelle, Bengio and Manzagol, "Extracting and composing robust features with denoising
        autoencoders", ICML 2008.
        Lee, Ekanadham and Ng, "Sparse deep belief net model for visual area V2", NIPS 2007 (a target activation).
        Rifai, Vincent, Muller, Glorot and Bengio, "Contractive auto-encoders", ICML 2011.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> angle = np.random.default_rng(0).uniform(0, 6.28, 400)
        >>> X = np.stack([np.cos(angle), np.sin(angle), np.cos(angle + 1)], 1)
        >>> fast = Optimizer("adam", lr=0.01)
        >>> learner = Learner(Autoencoder(2, hidden=(32,)), optimizer=fast, steps=300, random_state=0).fit(X)
        >>> learner.transform(X[:3]).shape, bool(learner.reconstruction_error(X).mean() < 0.02)
        ((3, 2), True)
        >>> bool(learner.reconstruction_error([[3.0, 0.0, -3.0]]) > 1)
        True
    """

    optimizer = Optimizer("adam", lr=1e-3)
    provides = frozenset({"features"})
    space = {"latent": Range(2, 64, log=True, whole=True)}
    legal = {
        "encoder": NET,
        "codes": Choice(*CODES),
        "noise": Number(0),
        "masking": Number(0, 1, "[)"),
        "l1": Number(0),
        "kl": Number(0),
        "target": Number(0, 1, "()"),
        "contraction": Number(0),
        "tied": Flag(),
    }

    def __init__(
        self,
        latent: int = 10,
        *,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        loss: str = "squared",
        codes: str = "identity",
        noise: float = 0.0,
        masking: float = 0.0,
        l1: float = 0.0,
        kl: float = 0.0,
        target: float = 0.05,
        contraction: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__(latent, hidden=hidden, decoder=decoder, loss=loss)
        self.encoder = encoder
        self.codes = codes
        self.noise = noise
        self.masking = masking
        self.l1 = l1
        self.kl = kl
        self.target = target
        self.contraction = contraction
        self.tied = tied

    def validate(self) -> None:
        super().validate()
        rules = {
            "codes='sigmoid' beside kl, which compares shares": not self.kl or self.codes == "sigmoid",
            "kl beside a target, which nothing else reads": bool(self.kl) or self.target == 0.05,
            "hidden=() and no nets beside tied, which has one layer": not self.tied
            or (not len(self.hidden) and self.encoder is None and self.decoder is None),
        }
        for rule, kept in rules.items():
            if not kept:
                raise ValueError(f"expected {rule} of Autoencoder, got {self!r}")

    @property
    def decomposable(self) -> bool:  # type: ignore[override]
        return not self.kl

    # --- nets ---------------------------------------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        super().build(spec)
        row = Field(self.shape, torch.get_default_dtype())
        net = make_net(self.encoder, row, int(self.latent), hidden=self.hidden, what="encoder")
        if self.tied:
            self.offset = nn.Parameter(torch.zeros(self.shape))
        if isinstance(net, Linear) and isinstance(self.decoder, Linear):
            raise ValueError(
                "expected an encoder or a decoder that does not start at zero, where no gradient leads away from, got "
                "'linear' for both; take hidden=(), whose maps are linear too"
            )
        mixes = [type(layer).__name__ for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        if self.contraction and mixes:
            raise ValueError(
                f"expected an encoder that reads each row by itself beside contraction, got one with {mixes[0]}, under "
                "which a code moves as other rows do; leave that out"
            )
        self.encoder = net

    def build_decoder(self, code: Field) -> None:
        if not self.tied:
            super().build_decoder(code)

    def raw(self, z: Tensor) -> Tensor:
        if not self.tied:
            return super().raw(z)
        return (z @ self._layer().weight).reshape(len(z), *self.shape) + self.offset

    def _layer(self) -> nn.Linear:
        """The only one of the default encoder with hidden=()."""
        if isinstance(self.encoder, MLP) and isinstance(self.encoder.head, nn.Linear):
            return self.encoder.head
        raise TypeError(f"expected an encoder of one layer, got {type(self.encoder).__name__}")

    def encoded(self, x: Tensor) -> Tensor:
        """s(f(x))."""
        bend, _ = CODES[self.codes]
        return bend(self.encoder(x).flatten(1))  # type: ignore[operator, misc]

    # --- learning -----------------------------------------------------------------------------------------

    def corrupted(self, x: Tensor) -> Tensor:
        """Rows as the encoder sees them in training."""
        if self.noise:
            x = x + self.noise * normal(x.shape, place="noise", dtype=x.dtype)
        if self.masking:
            x = x * bernoulli(torch.full_like(x, 1 - self.masking), place="masking")
        return x

    def contracted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Codes, and the squared Frobenius norm of dz/dx of each row."""
        if isinstance(self.encoder, MLP) and len(self.encoder.features) == 1:  # nothing but what lays rows flat
            z = self.encoded(x)
            _, slope = CODES[self.codes]
            return z, slope(z) ** 2 @ (self._layer().weight ** 2).sum(1)
        z, back = torch.func.vjp(self.encoded, x)  # type: ignore[misc]
        each = torch.eye(z.shape[1], dtype=z.dtype, device=z.device).unsqueeze(1).expand(-1, len(x), -1)
        (slopes,) = torch.func.vmap(back)(each)  # of every entry of the code, (latent, n, ...)
        return z, (slopes**2).flatten(2).sum((0, 2))

    def forward(self, batch: Batch, player: str = "") -> Output:
        x = self.numbers(batch["x"])
        seen = self.corrupted(x) if self.training else x
        z, bent = self.contracted(seen) if self.contraction else (self.encoded(seen), 0.0)
        losses = self.off(self.raw(z), x) + self.l1 * z.abs().sum(-1) + self.contraction * bent
        if self.kl:
            losses = losses + self.kl * _apart(float(self.target), z.mean(0)).sum()
        return Output(losses, features=z)

    # --- answers ------------------------------------------------------------------------------------------

    @capability(merge="refuse")
    def transform(self, x: Tensor) -> Tensor:
        """The code of each row."""
        return self.encoded(self.numbers(x))

    @capability(merge="refuse", gives="x")
    def reconstruct(self, x: Tensor) -> Tensor:
        """g of the code of each row."""
        return self.mean(self.raw(self.transform(x)))

    @capability(merge="mean")
    def reconstruction_error(self, x: Tensor) -> Tensor:
        """How far off each row's reconstruction is, by the loss without its penalties: large for rows unlike those
        that were learned from. A table's numbers count as they were standardized."""
        x = self.numbers(x)
        return self.off(self.raw(self.encoded(x)), x)

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(rows, training=training)
        entries = rows["x"][0].numel() if len(rows["x"]) else 0
        held = self.noise or self.masking or self.l1 or self.kl or self.contraction
        if training and self.latent >= entries and not held:
            warnings.warn(
                f"expected fewer entries in a code than the {entries} of a row, or noise, masking, l1, kl or "
                f"contraction, got latent={self.latent} and none of them: the nets can learn to copy",
                stacklevel=7,
            )


def _apart(target: float, share: Tensor) -> Tensor:
    """KL(target || share) of bits."""
    share = share.clamp(1e-6, 1 - 1e-6)
    own = target * math.log(target) + (1 - target) * math.log1p(-target)
    return own - target * share.log() - (1 - target) * (-share).log1p()
