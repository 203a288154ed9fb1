"""REINFORCE's gradient against dynamic programming, and CartPole learned by it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.core.random import key_of, unit
from weft.data import CartPole, FiniteMDP
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.strategies import ERM

STATES, ACTIONS, HORIZON, DISCOUNT = 4, 3, 3, 0.9


class PolicyGradient(Claim):
    """Every trajectory of a small process, then sampled ones, then CartPole."""

    title = "The gradient of what a policy earns"
    statement = (
        "REINFORCE's gradient, averaged over the policy's own trajectories, is the gradient of the expected return, "
        "with or without a baseline; following it, a policy learns to balance CartPole's pole."
    )
    reference = (
        "Williams, “Simple statistical gradient-following algorithms for connectionist reinforcement learning”, "
        "Machine Learning 8, 1992; CartPole-v1 counts as solved at a return of 475 of 500"
    )
    tolerance = (
        "Over all trajectories of a finite process, each with its probability, the identity is exact: only rounding "
        "in double precision is allowed (1e-9, relative). The sampled gradient's error must fall like one over the "
        "root of the number of trajectories: a slope of -1/2 within .1. CartPole: 475, the task's own threshold."
    )
    quick = {"seeds": 2, "processes": 5, "batches": 256, "steps": 30}
    full = {"seeds": 5, "processes": 10, "batches": 1024, "steps": 50}
    mutant = Mutant(
        what="later steps' gradients not discounted, as is usual",
        misses="expected against exact gradient",
        names={"REINFORCE": altered(REINFORCE, exact=False)},
        setting={"processes": 2, "batches": 16, "steps": 2},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        exact = [gap(seed) for seed in report.each(range(setting.processes), "all trajectories")]
        report.figure(
            f"expected against exact gradient, worst of {len(exact)} processes",
            max(exact),
            reference="0",
            most=1e-9,
            exact=True,
        )
        counts, errors = None, {}
        for baseline in report.each(("none", "time"), "sampled trajectories"):
            found = [sampled(seed, baseline, setting.batches) for seed in range(setting.processes)]
            counts, errors[baseline] = found[0][0], np.array([error for _, error in found])
        for baseline, error in errors.items():
            slope = [np.polyfit(np.log(counts), np.log(e), 1)[0] for e in error]
            name = "without a baseline" if baseline == "none" else "with a baseline"
            report.figure(f"slope of the error, {name}", mean_of(slope), reference="-1/2", near=-0.5, within=0.1)
        ratio = (errors["time"] / errors["none"]).mean(1)
        report.figure("the error with a baseline, as a share of that without", mean_of(ratio))

        policy = Learner(
            REINFORCE(),
            optimizer=Optimizer("adam", lr=0.03),
            steps=setting.steps,
            replicas=len(seeds),
            random_state=seeds[0],
        )
        report.fit(policy, Rollouts(CartPole(), envs=32), what="CartPole")
        played = [earned(policy.replica(k)) for k in range(len(seeds))]
        report.figure(
            "CartPole, return of 128 fresh episodes", mean_of(played), reference="475 of 500 is solved", least=475
        )
        report.table(
            "CartPole, by seed",
            ["seed", "first return", "return after training"],
            [
                [seed, round(float(first), 1), round(after, 1)]
                for seed, first, after in zip(seeds, policy.history_["return"][0], played, strict=True)
            ],
        )
        with report.picture(
            "policy_gradient",
            alt="Left: the error of the sampled gradient falls along a straight line of slope minus one half on "
            "logarithmic axes, lower with a baseline. Right: CartPole's return rises from about 20 to 500 within "
            "some twenty steps.",
            caption="Left: distance of the sampled gradient from the exact one, relative; bands span the middle half "
            f"of the processes. Right: the return while learning, {32 * setting.steps:,} episodes in all; a line for "
            "each seed.",
            panels=2,
            size=(9.6, 3.9),
        ) as (left, right):
            descent(left, counts, errors)
            step = policy.history_["step"]
            right.plot(step, policy.history_["return"], color=GREEN, alpha=0.5, linewidth=1.2)
            right.plot(step, np.median(policy.history_["return"], axis=1), color=GREEN)
            right.axhline(475, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(right, step[-1], 462, "solved", INK, ha="right", va="top")
            right.set(xlim=(1, step[-1]), ylim=(0, 515), xlabel="step of 32 episodes", ylabel="return")
            right.set_title("CartPole")


def process(seed: int) -> FiniteMDP:
    """A random process: transitions, rewards and start drawn from the seed."""
    key = key_of(seed)
    draw = unit(key, (STATES * ACTIONS * (STATES + 1) + STATES,), torch.float64)
    transition, reward, start = draw.split([STATES * ACTIONS * STATES, STATES * ACTIONS, STATES])
    transition = transition.reshape(STATES, ACTIONS, STATES)
    transition = transition / transition.sum(-1, keepdim=True)
    return FiniteMDP(transition, 4 * reward.reshape(STATES, ACTIONS) - 1, start=start / start.sum(), horizon=HORIZON)


def learner_of(seed: int, baseline: str, source: Any) -> tuple[Engine, Any]:
    """An engine and a freshly drawn policy."""
    objective = REINFORCE(hidden=(5,), discount=DISCOUNT, exact=True, baseline=baseline)
    engine = Engine(build(objective, source.spec, 0, torch.float64), ERM(), {"": Optimizer("sgd", lr=0.1)})
    return engine, engine.init([seed], torch.device("cpu"))


def gradient(engine: Engine, state: Any, batch: Any) -> Any:
    """REINFORCE's gradient on a batch of trajectories, as one vector."""
    found = engine.gradient(state, engine.numbered(batch, grouped=False), "")[0]
    return torch.cat([found[name].reshape(-1) for name in state.params])


