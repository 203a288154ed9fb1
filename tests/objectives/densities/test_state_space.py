"""The linear-Gaussian state space model: against the joint normal of all steps, statsmodels and what was planted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.source import Field
from weft.objectives import StateSpace
from weft.objectives.densities import state_space
from weft.objectives.densities.emissions import factor
from weft.objectives.densities.kalman import filtered, smoothed
from weft.testing import ContractError, check_density

rng = np.random.default_rng(0)
DOUBLE = {"random_state": 0, "dtype": "float64"}
PARITY = Path(__file__).parents[2] / "fixtures" / "parity" / "state_space.npz"


def made(states, shape):
    """A model with random numbers."""
    model = StateSpace(states)
    torch.manual_seed(3)
    model.build({"x": Field(shape, torch.float64)})
    model.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_().mul_(0.4 if name in ("shock", "spread") else 0.7)
    return model


def dense(model, steps):
    """Mean and covariance of all states, and of all numbers, of so many steps, by multiplying out."""
    m = model._model()
    A, Q, P = m.moves, m.shock @ m.shock.T, m.spread @ m.spread.T
    C, c, S = m.loading, m.offset, torch.diag((2 * m.log_scale).exp())
    z, d = len(m.start), len(c)
    means, cross = [m.start], torch.zeros(steps * z, steps * z, dtype=torch.float64)
    spread = P
    for t in range(steps):
        if t:
            means.append(A @ means[-1])
            spread = A @ spread @ A.T + Q
        block = spread
        for s in range(t, steps):  # Cov(z_s, z_t) = A^(s-t) Var(z_t)
            cross[s * z : (s + 1) * z, t * z : (t + 1) * z] = block
            cross[t * z : (t + 1) * z, s * z : (s + 1) * z] = block.T
            block = A @ block
    seen = torch.kron(torch.eye(steps, dtype=torch.float64), C.contiguous())
    noise = torch.kron(torch.eye(steps, dtype=torch.float64), S)
    mean = torch.cat(means)
    shown = (seen @ mean + c.repeat(steps), seen @ cross @ seen.T + noise)
    return [v.detach().numpy() for v in (mean, cross, *shown, cross @ seen.T)], d


def padded(rows):
    width = max(map(len, rows))
    whole = np.full((len(rows), width, rows[0].shape[1]), 55.0)
    for own, row in zip(whole, rows, strict=True):
        own[: len(row)] = row
    length = torch.tensor([len(row) for row in rows])
    return torch.as_tensor(np.nan_to_num(whole)), torch.as_tensor(~np.isnan(whole)), length


def ask(model, name, rows, **options):
    with torch.no_grad():
        return getattr(model, name)(*padded(rows), **options)


def test_likelihood_states_and_forecasts_are_those_of_the_joint_normal():
    model = made(2, (6, 3))
    rows = [rng.normal(size=(n, 3)) for n in (6, 4, 1)]
    rows[0][2] = np.nan  # a whole step
    rows[0][4, 1] = np.nan
    rows[1][0, :2] = np.nan
    scores, smooth = ask(model, "log_prob", rows), ask(model, "smooth", rows)
    ahead = ask(model, "forecast", rows, steps=3)
    for i, row in enumerate(rows):
        (mean_z, spread_z, mean_x, spread_x, both), d = dense(model, len(row) + 3)
        seen = np.concatenate([~np.isnan(row).reshape(-1), np.zeros(3 * d, dtype=bool)])
        x = np.nan_to_num(row).reshape(-1)[seen[: row.size]]
        inner = spread_x[np.ix_(seen, seen)]
        expected = stats.multivariate_normal(mean_x[seen], inner).logpdf(x)
        np.testing.assert_allclose(scores[i], expected, rtol=1e-10)
        gain = np.linalg.solve(inner, both[:, seen].T).T
        states = (mean_z + gain @ (x - mean_x[seen])).reshape(-1, 2)
        spread = spread_z - gain @ both[:, seen].T
        steps = len(row)
        np.testing.assert_allclose(smooth["mean"][i, :steps], states[:steps], atol=1e-10)
        for t in range(steps):
            block = slice(2 * t, 2 * t + 2)
            np.testing.assert_allclose(smooth["covariance"][i, t], spread[block, block], atol=1e-10)
        assert not smooth["mean"][i, steps:].any()
        later = slice(steps * d, None)
        gain = np.linalg.solve(inner, spread_x[later][:, seen].T).T
        mean = mean_x[later] + gain @ (x - mean_x[seen])
        variance = np.diag(spread_x[later, later] - gain @ spread_x[later][:, seen].T)
        np.testing.assert_allclose(ahead["mean"][i].reshape(-1), mean, atol=1e-10)
        np.testing.assert_allclose(ahead["variance"][i].reshape(-1), variance, rtol=1e-9)


def test_the_lag_of_the_smoother():
    model = made(2, (5, 3))
    row = rng.normal(size=(5, 3))
    x, observed, _ = padded([row])
    m = model._model()
    with torch.no_grad():
        lag = smoothed(m, filtered(m, x, observed)).lag
    (_, spread_z, _, spread_x, both), _ = dense(model, 5)
    posterior = spread_z - both @ np.linalg.solve(spread_x, both.T)
    for t in range(4):
        np.testing.assert_allclose(lag[t, 0], posterior[2 * t + 2 : 2 * t + 4, 2 * t : 2 * t + 2], atol=1e-10)


def test_parity_with_statsmodels():
    kept = np.load(PARITY)
    model = made(2, (40, 3))
    with torch.no_grad():
        for name in ("moves", "start", "loading", "offset"):
            getattr(model, name).copy_(torch.as_tensor(kept[f"given_{name}"]))
        for name in ("shock", "spread"):
            root = torch.linalg.cholesky(torch.as_tensor(kept[f"given_{name}"] @ kept[f"given_{name}"].T))
            getattr(model, name).copy_(factor(root, inverse=True))
        model.log_scale.copy_(torch.as_tensor(kept["given_scale"]).log())
    rows = [kept["x"]]
    np.testing.assert_allclose(ask(model, "log_prob", rows)[0], kept["evidence"], rtol=1e-8)
    smooth, ahead = ask(model, "smooth", rows), ask(model, "forecast", rows, steps=5)
    np.testing.assert_allclose(smooth["mean"][0], kept["smoothed"], atol=1e-6)
    np.testing.assert_allclose(smooth["covariance"][0], kept["smoothed_covariance"], atol=1e-6)
    np.testing.assert_allclose(ahead["mean"][0], kept["forecast"], atol=1e-6)
    np.testing.assert_allclose(ahead["variance"][0], np.diagonal(kept["forecast_covariance"], 0, 1, 2), rtol=1e-6)


def test_a_noiseless_eye_and_no_shocks_stay_sound():
    """Where plain covariances would lose their positive part: precise numbers, states that hardly move."""
    model = made(2, (200, 3))
    with torch.no_grad():
        model.moves.copy_(torch.eye(2))
        model.shock.copy_(torch.diag(torch.full((2,), -16.0)))
        model.spread.copy_(torch.diag(torch.full((2,), 7.0)))
        model.log_scale.fill_(-12.0)
    states = torch.randn(2).double()
    row = (states @ model.loading.T + model.offset).detach().numpy() * np.ones((200, 1))
    assert np.isfinite(float(ask(model, "log_prob", [row])[0]))
    found = ask(model, "smooth", [row])
    np.testing.assert_allclose(found["mean"][0, -1], states, atol=1e-4)
    assert np.linalg.eigvalsh(found["covariance"][0].numpy()).min() >= 0


def test_density_with_gaps_and_what_is_imputed():
    X = rng.normal(size=(80, 2)).cumsum(1) + 0.3 * rng.normal(size=(80, 2))
    check_density(StateSpace(1, iterations=10), X, box=[(-7.0, 7.0), (-9.0, 9.0)], settings=DOUBLE)


@pytest.mark.parametrize("broken", ["volume dropped", "start forgotten", "gaps seen"])
def test_mutants_are_no_densities(broken, monkeypatch):
    X = rng.normal(size=(80, 2)).cumsum(1) + 0.3 * rng.normal(size=(80, 2))

    def wrong(model, x, observed):
        if broken == "gaps seen":
            return filtered(model, x, torch.ones_like(observed))
        run = filtered(model, x, observed)
        if broken == "volume dropped":
            return state_space.Filtered(run.mean, run.root, run.before, run.before_root, run.evidence + 0.5)
        return filtered(model, x[..., 1:, :], observed[..., 1:, :])

    monkeypatch.setattr(state_space, "filtered", wrong)
    told = "density of what is observed" if broken == "gaps seen" else "total probability of 1"
    with pytest.raises(ContractError, match=told):
        check_density(
            StateSpace(1, inference="gradient"), X, box=[(-9.0, 9.0), (-10.0, 10.0)], settings={**DOUBLE, "steps": 5}
        )


def planted(n, steps, seed=0):
    """A damped turn in the plane, seen by four numbers."""
    draw = np.random.default_rng(seed)
    turn = 0.95 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    loading = draw.normal(size=(4, 2))
    state, rows = draw.normal(size=(n, 2)), []
    for _ in range(steps):
        rows.append(state @ loading.T + 2.0 + 0.4 * draw.normal(size=(n, 4)))
        state = state @ turn.T + 0.5 * draw.normal(size=(n, 2))
    return turn, np.stack(rows, 1)


def test_em_rises_and_recovers_what_was_planted_with_gaps():
    turn, X = planted(40, 50)
    X[rng.random(X.shape) < 0.1] = np.nan
    rows = [row[: 50 - i % 7] for i, row in enumerate(X)]
    learner = Learner(StateSpace(2, iterations=60), **DOUBLE).fit(rows)
    told = np.asarray(learner.history_["log_likelihood"], dtype=float)[:-1]
    assert (np.diff(told) > -1e-9).all()
    module = learner.module()
    found = np.linalg.eigvals(module.moves.detach().numpy())
    wanted = np.linalg.eigvals(turn)
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(wanted), atol=0.05)
    np.testing.assert_allclose(module.log_scale.exp().detach().numpy(), 0.4, atol=0.05)
    np.testing.assert_allclose(module.offset.detach().numpy(), 2.0, atol=0.3)


def test_em_and_gradient_climb_the_same_hill():
    """EM's fixed point has no slope; replicas together are single runs; a descent falls."""
    _, X = planted(16, 8)
    learner = Learner(StateSpace(2, iterations=150, tolerance=1e-9), replicas=2, **DOUBLE).fit(X)
    module = learner.module(1)
    x, observed, length = padded(list(X))
    slope = torch.autograd.grad(module.log_prob(x, observed, length).mean() / 8, list(module.parameters()))
    assert max(float(g.abs().max()) for g in slope) < 0.02
    short = {"states": 2, "iterations": 5}
    two = Learner(StateSpace(**short), replicas=2, **DOUBLE).fit(X).replica(1)
    one = Learner(StateSpace(**short), random_state=1, dtype="float64").fit(X)
    np.testing.assert_allclose(two.log_prob(X), one.log_prob(X), rtol=1e-8)
    descent = {"steps": 60, "batch_size": None, "optimizer": Optimizer("adam", lr=0.05)}
    down = Learner(StateSpace(2, inference="gradient"), **descent, **DOUBLE).fit(X)
    assert down.history_["loss"][-1] < down.history_["loss"][0] - 5
    assert down.log_prob(X).mean() < learner.replica(1).log_prob(X).mean() + 0.1


