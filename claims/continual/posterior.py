"""The posterior identity behind elastic weight consolidation, on models whose posterior is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import multivariate_normal

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, median_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK, blank, note
from weft.objectives import Regression
from weft.strategies import EWC, Laplace

ROWS, SIZE = 40, 4  # rows of a task, weights
TRUTH = np.array([1.0, -0.5, 0.5, 1.5])
PRIOR = 4.0  # the prior's precision, learned as a first task: rows along the axes, with targets 0
KINDS: dict[str, dict[str, Any]] = {
    "full": {"curvature": "full"},
    "Kronecker": {"curvature": "kronecker"},
    **{f"low rank, {rank}": {"curvature": "low_rank", "rank": rank} for rank in (4, 2, 1)},
    "diagonal": {"curvature": "diagonal"},
}
EXACT = ("full", "Kronecker", "low rank, 4")
SHARED = (0.0, 0.5, 0.9)  # correlations between the noise of two tasks


class Posterior(Claim):
    """Linear regressions in sequence, by carried posteriors, beside all rows at once in closed form."""

    title = "Tasks in sequence, one posterior"
    statement = (
        "The posterior of earlier tasks, used as the prior of the next, gives the posterior of all tasks at once. "
        "Carried with its full curvature it is that to rounding; EWC's diagonal is where parameters are not "
        "correlated, and an approximation elsewhere. Taking p(D₂ | D₁) for p(D₂) changes the normalizer and not the "
        "maximum. Data that depend on each other given the parameters break the identity."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, equations 1 "
        "and 2; Huszár, “On quadratic penalties in elastic weight consolidation”, arXiv 1712.03847"
    )
    tolerance = (
        "Where the identity is exact only the descent's rounding is allowed: 1e-6, of a posterior standard deviation "
        "for means, relative for precisions, of a nat for densities. One linear layer with one noise has a Kronecker "
        "product as its Fisher information, and rank 4 is all of 4 weights, so both are exact here too. How far the "
        "approximations are is told; that they, and a shared noise, are off by more than a tenth of a standard "
        "deviation, at the median of the draws, is judged."
    )
    quick = {"seeds": 3, "tasks": 3, "steps": 70}
    full = {"seeds": 16, "tasks": 4, "steps": 100}
    mutant = Mutant(
        what="EWC switched off",
        misses="EWC's maximum to the joint one",
        names={"EWC": altered(EWC, strength=0.0)},
        setting={"seeds": 2},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(4)
        pairs = {
            tilt: [plane(seed, tilt, setting.steps, report) for seed in report.each(seeds, what)]
            for tilt, what in ((0.0, "orthogonal columns"), (0.9, "correlated columns"))
        }
        for what in ("maximum", "precision"):
            off = max(one[what] for one in pairs[0.0])
            report.figure(
                f"EWC's {what} to the joint one, orthogonal columns", off, reference="0", most=1e-6, exact=True
            )

        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in KINDS}
        identity, spread, shift = [], [], []
        for seed in report.each(seeds, "kinds of curvature"):
            tasks = [prior(), *(task(seed, k) for k in range(setting.tasks))]
            for name, kind in KINDS.items():
                strategy = Laplace(**kind, strength=1 / ROWS, normalize=False, penalties="latest")
                path = carried(strategy, tasks, setting.steps, report)
                found[name].append(apart(path, [joint(tasks[: k + 1]) for k in range(len(tasks))]))
                if name == "full":
                    off, moved = normalizers(path[1], tasks)
                    identity.append(np.abs(off).max())
                    spread.append(np.ptp(moved))
                    shift.append(moved.mean())
        for name in EXACT:
            mean, precision, _ = np.max(found[name], axis=0)
            report.figure(
                f"{name}: mean off the joint posterior's", mean, reference="0", unit="sd", most=1e-6, exact=True
            )
            report.figure(
                f"{name}: precision off the joint posterior's", precision, reference="0", most=1e-6, exact=True
            )
        for name in [name for name in KINDS if name not in EXACT]:
            mean, _, nats = (median_of(values) for values in np.transpose(found[name]))
            bound = {"reference": "> 0", "least": 0.1} if name == "diagonal" else {}
            report.figure(f"{name}: mean off the joint posterior's", mean, unit="sd", **bound)
            report.figure(f"{name}: divergence from the joint posterior", nats, unit="nats")
        report.figure(
            "log p(θ | D₁, D₂) by the identity, off", max(identity), reference="0", unit="nats", most=1e-6, exact=True
        )
        report.figure("p(D₂) for p(D₂ | D₁): shift of log p(θ | D₁, D₂)", mean_of(shift), unit="nats", least=0.1)
        report.figure(
            "that shift's spread over θ", max(spread), reference="0: one maximum", unit="nats", most=1e-6, exact=True
        )

        broken = {rho: [] for rho in SHARED}
        for seed in report.each(seeds, "noise that tasks share"):
            for rho in SHARED:
                broken[rho].append(dependent(seed, rho, setting.steps, report))
        for rho, bound in zip(SHARED, ({"most": 1e-6, "exact": True}, {}, {"least": 0.1}), strict=True):
            off = median_of(broken[rho]) if rho else max(broken[rho])
            name = f"noise of two tasks correlated by {rho:g}: mean off the joint posterior's"
            report.figure(name, off, reference="> 0" if rho else "0", unit="sd", **bound)
        report.table(
            f"After {setting.tasks} tasks: off the joint posterior, medians over the draws",
            ["curvature", "mean, sd", "precision, relative", "divergence, nats"],
            [[name, *np.median(found[name], axis=0)] for name in KINDS],
        )
        with report.picture(
            "posterior",
            alt="Four panels. Ellipses in the plane of two weights: with correlated columns EWC ends beside the joint "
            "maximum. Bars: full, Kronecker and all-rank precision are off by nothing but rounding, low ranks and the "
            "diagonal by tenths. Two parabolas with one maximum. Dots that rise with the correlation of noise.",
            caption="From the left: posteriors of two tasks and of both (95 %), and EWC's way from the first optimum; "
            "distances of carried means to the joint one (bars are medians over draws, dots are draws; what is exact "
            "is at rounding); the log posterior along its widest axis with either normalizer; two tasks whose noise "
            "is correlated, row by row.",
            panels=4,
            size=(14.4, 3.9),
            width_ratios=[1.15, 1.15, 1, 1],
        ) as (left, kinds, normal, shared):
            gaps = [one["gap"] for one in pairs[0.9]]
            draw_plane(left, pairs[0.9][int(np.argsort(gaps)[len(gaps) // 2])], "Correlated columns, diagonal")
            draw_kinds(kinds, found)
            draw_normalizers(normal, seeds[0], setting.steps, report)
            for rho in SHARED:
                shared.plot([rho] * len(seeds), broken[rho], "o", color=PINK, alpha=0.5, markersize=5)
            shared.plot(SHARED, [np.median(broken[rho]) for rho in SHARED], color=PINK)
            shared.set(title="Noise in common", xlabel="correlation of two tasks' noise", ylabel="mean off, sd")
            shared.set(xticks=SHARED)


def design(random: Any) -> Any:
    """Rows whose columns are correlated: second moments of eigenvalues 2, 1, .6 and .4 along random axes."""
    q, _ = np.linalg.qr(random.normal(size=(ROWS, SIZE)))
    axes, _ = np.linalg.qr(random.normal(size=(SIZE, SIZE)))
    return np.sqrt(ROWS) * q * np.sqrt([2.0, 1.0, 0.6, 0.4]) @ axes.T


def task(seed: int, number: int) -> tuple[Any, Any]:
    """A linear regression with unit noise."""
    random = np.random.default_rng([seed, number])
    x = design(random)
    return x, x @ TRUTH + random.normal(size=ROWS)


def prior() -> tuple[Any, Any]:
    """The prior N(0, 1 / PRIOR) as rows."""
    return np.sqrt(PRIOR) * np.eye(SIZE), np.zeros(SIZE)


def joint(tasks: list[Any]) -> tuple[Any, Any]:
    """Mean and precision of the posterior of all rows at once."""
    x, y = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
    return np.linalg.solve(x.T @ x, x.T @ y), x.T @ x


def carried(strategy: Any, tasks: list[Any], steps: int, report: Report) -> list[tuple[Any, Any]]:
    """Mean and precision after each task, learned in sequence by descent."""
    net = torch.nn.Linear(tasks[0][0].shape[1], 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    learner = Learner(
        Regression(net),
        strategy=strategy,
        optimizer=Optimizer("sgd", lr=0.25, momentum=0.45),  # for curvatures between .4 and 11
        steps=steps,
        batch_size=None,
        init="keep",
        dtype="float64",
        device="cpu",
    )
    path = []
    for k, (x, y) in enumerate(tasks):
        learner.set_params(steps=steps if y.any() else 1)  # the prior is learned already
        report.saw(x, y)
        learner.partial_fit(x, y, task=k)
        run = learner.training_.runs[0][1]
        kept, whole = run.strategy[""], strategy.having(strength=1.0)  # its penalty is d^T precision d / 2
        (name, weight), *_ = run.params.items()
        penalty = lambda w, n=name, s=kept, p=whole, like=weight: p.penalty({n: w.reshape(like.shape)}, s)  # noqa: E731
        square = torch.autograd.functional.hessian(penalty, weight.flatten())
        path.append((weight.flatten().numpy().copy(), square.numpy()))
    report.spend(trainings=1, steps=learner.n_steps_)
    return path


def apart(path: list[Any], exact: list[Any]) -> tuple[float, float, float]:
    """The furthest mean (in standard deviations) and precision of any task, and the divergence after the last."""
    off = [distance(mean, *one) for (mean, _), one in zip(path, exact, strict=True)]
    relative = [np.abs(p - q).max() / np.abs(q).max() for (_, p), (_, q) in zip(path, exact, strict=True)]
    (mean, p), (truth, q) = path[-1], exact[-1]
    far = np.trace(np.linalg.solve(q, p)) - len(q) + (mean - truth) @ p @ (mean - truth)
    return max(off), max(relative), (far - np.linalg.slogdet(p)[1] + np.linalg.slogdet(q)[1]) / 2


def distance(mean: Any, truth: Any, precision: Any) -> float:
    """In posterior standard deviations, root mean square over the parameters."""
    return float(np.sqrt((mean - truth) @ precision @ (mean - truth) / len(truth)))


def normalizers(first: tuple[Any, Any], tasks: list[Any]) -> tuple[Any, Any]:
    """log p(D₂ | θ) + log p(θ | D₁) - c - log p(θ | D₁, D₂) at draws of θ, for c = log p(D₂ | D₁) and c = log p(D₂)."""
    mean, precision = joint(tasks[:3])
    thetas = mean + np.random.default_rng(0).normal(size=(50, SIZE))
    off = densities(first, tasks[2], thetas) - multivariate_normal(mean, np.linalg.inv(precision)).logpdf(thetas)
    return off - evidence(tasks[2], *first), off - evidence(tasks[2], np.zeros(SIZE), PRIOR * np.eye(SIZE))


def densities(first: tuple[Any, Any], second: tuple[Any, Any], thetas: Any) -> Any:
    """log p(D₂ | θ) + log p(θ | D₁), the latter as it is carried."""
    (mean, precision), (x, y) = first, second
    likelihood = -((y - thetas @ x.T) ** 2).sum(1) / 2 - len(y) * np.log(2 * np.pi) / 2
    return likelihood + multivariate_normal(mean, np.linalg.inv(precision)).logpdf(thetas)


def evidence(data: tuple[Any, Any], mean: Any, precision: Any) -> float:
    """log p(D) where θ has this mean and precision."""
    x, y = data
    return float(multivariate_normal(x @ mean, np.eye(len(y)) + x @ np.linalg.solve(precision, x.T)).logpdf(y))


def dependent(seed: int, rho: float, steps: int, report: Report) -> float:
    """The same units measured in both tasks: rho is the correlation of a unit's two errors.

    The likelihood of each task by itself is right; only what ties the tasks together is left out.
    """
    random = np.random.default_rng([seed, 99])
    x = [design(random), design(random)]
    noise = np.linalg.cholesky([[1.0, rho], [rho, 1.0]]) @ random.normal(size=(2, ROWS))
    tasks = [(a, a @ TRUTH + e) for a, e in zip(x, noise, strict=True)]
    strategy = Laplace(curvature="full", strength=1 / ROWS, normalize=False, penalties="latest")
    mean, _ = carried(strategy, tasks, steps, report)[-1]
    both, values = (np.concatenate(parts) for parts in zip(*tasks, strict=True))
    weights = np.linalg.inv(np.kron([[1.0, rho], [rho, 1.0]], np.eye(ROWS)))
    precision = both.T @ weights @ both
    return distance(mean, np.linalg.solve(precision, both.T @ weights @ values), precision)


def plane(seed: int, tilt: float, steps: int, report: Report) -> dict[str, Any]:
    """EWC over two tasks of two weights, with columns orthogonal at tilt 0."""
    tasks = []
    for k in range(2):
        random = np.random.default_rng([seed, k, 7])
        q, _ = np.linalg.qr(random.normal(size=(ROWS, 2)))
        x = q * random.uniform(0.7, 1.3, size=2) * np.sqrt(ROWS) @ np.array([[1.0, tilt], [0.0, 1.0]])
        tasks.append((x, x @ TRUTH[:2] + random.normal(size=ROWS)))
    path = carried(EWC(strength=1 / ROWS, normalize=False, penalties="latest"), tasks, steps, report)
    posteriors = {"first task": joint(tasks[:1]), "second task": joint(tasks[1:]), "both": joint(tasks)}
    mean, precision = posteriors["both"]
    return {
        "maximum": distance(path[-1][0], mean, precision),
        "precision": np.abs(path[-1][1] - precision).max() / np.abs(precision).max(),
        "gap": distance(posteriors["second task"][0], mean, precision),
        "path": [mean for mean, _ in path],
        "posteriors": posteriors,
    }


def draw_plane(ax: Any, one: dict[str, Any], title: str) -> None:
    """The three posteriors as ellipses, and where EWC ends."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.sqrt(5.991) * np.stack([np.cos(angle), np.sin(angle)])
    for (name, (mean, precision)), colour in zip(one["posteriors"].items(), (BLUE, ORANGE, GREEN), strict=True):
        edge = mean[:, None] + np.linalg.inv(np.linalg.cholesky(precision)).T @ circle
        ax.fill(*edge, color=colour, alpha=0.16, linewidth=0)
        ax.plot(*edge, color=colour, linewidth=1.4, label=name)
        ax.plot(*mean, "o", color=colour, markersize=5)
    ax.annotate("", one["path"][1], one["path"][0], arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4})
    ax.plot(*one["path"][1], "o", markersize=11, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.6)
    blank(ax)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_title(title)
    ax.annotate("EWC", one["path"][1], (10, 9), textcoords="offset points", fontsize=9.5, fontweight="bold")
    ax.legend(loc="best", fontsize=8)


