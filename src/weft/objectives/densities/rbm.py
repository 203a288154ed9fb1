"""Restricted Boltzmann machines: bits that depend on each other through hidden ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.corpus import Corpus
from weft.core.legal import Choice, Whole
from weft.core.objective import Capability, Output, Solution, capability
from weft.core.optimizer import Optimizer
from weft.core.random import bernoulli, turns, uniform
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.objectives.densities.annealing import ais
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import laws_of
from weft.objectives.densities.rows import all_rows, weights_of

__all__ = ["RBM", "Units"]

_BLOCK = 4096  # states that are summed over at a time
_MOST = 24  # units whose states can be summed over within minutes: 16.8 million


class Units(nn.Module):
    """The joint density of visible and hidden bits, up to its normalizer, and the families that temper it.

        log p*(v, h) = a.v + v.W h + c.h,      log p*(v) = -F(v) = a.v + sum_j log(1 + exp(c_j + v.W_j))

    Args:
        visible, hidden: how many.
        base: logits of independent bits, where tempering begins.
    """

    base: Tensor

    def __init__(self, visible: int, hidden: int, base: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(visible, hidden))
        self.a = nn.Parameter(torch.empty(visible))
        self.c = nn.Parameter(torch.empty(hidden))
        self.register_buffer("base", base)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small weights, so that the hidden units begin nearly alike, and no biases."""
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.a)
        nn.init.zeros_(self.c)

    def free_energy(self, v: Tensor) -> Tensor:
        """F(v) = -log sum_h p*(v, h)."""
        return -(v @ self.a) - F.softplus(v @ self.weight + self.c).sum(-1)

    def gibbs(self, v: Tensor, *, shared: bool = False) -> Tensor:
        """The hidden bits given the visible ones, then these given those; gradients do not run through it."""
        return self._sweep(v, 1.0, shared)

    def _sweep(self, v: Tensor, beta: Tensor | float, shared: bool) -> Tensor:
        weight, a, c = self.weight.detach(), self.a.detach(), self.c.detach()
        h = bernoulli((beta * (v @ weight + c)).sigmoid(), place="h", shared=shared)
        return bernoulli(((1 - beta) * self.base + beta * (a + h @ weight.T)).sigmoid(), place="v", shared=shared)

    def log_normalizer(self) -> Tensor:
        """log Z, summed over all states of the smaller side.

        Raises:
            ValueError: where there are too many.
        """
        visible, hidden = self.weight.shape
        if min(visible, hidden) > _MOST:
            raise ValueError(
                f"expected at most {_MOST} units on the smaller side to sum over all of their states, got {visible} "
                f"visible and {hidden} hidden ones; estimate log Z by weft.objectives.densities.ais"
            )
        if hidden <= visible:
            weight, own, other = self.weight.T, self.c, self.a
        else:
            weight, own, other = self.weight, self.a, self.c
        total = own.new_full((), -math.inf)
        for first in range(0, 2 ** len(own), _BLOCK):
            number = torch.arange(first, min(first + _BLOCK, 2 ** len(own)), device=own.device)
            bits = (number[:, None] >> torch.arange(len(own), device=own.device) & 1).to(own.dtype)
            logs = bits @ own + F.softplus(bits @ weight + other).sum(-1)
            total = torch.logaddexp(total, torch.logsumexp(logs, 0))
        return total

    # --- tempered, for annealed importance sampling: see `weft.objectives.densities.annealing.Tempered` -------------

    def log_base(self) -> Tensor:
        return F.softplus(self.base).sum() + len(self.c) * math.log(2)

    def draw_base(self, n: int) -> Tensor:
        return bernoulli(self.base.sigmoid().expand(n, -1), place="base", shared=True)

    def log_tempered(self, v: Tensor, beta: Tensor) -> Tensor:
        hidden = F.softplus(beta * (v @ self.weight + self.c)).sum(-1)
        return (1 - beta) * (v @ self.base) + beta * (v @ self.a) + hidden

    def move(self, v: Tensor, beta: Tensor) -> Tensor:
        return self._sweep(v, beta, shared=True)


