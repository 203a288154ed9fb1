"""With a generator that recites its rows it is replay; in closed form with the old net's answers; and it composes."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.neighbors import KernelDensity
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer, weave
from weft.core.objective import Objective, Output, capability
from weft.core.random import fold, key_of
from weft.core.trees import tree_leaves
from weft.objectives import DANN, GAN, ICA, Classification, Dequantized, Regression
from weft.strategies import ERM, ANDMask, GenerativeReplay, LwF, Replay

rng = np.random.default_rng(0)
TASKS = []
for _ in range(3):
    x = rng.normal(size=(50, 3))
    TASKS.append((x, x @ rng.normal(size=3) + 0.3 * rng.normal(size=50)))


class Recites(Objective):
    """A perfect generator: its samples are the rows that it was given, each once."""

    fields = ("x",)
    solved = True

    def __init__(self, count=50, *, width=3):
        super().__init__()
        self.count = count
        self.width = width

    def build(self, spec):
        self.rows = nn.Parameter(torch.zeros(self.count, self.width))

    def forward(self, batch, player=""):
        return Output(torch.zeros(len(batch["x"])))

    def solve(self, source, state):
        return {"rows": torch.cat([batch["x"] for batch in source.once(state, 1024)])[:, : self.width]}

    @capability(merge="share", kind="direct")
    def sample(self, n):
        return self.rows[:n]


RECITED = GenerativeReplay(generator=Learner(Recites()), size=20, rows=20, share=0.3)
SMALL = GenerativeReplay(generator=Learner(GAN(hidden=(8,)), steps=20), size=30, rows=8, share=0.4)


GENERATIVE = GenerativeReplay(generator=Learner(GAN(), steps=300), size=100)


def line(strategy, **settings):
    settings = {"optimizer": Optimizer("sgd", lr=0.4), "steps": 200, "batch_size": None, **settings}
    return Learner(
        Regression(nn.Linear(3, 1, bias=False)), strategy=strategy, dtype="float64", random_state=0, **settings
    )


def memory(learner, player=""):
    return learner.training_.runs[0][1].strategy[player]["memory"]["rows"]


def test_with_a_perfect_generator_and_a_net_that_fits_it_is_replay():
    """Labels without noise, which the net learns exactly: the same rows, the same answers, the same least squares."""
    (X, _), (Z, z) = TASKS[:2]
    y = X @ np.array([1.0, -2.0, 0.5])
    answers = []
    for strategy in (RECITED, Replay(size=20, rows=20, share=0.3)):
        learner = line(strategy).partial_fit(X, y, task=0)
        held = memory(learner)["x"]
        answers.append((held, learner.partial_fit(Z, z, task=1).predict(np.eye(3))))
    torch.testing.assert_close(answers[0][0], answers[1][0], rtol=0, atol=0)
    np.testing.assert_allclose(answers[0][1], answers[1][1], rtol=1e-9)
    assert not np.allclose(answers[0][1], line(ERM()).fit(Z, z).predict(np.eye(3)), rtol=0.01)


def test_the_old_nets_answers_in_closed_form():
    learner = line(RECITED)
    for i, (X, y) in enumerate(TASKS):
        if i:
            M, m = (memory(learner)[name].numpy() for name in "xy")
            matrix = 0.7 * X.T @ X / 50 + 0.3 * M.T @ M / 20
            expected = np.linalg.solve(matrix, 0.7 * X.T @ y / 50 + 0.3 * M.T @ m / 20)
        learner.partial_fit(X, y, task=i)
        if i:
            np.testing.assert_allclose(learner.predict(np.eye(3)), expected, rtol=1e-8)
        now = memory(learner)["x"].numpy()
        fresh = [row.tolist() in X.tolist() for row in now]
        np.testing.assert_allclose(memory(learner)["y"].numpy()[fresh], learner.predict(now)[fresh], rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_forgets_less(seed):
    X, y = make_blobs([100, 100, 100], centers=[[0, 0], [6, 0], [0, 6]], random_state=seed)
    scores = {}
    for name, strategy in (("naive", ERM()), ("generative", GENERATIVE)):
        clf = Classifier(strategy=strategy, hidden=(16,), epochs=30, optimizer=Optimizer("adam", lr=0.01))
        clf.set_params(random_state=seed)
        for task in ([0, 1], [2]):
            rows = np.isin(y, task)
            clf.partial_fit(X[rows], y[rows], classes=range(3), task=str(task))
        scores[name] = clf.score(X, y)
    assert scores["naive"] < 0.7
    assert scores["generative"] > 0.9
    drawn = memory(clf)["x"].numpy()
    assert np.abs(drawn[:, None] - X[None].astype(np.float32)).max(-1).min() > 0, "samples, not rows"


def test_weights_go_to_the_generator_and_their_mean_to_its_samples():
    """Rows of weight 0 are as if absent from what the generator learns."""
    seen = []

    class Looks(Recites):
        def solve(self, source, state):
            seen.append(torch.cat([batch["weight"] for batch in source.once(state, 1024)]))
            return super().solve(source, state)

    weight = np.linspace(0.0, 3.0, 50)
    learner = line(RECITED.having(generator=Learner(Looks())), steps=1).partial_fit(
        *TASKS[0], task=0, sample_weight=weight
    )
    np.testing.assert_allclose(seen[0].numpy(), weight)
    np.testing.assert_allclose(memory(learner)["weight"].numpy(), weight.mean())


def in_sequence(settings, strategy=SMALL):
    learner = line(strategy, **{"steps": 12, "batch_size": 10, **settings})
    for i, (X, y) in enumerate(TASKS):
        learner.partial_fit(X, y, task=i)
    return learner


@pytest.mark.turns("src/weft/strategies/continual/*")
def test_same_seed_same_result_and_replicas_are_single_runs():
    whole, again, other = in_sequence({}), in_sequence({}), in_sequence({"replicas": {"random_state": [1]}})
    np.testing.assert_array_equal(whole.predict(np.eye(3)), again.predict(np.eye(3)))
    torch.testing.assert_close(memory(whole)["x"], memory(again)["x"], rtol=0, atol=0)
    many = in_sequence({"replicas": 2})
    np.testing.assert_allclose(many.replica(0).predict(np.eye(3)), whole.predict(np.eye(3)), rtol=1e-9)
    np.testing.assert_allclose(many.replica(1).predict(np.eye(3)), other.predict(np.eye(3)), rtol=1e-9)
    assert not torch.allclose(*memory(many)["x"])
    swept = in_sequence({"replicas": {"strategy__share": [0.4, 0.0]}})
    np.testing.assert_allclose(swept.replica(0).predict(np.eye(3)), whole.predict(np.eye(3)), rtol=1e-9)
    plain = in_sequence({}, ERM())
    np.testing.assert_allclose(swept.replica(1).predict(np.eye(3)), plain.predict(np.eye(3)), rtol=1e-9)


def test_resumed_is_uninterrupted(tmp_path):
    def stop(record):
        if record["step"] == 18:
            raise KeyboardInterrupt

    whole = in_sequence({})
    learner = line(SMALL, steps=12, batch_size=10, folder=tmp_path / "run").partial_fit(*TASKS[0], task=0)
    with pytest.raises(KeyboardInterrupt):
        learner.set_params(callbacks=[stop]).partial_fit(*TASKS[1], task=1)
    kept = weft.load(tmp_path / "run", module=nn.Linear(3, 1, bias=False))
    kept.resume(*TASKS[1]).partial_fit(*TASKS[2], task=2)
    np.testing.assert_array_equal(kept.predict(np.eye(3)), whole.predict(np.eye(3)))


def test_a_repeated_task_replaces_its_own_samples():
    learner = line(RECITED.having(size=200, rows=200), steps=5)
    for task in (0, 1, 0):
        learner.partial_fit(*TASKS[task], task=task)
    rows = memory(learner)
    held = rows["x"][rows["weight"] > 0].numpy()
    assert sorted(map(tuple, held)) == sorted(map(tuple, np.concatenate([TASKS[0][0], TASKS[1][0]])))


def test_an_objective_without_labels_learns_the_samples_themselves():
    X = rng.normal(size=(50, 3))
    learner = Learner(GAN(hidden=(8,)), strategy=RECITED, steps=3, random_state=0).partial_fit(X, task=0)
    held = [memory(learner, player)["x"] for player in ("critic", "generator")]
    torch.testing.assert_close(*held, rtol=0, atol=0)
    replay = Learner(GAN(hidden=(8,)), strategy=Replay(size=20, rows=20, share=0.3), steps=3, random_state=0)
    replay.partial_fit(X, task=0)
    for each in (learner, replay):
        each.partial_fit(X + 1.0, task=1)
    np.testing.assert_allclose(learner.sample(5), replay.sample(5), rtol=1e-5)


def test_an_objective_that_samples_is_its_own_generator():
    X = rng.normal(size=(50, 3))
    learner = Learner(GAN(hidden=(8,)), strategy=GenerativeReplay(size=20, rows=20), steps=3, random_state=0)
    for task in range(2):
        learner.partial_fit(X + task, task=task)
        engine, state = learner.training_.runs[0]
        held = [memory(learner, player)["x"] for player in ("critic", "generator")]
        torch.testing.assert_close(*held, rtol=0, atol=0)
        key = fold(key_of(state.seeds), "consolidate", str(task), "ask")
        drawn = engine.call(state, "sample", 50, key=key, rows=torch.arange(50))
        assert len(held[0]) == 20
        assert {tuple(r) for r in held[0].tolist()} <= {tuple(r) for r in drawn.tolist()}
    learner.partial_fit(X + 1, task=1)
    assert bool((memory(learner, "critic")["weight"] > 0).all())


def test_the_only_task_repeated_is_the_task_learned_longer():
    """All that was remembered is released: it counts nothing, and nothing breaks."""
    learner, plain = (line(strategy, steps=3) for strategy in (RECITED, ERM()))
    for each in (learner, plain):
        each.partial_fit(*TASKS[0], task=0).partial_fit(*TASKS[0], task=0)
    np.testing.assert_allclose(learner.predict(np.eye(3)), plain.predict(np.eye(3)), rtol=1e-9)


def test_it_composes_with_groups_and_distillation():
    site = np.arange(50) % 2
    grouped, pooled = (line(s, steps=1) for s in (weave(RECITED, ANDMask(threshold=0.0)), RECITED))
    for i, (X, y) in enumerate(TASKS):
        grouped.partial_fit(X, y, task=i, environment=site)
        pooled.partial_fit(X, y, task=i)
    np.testing.assert_allclose(grouped.predict(np.eye(3)), pooled.predict(np.eye(3)), rtol=1e-9)
    both, alone = (in_sequence({}, s) for s in (weave(LwF(strength=1.0), SMALL), weave(LwF(strength=0.0), SMALL)))
    assert np.isfinite(both.predict(np.eye(3))).all()
    assert not np.allclose(both.predict(np.eye(3)), alone.predict(np.eye(3)))
    np.testing.assert_allclose(alone.predict(np.eye(3)), in_sequence({}).predict(np.eye(3)), rtol=1e-9)


class Undecided(Regression):
    predict = None


def test_bad_input():
    X, y = TASKS[0]
    for wrong, error, message in (
        ({"generator": Learner(Classification())}, ValueError, r"that can sample, such as Learner\(GAN\(\), steps"),
        ({"generator": GAN()}, TypeError, r"to be a learner that can sample.*got GAN\(\)"),
        ({"generator": Learner}, TypeError, r"to be a learner that can sample.*got the class Learner; make one"),
        ({"generator": "gan"}, TypeError, "to be a learner that can sample.*got 'gan'"),
        ({}, ValueError, "Regression draws none and no generator was given; give one"),
        ({"size": 0}, ValueError, "GenerativeReplay's size to be an integer >= 1, got 0"),
        ({"share": 1.0}, ValueError, r"GenerativeReplay's share to be a number in \[0, 1\), got 1.0"),
    ):
        with pytest.raises(error, match=message):
            line(GenerativeReplay(**wrong)).fit(X, y)
    with pytest.raises(ValueError, match=r"rows like those of the task 'a', \(3,\), got \(2,\); check Learner"):
        line(GenerativeReplay(generator=Learner(Recites(width=2))), steps=1).partial_fit(X, y, task="a")
    assert "nothing tells the 'environment' of a row" in GenerativeReplay().refuses(DANN(Classification()))
    assert "Undecided does not predict" in GenerativeReplay().refuses(Undecided())


def test_a_fitted_generator_is_asked_as_it_is_and_other_estimators_serve():
    X, y = TASKS[0]
    density = KernelDensity(bandwidth=0.2)
    for generator in (density, KernelDensity(bandwidth=1e-6).fit(TASKS[1][0])):
        learner = line(GenerativeReplay(generator=generator, size=20, rows=20), steps=3).partial_fit(X, y, task=0)
        held = memory(learner)["x"].numpy()
        near = [np.abs(held[:, None] - rows[None]).max(-1).min(1).max() for rows in (X, TASKS[1][0])]
        assert (near[1] < 1e-4) == (generator is not density), near
    assert not hasattr(density, "tree_"), "the user's own is left alone"


def test_a_run_with_a_generator_is_kept_and_loaded(tmp_path):
    strategy = GenerativeReplay(generator=Learner(GAN(hidden=(8,)), steps=20), size=30, rows=8)
    learner = Learner(Regression(hidden=(4,)), strategy=strategy, steps=2, random_state=0).partial_fit(
        *TASKS[0], task=0
    )
    learner.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    assert repr(again.strategy) == repr(strategy)
    for each in (learner, again):
        each.partial_fit(*TASKS[1], task=1)
    np.testing.assert_array_equal(learner.predict(np.eye(3)), again.predict(np.eye(3)))


def test_what_a_fitted_generator_has_drawn_before_does_not_matter():
    X, y = TASKS[0]
    generator = Learner(GAN(hidden=(8,)), steps=5, dtype="float64", random_state=0).fit(X)
    kept = []
    for _ in range(2):
        one = line(GenerativeReplay(generator=generator, size=20, rows=8), steps=2).partial_fit(X, y, task="a")
        kept.append(next(iter(one.training_.runs[0].state.strategy.values())))
        generator.sample(7)
    assert all(torch.equal(a, b) for a, b in zip(*(map(tree_leaves, kept)), strict=True))


def test_rows_that_the_objective_cannot_learn_from_are_refused():
    """A GAN draws real numbers, whatever it has learned from."""
    rows = np.random.default_rng(0).integers(0, 4, size=(60, 2)).astype(float)
    density = Dequantized(ICA(inference="gradient"), levels=4)
    replay = GenerativeReplay(generator=Learner(GAN(latent=2, hidden=(8,)), steps=2), size=20, rows=5)
    learner = Learner(density, strategy=replay, steps=2, random_state=0)
    with pytest.raises(
        ValueError, match=r"expected the generator to draw rows that Dequantized can learn from, .* 0\.\.3"
    ):
        learner.partial_fit(rows, task="first").partial_fit(rows, task="second")
