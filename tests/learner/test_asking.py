"""What a trained learner can be asked: every capability by its name, with further fields, kinds and draws."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import weft
from weft import Learner
from weft.core import Objective, Output, capability
from weft.core.random import normal
from weft.engine import memory
from weft.objectives import GAN, Classification, Regression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 2)).astype(np.float32)
Y = np.array(["left", "right"])[(X[:, 0] > 0).astype(int)]
SHORT = {"epochs": 1, "random_state": 0}


class Conditional(Objective):
    """p(x | y): a normal around each class's mean; its log-density by the law, and by a noisy bound."""

    likelihood = True
    targets = "classes"

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["y"].classes, *spec["x"].shape))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["y"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, y):
        """log p(x | y)."""
        return -0.5 * (x - self.mean[y]).square().sum(-1)

    @capability(merge="logmeanexp", kind="lower bound")
    def bound(self, x):
        return x.sum(-1) + normal((len(x),), place="z", dtype=x.dtype)

    @capability(merge="share", kind="direct")
    def sample(self, n, y=None, *, scale=1.0):
        mean = self.mean.mean(0) if y is None else self.mean[y]
        return mean + scale * normal((n, self.mean.shape[1]), place="z", dtype=mean.dtype)

    @capability(merge="share", asks="rows", kind="direct")
    def impute(self, x):
        return x + normal(x.shape, place="z", dtype=x.dtype)

    @capability(merge="refuse", rows=("mask",))
    def hidden(self, x, mask):
        return {"kept": x * mask.to(x.dtype), "both": (x, mask)}

    @capability(merge="refuse")
    def ragged(self, x, *, most=3):
        return [torch.arange(i % most) for i in range(len(x))]


class Overridden(Conditional):
    def log_prob(self, x, y):
        return super().log_prob(x, y) - 1.0


class Without(Conditional):
    sample = None


class Scalar(Conditional):
    def bound(self, x):
        return x.sum()


@pytest.fixture(scope="module")
def learner():
    return Learner(Conditional(), **SHORT).fit(X, Y)


@pytest.fixture
def fresh():
    return Learner(Conditional(), **SHORT).fit(X, Y)


# --- by name ------------------------------------------------------------------------------------------


def test_every_capability_is_reachable_and_listed(learner):
    names = {"log_prob", "bound", "sample", "impute", "hidden", "ragged"}
    assert names <= set(dir(learner))
    assert names <= set(dir(Learner(Conditional())))
    assert all(hasattr(learner, name) for name in names)
    assert not hasattr(learner, "transform")
    assert "transform" not in dir(learner)
    assert learner.log_prob.__doc__ == "log p(x | y)."
    game = Learner(GAN(latent=2, hidden=(4,)), steps=2, random_state=0).fit(X)
    assert game.discriminate(X).shape == (200,)
    assert "discriminate" in dir(game)


def test_hasattr_clone_and_pickle_keep_their_manners(learner):
    assert not hasattr(Learner(), "sample")
    assert "fit" in dir(Learner())
    again = pickle.loads(pickle.dumps(learner))
    np.testing.assert_array_equal(again.log_prob(X, y=Y), learner.log_prob(X, y=Y))
    asked = pickle.loads(pickle.dumps(learner.log_prob))
    np.testing.assert_array_equal(asked(X, y=Y), learner.log_prob(X, y=Y))
    bare = clone(learner)
    assert hasattr(bare, "log_prob")
    with pytest.raises(weft.learner.answers.NotFittedError):
        bare.log_prob(X, y=Y)
    with pytest.raises(AttributeError, match="'Learner' object has no attribute 'log_probb'; Conditional offers bound"):
        learner.log_probb(X)


