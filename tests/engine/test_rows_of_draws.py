"""Whatever a user's module draws, groups, pieces, replicas and examples draw as the whole does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.engine.serving import serving
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ERM, ANDMask

ROWS = 12  # of a group; a batch has two
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2 * ROWS, 5))
Y = (X[:, 0] > 0).astype(int)
SITE = np.arange(2 * ROWS) // ROWS


class Connected(nn.Module):
    """Drops weights: as many outputs as a group has rows."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(ROWS, inputs))
        self.out = nn.Linear(ROWS, outputs)

    def reset_parameters(self):
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, x):
        return self.out(torch.relu(x @ F.dropout(self.weight, 0.4, self.training).T))


class Timed(nn.Module):
    """Time comes first, with as many times as a group has rows."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, ROWS * 3)
        self.out = nn.Linear(ROWS * 3, outputs)

    def forward(self, x):
        times = self.inner(x).reshape(-1, ROWS, 3).transpose(0, 1)
        return self.out(F.dropout(times, 0.4, self.training).transpose(0, 1).flatten(1))


class Encoded(nn.Module):
    """Torch's encoder, time first."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, ROWS * 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.4, batch_first=False)
        self.out = nn.Linear(4, outputs)

    def forward(self, x):
        return self.out(self.layer(self.inner(x).reshape(-1, ROWS, 4).transpose(0, 1)).mean(0))


class Stacked(nn.Module):
    """Rows times positions."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, 8)
        self.out = nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(F.dropout(self.inner(x).reshape(-1, 2), 0.4, self.training).reshape(len(x), 8))


def trained(net, strategy, **settings):
    common = {"steps": 3, "random_state": 3, "dtype": "float64", "device": "cpu"}
    learner = Learner(
        Classification(net), strategy=strategy, optimizer=Optimizer("sgd", lr=0.3), **{**common, **settings}
    )
    return learner.fit(Arrays(torch.as_tensor(X), torch.as_tensor(Y), environment=SITE, grouped=True, classes=2))


def params(learner):
    return learner.training_.runs[0][1].params


@pytest.mark.parametrize("net", [Connected, Timed, Encoded, Stacked])
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (ANDMask(threshold=0.0), {}),
        (ANDMask(threshold=0.0, each="example"), {}),
        (ERM(), {"accumulate": 2}),
    ],
    ids=["neutral", "neutral, every example", "in pieces"],
)
def test_the_whole_and_its_parts(net, strategy, settings):
    plain, other = (params(trained(net, s, **given)) for s, given in ((ERM(), {}), (strategy, settings)))
    for name, value in plain.items():
        torch.testing.assert_close(other[name], value, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("net", [Connected, Timed, Encoded, Stacked])
def test_replica_k_is_the_single_run_k(net):
    many = params(trained(net, ERM(), replicas=2))
    for k in range(2):
        single = params(trained(net, ERM(), random_state=3 + k))
        for name, value in single.items():
            torch.testing.assert_close(many[name][k], value)


def test_the_draws_are_there():
    """Without them the tests above would say nothing."""
    for net in (Connected, Timed, Encoded, Stacked):
        module, x = net(5, 2), torch.randn(ROWS, 5)
        nn.init.normal_(next(module.parameters()))
        rows, answers = torch.arange(ROWS), []
        for seed in (0, 1):
            with torch.no_grad(), keyed(key_of(seed), rows), serving(module, module, (x,), rows, ""):
                answers.append(module(x))
        assert not torch.allclose(*answers), net
