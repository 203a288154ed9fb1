"""A loss's own mass: rows count by their tokens, in one pass, in pieces, by groups, by replicas."""

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Learner, Optimizer, weave
from weft.attacks import PGD
from weft.core import Objective, Output, Strategy
from weft.core.random import uniform
from weft.objectives import Heads, Regression
from weft.sources import Arrays
from weft.strategies import EMA, ERM, EWC, SAM, AdversarialTraining, ANDMask, VREx
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 5))
LENGTH = rng.integers(1, 6, size=60)
X = np.where(np.arange(5) < LENGTH[:, None], X, 9.0)
WEIGHT = rng.uniform(0.5, 2.0, size=60)
SITE = np.repeat([0, 1, 2], [30, 20, 10])
COMMON = {"steps": 4, "batch_size": None, "random_state": 0, "dtype": "float64", "optimizer": Optimizer("sgd", lr=0.05)}


class Tokens(Objective):
    """Each of a row's tokens, up to its length (9 is padding), is to be half the one before; a row is their mean."""

    provides = frozenset({"mass"})
    fields = ("x",)

    def build(self, spec):
        self.net = nn.Linear(1, 1)

    def tokens(self, batch):
        x = batch["x"]
        there = (x != 9.0).to(x.dtype)
        return (self.net(x.unsqueeze(-1)).squeeze(-1) - x.sin()).square() * there, there

    def forward(self, batch, player=""):
        squares, there = self.tokens(batch)
        return Output(squares.sum(1) / there.sum(1).clamp_min(1.0), mass=there.sum(1))


class Masked(Tokens):
    """Of the tokens, those that are drawn count: a row may count nothing."""

    def tokens(self, batch):
        squares, there = super().tokens(batch)
        kept = (uniform(there.shape, place="masked", dtype=there.dtype) < 0.4).to(there.dtype)
        return squares * kept, there * kept


class Flat(Objective):
    """The same on tokens, a row each."""

    fields = ("x",)

    def build(self, spec):
        self.net = nn.Linear(1, 1)

    def forward(self, batch, player=""):
        return Output((self.net(batch["x"]) - batch["x"].sin()).square().squeeze(-1))


def fit(objective=None, weight=None, site=SITE, **settings):
    return Learner(objective or Tokens(), **{**COMMON, **settings}).fit(X, environment=site, sample_weight=weight)


def params(learner, k=0):
    return learner.training_.every[k].state.params


def close(a, b):
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-9, atol=1e-12)


ROW, PLACE = np.nonzero(X != 9.0)


def flat(**settings):
    tokens = X[ROW, PLACE][:, None]
    return Learner(Flat(), **{**COMMON, **settings}).fit(tokens, environment=SITE[ROW], sample_weight=WEIGHT[ROW])


@pytest.mark.parametrize(
    "strategy", [ERM(), ANDMask(threshold=0.3), VREx(strength=2.0), SAM(radius=0.1), EMA(decay=0.8)], ids=repr
)
@pytest.mark.parametrize("weighting", ["example", "group"])
def test_a_row_counts_as_its_tokens_do(strategy, weighting):
    one, other = (make(strategy=strategy, weighting=weighting) for make in (lambda **s: fit(weight=WEIGHT, **s), flat))
    close(params(one), params(other))
    np.testing.assert_allclose(one.history_["loss"], other.history_["loss"], rtol=1e-9)


class Reading(Strategy):
    """Reads the loss at the parameters before the step."""

    def __init__(self):
        self.seen = []

    def update(self, move, state):
        self.seen.append(float(move.loss(move.params)))
        return move.step, state


def test_the_loss_that_strategies_read_counts_by_tokens():
    for settings in ({"batch_size": 15, "accumulate": 4}, {"weighting": "group"}):
        told = []
        for make in (lambda **s: fit(weight=WEIGHT, **s), flat):
            reading = Reading()
            grouped = weave(ANDMask(threshold=0.0), reading) if "weighting" in settings else reading
            make(strategy=grouped, **({} if make is flat and "accumulate" in settings else settings))
            told.append(reading.seen)
        np.testing.assert_allclose(*told, rtol=1e-9)


def test_what_is_measured_counts_by_tokens_as_well():
    held = (X[:20], None)
    learner = fit(validation=held)
    tokens = X[:20][X[:20] != 9.0]
    net = learner.objective_.net
    with torch.no_grad():
        loss = (net(torch.as_tensor(tokens)[:, None]).squeeze(-1) - torch.as_tensor(tokens).sin()).square().mean()
    assert learner.history_["valid_loss"][-1] == pytest.approx(float(loss))


