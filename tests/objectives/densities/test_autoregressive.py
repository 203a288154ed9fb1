"""Autoregressive densities: against enumeration, quadrature, their formulas in NumPy, and mutants of each guarantee."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.asking import _looped
from weft.engine.build import build
from weft.nets import masked
from weft.objectives import FVBN, MADE, NADE, ClassConditional, NeuralBelief
from weft.objectives.densities import laws
from weft.testing import check_density, every_row

rng = np.random.default_rng(0)
BITS = (rng.random((200, 4)) < [0.3, 0.5, 0.8, 0.5]).astype(float)
BITS[:, 2] = np.where(rng.random(200) < 0.8, BITS[:, 0], BITS[:, 2])
BITS[:, 3] = np.where(rng.random(200) < 0.7, (BITS[:, 0] + BITS[:, 1]) % 2, BITS[:, 3])
CLASS = rng.integers(0, 3, 200)
FAST = {"steps": 30, "optimizer": Optimizer("adam", lr=0.05), "batch_size": 100}
MODELS = {
    "fvbn": FVBN,
    "neural-belief": lambda **s: NeuralBelief(3, **s),
    "nade": lambda **s: NADE(6, **s),
    "made": lambda **s: MADE((12, 10), **s),
    "made, masks": lambda **s: MADE((8,), masks=3, **s),
    "made, orders": lambda **s: MADE((9,), orderings=3, masks=2, **s),
    "made, agnostic": lambda **s: MADE((9,), agnostic=True, orderings=2, **s),
}
ONE_ORDER = ["fvbn", "neural-belief", "nade", "made", "made, masks"]
ORDERS = {"given": "given", "random": "random", "named": (2, 0, 3, 1)}
each_model = pytest.mark.parametrize("name", MODELS)


def built(objective, columns=4, classes=None, scale=1.0, dtype=torch.float64):
    """Fresh weights, larger ones to make dependence stronger."""
    spec = {"x": Field((columns,), dtype)}
    if classes:
        spec["y"] = Field((), torch.int64, classes)
    made = build(objective, spec, 0, dtype).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
    return made


def drawn(model, n, seed=0, **options):
    with torch.no_grad(), keyed(key_of(seed), torch.arange(n)):
        return model.sample(n, **options)


def total(model, choices, **given):
    rows = torch.as_tensor(every_row(choices), dtype=torch.float64)
    given = {name: torch.full((len(rows),), value) for name, value in given.items()}
    with torch.no_grad():
        return float(model.log_prob(rows, **given).exp().sum())


# --- they are densities ---------------------------------------------------------------------------------


@each_model
def test_bits_sum_to_one_samples_follow_and_gaps_are_summed_out(name):
    gone = [(3,), (1, 2, 3)] if name in ONE_ORDER else []
    check_density(MODELS[name](law="bernoulli"), BITS, support=every_row([2] * 4), settings=FAST, missing=gone)


@each_model
@pytest.mark.parametrize("order", ORDERS)
def test_classes_sum_to_one_in_any_order_and_given_any_class(name, order):
    for law in ({"law": "categorical"}, {"law": "logistic-mixture", "parts": 2}):
        plain = MODELS[name](classes=3, order=ORDERS[order], **law)
        assert abs(total(built(plain, scale=2.0), [3] * 4) - 1) < 1e-9
        given = built(MODELS[name](classes=3, order=ORDERS[order], conditional=True, **law), classes=3, scale=2.0)
        sums = [total(given, [3] * 4, y=y) for y in range(3)]
        assert np.abs(np.array(sums) - 1).max() < 1e-9


PARTS = {"normal-mixture": {"parts": 2}}


@pytest.mark.parametrize("name", ["fvbn", "nade", "made"])
@pytest.mark.parametrize("law", ["normal", "normal-mixture", "student"])
def test_reals_integrate_to_one(name, law):
    X = np.stack([rng.normal(size=300), rng.normal(size=300)], 1)
    X[:, 1] += np.where(X[:, 0] > 0, 2.0, -2.0)
    objective = MODELS[name](law=law, **PARTS.get(law, {}))
    if law == "student":  # whose tails are outside of any box
        made = built(objective, 2)
        line = torch.linspace(-2000, 2000, 400_001, dtype=torch.float64)
        rows = torch.stack([torch.full_like(line, 0.3), line], 1)
        first = made.log_prob(rows[:1], torch.tensor([[True, False]]))
        with torch.no_grad():
            assert abs(float((made.log_prob(rows) - first).exp().sum() * 0.01) - 1) < 1e-4
        return
    check_density(objective, X, box=[(-14, 14), (-14, 14)], settings=FAST, missing=[(1,)], draws=2000)


def test_a_mixture_of_normals_finds_both_hills():
    x = rng.normal(size=1000)
    X = np.stack([x, np.where(rng.random(1000) < 0.5, x - 3, x + 3) + 0.1 * rng.normal(size=1000)], 1)
    settings = {"steps": 400, "optimizer": Optimizer("adam", lr=0.02), "random_state": 0, "dtype": "float64"}
    logs = {
        law: Learner(MADE((32,), law=law, **parts), **settings).fit(X).score(X)
        for law, parts in (("normal", {}), ("normal-mixture", {"parts": 4}))
    }
    truth = -0.5 * math.log(2 * math.pi * math.e) + math.log(0.5) - 0.5 * math.log(2 * math.pi * math.e * 0.01)
    assert logs["normal-mixture"] > truth - 0.3
    assert logs["normal-mixture"] > logs["normal"] + 1


def test_the_mean_of_logits_is_no_density_and_the_mean_of_probabilities_is():
    """The trap: MADE's orderings averaged before the sigmoid."""
    made = built(MADE((32,), orderings=4, law="bernoulli"), 8, scale=6.0)
    assert abs(total(made, [2] * 8) - 1) < 1e-9
    rows = torch.as_tensor(every_row([2] * 8), dtype=torch.float64)
    with torch.no_grad():
        logits = torch.stack([made.conditionals(made.read(rows, None), m) for m in range(4)]).mean(0)
        mutant = float(made.log_given(logits, rows, None).exp().sum())
    assert abs(mutant - 1) > 0.01


