"""Codes of codes: the variational autoencoder with several layers of what is unseen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Several, Whole
from weft.core.objective import capability
from weft.core.random import normal
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.densities.density import Density
from weft.objectives.latent.explained import Guess, log_normal
from weft.objectives.latent.inference import log_scale_of
from weft.objectives.latent.vae import VAE

__all__ = ["HierarchicalVAE"]

_LEAST = math.log(1e-3)  # of a deviation between layers, as of a law's
Normals = tuple[Tensor, Tensor]
"""Means and log-deviations of normals."""


@dataclass(frozen=True)
class LayeredGuess(Guess):
    """q(z | x) = prod q(z_l | the layer drawn before it, x), layer by layer in an order.

    Attributes:
        mean, log_scale: `(n, all entries)`, along the chain that takes the mean of each layer: where q is not linear,
            its marginal means are others.
        sizes: the entries of each layer.
        order: the numbers of the layers as they are drawn.
        given: of a layer and the draws of the one before it (None at first), its `Normals`, `(n, draws, entries)`.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    given: Callable[[int, Tensor | None], Normals]

    def draw(self, draws: int, place: str) -> Tensor:
        """So many of each row, `(n, draws, all entries)`."""
        n, dtype = self.mean.shape[0], self.mean.dtype

        def drawn(layer: int, normals: Normals) -> Tensor:
            noise = normal((n, draws, self.sizes[layer]), place=f"{place} {layer}", dtype=dtype)
            return normals[0] + normals[1].exp() * noise

        return torch.cat(self._along(drawn)[0], -1)

    def log_prob(self, z: Tensor) -> Tensor:
        """log q of draws, `(n, draws)`."""
        layers = z.split(self.sizes, -1)
        found = self._along(lambda layer, normals: layers[layer])[1]
        return torch.stack([log_normal(own, *by) for own, by in zip(layers, found, strict=True)]).sum(0)

    def each(self, z: Tensor) -> list[Normals]:
        """Of each layer, its normals given draws of the others."""
        layers = z.split(self.sizes, -1)
        return self._along(lambda layer, normals: layers[layer])[1]

    def _along(self, take: Callable[[int, Normals], Tensor]) -> tuple[list[Tensor], list[Normals]]:
        """What is taken of each layer, and its normals given what was taken of the one before."""
        return chain(self.order, self.given, take)

    def each_rate(self) -> Tensor:
        raise NotImplementedError("the rate of a chain of layers depends on its draws: ask HierarchicalVAE.each_rate")

    def detached(self) -> Guess:
        raise NotImplementedError("a chain of layers is no constant: its layers depend on each other's draws")


def chain(
    order: Sequence[int], given: Callable[[int, Tensor | None], Normals], take: Callable[[int, Normals], Tensor]
) -> tuple[list[Tensor], list[Normals]]:
    """Layer by layer in an order: what is taken of each, and its normals given what was taken of the one before."""
    taken: dict[int, Tensor] = {}
    normals: dict[int, Normals] = {}
    before = None
    for layer in order:
        normals[layer] = given(layer, before)
        before = taken[layer] = take(layer, normals[layer])
    return [taken[layer] for layer in sorted(taken)], [normals[layer] for layer in sorted(normals)]


