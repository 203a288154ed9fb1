"""Sums of squared single-example gradients against a loop that takes one example at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft.core.random import key_of
from weft.core.source import Field, number_rows
from weft.core.trees import tree_map
from weft.engine.build import build, initialize
from weft.engine.gradients.curvature import factors
from weft.engine.gradients.squares import Passes, squares
from weft.objectives import Classification


class Tied(nn.Module):
    """A weight used by its layer and once more on its own."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 3)

    def forward(self, x):
        return self.b(F.linear(torch.tanh(self.a(x)), self.a.weight))


class Twice(nn.Module):
    """A layer called twice."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 3)

    def forward(self, x):
        return self.b(self.a(torch.tanh(self.a(x))))


class Bare(nn.Module):
    """Parameters that belong to no layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.a = nn.Linear(6, 3, bias=False)

    def reset_parameters(self):
        nn.init.ones_(self.scale)

    def forward(self, x):
        return self.a(x * self.scale)


class Steps(nn.Module):
    """Rows x positions on the leading axis, in the rows' order or in the positions'."""

    def __init__(self, positions_first):
        super().__init__()
        self.first = positions_first
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(8, 3)

    def forward(self, x):  # (n, 2, 3)
        n = len(x)
        flat = x.transpose(0, 1).flatten(0, 1) if self.first else x.flatten(0, 1)
        h = torch.tanh(self.a(flat))
        h = h.unflatten(0, (2, n)).transpose(0, 1) if self.first else h.unflatten(0, (n, 2))
        return self.b(h.flatten(1))


class Logit(nn.Linear):
    """A layer that does more than its base class: a subclass whose outputs are others."""

    def forward(self, x):
        z = super().forward(x)
        return torch.cat([torch.zeros_like(z), z, -z], -1)


