"""DiscreteVAE: exact by enumeration, gradients with and without bias, codes; broken ones are caught."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import MADE, DiscreteVAE
from weft.objectives.latent import discrete_vae
from weft.objectives.latent.choices import Chosen, Listed, code_of, every_code, hot, number_of, outcomes_of
from weft.testing import ContractError, check_density, every_row

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
BITS = ((rng.random((300, 1)) < 0.5) ^ (rng.random((300, 4)) < 0.15)).astype(np.float64)
ROWS = every_row([2] * 4)
SMALL = {"steps": 200, "optimizer": FAST}
WAYS = ("enumeration", "score", "relaxation", "straight-through")


def made(latent=2, choices=3, seed=0, **options):
    """Built, in double precision, with parameters that are drawn."""
    encoder = None if options.get("inference") == "enumeration" else "linear"
    model = DiscreteVAE(latent, choices=choices, encoder=encoder, decoder="linear", law="bernoulli", **options)
    built = build(model, {"x": Field((4,), torch.float64)}, 0, torch.float64)
    torch.manual_seed(seed)
    for p in built.parameters():
        torch.nn.init.normal_(p, std=0.7)
    return built.double()


def by_hand(model, rows):
    """log p(x, z) of every code, in numpy, from the decoder's own weights."""
    (W, b), choices = (p.detach().numpy() for p in model.generator.parameters()), int(model.choices)
    shares = model.log_shares().detach().numpy()
    found = []
    for code in itertools.product(range(choices), repeat=int(model.latent)):
        z = np.eye(choices)[list(code)].reshape(-1)
        p = 1 / (1 + np.exp(-(W @ z + b)))
        given = (rows * np.log(p) + (1 - rows) * np.log(1 - p)).sum(-1)
        found.append(given + sum(shares[j, c] for j, c in enumerate(code)))
    return np.stack(found, -1)


# --- codes -------------------------------------------------------------------------------------------------


def test_codes_are_numbered():
    every = every_code(3, 3, torch.zeros((), dtype=torch.float64))
    assert outcomes_of(every, 3).tolist() == [list(code) for code in itertools.product(range(3), repeat=3)]
    assert number_of(every, 3).tolist() == list(range(27))
    assert torch.equal(code_of(number_of(every, 3), 3, 3, every.dtype), every)


def test_a_guess_is_what_its_draws_say():
    """Frequencies, log-probabilities and the rate of both guesses, against enumeration by hand."""
    torch.manual_seed(0)
    prior = torch.randn(2, 3).double().log_softmax(-1)
    every = every_code(2, 3, prior)
    for q in (Chosen(torch.randn(1, 2, 3).double()), Listed(torch.randn(1, 9).double(), 2, 3)):
        logs = q.log_prob(every.unsqueeze(0))[0]
        assert float(logs.exp().sum()) == pytest.approx(1)
        with keyed(key_of(0), torch.arange(1)):
            drawn = number_of(q.draw(20_000, "z"), 3)[0]
        assert stats.chisquare(np.bincount(drawn, minlength=9), 20_000 * logs.exp().numpy()).pvalue > 1e-4
        torch.testing.assert_close(q.rate(prior)[0], (logs.exp() * (logs - every @ prior.flatten())).sum())
        torch.testing.assert_close(q.mean[0], logs.exp() @ every)
        assert torch.equal(hot(q.likeliest, 3, every.dtype)[0], every[logs.argmax()])


def test_a_relaxed_code_comes_to_the_one_that_is_drawn():
    q = Chosen(torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0)).double())
    with keyed(key_of(0), torch.arange(5), again=True):
        drawn = q.draw(7, "z")
        apart = [float((q.relaxed(7, "z", t) - drawn).abs().max()) for t in (10.0, 1.0, 1e-4)]
        assert torch.equal(outcomes_of(q.relaxed(7, "z", 0.7), 3), outcomes_of(drawn, 3))
    assert apart[0] > 0.5 > 1e-6 > apart[2]


# --- the density -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prior", ["uniform", "learned"])
def test_bits_sum_to_one(way, prior):
    model = DiscreteVAE(2, choices=3, hidden=(8,), law="bernoulli", gradient=way, prior=prior)
    learner = check_density(model, BITS, support=ROWS, settings=SMALL)
    assert learner.log_prob.kind == "exact"
    exact = np.asarray(learner.log_prob(ROWS))
    elbo = np.asarray(learner.elbo(ROWS, draws=500))
    assert (elbo < exact + 0.05).all()
    assert (exact - elbo).mean() > 0


