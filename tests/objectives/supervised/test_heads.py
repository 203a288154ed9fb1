"""Heads against its parts alone and a loss written out; a body that they share; kept, loaded and cloned."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.neighbors import KernelDensity
from torch import nn

from weft import Learner, Optimizer, load
from weft.core.source import number_rows
from weft.engine import Engine
from weft.engine.build import build
from weft.objectives import GAN, Classification, Heads, LeastSquares, Regression
from weft.sources import Arrays
from weft.strategies import ERM, EWC, IRM, MAS, GenerativeReplay, LwF

generator = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=generator, dtype=torch.float64)
LABEL = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
VALUE = X[:, 0] - X[:, 2] ** 2
SGD = {"optimizer": Optimizer("sgd", lr=0.1), "dtype": "float64", "random_state": 0}


def source(**settings):
    targets = {"kind_y": LABEL, "mass_y": VALUE}
    return Arrays(X, **{**targets, "classes": {"kind_y": 3}, "batch_size": 10, **settings})


def small(**settings):
    return Heads({"kind": Classification(hidden=(5,)), "mass": Regression(hidden=(4,))}, **settings)


def shared():
    body = nn.Sequential(nn.Linear(3, 6), nn.Tanh())
    return {
        "kind": Classification(nn.Sequential(body, nn.Linear(6, 3))),
        "mass": Regression(nn.Sequential(body, nn.Linear(6, 1))),
    }


def started(objective):
    built = build(objective, source().spec, 0, torch.float64)
    engine = Engine(built, ERM(), {"": Optimizer("sgd", lr=0.1)})
    return engine, engine.init([0], torch.device("cpu"))


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_heads_of_their_own_learn_as_if_alone(weight):
    """A weight is then a factor of that head's learning rate."""
    nets = {"kind": nn.Linear(3, 3), "mass": nn.Linear(3, 1)}
    heads = {"kind": Classification(nets["kind"]), "mass": Regression(nets["mass"])}
    learner = Learner(Heads(heads, weights={"mass": weight}), steps=7, init="keep", **SGD).fit(source())
    rows = {"batch_size": 10}
    kind = Learner(heads["kind"], steps=7, init="keep", **SGD).fit(Arrays(X, LABEL, classes=3, **rows))
    slower = {**SGD, "optimizer": Optimizer("sgd", lr=0.1 * weight)}
    mass = Learner(heads["mass"], steps=7, init="keep", **slower).fit(Arrays(X, VALUE, **rows))
    np.testing.assert_allclose(learner.kind_predict_proba(X), kind.predict_proba(X), rtol=1e-9)
    np.testing.assert_allclose(learner.mass_predict(X), mass.predict(X), rtol=1e-9)
    assert set(learner.objective_.capabilities()) == {"kind_predict", "kind_predict_proba", "mass_predict"}
    assert {"loss", "kind_loss", "kind_accuracy", "mass_loss"} <= set(learner.history_[0])
    total = learner.history_["kind_loss"] + weight * learner.history_["mass_loss"]
    np.testing.assert_allclose(learner.history_["loss"][-1:], total[-1:], atol=0.5)


def test_a_shared_body_learns_from_both():
    engine, state = started(Heads(shared(), weights={"kind": 2.0}))
    names = list(state.params)
    assert sum("net.0.0" in name for name in names) == 2, "the body's weight and bias, once"
    batch = number_rows(next(source().batches(state)), 1)
    gradient, loss, _, _ = engine.gradient(state, batch, "")
    leaves = {name: p.detach().clone().requires_grad_() for name, p in state.params.items()}
    w, b, wk, bk, wm, bm = (leaves[name] for name in names)
    z = torch.tanh(batch["x"] @ w.T + b)
    wanted = 2.0 * F.cross_entropy(z @ wk.T + bk, batch["kind_y"])
    wanted = wanted + ((z @ wm.T + bm)[:, 0] - batch["mass_y"]).square().mean() / 2
    torch.testing.assert_close(loss, wanted.detach())
    slopes = torch.autograd.grad(wanted, list(leaves.values()))
    for name, slope in zip(names, slopes, strict=True):
        torch.testing.assert_close(gradient[name], slope)


