"""Off-policy: Q-learning needs no weights, values of states do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _sweeps import Sweeps, resting
from numpy.typing import NDArray
from torch import Tensor

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.core.random import fold, key_of, unit
from weft.data import FiniteMDP
from weft.objectives import TD, PolicyEvaluation, TDControl, ValueIteration
from weft.sources import Segments, Tables

STATES, ACTIONS, DISCOUNT = 4, 3, 0.8
PLAYED = 101  # the process that is played in: there both policies' values lie apart by a third


class OffPolicy(Claim):
    """Random processes, who plays and who is judged: every step by its probability, then what each seed has played."""

    title = "Off-policy: q without weights, v with them"
    statement = (
        "Q-learning finds q* whoever plays, as an action's worth is learned from that action's own steps. What another "
        "policy is worth, v, is found from the steps of who plays only by importance weights; without them it is the "
        "value of who plays that is found. SARSA's q, too, is that of who plays."
    )
    reference = (
        "Watkins and Dayan, “Q-learning”, Machine Learning 8, 1992; Precup, Sutton and Singh, “Eligibility traces for "
        "off-policy policy evaluation”, ICML 2000; Sutton and Barto, “Reinforcement learning: an introduction”, 2018, "
        "sections 5.5, 6.5 and 11.1"
    )
    tolerance = (
        "With every step by its probability: 1e-6, relative, and where it must not be found at least .01 away in each "
        "process. Played, with a falling step size: errors of at most .1 where it is to be found, and without weights "
        "at least .1 more than with them, relative to the largest value."
    )
    quick = {"seeds": 5, "processes": 2, "sweeps": 1000, "steps": 150}
    full = {"seeds": 20, "processes": 20, "sweeps": 4000, "steps": 3000}
    mutant = Mutant(
        what="weights that are not heard",
        misses="v with weights",
        names={"TD": altered(TD, target=None)},
        setting={"processes": 1, "sweeps": 100, "steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(4)
        processes = range(setting.processes)
        swept = [exact(report, seed, setting.sweeps) for seed in report.each(processes, "every step")]
        off = {name: np.array([one[name] for one in swept]) for name in swept[0]}
        for name in (
            "Q-learning less q*",
            "v with weights less v of the judged",
            "v without weights less v of who plays",
        ):
            report.worst(f"{name}, worst of {len(processes)}", off[name], most=1e-6)
        for name in ("v without weights less v of the judged", "SARSA less q*"):
            far = {"reference": "not 0", "least": 0.01, "exact": True}
            report.figure(f"{name}, nearest of {len(processes)}", off[name].min(), **far)

        errors = sampled(report, setting.steps, seeds)
        found = {"reference": "found", "most": 0.1}
        report.figure("played: Q-learning's error", mean_of(errors["Q-learning"]), **found)
        report.figure("played: v's error with weights", mean_of(errors["v, weighed"]), **found)
        more = mean_of(errors["v, not weighed"] - errors["v, weighed"])
        report.figure("played: v's error without weights less with them", more, reference="above 0", least=0.1)
        rows = [(name, mean_of(values)) for name, values in {**off, **errors}.items()]
        report.table("Mean distances, relative to the largest value", ["what", "distance"], rows)
        with report.picture(
            "off_policy",
            alt="Errors of what was learned from play, a dot for each seed: near 0 for Q-learning and for values with "
            "importance weights, well above for values without them.",
            caption="Errors of what was learned from another policy's play, relative to the largest value; a dot for "
            "each seed, strokes are medians.",
        ) as ax:
            for row, (values, colour) in enumerate(zip(errors.values(), (BLUE, GREEN, ORANGE), strict=True)):
                ax.plot(values, np.full(len(values), row), "o", color=colour, markersize=4, alpha=0.6)
                ax.plot([np.median(values)] * 2, [row - 0.3, row + 0.3], color=colour)
            ax.set_yticks(range(len(errors)), list(errors))
            ax.set(xlabel="error, over the largest value", ylim=(2.5, -0.5), xlim=(0, None))


def given(seed: int) -> tuple[FiniteMDP, Tensor, Tensor]:
    """A process without ends, who plays and who is judged, drawn from the seed."""
    key = fold(key_of(seed), "off-policy")

    def shares(name: str, *shape: int) -> Tensor:
        drawn = -unit(fold(key, name), shape, torch.float64).clamp_min(1e-9).log()
        return drawn / drawn.sum(-1, keepdim=True)

    reward = 2 * unit(fold(key, "reward"), (STATES, ACTIONS), torch.float64)
    world = FiniteMDP(shares("p", STATES, ACTIONS, STATES), reward, horizon=50)
    laws = (0.2 / ACTIONS + 0.8 * shares(name, STATES, ACTIONS) for name in ("plays", "judged"))
    return world, *laws


def solved(report: Report, world: FiniteMDP, objective: Any) -> Learner:
    """What is exact."""
    return report.fit(Learner(objective, dtype="float64", random_state=0), Tables(world))


def apart(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest distance, relative to the largest value."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def truths(report: Report, world: FiniteMDP, *laws: Tensor) -> tuple[NDArray[Any], ...]:
    """q*, and the values of each policy."""
    states, best = np.eye(STATES), solved(report, world, ValueIteration(discount=DISCOUNT))
    values = (solved(report, world, PolicyEvaluation(law, discount=DISCOUNT)).value(states) for law in laws)
    return best.q(states), *values


def exact(report: Report, seed: int, sweeps: int) -> dict[str, float]:
    """How far what is learned from every step by its probability is from what is exact."""
    world, plays, judged = given(seed)
    best, of_plays, of_judged = truths(report, world, plays, judged)
    share, states = resting(torch.einsum("sa,sat->st", plays, world.transition)), np.eye(STATES)

    def learned(objective: Any, steps: int) -> Learner:
        sgd = Optimizer("sgd", lr=2.0)
        learner = Learner(objective, optimizer=sgd, steps=steps, every=steps, dtype="float64", random_state=0)
        return report.fit(learner, Sweeps(world, plays, share))

    q = learned(TDControl(target="q", discount=DISCOUNT), sweeps).q(states)
    mean = learned(TDControl(target="expected", epsilon=1.0, discount=DISCOUNT), sweeps // 4).q(states)
    weighed = learned(TD(policy=plays, target=judged, discount=DISCOUNT), sweeps // 4).value(states)
    plain = learned(TD(policy=plays, discount=DISCOUNT), sweeps // 4).value(states)
    return {
        "Q-learning less q*": apart(q, best),
        "v with weights less v of the judged": apart(weighed, of_judged),
        "v without weights less v of who plays": apart(plain, of_plays),
        "v without weights less v of the judged": apart(plain, of_judged),
        "SARSA less q*": apart(mean, best),
    }


def sampled(report: Report, steps: int, seeds: list[int]) -> dict[str, NDArray[Any]]:
    """By seed, the errors of what is learned from play in one process."""
    world, plays, judged = given(PLAYED)
    best, of_judged = truths(report, world, judged)
    states, source = np.eye(STATES), Segments(world, envs=64, length=1)

    def learned(objective: Any) -> list[Learner]:
        sgd, count = Optimizer("sgd", lr=2.0), len(seeds)
        learner = Learner(
            objective, optimizer=sgd, schedule="linear", steps=steps, every=steps, replicas=count, random_state=seeds[0]
        )
        report.fit(learner, source)
        return [learner.replica(k) for k in range(count)]

    q = learned(TDControl(target="q", epsilon=1.0, discount=DISCOUNT))
    weighed = learned(TD(policy=plays, target=judged, discount=DISCOUNT))
    plain = learned(TD(policy=plays, discount=DISCOUNT))
    return {
        "Q-learning": np.array([apart(each.q(states), best) for each in q]),
        "v, weighed": np.array([apart(each.value(states), of_judged) for each in weighed]),
        "v, not weighed": np.array([apart(each.value(states), of_judged) for each in plain]),
    }
