"""Pooled, group and example gradients against naive loops; chunks; fallbacks; buffers."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn

from weft.attacks import PGD
from weft.core.objective import reduce
from weft.core.random import key_of, keyed
from weft.core.source import Field, flatten_groups, number_rows
from weft.core.strategy import Penalty, Strategy, weighted_mean
from weft.core.trees import tree_map
from weft.core.weave import weave
from weft.engine import verbs
from weft.engine.build import build, initialize
from weft.engine.gradients import groups
from weft.engine.gradients.gradient import gradient as gradient_of
from weft.engine.gradients.loss import Place
from weft.engine.gradients.route import look
from weft.engine.serving import serving
from weft.engine.vectorize import Mapper, VectorizationWarning, in_chunks
from weft.objectives import Classification
from weft.strategies import ERM, MAML, AdversarialTraining, ANDMask

SPEC = {"x": Field((4,), torch.float64), "y": Field((), torch.int64, 3)}
KEY = key_of(0)


class GroupMean(Strategy):
    sees = "groups"


class ExampleMean(Strategy):
    sees = "examples"


class Keeps(Strategy):
    """Hands the groups' gradients out, to be looked at."""

    def __init__(self, sees="groups"):
        self.sees = sees

    def combine(self, gradients, losses, weights, state):
        return gradients, {"losses": losses, "weights": weights}


def objective(*layers, seed=0):
    built = build(Classification(nn.Sequential(*layers)), SPEC, seed, torch.float64)
    return built, *initialize(built, seed, "reset")


def plain():
    return objective(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def dropping():
    return objective(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))


