"""Restricted Boltzmann machines of known normalizer: the bias of one step of a chain, and what annealing finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of, share_of
from weft.bench.pictures import BLUE, ORANGE, note
from weft.core.random import key_of, keyed
from weft.objectives import RBM
from weft.objectives.densities import Annealed, ais, annealing
from weft.objectives.densities.rbm import Units
from weft.testing import every_row

VISIBLE, HIDDEN = 5, 2
ROWS = every_row([2] * VISIBLE).astype(np.float64)


def planted(seed: int, visible: int, hidden: int) -> Units:
    """A machine with weights of unit deviation, its biases such that bits are on as often as off without the others."""
    random = np.random.default_rng(seed)
    units = Units(visible, hidden, torch.zeros(visible)).double()
    weight = torch.as_tensor(random.normal(size=(visible, hidden)))
    units.weight.data, units.a.data, units.c.data = weight, -weight.sum(1) / 2, -weight.sum(0) / 2
    return units.requires_grad_(False)


def slope(model: Any, law: Any) -> float:
    """The norm of the likelihood's gradient, by enumeration: nought where the likelihood has its maximum."""
    units = model.units.double()
    logs = -units.free_energy(torch.as_tensor(ROWS)) - units.log_normalizer()
    found = torch.autograd.grad((torch.as_tensor(law) * logs).sum(), list(units.parameters()))
    return math.sqrt(sum(float((g**2).sum()) for g in found))


def dropped(model: Any, **settings: Any) -> Annealed:
    """A mutant: the factor of one hidden unit is left out of the normalizer where annealing begins."""
    return Annealed(annealing.ais(model, **settings).log_weights - math.log(2))


class RestrictedBoltzmann(Claim):
    """Both kinds of chains on laws that no machine of this size has; annealing, over and over, where log Z is known."""

    title = "One step of a chain is biased, annealing is not"
    statement = (
        "Contrastive divergence with one step converges to another model than that of maximum likelihood, chains that "
        "persist come closer to it; annealed importance sampling estimates the normalizer, with an interval that holds "
        "it as often as it says."
    )
    reference = (
        "Tieleman, “Training restricted Boltzmann machines using approximations to the likelihood gradient”, ICML "
        "2008; Carreira-Perpiñán and Hinton, “On contrastive divergence learning”, AISTATS 2005; Salakhutdinov and "
        "Murray, “On the quantitative analysis of deep belief networks”, ICML 2008"
    )
    tolerance = (
        "The data are random laws of five bits (every row with its probability), which two hidden units cannot be: "
        "where they can, one step has no bias either, since its chain then begins in equilibrium. Where training ends, "
        "the likelihood's gradient is known by enumeration; it must be larger for one step than for persistent chains, "
        "without a margin. The mean error of log Z by annealing must be within .05 nats of 0, and 95 % intervals must "
        "hold it in 92 to 98 % of the repetitions: 3 % either side of nominal."
    )
    quick = {"seeds": 5, "laws": 2, "steps": 300, "repetitions": 600, "temperatures": 80}
    full = {"seeds": 8, "laws": 4, "steps": 1500, "repetitions": 2000, "temperatures": 150}
    mutant = Mutant(
        what="a factor 2 left out where annealing begins",
        misses="AIS: error of log Z",
        names={"ais": dropped},
        setting={"steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2 * setting.laws)
        left: dict[str, list[Any]] = {"data": [], "persistent": []}
        for number in range(setting.laws):
            law = np.random.default_rng(number).dirichlet(np.full(len(ROWS), 0.1))
            for chains, found in left.items():
                learner = report.fit(
                    self.learner(chains, seeds, setting), ROWS, sample_weight=law, what=f"chains={chains!r}"
                )
                found.append([slope(learner.replica(k).objective_, law) for k in range(len(seeds))])
        one, persistent = (np.array(left[chains]).mean(0) for chains in ("data", "persistent"))
        report.table(
            "Norm of the likelihood's gradient where training ends, in the mean over seeds",
            ["law", "CD-1", "persistent chains"],
            [[i, *(float(np.mean(left[chains][i])) for chains in left)] for i in range(setting.laws)],
            digits=4,
        )
        report.figure("the likelihood's gradient where CD-1 ends", mean_of(one))
        report.figure("the likelihood's gradient where persistent chains end", mean_of(persistent))
        report.figure("CD-1's less that of persistent chains", mean_of(one - persistent), least=0)

        off, held = self.annealed(setting)
        report.figure("AIS: error of log Z", mean_of(off), unit="nats", reference="0", near=0.0, within=0.05)
        report.figure("AIS: error of log Z without its sign", mean_of(np.abs(off)), unit="nats", most=0.05)
        report.figure(
            "AIS: 95 % intervals that hold log Z", share_of(held), unit="%", reference="95", near=95, within=3
        )
        with report.picture(
            "annealing",
            alt="A histogram of the errors of log Z over many repetitions, around nought and nearly all within a "
            "twentieth of a nat.",
            caption=f"Errors of log Z over {len(off):,} repetitions of 50 chains; dashed: the tolerance, .05 nats.",
            size=(6.4, 3.6),
        ) as ax:
            ax.hist(off, bins=40, color=BLUE)
            for side in (-0.05, 0.05):
                ax.axvline(side, color=ORANGE, linestyle=(0, (4, 3)))
            note(ax, 0.05, ax.get_ylim()[1] * 0.95, " tolerance", ORANGE)
            ax.set(xlabel="estimate less log Z, nats", ylabel="repetitions")

    def learner(self, chains: str, seeds: list[int], setting: Any) -> Learner:
        """All seeds at once, with the rate falling to nought so that the noise of chains averages out."""
        more = {"particles": 500} if chains == "persistent" else {}
        return Learner(
            RBM(HIDDEN, chains=chains, **more),
            steps=setting.steps,
            batch_size=None,
            optimizer=Optimizer("adam", lr=0.05),
            schedule="cosine",
            replicas=len(seeds),
            random_state=seeds[0],
        )

    def annealed(self, setting: Any) -> tuple[Any, Any]:
        """Errors of log Z, and whether intervals held it, over repetitions of 50 chains."""
        units = planted(0, 8, 6)
        exact = units.log_normalizer()
        with keyed(key_of(0)), torch.no_grad():
            found = ais(units, chains=50 * setting.repetitions, temperatures=setting.temperatures)
        runs = Annealed(found.log_weights.reshape(setting.repetitions, 50))
        low, high = runs.interval(0.95)
        return (runs.log_normalizer - exact).numpy(), ((low <= exact) & (exact <= high)).numpy()
