"""L-BFGS: Newton's step, with a curvature learned from the gradients of recent steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value

from weft.core.legal import Whole
from weft.core.objective import Objective
from weft.core.strategy import Known, Move, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["LBFGS"]


class LBFGS(Strategy):
    """Steps along - H g, with H an estimate of the inverse curvature from the last steps.

    With s_k = theta_(k+1) - theta_k and y_k = g_(k+1) - g_k of the last `history` steps, H is what the BFGS updates

        H <- (I - r s y^T) H (I - r y s^T) + r s s^T,    r = 1 / (y^T s),

    make of (s^T y / y^T y) I; it is never formed (two loops over the pairs). Pairs without positive curvature are left
    out. The step is the first of lr d, lr d / 2, lr d / 4, ... that lowers the loss on the batch by at least 1e-4 of
    what its slope promises, or the last of them. g is the gradient that all other strategies leave, penalties and masks
    included; what they add to that of the objective's own loss counts as a linear term in the comparison.

    It is for whole batches (`batch_size=None`): between different batches y is noise.

    Args:
        history: pairs kept; 0 goes along the gradient.
        trials: steps tried, each a forward over the batch beside one more gradient; with 0 the first is taken untried.

    References:
        Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 45,
        1989; Nocedal and Wright, "Numerical Optimization", 2006, algorithm 7.4 (two loops) and 3.1 (backtracking).

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> from weft import Optimizer, Regressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> newton = {"strategy": LBFGS(), "optimizer": Optimizer("sgd", lr=1.0), "batch_size": None, "steps": 60}
        >>> round(Regressor("linear", **newton, random_state=0).fit(X, y).score(X, y), 3)
        0.518
    """

    own_step = True
    legal = {"history": Whole(0), "trials": Whole(0, 60)}
    neutral = {"history": 0, "trials": 0}

    def __init__(self, *, history: int = 10, trials: int = 8) -> None:
        self.history = history
        self.trials = trials

    def refuses(self, objective: Objective) -> str | None:
        if objective.players:
            return "it learns the curvature of one function, and a player's loss becomes another when others move"
        if objective.on_policy:
            return (
                "it compares losses at several parameters, and the trajectories that one policy drew tell only its own"
            )
        return super().refuses(objective)

    def warns(self, known: Known) -> str | None:
        if known.epoch != 1 and (self.history or self.trials):
            return (
                f"expected the same rows at every step for {self!r}, which compares gradients from step to step, got "
                "other batches: their difference is noise; give batch_size=None"
            )
        return super().warns(known)

    def init(self, params: Params) -> StrategyState:
        """`s`, `y`: the pairs, latest first, and `weight`, their r (0 where there is none yet); `point` and `gradient`
        of the last step, and whether there was one (`begun`)."""
        flat = _flat(params)
        pairs = flat.new_zeros(self.history, len(flat))
        state = {"s": pairs, "y": pairs.clone(), "weight": flat.new_zeros(self.history)}
        begun = torch.zeros((), dtype=torch.bool)
        return {**state, "point": torch.zeros_like(flat), "gradient": torch.zeros_like(flat), "begun": begun}

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        if not self.history and not self.trials:
            return move.step, state
        least = torch.finfo(move.lr.dtype).tiny  # a schedule may end at zero
        point, g = _flat(move.params), -_flat(move.step) / move.lr.clamp_min(least)
        kept = self._pairs(point, g, state) if self.history else {}
        d = move.lr * self._direction(g, {**state, **kept})
        step = self._searched(d, g, move) if self.trials else d
        return _parted(step, move.params), {
            **state,
            **kept,
            "point": point,
            "gradient": g,
            "begun": torch.ones_like(state["begun"]),
        }

    def release(self, state: StrategyState, task: str) -> StrategyState:
        """Another task has another curvature."""
        return {**state, "weight": torch.zeros_like(state["weight"]), "begun": torch.zeros_like(state["begun"])}

    def _pairs(self, point: Tensor, g: Tensor, state: StrategyState) -> StrategyState:
        """The pairs with that of the last step in front, where its curvature is positive."""
        s, y = point - state["point"], g - state["gradient"]
        curvature = (s * y).sum()
        least = torch.finfo(s.dtype).eps * s.square().sum().sqrt() * y.square().sum().sqrt()
        taken = state["begun"] & (curvature > least)
        weight = 1.0 / torch.where(taken, curvature, 1.0)
        new = {"s": s, "y": y, "weight": weight}
        return {n: torch.where(taken, torch.cat([v.unsqueeze(0), state[n][:-1]]), state[n]) for n, v in new.items()}

    def _direction(self, g: Tensor, state: StrategyState) -> Tensor:
        """- H g, by two loops over the pairs: from the latest to the first, and back."""
        q, along = g, []
        for k in range(self.history):
            along.append(state["weight"][k] * (state["s"][k] * q).sum())
            q = q - along[-1] * state["y"][k]
        if self.history:
            known = state["weight"][0] > 0
            scale = 1.0 / (state["weight"][0] * state["y"][0].square().sum()).clamp_min(torch.finfo(g.dtype).tiny)
            first = (1.0 / g.abs().sum().clamp_min(torch.finfo(g.dtype).tiny)).clamp_max(1.0)  # nothing is known yet
            q = q * torch.where(known, scale, first)
        for k in reversed(range(self.history)):
            back = state["weight"][k] * (state["y"][k] * q).sum()
            q = q + (along[k] - back) * state["s"][k]
        return -q

    def _searched(self, d: Tensor, g: Tensor, move: Move) -> Tensor:
        """The first of d, d / 2, d / 4, ... that lowers the loss enough, or the last of them."""
        own, here = grad_and_value(move.loss)(move.params)
        slope = (d * g).sum()
        added = (d * (g - _flat(own))).sum()
        length, found = torch.ones_like(slope), torch.zeros_like(slope, dtype=torch.bool)
        for k in range(self.trials):
            t = 0.5**k
            step = _parted(t * d, move.params)
            there = move.loss({n: p + step[n] for n, p in move.params.items()})
            good = there + t * added <= here + 1e-4 * t * slope
            length = torch.where(found, length, t)
            found = found | good
        return length * d


def _flat(tree: Params) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tree.values()])


def _parted(flat: Tensor, like: Params) -> Params:
    parts = flat.split([t.numel() for t in like.values()])
    return {name: part.reshape(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}
