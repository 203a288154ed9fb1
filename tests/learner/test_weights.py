"""Which weights a learner begins with, which stay as they are, and where those that were learned are found."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.nn.utils import parametrizations

import weft
from weft import Classifier, Learner, Optimizer, Regressor
from weft.core.source import Field
from weft.engine.build import build, seeded
from weft.engine.engine import Engine
from weft.engine.fresh import estranged
from weft.nets import MLP, Linear
from weft.objectives import DANN, Classification, Regression
from weft.sources import Episodes
from weft.strategies import EMA, ERM, MAML, SGLD

rng = np.random.default_rng(0)
X = rng.normal(size=(96, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
SITE = np.arange(96) % 3
COMMON = {"epochs": 2, "batch_size": 32, "random_state": 0}


def body():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())


def net():
    return nn.Sequential(body(), nn.Linear(6, 2))


def params(learner, k=0):
    return learner.training_.every[k].state.params


def buffers(learner):
    return learner.training_.every[0].state.buffers


# --- where they are found --------------------------------------------------------------------------------


def proba(objective):
    return objective.predict_proba(torch.from_numpy(X)).detach().numpy()


@pytest.mark.parametrize("strategy", [None, EMA(decay=0.9)], ids=repr)
def test_the_objective_holds_what_was_learned(strategy, tmp_path):
    learner = Classifier(net, strategy=strategy, **COMMON).fit(X, Y)
    np.testing.assert_allclose(proba(learner.objective_), learner.predict_proba(X), rtol=1e-5)
    learner.partial_fit(X, Y)
    np.testing.assert_allclose(proba(learner.objective_), learner.predict_proba(X), rtol=1e-5)
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", module=net)
    np.testing.assert_array_equal(proba(again.objective_), proba(learner.objective_))
    again.partial_fit(X, Y)  # it goes on as the other does
    np.testing.assert_array_equal(learner.partial_fit(X, Y).predict_proba(X), again.predict_proba(X))


def test_of_replicas_it_is_the_first_and_each_has_its_own():
    many = Classifier(net, replicas=3, **COMMON).fit(X, Y)
    np.testing.assert_allclose(proba(many.objective_), many.replica(0).predict_proba(X), rtol=1e-5)
    second = many.replica(1)
    np.testing.assert_allclose(proba(second.objective_), second.predict_proba(X), rtol=1e-5)
    np.testing.assert_allclose(proba(many.objective_), many.replica(0).predict_proba(X), rtol=1e-5)
    assert not np.allclose(proba(many.objective_), proba(second.objective_))


def test_of_several_draws_it_is_the_last():
    walk = SGLD(draws=2, temperature=0.1)
    learner = Classifier("linear", strategy=walk, optimizer=Optimizer("sgd", lr=0.1), **COMMON).fit(X, Y)
    for name, p in learner.objective_.named_parameters():
        assert torch.equal(p, params(learner)[name])


def test_what_has_adapted_has_its_own():
    task = np.arange(96) % 4
    few = Learner(Regression(hidden=(4,)), strategy=MAML(inner_lr=0.1), steps=2, random_state=0)
    few.fit(Episodes((X, X[:, 0], task), tasks=2, shots=4))
    before = [p.clone() for p in few.objective_.parameters()]
    adapted = few.adapt(X[:8], X[:8, 0])
    for name, p in adapted.objective_.named_parameters():
        assert torch.equal(p, params(adapted)[name])
    assert all(torch.equal(a, b) for a, b in zip(before, few.objective_.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, adapted.objective_.parameters(), strict=True))


# --- what is frozen stays --------------------------------------------------------------------------------


def warmed():
    """A net whose body has statistics of its own, and is frozen."""
    torch.manual_seed(0)
    whole = net()
    whole(torch.randn(50, 4) * 3 + 1)
    whole[0].requires_grad_(False)
    return whole


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("init", ["reset", "keep"])
def test_frozen_parts_stay_statistics_included(init, replicas):
    given = warmed()
    before = {f"net.{name}": value.clone() for name, value in given.state_dict().items()}
    learner = Classifier(given, init=init, replicas=replicas, validation=0.2, **COMMON).fit(X, Y)
    for k in range(replicas or 1):
        state = learner.training_.every[k].state
        now = {**state.params, **state.buffers}
        for name, value in before.items():
            assert torch.equal(now[name], value) == name.startswith("net.0."), name
    (optimizer,) = learner.training_.runs[0].state.optimizers.values()
    assert len(optimizer.state_dict()["state"]) == 2  # the head's weight and bias
    if replicas is None:  # and they are used as they are: training sees what predicting sees
        twin = nn.Sequential(given[0], nn.Linear(6, 2)).eval()
        with torch.no_grad():
            features = given[0].eval()(torch.from_numpy(X))
        head = Classifier(nn.Sequential(nn.Linear(6, 2)), init=init, validation=0.2, **COMMON)
        if init == "keep":
            head.net = nn.Sequential(given[1])
            head.fit(features.numpy(), Y)
            for own in ("weight", "bias"):
                torch.testing.assert_close(params(learner)[f"net.1.{own}"], params(head)[f"net.0.{own}"])
        del twin


def test_a_frozen_layer_without_parameters_of_its_own():
    """Its statistics belong to the frozen part around it."""
    torch.manual_seed(0)
    given = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False)), nn.Linear(6, 2))
    given[0].requires_grad_(False)
    learner = Classifier(given, **COMMON).fit(X, Y)
    assert torch.equal(buffers(learner)["net.0.1.running_mean"], torch.zeros(6))
    alone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 2))
    alone[0].requires_grad_(False)
    learner = Classifier(alone, **COMMON).fit(X, Y)
    assert not torch.equal(buffers(learner)["net.1.running_mean"], torch.zeros(6))


def test_what_the_optimizer_freezes_stays_with_its_statistics_where_it_was_kept():
    given = warmed().requires_grad_(True)
    before = {name: b.clone() for name, b in given.named_buffers()}
    frozen = Optimizer("adam", freeze="net.0.*")
    learner = Classifier(given, init="keep", optimizer=frozen, **COMMON).fit(X, Y)
    assert all(torch.equal(buffers(learner)[f"net.{name}"], b) for name, b in before.items())
    drawn = Classifier(net, optimizer=frozen, **COMMON).fit(X, Y)  # fresh ones have none yet to keep
    assert not torch.equal(buffers(drawn)["net.0.1.running_mean"], torch.zeros(6))


def test_averages_leave_frozen_statistics_alone():
    given = warmed()
    before = {name: b.clone() for name, b in given.named_buffers()}
    learner = Classifier(given, strategy=EMA(decay=0.5), validation=0.2, **COMMON).fit(X, Y)
    assert all(torch.equal(buffers(learner)[f"net.{name}"], b) for name, b in before.items())
    assert not learner.training_.runs[0].state.statistics


def test_all_frozen_is_nothing_to_train():
    with pytest.raises(ValueError, match="expected something to train, got every parameter frozen"):
        Classifier(net().requires_grad_(False), **COMMON).fit(X, Y)


def test_a_net_that_came_in_evaluation_mode_is_trained_as_any_other():
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))
    plain = Classifier(given, **COMMON).fit(X, Y)
    evaluated = Classifier(given.eval(), **COMMON).fit(X, Y)
    spec = {"x": Field((4,), torch.float32), "y": Field((), torch.int64, 2)}
    engine = Engine(build(Classification(given), spec, 0, torch.float32), ERM(), {"": Optimizer("adam")})
    assert all(layer.training for layer in engine.objective.modules())
    for name, p in params(plain).items():
        assert torch.equal(p, params(evaluated)[name])


# --- what they begin with --------------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 2)


KINDS = {
    "linear": lambda: nn.Linear(4, 4),
    "of one feature": lambda: nn.Linear(1, 40),
    "normalized": lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
    "convolution": lambda: nn.Conv2d(3, 8, 3),
    "transposed": lambda: nn.ConvTranspose2d(3, 5, 3),
    "lstm": lambda: nn.LSTM(4, 6, 2),
    "gru": lambda: nn.GRU(4, 6),
    "cell": lambda: nn.RNNCell(4, 5),
    "embedding": lambda: nn.Embedding(50, 8, padding_idx=0),
    "bag": lambda: nn.EmbeddingBag(30, 5),
    "bilinear": lambda: nn.Bilinear(3, 4, 5),
    "prelu": nn.PReLU,
    "layer norm": lambda: nn.LayerNorm(6),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "attention": Attending,
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "mlp": lambda: MLP(4, 2, hidden=(8,)),
    "kaiming": lambda: MLP(4, 2, hidden=(8,), init="kaiming", batch_norm=True),
    "zeros": lambda: Linear(4, 2),
    "many classes": lambda: nn.AdaptiveLogSoftmaxWithLoss(32, 40, [10, 20]),
    "spectral": lambda: parametrizations.spectral_norm(nn.Linear(5, 5)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(5, 5)),
}
PRECISIONS = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.turns("src/weft/engine/fresh.py")
def test_a_thousand_fresh_modules_are_taken_for_fresh():
    odd = []
    for i in range(1000):
        torch.manual_seed(i)
        module = nn.Sequential(list(KINDS.values())[i % len(KINDS)]()).to(PRECISIONS[i // len(KINDS) % 3])
        odd += [(i, name)] if (name := estranged(module, "reset", seeded)) else []
    assert not odd


MODULES = {
    "perceptron": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
    "normalized": net,
    "without biases": lambda: nn.Sequential(nn.Linear(4, 32, bias=False), nn.Tanh(), nn.Linear(32, 2, bias=False)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 8, 3), nn.Flatten(), nn.Linear(16, 2)),
    "kaiming": lambda: MLP(4, 2, hidden=(8,), init="kaiming"),
    "zeros": lambda: Linear(4, 2),
}


@pytest.mark.parametrize("kind", MODULES)
def test_weights_that_were_trained_are_not_discarded_in_silence(kind):
    torch.manual_seed(1)
    common = {"batch_size": 8, "optimizer": Optimizer("adam", lr=1e-2), "random_state": 0}
    fresh = MODULES[kind]()
    trained = Classifier(fresh, epochs=1, **common).fit(X, Y).module().net  # no word so far
    for learner in (Classifier(trained, epochs=1), clone(Classifier(trained, epochs=1, replicas=2))):
        with pytest.warns(UserWarning, match=r"expected init='keep' for a module with weights of its own.*'net\."):
            learner.fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Classifier(trained, epochs=1, init="keep").fit(X, Y)
        Classifier(lambda: trained, epochs=0).fit(X, Y)  # what a factory gives is asked for anew


def test_an_initialization_by_hand_is_not_discarded_in_silence():
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(4, 200, bias=False), nn.ReLU(), nn.Linear(200, 2, bias=False))
    nn.init.orthogonal_(given[0].weight)
    with pytest.warns(UserWarning, match=r"'net.0.weight' has values that no fresh draw has"):
        Classifier(given, epochs=1).fit(X, Y)


def test_values_of_another_distribution_within_the_same_range():
    torch.manual_seed(0)
    given = nn.Linear(16, 64, bias=False)
    with torch.no_grad():
        given.weight.mul_(0.5)
    assert estranged(nn.Sequential(given), "reset", seeded) == "0.weight"


def test_nested_layers_are_drawn_as_their_constructors_draw_them():
    """Inner ones first: attention sets the bias of its own last layer to zero."""
    torch.manual_seed(0)
    whole = Classifier(lambda: Over(), **{**COMMON, "epochs": 0}).fit(X, Y)
    assert (params(whole)["net.inner.attention.out_proj.bias"] == 0).all()


class Over(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Attending()
        self.first = nn.Linear(4, 8)

    def forward(self, x):
        h = self.first(x).unsqueeze(0)
        return self.inner.head(self.inner.attention(h, h, h)[0].squeeze(0))


# --- new heads -------------------------------------------------------------------------------------------


def starts(module, objective=Classification, **settings):
    learner = Learner(objective(module), replicas=2, steps=0, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.fit(X, Y, environment=SITE)
    return learner.training_.runs[0].state


def alike(state, name):
    both = {**state.params, **state.buffers}[name]
    return torch.equal(both[0], both[1])


def test_by_pattern_new_heads_differ_and_kept_weights_do_not():
    given = warmed().requires_grad_(True)
    state = starts(given, init={"net.0.*": "keep"})
    for name, value in given[0].state_dict().items():
        assert alike(state, f"net.0.{name}")
        both = {**state.params, **state.buffers}[f"net.0.{name}"]
        assert torch.equal(both[0], value), name
    assert not alike(state, "net.1.weight")
    assert not torch.equal(state.params["net.1.weight"][0], given[1].weight)
    state = starts(given, init={"net.1.*": "reset", "*": "keep"})
    assert alike(state, "net.0.0.weight")
    assert not alike(state, "net.1.weight")


def test_heads_that_the_objective_makes_differ_while_what_came_is_kept():
    state = starts(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), lambda m: DANN(Classification(m)), init="keep"
    )
    assert alike(state, "objective.net.0.weight")
    assert not alike(state, "adversary.head.weight")
    state = starts(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LazyLinear(2)), init="keep")
    assert alike(state, "net.0.weight")
    assert not alike(state, "net.2.weight")


class Scaled(nn.Module):
    """Has a drawn parameter that nothing draws anew."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x * self.scale)


