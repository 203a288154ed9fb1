"""A fitted learner on given rows, as a pure function of its parameters: what the measures of it need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.random import fold, key_of
from weft.core.source import Batch, number_rows
from weft.core.trees import Params

__all__ = ["Fitted"]


@dataclass
class Fitted:
    """One trained run of a learner, and rows in their environments.

    Attributes:
        learner: the run as a learner of its own.
        params: its trainable parameters, apart from training's.
        batch: the rows.
        names: the environments, sorted.
        shares: what each row (columns) counts in the mean of each environment (rows), by weight; rows sum to 1.
    """

    learner: Any
    params: Params
    batch: Batch
    names: list[Any]
    shares: Tensor

    @classmethod
    def of(cls, learner: Any, X: Any, y: Any, environment: Any = None) -> Fitted:
        """Reads the rows as `fit` does, in double precision; without `environment` they are one."""
        from weft.learner.reading import read

        check_is_fitted(learner)
        if learner._objective().players:
            raise ValueError(
                f"expected an objective with one loss to measure, got {learner._objective()!r}, a game of players"
            )
        if sum(state.replicas or 1 for _, state in learner._runs) > 1:
            raise ValueError("expected one trained run, got several replicas; measure one: learner.replica(0)")
        state = learner._runs[0][1]
        data = read(learner, X, y, environment, None, reset=False)
        labels = data.pop("environment", np.zeros(len(data["x"]), dtype=int))
        names, codes = np.unique(labels, return_inverse=True)
        data.pop("classes", None)
        wide = torch.float64

        def cast(t: Tensor) -> Tensor:
            t = t.detach().to(state.device)
            return t.to(wide) if t.is_floating_point() else t

        batch = number_rows({name: cast(values) for name, values in data.items()}, 1)
        members = torch.from_numpy(codes.reshape(-1)).to(state.device) == torch.arange(
            len(names), device=state.device
        ).unsqueeze(1)
        mass = members * batch["weight"] if "weight" in batch else members.to(wide)
        shares = mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(wide).tiny)
        trained = set(learner._runs[0][0].names[""])
        params = {name: cast(p).clone() for name, p in state.params.items() if name in trained}
        return cls(learner, params, batch, names.tolist(), shares)

    def losses(self, params: Params, **fields: Tensor) -> Tensor:
        """One loss per row, in evaluation mode, at any parameters (and with any of the batch's fields replaced)."""
        from weft.engine.gradients.loss import base_loss

        engine, state = self.learner._runs[0]
        wide = self.shares.dtype
        others = {
            name: p.detach().to(wide) if p.is_floating_point() else p.detach()
            for name, p in state.params.items()
            if name not in self.params
        }
        buffers = {name: b.to(wide) if b.is_floating_point() else b for name, b in state.buffers.items()}
        loss = base_loss(engine.objective, others, buffers, fold(key_of(state.seeds), "measure"), "")
        training = engine.objective.training
        engine.objective.eval()
        try:
            return loss(params, {**self.batch, **fields}).losses
        finally:
            engine.objective.train(training)

    def risks(self, params: Params) -> Tensor:
        """The mean loss of each environment, shape (environments,)."""
        return self.shares @ self.losses(params)
