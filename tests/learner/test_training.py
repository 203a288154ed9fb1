"""What a fitted learner shows of its training: the record, the trained module, the scores of each replica."""

import io

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

import weft
from weft import Classifier, Learner, Optimizer, Regressor
from weft.objectives import DANN, Classification, Regression
from weft.strategies import ERM, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


def test_the_trained_module_answers_as_the_learner_does_and_stands_apart():
    frozen = Optimizer("adam", lr=0.01, freeze="net.features.*")
    learner = Learner(Classification(hidden=(8,)), optimizer=frozen, epochs=3, random_state=0).fit(X, Y)
    module = learner.module()
    rows = torch.as_tensor(X, dtype=torch.float32)
    before = learner.predict_proba(X)
    with torch.no_grad():
        np.testing.assert_allclose(module.net(rows).softmax(-1).numpy(), before, rtol=1e-5)
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained
    assert not any(name.startswith("net.features.") for name in trained)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    np.testing.assert_array_equal(learner.predict_proba(X), before)


def test_the_trained_module_carries_running_statistics():
    learner = Classifier("mlp(hidden=(8,), batch_norm=True)", epochs=3, random_state=0).fit(X + 5.0, Y)
    module = learner.module()
    assert not module.training
    means = [b for name, b in module.named_buffers() if name.endswith("running_mean")]
    assert means
    assert all(bool((b != 0).any()) for b in means)
    with torch.no_grad():
        answer = module.net(torch.as_tensor(X + 5.0, dtype=torch.float32)).softmax(-1).numpy()
    np.testing.assert_allclose(answer, learner.predict_proba(X + 5.0), rtol=1e-5)


