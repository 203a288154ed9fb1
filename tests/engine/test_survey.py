"""An objective may look at all rows before the first step: what it sets stands, what it refuses is told."""

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Learner
from weft.core import capability
from weft.core.objective import Capability
from weft.objectives import Heads, Regression
from weft.objectives.densities import Density
from weft.objectives.densities.rows import all_rows
from weft.strategies import EMA, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(3.0, 2.0, size=(50, 2))
COMMON = {"steps": 6, "batch_size": 10, "random_state": 0, "dtype": "float64"}


class Centred(Density):
    """A normal around a learned offset from the data's mean; a constant column is refused."""

    carried = ("mean",)

    def build(self, spec):
        self.offset = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", torch.zeros(2))

    def survey(self, source, state):
        x = all_rows(source, state)["x"]
        self.refuse_constant(x)
        return {"mean": x.mean(0)}

    def capabilities(self):
        marks = super().capabilities()
        built = hasattr(self, "offset")
        return {**marks, "log_prob": marks["log_prob"] if built else Capability(kind="estimate")}

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return torch.distributions.Normal(self.mean + self.offset, 2.0).log_prob(x).sum(-1)


def mean(learner, k=0):
    return learner.training_.every[k].state.buffers["mean"].numpy()


@pytest.mark.parametrize("strategy", [None, EMA(decay=0.9), ANDMask(threshold=0.3)], ids=repr)
@pytest.mark.parametrize("replicas", [None, 2])
def test_what_it_sets_stands_to_the_last_bit(strategy, replicas):
    learner = Learner(Centred(), strategy=strategy, replicas=replicas, **COMMON)
    learner.fit(X, environment=np.arange(50) % 2)
    for k in range(replicas or 1):
        assert np.array_equal(mean(learner, k), torch.as_tensor(X).mean(0).numpy())


def test_later_data_are_looked_at_and_change_nothing():
    learner = Learner(Centred(), **COMMON).partial_fit(X, task="a").partial_fit(X + 5, task="b")
    assert np.array_equal(mean(learner), torch.as_tensor(X).mean(0).numpy())
    with pytest.raises(ValueError, match="got 0 in every row of column 1"):
        learner.partial_fit(X * [1, 0], task="c")


def test_a_resumed_run_keeps_it(tmp_path):
    def stop(record):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Learner(Centred(), epochs=3, **{**COMMON, "steps": None}, folder=tmp_path / "run", callbacks=[stop]).fit(X)
    again = weft.load(tmp_path / "run", objective=Centred()).resume(X)
    whole = Learner(Centred(), epochs=3, **{**COMMON, "steps": None}).fit(X)
    assert np.array_equal(again.log_prob(X), whole.log_prob(X))
    assert np.array_equal(mean(again), mean(whole))


def test_what_it_gives_must_be_a_buffer():
    class Wrong(Centred):
        def survey(self, source, state):
            return {"offset": torch.zeros(2)}

    class Shaped(Centred):
        def survey(self, source, state):
            return {"mean": torch.zeros(3)}

    with pytest.raises(KeyError, match=r"expected Wrong.survey to give buffers among \['mean'\], got 'offset'"):
        Learner(Wrong(), **COMMON).fit(X)
    with pytest.raises(ValueError, match="in the shape that it was built"):
        Learner(Shaped(), **COMMON).fit(X)
    with pytest.raises(ValueError, match="expected Heads's a to know its data by batches alone, got Centred"):
        Heads({"a": Centred(), "b": Regression()}).refuse_parts()


def test_a_kind_may_follow_from_what_was_built():
    learner = Learner(Centred(), **COMMON)
    assert learner.log_prob.kind == "estimate"  # nothing is known yet
    learner.fit(X)
    assert learner.log_prob.kind == "exact"
    assert type(learner.score(X)) is float
