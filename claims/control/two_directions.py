"""Policies regularized by KL in either direction: their closed forms, reached by descent, by acting and by TRPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, bands, exponents, mean_of
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.core.random import fold, gauss, key_of
from weft.data import FiniteMDP
from weft.engine.acting import asked_of
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.objectives import PPO, REPS
from weft.sources import Segments
from weft.strategies import LBFGS, NaturalGradient, TrustRegion

STATES, ACTIONS, COST = 3, 5, 0.5
TABLES = {"hidden": (), "normalize": False, "trace": 1.0, "value_weight": 0.0}


class TwoDirections(Claim):
    """Random problems of one step: exactly over all actions, then by acting; and steps of TRPO of many lengths."""

    title = "Two directions of KL"
    statement = (
        "Who earns most less a cost of KL(new || old) does p exp(R / cost) / Z, where p was done before; less a cost "
        "of KL(old || new) it is another policy, cost p / (c - R). TRPO bounds the second. Yet its step, along the "
        "natural gradient, leads tables to p exp(R / cost) again: the best policy of the bound is another one, and the "
        "shorter the step, the less so."
    )
    reference = (
        "Peters, Mülling and Altün, “Relative entropy policy search”, AAAI 2010; Schulman et al., “Trust region policy "
        "optimization”, arXiv 1502.05477; Grill et al., “Monte-Carlo tree search as regularized policy optimization”, "
        "arXiv 2007.12509 (the second closed form)"
    )
    tolerance = (
        "Over all actions the optimum is exact: 1e-5 in each probability, as far as descent goes in double precision. "
        "Learned from actions that were drawn, the largest error of 15 probabilities at most .06 (thousands of draws "
        "of a state tell one within about .01). TRPO's KL at most its radius, and its step p exp(R / cost), but for "
        "rounding and damping (1e-5). To first order in the step the directions agree, so what sets them apart, over "
        "the step's own length, falls like the length: a slope of 1/2 in the radius, within .1."
    )
    quick = {"seeds": 5, "envs": 32, "length": 64, "steps": 100}
    full = {"seeds": 10, "envs": 64, "length": 64, "steps": 300}
    mutant = Mutant(
        what="a penalty on KL(old || new) for one on KL(new || old)",
        misses="PPO, reverse: from p exp(R / cost)",
        names={"PPO": altered(PPO, near="penalty")},
        setting={"steps": 5},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(4)
        ways = {
            "PPO, reverse: from p exp(R / cost)": (PPO(near="reverse", beta=COST, **TABLES), tilted),
            "REPS: from p exp(R / cost)": (REPS(temperature=COST, **TABLES), tilted),
            "PPO, penalty: from cost p / (c - R)": (PPO(near="penalty", beta=COST, **TABLES), drawn_in),
        }
        for name, (objective, form) in report.each(ways.items(), "over all actions"):
            off = []
            for seed in seeds:
                before, after = descended(objective, seed)
                off.append((after - form(before, process(seed).reward / COST)).abs().max())
            report.worst(f"{name}, worst of {len(seeds)}", torch.stack(off), most=1e-5)

        radii = np.geomspace(1e-4, 0.3, 9)
        steps = [[stepped(seed, radius) for radius in radii] for seed in report.each(seeds, "TRPO")]
        within, off_tilted, apart = np.array(steps).transpose(2, 0, 1)
        report.worst("TRPO: KL(old || new) over the radius", within / radii, most=1 + 1e-6, reference="at most 1")
        report.worst("TRPO: from p exp(R / cost)", off_tilted, most=1e-5)
        slope = mean_of(exponents(radii[:6], apart[:, :6]))
        name = "TRPO: slope of the distance from the best policy of its bound"
        report.figure(name, slope, reference="1/2", near=0.5, within=0.1)

        played, reward = {}, process(0).reward / COST
        for name, (objective, form) in ways.items():
            found = acted(report, name.partition(":")[0], objective, setting, seeds)
            other = drawn_in if form is tilted else tilted
            played[name] = [(after - form(p, reward)).abs().max().item() for p, after in found]
            far = [(after - other(p, reward)).abs().max().item() for p, after in found]
            report.figure(f"by acting, {name}", mean_of(played[name]), reference="0", most=0.06)
            gap = mean_of(np.array(far) - played[name])
            report.figure(f"by acting, {name}: how much further from the other form", gap, least=0.0)
        rows = [(seed, *(values[k] for values in played.values())) for k, seed in enumerate(seeds)]
        report.table("By acting, largest error of a probability", ["seed", *ways], rows, digits=4)
        with report.picture(
            "directions",
            alt="Left, over the reward on a logarithmic axis: exp(R / cost) is a straight line, 1 / (c - R) a bent one "
            "that keeps more of the bad actions. Right: on logarithmic axes a line that rises with the radius at slope "
            "one half.",
            caption="Left: how many times as likely as before each action becomes, by its reward, at one cost; a line "
            "for each state. Right: how far a step of TRPO is from the best policy with the same KL(old || new), over "
            "the step's length; the band is the range of the problems, dashed is the slope 1/2.",
            panels=2,
            size=(9.6, 3.9),
        ) as (left, right):
            p = torch.full((STATES, ACTIONS), 1 / ACTIONS, dtype=torch.float64)
            for form, colour, label in ((tilted, BLUE, "exp(R / cost)"), (drawn_in, ORANGE, "1 / (c - R)")):
                order = reward.argsort(-1)
                for k in range(STATES):
                    at, ratio = (COST * reward)[k][order[k]], (form(p, reward) / p)[k][order[k]]
                    left.plot(at, ratio, "o-", color=colour, alpha=0.8, label=None if k else label)
            left.set(title="both closed forms", xlabel="reward", ylabel="new / old", yscale="log")
            left.legend()
            bands(right, radii, apart, BLUE, middle=np.median, marker="o")
            guide = np.median(apart[:, 0]) * (radii / radii[0]) ** 0.5
            right.plot(radii, guide, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            note(right, radii[3], guide[3] * 0.5, "slope 1/2", INK)
            right.set(title="TRPO's steps", xlabel="radius, nats", ylabel="distance", xscale="log", yscale="log")


def process(seed: int) -> FiniteMDP:
    """Episodes of one step, with rewards drawn from the seed."""
    key, whole = fold(key_of(seed), "two directions"), (STATES, ACTIONS, STATES)
    over = torch.ones(whole, dtype=torch.float64)
    return FiniteMDP(over / STATES, gauss(key, (STATES, ACTIONS), torch.float64), ends=over.bool())


def tilted(p: Tensor, gain: Tensor) -> Tensor:
    """argmax_q E_q[gain] - KL(q || p) = p exp(gain) / Z."""
    return (p.log() + gain).softmax(-1)


def drawn_in(p: Tensor, gain: Tensor) -> Tensor:
    """argmax_q E_q[gain] - KL(p || q) = p / (c - gain), where c makes it sum to 1."""
    most = gain.amax(-1, keepdim=True)
    low, high = torch.zeros_like(most), torch.ones_like(most)
    for _ in range(60):
        c = (low + high) / 2
        large = (p / (c + (most - gain))).sum(-1, keepdim=True) > 1
        low, high = torch.where(large, c, low), torch.where(large, high, c)
    return p / (high + (most - gain))


def kl(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other), the mean over the states."""
    return (torch.special.xlogy(one, one) - torch.special.xlogy(one, other)).sum(-1).mean()


