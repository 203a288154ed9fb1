"""AIS of the evidence: weights whose mean is p(x), moves that leave a density as it is; broken ones are caught."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import weft.objectives.latent.annealed as annealing
from weft import Learner, Optimizer
from weft.core.random import key_of, keyed, turns
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import VAE

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2)) @ np.array([[2.0, 1.0, 0.0, 0.5], [0.0, 0.5, 1.0, -1.0]]) + 0.5 * rng.normal(size=(60, 4))
BITS = ((rng.random((200, 1)) < 0.5) ^ (rng.random((200, 4)) < 0.15)).astype(np.float64)


def linear(**options):
    """A linear VAE in double precision, of parameters that are drawn: its guess is far off. Its evidence is known."""
    model = VAE(2, encoder="linear", decoder="linear", noise=0.7, **options)
    model = build(model, {"x": Field((4,), torch.float64)}, 0, torch.float64).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    W, b = (p.detach().numpy() for p in model.generator.parameters())
    return model, stats.multivariate_normal(b, W @ W.T + 0.7**2 * np.eye(4))


def weights(chains, steps, start="prior"):
    """w / p(x) of each chain of five rows, whose mean is 1."""
    model, law = linear()
    kept, plain = [], annealing.annealed
    with pytest.MonkeyPatch.context() as patch, keyed(key_of(1), torch.arange(5)):
        patch.setattr(annealing, "annealed", lambda *a, **k: kept.append(plain(*a, **k)) or kept[0])
        model.ais(torch.as_tensor(X[:5]), chains=chains, steps=steps, leaps=3, start=start)
    return np.exp(kept[0].numpy() - law.logpdf(X[:5])[:, None])


def off(w):
    """How many standard errors the mean weight lies from 1, of each row."""
    return (w.mean(-1) - 1) / (w.std(-1) / math.sqrt(w.shape[1]))


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_the_mean_weight_is_the_evidence(steps):
    assert np.abs(off(weights(3000, steps))).max() < 4


def late(log_start, log_joint, draw, *, chains, steps, leaps):
    """The mutant: it weighs by a temperature after the move at it."""
    b, z, w = annealing.temperatures(steps), draw(chains), 0
    for t in turns("temperature", steps):
        at = (1 - b[t + 1]), b[t + 1]
        step = torch.full_like(z[:, :1, :1], 0.3)
        z, _ = annealing.hamiltonian(lambda c, at=at: at[0] * log_start(c) + at[1] * log_joint(c), z, step, leaps)
        w = w + (b[t + 1] - b[t]) * (log_joint(z) - log_start(z))
    return w


def test_weights_at_wrong_temperatures_are_caught(monkeypatch):
    monkeypatch.setattr(annealing, "annealed", late)
    assert off(weights(3000, 20)).min() > 5


def always(shape, **_):
    """The mutant: every proposal is accepted."""
    return -torch.ones(shape, dtype=torch.float64)


def moved():
    """The variance of exact draws of N(0, 1) after a move with a long step."""
    with keyed(key_of(0), torch.arange(1)):
        z = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 40_000, 1)))
        step = torch.full((1, 1, 1), 1.7, dtype=torch.float64)
        found, chance = annealing.hamiltonian(lambda v: -0.5 * (v**2).sum(-1), z, step, 1)
    assert 0.1 < float(chance.mean()) < 0.95
    return float((found**2).mean())


def test_a_move_leaves_a_density_as_it_is(monkeypatch):
    error = math.sqrt(2 / 40_000)
    assert abs(moved() - 1) < 4 * error
    monkeypatch.setattr(annealing, "uniform", always)
    assert abs(moved() - 1) > 20 * error


def test_moves_that_are_always_accepted_are_caught_in_the_weights(monkeypatch):
    monkeypatch.setattr(annealing, "_WANTED", 0.4)  # long steps, of which many are to be refused
    assert np.abs(off(weights(1000, 40))).max() < 4
    monkeypatch.setattr(annealing, "uniform", always)
    assert weights(1000, 40).mean(-1).max() < 0.1  # they run away


def test_what_is_not_a_number_is_not_accepted():
    with keyed(key_of(0), torch.arange(1)):
        z = torch.zeros(1, 5, 2, dtype=torch.float64)
        found, chance = annealing.hamiltonian(
            lambda v: torch.where(v.abs().amax(-1) > 0.1, torch.nan, 0.0) - (v**2).sum(-1), z, torch.ones(1, 1, 1), 1
        )
    assert (found == 0).all()
    assert (chance == 0).all()


def test_nearer_than_draws_of_a_poor_guess():
    """A bound by an interval over rows, and near log p where thousands of draws of q lie nats below it."""
    model, law = linear()
    x, log_p = torch.as_tensor(X), law.logpdf(X)
    with keyed(key_of(1), torch.arange(60)), torch.no_grad():
        found = {"prior": model.ais(x, chains=8, steps=60, leaps=5).numpy()}
    with keyed(key_of(2), torch.arange(60)), torch.no_grad():
        found["guess"] = model.ais(x, chains=8, steps=60, leaps=5, start="guess").numpy()
        drawn = model.log_prob(x, draws=8 * 60 * 5).numpy()  # as many decodings
    for own in found.values():
        apart = log_p - own
        assert apart.mean() > -3 * apart.std() / math.sqrt(60)
        assert own.mean() > drawn.mean() + 3
    assert (log_p - found["prior"]).mean() < 0.15


def test_against_quadrature_and_by_replicas_and_parts():
    """Bits with one entry of code: a Learner's answer is the integral, row by row, whatever rows are asked beside."""
    settings = {"steps": 200, "optimizer": Optimizer("adam", lr=0.01), "dtype": "float64", "random_state": 0}
    learner = Learner(VAE(1, hidden=(8,), law="bernoulli"), replicas=2, **settings).fit(BITS)
    rows, each = BITS[:12], []
    nodes, mass = np.polynomial.hermite_e.hermegauss(80)
    for k in range(2):
        z = torch.as_tensor(nodes).reshape(1, -1, 1).expand(len(rows), -1, -1)
        with torch.no_grad():
            given = learner.replica(k).objective_.log_given(torch.as_tensor(rows), z)
        exact = (given + torch.as_tensor(np.log(mass / mass.sum()))).logsumexp(-1).numpy()
        each.append(np.asarray(learner.replica(k).ais(rows, chains=60, steps=20, leaps=3)))
        assert each[k] == pytest.approx(exact, abs=0.15)
        assert each[k].mean() == pytest.approx(exact.mean(), abs=0.03)
    both = np.asarray(learner.ais(rows, chains=60, steps=20, leaps=3))
    assert both == pytest.approx(np.logaddexp(*each) - math.log(2))
    assert np.asarray(learner.replica(0).ais(rows[:5], chains=60, steps=20, leaps=3)) == pytest.approx(each[0][:5])
    assert learner.ais.kind == "lower bound"


