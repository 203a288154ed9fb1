"""Hidden Markov models: the forward recursion against every path, and planted parameters found again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, bands, exponents, mean_of
from weft.bench.pictures import BLUE, INK
from weft.core.source import Field
from weft.objectives import HMM

STATES, TOKENS, STEPS = 3, 4, 5
START = np.array([0.5, 0.3, 0.2])
MOVES = np.array([[0.85, 0.1, 0.05], [0.05, 0.8, 0.15], [0.2, 0.05, 0.75]])
SHOWN = np.array([[0.7, 0.1, 0.1, 0.1], [0.05, 0.75, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]])
Numbers = NDArray[Any]


class OnePath(HMM):
    """The likeliest path in place of all."""

    def log_prob(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None) -> Tensor:
        return self._asked(x, x_length, observed, best=True).evidence()


class HiddenMarkov(Claim):
    """Small models by enumeration, then planted ones by EM."""

    title = "All paths of a hidden chain, and back to its parameters"
    statement = (
        "The forward recursion is the sum over all paths of hidden states, and makes a probability of all sequences; "
        "EM finds planted parameters again, up to the names of the states, the better the more it has seen."
    )
    reference = (
        "Baum, Petrie, Soules and Weiss, “A maximization technique occurring in the statistical analysis of "
        "probabilistic functions of Markov chains”, Annals of Mathematical Statistics 41, 1970"
    )
    tolerance = (
        "Enumeration and recursion are the same number: only rounding in double precision is allowed (1e-10). The mean "
        "absolute error of moves and laws must be at most .04 at the largest number of sequences, and fall like one "
        "over the root of their number: a slope of -1/2 within .2."
    )
    quick = {"seeds": 5, "sizes": (32, 256), "restarts": 2}
    full = {"seeds": 12, "sizes": (32, 128, 512), "restarts": 3}
    mutant = Mutant(
        what="the likeliest path counted in place of all",
        misses="recursion against all paths",
        names={"HMM": OnePath},
        setting={"sizes": (4, 8), "restarts": 1},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        off = [by_enumeration(seed) for seed in report.each(seeds, "enumeration")]
        report.worst(f"recursion against all paths, worst of {len(off)} models, nats", [a for a, _ in off], most=1e-10)
        report.worst("total probability of all sequences, less 1", [b for _, b in off], most=1e-10)
        errors = np.array(
            [[found_again(seed, n, setting.restarts) for n in setting.sizes] for seed in report.each(seeds, "planted")]
        )
        report.spend(trainings=errors.size * setting.restarts)
        report.table(
            "Mean absolute error of moves and laws, by the number of sequences",
            ["seed", *map(str, setting.sizes)],
            [[seed, *each] for seed, each in zip(seeds, errors, strict=True)],
            digits=4,
        )
        last = mean_of(errors[:, -1])
        report.figure(f"error of the parameters, {setting.sizes[-1]} sequences of 50", last, most=0.04)
        slope = mean_of(exponents(setting.sizes, errors))
        report.figure("slope of the error", slope, reference="-1/2", near=-0.5, within=0.2)
        with report.picture(
            "hidden_markov",
            alt="On logarithmic axes the error of the parameters falls along a line of slope minus one half with the "
            "number of sequences.",
            caption="Mean absolute error of moves and laws, up to the names of the states, by the number of sequences "
            "of 50 steps; the band spans the middle half of the seeds, dashed is the slope -1/2.",
        ) as ax:
            counts = np.array(setting.sizes)
            bands(ax, counts, errors, BLUE, label="EM", middle=np.median, between=(0.25, 0.75), marker="o")
            guide = np.median(errors[:, 0]) * (counts / counts[0]) ** -0.5
            ax.plot(counts, guide, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            ax.set(xlabel="sequences", ylabel="error of the parameters", xscale="log", yscale="log")


def by_enumeration(seed: int) -> tuple[float, float]:
    """How far the recursion is from the sum over all paths, at most, and all sequences' total from 1."""
    model = HMM(STATES)
    torch.manual_seed(seed)
    model.build({"x": Field((STEPS,), torch.int64, TOKENS)})
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        rows = torch.tensor(list(itertools.product(range(TOKENS), repeat=STEPS)))
        told = model.log_prob(rows, torch.full((len(rows),), STEPS))
        start, moves, shown = (p.softmax(-1) for p in (model.start, model.moves, model.seen_by))
        total = torch.zeros(len(rows), dtype=torch.float64)
        for path in itertools.product(range(STATES), repeat=STEPS):
            each = start[path[0]] * shown[path[0], rows[:, 0]]
            for t in range(1, STEPS):
                each = each * moves[path[t - 1], path[t]] * shown[path[t], rows[:, t]]
            total += each
    return float((told - total.log()).abs().max()), float(told.exp().sum()) - 1.0


def sequences(n: int, steps: int, random: np.random.Generator) -> Numbers:
    """Tokens that the planted chain shows."""
    state = random.choice(STATES, n, p=START)
    rows = []
    for _ in range(steps):
        rows.append((random.random((n, 1)) > SHOWN[state].cumsum(1)[:, :-1]).sum(1))
        state = (random.random((n, 1)) > MOVES[state].cumsum(1)[:, :-1]).sum(1)
    return np.stack(rows, 1)


def found_again(seed: int, n: int, restarts: int) -> float:
    """The mean absolute error of moves and laws, by the likeliest of several starts and the best names of states."""
    x = sequences(n, 50, np.random.default_rng([seed, n]))
    learner = Learner(HMM(STATES, tolerance=1e-5), replicas=restarts, random_state=seed, dtype="float64").fit(x)
    likeliest = int(np.argmax([learner.replica(k).log_prob(x).mean() for k in range(restarts)]))
    module = learner.module(likeliest)
    moves, shown = (p.detach().softmax(-1).numpy() for p in (module.moves, module.seen_by))

    def off(order: tuple[int, ...]) -> float:
        named = list(order)
        wrong = [np.abs(moves[np.ix_(named, named)] - MOVES), np.abs(shown[named] - SHOWN)]
        return float(np.concatenate([each.reshape(-1) for each in wrong]).mean())

    return min(map(off, itertools.permutations(range(STATES))))
