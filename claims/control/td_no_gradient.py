"""Temporal differences follow no gradient: their sign, and their asymmetric Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _engines import engine_of, gradient
from _sweeps import Full, Sweeps, resting, world_of
from torch import Tensor

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.core.objective import Output
from weft.core.random import fold, gauss, key_of, unit
from weft.data import FiniteMDP
from weft.objectives import TD, PolicyEvaluation
from weft.sources import Tables

STATES, DISCOUNT = 5, 0.9


class Turned(TD):
    """The other sign: w <- w + rate (v(s) - r - discount v(s')) dv(s)/dw."""

    def forward(self, batch: Any, player: str = "") -> Output:
        return Output(-super().forward(batch).losses)


class NoGradient(Claim):
    """Random chains and reversible ones, all without chance."""

    title = "TD follows no gradient"
    statement = (
        "With the sign that some texts print, v(s) + rate (v(s) - r - discount v(s')), temporal differences run away "
        "where with the right one they come to the policy's values. The direction that they follow has an asymmetric "
        "Jacobian, so that it is the gradient of no fixed objective, unless the policy's chain is reversible."
    )
    reference = (
        "Sutton, “Learning to predict by the methods of temporal differences”, Machine Learning 3, 1988; Barnard, "
        "“Temporal-difference methods and Markov models”, IEEE Transactions on Systems, Man and Cybernetics 23, 1993; "
        "Ollivier, “Approximate temporal difference learning is a gradient descent for reversible policies”, arXiv "
        "1805.00869"
    )
    tolerance = (
        "All is without chance. Right sign: values within 1e-6, relative; turned: an error at least 10 times the first "
        "one in a quarter of the sweeps. The Jacobian's asymmetric part, over the whole: at least .01 in each chain, "
        "and at most 1e-9 where it must vanish."
    )
    quick = {"seeds": 5, "sweeps": 800}
    full = {"seeds": 50, "sweeps": 2000}
    mutant = Mutant(
        what="the whole gradient, by which targets are moved too",
        misses="TD's Jacobian",
        names={"TD": Full},
        setting={"sweeps": 50},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        errors = np.array([both(report, seed, setting.sweeps) for seed in report.each(seeds, "signs")])
        right, turned = errors.T
        report.worst(f"right sign: error over the first, worst of {len(seeds)}", right, most=1e-6)
        away = {"reference": "runs away", "least": 10.0, "exact": True}
        report.figure(f"sign turned: error over the first, least of {len(seeds)}", turned.min(), **away)

        parts = [asymmetries(seed) for seed in report.each(seeds, "Jacobians")]
        found = {name: np.array([part[name] for part in parts]) for name in parts[0]}
        apart = {"reference": "not 0", "least": 0.01, "exact": True}
        report.figure(f"TD's Jacobian, asymmetric part, least of {len(seeds)}", found["TD"].min(), **apart)
        report.figure("TD's asymmetric part, mean", mean_of(found["TD"]))
        for name in ("the whole gradient", "TD of a reversible chain"):
            report.worst(f"{name}: asymmetric part, worst of {len(seeds)}", found[name], most=1e-9)

        rows = zip(seeds, right, turned, *found.values(), strict=True)
        report.table("By chain", ["chain", "error, right sign", "error, turned", *found], rows)
        with report.picture(
            "td_no_gradient",
            alt="Left: errors over the first one on a logarithmic axis: about 1e-8 with the right sign, beyond "
            "1e10 with the other. Right: the asymmetric part of Jacobians: about .3 for TD, 1e-16 for the whole "
            "gradient and for reversible chains.",
            caption=f"Left: the error of the values after {setting.sweeps:,} sweeps (sign turned: a quarter), over the "
            "first one; a dot for each chain. Right: the asymmetric part of the Jacobian of the direction that is "
            "followed, over the whole.",
            panels=2,
            size=(9.6, 3.9),
        ) as (left, middle):
            for off, colour, name in ((right, BLUE, "right sign"), (turned, ORANGE, "turned")):
                left.plot(seeds, off, "o", color=colour, markersize=4, label=name)
            left.set(xlabel="chain", ylabel="error, over the first", yscale="log")
            left.legend()
            for (name, off), colour in zip(found.items(), (ORANGE, BLUE, GREEN), strict=True):
                middle.plot(seeds, np.maximum(off, 1e-17), "o", color=colour, markersize=4, label=name)
            middle.set(xlabel="chain", ylabel="asymmetric part", yscale="log")
            middle.legend(loc="center right")


def chain(seed: int, *, reversible: bool = False) -> tuple[FiniteMDP, Tensor]:
    """A chain with rewards drawn from the seed, and the share of steps in each state."""
    key = fold(key_of(seed), "chain")
    p = -unit(fold(key, "p"), (STATES, STATES), torch.float64).clamp_min(1e-9).log()
    p = p + p.T if reversible else p
    p = p / p.sum(-1, keepdim=True)
    return world_of(p, gauss(fold(key, "reward"), (STATES,), torch.float64)), resting(p)


def both(report: Report, seed: int, sweeps: int) -> tuple[float, float]:
    """The error after learning, over the first one: with the right sign and the other."""
    world, share = chain(seed)
    truth = report.fit(Learner(PolicyEvaluation(discount=DISCOUNT), dtype="float64"), Tables(world))
    truth = truth.value(np.eye(STATES))
    source, sgd, errors = Sweeps(world, torch.ones(STATES, 1), share), Optimizer("sgd", lr=1.0), []
    for make, steps in ((TD, sweeps), (Turned, sweeps // 4)):
        learner = Learner(
            make(discount=DISCOUNT), optimizer=sgd, steps=steps, every=steps, dtype="float64", random_state=0
        )
        report.fit(learner, source)
        errors.append(float(np.abs(learner.value(np.eye(STATES)) - truth).max() / np.abs(truth).max()))
    return errors[0], errors[1]


def asymmetric(objective: TD, source: Sweeps) -> float:
    """||J - J'|| / ||J|| of the direction that is followed, which is affine in the weights: J column by column."""
    engine, state = engine_of(objective, source.spec)
    (name,) = state.params
    there = [torch.zeros(STATES, 1, dtype=torch.float64), *torch.eye(STATES, dtype=torch.float64)[..., None]]
    found = []
    for weights in there:
        state.params[name] = weights
        found.append(gradient(engine, state, dict(source.rows)))
    jacobian = torch.stack(found[1:], 1) - found[0][:, None]
    return float((jacobian - jacobian.T).norm() / jacobian.norm())


def asymmetries(seed: int) -> dict[str, float]:
    """Of a chain, with targets held fixed and not, and of a reversible one."""
    one, turning = (Sweeps(w, torch.ones(STATES, 1), d) for w, d in (chain(seed), chain(seed, reversible=True)))
    ways = {"TD": (TD, one), "the whole gradient": (Full, one), "TD of a reversible chain": (TD, turning)}
    return {name: asymmetric(make(discount=DISCOUNT), source) for name, (make, source) in ways.items()}
