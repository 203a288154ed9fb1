"""Rows that an objective refuses: when training begins, of the validation, and of whatever it is asked."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner
from weft.core import Objective, Output, capability
from weft.objectives import Heads, Regression
from weft.sources import Arrays

rng = np.random.default_rng(0)
X = rng.gamma(2.0, size=(60, 2))
BAD = np.concatenate([X, [[1.0, -1.0]]])
REFUSED = "expected numbers > 0, got 1 of"


class Positive(Objective):
    """Rates of exponentials; what is negative has no density."""

    fields = ("x",)

    def build(self, spec):
        self.log_rate = nn.Parameter(torch.zeros(2))

    def refuse_rows(self, rows, *, training):
        bad = int((rows["x"] <= 0).any(-1).sum())
        if bad:
            raise ValueError(f"expected numbers > 0, got {bad} of {len(rows['x'])} rows with others ({training=})")

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return (self.log_rate - self.log_rate.exp() * x).sum(-1)

    @capability()
    def distance(self, x):
        return x.sum(-1)


class Solved(Positive):
    solved = True

    def solve(self, source, state):
        rows = torch.cat([batch["x"] for batch in source.once(state, 100)])
        return {"log_rate": -rows.mean(0).log()}


@pytest.mark.parametrize("objective", [Positive(), Solved()], ids=repr)
@pytest.mark.parametrize("replicas", [None, 3])
def test_a_training_does_not_begin_with_them(objective, replicas, tmp_path):
    steps = {} if objective.solved else {"steps": 3}
    learner = Learner(objective, replicas=replicas, random_state=0, folder=tmp_path / "run", **steps)
    with pytest.raises(ValueError, match=rf"{REFUSED} 61 rows with others \(training=True\)"):
        learner.fit(BAD)
    assert not hasattr(learner, "training_")  # else it would answer by what it began with
    assert not (tmp_path / "run").exists()
    learner.fit(X)
    for ask in (learner.log_prob, learner.distance):
        with pytest.raises(ValueError, match=rf"{REFUSED} 61 rows with others \(training=False\)"):
            ask(BAD)
        assert ask(X).shape == (60,)


def test_nor_with_those_of_a_validation_or_of_a_source():
    with pytest.raises(ValueError, match=rf"{REFUSED} 61 .*training=False"):
        Learner(Positive(), steps=3, random_state=0, validation=(BAD, None)).fit(X)
    with pytest.raises(ValueError, match=rf"{REFUSED} 61 .*training=True"):
        Learner(Positive(), steps=3, random_state=0).fit(Arrays(torch.as_tensor(BAD), batch_size=7))


def test_nor_does_a_later_task():
    learner = Learner(Positive(), steps=3, random_state=0).partial_fit(X, task="a")
    before = learner.log_prob(X)
    with pytest.raises(ValueError, match=REFUSED):
        learner.partial_fit(BAD, task="b")
    assert np.array_equal(learner.log_prob(X), before)
    assert learner.tasks_ == ["a"]


def test_a_part_refuses_what_it_is_shown():
    heads = Heads({"rate": Positive(), "value": Regression(hidden=(4,))})
    assert heads.refuses
    assert not Heads({"value": Regression()}).refuses
    learner = Learner(heads, steps=3, random_state=0)
    with pytest.raises(ValueError, match=REFUSED):
        learner.fit(BAD, value_y=BAD[:, 0])
    learner.fit(X, value_y=X[:, 0])
    with pytest.raises(ValueError, match=REFUSED):
        learner.rate_log_prob(BAD)