def test_replicas_of_a_shared_body_are_the_single_runs():
    settings = {**SGD, "steps": 5}
    many = Learner(Heads(shared()), replicas=2, **settings).fit(source())
    single = Learner(Heads(shared()), **{**settings, "random_state": 1}).fit(source())
    np.testing.assert_allclose(many.replica(1).mass_predict(X), single.mass_predict(X), rtol=1e-9)
    module = single.module()
    assert module.heads["kind"].net[0] is module.heads["mass"].net[0]


def test_whether_it_is_a_likelihood():
    assert small().likelihood
    assert small(weights={"mass": 1.0}).likelihood
    assert not small(weights={"mass": 2.0}).likelihood
    assert not Heads({"kind": Classification(), "other": Heads({"a": Regression()}, weights={"a": 2.0})}).likelihood
    assert EWC().refuses(small()) is None
    assert EWC(fisher="empirical").refuses(small()) is None
    assert "is not a log-likelihood" in EWC(fisher="empirical").refuses(small(weights={"mass": 2.0}))
    assert EWC().refuses(small(weights={"mass": 2.0})) is None, "what is predicted has a Fisher information"
    assert LwF().refuses(small()) is None
    told = EWC().refuses(Heads({"a": Silent()}))
    assert "Heads does not tell their distribution" in told
    assert "fisher='empirical'" in told
    assert "not a log-likelihood" not in told


class Silent(Regression):
    """A likelihood that does not tell what it predicts."""

    provides = frozenset({"logits", "rescore", "features"})


@pytest.mark.parametrize("heads", [small, lambda: Heads(shared())], ids=["own nets", "a shared body"])
def test_the_fisher_information_is_that_of_independent_targets(heads):
    """sum_k p_k (grad log p_k)^2 of the classes, and (grad mean)^2 of a normal with noise 1."""
    learner = Learner(heads(), strategy=EWC(strength=1.0), steps=4, **SGD).partial_fit(source(), task="one")
    found = learner.training_.runs[0].state.strategy[""]["tasks"]["one"]["precision"]
    module = learner.module()
    named = dict(module.named_parameters())
    wanted = {name: torch.zeros_like(p) for name, p in named.items()}
    for row in X.unsqueeze(1):
        log = module.heads["kind"].net(row).log_softmax(-1)[0]
        scalars = [(log[k], log[k].exp().detach()) for k in range(3)] + [(module.heads["mass"].net(row)[0, 0], 1.0)]
        for scalar, weight in scalars:
            slopes = torch.autograd.grad(scalar, list(named.values()), retain_graph=True, allow_unused=True)
            for name, slope in zip(named, slopes, strict=True):
                if slope is not None:
                    wanted[name] += weight * slope.square() / len(X)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_a_sampled_information_draws_every_target_apart():
    heads = Heads({"a": Regression(hidden=(4,)), "b": Regression(hidden=(4,))})
    rows = Arrays(X, a_y=VALUE, b_y=VALUE, batch_size=10)
    learner = Learner(heads, strategy=EWC(strength=1.0, fisher="sampled"), steps=1, **SGD).partial_fit(rows, task="one")
    found = learner.training_.runs[0].state.strategy[""]["tasks"]["one"]["precision"]
    a, b = (next(p for n, p in found.items() if n.startswith(f"heads.{h}") and n.endswith("head.bias")) for h in "ab")
    assert float(a) != float(b), "the square of the noise that each target was drawn with"


