"""Parameters that live on a set: they are put back on it at the beginning, after every step, and where they answer."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft import Learner, Optimizer
from weft.core import Strategy
from weft.engine import VectorizationWarning
from weft.objectives import Classification, Heads, Regression
from weft.sources import Arrays, Episodes
from weft.strategies import EMA, ERM, LBFGS, MAML, SGLD, ANDMask
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
Y = X @ np.array([2.0, -1.0, 0.5, -3.0], dtype=np.float32)
SITE = np.arange(60) % 3
COMMON = {"epochs": 3, "batch_size": 20, "random_state": 0, "dtype": "float64", "optimizer": Optimizer("sgd", lr=0.1)}


def net():
    return nn.Linear(4, 1)


class Whole(Regression):
    """The set is everything."""

    def project(self, params):
        return params


class Positive(Regression):
    def project(self, params):
        return {"net.weight": params["net.weight"].clamp_min(0.0)}


class Unit(Regression):
    def project(self, params):
        return {name: F.normalize(p, dim=1) for name, p in params.items() if "weight" in name}


def weight(learner, k=0):
    return learner.training_.every[k].state.params["net.weight"]


def fit(objective, **settings):
    return Learner(objective, **{**COMMON, **settings}).fit(X, Y, environment=SITE)


@pytest.mark.parametrize("strategy", [ERM(), EMA(decay=0.9), ANDMask(threshold=0.3)], ids=repr)
@pytest.mark.parametrize("replicas", [None, 2])
def test_on_the_set_of_all_it_changes_nothing(strategy, replicas):
    free, whole = (fit(kind(net), strategy=strategy, replicas=replicas) for kind in (Regression, Whole))
    for k in range(replicas or 1):
        torch.testing.assert_close(weight(whole, k), weight(free, k), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(whole.replica(0).predict(X), free.replica(0).predict(X), rtol=1e-10)


def test_it_is_projected_gradient_descent():
    learner = fit(Positive(net), batch_size=None, epochs=3)
    start = fit(Positive(net), epochs=0)
    w, b = weight(start).clone(), start.training_.alone.state.params["net.bias"].clone()
    assert bool((w >= 0).all())
    x, y = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(Y, dtype=torch.float64)
    for _ in range(3):
        w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
        output = torch.func.functional_call(start.objective_, {"net.weight": w, "net.bias": b}, ({"x": x, "y": y},))
        gw, gb = torch.autograd.grad(output.losses.mean(), (w, b))
        w, b = (w - 0.1 * gw).clamp_min(0.0), b - 0.1 * gb
    torch.testing.assert_close(weight(learner), w.detach())
    assert bool((w == 0).any())


@pytest.mark.parametrize("strategy", [ERM(), EMA(decay=0.5), ANDMask(threshold=0.3)], ids=repr)
@pytest.mark.parametrize("replicas", [None, 3])
def test_what_is_trained_and_what_answers_is_on_the_set(strategy, replicas):
    learner = fit(Unit(net), strategy=strategy, replicas=replicas)
    for k in range(replicas or 1):
        assert weight(learner, k).norm() == pytest.approx(1.0)
        for run in learner.training_.answering[k]:
            assert run.state.params["net.weight"].norm() == pytest.approx(1.0)


def test_what_adapts_is_on_the_set():
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    source = Episodes((x, y, SITE), tasks=2, shots=4)
    learner = Learner(Unit(net), strategy=MAML(inner_lr=0.1), steps=3, random_state=0).fit(source)
    assert weight(learner).norm() == pytest.approx(1.0)
    adapted = learner.adapt(X[:8], Y[:8])
    assert not torch.equal(weight(adapted), weight(learner))
    assert weight(adapted).norm() == pytest.approx(1.0)


def test_replica_k_is_the_single_run_k_also_where_others_stop():
    settings = {"validation": 0.3, "patience": 1, "epochs": 12, "optimizer": Optimizer("adam", lr=0.3)}
    many = fit(Unit(net), replicas=4, **settings)
    assert len({many.training_.runs[0].state.step_of(k) for k in range(4)}) > 1
    for k in range(4):
        single = fit(Unit(net), **{**settings, "random_state": k})
        torch.testing.assert_close(weight(many, k), weight(single), rtol=1e-9, atol=1e-9)


def test_what_has_stopped_stays_to_the_last_bit():
    class Halved(Regression):
        def project(self, params):
            return {name: p / 2 for name, p in params.items()}

    learner = fit(Halved(net), replicas=2, epochs=1)
    engine, state = learner.training_.runs[0]
    state.active[0] = False
    state.stopped[0] = "patience"
    before = state.params["net.weight"].clone()
    batch = next(engine.batches(Arrays(torch.as_tensor(X).double(), torch.as_tensor(Y).double(), batch_size=8), state))
    engine.step(state, batch)
    assert torch.equal(state.params["net.weight"][0], before[0])
    assert not torch.equal(state.params["net.weight"][1], before[1])


def test_a_step_as_it_is_recorded_puts_them_back_as_well():
    source = Arrays(torch.as_tensor(X).double(), torch.as_tensor(Y).double(), batch_size=8)
    moved = []
    for factor in (None, torch.ones((), dtype=torch.float64)):
        engine, state = fit(Unit(net), replicas=2, epochs=1).training_.runs[0]
        batch = engine.numbered(next(engine.batches(source, state)), grouped=False)
        engine.move(state, batch, "", factor)
        moved.append(state.params["net.weight"])
    torch.testing.assert_close(*moved)
    torch.testing.assert_close(moved[1].flatten(1).norm(dim=1), torch.ones(2, dtype=torch.float64))


def test_frozen_parameters_stay_as_they_are():
    given = nn.Linear(4, 1)
    learner = fit(Positive(given), init="keep", optimizer=Optimizer("sgd", lr=0.1, freeze="net.weight"))
    assert torch.equal(weight(learner).float(), given.weight)
    assert bool((given.weight < 0).any())


def test_a_strategy_is_told_of_the_step_that_is_made():
    seen = []

    class Watching(Strategy):
        def update(self, move, state):
            seen.append((move.params["net.weight"] + move.step["net.weight"]).clone())
            return move.step, state

    learner = fit(Unit(net), strategy=Watching())
    assert all(end.norm() == pytest.approx(1.0) for end in seen)
    torch.testing.assert_close(seen[-1], weight(learner))


def test_it_resumes(tmp_path):
    def stop(record):
        if record["epoch"] == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(Unit(net), epochs=4, folder=tmp_path / "run", callbacks=[stop])
    again = weft.load(tmp_path / "run", objective=Unit(net)).resume(X, Y, environment=SITE)
    assert torch.equal(weight(again), weight(fit(Unit(net), epochs=4)))


def test_a_part_puts_back_what_is_its_own():
    heads = Heads({"mass": Positive(net), "kind": Classification(lambda: nn.Linear(4, 2))})
    x = torch.as_tensor(X)
    source = Arrays(x=x, mass_y=torch.as_tensor(Y), kind_y=(x[:, 0] > 0).long(), batch_size=20, classes={"kind_y": 2})
    learner = Learner(heads, **COMMON).fit(source)
    params = learner.training_.alone.state.params
    assert bool((params["heads.mass.net.weight"] >= 0).all())
    assert bool((params["heads.kind.net.weight"] < 0).any())


class Asking(Regression):
    """Cannot be vectorized over replicas."""

    def project(self, params):
        return {n: p if float(p.sum()) > 1e9 else p.clamp_min(0.0) for n, p in params.items() if n == "net.weight"}


def test_where_it_cannot_be_vectorized_replicas_are_trained_one_after_another():
    with pytest.warns(VectorizationWarning, match="one after another"):
        many = fit(Asking(net), replicas=2)
    torch.testing.assert_close(weight(many, 1), weight(fit(Positive(net), random_state=1)))


def broken(answer):
    return type("Broken", (Regression,), {"project": lambda self, params: answer(params)})(net)


WRONG = {
    "nothing": (lambda params: None, TypeError, "expected project of Broken to give parameters by name, got None"),
    "another name": (lambda params: {"net.weigth": params["net.weight"]}, ValueError, "did you mean 'net.weight'"),
    "another shape": (lambda params: {"net.weight": params["net.weight"].sum()}, ValueError, r"\(1, 4\).*got \(\)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused(wrong):
    answer, error, message = WRONG[wrong]
    with pytest.raises(error, match=message):
        fit(broken(answer))


@pytest.mark.parametrize("strategy", [SGLD(), LBFGS()], ids=repr)
def test_who_makes_a_step_of_its_own_is_refused(strategy):
    with pytest.raises(ValueError, match="cannot train Unit: it makes a step of its own"):
        fit(Unit(net), strategy=strategy)


SOURCE = Arrays(torch.as_tensor(X), torch.as_tensor(Y), batch_size=12)


@pytest.mark.parametrize("kind", [Whole, Positive, Unit])
def test_the_contract_holds(kind):
    check_objective(kind(net), SOURCE)


def test_the_contract_is_broken_by_what_is_no_projection():
    with pytest.raises(ContractError, match=r"expected project to give 'net.* again when asked twice"):
        check_objective(broken(lambda params: {name: p / 2 for name, p in params.items()}), SOURCE)
