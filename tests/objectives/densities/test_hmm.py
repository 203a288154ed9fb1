"""Hidden Markov models: against every path, every sequence, hmmlearn's answers and what was planted."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.source import Field
from weft.objectives import HMM
from weft.objectives.densities import chains, hmm, sequences
from weft.objectives.densities.chains import Chain
from weft.testing import ContractError, check_density, every_row

rng = np.random.default_rng(0)
WORDS = ["abcab", "ab", "cabbac", "a", "bcab", "aacb", "bbb", "cab"]
SERIES = [rng.normal(size=length) + 3 * (rng.random(length) < 0.4) for length in rng.integers(2, 9, 30)]
DOUBLE = {"random_state": 0, "dtype": "float64"}
PARITY = Path(__file__).parents[2] / "fixtures" / "parity" / "hmm.npz"


def made(states, shape, classes=None, **settings):
    """A model with random numbers, in double precision."""
    model = HMM(states, **settings)
    torch.manual_seed(1)
    model.build({"x": Field(shape, torch.int64 if classes else torch.float64, classes)})
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def laws(model):
    return model.start.softmax(-1).detach().numpy(), model.moves.softmax(-1).detach().numpy()


def all_paths(start, moves, seen):
    """The joint probability of every path of states with what is seen, (T, K) as probabilities."""
    found = {}
    for path in itertools.product(range(len(start)), repeat=len(seen)):
        p = start[path[0]] * seen[0, path[0]]
        for t in range(1, len(seen)):
            p *= moves[path[t - 1], path[t]] * seen[t, path[t]]
        found[path] = p
    return found


def asked(model, rows):
    """What the model answers about rows, by the question's name."""
    x, length, observed = padded(rows)
    more = {} if observed is None else {"observed": observed}

    def answer(name):
        with torch.no_grad():
            return getattr(model, name)(x, x_length=length, **more)

    return answer


def padded(rows):
    """Rows side by side, with what does not belong to them where they have ended."""
    width = max(map(len, rows))
    whole = np.full((len(rows), width, *np.shape(rows[0])[1:]), 1 if rows[0].dtype.kind == "i" else 77.0)
    for row, own in zip(whole, rows, strict=True):
        row[: len(own)] = own
    length = torch.tensor([len(row) for row in rows])
    if rows[0].dtype.kind == "i":
        return torch.as_tensor(whole).long(), length, None
    return torch.as_tensor(np.nan_to_num(whole)), length, torch.as_tensor(~np.isnan(whole))


# --- against every path ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["categorical", "normal", "full", "student", "poisson", "bernoulli"])
def test_messages_are_sums_over_all_paths(law):
    full = law == "full"
    settings = {"law": "normal", "covariance": "full"} if full else {"law": law, "inference": "gradient"}
    model = made(3, (6,) if law == "categorical" else (6, 2), 4 if law == "categorical" else None, **settings)
    if law == "categorical":
        rows = [rng.integers(0, 4, n) for n in (5, 1, 3)]
    else:
        draw = {"poisson": rng.poisson, "bernoulli": lambda size: rng.binomial(1, 0.5, size)}.get(law)
        shapes = [(5, 2), (1, 2), (3, 2)]
        rows = [draw(size=s).astype(float) if draw else rng.normal(size=s) for s in shapes]
    start, moves = laws(model)
    theta = model.seen_by.detach()
    scores, smooth, path, ahead = (asked(model, rows)(n) for n in ("log_prob", "smooth", "decode", "forecast"))
    for i, row in enumerate(rows):
        seen = np.exp([[_law(law, theta[k], step) for k in range(3)] for step in row])
        joint = all_paths(start, moves, seen)
        total = sum(joint.values())
        np.testing.assert_allclose(scores[i], np.log(total), rtol=1e-12)
        np.testing.assert_array_equal(path[i, : len(row)], max(joint, key=joint.get))
        assert (path[i, len(row) :] == -1).all()
        assert (smooth[i, len(row) :] == 0).all()
        share = np.zeros((len(row), 3))
        for states, p in joint.items():
            share[np.arange(len(row)), states] += p / total
        np.testing.assert_allclose(smooth[i, : len(row)], share, atol=1e-12)
        after = share[-1] @ moves  # the last state given all, which is the filtered one
        if law == "categorical":
            np.testing.assert_allclose(ahead["probability"][i, 0], after @ theta.softmax(-1).numpy(), rtol=1e-10)
        else:
            mean, variance = model.emissions.moments(theta)
            middle = after @ mean.numpy()
            np.testing.assert_allclose(ahead["mean"][i, 0], middle, rtol=1e-10)
            second = after @ (variance + mean**2).numpy()
            np.testing.assert_allclose(ahead["variance"][i, 0], second - middle**2, rtol=1e-8)