def test_gaps_are_summed_over_and_drawn():
    model = DiscreteVAE(2, choices=3, hidden=(8,), law="bernoulli", gaps=True)
    check_density(model, BITS, support=ROWS, settings=SMALL)


def test_of_many_codes_a_bound_is_told(monkeypatch):
    """The same model, said to have too many codes: its log_prob is a bound, and comes to the exact one."""
    learner = Learner(DiscreteVAE(3, hidden=(8,), law="bernoulli"), **SMALL, dtype="float64", random_state=0).fit(BITS)
    exact = np.asarray(learner.log_prob(ROWS))
    with pytest.raises(ValueError, match="expected no draws"):
        learner.log_prob(ROWS, draws=5)
    monkeypatch.setattr(discrete_vae, "MOST", 4)
    assert learner.objective_.capabilities()["log_prob"].kind == "lower bound"
    few, many = np.asarray(learner.elbo(ROWS, draws=2000)), learner.log_prob(ROWS, draws=2000)
    assert (exact - few).mean() > 0.005
    assert np.asarray(many) == pytest.approx(exact, abs=0.1)
    assert Learner(DiscreteVAE(3, hidden=(8,), law="bernoulli"), steps=2).fit(BITS).log_prob.kind == "lower bound"


def test_the_posterior_is_bayes_rule():
    model = made(inference="enumeration", gradient="enumeration", prior="learned")
    joint = by_hand(model, ROWS)
    posterior = np.exp(joint - np.logaddexp.reduce(joint, -1)[:, None])
    x = torch.as_tensor(ROWS).double()
    with torch.no_grad(), keyed(key_of(0), torch.arange(16)):
        logs = model.guess(x).log_prob(every_code(2, 3, x).unsqueeze(0))
        np.testing.assert_allclose(logs.exp().numpy(), posterior, atol=1e-10)
        drawn = model.posterior(x, draws=5000).numpy()
        losses = model({"x": x}).losses.numpy()
    np.testing.assert_allclose(losses, -np.logaddexp.reduce(joint, -1))
    for own, share in zip(drawn @ [3, 1], posterior, strict=True):
        cells = share * 5000 > 5
        counts = np.bincount(own, minlength=9)
        seen = np.append(counts[cells], counts[~cells].sum()) + 1e-12
        wanted = np.append(5000 * share[cells], 5000 * share[~cells].sum()) + 1e-12
        assert stats.chisquare(seen, wanted).pvalue > 1e-5


def test_what_the_bound_lacks_is_the_divergence_to_the_posterior():
    model, x = made(gradient="enumeration", prior="learned"), torch.as_tensor(ROWS).double()
    joint = by_hand(model, ROWS)
    with torch.no_grad():
        elbo = -model({"x": x}).losses.numpy()
        logs = model.guess(x).log_prob(every_code(2, 3, x).unsqueeze(0)).numpy()
    exact = np.logaddexp.reduce(joint, -1)
    kl = (np.exp(logs) * (logs - joint + exact[:, None])).sum(-1)
    np.testing.assert_allclose(exact - elbo, kl, atol=1e-10)
    assert (kl > 0).all()


class Peeking(DiscreteVAE):
    """The mutant: its decoder sees x."""

    def log_given(self, x, z, observed=None, y=None):
        return self.entries.log_prob(self.theta(z, y) + (2 * x - 1).unsqueeze(1), x.unsqueeze(1)).sum(-1)


class Unpaid(DiscreteVAE):
    """The mutant: its codes cost less than they do."""

    def log_prior(self, z, y=None):
        return 0.5 * super().log_prior(z, y)


@pytest.mark.parametrize("mutant", [Peeking, Unpaid])
def test_what_is_no_density_is_caught(mutant):
    with pytest.raises(ContractError, match="total probability of 1"):
        check_density(mutant(2, hidden=(8,), law="bernoulli"), BITS, support=ROWS, settings=SMALL)


# --- gradients ---------------------------------------------------------------------------------------------


def slopes(model, x, count, **options):
    """Gradients in all parameters, one for each key; each of them is of one row of a large batch."""
    for option, value in options.items():
        setattr(model, option, value)
    names, params = zip(*model.named_parameters(), strict=True)
    rows = len(x)

    def loss(values, row):
        with keyed(key_of(3), row):
            given = dict(zip(names, values, strict=True))
            return torch.func.functional_call(model, given, ({"x": x},)).losses.sum()

    grad = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    found = grad(tuple(p.detach() for p in params), torch.arange(count * rows).reshape(count, rows))
    return torch.cat([part.flatten(1) for part in found], 1)