class HierarchicalVAE(VAE):
    """Codes in layers: the code of a row is itself drawn from a code, and so on up to the prior.

        p(x, z) = p(z_L) prod_{l < L} N(z_l; m_l(z_{l+1}), s_l(z_{l+1})^2) p(x | z_1)

    `inference="bottom-up"` guesses q(z | x) = q(z_1 | x) q(z_2 | z_1) ... q(z_L | z_{L-1}). `top-down` guesses the top
    first, as the model draws: one net says of each layer what the row tells of it, N(a_l(x), b_l(x)^2), and

        q(z_l | z_{l+1}, x) ~ N(z_l; a_l(x), b_l(x)^2) N(z_l; m_l(z_{l+1}), s_l(z_{l+1})^2)

    is its product with what the model expects, so that a row which tells nothing leaves a layer as the model has it:
    the ladder. Its rate is a sum of closed forms given the layers above; that of `bottom-up` an average over draws.
    `rates(X)` tells the rate of each layer: upper layers that bottom-up inference leaves unused have none.

    A code is all layers one after another, z_1 first. `transform` takes the mean of each layer given the mean of the
    one before it.

    Args:
        latent: the entries of each layer, z_1 first.
        between: of the nets between layers, a name or a factory; None for an MLP of `hidden` widths.
        inference: `bottom-up` or `top-down`. The encoder gives 2 values for each entry of z_1, or of all layers.
        prior: of z_L, see `weft.objectives.latent.coded.Coded`.
        hidden, encoder, decoder, law, classes, parts, noise, scale, conditional, gaps: see
            `weft.objectives.latent.coded.Coded`.
        draws, bound, beta, warm_up, free_bits: see `weft.objectives.latent.vae.VAE`.

    References:
        Rezende, Mohamed and Wierstra, "Stochastic backpropagation", arXiv 1401.4082.
        Soenderby, Raiko, Maaloe, Soenderby and Winther, "Ladder variational autoencoders", arXiv 1602.02282.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> X = np.random.default_rng(0).normal(size=(200, 3)) @ np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0.1]])
        >>> learner = Learner(HierarchicalVAE((3, 1), hidden=(16,)), steps=50, random_state=0).fit(X)
        >>> learner.transform(X[:5]).shape, learner.rates(X[:5]).shape, learner.sample(5, random_state=0).shape
        ((5, 4), (5, 2), (5, 3))
    """

    refines = False
    space = {"beta": Range(0.1, 10, log=True)}
    legal = {
        "latent": Several("the entries of two layers or more, such as (8, 4)", Whole(1), least=2),
        "between": NET,
        "inference": Choice("bottom-up", "top-down"),
    }

    def __init__(
        self,
        latent: Sequence[int] = (8, 4),
        *,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        between: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 1,
        noise: str | float = "net",
        scale: str = "exp",
        prior: int | Density | None = None,
        inference: str = "top-down",
        draws: int = 1,
        bound: str = "elbo",
        beta: float = 1.0,
        warm_up: int = 0,
        free_bits: float = 0.0,
        conditional: bool = False,
        gaps: bool = False,
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
            inference=inference,
            draws=draws,
            bound=bound,
            beta=beta,
            warm_up=warm_up,
            free_bits=free_bits,
            conditional=conditional,
            gaps=gaps,
        )
        self.between = between

    def validate(self) -> None:
        super().validate()
        if isinstance(self.given_net("between"), nn.Module):
            raise ValueError(
                "expected a name or a factory for the nets between the layers of HierarchicalVAE, of which there are "
                "several, got one module; give a factory: lambda inputs, outputs: ..."
            )

    # --- nets ---------------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(int(entries) for entries in self.latent)  # type: ignore[attr-defined]

    def build(self, spec: Spec) -> None:
        super().build(spec)
        sizes = self.layers
        self.downs = nn.ModuleList(map(self._net, sizes[1:], sizes[:-1]))
        if self.inference == "bottom-up":
            self.ups = nn.ModuleList(map(self._net, sizes[:-1], sizes[1:]))

    def _net(self, inputs: int, entries: int) -> nn.Module:
        """From a layer to the normals of the next."""
        field = Field((inputs,), torch.get_default_dtype())
        return make_net(self.between, field, 2 * entries, hidden=self.hidden, what="net between layers")

    def make_recognition(self, spec: Spec) -> nn.Module:
        return self.make_encoder(2 * sum(self._told_layers()))

    def _told_layers(self) -> tuple[int, ...]:
        """The entries of the layers that the encoder speaks of."""
        return self.layers if self.inference == "top-down" else self.layers[:1]

    def _guessed(self, inputs: Tensor, index: Tensor | None) -> LayeredGuess:
        mean, raw = self.recognition(inputs).unsqueeze(1).chunk(2, -1)
        sizes, count = self._told_layers(), len(self.layers)
        told = list(zip(mean.split(sizes, -1), log_scale_of(raw, self.scale).split(sizes, -1), strict=True))

        def climbing(layer: int, before: Tensor | None) -> Normals:
            return told[0] if before is None else self.normals(self.ups[layer - 1], before)

        def descending(layer: int, before: Tensor | None) -> Normals:
            return told[layer] if before is None else _product(told[layer], self.below(layer, before))

        order, given = tuple(range(count)), climbing
        if self.inference == "top-down":
            order, given = order[::-1], descending
        means, normals = chain(order, given, lambda layer, own: own[0])
        scales = torch.cat([own[1] for own in normals], -1).squeeze(1)
        return LayeredGuess(torch.cat(means, -1).squeeze(1), scales, self.layers, order, given)

    def normals(self, net: nn.Module, z: Tensor) -> Normals:
        """What a net between layers says of codes, `(n, draws, entries)`."""
        mean, raw = net(z.flatten(0, -2)).unflatten(0, z.shape[:-1]).chunk(2, -1)
        return mean, log_scale_of(raw, self.scale).clamp_min(_LEAST)

    def below(self, layer: int, above: Tensor) -> Normals:
        """p(z_l | z_{l+1}), of layers numbered from 0."""
        return self.normals(self.downs[layer], above)

    # --- the model ----------------------------------------------------------------------------------------

    def log_prior(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        layers = z.split(self.layers, -1)
        found = super().log_prior(layers[-1], y)
        for layer, (own, above) in enumerate(pairwise(layers)):
            found = found + log_normal(own, *self.below(layer, above))
        return found

    def draw_prior(self, n: int, y: Tensor | None = None) -> Tensor:
        drawn = [super().draw_prior(n, y)]
        for layer in reversed(range(len(self.layers) - 1)):
            mean, log_scale = self.below(layer, drawn[0])
            noise = normal(tuple(mean.shape), place=f"layer {layer}", dtype=mean.dtype)
            drawn.insert(0, mean + log_scale.exp() * noise)
        return torch.cat(drawn, -1)

    def refine(self, q: Guess, x: Tensor, observed: Tensor | None, y: Tensor | None, steps: int) -> Guess:
        raise ValueError(
            f"expected refine=0 for HierarchicalVAE, whose guess is a chain of nets and has no numbers of its own for "
            f"a row, got {steps}; leave it out"
        )

    # --- the rate -----------------------------------------------------------------------------------------

    def each_rate(self, q: Guess, z: Tensor, y: Tensor | None) -> Tensor:
        if not isinstance(q, LayeredGuess):
            raise TypeError(f"expected a guess in layers, got {type(q).__name__}")
        layers, found = z.split(self.layers, -1), []
        for layer, (own, guessed) in enumerate(zip(layers, q.each(z), strict=True)):
            if layer < len(layers) - 1:
                expected = self.below(layer, layers[layer + 1])
            elif self.prior is None:
                expected = torch.zeros_like(own), torch.zeros_like(own)
            else:
                found.append((log_normal(own, *guessed) - super().log_prior(own, y)).unsqueeze(-1))
                continue
            if self.inference == "top-down":
                found.append(_divergence(guessed, expected))
            else:  # what a layer is expected to be is known after the guess of it: no closed form
                found.append(_log_normals(own, *guessed) - _log_normals(own, *expected))
        return torch.cat(found, -1).mean(1)

    @capability(merge="mean", kind="estimate")
    def rates(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 8) -> Tensor:
        """The rate of each layer, in nats, z_1 first: they sum to the rate."""
        Whole(1).check(draws, "the draws of rates")
        q = self.guess(x, observed, y)
        return self._by_layer(self.each_rate(q, q.draw(int(draws), "z"), y))

    def _by_layer(self, each: Tensor) -> Tensor:
        sizes = self.layers if self.prior is None else (*self.layers[:-1], 1)
        return torch.stack([own.sum(-1) for own in each.split(sizes, -1)], -1)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, the distortion and the rate, that of each layer too."""
        found = super().measure(batch)
        _, _, y, q = self.taken(batch)
        rates = self._by_layer(self.each_rate(q, q.draw(1, "measured"), y))
        return {**found, **{f"rate_{layer + 1}": rates[:, layer] for layer in range(len(self.layers))}}


def _log_normals(z: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """log N of each entry."""
    return log_normal(z.unsqueeze(-1), mean.unsqueeze(-1), log_scale.unsqueeze(-1))


def _divergence(q: Normals, p: Normals) -> Tensor:
    """KL(q || p) of each entry: log s_p / s_q + (s_q^2 + (m_q - m_p)^2) / (2 s_p^2) - 1 / 2."""
    ratio = q[1] - p[1]
    return 0.5 * (torch.expm1(2 * ratio) + ((q[0] - p[0]) * torch.exp(-p[1])) ** 2) - ratio


def _product(one: Normals, other: Normals) -> Normals:
    """The normal that is in proportion to the product of two: precisions are added, means weighted by them."""
    share = torch.sigmoid(2 * (other[1] - one[1]))
    log_scale = -0.5 * torch.logaddexp(-2 * one[1], -2 * other[1])
    return share * one[0] + (1 - share) * other[0], log_scale