def _law(law, theta, step):
    """log p of a step by scipy."""
    if law == "categorical":
        return float(theta.log_softmax(-1)[step])
    if law == "full":
        a, b, c = theta.numpy()[2:]
        lower = np.array([[np.exp(a), 0.0], [b, np.exp(c)]])
        return stats.multivariate_normal(theta[:2].numpy(), lower @ lower.T).logpdf(step)
    own = theta.numpy().reshape(2, -1)
    each = {
        "normal": lambda p, v: stats.norm(p[0], np.exp(p[1])).logpdf(v),
        "student": lambda p, v: stats.t(4, p[0], np.exp(p[1])).logpdf(v),
        "poisson": lambda p, v: stats.poisson(np.exp(p[0])).logpmf(v),
        "bernoulli": lambda p, v: stats.bernoulli(1 / (1 + np.exp(-p[0]))).logpmf(v),
    }[law]
    return sum(each(p, v) for p, v in zip(own, step, strict=True))


def test_pieces_of_a_long_sequence_give_the_same_messages(monkeypatch):
    model = made(3, (700,), 4)
    rows = [rng.integers(0, 4, n) for n in (700, 699, 300, 2)]
    whole = {n: asked(model, rows)(n) for n in ("log_prob", "smooth", "decode")}
    assert model._asked(*padded(rows)[:2], None).pieces > 5
    start, moves = laws(model)
    message, seen = start, model.seen_by.softmax(-1).detach().numpy()
    total = 0.0
    for t, token in enumerate(rows[0]):
        message = (message if t == 0 else message @ moves) * seen[:, token]
        total += np.log(message.sum())
        message = message / message.sum()
    np.testing.assert_allclose(whole["log_prob"][0], total, rtol=1e-12)
    slope = torch.autograd.grad(model.log_prob(*padded(rows)[:2]).sum(), list(model.parameters()))
    monkeypatch.setattr(chains, "_LONG", 10**9)
    for name, found in whole.items():
        torch.testing.assert_close(found, asked(model, rows)(name), rtol=1e-11, atol=1e-11)
    plain = torch.autograd.grad(model.log_prob(*padded(rows)[:2]).sum(), list(model.parameters()))
    torch.testing.assert_close(slope, plain, rtol=1e-9, atol=1e-9)


def test_nothing_underflows():
    """A state that is 1,000 nats behind comes back when the others are ruled out."""
    seen = torch.zeros(4, 3, 1, dtype=torch.float64)
    seen[1, 1] = -1500.0
    seen[1, 2] = -1500.0
    seen[2:, 0] = -9000.0
    moves = torch.tensor([[0.0, -np.inf, -np.inf], [-np.inf, 0.0, -np.inf], [-np.inf, -np.inf, 0.0]]).double()
    start = torch.full((3,), 1 / 3).double().log()
    chain = Chain(start, moves, seen, torch.ones(4, 1, 1, dtype=torch.bool))
    assert chains.Scaled.of(chain) is None  # which would have said -9000
    np.testing.assert_allclose(chain.evidence().item(), np.log(2 / 3) - 1500)


