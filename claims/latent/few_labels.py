"""A hundred labels and thousands of digits without: features that were learned from rows alone, M1 and M2, and more
rows drawn by a model of the labelled ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from weft import Classifier, Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of, usual
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.data import mnist
from weft.objectives import VAE, Autoencoder, SemiSupervisedVAE

EACH, AGAIN, DRAWN = 10, 20, 2000  # labels of a class; how often such a row is there for M2; rows drawn to add
LAYER = {"hidden": (), "loss": "bernoulli", "codes": "sigmoid"}
FEATURES = {
    "bottleneck, 32": Autoencoder(32, **LAYER),
    "overcomplete, 400": Autoencoder(400, **LAYER),
    "denoising, 400": Autoencoder(400, masking=0.4, **LAYER),
    "sparse, 400": Autoencoder(400, kl=0.3, target=0.1, **LAYER),
    "VAE, 16": VAE(16, hidden=(256,), law="bernoulli"),
}
BOTTLENECK, OVER, DENOISING, SPARSE, CODES = FEATURES
PIXELS, NET, M1, M2, BOTH = "pixels", "net of 100 rows", "M1", "M2", "M1 + M2"
OF_FEW, OF_ALL = "net, with draws of a model of the 100", "net, with draws of M2"
COLOURS = {PIXELS: ORANGE, NET: ORANGE, **dict.fromkeys(FEATURES, BLUE), **dict.fromkeys((M1, M2, BOTH), GREEN)}


def data(part: str, rows: int) -> tuple[Any, Any]:
    """Bits of digits, 14 x 14, and what they are."""
    X, y = mnist(part)
    small = X[:rows].reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
    return (small >= 0.2).astype(np.float32), y[:rows]


def few(y: Any, seed: int) -> Any:
    """The numbers of so many rows of each class."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.choice(np.flatnonzero(y == c), EACH, replace=False) for c in range(10)])


def mixed_rows(X: Any, y: Any, rows: Any) -> tuple[Any, Any]:
    """All rows without a label but those, which are there many times: else a batch would hold one of them."""
    told = np.full(len(y), -1)
    told[rows] = y[rows]
    often = np.tile(rows, AGAIN - 1)
    return np.concatenate([X, X[often]]), np.concatenate([told, y[often]])


def noughts(X: Any, y: Any, rows: Any) -> tuple[Any, Any]:
    """A mutant: no row is without a label."""
    X, told = mixed_rows(X, y, rows)
    return X, told.clip(0)


mixed = mixed_rows


def way(rate: float = 3e-3, **settings: Any) -> dict[str, Any]:
    """How nets are trained here."""
    return {"batch_size": 100, "optimizer": Optimizer("adam", lr=rate), "schedule": "cosine", **settings}