def test_what_was_predicted_is_distilled_for_every_target():
    learner = Learner(small(), strategy=LwF(strength=0.7, temperature=2.0), steps=3, **SGD)
    learner.partial_fit(source(), task="one")
    engine, state = learner.training_.runs[0]
    rows = number_rows(next(source().batches(state)), 1)
    teacher = learner.module()
    learner.partial_fit(source(), task="two")
    student = learner.module()
    state = learner.training_.runs[0].state
    state.strategy[""]["teacher"] = {n: p.detach() for n, p in teacher.named_parameters()}
    loss = engine.gradient(state, rows, "")[1]
    old, new = ((m.heads["kind"].net(rows["x"]) / 2.0).log_softmax(-1) for m in (teacher, student))
    apart = (old.exp() * (old - new)).sum(-1)
    means = [m.heads["mass"].net(rows["x"])[:, 0] for m in (teacher, student)]
    apart = apart + (means[0] - means[1]).square() / (2.0 * 2.0)
    torch.testing.assert_close(loss, (student(rows).losses + 0.7 * apart).mean().detach())


def test_rows_drawn_are_answered_by_every_head():
    replay = GenerativeReplay(generator=KernelDensity(bandwidth=0.3), size=20, rows=5)
    learner = Learner(small(), strategy=replay, steps=5, **SGD).partial_fit(source(), task="one")
    memory = learner.training_.runs[0].state.strategy[""]["memory"]["rows"]
    assert memory.keys() == {"x", "kind_y", "mass_y", "weight"}
    np.testing.assert_array_equal(memory["kind_y"].numpy(), learner.kind_predict(memory["x"]))
    np.testing.assert_allclose(memory["mass_y"].numpy(), learner.mass_predict(memory["x"]), rtol=1e-9)


@pytest.mark.parametrize("heads", [small, lambda: Heads(shared())], ids=["own nets", "a shared body"])
def test_the_empirical_fisher_information_is_a_sum_over_examples(heads):
    """A shared layer is run through twice for an example, and its gradient is the sum of both."""
    learner = Learner(heads(), strategy=EWC(fisher="empirical", strength=1.0), steps=4, **SGD)
    learner.partial_fit(source(), task="one")
    _, state = learner.training_.runs[0]
    kept = state.strategy[""]["tasks"]
    (term,) = kept.values()
    found = term["precision"]
    module = learner.module()
    named = dict(module.named_parameters())
    wanted = {name: torch.zeros_like(p) for name, p in named.items()}
    for i in range(len(X)):
        row = {"x": X[i : i + 1], "kind_y": LABEL[i : i + 1], "mass_y": VALUE[i : i + 1]}
        slopes = torch.autograd.grad(module(row).losses.sum(), list(named.values()))
        for name, slope in zip(named, slopes, strict=True):
            wanted[name] += slope.square() / len(X)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_the_logits_are_those_of_all_heads_side_by_side():
    engine, state = started(small(weights={"kind": 3.0}))
    batch = number_rows(next(source().batches(state)), 1)
    output = engine.objective(batch)
    assert output.logits.shape == (10, 4)
    torch.testing.assert_close(output.rescore(output.logits), output.losses)
    z = output.logits.detach() * 0.5
    error = (batch["mass_y"] - z[:, 3]).square() / 2
    torch.testing.assert_close(
        output.rescore(z), 3.0 * F.cross_entropy(z[:, :3], batch["kind_y"], reduction="none") + error
    )
    assert IRM().refuses(small()) is None
    assert MAS().refuses(small()) is None

    class Bare(Regression):
        provides = frozenset()

    assert Heads({"a": Bare(), "b": Regression()}).provides == frozenset()


def test_saved_and_loaded(tmp_path):
    learner = Learner(small(weights={"mass": 0.5}), steps=3, random_state=0).fit(source())
    learner.save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert list(again.objective.heads) == ["kind", "mass"]
    assert again.objective.heads["kind"].hidden == (5,)
    np.testing.assert_array_equal(again.mass_predict(X), learner.mass_predict(X))
    np.testing.assert_array_equal(again.kind_predict(X), learner.kind_predict(X))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["params"]["objective"]["params"]["heads"]["mass"]["$method"] == "objectives/regression"


