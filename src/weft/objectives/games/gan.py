"""Generative adversarial networks: a generator and a critic as the two players of a game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.configured import closest
from weft.core.corpus import Corpus
from weft.core.legal import WIDTHS, Choice, Whole
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import normal
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net

__all__ = ["GAN", "energy_distance"]

_BLOCK = 512  # rows whose pairs are looked at together: 512 x 512 distances at a time


class GAN(Objective):
    """Learns to sample: a generator plays against a critic that tells its samples from data.

    With D(x) = sigmoid(critic(x)) the probability that x is data, and one noise vector
    z_i ~ N(0, I) for each row x_i, the players' losses are

        critic:     -log D(x_i) - log(1 - D(G(z_i)))
        generator:  -log D(G(z_i))         (non_saturating)
                    log(1 - D(G(z_i)))     (minimax)

    Against a fixed generator with density q the best critic is D = p / (p + q), and the minimax game
    then is the generator's minimization of 2 JS(p, q) - log 4, least at q = p. The non-saturating
    loss has the same fixed point and a gradient that does not vanish while the critic wins.

    Losses of a game do not say how it goes; the progress measure is the energy distance between data
    and samples (see `energy_distance`).

    Args:
        latent: dimensions of the noise z.
        generator: an `nn.Module` from `latent` to a row's values, a factory, a name, or None for an MLP.
        critic: an `nn.Module` from a row to one logit, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLPs.
        critic_steps: the critic's moves for each of the generator's.
        loss: the generator's, `non_saturating` or `minimax`.

    References:
        Goodfellow, Pouget-Abadie, Mirza, Xu, Warde-Farley, Ozair, Courville and Bengio, "Generative
        adversarial networks", arXiv 1406.2661.

    Example:
        >>> from weft import Learner
        >>> from weft.data.gaussians import ring
        >>> game = Learner(GAN(latent=2, hidden=(32,)), steps=100, replicas=2, random_state=0)
        >>> game.fit(ring(1000)).sample(5).shape
        (5, 2)
    """

    players = ("critic", "generator")
    fields = ("x",)
    progress = ("energy_distance", "min")
    # As in Karras et al., arXiv 1710.10196: momentum makes the players chase each other in circles. On a ring
    # of 8 modes (deviation .05, 1,000 steps, 6 seeds) the median of modes found is 8; 2.5 with betas (.5, .9),
    # 1 with PyTorch's default.
    optimizer = Optimizer("adam", lr=1e-3, betas=(0.0, 0.99))
    legal = {
        "latent": Whole(1),
        "generator": NET,
        "critic": NET,
        "hidden": WIDTHS,
        "critic_steps": Whole(1),
        "loss": Choice("non_saturating", "minimax"),
    }

    def __init__(
        self,
        latent: int = 2,
        *,
        generator: NetLike = None,
        critic: NetLike = None,
        hidden: Sequence[int] = (128, 128),
        critic_steps: int = 1,
        loss: str = "non_saturating",
    ) -> None:
        super().__init__()
        self.latent = latent
        self.generator: Any = generator  # modules, once built
        self.critic: Any = critic
        self.hidden = hidden
        self.critic_steps = critic_steps
        self.loss = loss

    def build(self, spec: Spec) -> None:
        row = spec["x"]
        if not row.dtype.is_floating_point:
            raise ValueError(f"expected real-valued rows for GAN, got {row.dtype}; convert them with X.float()")
        noise = Field((int(self.latent),), row.dtype)
        self._row = row
        self.generator = make_net(self.generator, noise, row.shape, hidden=self.hidden, what="generator")
        self.critic = make_net(self.critic, row, 1, hidden=self.hidden, what="critic")

    def every(self, player: str) -> int:
        return self.critic_steps if player == "generator" else 1

    def forward(self, batch: Batch, player: str = "") -> Output:
        if player not in self.players:
            raise closest(player, self.players, "a player of GAN")
        x = batch["x"]
        fake = self._logit(self.sample(len(x)))
        if player == "critic":
            return Output(F.softplus(-self._logit(x)) + F.softplus(fake))
        return Output(F.softplus(-fake) if self.loss == "non_saturating" else -F.softplus(fake))

    def _logit(self, x: Tensor) -> Tensor:
        return self.critic(x).reshape(len(x))

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        x = batch["x"]
        return {
            **super().measure(batch),
            "energy_distance": energy_distance(x, self.sample(len(x)), batch.get("weight")),
        }

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Draws rows: G(z), z ~ N(0, I)."""
        z = normal((n, int(self.latent)), place="z", dtype=self._row.dtype)
        return self.generator(z).reshape(n, *self._row.shape)

    @capability(merge="mean")
    def discriminate(self, x: Tensor) -> Tensor:
        """D(x): the probability that a row is data rather than a sample."""
        return self._logit(x).sigmoid()

    @capability(merge="refuse", kind="estimate")  # a replica's is the ratio to its own generator's samples
    def ratio(self, x: Tensor) -> Tensor:
        """log p(x) / q(x), data over samples, as the critic has it: the logit of D, exact for the best critic."""
        return self._logit(x)


def energy_distance(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """The squared energy distance of two samples of one size, without bias.

        2 E|X - Y| - E|X - X'| - E|Y - Y'|,

    zero if and only if the distributions are equal. Means over pairs leave out i = j, so the estimate
    is unbiased: values slightly below zero are noise. Large samples are cut into blocks of 512 rows and
    the blocks' estimates averaged, which keeps it unbiased and the memory bounded.

    Args:
        x, y: rows, any shape but the same.
        weight: one for each row of x; where it is zero the row of y does not count either.

    References:
        Székely and Rizzo, "Energy statistics: a class of statistics based on distances", Journal of
        Statistical Planning and Inference 143, 2013.

    Example:
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> energy_distance(x, x + 10.0)
        tensor(16.)
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    x, y = x.flatten(1).to(wide), y.flatten(1).to(wide)
    weight = x.new_ones(len(x)) if weight is None else weight.to(wide)
    least = torch.finfo(wide).tiny

    def mean(a: Tensor, b: Tensor, p: Tensor, q: Tensor, same: bool) -> Tensor:
        # The fast way by inner products loses distances much smaller than the rows' norms.
        distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = p.sum() * q.sum() - ((p * q).sum() if same else 0.0)
        return torch.einsum("i,ij,j->", p, distance, q) / pairs.clamp_min(least)

    total = x.new_zeros(())
    for a, b, p in zip(x.split(_BLOCK), y.split(_BLOCK), weight.split(_BLOCK), strict=True):
        q = (p > 0).to(wide)
        block = 2.0 * mean(a, b, p, q, False) - mean(a, a, p, p, True) - mean(b, b, q, q, True)
        total = total + block * p.sum()
    return total / weight.sum().clamp_min(least)
