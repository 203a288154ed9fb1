"""Losses against scipy, torch and formulas written out; what they declare; through the Learner and the command line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.datasets import load_digits

import weft
from weft import Learner, Optimizer
from weft.core.catalogue import named
from weft.core.spelling import parse
from weft.engine import Diverged
from weft.objectives import Classification, Heads, Regression
from weft.objectives.supervised.losses import (
    Absolute,
    Brier,
    CrossEntropy,
    Focal,
    Gamma,
    Gaussian,
    Hinge,
    Huber,
    MultiLabel,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantile,
    Squared,
)
from weft.sources import Arrays
from weft.strategies import EWC, IRM, Laplace, LwF
from weft.strategies.continual.laplace import _scores
from weft.testing import check_objective

rng = np.random.default_rng(0)
ROWS = 60
X = rng.normal(size=(ROWS, 4))
SCORE = X @ np.array([1.0, -0.5, 0.3, 0.0])
GRADE = np.digitize(SCORE, [-0.7, 0.0, 0.7])  # four classes in an order
TARGETS = {
    "classes": GRADE,
    "multilabel": (X[:, :3] > 0.2).astype(np.int64),
    "values": SCORE + 0.1 * rng.normal(size=ROWS),
    "counts": rng.poisson(np.exp(SCORE)),
    "amounts": rng.gamma(2.0, np.exp(SCORE) / 2.0),
}
ADAM = Optimizer("adam", lr=0.02)
EVERY = [
    *(CrossEntropy(), CrossEntropy(smoothing=0.2), Focal(), Focal(gamma=0.5), Hinge(margin=2.0), Brier(), Ordinal()),
    *(MultiLabel(), Squared(noise=0.5), Absolute(), Huber(width=0.3), Quantile(level=0.8), Gaussian()),
    *(Poisson(), NegativeBinomial(dispersion=0.4), Gamma(shape=2.5)),
]
LIKELY = [loss for loss in EVERY if loss.likelihood]
OF_CLASSES = ("classes", "multilabel")


def objective_of(loss, **settings):
    return (Classification if loss.targets in OF_CLASSES else Regression)(hidden=(8,), loss=loss, **settings)


def source_of(loss, targets=None):
    y = torch.as_tensor(TARGETS[loss.targets] if targets is None else targets)
    return Arrays(torch.as_tensor(X), y, batch_size=12, classes=4 if loss.targets == "classes" else None)


def given(shape):
    return torch.as_tensor(np.random.default_rng(1).normal(size=shape))


def test_every_loss_is_tried_here():
    assert {type(loss).__name__ for loss in EVERY} == set(named("losses").values())


# --- formulas -----------------------------------------------------------------------------------------


def test_the_losses_of_classes():
    z, y = given((ROWS, 4)), torch.as_tensor(GRADE)
    p, n = z.softmax(-1).numpy(), np.arange(ROWS)
    own, log = p[n, GRADE], np.log(p)
    for loss, truth in [
        (CrossEntropy(), -log[n, GRADE]),
        (CrossEntropy(smoothing=0.2), -0.8 * log[n, GRADE] - 0.2 * log.mean(1)),
        (Focal(gamma=0.0), -log[n, GRADE]),
        (Focal(gamma=2.0), -((1 - own) ** 2) * np.log(own)),
        (Brier(), ((p - np.eye(4)[GRADE]) ** 2).sum(1)),
    ]:
        np.testing.assert_allclose(loss(z, y).numpy(), truth, rtol=1e-10, err_msg=repr(loss))
    scores, others = z.numpy(), z.numpy().copy()
    others[n, GRADE] = -np.inf
    np.testing.assert_allclose(Hinge()(z, y).numpy(), np.maximum(0, 1 + others.max(1) - scores[n, GRADE]))


def test_the_hinge_of_two_classes_is_the_support_vector_machines():
    z, y = given((ROWS, 2)), torch.as_tensor(GRADE > 1).long()
    sign, lead = 2 * y - 1, z[:, 1] - z[:, 0]
    torch.testing.assert_close(Hinge()(z, y), (1 - sign * lead).clamp_min(0))


def test_an_ordinal_loss_multiplies_its_questions_and_sums_to_one():
    z, y = given((ROWS, 3)), torch.as_tensor(GRADE)
    on = z.sigmoid().numpy()
    p = np.stack([1 - on[:, 0], on[:, 0] * (1 - on[:, 1]), on[:, :2].prod(1) * (1 - on[:, 2]), on.prod(1)], 1)
    np.testing.assert_allclose(Ordinal().answer(z).numpy(), p, rtol=1e-10)
    np.testing.assert_allclose(p.sum(1), 1.0)
    np.testing.assert_allclose(Ordinal()(z, y).numpy(), -np.log(p[np.arange(ROWS), GRADE]), rtol=1e-10)


def test_the_loss_of_several_labels_is_the_sum_of_theirs():
    z, y = given((ROWS, 3)), torch.as_tensor(TARGETS["multilabel"])
    truth = -stats.bernoulli.logpmf(y.numpy(), z.sigmoid().numpy()).sum(1)
    np.testing.assert_allclose(MultiLabel()(z, y).numpy(), truth, rtol=1e-10)


def test_the_losses_of_values():
    z = given((ROWS,))
    mean, y = z.numpy(), TARGETS["values"]
    error = y - mean
    for loss, truth in [
        (Squared(noise=0.5), 2.0 * error**2),
        (Absolute(), np.abs(error)),
        (Huber(width=0.3), np.where(np.abs(error) <= 0.3, error**2 / 2, 0.3 * (np.abs(error) - 0.15))),
        (Quantile(level=0.8), np.where(error > 0, 0.8 * error, -0.2 * error)),
    ]:
        np.testing.assert_allclose(loss(z, torch.as_tensor(y)).numpy(), truth, rtol=1e-10, err_msg=repr(loss))
    pair = torch.stack([z, given((ROWS,)) - 1.0], -1)
    truth = -stats.norm.logpdf(y, mean, np.exp(pair[:, 1].numpy() / 2)) - np.log(2 * np.pi) / 2
    np.testing.assert_allclose(Gaussian()(pair, torch.as_tensor(y)).numpy(), truth, rtol=1e-10)


def test_the_losses_of_counts_and_amounts():
    z = given((ROWS,))
    m, counts, amounts = np.exp(z.numpy()), TARGETS["counts"], TARGETS["amounts"]
    r = 1 / 0.4
    for loss, y, truth in [
        (Poisson(), counts, stats.poisson.logpmf(counts, m)),
        (NegativeBinomial(dispersion=0.4), counts, stats.nbinom.logpmf(counts, r, r / (r + m))),
        (Gamma(shape=2.5), amounts, stats.gamma.logpdf(amounts, 2.5, scale=m / 2.5)),
    ]:
        np.testing.assert_allclose(loss(z, torch.as_tensor(y)).numpy(), -truth, rtol=1e-8, err_msg=repr(loss))
        np.testing.assert_allclose(loss.answer(z).numpy(), m)


@pytest.mark.parametrize("loss", [loss for loss in EVERY if loss.targets not in OF_CLASSES], ids=repr)
def test_several_values_of_a_row_add_up(loss):
    z = given((ROWS, 2, *([loss.numbers] if loss.numbers > 1 else [])))
    y = torch.as_tensor(np.stack([TARGETS[loss.targets]] * 2, 1))
    torch.testing.assert_close(loss(z, y), loss(z[:, 0], y[:, 0]) + loss(z[:, 1], y[:, 1]))


def test_a_sure_row_has_a_finite_slope():
    z = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    for gamma in (0.0, 0.5, 1.0, 2.0):
        (slope,) = torch.autograd.grad(Focal(gamma=gamma)(z, torch.tensor([0, 0])).sum(), z)
        assert torch.isfinite(slope).all(), gamma


# --- what they declare --------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_the_contract(loss):
    check_objective(objective_of(loss), source_of(loss))
    if loss.targets not in OF_CLASSES:
        check_objective(objective_of(loss), source_of(loss, np.stack([TARGETS[loss.targets]] * 2, 1)))


@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_traits_follow_the_loss(loss):
    objective = objective_of(loss)
    assert objective.targets == loss.targets
    assert objective.likelihood == ("distribution" in objective.provides) == loss.likelihood
    assert ("predict_proba" in objective.capabilities()) == (loss.targets in OF_CLASSES and loss.probable)
    for strategy in (EWC(), Laplace(), EWC(fisher="empirical")):
        assert (strategy.refuses(objective) is None) == loss.likelihood, strategy
    usual = loss.likelihood and loss.law in ("categorical", "normal")
    for strategy in (LwF(), EWC(fisher="sampled"), Laplace(fisher="sampled")):
        assert (strategy.refuses(objective) is None) == usual, strategy
    assert Laplace(fisher="sampled", curvature="identity").refuses(objective) is None
    assert IRM().refuses(objective) is None


def test_which_are_likelihoods():
    assert [type(loss).__name__ for loss in EVERY if not loss.likelihood] == [
        *("CrossEntropy", "Focal", "Focal", "Hinge", "Brier", "Huber", "Quantile")
    ]


class Boasting(Brier):
    """Says that it is a likelihood, which it is not."""

    likelihood = True

    def distribution(self, z):
        return torch.distributions.Categorical(logits=z, validate_args=False)


def test_a_loss_that_boasts_is_found_out():
    with pytest.raises(AssertionError, match="-log_prob of the distribution up to a constant"):
        check_objective(objective_of(Boasting()), source_of(Boasting()))


SUPPORT = {
    "counts": lambda f: sum(f(float(k)) for k in range(200)),
    "amounts": lambda f: integrate.quad(f, 0, np.inf, limit=200)[0],
    "values": lambda f: integrate.quad(f, -30, 30, limit=400, points=[0.4])[0],
    "classes": lambda f: sum(f(k) for k in range(4)),
}


@pytest.mark.parametrize("loss", [loss for loss in LIKELY if loss.targets != "multilabel"], ids=repr)
def test_the_fisher_information_is_the_expected_square_of_the_slope(loss):
    """Of one row's outputs: what EWC takes, against E[(d log p / dz)^2] summed or integrated over y."""
    outputs = loss.outputs(4) if loss.targets == "classes" else loss.outputs(1)
    flat = outputs == 1
    z = torch.tensor([0.4, -0.3, 0.2, 0.7], dtype=torch.float64)[:outputs].clone().requires_grad_()

    def row():
        return z if flat else z[None]

    def term(y, k):
        kind = torch.int64 if loss.targets == "classes" else torch.float64
        log = loss.distribution(row()).log_prob(torch.tensor([y], dtype=kind)).sum()
        (slope,) = torch.autograd.grad(log, z)
        return float(log.detach().exp() * slope[k] ** 2)

    truth = [SUPPORT[loss.targets](lambda y, k=k: term(y, k)) for k in range(outputs)]
    found = torch.zeros(outputs, dtype=torch.float64)
    for score, weight in _scores(loss.distribution(row())):
        (slope,) = torch.autograd.grad(score.sum(), z, retain_graph=True)
        found += (1.0 if weight is None else weight.sum()) * slope**2
    np.testing.assert_allclose(found.numpy(), truth, rtol=1e-5)


