"""Memory against none: the T-maze as its corridor grows, and CartPole of which only positions are seen."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, bands, interquartile_of
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.core import Field
from weft.data import CartPole, TMaze
from weft.objectives import PPO

GUESS, EPISODES = 1.95, 400
KINDS = {"with memory": BLUE, "without": ORANGE}
MAZE = {"hidden": (32, 32), "entropy_weight": 0.02, "discount": 0.98}
POLE = {"hidden": (64, 64), "discount": 0.98, "trace": 0.9, "value_weight": 0.01}


class Positions(CartPole):
    """CartPole of which only the cart's position and the pole's angle are seen, as thirds of their bounds."""

    observation = Field((2,), torch.float32)

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        state, _ = super().reset(keys)
        return state, self._see(state)

    def step(self, state: Tensor, action: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        after, _, reward, done = super().step(state, action, keys)
        return after, self._see(after), reward, done

    @staticmethod
    def _see(state: Tensor) -> Tensor:
        return (state[:, ::2] * state.new_tensor([3 / 2.4, 3 / 0.2095])).float()


class Remembered(Claim):
    """The same policies, nets and steps, with a recurrent first layer and without."""

    title = "Memory against none"
    statement = (
        "What a sign at the beginning of a corridor told decides at its end: a policy with a memory learns to turn "
        "that way, in a corridor of 20 steps as in one of 5, and one without turns at random, whatever the length. "
        "With positions alone in view a pole is balanced by who remembers the last ones, and falls for who does not."
    )
    reference = (
        "Bakker, “Reinforcement learning with long short-term memory”, NIPS 2001; Wierstra, Förster, Peters and "
        "Schmidhuber, “Recurrent policy gradients”, Logic Journal of the IGPL 18, 2010 (poles without velocities)"
    )
    tolerance = (
        "Turning right always is worth 4, turning at random 1.95. With a memory at least 3.5, three quarters of the "
        "way from chance, without at most 2.2: 400 episodes a seed tell chance within .1. CartPole: with a memory at "
        "least 400 of 500, without at most 100. Interquartile means over the seeds; settings were chosen on seeds from "
        "100 on."
    )
    quick = {"seeds": 8, "lengths": {2: 20_000}, "pole": 0}
    full = {"seeds": 10, "lengths": {5: 80_000, 10: 160_000, 20: 240_000}, "pole": 100_000}
    mutant = Mutant(
        what="a memory that is left out",
        misses="with memory",
        names={"PPO": altered(PPO, memory=None)},
        setting={"lengths": {2: 4096}},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        lengths = dict(setting.lengths)
        keys = [(length, kind) for length in lengths for kind in KINDS]
        keys += [("positions", kind) for kind in KINDS] if setting.pole else []
        report.plan(len(keys))
        steps = {**lengths, "positions": setting.pole}
        found = report.every(keys, partial(trained, report, seeds, steps))

        told = {"with memory": {"least": 3.5, "reference": "4"}, "without": {"most": 2.2, "reference": "1.95"}}
        for (world, kind), (earned, _, _) in found.items():
            if world != "positions":
                report.figure(f"corridor of {world}, {kind}", interquartile_of(earned), **told[kind])
        ends = {"with memory": {"least": 400.0, "reference": "500"}, "without": {"most": 100.0}}
        for kind, bound in ends.items():
            name = f"CartPole's positions, {kind}"
            if setting.pole:
                report.figure(name, interquartile_of(found["positions", kind][0]), **bound)
            else:
                report.not_run(name)
        rows = [
            (world, kind, steps[world], interquartile_of(earned), np.min(earned), np.max(earned))
            for (world, kind), (earned, _, _) in found.items()
        ]
        columns = ["corridor", "policy", "steps", "return, interquartile mean", "least", "most"]
        report.table(f"The return of {EPISODES} fresh episodes, over the seeds", columns, rows, digits=2)
        longest = max(lengths)
        panels = 3 if setting.pole else 2
        with report.picture(
            "memory",
            alt="Left, the return over the corridor's length: dots with memory lie at 4, those without around 1.95. "
            "Middle, the return while learning in the longest corridor: with memory it rises to 4, without it stays "
            "below 2. Right: CartPole by positions, which rises with memory alone.",
            caption="Left: what each seed earns after training, by the corridor's length; lines are interquartile "
            f"means. Then the return while learning, in the corridor of {longest} steps and in CartPole by positions: "
            "medians of the seeds and their range.",
            panels=panels,
            size=(4.4 * panels, 3.9),
        ) as axes:
            for kind, colour in KINDS.items():
                each = [found[length, kind][0] for length in lengths]
                for length, values in zip(lengths, each, strict=True):
                    axes[0].plot([length] * len(values), values, "o", color=colour, markersize=4, alpha=0.4)
                middles = [interquartile_of(values).value for values in each]
                axes[0].plot(list(lengths), middles, "-", color=colour, label=kind)
                for ax, world in zip(axes[1:], (longest, "positions"), strict=False):
                    _, at, curve = found[world, kind]
                    bands(ax, np.asarray(at) / 1000, np.asarray(curve).T, colour, middle=np.median, label=kind)
                    ax.set(xlabel="thousand steps", ylabel="return")
            axes[0].axhline(GUESS, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(axes[0], min(lengths), GUESS + 0.06, "a guess", INK, va="bottom")
            axes[0].set(title="after training", xlabel="length of the corridor", ylabel="return", ylim=(-0.5, 4.2))
            axes[0].set_xticks(list(lengths))
            axes[0].legend(loc="lower left")
            axes[1].set(title=f"corridor of {longest}")
            if setting.pole:
                axes[2].set(title="CartPole by positions")


def trained(report: Report, seeds: list[int], steps: Any, world: Any, kind: str) -> tuple[Any, Any, Any]:
    """What every seed's policy earns in fresh episodes; and steps and returns while it learned."""
    memory = "lstm" if kind == "with memory" else None
    if world == "positions":
        place, objective = Positions(), PPO(memory=memory and "gru", **POLE)
        settings = {"envs": 16, "length": 64, "passes": 8, "batch_size": 4 if memory else 256}
        rate, clip = 3e-3, None
    else:
        place, objective = TMaze(world, horizon=10 * world), PPO(memory=memory, **MAZE)
        length = max(16, 3 * world)
        settings = {"envs": 32, "length": length, "passes": 4, "batch_size": 16 if memory else 16 * length}
        rate, clip = 1e-2, 0.5
    learner = Learner(
        objective,
        optimizer=Optimizer("adam", lr=rate),
        schedule="linear",
        clip=clip,
        env_steps=steps[world],
        replicas=len(seeds),
        random_state=seeds[0],
    )
    report.fit(learner, objective.plays(place, **settings), what=f"{world}, {kind}")
    played = learner.evaluate(place, EPISODES, deterministic=world == "positions")
    history = learner.history_
    at = np.asarray(history["env_steps"]).reshape(len(history["step"]), -1)[:, 0]  # in each replica the same
    return played.returns.mean(1), at, np.asarray(history["return"])