def test_nets_given_again_are_told_apart_by_their_heads(tmp_path):
    learner = Learner(Heads(shared()), steps=3, random_state=0).fit(source())
    learner.save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"expected net \(Sequential\), net \(Sequential\) again"):
        load(tmp_path / "run")
    again = shared()
    one = load(tmp_path / "run", kind__net=again["kind"].net, mass__net=again["mass"].net)
    np.testing.assert_array_equal(one.mass_predict(X), learner.mass_predict(X))
    with pytest.raises(ValueError, match=r"shape that was trained|to fit|whose answer"):
        load(tmp_path / "run", net=again["kind"].net)


def test_hyperparameters_of_heads_are_reached_by_name():
    heads = small()
    assert heads.get_params()["heads__kind__hidden"] == (5,)
    assert heads.get_params()["heads__mass"] is heads.heads["mass"]
    twin = clone(Learner(heads, steps=1))
    assert twin.objective is not heads
    twin.set_params(objective__heads__kind__hidden=(7,), objective__weights={"kind": 2.0})
    assert twin.objective.heads["kind"].hidden == (7,)
    assert heads.heads["kind"].hidden == (5,)
    changed = heads.having(heads__mass__noise=2.0, weights={"mass": 3.0})
    assert (changed.heads["mass"].noise, changed.weights) == (2.0, {"mass": 3.0})
    assert (heads.heads["mass"].noise, heads.weights) == (1.0, None)
    with pytest.raises(ValueError, match=r"one of Heads's heads among kind, mass, got 'kinds'; did you mean 'kind'"):
        heads.set_params(heads__kinds__hidden=(7,))
    swept = Learner(small(), steps=2, replicas={"objective__heads__mass__noise": [1.0, 2.0]}, random_state=0)
    with pytest.warns(UserWarning, match="one after another"):
        swept.fit(source())
    assert not np.array_equal(swept.replica(0).mass_predict(X), swept.replica(1).mass_predict(X))


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Heads(), "expected Heads to have objectives by name"),
        (Heads({}), "expected Heads to have objectives by name"),
        (small(weights={"masse": 1.0}), "a head to weigh among kind, mass, got 'masse'; did you mean 'mass'"),
        (small(weights={"mass": -1.0}), "Heads' weights to be weights >= 0 by name or None, got {'mass': -1.0}"),
        (small(weights={"mass": 0, "kind": 0}), "some of Heads' weights to be positive"),
        (Heads({"size": Regression()}), r"rows with 'size_y', which Heads reads, got \['kind_y', 'mass_y', 'x'\]"),
        (Heads({"mass": LeastSquares()}), "trained by descent, got LeastSquares"),
        (Heads({"mass": GAN()}), "one player, got GAN"),
        (Heads({"mass": Classification()}), "how many classes y numbers"),
        (Heads({"kind": Classification(class_weight="balanced")}), "no class_weight in Heads's kind, got 'balanced'"),
        (Classification(class_weight="balanced"), "class_weight=None with a source.*got 'balanced'"),
    ],
)
def test_bad_settings(objective, message):
    with pytest.raises(ValueError, match=message):
        Learner(objective, steps=1).fit(source())


def test_bad_data():
    with pytest.raises(ValueError, match="rows with 'kind_y', which Heads reads"):
        Learner(small(), steps=1).fit(X, LABEL)
    with pytest.raises(ValueError, match=r"classes of fields among .* got them of 'kind'"):
        source(classes={"kind": 3})
    with pytest.raises(ValueError, match="got them of 'y'"):
        source(classes=3)
    learner = Learner(small(), steps=1).fit(source())
    with pytest.raises(ValueError, match="X has 2 features, but Learner is expecting 3"):
        learner.mass_predict(X[:, :2])
    with pytest.raises(AttributeError, match="no attribute 'weight_predict'"):
        learner.weight_predict(X)
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        learner.predict(X)
