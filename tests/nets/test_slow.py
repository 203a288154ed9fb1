"""A slow copy follows as its formula says, is kept with a run, and learns nothing by itself."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from weft import Learner, Optimizer
from weft.core import Objective, Output, capability
from weft.nets import SlowCopy


def moved(net, seed):
    torch.manual_seed(seed)
    for p in net.parameters():
        p.data += torch.randn_like(p)


def net_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))


@pytest.mark.parametrize(("rate", "every"), [(1.0, 1), (1.0, 3), (0.25, 1), (0.25, 2)])
def test_it_follows(rate, every):
    net = net_of()
    slow, by_hand = SlowCopy(net, rate=rate, every=every), None
    x = torch.randn(5, 2)
    for step in range(8):
        moved(net, step)
        slow.follow(net)
        now = {name: p.detach().clone() for name, p in net.named_parameters()}
        if by_hand is None:
            by_hand = now
        elif step % every == 0:
            by_hand = {name: p + rate * (now[name] - p) for name, p in by_hand.items()}
        twin = copy.deepcopy(net).eval()
        twin.load_state_dict({**net.state_dict(), **by_hand})
        torch.testing.assert_close(slow.eval()(x), twin(x))
    assert not any(True for _ in slow.parameters())
    assert not slow(x).requires_grad


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"rate": 1.5}, {"every": 0}, {"every": 1.5}])
def test_bad_settings(settings):
    name = next(iter(settings))
    with pytest.raises(ValueError, match=f"expected SlowCopy's {name} to be .*, got {settings[name]}"):
        SlowCopy(nn.Linear(1, 1), **settings)


class Chasing(Objective):
    """Learns y towards what its slow copy says, a little."""

    fields = ("x", "y")
    carried = ("slow.*",)

    def __init__(self, *, every=3, rate=1.0):
        super().__init__()
        self.every_so_many, self.rate = every, rate

    def get_params(self, deep=True):
        return {"every": self.every_so_many, "rate": self.rate}

    def build(self, spec):
        self.net = nn.Linear(spec["x"].shape[0], 1)
        self.slow = SlowCopy(self.net, rate=self.rate, every=self.every_so_many)

    def forward(self, batch, player=""):
        if self.training:
            self.slow.follow(self.net)
        goal = 0.5 * batch["y"] + 0.5 * self.slow(batch["x"]).squeeze(-1)
        return Output((self.net(batch["x"]).squeeze(-1) - goal).square())

    @capability()
    def predict(self, x):
        return self.slow(x).squeeze(-1)


X, Y = (
    torch.randn(40, 2, generator=torch.Generator().manual_seed(0)),
    torch.randn(40, generator=torch.Generator().manual_seed(1)),
)


def trained(**settings):
    adam = Optimizer("sgd", lr=0.05)
    return Learner(Chasing(), **{"steps": 10, "batch_size": 8, "random_state": 0, "optimizer": adam, **settings}).fit(
        X, Y
    )


def test_it_is_kept_with_a_run_and_each_replica_has_its_own():
    one, both = trained(), trained(replicas=2)
    other = trained(random_state=1)
    kept = one.module().slow
    assert int(kept.clock) == 10
    assert not torch.equal(kept.weight, one.module().net.weight)  # it lags: the last move was before the last update
    for k, single in enumerate((one, other)):
        torch.testing.assert_close(both.replica(k).module().slow.weight, single.module().slow.weight)


def test_it_does_not_move_where_it_is_only_asked():
    model = trained()
    before = model.module().slow.weight.clone()
    assert model.predict(X).shape == (40,)
    assert torch.equal(model.module().slow.weight, before)


def test_the_other_net_moves_at_the_said_steps():
    weights = [trained(steps=s).module().slow.weight for s in range(1, 8)]
    same = [torch.equal(a, b) for a, b in pairwise(weights)]
    assert same == [True, True, False, True, True, False]