def begun(objective: Any, strategy: Any, optimizer: Optimizer, seed: int) -> tuple[Engine, Any, Any]:
    """An engine, a policy drawn from the seed, and all actions in all states with their probabilities as weights."""
    world = process(seed)
    objective.set_params(policy=nn.Linear(STATES, ACTIONS, bias=False), critic=nn.Linear(STATES, 1))
    built = build(objective, Segments(world, envs=1).spec, 0, torch.float64)
    engine = Engine(built, strategy, {"": optimizer})
    state = engine.init([seed], torch.device("cpu"))
    s, a = torch.arange(STATES).repeat_interleave(ACTIONS), torch.arange(ACTIONS).repeat(STATES)
    over, seen = torch.ones(len(s), 1, dtype=torch.bool), one_hot(s, STATES).double().unsqueeze(1)
    batch = {"observation": seen, "action": a.unsqueeze(1), "reward": world.reward[s, a].unsqueeze(1)}
    batch |= {"next_observation": seen, "terminated": over, "truncated": ~over}
    batch |= asked_of(state, "credit", batch, state.key("credit"))
    return engine, state, {**{n: v[:, 0] for n, v in batch.items()}, "weight": policy_of(state)[s, a] / STATES}


def policy_of(state: Any) -> Tensor:
    """What the policy does in each state."""
    return state.params["policy.weight"].detach().T.softmax(-1).clone()


