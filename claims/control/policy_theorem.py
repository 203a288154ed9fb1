"""The policy-gradient theorem by enumeration, with visits and not reach; REINFORCE as a weighted likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _engines import engine_of, gradient
from _finite import all_ways, expected_return, process
from torch import Tensor

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, ORANGE
from weft.core.random import fold, gauss, key_of, unit
from weft.core.source import Field
from weft.data import FiniteMDP
from weft.objectives import REINFORCE, Classification, PolicyEvaluation
from weft.sources import Rollouts, Tables

STATES, ACTIONS, DISCOUNT = 4, 3, 0.9


def counted(visits: Tensor, way: Tensor) -> Tensor:
    """How much a state counts: its visits."""
    return visits


def reached(visits: Tensor, way: Tensor) -> Tensor:
    """How likely a state is ever reached: its visits, over those of who begins in it."""
    return visits / torch.linalg.inv(torch.eye(STATES, dtype=way.dtype) - way).diagonal()


class PolicyTheorem(Claim):
    """Random processes whose states are held for a while, and all trajectories of short ones."""

    title = "The policy-gradient theorem"
    statement = (
        "The gradient of what a policy earns is the sum over states of visits times the change of the policy times q: "
        "a state held three steps counts three, and with the probability of being reached in its place it is another "
        "gradient. REINFORCE's expected gradient is the same, with or without a baseline, and is that of a likelihood "
        "of what was done, weighed by returns."
    )
    reference = (
        "Sutton, McAllester, Singh and Mansour, “Policy gradient methods for reinforcement learning with function "
        "approximation”, NIPS 1999; Williams, “Simple statistical gradient-following algorithms for connectionist "
        "reinforcement learning”, Machine Learning 8, 1992"
    )
    tolerance = (
        "All is enumerated, and exact: 1e-9, relative. Reach in place of visits, and first visits in place of all, "
        "must be off by at least .05 in each process."
    )
    quick = {"seeds": 5}
    full = {"seeds": 50}
    mutant = Mutant(
        what="states that count as often as they are reached",
        misses="visits times change",
        names={"counted": reached},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        held = report.fit(
            solved([[1.0]]), Tables(FiniteMDP(torch.ones(1, 1, 1), torch.ones(1, 1), ends=torch.tensor([1 / 3])))
        )
        three = float(held.visits(np.eye(1))[0])
        report.figure("visits of a state held three steps", three, reference="3", near=3.0, within=1e-6, exact=True)
        by_visits, by_reach = np.array([theorem(report, seed) for seed in report.each(seeds, "processes")]).T
        report.worst(f"visits times change times q, worst of {len(seeds)}", by_visits, most=1e-9)
        far = {"reference": "not 0", "least": 0.05, "exact": True}
        report.figure(f"the same with reach, nearest of {len(seeds)}", by_reach.min(), **far)
        report.figure("the same with reach, mean", mean_of(by_reach))

        off = [enumerated(seed) for seed in report.each(seeds, "all trajectories")]
        told = {name: np.array([one[name] for one in off]) for name in off[0]}
        first = told.pop("first visits alone")
        for name, gaps in told.items():
            report.worst(f"REINFORCE over all trajectories, {name}, worst of {len(seeds)}", gaps, most=1e-9)
        report.figure(f"first visits alone, nearest of {len(seeds)}", first.min(), **far)

        columns = ["process", "by visits", "by reach", *told, "first visits alone"]
        rows = zip(seeds, by_visits, by_reach, *told.values(), first, strict=True)
        report.table("Relative error of the gradient", columns, rows)
        with report.picture(
            "policy_theorem",
            alt="For each process the gradient by visits is off by about 1e-15, that by reach by about one, on a "
            "logarithmic axis.",
            caption="How far the theorem's gradient is from the exact one, relative, in each process: by visits, and "
            "by how likely a state is ever reached.",
        ) as ax:
            for off_by, colour, name in ((by_visits, BLUE, "by visits"), (by_reach, ORANGE, "by reach")):
                ax.plot(seeds, np.maximum(off_by, 1e-17), "o", color=colour, markersize=4, label=name)
            ax.set(xlabel="process", ylabel="relative error of the gradient", yscale="log")
            ax.legend(loc="center right")


def solved(policy: Any) -> Learner:
    """What tells a policy's visits and values, in double precision and without a discount."""
    return Learner(PolicyEvaluation(policy, discount=1.0), dtype="float64")


