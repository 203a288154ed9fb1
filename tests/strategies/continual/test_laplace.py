"""The kinds of curvature against matrices formed one example at a time, and posteriors carried through tasks."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer, weave
from weft.core.random import key_of
from weft.core.source import number_rows
from weft.core.strategy import Local
from weft.core.trees import tree_map
from weft.engine.gradients.curvature import factors, products
from weft.engine.gradients.squares import Passes, squares
from weft.objectives import Classification, Regression
from weft.strategies import EWC, MAS, Laplace
from weft.strategies.continual.curvature import Diagonal, Full, Identity, Kronecker, LowRank

rng = np.random.default_rng(0)
X = rng.normal(size=(12, 4))
LABELS = rng.integers(3, size=12)
NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 3, bias=False)),
}


def fitted(make, x=X, y=LABELS, weight=None, rows=5):
    """A trained objective and what a strategy sees of it at a task's end."""
    learner = Learner(Classification(make()), epochs=3, dtype="float64", random_state=0).fit(x, y)
    objective, run = learner.objective_, learner.training_.runs[0][1]
    batch = {"x": torch.as_tensor(x), "y": torch.as_tensor(y)}
    if weight is not None:
        batch["weight"] = torch.as_tensor(weight)
    batch = number_rows(batch, 1)
    parts = [tree_map(lambda t: t[i : i + rows], batch) for i in range(0, len(x), rows)]
    passes = Passes(objective, run.params, {}, run.buffers, lambda: parts, key_of(0))
    return Local(objective, run.params, *(partial(sums, passes) for sums in (squares, factors, products))), run


def gradients(local, run, x=X, weight=None):
    """Rows sqrt(w p(k)) grad log p(k), one example and one label at a time: F is their product."""
    local.objective.eval()
    rows = []
    for i, row in enumerate(torch.as_tensor(x)):
        for label in range(3):
            leaves = {n: p.clone().requires_grad_() for n, p in run.params.items()}
            batch = {"x": row[None], "y": torch.tensor([label])}
            log_p = -torch.func.functional_call(local.objective, (leaves, run.buffers), (batch,)).losses[0]
            found = torch.autograd.grad(log_p, list(leaves.values()))
            mass = log_p.detach().exp() * (1.0 if weight is None else weight[i])
            rows.append(mass.sqrt() * torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def directions(run, count=5):
    generator = torch.Generator().manual_seed(1)
    return [
        {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in run.params.items()}
        for _ in range(count)
    ]


def flat(d):
    return torch.cat([v.flatten() for v in d.values()])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_full_and_diagonal_are_sums_over_examples_and_labels(name, weighted):
    weight = rng.uniform(0.5, 2, size=12) if weighted else None
    local, run = fitted(NETS[name], weight=weight)
    rows = gradients(local, run, weight=weight)
    readout = Laplace().readout(local.objective)
    for form, truth in ((Full(2**30), rows.T @ rows), (Diagonal(), torch.diag((rows**2).sum(0)))):
        precision, examples = form.measure(local, readout)
        assert examples == pytest.approx(12 if weight is None else weight.sum())
        for d in directions(run):
            torch.testing.assert_close(form.quadratic(precision, d), flat(d) @ truth @ flat(d))
            both = form.add(precision, form.scale(precision, 3.0), 0.5)
            torch.testing.assert_close(form.quadratic(both, d), 3.5 * flat(d) @ truth @ flat(d))


def test_low_rank_is_exact_at_full_rank_and_keeps_the_leading_part_and_the_diagonal_below():
    local, run = fitted(NETS["mlp"])
    rows = gradients(local, run)
    truth, readout = rows.T @ rows, Laplace().readout(local.objective)
    values, vectors = torch.linalg.eigh(truth)
    size = len(truth)
    for rank in (3, size):
        form = LowRank(rank)
        precision, _ = form.measure(local, readout)
        basis = torch.cat([b.flatten(1) for b in precision["basis"].values()], dim=1)
        top = vectors[:, -rank:] * values[-rank:]
        exact = 1e-6 if rank == size else 1e-4  # a sketch is near the leading eigenvectors, and exact if it is whole
        torch.testing.assert_close(basis.T @ basis, top @ vectors[:, -rank:].T, rtol=0, atol=exact * float(values[-1]))
        whole = basis.T @ basis + torch.diag(torch.cat([r.flatten() for r in precision["rest"].values()]))
        torch.testing.assert_close(whole.diagonal(), truth.diagonal(), rtol=1e-6, atol=1e-9)
    # the sum of two: what is dropped goes to the diagonal, so that it is exact again
    form = LowRank(3)
    one, _ = form.measure(local, readout)
    both = form.add(one, one, 0.5)
    for d in directions(run):
        torch.testing.assert_close(form.quadratic(both, d), 1.5 * form.quadratic(one, d))
    assert next(iter(both["basis"].values())).shape[0] == 3


@pytest.mark.parametrize("form", [Diagonal(), Identity()])
def test_terms_without_correlations_are_one_whose_value_is_their_sum(form):
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (4, 3), "bias": (3,)}

    def draw():
        return {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}

    terms = [
        {"anchor": draw(), "precision": draw() if isinstance(form, Diagonal) else {"scale": torch.tensor(1.0 + t)}}
        for t in range(3)
    ]
    if isinstance(form, Diagonal):
        for term in terms:
            term["precision"]["weight"][0] = 0.0  # no task depends on these
    one = form.one(terms)
    for params in (draw(), draw()):
        apart = [{n: p - t["anchor"][n] for n, p in params.items()} for t in [*terms, one]]
        *each, whole = (form.quadratic(t["precision"], d) for t, d in zip([*terms, one], apart, strict=True))
        torch.testing.assert_close(whole + one["constant"], sum(each))


