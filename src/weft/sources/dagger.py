"""DAgger: the learner goes where it goes, and an expert says what to do there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Number, Whole, check
from weft.core.objective import Objective
from weft.core.random import fold, key_of, unit
from weft.core.source import Batch, SourceState
from weft.core.state import State
from weft.core.trees import tree_map
from weft.sources.expert import EXPERT, Expert
from weft.sources.playing import ACTED, Playing, Worlds
from weft.sources.segments import taken

__all__ = ["DAgger"]


class DAgger(Playing):
    """Data set aggregation: plays a mixture of an expert and the learner, and learns what the expert would have done.

    By turns, `length` steps are played in each of `envs` rows, the expert says what to do at everything that was
    observed there, that joins all that was gathered before, and `updates_each` updates are made on rows drawn from it
    evenly. In turn i = 0, 1, ... an action is the expert's with probability

        beta_i = beta^i        (so that at first the expert plays alone; 0^0 = 1),

    and else the learner's best: its `act`, or the `predict` of what learns from labels. So it learns where its own
    mistakes lead, where the expert never goes. Rows have `observation` and `action`, what the expert says, and the same
    as `x` and `y`, for `Classification` and `Regression`.

    `return` and `length` are of the episodes as they are played, by the mixture. What the learner earns by itself tells
    `validation=Rollouts(world, greedy=True)`.

    Args:
        world: as for `Rollouts`; one of them.
        expert: a trained learner, which is asked `act`, else `predict`, or a function from observations `(n, ...)` to
            an action for each; of the observation alone.
        envs: episodes side by side.
        length: steps of each in a turn.
        updates_each: updates after a turn.
        beta: of the mixture, as above.
        batch_size: rows of an update.
        capacity: rows that are kept, beyond which the oldest are overwritten, as `forgotten` tells; None for all that
            the training will gather.
        horizon: steps after which an episode is cut; default: the world's own.
        arguments: further ones for gymnasium, by name.

    References:
        Ross, Gordon and Bagnell, "A reduction of imitation learning and structured prediction to no-regret online
        learning", arXiv 1011.0686.

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.objectives import Classification
        >>> def expert(observation):
        ...     return (observation @ torch.tensor([0.1, 0.3, 1.0, 0.5]) > 0).long()
        >>> source = DAgger(CartPole(), expert, envs=4, length=32, updates_each=20)
        >>> learner = Learner(Classification(), env_steps=512, random_state=0).fit(source)
        >>> learner.n_steps_, int(learner.history_["kept"][-1])
        (80, 512)
    """

    stale = True
    ask = "act"
    legal: ClassVar[dict[str, Legal]] = {
        **ACTED,
        "expert": EXPERT,
        "length": Whole(1),
        "updates_each": Whole(1),
        "beta": Number(0, 1),
        "batch_size": Whole(1),
        "capacity": Whole(1) | None,
    }

    def __init__(
        self,
        world: Worlds,
        expert: Any,
        *,
        envs: int = 8,
        length: int = 128,
        updates_each: int = 100,
        beta: float = 0.0,
        batch_size: int = 64,
        capacity: int | None = None,
        horizon: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check(DAgger, locals())
        if isinstance(world, list | tuple):
            raise ValueError(f"expected one world for DAgger, whose memory is one, got {len(world)}")
        super().__init__(world, envs=envs, horizon=horizon, arguments=arguments)
        self.length, self.updates_each, self.beta = int(length), int(updates_each), float(beta)
        self.batch_size, self.capacity = int(batch_size), None if capacity is None else int(capacity)
        if self.capacity is not None and self.capacity < self.envs * self.length:
            raise ValueError(
                f"expected a memory for at least the {self.envs * self.length} steps (envs times length) of a turn, "
                f"got capacity={self.capacity}"
            )
        stage = self.collectors[0].stage
        self.expert = Expert(expert, stage.observation, stage.action, self.collectors[0].name)
        self.kept = ("observation", "action", *(("legal",) if stage.masked else ()))
        self.spec = {"x": stage.observation, "y": stage.action, **{name: self.spec[name] for name in self.kept}}

    def _settings(self) -> str:
        return f"{self.length} {self.updates_each} {self.beta} {self.batch_size} {self.capacity}"

    def contents(self) -> dict[str, Any]:
        """What was set, and what the expert does at a few beginnings: whoever goes on asks the same one."""
        stage = self.collectors[0].stage
        kept, seen = stage.begin(fold(key_of(0), torch.arange(self.envs)))
        return {**super().contents(), "expert": self.expert.told(seen, stage.legal(kept))}

    def updates(self, env_steps: int, objective: Objective) -> int:
        """How many updates so many steps of the world allow."""
        return env_steps // (self.envs * self.length) * self.updates_each

    def share(self, turn: int) -> float:
        """The share of actions that are the expert's in a turn."""
        return self.beta**turn

    def init(self, state: State) -> SourceState:
        """Episodes that have just begun, and an empty memory."""
        self._refuse(state.objective)
        tree, lead = super().init(state), () if state.replicas is None else (state.replicas,)
        gathered = max(1, -(-state.planned // self.updates_each)) * self.envs * self.length
        capacity = gathered if self.capacity is None else self.capacity
        if capacity < gathered:
            warnings.warn(
                f"expected a memory for all {gathered} steps that this training gathers, which DAgger learns from, got "
                f"capacity={capacity}: the oldest {gathered - capacity} will be overwritten; capacity=None keeps all",
                stacklevel=2,
            )
        none = torch.zeros(lead, dtype=torch.int64, device=state.device)
        return {**tree, "memory": self._room(state, lead, capacity), "filled": none, "turn": none.clone()}

    def _refuse(self, objective: Objective) -> None:
        """Raises for what cannot learn so."""
        name = type(objective).__name__
        what = "is solved at once" if objective.solved else "learns from trajectories"
        what = "credits rows that were played together" if objective.credits else what
        if objective.solved or objective.trajectories or objective.credits:
            raise ValueError(f"DAgger gives steps one by one and learns by turns, and {name} {what}")

    def _room(self, state: State, lead: tuple[int, ...], capacity: int) -> dict[str, Tensor]:
        found = {}
        for name in self.kept:
            field = self.spec[name]
            dtype = state.dtype if field.dtype.is_floating_point else field.dtype
            found[name] = torch.zeros((*lead, capacity, *field.shape), dtype=dtype, device=state.device)
        return found

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end; what is gathered goes into the memory in place."""
        while True:
            tree = dict(state.source)
            turn, rest = divmod(int(tree["turn"].reshape(-1)[0]), self.updates_each)
            if not rest:
                self._gather(state, tree, turn)
            tree["turn"] = tree["turn"] + 1
            size = min(int(tree["filled"].reshape(-1)[0]), _capacity(tree))
            index = (unit(state.key("dagger", "draw"), (self.batch_size,), torch.float64) * size).long()
            memory = tree["memory"]
            state.source = tree
            yield _named(tree_map(lambda t: taken(t, index), memory))  # noqa: B023

    def _gather(self, state: State, tree: SourceState, turn: int) -> None:
        """Plays on, asks the expert about all that was observed, and puts that into the memory, over the oldest."""
        key, told, share = state.key("dagger", "play"), self.expert.told, self.share(turn)
        collector = self.collectors[0]
        tree["0"], played = collector.play(
            state, tree["0"], self.length, key, ask=self.ask, stray=share, other=told if share else None
        )
        self.witnessed(state, played, key)
        axis = played["reward"].dim() - 2
        flat = {name: played[name].flatten(0, axis + 1) for name in self.kept}
        flat["action"] = told(flat["observation"], flat.get("legal"))
        count, lead = self.envs * self.length, played["reward"].shape[:axis]
        index = (torch.arange(count, device=state.device) + tree["filled"].reshape(-1)[0]) % _capacity(tree)
        for name, rows in flat.items():
            memory = tree["memory"][name]
            memory.index_copy_(axis, index, rows.unflatten(0, (*lead, count)).to(memory.dtype))
        tree["filled"] = tree["filled"] + count

    def report(self, state: State) -> dict[str, Tensor]:
        """What is told of every play; the expert's share of the actions, the rows kept, and those overwritten."""
        tree = state.source
        filled, turn = tree["filled"].double(), max(0, int(tree["turn"].reshape(-1)[0]) - 1) // self.updates_each
        room = _capacity(tree)
        told = {"kept": filled.clamp_max(room), "forgotten": (filled - room).clamp_min(0)}
        return {**super().report(state), **told, "beta": torch.tensor(self.share(turn), dtype=torch.float64)}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The memory in its order; where there is nothing in it yet, what the expert does."""
        tree = dict(state.source)
        if not int(tree["filled"].reshape(-1)[0]):
            tree = tree_map(torch.clone, tree)
            self._gather(replace(state, buffers=dict(state.buffers)), tree, 0)
        axis, size = tree["filled"].dim(), min(int(tree["filled"].reshape(-1)[0]), _capacity(tree))
        for first in range(0, size, rows):
            count = min(rows, size - first)
            yield _named(tree_map(lambda t: t.narrow(axis, first, count), tree["memory"]))  # noqa: B023


def _capacity(tree: SourceState) -> int:
    return int(tree["memory"]["action"].shape[tree["filled"].dim()])


def _named(batch: Batch) -> Batch:
    """Rows by the names that supervised objectives read, too."""
    return {**batch, "x": batch["observation"], "y": batch["action"]}
