"""Slow targets and replay, four ways: DQN with both, with either and with neither."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, bands, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import CartPole
from weft.objectives import DQN
from weft.sources import Replay

DISCOUNT, BATCH = 0.99, 64
MOST = 1 / (1 - DISCOUNT)  # that can be earned, at 1 a step
WAYS = {  # updates after which targets move, and steps that are remembered
    "both": (100, 10_000),
    "slow targets alone": (100, BATCH),
    "replay alone": (1, 10_000),
    "neither": (1, BATCH),
}


class SlowTargets(Claim):
    """CartPole; who does not replay learns from the last 64 steps, who has no slow targets from what it thinks now."""

    title = "Slow targets and replay"
    statement = (
        "Deep Q-learning earns most with both slow targets and replay. Without slow targets values run away beyond all "
        "that can be earned, with replay too; with slow targets they do not, and there replay earns more than the "
        "latest steps alone."
    )
    reference = (
        "Mnih et al., “Human-level control through deep reinforcement learning”, Nature 518, 2015, extended data table "
        "3 (Breakout: 316.8 with both, 240.7, 10.2, 3.2; there replay counts for more); van Hasselt et al., “Deep "
        "reinforcement learning and the deadly triad”, arXiv 1812.02648 (values beyond 1 / (1 - discount))"
    )
    tolerance = (
        "Orders are told, and not figures: of the last 100 episodes' returns, of at most 500, the differences seed by "
        "seed must be at least 5. The middle state's value must be at most 100 with slow targets, which is all that "
        "can be earned, and above it without. One setting for all four, chosen on seeds 100 to 104 for both together."
    )
    quick = {"seeds": 5, "env_steps": 1600}
    full = {"seeds": 10, "env_steps": 10_000}
    mutant = Mutant(
        what="targets that are not slow",
        misses="return, both less replay alone",
        names={"DQN": altered(DQN, renew=1)},
        setting={"env_steps": 600},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(WAYS))
        found = {name: learned(report, name, *way, setting.env_steps, seeds) for name, way in WAYS.items()}
        last = {name: curve[:, -1] for name, (_, curve, _) in found.items()}
        worth = {name: value for name, (_, _, value) in found.items()}
        for name in list(WAYS)[1:]:
            more = mean_of(last["both"] - last[name])
            report.figure(f"return, both less {name}", more, reference="above 0", least=5)
        for name, (renew, _) in WAYS.items():
            told = {"most": MOST} if renew > 1 else {"least": np.log10(MOST)}
            value, of = (worth[name], "value") if renew > 1 else (np.log10(np.abs(worth[name])), "value, log 10")
            report.figure(f"{of}, {name}", mean_of(value), reference="100 can be earned", **told)
        gain = (last["both"] - last["slow targets alone"]) - (last["replay alone"] - last["neither"])
        report.figure("what replay adds, with slow targets less without", mean_of(gain))
        rows = [(name, *WAYS[name], mean_of(last[name]), np.median(worth[name])) for name in WAYS]
        columns = ["with", "targets move after", "steps remembered", "return", "value, median"]
        report.table("The last 100 episodes", columns, rows, digits=1)
        with report.picture(
            "slow_targets",
            alt="Returns against steps played: with both the line rises highest, with slow targets alone less, "
            "with replay alone and with neither it falls to about 9.5 and stays there.",
            caption="The return of the last 100 episodes, exploration included, against the steps played; bands hold "
            "all seeds.",
        ) as ax:
            for (name, (steps, curve, _)), colour in zip(found.items(), (BLUE, GREEN, ORANGE, INK), strict=True):
                bands(ax, steps, curve, colour, label=name)
            note(ax, setting.env_steps, 9.5, "one action alone", INK, ha="right", va="bottom")
            ax.set(xlabel="steps played", ylabel="return", ylim=(0, None))
            ax.legend(loc="upper left")


def learned(
    report: Report, name: str, renew: int, capacity: int, env_steps: int, seeds: list[int]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(steps played, returns by seed along the way, what each seed thinks that the middle state is worth)."""
    source = Replay(
        CartPole(),
        batch_size=BATCH,
        start=BATCH,
        capacity=capacity,
        every=8,
        updates_each=4,
        explore=(1.0, 0.05, 0.3),
    )
    learner = Learner(
        DQN(hidden=(64, 64), renew=renew, discount=DISCOUNT),
        optimizer=Optimizer("adam", lr=2e-3),
        env_steps=env_steps,
        replicas=len(seeds),
        random_state=seeds[0],
    )
    report.fit(learner, source, what=name)
    worth = np.array([learner.replica(k).value(np.zeros((1, 4)))[0] for k in range(len(seeds))])
    history = learner.history_
    return np.asarray(history["env_steps"]).mean(-1), np.asarray(history["return"]).T, worth
