"""Densities of token sequences: by enumeration, against n-grams and torch's own, and mutants of each guarantee."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.asking import _looped
from weft.engine.build import build
from weft.nets import attention
from weft.objectives import CausalTransformer, CharRNN, WaveNet
from weft.objectives.densities import tokens
from weft.objectives.densities.wavenet import companded, expanded
from weft.testing import check_density, every_row

MODELS = {
    "rnn": lambda **s: CharRNN(kind="rnn", width=6, **s),
    "lstm": lambda **s: CharRNN(width=6, layers=2, **s),
    "gru": lambda **s: CharRNN(kind="gru", width=6, **s),
    "transformer": lambda **s: CausalTransformer(layers=2, heads=2, width=8, **s),
    "transformer, rotary": lambda **s: CausalTransformer(layers=1, heads=2, width=8, positions="rotary", **s),
}
WORDS = ["ab", "abc", "b", "cab", "", "bca", "aab", "cc"]
FAST = {"steps": 40, "optimizer": Optimizer("adam", lr=0.02), "random_state": 0}
each_model = pytest.mark.parametrize("name", MODELS)


def built(objective, *, length=4, symbols=3, classes=None, scale=3.0, dtype=torch.float64):
    """Fresh weights, larger ones to make dependence stronger."""
    field = Field((length,), torch.float64 if isinstance(objective, WaveNet) else torch.int64, symbols)
    spec = {"x": field, "x_length": Field((), torch.int64)}
    if classes:
        spec["y"] = Field((), torch.int64, classes)
    made = build(objective, spec, 0, dtype).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale).add_(0.1 * scale * torch.randn_like(parameter))
    return made


def every(length, symbols=3):
    rows = torch.as_tensor(every_row([symbols] * length)).long().reshape(symbols**length, length)
    return rows, torch.full((len(rows),), length)


def drawn(model, n, what="sample", *args, **options):
    with torch.no_grad(), keyed(key_of(0), torch.arange(n)):
        answer = getattr(model, what)(*(args or (n,)), **options)
    return answer if isinstance(answer, dict) else {"x": answer}


# --- they are densities -----------------------------------------------------------------------------------


@each_model
@torch.no_grad()
def test_rows_of_each_length_sum_to_one_where_they_have_no_end(name):
    model = built(MODELS[name](ends=False))
    for length in (1, 2, 4):
        assert abs(model.log_prob(*every(length)).exp().sum() - 1) < 1e-9


@each_model
@torch.no_grad()
def test_all_texts_sum_to_one_with_what_is_longer(name):
    """Texts up to 3 tokens, ended, and all beginnings of 4: there is nothing else."""
    for classes in (None, 2):
        model = built(MODELS[name](conditional=bool(classes)), classes=classes)
        for y in range(classes or 1):
            total = 0.0
            for length in range(4):
                x, long = every(length)
                x = F.pad(x, (0, 4 - length))
                given = {"y": torch.full_like(long, y)} if classes else {}
                total += float(model.log_prob(x, long, **given).exp().sum())
            x, long = every(4)
            given = torch.full_like(long, y) if classes else None
            total += float((-model.nats(x, long, given)[:, :-1].sum(-1)).exp().sum())
            assert abs(total - 1) < 1e-9


@torch.no_grad()
def test_waves_sum_to_one_over_their_levels():
    model = built(WaveNet(levels=3, width=6, layers=2))
    levels, length = every(4)
    waves = expanded(levels, 3)
    assert torch.equal(companded(waves, 3), levels)
    assert abs(model.log_prob(waves, length).exp().sum() - 1) < 1e-9
    shaken = waves * 0.999  # within the same levels
    torch.testing.assert_close(model.log_prob(shaken, length), model.log_prob(waves, length))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_by_a_learner_they_are_densities_with_samples(name):
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 3, 300), rng.integers(0, 3, 300)], 1)
    X = np.concatenate([X, (X.sum(1, keepdims=True)) % 3], 1)
    check_density(MODELS[name](ends=False), X, support=every_row([3] * 3), settings=FAST)


def test_the_mutant_that_sees_its_own_token_is_no_density():
    """Without the shift by one, the net reads what it predicts."""
    model = built(MODELS["lstm"](ends=False), scale=6.0)

    def unshifted(tokens, y=None):
        return model.net(model.read(tokens, y))

    model.logits = unshifted
    with torch.no_grad():
        assert abs(model.log_prob(*every(3)).exp().sum() - 1) > 1e-3


def test_attention_without_its_mask_is_no_density(monkeypatch):
    plain = attention.F.scaled_dot_product_attention
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda q, k, v, is_causal: plain(q, k, v))
    with torch.no_grad():
        assert abs(built(MODELS["transformer"](ends=False)).log_prob(*every(3)).exp().sum() - 1) > 1e-3


def test_it_is_a_plain_loop_with_torchs_lstm():
    """Embedding, nn.LSTM, linear map and cross-entropy: loss and gradient of a batch of unequal rows."""
    model = built(CharRNN(width=5), scale=1.0)
    net = nn.LSTM(5, 5, batch_first=True).double()
    own = dict(model.net.layers[0].named_parameters())
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(own[name.removesuffix("_l0")])
    x, length = torch.tensor([[0, 1, 2, 1], [2, 0, 0, 0], [0, 0, 0, 0]]), torch.tensor([4, 1, 0])
    losses = []
    for row, long in zip(x, length, strict=True):
        before = torch.cat([torch.tensor([3]), row[:long]])
        after = torch.cat([row[:long], torch.tensor([3])])
        losses.append(F.cross_entropy(model.net.head(net(model.embed(before)[None])[0])[0], after))
    output = model({"x": x, "x_length": length})
    torch.testing.assert_close(output.losses, torch.stack(losses))
    assert output.mass.tolist() == [5, 2, 1]
    wanted = torch.autograd.grad(torch.stack(losses).sum(), [model.embed.weight, net.weight_hh_l0])
    found = torch.autograd.grad(output.losses.sum(), [model.embed.weight, own["weight_hh"]])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@each_model
@torch.no_grad()
def test_what_stands_after_the_end_means_nothing(name):
    model = built(MODELS[name]())
    x, length = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]]), torch.tensor([2, 1])
    other = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 2]])
    assert torch.equal(model.log_prob(x, length), model.log_prob(other, length))
    torch.testing.assert_close(model.log_prob(x[:, :2], length), model.log_prob(x, length), rtol=1e-12, atol=1e-12)
    options = {"length": 2, "temperature": 0.7}
    a, b = (drawn(model, 2, "generate", rows, length, **options) for rows in (x, other))
    assert torch.equal(a["x"], b["x"])


# --- draws ------------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("ends", [True, False])
def test_cached_draws_are_naive_draws(name, ends):
    for dtype, n in ((torch.float64, 200), (torch.float32, 1000)):
        model = built(MODELS[name](ends=ends, context=12), length=12, dtype=dtype, scale=2.0)
        options = {"length": 12, "temperature": 1.3, "top_k": 3}
        a, b = (drawn(model, n, cached=cached, **options) for cached in (True, False))
        same = (a["x"] == b["x"]).all(1).double().mean()
        assert same == 1 if dtype == torch.float64 else same >= 0.999
        assert len(a["x"].unique(dim=0)) > 20


def test_cached_waves_are_naive_waves():
    model = built(WaveNet(levels=5, width=6, layers=3), length=20)
    a, b = (drawn(model, 100, length=20, cached=cached)["x"] for cached in (True, False))
    assert torch.equal(a, b)
    assert a.unique().numel() == 5


def test_a_cache_one_step_late_draws_otherwise(monkeypatch):
    model = built(MODELS["transformer"](ends=False, context=12), length=12)
    true = drawn(model, 200, cached=False)["x"]
    plain = attention.CausalAttention.advance

    def late(self, x, kept):
        kept.keys, kept.values = kept.keys.roll(1, 2), kept.values.roll(1, 2)
        return plain(self, x, kept)

    monkeypatch.setattr(attention.CausalAttention, "advance", late)
    assert not torch.equal(drawn(model, 200)["x"], true)


@each_model
def test_draws_follow_the_probabilities_of_temperature_and_top_k(name):
    model = built(MODELS[name](ends=False), length=2, scale=2.0)
    x, _ = every(2)
    with torch.no_grad():
        logits = model.logits(x)
    for temperature, top_k in ((1.0, None), (0.5, None), (2.0, 2)):
        law = tokens.tempered(logits, temperature, top_k).log_softmax(-1)
        share = law.gather(-1, x.unsqueeze(-1)).sum((1, 2)).exp().numpy()
        assert abs(share.sum() - 1) < 1e-9
        rows = drawn(model, 4000, length=2, temperature=temperature, top_k=top_k)["x"]
        counts = np.bincount((rows * torch.tensor([3, 1])).sum(1), minlength=9)
        assert (counts[share == 0] == 0).all()
        there = share > 0
        off = (counts[there] / 4000 - share[there]) / np.sqrt(share[there] * (1 - share[there]) / 4000 + 1e-12)
        assert np.abs(off).max() < 4.5


@each_model
def test_prompts_of_unequal_length_go_on_as_each_alone(name):
    model = built(MODELS[name](ends=False, context=9), length=9)
    x, length = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 0], [1, 1, 0, 0]]), torch.tensor([4, 1, 2])
    whole = drawn(model, 3, "generate", x, length, length=5)
    assert whole["x_length"].tolist() == [9, 6, 7]
    for k, (row, long) in enumerate(zip(x, length, strict=True)):
        with torch.no_grad(), keyed(key_of(0), torch.tensor([k])):
            alone = model.generate(row[None, :long], long[None], length=5)
        assert torch.equal(whole["x"][k, : long + 5], alone["x"][0])
        assert torch.equal(alone["x"][0, :long], row[:long])


# --- by a Learner: text in, text out --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learner():
    return Learner(CausalTransformer(layers=1, heads=2, width=16, context=6), **FAST).fit(WORDS * 8)


def test_text_in_text_out(learner, tmp_path):
    rows = learner.sample(20, random_state=0)
    assert all(isinstance(row, str) and len(row) <= 6 and set(row) <= set("abc") for row in rows)
    assert all(row.startswith("ca") for row in learner.sample(20, prefix="ca", length=5))
    given = ["ca", "", "b"]
    assert all(row.startswith(begun) for row, begun in zip(learner.generate(given), given, strict=True))
    np.testing.assert_allclose(learner.log_prob(["ab"]), learner.log_prob(["ab", "bcabc"])[:1], rtol=1e-5)
    assert learner.sample(5, random_state=1) == learner.sample(5, random_state=1, cached=False)
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    assert again.sample(5, prefix="a", random_state=1) == learner.sample(5, prefix="a", random_state=1)
    np.testing.assert_array_equal(again.log_prob(WORDS), learner.log_prob(WORDS))


def test_rows_that_are_asked_about_in_pieces_come_back_as_one(learner, monkeypatch):
    given = ["a", "bcab", "", "ab", "c", "ca", "abcab"]
    whole = learner.generate(given, length=1, random_state=0)
    monkeypatch.setattr("weft.learner.asking._MOST", 2)
    assert learner.generate(given, length=1, random_state=0) == whole


def test_measures_are_those_of_the_corpus():
    held = ["abc", "b", "cabca"]
    learner = Learner(CharRNN(width=8), validation=held, **FAST).fit(WORDS * 8)
    nats = -learner.log_prob(held).sum()
    last = {name: learner.history_[f"valid_{name}"][-1] for name in ("nats_per_token", "bits_per_character", "loss")}
    assert abs(last["nats_per_token"] - nats / 12) < 1e-4
    assert abs(last["loss"] - nats / 12) < 1e-4
    assert abs(last["bits_per_character"] - nats / 9 / math.log(2)) < 1e-4


@pytest.mark.parametrize("model", [*MODELS, "wavenet"])
def test_a_replica_is_the_single_run_with_its_seed(model):
    """Training and draws, with dropout and minibatches; the replicas by plain cells, the single run by the kernel."""
    rows = [[math.sin(t + k) for t in range(2 + k % 4)] for k in range(16)] if model == "wavenet" else WORDS * 2
    make = {**MODELS, "wavenet": lambda **s: WaveNet(levels=4, width=6, layers=2, **s)}[model]
    objective = make(dropout=0.2, context=6)
    settings = {"steps": 4, "batch_size": 8, "dtype": "float64", "optimizer": Optimizer("adam", lr=0.02)}
    both = Learner(objective, random_state=3, replicas=2, **settings).fit(rows)
    for k, seed in enumerate(both.seeds_):
        alone = Learner(objective, random_state=seed, **settings).fit(rows)
        np.testing.assert_allclose(both.replica(k).log_prob(rows), alone.log_prob(rows), rtol=1e-9)
    assert len(both.sample(6)) == 6
    assert len(both.generate(rows[:3], length=1)) == 3
    assert "sample" not in _looped.get(both.objective_, ())


def test_a_net_of_ones_own(monkeypatch):
    class Sums(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.out = nn.Linear(inputs, outputs)

        def forward(self, x):
            return self.out(x.cumsum(1))

    model = built(CharRNN(Sums, width=5, ends=False))
    with torch.no_grad():
        assert abs(model.log_prob(*every(3)).exp().sum() - 1) < 1e-9
    assert torch.equal(drawn(model, 20)["x"], drawn(model, 20, cached=False)["x"])
    assert Learner(CharRNN(Sums, width=5), **FAST).fit(WORDS).sample(2)


def test_it_learns_what_comes_after_what():
    """A cycle of four letters is known after a few steps; a uniform guess costs log 4 a token."""
    rows = [("abcd" * 5)[k : k + 12] for k in range(8)]
    for objective in (CharRNN(width=16, ends=False), CausalTransformer(layers=1, heads=2, width=16, ends=False)):
        learner = Learner(objective, steps=150, optimizer=Optimizer("adam", lr=0.02), random_state=0).fit(rows)
        assert -learner.log_prob(rows).mean() < math.log(4) + 0.5  # the first letter is free
        assert learner.generate(["bcd"], length=4, top_k=1) == ["bcdabcd"]


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.log_prob(["abz"]), ValueError, "expected characters in x that training has seen.*got also 'z'"),
        (lambda m: m.sample(2, prefix="az"), ValueError, "expected characters in prefix that training.*got also 'z'"),
        (lambda m: m.log_prob(["abcabca"]), ValueError, "at most 6 tokens, the context of CausalTransformer, got 7"),
        (lambda m: m.sample(2, length=7), ValueError, "at most 6 tokens, the context of CausalTransformer, got 7"),
        (lambda m: m.generate(["abca"], length=3), ValueError, "got 7, of which 3 are to be drawn"),
        (lambda m: m.sample(2, temperature=0), ValueError, "expected the temperature to be a number > 0, got 0"),
        (lambda m: m.sample(2, temperature=-1.0), ValueError, "expected the temperature to be a number > 0, got -1"),
        (lambda m: m.sample(2, top_k=0), ValueError, r"expected top_k to be an integer in \[1, 4\], got 0"),
        (lambda m: m.sample(2, top_k=5), ValueError, r"expected top_k to be an integer in \[1, 4\], got 5"),
        (lambda m: m.sample(2, length=0), ValueError, "expected length of what is asked of CausalTransformer"),
        (lambda m: m.sample(2, prefix="abc", length=3), ValueError, "a prefix shorter than the length, 3, got 3"),
        (lambda m: m.sample(2, prefix=(0, 9)), ValueError, r"a prefix of token numbers 0..2, got 9"),
        (lambda m: m.sample(2, prefix=3), TypeError, r"expected a prefix as a tuple of token numbers 0..2"),
        (lambda m: m.sample(2, y=[0, 1]), TypeError, "expected one value of 'y' for all rows of 'sample', got list"),
        (lambda m: m.generate([]), ValueError, "expected at least one row in x, got none"),
        (lambda m: m.log_prob([[0, 1]]), ValueError, "expected text in x, as training began with, got numbers"),
    ],
)
def test_what_is_asked_wrongly_is_told(learner, ask, error, message):
    with pytest.raises(error, match=message):
        ask(learner)


def test_what_is_learned_from_wrongly_is_told():
    with pytest.raises(ValueError, match="at most 2 tokens, the context of CharRNN, got 3 in row 1; cut them, or"):
        Learner(CharRNN(width=4, context=2), steps=1).fit(WORDS)
    with pytest.raises(ValueError, match="expected rows of at least one token for CharRNN, got 1 without any"):
        Learner(CharRNN(width=4, ends=False), steps=1).fit(WORDS)
    with pytest.raises(ValueError, match="expected a width that 4 heads share equally, got 6; take width=8"):
        Learner(CausalTransformer(width=6), steps=1).fit(WORDS)
    with pytest.raises(TypeError, match=r"expected CharRNN's net to be a causal nn.Module, a factory"):
        Learner(CharRNN("lstm"), steps=1).fit(WORDS)
    with pytest.raises(ValueError, match="expected CharRNN's vocabulary to be 'characters' or 'byte-pairs"):
        Learner(CharRNN(vocabulary="words"), steps=1).fit(WORDS)
    given = Learner(CharRNN(width=4, conditional=True), steps=1).fit(WORDS, [0, 1] * 4)
    with pytest.raises(ValueError, match="expected a class y for each row"):
        given.sample(2)
    assert len(given.sample(2, y=[0, 1])) == 2


def test_waves_outside_of_their_range_are_told():
    wave = np.array([[0.0, 0.5, 1.5], [0.0, 0.1, 0.2]])
    with pytest.raises(ValueError, match=r"expected waves in \[-1, 1\] for WaveNet, got 1.5 at step 2 of row 0"):
        Learner(WaveNet(levels=4, width=4, layers=1), steps=1).fit(wave)
    fitted = Learner(WaveNet(levels=4, width=4, layers=1), steps=1).fit(wave / 2)
    with pytest.raises(ValueError, match=r"got 1.5 at step 2 of row 0"):
        fitted.log_prob(wave)
    with pytest.raises(ValueError, match=r"prefix of amplitudes in \[-1, 1\], got 2.0"):
        fitted.sample(1, prefix=(0.5, 2.0))
    with pytest.raises(ValueError, match=r"waves of one number at each step for WaveNet, got steps of shape \(2,\)"):
        Learner(WaveNet(levels=4), steps=1).fit(np.zeros((3, 4, 2)))
    assert fitted.sample(2, prefix=(0.5,), length=3).shape == (2, 3)
    assert fitted.forecast(wave / 2, steps=5).shape == (2, 5)
    assert [len(row) for row in fitted.generate([[0.1], [0.1, 0.2]], length=2)] == [3, 4]


def test_companding_is_the_recommended_curve():
    """Eight bits of an amplitude, mu = 255: the curve at a few points, and back within half a level."""
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    level = companded(x, 256)
    wanted = np.sign(x.numpy()) * np.log(1 + 255 * np.abs(x.numpy())) / np.log(256)
    np.testing.assert_array_equal(level.numpy(), np.floor((wanted + 1) / 2 * 255 + 0.5))
    back = expanded(level, 256)
    bent = torch.sign(back) * torch.log1p(255 * back.abs()) / math.log(256)
    assert (bent - torch.as_tensor(wanted)).abs().max() <= 1 / 255 + 1e-9
    assert torch.equal(companded(back, 256), level)