def test_scaled_probabilities_are_what_log_space_says(monkeypatch):
    """The quick way and the sure way, with rows that end early, short and in pieces."""
    for steps in (9, 400):
        model = made(3, (steps, 2), law="normal")
        rows = [rng.normal(size=(n, 2)) for n in (steps, steps // 2, 1)]
        x, length, observed = padded(rows)
        chain = model._asked(x, length, observed & sequences.inside(length, steps)[..., None])
        assert chains.Scaled.of(chain) is not None
        quick = (chain.evidence(), *chain.posterior(torch.tensor([1.0, 2.0, 3.0]).double()))
        with monkeypatch.context() as patch:
            patch.setattr(chains.Scaled, "of", lambda chain: None)
            sure = (chain.evidence(), *chain.posterior(torch.tensor([1.0, 2.0, 3.0]).double()))
        torch.testing.assert_close(quick, sure, rtol=1e-9, atol=1e-11)


def test_expected_moves_are_the_slopes_of_the_likelihood():
    """gamma and xi are derivatives of log p in log b and log A: backward messages against autograd."""
    for steps, rows in ((6, 5), (300, 2)):
        parts = [torch.randn(3), torch.randn(3, 3), torch.randn(steps, 3, rows)]
        start, moves, seen = (p.double().requires_grad_() for p in parts)
        inside = torch.ones(steps, 1, rows, dtype=torch.bool)
        inside[steps // 2 :, :, -1] = False
        chain = Chain(start, moves, seen, inside)
        evidence, each, moved = chain.posterior(torch.full((rows,), 2.0).double())
        by_moves, by_seen = torch.autograd.grad(evidence.sum(), [moves, seen])
        torch.testing.assert_close(each.detach(), by_seen, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(moved.detach(), 2 * by_moves, rtol=1e-9, atol=1e-12)


# --- densities ------------------------------------------------------------------------------------------------


def test_every_sequence_together_has_probability_one():
    X = rng.integers(0, 3, (40, 4))
    X[:3, 0] = 2
    learner = check_density(HMM(2, iterations=15), X, support=every_row([3, 3, 3, 3]), settings=DOUBLE)
    assert learner.sample(5, length=9).shape == (5, 9)
    check_density(HMM(2, inference="gradient"), X, support=every_row([3] * 4), settings={**DOUBLE, "steps": 30})


def test_numbers_integrate_to_one_with_gaps_and_what_is_imputed():
    X = rng.normal(size=(60, 2)) + 3 * (rng.random((60, 1)) < 0.5)
    check_density(HMM(2, law="normal", iterations=10), X, box=[(-7.0, 9.0)] * 2, settings=DOUBLE)
    counts = rng.poisson([1.0, 2.0], size=(60, 2)).astype(float)
    model = HMM(2, law="poisson", iterations=5, prior=0.1)
    bits = (counts > 1).astype(float)
    check_density(HMM(2, law="bernoulli", iterations=5, prior=0.1), bits, support=every_row([2, 2]), settings=DOUBLE)
    check_density(model, counts, support=every_row([30, 30]), settings=DOUBLE)


class Broken(HMM):
    """What is broken is told."""

    broken = ""

    def _chain(self, theta, x, length, observed, *, best=False):
        if self.broken == "padding counted":
            length = torch.full_like(length, x.shape[length.dim()])
        chain = super()._chain(theta, x, length, observed, best=best)
        if self.broken == "start dropped":
            return chains.Chain(torch.zeros_like(chain.start), chain.moves, chain.seen, chain.inside, chain.over)
        if self.broken == "moves not normalized":
            return chains.Chain(chain.start, theta["moves"], chain.seen, chain.inside, chain.over)
        if self.broken == "largest for sum":
            return chains.Chain(chain.start, chain.moves, chain.seen, chain.inside, torch.amax)
        return chain


@pytest.mark.parametrize("broken", ["start dropped", "moves not normalized", "largest for sum"])
def test_mutants_are_no_densities(broken):
    X = rng.integers(0, 3, (40, 3))
    model = type("Broken", (Broken,), {"broken": broken})(2, inference="gradient")
    with pytest.raises(ContractError, match="total probability of 1"):
        check_density(model, X, support=every_row([3, 3, 3]), settings={**DOUBLE, "steps": 20})


def test_padding_does_not_count_and_the_mutant_that_counts_it_is_seen():
    def alone_and_together(cls):
        learner = Learner(cls(2, law="normal", iterations=3), **DOUBLE).fit(SERIES)
        module = learner.module()
        together = asked(module, SERIES)("log_prob")
        return together, torch.cat([asked(module, [row])("log_prob") for row in SERIES])

    torch.testing.assert_close(*alone_and_together(HMM), rtol=1e-12, atol=1e-12)
    together, alone = alone_and_together(type("Padded", (Broken,), {"broken": "padding counted"}))
    assert float((together - alone).abs().max()) > 1.0


# --- learning -------------------------------------------------------------------------------------------------


def test_parity_with_hmmlearn():
    kept = np.load(PARITY)
    ends = np.cumsum(kept["lengths"])[:-1]
    width = int(kept["lengths"].max())
    for kind in ("tokens", "diag", "full"):
        x = kept["tokens_x" if kind == "tokens" else "numbers_x"]
        if kind == "tokens":
            model, theta = made(3, (width,), 5), torch.as_tensor(kept["tokens_given"]).log()
        else:
            model = made(3, (width, 2), law="normal", covariance="full" if kind == "full" else "diagonal", floor=1e-14)
            means, spread = torch.as_tensor(kept["given_means"]), torch.as_tensor(kept[f"{kind}_given"])
            if kind == "diag":
                theta = torch.stack([means, 0.5 * spread.log()], -1).flatten(1)
            else:
                lower = torch.linalg.cholesky(spread)
                theta = torch.stack(
                    [*means.T, lower[:, 0, 0].log(), lower[:, 1, 0], lower[:, 1, 1].log()], -1
                )  # mean, then the triangle row by row
        with torch.no_grad():
            model.start.copy_(torch.as_tensor(kept["given_start"]).log())
            model.moves.copy_(torch.as_tensor(kept["given_moves"]).log())
            model.seen_by.copy_(theta)
        rows = np.split(x, ends)
        ask = asked(model, rows)
        np.testing.assert_allclose(ask("log_prob"), kept[f"{kind}_score"], rtol=1e-10)
        path = ask("decode").numpy()
        np.testing.assert_array_equal(path[path >= 0], kept[f"{kind}_path"])
        share = ask("smooth").numpy()
        np.testing.assert_allclose(share[path >= 0], kept[f"{kind}_posterior"], atol=1e-9)
        whole, length, observed = padded(rows)
        before = {name: p.detach()[None] for name, p in model.named_parameters()}
        level, after = model.improve(
            before,
            whole[None],
            length[None],
            None if kind != "diag" else observed[None] & sequences.inside(length, width)[None, :, :, None],
            torch.ones(1, len(rows)).double(),
        )
        np.testing.assert_allclose(level, kept[f"{kind}_score"].sum(), rtol=1e-10)
        np.testing.assert_allclose(after["start"][0].exp(), kept[f"{kind}_start"], atol=1e-10)
        np.testing.assert_allclose(after["moves"][0].exp(), kept[f"{kind}_moves"], atol=1e-10)
        if kind == "tokens":
            np.testing.assert_allclose(after["seen_by"][0].exp(), kept["tokens_shown"], atol=1e-10)
        elif kind == "diag":
            found = after["seen_by"][0].reshape(3, 2, 2)
            np.testing.assert_allclose(found[..., 0], kept["diag_means"], rtol=1e-8)
            np.testing.assert_allclose((2 * found[..., 1]).exp(), np.diagonal(kept["diag_covars"], 0, 1, 2), rtol=1e-6)
        else:
            mean, variance = model.emissions.moments(after["seen_by"][0])
            np.testing.assert_allclose(mean, kept["full_means"], rtol=1e-8)
            np.testing.assert_allclose(variance, np.diagonal(kept["full_covars"], 0, 1, 2), rtol=1e-6)


def planted(n, steps, seed=0):
    """Three states that stay, with tokens and numbers of their own."""
    draw = np.random.default_rng(seed)
    moves = np.array([[0.85, 0.1, 0.05], [0.05, 0.8, 0.15], [0.2, 0.05, 0.75]])
    shown = np.array([[0.7, 0.1, 0.1, 0.1], [0.05, 0.75, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]])
    state = draw.choice(3, n, p=[0.5, 0.3, 0.2])
    rows = []
    for t in range(steps):
        if t:
            state = np.array([draw.choice(3, p=moves[s]) for s in state])
        rows.append(state)
    path = np.stack(rows, 1)
    tokens = (draw.random((n, steps, 1)) > shown[path].cumsum(-1)[..., :-1]).sum(-1)
    return moves, shown, path, tokens, path * 3.0 + draw.normal(size=path.shape)


def test_planted_parameters_are_recovered_up_to_a_permutation():
    moves, shown, path, tokens, numbers = planted(60, 60)
    words = Learner(HMM(3), replicas=4, **DOUBLE).fit(tokens)
    each = [words.replica(k).log_prob(tokens).mean() for k in range(4)]
    module = words.module(int(np.argmax(each)))
    order = list(max(itertools.permutations(range(3)), key=lambda o: _near(module, o, shown)))
    assert np.abs(module.moves.softmax(-1).detach().numpy()[np.ix_(order, order)] - moves).max() < 0.08
    assert np.abs(module.seen_by.softmax(-1).detach().numpy()[order] - shown).max() < 0.06
    series = Learner(HMM(3, law="normal"), replicas=4, **DOUBLE).fit(numbers)
    best = series.replica(int(np.argmax([series.replica(k).log_prob(numbers).mean() for k in range(4)])))
    means = best.module().seen_by[:, 0].detach().numpy()
    order = np.argsort(means)
    np.testing.assert_allclose(means[order], [0.0, 3.0, 6.0], atol=0.15)
    found = np.argsort(order)[best.decode(numbers)]
    assert (found == path).mean() > 0.95


def _near(module, order, shown):
    return -np.abs(module.seen_by.softmax(-1).detach().numpy()[list(order)] - shown).sum()


def test_em_rises_and_replicas_are_single_runs():
    learner = Learner(HMM(3, law="normal", iterations=25), replicas=3, **DOUBLE).fit(SERIES)
    told = np.asarray(learner.history_["log_likelihood"], dtype=float)[:-1]
    assert (np.diff(told, axis=0) > -1e-9).all()
    assert (told[-1] > told[0]).all()
    single = Learner(HMM(3, law="normal", iterations=25), random_state=2, dtype="float64").fit(SERIES)
    np.testing.assert_allclose(learner.replica(2).log_prob(SERIES), single.log_prob(SERIES), rtol=1e-8)
    steps = sum(map(len, SERIES))
    level = np.asarray(single.history_["log_likelihood"], dtype=float)[-2]
    assert single.log_prob(SERIES).sum() / steps >= level - 1e-9


def test_gradient_reaches_what_em_does():
    em = Learner(HMM(2, law="normal", tolerance=1e-9), **DOUBLE).fit(SERIES)
    descent = {"steps": 400, "batch_size": None, "optimizer": Optimizer("adam", lr=0.05)}
    by_slope = Learner(HMM(2, law="normal", inference="gradient"), **descent, **DOUBLE).fit(SERIES)
    np.testing.assert_allclose(by_slope.log_prob(SERIES).mean(), em.log_prob(SERIES).mean(), atol=0.02)


def test_gaps_are_summed_out_in_fit_as_well():
    """A gap at a step says nothing but that time passes; EM with gaps rises."""
    rows = [row.copy() for row in SERIES]
    for row in rows[::2]:
        row[1] = np.nan
    learner = Learner(HMM(2, law="normal", iterations=20), **DOUBLE).fit(rows)
    told = np.asarray(learner.history_["log_likelihood"], dtype=float)[:-1]
    assert (np.diff(told) > -1e-9).all()
    module = learner.module()
    start, moves = laws(module)
    seen = np.exp(
        [[_law("normal", torch.cat([t, t]).detach(), [v, v]) / 2 for t in module.seen_by] for v in (0.3, 1.0)]
    )
    seen = np.stack([seen[0], [1.0, 1.0], seen[1]])
    total = sum(all_paths(start, moves, seen).values())
    np.testing.assert_allclose(learner.log_prob([np.array([0.3, np.nan, 1.0])]), np.log(total), rtol=1e-9)


def test_weights_are_repeated_rows():
    weight = rng.integers(1, 4, len(SERIES))
    learner = Learner(HMM(2, law="normal", iterations=5), **DOUBLE)
    weighed = learner.fit(SERIES, sample_weight=weight.astype(float)).module()
    x, length, observed = padded(SERIES)
    x, observed = x[:, :, None], (observed & sequences.inside(length, x.shape[1]))[:, :, None]
    theta = {name: p.detach()[None] for name, p in weighed.named_parameters()}
    one = weighed.improve(theta, x[None], length[None], observed[None], torch.as_tensor(weight)[None].double())
    many = torch.as_tensor(np.repeat(np.arange(len(SERIES)), weight))
    ones = torch.ones(1, len(many)).double()
    two = weighed.improve(theta, x[many][None], length[many][None], observed[many][None], ones)
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def test_text_comes_back_as_text_and_continuations_follow_the_law():
    learner = Learner(HMM(2, iterations=20, prior=0.1), **DOUBLE).fit(WORDS)
    assert all(len(word) == 6 and set(word) <= set("abc") for word in learner.sample(4))
    ahead = learner.forecast(["ab"], steps=2)["probability"][0]
    drawn = learner.forecast_sample(["ab"] * 4000, steps=2, random_state=1)
    for t in range(2):
        counts = [sum(word[t] == letter for word in drawn) for letter in "abc"]
        assert stats.chisquare(counts, 4000 * ahead[t] / ahead[t].sum()).pvalue > 1e-4


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rows", "told"),
    [
        (
            HMM(2),
            [np.array([0, 1]), np.array([], dtype=int)],
            "at least one step for HMM, got 1 without any, first in row 1",
        ),
        (HMM(9), ["ab", "ba"], "at least as many steps as the 9 states of HMM, got 4 in 2 sequences"),
        (HMM(2), [[0.5, 1.0]], "text or a sequence of token numbers in row 0"),
        (HMM(2), [np.array([0, -1])], "expected token numbers 0..0 in x, got -1"),
        (HMM(2, law="normal"), [np.ones(5), np.ones(3)], "numbers that vary for HMM, got 1 in every row of column 0"),
        (HMM(2, law="normal"), [np.array([1.0, np.inf])], "contains NaN or infinity"),
        (HMM(2, law="normal", covariance="full"), [np.array([1.0, np.nan])], "contains NaN or infinity"),
        (HMM(2, law="normal"), [np.full((4, 1), np.nan)], "some value in every column of X, got none in column 0"),
        (
            HMM(2, law="poisson"),
            [np.array([1.0, -2.0, 3.0])],
            r"counts 0, 1, 2, .* got -2; 1 of 3 rows",
        ),
        (HMM(2, law="bernoulli"), [np.array([1.0, 0.0, 0.5])], "expected 0 or 1 in column 0"),
        (HMM(2, law="bernoulli", inference="gradient"), [np.array([1.0, 0.0, 0.5])], "expected 0 or 1 in column 0"),
        (HMM(2, law="normal", inference="gradient"), [np.ones(2), np.array([])], "got 1 without any, first in row 1"),
        (HMM(2, law="student"), SERIES, "maximum in closed form for inference='em', got 'student'"),
        (HMM(2, law="poisson", covariance="full"), SERIES, "covariance='diagonal' for the law 'poisson'"),
    ],
)
def test_bad_input_is_told(model, rows, told):
    with pytest.raises(ValueError, match=told):
        Learner(model, **DOUBLE).fit(rows)


def test_bad_questions_are_told():
    learner = Learner(HMM(2, iterations=5), **DOUBLE).fit(WORDS)
    with pytest.raises(ValueError, match="characters in x that training has seen"):
        learner.log_prob(["abz"])
    with pytest.raises(ValueError, match="at least one step"):
        learner.log_prob([""])
    with pytest.raises(ValueError, match="expected steps >= 1 to forecast, got 0"):
        learner.forecast(["ab"], steps=0)
    with pytest.raises(ValueError, match="length of what is asked of HMM"):
        learner.sample(2, length=0)
    with pytest.raises(ValueError, match="model of sequences with gaps"):
        learner.impute(["ab"])
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="expected numbers in row 0 of x, of sequences, got others"):
        Learner(HMM(2, law="normal"), **DOUBLE).fit(pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}))


def test_parameters_are_counted():
    learner = Learner(HMM(3, iterations=2), **DOUBLE).fit(WORDS)
    assert learner.module().free_parameters() == 2 + 6 + 3 * 2
    assert hmm.HMM.solves == "together"
