"""Mixtures: scikit-learn's from the same start, EM in plain numpy, gaps by their marginals, restarts, what is said."""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

import weft
from weft import Learner, Optimizer
from weft.core import capability
from weft.core.random import key_of
from weft.objectives import GaussianMixture, Independent, Mixture
from weft.objectives.densities import gaussian_mixture, mixing, normals
from weft.objectives.densities.normals import packed
from weft.objectives.densities.starts import clusters
from weft.sources import Arrays
from weft.testing import ContractError, check_density, check_objective, every_row

rng = np.random.default_rng(0)
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu"}
K, D = 3, 4
X = np.concatenate([rng.normal(size=(70, D)) @ rng.normal(size=(D, D)) + 2 * rng.normal(size=D) for _ in range(K)])
rng.shuffle(X)
GAPS = np.where(rng.random(X.shape) < 0.2, np.nan, X)
FORMS = {"full": "full", "diagonal": "diag", "tied": "tied", "spherical": "spherical"}
KIND = rng.integers(0, 2, (150, 1))
BITS = (rng.random((150, 3)) < np.where(KIND, [0.9, 0.8, 0.3], [0.2, 0.1, 0.6])).astype(float)
LINE = np.concatenate([rng.normal(-2, 0.7, (80, 1)), rng.normal(1.5, 1.0, (120, 1))])
PLANE = np.concatenate([rng.normal(-2, 0.7, (80, 2)), rng.normal(1.5, 1.0, (120, 2)) @ [[1, 0.6], [0, 0.8]]])


def start_of(form, means, shares, variance):
    """The same start for both: ours as parameters, theirs as precisions."""
    k, d = means.shape
    eye, log = np.eye(d), 0.5 * np.log(variance)
    scale = {"full": [log * eye] * k, "tied": [log * eye], "diagonal": np.full((k, d), log), "spherical": [[log]] * k}
    theirs = {"full": [eye / variance] * k, "tied": eye / variance, "diagonal": np.full((k, d), 1 / variance)}
    precisions = np.array(theirs.get(form, [1 / variance] * k))
    ours = {"logits": np.log(shares).tolist(), "mean": means.tolist(), "scale": np.array(scale[form]).tolist()}
    return ours, {"means_init": means, "weights_init": shares, "precisions_init": precisions}


START = {form: start_of(form, X[[5, 90, 200]], np.array([0.2, 0.5, 0.3]), 2.0) for form in FORMS}


def fitted(model, rows=X, **settings):
    return Learner(model, **{**COMMON, **settings}).fit(rows)


# --- Gaussian mixtures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_em_is_scikit_learns_from_the_same_start(form):
    ours, theirs = START[form]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer = Peer(K, covariance_type=FORMS[form], tol=0, max_iter=15, reg_covar=1e-4, **theirs).fit(X)
    model = GaussianMixture(K, covariance=form, start=ours, floor=1e-4, iterations=15, tolerance=0.0)
    learner = fitted(model)
    np.testing.assert_allclose(learner.log_prob(X), peer.score_samples(X), rtol=1e-10)
    np.testing.assert_allclose(learner.objective_.mean.detach(), peer.means_, rtol=1e-10)
    np.testing.assert_allclose(learner.objective_.logits.detach().softmax(-1), peer.weights_, rtol=1e-10)
    np.testing.assert_allclose(learner.transform(X), peer.predict_proba(X), rtol=1e-8, atol=1e-12)
    assert learner.history_["log_likelihood"][-2] == pytest.approx(peer.lower_bound_, rel=1e-12)
    assert learner.objective_.free_parameters() == peer._n_parameters()