class FewLabels(Claim):
    """Every seed has its own hundred labels; features are of all rows, without labels."""

    title = "A hundred labels, and rows without"
    statement = (
        "A linear probe on 100 labels is better on features of a denoising or a sparse overcomplete autoencoder than "
        "on those of a plain one, which are as good as the pixels it copies; on a narrow one's it is worse than on "
        "pixels. A classifier of a VAE's codes (M1) is about as good as a net of the 100 rows; M2 is better, and M2 on "
        "M1's codes more so. Rows drawn by a model of the 100 rows themselves do not help that net."
    )
    reference = (
        "Kingma, Rezende, Mohamed and Welling, “Semi-supervised learning with deep generative models”, NIPS 2014 "
        "(another setting, 50,000 rows of 28 x 28: M1 with a transductive SVM 88.2 % right, M2 88.0, M1 + M2 96.7); "
        "Vincent et al., “Stacked denoising autoencoders”, JMLR 11, 2010"
    )
    tolerance = (
        "8,000 digits of MNIST in 14 x 14 bits, all of its test rows; points of right answers, over seeds that differ "
        "in their labels and their nets. Features of the plain overcomplete autoencoder within 2 of pixels, of the "
        "denoising and the sparse one at least 1 above it, of the bottleneck below pixels; those of a VAE are told. M1 "
        "within 8 of the net, M2 above it, M1 + M2 by at least 4. Draws of a conditional VAE of the 100 rows may make "
        "the net better by 1 and worse by 10; what draws of M2 do, which has seen all rows, is told without a bound. "
        "Bounds by pilots with other seeds: 0.3, 2.4, 4, -5, then 3.6, 3, 7 and -4. A first full run, with "
        "five other seeds, settled five of these eight figures and failed none. The quick setting asks for less."
    )
    first_seed = 200
    quick = {"seeds": 5, "rows": 1500, "test": 1000, "steps": 400, "m2": 0, "both": 400, "slack": 6, "more": -8}
    full = {"seeds": 12, "rows": 8000, "test": 10_000, "steps": 1000, "m2": 1200, "both": 1200, "slack": 0, "more": 4}
    mutant = Mutant(
        what="rows without a label are learned as if they were noughts",
        misses="M1 + M2 less",
        names={"mixed": noughts},
        setting={"steps": 100},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        (X, y), (T, t) = data("train", setting.rows), data("test", setting.test)
        labels = [few(y, seed) for seed in seeds]
        report.plan(len(FEATURES) + 1)
        learners = {}
        for name, model in FEATURES.items():
            learner = Learner(model, **way(2e-3), steps=setting.steps, replicas=len(seeds), random_state=seeds[0])
            with warnings.catch_warnings():
                if name == OVER:  # that it can copy is the point
                    warnings.filterwarnings("ignore", "expected fewer entries in a code", UserWarning)
                learners[name] = report.fit(learner, X, what=name)
        right: dict[str, Any] = {}
        for name in (PIXELS, *FEATURES):
            found = []
            for k, rows in enumerate(labels):
                seen = (X[rows], T)
                if name != PIXELS:
                    seen = tuple(learners[name].replica(k).transform(part) for part in seen)
                probe = LogisticRegression(max_iter=2000).fit(seen[0], y[rows])
                found.append(100 * probe.score(seen[1], t))
            right[name] = np.array(found)
        each = []
        for k in report.each(range(len(seeds)), "with labels"):
            each.append(labelled(learners[CODES].replica(k), (X, y), (T, t), labels[k], seeds[k], setting, report))
        right |= {name: np.array([one[name] for one in each]) for name in each[0]}
        slack, points = setting.slack, {"unit": "%"}

        def tell(name: str, than: str, **bounds: Any) -> None:
            report.figure(f"{name} less {than}", mean_of(right[name] - right[than]), **points, **bounds)

        tell(OVER, PIXELS, near=0.0, within=2 + slack)
        tell(DENOISING, OVER, least=1 - slack)
        tell(SPARSE, OVER, least=1 - slack)
        tell(BOTTLENECK, PIXELS, most=slack)
        tell(CODES, PIXELS)
        tell(M1, NET, near=0.0, within=8 + slack)
        tell(BOTH, NET, least=setting.more)
        tell(OF_FEW, NET, least=-10 - slack, most=1 + slack)
        if setting.m2:
            tell(M2, NET, least=0)
            tell(OF_ALL, NET)
        else:
            report.not_run(f"{M2} less {NET}")
        report.table(
            f"Right answers on {len(t):,} test rows in %, over the seeds; 100 of {len(y):,} rows have a label",
            ["what", "mean", "least", "largest"],
            [[name, mean_of(found), found.min(), found.max()] for name, found in right.items()],
            digits=1,
        )
        with report.picture(
            "few_labels",
            alt="Right answers of each way, a dot for each seed: probes of features about as good as pixels, those of "
            "the denoising and the sparse autoencoder above, and M2 on M1's codes furthest to the right.",
            caption="Right answers with 100 labels, a dot for each seed. Orange: without other rows; blue: a linear "
            "probe of features; green: the models of Kingma et al.; grey: rows drawn and added. The line is pixels.",
            size=(7.4, 4.6),
        ) as ax:
            usual.dots(ax, right, COLOURS, chance=float(right[PIXELS].mean()))
            ax.texts[-1].remove()
            ax.set(xlabel="right answers, %")


def labelled(codes: Any, train: Any, test: Any, rows: Any, seed: int, setting: Any, report: Report) -> dict[str, float]:
    """Of one seed: what learns from its labels, by name, in % of test rows right."""
    (X, y), (T, t) = train, test

    def fit(learner: Learner, *data: Any) -> Learner:
        learner.fit(*data)
        report.spend(trainings=1, steps=learner.n_steps_)
        return learner

    def net(X: Any, y: Any, **settings: Any) -> Any:
        return fit(Classifier(hidden=(256,), random_state=seed, **way(2e-3), **settings), X, y)

    def helped(model: Learner) -> float:
        """The net with rows drawn by a model of each class, as many of the labelled ones beside them."""
        which = np.arange(DRAWN) % 10
        more, often = np.asarray(model.sample(DRAWN, y=which, random_state=seed)), np.tile(rows, AGAIN)
        both = net(np.concatenate([X[often], more]), np.concatenate([y[often], which]), steps=600)
        return 100 * both.score(T, t)

    Z, ZT = codes.transform(X), codes.transform(T)
    found = {NET: 100 * net(X[rows], y[rows], steps=300).score(T, t)}
    found[M1] = 100 * net(Z[rows], y[rows], steps=300).score(ZT, t)
    small = SemiSupervisedVAE(4, alpha=20.0, hidden=(64,))
    both = Learner(small, steps=setting.both, random_state=seed, **way())
    found[BOTH] = 100 * fit(both, *mixed(Z, y, rows)).score(ZT, t)
    own = Learner(VAE(8, hidden=(128,), law="bernoulli", conditional=True), steps=500, random_state=seed, **way())
    found[OF_FEW] = helped(fit(own, X[rows], y[rows]))
    if setting.m2:
        model = SemiSupervisedVAE(8, alpha=50.0, hidden=(128,), law="bernoulli")
        two = fit(Learner(model, steps=setting.m2, random_state=seed, **way()), *mixed(X, y, rows))
        found |= {M2: 100 * two.score(T, t), OF_ALL: helped(two)}
    return found
