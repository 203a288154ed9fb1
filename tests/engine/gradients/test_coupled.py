"""Gradients of examples that a net couples, against a loop of backwards through the whole batch."""

import bisect
import copy
import gc
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import weft
from weft import Learner, weave
from weft.attacks import PGD
from weft.core.random import key_of, keyed
from weft.core.source import Field, flatten_groups, number_rows
from weft.core.strategy import Strategy, Summing
from weft.core.trees import tree_map
from weft.engine import verbs
from weft.engine.build import build, initialize
from weft.engine.gradients.coupled import Jacobian, fitting, mixes
from weft.engine.gradients.gradient import gradient as gradient_of
from weft.engine.gradients.loss import Place, base_loss
from weft.engine.gradients.route import look, saved
from weft.engine.serving import serving
from weft.engine.vectorize import Mapper, VectorizationWarning
from weft.objectives import Classification
from weft.strategies import ERM, EWC, AdversarialTraining, ANDMask, LwF, Replay

KEY = key_of(3)


class Centred(nn.Module):
    """A user's own statistics over the batch, of no known layer and without buffers."""

    def forward(self, x):
        return x - x.mean(0)


class Frozen(nn.BatchNorm1d):
    """Batch normalization that keeps its statistics in training too."""

    def train(self, mode=True):
        return super().train(False)


def mlp(*middle, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 6, bias=bias), *middle, nn.Tanh(), nn.Linear(6, 3))


def convnet(**options):
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5, **options), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(20, 3)),
    )


NETS = {
    "mlp": lambda: mlp(nn.BatchNorm1d(6)),
    "mlp, dropout": lambda: mlp(nn.Dropout(0.3), nn.BatchNorm1d(6), nn.Dropout(0.3)),
    "convnet": convnet,
    "convnet, not affine": lambda: convnet(affine=False),
    "convnet, no running statistics": lambda: convnet(track_running_stats=False),
    "convnet, neither": lambda: convnet(affine=False, track_running_stats=False),
    "convnet, mean of all steps": lambda: convnet(momentum=None),
    "a user's own": lambda: mlp(Centred()),
}
APART = {
    "plain": lambda: mlp(),
    "dropout": lambda: mlp(nn.Dropout(0.5)),
    "layer norm": lambda: mlp(nn.LayerNorm(6)),
    "group norm": lambda: mlp(nn.GroupNorm(2, 6)),
    "instance norm": lambda: nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), mlp()),
    "frozen batch norm": lambda: mlp(Frozen(6)),
}


class Keeps(Strategy):
    """Hands the examples' gradients out, to be looked at."""

    sees = "examples"

    def combine(self, gradients, losses, weights, state):
        return gradients, {"losses": losses, "weights": weights}


def made(net, dtype=torch.float64):
    spec = {"x": Field((2, 4, 4), dtype), "y": Field((), torch.int64, 3)}
    built = build(Classification(net), spec, 0, dtype)
    params, buffers = initialize(built, 0, "reset")
    built.train()
    return built, Place(params, {}, buffers, KEY)


