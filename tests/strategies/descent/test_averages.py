"""Averages of parameters that answer in place of those trained: against the path written out, with batch statistics."""

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer, weave
from weft.core.strategy import Strategy
from weft.data import sinusoids
from weft.nets import MLP
from weft.objectives import GAN, Regression
from weft.sources import Episodes
from weft.strategies import EMA, EWC, MAML, SGLD, SWA, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = (X[:, 0] + 0.3 * rng.normal(size=40) > 0).astype(int)
SETTINGS = {"optimizer": Optimizer("sgd", lr=0.5), "batch_size": 10, "dtype": "float64", "random_state": 0}


def params(learner, k=0):
    return {name: p.numpy() for name, p in learner.training_.every[k].state.params.items()}


def answer(learner, k=0):
    (run,) = learner.training_.answering[k]
    return {name: p.numpy() for name, p in run.state.params.items()}


def path(steps, **settings):
    """The parameters after each step of a training without any average."""
    return [params(Classifier("linear", steps=s, **{**SETTINGS, **settings}).fit(X, Y)) for s in range(1, steps + 1)]


def same(found, expected, rtol=1e-10):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=1e-14, err_msg=name)


def averaged(trodden, weights):
    return {n: sum(w * p[n] for w, p in zip(weights, trodden, strict=True)) / sum(weights) for n in trodden[0]}


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        (EMA(decay=0.7), [0.7**4, 0.7**3, 0.7**2, 0.7, 1.0]),
        (EMA(decay=0.0), [0, 0, 0, 0, 1]),
        (SWA(start=2), [0, 1, 1, 1, 1]),
        (SWA(start=1, every=2), [1, 0, 1, 0, 1]),
        (SWA(start=2, every=2), [0, 1, 0, 1, 0]),
        (SWA(start=9), [0, 0, 0, 0, 1]),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:expected at least 9 steps")
def test_the_average_of_the_path_answers(strategy, weights, replicas):
    trodden = path(5)
    learner = Classifier("linear", strategy=strategy, steps=5, replicas=replicas, **SETTINGS).fit(X, Y)
    same(params(learner), trodden[-1])
    same(answer(learner), averaged(trodden, weights))
    module = learner.module(0)
    same({name: p.detach().numpy() for name, p in module.named_parameters()}, averaged(trodden, weights))
    one = learner if replicas is None else learner.replica(0)
    proba = torch.softmax(module.net(torch.as_tensor(X)), -1).detach().numpy()
    np.testing.assert_allclose(one.predict_proba(X), proba, rtol=1e-10)


def test_decays_are_swept():
    sweep = {"strategy__decay": [0.0, 0.9], "random_state": [0, 0]}
    learner = Classifier("linear", strategy=EMA(), steps=5, replicas=sweep, **SETTINGS).fit(X, Y)
    for k, decay in enumerate((0.0, 0.9)):
        same(answer(learner, k), averaged(path(5), [decay ** (4 - i) for i in range(5)]))


def test_whatever_acts_on_steps_behind_it_the_parameters_reached_are_averaged():
    class Halve(Strategy):
        def update(self, move, state):
            return {name: 0.5 * s for name, s in move.step.items()}, state

    learner = Classifier("linear", strategy=weave(EMA(decay=0.7), Halve()), steps=4, **SETTINGS).fit(X, Y)
    half = path(4, optimizer=Optimizer("sgd", lr=0.25))
    same(answer(learner), averaged(half, [0.7**3, 0.7**2, 0.7, 1.0]))


def test_two_averages_answer_one_after_the_other():
    """The mean is taken of parameters trained, and the moving average's answer enters it as the last."""
    learner = Classifier("linear", strategy=weave(EMA(decay=0.5), SWA(start=1)), steps=3, **SETTINGS).fit(X, Y)
    a, b, c = path(3)
    moving = averaged([a, b, c], [0.25, 0.5, 1.0])
    same(answer(learner), averaged([a, b, moving], [1, 1, 1]))


# --- batch statistics ------------------------------------------------------------------------------------


def normed(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, outputs))


@pytest.mark.parametrize("strategy", [EMA(decay=0.8), SWA(start=3)], ids=repr)
@pytest.mark.parametrize("replicas", [None, 2])
def test_running_statistics_are_those_of_the_data_under_the_average(strategy, replicas):
    learner = Classifier(normed, strategy=strategy, steps=12, replicas=replicas, **SETTINGS).fit(X, Y)
    for k in range(replicas or 1):
        module = learner.module(k)
        with torch.no_grad():
            inputs = module.net[0](torch.as_tensor(X))
        torch.testing.assert_close(module.net[1].running_mean, inputs.mean(0))
        torch.testing.assert_close(module.net[1].running_var, inputs.var(0))
        state = learner.training_.every[k].state
        assert (state.buffers["net.1.running_mean"] - inputs.mean(0)).abs().max() > 1e-3, "training's own differ"
    plain = Classifier(normed, steps=12, replicas=replicas, **SETTINGS).fit(X, Y)
    for kind in ("params", "buffers"):
        found, expected = (getattr(one.training_.runs[0].state, kind) for one in (learner, plain))
        for name, value in expected.items():
            assert torch.equal(found[name], value), f"{name}: training itself is as it would be without"
    assert all(layer.momentum == 0.1 for layer in learner.objective_.modules() if isinstance(layer, nn.BatchNorm1d))