@pytest.mark.parametrize("form", FORMS)
def test_both_ways_of_the_e_step_are_one(monkeypatch, form):
    """By products of entries, and row by row, which takes over where a component is too narrow for them."""
    settings = {"covariance": form, "start": START[form][0], "iterations": 10, "tolerance": 0.0}
    fast = fitted(GaussianMixture(K, **settings)).log_prob(X)
    monkeypatch.setattr("weft.objectives.densities.quadratics._NARROW", 0.0)
    careful = fitted(GaussianMixture(K, **settings), replicas=2)
    np.testing.assert_allclose(careful.replica(1).log_prob(X), fast, rtol=1e-9)


def test_narrow_components_far_apart_lose_nothing():
    """At a distance of a million deviations the products would have lost all digits."""
    rows = np.concatenate([rng.normal(0, 1e-3, (50, 2)), rng.normal(1e3, 1e-3, (50, 2))])
    learner = fitted(GaussianMixture(2, floor=1e-12), rows)
    found = learner.objective_.mean.detach().numpy()
    wanted = np.array([rows[:50].mean(0), rows[50:].mean(0)])
    np.testing.assert_allclose(found[found[:, 0].argsort()], wanted, rtol=1e-9, atol=1e-9)
    exact = stats.multivariate_normal(wanted[0], np.cov(rows[:50].T, bias=True)).logpdf(rows[:50]) + np.log(0.5)
    np.testing.assert_allclose(learner.log_prob(rows[:50]), exact, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_gaps_are_marginals_and_em_climbs_their_likelihood(form):
    learner = fitted(GaussianMixture(K, covariance=form, floor=0.0, tolerance=1e-7), GAPS)
    model = learner.objective_
    scale = model.scale.detach().expand(K, *model.scale.shape[1:])
    factors = [
        np.tril(s, -1) + np.diag(np.exp(np.diag(s))) if model.full else np.diag(np.exp(s) * np.ones(D))
        for s in scale.numpy()
    ]
    means, shares = model.mean.detach().numpy(), model.logits.detach().softmax(-1).numpy()
    wanted = []
    for row in GAPS[:40]:
        o = ~np.isnan(row)
        each = [
            stats.multivariate_normal(m[o], (f @ f.T)[np.ix_(o, o)]).logpdf(row[o]) if o.any() else 0.0
            for m, f in zip(means, factors, strict=True)
        ]
        wanted.append(logsumexp(each, b=shares))
    np.testing.assert_allclose(learner.log_prob(GAPS[:40]), wanted, rtol=1e-8, atol=1e-12)
    told = learner.history_["log_likelihood"][:-1]
    assert len(told) > 3
    assert (np.diff(told) > -1e-10).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_gaussian_mixture_is_a_density(form):
    check_density(GaussianMixture(2, covariance=form), PLANE, box=[(-8, 8), (-8, 8)])


def test_a_mixture_checks_as_an_objective():
    source = Arrays(torch.as_tensor(PLANE), observed=torch.ones(PLANE.shape) > 0, batch_size=50)
    check_objective(GaussianMixture(2, iterations=5, tolerance=0.0), source)
    check_objective(GaussianMixture(2, inference="gradient"), source)
    check_objective(Mixture(2, law="student", iterations=5, tolerance=0.0), source)


def test_em_and_gradient_reach_one_optimum_from_one_start():
    start = start_of("full", np.array([[-1.0, -1.0], [1.0, 1.0]]), np.array([0.5, 0.5]), 1.0)[0]
    em = fitted(GaussianMixture(2, start=start, floor=0.0, tolerance=1e-12, iterations=3000), PLANE)
    model = GaussianMixture(2, inference="gradient", start=start)
    optimizer = Optimizer("adam", lr=0.03)
    descended = fitted(model, PLANE, steps=700, batch_size=None, optimizer=optimizer)
    np.testing.assert_allclose(descended.log_prob(PLANE), em.log_prob(PLANE), atol=1e-4)


def test_a_gradient_begins_with_what_em_has_found():
    em = fitted(GaussianMixture(2, iterations=2, tolerance=0.0), PLANE)
    on = fitted(
        GaussianMixture(2, inference="gradient"), PLANE, init={"*": em}, steps=1, optimizer=Optimizer("sgd", lr=1e-9)
    )
    np.testing.assert_allclose(on.log_prob(PLANE), em.log_prob(PLANE), atol=1e-6)


def test_restarts_are_replicas_and_each_is_the_single_run():
    many = fitted(GaussianMixture(4, start="rows", floor=1e-3, tolerance=1e-5), replicas=6)
    one = fitted(GaussianMixture(4, start="rows", floor=1e-3, tolerance=1e-5), random_state=3)
    np.testing.assert_allclose(many.replica(3).log_prob(X), one.log_prob(X), rtol=1e-9)
    scores = many.replica_scores(X)
    assert len(set(scores.round(6))) > 1
    assert many.best_replica_ == int(scores.argmax())
    held = fitted(GaussianMixture(2, floor=1e-3), replicas=2, validation=0.3)  # whose rows differ from each other's
    alone = fitted(GaussianMixture(2, floor=1e-3), validation=0.3, random_state=1)
    np.testing.assert_allclose(held.replica(1).log_prob(X), alone.log_prob(X), rtol=1e-9)


def test_weights_count_as_rows():
    weight = rng.integers(0, 3, len(X)).astype(float)
    theta = np.stack([X[:K], np.zeros((K, D))], -1).reshape(K, -1).tolist()
    for model in (
        GaussianMixture(K, start=START["full"][0], iterations=6, tolerance=0.0),
        Mixture(
            K,
            law="normal",
            start={"logits": [0.0] * K, "theta": theta},
            iterations=6,
            tolerance=0.0,
        ),
    ):
        one = Learner(model, **COMMON).fit(X, sample_weight=weight)
        two = fitted(model, np.repeat(X, weight.astype(int), 0))
        np.testing.assert_allclose(one.log_prob(X), two.log_prob(X), rtol=1e-9)


def test_a_run_is_kept_and_loaded(tmp_path):
    learner = fitted(GaussianMixture(K, start=START["full"][0], iterations=3, tolerance=0.0), folder=tmp_path / "run")
    np.testing.assert_array_equal(weft.load(tmp_path / "run").log_prob(X), learner.log_prob(X))


# --- mixtures of laws -------------------------------------------------------------------------------------


def test_bernoulli_mixtures_are_em_in_plain_numpy():
    share, p = np.array([0.4, 0.6]), np.array([[0.6, 0.7, 0.4], [0.3, 0.2, 0.5]])
    start = {"logits": np.log(share).tolist(), "theta": np.log(p / (1 - p)).tolist()}
    learner = fitted(Mixture(2, law="bernoulli", start=start, smoothing=0.5, iterations=12, tolerance=0.0), BITS)
    for _ in range(12):
        joint = share * (p[:, None] ** BITS * (1 - p[:, None]) ** (1 - BITS)).prod(-1).T
        part = joint / joint.sum(1, keepdims=True)
        share = part.mean(0)
        p = (part.T @ BITS + 0.5) / (part.sum(0)[:, None] + 1.0)
    np.testing.assert_allclose(learner.objective_.theta.detach().sigmoid(), p, rtol=1e-10)
    np.testing.assert_allclose(learner.objective_.logits.detach().softmax(-1), share, rtol=1e-10)


def test_normal_laws_are_the_diagonal_gaussian_mixture():
    start, _ = START["diagonal"]
    theta = np.stack([start["mean"], start["scale"]], -1).reshape(K, -1).tolist()
    rest = {"floor": 1e-4, "iterations": 8, "tolerance": 0.0}
    one = fitted(Mixture(K, law="normal", start={"logits": start["logits"], "theta": theta}, **rest), GAPS)
    two = fitted(GaussianMixture(K, covariance="diagonal", start=start, **rest), GAPS)
    np.testing.assert_allclose(one.log_prob(GAPS), two.log_prob(GAPS), rtol=1e-9)


def test_a_student_mixture_is_where_the_gradient_is_zero_and_outliers_do_not_pull():
    rows = np.concatenate([LINE, [[60.0], [-80.0]]])
    start = {"logits": [0.0, 0.0], "theta": [[-1.0, 0.0], [1.0, 0.0]]}
    settings = {"law": "student", "freedom": 3.0, "floor": 0.0}
    learner = fitted(Mixture(2, start=start, tolerance=1e-13, iterations=5000, **settings), rows)
    with pytest.raises(ValueError, match=r"component \d of Mixture has collapsed"):  # k-means gives it one row
        fitted(Mixture(2, **settings), np.concatenate([LINE, [[1e4]]]))
    model = learner.module()
    loss = model({"x": torch.as_tensor(rows), "observed": torch.ones(rows.shape) > 0}).losses.mean()
    loss.backward()
    assert max(float(p.grad.abs().max()) for p in (model.theta, model.logits)) < 1e-5
    told = learner.history_["log_likelihood"][:-1]
    assert (np.diff(told) > -1e-12).all()
    places = np.sort(model.theta.detach().numpy()[:, 0])
    np.testing.assert_allclose(places, [-2, 1.5], atol=0.3)


@pytest.mark.parametrize(
    ("model", "rows", "support", "box"),
    [
        (Mixture(2, law="bernoulli"), BITS, every_row([2, 2, 2]), None),
        (Mixture(2, law="categorical", classes=2), BITS, every_row([2, 2, 2]), None),
        (Mixture(2, law="poisson"), 3 * BITS[:, :2], every_row([25, 25]), None),
        (Mixture(2, law="normal"), PLANE, None, [(-8, 8), (-8, 8)]),
        (Mixture(2, law="student", freedom=8.0), LINE, None, [(-60, 60)]),
        (Independent(law="bernoulli"), BITS, every_row([2, 2, 2]), None),
    ],
    ids=lambda value: repr(value) if isinstance(value, Mixture | Independent) else "",
)
def test_mixtures_of_laws_are_densities(model, rows, support, box):
    check_density(model, rows, support=support, box=box)


def test_a_table_of_all_kinds_with_gaps():
    pandas = pytest.importorskip("pandas")
    kind = rng.integers(0, 2, 300)
    table = pandas.DataFrame(
        {
            "height": np.where(kind, 10.0, 20.0) + rng.normal(size=300),
            "ill": rng.random(300) < np.where(kind, 0.95, 0.05),
            "town": np.where(rng.random(300) < np.where(kind, 0.9, 0.2), "Ulm", "Jena"),
        }
    )
    holes = table.astype(object).mask(rng.random(table.shape) < 0.15)
    holes["height"] = holes["height"].astype(float)
    learner = fitted(Mixture(2), holes)
    assert [law.name for law in learner.objective_.entries.laws] == ["normal", "bernoulli", "categorical"]
    asked = holes.iloc[:0].reindex(range(200))
    asked["height"] = 10.0
    full = learner.impute(asked, random_state=0)
    assert (full["height"] == 10.0).all()
    assert (full["town"] == "Ulm").mean() > 0.8
    assert full["ill"].astype(bool).mean() > 0.85


@pytest.mark.parametrize("broken", ["shares", "sample", "impute"])
def test_mutants_are_caught(monkeypatch, broken):
    if broken == "shares":  # every component whole: a total of 2

        def joint(self, x, observed):
            return self.log_given(self._theta(), x, observed)

        monkeypatch.setattr(mixing.Mixing, "log_joint", joint)
    if broken == "sample":  # components alike
        monkeypatch.setattr(mixing, "categorical", lambda logits, place: torch.zeros(len(logits), dtype=torch.int64))
    if broken == "impute":  # of the first component, whatever is observed
        monkeypatch.setattr(Mixture, "fill", lambda self, x, o, k: torch.where(o, x, self.draw(0 * k)))
    with pytest.raises(ContractError):
        check_density(Mixture(2, law="bernoulli"), BITS, support=every_row([2, 2, 2]))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("shares", "total probability of 1 by quadrature"),
        ("means of logs", "total probability of 1 by quadrature"),
        ("sample", "samples with the frequencies"),
        ("gaps", "density of what is observed"),
        ("impute", "imputed values with the frequencies"),
    ],
)
def test_mutants_of_gaussian_mixtures_are_caught(monkeypatch, broken, told):
    given = GaussianMixture.log_given
    if broken == "shares":  # a factor twice
        monkeypatch.setattr(
            GaussianMixture, "log_given", lambda self, theta, *rows: given(self, theta, *rows) + self.logits
        )
    if broken == "means of logs":  # E log p(x | k) for log E p(x | k)
        monkeypatch.setattr(mixing.torch, "logsumexp", lambda logs, axis: logs.mean(axis))
    if broken == "sample":  # factors transposed
        monkeypatch.setattr(gaussian_mixture, "factor_of", lambda scale: normals.factor_of(scale).mT)
    if broken == "gaps":  # taken for their value, 0
        monkeypatch.setattr(
            GaussianMixture, "log_given", lambda self, theta, x, seen: given(self, theta, x, torch.ones_like(seen))
        )
    if broken == "impute":  # without regard to what is observed of the row
        monkeypatch.setattr(gaussian_mixture, "filled", lambda x, seen, drawn, c: torch.where(seen, x, drawn))
    with pytest.raises(ContractError, match=told):
        check_density(GaussianMixture(2), PLANE, box=[(-8, 8), (-8, 8)])