def test_samples_and_continuations_have_the_moments_that_are_told():
    _, X = planted(20, 8)
    learner = Learner(StateSpace(2, iterations=10), **DOUBLE).fit(X)
    drawn = learner.sample(4000, length=3, random_state=0)
    (_, _, mean, spread, _), _ = dense(learner.module(), 3)
    flat = drawn.reshape(4000, -1)
    error = np.sqrt(np.diag(spread) / 4000)
    assert (np.abs(flat.mean(0) - mean) < 5 * error).all()
    np.testing.assert_allclose(np.cov(flat.T), spread, atol=0.12 * np.diag(spread).max())
    ahead = learner.forecast(X[:1], steps=2)
    later = learner.forecast_sample(np.repeat(X[:1], 4000, 0), steps=2, random_state=1)
    error = np.sqrt(ahead["variance"][0] / 4000)
    assert (np.abs(later.mean(0) - ahead["mean"][0]) < 5 * error).all()
    np.testing.assert_allclose(later.var(0), ahead["variance"][0], rtol=0.12)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([np.ones(4), np.array([])], "at least one step for StateSpace, got 1 without any, first in row 1"),
        ([np.ones(4)], "numbers that vary for StateSpace, got 1 in every row of column 0"),
        ([np.array([1.0])], "at least as many steps as the 2 states"),
        ([np.array([1.0, np.inf, 2.0])], "contains NaN or infinity"),
        ([np.full(5, np.nan)], "some value in every column of X, got none in column 0"),
    ],
)
def test_bad_input_is_told(rows, told):
    with pytest.raises(ValueError, match=told):
        Learner(StateSpace(2), **DOUBLE).fit(rows)


def test_parameters_are_counted():
    model = made(2, (5, 3))
    assert model.free_parameters() == 6 + 2 + 6 + 6
