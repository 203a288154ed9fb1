"""Trained parameters of the whole catalogue, in float64: what a change that moves and names must not change by a bit.

    python tests/guard/dump.py OUT.safetensors [--device cuda] [--eager]
    python tests/guard/compare.py BEFORE.safetensors AFTER.safetensors

It speaks to weft by its public names only, and reads what was learned from a run's own files, so that one and the
same file runs with the code before a change and after it. `make guard BASE=REVISION` does both and compares.
`--eager` keeps a step on CUDA from being recorded as a graph.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import weft
from weft import Learner, Optimizer, strategies, weave
from weft.attacks import PGD
from weft.data import CartPole, FiniteMDP, ring, sinusoids
from weft.nets import MLP
from weft.objectives import DANN, GAN, REINFORCE, Classification, LeastSquares, Regression
from weft.sources import Arrays, Episodes, Rollouts
from weft.strategies import (
    AGEM,
    CORAL,
    ERM,
    EWC,
    IRM,
    L1,
    L2,
    MAML,
    MAS,
    MMD,
    AdversarialTraining,
    ANDMask,
    Fishr,
    GenerativeReplay,
    GeometricMean,
    GroupDRO,
    L2Anchor,
    Laplace,
    LwF,
    PCGrad,
    Replay,
    SANDMask,
    SynapticIntelligence,
    TemporalANDMask,
    VREx,
)

rng = np.random.default_rng(0)
ROWS = 120
X = rng.normal(size=(ROWS, 5))
SITE = np.repeat([0, 1, 2], [50, 40, 30])
SCORE = X @ np.array([2.0, -1.0, 1.0, 0.0, 0.0]) + 0.2 * rng.normal(size=ROWS)
LABEL = (SCORE > 0).astype(int)
TASK = np.where(np.arange(ROWS) % 2, "odd", "even")
ADAM = Optimizer("adam", lr=0.01)
# Since an attack keeps to the range of the rows, unless told not to, as it did not before.
ATTACK = PGD(eps=0.05, **({"bounds": None} if "bounds" in PGD().get_params() else {}))


def _generative():
    try:
        return GenerativeReplay(generator=GAN(latent=2, hidden=(16,)), steps=30, size=40, rows=10)
    except TypeError:  # since the strategy is given a learner, and trains none of its own
        return GenerativeReplay(generator=Learner(GAN(latent=2, hidden=(16,)), steps=30), size=40, rows=10)


STRATEGIES = {
    "erm": ERM(),
    "and-mask": ANDMask(threshold=0.4),
    "and-mask, every example": ANDMask(threshold=0.05, each="example"),
    "ewc": EWC(strength=1.0),
    "laplace, kronecker": Laplace(strength=1.0, curvature="kronecker"),
    "laplace, low rank": Laplace(strength=1.0, curvature="low_rank"),
    "laplace, full": Laplace(strength=1.0, curvature="full"),
    "l2-anchor": L2Anchor(strength=0.1),
    "synaptic-intelligence": SynapticIntelligence(strength=0.1),
    "mas": MAS(strength=0.1),
    "lwf": LwF(strength=1.0),
    "replay": Replay(size=40, rows=10),
    "generative-replay": _generative(),
    "agem": AGEM(size=40, rows=10),
    "l1": L1(strength=1e-3),
    "l2": L2(strength=1e-3),
    "coral": CORAL(strength=0.5),
    "mmd": MMD(strength=0.5),
    "fishr": Fishr(strength=10.0, anneal=2),
    "adversarial-training": AdversarialTraining(ATTACK),
    "geometric-mean": GeometricMean(threshold=0.4, fallback=True),
    "irm": IRM(strength=1.0),
    "vrex": VREx(strength=1.0),
    "group-dro": GroupDRO(rate=0.1),
    "temporal-and-mask": TemporalANDMask(threshold=0.3),
    "pc-grad": PCGrad(),
    "sand-mask": SANDMask(threshold=0.3),
    "irm, anneal 5": IRM(strength=10.0, anneal=5),
    "vrex, anneal 5": VREx(strength=10.0, anneal=5),
    "fishr, anneal 5": Fishr(strength=10.0, anneal=5),
    "two penalties": weave(EWC(strength=1.0), L2Anchor(strength=0.1)),
    "penalties l1 and l2": weave(L1(strength=1e-3), L2(strength=1e-2)),
    "ewc, agem": weave(EWC(strength=1.0), AGEM(size=40, rows=10)),
    "agem, ewc": weave(AGEM(size=40, rows=10), EWC(strength=1.0)),
    "ewc, synaptic": weave(EWC(strength=1.0), SynapticIntelligence(strength=0.1)),
    "irm, and-mask": weave(IRM(strength=1.0), ANDMask(threshold=0.4)),
    "adversarial, ewc, and-mask": weave(AdversarialTraining(ATTACK), EWC(), ANDMask(threshold=0.5)),
    "mmd, l2": weave(MMD(strength=0.5), L2(strength=1e-2)),
}
PLAIN = Optimizer("sgd", lr=0.1)
if hasattr(strategies, "SAM"):  # younger than the guard
    STRATEGIES |= {
        "sam": strategies.SAM(radius=0.1),
        "ema": strategies.EMA(decay=0.7),
        "swa": strategies.SWA(start=5),
        "sgld": strategies.SGLD(temperature=0.1, draws=2, start=5),
        "lbfgs": strategies.LBFGS(history=3, trials=2),
        "natural-gradient": strategies.NaturalGradient(damping=0.1),
        "trust-region": strategies.TrustRegion(radius=0.01),
        "and-mask, sam, ema": weave(ANDMask(threshold=0.4), strategies.SAM(), strategies.EMA()),
    }


def noisy(inputs, outputs):
    """Dropout and batch statistics."""
    return MLP(inputs, outputs, hidden=(16,), dropout=0.1, batch_norm=True)


def corridor():
    """Four places in a row; going right pays at the last one."""
    left, right = torch.eye(4).roll(-1, 1).tril(), torch.eye(4).roll(1, 1).triu()
    left[0, 0], right[3, 3] = 1.0, 1.0
    reward = torch.zeros(4, 2)
    reward[3, 1] = 1.0
    return FiniteMDP(torch.stack([left, right], 1), reward, horizon=8)


class Cases:
    """Every case trains something and hands the learner over."""

    def __init__(self, device):
        self.common = {"random_state": 3, "dtype": "float64", "device": device, "batch_size": 20}

    def learner(self, objective, **settings):
        return Learner(objective, **{**self.common, "optimizer": ADAM, **settings})

    def by_strategy(self):
        """Two tasks, with environments, each strategy; single runs, and two replicas of each."""
        for name, strategy in STRATEGIES.items():
            for replicas in (None, 2):
                net = None if "example" in name or name.startswith("laplace") or name == "fishr" else noisy
                if name.startswith("fishr"):
                    net = None
                own = {"optimizer": PLAIN} if getattr(strategy, "own_step", False) else {}
                learner = self.learner(
                    Classification(net, hidden=(12,)), strategy=strategy, epochs=3, replicas=replicas, **own
                )
                yield f"{name}, {replicas or 1}", learner.fit(X, LABEL, environment=SITE, task=TASK)

    def by_objective(self):
        """Each objective of the catalogue, plain and under a combiner."""
        yield "regression", self.learner(Regression(noisy), epochs=3, clip=0.5).fit(X, SCORE)
        yield "least squares", self.learner(LeastSquares()).fit(X, SCORE)
        for name, strategy in (("erm", ERM()), ("and-mask", ANDMask(threshold=0.4)), ("dro", GroupDRO(rate=0.1))):
            dann = DANN(Classification(hidden=(12,)), strength=0.1, hidden=(8,))
            yield f"dann, {name}", self.learner(dann, epochs=3, strategy=strategy).fit(X, LABEL, environment=SITE)
        for replicas in (None, 2):
            game = self.learner(GAN(latent=2, hidden=(16,), critic_steps=3), steps=20, replicas=replicas)
            yield f"game, unequal cadence, {replicas or 1}", game.fit(ring(ROWS, sigma=0.05))
            policy = self.learner(REINFORCE(hidden=(16,)), steps=4, replicas=replicas)
            yield f"rollouts, {replicas or 1}", policy.fit(Rollouts(CartPole(), envs=8, horizon=30))
            policy = self.learner(REINFORCE(hidden=(16,)), steps=4, replicas=replicas, strategy=ANDMask(threshold=0.4))
            yield f"rollouts of two worlds, {replicas or 1}", policy.fit(Rollouts([corridor(), corridor()], envs=8))
            few = self.learner(Regression(hidden=(16,)), steps=6, strategy=MAML(inner_lr=0.05), replicas=replicas)
            few.fit(Episodes(sinusoids, tasks=5, shots=4))
            yield f"maml, {replicas or 1}", few
            yield f"maml, adapted, {replicas or 1}", few.adapt([[0.0], [1.0]], [[0.0], [0.8]])
            both = weave(MAML(inner_lr=0.05), ANDMask(threshold=0.4))
            few = self.learner(Regression(hidden=(16,)), steps=6, strategy=both, replicas=replicas)
            yield f"maml, and-mask, {replicas or 1}", few.fit(Episodes(sinusoids, tasks=5, shots=4))

    def by_training(self):
        """What goes on around a step."""
        net = Classification(noisy, hidden=(12,))
        rates = {"optimizer__lr": [0.03, 1e-6], "random_state": [0, 1]}
        early = self.learner(net, epochs=8, patience=2, validation=0.25, replicas=rates, strategy=EWC(strength=1.0))
        early.fit(X, LABEL, task=TASK)
        if "no progress" not in str(early.stop_reason_) or "completed" not in str(early.stop_reason_):
            raise SystemExit(f"expected one of two replicas to stop early, got {early.stop_reason_}")
        yield "two tasks, two replicas, one stops early", early
        seeds = self.learner(net, epochs=8, patience=1, validation=0.25, replicas=3)
        yield "seeds with patience", seeds.fit(X, LABEL)
        sweep = {"strategy__threshold": [0.2, 0.6], "optimizer__lr": [0.01, 0.02]}
        swept = self.learner(net, epochs=3, strategy=ANDMask(), replicas=sweep, schedule="cosine")
        yield "sweep of thresholds", swept.fit(X, LABEL, environment=SITE)
        swept = self.learner(
            net, epochs=3, replicas={"strategy__ewc__strength": [0.1, 1.0]}, strategy=weave(EWC(), ANDMask())
        )
        yield "sweep within a weave", swept.fit(X, LABEL, environment=SITE, task=TASK)
        warm = self.learner(net, epochs=3, warm_start=True, strategy=EWC(strength=1.0))
        warm.fit(X, LABEL, environment=SITE)
        warm.set_params(strategy=ANDMask(threshold=0.4))
        yield "warm start with another strategy", warm.fit(X, LABEL, environment=SITE)
        warm.set_params(strategy=TemporalANDMask(threshold=0.3))
        yield "warm start with one that has a state", warm.fit(X, LABEL, environment=SITE)
        part = self.learner(net)
        for rows in (slice(0, 60), slice(60, None)):
            part.partial_fit(X[rows], LABEL[rows], classes=[0, 1])
        yield "two passes of partial_fit", part
        yield "accumulated", self.learner(net, epochs=3, accumulate=3, batch_size=7, clip=0.1).fit(X, LABEL)
        for replicas in (None, 2):
            some = self.learner(net, epochs=4, clip=1.0, replicas=replicas)  # at some steps, not at others
            yield f"clipped now and then, {replicas or 1}", some.fit(X, LABEL)
        weights = np.linspace(0.0, 2.0, ROWS)
        yield (
            "weighted",
            self.learner(net, epochs=3, strategy=IRM(strength=1.0), weighting="group").fit(
                X, LABEL, environment=SITE, sample_weight=weights
            ),
        )
        for memory in (2**30, 20_000, 1_000):
            chunked = self.learner(
                Classification(hidden=(12,)), epochs=2, strategy=ANDMask(threshold=0.4), memory=memory
            )
            yield f"memory {memory}", chunked.fit(X, LABEL, environment=SITE)
            chunked = self.learner(net, epochs=2, strategy=IRM(strength=1.0), memory=memory)
            yield f"memory {memory}, whole groups", chunked.fit(X, LABEL, environment=SITE)
        scheduled = self.learner(net, epochs=3, schedule=torch.optim.lr_scheduler.ConstantLR)
        yield "torch scheduler", scheduled.fit(X, LABEL)
        frozen = Optimizer("sgd", lr=0.1, momentum=0.9, freeze="*.bias")
        yield "frozen parts", self.learner(Classification(hidden=(12,)), epochs=2, optimizer=frozen).fit(X, LABEL)
        source = Arrays(torch.as_tensor(X), torch.as_tensor(LABEL), environment=SITE, grouped=True, classes=2)
        yield "a source", self.learner(net, steps=5, strategy=VREx(strength=1.0), replicas=2).fit(source)
        odd = self.learner(Classification(hidden=(12,)), epochs=2, replicas={"clip": [0.1, 1.0]})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield "replicas one after another", odd.fit(X, LABEL)
        for k, steps in enumerate((7, 11, 16)):
            with tempfile.TemporaryDirectory() as folder:
                yield f"resumed, {k}", self._resumed(Path(folder) / "run", net, steps)

    def _resumed(self, folder, net, steps):
        """Interrupted (as by Ctrl-C, between steps) in the first or the second task, and gone on with."""

        def stop(record, seen=[]):  # noqa: B006 (of one call)
            seen.append(record)
            if len(seen) * 3 == steps // 3 * 3:
                raise KeyboardInterrupt

        learner = self.learner(net, epochs=3, strategy=EWC(strength=1.0), replicas=2, folder=folder, callbacks=[stop])
        try:
            learner.fit(X, LABEL, task=TASK)
            raise SystemExit("expected an interruption, got none")
        except KeyboardInterrupt:
            pass
        given = weft.load(folder, net=noisy, module=noisy)
        return given.resume(X, LABEL, task=TASK)


def _told(learner):
    """What a run's folder holds, as tensors by name and as text."""
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "run")
        (path,) = (Path(folder) / "run").glob("state-*.safetensors")
        state = json.loads((Path(folder) / "run" / "state.json").read_text())
        tensors = load_file(path)
    named = {}

    def walk(value, name):
        if isinstance(value, dict) and set(value) == {"$tensor"}:
            tensor = tensors[value["$tensor"]]
            named[name] = tensor.clone()
        elif isinstance(value, dict):
            for key, part in value.items():
                walk(part, f"{name}/{key}")
        elif isinstance(value, list):
            for i, part in enumerate(value):
                walk(part, f"{name}/{i}")

    walk({k: v for k, v in state.items() if k != "seconds"}, "")
    # A clock; the names of environments and what a stopped replica has gathered, which older folders did not hold.
    aside = ("/seconds", "/environments_", "/gathered")
    kept = {n.replace("$array", "array"): t for n, t in named.items() if not any(part in n for part in aside)}
    return kept, str(learner.stop_reason_)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eager", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(asked.device != "cpu", warn_only=True)
    if asked.eager:
        from weft.engine import capture

        capture._WARMUP = 10**9
    cases = Cases(asked.device)
    tensors, texts = {}, {}
    for family in (cases.by_strategy, cases.by_objective, cases.by_training):
        for name, learner in family():
            found, texts[name] = _told(learner)
            tensors.update({f"{name}:{key}": tensor for key, tensor in found.items()})
    save_file(tensors, asked.out, metadata={"stopped": json.dumps(texts)})
    print(f"{len(texts)} trainings, {len(tensors)} tensors in {asked.out}")


if __name__ == "__main__":
    main()
