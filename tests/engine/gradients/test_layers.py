"""Groups' gradients from one backward of all rows, against one backward for each group; and `holding`."""

import pytest
import torch
from tests.engine.gradients.test_squares import NETS, Depth, setup
from torch import nn

from weft.core.objective import reduce
from weft.core.random import key_of
from weft.core.source import number_rows
from weft.core.strategy import Strategy
from weft.core.trees import tree_map
from weft.engine.gradients.gradient import gradient
from weft.engine.gradients.loss import Place, base_loss
from weft.engine.gradients.route import look
from weft.engine.holding import holding
from weft.engine.vectorize import Mapper

GENERAL = {"positions x rows", "grouped conv", "norms", "tied", "twice", "bare", "subclass"}


class Keeps(Strategy):
    def __init__(self, sees):
        self.sees = sees

    def combine(self, gradients, losses, weights, state):
        return gradients, {"losses": losses}


def grouped(name, groups=3, rows=4):
    built, params, buffers, batch = setup(name, rows=groups * rows)
    batch = {k: v.unflatten(0, (groups, rows)) for k, v in batch.items() if k != "row"}
    return built, params, buffers, number_rows(batch, 2)


@pytest.mark.parametrize("sees", ["groups", "examples"])
@pytest.mark.parametrize("name", sorted(set(NETS) - {"norms"}))
def test_equal_to_one_backward_for_each_group(name, sees):
    built, params, buffers, batch = grouped(name)
    built.train()
    at = Place(params, {}, buffers, key_of(0))
    route = look(built, "", at, batch, Keeps(sees), grouped=True)
    found, _, _, state = gradient(route, Mapper(), at, batch, Keeps(sees), {})
    assert (route.layers is None) == (name in GENERAL)
    loss = base_loss(built, {}, buffers, key_of(0), "")
    parts = [tree_map(lambda t, e=e: t[e], batch) for e in range(3)]
    if sees == "examples":
        parts = [tree_map(lambda t, i=i: t[i : i + 1], part) for part in parts for i in range(4)]
    for e, part in enumerate(parts):
        leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
        output = loss(leaves, part)
        mean = reduce(output.losses, output.weight)
        torch.testing.assert_close(state["losses"][e], mean.detach())
        for n, g in zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True):
            torch.testing.assert_close(found[n][e], g)


@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_a_batch_that_calls_a_layer_more_often_goes_the_general_way(monkeypatch):
    monkeypatch.setitem(NETS, "depth", (Depth, (6,)))
    built, params, buffers, batch = grouped("depth")
    at = Place(params, {}, buffers, key_of(0))
    shallow = {**batch, "x": batch["x"].clamp(-0.5, 0.5)}
    deep = {**batch, "x": torch.cat([torch.full((3, 4, 1), 2.5), batch["x"][..., 1:]], -1)}
    route = look(built, "", at, shallow, Keeps("groups"), grouped=True)
    assert route.layers is not None
    loss = base_loss(built, {}, buffers, key_of(0), "")
    for rows in (shallow, deep, shallow):
        found, _, _, _ = gradient(route, Mapper(), at, rows, Keeps("groups"), {})
        for e in range(3):
            leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
            output = loss(leaves, tree_map(lambda t, e=e: t[e], rows))
            mean = reduce(output.losses, output.weight)
            for n, g in zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True):
                torch.testing.assert_close(found[n][e], g)


class Coupled(nn.Module):
    """Rows are centred by the batch's mean: no buffers tell, only the comparison."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x - x.mean(0))


def test_rows_that_mix_are_noticed(monkeypatch):
    monkeypatch.setitem(NETS, "coupled", (Coupled, (6,)))
    built, params, buffers, batch = grouped("coupled")
    at = Place(params, {}, buffers, key_of(0))
    assert look(built, "", at, batch, Keeps("groups"), grouped=True).layers is None


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        return self.b(self.a(x))


def test_holding_exchanges_tied_weights_and_gives_back():
    module = Shared()
    own, count = module.a.weight, module.count
    buffers = {"count": torch.tensor(5.0)}
    with holding(module, {"a.weight": 2 * torch.eye(2)}, buffers):
        assert torch.equal(module(torch.ones(1, 2)), torch.full((1, 2), 4.0))
    assert module.a.weight is own
    assert module.b.weight is own
    assert module.count is count
    assert buffers == {"count": torch.tensor(6.0)}


def test_holding_gives_back_after_an_error():
    layer = nn.Linear(2, 1)
    own = layer.weight
    with pytest.raises(RuntimeError), holding(layer, {"weight": torch.zeros(3, 3)}):
        layer(torch.ones(1, 2))
    assert layer.weight is own