INFORMATION = {
    "Squared": lambda loss, z: np.full_like(z, 1 / loss.noise**2),
    "Absolute": lambda loss, z: np.ones_like(z),
    "Gaussian": lambda loss, z: np.stack([np.exp(-z[:, 1]), np.full(len(z), 0.5)], 1),
    "Poisson": lambda loss, z: np.exp(z),
    "NegativeBinomial": lambda loss, z: np.exp(z) / (1 + loss.dispersion * np.exp(z)),
    "Gamma": lambda loss, z: np.full_like(z, loss.shape),
}


@pytest.mark.parametrize("loss", [loss for loss in LIKELY if loss.targets not in OF_CLASSES], ids=repr)
def test_what_ewc_keeps_of_a_linear_net_is_the_information_in_closed_form(loss):
    """z = W x + b: the Fisher information's diagonal of W is the mean of I(z_i) x_i^2."""
    learner = Learner(Regression("linear", loss=loss), strategy=EWC(), epochs=3, dtype="float64", random_state=0)
    learner.partial_fit(X, TARGETS[loss.targets], task="one")
    ((_, state),) = learner.training_.runs
    kept = {name: t for name, t in _leaves(state.strategy) if name.endswith("net.1.weight") and "precision" in name}
    (precision,) = kept.values()
    with torch.no_grad():
        module = learner.module()
        z = module({"x": torch.as_tensor(X), "y": torch.as_tensor(TARGETS[loss.targets])}).logits.numpy()
    each = INFORMATION[type(loss).__name__](loss, z).reshape(ROWS, -1)
    np.testing.assert_allclose(precision.numpy(), np.einsum("ik,ij->kj", each, X**2) / ROWS, rtol=1e-8)