def test_a_last_row_by_itself_has_no_statistics():
    rows = np.concatenate([X] * 26)[:1025]
    labels = np.concatenate([Y] * 26)[:1025]
    learner = Classifier(normed, strategy=EMA(decay=0.5), steps=3, **SETTINGS).fit(rows, labels)
    module = learner.module()
    with torch.no_grad():
        inputs = module.net[0](torch.as_tensor(rows[:1024]))
    torch.testing.assert_close(module.net[1].running_mean, inputs.mean(0))


def test_without_such_layers_no_pass_is_made():
    learner = Classifier("linear", strategy=EMA(), steps=3, **SETTINGS).fit(X, Y)
    assert learner.training_.runs[0].state.statistics == {}
    plain = Classifier(normed, strategy=SGLD(), steps=3, **SETTINGS).fit(X, Y)
    assert plain.training_.runs[0].state.statistics == {}, "the last parameters answer"


# --- what is validated -----------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["linear", normed], ids=["linear", "normed"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_what_answers_is_validated(net, replicas):
    settings = {**SETTINGS, "validation": (X[30:], Y[30:])}
    learner = Classifier(net, strategy=EMA(decay=0.9), epochs=3, replicas=replicas, **settings).fit(X[:30], Y[:30])
    for k in range(replicas or 1):
        one = learner if replicas is None else learner.replica(k)
        loss = -np.log(one.predict_proba(X[30:])[np.arange(10), Y[30:]]).mean()
        told = learner.history_["valid_loss"][-1]
        np.testing.assert_allclose(told if replicas is None else told[k], loss, rtol=1e-9)


@pytest.mark.parametrize("replicas", [None, 2])
def test_early_stopping_puts_back_what_was_validated(replicas):
    """Training that gets worse: the average of the best record answers, not that of the last."""
    settings = {**SETTINGS, "optimizer": Optimizer("sgd", lr=3.0), "patience": 3, "validation": (X[30:], 1 - Y[30:])}
    learner = Classifier(normed, strategy=SWA(start=1), epochs=20, replicas=replicas, **settings).fit(X[:30], Y[:30])
    for k in range(replicas or 1):
        one = learner if replicas is None else learner.replica(k)
        loss = -np.log(one.predict_proba(X[30:])[np.arange(10), 1 - Y[30:]]).mean()
        column = learner.history_["valid_loss"] if replicas is None else learner.history_["valid_loss"][:, k]
        column = column[~np.isnan(column)]
        assert column.argmin() < len(column) - 1
        np.testing.assert_allclose(loss, column.min(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_it_is_kept_and_goes_on(tmp_path):
    strategy = weave(EWC(strength=1.0), EMA(decay=0.8))

    def fitted(**settings):
        return Classifier(noisy, strategy=strategy, epochs=4, validation=0.25, **{**SETTINGS, **settings})

    whole = fitted().fit(X, Y)
    whole.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", module=noisy)
    assert np.array_equal(again.predict_proba(X), whole.predict_proba(X))

    class Stop(Exception):  # noqa: N818
        pass

    def stop(record):
        if record["epoch"] == 2:
            raise Stop

    broken = fitted(folder=tmp_path / "broken", callbacks=[stop])
    with pytest.raises(Stop):
        broken.fit(X, Y)
    resumed = weft.load(tmp_path / "broken", module=noisy).resume(X, Y)
    assert np.array_equal(resumed.predict_proba(X), whole.predict_proba(X))


def noisy(inputs, outputs):
    return MLP(inputs, outputs, hidden=(6,), dropout=0.2, batch_norm=True)


# --- with others -----------------------------------------------------------------------------------------


def test_adapted_parameters_answer_themselves():
    few = Learner(Regression(hidden=(8,)), strategy=weave(MAML(inner_lr=0.1), EMA(decay=0.9)), steps=6, random_state=0)
    few.fit(Episodes(sinusoids, tasks=4, shots=4))
    adapted = few.adapt([[0.0], [1.0]], [[0.0], [0.8]])
    (run,) = adapted.training_.answering[0]
    start = answer(few)
    by_hand, _ = few.training_.runs[0].engine.adapt(
        few.training_.answering[0][0].state, {"x": torch.tensor([[0.0], [1.0]]), "y": torch.tensor([[0.0], [0.8]])}
    )
    for name, value in by_hand.items():
        torch.testing.assert_close(run.state.params[name], value)
        assert np.abs(value.numpy() - start[name]).max() > 0


def test_of_a_game_each_player_is_averaged():
    game = Learner(GAN(latent=2, hidden=(8,)), strategy=EMA(decay=0.5), steps=4, random_state=0, dtype="float64")
    game.fit(X)
    trained, found = params(game), answer(game)
    for player in ("generator", "critic"):
        assert any(np.abs(found[n] - trained[n]).max() > 0 for n in trained if n.startswith(player))
    assert game.sample(3).shape == (3, 3)


def test_groups_and_masks_are_averaged_too():
    learner = Classifier("linear", strategy=weave(ANDMask(threshold=0.2), EMA(decay=0.5)), steps=3, **SETTINGS)
    learner.fit(X, Y, environment=np.arange(40) % 2)
    assert np.abs(answer(learner)["net.1.weight"] - params(learner)["net.1.weight"]).max() > 0


@pytest.mark.parametrize(
    ("strategy", "name"),
    [(EMA(decay=1.0), "decay"), (EMA(decay=-0.1), "decay"), (SWA(start=0), "start"), (SWA(every=0), "every")],
    ids=repr,
)
def test_bad_input(strategy, name):
    with pytest.raises(ValueError, match=f"{type(strategy).__name__}'s {name}"):
        Classifier("linear", strategy=strategy, steps=1).fit(X, Y)
