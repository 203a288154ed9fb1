"""A source of order k: nothing is learned of it from fewer than k steps, and all from k; and how gradients fade."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE
from weft.nets import DilatedConvolutions
from weft.objectives import CausalTransformer, CharRNN
from weft.objectives.densities.tokens import TokenDensity

FLIP = 0.1
ENTROPY = -(FLIP * np.log(FLIP) + (1 - FLIP) * np.log(1 - FLIP))  # .3251 nats a bit
LOST = np.log(2) - ENTROPY  # .3680 more where the bit that counts is out of reach
NETS = {
    "RNN": lambda width: CharRNN(kind="rnn", width=width, ends=False),
    "LSTM": lambda width: CharRNN(kind="lstm", width=width, ends=False),
    "WaveNet": lambda width: TokenDensity(
        lambda i, o: DilatedConvolutions(i, o, width=width, layers=3), width=width, ends=False
    ),
    "Transformer": lambda width: CausalTransformer(layers=1, heads=2, width=width, ends=False),
}
COLOURS = {"RNN": ORANGE, "LSTM": BLUE, "WaveNet": GREEN, "Transformer": INK}


def lagged(rows: int, length: int, lag: int, seed: int) -> Any:
    """Bits of which each is that of `lag` steps before, flipped with probability .1."""
    random = np.random.default_rng(seed)
    bits = random.integers(2, size=(rows, length + lag))
    for t in range(lag, length + lag):
        bits[:, t] = bits[:, t - lag] ^ (random.random(rows) < FLIP)
    return bits[:, lag:]


def regret(learner: Learner, k: int, X: Any, lag: int) -> float:
    """Nats of the last bit of each row given the others, less those of the source that made it."""
    own = learner.replica(k)
    nats = own.log_prob(X[:, :-1]) - own.log_prob(X)
    if X.shape[1] <= lag:  # the source's own are known by their mean alone
        return float(nats.mean() - ENTROPY)
    flipped = X[:, -1] != X[:, -1 - lag]
    return float(nats.mean() + np.log(np.where(flipped, FLIP, 1 - FLIP)).mean())


def fading(model: Any, X: Any) -> Any:
    """By how many decades the gradient of the last answer falls with each step back, beyond the first four."""
    read = model.read(torch.as_tensor(X), None).detach().requires_grad_()
    last = model.eval().net(read)[:, -1]
    norms = torch.autograd.grad((last[:, 0] - last[:, 1]).sum(), read)[0].norm(dim=-1).mean(0).flip(0)[4:]
    return -np.polyfit(np.arange(len(norms)), norms.clamp_min(1e-30).log10().numpy(), 1)[0]


class OrderOfDependence(Claim):
    """Four nets on a source whose every bit depends on one bit alone, k steps back, at several lengths."""

    title = "The number of unrolled steps is the order of dependence"
    statement = (
        "A model that is trained on windows of L steps has learned a dependence of order L at most: of bits that "
        "repeat those of k steps before, it knows nothing with L < k and all with L = k, be it an RNN, an LSTM, a "
        "WaveNet or a Transformer. Within its steps a plain RNN still does not learn what is far back, since its "
        "gradient fades faster with each step than an LSTM's."
    )
    reference = (
        "Bengio, Simard and Frasconi, “Learning long-term dependencies with gradient descent is difficult”, IEEE "
        "Transactions on Neural Networks 5, 1994; Hochreiter and Schmidhuber, “Long short-term memory”, 1997; the "
        "source's entropy in closed form"
    )
    tolerance = (
        "The last bit of a window, on fresh windows: its nats beyond the source's own must be within .02 of "
        "log 2 less the entropy (.368) with L = k - 1, and within .03 of 0 with L = k, for each net. With the source "
        "at the far lag and as many steps of training, the RNN must be at least .3 off and the LSTM at least .05 less "
        "so. Before training the gradient must fade by at least .1 decades more a step in the RNN than in the LSTM."
    )
    quick = {"seeds": 5, "lag": 2, "more": (-1, 0), "rows": 1000, "steps": 120, "width": 16, "far": 12, "far_steps": 0}
    quick |= {"nets": ["RNN", "Transformer"]}
    full = {"seeds": 8, "lag": 6, "more": (-1, 0, 3), "rows": 10_000, "steps": 400, "width": 32}
    full |= {"far": 16, "far_steps": 800, "nets": list(NETS)}
    mutant = Mutant(
        what="a source of an order lower by one, whose bit is within reach",
        misses="with one step too few",
        names={"lagged": lambda rows, length, lag, seed, right=lagged: right(rows, length, lag - 1, seed)},
        setting={"nets": ["RNN"]},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        lengths = [setting.lag + more for more in setting.more]
        report.plan(len(setting.nets) * len(lengths) + 2 + 2 * bool(setting.far_steps))
        found: dict[str, list[Any]] = {}
        for name in setting.nets:
            found[name] = []
            for length in lengths:
                learner = self.trained(name, length, setting.lag, setting.steps, setting, seeds, report)
                X = lagged(10_000, length + 1, setting.lag, 1)
                found[name].append([regret(learner, k, X, setting.lag) for k in range(len(seeds))])
            few, enough = (mean_of(np.array(found[name][i])) for i in (0, 1))
            what = f"{name}: nats beyond the source's"
            report.figure(f"{what} with one step too few", few, reference="0.368", near=LOST, within=0.02)
            report.figure(f"{what} with as many steps as its order", enough, reference="0", near=0.0, within=0.03)
        columns = [f"L = {length}" for length in lengths]
        rows = [[name, *np.mean(each, 1)] for name, each in found.items()]
        report.table(f"Nats beyond the source's, order {setting.lag}", ["net", *columns], rows, digits=3)
        self.far(setting, seeds, report)
        with report.picture(
            "order",
            alt="Bars for each net at three lengths of a window: high and equal with one step too few, at nought else.",
            caption=f"Nats of the last bit beyond the source's own, whose order is {setting.lag}; dashed: log 2.",
            size=(6.4, 3.6),
        ) as ax:
            for i, (name, each) in enumerate(found.items()):
                ax.bar(np.arange(len(lengths)) + 0.2 * i - 0.3, np.mean(each, 1), 0.18, color=COLOURS[name], label=name)
            ax.axhline(LOST, color=INK, linestyle=(0, (4, 3)), linewidth=0.8)
            ax.set(xticks=range(len(lengths)), xticklabels=columns, ylabel="nats beyond the source's")
            ax.legend(loc="upper right")

    def far(self, setting: Any, seeds: list[int], report: Report) -> None:
        """How gradients fade before training, and what is learned of a source far back."""
        length, fades, off = 2 * setting.far, {}, {}
        X = lagged(2000, length + 1, setting.far, 1)
        for name in ("RNN", "LSTM"):
            fresh = self.trained(name, length, setting.far, 1, setting, seeds, report, lr=1e-9)
            fades[name] = np.array([fading(fresh.replica(k).objective_, X[:, :-1]) for k in range(len(seeds))])
            if setting.far_steps:
                learner = self.trained(name, length, setting.far, setting.far_steps, setting, seeds, report)
                off[name] = np.array([regret(learner, k, X, setting.far) for k in range(len(seeds))])
            report.figure(f"{name}: decades by which the gradient fades a step", mean_of(fades[name]))
        more = mean_of(fades["RNN"] - fades["LSTM"])
        report.figure("decades by which the RNN's gradient fades more a step than the LSTM's", more, least=0.1)
        if off:
            report.figure(f"RNN: nats beyond the source's at lag {setting.far}", mean_of(off["RNN"]), least=0.3)
            less = mean_of(off["RNN"] - off["LSTM"])
            report.figure(f"LSTM: nats less than the RNN's at lag {setting.far}", less, least=0.05)

    def trained(
        self, name: str, length: int, lag: int, steps: int, setting: Any, seeds: Any, report: Report, lr: float = 0.01
    ) -> Learner:
        """All seeds at once, on windows of so many steps and the bit after them."""
        learner = Learner(
            NETS[name](setting.width if lag == setting.lag else 32),
            steps=steps,
            batch_size=200,
            optimizer=Optimizer("adam", lr=lr),
            schedule="cosine",
            every=max(1, steps // 4),
            replicas=len(seeds),
            random_state=seeds[0],
        )
        X = lagged(setting.rows, length + 1, lag, 0)
        return report.fit(learner, X, what=f"{name}, {length} steps, order {lag}")
