"""The 10-armed testbed: what exploring costs and brings, how a baseline helps, and arms that walk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, bands, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import Bandits
from weft.objectives import UCB, EpsilonGreedy, GradientBandit
from weft.sources import Rollouts

ARMS, LAST = 10, 100
LIFTED = {"centre": 4.0}  # what all arms have in common, and no choice can change


class Testbed(Claim):
    """Every seed plays as many bandits of its own, all methods the same ones of a seed."""

    title = "The 10-armed testbed"
    statement = (
        "Who never explores finds the best of ten arms in about a third of the bandits and earns about 1 a step. "
        "Within 1,000 steps exploring on a tenth of them finds it more often than exploring on a hundredth, and that "
        "more often than never; upper confidence bounds earn more than either. A gradient bandit needs its baseline as "
        "soon as rewards are not centred, and where arms walk, a mean that forgets finds the best one more often than "
        "one that does not."
    )
    reference = "Sutton and Barto, “Reinforcement learning: an introduction”, 2018, sections 2.3 to 2.8, exercise 2.5"
    tolerance = (
        "What the book says in words (“about 1”, “approximately one-third”) within .1 and .06, over "
        f"the last {LAST} of 1,000 steps; of its curves that one lies above another: the differences, seed by seed on "
        "the same bandits, must be above 0, and with the baseline and with forgetting, where the curves lie far apart, "
        "above .1."
    )
    quick = {"seeds": 5, "bandits": 100, "steps": 1000, "walking": 60, "walk": 1500}
    full = {"seeds": 10, "bandits": 200, "steps": 1000, "walking": 40, "walk": 5000}
    mutant = Mutant(
        what="a gradient bandit whose baseline is left out",
        misses="with the baseline less without",
        names={"GradientBandit": altered(GradientBandit, baseline=False)},
        setting={"walk": 200},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        still = {
            "greedy": (EpsilonGreedy(epsilon=0.0), {}),
            "epsilon .01": (EpsilonGreedy(epsilon=0.01), {}),
            "epsilon .1": (EpsilonGreedy(epsilon=0.1), {}),
            "UCB": (UCB(confidence=2.0), {}),
            "optimistic": (EpsilonGreedy(epsilon=0.0, initial=5.0, step=0.1), {}),
            "gradient": (GradientBandit(step=0.1), LIFTED),
            "gradient, no baseline": (GradientBandit(step=0.1, baseline=False), LIFTED),
        }
        walking = {
            "all rewards": EpsilonGreedy(epsilon=0.1),
            "step .1": EpsilonGreedy(epsilon=0.1, step=0.1),
        }
        report.plan(len(still) + len(walking))
        size, steps = setting.bandits, setting.steps
        earned, best = {}, {}
        for name, (objective, world) in still.items():
            own = Bandits(ARMS, **world, horizon=steps, pays="optimal")
            earned[name], best[name] = played(report, name, objective, own, size, seeds)

        late = {name: share[:, -LAST:].mean(1) for name, share in best.items()}
        paid = {name: reward[:, -LAST:].mean(1) for name, reward in earned.items()}
        report.figure("greedy, reward", mean_of(paid["greedy"]), reference="about 1", near=1.0, within=0.1)
        share = mean_of(late["greedy"])
        report.figure("greedy, best arm", share, reference="approximately one-third", near=1 / 3, within=0.06)
        told = {"reference": "the upper curve"}
        report.figure(
            "best arm, epsilon .01 less greedy", mean_of(late["epsilon .01"] - late["greedy"]), **told, least=0
        )
        more = mean_of(late["epsilon .1"] - late["epsilon .01"])
        report.figure("best arm, epsilon .1 less .01", more, **told, least=0)
        never = mean_of(late["epsilon .1"])
        report.figure("best arm, epsilon .1", never, reference="never more than .91", most=0.91)
        after = slice(ARMS + 1, None)
        gain = (earned["UCB"][:, after] - earned["epsilon .1"][:, after]).mean(1)
        report.figure("reward, UCB less epsilon .1", mean_of(gain), **told, least=0)
        spike = earned["UCB"][:, ARMS] - earned["UCB"][:, ARMS + 1 : ARMS + 6].mean(1)
        report.figure("reward of UCB at step 11 less the 5 after", mean_of(spike), reference="a spike", least=0)
        with_one = mean_of(late["gradient"] - late["gradient, no baseline"])
        report.figure("best arm, with the baseline less without", with_one, **told, least=0.1)
        report.figure("best arm, optimistic less epsilon .1", mean_of(late["optimistic"] - late["epsilon .1"]))

        moved = {"spread": 0.0, "walk": 0.01 * (5000 / setting.walk) ** 0.5}
        found = {}
        for name, objective in walking.items():
            own = Bandits(ARMS, **moved, horizon=setting.walk, pays="optimal")
            found[name] = played(report, f"walking, {name}", objective, own, setting.walking, seeds)[1]
        end = {name: share[:, -setting.walk // 5 :].mean(1) for name, share in found.items()}
        gain = mean_of(end["step .1"] - end["all rewards"])
        report.figure("walking arms, best arm, forgetting less not", gain, **told, least=0.1)
        rows = [(name, paid[name].mean(), 100 * late[name].mean()) for name in still]
        report.table(f"The last {LAST} steps", ["played by", "reward", "best arm, %"], rows, digits=2)
        draw(report, earned, best, found)


def played(
    report: Report, name: str, objective: Any, world: Bandits, size: int, seeds: list[int]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """What is earned, and how often the best arm is chosen, by seed and step."""
    learner = Learner(objective, replicas=len(seeds), random_state=seeds[0])
    report.fit(learner, Rollouts(world, envs=1), what=name)
    batch = next(Rollouts(world, envs=size).once(learner.training_.runs[0].state, 2**40))
    whole = (len(seeds), size, world.horizon)
    reward, best = batch["next_observation"][..., ARMS].reshape(whole), batch["reward"].reshape(whole)
    return reward.mean(1).double().numpy(), best.mean(1).double().numpy()


def draw(report: Report, earned: dict[str, Any], best: dict[str, Any], found: dict[str, Any]) -> None:
    """Rewards, the best arm, and walking arms."""
    colours = {"greedy": INK, "epsilon .01": ORANGE, "epsilon .1": BLUE, "UCB": GREEN}
    with report.picture(
        "testbed",
        alt="Three panels over steps. Left, rewards: greedy levels off near 1, epsilon .01, epsilon .1 and UCB rise "
        "higher. Middle, the share of the best arm: about a third for greedy, about 80 percent for epsilon .1 and UCB. "
        "Right, walking arms: a constant step finds the best arm more and more often, the mean of all rewards less.",
        caption="Left: reward a step. Middle: how often the best arm is chosen. Right: the same where all means begin "
        "alike and walk. Lines are means of the seeds, smoothed over 10 steps (right: 50); bands their range.",
        panels=3,
        size=(12.6, 3.9),
    ) as (left, middle, right):
        for name, colour in colours.items():
            for ax, values in ((left, earned[name]), (middle, 100 * best[name])):
                bands(ax, *smoothed(values, 10), colour, label=name)
        left.axhline(1.54, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        note(left, 20, 1.56, "the best arms", INK, va="bottom")
        left.set(title="reward", xlabel="step", ylim=(0, 1.75))
        middle.set(title="best arm, %", xlabel="step", ylim=(0, 100))
        left.legend(loc="lower right")
        for (name, values), colour in zip(found.items(), (ORANGE, BLUE), strict=True):
            bands(right, *smoothed(100 * values, 50), colour, label=name)
        right.set(title="walking arms: best arm, %", xlabel="step", ylim=(0, 100))
        right.legend()


def smoothed(values: NDArray[Any], over: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Means over so many steps, with the steps in their middle."""
    count = values.shape[1] // over
    means = values[:, : count * over].reshape(len(values), count, over).mean(2)
    return (np.arange(count) + 0.5) * over, means
