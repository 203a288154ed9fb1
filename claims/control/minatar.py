"""MinAtar: PPO on four games, beside what gymnax reports."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _agents import means_of

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, curve, interquartile_of, mean_of
from weft.bench.pictures import BLUE, INK, note
from weft.data.worlds import Asterix, Breakout, Freeway, SpaceInvaders
from weft.objectives import PPO
from weft.sources import Segments

# The game, after how many steps it is cut, and the return that gymnax's table has for its PPO.
GAMES = {
    "Breakout": (Breakout, 1000, 28.0),
    "Asterix": (Asterix, 1000, 15.0),
    "Freeway": (Freeway, 2500, 58.0),
    "Space Invaders": (SpaceInvaders, 1000, 131.0),
}
RELU = "mlp(activation='relu', init='orthogonal', gain=0.01)"


class Endless(PPO):
    """Takes an end for a cut: what the critic says of the board then counts on."""

    def credit(self, batch: Any) -> Any:
        return super().credit({**batch, "terminated": batch["terminated"] & False})


class MinAtar(Claim):
    """Every game is learned by all seeds at once; the last policy is judged, by actions that are drawn from it."""

    title = "Four games of MinAtar"
    statement = (
        "Within ten million steps PPO earns about 28 in Breakout, 15 in Asterix, 58 in Freeway and 131 in Space "
        "Invaders, where nothing sticks, only actions that do something are offered, and a game is cut after 1,000 "
        "steps (Freeway after 2,500)."
    )
    reference = (
        "Lange, “gymnax”, 2022: the returns in its table of environments, by PPO with the settings of gymnax-blines "
        "(agents/*-MinAtar/ppo.yaml: 10 million steps, discount .999, entropy .01, clip .5); the games: Young and "
        "Tian, arXiv 1903.03176. Here a cut is no end, the discount is .99 and the rate falls, as in PureJaxRL's "
        "example (Lu et al., 2022); the first wave of Space Invaders has six columns, as MinAtar's, and gymnax's seven"
    )
    tolerance = (
        "gymnax tells one figure for each game, of agents “minimally tuned”, and no spread. The interquartile mean "
        "over the seeds, of 100 fresh episodes each, must be at least four fifths of it, and at most twice: beyond "
        "that the game would be another one. The bounds stood before the run."
    )
    quick = {"seeds": 8, "games": ("Breakout",), "steps": 30_000, "envs": 32, "rate": 5e-3, "hidden": 64, "least": 2}
    full = {"seeds": 10, "games": tuple(GAMES), "steps": 10**7, "envs": 256, "rate": 2e-3, "hidden": 128, "least": 0}
    mutant = Mutant(
        what="ends that are taken for cuts: a lost ball costs nothing",
        misses="Breakout",
        names={"PPO": Endless},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(setting.games))
        found = report.every(setting.games, partial(learned, setting=setting, seeds=seeds, report=report))
        rows = []
        for name, (_, cut, reported) in GAMES.items():
            said = f"{reported:g} after 10 million steps"
            if name not in found:
                report.not_run(name, reference=said)
                continue
            returns = np.array(found[name]["returns"])
            rows.append((name, cut, reported, mean_of(returns), float(returns.min()), float(returns.max())))
            bounds = {"least": setting.least} if setting.least else {"least": 0.8 * reported, "most": 2 * reported}
            report.figure(name, interquartile_of(returns), reference=said, **bounds)
        report.table("Returns", ["game", "cut after", "gymnax", "mean", "least", "largest"], rows, digits=1)
        draw(report, found)


def learned(name: str, setting: Any, seeds: list[int], report: Report) -> dict[str, Any]:
    """What the last policy of each seed earns in fresh episodes, and the returns while it learned."""
    game, cut, _ = GAMES[name]
    world, hidden = game(sticky=0.0, minimal=True), (setting.hidden, setting.hidden)
    learner = Learner(
        PPO(RELU, hidden=hidden, entropy_weight=0.01),
        env_steps=setting.steps,
        optimizer=Optimizer("adam", lr=setting.rate, eps=1e-5),
        schedule="linear",
        clip=0.5,
        replicas=len(seeds),
        random_state=seeds[0],
    )
    envs, length = setting.envs, 32
    source = Segments(world, envs=envs, length=length, passes=4, batch_size=envs * length // 8, horizon=cut)
    report.fit(learner, source, what=name)
    returns = means_of(learner.evaluate(world, 100, horizon=cut, deterministic=False, envs=25), len(seeds))
    curves, steps = (np.reshape(learner.history_[what], (-1, len(seeds))) for what in ("return", "env_steps"))
    return {"returns": returns.tolist(), "curves": curves.T.tolist(), "steps": steps[:, 0].tolist()}


def draw(report: Report, found: dict[str, Any]) -> None:
    """Returns while the policies learn, with what gymnax reports as a line."""
    with report.picture(
        "minatar",
        alt="Returns over millions of steps, a panel for each game: every seed faintly and their median, which rises "
        "from near nothing towards a dashed line, the return that gymnax reports.",
        caption="Returns of the last episodes of training: each seed, and the median; dashed: gymnax's PPO.",
        panels=len(found),
        size=(3.4 * len(found) + 0.8, 3.2),
    ) as axes:
        for ax, (name, one) in zip(np.atleast_1d(np.array(axes, dtype=object)), found.items(), strict=True):
            at, reported = np.array(one["steps"]) / 1e6, GAMES[name][2]
            curve(ax, at, np.array(one["curves"]), BLUE, seeds="-", middle=np.nanmedian, markersize=0)
            ax.axhline(reported, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            note(ax, at[0], reported, "gymnax", INK, va="bottom")
            ax.set(title=name, xlabel="million steps", ylabel="return")