def test_an_override_inherits_the_mark_and_none_takes_it_away(learner):
    assert Overridden().capabilities() == Conditional().capabilities()
    other = Learner(Overridden(), **SHORT).fit(X, Y)
    np.testing.assert_allclose(other.log_prob(X, y=Y), learner.log_prob(X, y=Y) - 1.0, rtol=1e-5)
    assert not hasattr(Learner(Without()), "sample")
    assert hasattr(Learner(Without()), "log_prob")


def test_an_answer_that_is_not_one_for_each_row_is_refused():
    other = Learner(Scalar(), **SHORT).fit(X, Y)
    with pytest.raises(ValueError, match=r"one answer of 'bound' for each of 200 rows, got shape \(\)"):
        other.bound(X)

    class Numbered(Classification):
        def predict(self, x):  # inherits finish, which takes the largest
            return self.predict_proba(x).argmax(-1)

    with pytest.raises(ValueError, match="one answer of 'predict' for each of 200 rows"):
        Learner(Numbered(hidden=(4,)), **SHORT).fit(X, Y).predict(X)


# --- further fields -----------------------------------------------------------------------------------


def test_labels_are_numbered_and_cut_with_the_rows(learner, monkeypatch):
    mean = learner.objective_.mean.detach().numpy()
    by_hand = -0.5 * np.square(X - mean[(Y == "right").astype(int)]).sum(-1)
    np.testing.assert_allclose(learner.log_prob(X, y=Y), by_hand, rtol=1e-5)
    monkeypatch.setattr("weft.learner.asking._MOST", 7)
    memory._known.clear()
    np.testing.assert_allclose(learner.log_prob(X, y=Y), by_hand, rtol=1e-5)


def test_samples_by_label(learner):
    drawn = learner.sample(200, y=Y, scale=0.0)
    np.testing.assert_allclose(drawn, learner.objective_.mean.detach().numpy()[(Y == "right").astype(int)])
    both = Learner(Conditional(), replicas=2, **SHORT).fit(X, Y)
    drawn = both.sample(200, y=Y, scale=0.0)
    alone = np.concatenate(
        [both.replica(k).sample(100, y=Y[part], scale=0.0) for k, part in enumerate((slice(100), slice(100, 200)))]
    )
    np.testing.assert_allclose(drawn, alone)


def test_wrong_names_lengths_and_shapes_speak(learner):
    with pytest.raises(TypeError, match="expected 'y' to be given to 'log_prob', with a value for each row, got none"):
        learner.log_prob(X)
    with pytest.raises(ValueError, match="'y' to have a value for each of the 200 rows, got 3"):
        learner.log_prob(X, y=Y[:3])
    with pytest.raises(ValueError, match="'y' to have a value for each of the 5 rows, got a single value"):
        learner.sample(5, y="left")
    with pytest.raises(ValueError, match=r"labels among \['left', 'right'\], got also \['up'\]"):
        learner.sample(1, y=["up"])
    with pytest.raises(ValueError, match=r"an argument of 'sample' among .*got 'scal'; did you mean 'scale'"):
        learner.sample(5, scal=2.0)
    with pytest.raises(TypeError, match=r"one value of 'scale' for all rows.*capability\(rows=\('scale',\)\)"):
        learner.sample(2, scale=np.ones(2))
    with pytest.raises(TypeError, match="no argument of 'impute' beside the first, got 'y'"):
        learner.impute(X, y=Y)
    with pytest.raises(TypeError, match="expected rows to ask 'impute' about, got none"):
        learner.impute()
    with pytest.raises(TypeError, match="random_state for what is a draw, got it for 'log_prob'"):
        learner.log_prob(X, y=Y, random_state=0)


@pytest.mark.parametrize("name", ["score", "memory", "history_", "_secret", "adapt"])
def test_a_capability_that_the_learner_would_hide_is_refused(name):
    hidden = type("Hidden", (Conditional,), {name: capability()(lambda self, x: x), "adapts": name == "adapt"})
    with pytest.raises(ValueError, match=f"a name of its own for the capability {name!r}"):
        Learner(hidden(), **SHORT).fit(X, Y)


