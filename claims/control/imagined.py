"""Planning in a learned model: how few true steps it asks for, and how a search finds what the model has wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, bands, interquartile_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE
from weft.core.random import fold, gauss, key_of
from weft.data import CartPole, Learned
from weft.objectives import PPO, Dynamics, Regression
from weft.sources import Demonstrations

HORIZON, EPISODES, FEW, MANY = 200, 50, 100, 1000
SEARCHED = (1, 4, 16, 64)
NEAR = {"discount": 0.98, "trace": 0.8}
PLAYED = {"envs": 16, "length": 32, "passes": 8, "batch_size": 256}


def truth(*_: Any, **__: Any) -> CartPole:
    """The world itself in the place of its model."""
    world = CartPole()
    world.horizon = HORIZON
    return world


class Imagined(Claim):
    """CartPole and models of it from random steps; in the models PPO, and the best of some policies drawn at random."""

    title = "Planning in a learned model"
    statement = (
        "PPO within a model of a thousand steps, taken at random, earns more in the world than its model-free twin "
        "that learns from as many steps of its own. What a model has wrong is exploited: of policies drawn at random "
        "that which the model likes best earns less than the model promises; with more policies to choose from the "
        "more, with more steps to learn from the less."
    )
    reference = (
        "Kurutach, Clavera, Duan, Tamar and Abbeel, “Model-ensemble trust-region policy optimization”, arXiv "
        "1802.10592; Janner, Fu, Zhang and Levine, “When to trust your model”, arXiv 1906.08253"
    )
    tolerance = (
        "CartPole cut at 200 steps. By the seeds 100 to 105, on which settings were chosen, the twin earned about 50 "
        "and the model's policy 196 after 1,000 steps: at least 80 more is asked. The best of 64 was promised 27 too "
        "much by 100 steps: at least 10 is asked; and that choosing, and fewer steps, widen the gap at all. "
        "Interquartile means of more seeds than elsewhere, as each has models of its own, and models differ."
    )
    quick = {"seeds": 8, "steps": (FEW, MANY), "updates": 500, "policies": 512, "search": 8192}
    full = {"seeds": 20, "steps": (FEW, 300, MANY, 3000), "updates": 1000, "policies": 1024, "search": 20_480}
    mutant = Mutant(
        what="a world that is known: it has nothing wrong, and promises what is true",
        misses="promised less true, best of 64",
        names={"Learned": truth},
        setting={"updates": 1, "search": 512},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2 * len(setting.steps) * len(seeds) + 1)
        keys = [(steps, seed) for steps in setting.steps for seed in seeds]
        found = report.every(keys, partial(modelled, report, setting))
        each = {steps: [found[steps, seed] for seed in seeds] for steps in setting.steps}
        ppo = {steps: np.array([one[0] for one in each[steps]]) for steps in each}  # (seeds, promised and true)
        best = {steps: np.array([one[1] for one in each[steps]]) for steps in each}  # (seeds, of how many, likewise)
        gap = {steps: values[..., 0] - values[..., 1] for steps, values in best.items()}
        twin = np.array(
            earned(trained(report, CartPole(), 1024, replicas=len(seeds), random_state=seeds[0]), CartPole())
        )

        more = interquartile_of(ppo[MANY][:, 1] - twin)
        report.figure(f"earned after {MANY} true steps, by the model less the twin", more, least=80.0)
        most, few = max(setting.steps), gap[FEW]
        report.figure(f"promised less true, one of one, by {FEW} steps", interquartile_of(few[:, 0]))
        report.figure(f"promised less true, best of 64, by {FEW} steps", interquartile_of(few[:, -1]), least=10.0)
        wider = interquartile_of(few[:, -1] - few[:, 0])
        report.figure("promised less true, best of 64 less one of one", wider, least=0.0)
        less = interquartile_of(few[:, -1] - gap[most][:, -1])
        report.figure(f"promised less true, best of 64, by {FEW} steps less by {most}", less, least=0.0)
        rows = [
            (steps, name, *(interquartile_of(values[:, side]) for side in (0, 1)))
            for steps in each
            for name, values in [("PPO", ppo[steps]), *((f"best of {n}", best[steps][:, i]) for i, n in SHOWN)]
        ]
        rows.append((MANY, "PPO in the world", "", interquartile_of(twin)))
        columns = ["true steps", "search", "promised by the model", "earned in the world"]
        report.table(f"Returns, of at most {HORIZON}", columns, rows, digits=0)
        with report.picture(
            "imagined",
            alt="Left, returns of PPO over the true steps that its model has seen, on a logarithmic axis: what is "
            "earned rises to meet what is promised, from 1,000 steps on near 200, far above the twin's dots. Right: "
            "what the model promises too much rises with the number of policies to choose from, most by few steps.",
            caption="Left: what the model promises of PPO's policy, and what that earns in the world, by the true "
            "steps that the model has learned from; dots: the twin of each seed. Right: what the model promises too "
            "much of the policy that it likes best of so many. Medians of the seeds, bands their middle half.",
            panels=2,
            size=(9.6, 3.9),
        ) as (left, right):
            shown = {"middle": np.median, "between": (0.25, 0.75), "marker": "o"}
            for side, (name, colour) in enumerate({"promised": ORANGE, "true": BLUE}.items()):
                bands(
                    left, list(each), np.array([ppo[steps][:, side] for steps in each]).T, colour, label=name, **shown
                )
            left.plot([MANY] * len(twin), twin, "o", color=GREEN, markersize=4, alpha=0.6, label="the twin")
            left.set(title="PPO", xlabel="true steps", ylabel="return", xscale="log", ylim=(0, 1.05 * HORIZON))
            left.legend(loc="lower left")
            for steps, colour in ((FEW, ORANGE), (most, BLUE)):
                bands(right, SEARCHED, gap[steps], colour, label=f"{steps} steps", **shown)
            right.axhline(0.0, color=INK, linewidth=0.8, linestyle=":")
            right.set(title="promised less true", xlabel="policies to choose from", ylabel="return", xscale="log")
            right.legend(loc="upper left")


SHOWN = tuple(enumerate(SEARCHED))[:: len(SEARCHED) - 1]


def over(_: Tensor, __: Tensor, after: Tensor) -> Tensor:
    """Whether the cart has left the track or the pole has fallen, which is known."""
    return (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.2095)


def worth(_: Tensor, __: Tensor, after: Tensor) -> Tensor:
    """Each step is worth 1, which is known."""
    return torch.ones_like(after[:, 0])


def left_alone(seen: Tensor) -> Tensor:
    """Push to the left: of the steps that are not drawn evenly."""
    return torch.zeros(len(seen), dtype=torch.int64)


def modelled(report: Report, setting: Any, steps: int, seed: int) -> tuple[tuple[float, float], list[Any]]:
    """What a model of so many random steps promises and what is true: of PPO's policy, and of the best of some drawn
    at random."""
    world = CartPole()
    taken = Demonstrations(world, left_alone, steps=steps, stray=0.99, batch_size=min(128, steps), random_state=seed)
    learner = Learner(Dynamics(Regression(hidden=(64, 64))), steps=setting.updates, random_state=seed)
    report.fit(learner.set_params(schedule="linear"), taken, what=f"a model of {steps} steps")
    start = world.reset(fold(key_of(seed), torch.arange(256)))[1]
    model = Learned(learner, start=start, horizon=HORIZON, reward=worth, terminated=over)
    policy = trained(report, model, setting.search, random_state=seed)
    weights = gauss(fold(key_of(seed), "policies"), (setting.policies, 4)) * torch.tensor([0.2, 0.5, 1.0, 1.0])
    promised, true = lasting(model, weights, seed), lasting(world, weights, seed)
    best = []
    for count in SEARCHED:
        chosen = promised.reshape(-1, count).argmax(1, keepdim=True)
        best.append([float(each.reshape(-1, count).gather(1, chosen).mean()) for each in (promised, true)])
    return (earned(policy, model)[0], earned(policy, world)[0]), best


def lasting(world: Any, weights: Tensor, seed: int) -> Tensor:
    """The steps that each policy lasts: push to the right where its weights times what is seen are above 0."""
    keys = fold(key_of(seed), "episodes", torch.arange(len(weights)))
    state, seen = world.reset(keys)
    total, going = torch.zeros(len(weights)), torch.ones(len(weights))
    for t in range(HORIZON):
        state, seen, reward, ended = world.step(state, ((weights * seen).sum(-1) > 0).long(), fold(keys, t))
        total, going = total + going * reward, going * ~ended
    return total


def trained(report: Report, world: Any, steps: int, **more: Any) -> Learner:
    """PPO after so many steps in a world."""
    objective = PPO(**NEAR)
    adam = {"optimizer": Optimizer("adam", lr=3e-3), "schedule": "linear", "clip": 0.5}
    return report.fit(Learner(objective, **adam, env_steps=steps, **more), objective.plays(world, **PLAYED), what="PPO")


def earned(policy: Learner, world: Any) -> list[float]:
    """The mean return of episodes, cut where the model's are, of each replica."""
    returns = np.atleast_2d(policy.evaluate(world, EPISODES).returns).clip(max=HORIZON)
    return [float(value) for value in returns.mean(1)]