def _leaves(tree, path=""):
    for name, value in tree.items():
        yield from _leaves(value, f"{path}/{name}") if isinstance(value, dict) else [(f"{path}/{name}", value)]


@pytest.mark.parametrize("loss", LIKELY, ids=repr)
@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_a_second_task_is_learned_beside_the_first(loss, curvature):
    strategy = Laplace(strength=0.1, curvature=curvature)
    learner = Learner(objective_of(loss), strategy=strategy, epochs=3, replicas=2, random_state=0)
    more = {"classes": range(4)} if loss.targets == "classes" else {}
    for task in ("one", "two"):
        learner.partial_fit(X, TARGETS[loss.targets], task=task, **more)
    assert np.isfinite(learner.predict(X)).all()


# --- through the Learner ------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_a_learner_trains_keeps_and_loads_it(loss, tmp_path):
    y = TARGETS[loss.targets]
    learner = Learner(objective_of(loss), epochs=60, optimizer=ADAM, replicas=2, random_state=0)
    learner.fit(X, y)
    assert learner.history_["loss"][-1].mean() < learner.history_["loss"][0].mean()
    assert learner.score(X, y) > (0.25 if loss.targets == "counts" else 0.4)
    assert np.shape(learner.predict(X)) == np.shape(y)
    one = clone(learner).set_params(replicas=None, random_state=1).fit(X, y)
    np.testing.assert_allclose(learner.replica(1).predict(X), one.predict(X), rtol=1e-4, atol=1e-4)
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    assert repr(again.objective) == repr(learner.objective)
    np.testing.assert_array_equal(again.predict(X), learner.predict(X))


