"""REPS: a policy fitted to the best one near the one that has played, which is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.corpus import Corpus
from weft.core.legal import Legal, Number
from weft.core.optimizer import Optimizer
from weft.core.source import Batch
from weft.nets.make import NetLike
from weft.objectives.control.policy import ActorCritic
from weft.sources.playing import Worlds
from weft.sources.segments import Segments

__all__ = ["REPS"]


class REPS(ActorCritic):
    """Learns a policy by fitting it to the best one near that which has played: relative entropy policy search.

    Of all policies q the one that earns most, less what it costs to be another than the policy p that has played, is

        argmax_q E_q[A] - temperature KL(q || p)    =    p(a | s) exp(A(s, a) / temperature) / Z(s),

    and the net learns it from the actions that p drew, each as likely as q has it, by least KL(q || pi):

        loss = - w log pi(a | s) + value_weight (V(s) - R)^2 - entropy_weight H(pi(. | s)),

        w = exp(A / temperature) / mean over the segment of exp(A / temperature),

    with generalized advantages A, standardized over the segment, and goals R = A + V(s) of the critic's. What depends
    on the state alone, as V(s) does, weighs the states and changes q in none of them. In place of a temperature a
    `radius` may be given: then each segment has the one at which KL(q || p) is that, the least of the dual

        temperature radius + temperature log mean exp(A / temperature).

    Args:
        policy, critic: nets with outputs for the actions and for one value; None for MLPs of tanh.
        hidden: hidden widths of the MLPs.
        temperature: what a nat of KL(q || p) costs, in deviations of the advantages where they are standardized; or
            None, beside a radius.
        radius: how far q may be from p, in nats; less than the logarithm of a segment's steps.
        discount: of later rewards.
        trace: lambda of the advantages.
        value_weight, entropy_weight: of the critic's error and of the entropy.
        normalize: whether advantages are standardized.
        deviation: of actions that are numbers, at the beginning.
        bounds: what becomes of actions beyond their bounds: `clip` or `squash`.
        memory: `rnn`, `gru` or `lstm`: the first hidden layer remembers. None for none.

    References:
        Peters, Mülling and Altün, "Relative entropy policy search", AAAI 2010 (its critic comes from the dual, here it
        is fitted to returns); Abdolmaleki et al., "Maximum a posteriori policy optimisation", arXiv 1806.06920; Peng,
        Kumar, Zhang and Levine, "Advantage-weighted regression", arXiv 1910.00177.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
        >>> objective = REPS()
        >>> learner = Learner(objective, steps=80, random_state=0).fit(objective.plays(bandit))
        >>> learner.act([[1.0]])
        array([1])
    """

    on_policy = False  # the weights make rows of the last segment right
    optimizer = Optimizer("adam", lr=3e-4, eps=1e-5)
    legal: ClassVar[dict[str, Legal]] = {
        "temperature": Number(0, ends="()") | None,
        "radius": Number(0, ends="()") | None,
    }

    def __init__(
        self,
        policy: NetLike = None,
        *,
        critic: NetLike = None,
        hidden: Sequence[int] = (64, 64),
        temperature: float | None = 1.0,
        radius: float | None = None,
        discount: float = 0.99,
        trace: float = 0.95,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalize: bool = True,
        deviation: float = 1.0,
        bounds: str = "clip",
        memory: str | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.hidden = hidden
        self.temperature = temperature
        self.radius = radius
        self.discount = discount
        self.trace = trace
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalize = normalize
        self.deviation = deviation
        self.bounds = bounds
        self.memory = memory

    def validate(self) -> None:
        super().validate()
        if (self.temperature is None) == (self.radius is None):
            raise ValueError(
                f"expected a temperature or a radius for REPS, one of which follows from the other, got "
                f"temperature={self.temperature}, radius={self.radius}; set one of them to None"
            )

    def credit(self, batch: Batch) -> Batch:
        found = super().credit(batch)
        counts = batch["mask"] if "mask" in batch else torch.ones_like(batch["reward"])
        gain, cost = found["advantage"], self.temperature
        temperature = temperature_of(gain, counts, self.radius) if cost is None else cost  # type: ignore[arg-type]
        return {**found, "share": tilted(gain, counts, temperature)}

    def actor_loss(self, batch: Batch, parts: dict[str, Tensor]) -> Tensor:
        return -batch["share"] * parts["log_prob"]

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        """As of all critics; and `heard`, 1 / mean w^2: the share of the steps from which the policy learns."""
        share = batch["share"]
        sums = {"share": self.row(share, batch), "squares": self.row(share.square(), batch)}
        sums["rows"] = torch.ones_like(sums["share"])
        return {**super().measure(batch), "heard": Corpus(sums=sums, conclude=_heard)}

    def plays(self, world: Worlds, **settings: Any) -> Segments:
        """Segments of 128 steps in 8 worlds side by side, in 10 passes of 4 updates; with a memory 4 passes of 4."""
        passes = {"passes": 10, "batch_size": 256} if self.memory is None else {"passes": 4, "batch_size": 2}
        return Segments(world, **{"envs": 8, "length": 128, **passes, **settings})


def tilted(gain: Tensor, counts: Tensor, temperature: Tensor | float) -> Tensor:
    """w = exp(gain / temperature) over its mean, where it counts; 0 elsewhere.

    >>> tilted(torch.tensor([0.0, 1.0]), torch.ones(2), 1 / torch.tensor(3.0).log())
    tensor([0.5000, 1.5000])
    """
    scaled = torch.where(counts > 0, gain / temperature, -math.inf)
    weight = (scaled - scaled.max()).exp() * counts
    return weight * counts.sum() / weight.sum()


def temperature_of(gain: Tensor, counts: Tensor, radius: float) -> Tensor:
    """The temperature at which KL(q || p) = mean w log w is the radius: the KL falls as the temperature rises."""
    if radius >= math.log(gain.numel()):
        raise ValueError(
            f"expected a radius below {math.log(gain.numel()):.3g} nats, as far as a policy of these {gain.numel()} "
            f"steps can be from the one that has played them, got {radius}; play longer segments, or take a smaller one"
        )
    mean = (gain * counts).sum() / counts.sum()
    spread = ((gain - mean).square() * counts).sum().div(counts.sum()).sqrt() + torch.finfo(gain.dtype).tiny ** 0.5
    low, high = spread.log() - 7.0, spread.log() + 14.0
    for _ in range(50):
        middle = (low + high) / 2
        weight = tilted(gain, counts, middle.exp())
        kl = torch.special.xlogy(weight, weight).sum() / counts.sum()
        low, high = torch.where(kl > radius, middle, low), torch.where(kl > radius, high, middle)
    return ((low + high) / 2).exp()


def _heard(n: dict[str, Tensor]) -> Tensor:
    return n["share"].square() / (n["squares"] * n["rows"])
