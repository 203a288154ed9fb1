"""Time to draw a row, and to learn from one: counted in passes that wait for each other, and in multiply-adds."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, exponents, mean_of
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.core.random import bernoulli, key_of, keyed
from weft.objectives import MADE

WAYS = {"learning": GREEN, "drawing, kept": BLUE, "drawing, naive": ORANGE}


def chain(d: int, random: np.random.Generator) -> Any:
    """Bits that stay as the one before with probability .9."""
    moved = random.random((200, d)) < np.where(np.arange(d), 0.1, 0.5)
    return (moved.cumsum(1) % 2).astype(np.float32)


def drawn(model: Any, n: int, seed: int, *, cached: bool) -> Any:
    """Rows drawn entry by entry."""
    with torch.no_grad(), keyed(key_of(seed), torch.arange(n)):
        return model.sample(n, cached=cached)


def at_once(model: Any, n: int, seed: int, *, cached: bool) -> Any:
    """The mutant: all entries from one pass over zeros, as if they did not depend on each other."""
    with torch.no_grad(), keyed(key_of(seed), torch.arange(n)):
        zeros = torch.zeros(n, len(model.entries))
        return bernoulli(model.conditionals(zeros).sigmoid(), place="x")


def counted(model: Any, work: Any) -> tuple[int, float]:
    """How often the net was asked while something was done, each time after the last, and the multiply-adds."""
    asked, net = 0, model.net
    before = {"forward": net.forward, "advance": net.advance}

    def watched(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            asked += 1
            return before[name](*args, **kwargs)

        return call

    for name in before:
        setattr(net, name, watched(name))
    try:
        with FlopCounterMode(display=False) as counter:
            work()
    finally:
        for name in before:
            delattr(net, name)
    return asked, counter.get_total_flops() / 2


def seconds(work: Any) -> float:
    """Of one call, the fastest of three."""
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


class SamplingTime(Claim):
    """MADE at several dimensions: a pass of learning, a draw that keeps what is known, and a naive draw."""

    title = "Drawing takes as many steps as there are entries, learning takes one"
    statement = (
        "An autoregressive model learns from a row by one pass, whatever its dimension: all conditionals at once. It "
        "draws a row by as many passes as there are entries, each of which waits for the one before. What is kept "
        "between them makes the work of all passes that of one, but not the waiting."
    )
    reference = "Germain, Gregor, Murray and Larochelle, “MADE”, ICML 2015, section 4; counts by definition"
    tolerance = (
        "Passes that wait for each other, and multiply-adds of matrix products, are counted and not timed: they are "
        "exact. Learning asks the net once at every dimension; drawing as often as there are entries: a power of 1 of "
        "the dimension, and of 0 for learning, within 1e-9. Multiply-adds of a naive draw are the dimension times "
        "those of a pass, of a draw that keeps what is known those of one pass, within a thousandth. Seconds are told "
        "without a bound: they are the machine's."
    )
    quick = {"seeds": 5, "dimensions": (16, 32, 64), "hidden": 64, "rows": 8, "steps": 20}
    full = {"seeds": 10, "dimensions": (16, 49, 196, 784), "hidden": 256, "rows": 16, "steps": 50}
    mutant = Mutant(
        what="all entries drawn at once from one pass", misses="power of the dimension", names={"drawn": at_once}
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(setting.dimensions))
        passes: dict[str, list[float]] = {way: [] for way in WAYS}
        adds: dict[str, list[float]] = {way: [] for way in WAYS}
        spent: dict[str, list[Any]] = {way: [] for way in WAYS}
        n = setting.rows
        for d in setting.dimensions:
            model = MADE((setting.hidden, setting.hidden), law="bernoulli")
            X = chain(d, np.random.default_rng(d))
            adam = Optimizer("adam", lr=0.01)
            learner = Learner(model, steps=setting.steps, batch_size=50, optimizer=adam, random_state=seeds[0])
            built = report.fit(learner, X, what=f"{d} entries").objective_
            rows = {"x": torch.as_tensor(X[:n]), "observed": torch.ones(n, d, dtype=torch.bool)}
            works = {
                "learning": lambda seed, m=built, b=rows: m(b).losses.mean(),
                "drawing, kept": lambda seed, m=built: drawn(m, n, seed, cached=True),
                "drawing, naive": lambda seed, m=built: drawn(m, n, seed, cached=False),
            }
            for way, work in works.items():
                asked, flops = counted(built, lambda w=work: w(seeds[0]))
                passes[way].append(asked)
                adds[way].append(flops / n)
                spent[way].append([1e3 * seconds(lambda w=work, s=seed: w(s)) / n for seed in seeds])
        self.tell(setting, passes, adds, {way: np.array(found).T for way, found in spent.items()}, report)

    def tell(self, setting: Any, passes: Any, adds: Any, spent: Any, report: Report) -> None:
        """Counts against the dimension, and the clock beside them."""
        sizes = setting.dimensions
        for way, power in {"learning": 0.0, "drawing, kept": 1.0, "drawing, naive": 1.0}.items():
            report.figure(
                f"{way}: passes that wait for each other grow with this power of the dimension",
                float(exponents(sizes, [passes[way]])[0]),
                reference=f"{power:g}",
                near=power,
                within=1e-9,
                exact=True,
            )
        once = np.array(adds["learning"])
        report.worst(
            "drawing, kept: multiply-adds over those of a pass, less 1", adds["drawing, kept"] / once - 1, most=1e-3
        )
        report.worst(
            "drawing, naive: multiply-adds over those of a pass and the dimension, less 1",
            adds["drawing, naive"] / once / np.array(sizes) - 1,
            most=1e-3,
        )
        for way, times in spent.items():
            report.figure(
                f"{way}: time for a row, {sizes[-1]} over {sizes[0]} entries", mean_of(times[:, -1] / times[:, 0])
            )
        report.table(
            f"A row of d entries, hidden layers of {setting.hidden}: passes in sequence, multiply-adds, milliseconds",
            ["d", *(f"{way}: {what}" for way in WAYS for what in ("passes", "multiply-adds", "ms"))],
            [
                [d, *(cell for way in WAYS for cell in (passes[way][i], adds[way][i], mean_of(spent[way][:, i])))]
                for i, d in enumerate(sizes)
            ],
            digits=3,
        )
        with report.picture(
            "sampling_time",
            alt="Two panels on logarithmic axes over the dimension. Passes in sequence: a flat line for learning, a "
            "line of slope one for both ways of drawing. Multiply-adds: learning and drawing with what is kept on one "
            "line, the naive way steeply above.",
            caption="Passes that wait for each other (left) and multiply-adds for a row (right).",
            panels=2,
            size=(9.6, 3.6),
        ) as axes:
            for ax, what, found in zip(axes, ("passes in sequence", "multiply-adds"), (passes, adds), strict=True):
                for (way, colour), style in zip(WAYS.items(), ("-", "-", "--"), strict=True):
                    ax.plot(sizes, found[way], style, marker="o", color=colour, label=way)
                ax.set(xscale="log", yscale="log", xlabel="dimension", ylabel=what)
            axes[0].legend(fontsize=8)