class FactorTwice(Independent):
    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed):
        each = self.entries.log_prob(self.theta, x) * observed
        return each.sum(-1) + each[..., 0]


class OtherColumns(Independent):
    @capability(merge="share", kind="direct")
    def sample(self, n):
        return super().sample(n).roll(1, -1)


class GapsAsValues(Independent):
    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed):
        return self.entries.log_prob(self.theta, x).sum(-1)


class DrawnOver(Independent):
    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x, observed):
        return self.sample(len(x))


@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        (FactorTwice, "total probability of 1 by enumeration"),
        (OtherColumns, "samples with the frequencies"),
        (GapsAsValues, "density of what is observed"),
        (DrawnOver, "impute to keep what was observed"),
    ],
)
def test_mutants_of_independent_columns_are_caught(mutant, told):
    with pytest.raises(ContractError, match=told):
        check_density(mutant(law="bernoulli"), BITS, support=every_row([2, 2, 2]))


# --- where it begins, and what is said --------------------------------------------------------------------


def test_k_means_finds_the_clusters_and_k_means_plus_plus_spreads():
    def apart(found):
        each = [[set(row[a : a + 30].tolist()) for a in (0, 30, 60)] for row in found]
        return [all(len(own) == 1 for own in three) and len(set.union(*three)) == 3 for three in each]

    x = torch.as_tensor(np.concatenate([rng.normal(c, 0.1, (30, 2)) for c in (0.0, 5.0, 10.0)]))[None]
    weight = torch.ones(1, 90, dtype=torch.float64)
    for how in ("k-means", "k-means++"):
        found = clusters(x, weight, 3, how, key_of(torch.arange(20)))
        assert found.shape == (20, 90)
        assert np.mean(apart(found)) > 0.9
    by_rows = clusters(x, weight, 3, "rows", key_of(torch.arange(200)))
    assert 0.1 < np.mean(apart(by_rows)) < 0.4  # three draws in three places: 2/9
    nobody = torch.cat([torch.ones(1, 60), torch.zeros(1, 30)], 1).double()
    assert (clusters(x, nobody, 2, "rows", key_of(torch.arange(50)))[:, :60].amax(1) == 1).all()


