"""What an engine finds out once: how gradients are computed, and what cannot be vectorized."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.gradients.test_gradients import Recurrent

from weft import Learner
from weft.core.optimizer import Optimizer
from weft.engine import Engine, VectorizationWarning
from weft.engine import engine as engine_module
from weft.engine.build import build
from weft.objectives import Classification, Heads
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


class Contrast(Classification):
    """A row's loss is told from the others'."""

    decomposable = False

    def forward(self, batch, player=""):
        output = super().forward(batch)
        return replace(output, losses=output.losses - torch.logsumexp(output.losses, 0), rescore=None)

    provides = frozenset({"logits"})


@pytest.mark.parametrize("make", [Contrast, lambda **s: Heads({"y": Contrast(**s)})], ids=["alone", "a part"])
def test_a_coupled_loss_is_not_accumulated(make):
    """Of parts of the rows it would be another loss."""
    rows = {"batch_size": 6, "epochs": 1, "random_state": 0, "dtype": "float64"}
    y = (X[:, 0] > 0).long()
    source = (
        Arrays(X, y, batch_size=12, classes=2)
        if make is Contrast
        else Arrays(X, y_y=y, batch_size=12, classes={"y_y": 2})
    )
    name = "Contrast" if make is Contrast else "Heads"
    with pytest.raises(ValueError, match=f"expected accumulate=1 with {name}, whose loss couples.*got 2.*larger batch"):
        Learner(make(hidden=(5,)), accumulate=2, **rows).fit(source)
    Learner(make(hidden=(5,)), **rows).fit(source)
