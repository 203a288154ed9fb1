"""A penalty that couples groups, against the loss written out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weft import Classifier, weave
from weft.core.objective import Output
from weft.core.optimizer import Optimizer
from weft.core.random import key_of
from weft.core.source import number_rows
from weft.core.strategy import Strategy, by_group
from weft.engine import Engine
from weft.engine import engine as engine_module
from weft.engine.build import build
from weft.engine.capture import Captured
from weft.engine.gradients.loss import Place
from weft.engine.gradients.route import look
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import EWC, MAML, AdversarialTraining, ANDMask, Fishr, TemporalANDMask
from weft.testing import ContractError, check_strategy

CPU = torch.device("cpu")
SIZES = (7, 4, 2)
SITE = np.repeat([0, 1, 2], SIZES)
draws = torch.Generator().manual_seed(0)
X = torch.randn(13, 3, generator=draws, dtype=torch.float64)
Y = (X[:, 0] > 0).long()
WEIGHT = torch.rand(13, generator=draws, dtype=torch.float64) + 0.1


class Spread(Strategy):
    """The variance of the groups' mean losses as a penalty: something that couples them."""

    sees = "all groups"
    neutral = {"strength": 0.0}

    def __init__(self, *, strength=1.0):
        self.strength = strength

    def wrap(self, loss, state):
        def spread(params, batch):
            output = loss(params, batch)
            weight = torch.ones_like(output.losses) if output.weight is None else output.weight
            parts, shares = by_group(output.losses, batch), by_group(weight, batch)
            means = (parts * shares).sum(1) / shares.sum(1)
            return replace(output, losses=output.losses + self.strength * means.var(correction=0))

        return spread


def engine_of(strategy, source, **options):
    built = build(Classification(hidden=(5,)), source.spec, 0, torch.float64)
    engine = Engine(built, strategy, {"": Optimizer("sgd", lr=0.1)}, grouped=True, **options)
    return engine, engine.init([0], CPU)


@pytest.mark.parametrize("weighting", ["example", "group"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
def test_the_gradient_is_that_of_mean_plus_penalty(weighting, weight):
    """Groups of 7, 4 and 2 rows, so that two of them are padded at weight 0."""
    source = Arrays(X, Y, environment=SITE, weight=weight, grouped=True, classes=2)
    engine, state = engine_of(Spread(strength=3.0), source, weighting=weighting)
    batch = number_rows(next(source.batches(state)), 2)
    gradient, value, _, _ = engine.gradient(state, batch, "")

    leaves = {name: p.detach().clone().requires_grad_() for name, p in state.params.items()}
    logits = torch.func.functional_call(engine.objective.net, {n[4:]: p for n, p in leaves.items()}, (X,))
    losses = F.cross_entropy(logits, Y, reduction="none")
    w = torch.ones(13, dtype=torch.float64) if weight is None else weight
    means = torch.stack([(losses[e == SITE] * w[e == SITE]).sum() / w[e == SITE].sum() for e in range(3)])
    whole = (losses * w).sum() / w.sum() if weighting == "example" else means.mean()
    loss = whole + 3.0 * ((means - means.mean()) ** 2).mean()
    torch.testing.assert_close(value, loss)
    for name, wanted in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        torch.testing.assert_close(gradient[name], wanted)


def test_rows_are_told_their_group():
    seen = []

    class Looking(Spread):
        def wrap(self, loss, state):
            def look(params, batch):
                seen.append(batch)
                return loss(params, batch)

            return look

    source = Arrays(X, Y, environment=SITE, grouped=True, batch_size=3, classes=2)
    engine, state = engine_of(Looking(), source)
    engine.step(state, next(source.batches(state)))
    batch = seen[0]
    assert batch["group"].shape == (9, 3)
    assert batch["group"].long().argmax(1).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert bool((batch["group"].sum(1) == 1).all())
    assert batch["x"].shape == (9, 3)
    torch.testing.assert_close(by_group(batch["x"], batch)[1], batch["x"][3:6])


def test_the_contract():
    """Neutral is ERM, replica k is the single run with seed k, the memory bound changes nothing."""
    check_strategy(Spread(strength=2.0))
    check_strategy(weave(EWC(strength=1.0), Spread(strength=2.0)))
    check_strategy(weave(AdversarialTraining(), Spread(strength=2.0)))


def test_a_single_environment_and_none_are_refused():
    learner = Classifier(strategy=Spread(), epochs=1)
    with pytest.raises(ValueError, match="compares environments, got none"):
        learner.fit(X, Y)
    with pytest.raises(ValueError, match="got one only"):
        learner.fit(X, Y, environment=np.zeros(13))


def test_accumulation_is_refused():
    with pytest.raises(ValueError, match=r"expected accumulate=1 with Spread\(\).*got 2"):
        Classifier(strategy=Spread(), accumulate=2, epochs=1).fit(X, Y, environment=SITE)


def test_several_processes_are_refused(monkeypatch):
    source = Arrays(X, Y, environment=SITE, grouped=True, classes=2)
    engine, state = engine_of(Spread(), source)
    monkeypatch.setattr(engine_module, "world", lambda: (0, 2))
    with pytest.raises(ValueError, match=r"2 of them train, got Spread\(\).*one process"):
        engine.step(state, next(source.batches(state)))


@pytest.mark.parametrize("other", [ANDMask(), ANDMask(each="example"), MAML()], ids=repr)
def test_what_takes_each_group_by_itself_is_refused(other):
    parts = (other, Spread()) if isinstance(other, MAML) else (Spread(), other)
    with pytest.raises(ValueError, match=r"Spread\(\), whose penalty couples the groups, and .* by itself"):
        weave(*parts)


def test_an_objective_that_turns_out_not_to_provide_what_is_read_is_refused():
    class Needy(Spread):
        reads = frozenset({"attention"})

    source = Arrays(X, Y, environment=SITE, grouped=True, classes=2)
    with pytest.raises(ValueError, match="it reads 'attention', which Classification does not provide"):
        engine_of(Needy(), source)


class Counting(Spread):
    """Leaves the groups' mean losses, and adds those of all passes."""

    def wrap(self, loss, state):
        def leaving(params, batch):
            output = loss(params, batch)
            means = by_group(output.losses, batch).mean(1).detach()
            return replace(output, left=(*output.left, {"means": means}))

        return leaving

    def combine(self, gradients, losses, weights, state):
        assert losses.shape == weights.shape == (1,)
        seen = state["seen"] + state["means"] if "seen" in state else state["means"]
        return {name: g[0] for name, g in gradients.items()}, {"seen": seen}


class Dropping(Strategy):
    """Wraps a loss and forgets what others have left in its output."""

    def wrap(self, loss, state):
        return lambda params, batch: Output(loss(params, batch).losses)


class Leaving(Strategy):
    """Leaves what it never asks for."""

    sees = "all groups"

    def wrap(self, loss, state):
        return lambda params, batch: replace(loss(params, batch), left=({"a": torch.zeros(())},))


class Twice(Counting):
    """Leaves under a name that its state has."""

    def init(self, params):
        return {"means": torch.zeros(())}


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (weave(Counting(), Dropping()), r"expected what Counting\(\) leaves in Output.left, got nothing"),
        (Leaving(), "got 1 that none of Leaving"),
        (Twice(), r"names that its state does not have, got \['means'\]"),
    ],
    ids=["dropped", "not taken", "named twice"],
)
def test_what_is_left_and_does_not_reach_its_owner_is_told(strategy, message):
    with pytest.raises(ValueError, match=message):
        Classifier(strategy=strategy, epochs=1).fit(X, Y, environment=SITE)


