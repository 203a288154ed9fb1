"""REINFORCE's gradient against dynamic programming, and CartPole learned by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _finite import all_ways, expected_return, process

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, bands, curve, exponents, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import CartPole
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import begun
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.strategies import ERM

DISCOUNT, ENVS = 0.9, 32
BASELINES = {"without a baseline": "none", "with a baseline": "time"}


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
    quick = {"seeds": 2, "processes": 5, "batches": 64, "steps": 20}
    full = {"seeds": 5, "processes": 10, "batches": 1024, "steps": 50}
    mutant = Mutant(
        what="later steps' gradients not discounted, as is usual",
        misses="expected against exact gradient",
        names={"REINFORCE": altered(REINFORCE, exact=False)},
        setting={"processes": 2, "batches": 16, "steps": 2},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        processes = range(setting.processes)
        exact = [gap(seed) for seed in report.each(processes, "all trajectories")]
        report.worst(f"expected against exact gradient, worst of {len(exact)} processes", exact, most=1e-9)
        sizes = [2**k for k in range(int(np.log2(setting.batches)) - 2)]
        errors = {
            name: np.array([sampled(seed, baseline, setting.batches, sizes) for seed in processes])
            for name, baseline in report.each(BASELINES.items(), "sampled trajectories")
        }
        for name, error in errors.items():
            slope = mean_of(exponents(sizes, error))
            report.figure(f"slope of the error, {name}", slope, reference="-1/2", near=-0.5, within=0.1)
        share = mean_of((errors["with a baseline"] / errors["without a baseline"]).mean(1))
        report.figure("the error with a baseline, as a share of that without", share)

        adam, count = Optimizer("adam", lr=0.03), len(seeds)
        policy = Learner(REINFORCE(), optimizer=adam, steps=setting.steps, replicas=count, random_state=seeds[0])
        report.fit(policy, Rollouts(CartPole(), envs=ENVS), what="CartPole")
        played = [earned(policy.replica(k)) for k in range(count)]
        solved = {"reference": "475 of 500 is solved", "least": 475}
        report.figure("CartPole, return of 128 fresh episodes", mean_of(played), **solved)
        returns, columns = np.asarray(policy.history_["return"]), ["seed", "first return", "return after training"]
        report.table("CartPole, by seed", columns, zip(seeds, returns[0], played, strict=True), digits=1)
        with report.picture(
            "policy_gradient",
            alt="Left: the error of the sampled gradient falls along a line of slope minus one half on logarithmic "
            "axes, lower with a baseline. Right: CartPole's return rises from about 20 to 500 in some twenty steps.",
            caption="Left: distance of the sampled gradient from the exact one, relative; bands span the middle half "
            f"of the processes, dashed is the slope -1/2. Right: the return while learning, {ENVS * setting.steps:,} "
            "episodes in all; a line for each seed.",
            panels=2,
            size=(9.6, 3.9),
        ) as (left, right):
            counts = ENVS * np.array(sizes)
            for (name, error), colour in zip(errors.items(), (ORANGE, BLUE), strict=True):
                bands(left, counts, error, colour, label=name, middle=np.median, between=(0.25, 0.75), marker="o")
            guide = 2.6 * np.median(errors["without a baseline"][:, 0]) * (counts / counts[0]) ** -0.5
            left.plot(counts, guide, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            left.set(
                title="sampled gradient", xlabel="trajectories", ylabel="relative error", xscale="log", yscale="log"
            )
            left.legend()
            step = policy.history_["step"]
            curve(right, step, returns.T, GREEN, seeds="-", middle=np.median)
            right.axhline(475, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(right, step[-1], 462, "solved", INK, ha="right", va="top")
            right.set(title="CartPole", ylim=(0, 515), xlabel=f"step of {ENVS} episodes", ylabel="return")


def learner_of(seed: int, baseline: str, source: Any) -> tuple[Engine, Any]:
    """An engine and a freshly drawn policy."""
    objective = REINFORCE(hidden=(5,), discount=DISCOUNT, exact=True, baseline=baseline)
    engine = Engine(build(objective, source.spec, 0, torch.float64), ERM(), {"": Optimizer("sgd", lr=0.1)})
    state = engine.init([seed], torch.device("cpu"))
    state.source = begun(source, state)
    return engine, state


def gradient(engine: Engine, state: Any, batch: Any) -> Any:
    """REINFORCE's gradient on a batch of trajectories, as one vector."""
    found = engine.gradient(state, engine.numbered(batch, grouped=False), "")[0]
    return torch.cat([found[name].reshape(-1) for name in state.params])


def by_dynamic_programming(mdp: Any, engine: Engine, state: Any) -> tuple[Any, Any]:
    """The gradient of minus the expected discounted return; and the policy."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in state.params.items()}
    net = {name.removeprefix("policy."): p for name, p in leaves.items()}
    observed = torch.eye(len(mdp.start), dtype=torch.float64)
    policy = torch.func.functional_call(engine.objective.policy, net, (observed,)).softmax(-1)
    slope = torch.autograd.grad(-expected_return(mdp, policy, DISCOUNT), list(leaves.values()))
    return torch.cat([g.reshape(-1) for g in slope]), policy.detach()


def gap(seed: int) -> float:
    """The relative distance of the expected gradient, over every trajectory, from the exact one."""
    mdp = process(seed)
    engine, state = learner_of(seed, "none", Rollouts(mdp))
    exact, policy = by_dynamic_programming(mdp, engine, state)
    return float((gradient(engine, state, all_ways(mdp, policy)) - exact).norm() / exact.norm())


def sampled(seed: int, baseline: str, batches: int, sizes: list[int]) -> list[float]:
    """The relative error of the gradient by the number of batches, root mean square over disjoint parts."""
    mdp = process(seed)
    source = Rollouts(mdp, envs=ENVS)
    engine, state = learner_of(seed, baseline, source)
    exact, _ = by_dynamic_programming(mdp, engine, state)
    found = []
    for step in range(batches):
        state.step = step  # another step, other episodes
        found.append(gradient(engine, state, next(source.batches(state))))
    each = torch.stack(found) - exact
    parts = [each.reshape(-1, size, each.shape[1]).mean(1) for size in sizes]
    return [float(part.square().sum(1).mean().sqrt() / exact.norm()) for part in parts]


def earned(policy: Learner, episodes: int = 128) -> float:
    """The mean return of fresh episodes, with actions drawn from the policy."""
    batch = next(Rollouts(CartPole(), envs=episodes).once(policy.training_.runs[0][1], episodes))
    return float((batch["reward"] * batch["mask"]).sum(1).mean())
