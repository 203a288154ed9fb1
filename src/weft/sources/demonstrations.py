"""Demonstrations: what an expert has done in a world, as rows to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Choice, Flag, Legal, Number, Such, Whole, check
from weft.core.random import fold, key_of
from weft.core.source import Batch, Field, SourceState, Spec
from weft.core.state import State
from weft.sources.arrays import Arrays
from weft.sources.collector import Collector
from weft.sources.expert import EXPERT, Expert
from weft.sources.playing import ACTED, Worlds, called_world
from weft.sources.recorded import held_out, mean_return, numbered_episodes, read_recorded, stretched
from weft.sources.stage import stage_of

__all__ = ["Demonstrations"]

EPISODES, AT_ONCE = 20, 16


def _recorded(given: object) -> bool:
    return isinstance(given, Mapping) or (isinstance(given, tuple | list) and len(given) == 2)


class Demonstrations(Arrays):
    """What an expert has done in a world: steps to learn from in passes, the same for every seed.

    The expert plays whole episodes once, when this is made, by draws of `random_state`; or they were recorded. Rows
    have

        observation, action, reward, next_observation, terminated, truncated,

    and `x`, the observation, and `y`, what the expert does there, so that `Classification` and `Regression` clone it.
    With `stray`, a share of its actions is drawn evenly, which leads to where it would not have gone; there too `y` is
    what the expert says, and `action` is what was done. The mean return of the episodes is told as
    `demonstrated_return`.

    Cloning is right where the expert goes, and nowhere else; where one mistake leads elsewhere see `DAgger`.

    Args:
        world: a world of tensors, or what gymnasium knows, as for `Rollouts`.
        expert: a trained learner, which is asked `act`, else `predict`; a function from observations `(n, ...)` to an
            action for each; or what was recorded, row after row: `(observations, actions)`, or arrays by the names
            above.
        episodes: how many it plays; default: 20.
        steps: in place of that, as many episodes as have so many steps together.
        stray: the share of its actions that are drawn evenly.
        trajectories: whether a row is a whole episode, `(time, ...)` with `mask` 1 up to its end, for objectives that
            learn from those.
        batch_size: rows of an update; None for all.
        holdout: the share of the episodes (of rows whose episodes are not told, of rows) that is kept out.
        part: `train` or `validation`, the part that this source gives.
        horizon: steps after which an episode is cut; default: the world's own.
        random_state: what the play and the hold-out are drawn by.
        arguments: further ones for gymnasium, by name.

    References:
        Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NeurIPS 1988 (cloning); Laskey, Lee, Fox,
        Dragan and Goldberg, "DART: noise injection for robust imitation learning", arXiv 1703.09327 (a disturbed
        expert).

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.objectives import Classification
        >>> def expert(observation):
        ...     return (observation @ torch.tensor([0.1, 0.3, 1.0, 0.5]) > 0).long()
        >>> source = Demonstrations(CartPole(), expert, episodes=4)
        >>> cloned = Learner(Classification(), epochs=3, random_state=0).fit(source)
        >>> source.size, float(cloned.history_["demonstrated_return"][-1])
        (2000, 500.0)
        >>> bool(cloned.predict([[0.0, 0.0, 0.1, 0.5]])[0] == 1)
        True
    """

    legal: ClassVar[dict[str, Legal]] = {
        "world": ACTED["world"],
        "expert": EXPERT | Such("(observations, actions), or arrays by name", _recorded),
        "episodes": Whole(1) | None,
        "steps": Whole(1) | None,
        "stray": Number(0, 1, "[)"),
        "trajectories": Flag(),
        "batch_size": Whole(1) | None,
        "holdout": Number(0, 1, "[)"),
        "part": Choice("train", "validation"),
        "horizon": ACTED["horizon"],
        "random_state": Whole(0, 2**63 - 1),
        "arguments": ACTED["arguments"],
    }

    def __init__(
        self,
        world: Worlds,
        expert: Any,
        *,
        episodes: int | None = None,
        steps: int | None = None,
        stray: float = 0.0,
        trajectories: bool = False,
        batch_size: int | None = 64,
        holdout: float = 0.0,
        part: str = "train",
        horizon: int | None = None,
        random_state: int = 0,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check(Demonstrations, locals())
        if isinstance(world, list | tuple):
            raise ValueError(f"expected one world for Demonstrations, got {len(world)}; make one for each")
        if episodes is not None and steps is not None:
            raise ValueError(f"expected episodes or steps, got both, {episodes} and {steps}; leave one out")
        stage, name = stage_of(world, arguments), called_world(world)
        if _recorded(expert):
            asked = {"episodes": episodes, "steps": steps, "stray": stray or None, "horizon": horizon}
            if beside := [name for name, value in asked.items() if value is not None]:
                raise ValueError(
                    f"expected {beside[0]} for an expert that plays, got it beside what was recorded; leave it out"
                )
            spec: Spec = Collector(stage, 1, 1, name).spec
            rows, ends = read_recorded(expert, spec, name)
        else:
            player = Expert(expert, stage.observation, stage.action, name)
            key, total = fold(key_of(int(random_state)), "demonstrations"), 0
            parts: list[dict[str, Tensor]] = []
            at_once = (EPISODES if episodes is None else int(episodes)) if steps is None else AT_ONCE
            collector = Collector(stage, at_once, horizon, name)
            spec = collector.spec
            while not parts or (steps is not None and total < steps):
                parts.append(_played(collector, player, float(stray), fold(key, len(parts))))
                total += len(parts[-1]["reward"])
            rows = {n: torch.cat([part[n] for part in parts]) for n in parts[0]}
            ends = rows["terminated"] | rows["truncated"]
            if steps is not None:  # no more episodes than that takes
                last = int(ends.nonzero()[:, 0][ends.nonzero()[:, 0] >= steps - 1][0])
                rows, ends = {n: value[: last + 1] for n, value in rows.items()}, ends[: last + 1]
        self.demonstrated = mean_return(rows, ends)
        self.trajectories = trajectories
        if trajectories:
            rows = stretched(rows, ends, name)
        groups = torch.arange(len(rows["action"])) if ends is None or trajectories else numbered_episodes(ends)
        held: Any = held_out(groups, float(holdout), int(random_state)) if holdout else 0.0
        given: dict[str, Any] = {"x": None, **rows}
        super().__init__(batch_size=batch_size, holdout=held, part=part, **given)
        own = {**spec, "mask": Field((), spec["reward"].dtype)}
        told = {name: own[name] for name in self.fields if name in own}
        self.spec = {"x": own["observation"], "y": own["action"], **told}

    def init(self, state: State) -> SourceState:
        """Nothing is kept; an objective that cannot learn from what is given is refused."""
        objective = state.objective
        if objective is None:
            return {}
        name = type(objective).__name__
        if objective.trajectories != self.trajectories:
            kind = "whole episodes" if objective.trajectories else "single steps"
            raise ValueError(
                f"expected Demonstrations(..., trajectories={objective.trajectories}) for {name}, which learns from "
                f"{kind}, got trajectories={self.trajectories}"
            )
        if missing := [field for field in objective.fields if field not in self.spec]:
            raise ValueError(
                f"expected demonstrations with {missing[0]!r}, which {name} reads, got {sorted(self.spec)}; record it "
                "as well, or choose an objective for what there is"
            )
        if objective.credits or objective.witnesses:
            what = "credits" if objective.credits else "witnesses"
            raise ValueError(
                f"expected an objective that learns from rows as they are, got {name}, which {what} what it has played "
                "itself; let it play, by Segments or Rollouts"
            )
        return {}

    def report(self, state: State) -> dict[str, Tensor]:
        """The mean return of the demonstrations, where rewards and ends are known."""
        if self.demonstrated is None:
            return {}
        return {"demonstrated_return": torch.tensor(self.demonstrated, dtype=torch.float64, device=state.device)}

    def extent(self, field: str) -> tuple[float, float] | None:
        """The least and the largest value of a field, those held out included."""
        return super().extent(self._called(field))

    def _called(self, field: str) -> str:
        return {"x": "observation", "y": "y" if "y" in self.fields else "action"}.get(field, field)

    def _rows(self, index: Tensor) -> Batch:
        batch = super()._rows(index)
        return {**batch, **{name: batch[self._called(name)] for name in ("x", "y")}}


def _played(collector: Collector, expert: Expert, stray: float, key: Tensor) -> dict[str, Tensor]:
    """The steps of whole episodes, one after another."""
    state = State(objective=expert, params={}, buffers={}, seeds=torch.tensor(0))
    _, played = collector.play(state, collector.begin(state, key), collector.horizon, key, again=False, stray=stray)
    going = played.pop("mask") > 0
    rows = {name: value[going] for name, value in played.items()}
    if stray:
        rows["y"] = expert.told(rows["observation"], rows.get("legal"))
    return {name: value.to(collector.spec["action" if name == "y" else name].dtype) for name, value in rows.items()}