def test_the_gradient_of_all_groups_is_combined_as_that_of_rows():
    """A mask over steps looks at the pooled gradient, be it of rows or of a pass over all groups."""
    found = []
    for strategy in (TemporalANDMask(threshold=0.4), weave(Fishr(strength=0.0), TemporalANDMask(threshold=0.4))):
        learner = Classifier(strategy=strategy, batch_size=None, steps=4, dtype="float64", random_state=0)
        environment = SITE[:12] % 2
        found.append(learner.fit(X[:12], Y[:12], environment=environment).predict_proba(X))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_two_who_leave_something_are_each_handed_their_own():
    source = Arrays(X[:12], Y[:12], environment=SITE[:12] % 2, grouped=True, batch_size=3, classes=2)

    class Louder(Counting):
        def wrap(self, loss, state):
            return super().wrap(lambda p, b: replace(loss(p, b), losses=10.0 * loss(p, b).losses), state)

    engine, state = engine_of(weave(Counting(), Louder()), source)
    engine.step(state, next(source.batches(state)))
    kept = state.strategy[""]
    torch.testing.assert_close(kept["louder"]["seen"], 10.0 * kept["counting"]["seen"])


def test_a_wrapper_that_drops_it_breaks_the_contract():
    check_strategy(AdversarialTraining())
    with pytest.raises(ContractError, match=r"Dropping.*Output\.left"):
        check_strategy(Dropping())


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("around", [lambda engine, state: engine, Captured], ids=["engine", "recording"])
def test_what_is_observed_is_kept(replicas, around):
    """The state grows in the first pass, and goes on from there, before steps are recorded too."""
    source = Arrays(X[:12], Y[:12], environment=SITE[:12] % 2, grouped=True, batch_size=3, classes=2)
    built = build(Classification(hidden=(5,)), source.spec, 0, torch.float64)
    strategy = weave(EWC(), Counting(strength=0.0))
    engine = Engine(built, strategy, {"": Optimizer("sgd", lr=0.0)}, grouped=True, replicas=replicas)
    state = engine.init([0, 1][: replicas or 1], CPU)
    stepping = around(engine, state)
    batch = next(engine.batches(source, state))
    stepping.step(state, batch)
    first = state.strategy[""]["counting"]["seen"].clone()
    assert first.shape == ((2,) if replicas is None else (2, 2))
    for _ in range(2):
        stepping.step(state, batch)
    torch.testing.assert_close(state.strategy[""]["counting"]["seen"], 3.0 * first)


def test_the_first_look_leaves_one_pass_alone(monkeypatch):
    """No group is tried by itself where the loss is one over all of them."""
    source = Arrays(X, Y, environment=SITE, grouped=True, classes=2)
    built = build(Classification(hidden=(5,)), source.spec, 0, torch.float64)

    def never(batch):
        raise AssertionError("the loss was asked")

    monkeypatch.setattr(built, "forward", never)
    route = look(built, "", Place(dict(built.named_parameters()), {}, {}, key_of(0)), {}, Spread(), grouped=True)
    assert route.layers is None