def rows(n=11, weights=False, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    batch = {"x": torch.randn(n, 2, 4, 4, generator=g, dtype=dtype), "y": torch.randint(3, (n,), generator=g)}
    if weights:
        batch["weight"] = torch.rand(n, generator=g, dtype=dtype)
        batch["weight"][3::4] = 0.0
    return batch


def compute(built, at, batch, strategy, mapper=None, **options):
    grouped = batch["row"].dim() == 2
    route = look(built, "", at, batch, strategy, grouped=grouped, **options)
    return gradient_of(route, mapper or Mapper(), at, batch, strategy, verbs.init(strategy, at.params))


def loop(built, at, batch):
    """A backward through the whole batch for each example, and the buffers after the one forward."""
    module = copy.deepcopy(built)
    module.load_state_dict({**at.params, **at.buffers})
    module.train()
    aside = copy.deepcopy(module)
    with keyed(KEY, batch["row"]), serving(module, aside, (batch,), batch["row"], ""):
        losses = module(batch).losses
    counts = torch.ones_like(losses) if "weight" not in batch else (batch["weight"] > 0).to(losses.dtype)
    named = dict(module.named_parameters())
    each = [torch.autograd.grad(value, named.values(), retain_graph=True) for value in losses * counts]
    gradients = {name: torch.stack(g) for name, g in zip(named, zip(*each, strict=True), strict=True)}
    return gradients, (losses * counts).detach(), dict(module.named_buffers())


def close(a, b, rtol=1e-9):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "environments"])
@pytest.mark.parametrize("weights", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("net", NETS)
def test_a_loop_of_backwards(net, weights, grouped):
    built, at = made(NETS[net]())
    batch = rows(12, weights)
    batch = number_rows(tree_map(lambda t: t.unflatten(0, (3, 4)), batch) if grouped else batch, 2 if grouped else 1)
    assert look(built, "", at, batch, Keeps(), grouped=grouped).coupled
    gradients, _, after, state = compute(built, at, batch, Keeps())
    truth, losses, buffers = loop(built, at, flatten_groups(batch) if grouped else batch)
    close(gradients, truth)
    torch.testing.assert_close(state["losses"], losses)
    close(after, buffers)
    counts = batch.get("weight", torch.ones(12, dtype=torch.float64)).reshape(-1)
    torch.testing.assert_close(state["weights"], counts / counts.sum())
    sizes = {n: g.abs().amax() for n, g in gradients.items() if n.endswith("weight")}
    assert all(size > 1e-6 for size in sizes.values()), f"gradients that are zero compare nothing: {sizes}"


def test_detached_statistics_are_another_gradient():
    """What the loop is compared with tells them apart: the statistics' part is not small."""
    built, at = made(mlp(nn.BatchNorm1d(6)))
    batch = number_rows(rows(), 1)
    truth = loop(built, at, batch)[0]["net.1.weight"]

    class Detached(nn.BatchNorm1d):
        def forward(self, x):
            return (x - x.mean(0).detach()) / (x.var(0, correction=0).detach() + self.eps).sqrt()

    other, there = made(mlp(Detached(6)))
    there = there._replace(params=at.params, buffers=at.buffers)
    detached = compute(other, there, batch, Keeps())[0]["net.1.weight"]
    assert (detached - truth).abs().max() > 0.1 * truth.abs().max()


@pytest.mark.parametrize("net", ["mlp, dropout", "convnet"])
@pytest.mark.parametrize("weighting", ["example", "group"])
@pytest.mark.parametrize("strategy", [Keeps(), ANDMask(threshold=0.3, each="example")], ids=["each", "sums"])
def test_chunked_is_unchunked(strategy, net, weighting):
    built, at = made(NETS[net]())
    batch = number_rows(rows(weights=True), 1)
    whole = compute(built, at, batch, strategy, weighting=weighting)
    tight = compute(built, at, batch, strategy, weighting=weighting, memory=1)
    close(whole[0], tight[0])
    torch.testing.assert_close(whole[1], tight[1])
    close(whole[2], tight[2], rtol=0.0)


@pytest.mark.parametrize("strategy", [Keeps(), ANDMask(each="example")], ids=["each", "sums"])
def test_no_more_gradients_at_a_time_than_fit_the_bound(monkeypatch, strategy):
    built, at = made(convnet())
    batch = number_rows(rows(), 1)
    gradients = sum(p.numel() * p.element_size() for p in at.params.values())
    kept = saved(base_loss(built, {}, at.buffers, KEY, ""), at.params, batch)
    one = fitting(kept, at.params, batch, 1, 0)[0]
    assert one == 2 * gradients + 8 * (11 * 4 * 4 * 4 * 8), "a gradient, and tensors of the largest layer"
    three = bisect.bisect_left(range(2**24), 3, key=lambda memory: fitting(kept, at.params, batch, 1, memory)[1])
    assert three >= 3 * one + sum(t.numel() * t.element_size() for t in kept if t.dim() == 4 and len(t) == 11)
    three += 4 * gradients if isinstance(strategy, Summing) else 0
    flying = []
    called = Jacobian.__call__
    monkeypatch.setattr(Jacobian, "__call__", lambda self, p: (flying.append(len(p)), called(self, p))[1])
    for memory, fit in ((three, [3, 3, 3, 2]), (three - 1, [2, 2, 2, 2, 2, 1]), (0, [1] * 11), (2**30, [11])):
        flying.clear()
        compute(built, at, batch, strategy, memory=memory)
        assert flying == fit


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("net", ["mlp, dropout", "convnet", "convnet, neither"])
def test_neutral_is_plain_training_running_statistics_too(net, pieces):
    built, at = made(NETS[net]())
    batch = number_rows(rows(12, weights=True), 1)
    plain = compute(built, at, batch, ERM(), pieces=pieces)
    for memory in (2**30, 1):
        neutral = ANDMask(threshold=0.0, each="example")
        masked = compute(built, at, batch, neutral, pieces=pieces, memory=memory)
        close(masked[0], plain[0], rtol=1e-8)
        torch.testing.assert_close(masked[1], plain[1])
        close(masked[2], plain[2], rtol=1e-12)


def test_an_attack_on_the_whole_batch():
    attack = PGD(eps=0.2, steps=2, start="random", bounds=None)
    built, at = made(NETS["mlp, dropout"]())
    batch = number_rows(rows(weights=True), 1)
    gradients, _, after, _ = compute(built, at, batch, weave(AdversarialTraining(attack), Keeps()))
    with keyed(KEY):
        worst = attack(base_loss(built, {}, at.buffers, KEY, ""), at.params, batch)
    assert (worst - batch["x"]).abs().max() > 0.1
    close(gradients, loop(built, at, {**batch, "x": worst})[0])
    close(after, loop(built, at, batch)[2])


def test_rows_that_a_strategy_adds_are_refused():
    X, y = rows(24)["x"].numpy(), np.arange(24) % 3
    strategy = weave(Replay(size=8, rows=4), ANDMask(each="example"))
    learner = Learner(Classification(lambda i, o: mlp(nn.BatchNorm1d(6))), strategy=strategy, steps=2, dtype="float64")
    learner.partial_fit(X, y, task="first")
    with pytest.raises(ValueError, match=r"one loss for each of 24 examples.*shape \(28,\).*adds rows of its own"):
        learner.partial_fit(X, y, task="second")


# --- who is coupled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("net", [*NETS, *APART])
def test_what_mixes_rows_is_found_without_its_name(net, dtype):
    for n in (2, 3, 64, 1000):
        built, at = made({**NETS, **APART}[net](), dtype)
        if n > 2 or "convnet" not in net:
            assert mixes(built, "", at, number_rows(rows(n, dtype=dtype), 1)) == (net in NETS), n


def test_a_last_layer_of_zeros_hides_nothing():
    built, at = made(mlp(nn.BatchNorm1d(6)))
    zeros = {n: torch.zeros_like(p) if n.startswith("net.4") else p for n, p in at.params.items()}
    assert mixes(built, "", at._replace(params=zeros), number_rows(rows(), 1))


def test_one_row_goes_the_way_that_is_right_for_both():
    for net in (APART["dropout"](), convnet()):
        built, at = made(net)
        few = number_rows(rows(1), 1)
        route = look(built, "", at, few, Keeps(), grouped=False)
        assert route.coupled
        batch = number_rows(rows(), 1)
        close(gradient_of(route, Mapper(), at, batch, Keeps(), {})[0], loop(built, at, batch)[0])


def test_evaluation_couples_nothing():
    built, at = made(convnet())
    built.eval()
    assert not mixes(built, "", at, number_rows(rows(), 1))


# --- what cannot be vectorized -----------------------------------------------------------------------


class Rigid(torch.autograd.Function):
    """Twice its input, with a backward that asks for a number, which vmap cannot give."""

    @staticmethod
    def forward(x):
        return 2.0 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope * (2.0 if float(slope.abs().sum()) >= 0.0 else 1.0)


class Twice(nn.Module):
    def forward(self, x):
        return Rigid.apply(x)


def test_a_backward_without_a_vmap_rule_is_looped_over_and_said_once():
    built, at = made(mlp(Twice(), nn.BatchNorm1d(6)))
    batch, mapper = number_rows(rows(), 1), Mapper()
    with pytest.warns(VectorizationWarning, match="cannot be vectorized"):
        first = compute(built, at, batch, Keeps(), mapper)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = compute(built, at, batch, Keeps(), mapper)
    truth = loop(built, at, batch)
    for found in (first, again):
        close(found[0], truth[0])
        close(found[2], truth[2])


# --- whole trainings ---------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(48, 2, 4, 4))
Y = (X[:, 0, 0, 0] + X[:, 1, 1, 1] > 0).astype(int) + (X[:, 0, 2, 2] > 1)
# Before batch normalization a bias has gradient zero up to rounding: the mask would vote on noise, other in a replica.
NET = lambda inputs, outputs: mlp(nn.Dropout(0.2), nn.BatchNorm1d(6), bias=False)


def learner(strategy, **settings):
    common = {"epochs": 3, "batch_size": 16, "dtype": "float64", "random_state": 5, "strategy": strategy}
    return Learner(Classification(NET), **{**common, **settings})


def told(fitted, k=0):
    state = fitted.training_.runs[0][1]
    state = state.replica(k) if state.replicas else state
    return {**state.params, **state.buffers}


STRATEGIES = {
    "mask": ANDMask(threshold=0.2, each="example"),
    "attacked": weave(AdversarialTraining(PGD(eps=0.1)), ANDMask(threshold=0.2, each="example")),
    "penalized": weave(EWC(strength=1.0), ANDMask(threshold=0.2, each="example")),
    "distilled": weave(LwF(), ANDMask(threshold=0.2, each="example")),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_replica_k_is_the_single_run_k(name):
    """In two tasks, chunked and not."""
    task = np.arange(48) % 2
    many = learner(STRATEGIES[name], replicas=2).fit(X, Y, task=task)
    single = learner(STRATEGIES[name], random_state=6).fit(X, Y, task=task)
    tight = learner(STRATEGIES[name], random_state=6, memory=1).fit(X, Y, task=task)
    close(told(many, 1), told(single), rtol=1e-7)
    close(told(tight), told(single), rtol=1e-7)


@pytest.mark.parametrize("replicas", [None, 2])
def test_neutral_trains_as_plain_training_does(replicas):
    neutral = learner(ANDMask(threshold=0.0, each="example"), replicas=replicas).fit(X, Y)
    plain = learner(ERM(), replicas=replicas).fit(X, Y)
    for k in range(replicas or 1):
        close(told(neutral, k), told(plain, k), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_resumed_is_uninterrupted(tmp_path):
    strategy = STRATEGIES["penalized"]
    whole = learner(strategy).fit(X, Y)
    records = []

    def stop(record):
        records.append(record)
        if len(records) == 2:
            raise KeyboardInterrupt

    cut = learner(strategy, folder=tmp_path / "run", callbacks=[stop])
    with pytest.raises(KeyboardInterrupt):
        cut.fit(X, Y)
    resumed = weft.load(tmp_path / "run", net=NET, module=NET).resume(X, Y)
    close(told(resumed), told(whole), rtol=0.0)


def test_a_step_leaves_no_tensors_in_cycles():
    built, at = made(convnet())
    batch = number_rows(rows(), 1)
    strategy = ANDMask(each="example")
    compute(built, at, batch, strategy)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        compute(built, at, batch, strategy)
        gc.collect()
        left = [tuple(found.shape) for found in gc.garbage if isinstance(found, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