# --- nothing leaks --------------------------------------------------------------------------------------


def leaks(model, member):
    """By entry and input: the largest gradient of the entry's parameters, and which come before it."""
    torch.manual_seed(0)
    slopes = torch.zeros(len(model.entries), len(model.reads), dtype=torch.float64)
    inputs = torch.randn(8, len(model.reads), dtype=torch.float64, requires_grad=True)
    theta = model.conditionals(inputs, member)
    for j, own in enumerate(model.entries.places):
        for i in range(own.start, own.stop):
            slope = torch.autograd.grad(theta[:, i].sum(), inputs, retain_graph=True)[0].abs().amax(0)
            slopes[j] = torch.maximum(slopes[j], slope)
    place = {j: t for t, j in enumerate(model.sequences[member])}
    before = torch.tensor([[k < 0 or place[k] < place[j] for k in model.reads] for j in range(len(model.entries))])
    return slopes, before


@each_model
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("conditional", [False, True])
def test_an_entry_sees_what_comes_before_it_and_nothing_else(name, order, conditional):
    for law in ({"law": "bernoulli"}, {"law": "categorical", "classes": 3}):
        model = built(MODELS[name](order=ORDERS[order], conditional=conditional, **law), classes=conditional * 2)
        for member in range(model.members):
            slopes, before = leaks(model, member)
            assert (slopes[~before] == 0).all()
            if member == 0 and model.members == 1:
                assert (slopes[before] > 0).all()


@pytest.mark.parametrize("name", ["fvbn", "neural-belief", "made", "made, orders"])
def test_the_mutant_that_sees_itself_is_caught(name, monkeypatch):
    """Mask A for mask B."""
    right = masked.follows
    monkeypatch.setattr(masked, "follows", lambda after, before, strictly=False: right(after, before))
    model = built(MODELS[name](law="bernoulli"), scale=3.0)
    slopes, before = leaks(model, model.members - 1)
    assert (slopes[~before] != 0).any()
    assert abs(total(model, [2] * 4) - 1) > 0.01


def test_random_orders_differ_and_members_have_their_own():
    model = built(MADE((9,), orderings=3, masks=2, order="random"), 6)
    assert model.members == 6
    assert len({tuple(order) for order in model.sequences}) == 3
    assert model.sequences[0] == model.sequences[1] != list(range(6))
    assert all(sorted(order) == list(range(6)) for order in model.sequences)
    degrees = model.net.degrees0
    assert not torch.equal(degrees[0], degrees[1])


