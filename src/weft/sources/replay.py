"""Replay: a memory of steps, filled by acting, from which every update draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Number, Several, Whole, check
from weft.core.objective import Objective
from weft.core.random import fold, unit
from weft.core.source import Batch, Field, SourceState
from weft.core.state import State
from weft.engine.acting import asked_of
from weft.sources.playing import ACTED, Playing, Worlds
from weft.sources.segments import taken
from weft.sources.strange import refuse_objective

__all__ = ["Replay"]

SHARE, WARMTH = Number(0, 1), Number(0, ends="()")
Fall = tuple[float, float, float]
"""A number at first, one at last, and over what share of the training it falls."""


class Replay(Playing):
    """Keeps the last `capacity` steps that were played, and gives `batch_size` of them at each update.

    At first `start` steps are played by actions drawn evenly. Then, by turns, `every` steps are played in each of
    `envs` rows and `updates_each` updates are made. The share of actions that are drawn evenly falls from the first
    number of `explore` to the second, over that share of the training that the third one says, and stays there.

    A step is drawn evenly; or, with `priority` alpha > 0, with a probability that goes with p^alpha, where p is what
    the objective's `priority(batch)` says of a step as it was when the step was last learned from (a new one counts as
    the greatest so far), and the batch has the weights (N P)^-beta of importance sampling, beta rising from
    `correction` to 1 over the training. As weights of a mean they count relatively to each other.

    With `steps` n > 1 a row is what n steps of one episode came to, from which a value is learned faster and, as they
    are an earlier policy's, with some bias:

        observation, action, reward      of the first,
        rewards                          r_0, ..., r_{n-1}, with zeros after the episode's end,
        steps                            how many of those were played, n or fewer,
        next_observation, terminated, truncated (and next_legal)      after the last of them.

    An episode that is cut within them makes them fewer, as one that ends does. How rewards are discounted is the
    objective's affair, which must read `steps`. The last n - 1 turns wait until what follows them is played.

    With `temperature` the others are drawn from softmax(q / temperature), q being what the objective's `q` says that
    actions are worth, in place of what it would do itself; likewise falling from the first number to the second.

    Rows are of earlier policies: what must not learn from those is refused, and so is what credits rows that were
    played together.

    Args:
        world: as for `Rollouts`; one of them.
        envs: episodes side by side.
        capacity: steps that are kept.
        batch_size: steps of an update.
        start: steps before the first update.
        every: steps of each episode between the updates.
        updates_each: updates made then.
        explore: the share of actions that are drawn evenly: at first, at last, and over what share of the training it
            falls; or one share.
        steps: of play that a row tells.
        temperature: of exploration by what actions are worth, as `explore`; None for none.
        priority: alpha; 0 draws evenly.
        correction: beta at the beginning.
        horizon: steps after which an episode is cut; default: the world's own.
        arguments: further ones for gymnasium, by name.

    References:
        Lin, "Self-improving reactive agents based on reinforcement learning, planning and teaching", Machine Learning
        8, 1992; Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015; Schaul, Quan,
        Antonoglou and Silver, "Prioritized experience replay", arXiv 1511.05952; on `steps`: Hessel et al., "Rainbow:
        combining improvements in deep reinforcement learning", arXiv 1710.02298.

    Example:
        >>> from weft.data import CartPole
        >>> from weft.objectives import REINFORCE
        >>> Replay(CartPole(), envs=4, every=8, updates_each=2, start=64).updates(1024, REINFORCE())
        60
    """

    stale = True
    legal: ClassVar[dict[str, Legal]] = {
        **ACTED,
        "capacity": Whole(1),
        "batch_size": Whole(1),
        "start": Whole(1),
        "every": Whole(1),
        "updates_each": Whole(1),
        "explore": SHARE | Several("three shares", SHARE),
        "steps": Whole(1),
        "temperature": WARMTH | Several("two temperatures and a share", Number(0)) | None,
        "priority": Number(0),
        "correction": SHARE,
    }

    def __init__(
        self,
        world: Worlds,
        *,
        envs: int = 1,
        capacity: int = 100_000,
        batch_size: int = 64,
        start: int = 1000,
        every: int = 1,
        updates_each: int = 1,
        explore: float | Fall = (1.0, 0.05, 0.1),
        steps: int = 1,
        temperature: float | Fall | None = None,
        priority: float = 0.0,
        correction: float = 0.4,
        horizon: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check(Replay, locals())
        if isinstance(world, list | tuple):
            raise ValueError(
                f"expected one world for Replay, whose memory is one, got {len(world)}; environments as groups are "
                "played by Rollouts or Segments"
            )
        super().__init__(world, envs=envs, horizon=horizon, arguments=arguments)
        self.explore = _falling("explore", explore)
        self.temperature = None if temperature is None else _falling("temperature", temperature)
        if self.temperature is not None and (min(self.temperature[:2]) <= 0 or self.temperature[2] > 1):
            raise ValueError(
                f"expected temperatures > 0 and a share of the training <= 1, got {temperature!r}; without one the "
                "best action alone is played"
            )
        self.steps = int(steps)
        self.capacity, self.batch_size, self.start = int(capacity), int(batch_size), int(start)
        self.every, self.updates_each = int(every), int(updates_each)
        self.priority, self.correction = float(priority), float(correction)
        if self.start < self.batch_size or self.capacity < self.start:
            raise ValueError(
                f"expected a memory that a batch can be drawn from, batch_size <= start <= capacity, got batch_size="
                f"{self.batch_size}, start={self.start}, capacity={self.capacity}"
            )
        if self.every * self.envs > self.capacity:
            raise ValueError(
                f"expected a memory for at least the {self.every * self.envs} steps (every times envs) that are played "
                f"at once, got capacity={self.capacity}"
            )
        self._waits = (self.steps - 1) * self.envs
        if self.batch_size + self._waits > self.start:
            raise ValueError(
                f"expected a start of at least {self.batch_size + self._waits} steps, a batch and the {self._waits} "
                f"that wait for what follows them, got start={self.start}; let it be larger"
            )
        if self.steps > 1:
            self.spec |= {"rewards": Field((self.steps,), torch.float32), "steps": Field((), torch.int64)}

    def _settings(self) -> str:
        return f"{self.capacity} {self.batch_size} {self.start} {self.every} {self.updates_each} {self.explore}" + (
            f" {self.steps} {self.temperature}" if self.steps > 1 or self.temperature else ""
        )

    def updates(self, env_steps: int, objective: Objective) -> int:
        """How many updates so many steps of the world allow."""
        return max(0, (env_steps - self._first()) // (self.every * self.envs)) * self.updates_each

    def _first(self) -> int:
        """Steps that are played before the first update."""
        return math.ceil(self.start / self.envs) * self.envs

    def share(self, progress: float) -> float:
        """The share of actions that are drawn evenly, by the share of the training that is done."""
        return _fallen(self.explore, progress)

    def init(self, state: State) -> SourceState:
        """Episodes that have just begun, and an empty memory."""
        objective, name = state.objective, type(state.objective).__name__
        if objective.trajectories or objective.credits:
            what = "learns from trajectories" if objective.trajectories else "credits rows that were played together"
            raise ValueError(f"Replay gives steps one by one, and {name} {what}; play them by Rollouts or Segments")
        if self.priority and not hasattr(objective, "priority"):
            raise TypeError(
                f"expected {name} to say priority(batch), one number >= 0 for each step, beside priority="
                f"{self.priority:g}, got none; leave priority out to draw evenly"
            )
        if self.steps > 1 and "steps" not in objective.fields:
            raise TypeError(
                f"expected {name}, whose rows tell {self.steps} steps, to read 'rewards' and 'steps' and to name them "
                f"in fields, got {objective.fields}; learn from single steps (steps=1)"
            )
        if self.temperature is not None and not callable(getattr(objective, "q", None)):
            raise TypeError(
                f"expected {name} to say q(observation), what each action is worth, beside a temperature, got none; "
                "leave temperature out, and it explores by its own draws"
            )
        if self.temperature is not None:
            refuse_objective(self.collectors[0], state, "q")
        tree, lead = super().init(state), () if state.replicas is None else (state.replicas,)

        def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            dtype = state.dtype if dtype.is_floating_point else dtype
            return torch.zeros((*lead, self.capacity, *shape), dtype=dtype, device=state.device)

        memory = {name: room(field.shape, field.dtype) for name, field in self.collectors[0].spec.items()}
        for name, value in tree["0"].get("memory", {}).items():
            memory[f"memory_{name}"] = room(tuple(value.shape[len(lead) + 1 :]), value.dtype)
        count = torch.zeros(lead, dtype=torch.int64, device=state.device)
        tree |= {"memory": memory, "filled": count, "turn": count.clone()}
        if self.priority:
            tree["priority"] = torch.zeros((*lead, self.capacity), dtype=torch.float64, device=state.device)
            tree["drawn"] = torch.zeros((*lead, self.batch_size), dtype=torch.int64, device=state.device)
        return tree

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end; what is played goes into the memory in place."""
        self.teaches(state)
        while True:
            tree = dict(state.source)
            turn = int(tree["turn"].reshape(-1)[0])
            if self.priority and turn:
                self._learned(state, tree)
            key = state.key("replay")
            if turn == 0:
                self._play(state, tree, math.ceil(self.start / self.envs), fold(key, "start"), stray=1.0)
            if turn % self.updates_each == 0:
                self._play(state, tree, self.every, fold(key, "play"), stray=self.share(state.progress))
            tree["turn"] = tree["turn"] + 1
            batch = self._drawn(state, tree, fold(key, "draw"))
            state.source = tree
            yield batch

    def report(self, state: State) -> dict[str, Tensor]:
        """What is told of every play, and the share of actions that are drawn evenly."""
        told = {**super().report(state), "explore": torch.tensor(self.share(state.progress), dtype=torch.float64)}
        if self.temperature is not None:
            told["temperature"] = torch.tensor(_fallen(self.temperature, state.progress), dtype=torch.float64)
        return told

    def _play(self, state: State, tree: SourceState, turns: int, key: Tensor, *, stray: float) -> None:
        """Plays on, and puts the steps into the memory, over the oldest."""
        ask, choose = self.ask, None
        if self.temperature is not None:
            ask, choose = "q", partial(_by_worth, temperature=_fallen(self.temperature, state.progress))
        tree["0"], played = self.collectors[0].play(state, tree["0"], turns, key, ask=ask, stray=stray, choose=choose)
        self.witnessed(state, played, key)
        axis = played["reward"].dim() - 2
        steps = {name: value.transpose(axis, axis + 1).flatten(axis, axis + 1) for name, value in played.items()}
        count, filled = steps["reward"].shape[axis], int(tree["filled"].reshape(-1)[0])
        kept = min(count, self.capacity)
        index = (torch.arange(count - kept, count, device=state.device) + filled) % self.capacity
        for name, value in steps.items():
            memory = tree["memory"][name]
            memory.index_copy_(axis, index, value.narrow(axis, count - kept, kept))
        if self.priority:
            most = tree["priority"].amax(-1, keepdim=True)
            tree["priority"].index_copy_(axis, index, torch.where(most > 0, most, 1.0).expand(*most.shape[:-1], kept))
        tree["filled"] = tree["filled"] + count

    def _drawn(self, state: State, tree: SourceState, key: Tensor) -> Batch:
        """Steps of the memory."""
        filled = int(tree["filled"].reshape(-1)[0])
        first, size = self._ripe(filled)
        shares = unit(key, (self.batch_size,), torch.float64)
        if not self.priority:
            return self._rows(tree["memory"], ((shares * size).long() + first) % self.capacity)
        kept = min(filled, self.capacity)
        mass = tree["priority"][..., :kept] ** self.priority
        if self._waits:
            age = (filled - 1 - torch.arange(kept, device=mass.device)) % self.capacity
            mass = torch.where(age >= self._waits, mass, 0.0)
        edges = mass.cumsum(-1)
        below = torch.nextafter(edges[..., -1:], torch.zeros_like(edges[..., -1:]))  # what waits stays out of reach
        index = torch.searchsorted(edges, (shares * edges[..., -1:]).minimum(below), right=True)
        tree["drawn"] = index
        beta = self.correction + (1.0 - self.correction) * state.progress
        weight = (size * taken(mass, index) / edges[..., -1:]) ** -beta
        batch = self._rows(tree["memory"], index)
        return {**batch, "weight": (weight / weight.amax(-1, keepdim=True)).to(state.dtype)}

    def _ripe(self, filled: int) -> tuple[int, int]:
        """From which place on there are how many steps whose followers are there, oldest first."""
        kept = min(filled, self.capacity)
        return (filled - kept) % self.capacity, kept - self._waits

    def _rows(self, memory: Batch, index: Tensor, room: int | None = None) -> Batch:
        """Rows by the numbers of their first steps, in a memory of so much room where turns follow each other."""
        batch = {name: taken(values, index) for name, values in memory.items()}
        if self.steps == 1:
            return batch
        place = last = index
        going, rewards = torch.ones_like(index, dtype=torch.bool), []
        count = torch.zeros_like(index)
        for _ in range(self.steps):
            count = count + going
            last = torch.where(going, place, last)
            rewards.append(torch.where(going, taken(memory["reward"], place), 0.0))
            going = going & ~(taken(memory["terminated"], place) | taken(memory["truncated"], place))
            place = (place + self.envs) % (self.capacity if room is None else room)
        ends = ("next_observation", "terminated", "truncated", "next_legal")
        after = {name: taken(memory[name], last) for name in ends if name in memory}
        return {**batch, **after, "rewards": torch.stack(rewards, -1), "steps": count}

    def _learned(self, state: State, tree: SourceState) -> None:
        """The priorities of what was learned from last, as they are now."""
        index = tree["drawn"]
        batch = self._rows(tree["memory"], index)
        told = asked_of(state, "priority", batch, state.key("priority"))
        if told.shape != index.shape or not bool((told >= 0).all()):
            raise ValueError(
                f"expected priority(batch) to give a number >= 0 for each of the {index.shape[-1]} steps, got "
                f"{tuple(told.shape)} or others"
            )
        tree["priority"].scatter_(-1, index, told.double() + 1e-6)

    def rows(self, state: State, batch: Batch) -> Batch:
        """Whole episodes step by step."""
        if self.steps == 1:
            return super().rows(state, batch)
        axis = batch["reward"].dim() - 2
        flat = {name: value.transpose(axis, axis + 1).flatten(axis, axis + 1) for name, value in batch.items()}
        count = flat["reward"].shape[axis]
        index = torch.arange(count, device=state.device).expand(flat["reward"].shape)
        return {**self._rows(flat, index, count), "weight": flat["mask"]}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The memory in its order; where there is nothing in it yet, fresh episodes."""
        filled = state.source.get("filled")
        if filled is None or not int(filled.reshape(-1)[0]):
            yield from super().once(state, rows)
            return
        first, size = self._ripe(int(filled.reshape(-1)[0]))
        places = (torch.arange(size, device=state.device) + first) % self.capacity
        lead = state.source["memory"]["reward"].shape[:-1]
        for part in places.split(rows):
            yield self._rows(state.source["memory"], part.expand(*lead, len(part)))


def _falling(name: str, given: float | Fall) -> Fall:
    """What falls from one number to another, over a share of the training."""
    if isinstance(given, float | int):
        return (given, given, 1.0)
    if len(given) != 3:
        raise ValueError(f"expected {name} as (first, last, share of the training), got {given!r}")
    return given


def _fallen(fall: Fall, progress: float) -> float:
    """Where it is at that share of the training."""
    first, last, over = fall
    return last + (first - last) * max(0.0, 1.0 - progress / over) if over else last


def _by_worth(worth: Tensor, keys: Tensor, legal: Tensor | None, *, temperature: float) -> Tensor:
    """An action for each row, drawn from softmax(worth / temperature) among the legal ones, by Gumbel's way."""
    told = worth.double() / temperature
    if legal is not None:
        told = told.masked_fill(~legal, -math.inf)
    even = unit(keys, (told.shape[-1],), torch.float64).clamp_min(torch.finfo(torch.float64).tiny)
    return (told - (-even.log()).log()).argmax(-1)