def test_gaps_priors_and_classes():
    holes = np.where(rng.random(BITS.shape) < 0.2, np.nan, BITS)
    settings = {"steps": 100, "dtype": "float64", "random_state": 0}
    learner = Learner(VAE(1, hidden=(8,), law="bernoulli", gaps=True, prior=3), **settings).fit(holes)
    assert np.asarray(learner.ais(holes[:20], steps=20, leaps=3)) == pytest.approx(
        np.asarray(learner.log_prob(holes[:20], draws=3000)), abs=0.25
    )
    y = BITS[:, 0].astype(int)
    told = Learner(VAE(1, hidden=(8,), law="bernoulli", conditional=True), **settings).fit(BITS, y)
    assert np.isfinite(told.ais(BITS[:5], y=y[:5], steps=5)).all()
    with pytest.raises(ValueError, match="expected a class y"):
        told.ais(BITS[:5])


@pytest.mark.parametrize("wrong", [{"chains": 0}, {"steps": 0}, {"leaps": 0}, {"start": "posterior"}], ids=str)
def test_wrong_questions_are_refused(wrong):
    model, _ = linear()
    with pytest.raises(ValueError, match=f"the {next(iter(wrong))} of ais"):
        model.ais(torch.as_tensor(X), **wrong)


def test_codes_that_no_gradient_moves_are_refused(monkeypatch):
    model, _ = linear()
    monkeypatch.setattr(VAE, "draw_prior", lambda self, n, y=None: torch.zeros(n, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="codes of real numbers"), keyed(key_of(0), torch.arange(60)):
        model.ais(torch.as_tensor(X))