def theorem(report: Report, seed: int) -> tuple[float, float]:
    """How far the theorem's gradient is from that of what is earned: by visits, and by reach."""
    key = fold(key_of(seed), "held")
    p = -unit(fold(key, "p"), (STATES, ACTIONS, STATES), torch.float64).clamp_min(1e-9).log()
    p = 0.3 * p / p.sum(-1, keepdim=True) + 0.7 * torch.eye(STATES, dtype=torch.float64)[:, None]
    reward = gauss(fold(key, "reward"), (STATES, ACTIONS), torch.float64)
    start = torch.eye(STATES, dtype=torch.float64)[0]
    world = FiniteMDP(p, reward, start=start, ends=torch.full((STATES,), 0.1, dtype=torch.float64))
    logits = gauss(fold(key, "policy"), (STATES, ACTIONS), torch.float64).requires_grad_()
    policy = logits.softmax(-1)
    learner = report.fit(solved(policy.detach()), Tables(world))
    q, visits = (torch.as_tensor(told(np.eye(STATES))).double() for told in (learner.q, learner.visits))
    way = torch.einsum("sa,sat->st", policy, 0.9 * p)
    worth = start @ torch.linalg.solve(torch.eye(STATES, dtype=torch.float64) - way, (policy * reward).sum(-1))
    exact = torch.autograd.grad(worth, logits, retain_graph=True)[0]

    def off(weights: Tensor) -> float:
        found = torch.autograd.grad((weights[:, None] * policy * q).sum(), logits, retain_graph=True)[0]
        return float((found - exact).norm() / exact.norm())

    return off(counted(visits, way.detach())), off(reached(visits, way.detach()))


def enumerated(seed: int) -> dict[str, float]:
    """How far REINFORCE's expected gradient is from the exact one and from a likelihood's, over all trajectories."""
    mdp = process(seed)
    mdp.reward = mdp.reward + 2  # all of them positive: weights of a likelihood
    engine, state = engine_of(
        REINFORCE(hidden=(5,), discount=DISCOUNT, exact=True, baseline="none"), Rollouts(mdp).spec
    )
    leaves = {name: p.detach().clone().requires_grad_() for name, p in state.params.items()}
    net = {name.removeprefix("policy."): p for name, p in leaves.items()}
    policy = torch.func.functional_call(engine.objective.policy, net, (torch.eye(STATES).double(),)).softmax(-1)
    slope = torch.autograd.grad(-expected_return(mdp, policy, DISCOUNT), list(leaves.values()))
    exact, batch = torch.cat([g.reshape(-1) for g in slope]), all_ways(mdp, policy.detach())

    place, time = batch["observation"].argmax(-1), range(batch["action"].shape[1])
    decay = torch.tensor([DISCOUNT**t for t in time], dtype=torch.float64)
    gain = torch.stack([(batch["reward"][:, t:] * decay[: len(time) - t]).sum(1) for t in time], 1)
    seen = torch.stack([(place[:, :t] == place[:, t : t + 1]).any(1) for t in time], 1)
    drawn = gauss(fold(key_of(seed), "baseline"), (STATES,), torch.float64)[place]
    ways = {"no baseline": gain, "baseline 1": gain - 1, "a baseline by state": gain - drawn}
    ways["first visits alone"] = torch.where(seen, 0.0, gain)
    found = {name: gradient(engine, state, {**batch, "advantage": value}) for name, value in ways.items()}

    spec = {"x": Field((STATES,), torch.float64), "y": Field((), torch.int64, classes=ACTIONS)}
    cloned, other = engine_of(Classification(hidden=(5,)), spec)
    shapes = dict(zip(other.params, state.params.values(), strict=True))
    other.params = {name: p.detach().clone() for name, p in shapes.items()}
    weight = (batch["weight"][:, None] * gain * decay).flatten()
    rows = {"x": batch["observation"].flatten(0, 1), "y": batch["action"].flatten(), "weight": weight}
    found["as a weighted likelihood"] = weight.sum() * gradient(cloned, other, rows)
    return {name: float((g - exact).norm() / exact.norm()) for name, g in found.items()}
