"""Rows of unequal length, images, and rows by number: read by the kinds that an objective declares."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import weft
from weft import Learner, Optimizer
from weft.core import Objective, Output, capability
from weft.core.random import uniform
from weft.objectives import Regression
from weft.sources import Arrays
from weft.strategies import ANDMask
from weft.testing import check_objective

rng = np.random.default_rng(0)
WORDS = ["abba", "ab", "a", "babab", "bb", "", "aab", "ba"] * 4
NUMBERS = [[ord(c) - 97 for c in word] for word in WORDS]
ROWS = len(WORDS)
SITE = np.arange(ROWS) % 3
ADAM = Optimizer("adam", lr=0.1)


def inside(values, length):
    return torch.arange(values.shape[1]) < length[:, None]


class Bigrams(Objective):
    """A Markov chain over tokens, from a beginning to an end of its own."""

    fields = ("x",)
    kinds = {"x": "tokens"}
    likelihood = True

    def build(self, spec):
        self.end = spec["x"].classes
        self.longest = spec["x"].shape[0]
        self.logits = nn.Parameter(torch.zeros(self.end + 1, self.end + 1))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["x_length"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, x_length):
        end = torch.full_like(x[:, :1], self.end)
        after = torch.cat([torch.where(inside(x, x_length), x, self.end), end], 1)
        before = torch.cat([end, after[:, :-1]], 1)
        each = self.logits.log_softmax(-1)[before, after]
        return (each * inside(after, x_length + 1)).sum(-1)

    def steps(self, now, length, most):
        row = []
        for t in range(most):
            chances = self.logits.softmax(-1)[now].cumsum(-1)
            now = (uniform((len(now),), place=f"u{t}").to(chances)[:, None] > chances).sum(-1).clamp_max(self.end)
            row.append(now)
        every = torch.stack(row, 1)
        ended = (every == self.end).cumsum(1) > 0
        return {"x": every.masked_fill(ended, 0), "x_length": (~ended).sum(1) + length}

    @capability(merge="share", kind="sequential")
    def sample(self, n):
        zero = torch.zeros(n, dtype=torch.int64)
        return self.steps(zero + self.end, zero, 4 * self.longest)

    @capability(merge="refuse", kind="sequential", gives="x")
    def generate(self, x, x_length, most=12):
        last = x.gather(1, (x_length - 1).clamp_min(0)[:, None])[:, 0]
        last = torch.where(x_length > 0, last, self.end)
        return self.steps(last, 0 * x_length, most)

    @capability(gives="")
    def widths(self, x):
        return x.sum(-1)


def chances(words):
    """The closed form: shares of pairs."""
    marks = [f"${word}$" for word in words]
    pairs = [pair for mark in marks for pair in pairwise(mark)]
    return {pair: pairs.count(pair) / sum(p[0] == pair[0] for p in pairs) for pair in set(pairs)}


def closed(words):
    share = chances(WORDS)
    return [sum(np.log(share[p]) for p in zip(f"${w}$", f"{w}$", strict=False)) for w in words]


FITTED = {"steps": 300, "batch_size": None, "random_state": 0, "optimizer": ADAM}


@pytest.fixture(scope="module")
def bigrams():
    return Learner(Bigrams(), **FITTED).fit(WORDS)


@pytest.mark.parametrize("given", [NUMBERS, [np.array(row) for row in NUMBERS], np.array(NUMBERS, dtype=object)])
def test_text_and_numbers_of_unequal_length_are_one(bigrams, given):
    np.testing.assert_allclose(bigrams.log_prob(WORDS), closed(WORDS), atol=0.01)
    assert bigrams.vocabulary_ == {"x": ["a", "b"]}
    spec = bigrams.training_.spec
    assert (spec["x"].shape, spec["x"].classes, spec["x_length"].dtype) == ((5,), 2, torch.int64)
    own = Learner(Bigrams(), **FITTED).fit(given)
    assert not hasattr(own, "vocabulary_")
    np.testing.assert_array_equal(own.log_prob(given), bigrams.log_prob(WORDS))
    assert all(row.ndim == 1 and set(row.tolist()) <= {0, 1} for row in own.sample(5))


def test_longer_rows_and_other_company_change_nothing(bigrams):
    """How far a row is padded depends on the others; what is told of it does not."""
    alone = [bigrams.log_prob([word])[0] for word in WORDS[:8]]
    np.testing.assert_allclose(alone, bigrams.log_prob(WORDS[:8]), rtol=1e-6)
    np.testing.assert_allclose(bigrams.log_prob([*WORDS[:8], "ab" * 20])[:8], alone, rtol=1e-6)
    np.testing.assert_allclose(bigrams.log_prob(["ab" * 20]), closed(["ab" * 20]), rtol=1e-2)
    batches = Arrays(**{n: v for n, v in bigrams.read(WORDS).items() if isinstance(v, torch.Tensor)}, classes={"x": 2})
    check_objective(Bigrams(), batches)


def test_drawn_rows_come_back_as_text(bigrams, tmp_path):
    drawn = bigrams.sample(2000, random_state=0)
    assert all(isinstance(word, str) for word in drawn)
    assert set("".join(drawn)) == {"a", "b"}
    told = chances(WORDS)
    first = [sum(word[:1] == c for word in drawn) / 2000 for c in "ab"]
    np.testing.assert_allclose(first, [told["$", "a"], told["$", "b"]], atol=0.04)
    grown = bigrams.generate(["a", "abab", ""], random_state=0)
    assert len(grown) == 3
    bigrams.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Bigrams())
    assert again.vocabulary_ == bigrams.vocabulary_
    assert again.sample(5, random_state=1) == bigrams.sample(5, random_state=1)
    np.testing.assert_array_equal(again.log_prob(WORDS), bigrams.log_prob(WORDS))


class Endless(Bigrams):
    """Forgets to cut its rows before their end."""

    def steps(self, now, length, most):
        return torch.full((len(now), most), self.end)


def test_tokens_that_are_none_are_refused(bigrams):
    with pytest.raises(
        ValueError, match=r"characters in x that training has seen \('ab'\), got also 'cz', first in row 1"
    ):
        bigrams.log_prob(["ab", "cab", "z"])
    with pytest.raises(ValueError, match="expected text in x, as training began with, got numbers"):
        bigrams.log_prob(NUMBERS)
    numbers = Learner(Bigrams(), steps=1, random_state=0).fit(NUMBERS)
    with pytest.raises(ValueError, match="expected token numbers in x, as training began with, got text"):
        numbers.log_prob(WORDS)
    with pytest.raises(ValueError, match=r"token numbers 0..1 in x, got 2, first in row 1"):
        numbers.log_prob([[0], [2]])
    with pytest.raises(ValueError, match=r"token numbers 0..1 in x, got -1"):
        Learner(Bigrams(), steps=1).fit([[0, 1], [-1]])
    with pytest.raises(ValueError, match="expected text or token numbers in x, got both, as in row 1"):
        Learner(Bigrams(), steps=1).fit(["ab", [0]])
    with pytest.raises(ValueError, match="token numbers in row 0 of x, got float64"):
        Learner(Bigrams(), steps=1).fit([[0.5], [1.0, 2.0]])
    with pytest.raises(ValueError, match="rows of one length for 'widths', which takes no argument 'x_length'"):
        bigrams.widths(["ab", "a"])
    with pytest.raises(ValueError, match=r"expected tokens 0..1 as the answer, got 2; cut rows before what ends them"):
        Learner(Endless(), steps=1, random_state=0).fit(WORDS).sample(2)
    with pytest.raises(ValueError, match="a sequence of token numbers in row 0 of x"):
        Learner(Bigrams(), steps=1).fit(pd.DataFrame({"a": WORDS, "b": WORDS}))
    by_series = Learner(Bigrams(), steps=1, random_state=0).fit(pd.Series(WORDS))
    assert by_series.vocabulary_ == {"x": ["a", "b"]}
    with pytest.raises(TypeError, match="expected 'x_length' to be filled in"):
        bigrams.log_prob(["a"], x_length=[1])


def test_tokens_go_through_replicas_groups_tasks_weights_validation_and_parts():
    settings = {"epochs": 2, "random_state": 0, "batch_size": 8}
    many = Learner(Bigrams(), **settings, replicas=2, validation=0.25).fit(WORDS)
    one = Learner(Bigrams(), **{**settings, "random_state": 1}, validation=0.25).fit(WORDS)
    np.testing.assert_allclose(many.replica(1).log_prob(WORDS), one.log_prob(WORDS), rtol=1e-5)
    assert len(many.sample(5)) == 5
    Learner(Bigrams(), **settings, strategy=ANDMask(threshold=0.3)).fit(WORDS, environment=SITE)
    held = Learner(Bigrams(), **settings, validation=(["ab" * 9, "b"], None)).fit(WORDS)
    assert np.isfinite(held.history_["valid_loss"]).all()
    order = [word for word in WORDS if "b" not in word] + [word for word in WORDS if "b" in word]
    tasks = ["first"] * sum("b" not in word for word in WORDS) + ["then"] * sum("b" in word for word in WORDS)
    for rows in (order, [NUMBERS[WORDS.index(word)] for word in order]):
        assert Learner(Bigrams(), **settings).fit(rows, task=tasks).tasks_ == ["first", "then"]
    part = Learner(Bigrams(), **settings).partial_fit(["aa", "a"], classes={"x": "ba"})
    assert part.partial_fit(WORDS).vocabulary_ == {"x": ["a", "b"]}
    part.partial_fit(WORDS, classes={"x": "ab"})
    with pytest.raises(ValueError, match=r"tokens of x that training began with, \['a', 'b'\], got \['a', 'b', 'c'\]"):
        part.partial_fit(WORDS, classes={"x": "abc"})
    full = {"steps": 5, "random_state": 0, "batch_size": None, "dtype": "float64"}
    weighed = Learner(Bigrams(), **full).fit(WORDS, sample_weight=1.0 + (SITE == 0))
    doubled = Learner(Bigrams(), **full).fit([*WORDS, *(w for w, s in zip(WORDS, SITE, strict=True) if s == 0)])
    np.testing.assert_allclose(weighed.log_prob(WORDS), doubled.log_prob(WORDS), rtol=1e-10)


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize(
    ("tasks", "rows"), [(False, WORDS), (True, WORDS), (True, NUMBERS)], ids=["text", "tasks", "numbers"]
)
def test_a_resumed_run_of_text_is_the_uninterrupted_one(tasks, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    more = {"task": SITE} if tasks else {}

    def stop(record, seen=[]):  # noqa: B006
        seen.append(record)
        if len(seen) == (5 if tasks else 2):
            raise StopError

    settings = {"epochs": 3, "random_state": 0, "batch_size": 8}
    whole = Learner(Bigrams(), **settings).fit(rows, **more)
    with pytest.raises(StopError):
        Learner(Bigrams(), **settings, folder=tmp_path / "run", callbacks=[stop]).fit(rows, **more)
    with pytest.raises(ValueError, match=r"got other (x|X)"):
        weft.load(tmp_path / "run", objective=Bigrams()).resume([rows[4], *rows[1:]], **more)
    resumed = weft.load(tmp_path / "run", objective=Bigrams()).resume(rows, **more)
    assert np.array_equal(resumed.log_prob(rows), whole.log_prob(rows))


# --- numbers over time ------------------------------------------------------------------------------------

SERIES = [rng.normal(size=(length, 2)) for length in rng.integers(1, 7, ROWS)]


class Walks(Objective):
    """Steps of unit normals around a mean; y tells nothing but is there."""

    fields = ("x", "caption")
    kinds = {"x": "sequences", "caption": "tokens"}

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape[1:]))
        self.letters = nn.Parameter(torch.zeros(spec["caption"].classes))

    def forward(self, batch, player=""):
        spelled = -self.letters.log_softmax(-1)[batch["caption"]]
        spelled = (spelled * inside(spelled, batch["caption_length"])).sum(-1)
        return Output(spelled - self.log_prob(batch["x"], batch["x_length"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, x_length):
        each = torch.distributions.Normal(self.mean, torch.ones(())).log_prob(x).flatten(2).sum(-1)
        return (each * inside(each, x_length)).sum(-1)

    @capability(gives="")
    def spelling(self, x, x_length, caption, caption_length):
        return caption_length + 0 * x_length


def test_sequences_and_further_fields_have_their_own_lengths():
    learner = Learner(Walks(), **FITTED).fit(SERIES, caption=WORDS)
    mean = np.concatenate(SERIES).mean(0)
    expected = [(-0.5 * (row - mean) ** 2 - 0.5 * np.log(2 * np.pi)).sum() for row in SERIES]
    np.testing.assert_allclose(learner.log_prob(SERIES), expected, atol=0.01)
    assert learner.vocabulary_ == {"caption": ["a", "b"]}
    np.testing.assert_array_equal(learner.spelling(SERIES, caption=WORDS), [len(word) for word in WORDS])
    with pytest.raises(ValueError, match="characters in caption that training has seen"):
        learner.spelling(SERIES, caption=["z"] * ROWS)
    whole = Learner(Walks(), steps=1, random_state=0).fit(np.zeros((ROWS, 3, 2)), caption=WORDS)
    assert whole.training_.spec["x"].shape == (3, 2)
    with pytest.raises(ValueError, match=r"expected caption to have 32 rows as X has, got 3"):
        Learner(Walks(), steps=1).fit(SERIES, caption=WORDS[:3])
    with pytest.raises(ValueError, match="as many values at each step"):
        Learner(Walks(), steps=1).fit([*SERIES[1:], np.zeros((2, 3))], caption=WORDS)
    with pytest.raises(ValueError, match="Input x contains NaN or infinity, first in row 31"):
        Learner(Walks(), steps=1).fit([*SERIES[1:], np.full((2, 2), np.nan)], caption=WORDS)
    with pytest.raises(ValueError, match=r"rows of x of shape .* as when training began, got"):
        learner.log_prob([np.zeros((2, 3))])
    with pytest.raises(ValueError, match=r"a sequence in row 0 of x, \(length,\) or"):
        Learner(Walks(), steps=1).fit([1.0, 2.0], caption=WORDS[:2])


class Gapped(Walks):
    """Sequences with gaps."""

    fields = ("x",)
    kinds = {"x": "sequences"}
    gaps = True

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape[1:]))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["observed"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed, x_length=None):
        each = torch.distributions.Normal(self.mean, torch.ones(())).log_prob(x)
        return (each * observed).flatten(1).sum(-1)

    spelling = None


def test_gaps_in_sequences_and_their_ends_are_both_unobserved():
    rows = [np.array([0.0, np.nan, 1.0]), np.array([2.0])]
    learner = Learner(Gapped(), steps=0, random_state=0).fit(rows)
    seen = learner.read(rows)["observed"]
    assert seen.tolist() == [[True, False, True], [True, False, False]]
    half = 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(learner.log_prob(rows), [-0.5 - 2 * half, -2.0 - half], rtol=1e-6)


def test_rows_of_unequal_length_that_nobody_declares_are_refused():
    with pytest.raises(ValueError, match=r"some of unequal length; .*kinds = \{'x': 'tokens'\} for text.*'sequences'"):
        Learner(Regression(), steps=1).fit([[1.0, 2.0], [3.0]], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"rows of one shape in y.*kinds = \{'y': 'tokens'\}"):
        Learner(Regression(), steps=1).fit([[1.0], [3.0]], [[0.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"an objective that reads text says so, kinds = \{'x': 'tokens'\}"):
        Learner(Regression(), steps=1).fit(WORDS, np.zeros(ROWS))
    with pytest.raises(ValueError, match="expected batches with 'x_length', which comes along"):
        Learner(Bigrams(), steps=1).fit(Arrays(torch.zeros(4, 3, dtype=torch.int64)))


# --- images and boxes -------------------------------------------------------------------------------------


class Pictures(Objective):
    """The mean picture, and how many boxes there are."""

    fields = ("x", "marks")
    kinds = {"x": "images", "marks": "boxes"}

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))
        self.edge = nn.Parameter(torch.zeros(4))

    def forward(self, batch, player=""):
        off = (batch["marks"] - self.edge).square().sum(-1) * inside(batch["marks"], batch["marks_length"])
        return Output((batch["x"] - self.mean).square().flatten(1).sum(-1) + off.sum(-1))

    @capability()
    def light(self, x):
        return x.flatten(1).mean(-1)


BYTES = rng.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
BOXES = [rng.random((k, 4)) for k in (0, 2, 1, 3, 0, 1)]


@pytest.mark.parametrize(
    "images",
    [BYTES, BYTES.transpose(0, 3, 1, 2), list(BYTES), torch.as_tensor(BYTES), BYTES.transpose(0, 3, 1, 2) / 255.0],
    ids=["last", "first", "list", "tensor", "floats"],
)
def test_images_are_numbers_channels_first(images):
    learner = Learner(Pictures(), steps=1, random_state=0).fit(images, marks=BOXES)
    read = learner.read(images, marks=BOXES)
    np.testing.assert_allclose(read["x"].numpy(), BYTES.transpose(0, 3, 1, 2) / 255.0, rtol=1e-6)
    np.testing.assert_allclose(learner.light(images), (BYTES / 255.0).mean((1, 2, 3)), rtol=1e-5)
    assert read["marks_length"].tolist() == [0, 2, 1, 3, 0, 1]
    np.testing.assert_allclose(read["marks"][3].numpy(), BOXES[3], rtol=1e-6)
    assert learner.training_.spec["marks"].shape == (3, 4)


def test_grey_images_have_one_channel():
    learner = Learner(Pictures(), steps=1, random_state=0).fit(BYTES[..., 0], marks=BOXES)
    assert learner.training_.spec["x"].shape == (1, 5, 7)
    with pytest.raises(ValueError, match=r"rows of x of shape \(1, 5, 7\) as when training began, got \(3, 5, 7\)"):
        learner.light(BYTES)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((6, 3, 5, 4), np.uint8), "both the second and the last axis look like channels; give floats in"),
        (np.zeros((6, 5, 7, 9), np.uint8), "neither the second nor the last axis looks like channels"),
        (np.zeros((6, 5, 7, 3)), "which looks like channels last"),
        (np.zeros((6, 5, 7, 3), np.int64), r"as bytes \(uint8, 0 to 255\) or as floats, got torch.int64"),
        (np.zeros((6, 5), np.uint8), r"got shape \(6, 5\)"),
        ([BYTES[0]] * 5 + [BYTES[0][:3]], "expected images of one size in x"),
        (np.full((6, 1, 5, 7), np.nan), "contains NaN or infinity"),
    ],
)
def test_images_that_could_be_otherwise_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        Learner(Pictures(), steps=1).fit(images, marks=BOXES)


def test_boxes_have_four_numbers():
    with pytest.raises(ValueError, match=r"boxes of 4 numbers each in row 5 of marks, \(k, 4\), got shape \(2, 3\)"):
        Learner(Pictures(), steps=1).fit(BYTES, marks=[*BOXES[:5], np.zeros((2, 3))])


# --- rows by number ---------------------------------------------------------------------------------------


class Latents(Objective):
    """Something of its own for each row of training: after enough steps, the row itself."""

    fields = ("x", "index")

    def build(self, spec):
        self.each = nn.Parameter(torch.zeros(spec["index"].classes, *spec["x"].shape))

    def forward(self, batch, player=""):
        return Output((batch["x"] - self.each[batch["index"]]).square().sum(-1))

    @capability(merge="refuse")
    def latent(self, x, index):
        return self.each[index]

    @capability()
    def norm(self, x):
        return x.norm(dim=-1)


def test_rows_are_numbered_as_they_are_given(tmp_path):
    X = rng.normal(size=(12, 2)).astype(np.float32)
    learner = Learner(Latents(), steps=300, batch_size=5, random_state=0, optimizer=ADAM).fit(X)
    assert learner.training_.spec["index"].classes == 12
    np.testing.assert_allclose(learner.latent(X, index=np.arange(12)), X, atol=0.02)
    np.testing.assert_allclose(learner.latent(X[:2], index=[3, 7]), X[[3, 7]], atol=0.02)
    assert learner.norm(X[:5]).shape == (5,)
    with pytest.raises(TypeError, match="expected 'index' to be given to 'latent', with a value for each row"):
        learner.latent(X)
    with pytest.raises(ValueError, match=r"rows of the training data, 0..11, got \[12\]"):
        learner.latent(X[:1], index=[12])
    with pytest.raises(ValueError, match="those that were not learned from have none"):
        learner.read(X)
    with pytest.raises(ValueError, match="the 12 rows that training began with, which Latents numbers, got 5"):
        learner.partial_fit(X[:5])
    with pytest.raises(ValueError, match="expected no tasks for Latents"):
        Learner(Latents(), steps=1).fit(X, task=np.arange(12) % 2)
    with pytest.raises(TypeError, match="got 'index'"):
        Learner(Latents(), steps=1).fit(X, index=np.arange(12))
    for held in (0.25, (X[:3], None)):
        with pytest.raises(ValueError, match="expected validation=None for Latents"):
            Learner(Latents(), steps=1, validation=held).fit(X)
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Latents())
    np.testing.assert_array_equal(again.latent(X[:2], index=[3, 7]), learner.latent(X[:2], index=[3, 7]))
