"""Codes of real numbers, and nets for what is drawn from them: the parts of a model that explains rows by codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.core.legal import WIDTHS, Choice, Flag, Number, Such, Whole
from weft.core.objective import Capability, Objective, capability
from weft.core.random import normal, place, turns
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.densities.autoregressive import Autoregressive
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import LAWS, Laws, Normal, Student
from weft.objectives.densities.outputs import MIXTURES, output_laws, refuse_parts
from weft.objectives.latent.chained import Chained, refuse_decoder
from weft.objectives.latent.explained import Explained, Guess, log_normal
from weft.objectives.latent.inference import INFERENCES, Amortized, PerDatum, log_scale_of, numbered
from weft.objectives.latent.priors import Mixed, built_prior, refuse_prior

__all__ = ["Coded"]

_ALONE = ("per-datum", "enumeration")  # the schemes without a net
_PARTS = 1
_LEAST = math.log(1e-3)  # of a law's deviation: without a least one the likelihood has no bound
_PRIOR = Whole(2) | Such("a density that is descended, such as MADE()", lambda v: isinstance(v, Density)) | None


class Coded(Explained):
    """z ~ p(z), a code of real numbers; x | z by laws whose numbers a net gives; q(z | x) by an inference scheme.

    A subclass says in `forward` what is learned. Rows with a shape, such as images, are laid flat for the laws, and
    come back in their shape; the encoder sees images as they are.

    Args:
        latent: the entries of a code.
        hidden: hidden widths of the default nets, the encoder's first; the decoder has them reversed.
        encoder: from rows to 2 x `latent` values, a net as a user may give it. Of images it sees (channels, height,
            width), else a flat row, with what is observed and the class behind it.
        decoder: from a code, with the class behind it, to the numbers of the laws; or an autoregressive density, such
            as `MADE()` or `PixelCNN()`: then p(x | z) = prod_i p(x_i | x_<i, z), rows are drawn entry by entry, the
            laws are that density's, and gaps must come last in its order.
        law, classes, parts: of x given z, see `weft.objectives.densities.autoregressive.Autoregressive`;
            `logistic-mixture` with parts=1 is the discretized logistic.
        noise: the deviations of real numbers: by the decoder (`net`), one learned for each entry (`shared`), or given;
            of a table's columns in the units in which they are standardized.
        scale: how raw numbers become deviations, `exp` or `softplus`.
        prior: None for N(0, I), a number of normals in a learned mixture, or a density that is trained along.
        inference: `amortized`, or `per-datum` for a guess of its own for each training row.
        conditional: whether it is p(x | y), of rows with a class each.
        gaps: whether rows may have gaps; then the encoder is told what is observed.

    Attributes:
        chains: whether an autoregressive density may be the decoder.
        spreads: whether a guess has deviations, which `scale` makes of raw numbers too.
    """

    entries: Laws
    chains: bool = True
    spreads: bool = True
    legal = {
        "latent": Whole(1),
        "hidden": WIDTHS,
        "encoder": NET,
        "decoder": NET,
        "law": Choice("auto", *LAWS, *MIXTURES),
        "classes": Whole(2) | None,
        "parts": Whole(1),
        "noise": Choice("net", "shared") | Number(0, ends="()"),
        "scale": Choice("exp", "softplus"),
        "prior": _PRIOR,
        "inference": Choice(*INFERENCES),
        "conditional": Flag(),
        "gaps": Flag(),
    }

    def __init__(
        self,
        latent: int = 10,
        *,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = _PARTS,
        noise: str | float = "net",
        scale: str = "exp",
        prior: int | Density | None = None,
        inference: str = "amortized",
        conditional: bool = False,
        gaps: bool = False,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.hidden = hidden
        self.encoder = encoder
        self.decoder = decoder
        self.law = law
        self.classes = classes
        self.parts = parts
        self.noise = noise
        self.scale = scale
        self.prior = prior
        self.inference = inference
        self.conditional = conditional
        self.gaps = gaps

    def validate(self) -> None:
        super().validate()
        if self.inference in _ALONE and self.given_net("encoder") is not None:
            raise ValueError(
                f"expected no encoder beside inference={self.inference!r}, which has none, got one; leave it out, or "
                "take inference='amortized'"
            )
        decoder = self.given_net("decoder")
        if isinstance(decoder, Objective):
            if not self.chains:
                raise ValueError(f"expected a net as the decoder of {type(self).__name__}, got {decoder!r}")
            refuse_decoder(decoder, type(self).__name__)
            told = {name: getattr(self, name) for name in ("law", "classes", "parts", "noise")}
            if told != {"law": "auto", "classes": None, "parts": 1, "noise": "net"}:
                name = type(self).__name__
                raise ValueError(
                    f"expected no law, classes, parts or noise beside a density as the decoder of {name}, which has "
                    f"its own, got {told}; give them to the decoder: {decoder!r}"
                )
        if isinstance(self.prior, Density):
            refuse_prior(self.prior)

    def given_net(self, name: str) -> object:
        """A net as it was given."""
        return vars(self).get(name, self._modules.get(name))

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        own = ("index",) if self.inference == "per-datum" else ()
        return ("x", *(("y",) if self.conditional else ()), *own)

    def capabilities(self) -> dict[str, Capability]:
        """Gaps are drawn at once where the model was told of them in training, and by a chain else."""
        marks = super().capabilities()
        kinds = {"impute": "direct" if self.gaps else "chain"}
        if self.chained:
            kinds |= {"impute": "sequential" if self.gaps else "chain", "sample": "sequential"}
            kinds |= {"inverse_transform": "estimate", "reconstruct": "estimate"}
        return {**marks, **{name: replace(marks[name], kind=kind) for name, kind in kinds.items()}}

    @property
    def chained(self) -> bool:
        """Whether the decoder sees the entries before the one that it tells of."""
        return isinstance(self.given_net("decoder"), Autoregressive)

    # --- nets ---------------------------------------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        field = spec["x"]
        self.shape, self.table = tuple(field.shape), bool(field.columns)
        self.given = int(spec["y"].classes or 0) if self.conditional else 0
        if self.conditional and not self.given:
            raise ValueError(
                f"expected the number of classes for {type(self).__name__}(conditional=True), got none in the source's "
                "spec; give classes=... to it"
            )
        decoder = self.given_net("decoder")
        if isinstance(decoder, Autoregressive):
            chained = Chained(decoder, field, self.layers[0] + self.given)
            self.entries = chained.entries
        else:
            flat = Field((math.prod(self.shape),), field.dtype, columns=field.columns)
            self.entries = output_laws(flat, self.law, classes=self.classes, parts=int(self.parts))
            refuse_parts(self.entries, self.parts, _PARTS, type(self).__name__)
        self.pictured = len(self.shape) == 3 and all(law.width == 1 for law in self.entries.laws)
        self._scales = [
            self.entries.places[j].start + 1
            for j, law in enumerate(self.entries.laws)
            if isinstance(law, Normal | Student)
        ]
        self._refuse_idle()
        self.recognition: nn.Module = self.make_recognition(spec)
        if isinstance(decoder, Autoregressive):
            self.generator: nn.Module = chained
        else:
            outputs = self.entries.size - (0 if self.noise == "net" else len(self._scales))
            # of images, so many planes for each channel: what a convolutional net gives, and a dense one lies flat
            planes = outputs // math.prod(self.shape) if self.pictured and len(set(self.entries.laws)) == 1 else 0
            self.generator = self.make_generator((self.shape[0] * planes, *self.shape[1:]) if planes else outputs)
        if self.noise == "shared":
            self.log_noise = nn.Parameter(torch.zeros(len(self._scales)))
        self.make_prior()

    def _refuse_idle(self) -> None:
        """Raises for settings that nothing reads, given the laws."""
        kind, told = type(self).__name__, ", ".join(sorted({law.name for law in self.entries.laws}))
        if self.noise != "net" and not self._scales:
            raise ValueError(
                f"expected noise='net' for {kind} of entries whose law is {told}, which has no deviation, got "
                f"{self.noise!r}; leave it out, or take law='normal'"
            )
        if self.scale == "exp" or (self.spreads and self.inference == "amortized"):
            return
        if not self._scales or self.noise != "net" or self.chained:
            raise ValueError(
                f"expected scale='exp' for {kind}, none of whose nets makes a deviation, got {self.scale!r}; leave it "
                "out"
            )

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of each layer of codes, first of the one that rows are drawn from, last of the prior's."""
        return (int(self.latent),)

    def make_recognition(self, spec: Spec) -> nn.Module:
        """What gives q(z | x) from rows as the encoder reads them, and their numbers."""
        if self.inference == "per-datum":
            return PerDatum(numbered(spec, f"{type(self).__name__}(inference='per-datum')"), self.layers[0])
        return Amortized(self.make_encoder(2 * self.layers[0]), self.scale)

    def make_encoder(self, outputs: int | tuple[int, ...]) -> nn.Module:
        """The net from rows to so many values."""
        read = Field(self._read_shape(), torch.get_default_dtype())
        return make_net(self.encoder, read, outputs, hidden=self.hidden, what="encoder")

    def make_generator(self, answer: int | tuple[int, ...]) -> nn.Module:
        """The net from codes, with the class behind them, to so many numbers of the laws, of all entries at once."""
        code = Field((self.layers[0] + self.given,), torch.get_default_dtype())
        return make_net(self.decoder, code, answer, hidden=tuple(reversed(tuple(self.hidden))), what="decoder")

    def make_prior(self) -> None:
        """What of p(z) is learned."""
        if isinstance(self.prior, Density):
            self.inner = built_prior(self.prior, self.layers[-1], type(self).__name__)
        elif self.prior is not None:
            self.mixing = Mixed(int(self.prior), self.layers[-1])

    def _read_shape(self) -> tuple[int, ...]:
        """Of what the encoder sees of a row."""
        if self.pictured:
            channels, *rest = self.shape
            return (channels * (2 if self.gaps else 1) + self.given, *rest)
        width = sum(law.width for law in self.entries.laws)
        return (width + self.given + (len(self.entries) if self.gaps else 0),)

    def _inputs(self, x: Tensor, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """Rows as the encoder reads them; x and observed are flat."""
        own = next(self.generator.parameters()).dtype
        parts = [self.entries.read(x).to(own)]
        if self.gaps:
            there = torch.ones_like(x, dtype=own) if observed is None else observed.to(own)
            wide = [there[:, j : j + 1].expand(-1, law.width) for j, law in enumerate(self.entries.laws)]
            parts = [parts[0] * (there if parts[0].shape == there.shape else torch.cat(wide, -1)), there]
        if self.pictured:
            parts = [part.unflatten(-1, self.shape) for part in parts]
        if y is not None:
            hot = self._hot(y, own)
            parts.append(hot[..., None, None].expand(-1, -1, *self.shape[1:]) if self.pictured else hot)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _hot(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return (y.reshape(-1, 1) == torch.arange(self.given, device=y.device)).to(dtype)

    def _told(self, y: Tensor | None) -> Tensor | None:
        if self.conditional != (y is not None):
            fix = "give y=..." if y is None else "leave it out, or make it with conditional=True"
            raise ValueError(
                f"expected {'a' if self.conditional else 'no'} class y for each row of {type(self).__name__}"
                f"(conditional={self.conditional}), got {'none' if y is None else 'one'}; {fix}"
            )
        return y

    # --- the model ----------------------------------------------------------------------------------------

    def _code(self, z: Tensor, y: Tensor | None) -> Tensor:
        """Codes with the class behind them, as the decoder reads them."""
        z = z[..., : self.layers[0]]
        if self._told(y) is None or y is None:
            return z
        hot = self._hot(y, z.dtype)
        return torch.cat([z, hot if z.dim() == 2 else hot.unsqueeze(1).expand(-1, z.shape[1], -1)], -1)

    def theta(self, z: Tensor, y: Tensor | None) -> Tensor:
        """The numbers of the laws given codes of `(n, K, latent)`, or `(n, latent)`."""
        out = self.generator(self._code(z, y).flatten(0, -2))
        if out.dim() == 4:
            channels, *rest = self.shape
            out = out.reshape(out.shape[0], channels, -1, *rest).movedim(2, -1).flatten(1)
        out = out.unflatten(0, z.shape[:-1])
        if not self._scales:
            return out
        if self.noise == "net":
            held = torch.zeros(self.entries.size, dtype=torch.bool, device=z.device)
            held[self._scales] = True
            return torch.where(held, log_scale_of(out, self.scale).clamp_min(_LEAST), out)
        own = self.log_noise.clamp_min(_LEAST) if self.noise == "shared" else out.new_tensor(math.log(self.noise))  # type: ignore[arg-type]
        plain = [i for i in range(self.entries.size) if i not in set(self._scales)]
        order = sorted(range(self.entries.size), key=[*plain, *self._scales].__getitem__)
        return torch.cat([out, own.expand(*out.shape[:-1], len(self._scales))], -1)[..., order]

    def log_prior(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if self.prior is None:
            return log_normal(z, torch.zeros_like(z), torch.zeros_like(z))
        if isinstance(self.prior, Density):
            return self.inner.log_prob(z.flatten(0, -2)).unflatten(0, z.shape[:-1])
        return self.mixing.log_prob(z)

    def log_given(self, x: Tensor, z: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        if isinstance(self.generator, Chained):
            return self.generator.log_prob(x, self._code(z, y), observed)
        flat = x.reshape(x.shape[0], 1, -1)
        logs = self.entries.log_prob(self.theta(z, y), flat)
        there = None if observed is None else observed.reshape(flat.shape)
        return (logs if there is None else torch.where(there, logs, 0)).sum(-1)

    def draw_prior(self, n: int, y: Tensor | None = None) -> Tensor:
        if self.prior is None:
            like = next(self.generator.parameters())
            return normal((n, self.layers[-1]), place="z", dtype=like.dtype)
        if isinstance(self.prior, Density):
            with place("prior"):
                drawn: Tensor = self.inner.sample(n)  # type: ignore[operator]
            return drawn
        return self.mixing.draw(n)

    def draw_given(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        if isinstance(self.generator, Chained):
            return self.generator.draw(self._code(z, y))
        return self.entries.draw(self.theta(z, y), "x").unflatten(-1, self.shape)

    def draw_rest(self, x: Tensor, observed: Tensor, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Rows whose gaps are drawn given the code; by a decoder that sees the entries before, given those too."""
        if isinstance(self.generator, Chained):
            return self.generator.complete(x, observed, self._code(z, y))
        return torch.where(observed, x, self.draw_given(z, y))

    def mean_given(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given z; of classes the likeliest, of a table's counts, true and false the nearest."""
        if isinstance(self.generator, Chained):
            mean = self.generator.mean(self._code(z, y))
        else:
            mean = self.entries.mean(self.theta(z, y)).unflatten(-1, self.shape)
        if not self.table:
            return mean
        whole = torch.tensor([not law.continuous for law in self.entries.laws], device=mean.device)
        return torch.where(whole, mean.round(), mean)

    def guess(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, index: Tensor | None = None
    ) -> Guess:
        """q(z | x); of rows that were not learned from, where each has its own, by a search."""
        there = None if observed is None else observed.reshape(x.shape[0], -1)
        flat = x.reshape(x.shape[0], -1)
        flat = flat if there is None else torch.where(there, flat, 0)
        q = self._guessed(self._inputs(flat, there, self._told(y)), index)
        if self.inference != "per-datum" or index is not None:
            return q
        return self.refine(q, x, observed, y, 300)

    def _guessed(self, inputs: Tensor, index: Tensor | None) -> Guess:
        """The guess, of rows as the encoder reads them."""
        q: Guess = self.recognition(inputs, index)
        return q

    def taken(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor | None, Guess]:
        """Rows of a batch, what is observed of them, their classes, and the guess of their codes."""
        x, observed = batch["x"], batch["observed"] if self.gaps else None
        x, y = x if observed is None else torch.where(observed, x, 0), batch["y"] if self.conditional else None
        return x, observed, y, self.guess(x, observed, y, batch["index"] if self.inference == "per-datum" else None)

    # --- answers ---------------------------------------------------------------------------------------

    def inverse_transform(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """The mean of x given z; of classes the likeliest, of a table's counts, true and false the nearest."""
        if tuple(z.shape[1:]) != (sum(self.layers),):
            raise ValueError(
                f"expected codes of {sum(self.layers)} numbers, as transform gives them, got shape {tuple(z.shape)}"
            )
        return self.mean_given(z, y)

    @capability(merge="share", kind="direct", asks="rows", rows=("missing",), gives="x")
    def impute(
        self,
        x: Tensor,
        observed: Tensor | None = None,
        y: Tensor | None = None,
        missing: Tensor | None = None,
        *,
        draws: int | None = None,
        steps: int | None = None,
    ) -> Tensor:
        """Rows whose gaps are drawn given the rest.

        With gaps=True the code is one of `draws` of the guess, in proportion to its weight given what is observed, and
        the rest is drawn from it: nearer to the model's conditional the more draws. Without, the guess is for whole
        rows: a chain of `steps` draws the code given the row and what is missing given the code (pseudo-Gibbs).

        Args:
            x: rows.
            observed: which entries are there, of a model with gaps=True.
            y: the class of each, of a conditional model.
            missing: True where an entry is to be drawn, of a model with gaps=False; without it nothing is.
            draws: of a model with gaps=True, 100 by default.
            steps: of a model with gaps=False, 100 by default.
        """
        idle, unread = ("steps", steps) if self.gaps else ("draws", draws)
        if unread is not None:
            raise ValueError(
                f"expected no {idle} for impute of {type(self).__name__}(gaps={self.gaps}), which takes "
                f"{'draws' if self.gaps else 'steps'} instead, got {unread!r}; leave them out"
            )
        draws, steps = 100 if draws is None else draws, 100 if steps is None else steps
        Whole(1).check(draws, "the draws of impute")
        Whole(1).check(steps, "the steps of impute")
        if missing is not None and self.gaps:
            raise ValueError(
                f"expected no missing for {type(self).__name__}(gaps=True), got one; give rows with gaps instead"
            )
        if missing is not None:
            if missing.shape != x.shape or missing.dtype != torch.bool:
                got = f"{missing.dtype} of shape {tuple(missing.shape)}"
                raise ValueError(f"expected missing as True or False for each entry, {tuple(x.shape)}, got {got}")
            self._refuse_gaps(~missing)
            drawn = torch.where(missing, self.sample(len(x), y), x)
            for _ in turns("impute", int(steps)):
                z = self.guess(drawn, None, y).draw(1, "code").squeeze(1)
                drawn = self.draw_rest(drawn, ~missing, z, y)
            return drawn
        if observed is None:
            return x
        x = torch.where(observed, x, 0)
        z = self.resampled(x, observed, y, int(draws))
        return self.draw_rest(x, observed, z, y)

    def _refuse_gaps(self, observed: Tensor | None) -> None:
        """Raises where a decoder by the chain rule would have to see what is missing."""
        if isinstance(self.generator, Chained):
            self.generator.density.refuse_gaps(observed)

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        flat: Batch = {n: rows[n].flatten(1) for n in ("x", "observed") if n in rows}
        super().refuse_rows({**rows, **flat}, training=training)
        self._refuse_gaps(flat.get("observed"))