def test_bad_data_speaks():
    with pytest.raises(ValueError, match=r"at least as many rows as components, 8, for GaussianMixture, got 5"):
        fitted(GaussianMixture(8), X[:5])
    with pytest.raises(ValueError, match=r"at least 3 different rows for 3 components, got 2"):
        fitted(Mixture(3, law="bernoulli"), np.array([[0.0], [1.0]] * 10))
    with pytest.raises(ValueError, match=r"expected numbers that vary for Mixture, got 2 in every row of column 1"):
        fitted(Mixture(2), np.column_stack([X[:, 0], np.full(len(X), 2.0)]))
    with pytest.raises(ValueError, match=r"expected some value in every column of X, got none in column 0"):
        fitted(GaussianMixture(2), np.column_stack([np.full(len(X), np.nan), X[:, 0]]))
    with pytest.raises(ValueError, match=r"expected 0 or 1 in column 0, whose law is 'bernoulli', got"):
        fitted(Mixture(2, law="bernoulli"), X)
    with pytest.raises(ValueError, match=r"name their law .* or make them real by dequantizing"):
        fitted(Mixture(2), Arrays(torch.arange(40).reshape(20, 2), observed=torch.ones(20, 2) > 0))


def test_a_covariance_that_collapses_is_named():
    rows = np.concatenate([rng.normal(size=(50, 2)), np.full((3, 2), 40.0)])
    start = start_of("full", np.array([[0.0, 0.0], [40.0, 40.0]]), np.array([0.9, 0.1]), 1.0)[0]
    with pytest.raises(
        ValueError, match=r"component 1 of GaussianMixture has collapsed.*larger floor, fewer components"
    ):
        fitted(GaussianMixture(2, start=start, floor=0.0), rows)
    with pytest.warns(UserWarning, match=r"component 1 of GaussianMixture sits on the floor, 1e-06"):
        fitted(GaussianMixture(2, start=start), rows)
    kept = fitted(GaussianMixture(2, start=start, prior=1.0), rows)
    assert np.isfinite(kept.score(rows))
    spread = np.random.default_rng(5).normal(size=(40, 2))
    with pytest.warns(UserWarning, match=r"has collapsed in \d+ of 12 replicas"):
        learner = fitted(GaussianMixture(5, start="rows", floor=0.0, tolerance=1e-3), spread, replicas=12)
    assert sum(learner.training_.diverged) >= 1
    assert not learner.training_.diverged[learner.best_replica_]


