"""The short corridor: where the best policy draws, and what it is worth."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.data import ShortCorridor
from weft.objectives import TD, PolicyEvaluation, PolicyIteration
from weft.sources import Rollouts, Tables

BEST = 2 - 2**0.5
HORIZON = 1000


def formula(right: Any) -> Any:
    """What going right with this probability earns."""
    return (2 * right - 4) / (right * (1 - right))


class Corridor(Claim):
    """Each seed draws a probability of its own; and the best one is played and learned by every seed."""

    title = "The short corridor"
    statement = (
        "Where three cells look alike and left and right are switched in the second one, going right with probability "
        "p is worth (2p - 4) / (p (1 - p)): at most -11.66, at p = 2 - √2, and -44 and -82 where a tenth of the steps "
        "explores evenly. Who sees the cells is worth -3."
    )
    reference = "Sutton and Barto, “Reinforcement learning: an introduction”, 2018, example 13.1"
    tolerance = (
        "Solved values are exact: 1e-9, relative, and the largest of a grid of 181 probabilities within its spacing, "
        ".005, of 2 - √2. What is played, and what Monte Carlo learns, must lie within .3 of -11.66, 3 % of it."
    )
    quick = {"seeds": 6, "episodes": 2000, "steps": 150}
    full = {"seeds": 20, "episodes": 10000, "steps": 400}
    mutant = Mutant(
        what="rewards that are discounted",
        misses="solved less the formula",
        names={"PolicyEvaluation": altered(PolicyEvaluation, discount=0.99)},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        world = ShortCorridor(horizon=HORIZON)
        grid = np.linspace(0.05, 0.95, 181)
        values = np.array([solved(report, right) for right in report.each(grid, "a grid of probabilities")])
        off = np.abs(values / formula(grid) - 1)
        report.worst(f"solved less the formula, relative, worst of {len(grid)}", off, most=1e-9)
        sharp = {"exact": True, "within": 0.005}
        report.figure("the best probability", grid[values.argmax()], reference="2 - √2", near=BEST, **sharp)
        report.figure("what it is worth", values.max(), reference="-11.66", near=formula(BEST), **sharp)
        seen = report.fit(Learner(PolicyIteration(discount=1.0), dtype="float64"), Tables(world))
        told = {"reference": "-3", "near": -3.0, "within": 1e-9, "exact": True}
        report.figure("who sees the cells", float(seen.value(np.eye(4))[0]), **told)
        for right, said in ((0.05, "-82"), (0.95, "-44")):
            value = solved(report, right)
            about = {"reference": f"about {said}", "near": float(said), "within": 0.5, "exact": True}
            report.figure(f"right with probability {right:g}", value, **about)

        law = [1 - BEST, BEST]
        learner = Learner(
            TD(policy=lambda cells: cells.new_tensor([law]).expand(len(cells), 2), discount=1.0, trace=1.0),
            schedule="linear",
            steps=setting.steps,
            replicas=len(seeds),
            random_state=seeds[0],
        )
        report.fit(learner, Rollouts(world, envs=64), what="Monte Carlo")
        learned = [float(learner.replica(k).value(np.ones((1, 1)))[0]) for k in range(len(seeds))]
        middle = met(report, law)
        played = learner.evaluate(world, setting.episodes, deterministic=False).returns.mean(1)
        report.figure("played", mean_of(played), reference="-11.66", near=formula(BEST), within=0.3)
        about = {"reference": f"{middle:.2f}, by the visits", "near": middle, "within": 0.3}
        report.figure("learned by Monte Carlo, of a cell as it is met", mean_of(learned), **about)
        rows = [(seed, own, other) for seed, own, other in zip(seeds, played, learned, strict=True)]
        report.table("By seed", ["seed", "played", "learned"], rows, digits=2)
        with report.picture(
            "corridor",
            alt="What going right is worth against its probability: an arch with its top of about -11.7 at .59, which "
            "falls steeply at both ends; dots of what seeds have played lie on its top.",
            caption="Solved (line) against the probability of going right; dots: what each seed has played at 2 - √2.",
        ) as ax:
            ax.plot(grid, values, color=BLUE)
            ax.plot([BEST] * len(played), played, "o", color=ORANGE, markersize=4, alpha=0.6)
            note(ax, BEST, -9.0, "2 - √2", INK, ha="center", va="bottom")
            ax.set(xlabel="probability of going right", ylabel="worth of the start", ylim=(-100, 0))


def solved(report: Report, right: float) -> float:
    """The value of the first cell, going right with this probability."""
    objective = PolicyEvaluation([[1 - right, right]] * 4, discount=1.0)
    learner = report.fit(Learner(objective, dtype="float64"), Tables(ShortCorridor()))
    return float(learner.value(np.eye(4))[0])


def met(report: Report, law: list[float]) -> float:
    """What a cell is worth on the average, as an episode meets them: all look alike."""
    learner = report.fit(Learner(PolicyEvaluation([law] * 4, discount=1.0), dtype="float64"), Tables(ShortCorridor()))
    visits = learner.visits(np.eye(4))[:3]
    return float(visits @ learner.value(np.eye(4))[:3] / visits.sum())
