"""Langevin dynamics against the stationary distribution that it has on a Gaussian."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, Optimizer, weave
from weft.objectives import Regression
from weft.sources import Arrays
from weft.strategies import L2, SGLD

N, LR, CHAINS, STEPS = 20, 0.2, 1200, 60
rng = np.random.default_rng(0)
Y = rng.normal(size=N)


class Constant(nn.Module):
    """One parameter, which is the answer for every row."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.theta.expand(len(x), 1)


def chains(strategy, **settings):
    """The mean of y is the only parameter: its posterior is a Gaussian around it with variance 1 / n."""
    settings = {"optimizer": Optimizer("sgd", lr=LR), "steps": STEPS, "batch_size": None, **settings}
    learner = Learner(Regression(Constant()), strategy=strategy, init="keep", dtype="float64", **settings)
    return learner.fit(np.zeros((N, 1)), Y)


def within(found, expected, deviation):
    assert abs(found - expected) < 4.5 * deviation, (found, expected, deviation)


@pytest.mark.parametrize(("temperature", "strength"), [(1.0, 0.0), (0.3, 0.0), (1.0, 0.5)])
@pytest.mark.turns("src/weft/strategies/posterior/*")
def test_the_stationary_distribution_of_a_gaussian(temperature, strength):
    learner = chains(
        weave(L2(strength=strength), SGLD(temperature=temperature)), replicas={"random_state": list(range(CHAINS))}
    )
    theta = learner.training_.runs[0].state.params["net.theta"].numpy()
    assert theta.shape == (CHAINS,)
    curvature = 1.0 + strength
    variance = temperature / (N * curvature * (1.0 - LR * curvature / 2.0))
    within(theta.var(), variance, variance * np.sqrt(2 / CHAINS))
    within(theta.mean(), Y.mean() / curvature, np.sqrt(variance / CHAINS))


def test_replicas_are_the_single_runs():
    many = chains(SGLD(), replicas={"random_state": [3, 7]})
    for k, seed in enumerate((3, 7)):
        one = chains(SGLD(), random_state=seed).training_.runs[0].state.params["net.theta"]
        assert float(many.training_.runs[0].state.params["net.theta"][k]) == pytest.approx(float(one), rel=1e-12)


def test_without_temperature_it_is_descent_and_with_it_every_step_has_its_own_noise():
    cold = chains(SGLD(temperature=0.0), random_state=0).predict(np.zeros((1, 1)))
    plain = chains(None, random_state=0).predict(np.zeros((1, 1)))
    assert cold == plain
    path = [float(chains(SGLD(), random_state=0, steps=s).predict(np.zeros((1, 1)))[0]) for s in (1, 2, 3)]
    noise = [b - (a - LR * (a - Y.mean())) for a, b in zip([0.0, *path[:2]], path, strict=True)]
    assert len({round(z, 12) for z in noise}) == 3


def test_what_the_rate_and_the_rows_say():
    """One step from zero: its variance is 2 lr / n, at the schedule's rate and the replica's own."""
    sweep = {"random_state": list(range(1000)), "optimizer__lr": [0.1, 0.4] * 500}
    learner = chains(SGLD(), replicas=sweep, steps=1, schedule=lambda t: 0.5)
    theta = learner.training_.runs[0].state.params["net.theta"].numpy()
    for i, lr in enumerate((0.05, 0.2)):
        within(theta[i::2].var(), 2 * lr / N, 2 * lr / N * np.sqrt(2 / 500))


def test_the_noise_is_of_all_rows_whatever_a_batch_has():
    sweep = {"random_state": list(range(1000))}
    net = Regression(Constant())
    learner = Learner(net, strategy=SGLD(), optimizer=Optimizer("sgd", lr=LR), steps=1, batch_size=4, init="keep")
    learner.set_params(dtype="float64", replicas=sweep)
    theta = learner.fit(np.zeros((N, 1)), np.zeros(N)).training_.runs[0].state.params["net.theta"].numpy()
    within(theta.var(), 2 * LR / N, 2 * LR / N * np.sqrt(2 / 1000))


def test_draws_answer_together():
    learner = chains(SGLD(draws=5, start=10, every=10), random_state=0)
    kept = learner.training_.runs[0].state.strategy[""]["draws"]["net.theta"]
    path = [chains(SGLD(), random_state=0, steps=s).training_.runs[0].state.params["net.theta"] for s in (50, 40, 30)]
    torch.testing.assert_close(kept[:3], torch.stack(path))
    assert learner.predict(np.zeros((1, 1)))[0] == pytest.approx(float((kept.sum() + _last(learner, kept)) / 5))
    with pytest.raises(ValueError, match="got 5, which SGLD"):
        learner.module()
    stacked = chains(SGLD(draws=5, start=10, every=10), replicas=2, random_state=0)
    both = [stacked.replica(k).predict(np.zeros((1, 1)))[0] for k in (0, 1)]
    assert both[0] == pytest.approx(learner.predict(np.zeros((1, 1)))[0], rel=1e-12)
    assert stacked.predict(np.zeros((1, 1)))[0] == pytest.approx(np.mean(both))


def _last(learner, kept):
    """Of 5 draws asked for, 4 were taken (at steps 20, 30, 40 and 50): the last parameters are the fifth."""
    state = learner.training_.runs[0].state
    assert int(state.strategy[""]["count"]) == 4
    assert float(kept[4]) == 0.0
    return state.params["net.theta"]


def test_it_validates_the_draws():
    settings = {"random_state": 0, "validation": (np.zeros((3, 1)), np.ones(3))}
    learner = chains(SGLD(draws=3, start=10, every=5), **settings)
    thetas = [float(run.state.params["net.theta"]) for run in learner.training_.answering[0]]
    assert len(set(thetas)) == 3
    expected = np.mean([(1.0 - t) ** 2 / 2 for t in thetas])
    assert learner.history_["valid_loss"][-1] == pytest.approx(expected)


def test_bad_input():
    class Endless(Arrays):
        @property
        def size(self):
            return None

        @size.setter
        def size(self, value):
            pass

    source = Endless(torch.zeros(4, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    learner = Learner(Regression(Constant()), strategy=SGLD(), optimizer=Optimizer("sgd", lr=0.1), dtype="float64")
    with pytest.raises(ValueError, match="a known number of rows for SGLD"):
        learner.fit(source)
    for bad in ({"temperature": -1.0}, {"draws": -1}, {"every": 0}, {"start": -2}):
        with pytest.raises((ValueError, TypeError), match=f"SGLD's {next(iter(bad))}"):
            chains(SGLD(**bad))
