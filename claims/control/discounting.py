"""The discount as variance reduction: of a gradient of undiscounted returns, bias and variance by the discount."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _engines import engine_of, gradient
from torch import Tensor, nn

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, bands, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.core.random import fold, gauss, key_of, unit
from weft.data import FiniteMDP
from weft.objectives import REINFORCE, PolicyEvaluation
from weft.sources import Rollouts, Tables

STATES, ACTIONS, ENDS = 4, 3, 0.05
DISCOUNTS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
EPISODES = 16  # of one gradient


class Table(nn.Module):
    """Logits of the actions in each state, all alike: every action is drawn evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(STATES, ACTIONS))

    def reset_parameters(self) -> None:
        """As they begin."""
        nn.init.zeros_(self.logits)

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.logits) @ self.logits


class Discounting(Claim):
    """Every seed draws a process of its own, in which episodes take 20 steps on the average."""

    title = "The discount lowers variance"
    statement = (
        "Of returns that are not discounted, REINFORCE's gradient with a discount below 1 is a biased estimate of less "
        "variance: with the discount the bias falls to nothing and the variance rises, so that of a few episodes the "
        "squared error is least at a discount below 1, and of ever more episodes at ever higher ones."
    )
    reference = (
        "Baxter and Bartlett, “Infinite-horizon policy-gradient estimation”, Journal of Artificial Intelligence "
        "Research 15, 2001; Schulman, Moritz, Levine, Jordan and Abbeel, “High-dimensional continuous control using "
        "generalized advantage estimation”, arXiv 1506.02438, section 3"
    )
    tolerance = (
        "Biases are solved for and exact: below 1e-9 at discount 1. What is sampled must be as far from that as chance "
        "says: in squared standard errors at most 1.5 in the mean, where 1 is chance. The rest is that one curve lies "
        "above another, by 5 %: the logarithm of their ratio, seed by seed, at least .05; the best discount may stay "
        "but not fall."
    )
    quick = {"seeds": 5, "gradients": 30}
    full = {"seeds": 20, "gradients": 200}
    mutant = Mutant(
        what="a discount that is not heard",
        misses="variance at discount 1 over that at .5",
        names={"REINFORCE": altered(REINFORCE, discount=1.0)},
        setting={"gradients": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(1)
        found = [measured(report, seed, setting.gradients) for seed in report.each(seeds, "processes")]
        bias, variance, chance = (np.array(part) for part in zip(*found, strict=True))
        report.worst(f"bias at discount 1, relative, worst of {len(seeds)}", bias[:, -1], most=1e-9)
        report.figure("sampled less solved, in standard errors, squared", mean_of(chance), reference="1", most=1.5)
        at = DISCOUNTS.index
        told = {"reference": "above 0", "least": 0.05}
        less = np.log(bias[:, at(0.5)] / bias[:, at(0.9)])
        report.figure("bias at discount .5 over that at .9, logarithm", mean_of(less), **told)
        more = np.log(variance[:, -1] / variance[:, at(0.5)])
        report.figure("variance at discount 1 over that at .5, logarithm", mean_of(more), **told)
        more = np.log(variance[:, -1] / variance[:, at(0.9)])
        report.figure("variance at discount 1 over that at .9, logarithm", mean_of(more), **told)
        few, many = (bias**2 + variance / count for count in (1, 100))
        gain = np.log(few[:, -1] / few[:, :-1].min(1))
        report.figure(f"squared error at discount 1 over the least below 1, {EPISODES} episodes", mean_of(gain), **told)
        later = np.array(DISCOUNTS)[many.argmin(1)] - np.array(DISCOUNTS)[few.argmin(1)]
        report.figure("best discount, of 100 times as many episodes less of so many", mean_of(later), least=0.0)
        rows = [
            (discount, *(mean_of(part[:, k]) for part in (bias, variance, few, many)))
            for k, discount in enumerate(DISCOUNTS)
        ]
        columns = ["discount", "bias", "variance", "squared error", "of 100 times as many episodes"]
        report.table("Relative to the exact gradient", columns, rows, digits=3)
        with report.picture(
            "discounting",
            alt="Against the discount, on a logarithmic axis: the squared bias falls to nothing at 1, the variance of "
            "the gradient rises, and their sum is least in between.",
            caption=f"Squared bias, variance and their sum, of a gradient from {EPISODES} episodes, relative to the "
            "exact one; lines are medians of the processes, bands their middle half.",
        ) as ax:
            place = np.arange(len(DISCOUNTS))
            parts = {"squared bias": (bias[:, :-1] ** 2, BLUE), "variance": (variance, ORANGE), "both": (few, GREEN)}
            for name, (values, colour) in parts.items():
                half = {"middle": np.median, "between": (0.25, 0.75), "marker": "o"}
                bands(ax, place[: values.shape[1]], values, colour, label=name, **half)
            note(ax, place[-1], few[:, -1].max(), "no bias at 1", INK, ha="right", va="bottom")
            ax.set_xticks(place, [f"{d:g}" for d in DISCOUNTS])
            ax.set(xlabel="discount", ylabel="over the squared length of the exact gradient", yscale="log")
            ax.legend(loc="lower left")


def process(seed: int) -> FiniteMDP:
    """Transitions and rewards drawn from the seed; an episode ends with probability .05 after each step."""
    key = fold(key_of(seed), "discounting")
    p = (-unit(fold(key, "p"), (STATES, ACTIONS, STATES), torch.float64).clamp_min(1e-9).log()) ** 2
    reward = gauss(fold(key, "reward"), (STATES, ACTIONS), torch.float64)
    over = torch.full((STATES,), ENDS, dtype=torch.float64)
    return FiniteMDP(p / p.sum(-1, keepdim=True), reward, ends=over, horizon=400)


def solved(report: Report, world: FiniteMDP, discount: float) -> Learner:
    """The values and visits of actions that are drawn evenly."""
    policy = np.full((STATES, ACTIONS), 1 / ACTIONS)
    return report.fit(Learner(PolicyEvaluation(policy, discount=discount), dtype="float64"), Tables(world))


def true_gradient(world: FiniteMDP) -> Tensor:
    """Of minus what is earned, without a discount, by the linear system for values."""
    logits = torch.zeros(STATES, ACTIONS, dtype=torch.float64, requires_grad=True)
    policy = logits.softmax(-1)
    system = torch.eye(STATES) - (1 - ENDS) * torch.einsum("sa,sat->st", policy, world.transition)
    worth = torch.linalg.solve(system, (policy * world.reward).sum(-1)).mean()
    return torch.autograd.grad(-worth, logits)[0].flatten()


def measured(report: Report, seed: int, gradients: int) -> tuple[list[float], list[float], float]:
    """By discount: the bias and the variance, relative; and how far samples are from what is solved for."""
    world, states = process(seed), np.eye(STATES)
    truth, visits = true_gradient(world), solved(report, world, 1.0).visits(states)[:, None]
    source, played, size = Rollouts(world, envs=EPISODES * gradients), {}, truth.norm()
    bias, variance, square = [], [], []
    for discount in DISCOUNTS:
        mean = torch.as_tensor(-visits * solved(report, world, discount).advantage(states) / ACTIONS).flatten()
        engine, state = engine_of(REINFORCE(Table(), discount=discount, baseline="none"), source.spec, source)
        state.step = 1 + seed
        played = played or {n: v for n, v in next(source.batches(state)).items() if n != "advantage"}
        parts = ({n: v[k * EPISODES : (k + 1) * EPISODES] for n, v in played.items()} for k in range(gradients))
        found = torch.stack([gradient(engine, state, part) for part in parts])
        bias.append(float((mean - truth).norm() / size))
        variance.append(float(found.var(0).sum() / size**2))
        square.append(float((found.mean(0) - mean).square().sum() / (found.var(0).sum() / gradients)))
    return bias, variance, float(np.mean(square))