def descended(objective: Any, seed: int) -> tuple[Tensor, Tensor]:
    """The policy before and at the least expected loss over all actions.

    Towards the corners -E[R] + cost KL(new || old) is flat in logits, and a quasi-Newton step may end there; a natural
    one does not see the logits.
    """
    flat = getattr(objective, "near", "") == "reverse"
    strategy = NaturalGradient(damping=1e-6, iterations=20) if flat else LBFGS()
    engine, state, batch = begun(objective, strategy, Optimizer("sgd", lr=1.0 if flat else 0.3), seed)
    before = policy_of(state)
    for _ in range(40 if flat else 120):
        engine.step(state, batch)
    return before, policy_of(state)


def stepped(seed: int, radius: float) -> tuple[float, float, float]:
    """Of a step of TRPO: KL(old || new); and how far it is, over its length, from the best policy with the same
    KL(new || old), and from that with the same KL(old || new)."""
    trust = TrustRegion(radius=radius, damping=1e-8, iterations=20)
    engine, state, batch = begun(PPO(near="none", **TABLES), trust, Optimizer("sgd", lr=0.1), seed)
    before = policy_of(state)
    engine.step(state, batch)
    after, reward = policy_of(state), process(seed).reward

    def off(form: Any, far: Any) -> float:
        low, high = -5.0, 15.0
        for _ in range(60):  # the logarithm of what a nat costs
            middle = (low + high) / 2
            low, high = (middle, high) if far(form(before, reward / np.exp(middle))) > far(after) else (low, middle)
        return float((after - form(before, reward / np.exp(high))).norm() / (after - before).norm())

    to_new = off(tilted, lambda policy: kl(policy, before))
    return float(kl(before, after)), to_new, off(drawn_in, lambda policy: kl(before, policy))


def acted(report: Report, name: str, objective: Any, setting: Any, seeds: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The policy that has played one segment, and the one learned from it, of every seed."""
    objective.set_params(policy=nn.Linear(STATES, ACTIONS, bias=False), critic=nn.Linear(STATES, 1))
    source = Segments(process(0), envs=setting.envs, length=setting.length, passes=setting.steps)
    adam = {"optimizer": Optimizer("adam", lr=0.1), "schedule": "linear", "dtype": "float64"}
    learner = Learner(objective, **adam, steps=setting.steps, replicas=len(seeds), random_state=seeds[0])
    report.fit(learner, source, what=f"{name}, by acting")
    segment = learner.training_.runs[0].state.source["segment"]
    state, after = segment["observation"].argmax(-1), policy_of_all(learner)
    found = []
    for k in range(len(seeds)):
        told = torch.stack([segment["told"][k][state[k] == s][0] for s in range(STATES)])
        found.append((told.softmax(-1), after[k]))
    return found


def policy_of_all(learner: Learner) -> Tensor:
    """What every replica does in each state."""
    weight: Tensor = learner.training_.runs[0].state.params["policy.weight"].detach()
    return weight.transpose(-1, -2).softmax(-1)
