"""Carried buffers: chains and slow copies go on from step to step, and nobody averages them."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Learner, Optimizer, weave
from weft.core.random import normal
from weft.engine import VectorizationWarning
from weft.objectives import Classification, Heads, Regression
from weft.sources import Arrays
from weft.strategies import EMA, ERM, SAM, ANDMask, VREx
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4))
Y = X @ np.array([2.0, -1.0, 0.5, -3.0])
SITE = np.repeat([0, 1, 2], [30, 20, 10])
COMMON = {"epochs": 3, "batch_size": 20, "random_state": 0, "dtype": "float64", "optimizer": Optimizer("sgd", lr=0.1)}


class Carrying(Regression):
    """Chains that are drawn, a copy that follows the net slowly, a count, and a statistic of the rows."""

    carried = ("chains", "slow", "turns")

    def build(self, spec):
        super().build(spec)
        self.register_buffer("chains", torch.zeros(3, 4))
        self.register_buffer("slow", torch.ones(1, 4))
        self.register_buffer("turns", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, batch, player=""):
        output = super().forward(batch)
        if self.training:
            weight = self.net.weight.detach()
            noise = normal(self.chains.shape, place="chains", shared=True, dtype=self.chains.dtype)
            self.chains = 0.9 * self.chains + 0.1 * weight + 0.3 * noise
            self.slow = 0.9 * self.slow + 0.1 * weight
            self.turns = self.turns + 1
            self.mean = 0.9 * self.mean + 0.1 * batch["x"].mean(0)
        return replace(output, losses=output.losses + (self.chains @ self.net.weight.T).mean().square())


class Queue(Carrying):
    """What is carried are rows."""

    def forward(self, batch, player=""):
        output = super().forward(batch)
        self.chains = self.chains + batch["x"].mean(0)
        return output


def net():
    return nn.Linear(4, 1)


def fit(objective=None, **settings):
    return Learner(objective or Carrying(net), **{**COMMON, **settings}).fit(X, Y, environment=SITE)


def tensors(learner, k=0):
    state = learner.training_.every[k].state
    return {**state.params, **state.buffers}


def close(a, b, names=("chains", "slow", "turns", "net.weight")):
    for name in names:
        torch.testing.assert_close(a[name], b[name], rtol=1e-9, atol=1e-9, msg=name)


STRATEGIES = [ERM(), EMA(decay=0.9), SAM(radius=0.05), ANDMask(threshold=0.3), VREx(strength=1.0)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_they_go_on_once_a_step_whoever_looks_at_the_groups(strategy):
    learner = fit(strategy=strategy)
    state = learner.training_.alone.state
    assert int(state.buffers["turns"]) == state.step
    slow, runs = torch.ones(1, 4, dtype=torch.float64), [fit(strategy=strategy, epochs=None, steps=i) for i in range(4)]
    for before, after in pairwise(map(tensors, runs)):
        slow = 0.9 * slow + 0.1 * before["net.weight"]
        torch.testing.assert_close(after["slow"], slow)


def test_chunked_is_unchunked():
    strategy = ANDMask(threshold=0.3)
    close(tensors(fit(strategy=strategy, memory=1)), tensors(fit(strategy=strategy)))
    close(tensors(fit(accumulate=4, batch_size=15)), tensors(fit(batch_size=60)))
    assert not torch.equal(tensors(fit())["chains"], torch.zeros(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("strategy", [ERM(), ANDMask(threshold=0.3), EMA(decay=0.9)], ids=repr)
def test_replica_k_is_the_single_run_k(strategy):
    many = fit(strategy=strategy, replicas=3)
    for k in range(3):
        close(tensors(many, k), tensors(fit(strategy=strategy, random_state=k)))
    assert not torch.equal(tensors(many, 0)["chains"], tensors(many, 1)["chains"])


def test_what_nobody_changes_stays_to_the_last_bit():
    class Still(Carrying):
        carried = ("chains", "slow", "turns", "still")

        def build(self, spec):
            super().build(spec)
            self.register_buffer("still", torch.linspace(0.1, 1e9, 50))

    still = torch.linspace(0.1, 1e9, 50, dtype=torch.float64)
    for replicas in (None, 2):
        learner = fit(Still(net), strategy=ANDMask(threshold=0.3), replicas=replicas)
        assert torch.equal(tensors(learner)["still"], still)


def test_statistics_are_averaged_over_groups_as_ever():
    learner = Learner(Carrying(net), strategy=ANDMask(threshold=0.3), **{**COMMON, "batch_size": None, "epochs": 1})
    learner.fit(X, Y, environment=np.arange(60) % 3)
    torch.testing.assert_close(tensors(learner)["mean"], torch.as_tensor(0.1 * X.mean(0)), rtol=1e-9, atol=1e-9)


def test_taking_statistics_anew_does_not_move_them():
    class Normed(Carrying):
        def forward(self, batch, player=""):
            return Carrying.forward(self, {**batch, "x": self.norm(batch["x"])})

        def build(self, spec):
            super().build(spec)
            self.norm = nn.BatchNorm1d(4)

    learner = fit(Normed(net), strategy=EMA(decay=0.9))
    state = learner.training_.alone.state
    assert not torch.equal(state.statistics["0"]["norm.running_mean"], state.buffers["norm.running_mean"])
    for name in ("chains", "slow", "turns"):
        assert torch.equal(state.statistics["0"][name], state.buffers[name])


def test_they_resume_bit_for_bit(tmp_path):
    def stop(record):
        if record["epoch"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(epochs=4, folder=tmp_path / "run", callbacks=[stop])
    again = weft.load(tmp_path / "run", objective=Carrying(net)).resume(X, Y, environment=SITE)
    whole = tensors(fit(epochs=4))
    assert all(torch.equal(value, whole[name]) for name, value in tensors(again).items())


@pytest.mark.parametrize("replicas", [None, 2])
def test_where_groups_would_change_them_apart_it_is_refused(replicas):
    assert fit(Queue(net), replicas=replicas).n_steps_ == 9
    for strategy in (ANDMask(threshold=0.3), weave(VREx(), SAM())):
        with pytest.raises(ValueError, match=r"expected a strategy that sees rows.*carries 'chains'.*never averaged"):
            fit(Queue(net), strategy=strategy, replicas=replicas)
    with pytest.raises(ValueError, match=r"expected accumulate=1 beside Queue, which carries 'chains'"):
        fit(Queue(net), accumulate=2, replicas=replicas)


def test_a_part_carries_its_own():
    heads = Heads({"mass": Carrying(net), "kind": Classification(partial(nn.Linear, 4, 2))})
    x = torch.as_tensor(X)
    source = Arrays(x=x, mass_y=torch.as_tensor(Y), kind_y=(x[:, 0] > 0).long(), batch_size=20, classes={"kind_y": 2})
    learner = Learner(heads, **{**COMMON, "accumulate": 2}).fit(source)
    assert learner.objective_.carried == ("heads.mass.chains", "heads.mass.slow", "heads.mass.turns")
    assert int(tensors(learner)["heads.mass.turns"]) == learner.n_steps_


SOURCE = Arrays(torch.as_tensor(X), torch.as_tensor(Y), batch_size=12)


def test_the_contract_holds():
    check_objective(Carrying(net), SOURCE)


def test_a_name_that_no_buffer_has():
    class Wrong(Carrying):
        carried = ("chain",)

    with pytest.raises(ValueError, match=r"a pattern in carried that fits buffers of Wrong.*did you mean 'chains'"):
        fit(Wrong(net))


@pytest.mark.filterwarnings(f"ignore::{VectorizationWarning.__module__}.{VectorizationWarning.__name__}")
def test_the_contract_is_broken_by_hidden_state():
    class Hidden(Carrying):
        calls = 0

        def forward(self, batch, player=""):
            output = super().forward(batch)
            Hidden.calls += 1
            self.slow = self.slow + Hidden.calls
            return output

    class Growing(Carrying):
        def forward(self, batch, player=""):
            output = super().forward(batch)
            self.chains = self.chains[:1]
            return output

    with pytest.raises(ContractError, match="expected the carried 'slow' to go on alike"):
        check_objective(Hidden(net), SOURCE)
    with pytest.raises(ContractError, match="expected the carried 'chains' to keep its shape"):
        check_objective(Growing(net), SOURCE)