def test_trees_and_lists_are_answers(learner, monkeypatch):
    mask = X > 0
    whole = learner.hidden(X, mask=mask)
    np.testing.assert_array_equal(whole["kept"], X * mask)
    np.testing.assert_array_equal(whole["both"][1], mask)
    assert [len(row) for row in learner.ragged(X[:5])] == [0, 1, 2, 0, 1]
    assert [len(row) for row in learner.ragged(X[:5], most=2)] == [0, 1, 0, 1, 0]
    monkeypatch.setattr("weft.learner.asking._MOST", 7)
    memory._known.clear()
    np.testing.assert_array_equal(learner.hidden(X, mask=mask)["both"][0], X)
    assert len(learner.ragged(X)) == 200
    with pytest.raises(ValueError, match="one replica to answer 'hidden', got 2"):
        Learner(Conditional(), replicas=2, **SHORT).fit(X, Y).hidden(X, mask=mask)


def test_values_are_read_as_training_read_them():
    class Shifted(Regression):
        @capability(merge="mean")
        def error(self, x, y):
            return y - self.predict(x)

    model = Learner(Shifted(hidden=(4,)), **SHORT).fit(X, X[:, 0])
    whole = np.arange(200)
    np.testing.assert_allclose(model.error(X, y=whole), whole - model.predict(X), rtol=1e-5)
    with pytest.raises(ValueError, match=r"rows of y of shape \(\) as when training began"):
        model.error(X, y=np.ones((200, 2)))


# --- kinds --------------------------------------------------------------------------------------------


def test_kinds_are_told_and_a_score_prints_what_is_not_exact(learner):
    assert learner.log_prob.kind == "exact"
    assert learner.sample.kind == "direct"
    assert learner.bound.kind == "lower bound"
    assert repr(learner.bound) == "Learner.bound (lower bound)"
    assert Learner(Conditional()).log_prob.kind == "exact"
    exact = learner.score(X, Y)
    assert type(exact) is float
    assert exact == pytest.approx(learner.log_prob(X, y=Y).mean())

    class Bounded(Conditional):
        @capability(merge="logmeanexp", kind="lower bound")
        def log_prob(self, x, y):
            return super().log_prob(x, y)

    score = Learner(Bounded(), **SHORT).fit(X, Y).score(X, Y)
    assert score == exact
    assert str(score) == repr(score) == f"{exact!r} (lower bound)"
    assert f"{score:.2f}" == f"{exact:.2f}"
    again = pickle.loads(pickle.dumps(score))
    assert (again, again.kind) == (exact, "lower bound")
    assert type(score + 0) is float


def test_a_run_s_folder_page_and_terminal_say_what_is_not_exact(learner, tmp_path):
    from typer.testing import CliRunner

    from weft.commands.app import app
    from weft.report.writing import write

    learner.save(tmp_path / "run")
    write([tmp_path / "run"])
    assert "Of its answers, bound is a lower bound, not exact." in (tmp_path / "run" / "report.html").read_text()
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    assert "bound is a lower bound, not exact" in shown.output
    Learner(Classification(hidden=(4,)), **SHORT).fit(X, Y).save(tmp_path / "exact")
    assert "not exact" not in CliRunner().invoke(app, ["show", str(tmp_path / "exact")]).output


def test_a_score_by_answers_that_are_estimates_says_so():
    class Guessing(Classification):
        @capability(merge="mean", finish=lambda p: p.argmax(-1), kind="estimate")
        def predict(self, x):
            return self.predict_proba(x)

    guessed = Learner(Guessing(hidden=(4,)), **SHORT).fit(X, Y)
    assert guessed.score(X, Y).kind == "estimate"
    assert type(Learner(Classification(hidden=(4,)), **SHORT).fit(X, Y).score(X, Y)) is float


