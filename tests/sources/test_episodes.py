import numpy as np
import pytest
import torch

from weft.core.state import State, aside
from weft.data import sinusoids
from weft.sources import Arrays, Episodes
from weft.sources.cast import Cast
from weft.sources.rowed import Rowed
from weft.testing import check_source

SIZES = np.arange(12) % 4 + 6  # of twelve kinds
KIND = np.repeat(np.arange(12), SIZES)
ROWS = np.arange(len(KIND), dtype=np.float32)[:, None]  # each row is its own number


def state(seed=0, step=0):
    seeds = torch.as_tensor(seed)
    return State(None, {}, {}, seeds, replicas=len(seeds) if seeds.dim() else None, step=step)


def drawn(source, seed=0, step=0):
    """A batch, the parts as arrays."""
    batch = next(source.batches(state(seed, step)))
    return {part: {name: t.numpy() for name, t in rows.items()} for part, rows in batch.items()}


def kinds(**how):
    return Episodes((ROWS, KIND), **{"ways": 4, "shots": 2, "queries": 3, "tasks": 50, **how})


def kind_of(x):
    return KIND[x[..., 0].astype(int)]


# --- classes ------------------------------------------------------------------------------------------


def test_an_episode_has_so_many_classes_and_rows_of_each():
    batch = drawn(kinds())
    assert batch["support"]["x"].shape == (50, 8, 1)
    assert batch["query"]["y"].shape == (50, 12)
    for part, each in (("support", 2), ("query", 3)):
        for y in batch[part]["y"]:
            assert np.bincount(y, minlength=4).tolist() == [each] * 4


def test_a_class_has_one_new_number_in_an_episode_and_others_in_others():
    batch = drawn(kinds())
    known, numbers = [], {}
    for e in range(50):
        rows = np.concatenate([batch[part]["x"][e] for part in ("support", "query")])
        new = np.concatenate([batch[part]["y"][e] for part in ("support", "query")])
        pairs = {*zip(kind_of(rows).tolist(), new.tolist(), strict=True)}
        assert len(pairs) == len({kind for kind, _ in pairs}) == 4
        known.append({kind for kind, _ in pairs})
        for kind, number in pairs:
            numbers.setdefault(kind, []).append(number)
    assert {*numbers} == {*range(12)}
    assert all(len({*new}) > 1 for new in numbers.values())
    assert len({frozenset(chosen) for chosen in known}) > 30
    means = [np.mean(new) for new in numbers.values()]  # not by their order: a low class is no lower a number
    assert abs(np.corrcoef(range(12), [np.mean(numbers[kind]) for kind in range(12)])[0, 1]) < 0.8, means


def test_every_class_gets_every_number_about_as_often():
    batch = drawn(kinds(tasks=2000, shots=1, queries=1))
    x, y = kind_of(batch["support"]["x"]).ravel(), batch["support"]["y"].ravel()
    table = np.histogram2d(x, y, bins=(np.arange(13), np.arange(5)))[0]
    expected = 2000 * 4 / 12 / 4
    assert ((table - expected) ** 2 / expected).sum() < 48 + 4 * np.sqrt(2 * 48)  # chi squared


def test_no_row_of_the_support_part_is_in_the_query_part_and_none_comes_twice():
    for source in (kinds(), kinds(shots=3), Episodes((ROWS, ROWS[:, 0], KIND), shots=2, queries=4, tasks=50)):
        batch = drawn(source)
        for support, query in zip(batch["support"]["x"], batch["query"]["x"], strict=True):
            rows = np.concatenate([support, query])[:, 0]
            assert len({*rows.tolist()}) == len(rows)


def test_every_row_of_a_class_is_drawn():
    assert {*drawn(kinds(tasks=500))["support"]["x"].ravel()} == {*ROWS.ravel()}


def test_the_place_of_a_row_tells_nothing_of_its_class():
    for part in ("support", "query"):
        y = drawn(kinds(tasks=2000))[part]["y"]
        shares = np.array([np.bincount(column, minlength=4) / 2000 for column in y.T])
        assert abs(shares - 0.25).max() < 0.05


