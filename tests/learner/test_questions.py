"""Five questions with one spelling: evidence, ratio, moments, prediction, test; and adaptation to a few examples."""

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from torch import nn

from weft import Learner, Optimizer
from weft.core import Objective, Output, capability
from weft.core.random import normal
from weft.learner.questions import expected
from weft.objectives import GAN, Classification, Heads, Regression
from weft.sources import Episodes
from weft.strategies import MAML

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2)).astype(np.float32)
SHORT = {"steps": 1, "random_state": 0}


class Gaussian(Objective):
    """Normal(mean, scale^2) in each column, as it is given: nothing is learned that matters."""

    fields = ("x",)

    def __init__(self, *, mean=0.0, scale=1.0):
        super().__init__()
        self.mean = mean
        self.scale = scale

    def build(self, spec):
        self.size, self.free = spec["x"].shape[0], nn.Parameter(torch.zeros(1))

    def forward(self, batch, player=""):
        return Output(0.0 * self.free - self.log_prob(batch["x"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        z = (x - self.mean) / self.scale
        return -(0.5 * z.square() + math.log(self.scale) + 0.5 * math.log(2 * math.pi)).sum(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n, *, shift=0.0):
        return self.mean + shift + self.scale * normal((n, self.size), place="z", dtype=self.free.dtype)


def kinds(kind, name="log_prob"):
    """A Gaussian whose `log_prob` says that it is of another kind."""

    @capability(merge="logmeanexp", kind=kind)
    def log_prob(self, x):
        return Gaussian.log_prob(self, x)

    return type("Other", (Gaussian,), {name: log_prob})


def fitted(objective, rows=X, **settings):
    return Learner(objective, **{**SHORT, **settings}).fit(rows)


# --- moments ------------------------------------------------------------------------------------------


def test_an_expectation_is_the_mean_with_student_s_interval():
    model = fitted(Gaussian(mean=2.0, scale=3.0))
    found = model.expectation(lambda x: x[:, 0] ** 2, 400, random_state=1)
    squares = model.sample(400, random_state=1)[:, 0].astype(np.float64) ** 2
    low, high = stats.t.interval(0.95, 399, squares.mean(), stats.sem(squares))
    assert found.mean == pytest.approx(squares.mean())
    assert found.interval == pytest.approx((low, high))
    assert (found.n, found.kind, found.level) == (400, "direct", 0.95)
    assert abs(found.mean - 13.0) < 4 * found.error
    assert "95% interval" in repr(found)
    assert "assumes independent draws" in repr(found)
    assert float(found) == found.mean
    both = model.expectation(lambda x: x, 50, level=0.5, shift=10.0)
    assert both.mean.shape == both.interval[0].shape == (2,)
    assert (both.mean > 10).all()
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_interval_keeps_its_level():
    """Of 1,000 intervals from 3 draws each, those that hold the mean: within 3.5 standard errors of 80%."""
    model = fitted(Gaussian(mean=1.0))
    every = model.sample(3000, random_state=0)[:, 0].reshape(1000, 3)
    found = [expected(lambda n, row=row: row, "direct", lambda x: x, 3, 0.8).interval for row in every]
    held = np.mean([low <= 1.0 <= high for low, high in found])
    assert abs(held - 0.8) < 3.5 * math.sqrt(0.16 / 1000)


def test_a_chain_s_interval_is_over_batches():
    """An autoregression with correlation .8: the independent draws' interval of its mean is 3 times too short."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(300, 1200))
    x = np.zeros_like(noise)
    for t in range(1, 1200):
        x[:, t] = 0.8 * x[:, t - 1] + noise[:, t]

    def share(kind):
        found = [expected(lambda n, row=row: row, kind, lambda x: x, 1000, 0.9).interval for row in x[:, 200:]]
        return np.mean([low <= 0.0 <= high for low, high in found])

    assert share("chain") > 0.83
    assert share("direct") < 0.6


def test_what_a_chain_assumes_is_said_and_few_draws_are_refused():
    class Chain(Gaussian):
        @capability(merge="share", kind="chain")
        def sample(self, n):
            return super().sample(n)

    class Silent(Gaussian):
        @capability(merge="share")
        def sample(self, n):
            return super().sample(n)

    chained = fitted(Chain())
    assert "a chain that has forgotten its beginning" in repr(chained.expectation(lambda x: x[:, 0], 400))
    with pytest.raises(ValueError, match="expected n >= 100 draws of a chain, whose neighbours are alike, got 50"):
        chained.expectation(lambda x: x[:, 0], 50)
    assert "of which the objective's sample says nothing" in fitted(Silent()).expectation(lambda x: x[:, 0]).assumes


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x.mean(), r"one number, or a vector, from the function for each of 100 rows, got shape \(\)"),
        (lambda x: x[:3, 0], r"for each of 100 rows, got shape \(3,\)"),
        (lambda x: x[:, None, :, None], r"got shape \(100, 1, 2, 1\)"),
        (lambda x: np.log(-np.ones(len(x))), "expected finite numbers from the function, got others for 100 of 100"),
        (lambda x: x[:, 0] - x[:, 0].mean(), "a function of each row by itself"),
        (lambda x: x[:, 0] + 0j, "expected numbers from the function, got complex"),
        ("x", "expected a function of rows for 'expectation', got str"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_functions_that_have_no_mean_speak(f, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fitted(Gaussian()).expectation(f, 100)


def test_wrong_numbers_of_draws_and_levels_speak():
    model = fitted(Gaussian())
    for n in (1, 0, 2.5, True):
        with pytest.raises(ValueError, match="expected n >= 2 draws"):
            model.expectation(lambda x: x[:, 0], n)
    for level in (0.0, 1.0, 95, "0.9"):
        with pytest.raises(ValueError, match=r"expected a level in \(0, 1\)"):
            model.expectation(lambda x: x[:, 0], level=level)
    with pytest.raises(ValueError, match="an argument of 'sample' among shift, got 'shif'"):
        model.expectation(lambda x: x[:, 0], shif=1.0)


def test_an_objective_s_own_expectation_answers():
    class Known(Gaussian):
        """By Gauss and Hermite's quadrature of the first column."""

        @capability(merge="mean", kind="exact")
        def expectation(self, f, *, nodes=20):
            at, weight = np.polynomial.hermite_e.hermegauss(nodes)
            at = torch.as_tensor(at, dtype=self.free.dtype)[:, None].expand(-1, self.size)
            weight = torch.as_tensor(weight / weight.sum(), dtype=self.free.dtype)
            return weight @ f(self.mean + self.scale * at)

    class Guessed(Gaussian):
        @capability(merge="mean", kind="estimate")
        def expectation(self, f):
            values = f(self.sample(100))
            return values.mean(), values.std() / 10.0

    known = fitted(Known(mean=1.0, scale=2.0)).expectation(lambda x: x[:, 0] ** 2)
    assert known.mean == pytest.approx(5.0, rel=1e-5)
    assert known.interval == (known.mean, known.mean)
    assert repr(known) == f"{known.mean:.4g} (exact)"
    seen = []
    fitted(Known()).expectation(lambda x: seen.append(type(x)) or x[:, 0])
    assert set(seen) == {np.ndarray}
    guess = fitted(Guessed(mean=1.0)).expectation(lambda x: x[:, 0], random_state=3)
    assert guess.interval[0] < 1.0 < guess.interval[1]
    assert guess.interval[1] - guess.interval[0] == pytest.approx(2 * 1.96 * guess.error, rel=1e-3)
    several = fitted(Guessed(mean=1.0), replicas=4).expectation(lambda x: x[:, 0])
    assert several.error < guess.error
    with pytest.raises(TypeError, match="which is exact"):
        fitted(Known()).expectation(lambda x: x[:, 0], random_state=0)
    with pytest.raises(ValueError, match="an argument of 'expectation' among nodes, got 'n'"):
        fitted(Known()).expectation(lambda x: x[:, 0], 100)
    wrong = type("Wrong", (Gaussian,), {"expectation": capability(asks="rows")(lambda self, f: f)})
    with pytest.raises(ValueError, match="'expectation' to ask for a function, got 'rows'"):
        fitted(wrong())


def test_names_keep_their_manners():
    model, plain = fitted(Gaussian()), Learner(Regression())
    for name in ("expectation", "bayes_factor"):
        assert hasattr(model, name)
        assert hasattr(clone(model), name)
        assert name in dir(model)
        assert not hasattr(plain, name)
        assert name not in dir(plain)
    for name in ("forecast", "adapt"):
        assert not hasattr(model, name)
        assert name not in dir(model)
    with pytest.raises(AttributeError) as refusal:
        plain.expectation  # noqa: B018
    assert "Regression neither samples nor offers it" in str(refusal.value.__cause__)
    again = pickle.loads(pickle.dumps(model))
    f = np.square
    assert again.expectation(f, 10, random_state=0).mean == pytest.approx(model.expectation(f, 10, random_state=0).mean)


# --- a ratio and a forecast ---------------------------------------------------------------------------


def test_a_gan_s_ratio_is_the_logit_of_its_critic():
    game = fitted(GAN(latent=2, hidden=(8,)), steps=20)
    d = game.discriminate(X).astype(np.float64)
    np.testing.assert_allclose(game.ratio(X), np.log(d) - np.log1p(-d), atol=1e-4)
    assert game.ratio.kind == "estimate"
    with pytest.raises(ValueError, match="expected one replica to answer 'ratio', got 2"):
        fitted(GAN(latent=2, hidden=(8,)), replicas=2).ratio(X)


def test_the_best_critic_s_ratio_is_that_of_the_densities():
    """Data N(1, 1) against a generator that is kept at N(0, 1): log p / q = x - 1/2."""
    still = nn.Linear(1, 1)
    nn.init.ones_(still.weight)
    nn.init.zeros_(still.bias)
    rows = np.random.default_rng(0).normal(1.0, 1.0, size=(4000, 1)).astype(np.float32)
    rates = {"critic": Optimizer("adam", lr=0.02), "generator": Optimizer("sgd", lr=0.0)}
    objective = GAN(latent=1, generator=still, critic="linear")
    game = Learner(objective, init={"generator.*": "keep"}, optimizer=rates, steps=400, batch_size=1000, random_state=0)
    game.fit(rows)
    at = np.linspace(-1.5, 2.5, 9, dtype=np.float32)[:, None]
    np.testing.assert_allclose(game.ratio(at), at[:, 0] - 0.5, atol=0.2)


class Series(Gaussian):
    @capability(merge="mean")
    def forecast(self, x, *, steps=1, draws=None):
        ahead = x[:, -1:] + torch.arange(1, steps + 1, dtype=x.dtype)
        return ahead if draws is None else ahead[:, None].expand(-1, draws, -1)


def test_a_forecast_has_its_steps():
    model = fitted(Series())
    np.testing.assert_allclose(model.forecast(X, steps=3), X[:, -1:] + np.arange(1, 4), rtol=1e-6)
    assert model.forecast(X).shape == (300, 1)
    assert model.forecast(X, steps=3, draws=5).shape == (300, 5, 3)
    assert "forecast" in dir(model)
    for steps in (0, 1.5, True, None):
        with pytest.raises(ValueError, match="expected steps >= 1 to forecast"):
            model.forecast(X, steps=steps)

    class Short(Gaussian):
        @capability(merge="mean")
        def forecast(self, x, *, steps=1):
            return x[:, :1]

    with pytest.raises(ValueError, match=r"expected 3 steps on axis 1 of the forecast of Short, got shape \(300, 1\)"):
        fitted(Short()).forecast(X, steps=3)
    wrong = type("Wrong", (Gaussian,), {"forecast": capability()(lambda self, x: x)})
    with pytest.raises(ValueError, match="'forecast' to take how many steps to look ahead by the name 'steps'"):
        fitted(wrong())
    with pytest.raises(ValueError, match=r"'ratio' to say kind as one of exact, lower bound.*got 'direct'"):
        fitted(type("Wrong", (Gaussian,), {"ratio": capability(merge="refuse", kind="direct")(lambda self, x: x)})())


# --- a test -------------------------------------------------------------------------------------------


def test_a_bayes_factor_of_two_gaussians_is_the_closed_form():
    one, other = fitted(Gaussian(mean=0.0, scale=1.0)), fitted(Gaussian(mean=1.0, scale=2.0))
    found = one.bayes_factor(other, X)
    wide = X.astype(np.float64)
    d = (stats.norm.logpdf(wide) - stats.norm.logpdf(wide, 1.0, 2.0)).sum(1)
    assert found.log == pytest.approx(d.sum(), rel=1e-5)
    np.testing.assert_allclose(found.differences, d, rtol=1e-4, atol=1e-5)
    low, high = stats.t.interval(0.95, 299, d.mean(), stats.sem(d))
    assert found.interval == pytest.approx((300 * low, 300 * high), rel=1e-5)
    assert (found.kind, found.kinds, found.favours, found.n) == ("exact", ("exact", "exact"), "first", 300)
    assert "favours the first" in repr(found)
    back = other.bayes_factor(one, X)
    assert back.log == pytest.approx(-found.log)
    assert back.favours == "second"
    same = one.bayes_factor(fitted(Gaussian()), X)
    assert (same.log, same.favours) == (0.0, "neither")
    alone = one.bayes_factor(other, X[:1])
    assert (alone.interval, alone.error, alone.favours) == (None, None, "neither")


def test_the_factor_s_interval_keeps_its_level():
    """Where the two are equally far from the truth, one of them is favoured in 10% of 600 samples of 30 rows."""
    one, other = fitted(Gaussian(mean=-0.5)), fitted(Gaussian(mean=0.5))
    rows = np.random.default_rng(2).normal(size=(600, 30, 2)).astype(np.float32)
    found = [one.bayes_factor(other, part, level=0.9).favours != "neither" for part in rows]
    assert abs(np.mean(found) - 0.1) < 3.5 * math.sqrt(0.09 / 600)


@pytest.mark.parametrize(
    ("one", "other", "kind", "favours", "told"),
    [
        ("exact", "lower bound", "upper bound", "neither", "an upper bound, exact minus lower bound"),
        ("lower bound", "exact", "lower bound", "first", "a lower bound, lower bound minus exact"),
        ("exact", "upper bound", "lower bound", "first", "a lower bound"),
        ("lower bound", "upper bound", "lower bound", "first", "a lower bound"),
        ("upper bound", "lower bound", "upper bound", "neither", "an upper bound"),
        ("lower bound", "lower bound", "no bound", "neither", "lower bound minus lower bound, which bounds nothing"),
        ("upper bound", "upper bound", "no bound", "neither", "which bounds nothing"),
        ("exact", "estimate", "estimate", "first", "an estimate, exact minus estimate"),
        ("exact", "", "no bound", "neither", "exact minus of a kind that is not said, which bounds nothing"),
    ],
)
def test_kinds_say_what_a_difference_is(one, other, kind, favours, told):
    a, b = fitted(kinds(one)()), fitted(kinds(other)(mean=2.0))
    found = a.bayes_factor(b, X)
    assert found.log > 0
    assert (found.kind, found.kinds, found.favours) == (kind, (one, other), favours)
    assert told in repr(found)
    back = b.bayes_factor(a, X)  # below 0: a lower bound of it settles nothing
    assert back.favours == ("second" if back.kind in ("exact", "upper bound", "estimate") else "neither")


class Labelled(Gaussian):
    fields = ("x", "y")

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, y=None):
        return super().log_prob(x) if y is None else super().log_prob(x - y[:, None])

    def forward(self, batch, player=""):
        return Output(0.0 * self.free - self.log_prob(batch["x"], batch["y"]))


def test_densities_of_other_things_are_not_compared():
    one = fitted(Gaussian())
    with pytest.raises(ValueError, match="expected two learners trained on rows of one shape and kind"):
        one.bayes_factor(fitted(Gaussian(), X[:, :1]), X)
    with pytest.raises(ValueError, match="densities of the same thing, got log_prob of the rows from the first and of"):
        one.bayes_factor(Learner(Labelled(), **SHORT).fit(X, X[:, 0]), X)
    whole = torch.from_numpy(X).round().long()
    with pytest.raises(ValueError, match="a mass in place of a density"):
        one.bayes_factor(fitted(Gaussian(), whole), X)
    with pytest.raises(TypeError, match="expected another fitted learner with log_prob, got Learner"):
        one.bayes_factor(Learner(Gaussian()), X)
    with pytest.raises(TypeError, match="expected another fitted learner with log_prob, got int"):
        one.bayes_factor(3, X)
    with pytest.raises(ValueError, match="an argument of 'log_prob' among none, got 'z'"):
        one.bayes_factor(one, X, z=1)
    frame = pytest.importorskip("pandas").DataFrame(X, columns=["a", "b"])
    with pytest.raises(ValueError, match="expected two learners of the same columns, got"):
        fitted(Gaussian(), frame).bayes_factor(fitted(Gaussian(), frame[["b", "a"]]), frame)
    far = X.copy()
    far[7] = 1e30
    with pytest.raises(ValueError, match="finite log-densities to compare, got -inf of the first learner in row 7"):
        one.bayes_factor(fitted(Gaussian()), far)


def test_fields_by_row_go_to_both():
    one, other = (Learner(Labelled(mean=m), **SHORT).fit(X, X[:, 0]) for m in (0.0, 1.0))
    y = X[:, 1]
    d = one.log_prob(X, y=y).astype(np.float64) - other.log_prob(X, y=y)
    assert one.bayes_factor(other, X, y=y).log == pytest.approx(d.sum())


# --- adaptation ---------------------------------------------------------------------------------------


class Prototypes(Objective):
    """The class of the nearest mean in the space of a net; a few examples give the means."""

    targets = "classes"
    adapts = True

    def build(self, spec):
        self.net = nn.Linear(spec["x"].shape[0], 2)
        self.register_buffer("means", torch.zeros(spec["y"].classes, 2))

    def _means(self, batch):
        told = nn.functional.one_hot(batch["y"], len(self.means)).to(self.means.dtype)
        told = told * batch["weight"][:, None] if "weight" in batch else told
        return told.T @ self.net(batch["x"]) / told.sum(0)[:, None].clamp_min(1.0)

    def forward(self, batch, player=""):
        return Output(nn.functional.cross_entropy(self._scores(batch["x"]), batch["y"], reduction="none"))

    def _scores(self, x):
        return -torch.cdist(self.net(x), self.means).square()

    def adapt(self, batch):
        return {"means": self._means(batch)}

    @capability(merge="mean", finish=lambda p: p.argmax(-1))
    def predict(self, x):
        return self._scores(x).softmax(-1)


LABELS = np.array(["left", "right"])[(X[:, 0] > 0).astype(int)]


@pytest.mark.parametrize("replicas", [None, 2])
def test_an_objective_adapts_itself(replicas):
    learner = Learner(Prototypes(), replicas=replicas, **SHORT).fit(X, LABELS)
    few = learner.adapt(X[:20] + 100.0, LABELS[:20])
    assert (few.predict(X + 100.0) == LABELS).mean() > 0.9
    assert (learner.predict(X + 100.0) == LABELS).mean() < 0.7  # and the one adapted from stays as it was
    for k in range(replicas or 1):
        module = few.module(k)
        with torch.no_grad():
            z = module.net(torch.from_numpy(X[:20] + 100.0)).numpy()
        by_hand = np.stack([z[LABELS[:20] == label].mean(0) for label in ("left", "right")])
        np.testing.assert_allclose(module.means.numpy(), by_hand, rtol=1e-5)
    assert hasattr(Learner(Prototypes()), "adapt")
    assert "adapt" in dir(Learner(Prototypes()))


def test_an_adapted_learner_is_saved_pickled_and_weighs(tmp_path):
    learner = Learner(Prototypes(), **SHORT).fit(X, LABELS)
    few = learner.adapt(X[:20], LABELS[:20])
    again = pickle.loads(pickle.dumps(few))
    np.testing.assert_array_equal(again.predict(X), few.predict(X))
    weight = np.ones(20)
    weight[:10] = 0.0
    half = learner.adapt(X[:20], LABELS[:20], sample_weight=weight)
    torch.testing.assert_close(half.module().means, learner.adapt(X[10:20], LABELS[10:20]).module().means)
    with pytest.raises(ValueError, match="labels"):
        learner.adapt(X[:20], ["up"] * 20)


def test_who_adapts_is_said_and_only_one():
    with pytest.raises(TypeError, match="Silent, which defines adapt, to say adapts = True"):
        type("Silent", (Regression,), {"adapt": lambda self, batch: {}})
    with pytest.raises(TypeError, match=r"Empty, which says adapts = True, to define adapt\(batch\)"):
        type("Empty", (Regression,), {"adapts": True})
    with pytest.raises(ValueError, match=r"MAML\(\) cannot train Prototypes: both adapt to a few examples"):
        Learner(Prototypes(), strategy=MAML(), **SHORT).fit(X, LABELS)
    with pytest.raises(AttributeError) as refusal:
        Learner(Regression()).adapt  # noqa: B018
    assert "expected a strategy that adapts, such as MAML(), or an objective" in str(refusal.value.__cause__)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mean": torch.zeros(2, 2)}, "a parameter's name from adapt of Wrong among .*got 'mean'; did you mean"),
        (
            {"means": torch.zeros(3, 2)},
            r"adapt of Wrong to keep 'means' as it is, \(2, 2\) of torch.float32, got \(3, 2\)",
        ),
    ],
)
def test_what_an_adaptation_cannot_change_speaks(changed, message):
    wrong = type("Wrong", (Prototypes,), {"adapt": lambda self, batch: changed})
    with pytest.raises(ValueError, match=message):
        Learner(wrong(), **SHORT).fit(X, LABELS).adapt(X, LABELS)