@pytest.mark.parametrize("objective", [Tokens, Masked])
def test_in_pieces_is_at_once(objective):
    for weight in (None, WEIGHT):
        whole = fit(objective(), weight=weight, batch_size=60)
        close(params(fit(objective(), weight=weight, batch_size=15, accumulate=4)), params(whole))
        assert not torch.equal(params(whole)["net.weight"], params(fit(objective(), steps=0))["net.weight"])


@pytest.mark.parametrize("objective", [Tokens, Masked])
@pytest.mark.parametrize(
    "strategy",
    [ANDMask(threshold=0.3), ANDMask(threshold=0.1, each="example"), weave(VREx(strength=2.0), SAM(radius=0.1))],
    ids=repr,
)
def test_chunked_is_unchunked(objective, strategy):
    close(params(fit(objective(), strategy=strategy, memory=1)), params(fit(objective(), strategy=strategy)))


@pytest.mark.parametrize("objective", [Tokens, Masked])
@pytest.mark.parametrize(
    "strategy", [ANDMask(threshold=0.0), VREx(strength=0.0), AdversarialTraining(PGD(eps=0.0, steps=1))], ids=repr
)
def test_a_neutral_strategy_is_erm(objective, strategy):
    x, weight = torch.as_tensor(X), torch.as_tensor(WEIGHT)
    source = Arrays(x, environment=SITE, weight=weight, grouped=True, batch_size=8)
    one, erm = (Learner(objective(), strategy=s, **COMMON).fit(source) for s in (strategy, ERM()))
    close(params(one), params(erm))


@pytest.mark.parametrize("strategy", [ERM(), ANDMask(threshold=0.3)], ids=repr)
def test_replica_k_is_the_single_run_k(strategy):
    many = fit(Masked(), strategy=strategy, replicas=3, batch_size=8)
    for k in range(3):
        close(params(many, k), params(fit(Masked(), strategy=strategy, random_state=k, batch_size=8)))


def test_weight_two_is_the_row_twice():
    twice = np.concatenate([np.arange(60), [7]])
    weight = np.ones(60)
    weight[7] = 2.0
    doubled = Learner(Tokens(), **COMMON).fit(X[twice])
    close(params(fit(weight=weight)), params(doubled))


SOURCE = Arrays(torch.as_tensor(X), batch_size=12)


@pytest.mark.parametrize("objective", [Tokens, Masked])
def test_the_contract_holds(objective):
    check_objective(objective(), SOURCE)


def broken(change, says=("mass",)):
    class Broken(Tokens):
        provides = frozenset(says)

        def forward(self, batch, player=""):
            return change(self, super().forward(batch))

    return Broken()


def scaled(self, output):
    return Output(output.losses, mass=output.mass * self.net.weight.square().sum())


WRONG = {
    "undeclared": (broken(lambda self, o: o, ()), "expected no mass in Output of Broken, as its provides says"),
    "not given": (broken(lambda self, o: Output(o.losses)), "expected a mass in Output of Broken, as its provides"),
    "another shape": (broken(lambda self, o: Output(o.losses, mass=o.mass[:1])), "expected a mass for each loss"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused(wrong):
    objective, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        fit(objective)


def test_the_contract_is_broken_by_a_mass_that_is_learned_or_negative():
    with pytest.raises(ContractError, match="got one that depends on the parameters"):
        check_objective(broken(scaled), SOURCE)
    with pytest.raises(ContractError, match="expected a mass >= 0 for every row"):
        check_objective(broken(lambda self, o: Output(o.losses, mass=-o.mass)), SOURCE)


class Likely(Tokens):
    likelihood = True


def test_where_it_would_be_lost_it_is_refused():
    with pytest.raises(ValueError, match="expected rows that count alike in Heads's a, got Tokens"):
        Learner(Heads({"a": Tokens(), "b": Regression()}), **COMMON).fit(
            Arrays(x=torch.as_tensor(X), b_y=torch.as_tensor(X[:, 0]))
        )
    with pytest.raises(ValueError, match="expected rows that count alike for sums over the examples' gradients"):
        Learner(Likely(), strategy=EWC(fisher="empirical"), **COMMON).partial_fit(X, task="one")


def test_it_resumes(tmp_path):
    learner = fit(Masked(), folder=tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Masked())
    close(params(again), params(learner))