def test_smoothed_focal_and_hinge_learn_digits():
    x, y = load_digits(return_X_y=True)
    for loss in ("cross-entropy(smoothing=0.1)", "focal", "hinge", "brier"):
        learner = Learner(Classification(hidden=(64,), loss=loss), epochs=12, optimizer=ADAM, random_state=0).fit(
            x[::2] / 16, y[::2]
        )
        assert learner.score(x[1::2] / 16, y[1::2]) > 0.93, loss
        assert hasattr(learner, "predict_proba") == (loss != "hinge")


def test_a_quantile_lies_where_it_says():
    x = rng.uniform(0, 4, size=(1500, 1))
    y = x[:, 0] + x[:, 0] * rng.normal(size=1500) / 4
    for level in (0.1, 0.9):
        objective = Regression(hidden=(32,), loss=Quantile(level=level))
        learner = Learner(objective, epochs=40, random_state=0).fit(x[:1000], y[:1000])
        assert abs((y[1000:] <= learner.predict(x[1000:])).mean() - level) < 0.06


def test_a_learned_variance_is_the_datas():
    x = rng.uniform(0, 1, size=(2000, 1))
    y = rng.normal(size=2000) * np.exp(x[:, 0] - 1)
    learner = Learner(Regression("linear", loss="gaussian"), epochs=60, optimizer=ADAM, random_state=0).fit(x, y)
    module = learner.module()
    told = module.distribution(module({"x": torch.tensor([[0.0], [1.0]]), "y": torch.zeros(2)}))
    np.testing.assert_allclose(told.stddev.detach().numpy(), [np.exp(-1), 1.0], rtol=0.15)


def test_a_name_its_object_and_the_command_lines_spelling_are_one():
    for text, loss in [("focal(gamma=1.0)", Focal(gamma=1.0)), ("cross-entropy", CrossEntropy()), ("brier", Brier())]:
        spelled = parse(f"classification(loss={text})", "objectives")
        assert repr(spelled) == repr(Classification(loss=loss))
        trained = [
            Learner(objective, epochs=2, random_state=0).fit(X, GRADE).predict_proba(X)
            for objective in (Classification(loss=text), Classification(loss=loss), spelled)
        ]
        assert np.array_equal(trained[0], trained[1])
        assert np.array_equal(trained[0], trained[2])


