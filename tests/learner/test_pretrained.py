"""Parts of a net that are taken from another learner, a module or a file."""

import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.base import clone
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer
from weft.objectives import Classification, LeastSquares

rng = np.random.default_rng(0)
X = rng.normal(size=(96, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
COMMON = {"epochs": 2, "batch_size": 32, "random_state": 0, "device": "cpu"}


class Net(nn.Module):
    def __init__(self, out=2, width=6, depth=1):
        super().__init__()
        layers = [nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, *(nn.Linear(width, width) for _ in range(depth - 1)))
        self.head = nn.Linear(width, out)

    def forward(self, x):
        return self.head(self.encoder(x))


@pytest.fixture(scope="module")
def trained():
    return Classifier(Net, **{**COMMON, "random_state": 7}).fit(X, Y)


def encoder(learner, k=0):
    state = learner.training_.every[k].state
    return {n: t for n, t in {**state.params, **state.buffers}.items() if n.startswith("net.encoder.")}


def same(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def begun(init, **settings):
    return Classifier(Net, **{**COMMON, "epochs": 0, **settings}, init=init).fit(X, Y)


def ways(trained, folder):
    module = trained.objective_.net
    save_file(module.encoder.state_dict(), folder / "encoder.safetensors")
    save_file(module.state_dict(), folder / "net.safetensors")
    return {
        "a learner": trained,
        "the part": module.encoder,
        "the net": module,
        "a file of the part": folder / "encoder.safetensors",
        "a file of the net": str(folder / "net.safetensors"),
    }


def test_a_part_is_taken_with_its_statistics_and_all_else_is_reset(trained, tmp_path):
    fresh = begun("reset")
    for way, other in ways(trained, tmp_path).items():
        learner = begun({"net.encoder.*": other})
        assert same(encoder(learner), encoder(trained)), way
        assert not same(encoder(learner), encoder(fresh)), way
        for name in ("net.head.weight", "net.head.bias"):
            own = learner.training_.alone.state.params[name]
            assert torch.equal(own, fresh.training_.alone.state.params[name]), way


def test_what_is_taken_is_a_copy(trained):
    before = encoder(trained)
    kept = {name: t.clone() for name, t in before.items()}
    learner = begun({"net.encoder.*": trained.objective_.net}, epochs=2)
    assert not same(encoder(learner), kept)
    assert same(encoder(trained), kept)


def test_replicas_share_it_and_replica_k_is_the_single_run_k(trained):
    settings = {**COMMON, "dtype": "float64", "init": {"net.encoder.*": trained}}
    start = Classifier(Net, replicas=3, **{**settings, "epochs": 0}).fit(X, Y)
    assert all(same(encoder(start, k), encoder(start, 0)) for k in range(3))
    heads = [start.training_.every[k].state.params["net.head.weight"] for k in range(3)]
    assert not torch.equal(heads[0], heads[1])
    many = Classifier(Net, replicas=3, **settings).fit(X, Y)
    single = Classifier(Net, **{**settings, "random_state": 2}).fit(X, Y)
    np.testing.assert_allclose(many.replica(2).predict_proba(X), single.predict_proba(X))


@pytest.mark.parametrize("replicas", [None, 2])
def test_frozen_it_stays_frozen_statistics_included(trained, replicas):
    optimizer = Optimizer("adam", freeze="net.encoder.*")
    learner = begun({"net.encoder.*": trained}, epochs=2, optimizer=optimizer, replicas=replicas)
    assert same(encoder(learner), encoder(trained))
    moving = begun({"net.encoder.*": trained}, epochs=2, replicas=replicas)
    assert not same(encoder(moving), encoder(trained))


def test_what_is_frozen_there_and_trained_here_is_said(trained):
    part = Net().encoder.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"expected 'net.encoder.0.weight' to stay as it is"):
        begun({"net.encoder.*": part})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begun({"net.encoder.*": part}, optimizer=Optimizer("adam", freeze="net.encoder.*"))


def test_the_first_pattern_counts_and_patterns_take_from_several(trained):
    other = Net(out=3)
    learner = begun({"net.head.*": "reset", "net.*": other})
    assert torch.equal(learner.training_.alone.state.params["net.encoder.0.weight"], other.encoder[0].weight)
    learner = begun({"net.encoder.1.*": trained, "net.encoder.*": other.encoder})
    params = learner.training_.alone.state.params
    assert torch.equal(params["net.encoder.0.weight"], other.encoder[0].weight)
    assert torch.equal(params["net.encoder.1.weight"], encoder(trained)["net.encoder.1.weight"])


def test_a_run_needs_the_other_no_more(trained, tmp_path):
    for i, (way, other) in enumerate(ways(trained, tmp_path).items()):
        folder = tmp_path / f"run{i}"
        optimizer = Optimizer("adam", freeze="net.encoder.*")
        learner = begun({"net.encoder.*": other}, epochs=2, optimizer=optimizer, folder=folder)
        for file in tmp_path.glob("*.safetensors"):
            file.unlink()
        again = weft.load(folder, module=Net)
        assert same(encoder(again), encoder(trained)), way
        np.testing.assert_array_equal(again.predict_proba(X), learner.predict_proba(X))
        assert same(encoder(again.replica(0)), encoder(trained)), way
        again.resume(X, Y)
        again.partial_fit(X, Y)
        assert same(encoder(again), encoder(trained)), way
        with pytest.raises((ValueError, FileNotFoundError), match=r"expected (what 'net|a safetensors file)"):
            again.fit(X, Y)
        ways(trained, tmp_path)


def test_an_interrupted_run_goes_on_without_the_other(trained, tmp_path):
    def stop(record):
        if record["epoch"] == 2:
            raise InterruptedError

    init = {"net.encoder.*": trained.objective_.net.encoder}
    with pytest.raises(InterruptedError):
        begun(init, epochs=4, folder=tmp_path / "run", callbacks=[stop])
    whole = begun(init, epochs=4)
    again = weft.load(tmp_path / "run", module=Net).resume(X, Y)
    np.testing.assert_array_equal(again.predict_proba(X), whole.predict_proba(X))


def test_scikit_learn_clones_it(trained):
    learner = clone(Classifier(Net, init={"net.encoder.*": trained}, **COMMON)).fit(X, Y)
    same_again = Classifier(Net, init={"net.encoder.*": trained}, **COMMON).fit(X, Y)
    np.testing.assert_array_equal(learner.predict_proba(X), same_again.predict_proba(X))


def test_a_sweep_over_where_it_is_taken_from(trained):
    inits = ["reset", {"net.encoder.*": trained}]
    with pytest.warns(weft.engine.VectorizationWarning, match="'init' changes what is computed"):
        learner = Learner(Classification(Net), replicas={"init": inits}, **{**COMMON, "epochs": 0}).fit(X, Y)
    assert not same(encoder(learner, 0), encoder(trained))
    assert same(encoder(learner, 1), encoder(trained))


class Both(nn.Module):
    """Has what is wanted twice."""

    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.zeros(2, 6)), nn.Linear(6, 2)
        self.bias = nn.Parameter(torch.zeros(2))


def spoiled():
    module = Net()
    module.head.weight.data[0, 0] = float("nan")
    return module


WRONG = {
    "an unknown pattern": ({"net.encode.*": Net()}, "expected a pattern that fits parameter names in init"),
    "a name that is not there": ({"net.*": Net().encoder}, r"a tensor for 'net.encoder.0.weight' in Sequential"),
    "one that has no place": ({"net.encoder.*": Net(depth=2)}, r"a place for 'encoder.3.weight' of Net"),
    "another shape": ({"net.*": Net(out=3)}, r"'head.weight' of Net to have the shape \(2, 6\).*got \(3, 6\).*'reset'"),
    "two that fit": ({"net.head.*": Both()}, "got 'head.weight' and 'weight'"),
    "no statistics": ({"net.*.weight": Net(), "net.*.bias": Net()}, "where 'net.encoder.1.running_mean' comes from"),
    "never reached": ({"net.*": Net(), "net.head.*": Net()}, "expected a pattern in init .*'net.head.*'; put it first"),
    "not finite": ({"net.*": spoiled()}, "expected finite values to begin with, got others in 'head.weight'"),
    "an untrained learner": ({"net.*": Classifier()}, "expected a trained learner for 'net.*'"),
    "nothing in it": ({"net.*": nn.ReLU()}, "expected a module with parameters"),
    "no such file": ({"net.*": "nowhere.safetensors"}, "nowhere.safetensors, which is not there"),
    "a word": ({"net.*": "kept"}, "Classifier's init"),
    "a number": ({"net.*": 3}, "Classifier's init"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused(wrong):
    init, message = WRONG[wrong]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        begun(init)


def test_replicas_are_asked_which(trained):
    many = Classifier(Net, replicas=2, **COMMON).fit(X, Y)
    with pytest.raises(ValueError, match=r"got 2 replicas; give one: learner\.replica"):
        begun({"net.*": many})
    assert same(encoder(begun({"net.*": many.replica(1)})), encoder(many, 1))


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"not tensors")
    with pytest.raises(ValueError, match="expected a safetensors file in init, got"):
        begun({"net.*": path})
    with pytest.raises(ValueError, match=r"got the folder .*weft.load"):
        begun({"net.*": tmp_path})


def test_what_is_solved_begins_nowhere(trained):
    with pytest.raises(ValueError, match=r"expected an objective that is descended beside init=.*'taken from Net'"):
        Learner(LeastSquares(), init={"*": Net()}).fit(X, X[:, 0])