# --- their formulas -------------------------------------------------------------------------------------


def bits_of(seed=1, n=7, d=5):
    return (np.random.default_rng(seed).random((n, d)) < 0.5).astype(float)


def log_bit(logit, x):
    return np.where(x > 0.5, np.log(expit(logit)), np.log(expit(-logit)))


def test_fvbn_is_logistic_regression_on_what_comes_before():
    model, X, order = built(FVBN(law="bernoulli", order=(3, 1, 0, 4, 2)), 5, scale=2.0), bits_of(), (3, 1, 0, 4, 2)
    W, b = (p.detach().numpy() for p in (model.net.layers[0].weight, model.net.layers[0].bias))
    logs = np.zeros(len(X))
    for t, i in enumerate(order):
        logit = b[i] + sum(W[i, j] * X[:, j] for j in order[:t])
        logs += log_bit(logit, X[:, i])
    np.testing.assert_allclose(model.log_prob(torch.as_tensor(X)).detach(), logs, rtol=1e-12)


def test_nade_is_its_recursion():
    order = (3, 1, 0, 4, 2)
    model, X = built(NADE(6, law="bernoulli", order=order), 5, scale=2.0), bits_of()
    W, c, V, b = (p.detach().numpy() for p in (model.net.weight, model.net.c, model.net.v, model.net.b))
    c[:], b[:] = np.linspace(-1, 1, 6), np.linspace(1, -1, 5)  # the parameters' own memory
    logs = np.zeros(len(X))
    for n, x in enumerate(X):
        a = c.copy()
        for i in order:
            logs[n] += log_bit(b[i] + V[i] @ expit(a), x[i])
            a = a + W[i] * x[i]
    np.testing.assert_allclose(model.log_prob(torch.as_tensor(X)).detach(), logs, rtol=1e-12)


def test_neural_belief_is_its_formula():
    model, X = built(NeuralBelief(3, law="bernoulli"), 5, scale=2.0), bits_of()
    first, last = model.net.layers
    W, c, V, b = (p.detach().numpy() for p in (first.weight, first.bias, last.weight, last.bias))
    assert W.shape == (12, 5)
    logs = log_bit(np.full(len(X), b[0]), X[:, 0])
    groups = []
    for i in range(1, 5):
        own = slice(3 * (i - 1), 3 * i)
        groups.append(np.tanh(c[own] + X[:, :i] @ W[own, :i].T))
        logit = b[i] + np.concatenate(groups, 1) @ V[i, : 3 * i]
        logs += log_bit(logit, X[:, i])
    np.testing.assert_allclose(model.log_prob(torch.as_tensor(X)).detach(), logs, rtol=1e-12)


def made_by_loops(model, x, order, told):
    """log p(x) of a row by MADE's paper, unit by unit: who may see whom is asked for each pair of units."""
    d = len(order)
    place = {entry: t + 1 for t, entry in enumerate(order)}
    values, degrees = list(x), [place[j] for j in range(d)]
    if told:
        values, degrees = values + [1.0] * d, degrees + degrees
    *hidden, last = [(p.weight.detach().numpy(), p.bias.detach().numpy()) for p in model.net.layers]
    for W, b in hidden:
        own = [1 + int((k + 0.5) / len(b) * (d - 1)) for k in range(len(b))]
        sums = b.copy()
        for k in range(len(b)):
            for i in range(len(values)):
                if degrees[i] <= own[k]:
                    sums[k] += W[k, i] * values[i]
        values, degrees = [max(s, 0.0) for s in sums], own
    log = 0.0
    for j in range(d):
        seen = [k for k in range(len(values)) if degrees[k] < place[j]]
        logit = last[1][j] + sum(last[0][j, k] * values[k] for k in seen)
        log += float(log_bit(logit, x[j]))
    return log