def draw_kinds(ax: Any, found: dict[str, Any]) -> None:
    """How far the carried mean is, by the kind of curvature."""
    for at, (name, values) in enumerate(found.items()):
        off = np.maximum(np.array(values)[:, 0], 1e-17)
        colour = GREEN if name in EXACT else ORANGE
        ax.barh(-at, np.median(off), left=1e-17, color=colour, alpha=0.35, height=0.62)
        ax.plot(off, [-at] * len(off), "o", color=colour, markersize=4)
    ax.set(xscale="log", xlim=(1e-17, 30), yticks=-np.arange(len(found)), yticklabels=list(found))
    ax.set(title="Carried to the joint", xlabel="mean off, sd", xticks=[1e-15, 1e-10, 1e-5, 1])
    ax.grid(False, axis="y")


def draw_normalizers(ax: Any, seed: int, steps: int, report: Report) -> None:
    """The log posterior along its widest axis, with p(D₂ | D₁) and with p(D₂)."""
    tasks = [prior(), task(seed, 0), task(seed, 1)]
    strategy = Laplace(curvature="full", strength=1 / ROWS, normalize=False, penalties="latest")
    first = carried(strategy, tasks[:2], steps, report)[-1]
    mean, precision = joint(tasks)
    values, vectors = np.linalg.eigh(precision)
    along = np.linspace(-3, 3, 121)
    whole = densities(first, tasks[2], mean + along[:, None] * vectors[:, 0] / np.sqrt(values[0]))
    for c, name, colour in (
        (evidence(tasks[2], *first), "by p(D₂ | D₁)", GREEN),
        (evidence(tasks[2], np.zeros(SIZE), PRIOR * np.eye(SIZE)), "by p(D₂)", ORANGE),
    ):
        ax.plot(along, whole - c, color=colour)
        note(ax, 0, (whole - c).max() + 0.5, name, colour, ha="center")
    ax.axvline(0, color=INK, linewidth=0.8, linestyle=":")
    ax.margins(y=0.15)
    ax.set(title="Two normalizers", xlabel="from the maximum, sd", ylabel="log posterior, nats")