def test_penalties_of_three_tasks_are_summed_and_a_repeated_task_takes_its_own_away():
    clf = Classifier(strategy=Laplace(curvature="diagonal", penalties="per_task"), epochs=2, random_state=0)
    for task in "abc":
        clf.partial_fit(X, LABELS, classes=range(3), task=task)
    state, strategy = clf.training_.runs[0][1].strategy[""], clf.strategy
    point = {name: p + 0.1 for name, p in clf.training_.runs[0][1].params.items()}
    assert list(state["sum"]) == ["all"]
    one_by_one = strategy.penalty(point, {**state, "sum": {}})
    torch.testing.assert_close(strategy.penalty(point, state), one_by_one)
    released = strategy.release(state, "b")
    assert list(released["tasks"]) == ["a", "c"]
    assert strategy.penalty(point, released) < one_by_one


def test_another_penalty_has_no_pull_of_the_class_below_and_a_weave_adds_the_pulls():
    class Twice(EWC):
        def penalty(self, params, state):
            return 2 * super().penalty(params, state)

    def after(strategy):
        clf = Classifier(strategy=strategy, optimizer=Optimizer("sgd", lr=0.01), epochs=3, random_state=0)
        clf.set_params(dtype="float64")
        for task in "ab":
            clf.partial_fit(X, LABELS if task == "a" else LABELS[::-1], classes=range(3), task=task)
        return clf.predict_proba(X)

    once, twice = after(EWC(strength=3.0)), after(Twice(strength=3.0))
    np.testing.assert_allclose(twice, after(EWC(strength=6.0)), rtol=1e-9)
    assert np.abs(once - twice).max() > 1e-6
    np.testing.assert_allclose(after(weave(EWC(strength=2.0), MAS(strength=0.0), EWC(strength=4.0))), twice, rtol=1e-9)
    np.testing.assert_allclose(after(weave(EWC(strength=2.0), Twice(strength=2.0))), twice, rtol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_kronecker_is_exact_where_it_can_be(name):
    """For one example the Fisher of a linear layer is a Kronecker product; blocks between layers are left out."""
    local, run = fitted(NETS[name])
    readout = Laplace().readout(local.objective)
    layers, rest, examples = local.factors(readout)
    assert examples == 12
    held = {f"{n}.{k}" for n in layers for k in ("weight", "bias")} & set(run.params)
    assert held | set(rest) == set(run.params)
    diagonal, _ = local.squares(readout)
    for n, p in rest.items():
        torch.testing.assert_close(p, diagonal[n])
    form = Kronecker()
    one, run = fitted(NETS[name], rows=1)
    single = Passes(
        one.objective,
        run.params,
        {},
        run.buffers,
        lambda: [number_rows({"x": torch.as_tensor(X[:1]), "y": torch.as_tensor(LABELS[:1])}, 1)],
        key_of(0),
    )
    local = Local(one.objective, run.params, *(partial(sums, single) for sums in (squares, factors, products)))
    precision, _ = form.measure(local, readout)
    rows = gradients(local, run, X[:1])
    start = 0
    blocks = {}
    for n, p in run.params.items():
        blocks[n] = rows[:, start : start + p.numel()]
        start += p.numel()
    for d in directions(run):
        expected = torch.zeros((), dtype=torch.float64)
        for n in precision["layers"]:
            parts = [k for k in (f"{n}.weight", f"{n}.bias") if k in run.params]
            along = sum(blocks[k] @ d[k].flatten() for k in parts)
            expected = expected + along.square().sum()
        for n in precision["rest"]:
            expected = expected + (blocks[n].square().sum(0) * d[n].flatten().square()).sum()
        torch.testing.assert_close(form.quadratic(precision, d), expected)


def test_the_sum_of_kronecker_products_is_the_nearest_one():
    """Against the singular value decomposition of the rearranged sum."""
    generator = torch.Generator().manual_seed(0)

    def factor(n):
        a = torch.randn(n, n, generator=generator, dtype=torch.float64)
        return a @ a.T

    before = {"layers": {"l": {"inputs": factor(4), "outputs": factor(3)}}, "rest": {}}
    after = {"layers": {"l": {"inputs": factor(4), "outputs": factor(3)}}, "rest": {}}
    both = Kronecker().add(before, after, 0.7)["layers"]["l"]
    outer = lambda f: torch.outer(f["inputs"].flatten(), f["outputs"].flatten())
    whole = 0.7 * outer(before["layers"]["l"]) + outer(after["layers"]["l"])
    u, s, v = torch.linalg.svd(whole)
    torch.testing.assert_close(outer(both), s[0] * torch.outer(u[:, 0], v[0]))
    assert torch.linalg.eigvalsh(both["inputs"]).min() > 0
    assert torch.linalg.eigvalsh(both["outputs"]).min() > 0
    same = Kronecker().add(before, before, 1.0)["layers"]["l"]
    torch.testing.assert_close(outer(same), 2 * outer(before["layers"]["l"]))


def task(seed, n):
    """Correlated columns: the posterior has correlations."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 3)) @ np.array([[1.0, 0.9, 0.3], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    return x, x @ np.array([1.0, -2.0, 0.5]) + 0.3 + r.normal(size=n)


def line(strategy, steps=1500):
    return Learner(
        Regression("linear"),
        strategy=strategy,
        optimizer=Optimizer("sgd", lr=0.08),
        steps=steps,
        batch_size=None,
        dtype="float64",
        random_state=0,
    )


def in_sequence(strategy, tasks):
    learner = line(strategy)
    for i, (x, y) in enumerate(tasks):
        learner.partial_fit(x, y, task=i)
    params = learner.training_.runs[0][1].params
    return np.concatenate([params["net.1.bias"].numpy(), params["net.1.weight"].numpy()[0]])


@pytest.mark.parametrize("curvature", ["full", "kronecker", "low_rank", "diagonal"])
@pytest.mark.turns("src/weft/strategies/continual/*")
def test_three_tasks_in_sequence_are_the_joint_posterior(curvature):
    """A linear model: full, low-rank (of all ranks) and Kronecker precision (of one output) are exact, whatever the
    correlations; the diagonal is not. A penalty for each task counts the first one twice from the third task on."""
    tasks = [task(seed, 40) for seed in (1, 2, 3)]
    design = np.concatenate([np.column_stack([np.ones(40), x]) for x, _ in tasks])
    values = np.concatenate([y for _, y in tasks])
    settings = {"strength": 1 / 40, "normalize": False, "curvature": curvature, "rank": 4}
    joint = np.linalg.lstsq(design, values, rcond=None)[0]
    off = np.abs(in_sequence(Laplace(penalties="latest", **settings), tasks) - joint).max()
    assert off > 1e-2 if curvature == "diagonal" else off < 1e-6
    if curvature == "full":
        two = np.linalg.lstsq(design[:80], values[:80], rcond=None)[0]
        np.testing.assert_allclose(in_sequence(Laplace(penalties="per_task", **settings), tasks[:2]), two, rtol=1e-5)
        assert np.abs(in_sequence(Laplace(penalties="per_task", **settings), tasks) - joint).max() > 1e-2


@pytest.mark.parametrize("penalties", ["per_task", "latest"])
def test_a_task_may_have_any_name(penalties):
    """Also that under which the state keeps what all tasks left."""
    learner = line(Laplace(curvature="full", penalties=penalties, strength=0.1), steps=50)
    for name in ("first", "all", "last"):
        learner.partial_fit(*task(1, 40), task=name)
    other = line(Laplace(curvature="full", penalties=penalties, strength=0.1), steps=50)
    for name in ("first", "second", "last"):
        other.partial_fit(*task(1, 40), task=name)
    for (name, a), b in zip(
        learner.training_.runs[0][1].params.items(), other.training_.runs[0][1].params.values(), strict=True
    ):
        torch.testing.assert_close(a, b, msg=name)
    kept = [
        sum(p["precision"]["matrix"] for p in one.training_.runs[0][1].strategy[""]["tasks"].values())
        for one in (learner, other)
    ]
    torch.testing.assert_close(*kept)


@pytest.mark.turns("src/weft/strategies/continual/*")
def test_online_forgets_at_its_rate():
    (x1, y1), (x2, y2) = task(1, 40), task(2, 40)
    learner = line(Laplace(curvature="full", strength=1 / 40, normalize=False, penalties="online", decay=0.25))
    learner.partial_fit(x1, y1, task="a").partial_fit(x2, y2, task="b")
    kept = learner.training_.runs[0][1].strategy[""]["tasks"]["all"]["precision"]["matrix"]
    square = lambda x: np.column_stack([x, np.ones(len(x))]).T @ np.column_stack([x, np.ones(len(x))])
    np.testing.assert_allclose(kept, 0.25 * square(x1) + square(x2))


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker", "low_rank", "full"])
def test_memory_stays_that_of_one_task(curvature):
    sizes = []
    learner = Classifier(
        strategy=Laplace(curvature=curvature, rank=2), hidden=(5,), epochs=1, random_state=0, replicas=2
    )
    for t in range(4):
        learner.partial_fit(X, LABELS, classes=range(3), task=t)
        leaves = []
        tree_map(lambda v: leaves.append(v.numel()) or v, learner.training_.runs[0][1].strategy[""]["tasks"])
        sizes.append(sum(leaves))
    assert len(set(sizes)) == 1, sizes
    assert learner.tasks_ == ["0", "1", "2", "3"]


def test_what_has_diverged_does_not_stop_the_others():
    learner = Classifier(
        strategy=Laplace(curvature="kronecker"),
        optimizer=Optimizer("sgd", lr=0.1),
        hidden=(5,),
        epochs=3,
        replicas={"strategy__strength": [1e12, 1.0], "random_state": [0, 0]},
    )
    alone = Classifier(
        strategy=Laplace(curvature="kronecker", strength=1.0),
        optimizer=Optimizer("sgd", lr=0.1),
        hidden=(5,),
        epochs=3,
        random_state=0,
    )
    for t in range(3):
        learner.partial_fit(X, LABELS, classes=range(3), task=t)
        alone.partial_fit(X, LABELS, classes=range(3), task=t)
    assert learner.stop_reason_[0].startswith("diverged")
    np.testing.assert_allclose(learner.replica(1).predict_proba(X), alone.predict_proba(X), rtol=1e-4)


@pytest.mark.parametrize("curvature", ["diagonal", "kronecker"])
def test_where_all_have_diverged_there_is_nothing_to_keep(curvature):
    learner = Classifier(
        strategy=Laplace(curvature=curvature),
        optimizer=Optimizer("sgd", lr=0.1),
        hidden=(5,),
        epochs=3,
        replicas={"strategy__strength": [1e12, 1e13], "random_state": [0, 0]},
    )
    learner.partial_fit(X, LABELS, classes=range(3), task=0)
    with pytest.warns(RuntimeWarning, match="every replica has diverged"):
        learner.partial_fit(X, LABELS, task=1)
    learner.partial_fit(X, LABELS, task=2)
    assert all(reason.startswith("diverged") for reason in learner.stop_reason_)
    assert learner.tasks_ == ["0", "1", "2"]


def test_bad_input():
    for wrong, message in (
        ({"curvature": "block"}, "expected Laplace's curvature to be one of"),
        ({"penalties": "first"}, "expected Laplace's penalties to be one of"),
        ({"fisher": "exact"}, "expected Laplace's fisher to be one of"),
        ({"decay": 1.5}, "expected Laplace's decay to be a number in"),
        ({"decay": 0.5}, "use 'online'"),
        ({"rank": 0}, "expected Laplace's rank to be an integer >= 1, got 0"),
        ({"strength": -1.0}, "expected Laplace's strength to be a number >= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Classifier(strategy=Laplace(**wrong), epochs=1).fit(X, LABELS)
    clf = Classifier(strategy=Laplace(), epochs=1, random_state=0)
    clf.partial_fit(X, LABELS, classes=range(3), task="a")
    with pytest.raises(ValueError, match=r"got 'a' again.*per_task"):
        clf.partial_fit(X, LABELS, task="a")
    big = Classifier(strategy=Laplace(curvature="full", memory=2**20), epochs=1, random_state=0)
    with pytest.raises(ValueError, match=r"parameters, whose curvature takes .* GiB; choose curvature='kronecker'"):
        big.partial_fit(X, LABELS, classes=range(3), task="a")
