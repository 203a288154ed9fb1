"""LunarLander: PPO in a world of gymnasium's."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from _agents import means_of

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, curve, interquartile_of, mean_of
from weft.bench.pictures import BLUE, INK, note
from weft.objectives import PPO
from weft.sources import Rollouts

WORLD, REPORTED = "LunarLander-v3", 242.1


class Losing(PPO):
    """Does more of what earned less."""

    def credit(self, batch: Any) -> Any:
        told = super().credit(batch)
        return {**told, "advantage": -told["advantage"]}


class LunarLander(Claim):
    """A million steps for each seed; the policy that evaluations like best lands a hundred times."""

    title = "Landing on the moon"
    statement = "PPO learns to land within a million steps, for a return of 242."
    reference = (
        "Raffin, “RL Baselines3 Zoo”, 2020: its benchmark (LunarLander-v2, one run, 242.1 with a deviation of 31.8 "
        "between episodes) and its settings of PPO, unchanged but for the policy that is kept; played is gymnasium's "
        "LunarLander-v3, which has taken the place of v2"
    )
    tolerance = (
        "The interquartile mean over the seeds, of 100 episodes by the best action of the policy that did best in 25 "
        "evaluations, within 32 of 242, the deviation of one episode there, on both sides. While it learns, the last "
        "episodes earn at least 100; in the quick run, which is over before a landing, at least -250, where chance "
        "earns about -180 and who learns to crash less than -400."
    )
    quick = {"seeds": 5, "together": 5, "steps": 12_000, "looks": 0, "play": (4, 64, 10), "rate": 3e-3, "least": -250}
    full = {"seeds": 10, "together": 1, "steps": 10**6, "looks": 25, "play": (16, 1024, 4), "rate": 3e-4, "least": 100}
    mutant = Mutant(what="advantages with the other sign", misses="while it learns", names={"PPO": Losing})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        said = f"{REPORTED:g} after a million steps"
        if missing := [name for name in ("gymnasium", "Box2D") if find_spec(name) is None]:
            report.not_run("by the best action", reference=f"{said}; {' and '.join(missing)} not installed")
            return
        report.plan(len(seeds) // setting.together)
        firsts = seeds[:: setting.together]
        found = list(report.every(firsts, partial(learned, setting=setting, report=report)).values())
        curves = np.concatenate([np.array(one["curves"]) for one in found])
        last = curves[:, -1]
        estimate = interquartile_of(last) if setting.looks else mean_of(last)
        report.figure("while it learns, the last episodes", estimate, least=setting.least)
        rows = [("while it learns", estimate, float(last.min()), float(last.max()))]
        if setting.looks:
            returns = np.concatenate([np.array(one["returns"]) for one in found])
            best = interquartile_of(returns)
            report.figure("by the best action", best, reference=said, near=REPORTED, within=32.0)
            rows.append(("by the best action", best, float(returns.min()), float(returns.max())))
        else:
            report.not_run("by the best action", reference=said)
        report.table("Returns", ["", "the middle of the seeds", "least", "largest"], rows, digits=0)
        with report.picture(
            "landing",
            alt="Returns while policies learn, over thousands of steps: every seed faintly and their median, from "
            "about -200 upwards; a dashed line at 242, what the agent of RL-Zoo earns.",
            caption="Returns of the last episodes of training, by actions that are drawn: each seed, and the median.",
        ) as ax:
            at = np.array(found[0]["steps"]) / 1000
            curve(ax, at, curves, BLUE, seeds="-", middle=np.nanmedian, markersize=0)
            ax.axhline(REPORTED, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(ax, at[0], REPORTED, "RL-Zoo", INK, va="bottom")
            ax.set(xlabel="thousands of steps", ylabel="return")


def learned(first: int, setting: Any, report: Report) -> dict[str, Any]:
    """What the policies of some seeds earn, and the returns while they learned."""
    objective = PPO(discount=0.999, trace=0.98, entropy_weight=0.01)
    envs, length, passes = setting.play
    source = objective.plays(WORLD, envs=envs, length=length, passes=passes, batch_size=64)
    updates = source.updates(setting.steps, objective)
    judge = {"validation": Rollouts(WORLD, envs=10, greedy=True)} if setting.looks else {}
    learner = Learner(
        objective,
        steps=updates,
        every=updates // (setting.looks or 25),
        optimizer=Optimizer("adam", lr=setting.rate, eps=1e-5),
        clip=0.5,
        replicas=setting.together,
        random_state=first,
        device="cpu",
        **judge,
    )
    report.fit(learner, source, what=f"seed {first}")
    curves, steps = (np.reshape(learner.history_[what], (-1, setting.together)) for what in ("return", "env_steps"))
    told = {"curves": curves.T.tolist(), "steps": steps[:, 0].tolist(), "returns": []}
    if setting.looks:
        told["returns"] = means_of(learner.evaluate(WORLD, 100), setting.together).tolist()
    return told