def test_none_is_cross_entropy_and_half_the_square():
    for plain, told in [
        (Classification(), Classification(loss="cross-entropy")),
        (Regression(), Regression(loss="squared")),
    ]:
        y = TARGETS[plain.targets]
        a, b = (Learner(objective, epochs=2, random_state=0).fit(X, y).predict(X) for objective in (plain, told))
        assert np.array_equal(a, b)
    noise = Learner(Regression(noise=0.5), epochs=2, random_state=0).fit(X, SCORE)
    squared = Learner(Regression(loss=Squared(noise=0.5)), epochs=2, random_state=0).fit(X, SCORE)
    assert np.array_equal(noise.predict(X), squared.predict(X))


@pytest.mark.filterwarnings("ignore:replicas are trained one after another")
def test_a_setting_of_the_loss_can_be_searched():
    sweep = {"objective__loss__gamma": [0.0, 5.0]}
    learner = Learner(Classification(hidden=(8,), loss=Focal()), replicas=sweep, epochs=3, random_state=0).fit(X, GRADE)
    zero = Learner(Classification(hidden=(8,), loss=Focal(gamma=0.0)), epochs=3, random_state=0).fit(X, GRADE)
    np.testing.assert_allclose(learner.replica(0).predict_proba(X), zero.predict_proba(X), rtol=1e-5)
    assert not np.allclose(learner.replica(1).predict_proba(X), zero.predict_proba(X))


# --- functions ----------------------------------------------------------------------------------------


def cubed(output, target):
    return (output - target).abs() ** 3


def test_a_function_of_output_and_target(tmp_path):
    learner = Learner(Regression(hidden=(8,), loss=cubed), epochs=40, optimizer=ADAM, random_state=0).fit(X, SCORE)
    assert learner.score(X, SCORE) > 0.7
    assert not learner.objective_.likelihood
    assert EWC().refuses(learner.objective_) == EWC().refuses(Regression(loss="huber"))
    check_objective(Regression(hidden=(8,), loss=cubed), source_of(Squared()))
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", loss=cubed)
    np.testing.assert_array_equal(again.predict(X), learner.predict(X))
    own = Learner(
        Classification(hidden=(8,), loss=lambda z, y: F.multi_margin_loss(z, y, reduction="none")),
        epochs=30,
        optimizer=ADAM,
    )
    assert own.fit(X, GRADE).score(X, GRADE) > 0.5
    assert not hasattr(own, "predict_proba")


def test_a_function_that_reduces_is_refused():
    for loss in (torch.nn.MSELoss(), lambda z, y: 0.0):
        with pytest.raises(ValueError, match=r"one value per row, shape \(60,\), got"):
            Learner(Regression(loss=loss), batch_size=None).fit(X, SCORE)
    with pytest.raises(ValueError, match=r"one value per row, shape \(60,\), got \(60, 2\)"):
        Learner(Regression(loss=cubed), batch_size=None).fit(X, np.stack([SCORE, SCORE], 1))


# --- wrong use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Classification(loss="focul"), r"among absolute, .*got 'focul'; did you mean 'focal'"),
        (Classification(loss="focal(gama=1)"), "did you mean 'gamma'"),
        (Classification(loss="focal(gamma=-1)"), "Focal's gamma to be a number >= 0, got -1"),
        (Classification(loss=Focal(gamma=-1)), "Focal's gamma to be a number >= 0, got -1"),
        (Classification(loss=CrossEntropy(smoothing=1.0)), r"smoothing to be a number in \[0, 1\)"),
        (Classification(loss="huber"), "loss to be a loss of classes, .*got 'huber'; there are brier, cross-entropy"),
        (Classification(loss=Focal), r"got the class Focal; "),
        (Classification(loss=3), "a loss of classes, its name, a function"),
        (Regression(loss=Focal()), r"Regression's loss to be a loss of values, .*got Focal\(\); there are absolute"),
        (Regression(loss="absolute", noise=0.5), r"noise=1 with a loss of its own, Absolute\(\)"),
        (Classification(loss="multi-label", class_weight="balanced"), "class_weight=None with MultiLabel"),
    ],
)
def test_a_wrong_loss_is_refused(objective, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Learner(objective).fit(X, GRADE)


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("poisson", SCORE, r"expected counts 0, 1, 2, ... in y, got 0\.|expected counts .* got -"),
        ("poisson", GRADE - 1, "expected counts 0, 1, 2, ... in y, got -1, first in row"),
        ("negative-binomial", GRADE + 0.5, "expected counts"),
        ("gamma", GRADE, "expected numbers > 0 in y, got 0, first in row"),
    ],
)
def test_targets_that_a_loss_cannot_have_are_refused(loss, y, message):
    with pytest.raises(ValueError, match=message):
        Learner(Regression(loss=loss)).fit(X, y)
    source = Arrays(torch.as_tensor(X), torch.as_tensor(y), batch_size=12)
    with pytest.raises(Diverged):
        Learner(Regression(loss=loss), epochs=1).fit(source)