def by_dynamic_programming(mdp: FiniteMDP, engine: Engine, state: Any) -> tuple[Any, Any]:
    """The gradient of minus the expected discounted return, by the backward recursion for values; and the policy."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in state.params.items()}
    net = {name.removeprefix("policy."): p for name, p in leaves.items()}
    logits = torch.func.functional_call(engine.objective.policy, net, (torch.eye(STATES, dtype=torch.float64),))
    policy, value = logits.softmax(-1), torch.zeros(STATES, dtype=torch.float64)
    for _ in range(HORIZON):
        value = (policy * (mdp.reward + DISCOUNT * mdp.transition @ value)).sum(-1)
    slope = torch.autograd.grad(-(mdp.start @ value), list(leaves.values()))
    return torch.cat([g.reshape(-1) for g in slope]), policy.detach()


def gap(seed: int) -> float:
    """The relative distance of the expected gradient, over every trajectory, from the exact one."""
    mdp = process(seed)
    engine, state = learner_of(seed, "none", Rollouts(mdp))
    exact, policy = by_dynamic_programming(mdp, engine, state)
    ways = torch.tensor(list(itertools.product(*[range(STATES), range(ACTIONS)] * HORIZON)))
    s, a = ways[:, 0::2], ways[:, 1::2]
    chance = mdp.start[s[:, 0]] * policy[s, a].prod(1) * mdp.transition[s[:, :-1], a[:, :-1], s[:, 1:]].prod(1)
    batch = {
        "observation": one_hot(s, STATES).double(),
        "action": a,
        "reward": mdp.reward[s, a],
        "mask": torch.ones(s.shape, dtype=torch.float64),
        "weight": chance,
    }
    return float((gradient(engine, state, batch) - exact).norm() / exact.norm())


def sampled(seed: int, baseline: str, batches: int, envs: int = 32) -> tuple[Any, Any]:
    """The relative error of the gradient by the number of trajectories, root mean square over disjoint parts."""
    mdp = process(seed)
    source = Rollouts(mdp, envs=envs)
    engine, state = learner_of(seed, baseline, source)
    exact, _ = by_dynamic_programming(mdp, engine, state)
    found = []
    for step in range(batches):
        state.step = step  # another step, other episodes
        found.append(gradient(engine, state, next(source.batches(state))))
    each = torch.stack(found) - exact
    sizes = [2**k for k in range(int(np.log2(batches)) - 2)]
    parts = [each.reshape(-1, size, each.shape[1]).mean(1) for size in sizes]
    error = [float(part.square().sum(1).mean().sqrt() / exact.norm()) for part in parts]
    return np.array(sizes) * envs, np.array(error)


def earned(policy: Learner, episodes: int = 128) -> float:
    """The mean return of fresh episodes, with actions drawn from the policy."""
    batch = next(Rollouts(CartPole(), envs=episodes).once(policy.training_.runs[0][1], episodes))
    return float((batch["reward"] * batch["mask"]).sum(1).mean())


def descent(ax: Any, counts: Any, errors: dict[str, Any]) -> None:
    """The error by the number of trajectories, and the slope that it should have."""
    for (baseline, error), colour in zip(errors.items(), (ORANGE, BLUE), strict=True):
        low, middle, high = np.quantile(error, [0.25, 0.5, 0.75], axis=0)
        ax.fill_between(counts, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.plot(counts, middle, color=colour, marker="o", markersize=4)
        name = "no baseline" if baseline == "none" else "baseline"
        ax.annotate(name, (counts[0], middle[0]), (4, 8), textcoords="offset points", color=colour, fontweight="bold")
    top = np.median(errors["none"], axis=0)[0] * 2.6
    ax.plot(counts, top * (counts / counts[0]) ** -0.5, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    middle = len(counts) // 2
    where = (counts[middle], top * (counts[middle] / counts[0]) ** -0.5)
    ax.annotate("slope −1/2", where, (5, 5), textcoords="offset points", fontweight="bold")
    ax.set(xscale="log", yscale="log", xlabel="trajectories", ylabel="relative error of the gradient")
    ax.minorticks_off()
    ax.set_title("sampled gradient")
