"""The random walk: temporal differences against Monte Carlo, of the same episodes, learned to the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, bands, mean_of
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.core.source import Batch
from weft.core.state import State
from weft.data import FiniteMDP
from weft.objectives import TD
from weft.sources import Rollouts

STATES = 5
TRUTH = np.arange(1, STATES + 1) / (STATES + 1)
TRACES = {"TD(0)": 0.0, "Monte Carlo": 1.0}


class RandomWalk(Claim):
    """Every seed plays episodes of its own, the same ones for both methods."""

    title = "TD against Monte Carlo on the random walk"
    statement = (
        "Of the same episodes, presented again and again until nothing changes, temporal differences find values "
        "closer to the true ones than Monte Carlo, whose values are the best fit to the returns that were seen; there "
        "Monte Carlo is the closer one."
    )
    reference = "Sutton and Barto, “Reinforcement learning: an introduction”, 2018, examples 6.2 and 6.3, figure 6.2"
    tolerance = (
        "Curves are told, and no figures: the difference of the root mean square errors, seed by seed on the same "
        "episodes, must be above 0 at every number of episodes, and that of the distances to the returns below 0, by "
        "more than .001, which is no difference."
    )
    quick = {"seeds": 6, "episodes": (5, 20), "steps": 100}
    full = {"seeds": 100, "episodes": (5, 10, 20, 50, 100), "steps": 400}
    mutant = Mutant(
        what="returns in the place of differences: lambda is not heard",
        misses="Monte Carlo's error less TD's",
        names={"TD": altered(TD, trace=1.0)},
        setting={"steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(TRACES) * len(setting.episodes))
        found: dict[str, list[Any]] = {name: [] for name in TRACES}
        for episodes in setting.episodes:
            for name, trace in TRACES.items():
                found[name].append(learned(report, name, trace, episodes, setting.steps, seeds))
        error = {name: np.array([one[0] for one in each]).T for name, each in found.items()}
        apart = {name: np.array([one[1] for one in each]).T for name, each in found.items()}
        for at, episodes in enumerate(setting.episodes):
            more = mean_of(error["Monte Carlo"][:, at] - error["TD(0)"][:, at])
            report.figure(f"Monte Carlo's error less TD's, {episodes} episodes", more, reference="above 0", least=0.001)
        nearer = mean_of(apart["Monte Carlo"][:, -1] - apart["TD(0)"][:, -1])
        last = setting.episodes[-1]
        report.figure(f"distance to the returns, likewise, {last} episodes", nearer, reference="below 0", most=-0.001)
        report.figure(f"TD's error, {last} episodes", mean_of(error["TD(0)"][:, -1]))
        rows = [
            (episodes, *(mean_of(table[name][:, at]) for table in (error, apart) for name in TRACES))
            for at, episodes in enumerate(setting.episodes)
        ]
        columns = ["episodes", "TD, error", "Monte Carlo, error", "TD, to the returns", "Monte Carlo, to the returns"]
        report.table("Root mean square errors and distances", columns, rows, digits=3)
        with report.picture(
            "random_walk",
            alt="The root mean square error against the number of episodes: both lines fall, that of temporal "
            "differences below that of Monte Carlo throughout.",
            caption="The root mean square error of five values, learned to the end from so many episodes; bands hold "
            "the middle half of the seeds.",
        ) as ax:
            for name, colour in zip(TRACES, (BLUE, ORANGE), strict=True):
                half = {"between": (0.25, 0.75), "marker": "o"}
                bands(ax, setting.episodes, error[name], colour, label=name, **half)
            note(ax, last, 0.0, "the true values", INK, ha="right", va="bottom")
            ax.set(xlabel="episodes", ylabel="error", ylim=(0, None), xscale="log")
            ax.legend()


def walk() -> FiniteMDP:
    """From the middle of five states left or right, evenly; worth 1 on getting out to the right."""
    last = STATES + 1
    to = torch.tensor([[max(s - 1, 0), min(s + 1, last)] for s in range(last + 1)])
    reward = torch.zeros(last + 1, 2, last + 1)
    reward[STATES, 1, last] = 1.0
    ends = torch.zeros(last + 1, dtype=torch.bool)
    ends[[0, last]] = True
    start = torch.eye(last + 1)[last // 2]
    return FiniteMDP(torch.eye(last + 1)[to], reward, start=start, ends=ends, horizon=1000)


class Same(Rollouts):
    """The same episodes again and again."""

    def batches(self, state: State) -> Iterator[Batch]:
        """The first ones."""
        once = next(super().batches(replace(state, step=0)))
        while True:
            yield dict(once)


def learned(
    report: Report, name: str, trace: float, episodes: int, steps: int, seeds: list[int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """By seed: the error of the values, and their distance to the returns that were seen."""
    objective = TD(discount=1.0, trace=trace, initial=0.5)
    sgd, source = Optimizer("sgd", lr=2.0), Same(walk(), envs=episodes)
    learner = Learner(objective, optimizer=sgd, steps=steps, every=steps, replicas=len(seeds), random_state=seeds[0])
    report.fit(learner, source, what=f"{name}, {episodes} episodes")
    inside = np.eye(STATES + 2)[1:-1]
    value = np.array([learner.replica(k).value(inside) for k in range(len(seeds))])
    state = learner.training_.runs[0].state
    batch = next(source.batches(state))
    weight = batch["weight"].double()
    lead = (len(seeds), episodes, -1)
    reward = (batch["reward"].double() * weight).reshape(lead)
    gain = reward.flip(-1).cumsum(-1).flip(-1).flatten(1)
    told = torch.einsum("krs,ks->kr", batch["observation"][..., 1:-1].double(), torch.as_tensor(value).double())
    off = ((gain - told) ** 2 * weight).sum(-1) / weight.sum(-1)
    return np.sqrt(((value - TRUTH) ** 2).mean(1)), off.sqrt().numpy()