@pytest.mark.parametrize(
    ("name", "mark", "message"),
    [
        ("log_prob", {"kind": "exakt"}, "'log_prob' to say kind as one of exact, lower bound.*got 'exakt'"),
        ("log_prob", {"kind": "chain"}, "'log_prob' to say kind as one of exact, lower bound.*got 'chain'"),
        ("sample", {"kind": "exact", "merge": "share"}, "'sample' to say kind as one of direct.*got 'exact'"),
        ("impute", {"kind": "direct", "merge": "mean"}, "'impute', which draws, to merge by share or refuse"),
        ("log_prob", {"kind": "exact", "merge": "share"}, "'log_prob', a number told of each row, to merge by mean"),
        ("value", {"merge": "average"}, "'value' to merge by mean, logmeanexp, share, refuse, got 'average'"),
        ("value", {"asks": "row"}, "'value' to ask for rows or a number, got 'row'"),
    ],
)
def test_an_unknown_kind_is_refused(name, mark, message):
    wrong = type("Wrong", (Conditional,), {name: capability(**mark)(lambda self, x: x)})
    with pytest.raises(ValueError, match=message):
        Learner(wrong(), **SHORT).fit(X, Y)


# --- draws --------------------------------------------------------------------------------------------


def test_an_estimate_is_a_function_of_the_row(learner, monkeypatch):
    whole = learner.bound(X)
    np.testing.assert_array_equal(learner.bound(X[100:110]), whole[100:110])
    np.testing.assert_array_equal(learner.bound(X[::-1]), whole[::-1])
    np.testing.assert_array_equal(learner.bound(X.astype(np.float64)), whole)
    np.testing.assert_array_equal(learner.bound(torch.from_numpy(X)), whole)
    monkeypatch.setattr("weft.learner.asking._MOST", 7)
    memory._known.clear()
    np.testing.assert_array_equal(learner.bound(X), whole)


def test_rows_draw_independently_so_the_variance_of_a_mean_falls_as_one_over_n(learner):
    rows = np.random.default_rng(1).normal(size=(200 * 100, 2)).astype(np.float32)
    noise = (learner.bound(rows) - rows.sum(1)).reshape(200, 100)
    for n in (1, 10, 100):
        variance = noise[:, :n].mean(1).var(ddof=1)
        assert 0.7 < n * variance < 1.4  # of 200 means: within 3.5 standard errors
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.25


def test_two_draws_differ_and_so_do_equal_rows(fresh):
    first, second = fresh.sample(1000), fresh.sample(1000)
    assert len(np.unique(np.concatenate([first, second])[:, 0])) == 2000
    same = np.zeros((1000, 2), dtype=np.float32)
    one, two = fresh.impute(same), fresh.impute(same)
    assert len(np.unique(np.concatenate([one, two])[:, 0])) == 2000


def test_draws_go_on_where_the_last_ended(fresh):
    other = Learner(Conditional(), **SHORT).fit(X, Y)
    np.testing.assert_array_equal(np.concatenate([fresh.sample(3), fresh.sample(4)]), other.sample(7))


def test_random_state_fixes_a_draw_and_leaves_the_others_alone(fresh):
    first = fresh.sample(5, random_state=1)
    np.testing.assert_array_equal(fresh.sample(5, random_state=1), first)
    assert not np.isin(fresh.sample(5, random_state=2), first).any()
    assert not np.isin(fresh.sample(5), first).any()
    assert fresh.training_.drawn == 5
    generator = np.random.RandomState(0)
    assert not np.isin(fresh.sample(5, random_state=generator), fresh.sample(5, random_state=generator)).any()


def test_a_draw_that_fails_does_not_count(fresh):
    with pytest.raises(ValueError, match="positive number"):
        fresh.sample(0)
    with pytest.raises(ValueError, match="'y' to have a value"):
        fresh.sample(3, y=Y)
    assert fresh.training_.drawn == 0