def test_which_replicas_module():
    many = Classifier(epochs=2, replicas=2, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"number of one of 2 replicas, got None; module\(0\)"):
        many.module()
    with pytest.raises(IndexError, match=r"in 0\.\.1, got 2"):
        many.module(2)
    first, second = (next(iter(many.module(k).parameters())) for k in (0, 1))
    assert not torch.equal(first, second)
    swept = Classifier(epochs=2, replicas={"optimizer__lr": [1e-6, 1e-2]}, random_state=0).fit(X, Y)
    best = next(iter(swept.module().parameters()))
    assert torch.equal(best, next(iter(swept.module(swept.best_replica_).parameters())))
    with pytest.raises(NotFittedError):
        Classifier().module()


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_scores_of_each_replica_and_what_has_diverged():
    rates = {"optimizer__lr": [1e-2, 1e30]}
    many = Learner(
        Regression(hidden=(8,)), optimizer=Optimizer("sgd", lr=0.01), replicas=rates, epochs=3, random_state=0
    )
    many.fit(X, X[:, 0])
    scores = many.replica_scores(X, X[:, 0])
    assert many.training_.diverged == [False, True]
    assert scores[0] == many.replica(0).score(X, X[:, 0])
    assert np.isnan(scores[1])
    one = Classifier(epochs=2, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(one.replica_scores(X, Y), [one.score(X, Y)])


def test_the_record_of_the_training():
    many = Classifier(epochs=2, replicas=2, random_state=3, strategy="erm").fit(X, Y, task=np.repeat(["a", "b"], 30))
    training = many.training_
    assert training.settings == [{"random_state": 3}, {"random_state": 4}]
    assert training.spec["x"].shape == (3,)
    assert len(training.runs) == 1
    assert len(training.every) == 2
    assert training.phase.task == "b"
    assert training.phase.runs == []
    with pytest.raises(ValueError, match="expected one trained run, got several replicas"):
        _ = training.alone
    assert many.replica(1).training_.alone.state.seeds == 4


def test_settings_are_what_the_parameters_mean():
    settings = Classifier(strategy="and-mask", dtype="float64", device="cpu").settings()
    assert isinstance(settings.strategy, ANDMask)
    assert settings.dtype == torch.float64
    assert isinstance(Classifier().settings().strategy, ERM)
    with pytest.raises(ValueError, match="clip to be a number > 0 or None"):
        Classifier(clip=-1.0).settings()


def test_a_fit_that_is_refused_leaves_what_was_learned():
    learner = Classifier(epochs=2, random_state=0).fit(X, Y)
    before = learner.predict_proba(X)
    with pytest.raises(ValueError, match="contains NaN"):
        learner.fit(np.where(X > 2, np.nan, X), Y)
    np.testing.assert_array_equal(learner.predict_proba(X), before)


def test_swept_values_out_of_range_are_refused_before_training():
    with pytest.raises(ValueError, match="weighting to be one of"):
        Classifier(replicas={"weighting": ["example", "examples"]}, random_state=0).fit(X, Y)


@pytest.mark.parametrize("sites", [["north", "south"], [3, 7]])
def test_a_loaded_learner_knows_the_environments_that_it_numbers(tmp_path, sites):
    site = np.array(sites)[np.arange(60) % 2]
    Learner(DANN(Classification(hidden=(4,)), hidden=(4,)), epochs=1, random_state=0).fit(X, Y, environment=site).save(
        tmp_path / "run"
    )
    loaded = weft.load(tmp_path / "run")
    assert loaded.environments_.tolist() == sites
    with pytest.raises(ValueError, match="environments that training began with"):
        loaded.partial_fit(X, Y, environment=np.where(site == sites[0], sites[0], sites[0]))
    loaded.partial_fit(X, Y, environment=site)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("net", ["mlp(hidden=(8,))", "mlp(hidden=(8,), batch_norm=True)"])
def test_the_trained_net_is_exported_and_answers_any_number_of_rows(net):
    learner = Classifier(net, epochs=2, random_state=0).fit(X, Y)
    rows = torch.as_tensor(X, dtype=torch.float32)
    n = torch.export.Dim("n", min=2)
    exported = torch.export.export(learner.module().net, (rows,), dynamic_shapes=({0: n},))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    program = torch.export.load(file).module()
    for some in (rows, rows[:7]):
        answer = program(some).softmax(-1).detach().numpy()
        np.testing.assert_allclose(answer, learner.predict_proba(some), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("net", ["mlp(hidden=(8,))", "mlp(hidden=(8,), batch_norm=True, dropout=0.5)"])
def test_the_trained_net_goes_to_onnx_and_answers_any_number_of_rows(net, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    learner = Classifier(net, epochs=2, replicas=2, random_state=0).fit(X, Y)
    rows = torch.as_tensor(X, dtype=torch.float32)
    n = torch.export.Dim("n", min=2)
    program = torch.onnx.export(
        learner.module(1).net, (rows,), dynamo=True, verbose=False, input_names=["x"], dynamic_shapes=({0: n},)
    )
    program.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    for some in (rows, rows[:7]):
        (logits,) = session.run(None, {"x": some.numpy()})
        answer = torch.from_numpy(logits).softmax(-1).numpy()
        np.testing.assert_allclose(answer, learner.replica(1).predict_proba(some), rtol=1e-5, atol=1e-5)


def test_module_is_the_trained_one_and_net_the_one_given():
    given = torch.nn.Linear(3, 2)
    learner = Classifier(given, epochs=2, random_state=0).fit(X, Y)
    assert learner.net is given
    assert not torch.equal(learner.module(0).net.weight, given.weight)
    assert not learner.module().training
    for wrong in (Classifier, Regressor):
        with pytest.raises(TypeError, match=rf"expected the net of {wrong.__name__} as net=\.\.\., got 'module'"):
            wrong(module=given)
        with pytest.raises(ValueError, match=r"as net=\.\.\., got 'module'"):
            wrong().set_params(module=given)


# --- the presets' loss --------------------------------------------------------------------------------


def test_a_loss_given_to_a_preset_is_that_of_its_objective():
    for loss in ("focal(gamma=1)", "ordinal", "hinge"):
        preset = Classifier(loss=loss, epochs=2, random_state=0).fit(X, Y)
        plain = Learner(Classification(loss=loss), epochs=2, random_state=0).fit(X, Y)
        np.testing.assert_array_equal(preset.history_["loss"], plain.history_["loss"])
        assert hasattr(preset, "predict_proba") == (loss != "hinge")
    counts = np.random.default_rng(0).poisson(np.exp(X[:, 0]))
    preset = Regressor(loss="poisson", epochs=20, random_state=0).fit(X, counts)
    assert (preset.predict(X) > 0).all()
    assert preset.settings().objective.targets == "counts"
    with pytest.raises(ValueError, match="expected counts"):
        Regressor(loss="poisson", epochs=1).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="Regressor's loss to be a loss of values"):
        Regressor(loss="focal", epochs=1).fit(X, counts)
    with pytest.raises(ValueError, match="Classifier's loss to be a loss of classes"):
        Classifier(loss="poisson", epochs=1).fit(X, Y)
    unknown = Classifier(loss="focl")
    assert not hasattr(unknown, "predict_proba")
    assert "fit" in dir(unknown)
    with pytest.raises(ValueError, match="did you mean 'focal'"):
        unknown.fit(X, Y)


def test_replicas_of_losses_that_read_y_otherwise_are_refused():
    counts = np.abs(X[:, 0])  # none are counts, which only one of the two would have asked for
    with pytest.raises(
        ValueError, match="expected replicas that learn values, as y was read, got one that learns counts"
    ):
        Regressor(replicas={"loss": ["absolute", "poisson"]}, epochs=1, random_state=0).fit(X, counts)


def test_scikit_learn_s_tags_follow_the_loss():
    several, one = Classifier(loss="multi-label"), Classifier()
    assert get_tags(several).classifier_tags.multi_label
    assert not get_tags(one).classifier_tags.multi_label
    assert get_tags(several).estimator_type == get_tags(one).estimator_type == "classifier"
    assert get_tags(Regressor(loss="gamma")).target_tags.positive_only
    assert get_tags(Regressor(loss="poisson")).target_tags.positive_only
    assert not get_tags(Regressor(loss="huber")).target_tags.positive_only
    labels = np.stack([X[:, 0] > 0, X[:, 1] > 0], 1).astype(int)
    several.set_params(epochs=30, random_state=0).fit(X, labels)
    assert several.predict(X).shape == labels.shape
    assert several.score(X, labels) == (several.predict(X) == labels).all(1).mean() > 0.6
    assert clone(several).loss == "multi-label"


def test_a_loss_of_ones_own_is_given_again_by_its_name(tmp_path):
    def plain(z, y):
        return torch.nn.functional.cross_entropy(z, y, reduction="none")

    net = torch.nn.Linear(3, 2)
    learner = Classifier(net, loss=plain, epochs=1, random_state=0).fit(X, Y)
    learner.save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"expected loss \(function\) again"):
        weft.load(tmp_path / "run", module=net)
    again = weft.load(tmp_path / "run", module=net, loss=plain)
    np.testing.assert_array_equal(again.predict(X), learner.predict(X))
