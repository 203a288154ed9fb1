"""AND-mask against plain training on spirals with shortcut features."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Report, median_of, share_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, blank, note, ramp
from weft.data import spirals, spirals_test
from weft.nets import MLP
from weft.strategies import ERM, ANDMask

DRAW, SHORTCUTS, SOLVED = 20, 16, 90.0  # which draw of the data; shortcut features; accuracy that counts as solved


def three_layers(inputs: int, outputs: int) -> MLP:
    """The net of both strategies."""
    return MLP(inputs, outputs, hidden=(64, 64, 64), activation="leaky_relu", init="kaiming")


class Spirals(Claim):
    """Both strategies in one setting; the test rows are evaluated once."""

    title = "Learning what every environment shares"
    statement = (
        "Where each environment offers a shortcut of its own, plain training (ERM) takes the shortcuts and is not "
        "better than chance without them; the AND-mask, which follows only gradients on whose sign all environments "
        "agree, learns the mechanism that they share."
    )
    reference = (
        "Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, “Learning explanations that are hard to vary”, arXiv "
        "2009.00329, section 4.1"
    )
    tolerance = (
        "The paper reports perfect accuracy for the best setting of a search. Here one setting is run (16 environments "
        "of 512 rows, 3 x 64 units, 300 steps), chosen once with test accuracy in view on other draws. Not every seed "
        "solves it, and which ones do depends on rounding. At the full setting the median must reach 97 %; the quick "
        "one has three seeds only, and asks for 75 %, half way from chance to perfect. ERM may be up to 60 %."
    )
    quick = {"seeds": 3, "rows": 512, "environments": 16, "steps": 300, "reach": 75.0}
    full = {"seeds": 16, "rows": 512, "environments": 16, "steps": 300, "reach": 97.0}
    first_seed = 100

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        x, y, environment = spirals(
            setting.rows, environments=setting.environments, shortcuts=SHORTCUTS, random_state=DRAW
        )
        test = spirals_test(2000, shortcuts=SHORTCUTS, random_state=DRAW)
        nets, accuracy = {}, {}
        for name, strategy in (("ERM", ERM()), ("AND-mask", ANDMask(threshold=1.0))):
            net = Classifier(
                three_layers,
                strategy=strategy,
                optimizer=Optimizer("adam", lr=0.03, weight_decay=1e-3),  # L2 acts after the mask
                schedule="step",
                steps=setting.steps,
                batch_size=None,
                validation=spirals_test(1000, shortcuts=SHORTCUTS, random_state=DRAW + 1),  # for the curves only
                replicas=len(seeds),
                random_state=seeds[0],
            )
            nets[name] = report.fit(net, x, y, environment=environment, what=name)
            accuracy[name] = np.array([100 * net.replica(k).score(*test) for k in range(len(seeds))])
        training = {name: 100 * np.median(net.history_["accuracy"][-1]) for name, net in nets.items()}

        report.figure(
            "AND-mask, median test accuracy",
            median_of(accuracy["AND-mask"]),
            reference="100",
            unit="%",
            least=setting.reach,
        )
        report.figure("ERM, median test accuracy", median_of(accuracy["ERM"]), reference="50", unit="%", most=60.0)
        report.figure(f"AND-mask, seeds above {SOLVED:.0f} %", share_of(accuracy["AND-mask"] > SOLVED), unit="%")
        report.table(
            "Test accuracy in %, by seed",
            ["seed", *accuracy],
            [[seed, *(round(a[k], 1) for a in accuracy.values())] for k, seed in enumerate(seeds)],
        )
        report.table(
            "Training accuracy in %, median: both learn their training rows",
            ["strategy", "training", "test"],
            [[name, round(training[name], 1), round(float(np.median(a)), 1)] for name, a in accuracy.items()],
        )
        with report.picture(
            "spirals",
            alt="Left: ERM's regions ignore the two spirals. Middle: the AND-mask's regions follow them. Right: "
            "accuracy without shortcuts over training; the AND-mask's lines climb to 100 %, those of ERM stay at "
            "chance.",
            caption="What each net believes where the shortcuts are noise (the middle one of the seeds), and "
            "accuracy without shortcuts while it trains: thin lines are seeds, thick ones their median.",
            panels=3,
            size=(11.6, 4.0),
        ) as (left, centre, right):
            for ax, (name, net) in zip((left, centre), nets.items(), strict=True):
                middle = int(np.argsort(accuracy[name])[(len(seeds) - 1) // 2])
                regions(ax, net.replica(middle), x, y)
                ax.set_title(f"{name}: {accuracy[name][middle]:.0f} % right")
            curves(right, nets)


def regions(ax: Any, net: Any, x: Any, y: Any, resolution: int = 120, draws: int = 16) -> None:
    """The probability of label 1 over the plane, averaged over shortcut noise, and some training rows."""
    edge = 1.06 * float(np.abs(x[:, :2]).max())
    line = np.linspace(-edge, edge, resolution)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    total = np.zeros(len(grid))
    for noise in np.random.default_rng(0).standard_normal((draws, SHORTCUTS)):
        rows = np.concatenate([grid, np.broadcast_to(noise, (len(grid), SHORTCUTS))], axis=1)
        total += net.predict_proba(rows.astype(np.float32))[:, 1] / draws
    ax.imshow(
        total.reshape(resolution, resolution),
        origin="lower",
        extent=(-edge, edge, -edge, edge),
        cmap=ramp(BLUE, "#8d939c", ORANGE),
        vmin=0,
        vmax=1,
        alpha=0.38,
        interpolation="bilinear",
    )
    for label, colour in ((0, BLUE), (1, ORANGE)):
        rows = x[y == label][:200]
        ax.scatter(rows[:, 0], rows[:, 1], s=6, color=colour, linewidth=0)
    blank(ax)


def curves(ax: Any, nets: dict[str, Any]) -> None:
    """Accuracy without shortcuts while training, by seed and in the median."""
    for (name, net), colour in zip(nets.items(), (INK, GREEN), strict=True):
        step, accuracy = net.history_["step"], 100 * net.history_["valid_accuracy"]
        ax.plot(step, accuracy, color=colour, alpha=0.35, linewidth=1.0)
        ax.plot(step, np.median(accuracy, axis=1), color=colour)
        note(ax, step[-1], 53 if name == "ERM" else 92, name, colour, ha="right")
    ax.set(ylim=(40, 101), xlim=(0, step[-1]), xlabel="step", ylabel="accuracy in %")
    ax.set_title("without shortcuts")