def away(drawn, exact):
    """The largest distance of the mean to the exact gradient, in standard errors."""
    error = drawn.std(0) / math.sqrt(len(drawn)) + 1e-12
    return float(((drawn.mean(0) - exact).abs() / error).max())


def cosine(one, other):
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


X3 = torch.as_tensor(ROWS[[1, 6, 15]]).double()
MANY = 20_000


def test_the_score_gradient_has_no_bias():
    """Against enumeration, in every parameter; a baseline with the draw's own value halves it, and is caught."""
    model = made(prior="learned").train()
    exact = slopes(model, X3, 1, gradient="enumeration")[0]
    for draws in (2, 5):
        assert away(slopes(model, X3, MANY, gradient="score", draws=draws), exact) < 4.5


def test_a_baseline_with_the_draw_itself_is_caught(monkeypatch):
    model = made(prior="learned").train()
    exact = slopes(model, X3, 1, gradient="enumeration")[0]
    monkeypatch.setattr(discrete_vae, "baseline", lambda value: value.mean(-1, keepdim=True))
    assert away(slopes(model, X3, MANY, gradient="score", draws=2), exact) > 10


def test_the_others_take_noise_away(monkeypatch):
    """Without a baseline there is no bias either, and far more noise."""
    model = made().train()
    exact = slopes(model, X3, 1, gradient="enumeration")[0]
    plain = slopes(model, X3, MANY, gradient="score", draws=4).var(0).sum()
    monkeypatch.setattr(discrete_vae, "baseline", torch.zeros_like)
    bare = slopes(model, X3, MANY, gradient="score", draws=4)
    assert away(bare, exact) < 4.5
    assert float(bare.var(0).sum() / plain) > 1.5


@pytest.mark.parametrize("way", ["relaxation", "straight-through"])
def test_what_is_relaxed_is_biased_and_points_the_same_way(way):
    model = made().train()
    exact = slopes(model, X3, 1, gradient="enumeration")[0]
    warm = slopes(model, X3, MANY, gradient=way, draws=1, temperature=1.0)
    assert away(warm, exact) > 6  # the mutant of the test above: what is biased is seen to be
    assert cosine(warm.mean(0), exact) > 0.6
    cold = slopes(model, X3, MANY, gradient=way, draws=1, temperature=0.05)
    assert float(cold.var(0).sum()) > 3 * float(warm.var(0).sum())


def test_a_relaxed_gradient_comes_to_the_exact_one_as_it_cools():
    model = made().train()
    exact = slopes(model, X3, 1, gradient="enumeration")[0]
    apart = []
    for temperature in (2.0, 0.2):
        found = slopes(model, X3, MANY, gradient="relaxation", draws=1, temperature=temperature)
        apart.append(float((found.mean(0) - exact).norm() / exact.norm()))
    assert apart[1] < 0.5 * apart[0]


def test_straight_through_decodes_codes_with_the_gradient_of_points():
    """By hand: the value is that of the nearest code, the slope that of the decoder there times the point's."""
    model, x = made(1, 3, gradient="straight-through", draws=1, temperature=0.8).train(), X3[:1]
    with keyed(key_of(0), torch.arange(1), again=True):
        loss = model({"x": x}).losses.sum()
        q = model.guess(x)
        logits = q.logits.detach().requires_grad_()
        point = Chosen(logits).relaxed(1, "z", 0.8)
        nearest = q.draw(1, "z").requires_grad_()
    given = model.log_given(x, nearest)
    rate = Chosen(logits).rate(model.log_shares())
    torch.testing.assert_close(loss, (rate - given.squeeze()).squeeze())
    (back,) = torch.autograd.grad(given.sum(), nearest)
    (through,) = torch.autograd.grad((back * point).sum() - rate.sum(), logits)
    (bias,) = torch.autograd.grad(loss, model.recognition.net[1].bias)
    torch.testing.assert_close(bias, -through.flatten())


