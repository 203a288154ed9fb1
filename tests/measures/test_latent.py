"""Rate, distortion and gaps of linear models with known information, evidence and best guesses; mutants are caught."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner, Regressor
from weft.bench import rate_distortion_picture
from weft.measures import inference_gaps, rate_distortion
from weft.objectives import VAE, VQVAE, DiscreteVAE, HierarchicalVAE, ProbabilisticPCA
from weft.objectives.latent.explained import Guess

NOISE = 0.7
W = np.array([[1.5, 0.0], [1.0, 0.6], [0.0, 0.0], [-0.5, 1.2]])  # orthogonal columns: the posterior's entries too
ROTATED = W @ np.array([[1.0, 0.8], [0.0, 0.6]])  # not so: no guess with independent entries is the posterior
COVARIANCE = W @ W.T + NOISE**2 * np.eye(4)
X = np.random.default_rng(0).multivariate_normal(np.zeros(4), COVARIANCE, 4000)
H = float(stats.multivariate_normal(np.zeros(4), COVARIANCE).entropy())


def linear(loadings=W, beta=1.0, off=0.0):
    """A fitted linear VAE whose decoder is the given one, and whose guess is the best of its family for beta.

    For each row log p(x | z) - beta KL is largest where q's precisions are the diagonal of I + W'W / (beta noise^2).
    """
    model = VAE(2, encoder="linear", decoder="linear", noise=NOISE, beta=beta)
    learner = Learner(model, steps=1, dtype="float64", random_state=0).fit(X[:100])
    precision = np.eye(2) + loadings.T @ loadings / (beta * NOISE**2)
    slope = np.linalg.solve(precision, loadings.T) / (beta * NOISE**2)
    module = learner.objective_
    with torch.no_grad():
        for p, value in zip(module.generator.parameters(), (loadings, np.zeros(4)), strict=True):
            p.copy_(torch.as_tensor(value))
        first, bias = module.recognition.net.parameters()
        first.copy_(torch.as_tensor(np.r_[slope, np.zeros((2, 4))]))
        bias.copy_(torch.as_tensor(np.r_[np.full(2, off), -0.5 * np.log(np.diag(precision))]))
    for run in learner.training_.runs:  # what answers are asked of
        for name, value in module.named_parameters():
            run.state.params[name].data.copy_(value.data)
    return learner


def information(learner):
    """I(X; Z) of its encoder: half the log of the ratio of the codes' variances with and without x."""
    module = learner.objective_
    A = module.recognition.net[1].weight.detach().numpy()[:2]
    spread = np.diag(np.exp(2 * module.recognition.net[1].bias.detach().numpy()[2:]))
    return 0.5 * (np.linalg.slogdet(A @ COVARIANCE @ A.T + spread)[1] - np.linalg.slogdet(spread)[1])


BETAS = (0.25, 0.5, 1.0, 2.0, 4.0)


def test_the_parameters_that_were_set_answer():
    learner = linear(beta=0.5, off=0.3)
    assert np.asarray(learner.transform(np.zeros((1, 4))))[0] == pytest.approx([0.3, 0.3])


def test_information_lies_between():
    """H - D <= I <= R for any encoder and decoder, and all three are one where both are right."""
    for learner in [linear(beta=b) for b in BETAS] + [linear(ROTATED), linear(off=0.5)]:
        (point,) = rate_distortion([learner], X, entropy=H).points
        low, high = point.information
        wide = 2 * max(p.interval[1] - p.value for p in (point.rate, point.distortion))
        assert low - wide < information(learner) < high + wide
        assert low == pytest.approx(H - point.distortion.value)
    (best,) = rate_distortion([linear()], X, entropy=H).points
    assert best.information == pytest.approx((information(linear()),) * 2, abs=0.1)
    assert best.elbo.value == pytest.approx(-H, abs=0.1)
    (far,) = rate_distortion([linear(off=0.5)], X, entropy=H).points
    assert far.information[1] > information(linear(off=0.5)) + 0.15  # the prior is not the codes' law


def test_a_rate_without_its_log_scale_is_caught(monkeypatch):
    """The mutant: KL without the entropy of q is no upper bound of the information."""
    full = Guess.log_prob
    monkeypatch.setattr(Guess, "log_prob", lambda self, z: full(self, z) + self.log_scale.sum(-1, keepdim=True))
    with pytest.warns(UserWarning, match="at most -H"):
        (point,) = rate_distortion([linear()], X, entropy=H).points
    assert point.information[1] < information(linear()) - 0.5


def test_the_slope_is_beta():
    """On the curve of best guesses for one decoder, the slope between two points lies between their betas."""
    curve = rate_distortion([linear(beta=b) for b in reversed(BETAS)], X)
    assert [p.beta for p in curve.points] == sorted(BETAS, reverse=True)
    for here, later in zip(curve.points[:-1], curve.points[1:], strict=True):
        assert later.beta - 0.05 < here.slope.interval[1]
        assert here.slope.interval[0] < here.beta + 0.05
        assert here.slope.interval[0] < here.slope.value < here.slope.interval[1]
    assert curve.points[-1].slope is None
    assert curve.points[0].information[0] == -math.inf
    elbos = {p.beta: p.elbo.value for p in curve.points}
    assert max(elbos, key=elbos.get) == 1.0
    assert curve.points[0].slope.value > 2 * curve.points[-2].slope.value


def test_models_of_one_rate_have_no_slope():
    same = linear()
    curve = rate_distortion([same, same], X[:100])
    assert curve.points[0].slope is None


