"""Baird's example: off-policy, with few weights, temporal differences run away though the values are in reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _sweeps import Full, Sweeps
from torch import Tensor, nn

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.data import FiniteMDP
from weft.objectives import TD

DISCOUNT, RATE, PARTS = 0.99, 0.01, 5


class Baird(Claim):
    """Seven states and eight weights, every step by its probability: nothing is drawn."""

    title = "Baird's example"
    statement = (
        "Off-policy, with values linear in eight weights for seven states, temporal differences lead the weights away "
        "for ever, though no chance is in it and values of 0 are in their reach; as a table the same steps lead there."
    )
    reference = (
        "Baird, “Residual algorithms: reinforcement learning with function approximation”, ICML 1995; as in Sutton and "
        "Barto, “Reinforcement learning: an introduction”, 2018, figure 11.2, right"
    )
    tolerance = (
        "All is exact. After 1,000 sweeps the largest weight must be at least 10 times what it began as, and all "
        "weights within 1e-9, relative, of the power of the matrix that says where they go; the table's values, which "
        "begin at 1, within 1e-3 of 0."
    )
    quick = {"seeds": 1, "sweeps": 1000}
    full = {"seeds": 1, "sweeps": 1000}
    mutant = Mutant(
        what="the whole gradient, by which targets are moved too",
        misses="largest weight",
        names={"TD": Full},
        setting={"sweeps": 100},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(PARTS + 1)
        at, rows = [setting.sweeps * part // PARTS for part in range(1, PARTS + 1)], [(0, 10.0, 10.0)]
        for sweeps in at:
            after = learned(report, Eight(), SEEN, sweeps, RATE)
            weights = torch.cat([p.detach().flatten() for p in after.module().parameters()]).numpy()
            rows.append((sweeps, np.abs(weights).max(), np.abs(power(sweeps)).max()))
        grown = {"reference": "without end", "least": 10.0, "exact": True}
        report.figure("largest weight over the first", rows[-1][1] / 10, **grown)
        off = np.abs(weights - power(setting.sweeps)).max() / np.abs(weights).max()
        report.worst("weights less the matrix power, relative", off, most=1e-9)
        table = learned(report, None, None, setting.sweeps, 6.0, initial=1.0)
        report.worst("as a table: largest value", table.value(np.eye(7)), most=1e-3)
        report.table("The largest weight", ["sweeps", "learned", "by the matrix"], rows, digits=3)
        with report.picture(
            "baird",
            alt="The largest weight on a logarithmic axis against sweeps: after a bend it rises along a straight line, "
            "without end; dots of what was learned lie on the line of the matrix.",
            caption="The largest of eight weights, learned from all steps by their probability (dots), and by the "
            "power of the matrix (line).",
        ) as ax:
            line = np.linspace(0, setting.sweeps, 101).astype(int)
            ax.plot(line, [np.abs(power(int(k))).max() for k in line], color=BLUE)
            ax.plot([row[0] for row in rows], [row[1] for row in rows], "o", color=ORANGE, markersize=5)
            note(ax, 0, 10.0, "  where it begins", INK, va="top")
            ax.set(xlabel="sweeps", ylabel="largest weight", yscale="log")


SEEN = torch.cat([2 * torch.eye(6, 8), torch.tensor([[0.0] * 6 + [1.0, 2.0]])])
SEEN[:6, 7] = 1.0
FIRST = torch.tensor([1.0] * 6 + [10.0, 1.0])


class Eight(nn.Module):
    """v linear in eight weights, which begin as Baird's."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(FIRST.clone())

    def reset_parameters(self) -> None:
        """As they begin."""
        with torch.no_grad():
            self.w.copy_(FIRST)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.w) @ self.w).unsqueeze(-1)


def power(sweeps: int) -> Any:
    """Where so many sweeps lead the weights, by linear algebra: w + rate X' D (discount P - 1) X w, again and again."""
    x = SEEN.double().numpy()
    once = x.T @ (DISCOUNT * x[[6] * 7] - x) / 7
    return np.linalg.matrix_power(np.eye(8) + RATE * once, sweeps) @ FIRST.numpy()


def learned(report: Report, net: Any, seen: Any, sweeps: int, rate: float, initial: float = 0.0) -> Learner:
    """Who has learned from all steps of the behaviour what the target policy is worth."""
    up, down = torch.tensor([1 / 6] * 6 + [0.0], dtype=torch.float64), torch.eye(7, dtype=torch.float64)[6]
    world = FiniteMDP(torch.stack([up, down]).expand(7, 2, 7), torch.zeros(7, 2), start=torch.full((7,), 1 / 7))
    law = torch.tensor([6 / 7, 1 / 7], dtype=torch.float64)
    objective = TD(
        net,
        policy=lambda x: law.to(x).expand(len(x), 2),
        target=lambda x: x.new_tensor([0.0, 1.0]).expand(len(x), 2),
        discount=DISCOUNT,
        initial=initial,
    )
    sgd = Optimizer("sgd", lr=rate)
    learner = Learner(objective, optimizer=sgd, steps=sweeps, every=sweeps, dtype="float64", random_state=0)
    return report.fit(learner, Sweeps(world, law.expand(7, 2), torch.full((7,), 1 / 7), seen))
