"""Agents on the classics: PPO, DQN and A2C on CartPole and Acrobot, PPO, SAC and TD3 on the pendulum."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from _agents import ADAM, AGENTS, FALLING, WORLDS, means_of

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, curve, interquartile_of, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK
from weft.data import Pendulum
from weft.objectives import PPO
from weft.sources import Rollouts

COLOURS = {"PPO": BLUE, "PPO, defaults": PINK, "A2C": ORANGE, "DQN": GREEN, "SAC": PINK, "TD3": INK}
OFF = {"CartPole": 25.0, "Acrobot": 10.0, "Pendulum": 50.0}
CUT, DISCOUNT = 10, 0.9


class Ending(PPO):
    """Takes a cut for an end: what would have followed is worth nothing."""

    def credit(self, batch: Any) -> Any:
        return super().credit({**batch, "terminated": batch["terminated"] | batch["truncated"]})


class Agents(Claim):
    """Every method learns in its worlds with all seeds at once; the policy that evaluations like best is judged."""

    title = "Agents on the classics"
    statement = (
        "CartPole's 500 are earned by PPO within 100,000 steps, by DQN within 50,000 and by A2C within 500,000; "
        "Acrobot and the pendulum are swung up as fast as by the agents of RL Baselines3 Zoo. A critic that bootstraps "
        "where an episode is cut, and does not where it ends, tells what is earned."
    )
    reference = (
        "Raffin, “RL Baselines3 Zoo”, 2020: its benchmark (one run each, the best action) and its settings of PPO, A2C "
        "and SAC; here observations are not normalized, and PPO and SAC explore without gSDE; DQN's, TD3's and the "
        "rates were chosen on seeds 100 and up"
    )
    tolerance = (
        "Interquartile means over the seeds, each of 100 fresh episodes by the best action of the policy that did best "
        "in evaluations while it was trained (of PPO by its defaults alone, the last). CartPole: within 25 of the 500 "
        "that are the most there are (475 is called solved). Acrobot: within 10 of the agent there, less than what the "
        "four agents there differ by (-69 to -83). Pendulum: within 50, half the deviation of one episode there. What "
        "a critic says of fresh starts lies within 10 % of what is earned after them, where cuts taken for ends miss "
        "35 % (.9 to the 10) or more. Areas under curves are told."
    )
    quick = {"seeds": 8, "agents": ("CartPole: PPO",), "share": 0.15, "looks": 6, "least": 100.0, "cut": 20_000}
    full = {"seeds": 10, "agents": tuple(AGENTS), "share": 1.0, "looks": 50, "least": 475.0, "cut": 20_000}
    mutant = Mutant(
        what="cuts that are taken for ends",
        misses="what the critic says",
        names={"PPO": Ending},
        setting={"agents": ()},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(setting.agents) + 1)
        found = report.every(
            setting.agents, partial(learned, report=report, seeds=seeds, share=setting.share, looks=setting.looks)
        )
        rows = []
        for name, agent in AGENTS.items():
            said = f"{agent.reported:g} after {agent.steps:,} steps"
            if name not in found:
                report.not_run(name, reference=said)
                continue
            judged(report, name, np.array(found[name]["returns"]), said, setting)
            area, last = (np.array(found[name][what]) for what in ("area", "last"))
            rows.append((name, int(agent.steps * setting.share), interquartile_of(area), interquartile_of(last)))
        report.table("Curves", ["agent", "steps", "mean of all evaluations", "the last evaluation"], rows, digits=0)
        told = report.part("cut", partial(words, report, seeds, setting.cut))
        name = f"Pendulum cut after {CUT} steps: what the critic says, over what is earned"
        report.figure(name, mean_of(told), reference="1", near=1.0, within=0.1)
        if found:
            draw(report, found)


def learned(name: str, report: Report, seeds: list[int], share: float, looks: int) -> dict[str, Any]:
    """What an agent of each seed earns in fresh episodes, and the curves of its evaluations."""
    agent, world = AGENTS[name], WORLDS[name.partition(":")[0]]
    source = agent.objective.plays(world, **agent.source)
    updates = source.updates(int(agent.steps * share), agent.objective)
    settings = {"validation": Rollouts(world, envs=30, greedy=True), "device": "cpu", **agent.learner}
    about = {"every": max(1, updates // looks), "replicas": len(seeds), "random_state": seeds[0]}
    learner = report.fit(Learner(agent.objective, steps=updates, **about, **settings), source, what=name)
    kind = "return" if learner.validation is None else "valid_return"
    curves = np.reshape(learner.history_[kind], (-1, len(seeds))).T
    steps = np.reshape(learner.history_["env_steps"], (-1, len(seeds)))[:, 0]
    returns = means_of(learner.evaluate(world, 100), len(seeds))
    told = {"returns": returns, "steps": steps, "curves": curves, "area": curves.mean(1), "last": curves[:, -1]}
    return {what: values.tolist() for what, values in told.items()}


def judged(report: Report, name: str, returns: Any, said: str, setting: Any) -> None:
    """The interquartile mean of an agent's returns, beside what is reported."""
    world, reported = name.partition(":")[0], AGENTS[name].reported
    bounds = {"near": reported, "within": OFF[world]} if world != "CartPole" else {"least": setting.least}
    report.figure(name, interquartile_of(returns), reference=said, **bounds)


def words(report: Report, seeds: list[int], steps: int) -> list[float]:
    """What PPO's critic says of fresh starts of the pendulum, over what is earned there, where episodes were cut."""
    learner = Learner(
        PPO(discount=DISCOUNT),
        env_steps=steps,
        optimizer=Optimizer("adam", lr=1e-3, **ADAM, groups={"critic*": {"lr": 1e-2}}),  # its values are large
        replicas=len(seeds),
        random_state=seeds[0],
        device="cpu",
        **FALLING,
    )
    source = learner.objective.plays(Pendulum(), envs=16, length=64, batch_size=256, horizon=CUT)
    report.fit(learner, source, what="episodes that are cut")
    state = learner.training_.runs[0].state
    batch = next(Rollouts(Pendulum(), envs=200).once(state, 2**40))
    shape = (len(seeds), 200, Pendulum.horizon)
    reward = batch["reward"].reshape(shape).double()
    earned = (reward * DISCOUNT ** torch.arange(shape[-1])).sum(-1).mean(1)
    starts = batch["observation"].reshape(*shape, 3)[:, :, 0]
    said = [learner.replica(k).value(starts[k].numpy()).mean() for k in range(len(seeds))]
    return [float(s / e) for s, e in zip(said, earned, strict=True)]


def draw(report: Report, found: dict[str, Any]) -> None:
    """The evaluations of each seed, a panel for each world."""
    worlds = list(dict.fromkeys(name.partition(":")[0] for name in found))
    with report.picture(
        "agents",
        alt="Returns of evaluations over thousands of steps of the world, a panel for each world and a colour for each "
        "method, every seed faintly: curves rise from what chance earns to near the most that can be earned.",
        caption="Evaluations during training by the best action: each seed, and the median of them.",
        panels=len(worlds),
    ) as axes:
        for ax, world in zip(np.atleast_1d(np.array(axes, dtype=object)), worlds, strict=True):
            for name, one in found.items():
                if name.startswith(f"{world}:"):
                    method = name.partition(": ")[2]
                    at, values = np.array(one["steps"]) / 1000, np.array(one["curves"])
                    curve(ax, at, values, COLOURS[method], seeds="-", middle=np.median, label=method, markersize=0)
            ax.set(title=world, xlabel="thousands of steps", ylabel="return")
            ax.legend(loc="lower right")
