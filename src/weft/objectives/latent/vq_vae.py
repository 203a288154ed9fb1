"""The vector-quantized autoencoder: a row is told by the entries of a codebook that are nearest to what a net makes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.corpus import Corpus
from weft.core.legal import Choice, Number, Several, Such, Whole
from weft.core.objective import Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import place, uniform
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NetLike, make_net
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import mapped
from weft.objectives.latent.coded import Coded

__all__ = ["VQVAE"]

_DECAY, _REVIVE = 0.99, 0.01
_HELD = 1e-6  # a code that is used less is not forgotten further, as nothing by nothing is no vector


class VQVAE(Coded):
    """A net makes `latent` vectors of a row; each is replaced by the nearest of `codes` entries, and a net reads these.

        k_j = argmin_k |e_j(x) - b_k|^2,    loss = -log p(x | b_k1, ..., b_kL) + commitment sum_j |e_j(x) - sg[b_kj]|^2

    with sg[.] taken as given. The decoder's gradient is handed to the encoder as if nothing had been replaced. The
    codebook follows the vectors: by running means of those that it is nearest to (`codebook="ema"`),

        N_k <- decay N_k + (1 - decay) n_k,   m_k <- decay m_k + (1 - decay) sum_{j: k_j = k} e_j,   b_k = m_k / N_k

    where n_k and the sum are those of a row in the mean of a batch, or by the loss sum_j |sg[e_j(x)] - b_kj|^2
    (`codebook="loss"`). An entry that is used less than `revive` of its even share is dead: it is put where a vector of
    the batch is, drawn at random, as is every entry in the first step. (Where there are more entries than vectors to
    tell apart, some are always dead, and a prior has to learn anew which of two alike is the nearer: then `revive=0`.)

    The code of a row is certain, so that

        log p(x) >= log p(x | code(x)) + log p(code(x)),

    which is `log_prob`: a lower bound, as other codes may explain the row too. p(code) is uniform, or a density of
    whole numbers that is trained along, `prior=MADE(law="categorical", classes=512)`, of a grid `PixelCNN(...)`: no
    gradient of its loss comes to the encoder, so that this is the second stage of the paper, made at once.

    `transform` gives the numbers of the entries, and `perplexity` in the records says how many are in use: exp of the
    entropy of their shares, at most `codes`.

    Args:
        latent: how many vectors a row has, or a grid of them, `(height, width)`.
        codes: the entries of the codebook.
        width: of a vector.
        hidden, encoder, decoder, law, classes, parts, noise, scale, conditional: see
            `weft.objectives.latent.coded.Coded`; the encoder gives `latent` x `width` values, of a grid (width, height,
            width) planes or as many values, and the decoder reads as much.
        commitment: how much the vectors are held to their entries.
        codebook: `ema` or `loss`.
        decay, revive: of `ema`, see above.
        prior: of the codes, None for a uniform one, or a density.

    References:
        van den Oord, Vinyals and Kavukcuoglu, "Neural discrete representation learning", arXiv 1711.00937.
        Razavi, van den Oord and Vinyals, "Generating diverse high-fidelity images with VQ-VAE-2", arXiv 1906.00446.
        Lancucki et al., "Robust training of vector quantized bottleneck models", arXiv 2005.08520 (dead codes).

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> from weft.objectives import MADE
        >>> bits = np.repeat([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], 50, 0).astype(float)
        >>> prior = MADE((16,), law="categorical", classes=8)
        >>> model = VQVAE(1, codes=8, width=4, hidden=(16,), law="bernoulli", prior=prior)
        >>> learner = Learner(model, optimizer=Optimizer("adam", lr=0.02), steps=300, random_state=1).fit(bits)
        >>> learner.log_prob.kind, learner.transform(bits[:3]).shape, len(np.unique(learner.transform(bits)))
        ('lower bound', (3, 1), 4)
        >>> bool(learner.log_prob(bits).mean() > -2), learner.sample(5, random_state=0).shape
        (True, (5, 4))
    """

    counts: Tensor
    sums: Tensor
    latent: int | Sequence[int]  # type: ignore[assignment]
    chains = False
    refines = False
    spreads = False
    likelihood = False  # the loss has a commitment in it
    optimizer = Optimizer("adam", lr=1e-3)
    progress = ("loss", "min")
    space = {"codes": Range(8, 1024, log=True, whole=True), "commitment": Range(0.05, 2, log=True)}
    legal = {
        "latent": Whole(1) | Several("a grid's height and width such as (7, 7)", Whole(1), least=2, most=2),
        "codes": Whole(2),
        "width": Whole(1),
        "commitment": Number(0),
        "codebook": Choice("ema", "loss"),
        "decay": Number(0, 1, ends="[)"),
        "revive": Number(0, 1, ends="[)"),
        "prior": Such("a density of whole numbers, such as MADE(law='categorical')", lambda v: isinstance(v, Density))
        | None,
    }

    def __init__(
        self,
        latent: int | Sequence[int] = 8,
        *,
        codes: int = 512,
        width: int = 64,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 1,
        noise: str | float = "net",
        scale: str = "exp",
        commitment: float = 0.25,
        codebook: str = "ema",
        decay: float = _DECAY,
        revive: float = _REVIVE,
        prior: Density | None = None,
        conditional: bool = False,
    ) -> None:
        super().__init__(
            latent,  # type: ignore[arg-type]
            hidden=hidden,
            encoder=encoder,
            decoder=decoder,
            law=law,
            classes=classes,
            parts=parts,
            noise=noise,
            scale=scale,
            prior=prior,
            conditional=conditional,
        )
        self.codes = codes
        self.width = width
        self.commitment = commitment
        self.codebook = codebook
        self.decay = decay
        self.revive = revive

    def validate(self) -> None:
        super().validate()
        if self.codebook == "loss" and (self.decay, self.revive) != (_DECAY, _REVIVE):
            raise ValueError(f"expected codebook='ema' beside decay and revive, which are of it, got {self!r}")

    # --- nets ---------------------------------------------------------------------------------------------

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of a row's code: so many numbers, or a height and a width."""
        return (int(self.latent),) if isinstance(self.latent, int) else tuple(int(side) for side in self.latent)

    @property
    def layers(self) -> tuple[int, ...]:
        return (math.prod(self.grid) * int(self.width),)

    def build(self, spec: Spec) -> None:
        super().build(spec)
        codes, width = int(self.codes), int(self.width)
        if self.codebook == "loss":
            self.book = _Book(codes, width)
        else:
            self.register_buffer("counts", torch.zeros(codes))
            self.register_buffer("sums", torch.zeros(codes, width))

    def make_recognition(self, spec: Spec) -> nn.Module:
        return self.make_encoder(self.layers[0] if len(self.grid) == 1 else (int(self.width), *self.grid))

    def make_generator(self, answer: int | tuple[int, ...]) -> nn.Module:
        if len(self.grid) == 1:
            return super().make_generator(answer)
        planes = Field((int(self.width) + self.given, *self.grid), torch.get_default_dtype())
        back = tuple(reversed(tuple(self.hidden)))
        return _Planes(make_net(self.decoder, planes, answer, hidden=back, what="decoder"), self.grid, int(self.width))

    def make_prior(self) -> None:
        if not isinstance(self.prior, Density):
            return
        self.inner = copy.deepcopy(self.prior)
        self.inner.build({"x": Field(self._read_grid(), torch.get_default_dtype())})
        laws = self.inner.entries
        if laws is None or any(law.outcomes != int(self.codes) for law in laws.laws):
            raise ValueError(
                f"expected a prior of whole numbers 0..{int(self.codes) - 1}, the codes of VQVAE, got {self.prior!r}; "
                f"give it law='categorical', classes={int(self.codes)}"
            )

    # --- the codebook -------------------------------------------------------------------------------------

    def vectors(self) -> Tensor:
        """The entries of the codebook, `(codes, width)`."""
        if self.codebook == "loss":
            return self.book.vectors
        return self.sums / self.counts.clamp_min(torch.finfo(self.counts.dtype).tiny).unsqueeze(-1)

    def encoded(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The vectors of rows before they are replaced, `(n, places, width)`."""
        out: Tensor = self.recognition(self._inputs(x.reshape(x.shape[0], -1), None, self._told(y)))
        if len(self.grid) == 1:
            return out.reshape(x.shape[0], -1, int(self.width))
        return out.reshape(x.shape[0], int(self.width), -1).movedim(1, -1)

    def nearest(self, e: Tensor) -> Tensor:
        """The numbers of the nearest entries, of `(..., width)`."""
        book = self.vectors()
        return ((book**2).sum(-1) - 2 * e @ book.T).argmin(-1)

    def entry(self, number: Tensor) -> Tensor:
        """The entries of these numbers, `(..., width)`."""
        return nn.functional.embedding(number, self.vectors())

    def follow(self, e: Tensor, number: Tensor, weight: Tensor | None) -> None:
        """The running means follow a batch of vectors; all that is added is a mean over its rows.

        So parts of a batch that follow by themselves make in their mean what the whole makes. Where an entry is dead, a
        vector's weight among those that it is put to is so unevenly drawn that one of them has nearly all of it; it is
        more than any row can add, by which it is known in the next step and taken down to an even share.
        """
        places, codes = e.shape[1], int(self.codes)
        even = places / codes
        fresh = self.counts > places
        scale = torch.where(fresh, even / self.counts.clamp_min(even), 1.0)
        counts, sums = self.counts * scale, self.sums * scale.unsqueeze(-1)
        share = torch.full_like(e[:, 0, 0], 1 / len(e)) if weight is None else weight.to(e.dtype) / _some(weight.sum())
        used = (number.unsqueeze(-1) == torch.arange(codes, device=e.device)).to(e.dtype)
        # by one draw for each vector and one for each entry: how far it is from the first round to the second
        u = uniform(e.shape[:2], place="revived", dtype=torch.float32)
        v = uniform((codes,), place="entry", shared=True, dtype=torch.float32)
        lot = 2 * places / ((u.unsqueeze(-1) + v) % 1).clamp_min(1e-6) ** 4
        dead = (counts <= self.revive * even) if self.revive else (counts == 0)
        added = torch.where(dead, lot.to(e.dtype), used) * share[:, None, None]
        count, total = added.sum((0, 1)), torch.einsum("npk,npw->kw", added, e)
        one = torch.ones_like(counts)
        keep = torch.where(dead, 0 * one, torch.where(counts < _HELD, one, self.decay))
        gain = torch.where(dead, one, 1 - self.decay)
        self.counts = keep * counts + gain * count
        self.sums = keep.unsqueeze(-1) * sums + gain.unsqueeze(-1) * total

    # --- the model ----------------------------------------------------------------------------------------

    def log_code(self, number: Tensor) -> Tensor:
        """log p of the numbers of entries, `(n, places)`."""
        like = next(self.generator.parameters())
        if not isinstance(self.prior, Density):
            return like.new_full(number.shape[:1], -number.shape[1] * math.log(int(self.codes)))
        return self.inner.log_prob(number.to(like.dtype).unflatten(-1, self._read_grid()))

    def _read_grid(self) -> tuple[int, ...]:
        """The shape of a code as the prior reads it: a grid is an image of one channel."""
        return self.grid if len(self.grid) == 1 else (1, *self.grid)

    def log_prior(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        number = self.nearest(z.unflatten(-1, (-1, int(self.width))))
        return self.log_code(number.flatten(0, -2)).unflatten(0, z.shape[:-1])

    def draw_prior(self, n: int, y: Tensor | None = None) -> Tensor:
        if isinstance(self.prior, Density):
            with place("prior"):
                drawn: Tensor = self.inner.sample(n)  # type: ignore[operator]
            number = drawn.flatten(1).long()
        else:
            u = uniform((n, math.prod(self.grid)), place="code", dtype=torch.float64)
            number = (u * int(self.codes)).long()
        return self.entry(number).flatten(1)

    def guess(  # type: ignore[override]
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, index: Tensor | None = None
    ) -> _Certain:
        return _Certain(self.entry(self.nearest(self.encoded(x, y))).flatten(1))

    # --- learning -----------------------------------------------------------------------------------------

    def forward(self, batch: Batch, player: str = "") -> Output:
        x, y = batch["x"], batch["y"] if self.conditional else None
        e = self.encoded(x, y)
        number = self.nearest(e.detach())
        entry = self.entry(number)
        z = e + (entry - e).detach()
        loss = -self.log_given(x, z.flatten(1).unsqueeze(1), None, y).squeeze(1) - self.log_code(number)
        loss = loss + self.commitment * ((e - entry.detach()) ** 2).sum((-1, -2))
        if self.codebook == "loss":
            loss = loss + ((e.detach() - entry) ** 2).sum((-1, -2))
        elif self.training:
            self.follow(e.detach(), number, batch.get("weight"))
        return Output(loss)

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        """The loss, the rate, the distortion, and the perplexity of the codes over all rows."""
        x, y = batch["x"], batch["y"] if self.conditional else None
        number = self.nearest(self.encoded(x, y))
        used = (number.unsqueeze(-1) == torch.arange(int(self.codes), device=x.device)).sum(1)
        given = self.log_given(x, self.entry(number).flatten(1).unsqueeze(1), None, y).squeeze(1)
        return {
            "loss": self(batch).losses,
            "rate": -self.log_code(number),
            "distortion": -given,
            "perplexity": Corpus(sums={"used": used}, conclude=perplexity),
        }

    # --- answers ------------------------------------------------------------------------------------------

    elbo = None  # type: ignore[assignment]
    posterior = None  # type: ignore[assignment]
    ais = None  # type: ignore[assignment]

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """log p(x | code) + log p(code) for the code of a row (given y): at most log p(x)."""
        return -self.distortion(x, observed, y) - self.rate(x, observed, y)

    @capability(merge="mean", kind="exact")
    def rate(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """R = -log p(code), in nats: what the code of a row costs."""
        return -self.log_code(self.nearest(self.encoded(x, y)))

    @capability(merge="mean", kind="exact", gives="surprise")
    def distortion(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """D = -log p(x | code), in nats: what is left to be told of a row once its code is known."""
        return -self.log_given(x, self.guess(x, None, y).z.unsqueeze(1), None, y).squeeze(1)

    def transform(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """The numbers of a row's entries, `(n, latent)`, or `(n, height, width)` of a grid."""
        return self.nearest(self.encoded(x, y)).unflatten(-1, self.grid)

    def inverse_transform(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given the numbers of entries; of classes the likeliest."""
        wrong = z.shape[1:] != self.grid
        if wrong or (not mapped(z) and bool(((z < 0) | (z >= int(self.codes)) | (z != z.floor())).any())):
            raise ValueError(
                f"expected codes of shape {self.grid} of whole numbers 0..{int(self.codes) - 1}, got {tuple(z.shape)} "
                f"between {z.min().item():g} and {z.max().item():g}; they are as transform gives them"
            )
        return self.mean_given(self.entry(z.flatten(1).long()).flatten(1), y)


@dataclass(frozen=True)
class _Certain:
    """A code that is known: z, `(n, numbers)`, with probability 1."""

    z: Tensor

    @property
    def mean(self) -> Tensor:
        return self.z

    def draw(self, draws: int, place: str) -> Tensor:
        """It, so many times."""
        return self.z.unsqueeze(1).expand(-1, draws, -1)

    def log_prob(self, z: Tensor) -> Tensor:
        """log 1."""
        return z.new_zeros(z.shape[:-1])


class _Book(nn.Module):
    """A codebook that is descended."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(codes, width))

    def reset_parameters(self) -> None:
        """Near the origin, where an untrained encoder's vectors are, apart from each other."""
        nn.init.normal_(self.vectors, std=0.1)


class _Planes(nn.Module):
    """A net that reads planes, given the vectors of a grid one after another and a class behind them."""

    def __init__(self, net: nn.Module, grid: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.net, self.grid, self.width = net, grid, width

    def forward(self, flat: Tensor) -> Tensor:
        size = math.prod(self.grid) * self.width
        planes = flat[:, :size].unflatten(-1, (-1, self.width)).movedim(-1, 1).unflatten(-1, self.grid)
        told = flat[:, size:, None, None].expand(-1, -1, *self.grid)
        return self.net(torch.cat([planes, told], 1))


def _some(total: Tensor) -> Tensor:
    return total.clamp_min(torch.finfo(torch.float32).tiny)


def perplexity(sums: dict[str, Tensor]) -> Tensor:
    """exp of the entropy of the shares of the codes."""
    share = sums["used"] / sums["used"].sum()
    return torch.exp(-torch.special.xlogy(share, share).sum())