def test_the_counter_is_saved_with_the_run(tmp_path):
    game = Learner(GAN(latent=2, hidden=(4,)), steps=2, random_state=0).fit(X)
    game.sample(3)
    game.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    copied = pickle.loads(pickle.dumps(game))
    assert again.training_.drawn == 3
    expected = game.sample(4)
    np.testing.assert_array_equal(again.sample(4), expected)
    np.testing.assert_array_equal(copied.sample(4), expected)


def test_replicas_share_rows_out_where_what_is_asked_is_drawn():
    both = Learner(Conditional(), replicas=2, **SHORT).fit(X, Y)
    assert both.impute(X).shape == X.shape
    assert len(np.unique(both.impute(np.zeros((1000, 2)))[:, 0])) == 1000


# --- replicas -----------------------------------------------------------------------------------------


class Counted(Conditional):
    """Counts how often it is asked, outside of what watches it for memory."""

    asked = ()

    def note(self, name):
        type(self).asked = (*self.asked, name)

    def bound(self, x):
        self.note("bound")
        return super().bound(x) * self.mean.sum()

    def sample(self, n, y=None, *, scale=1.0):
        self.note("sample")
        return super().sample(n, y, scale=scale)

    def impute(self, x):
        self.note("impute")
        return super().impute(x)


class Branching(Counted):
    """What no vmap bears: it looks at a number."""

    def bound(self, x):
        return super().bound(x) + float(self.mean.sum())

    def sample(self, n, y=None, *, scale=1.0):
        return super().sample(n, y, scale=scale) + float(self.mean.sum())

    def impute(self, x):
        return super().impute(x) + float(self.mean.sum())


@pytest.mark.parametrize("kind", [Counted, Branching])
@pytest.mark.parametrize(
    ("name", "count", "named"),
    [("bound", 50, {}), ("sample", 50, {}), ("sample", 2, {}), ("sample", 11, {"y": Y[:11]}), ("impute", 11, {})],
)
def test_replicas_answer_in_one_pass_or_in_a_loop_to_the_same_result(kind, name, count, named):
    memory._known.clear()
    learner = Learner(kind(), replicas=4, **SHORT).fit(X, Y)
    asked = count if name == "sample" else X[:count]
    for _ in range(2):  # which look whether it can be vectorized, and how much then fits the memory
        getattr(learner, name)(asked, **named)
    learner.training_.drawn = 0
    kind.asked = ()
    answer = getattr(learner, name)(asked, **named)
    assert len(kind.asked) == (1 if kind is Counted else min(4, count) if name == "sample" else 4)
    alone = [learner.replica(k) for k in range(4)]
    edges = [k * count // 4 for k in range(5)]
    if name == "bound":
        each = [getattr(one, name)(asked) for one in alone]
        expected = np.log(np.mean(np.exp(np.float64(each)), 0))
    else:
        each = []
        for one, a, b in zip(alone, edges[:-1], edges[1:], strict=True):
            one.training_.drawn = a
            if b > a:
                part = {field: values[a:b] for field, values in named.items()}
                each.append(getattr(one, name)(b - a if name == "sample" else X[a:b], **part))
        expected = np.concatenate(each)
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_a_mistake_does_not_make_replicas_slow():
    learner = Learner(Counted(), replicas=2, **SHORT).fit(X, Y)
    with pytest.raises(TypeError):
        learner.sample(10, scale="wide")
    learner.sample(10)
    Counted.asked = ()
    learner.sample(10)
    assert Counted.asked == ("sample",)


def test_lists_of_rows_are_answered_by_one_replica_after_another():
    class Lists(Conditional):
        @capability(merge="share", kind="direct")
        def words(self, n):
            return [torch.arange(i % 3) for i in range(n)]

    learner = Learner(Lists(), replicas=2, **SHORT).fit(X, Y)
    assert [len(word) for word in learner.words(7)] == [0, 1, 2, 0, 1, 2, 0]