@pytest.mark.parametrize("hidden", [(7,), (9, 6, 11)])
def test_made_is_its_formula_in_one_order_and_the_mean_over_several(hidden):
    order, X = (3, 1, 0, 4, 2), bits_of()
    one = built(MADE(hidden, law="bernoulli", order=order), 5, scale=2.0)
    logs = [made_by_loops(one, x, order, told=False) for x in X]
    np.testing.assert_allclose(one.log_prob(torch.as_tensor(X)).detach(), logs, rtol=1e-12)
    both = built(MADE(hidden, law="bernoulli", order=order, orderings=2), 5, scale=2.0)
    assert both.sequences[0] == list(order) != both.sequences[1]
    means = [np.log(np.mean([np.exp(made_by_loops(both, x, o, told=True)) for o in both.sequences])) for x in X]
    np.testing.assert_allclose(both.log_prob(torch.as_tensor(X)).detach(), means, rtol=1e-12)


# --- draws ----------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("order", ["given", "random"])
def test_cached_draws_are_the_naive_ones(name, order):
    for law in ({"law": "bernoulli"}, {"law": "categorical", "classes": 3}, {"law": "normal-mixture", "parts": 2}):
        scale = 0.5 if law["law"] == "normal-mixture" else 2.0
        model = built(MODELS[name](order=order, conditional=True, **law), 6, classes=2, scale=scale)
        options = {"y": torch.arange(50) % 2, "temperature": 1.0 if law["law"] == "normal-mixture" else 0.7}
        one, other = drawn(model, 50, **options), drawn(model, 50, cached=False, **options)
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        if law["law"] != "normal-mixture":
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["fvbn", "neural-belief", "nade", "made"])
def test_the_mutant_whose_cache_is_a_step_late_is_caught(name):
    model = built(MODELS[name](law="bernoulli"), 6, scale=5.0)
    right, seen = model.advance, []

    def late(known, inputs, kept, member=0):
        seen.append(inputs.clone())
        return right(known, seen[max(known - 1, 0)], kept, member)

    model.advance = late
    assert not torch.equal(drawn(model, 200), drawn(model, 200, cached=False))


def test_drawing_masks_weights_once_and_computes_each_hidden_unit_once():
    """The work of one pass: a unit is computed when its last entry becomes known, and at no other time."""
    model = built(MADE((30, 20), law="bernoulli", order="random"), 12, scale=2.0)
    right, computed = torch.nn.functional.linear, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked.F, "linear", lambda x, w, b=None: (computed.append(len(w)), right(x, w, b))[1])
        drawn(model, 3)
    assert sum(computed) == 30 + 20 + 12


def test_outputs_out_of_the_entries_order_are_refused():
    with pytest.raises(ValueError, match=r"expected outputs in the order of their entries, got \[1, 0\]; sort them"):
        masked.MaskedMLP([0, 1], [1, 0])


def test_temperature_divides_logits_and_widens_normals():
    bit = built(FVBN(law="bernoulli"), 1)
    share = float(torch.sigmoid(bit.net.layers[0].bias[0].detach() / 0.5))
    assert abs(drawn(bit, 20_000, temperature=0.5).mean().item() - share) < 0.015
    normal = built(FVBN(law="normal"), 1)
    plain, wide = drawn(normal, 500), drawn(normal, 500, temperature=4.0)
    mean = normal.net.layers[0].bias[0].detach()
    torch.testing.assert_close(wide - mean, 2 * (plain - mean))
    model = built(MADE((8,), law="bernoulli"), scale=3.0)
    assert len(torch.unique(drawn(model, 100, temperature=1e-6), dim=0)) == 1
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"expected the temperature of sample to be a number > 0, got"):
            drawn(model, 3, temperature=wrong)
    with pytest.raises(ValueError, match=r"expected temperature=1 for the law 'student', of which no power .* got 0.5"):
        drawn(built(FVBN(law="student")), 3, temperature=0.5)


