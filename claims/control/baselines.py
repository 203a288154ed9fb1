"""Baselines: they leave the gradient's mean, and may lower its variance or raise it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _engines import engine_of, gradient
from numpy.typing import NDArray
from torch import Tensor, nn

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import FiniteMDP
from weft.objectives import REINFORCE
from weft.sources import Rollouts

ENVS = 256
LAW = (0.9, 0.1)  # of the two actions, of which the first is worth 1 and the second 0
BASELINES = {"its value, v": 0.9, "none": 0.0, "the best": 0.1}
USUAL = {"its value, v": "time", "none": "none", "the best": "optimal"}  # REINFORCE's own, of the other episodes


class Baselines(Claim):
    """A two-armed bandit: both actions by hand, then sampled with REINFORCE's own baselines."""

    title = "What a baseline does"
    statement = (
        "Baselines leave the mean of REINFORCE's gradient and may lower or raise its variance: with two actions, of "
        "probability .9 and .1 and worth 1 and 0, it is .0009 without one, .0576 with the value as the baseline, 64 "
        "times as much, and 0 with .1."
    )
    reference = (
        "Williams, “Simple statistical gradient-following algorithms for connectionist reinforcement learning”, "
        "Machine Learning 8, 1992; Weaver and Tao, “The optimal reward baseline for gradient-based reinforcement "
        "learning”, UAI 2001; the figures by hand, of the gradient in either logit"
    )
    tolerance = (
        "What is enumerated is exact: 1e-9. Sampled variances must lie within a tenth of those by hand; the best "
        "baseline is estimated from the other episodes and so costs something: at most the .0009 without one."
    )
    quick = {"seeds": 5, "batches": 25}
    full = {"seeds": 20, "batches": 200}
    mutant = Mutant(
        what="a baseline that is left out",
        misses="variance as sampled, baseline its value",
        names={"REINFORCE": altered(REINFORCE, baseline="none")},
        setting={"batches": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        sampled = {
            name: [spread(seed, USUAL[name], setting.batches) for seed in seeds]
            for name in report.each(BASELINES, "sampled")
        }
        score, rows = scores(), []
        for (name, b), near in zip(BASELINES.items(), (0.0576, 0.0009, 0.0), strict=True):
            mean, variance = by_hand(score, b)
            exact = {"reference": f"{near:g}", "near": near, "within": 1e-9, "exact": True}
            report.figure(f"variance, baseline {name}", variance, **exact)
            bound = {"most": 0.0009} if not near else {"near": near, "within": near / 10}
            report.figure(
                f"variance as sampled, baseline {name}", mean_of(sampled[name]), reference=f"{near:g}", **bound
            )
            rows.append((name, b, mean, variance, mean_of(sampled[name])))
        grid = np.linspace(-0.3, 1.1, 57)
        means, curve = np.array([by_hand(score, b) for b in grid]).T
        report.worst("mean gradient with any baseline, less .09", np.abs(means) - 0.09, most=1e-9)
        columns = ["baseline", "b", "mean", "variance", "variance as sampled"]
        report.table("The two-armed bandit: the gradient in the first logit", columns, rows, digits=4)
        learner = Learner(REINFORCE(Logits(), baseline="optimal", discount=1.0), steps=setting.batches, random_state=0)
        report.fit(learner, Rollouts(WORLD, envs=ENVS), what="learned")
        with report.picture(
            "baselines",
            alt="The variance is a parabola of the baseline: 0 at .1, .0009 without a baseline and .0576 at the value "
            ".9.",
            caption="The variance of the gradient in a logit of the two-armed bandit, by its baseline (line); dots: as "
            "sampled with REINFORCE's own, one for each seed.",
        ) as ax:
            ax.plot(grid, curve, color=BLUE)
            for (name, b), colour in zip(BASELINES.items(), (ORANGE, INK, GREEN), strict=True):
                ax.plot([b] * len(seeds), sampled[name], "o", color=colour, markersize=4, alpha=0.6, label=name)
            note(ax, 0.9, 0.0576, ".0576  ", INK, ha="right", va="bottom")
            ax.set(xlabel="baseline", ylabel="variance of the gradient")
            ax.legend(loc="upper center")


WORLD = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[1.0, 0.0]]), horizon=1)


class Logits(nn.Module):
    """A policy of one state: the logits themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As they begin."""
        with torch.no_grad():
            self.logits.copy_(torch.tensor(LAW, dtype=torch.float64).log())

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 2)


def bandit(baseline: str) -> tuple[Any, Any, Rollouts]:
    """REINFORCE on the two-armed bandit, with a policy that stays as it is."""
    source = Rollouts(WORLD, envs=ENVS)
    return *engine_of(REINFORCE(Logits(), baseline=baseline), source.spec, source), source


def scores() -> NDArray[Any]:
    """REINFORCE's gradient in the first logit after each action, of an advantage of 1."""
    engine, state, _ = bandit("none")
    one = torch.ones(1, 1, dtype=torch.float64)
    rows = {"observation": one[..., None], "mask": one, "reward": one, "advantage": one}
    return np.array([float(gradient(engine, state, {**rows, "action": torch.tensor([[a]])})[0]) for a in (0, 1)])


def by_hand(score: NDArray[Any], baseline: float) -> tuple[float, float]:
    """Mean and variance of the gradient in the first logit, over both actions."""
    each, law = score * (np.array([1.0, 0.0]) - baseline), np.array(LAW)
    return float(law @ each), float(law @ (each - law @ each) ** 2)


def spread(seed: int, baseline: str, batches: int) -> float:
    """The variance of the gradient in the first logit, of one episode, from means over many."""
    engine, state, source = bandit(baseline)
    found = []
    for step in range(batches):
        state.step = 1 + step + seed * batches  # other episodes for each
        found.append(gradient(engine, state, next(source.batches(state)))[0])
    return ENVS * float(torch.stack(found).var())
