"""A fitted learner on given rows, as a pure function of its parameters: what the measures of it need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.objective import Objective
from weft.core.random import fold, key_of
from weft.core.source import Batch, number_rows
from weft.core.trees import Params
from weft.engine.gradients.loss import base_loss
from weft.learner.estimator import Learner

__all__ = ["Fitted"]

_WIDE = torch.float64


@dataclass
class Fitted:
    """One trained run of a learner, and rows in their environments; numbers in double precision.

    Attributes:
        module: the objective, in evaluation mode.
        params: the parameters that were trained, apart from training's.
        others: those that were not.
        buffers: the module's buffers.
        key: of the draws of a measure.
        batch: the rows.
        names: the environments, sorted.
        shares: what each row (columns) counts in the mean of each environment (rows), by weight; rows sum to 1.
    """

    module: Objective
    params: Params
    others: Params
    buffers: Params
    key: Tensor
    batch: Batch
    names: list[Any]
    shares: Tensor

    @classmethod
    def of(cls, learner: Learner, X: Any, y: Any, environment: Any = None) -> Fitted:
        """Reads the rows as `fit` does; without `environment` they are one."""
        check_is_fitted(learner)
        if learner.objective_.players:
            objective = learner.settings().objective
            raise ValueError(f"expected an objective with one loss to measure, got {objective!r}, a game of players")
        state = learner.training_.alone.state
        data = learner.read(X, y, environment=environment)
        labels = data.pop("environment", np.zeros(len(data["x"]), dtype=int))
        names, codes = np.unique(labels, return_inverse=True)
        data.pop("classes", None)

        def wide(t: Tensor) -> Tensor:
            t = t.detach().to(state.device)
            return t.to(_WIDE) if t.is_floating_point() else t

        batch = number_rows({name: wide(values) for name, values in data.items()}, 1)
        members = torch.from_numpy(codes.reshape(-1)).to(state.device) == torch.arange(
            len(names), device=state.device
        ).unsqueeze(1)
        mass = members * batch["weight"] if "weight" in batch else members.to(_WIDE)
        shares = mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(_WIDE).tiny)
        module = learner.module()
        every = dict(module.named_parameters())
        return cls(
            module=module,
            params={name: wide(p).clone() for name, p in every.items() if p.requires_grad},
            others={name: wide(p) for name, p in every.items() if not p.requires_grad},
            buffers={name: wide(b) for name, b in module.named_buffers()},
            key=fold(key_of(state.seeds), "measure"),
            batch=batch,
            names=names.tolist(),
            shares=shares,
        )

    def losses(self, params: Params, **fields: Tensor) -> Tensor:
        """One loss per row, at any parameters (and with any of the batch's fields replaced)."""
        loss = base_loss(self.module, self.others, self.buffers, self.key, "")
        return loss(params, {**self.batch, **fields}).losses

    def risks(self, params: Params) -> Tensor:
        """The mean loss of each environment, shape (environments,)."""
        return self.shares @ self.losses(params)