def test_labels_may_be_names_and_the_spec_says_how_many_there_are():
    named = np.array([f"kind {k}" for k in KIND])
    source = Episodes((ROWS, named), ways=4, shots=2, queries=3, tasks=5)
    assert source.spec["y"].classes == 4
    assert source.spec["y"].dtype == torch.int64
    assert source.extent("y") == (0.0, 3.0)
    assert source.extent("x") == (0.0, len(KIND) - 1.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kinds(ways=13), ValueError, "at least 13 classes for episodes with ways=13, got 12"),
        (lambda: kinds(shots=4), ValueError, r"at least 7 rows .* in every class, got 6 in .*0.*leave that class out"),
        (lambda: kinds(ways=1), ValueError, "ways to be an integer >= 2"),
        (lambda: kinds(classes=4), ValueError, "expected classes=None beside ways=4"),
        (lambda: Episodes((ROWS, KIND)), ValueError, r"expected ways.*beside \(X, y\), got None; give ways=5"),
        (lambda: Episodes(sinusoids, ways=5), ValueError, r"\(X, y\).*beside ways=5, got a function"),
        (lambda: Episodes((ROWS, KIND, KIND), ways=5), ValueError, r"beside ways=5, got \(X, y, task\)"),
        (lambda: Episodes((ROWS, ROWS[:, 0]), ways=5), TypeError, "one class for each row, .*got float32"),
        (lambda: Episodes((ROWS, np.eye(12)[KIND].astype(int)), ways=5), TypeError, r"got int64 of shape \(\d+, 12\)"),
        (lambda: Episodes((ROWS[:-1], KIND), ways=5), ValueError, "X and y of one length"),
        (lambda: Episodes((ROWS,), ways=5), TypeError, r"arrays \(X, y, task\), or \(X, y\) with ways"),
        (lambda: kinds(shots=(3, 1)), ValueError, r"a range such as \(1, 5\), got \(3, 1\)"),
        (lambda: kinds(shots=(0, 2)), ValueError, r"a range such as \(1, 5\), got \(0, 2\)"),
        (lambda: kinds(shots=(1, 2.5)), ValueError, "a range such as"),
        (lambda: kinds(shots="1-5"), TypeError, "a range such as"),
        (lambda: kinds(shots=(4, 5), queries=(3, 4)), ValueError, r"at least 7 rows .* in every class, got 6"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


# --- keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"shots": (1, 4), "queries": (1, 5)}], ids=["even", "ragged"])
def test_it_is_a_source(how):
    check_source(kinds(tasks=5, **how))
    check_source(Rowed(Episodes((ROWS, ROWS[:, 0], KIND), tasks=5, **{"shots": 2, **how})))


def test_replicas_have_episodes_of_their_own():
    batch = drawn(kinds(), seed=[3, 4])
    for part in ("support", "query"):
        assert not np.array_equal(*batch[part]["x"])
        np.testing.assert_array_equal(batch[part]["x"][1], drawn(kinds(), seed=4)[part]["x"])


def test_what_is_drawn_aside_is_the_same_at_any_step_and_for_any_seed():
    for make in (kinds, lambda: Episodes(sinusoids, tasks=4)):
        batches = [next(Rowed(make()).once(state(seed, step), 100)) for seed, step in ((0, 0), (0, 7), (5, 3))]
        for other in batches[1:]:
            assert torch.equal(batches[0]["query"]["x"], other["query"]["x"])
        assert not torch.equal(batches[0]["query"]["x"], next(make().batches(state()))["query"]["x"])
        stacked = next(Rowed(make()).once(state([1, 2]), 100))
        assert torch.equal(stacked["query"]["x"][1], batches[0]["query"]["x"])
    assert not torch.equal(aside(state(), "a").seeds, aside(state(), "b").seeds)


def test_one_pass_is_cut_into_so_many_episodes():
    whole = next(Rowed(kinds()).once(state(), 100))
    parts = list(Rowed(kinds()).once(state(), 20))
    assert [len(part["query"]["x"]) for part in parts] == [20, 20, 10]
    assert torch.equal(torch.cat([part["query"]["x"] for part in parts]), whole["query"]["x"])


# --- ragged -------------------------------------------------------------------------------------------


def test_ragged_parts_have_weights_and_repeat_rows_that_count():
    batch = drawn(kinds(shots=(1, 4), queries=(1, 5), tasks=200))
    assert batch["support"]["x"].shape == (200, 16, 1)
    seen = set()
    for e in range(200):
        for part in ("support", "query"):
            rows = {name: values[e] for name, values in batch[part].items()}
            counts = {int(rows["weight"][rows["y"] == k].sum()) for k in range(4)}
            for k in range(4):
                own, weight = rows["x"][rows["y"] == k, 0], rows["weight"][rows["y"] == k]
                real = own[weight == 1].tolist()
                assert len({*real}) == len(real) >= 1
                assert {*own.tolist()} == {*real}  # what fills up is known already
            seen |= {(part, count) for count in counts}
        both = [set(batch[part]["x"][e].ravel()) for part in ("support", "query")]
        assert not both[0] & both[1]
    assert {count for part, count in seen if part == "support"} == {1, 2, 3, 4}
    assert {count for part, count in seen if part == "query"} == {1, 2, 3, 4, 5}


def test_tasks_with_few_rows_give_what_they_have():
    """Six rows: with a query row at least five are left to adapt on, and then none but that one."""
    source = Episodes((ROWS, ROWS[:, 0], KIND), shots=(5, 9), queries=(1, 4), tasks=400)
    batch = drawn(source)
    shots, queries = (batch[part]["weight"].sum(1) for part in ("support", "query"))
    sizes = SIZES[kind_of(batch["support"]["x"][:, 0])]
    assert ((shots + queries) <= sizes).all()
    assert {*zip(shots[sizes == 6].tolist(), queries[sizes == 6].tolist(), strict=True)} == {(5.0, 1.0)}
    assert shots[sizes == 9].max() == 8


def test_a_function_draws_ragged_tasks_too():
    batch = drawn(Episodes(sinusoids, shots=(2, 6), queries=3, tasks=40))
    weight = batch["support"]["weight"]
    assert weight.shape == (40, 6)
    assert {*weight.sum(1).tolist()} == {2.0, 3.0, 4.0, 5.0, 6.0}
    assert (batch["query"]["weight"] == 1).all()
    assert "weight" not in drawn(Episodes(sinusoids))["support"]


def test_weights_of_a_draw_are_kept():
    def halves(keys, rows):
        x = torch.arange(rows).float().expand(len(keys), rows)
        return {"x": x.unsqueeze(-1), "weight": 0.5 + 0.0 * x}

    weight = drawn(Episodes(halves, shots=(1, 3), tasks=40))["support"]["weight"]
    assert {*weight.ravel().tolist()} == {0.0, 0.5}
    assert {*weight.sum(1).tolist()} == {0.5, 1.0, 1.5}


# --- what two sources share -----------------------------------------------------------------------------


def test_shared_classes_are_told():
    low, high = KIND < 6, KIND >= 6
    one, other = (Episodes((ROWS[m], KIND[m]), ways=2, shots=1) for m in (low, high))
    assert one.shared(other) == ""
    assert "rows that are in both, of 0" in one.shared(one)
    renamed = Episodes((ROWS[low], KIND[low] + 100), ways=2, shots=1)
    assert "rows that are in both, of 100" in one.shared(renamed)
    halves = [Episodes((ROWS[half::2], KIND[half::2]), ways=2, shots=1) for half in (0, 1)]
    assert "class names that are in both, such as '0'" in halves[0].shared(halves[1])
    assert one.shared(Episodes(sinusoids)) == one.shared(Arrays(torch.zeros(2, 1))) == ""
    assert Cast(one, torch.float64).contents().keys() == {"x", "class", "episodes"}
