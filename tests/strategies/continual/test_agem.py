"""A-GEM's projection written out, step by step."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, Optimizer, weave
from weft.objectives import Regression
from weft.strategies import AGEM, EWC, ANDMask, SynapticIntelligence
from weft.strategies.continual.agem import projected

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
TASKS = [(X, X @ w) for w in (np.array([1.0, 2.0, -1.0]), np.array([-1.0, 1.0, 0.5]), np.array([0.0, -1.0, 2.0]))]
SITE = np.arange(40) % 4


def line(strategy, steps=8, **settings):
    net = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(net.weight)
    settings = {"optimizer": Optimizer("sgd", lr=0.2), "batch_size": None, "random_state": 0, **settings}
    return Learner(Regression(net), strategy=strategy, steps=steps, init="keep", dtype="float64", **settings)


def rows(learner):
    state = learner.training_.runs[0][1].strategy[""]
    found = state.get("agem", state)["memory"]["rows"]
    return found["x"].numpy(), found["y"].numpy()


def written_out(w, task, memory, steps=8, mask=None, hold=None):
    (A, a), projected = task, 0
    for _ in range(steps):
        g = A.T @ (A @ w - a) / len(a)
        if mask is not None:
            signs = [np.sign(A[e == SITE].T @ (A[e == SITE] @ w - a[e == SITE])) for e in range(4)]
            g = np.where(np.abs(np.sum(signs, 0)) >= mask * 4, g, 0.0)
        if memory is not None:
            M, m = memory
            r = M.T @ (M @ w - m) / len(m)
            if g @ r < 0:
                g = g - (g @ r) / (r @ r) * r
                projected += 1
        w = w - 0.2 * (g if hold is None else g + hold(w))
    return w, projected


@pytest.mark.parametrize("mask", [None, 1.0])
@pytest.mark.parametrize("replicas", [None, 2])
def test_three_tasks_written_out(mask, replicas):
    strategy = AGEM(size=15, rows=15)
    if mask is not None:
        strategy = weave(ANDMask(threshold=mask, rescale=False), strategy)
    learner = line(strategy, replicas=replicas)
    w, memory, projected = np.zeros(3), None, 0
    for i, task in enumerate(TASKS):
        w, count = written_out(w, task, memory, mask=mask)
        projected += count
        learner.partial_fit(*task, task=i, environment=None if mask is None else SITE)
        one = learner if replicas is None else learner.replica(0)
        np.testing.assert_allclose(one.predict(np.eye(3)), w, rtol=1e-6)
        memory = rows(one)
    assert projected > 0
    assert projected < 16


def test_the_penalty_is_added_after_the_projection():
    learner = line(weave(EWC(strength=0.5, fisher="empirical"), AGEM(size=15, rows=15)))
    w, _ = written_out(np.zeros(3), TASKS[0], None)
    learner.partial_fit(*TASKS[0], task=0)
    fisher = ((X * (X @ w - TASKS[0][1])[:, None]) ** 2).mean(0)
    start = w
    w, projected = written_out(w, TASKS[1], rows(learner), hold=lambda v: 0.5 * fisher * (v - start))
    learner.partial_fit(*TASKS[1], task=1)
    assert projected > 0
    np.testing.assert_allclose(learner.predict(np.eye(3)), w, rtol=1e-9)


def test_the_gradient_followed_does_not_oppose_the_memory():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        g, r = ({n: torch.randn(4, generator=generator) for n in "ab"} for _ in range(2))
        h = projected(g, r)
        flat = [torch.cat(list(t.values())) for t in (g, r, h)]
        if flat[0] @ flat[1] >= 0:
            assert torch.equal(flat[2], flat[0])
        else:
            assert abs(float(flat[2] @ flat[1])) < 1e-5
    zero = {n: torch.zeros(4) for n in "ab"}
    h = projected(g, zero)
    assert all(torch.equal(h[n], g[n]) for n in g)


def test_draws_are_those_of_the_step_in_pieces_too():
    found = []
    for settings in ({"batch_size": 24}, {"batch_size": 8, "accumulate": 3}, {"batch_size": 24, "replicas": 2}):
        learner = line(AGEM(size=20, rows=4), **settings)
        for i, task in enumerate(TASKS):
            learner.partial_fit(*task, task=i)
        found.append((learner.replica(0) if "replicas" in settings else learner).predict(np.eye(3)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-9)


def test_two_memories_project_one_after_the_other():
    learner = line(weave(AGEM(size=15, rows=15), AGEM(size=15, rows=15)))
    alone = line(AGEM(size=15, rows=15))
    for i, task in enumerate(TASKS):
        learner.partial_fit(*task, task=i)
        alone.partial_fit(*task, task=i)
    memories = [learner.training_.runs[0].state.strategy[""][name]["memory"]["rows"]["x"] for name in ("agem", "agem2")]
    assert torch.equal(*memories)
    # Both draw all rows of one memory: what the first leaves does not oppose it, so the second changes nothing.
    np.testing.assert_allclose(learner.predict(np.eye(3)), alone.predict(np.eye(3)), rtol=1e-9)


def test_bad_input():
    with pytest.raises(ValueError, match="AGEM's size to be an integer >= 1, got -3"):
        line(AGEM(size=-3)).fit(*TASKS[0])
    with pytest.raises(ValueError, match="put ANDMask first"):
        weave(AGEM(), ANDMask())
    weave(ANDMask(), AGEM(), SynapticIntelligence())
