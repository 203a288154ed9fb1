"""EWC over tasks of control: Catch learned twice, the second time with the squares of its board in another order."""

from __future__ import annotations

from typing import Any

import torch
from _cues import Cues, pairs

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.objectives import REINFORCE
from weft.strategies import EWC

SIDE = 5
ORDER = torch.randperm(SIDE * SIDE, generator=torch.Generator().manual_seed(1)).tolist()
FIRST, SECOND = "the first board", "the second board"


class Tasks(Claim):
    """One policy, two boards one after the other; what it still does on the first one then."""

    title = "EWC over tasks of control"
    statement = (
        "A policy that has learned Catch, and then learns it with the squares of its board in another order, forgets "
        "the first board. Woven with EWC, whose Fisher information is that of its choices, it forgets less, and learns "
        "the second one, too."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, PNAS 114, 2017, of which this is "
        "the permuted task, told to a policy; the penalty equals a loop by hand: "
        "tests/objectives/control/test_woven.py"
    )
    tolerance = (
        "A return is the share of balls that are caught less that of those missed, from -1 to 1. On the first board "
        "after the second, with EWC less without, seed by seed: at least .3. On the second, with EWC: at least .5. "
        "Settings were chosen on other seeds (100 to 105). The policy is paid for its entropy, since of one that is "
        "sure of its choices the Fisher information is nought."
    )
    quick = {"seeds": 5, "steps": 300, "episodes": 200}
    full = {"seeds": 10, "steps": 300, "episodes": 500}
    mutant = Mutant(
        what="EWC of no strength",
        misses="with EWC less without",
        names={"EWC": altered(EWC, strength=0.0)},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        first, second = Cues(SIDE), Cues(SIDE, order=ORDER)
        report.plan(4)
        scores: dict[str, dict[str, Any]] = {}
        before: dict[str, Any] = {}
        for how, strategy in (("without", None), ("with EWC", EWC(strength=300.0))):
            objective = REINFORCE(hidden=(64,), discount=1.0, entropy_weight=0.3)
            learner = Learner(
                objective,
                strategy=strategy,
                optimizer=Optimizer("adam", lr=1e-2),
                steps=setting.steps,
                replicas=len(seeds),
                random_state=seeds[0],
            )
            report.fit(learner, objective.plays(first, envs=64), task="first", what=f"{how}, first")
            before[how] = learner.evaluate(first, setting.episodes).returns.mean(1)
            learner.partial_fit(objective.plays(second, envs=64), task="second")
            report.spend(trainings=len(seeds), steps=setting.steps * len(seeds))
            found = {
                name: learner.evaluate(world, setting.episodes) for name, world in ((FIRST, first), (SECOND, second))
            }
            scores[how] = {name: own.returns.mean(1) for name, own in found.items()}
        plain, kept = scores["without"], scores["with EWC"]
        report.figure("the first board, before the second", mean_of(before["with EWC"]), least=0.9)
        gain = mean_of(kept[FIRST] - plain[FIRST])
        report.figure("the first board, after the second: with EWC less without", gain, reference="above 0", least=0.3)
        report.figure("the first board, after the second: without", mean_of(plain[FIRST]))
        report.figure("the second board, with EWC", mean_of(kept[SECOND]), least=0.5)
        pairs(
            report,
            "tasks",
            scores,
            seeds,
            alt="Two panels of mean returns after both tasks, without and with EWC. On the first board they are near 0 "
            "without and higher with EWC; on the second near 1 without and somewhat lower with EWC.",
            caption="Mean returns after both tasks, a line for each seed; orange: their mean. Left: the first board. "
            "Right: the second.",
        )
