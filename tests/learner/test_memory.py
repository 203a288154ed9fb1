"""Evaluation keeps to `memory`: rows at a time follow from it, and the answers do not depend on them."""

from functools import wraps

import numpy as np
import pytest
import rich
import torch
from rich.console import Console
from torch import nn

from weft import Classifier, Learner
from weft.core import capability
from weft.core.random import normal
from weft.core.trees import tree_leaves
from weft.engine import memory as watched
from weft.engine import progress
from weft.engine.gradients import squares as module
from weft.engine.memory import peak, rows_at_a_time
from weft.measures import environment_risk, fisher
from weft.objectives import GAN, Regression
from weft.strategies import EMA, EWC

SIDE = 12
X = torch.randn(400, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
Y = (X.mean((1, 2, 3)) > 0).long().numpy()
MEMORY = 2**20


def net(norm=nn.Identity):
    body = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), norm(), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16 * SIDE**2, 2))


def normed():
    return net(lambda: nn.BatchNorm2d(16))


def learner(memory, make=net, **more):
    settings = {"epochs": 1, "batch_size": 8, "random_state": 0, "memory": memory, "device": "cpu"}
    return Classifier(make(), **{**settings, **more})


def tensors(state):
    return torch.cat([p.flatten() for p in state.values()])


@pytest.fixture(autouse=True)
def fresh():
    watched._known.clear()


def test_the_peak_is_that_of_what_lives_at_one_time():
    def chain(n):
        x = torch.zeros(n, 250)
        for _ in range(5):
            x = x + 1.0
        return x

    assert peak(lambda: chain(1)) == 2000
    assert rows_at_a_time(nn.Linear(1, 1), "chain", lambda: chain, 100, 20_000, 64) == 6, "of 65 % of it"
    assert rows_at_a_time(nn.Linear(1, 1), "chain", lambda: chain, 100, 10**9, 64) == 64
    assert rows_at_a_time(nn.Linear(1, 1), "chain", lambda: chain, 100, 1, 64) == 1


@pytest.mark.parametrize("replicas", [None, 3])
def test_predictions_fit(replicas):
    fitted = learner(MEMORY, replicas=replicas).fit(X[:64], Y[:64])
    whole = learner(2**34, replicas=replicas).fit(X[:64], Y[:64])
    np.testing.assert_allclose(fitted.predict_proba(X), whole.predict_proba(X), rtol=1e-5)
    for ask in (fitted.predict, fitted.predict_proba):
        assert peak(lambda ask=ask: ask(X)) < MEMORY
    assert peak(lambda: whole.predict_proba(X)) > 3 * MEMORY, "what it would take"


def seen_by(monkeypatch, home, name, index=0):
    """The rows of each batch that a method of the objective sees."""
    seen, before = [], getattr(home, name)

    @wraps(before)  # with its mark
    def spy(self, *args, **kwargs):
        batch = args[index]
        seen.append(len(batch["x"]) if isinstance(batch, dict) else batch if isinstance(batch, int) else len(batch))
        return before(self, *args, **kwargs)

    monkeypatch.setattr(home, name, spy)
    return seen


@pytest.mark.parametrize("replicas", [None, 2])
def test_validation_fits(replicas, monkeypatch):
    from weft.objectives import Classification

    held = (X, Y)
    values = {}
    for memory in (MEMORY, 2**34):
        seen = seen_by(monkeypatch, Classification, "measure")
        fitted = learner(memory, validation=held, replicas=replicas).fit(X[:64], Y[:64])
        values[memory] = fitted.history_["valid_loss"]
        assert (max(seen) == 400) == (memory == 2**34)
    np.testing.assert_allclose(values[MEMORY], values[2**34], rtol=1e-5)


def test_risk_fits(monkeypatch):
    from weft.objectives import Classification

    fitted = learner(MEMORY).fit(X[:64], Y[:64])
    seen = seen_by(monkeypatch, Classification, "measure")
    environment_risk(fitted, X, Y, environment=np.arange(400) % 2)
    assert max(seen) < 100


