"""Learning rates: told in the records, reduced on a plateau for each replica by itself, and resumed."""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import weft
import weft.learner.folder
from weft import Classifier, Learner, Optimizer
from weft.data import ring
from weft.engine import VectorizationWarning
from weft.objectives import GAN, Regression

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=60)
HELD = (X[:20], Y[:20])
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu", "epochs": 12, "batch_size": 20}
HASTY = functools.partial(ReduceLROnPlateau, patience=0, factor=0.3, threshold=0.05)


def line(schedule, optimizer=None, **settings):
    optimizer = optimizer or Optimizer("sgd", lr=0.2, momentum=0.5)
    return Learner(Regression("linear"), schedule=schedule, optimizer=optimizer, **{**COMMON, **settings})


def test_the_rate_of_the_last_step_is_told():
    learner = line("linear", every=1, epochs=2).fit(X, Y)
    np.testing.assert_allclose(learner.history_["lr"], 0.2 * (1 - np.arange(6) / 6))
    stepped = line(functools.partial(StepLR, step_size=2, gamma=0.1), every=1, epochs=2).fit(X, Y)
    np.testing.assert_allclose(stepped.history_["lr"], 0.2 * 0.1 ** np.array([0, 0, 1, 1, 2, 2]))


def test_players_have_rates_of_their_own():
    optimizers = {"generator": Optimizer("adam", lr=1e-3), "critic": Optimizer("sgd", lr=0.1)}
    game = Learner(
        GAN(latent=2, hidden=(8,)), optimizer=optimizers, steps=4, every=2, schedule="linear", random_state=0
    )
    history = game.fit(ring(50)).history_
    np.testing.assert_allclose(history["generator_lr"], [0.75e-3, 0.25e-3])
    np.testing.assert_allclose(history["critic_lr"], [0.075, 0.025])
    assert "lr" not in history[0]


def test_a_sweep_tells_each_replicas():
    sweep = line("linear", replicas={"optimizer__lr": [0.1, 0.01]}, every=18).fit(X, Y)
    np.testing.assert_allclose(
        sweep.history_["lr"], [[0.1 * (1 - 17 / 36), 0.01 * (1 - 17 / 36)], [0.1 / 36, 0.01 / 36]]
    )


def by_hand(rate, schedule):
    """The same training and plateau with torch alone, full batches."""
    torch.manual_seed(0)
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    optimizer = torch.optim.SGD([w], lr=rate, momentum=0.5)
    plateau = schedule(optimizer)
    rates = []
    for _ in range(12):
        optimizer.zero_grad()
        ((x @ w - y) ** 2).mean().div(2).backward()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with torch.no_grad():
            plateau.step(float(((x[:20] @ w - y[:20]) ** 2).mean() / 2))
    return w.detach(), rates


class Plain(Regression):
    """Linear, without an intercept, begun at zero."""

    def build(self, spec):
        super().build(spec)
        self.net = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.net.weight)


@pytest.mark.parametrize("rates", [[0.2], [0.9, 0.2, 0.01]])
def test_a_plateau_is_torchs_own_for_every_replica(rates):
    settings = {**COMMON, "batch_size": None, "validation": HELD, "init": "keep"}
    optimizer = Optimizer("sgd", lr=rates[0], momentum=0.5)
    replicas = {"optimizer__lr": rates} if len(rates) > 1 else None
    learner = Learner(Plain("linear"), schedule=HASTY, optimizer=optimizer, replicas=replicas, **settings).fit(X, Y)
    for k, rate in enumerate(rates):
        w, expected = by_hand(rate, HASTY)
        told = learner.history_["lr"] if replicas is None else learner.history_["lr"][:, k]
        np.testing.assert_allclose(told, expected, rtol=1e-10)
        assert expected[-1] < rate  # there was a plateau
        state = learner.training_.every[k].state
        torch.testing.assert_close(state.params["net.weight"][0], w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("replicas", [None, 3, {"optimizer__lr": [0.9, 0.05]}])
def test_it_is_resumed_bit_for_bit(tmp_path, monkeypatch, replicas):
    monkeypatch.setattr(weft.learner.folder, "SECONDS", 0.0)
    settings = {"validation": 0.3, "replicas": replicas}

    def interrupt(record):
        if record["epoch"] == 9:
            raise RuntimeError("pulled")

    with pytest.raises(RuntimeError, match="pulled"):
        line(HASTY, folder=tmp_path / "run", callbacks=[interrupt], **settings).fit(X, Y)
    done = weft.load(tmp_path / "run", schedule=HASTY).resume(X, Y)
    whole = line(HASTY, **settings).fit(X, Y)
    for one, two in zip(done.training_.every, whole.training_.every, strict=True):
        assert all(torch.equal(one.state.params[n], two.state.params[n]) for n in two.state.params)
    np.testing.assert_array_equal(done.history_["lr"], whole.history_["lr"])
    assert np.min(whole.history_["lr"][-1]) < np.min(whole.history_["lr"][0])


def test_replica_k_is_the_single_run():
    schedule = functools.partial(ReduceLROnPlateau, patience=0, factor=0.5)
    many = line(schedule, replicas=3, validation=0.3, batch_size=5).fit(X, Y)
    for k in range(3):
        single = line(schedule, validation=0.3, batch_size=5, random_state=k).fit(X, Y)
        np.testing.assert_allclose(many.history_["lr"][:, k], single.history_["lr"])
        np.testing.assert_allclose(many.replica(k).predict(X), single.predict(X), rtol=1e-9)
    assert len(set(many.history_["lr"][-1])) > 1  # each by itself


def test_a_game_reduces_every_players_rate():
    game = Learner(
        GAN(latent=2, hidden=(8,)), steps=20, every=2, schedule=functools.partial(HASTY, threshold=0.9), random_state=0
    ).fit(ring(50))
    for name in ("generator_lr", "critic_lr"):
        rates = game.history_[name]
        assert rates[-1] < rates[0]
        np.testing.assert_allclose(rates / rates[0], 0.3 ** np.round(np.log(rates / rates[0]) / np.log(0.3)))


def test_what_does_not_go_with_the_rate_is_trained_one_by_one():
    with pytest.warns(VectorizationWarning, match="do not go with its learning rate"):
        line(HASTY, Optimizer("rprop", lr=0.01), replicas=2, batch_size=None, validation=0.3, epochs=3).fit(X, Y)


def test_a_measure_below_zero_is_told_of():
    class Below(Regression):
        def measure(self, batch):
            return {"loss": super().measure(batch)["loss"] - 100.0}

    learner = Learner(Below("linear"), schedule=ReduceLROnPlateau, validation=0.3, **COMMON)
    with pytest.warns(UserWarning, match="expected threshold_mode='abs' for a progress measure below zero"):
        learner.fit(X, Y)
    rising = Classifier(schedule=HASTY, validation=0.3, metrics=["f1"], monitor="f1", **COMMON)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rising.fit(X, Y > 0)  # of which more is better, and torch is told so
    assert rising.history_["lr"][-1] < rising.history_["lr"][0]
