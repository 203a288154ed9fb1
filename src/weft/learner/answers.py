"""Answers: what a trained learner's objective can do, asked of the runs that answer and merged over them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor

from weft.core.objective import Objective
from weft.core.random import fold, key_of
from weft.learner.training import Run, Training

__all__ = ["answering", "ask", "draw", "module_of"]

_ROWS = 8192  # rows at a time when a capability is asked


def answering(training: Training, best: int | None) -> list[Run]:
    """The replicas that answer: all that did not diverge; after a sweep, the best."""
    every = training.every
    if best is not None:
        return [every[best]]
    sound = [run for run, diverged in zip(every, training.diverged, strict=True) if not diverged]
    if not sound:
        raise NotFittedError("expected a trained replica, got none: every one has diverged; see stop_reason_")
    return sound


def ask(runs: list[Run], name: str, x: Tensor) -> NDArray[Any]:
    """A capability that works row by row, merged over the runs."""
    mark = runs[0].engine.objective.capabilities()[name]
    if mark.merge == "refuse" and len(runs) > 1:
        raise ValueError(
            f"expected one replica to answer {name!r}, got {len(runs)}, whose answers cannot be averaged; "
            f"ask one of them: .replica(0).{name}(...)"
        )
    parts: list[Tensor] = []
    device = runs[0].state.device
    for first in range(0, len(x), _ROWS):
        chunk = x[first : first + _ROWS].to(device)
        rows = torch.arange(first, first + len(chunk), device=device)
        answers = [e.call(s, name, chunk, key=fold(key_of(s.seeds), name), rows=rows) for e, s in runs]
        merged = answers[0]
        if len(answers) > 1:
            stacked = torch.stack(answers)
            logarithms = mark.merge == "logmeanexp"
            merged = torch.logsumexp(stacked, 0) - math.log(len(answers)) if logarithms else stacked.mean(0)
        parts.append(mark.finish(merged) if mark.finish else merged)
    return _as_numpy(torch.cat(parts))


def draw(runs: list[Run], n: int) -> NDArray[Any]:
    """Samples, shared out among the runs."""
    edges = [k * n // len(runs) for k in range(len(runs) + 1)]
    drawn = []
    for (engine, state), a, b in zip(runs, edges[:-1], edges[1:], strict=True):
        if b > a:
            rows = torch.arange(a, b, device=state.device)
            drawn.append(engine.call(state, "sample", b - a, key=fold(key_of(state.seeds), "sample"), rows=rows))
    return _as_numpy(torch.cat(drawn))


def _as_numpy(answer: Tensor) -> NDArray[Any]:
    """NumPy knows no bfloat16."""
    array: NDArray[Any] = (answer.float() if answer.dtype == torch.bfloat16 else answer).cpu().numpy()
    return array


def module_of(run: Run) -> Objective:
    """A copy of the objective that holds what a run has learned; what was not trained is marked as frozen."""
    engine, state = run
    module = copy.deepcopy(engine.objective).to(state.device)
    trained = {name for names in engine.names.values() for name in names}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(state.params[name])
            parameter.requires_grad_(name in trained)
        for name, buffer in module.named_buffers():
            buffer.copy_(state.buffers[name])
    return module.eval()