def test_top_k_draws_among_the_likeliest_classes_in_proportion():
    model = built(NADE(6, law="categorical", classes=5), 2, scale=3.0)
    with torch.no_grad():
        shares = (model.net.b[:5] + 0.5 * model.net.v[:5].sum(1)).softmax(0)  # of the first entry: sigmoid(0) = 1/2
    first = drawn(model, 20_000, top_k=2)[:, 0]
    wanted = torch.zeros(5, dtype=torch.float64)
    wanted[shares.topk(2).indices] = shares.topk(2).values / shares.topk(2).values.sum()
    torch.testing.assert_close(torch.bincount(first.long(), minlength=5) / 20_000, wanted.float(), atol=0.015, rtol=0)
    assert len(torch.unique(drawn(model, 50, top_k=1), dim=0)) == 1
    assert torch.equal(drawn(model, 50, top_k=5), drawn(model, 50))
    assert torch.equal(drawn(model, 50, top_k=2), drawn(model, 50, top_k=2, cached=False))
    even = laws.Categorical(3).likeliest(torch.zeros(4, 3), 2)  # alike: those that stand first
    assert torch.equal(even.isfinite(), torch.tensor([[True, True, False]] * 4))
    with pytest.raises(ValueError, match="expected a top_k of at most the 5 classes, got 6; leave it out for all"):
        drawn(model, 3, top_k=6)
    for wrong in (0, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="expected the top_k of sample to be an integer >= 1"):
            drawn(model, 3, top_k=wrong)
    for law in ({"law": "bernoulli"}, {"law": "normal"}, {"law": "logistic-mixture", "classes": 4}):
        with pytest.raises(
            ValueError, match=rf"expected no top_k for the law '{law['law']}', which is none of classes"
        ):
            drawn(built(FVBN(**law)), 3, top_k=2)


def test_a_prefix_is_kept_and_the_rest_drawn_given_it():
    learner = Learner(MADE((16,), law="bernoulli", order=(2, 0, 3, 1)), random_state=0, dtype="float64", **FAST)
    learner.fit(BITS)
    rows = learner.sample(4000, prefix=(1, None, 0), random_state=1)
    assert (rows[:, [0, 2]] == [1, 0]).all()
    every = every_row([2] * 4)
    alike = (every[:, [0, 2]] == [1, 0]).all(1)
    share = np.exp(learner.log_prob(every[alike]))
    seen = [(rows == row).all(1).mean() for row in every[alike]]
    np.testing.assert_allclose(seen, share / share.sum(), atol=0.03)
    with pytest.raises(ValueError, match="expected gaps in what comes last in the order of MADE, got one in column 2"):
        learner.sample(5, prefix=(1, 0))
    with pytest.raises(ValueError, match="expected 0 or 1 in column 2, whose law is 'bernoulli', got 3"):
        learner.sample(5, prefix=(None, None, 3))
    with pytest.raises(ValueError, match="expected a prefix of at most 4 numbers"):
        learner.sample(5, prefix=(1, 1, 1, 1, 1))
    table = Learner(FVBN(), steps=1).fit(pd.DataFrame({"a": [True, False] * 5, "b": ["u", "v"] * 5}))
    with pytest.raises(ValueError, match="expected a prefix for a model of arrays, got one for a table"):
        table.sample(5, prefix=(1,))


@each_model
def test_replicas_draw_at_once_what_each_draws_alone(name):
    learner = Learner(MODELS[name](law="bernoulli"), replicas=2, random_state=0, **{**FAST, "steps": 3}).fit(BITS)
    both = learner.sample(20, random_state=3)
    alone = [learner.replica(k).sample(20, random_state=3) for k in range(2)]
    np.testing.assert_array_equal(both, np.concatenate([alone[0][:10], alone[1][10:]]))
    assert not _looped.get(learner.objective_, set()) & {"sample", "log_prob", "impute"}
    assert np.isfinite(learner.log_prob(BITS)).all()


# --- a class for each row -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fvbn", "neural-belief", "nade", "made", "made, agnostic"])
def test_rows_given_their_class(name):
    y = np.array(["a", "b", "c"])[CLASS]
    X = np.where(CLASS[:, None] == 1, 1 - BITS, BITS)
    settings = {**FAST, "steps": 60, "random_state": 0, "dtype": "float64"}
    learner = Learner(MODELS[name](law="bernoulli", conditional=True), **settings).fit(X, y)
    every = every_row([2] * 4)
    for label in "abc":
        share = np.exp(learner.log_prob(every, y=np.full(16, label)))
        assert abs(share.sum() - 1) < 1e-9
        rows = learner.sample(3000, y=np.full(3000, label), random_state=0)
        seen = np.array([(rows == row).all(1).mean() for row in every])
        assert np.abs(seen - share).max() < 0.04
    first = [np.exp(learner.log_prob(every, y=np.full(16, label)))[8:].sum() for label in "ab"]
    assert first[1] - first[0] > 0.15  # the first entry of the order depends on the class as well
    with pytest.raises(ValueError, match=r"expected a class y for each row .* got none; give y=..."):
        learner.log_prob(every)
    with pytest.raises(ValueError, match="expected a class y for each row"):
        learner.sample(3)