def test_it_cools_and_is_judged_by_codes():
    model = made(gradient="relaxation", temperature=2.0, cooled=0.5, cooling=4).train()
    found = [float(model._heat()) for _ in range(6)]
    assert found == pytest.approx([2.0 * 0.25 ** (min(t, 4) / 4) for t in range(6)])
    assert int(model.seen) == 6
    model.eval()
    with keyed(key_of(0), torch.arange(3)):
        soft = model._soft(model.guess(X3), 4)
    assert set(soft.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns(way):
    """Four patterns of bits: every way comes to their entropy, log 4, but for one that its bias keeps away."""
    patterns = np.repeat([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], 25, 0).astype(float)
    options = {"temperature": 0.7} if way in ("relaxation", "straight-through") else {}
    model = DiscreteVAE(3, hidden=(16,), law="bernoulli", gradient=way, **options)
    learner = Learner(model, steps=400, optimizer=Optimizer("adam", lr=0.02), batch_size=None, random_state=0)
    slack = 0.8 if way == "straight-through" else 0.15  # of 1.39 nats that there are to learn
    assert -np.asarray(learner.fit(patterns).log_prob(patterns)).mean() < math.log(4) + slack
    assert np.abs(np.asarray(learner.reconstruct(patterns)) - patterns).mean() < 0.2


# --- answers -----------------------------------------------------------------------------------------------


def test_codes_go_and_come_back():
    y = BITS[:, 0].astype(int)
    model = DiscreteVAE(2, choices=3, hidden=(8,), law="bernoulli", conditional=True)
    learner = Learner(model, **SMALL, random_state=0).fit(BITS, y)
    codes = learner.transform(BITS[:5], y=y[:5])
    assert codes.shape == (5, 2)
    assert set(np.unique(codes)) <= {0, 1, 2}
    np.testing.assert_allclose(
        learner.inverse_transform(codes, y=y[:5]), learner.reconstruct(BITS[:5], y=y[:5]), rtol=1e-5
    )
    assert learner.posterior(BITS[:5], y=y[:5], draws=6).shape == (5, 6, 2)
    assert learner.sample(3, y=[0, 1, 1], random_state=0).shape == (3, 4)
    total = [np.exp(learner.log_prob(ROWS, y=np.full(16, c))).sum() for c in (0, 1)]
    assert total == pytest.approx([1, 1], abs=1e-4)
    with pytest.raises(ValueError, match="class y"):
        learner.log_prob(BITS)
    with pytest.raises(ValueError, match=r"2 whole numbers 0\.\.2"):
        learner.inverse_transform(codes + 3, y=y[:5])
    with pytest.raises(ValueError, match="refine=0"):
        learner.elbo(BITS[:5], y=y[:5], refine=10)


def test_the_rate_is_that_of_draws():
    model = DiscreteVAE(2, choices=3, hidden=(8,), prior="learned", law="bernoulli")
    learner = Learner(model, **SMALL, random_state=0).fit(BITS)
    assert learner.rate.kind == "exact"
    rate, distortion = np.asarray(learner.rate(BITS[:50])), np.asarray(learner.distortion(BITS[:50], draws=400))
    assert np.asarray(learner.elbo(BITS[:50], draws=400)) == pytest.approx(-rate - distortion, abs=0.3)


def test_tables_and_images():
    images = np.repeat(BITS[:, None, None, :], 4, 2)
    model = DiscreteVAE(3, encoder="conv-encoder", decoder="conv-decoder", law="bernoulli", gradient="relaxation")
    learner = Learner(model, steps=5, random_state=0).fit(images)
    assert learner.sample(3, random_state=0).shape == (3, 1, 4, 4)
    table = pd.DataFrame({"age": rng.normal(40, 10, 300), "ill": BITS[:, 0] > 0})
    table.loc[::7, "age"] = np.nan
    mixed = Learner(DiscreteVAE(3, hidden=(8,), gaps=True), **SMALL, random_state=0).fit(table)
    assert mixed.impute(table, random_state=0)["age"].notna().all()


BAD = {
    "at most 4096 codes to enumerate, got 2**20 = 1048576; take gradient='score'": {
        "latent": 20,
        "gradient": "enumeration",
    },
    "at most 4096 codes to enumerate, got 5**6": {
        "latent": 6,
        "choices": 5,
        "gradient": "enumeration",
        "inference": "enumeration",
    },
    "temperature to be": {"gradient": "relaxation", "temperature": 0.0},
    "beside temperature": {"temperature": 0.5},
    "cooled and cooling together": {"gradient": "relaxation", "cooled": 0.5},
    "a cooled of at most": {"gradient": "relaxation", "cooled": 2.0, "cooling": 5},
    "draws of at least 2": {"draws": 1},
    "no draws beside": {"gradient": "enumeration", "draws": 2},
    "gradient='enumeration' beside": {"inference": "enumeration"},
    "no encoder beside": {"inference": "enumeration", "gradient": "enumeration", "encoder": "mlp"},
    "choices to be an integer >= 2": {"choices": 1},
    "prior to be": {"prior": "normal"},
    "a net as the decoder": {"decoder": MADE()},
}


@pytest.mark.parametrize("told", BAD, ids=str)
def test_settings_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError)) as error:
        Learner(DiscreteVAE(**{"law": "bernoulli", **BAD[told]}), steps=1).fit(BITS)
    assert told in str(error.value)
