"""Risk by environment against risks worked out from the predictions."""

import numpy as np
import pytest

from weft import Classifier, Learner, Optimizer, Regressor
from weft.engine.vectorize import VectorizationWarning
from weft.measures import environment_risk
from weft.objectives import DANN, GAN, Classification, Regression

RANDOM = np.random.default_rng(0)
N = 5000  # more than one chunk in an environment
X = RANDOM.normal(size=(N, 3))
SITE = np.array(["b", "a", "c"])[RANDOM.choice(3, size=N, p=[0.9, 0.07, 0.03])]
Y = (X @ [1.0, -2.0, 0.5] + RANDOM.normal(size=N) > 0).astype(int)


@pytest.fixture(scope="module")
def net():
    return Classifier(hidden=(8,), steps=50, random_state=0).fit(X, Y)


def test_losses_and_accuracies_by_environment(net):
    risk = environment_risk(net, X, Y, environment=SITE)
    right = net.predict_proba(X)[np.arange(N), Y]
    expected = np.array([-np.log(right[e == SITE]).mean() for e in "abc"])
    assert risk.names == ["a", "b", "c"]
    assert risk.rows == [(e == SITE).sum() for e in "abc"]
    np.testing.assert_allclose(risk.values, expected, rtol=1e-5)
    assert risk.worst == pytest.approx(expected.max(), rel=1e-5)
    assert risk.worst_environment == "abc"[expected.argmax()]
    assert risk.mean == pytest.approx(expected.mean(), rel=1e-5)
    rate = environment_risk(net, X, Y, environment=SITE, measure="accuracy")
    hits = np.array([(net.predict(X) == Y)[e == SITE].mean() for e in "abc"])
    np.testing.assert_allclose(rate.values, hits, rtol=1e-6)
    assert rate.worst == pytest.approx(hits.min())
    best = environment_risk(net, X, Y, environment=SITE, measure="accuracy", more=False)
    assert best.worst == pytest.approx(hits.max())


def test_each_replica_by_itself():
    nets = Classifier(hidden=(8,), steps=20, random_state=0, replicas=3).fit(X, Y)
    risk = environment_risk(nets, X, Y, environment=SITE)
    assert risk.values.shape == (3, 3)
    for k in range(3):
        one = environment_risk(nets.replica(k), X, Y, environment=SITE)
        np.testing.assert_allclose(risk.values[k], one.values, rtol=1e-5)
        assert risk.worst[k] == pytest.approx(one.worst, rel=1e-5)
        assert risk.worst_environment[k] == one.worst_environment
    apart = Classifier(steps=20, random_state=0, replicas={"hidden": [(4,), (8,)]})
    with pytest.warns(VectorizationWarning, match="one after another"):
        apart.fit(X, Y)
    assert environment_risk(apart, X, Y, environment=SITE).values.shape == (2, 3)


def test_values():
    line = Regressor("linear", optimizer=Optimizer("sgd", lr=0.1), steps=100).fit(X, X[:, 0])
    risk = environment_risk(line, X, Y * 1.0, environment=SITE)
    error = (line.predict(X) - Y) ** 2 / 2
    np.testing.assert_allclose(risk.values, [error[e == SITE].mean() for e in "abc"], rtol=1e-4)
    with pytest.raises(ValueError, match="expected a measure that Regression reports among loss, got 'los'"):
        environment_risk(line, X, Y, environment=SITE, measure="los")


def test_bad_input(net):
    with pytest.raises(ValueError, match="expected the environment of each row, got None"):
        environment_risk(net, X, Y, environment=None)
    with pytest.raises(ValueError, match="expected environment to name one environment for each"):
        environment_risk(net, X, Y, environment=SITE[:5])
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        environment_risk(Learner(Regression()), X, Y, environment=SITE)


def test_an_objective_that_reads_environments_is_measured_on_others():
    game = Learner(DANN(Classification(hidden=(4,)), hidden=(4,)), epochs=1, random_state=0).fit(X, Y, environment=SITE)
    some = SITE != "b"
    whole = environment_risk(game, X, Y, environment=SITE, measure="task_loss")
    part = environment_risk(game, X[some], Y[some], environment=SITE[some], measure="task_loss")
    assert part.names == ["a", "c"]
    np.testing.assert_allclose(part.values, whole.values[[0, 2]], rtol=1e-5)
    new = environment_risk(game, X, Y, environment=np.full(len(X), "elsewhere"), measure="task_loss")
    assert new.names == ["elsewhere"]


def test_games_report_each_player():
    gan = Learner(GAN(), steps=2, random_state=0).fit(X[:64])
    name = next(n for n in gan.history_[-1] if n.endswith("_loss"))
    risk = environment_risk(gan, X[:64], environment=SITE[:64], measure=name)
    assert np.isfinite(risk.values).all()