def test_a_class_for_a_model_of_none_is_refused():
    model = built(FVBN(law="bernoulli"))
    with pytest.raises(ValueError, match=r"expected no class y .*conditional=False\), got one; leave it out"):
        model.log_prob(torch.zeros(2, 4, dtype=torch.float64), None, torch.zeros(2))


def test_bayes_rule_over_a_density_of_each_class():
    learner = Learner(ClassConditional(FVBN(law="bernoulli")), random_state=0, **FAST).fit(BITS, BITS[:, 2] > 0)
    assert learner.score(BITS, BITS[:, 2] > 0) > 0.95


# --- tables and gaps ------------------------------------------------------------------------------------


def table(n=300):
    kind = rng.integers(0, 3, n)
    flag = rng.random(n) < np.array([0.2, 0.5, 0.9])[kind]
    size = 100 + 10 * rng.normal(size=n) + 15 * flag
    count = rng.poisson(1 + kind)
    return pd.DataFrame(
        {"kind": np.array(["a", "b", "c"])[kind], "size": size, "flag": flag, "count": pd.Series(count, dtype="Int64")}
    )


@pytest.mark.parametrize("name", ["fvbn", "neural-belief", "nade", "made", "made, orders"])
def test_a_table_of_several_kinds_is_a_density_in_its_units(name):
    frame = table()
    law = "normal-mixture" if name == "made" else "auto"
    learner = Learner(MODELS[name](law=law, **PARTS.get(law, {})), random_state=0, dtype="float64", **FAST).fit(frame)
    laws = [law.name for law in learner.objective_.entries.laws]
    real = "normal-mixture" if name == "made" else "normal"
    assert laws[:3] == ["categorical", real, "bernoulli"]
    assert laws[3] in ("poisson", "normal", real)
    one = learner.sample(200, random_state=0)
    assert list(one.columns) == list(frame.columns)
    assert set(one["kind"]) <= {"a", "b", "c"}
    assert 80 < one["size"].mean() < 130
    grid = np.linspace(-100, 320, 421)
    few = [pd.DataFrame({"kind": kind, "size": grid, "flag": flag}) for kind in "abc" for flag in (True, False)]
    plain = Learner(MODELS[name](law=law, **PARTS.get(law, {})), random_state=0, dtype="float64", **FAST).fit(
        frame[["kind", "size", "flag"]]
    )
    assert abs(sum(np.exp(plain.log_prob(part)).sum() for part in few) - 1) < 2e-3


def test_gaps_that_do_not_come_last_are_refused_wherever_they_are_met():
    holes = BITS[:20].copy()
    holes[3, 1] = np.nan
    message = (
        "expected gaps in what comes last in the order of NADE, got one in column 1, which column 2 comes after, in 1 "
        "of 20 rows, first in row 3; take an order"
    )
    learner = Learner(NADE(4, law="bernoulli"), random_state=0, **FAST)
    with pytest.raises(ValueError, match=message):
        learner.fit(holes)
    x = torch.as_tensor(holes)
    with pytest.raises(ValueError, match=message):  # as what is validated on
        built(NADE(4, law="bernoulli"))({"x": x.nan_to_num(), "observed": ~x.isnan()})
    learner.fit(BITS)
    for ask in (learner.log_prob, learner.impute):
        with pytest.raises(ValueError, match=message):
            ask(holes)
    assert np.isfinite(Learner(NADE(4, law="bernoulli", order=(0, 2, 3, 1)), **FAST).fit(holes).log_prob(holes)).all()


def test_gaps_at_the_end_change_the_training_of_what_is_missing_alone():
    """In a net without shared weights, the conditionals of what is there are those of the columns alone."""
    holes = BITS.copy()
    holes[:100, 3] = np.nan
    settings = {"random_state": 0, "dtype": "float64", **FAST, "batch_size": None}
    given, whole = (Learner(FVBN(law="bernoulli"), **settings).fit(rows) for rows in (holes, BITS))
    seen = BITS.copy()
    seen[:, 3] = np.nan
    np.testing.assert_allclose(given.log_prob(seen), whole.log_prob(seen), rtol=1e-9)
    assert not np.allclose(given.log_prob(BITS), whole.log_prob(BITS), rtol=1e-3)