def test_a_task_s_end_and_fisher_fit():
    ended, whole = (learner(m, strategy=EWC(strength=1.0)).fit(X, Y, task=["a"] * 400) for m in (2**23, 2**34))
    trees = (one.training_.runs[0].state.strategy for one in (ended, whole))
    for a, b in zip(*map(tree_leaves, trees), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    small = tensors(fisher(ended, X, Y))
    assert peak(lambda: fisher(ended, X, Y)) < 2**23 + 8 * X.numel() * 2
    torch.testing.assert_close(small, tensors(fisher(ended.set_params(memory=2**34), X, Y)))
    assert peak(lambda: fisher(ended, X, Y)) > 2 * (2**23 + 8 * X.numel() * 2), "what it would take"


def test_a_consolidation_sees_no_more_rows_than_fit(monkeypatch):
    rows, over = [], module.Passes.over

    def spy(self, sums, visit, settle=None):
        return over(self, sums, lambda batch: (rows.append(len(batch["row"])), visit(batch))[1], settle)

    monkeypatch.setattr(module.Passes, "over", spy)
    learner(2**23, strategy=EWC(strength=1.0)).fit(X, Y, task=["a"] * 400)
    few = max(rows)
    rows.clear()
    watched._known.clear()
    learner(2**34, strategy=EWC(strength=1.0)).fit(X, Y, task=["a"] * 400)
    assert few < 200 < max(rows) == 400


def test_statistics_that_are_taken_anew_fit(monkeypatch):
    from weft.objectives import Classification

    seen = seen_by(monkeypatch, Classification, "forward")
    learner(MEMORY, normed, strategy=EMA(decay=0.5)).fit(X, Y)
    assert 2 <= max(seen) < 100


def test_samples_fit_and_are_the_same():
    game = {"steps": 2, "random_state": 0}
    big = GAN(latent=2, hidden=(256, 256))
    few, whole = (
        Learner(big, memory=m, **game).fit(torch.randn(64, 5, generator=torch.Generator().manual_seed(0)))
        for m in (2**18, 2**34)
    )
    np.testing.assert_allclose(few.sample(500), whole.sample(500), rtol=1e-5, atol=1e-6)
    assert peak(lambda: few.sample(500)) < 2**18 < peak(lambda: whole.sample(500))


def test_what_cannot_be_watched_is_asked_as_before():
    class Odd(Regression):
        calls = 0

        def predict(self, x):
            Odd.calls += 1
            if Odd.calls == 1:
                raise RuntimeError("not while it is watched")
            return super().predict(x)

        predict.capability = Regression.predict.capability

    fitted = Learner(Odd(hidden=(4,)), epochs=1, random_state=0).fit(X.flatten(1), Y * 1.0)
    assert fitted.predict(X.flatten(1)).shape == (400,)


class Drawing(GAN):
    """Answers with so many draws for each row."""

    @capability(merge="mean")
    def spread(self, x, *, draws=1):
        noise = normal((len(x), draws, x.shape[1]), place="spread", dtype=x.dtype)
        return x[:, None] + noise

    @capability(merge="share", kind="direct")
    def sample(self, n, *, draws=1):
        rows = super().sample(n)
        return rows[:, None].expand(-1, draws, -1) * 1.0 if draws > 1 else rows


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("ask", ["spread", "sample"])
def test_rows_that_an_answer_multiplies_are_counted(monkeypatch, ask, replicas):
    """Of K draws a row takes K times as much: so many fewer are asked about at a time, from the first trial on."""
    rows = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    settings = {"steps": 1, "random_state": 0, "device": "cpu", "replicas": replicas}
    few = Learner(Drawing(latent=2, hidden=(4,)), memory=2**20, **settings).fit(rows[:64])
    much = Learner(Drawing(latent=2, hidden=(4,)), memory=2**34, **settings).fit(rows[:64])
    asked = 600 if ask == "sample" else rows
    named = {"random_state": 0} if ask == "sample" else {}
    seen = seen_by(monkeypatch, Drawing, ask)
    most = {}
    for draws in (2, 100, 1000):
        seen.clear()
        whole = getattr(few, ask)(asked, draws=draws, **named)
        most[draws] = max(seen)
        assert whole.shape == (600, draws, 4)
        assert max(seen) * draws * 4 * 4 < 2**20, "bytes of the rows asked at a time, trials included"
        if draws < 1000:
            np.testing.assert_allclose(whole, getattr(much, ask)(asked, draws=draws, **named), rtol=1e-5, atol=1e-6)
    assert most[2] > 10 * most[1000]
    seen.clear()
    getattr(few, ask)(40 if ask == "sample" else rows[:40], draws=10_000, **named)
    assert max(seen) * 10_000 * 4 * 4 < 2**20, "16 rows would be too much to try"


def test_the_peak_of_an_answer_of_many_draws_fits():
    rows = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    few = Learner(Drawing(latent=2, hidden=(4,)), memory=2**21, steps=1, random_state=0, device="cpu").fit(rows[:64])
    answer = 600 * 1000 * 4 * 4
    assert peak(lambda: few.spread(rows, draws=1000)) < 2 * answer + 2**21, "the answer itself, its pieces, the memory"
    few.spread(rows, draws=3)
    kept = [key for key in watched._known[few.objective_] if key[0][0] == "spread"]
    assert len(kept) == 2, "looked up for each number of draws"


# --- what is shown ------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(rich, "_console", Console(force_terminal=True, force_interactive=True))


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_long_answer_shows_a_bar_and_a_short_one_none(capsys, terminal, replicas):
    rows = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    settings = {"steps": 1, "random_state": 0, "device": "cpu", "replicas": replicas}
    told = Learner(Drawing(latent=2, hidden=(4,)), memory=2**20, **settings).fit(rows[:64]).set_params(verbose=True)
    for ask, first in (("spread", rows), ("sample", 600)):
        capsys.readouterr()
        getattr(told, ask)(first, draws=100)
        shown = capsys.readouterr().out
        assert ask in shown
        assert "600/600" in shown
        getattr(told, ask)(first[:2] if ask == "spread" else 2)
        assert capsys.readouterr().out == "", "one piece"
    told.set_params(verbose=False).spread(rows, draws=100)
    assert capsys.readouterr().out == ""
    told.set_params(verbose=True)


def test_where_nobody_looks_a_bar_leaves_nothing(capsys):
    with progress.pieces("asked", 10, 5, shown=True) as done:
        done(10)
    assert capsys.readouterr().out.strip() == ""


def test_of_several_processes_the_first_shows(capsys, terminal, monkeypatch):
    monkeypatch.setattr(progress, "world", lambda: (1, 2))
    with progress.pieces("asked", 10, 5, shown=True) as done:
        done(2)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(progress, "world", lambda: (0, 2))
    with progress.pieces("asked", 10, 5, shown=True) as done:
        done(10)
    assert "10/10" in capsys.readouterr().out