def test_heads_take_losses_and_their_counts_are_looked_at():
    heads = Heads({"label": Classification(loss="ordinal", hidden=(8,)), "n": Regression(loss="poisson", hidden=(8,))})
    assert heads.likelihood
    assert "distribution" in heads.provides

    def rows(counts):
        x, y, n = (torch.as_tensor(a) for a in (X, GRADE, counts))
        return Arrays(x, label_y=y, n_y=n, classes={"label_y": 4}, batch_size=20)

    check_objective(heads, rows(TARGETS["counts"]))
    with pytest.raises(Diverged):
        Learner(heads, epochs=1).fit(rows(GRADE - 1))
    assert not Heads({"label": Classification(loss="focal"), "n": Regression(loss="poisson")}).likelihood


# --- classes in an order, several labels --------------------------------------------------------------


def test_ordinal_labels_keep_their_names_and_their_order():
    names = np.array([10, 20, 30, 40])[GRADE]
    learner = Learner(Classification(hidden=(16,), loss="ordinal"), epochs=60, optimizer=ADAM, random_state=0).fit(
        X, names
    )
    assert learner.classes_.tolist() == [10, 20, 30, 40]
    assert learner.predict_proba(X).shape == (ROWS, 4)
    np.testing.assert_allclose(learner.predict_proba(X).sum(1), 1.0, rtol=1e-5)
    assert np.array_equal(learner.predict(X), learner.classes_[learner.predict_proba(X).argmax(1)])
    assert learner.score(X, names) > 0.8
    assert learner.history_["accuracy"][-1] == pytest.approx(learner.score(X, names), abs=0.1)
    with pytest.raises(ValueError, match=r"expected labels in an order, .*got text such as '"):
        Learner(Classification(loss="ordinal")).fit(X, np.array(["low", "mid", "high", "top"])[GRADE])


def test_several_labels_are_predicted_each_and_scored_together():
    y = TARGETS["multilabel"]
    learner = Learner(Classification(hidden=(32,), loss="multi-label"), epochs=80, optimizer=ADAM, random_state=0).fit(
        X, y
    )
    p, told = learner.predict_proba(X), learner.predict(X)
    assert p.shape == told.shape == y.shape
    assert told.dtype.kind == "i"
    assert np.array_equal(told, (p > 0.5).astype(int))
    assert learner.score(X, y[::-1]) == pytest.approx((told == y[::-1]).all(1).mean())
    assert learner.score(X, y) > 0.8
    assert learner.fit(torch.as_tensor(X), torch.as_tensor(y)).predict(torch.as_tensor(X)).shape == y.shape


def test_labels_that_are_no_columns_of_0_and_1_are_refused():
    learner = Learner(Classification(loss="multi-label"))
    with pytest.raises(ValueError, match="expected a column of 0 and 1 for each label in y, got 2, first in row"):
        learner.fit(X, np.stack([GRADE, GRADE], 1) % 3)
    with pytest.raises(ValueError, match="expected y with a column of 0 and 1 for each label"):
        learner.fit(X, GRADE % 2)
    with pytest.raises(Diverged):
        learner.fit(Arrays(torch.as_tensor(X), torch.as_tensor(np.stack([GRADE, GRADE], 1)), batch_size=12))