def test_an_agnostic_model_imputes_by_an_order_that_begins_with_what_is_there():
    settings = {**FAST, "steps": 600, "optimizer": Optimizer("adam", lr=0.01), "random_state": 0, "dtype": "float64"}
    learner = Learner(MADE((64, 64), law="bernoulli", agnostic=True), **settings).fit(BITS)
    asked = np.tile([np.nan, 1.0, np.nan, 0.0], (4000, 1))
    asked[::2] = [1.0, np.nan, 1.0, 1.0]  # rows with other gaps beside them
    filled = learner.impute(asked, random_state=0)
    assert (filled[~np.isnan(asked)] == asked[~np.isnan(asked)]).all()
    net = learner.objective_.net
    rows = torch.tensor([[a, 1.0, c, 0.0] for a in (0, 1) for c in (0, 1)], dtype=torch.float64)
    with torch.no_grad():  # observed first, then columns 0 and 2: ranks 3, 1, 4, 2
        theta = net(rows, net.masks(torch.tensor([3, 1, 4, 2])))
        logs = learner.objective_.entries.log_prob(theta, rows)[:, [0, 2]].sum(1)
    share = logs.exp().numpy()
    assert abs(share.sum() - 1) < 1e-9
    seen = [(filled[1::2][:, [0, 2]] == row).all(1).mean() for row in rows[:, [0, 2]].numpy()]
    np.testing.assert_allclose(seen, share, atol=0.04)
    # What was learned is the truth: the rows' own frequencies.
    alike = (BITS[:, [1, 3]] == [1, 0]).all(1)
    truth = [(BITS[alike][:, [0, 2]] == row).all(1).mean() for row in rows[:, [0, 2]].numpy()]
    np.testing.assert_allclose(seen, truth, atol=0.15)
    with pytest.raises(ValueError, match=r"got one in column 1, .*; impute fills them in any order"):
        learner.log_prob(asked)
    holes = BITS.copy()
    holes[0, 3] = np.nan
    with pytest.raises(ValueError, match=r"expected rows without gaps to train MADE\(agnostic=True\).* in 1 of 200"):
        Learner(MADE((8,), law="bernoulli", agnostic=True), **settings).fit(holes)


def test_agnostic_training_learns_orders_that_it_is_not_asked_in():
    """The claim in small: a net trained in one order is at a loss in another."""
    settings = {**FAST, "steps": 300, "random_state": 0, "dtype": "float64"}
    rows, back = torch.as_tensor(BITS), torch.tensor([4, 3, 2, 1])
    losses = {}
    for agnostic in (False, True):
        found = Learner(MADE((32,), law="bernoulli", agnostic=agnostic), **settings).fit(BITS).objective_
        with torch.no_grad():
            theta = found.net(rows, found.net.masks(back))
            losses[agnostic] = -float(found.log_given(theta, rows, None).mean())
    assert losses[True] < losses[False] - 0.2


# --- what is refused ------------------------------------------------------------------------------------


def test_orders_and_laws_that_do_not_fit_are_refused():
    for order in ((0, 1, 2), (0, 1, 2, 2), (1, 2, 3, 4)):
        with pytest.raises(ValueError, match=r"order of FVBN to have each of the numbers 0\.\.3 of the columns once"):
            built(FVBN(law="bernoulli", order=order))
    with pytest.raises(ValueError, match="expected the number of levels for the law 'logistic-mixture', got none"):
        built(MADE((4,), law="logistic-mixture"))
    with pytest.raises(ValueError, match="expected 0 or 1 in column 0, whose law is 'bernoulli', got 2"):
        Learner(NADE(4, law="bernoulli"), steps=1).fit(2 * BITS)
    with pytest.raises(ValueError, match=r"expected rows of numbers, got rows of shape \(2, 2\); flatten"):
        Learner(MADE((4,), law="bernoulli"), steps=1).fit(BITS.reshape(-1, 2, 2))


@pytest.mark.parametrize("name", MODELS)
def test_one_column_is_its_base_rate(name):
    for conditional in (False, True):
        model = built(MODELS[name](law="categorical", classes=3, conditional=conditional), 1, classes=2)
        given = {"y": 1} if conditional else {}
        assert abs(total(model, [3], **given) - 1) < 1e-9