def test_what_nothing_draws_anew_must_be_kept_or_frozen():
    for init in ("reset", {"net.head.*": "keep"}):
        with pytest.raises(ValueError, match=r"expected every layer with drawn parameters to define reset_parameters"):
            starts(Scaled(), init=init)
    assert alike(starts(Scaled(), init={"net.scale": "keep"}), "net.scale")
    frozen = Scaled()
    frozen.scale.requires_grad_(False)
    assert alike(starts(frozen), "net.scale")


def test_replica_k_by_pattern_is_the_single_run_k():
    given = warmed().requires_grad_(True)
    many = Classifier(given, init={"net.0.*": "keep"}, replicas=2, dtype="float64", **COMMON).fit(X, Y)
    single = Classifier(given, init={"net.0.*": "keep"}, dtype="float64", **{**COMMON, "random_state": 1}).fit(X, Y)
    np.testing.assert_allclose(many.replica(1).predict_proba(X), single.predict_proba(X))


@pytest.mark.parametrize("init", ["kept", {}, {"net.0.*": "kept"}, {"net.9.*": "keep"}, ["keep"], None])
def test_what_init_may_be(init):
    with pytest.raises((ValueError, TypeError), match=r"expected (Classifier's init|a pattern that fits)"):
        Classifier(net, init=init, **COMMON).fit(X, Y)


def test_it_is_kept_with_the_run(tmp_path):
    given = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
    learner = Regressor(given, init={"net.0.*": "keep"}, **COMMON).fit(X, X[:, 0])
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", module=given)
    assert again.init == {"net.0.*": "keep"}
    np.testing.assert_array_equal(again.predict(X), learner.predict(X))
