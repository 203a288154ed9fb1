"""What every source must hold to."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from weft.core.source import Batch, Source, SourceState, rows_of
from weft.core.state import State
from weft.core.trees import tree_leaves, tree_stack
from weft.engine.replicas import batches, begun, fresh, once, reported
from weft.testing.checks import _close, _expect

__all__ = ["check_source"]


def check_source(source: Source, *, steps: int = 3) -> None:
    """Checks that batches fit the spec, depend on seed, step and `state.source` only, and go on after a stop.

    What it keeps elsewhere (in itself, in its iterator) shows: as another batch after a stop, after a probe, or beside
    another replica.

    Args:
        source: the source; one that asks the state for actions is checked through its own tests.
        steps: how many batches to look at.

    Example:
        >>> import torch
        >>> from weft.sources import Arrays
        >>> check_source(Arrays(torch.randn(20, 3), batch_size=6))
    """
    _expect(source.resumes in ("exact", "restart"), f"expected resumes 'exact' or 'restart', got {source.resumes!r}")
    whole, kept = _read(source, 0, steps)
    _expect(len(whole) == steps, f"expected batches without end, got {len(whole)} of {steps}")
    for batch in whole:
        for part in [batch["support"], batch["query"]] if source.episodic else [batch]:
            _fits(source, part)
    _close(_numbered(whole), _numbered(_read(source, 0, steps).batches), "the same seed twice", 0.0)
    probed = _read(source, 0, steps, probed=True).batches
    _close(_numbered(whole), _numbered(probed), "batches with a probe before each (is state kept in the source?)", 0.0)
    for step in range(steps) if source.resumes == "exact" else ():
        later = _read(source, 0, 1, step=step, kept=kept[step]).batches
        _close(whole[step], later[0], f"the batch at step {step} after a resume (is all kept in state.source?)", 0.0)
    single = [whole, _read(source, 1, steps).batches]
    stacked = _read(source, torch.tensor([0, 1]), steps).batches
    for step in range(steps):
        beside = tree_stack([one[step] for one in single])
        _close(stacked[step], beside, f"the batch at step {step} of two replicas against single runs", 0.0)
    if rows_of(whole[0]) > 1 and (source.epoch is None or source.epoch > 1):
        pairs = zip(tree_leaves(whole[0]), tree_leaves(single[1][0]), strict=True)
        same = all(torch.equal(a, b) for a, b in pairs)
        _expect(not same, "expected another seed to give other batches, got the same")


class _Read(NamedTuple):
    """Batches, and what the source kept before each of them."""

    batches: list[Batch]
    kept: list[SourceState]


def _read(
    source: Source,
    seed: int | torch.Tensor,
    count: int,
    *,
    step: int = 0,
    kept: SourceState | None = None,
    probed: bool = False,
) -> _Read:
    """So many batches from a step on, as a training reads them; `probed`, with others read in between."""
    state = _clock(torch.as_tensor(seed), step)
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


def _numbered(read: list[Batch]) -> dict[int, Batch]:
    return dict(enumerate(read))


def _fits(source: Source, part: Batch) -> None:
    """A batch, or a part of an episode, is as the spec says."""
    dims = 2 if source.grouped else 1
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