@pytest.mark.filterwarnings("ignore:replicas are trained one after another")
def test_a_sweep_and_its_table_and_picture():
    made = Learner(VAE(1, hidden=(4,), noise=0.7), steps=100, replicas={"objective__beta": [0.5, 2.0]}, random_state=0)
    curve = rate_distortion(made.fit(X[:200]), X[:200], entropy=0.0)
    assert [p.setting["objective__beta"] for p in curve.points] == [p.beta for p in curve.points]
    assert str(curve).splitlines()[0].split() == ["beta", "rate", "distortion", "elbo", "-dD/dR"]
    assert len(str(curve).splitlines()) == 3
    text = rate_distortion_picture(curve)
    assert text.startswith("<svg")
    assert "β = 2" in text
    assert "no model" in text
    assert "no model" not in rate_distortion_picture(rate_distortion([made.replica(0)], X[:50]))


@pytest.mark.parametrize("model", [DiscreteVAE(2, hidden=(4,)), VQVAE(2, codes=4, width=2, hidden=(4,))], ids=repr)
def test_codes_of_whole_numbers_have_a_rate_and_a_distortion(model):
    learner = Learner(model, steps=5, random_state=0).fit(X[:100])
    (point,) = rate_distortion([learner], X[:50]).points
    assert point.rate.value == pytest.approx(np.asarray(learner.rate(X[:50])).mean())
    told = learner.elbo(X[:50], draws=64) if isinstance(model, DiscreteVAE) else learner.log_prob(X[:50])
    assert point.elbo.value == pytest.approx(np.asarray(told).mean(), abs=1e-5)
    assert point.distortion.value == pytest.approx(-point.elbo.value - point.rate.value)


# --- gaps ----------------------------------------------------------------------------------------------------------


def mean_field(loadings):
    """KL of the best guess with independent entries from the posterior: half of sum log of the precision's diagonal
    less the log of its determinant."""
    precision = np.eye(2) + loadings.T @ loadings / NOISE**2
    return 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])


@pytest.mark.parametrize("evidence", ["iwae", "ais"])
def test_gaps_in_closed_form(evidence):
    rows = X[: 60 if evidence == "ais" else 150]
    for loadings, off in ((W, 0.0), (ROTATED, 0.3)):
        learner = linear(loadings, off=off)
        options = {"chains": 16, "steps": 25, "leaps": 3, "draws": 1000} if evidence == "ais" else {"draws": 2000}
        gaps = inference_gaps(learner, rows, evidence=evidence, refine=100, **options)
        precision = np.eye(2) + loadings.T @ loadings / NOISE**2
        amortized = 0.5 * off**2 * precision.sum()  # of means that are off by as much in each entry
        assert gaps.approximation.value == pytest.approx(mean_field(loadings), abs=0.08)
        assert gaps.amortization.value == pytest.approx(amortized, abs=0.06)
        law = stats.multivariate_normal(np.zeros(4), loadings @ loadings.T + NOISE**2 * np.eye(4))
        assert gaps.evidence.value == pytest.approx(law.logpdf(rows).mean(), abs=0.07)
        total = gaps.approximation.value + gaps.amortization.value
        assert total == pytest.approx(gaps.evidence.value - gaps.elbo.value)
    assert mean_field(W) < 0.1 < 0.3 < mean_field(ROTATED)
    assert gaps.approximation.interval[0] > 0.2
    assert gaps.amortization.interval[0] > 0.2


def test_a_refinement_that_does_nothing_is_caught(monkeypatch):
    monkeypatch.setattr(VAE, "refine", lambda self, q, *rest: q)
    gaps = inference_gaps(linear(ROTATED, off=0.3), X[:150], draws=1000)
    assert gaps.amortization.value < 0.1  # where it is more than .4
    assert gaps.approximation.value > mean_field(ROTATED) + 0.3


def test_wrong_questions_are_refused():
    learner = linear()
    plain = Learner(ProbabilisticPCA(1)).fit(X[:50])
    several = Learner(VAE(1, hidden=(2,)), steps=1, replicas=2, random_state=0).fit(X[:50])
    for ask in (lambda x: rate_distortion([x], X), lambda x: inference_gaps(x, X)):
        with pytest.raises(TypeError, match="explains rows by codes"):
            ask(plain)
        with pytest.raises(ValueError, match=r"learner\.replica\(0\)"):
            ask(several)
        with pytest.raises(TypeError, match="expected a fitted Learner"):
            ask(3)
    with pytest.raises(TypeError, match="explains rows by codes"):
        rate_distortion(Regressor("linear", steps=1).fit(X[:50], X[:50, 0]), X)
    with pytest.raises(ValueError, match="at least one learner"):
        rate_distortion([], X)
    with pytest.raises(ValueError, match="expected draws to be"):
        rate_distortion(learner, X, draws=0)
    with pytest.raises(ValueError, match="expected entropy to be"):
        rate_distortion(learner, X, entropy=math.inf)
    for wrong in ({"evidence": "exact"}, {"draws": 5}, {"refine": 0}):
        with pytest.raises(ValueError, match=f"expected {next(iter(wrong))} to be"):
            inference_gaps(learner, X, **wrong)


@pytest.mark.parametrize(
    "model", [DiscreteVAE(2, hidden=(4,)), VQVAE(2, codes=4, width=2), HierarchicalVAE((2, 1), hidden=(4,))], ids=repr
)
def test_guesses_that_cannot_be_searched_for_have_no_gaps(model):
    learner = Learner(model, steps=1, random_state=0).fit(X[:100])
    with pytest.raises(TypeError, match=f"got {type(model).__name__}, whose guess has no numbers of its own"):
        inference_gaps(learner, X[:10])
