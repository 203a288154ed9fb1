"""What every source must hold to."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.optimizer import Optimizer
from weft.core.source import Batch, Source, SourceState, rows_of
from weft.core.state import State
from weft.core.trees import tree_leaves, tree_map
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import batches, begun, fresh, once, reported
from weft.strategies.erm import ERM
from weft.testing.checks import _close, _expect
from weft.testing.players import Player

__all__ = ["check_source"]


def check_source(source: Source, *, steps: int = 3, objective: Objective | None = None) -> None:
    """Checks that batches fit the spec, depend on seed, step and `state.source` only, and go on after a stop.

    What it keeps elsewhere (in itself, in its iterator) shows: as another batch after a stop, after a probe, or beside
    another replica.

    Args:
        source: the source.
        steps: how many batches to look at.
        objective: who acts, where it asks for actions; default: `weft.testing.Player`.

    Example:
        >>> import torch
        >>> from weft.sources import Arrays
        >>> check_source(Arrays(torch.randn(20, 3), batch_size=6))
    """
    _expect(source.resumes in ("exact", "restart"), f"expected resumes 'exact' or 'restart', got {source.resumes!r}")
    clock = _acting(source, Player() if objective is None else objective) if source.acts else _clock
    whole, kept = _read(source, clock(torch.tensor(0), 0), steps)
    _expect(len(whole) == steps, f"expected batches without end, got {len(whole)} of {steps}")
    for batch in whole:
        episodes = source.episodic or "support" in batch
        for part in [batch["support"], batch["query"]] if episodes else [batch]:
            _fits(source, part, 2 if source.grouped or episodes else 1)
    zero = torch.tensor(0)
    _close(_numbered(whole), _numbered(_read(source, clock(zero, 0), steps).batches), "the same seed twice", 0.0)
    probed = _read(source, clock(zero, 0), steps, probed=True).batches
    _close(_numbered(whole), _numbered(probed), "batches with a probe before each (is state kept in the source?)", 0.0)
    for step in range(steps) if source.resumes == "exact" else ():
        later = _read(source, clock(zero, step), 1, kept=kept[step]).batches
        _close(whole[step], later[0], f"the batch at step {step} after a resume (is all kept in state.source?)", 0.0)
    _rounds(source, clock(zero, 0))
    single = [whole, _read(source, clock(torch.tensor(1), 0), steps).batches]
    stacked = _read(source, clock(torch.tensor([0, 1]), 0), steps).batches
    for step in range(steps):
        what = f"the batch at step {step} of two replicas against single runs"
        for k, one in enumerate(single):
            own = tree_map(lambda t: t[k], stacked[step])  # noqa: B023
            _close(_real(own, source), _real(one[step], source), what, 0.0)
    if rows_of(whole[0]) > 1 and (source.epoch is None or source.epoch > 1):
        pairs = zip(tree_leaves(whole[0]), tree_leaves(single[1][0]), strict=True)
        same = all(torch.equal(a, b) for a, b in pairs)
        _expect(not same, "expected another seed to give other batches, got the same")


class _Read(NamedTuple):
    """Batches, and what the source kept before each of them."""

    batches: list[Batch]
    kept: list[SourceState]


def _read(source: Source, state: State, count: int, *, kept: SourceState | None = None, probed: bool = False) -> _Read:
    """So many batches from a step on, as a training reads them; `probed`, with others read in between."""
    state.source = begun(source, state) if kept is None else copy.deepcopy(kept)
    stream, read = batches(source, state), _Read([], [])
    for _ in range(count):
        if probed:
            next(batches(source, fresh(source, state)), None)
            next(once(source, state, 4), None)
        read.kept.append(copy.deepcopy(state.source))
        batch = next(stream, None)
        if batch is None:
            break
        read.batches.append(copy.deepcopy(batch))
        state.step += 1
        reported(source, state, ())
    return read


def _rounds(source: Source, state: State) -> None:
    """The batches of a round, and what is kept after it, are those that are read one by one."""
    state.source = begun(source, state)
    count = source.rounds(state)
    if not count:
        return
    one_by_one = _read(source, state, count)
    after, state.step = state.source, 0
    state.source = begun(source, state)
    batches, check = source.round(state)
    together = []
    for batch in batches:
        together.append(copy.deepcopy(batch))
        state.step += 1
    check()
    _expect(len(together) == count, f"expected a round of {count} batches, got {len(together)}")
    _close(_numbered(one_by_one.batches), _numbered(together), "a round's batches against one by one", 0.0)
    after, kept = (tree_map(lambda t: t.nan_to_num(-1.0), tree) for tree in (after, state.source))
    _close(after, kept, "what is kept after a round against one by one", 0.0)


def _clock(seeds: torch.Tensor, step: int) -> State:
    """A state that tells seed, step and what the source keeps, and nothing else."""
    return State(
        objective=None,  # type: ignore[arg-type]
        params={},
        buffers={},
        seeds=seeds,
        replicas=len(seeds) if seeds.dim() else None,
        active=torch.ones_like(seeds, dtype=torch.bool),
        step=step,
        planned=100,
    )


def _real(batch: Batch, source: Source) -> Batch:
    """The rows that count, where acting gives some that do not: so many as the longest episode has steps left over."""
    if not source.acts or "weight" not in batch:
        return batch
    return {name: values[batch["weight"] > 0] for name, values in batch.items()}


def _acting(source: Source, objective: Objective) -> Callable[[Tensor, int], State]:
    """The same, with an objective that acts."""

    def clock(seeds: Tensor, step: int) -> State:
        replicas = len(seeds) if seeds.dim() else None
        built = build(copy.deepcopy(objective), source.spec, 0, torch.float32)
        engine = Engine(built, ERM(), {"": Optimizer("sgd", lr=0.1)}, grouped=source.grouped, replicas=replicas)
        state = engine.init(seeds.reshape(-1).tolist(), torch.device("cpu"))
        state.step, state.planned = step, 100
        return state

    return clock


def _numbered(read: list[Batch]) -> dict[int, Batch]:
    return dict(enumerate(read))


def _fits(source: Source, part: Batch, dims: int) -> None:
    """A batch, or a part of episodes, with rows on so many leading axes, is as the spec says."""
    shapes = {name: tuple(t.shape) for name, t in part.items()}
    lead = {shape[:dims] for shape in shapes.values()}
    _expect(len(lead) == 1, f"expected one number of rows in every field, got {shapes}")
    for name, field in source.spec.items():
        _expect(name in part, f"expected the field {name!r} of the spec, got {sorted(part)}")
        got = (shapes[name][dims:], part[name].dtype)
        _expect(got == (field.shape, field.dtype), f"expected {name!r} like {field}, got {got}")
    if "weight" in part:
        _expect((part["weight"] >= 0).all(), "expected weights >= 0, got negative ones")
        _expect(part["weight"].sum() > 0, "expected some weight in every batch, got none")
    values = [t for t in part.values() if t.is_floating_point()]
    _expect(all(torch.isfinite(t).all() for t in values), "expected finite values, padding included")
