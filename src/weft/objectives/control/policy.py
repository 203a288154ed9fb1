"""Policies: what objectives share that learn by the actions they draw, and what those share that judge them as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Independent

from weft.core.corpus import Corpus
from weft.core.legal import WIDTHS, Choice, Flag, Legal, Number
from weft.core.objective import Objective, Output, capability
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.nets.recurrent import Cell
from weft.objectives.control.actions import Law, Normals, law_of
from weft.objectives.control.advantage import generalized_advantage, standardized

__all__ = ["ActorCritic", "Policy", "over_rows"]

Memory = dict[str, Tensor]
STEPS = ("observation", "action", "reward", "next_observation", "terminated", "truncated")


class Deviating(nn.Module):
    """A net that tells means, and beside them the logarithms of deviations that are the same in all states.

    Args:
        net: from rows to means.
        entries: how many.
        deviation: at the beginning.
    """

    def __init__(self, net: nn.Module, entries: int, deviation: float) -> None:
        super().__init__()
        self.net, self.deviation = net, deviation
        self.log = nn.Parameter(torch.empty(entries))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The deviation that is given."""
        nn.init.constant_(self.log, math.log(self.deviation))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.net(x)
        return torch.cat([mean, self.log.expand_as(mean)], -1)


class Policy(Objective):
    """A policy pi(a | s): a net whose answer is read by the law of the world's actions (`law_of`).

    Classes and several choices are told by logits; numbers by a normal whose mean the net gives, and whose deviation
    is one for all states, learned beside it. Where the world says which actions are legal, no other is ever drawn.
    """

    provides: frozenset[str] = frozenset({"logits", "distribution"})
    laws: frozenset[str] = frozenset({"categorical"})
    progress = ("return", "max")
    default: ClassVar[NetLike] = "mlp(activation='tanh', init='orthogonal', gain=0.01)"
    """The net where the user gives none: a mean, or logits, near zero at first."""
    played_by: ClassVar[str] = "Segments"
    """The source that the message for arrays names."""
    legal: ClassVar[dict[str, Legal]] = {
        "policy": NET,
        "hidden": WIDTHS,
        "discount": Number(0, 1),
        "deviation": Number(0, ends="()"),
        "bounds": Choice("clip", "squash"),
    }
    law: Law
    masks: bool
    rank: int
    policy: Any
    hidden: Sequence[int]
    discount: float
    deviation: float
    bounds: str

    def build_policy(self, spec: Spec, inputs: Field, hidden: Sequence[int]) -> None:
        """The law and the net, from rows like `inputs`."""
        name = type(self).__name__
        if "observation" not in spec or "action" not in spec:
            raise ValueError(
                f"expected {'trajectories' if self.played_by == 'Rollouts' else 'play'} for {name}, got arrays; call "
                f"fit({self.played_by}(environment))"
            )
        self.law, self.masks = law_of(spec["action"], bounds=self.bounds), "legal" in spec  # type: ignore[arg-type]
        self.laws = frozenset({self.law.name})
        if self.masks:
            self.fields = (*self.fields, "legal")
        numbers = isinstance(self.law, Normals)
        if not numbers and (self.bounds, self.deviation) != ("clip", 1.0):
            raise ValueError(
                f"expected actions that are numbers for {name}(bounds={self.bounds!r}, deviation={self.deviation}), "
                f"got {spec['action']}, whose draws have neither; leave them out"
            )
        self.rank = len(inputs.shape)
        size = self.law.entries if isinstance(self.law, Normals) else self.law.size
        net = self.default if self.policy is None else self.policy
        made = make_net(net, inputs, size, hidden=hidden, what="policy")
        self.policy = Deviating(made, size, self.deviation) if numbers else made

    def build(self, spec: Spec) -> None:
        self.build_policy(spec, spec["observation"] if "observation" in spec else spec["x"], self.hidden)

    def told(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """What the law reads, of rows with any number of leading axes."""
        if self.masks and legal is None:
            raise ValueError(
                f"expected legal, (n, {self.law.size}), beside what {type(self).__name__} observes, as its world says "
                "which actions are legal, got none; give legal=..."
            )
        return self.law.masked(over_rows(self.policy, observation, self.rank, self.law.size), legal)

    def distribution(self, output: Output) -> Any:
        """pi(a | s), of a stretch of all its actions; of numbers, before they are squashed or clipped."""
        if output.logits is None:
            raise ValueError("expected an output with logits, got one without")
        told = self.law.distribution(output.logits)
        if not self.trajectories:
            return told
        if isinstance(told, Independent):
            return Independent(told.base_dist, told.reinterpreted_batch_ndims + 1)
        return Independent(told, 1)

    def sample_action(self, observation: Tensor, *, legal: Tensor | None = None) -> Any:
        """An action for each row, drawn from the policy."""
        return self.law.sample(self.told(observation, legal))

    @capability(merge="refuse")
    def act(self, observation: Tensor, *, legal: Tensor | None = None) -> Any:
        """The policy's most probable action for each row; of numbers, that of their mean."""
        return self.law.best(self.told(observation, legal))


class ActorCritic(Policy):
    """A policy (the actor) beside a net that tells what a state is worth (the critic).

    `credit` gives each step of what was played together its generalized advantage A, the goal A + V(s) that the critic
    learns, and what the policy told. A state in which an episode has `terminated` is worth nothing; one at which it was
    cut (`truncated`), or at which a segment ends, is worth what the critic says.

    With `memory` the first hidden layer is a recurrent one, which actor and critic share: rows are whole stretches of
    play, and what is remembered is forgotten where an episode ends within one.
    """

    fields: tuple[str, ...] = STEPS
    legal: ClassVar[dict[str, Legal]] = {
        "critic": NET,
        "trace": Number(0, 1),
        "value_weight": Number(0),
        "entropy_weight": Number(0),
        "normalize": Flag(),
        "memory": Choice("rnn", "gru", "lstm") | None,
    }
    critic: Any
    trace: float
    value_weight: float
    entropy_weight: float
    normalize: bool
    memory: str | None

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    @property
    def trajectories(self) -> bool:  # type: ignore[override]
        """Whether its rows are stretches of play: where it has a memory."""
        return self.memory is not None

    @property
    def remembers(self) -> bool:
        """Whether it acts by what it remembers."""
        return self.memory is not None

    def build(self, spec: Spec) -> None:
        inputs, hidden = spec.get("observation", Field((1,), torch.float32)), tuple(self.hidden)
        if self.memory is not None:
            if not hidden:
                raise ValueError(f"expected a hidden width for {type(self).__name__}'s memory, got hidden={hidden}")
            self.cell = Cell(math.prod(inputs.shape), hidden[0], self.memory)
            inputs, hidden = Field((hidden[0],), torch.float32), hidden[1:]
            self.fields = (*self.fields, *(f"memory_{name}" for name in self.start(1)))
        self.build_policy(spec, inputs, hidden)
        critic = "mlp(activation='tanh', init='orthogonal')" if self.critic is None else self.critic
        self.critic = make_net(critic, inputs, 1, hidden=hidden, what="critic")

    # --- what it remembers ----------------------------------------------------------------------------

    def start(self, count: int) -> Memory:
        """Nothing yet."""
        like = next(self.cell.parameters())
        return self._named(self.cell.start(like.new_zeros(count, 1)))

    @staticmethod
    def _named(state: tuple[Tensor, ...]) -> Memory:
        return dict(zip(("hidden", "cell"), state, strict=False))

    def _recalled(self, observation: Tensor, memory: Memory | None) -> tuple[Tensor, Memory | None]:
        """What the nets read of one observation, and what is remembered after it."""
        if self.memory is None:
            return observation, None
        if memory is None:
            raise ValueError(
                f"expected what {type(self).__name__} remembers beside what it observes, got none; give memory=..., at "
                "an episode's beginning that of start(count)"
            )
        state = self.cell.step(self.cell.reads(observation.flatten(1)), tuple(memory.values()))
        return state[0], self._named(state)

    def features(self, batch: Batch, *, after: bool) -> tuple[Tensor, Tensor]:
        """What the nets read at each step of a batch, and at what was observed `after` it where that is asked."""
        seen, then = batch["observation"], batch["next_observation" if after else "observation"]
        if self.memory is None:
            return seen, then
        over = (batch["terminated"] | batch["truncated"]).unsqueeze(-1)
        state = tuple(batch[f"memory_{name}"][:, 0] for name in self.start(1))
        states: list[tuple[Tensor, ...]] = []
        for t, read in enumerate(self.cell.reads(seen.flatten(2)).unbind(1)):
            if t:
                state = tuple(torch.where(over[:, t - 1], 0.0, part) for part in state)
            state = self.cell.step(read, state)
            states.append(state)
        held = tuple(torch.stack(parts, 1) for parts in zip(*states, strict=True))
        return held[0], self.cell.step(self.cell.reads(then.flatten(2)), held)[0] if after else held[0]

    # --- what it says ---------------------------------------------------------------------------------

    def values(self, features: Tensor) -> Tensor:
        """What the critic tells, of rows with any number of leading axes."""
        return over_rows(self.critic, features, self.rank, 1).squeeze(-1)

    def credit(self, batch: Batch) -> Batch:
        seen, after = self.features(batch, after=True)
        value, then = self.values(seen), self.values(after)
        ended, over = batch["terminated"], batch["terminated"] | batch["truncated"]
        step = {"discount": self.discount, "trace": self.trace}
        advantage = generalized_advantage(batch["reward"], value, then, terminated=ended, over=over, **step)
        told = self.told(seen, batch.get("legal"))
        return {
            "advantage": standardized(advantage, batch.get("mask")) if self.normalize else advantage,
            "goal": advantage + value,
            "told": told,
            "played": self.law.log_prob(told, batch["action"]),
        }

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        """What losses and measures are made of, at each step: `told`, `log_prob`, `entropy`, `value`."""
        seen, _ = self.features(batch, after=False)
        told = self.told(seen, batch.get("legal"))
        return {
            "told": told,
            "log_prob": self.law.log_prob(told, batch["action"]),
            "entropy": self.law.entropy(told),
            "value": self.values(seen),
        }

    def row(self, step: Tensor, batch: Batch) -> Tensor:
        """A number for each row: of a stretch the mean over its steps."""
        if not self.trajectories:
            return step
        return (step * batch["mask"]).mean(-1) if "mask" in batch else step.mean(-1)

    def actor_loss(self, batch: Batch, parts: dict[str, Tensor]) -> Tensor:
        """The policy's part of the loss, at each step."""
        raise NotImplementedError(f"{type(self).__name__} does not define actor_loss(batch, parts)")

    def forward(self, batch: Batch, player: str = "") -> Output:
        parts = self.parts(batch)
        critic = (parts["value"] - batch["goal"]).square()
        loss = self.actor_loss(batch, parts) + self.value_weight * critic - self.entropy_weight * parts["entropy"]
        return Output(self.row(loss, batch), logits=parts["told"])

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        parts = self.parts(batch)
        goal, error = batch["goal"], batch["goal"] - parts["value"]
        moments = {"goal": goal, "goals": goal.square(), "error": error, "errors": error.square()}
        sums = {name: self.row(value, batch) for name, value in moments.items()}
        sums["rows"] = torch.ones_like(sums["goal"])
        return {
            "loss": self(batch).losses,
            "entropy": self.row(parts["entropy"], batch),
            "kl": self.row(self.law.kl(batch["told"], parts["told"]), batch),
            "explained_variance": Corpus(sums=sums, conclude=_explained),
        }

    def sample_action(self, observation: Tensor, *, legal: Tensor | None = None, memory: Memory | None = None) -> Any:
        """An action for each row, drawn from the policy; and what is remembered then, where there is a memory."""
        seen, kept = self._recalled(observation, memory)
        action = self.law.sample(self.told(seen, legal))
        return action if kept is None else (action, kept)

    @capability(merge="refuse")
    def act(self, observation: Tensor, *, legal: Tensor | None = None, memory: Memory | None = None) -> Any:
        """The policy's most probable action for each row; of numbers, that of their mean."""
        seen, kept = self._recalled(observation, memory)
        action = self.law.best(self.told(seen, legal))
        return action if kept is None else (action, kept)

    @capability(merge="mean")
    def value(self, observation: Tensor, *, memory: Memory | None = None) -> Tensor:
        """What the critic says that each state is worth."""
        return self.values(self._recalled(observation, memory)[0])


def over_rows(net: nn.Module, rows: Tensor, rank: int, size: int) -> Tensor:
    """A net's answer about rows with so many axes, and any number of leading ones."""
    lead = rows.shape[: rows.dim() - rank]
    answer: Tensor = net(rows if len(lead) == 1 else rows.flatten(0, len(lead) - 1))
    return answer.reshape(*lead, size)


def _explained(n: dict[str, Tensor]) -> Tensor:
    """1 - Var(goal - value) / Var(goal)."""
    left, whole = (
        n[squares] / n["rows"] - (n[name] / n["rows"]).square()
        for name, squares in (("error", "errors"), ("goal", "goals"))
    )
    return 1.0 - left / whole
