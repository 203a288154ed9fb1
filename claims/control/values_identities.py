"""What holds exactly of values: v, q and visits, one best value and many best policies, and the contraction."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, bands, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.core.random import fold, key_of, unit
from weft.data import FiniteMDP, FrozenLake
from weft.objectives import LinearProgram, PolicyEvaluation, PolicyIteration, ValueIteration
from weft.sources import Tables

STATES, ACTIONS, DISCOUNTS = 4, 3, (0.5, 0.9, 0.99)


class Reached(PolicyEvaluation):
    """A policy's values, but with how likely a state is ever reached in place of how often it is visited."""

    def concluded(self, *args: Any) -> Any:
        found = super().concluded(*args)
        return {**found, "discounted_visits": found["discounted_visits"].clamp_max(1.0)}


class ValuesIdentities(Claim):
    """Random processes, a policy each, all policies, and the frozen lake without ice."""

    title = "What holds of values"
    statement = (
        "v is the policy's mean of q, and q is what is earned and the discounted v after it; what a policy earns is "
        "its visits times the rewards, and discounted visits sum to 1 / (1 - discount). Policy iteration, value "
        "iteration and the linear program find one and the same v*, above which no policy lies; of best policies "
        "there may be many. Value iteration comes closer by at least the discount in each sweep."
    )
    reference = (
        "Bellman, “A Markovian decision process”, 1957; Puterman, “Markov decision processes”, 1994, chapter 6; Sutton "
        "and Barto, “Reinforcement learning: an introduction”, 2018, chapters 3 and 4"
    )
    tolerance = (
        "All but one figure is exact: rounding in double precision (1e-9, relative), 1e-6 where value iteration or the "
        "linear program stops, and 1e-6 for ratios of changes, of those above 1e-6. What is earned by playing must be "
        "the value within .1, of returns of about 10."
    )
    quick = {"seeds": 6, "episodes": 4000}
    full = {"seeds": 20, "episodes": 20000}
    mutant = Mutant(
        what="states that count once, however long they are held",
        misses="visits times rewards",
        names={"PolicyEvaluation": Reached},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        off: dict[str, list[float]] = {}
        changes: dict[float, list[NDArray[Any]]] = {discount: [] for discount in DISCOUNTS}
        gaps = []
        for seed in report.each(seeds, "random processes"):
            for discount in DISCOUNTS:
                for name, value in identities(report, seed, discount).items():
                    off.setdefault(name, []).append(value)
                off_best, change = best(report, seed, discount)
                for name, value in off_best.items():
                    off.setdefault(name, []).append(value)
                changes[discount].append(change)
            gaps.append(earned(report, seed, setting.episodes))
        loose = {"three ways to v*", "v* less the best of all policies"}
        for name, values in off.items():
            report.worst(f"{name}, worst of {len(values)}", values, most=1e-6 if name in loose else 1e-9)
        large = {d: [c[c > 1e-6] for c in each] for d, each in changes.items()}
        ratios = [float((c[1:] / c[:-1]).max() / d) for d, each in large.items() for c in each]
        report.figure(
            f"a sweep's change over the last one's, over the discount, worst of {len(ratios)}",
            max(ratios),
            reference="at most 1",
            most=1 + 1e-6,
            exact=True,
        )
        report.figure("what is earned by playing, less the value", mean_of(gaps), reference="0", near=0.0, within=0.1)

        count, spread = policies(report)
        report.figure("best policies of the lake without ice", count, reference="more than 1", least=2, exact=True)
        report.worst("their values less v*, worst of 20 of them", spread, most=1e-6)
        rows = [
            (d, np.mean([len(c) for c in changes[d]]), np.mean([c[-1] / c[-2] for c in large[d]])) for d in DISCOUNTS
        ]
        report.table("Value iteration", ["discount", "sweeps", "last change over the one before"], rows, digits=3)
        with report.picture(
            "contraction",
            alt="The largest change of a sweep on a logarithmic axis against the sweep, for three discounts: lines "
            "that fall straight, each along a dashed line whose slope is the discount's.",
            caption="The largest change of a sweep of value iteration, from 0; bands are the range of the processes, "
            "dashed is the slope of the discount.",
        ) as ax:
            for (discount, each), colour in zip(changes.items(), (ORANGE, BLUE, GREEN), strict=True):
                length = min(60, *(len(c) for c in each))
                sweep = np.arange(1, length + 1)
                bands(ax, sweep, np.array([c[:length] for c in each]), colour, label=f"discount {discount:g}")
                guide = np.mean([c[0] for c in each]) * discount ** (sweep - 1.0)
                ax.plot(sweep, guide, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(ax, 58, 2.0, "dashed: the discount", INK, ha="right", va="bottom")
            ax.set(xlabel="sweep", ylabel="largest change", yscale="log")
            ax.legend(loc="lower right")


def process(seed: int, ends: float | None = None) -> FiniteMDP:
    """Transitions, rewards (about 1) and start drawn from the seed."""
    key = fold(key_of(seed), "values")
    p = -unit(fold(key, "p"), (STATES, ACTIONS, STATES), torch.float64).clamp_min(1e-9).log()
    start = -unit(fold(key, "start"), (STATES,), torch.float64).clamp_min(1e-9).log()
    reward = 2 * unit(fold(key, "reward"), (STATES, ACTIONS), torch.float64)
    over = None if ends is None else torch.full((STATES,), ends, dtype=torch.float64)
    horizon = 10 if ends is None else 1000
    return FiniteMDP(p / p.sum(-1, keepdim=True), reward, start=start / start.sum(), ends=over, horizon=horizon)


def policy_of(seed: int) -> NDArray[Any]:
    """A policy drawn from the seed."""
    weight = -unit(fold(key_of(seed), "policy"), (STATES, ACTIONS), torch.float64).clamp_min(1e-9).log()
    return np.asarray(weight / weight.sum(-1, keepdim=True))


def solved(report: Report, objective: Any, world: FiniteMDP) -> Learner:
    """What solves a process, in double precision."""
    return report.fit(Learner(objective, dtype="float64", random_state=0), Tables(world))


def identities(report: Report, seed: int, discount: float) -> dict[str, float]:
    """How far each identity of a policy is from holding, relative to what it is about."""
    world, policy, states = process(seed), policy_of(seed), np.eye(STATES)
    learner = solved(report, PolicyEvaluation(policy, discount=discount), world)
    v, q, visits = learner.value(states), learner.q(states), learner.visits(states)
    p, r, start = (np.asarray(table) for table in (world.transition, world.reward, world.start))
    size = np.abs(v).max()
    return {
        "v less the mean of q": float(np.abs((policy * q).sum(1) - v).max() / size),
        "q less r + discount P v": float(np.abs(q - r - discount * p @ v).max() / size),
        "visits times rewards less what is earned": float(abs(visits @ (policy * r).sum(1) - start @ v) / size),
        "sum of visits times (1 - discount), less 1": float(abs(visits.sum() * (1 - discount) - 1)),
    }


def best(report: Report, seed: int, discount: float) -> tuple[dict[str, float], NDArray[Any]]:
    """How far three ways are apart and from the best of all policies; value iteration's changes."""
    world, states = process(seed), np.eye(STATES)
    ways = [solved(report, make(discount=discount), world) for make in (PolicyIteration, ValueIteration, LinearProgram)]
    found = [learner.value(states) for learner in ways]
    p, r = np.asarray(world.transition), np.asarray(world.reward)
    each = [
        np.linalg.solve(np.eye(STATES) - discount * p[range(STATES), way], r[range(STATES), way])
        for way in map(list, itertools.product(range(ACTIONS), repeat=STATES))
    ]
    size = np.abs(found[0]).max()
    off = {
        "three ways to v*": max(float(np.abs(other - found[0]).max() / size) for other in found[1:]),
        "v* less the best of all policies": float(np.abs(np.max(each, 0) - found[0]).max() / size),
    }
    return off, np.asarray(ways[1].history_["change"])[:-1]  # without the record of the solution


def earned(report: Report, seed: int, episodes: int) -> float:
    """The mean return of episodes that end with probability .1 after each step, less the value of their start."""
    world = process(seed, ends=0.1)
    learner = solved(report, PolicyEvaluation(policy_of(seed), discount=1.0), world)
    value = float(np.asarray(world.start) @ learner.value(np.eye(STATES)))
    return float(learner.evaluate(world, episodes, deterministic=False, random_state=seed).mean) - value


def policies(report: Report) -> tuple[float, list[float]]:
    """How many policies are best on the lake without ice, and how far from v* the values of 20 of them are."""
    lake, states = FrozenLake(slip=0.0), np.eye(16)
    learner = solved(report, ValueIteration(discount=0.9), lake)
    good = np.isclose(learner.advantage(states), 0, atol=1e-6)
    rng = np.random.default_rng(0)
    off = []
    for _ in range(20):
        chosen = np.array([rng.choice(np.flatnonzero(row)) for row in good])
        other = solved(report, PolicyEvaluation(np.eye(4)[chosen], discount=0.9), lake)
        off.append(float(np.abs(other.value(states) - learner.value(states)).max()))
    played = ~np.asarray(lake.ends)
    return float(good[played].sum(1).prod()), off
