"""On CUDA: recorded steps are the eager ones, and both are the CPU's."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer, weave
from weft.core import random
from weft.data import CartPole, ring
from weft.engine.capture import Captured
from weft.engine.engine import Engine
from weft.nets import MLP
from weft.objectives import A2C, DANN, GAN, PPO, Classification
from weft.sources import Segments
from weft.strategies import (
    AGEM,
    CORAL,
    EMA,
    EWC,
    IRM,
    LBFGS,
    MAS,
    MMD,
    SAM,
    SGLD,
    SWA,
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

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; run on one by hand"),
    pytest.mark.filterwarnings("ignore:expected (tasks for|rows held out|at least|the same rows)"),
]

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
PLAIN = Optimizer("sgd", lr=0.1)
SITE = np.repeat([0, 1, 2], [40, 30, 20])
WAITING = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=0.1)


def net(inputs, outputs):
    return MLP(inputs, outputs, hidden=(16,), dropout=0.3, batch_norm=True)


def invariant(strategy):
    def fit(device):
        settings = {"epochs": 8, "batch_size": 16, "dtype": "float64", "random_state": 0, "device": device}
        return Classifier(hidden=(16,), strategy=strategy, **settings).fit(X, Y, environment=SITE)

    return fit


def in_sequence(strategy, **settings):
    def fit(device):
        clf = Classifier(hidden=(16,), strategy=strategy, epochs=6, batch_size=16, dtype="float64", random_state=0)
        clf.set_params(device=device, **settings)
        for task in range(3):
            clf.partial_fit(X[task::3], Y[task::3], classes=(0, 1), task=task)
        return clf

    return fit


def classifier(**settings):
    return Classifier(net, epochs=8, batch_size=16, dtype="float64", random_state=0, validation=0.2, **settings)


def player(objective, device, passes=3, **settings):
    source = Segments(CartPole(), envs=4, length=16, passes=passes, batch_size=None)
    settings = {
        "every": 5 * passes,
        **settings,
        "optimizer": Optimizer("adam", lr=1e-3),
        "dtype": "float64",
        "random_state": 0,
        "device": device,
    }
    return Learner(objective, steps=15 * passes, **settings).fit(source)


CASES = {
    "plain": lambda d: classifier(schedule="cosine", clip=0.5, device=d).fit(X, Y),
    "mask": lambda d: classifier(strategy=ANDMask(threshold=0.4), device=d).fit(X, Y, environment=SITE),
    "replicas": lambda d: classifier(replicas=3, patience=2, device=d).fit(X, Y),
    "sweep": lambda d: classifier(
        strategy=weave(EWC(strength=1.0), ANDMask()),
        replicas={"optimizer__lr": [1e-3, 1e-2, 1e30], "strategy__andmask__threshold": [0.0, 0.5, 1.0]},
        optimizer=Optimizer("sgd"),
        device=d,
    ).fit(X, Y, environment=SITE, task=np.arange(90) % 2),
    "game": lambda d: Learner(
        GAN(latent=2, hidden=(16,), critic_steps=2), steps=40, batch_size=16, dtype="float64", random_state=0, device=d
    ).fit(ring(200)),
    "domains": lambda d: Learner(
        DANN(Classification(hidden=(16,))), steps=40, batch_size=32, dtype="float64", random_state=0, device=d
    ).fit(X, Y, environment=SITE),
    **{
        repr(strategy): invariant(strategy)
        for strategy in (
            CORAL(),
            Fishr(strength=1.0, anneal=3),
            GeometricMean(threshold=0.4),
            GroupDRO(),
            IRM(anneal=5),
            MMD(),
            PCGrad(),
            SANDMask(),
            TemporalANDMask(),
            VREx(anneal=5),
        )
    },
    **{
        repr(strategy): in_sequence(strategy)
        for strategy in (
            AGEM(),
            EWC(strength=1.0),
            GenerativeReplay(generator=Learner(GAN(hidden=(8,)), steps=20), size=30, rows=8),
            L2Anchor(),
            *(Laplace(strength=1.0, curvature=c) for c in ("diagonal", "kronecker", "low_rank", "full")),
            LwF(),
            MAS(),
            Replay(),
            SynapticIntelligence(),
        )
    },
    "posteriors by replicas": in_sequence(EWC(), replicas={"strategy__strength": [0.1, 1.0, 10.0]}),
    "replay by replicas": in_sequence(Replay(), replicas=2),
    "clocks that have parted": in_sequence(
        EMA(decay=0.8), replicas=3, patience=1, epochs=20, validation=0.3, optimizer=Optimizer("sgd", lr=0.5)
    ),
    "averages": lambda d: classifier(strategy=weave(EMA(decay=0.8), SWA(start=5)), patience=2, device=d).fit(X, Y),
    "a plateau": lambda d: classifier(schedule=WAITING, clip=0.5, device=d).fit(X, Y),
    "a plateau, replicas": lambda d: classifier(schedule=WAITING, replicas=3, device=d).fit(X, Y),
    "a plateau, rates": lambda d: classifier(
        schedule=WAITING, replicas={"optimizer__lr": [1e-2, 1e-3]}, optimizer=Optimizer("adam"), device=d
    ).fit(X, Y),
    "sharpness": lambda d: classifier(strategy=SAM(), schedule="cosine", replicas=2, device=d).fit(X, Y),
    "langevin": lambda d: classifier(
        strategy=SGLD(temperature=0.1, draws=3, start=5), optimizer=PLAIN, schedule="cosine", device=d
    ).fit(X, Y),
    "langevin by replicas": lambda d: classifier(
        strategy=SGLD(), optimizer=PLAIN, replicas={"optimizer__lr": [0.1, 0.2]}, device=d
    ).fit(X, Y),
    "quasi-newton": lambda d: classifier(strategy=LBFGS(history=3), optimizer=PLAIN, schedule="linear", device=d).fit(
        X, Y
    ),
    "rounds": lambda d: player(PPO(hidden=(8,)), d, replicas=2),
    "rounds of one run": lambda d: player(PPO(hidden=(8,), near="adaptive"), d, schedule="linear", clip=0.5),
    "steps of what adapts": lambda d: player(PPO(hidden=(8,), near="adaptive"), d, every=1),
    "rounds with a memory": lambda d: player(A2C(hidden=(8,), memory="gru"), d, passes=1),
    "examples, coupled": lambda d: classifier(strategy=ANDMask(threshold=0.1, each="example"), device=d).fit(X, Y),
}


def params(learner):
    """Those trained, and those that answer with their buffers."""
    found = {f"{i}.{n}": p.cpu() for i, (_, run) in enumerate(learner.training_.runs) for n, p in run.params.items()}
    for k, runs in enumerate(learner.training_.answering):
        for i, (_, run) in enumerate(runs):
            found.update({f"answer {k}.{i}.{n}": t.cpu() for n, t in {**run.params, **run.buffers}.items()})
    return found


@pytest.mark.parametrize("name", CASES)
def test_recorded_is_eager_is_cpu(name, monkeypatch):
    replayed = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(1), replay(graph))[1])
    recorded = CASES[name]("cuda")
    assert replayed, "the step was recorded"
    init = Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, *a, **k: init(self, *a, **{**k, "capture": False}))
    count = len(replayed)
    eager = CASES[name]("cuda")
    assert len(replayed) == count
    cpu = CASES[name]("cpu")
    tolerance = {"rtol": 1e-6, "atol": 1e-8}
    for n, p in params(eager).items():
        torch.testing.assert_close(params(recorded)[n], p, **tolerance, msg=lambda m, n=n: f"recorded {n}: {m}")
        if name == "sweep":
            if n.startswith("answer 2"):
                continue  # what has diverged has no digits to compare
            cpu_p = params(cpu)[n]
            p, cpu_p = (p, cpu_p) if n.startswith("answer") else (p[:2], cpu_p[:2])
        else:
            cpu_p = params(cpu)[n]
        # another order of summation, enlarged by the optimizer over the steps
        torch.testing.assert_close(cpu_p, p, rtol=1e-3, atol=1e-4, msg=lambda m, n=n: f"cpu {n}: {m}")
    if name == "sweep":
        assert "diverged" in recorded.stop_reason_[2]
        assert "completed" in recorded.stop_reason_[0]


def test_a_round_is_one_graph_and_says_what_was_strange_in_it(monkeypatch):
    rounds, round_of = [], Captured.round

    def counted(self, source, room):
        made = round_of(self, source, room)
        rounds.append(0 if made is None else len(made[1]))
        return made

    monkeypatch.setattr(Captured, "round", counted)
    for passes, name in ((3, "rounds"), (1, "rounds with a memory")):
        rounds.clear()
        learner = CASES[name]("cuda")
        assert rounds.count(passes) == 12, "all but the first three"
        assert len(learner.history_) == 3
    steps = learner.history_[-1]["env_steps"]
    assert steps == 15 * 4 * 16

    class Torn(CartPole):
        def step(self, position, action, keys):
            position, observation, reward, ended = super().step(position, action, keys)
            return position, torch.where(observation > torn_above, torch.nan, observation), reward, ended

    torn_above = torch.full((), torch.inf, device="cuda")
    learner = Learner(PPO(hidden=(8,)), steps=20, every=5, random_state=0, device="cuda")
    learner.set_params(callbacks=[lambda record: torn_above.fill_(-100.0)])
    with pytest.raises(ValueError, match=r"expected a finite observation, got nan.*in Torn, episode 0, about step"):
        learner.fit(Segments(Torn(), envs=4, length=16))


def test_what_cannot_be_recorded_is_played_by_the_host():
    class Asking(CartPole):
        def step(self, position, action, keys):
            assert bool((action >= 0).all())  # asks the host
            return super().step(position, action, keys)

    source = Segments(Asking(), envs=4, length=16, passes=2)
    settings = {"steps": 20, "every": 20, "random_state": 0, "dtype": "float64"}
    with pytest.warns(RuntimeWarning, match="the round of play and updates is not recorded as a CUDA graph"):
        asking = Learner(PPO(hidden=(8,)), device="cuda", **settings).fit(source)
    plain = Learner(PPO(hidden=(8,)), device="cpu", **settings).fit(source)
    for n, p in params(plain).items():
        torch.testing.assert_close(params(asking)[n], p, rtol=1e-3, atol=1e-4)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x[..., None])[0][:, -1])


@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_recurrent_nets_are_the_cpu_s():
    X = np.random.default_rng(0).normal(size=(60, 4))
    settings = {"replicas": 2, "epochs": 4, "batch_size": 16, "random_state": 0, "dtype": "float64"}
    one, other = (
        Classifier(Recurrent(), device=device, **settings).fit(X, X[:, 0] > 0).predict_proba(X)
        for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("shape", [(256, 784), (7, 5), (3, 1), (4,), (0, 3)])
def test_one_kernel_draws_what_the_plain_operations_draw(shape, monkeypatch):
    def draws(device, fused):
        monkeypatch.setattr(random, "_triton", lambda: fused)
        keys = random.fold(random.key_of(0, device=device), torch.arange(shape[0], device=device))
        each = torch.vmap(lambda key: random.unit(key, shape[1:]))(keys) if shape[0] else keys
        return [t.cpu() for t in (random.unit(keys, shape[1:]), random.gauss(keys, shape[1:]), each)]

    plain, kernel, host = draws("cuda", False), draws("cuda", True), draws("cpu", True)
    for one, other in zip(plain, kernel, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain[0], kernel[0])
    assert torch.equal(host[0], kernel[0])
    assert torch.equal(plain[2], kernel[2])
    torch.testing.assert_close(host[1], kernel[1], rtol=1e-5, atol=1e-6)


def test_convolutions_are_laid_out_for_the_device_and_compute_the_same():
    images, labels = rng.normal(size=(64, 3, 8, 8)), np.arange(64) % 2

    def fit(device, **settings):
        conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten())
        whole = nn.Sequential(conv, nn.Linear(144, 2))
        settings = {"epochs": 6, "batch_size": 16, "dtype": "float64", "random_state": 0, "device": device, **settings}
        return Classifier(whole, **settings).fit(images, labels)

    there, here = fit("cuda"), fit("cpu")
    np.testing.assert_allclose(there.predict_proba(images), here.predict_proba(images), atol=1e-9)
    weight = there.training_.runs[0].state.params["net.0.0.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    low = fit("cuda", dtype="float32", precision="bf16")
    plain = fit("cuda", dtype="float32")
    assert np.abs(low.predict_proba(images) - plain.predict_proba(images)).max() < 0.1
    assert not np.array_equal(low.predict_proba(images), plain.predict_proba(images))
    both = fit("cuda", dtype="float32", precision="bf16", replicas=2)
    assert np.abs(both.replica(0).predict_proba(images) - low.predict_proba(images)).max() < 0.1


@pytest.mark.parametrize("optimizer", ["adam", Optimizer("sgd", lr=0.05, momentum=0.9)], ids=["adam", "sgd"])
def test_a_fused_step_takes_the_schedule_and_stops_where_a_run_diverges(optimizer):
    """Recorded in float32 the optimizer's own kernel is gated; the same numbers as by the eager engine."""
    settings = {"epochs": 8, "batch_size": 16, "random_state": 0, "device": "cuda", "schedule": "cosine"}

    def fit(capture, **more):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("weft.engine.capture._GRAPHS", 8 if capture else 0)
            return Classifier(hidden=(16,), optimizer=optimizer, **{**settings, **more}).fit(X, Y)

    np.testing.assert_allclose(fit(True).predict_proba(X), fit(False).predict_proba(X), atol=2e-5)
    rows = X.copy()
    rows[40:] *= 1e30
    with pytest.raises(FloatingPointError, match="diverged at step"):
        Classifier(hidden=(16,), optimizer=Optimizer("sgd", lr=1e20), **settings).fit(rows, Y)


def test_replicas_of_convolutions_are_the_single_runs():
    images, labels = rng.normal(size=(64, 3, 8, 8)), np.arange(64) % 2

    def fit(**settings):
        conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        whole = nn.Sequential(conv, nn.Linear(288, 2))
        settings = {"epochs": 6, "batch_size": 16, "dtype": "float64", "device": "cuda", **settings}
        return Classifier(whole, **settings).fit(images, labels)

    three = fit(replicas=3, random_state=0)
    for k in range(3):
        one = fit(random_state=k)
        np.testing.assert_allclose(three.replica(k).predict_proba(images), one.predict_proba(images), atol=1e-9)