def test_settings_that_do_not_fit_speak():
    with pytest.raises(ValueError, match=r"start='random' or parameters by name with inference='gradient'"):
        fitted(GaussianMixture(2, inference="gradient", start="k-means"))
    with pytest.raises(ValueError, match=r"as the start of EM, got 'random'"):
        fitted(GaussianMixture(2, start="random"))
    with pytest.raises(ValueError, match=r"expected start with logits, mean, scale for GaussianMixture, got mean"):
        fitted(GaussianMixture(2, start={"mean": [[0.0] * D] * 2}))
    with pytest.raises(ValueError, match=r"'mean' of start in the shape \(3, 4\), got \(2, 4\)"):
        fitted(GaussianMixture(3, start={**START["full"][0], "mean": [[0.0] * D] * 2}))
    with pytest.raises(ValueError, match=r"no prior with inference='gradient'"):
        fitted(GaussianMixture(2, inference="gradient", prior=1.0))
    with pytest.warns(UserWarning, match=r"has not converged in 2 iterations"):
        fitted(GaussianMixture(2, iterations=2))
    learner = fitted(GaussianMixture(2, floor=1e-3), replicas=2)
    with pytest.raises(ValueError, match="expected one replica to answer 'transform'"):
        learner.transform(X)


def test_packed_factors_are_unpacked():
    factor = torch.linalg.cholesky(torch.as_tensor(np.cov(X.T)))
    torch.testing.assert_close(gaussian_mixture.factor_of(packed(factor)), factor)
