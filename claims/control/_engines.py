"""An engine at hand: an objective's gradient on a batch, as one vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft import Optimizer
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import begun
from weft.strategies import ERM


def engine_of(objective: Any, spec: Any, source: Any = None) -> tuple[Engine, Any]:
    """An engine and its state, with freshly drawn parameters in double precision; with a source as it begins."""
    engine = Engine(build(objective, spec, 0, torch.float64), ERM(), {"": Optimizer("sgd", lr=0.1)})
    state = engine.init([0], torch.device("cpu"))
    if source is not None:
        state.source = begun(source, state)
    return engine, state


def gradient(engine: Engine, state: Any, batch: Any) -> Tensor:
    """The gradient on a batch, as one vector."""
    found = engine.gradient(state, engine.numbered(batch, grouped=False), "")[0]
    return torch.cat([found[name].reshape(-1) for name in state.params])
