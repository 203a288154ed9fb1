"""Restricted Boltzmann machines against enumeration and scikit-learn's; their chains; annealed importance sampling."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.neural_network import BernoulliRBM

import weft
from weft import Learner
from weft.core.random import key_of, keyed, normal
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import RBM
from weft.objectives.densities import ais
from weft.objectives.densities.rbm import Units
from weft.strategies import ANDMask
from weft.testing import ContractError, check_density, every_row

rng = np.random.default_rng(0)
BITS = (rng.random((200, 4)) < [0.2, 0.5, 0.7, 0.4]).astype(float)
BITS[:, 1] = BITS[:, 0]
EVERY = every_row([2] * 4)
QUICK = {"steps": 60, "random_state": 0, "dtype": "float64"}


def units(visible, hidden, scale=1.0, seed=0):
    made, draw = Units(visible, hidden, torch.zeros(visible)).double(), np.random.default_rng(seed)
    for p in (*made.parameters(), made.base):
        p.data = torch.as_tensor(scale * draw.normal(size=p.shape))
    return made


def joint(made):
    """log p*(v, h) of all states, by the definition: rows are v."""
    visible, hidden = made.weight.shape
    v, h = (torch.as_tensor(every_row([2] * n)).double() for n in (visible, hidden))
    return (v @ made.a)[:, None] + v @ made.weight @ h.T + h @ made.c, v


@pytest.mark.parametrize("sides", [(5, 3), (3, 5), (1, 1), (13, 14)])
def test_the_normalizer_is_the_sum_over_all_states(sides):
    made = units(*sides, scale=0.7)
    if max(sides) < 6:
        logs, v = joint(made)
        torch.testing.assert_close(made.log_normalizer(), torch.logsumexp(logs.flatten(), 0))
        torch.testing.assert_close(made.free_energy(v), -torch.logsumexp(logs, 1))
    else:  # over more than one block: the sum over the other side is the same
        turned = Units(sides[1], sides[0], torch.zeros(sides[1])).double()
        turned.weight.data, turned.a.data, turned.c.data = made.weight.data.T, made.c.data, made.a.data
        torch.testing.assert_close(made.log_normalizer(), turned.log_normalizer())


@pytest.mark.parametrize("chains", ["data", "persistent"])
def test_it_is_a_density(chains):
    learner = check_density(RBM(3, chains=chains), BITS, support=EVERY, settings=QUICK)
    assert learner.log_prob.kind == "exact"


class Unnormalized(RBM):
    def log_normalizer(self):
        return self.units.log_base()


class Half(RBM):
    """Samples whose chain forgets the weights."""

    def sample(self, n, *, steps=200):
        drawn = super().sample(n, steps=steps)
        return drawn[:, torch.tensor([0, 3, 2, 1])]


@pytest.mark.parametrize(
    ("mutant", "told"), [(Unnormalized, "total probability of 1"), (Half, "samples with the freq")]
)
def test_mutants_are_caught(mutant, told):
    with pytest.raises(ContractError, match=told):
        check_density(mutant(3), BITS, support=EVERY, settings={**QUICK, "steps": 300})


@pytest.mark.parametrize("k", [1, 3])
def test_the_loss_has_the_gradient_of_contrastive_divergence(k):
    """Mean over many draws against data's moments less those after k steps, by the matrix of transitions."""
    made = units(3, 2, scale=2.5)
    logs, v = joint(made)
    given_v = torch.softmax(logs, 1)
    given_h = torch.softmax(logs, 0)  # p(v | h) in each column
    one = (given_v @ given_h.T).detach()
    moved = torch.linalg.matrix_power(one, k)
    x = v[[1, 6, 3]]
    start = [1, 6, 3]

    def slopes(weight):
        energy = (weight @ made.free_energy(v)).sum()
        return torch.autograd.grad(energy, list(made.parameters()))

    kept = torch.eye(8, dtype=torch.float64)[start] / 3
    wanted = [a - b for a, b in zip(slopes(kept), slopes(kept @ moved), strict=True)]
    rbm = build(RBM(2, k=k), {"x": Field((3,), torch.float64)}, 0, torch.float64)
    rbm.units.load_state_dict(made.state_dict())
    rows = 30_000
    with keyed(key_of(0), torch.arange(rows)):
        loss = rbm({"x": x.repeat(rows // 3, 1)}).losses.mean()
    found = torch.autograd.grad(loss, list(rbm.units.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.012)  # 4 standard errors of a share of 30,000
    if k == 3:  # and it is not that of one step
        other = [a - b for a, b in zip(slopes(kept), slopes(kept @ one), strict=True)]
        assert max(float((a - b).abs().max()) for a, b in zip(wanted, other, strict=True)) > 2 * 0.012


def test_persistent_chains_follow_the_model():
    """At parameters that stay, the chains come to have the model's frequencies."""
    settings = {**QUICK, "steps": 60, "optimizer": weft.Optimizer("sgd", lr=0.0)}
    learner = Learner(RBM(2, chains="persistent", particles=4000), **settings).fit(BITS)
    state = learner.training_.alone.state
    chains = state.buffers["fantasies"]
    assert set(chains.unique().tolist()) == {0.0, 1.0}
    share = np.exp(learner.log_prob(EVERY))
    found = np.bincount((chains.numpy() @ [8, 4, 2, 1]).astype(int), minlength=16) / 4000
    assert np.abs(found - share).max() < 5 * math.sqrt(share.max() / 4000)


def test_replicas_and_a_resumed_run_have_the_chains_of_single_runs(tmp_path):
    rbm = RBM(3, chains="persistent", particles=7)
    many = Learner(rbm, replicas=2, **QUICK).fit(BITS)
    for k in range(2):
        one = Learner(rbm, **{**QUICK, "random_state": k}).fit(BITS).training_.alone.state
        own = many.training_.every[k].state
        assert torch.equal(own.buffers["fantasies"], one.buffers["fantasies"])
        torch.testing.assert_close(own.params["units.weight"], one.params["units.weight"])
    assert not np.array_equal(*(many.training_.every[k].state.buffers["fantasies"] for k in range(2)))

    def stop(record):
        if record["epoch"] == 2:
            raise InterruptedError

    settings = {**QUICK, "steps": None, "epochs": 4}
    with pytest.raises(InterruptedError):
        Learner(rbm, folder=tmp_path / "run", callbacks=[stop], **settings).fit(BITS)
    again = weft.load(tmp_path / "run", objective=rbm).resume(BITS).training_.alone.state
    whole = Learner(rbm, **settings).fit(BITS).training_.alone.state
    for name, value in {**whole.params, **whole.buffers}.items():
        assert torch.equal(value, {**again.params, **again.buffers}[name]), name
    Learner(rbm, strategy=ANDMask(threshold=0.3), **QUICK).fit(
        BITS, environment=np.arange(200) % 2
    )  # parts leave alike


def test_parity_with_scikit_learn():
    learner = Learner(RBM(3), **QUICK).fit(BITS)
    peer, made = BernoulliRBM(3), learner.objective_.units
    peer.components_, peer.intercept_visible_, peer.intercept_hidden_ = (
        p.detach().numpy() for p in (made.weight.T, made.a, made.c)
    )
    np.testing.assert_allclose(learner.free_energy(BITS), peer._free_energy(BITS), rtol=1e-12)
    np.testing.assert_allclose(learner.transform(BITS), peer.transform(BITS), rtol=1e-12)
    # Its score is the pseudo-likelihood at bits of its own draw: means over many rows agree.
    many = np.repeat(BITS, 100, 0)
    own = learner.training_.alone
    batch = {"x": torch.as_tensor(many), "row": torch.arange(len(many))}
    told = own.engine.call(own.state, "measure", batch, key=key_of(0), rows=batch["row"])["pseudo_log_prob"]
    scores = peer.score_samples(many)
    assert abs(float(told.mean()) - scores.mean()) < 5 * scores.std() / math.sqrt(len(many))


def test_it_learns_and_imputes_by_the_conditional():
    learner = Learner(RBM(4, chains="persistent"), **{**QUICK, "steps": 1500}).fit(BITS)
    assert learner.score(BITS) > np.log(BITS.mean(0)[[0, 2, 3]]).sum() - 0.5
    share = np.exp(learner.log_prob(EVERY))
    rows = np.repeat([[1.0, 0.0, 0.0, 1.0]], 4000, 0)
    missing = np.repeat([[False, True, True, False]], 4000, 0)
    drawn = learner.impute(rows, missing=missing, random_state=0)
    assert np.array_equal(drawn[:, [0, 3]], rows[:, [0, 3]])
    alike = (EVERY[:, 0] == 1) & (EVERY[:, 3] == 1)
    wanted = share[alike] / share[alike].sum()
    found = np.bincount((drawn[:, [1, 2]] @ [2, 1]).astype(int), minlength=4) / 4000
    assert np.abs(found - wanted).max() < 5 * math.sqrt(0.25 / 4000)
    assert learner.impute.kind == "chain"
    assert learner.sample.kind == "chain"
    rows[:, 1] = np.float64(0.5)  # whatever stands at what is missing
    assert np.array_equal(learner.impute(rows, missing=missing, random_state=0), drawn)


def test_the_kind_says_whether_the_normalizer_was_summed_or_estimated():
    exact = Learner(RBM(3), **QUICK).fit(BITS)
    estimate = Learner(RBM(3, enumerate=2, temperatures=100), **QUICK).fit(BITS)
    assert (exact.log_prob.kind, estimate.log_prob.kind) == ("exact", "estimate")
    assert Learner(RBM(30), **QUICK).log_prob.kind == "estimate"  # not fitted: nobody knows the other side
    assert Learner(RBM(30), **{**QUICK, "steps": 1}).fit(BITS).log_prob.kind == "exact"  # which has 4 bits
    difference = estimate.log_prob(BITS) - exact.log_prob(BITS)
    np.testing.assert_allclose(difference, difference[0], atol=1e-9)  # one normalizer for all rows, alone or together
    np.testing.assert_allclose(estimate.log_prob(BITS[:1]), estimate.log_prob(BITS)[:1])
    assert 0 < abs(difference[0]) < 0.05
    assert "estimate" in repr(estimate.score(BITS))


# --- annealed importance sampling ---------------------------------------------------------------------


def covered(model, exact, repetitions=200, chains=50, temperatures=200):
    """The share of 95 % intervals that hold log Z, and the mean of its estimates less it."""
    with keyed(key_of(1)), torch.no_grad():
        found = ais(model, chains=repetitions * chains, temperatures=temperatures)
    runs = type(found)(found.log_weights.reshape(repetitions, chains))
    low, high = runs.interval(0.95)
    return float(((low <= exact) & (exact <= high)).double().mean()), float((runs.log_normalizer - exact).mean())


def nominal(share, repetitions=200):
    """Within what a nominal rate of .95 gives in all but one of 10,000 tests."""
    low, high = (binom.ppf(p, repetitions, 0.95) / repetitions for p in (5e-5, 1 - 5e-5))
    return low <= share <= high


def test_ais_finds_the_normalizer_and_its_interval_holds_it():
    made = units(8, 6, scale=0.8)
    share, bias = covered(made, made.log_normalizer().detach())
    assert nominal(share)
    assert abs(bias) < 0.05


class Dropped(Units):
    """The hidden units are forgotten where tempering begins."""

    def log_base(self):
        return super().log_base() - math.log(2)


class OtherRates(Units):
    """The base rates that are counted are not those at which chains begin."""

    def log_base(self):
        return (
            super().log_base()
            + torch.nn.functional.softplus(self.base + 0.1).sum()
            - torch.nn.functional.softplus(self.base).sum()
        )


class Still(Units):
    """Temperatures are not told to the chain."""

    def move(self, v, beta):
        return super().move(v, 0 * beta)


@pytest.mark.parametrize("mutant", [Dropped, OtherRates, Still])
def test_mutants_of_ais_are_caught(mutant):
    made = units(8, 6, scale=0.8)
    made.__class__ = mutant
    share, bias = covered(made, made.log_normalizer().detach())
    assert not nominal(share)
    assert abs(bias) > 0.05


class Bell:
    """exp(-(1 - beta + beta / 16) v^2 / 2): from a normal of deviation 1 to one of 4, by autoregressive steps."""

    def log_base(self):
        return torch.tensor(0.5 * math.log(2 * math.pi), dtype=torch.float64)

    def draw_base(self, n):
        return normal((n,), place="base", shared=True, dtype=torch.float64)

    def log_tempered(self, v, beta):
        return -0.5 * (1 - beta + beta / 16) * v**2

    def move(self, v, beta):
        noise = normal(v.shape, place="move", shared=True, dtype=v.dtype)
        return 0.5 * v + math.sqrt(0.75) * noise / (1 - beta + beta / 16).sqrt()


def test_ais_of_any_tempered_density():
    share, bias = covered(Bell(), 0.5 * math.log(2 * math.pi * 16))
    assert nominal(share)
    assert abs(bias) < 0.05
    with keyed(key_of(0)):
        few, many = (ais(Bell(), chains=500, temperatures=t) for t in (5, 200))
    assert float(few.effective) < float(many.effective) < 500
    assert float(many.error) < float(few.error)
    with pytest.raises(ValueError, match="chains of ais to be an integer >= 2, got 1"):
        ais(Bell(), chains=1)
    with pytest.raises(ValueError, match=r"level to be a number in \(0, 1\), got 95"):
        many.interval(95)


# --- bad input ----------------------------------------------------------------------------------------


def test_bad_input():
    grey = BITS.copy()
    grey[:3, 2] = 0.5
    message = r"expected 0 or 1 in column 2, .* got 0.5; 3 of 200 rows are outside of the support, in column 2"
    for chains in ("data", "persistent"):
        with pytest.raises(ValueError, match=message):
            Learner(RBM(3, chains=chains), **QUICK).fit(grey)
    learner = Learner(RBM(3), replicas=2, **QUICK).fit(BITS)
    for ask in (learner.log_prob, learner.free_energy, learner.replica(0).transform):
        with pytest.raises(ValueError, match=message):
            ask(grey)
    with pytest.raises(ValueError, match=r"got 0.5; 1 of"):
        learner.impute(grey[:1], missing=[[True, False, False, False]])
    with pytest.raises(ValueError, match="expected missing as True or False for each bit"):
        learner.impute(BITS[:1], missing=[[1.0, 0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="steps of sample to be an integer >= 1, got 0"):
        learner.sample(3, steps=0)
    with pytest.raises(
        ValueError, match=r"at most 24 units on the smaller side .* got 30 visible and 25 hidden ones; est"
    ):
        Units(30, 25, torch.zeros(30)).log_normalizer()
    with pytest.raises(ValueError, match=r"expected particles beside chains='persistent', got 5"):
        Learner(RBM(3, particles=5), **QUICK).fit(BITS)
    with pytest.raises(ValueError, match="RBM's enumerate to be an integer in"):
        Learner(RBM(3, enumerate=40), **QUICK).fit(BITS)
    with pytest.raises(ValueError, match="expected rows of numbers, got rows of shape"):
        Learner(RBM(3), **QUICK).fit(BITS.reshape(-1, 2, 2))


def test_bits_of_every_type_are_bits():
    whole = Learner(RBM(3), **QUICK).fit(BITS)
    for given in (BITS.astype(int), BITS.astype(bool)):
        learner = Learner(RBM(3), **QUICK).fit(given)
        np.testing.assert_allclose(learner.log_prob(given), whole.log_prob(BITS))
        assert set(np.unique(learner.sample(20, random_state=0)).tolist()) <= {0, 1}


def test_a_table_of_booleans_comes_back_as_one():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(BITS.astype(bool), columns=list("abcd"))
    learner = Learner(RBM(3), **QUICK).fit(table)
    drawn = learner.sample(5, random_state=0)
    assert list(drawn.columns) == list("abcd")
    assert set(map(str, drawn.dtypes)) <= {"bool", "boolean"}
    np.testing.assert_allclose(learner.log_prob(table), Learner(RBM(3), **QUICK).fit(BITS).log_prob(BITS))
    table["e"] = np.linspace(0, 1, 200)
    with pytest.raises(ValueError, match="expected 0 or 1 in e"):
        Learner(RBM(3), **QUICK).fit(table)


def test_pairs_of_settings():
    for hidden, chains in itertools.product((1, 5), ("data", "persistent")):
        learner = Learner(RBM(hidden, chains=chains, k=2), **{**QUICK, "steps": 2}).fit(BITS)
        assert "pseudo_log_prob" in learner.history_[-1]