class RBM(Density):
    """A restricted Boltzmann machine: bits that are independent given hidden bits, and the other way round.

        p(v) = exp(-F(v)) / Z,      F(v) = -a.v - sum_j log(1 + exp(c_j + v.W_j))

    The gradient of -log p(v) is that of F(v) less its mean under the model, which is estimated by chains of Gibbs
    sampling. The loss of a row is F(v) less the free energy at the chains' end, with the chains held fixed:

        chains="data"         F(v_i) - F(v_i^(k)),  k steps from the row itself: contrastive divergence (CD-k). It does
                              not follow the likelihood's gradient, nor that of any function, but is near it
        chains="persistent"   F(v_i) - mean_p F(u_p),  chains u that go on from step to step and follow the model

    The loss does not say how training goes; the progress measure is the pseudo-likelihood, the number of bits times
    log p(bit | the others) at one bit of each row.

    `log_prob` is exact where the smaller side has at most `enumerate` units, log Z being a sum over their states; else
    it is an estimate, log Z by annealed importance sampling, and says so: `learner.log_prob.kind`.

    Args:
        hidden: hidden units.
        chains: where the chains begin, `data` or `persistent`.
        k: steps of Gibbs sampling for each step of training.
        particles: how many persistent chains there are.
        enumerate: the largest smaller side whose states are summed over, at most 24.
        temperatures, annealed: of the estimate otherwise: temperatures, and chains.

    References:
        Smolensky, "Information processing in dynamical systems: foundations of harmony theory", in Parallel
        Distributed Processing 1, 1986.
        Hinton, "Training products of experts by minimizing contrastive divergence", Neural Computation 14, 2002.
        Tieleman, "Training restricted Boltzmann machines using approximations to the likelihood gradient", ICML 2008.
        Salakhutdinov and Murray, "On the quantitative analysis of deep belief networks", ICML 2008.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> coin = np.random.default_rng(0).integers(0, 2, (200, 1))
        >>> X = np.concatenate([coin, coin, 1 - coin], 1).astype(float)  # the third bit is another than the first two
        >>> rbm = Learner(RBM(4, chains="persistent"), steps=500, random_state=0).fit(X)
        >>> rbm.log_prob.kind, bool(rbm.log_prob([[1.0, 1.0, 0.0]])[0] > np.log(0.4))
        ('exact', True)
        >>> rbm.impute([[0.0, 1.0, 0.0]], missing=[[True, False, False]], random_state=0)
        array([[1., 1., 0.]], dtype=float32)
    """

    fantasies: Tensor
    likelihood = False
    progress = ("pseudo_log_prob", "max")
    optimizer = Optimizer("adam", lr=0.01)
    space = {"hidden": Range(4, 512, log=True, whole=True)}
    legal = {
        "hidden": Whole(1),
        "chains": Choice("data", "persistent"),
        "k": Whole(1),
        "particles": Whole(1),
        "enumerate": Whole(0, _MOST),
        "temperatures": Whole(2),
        "annealed": Whole(2),
    }

    def __init__(
        self,
        hidden: int = 64,
        *,
        chains: str = "data",
        k: int = 1,
        particles: int = 100,
        enumerate: int = 16,
        temperatures: int = 1000,
        annealed: int = 100,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.chains = chains
        self.k = k
        self.particles = particles
        self.enumerate = enumerate
        self.temperatures = temperatures
        self.annealed = annealed

    def validate(self) -> None:
        super().validate()
        if self.chains == "data" and self.particles != 100:
            raise ValueError(
                f"expected particles beside chains='persistent', got {self.particles!r} beside chains='data', where "
                "each row has a chain of its own; leave it out"
            )

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("units.base", "fantasies") if self.chains == "persistent" else ("units.base",)

    def build(self, spec: Spec) -> None:
        self._laws = laws_of(spec["x"], "bernoulli")
        visible = len(self._laws)
        self.units = Units(visible, int(self.hidden), torch.zeros(visible))
        if self.chains == "persistent":
            particles = int(self.particles)  # begun as alternating bits: wherever they begin, they follow the model
            parity = torch.arange(particles)[:, None] + torch.arange(visible)
            self.register_buffer("fantasies", (parity % 2).to(torch.get_default_dtype()))

    def survey(self, source: Source, state: State) -> Solution:
        """Refuses rows that are no bits; the base rates are where tempering, and chains that sample, begin."""
        rows = all_rows(source, state)
        self._laws.refuse(rows["x"])
        x, weight = rows["x"].double(), weights_of(rows).double()
        ones = (weight @ x + 0.5) / (weight.sum() + 1)
        return {"units.base": torch.logit(ones)}

    def capabilities(self) -> dict[str, Capability]:
        marks = super().capabilities()
        exact = self._summed if hasattr(self, "units") else int(self.hidden) <= self.enumerate
        return {**marks, "log_prob": replace(marks["log_prob"], kind="exact" if exact else "estimate")}

    @property
    def _summed(self) -> bool:
        """Whether log Z is a sum over all states of the smaller side."""
        return min(self.units.weight.shape[-2:]) <= self.enumerate

    def forward(self, batch: Batch, player: str = "") -> Output:
        x = self._bits(batch["x"])
        if self.chains == "data":
            end = x
            for _ in turns("chain", int(self.k)):
                end = self.units.gibbs(end)
            return Output(self.units.free_energy(x) - self.units.free_energy(end.detach()))
        if self.training:  # one draw for all rows: a part of the batch leaves the chains as the whole does
            end = self.fantasies
            for _ in turns("chain", int(self.k)):
                end = self.units.gibbs(end, shared=True)
            self.fantasies = end.detach()
        return Output(self.units.free_energy(x) - self.units.free_energy(self.fantasies).mean())

    def measure(self, batch: Batch) -> Mapping[str, Tensor | Corpus]:
        x = self._bits(batch["x"])
        columns = x.shape[1]
        bit = (uniform((len(x),), place="bit", dtype=x.dtype) * columns).long().clamp_max(columns - 1)
        flipped = torch.where(torch.arange(columns, device=x.device) == bit[:, None], 1 - x, x)
        other = self.units.free_energy(flipped) - self.units.free_energy(x)
        return {**super().measure(batch), "pseudo_log_prob": columns * F.logsigmoid(other)}

    def _bits(self, x: Tensor) -> Tensor:
        return x.to(self.units.weight.dtype)

    def _asked(self, x: Tensor) -> Tensor:
        """Rows that somebody asks about, which may be no bits."""
        held = x
        while torch._C._functorch.is_batchedtensor(held):  # rows of replicas that each have their own
            held = torch._C._functorch.get_unwrapped(held)
        self._laws.refuse(held)
        return self._bits(x)

    def log_unnormalized(self, x: Tensor) -> Tensor:
        """log p(x) up to a constant: -F(x)."""
        return -self.units.free_energy(self._bits(x))

    def log_normalizer(self) -> Tensor:
        """log Z: a sum over all states, or an estimate of which no row's draws are part."""
        if self._summed:
            return self.units.log_normalizer()
        return ais(self.units, chains=int(self.annealed), temperatures=int(self.temperatures)).log_normalizer

    @capability(merge="logmeanexp", kind="estimate", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) = -F(x) - log Z, exact or with an estimate of log Z, as its kind says."""
        return -self.units.free_energy(self._asked(x)) - self.log_normalizer()

    @capability(merge="mean")
    def free_energy(self, x: Tensor) -> Tensor:
        """F(x) = -log p(x) - log Z: of two rows, the one with the lower is the likelier."""
        return self.units.free_energy(self._asked(x))

    @capability(merge="refuse")
    def transform(self, x: Tensor) -> Tensor:
        """The probability of each hidden unit given a row."""
        return (self._asked(x) @ self.units.weight + self.units.c).sigmoid()

    @capability(merge="share", kind="chain")
    def sample(self, n: int, *, steps: int = 200) -> Tensor:
        """Draws rows, each by a chain of its own that begins at the base rates and takes so many steps."""
        Whole(1).check(steps, "the steps of sample")
        v = bernoulli(self.units.base.sigmoid().expand(n, -1), place="base")
        for _ in turns("sample", steps):
            v = self.units.gibbs(v)
        return v

    @capability(merge="share", kind="chain", asks="rows", rows=("missing",))
    def impute(self, x: Tensor, missing: Tensor, *, steps: int = 200) -> Tensor:
        """Draws what is missing given the other bits, by a chain in which those stay as they are.

        Args:
            x: rows, with anything in place of what is missing.
            missing: of their shape, True where a bit is to be drawn.
            steps: of the chain.
        """
        Whole(1).check(steps, "the steps of impute")
        if missing.shape != x.shape or missing.dtype != torch.bool:
            raise ValueError(
                f"expected missing as True or False for each bit, of shape {tuple(x.shape)}, got {missing.dtype} of "
                f"shape {tuple(missing.shape)}"
            )
        known = self._asked(torch.where(missing, torch.zeros_like(x), x))
        v = torch.where(missing, bernoulli(self.units.base.sigmoid().expand(x.shape), place="base"), known)
        for _ in turns("impute", steps):
            v = torch.where(missing, self.units.gibbs(v), known)
        return v