def test_heads_adapt_by_fields_of_their_own():
    both = Heads({"side": Prototypes(), "size": Regression(hidden=(4,))})
    learner = Learner(both, **SHORT).fit(X, side_y=LABELS, size_y=X[:, 1])
    few = learner.adapt(X[:20] + 100.0, side_y=LABELS[:20], size_y=X[:20, 1])
    assert (few.side_predict(X + 100.0) == LABELS).mean() > 0.9


def tasks(keys, n):
    """Rows with two targets of their own, of tasks that differ by a sign."""
    x = torch.stack([torch.from_numpy(X[:n]) * (1.0 if k % 2 else -1.0) for k in range(keys.shape[0])])
    return {"x": x, "side_y": (x[..., 0] > 0).long(), "size_y": x[..., 1]}


def test_an_inner_loop_is_given_the_further_fields():
    """MAML's one step on both heads, by hand."""
    both = Heads({"side": Classification("linear"), "size": Regression("linear")})
    learner = Learner(both, strategy=MAML(inner_lr=0.5), **SHORT)
    learner.fit(Episodes(tasks, tasks=2, shots=4, classes={"side_y": 2}))
    rows = torch.from_numpy(X[:32])
    batch = {"x": rows, "side_y": (rows[:, 0] > 0).long(), "size_y": rows[:, 1]}
    few = learner.adapt(rows, side_y=batch["side_y"], size_y=batch["size_y"])
    module = learner.module()
    gradients = torch.autograd.grad(module(batch).losses.mean(), list(module.parameters()))
    for p, g, q in zip(module.parameters(), gradients, few.module().parameters(), strict=True):
        torch.testing.assert_close(q, p - 0.5 * g)
    with pytest.raises(TypeError, match=r"a field by name among .*got 'sid_y'"):
        learner.adapt(rows, sid_y=batch["side_y"], size_y=batch["size_y"])