class Depth(nn.Module):
    """A layer called as often as the deepest row of the batch asks."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 3)

    def forward(self, x):
        depth = x[:, 0].abs().long() + 1
        for t in range(int(depth.max())):
            x = torch.where((t < depth)[:, None], torch.tanh(self.a(x)), x)
        return self.b(x)


class Sometimes(Depth):
    """A weight used on its own in some batches: no call tells."""

    def forward(self, x):
        deep = (x[:, 0].abs() >= 1.0)[:, None]
        h = self.a(x)
        return self.b(torch.where(deep, F.linear(h, self.a.weight), h) if bool(deep.any()) else h)


NETS = {
    "subclass": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Logit(5, 1)), (6,)),
    "rows x positions": (lambda: Steps(False), (2, 3)),
    "positions x rows": (lambda: Steps(True), (2, 3)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(3, 2, 2, dilation=2),
            nn.Flatten(),
            nn.Linear(2, 3),
        ),
        (2, 5, 5),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)), (2, 4)),
    "grouped conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)),
        (2, 5, 5),
    ),
    "positions": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)), (2, 3)),
    "norms": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
        (6,),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)), (6,)),
    "tied": (Tied, (6,)),
    "twice": (Twice, (6,)),
    "bare": (Bare, (6,)),
}


def setup(name, rows=7, weights=True):
    make, shape = NETS[name]
    spec = {"x": Field(shape, torch.float64), "y": Field((), torch.int64, 3)}
    torch.manual_seed(0)
    built = build(Classification(make()), spec, 0, torch.float64)
    params, buffers = initialize(built, 0, "reset")
    batch = {"x": torch.randn(rows, *shape, dtype=torch.float64), "y": torch.randint(3, (rows,))}
    if weights:
        batch["weight"] = torch.rand(rows, dtype=torch.float64)
    return built, params, buffers, number_rows(batch, 1)


def losses(output, batch):
    yield output.losses, None


def one_by_one(built, params, buffers, batch, readout, power=torch.square):
    total = {n: torch.zeros_like(p) for n, p in params.items()}
    built.eval()
    for i in range(len(batch["row"])):
        part = tree_map(lambda t: t[i : i + 1], batch)
        leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
        output = torch.func.functional_call(built, (leaves, buffers), (part,))
        for scalar, weight in readout(output, part):
            found = torch.autograd.grad(scalar.sum(), list(leaves.values()), retain_graph=True)
            w = float(part.get("weight", torch.ones(1))) * (1.0 if weight is None else float(weight.detach()))
            for n, g in zip(leaves, found, strict=True):
                total[n] += w * power(g)  # w g^2, not (w g)^2
    return total


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("weights", [False, True])
def test_equal_to_one_example_at_a_time(name, weights):
    built, params, buffers, batch = setup(name, weights=weights)
    found, examples = squares(Passes(built, params, {}, buffers, lambda: [batch], key_of(0)), losses)
    truth = one_by_one(built, params, buffers, batch, losses)
    for n in params:
        torch.testing.assert_close(found[n], truth[n], msg=lambda m, n=n: f"{n}: {m}")
    assert examples == pytest.approx(float(batch["weight"].sum()) if weights else 7)


def norm_and_first(output, batch):
    yield output.logits.square().sum(1), None
    yield output.logits[:, 0], output.logits[:, 1].exp()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("weights", [False, True])
def test_absolute_values_are_those_of_one_example_at_a_time(name, weights):
    built, params, buffers, batch = setup(name, weights=weights)
    passes = Passes(built, params, {}, buffers, lambda: [batch], key_of(0))
    found, _ = squares(passes, norm_and_first, absolute=True)
    truth = one_by_one(built, params, buffers, batch, norm_and_first, torch.abs)
    for n in params:
        torch.testing.assert_close(found[n], truth[n], msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.parametrize("name", ["mlp", "conv2d", "norms", "twice"])
def test_independent_of_the_batch_size(name):
    built, params, buffers, batch = setup(name, rows=8)
    whole, _ = squares(Passes(built, params, {}, buffers, lambda: [batch], key_of(0)), losses)
    parts = [tree_map(lambda t: t[i : i + 3], batch) for i in range(0, 8, 3)]
    split, _ = squares(Passes(built, params, {}, buffers, lambda: parts, key_of(0)), losses)
    for n in params:
        torch.testing.assert_close(whole[n], split[n])


def test_fixed_parameters_are_left_out():
    built, params, buffers, batch = setup("mlp")
    some = {n: p for n, p in params.items() if n.startswith("net.2")}
    rest = {n: p for n, p in params.items() if n not in some}
    found, _ = squares(Passes(built, some, rest, buffers, lambda: [batch], key_of(0)), losses)
    truth = one_by_one(built, params, buffers, batch, losses)
    assert found.keys() == some.keys()
    for n in some:
        torch.testing.assert_close(found[n], truth[n])


def test_the_mode_is_put_back():
    built, params, buffers, batch = setup("norms")
    built.train()
    squares(Passes(built, params, {}, buffers, lambda: [batch], key_of(0)), losses)
    assert built.training


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("mlp", set()),
        ("conv2d", set()),
        ("bare", {"net.scale"}),
        ("rows x positions", set()),
        ("positions x rows", {"net.a.weight", "net.a.bias"}),
    ],
)
def test_the_rules_are_used_where_they_hold(name, left, monkeypatch):
    import weft.engine.gradients.squares as module

    built, params, buffers, batch = setup(name)
    seen = set()
    general = module._one_by_one
    monkeypatch.setattr(module, "_one_by_one", lambda *args: (seen.update(args[4]), general(*args)))
    squares(Passes(built, params, {}, buffers, lambda: [batch], key_of(0)), losses)
    assert seen == left


def test_what_has_diverged_goes_the_quick_way(monkeypatch):
    """Not finite, hence not compared: no example is taken by itself."""
    import weft.engine.gradients.squares as module

    built, params, buffers, batch = setup("mlp")
    monkeypatch.setattr(module, "_one_by_one", lambda *args: pytest.fail("one by one"))
    broken = {n: torch.full_like(p, torch.nan) for n, p in params.items()}
    found, _ = squares(Passes(built, broken, {}, buffers, lambda: [batch, batch], key_of(0)), losses)
    assert all(torch.isnan(p).any() for p in found.values())


def test_nets_without_a_rule_take_several_batches():
    built, params, buffers, batch = setup("bare")
    some = {n: p for n, p in params.items() if "scale" in n}
    rest = {n: p for n, p in params.items() if n not in some}
    once, _ = squares(Passes(built, some, rest, buffers, lambda: [batch], key_of(0)), losses)
    twice, _ = squares(Passes(built, some, rest, buffers, lambda: [batch, batch], key_of(0)), losses)
    for n in once:
        torch.testing.assert_close(twice[n], 2 * once[n])


def by_depth(kind, monkeypatch):
    """Rows whose layers are called once, and rows where they are called more often."""
    monkeypatch.setitem(NETS, "depth", (kind, (6,)))
    built, params, buffers, batch = setup("depth", rows=12)
    batch["x"][:6, 0] = 0.5
    batch["x"][6:, 0] = torch.tensor([0.5, 1.5, 2.5, 2.5, 1.5, 0.5])
    parts = [tree_map(lambda t: t[i : i + 6], batch) for i in (0, 6)]
    return built, params, buffers, batch, parts


@pytest.mark.parametrize("turned", [False, True], ids=["shallow first", "deep first"])
@pytest.mark.parametrize("kind", [Depth, Sometimes])
@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_it_is_decided_batch_by_batch(kind, turned, monkeypatch):
    built, params, buffers, batch, parts = by_depth(kind, monkeypatch)
    parts = parts[::-1] if turned else parts
    found, _ = squares(Passes(built, params, {}, buffers, lambda: parts, key_of(0)), losses)
    truth = one_by_one(built, params, buffers, batch, losses)
    for n in params:
        torch.testing.assert_close(found[n], truth[n], msg=lambda m, n=n: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_a_layer_without_a_rule_in_one_batch_has_no_factors(monkeypatch):
    built, params, buffers, batch, parts = by_depth(Depth, monkeypatch)
    layers, rest, _ = factors(Passes(built, params, {}, buffers, lambda: parts, key_of(0)), losses)
    truth = one_by_one(built, params, buffers, batch, losses)
    assert layers.keys() == {"net.b"}
    assert rest.keys() == {"net.a.weight", "net.a.bias"}
    for n, value in rest.items():
        torch.testing.assert_close(value, truth[n])


class Heads(nn.Module):
    """Two heads, the second by a weight that is used once more."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 2)
        self.b = nn.Linear(6, 1)

    def forward(self, x):
        b = self.b(x)
        return torch.cat([self.a(x), b + x @ self.b.weight.T * b], 1)


def each_logit(output, batch):
    yield from ((logit, None) for logit in output.logits.unbind(1))


def test_the_rules_are_checked_for_every_scalar(monkeypatch):
    monkeypatch.setitem(NETS, "heads", (Heads, (6,)))
    built, params, buffers, batch = setup("heads")
    found, _ = squares(Passes(built, params, {}, buffers, lambda: [batch], key_of(0)), each_logit)

    def logit(output, batch):
        yield output.logits[:, 2], None

    some = {n: p for n, p in params.items() if n.startswith("net.b")}
    rest = {n: p for n, p in params.items() if n not in some}
    alone, _ = squares(Passes(built, some, rest, buffers, lambda: [batch], key_of(0)), logit)
    for n, value in alone.items():
        torch.testing.assert_close(found[n], value)
