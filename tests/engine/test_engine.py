"""What an engine finds out once: how gradients are computed, and what cannot be vectorized."""

import warnings

import numpy as np
import pytest
import torch
from tests.engine.gradients.test_gradients import Recurrent

from weft.core.optimizer import Optimizer
from weft.engine import Engine, VectorizationWarning
from weft.engine import engine as engine_module
from weft.engine.build import build
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ERM, ANDMask

CPU = torch.device("cpu")
X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SOURCE = Arrays(X, (X[:, 0] > 0).long(), environment=np.arange(12) % 3, grouped=True, classes=3)


def engine_of(strategy, net=None, **options):
    built = build(Classification(net, hidden=(5,)), SOURCE.spec, 0, torch.float64)
    return Engine(built, strategy, {"": Optimizer("sgd", lr=0.1)}, grouped=True, **options)


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("strategy", [ERM(), ANDMask()], ids=repr)
def test_the_first_batch_is_looked_at_and_no_other(strategy, replicas, monkeypatch):
    looked, look = [], engine_module.look
    monkeypatch.setattr(engine_module, "look", lambda *a, **k: (looked.append(a[3]["row"].shape), look(*a, **k))[1])
    engine = engine_of(strategy, replicas=replicas)
    state = engine.init([0, 1][: replicas or 1], CPU)
    for _ in range(3):
        engine.step(state, next(engine.batches(SOURCE, state)))
    assert looked == [(3, 4)], "of one run, without the replicas' axis"


def test_what_one_engine_has_announced_another_adopts():
    first = engine_of(ANDMask(), Recurrent())
    state = first.init([0], CPU)
    batch = next(first.batches(SOURCE, state))
    with pytest.warns(VectorizationWarning, match="GRU cannot be vectorized"):
        first.step(state, batch)
    second = engine_of(ANDMask(), Recurrent())
    second.adopt(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.step(second.init([0], CPU), batch)