def normed():
    return objective(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def grouped_batch(groups=3, rows=5, weights=False):
    g = torch.Generator().manual_seed(1)
    batch = {
        "x": torch.randn(groups, rows, 4, generator=g, dtype=torch.float64),
        "y": torch.randint(3, (groups, rows), generator=g),
    }
    if weights:
        batch["weight"] = torch.rand(groups, rows, generator=g, dtype=torch.float64)
    return number_rows(batch, 2)


def compute(built, params, buffers, batch, strategy, **options):
    built.train()
    at = Place(params, {}, buffers, KEY)
    grouped = "query" in batch or batch["row"].dim() == 2
    route = look(built, "", at, batch, strategy, grouped=grouped, **options)
    return gradient_of(route, Mapper(), at, batch, strategy, verbs.init(strategy, params))


def naive(built, params, buffers, batch):
    """One ordinary backward through the module itself."""
    module = build(Classification(built.net), SPEC, 0, torch.float64).train()
    module.load_state_dict({**params, **buffers})
    aside = copy.deepcopy(module)
    with keyed(KEY, batch["row"]), serving(module, aside, (batch,), batch["row"], ""):
        losses = module(batch).losses
    reduce(losses, batch.get("weight")).backward()
    return {n: p.grad for n, p in module.named_parameters()}, dict(module.named_buffers())


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("make", [plain, dropping, normed])
@pytest.mark.parametrize("weights", [False, True])
def test_pooled(make, weights):
    built, params, buffers = make()
    batch = grouped_batch(weights=weights)
    gradient, _, after, _ = compute(built, params, buffers, batch, ERM())
    truth, truth_buffers = naive(built, params, buffers, flatten_groups(batch))
    close(gradient, truth)
    close(after, truth_buffers)


@pytest.mark.parametrize("make", [plain, dropping])
@pytest.mark.parametrize("pieces", [2, 3, 15])
def test_accumulated_pieces_are_the_whole(make, pieces):
    built, params, buffers = make()
    batch = flatten_groups(grouped_batch(weights=True))
    whole = compute(built, params, buffers, batch, ERM())
    parts = compute(built, params, buffers, batch, ERM(), pieces=pieces)
    close(whole[0], parts[0])
    torch.testing.assert_close(whole[1], parts[1])


@pytest.mark.parametrize("make", [plain, dropping, normed])
def test_group_gradients_are_the_loop(make):
    built, params, buffers = make()
    batch = grouped_batch(weights=True)
    gradients, _, after, state = compute(built, params, buffers, batch, Keeps())
    singles = [naive(built, params, buffers, tree_map(lambda t: t[g], batch)) for g in range(3)]
    close(gradients, {n: torch.stack([s[0][n] for s in singles]) for n in gradients})
    mass = batch["weight"].sum(1)
    torch.testing.assert_close(state["weights"], mass / mass.sum())
    for name in after:
        stacked = torch.stack([s[1][name] for s in singles])
        expected = (
            stacked.amax(0) if not stacked.is_floating_point() else torch.tensordot(mass / mass.sum(), stacked, dims=1)
        )
        torch.testing.assert_close(after[name], expected)


@pytest.mark.parametrize("make", [plain, dropping])
def test_example_gradients_are_the_loop(make):
    built, params, buffers = make()
    batch = flatten_groups(grouped_batch())
    gradients, *_ = compute(built, params, buffers, batch, Keeps("examples"))
    singles = [naive(built, params, buffers, tree_map(lambda t: t[i : i + 1], batch))[0] for i in range(15)]
    close(gradients, {n: torch.stack([s[n] for s in singles]) for n in gradients})


@pytest.mark.parametrize("sees", ["groups", "examples"])
def test_the_weighted_mean_of_parts_is_the_pooled_gradient(sees):
    built, params, buffers = dropping()
    batch = grouped_batch(weights=True)
    strategy = GroupMean() if sees == "groups" else ExampleMean()
    pooled = compute(built, params, buffers, batch, ERM())
    parts = compute(built, params, buffers, batch, strategy)
    close(pooled[0], parts[0])
    torch.testing.assert_close(pooled[1], parts[1])


@pytest.mark.parametrize("strategy", [GroupMean(), ExampleMean(), ANDMask(threshold=0.5)])
def test_chunked_is_unchunked(strategy):
    built, params, buffers = dropping()
    batch = grouped_batch(groups=5, weights=True)
    whole = compute(built, params, buffers, batch, strategy)
    tight = compute(built, params, buffers, batch, strategy, memory=1)
    close(whole[0], tight[0])
    torch.testing.assert_close(whole[1], tight[1])


def test_the_memory_bound_sets_the_chunk(monkeypatch):
    built, params, buffers = plain()
    batch = grouped_batch(groups=8)
    at = Place(params, {}, buffers, KEY)
    one = look(built, "", at, batch, GroupMean(), grouped=True, memory=10**9).bytes
    size = sum(p.numel() for p in params.values()) * 8
    assert one >= 2 * size
    seen = []
    monkeypatch.setattr(groups, "in_chunks", lambda *args: (seen.append(args[3]), in_chunks(*args))[1])
    compute(built, params, buffers, batch, GroupMean(), memory=3 * one)
    assert seen == [3]


def test_how_unequal_groups_count():
    built, params, buffers = plain()
    batch = grouped_batch(groups=2, rows=4)
    batch["weight"] = torch.ones(2, 4, dtype=torch.float64)
    batch["weight"][1, 1:] = 0  # the second group has one real row
    by_example = compute(built, params, buffers, batch, GroupMean())
    close(by_example[0], naive(built, params, buffers, flatten_groups(batch))[0])
    by_group = compute(built, params, buffers, batch, GroupMean(), weighting="group")
    each = [naive(built, params, buffers, tree_map(lambda t: t[g], batch))[0] for g in range(2)]
    close(by_group[0], {n: (each[0][n] + each[1][n]) / 2 for n in each[0]})


def test_an_absent_group_counts_and_votes_nothing():
    built, params, buffers = plain()
    batch = grouped_batch(groups=3)
    batch["weight"] = torch.ones(3, 5, dtype=torch.float64)
    batch["weight"][2] = 0
    present = tree_map(lambda t: t[:2], batch)
    for strategy in (GroupMean(), ANDMask(threshold=1.0)):
        for weighting in ("example", "group"):
            with_absent = compute(built, params, buffers, batch, strategy, weighting=weighting)
            without = compute(built, params, buffers, present, strategy, weighting=weighting)
            close(with_absent[0], without[0])


class Recurrent(nn.Module):
    """A GRU, for which torch.vmap has no rule."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(x[..., None])[0][:, -1])


def test_a_layer_without_a_vmap_rule_is_looped_over_and_named_once():
    built = build(Classification(Recurrent()), SPEC, 0, torch.float64)
    params, buffers = initialize(built, 0, "reset")
    batch = grouped_batch()
    built.train()
    at, mapper = Place(params, {}, buffers, KEY), Mapper()
    route = look(built, "", at, batch, Keeps(), grouped=True)
    with pytest.warns(VectorizationWarning, match="GRU cannot be vectorized"):
        first = gradient_of(route, mapper, at, batch, Keeps(), {})[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gradient_of(route, mapper, at, batch, Keeps(), {})[0]
    close(first, again)
    singles = []
    for g in range(3):
        leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
        part = tree_map(lambda t: t[g], batch)
        loss = torch.func.functional_call(built, leaves, (part,)).losses.mean()
        singles.append(dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True)))
    close(first, {n: torch.stack([s[n] for s in singles]) for n in first})


def test_adversarial_passes_leave_the_statistics_to_the_clean_forward():
    built, params, buffers = normed()
    batch = flatten_groups(grouped_batch())
    clean = compute(built, params, buffers, batch, ERM())
    attacked = compute(built, params, buffers, batch, AdversarialTraining(PGD(eps=0.5, steps=3, start="random")))
    close(attacked[2], clean[2])
    assert attacked[1] > clean[1], "the attack raises the loss"


def test_the_penalty_stays_outside_the_vote():
    """With the mask at 1, a penalty inside the groups would bring masked components back."""

    class Pull(Penalty):
        def penalty(self, params, state):
            return 100.0 * sum((p.square()).sum() for p in params.values())

    built, params, buffers = plain()
    batch = grouped_batch()
    mask = ANDMask(threshold=1.0, rescale=False)
    masked = compute(built, params, buffers, batch, mask)[0]
    both = compute(built, params, buffers, batch, weave(Pull(), mask))[0]
    close(both, {n: g + 200.0 * params[n] for n, g in masked.items()})


def test_episodes_are_adapted_one_by_one():
    """MAML's mean over episodes equals a loop over them, chunked or not, with dropout."""
    built, params, buffers = dropping()
    whole = grouped_batch(groups=4, rows=6)
    batch = {"support": tree_map(lambda t: t[:, :3], whole), "query": tree_map(lambda t: t[:, 3:], whole)}
    strategy = MAML(inner_lr=0.1, inner_steps=2)

    def run(part, memory=2**30):
        return compute(built, params, buffers, part, strategy, memory=memory)[0]

    together = run(batch)
    close(together, run(batch, memory=1))
    each = [run(tree_map(lambda t: t[g : g + 1], batch)) for g in range(4)]
    close(together, {n: torch.stack([e[n] for e in each]).mean(0) for n in together})


def test_weighted_mean():
    g = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    torch.testing.assert_close(weighted_mean(g, torch.tensor([0.25, 0.75]))["w"], torch.tensor([2.5, 3.5]))


@pytest.mark.parametrize("strategy", [ERM(), ANDMask(), ANDMask(each="example"), AdversarialTraining(PGD(steps=1))])
def test_a_step_leaves_no_tensors_in_cycles(strategy):
    """Only the collector of cycles would free them, at some later time, and with them the step's whole graph."""
    built, params, buffers = plain()
    batch = grouped_batch()
    compute(built, params, buffers, batch, strategy)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        compute(built, params, buffers, batch, strategy)
        gc.collect()
        left = [tuple(found.shape) for found in gc.garbage if isinstance(found, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left
