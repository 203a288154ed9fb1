"""The recipe by which columns become numbers, the target, and the rows held out."""

import json
import warnings

import numpy as np
import pytest

from weft.tables.files import read_columns
from weft.tables.recipe import Recipe
from weft.tables.split import split

TREES = """height,leaf,old,same,y
1.0,long,true,5,0.1
2.0,round,FALSE,5,0.2
,round,true,5,0.3
6.0,,,5,0.4
"""


def test_encoding_by_hand(write):
    table = read_columns(write(TREES))
    recipe = Recipe.learn(table, target="y")
    got = recipe.apply(table)
    mean, std = 3.0, np.std([1.0, 2.0, 6.0])
    expected = {
        "height": [(h - mean) / std for h in (1.0, 2.0, 2.0, 6.0)],  # 2 is the median
        "height is missing": [0, 0, 1, 0],
        "leaf=long": [1, 0, 0, 0],
        "leaf=round": [0, 1, 1, 0],
        "leaf=(missing)": [0, 0, 0, 1],
        "old": [1, 0, 1, 1],
        "old is missing": [0, 0, 0, 1],
    }
    assert got.names == list(expected)
    np.testing.assert_allclose(got.X.T, np.array(list(expected.values())))
    assert recipe.left_out == {"same": "does not vary"}
    np.testing.assert_allclose(got.y, (np.array([0.1, 0.2, 0.3, 0.4]) - 0.25) / np.std([0.1, 0.2, 0.3, 0.4]))


def test_values_are_put_back_to_rounding(write):
    rng = np.random.default_rng(0)
    y = rng.normal(1e6, 3e4, size=50)
    text = "x,y\n" + "\n".join(f"{i},{v!r}" for i, v in enumerate(y.tolist()))
    recipe = Recipe.learn(read_columns(write(text)), target="y")
    table = recipe.apply(read_columns(write(text)))
    np.testing.assert_allclose(recipe.target.write(table.y), y, rtol=1e-15)
    assert abs(table.y.mean()) < 1e-9
    assert abs(table.y.std() - 1) < 1e-9


def test_recipe_survives_json_exactly(write):
    table = read_columns(write(TREES))
    recipe = Recipe.learn(table, target="y", validation=0.25, seed=3)
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json(), allow_nan=False)))
    assert again == recipe
    before, after = recipe.apply(table, quiet=True), again.apply(table, quiet=True)
    assert np.array_equal(before.X, after.X)
    assert np.array_equal(before.held, after.held)


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: [],
        lambda plain: {**plain, "format": 99},
        lambda plain: {**plain, "columns": []},
        lambda plain: {**plain, "columns": [{"name": "x", "kind": "code"}]},
        lambda plain: {**plain, "columns": [{"name": "x", "kind": "number", "mean": "os.system"}]},
        lambda plain: {**plain, "columns": [{"name": "x", "kind": "number", "mean": float("nan")}]},
        lambda plain: {**plain, "columns": [{"name": "x", "kind": "category", "categories": [1]}]},
        lambda plain: {**plain, "columns": [{"name": "x", "kind": "number", "extra": 1}]},
        lambda plain: {**plain, "target": "y"},
        lambda plain: {**plain, "environment": 3},
        lambda plain: {key: value for key, value in plain.items() if key != "left_out"},
    ],
)
def test_damaged_recipes_are_refused(write, change):
    plain = Recipe.learn(read_columns(write(TREES)), target="y").to_json()
    with pytest.raises(ValueError, match="recipe"):
        Recipe.from_json(change(plain))


def test_new_categories_are_counted_and_told_once(write):
    recipe = Recipe.learn(read_columns(write(TREES)), target="y")
    later = read_columns(write("height,leaf,old\n1,oak,true\n2,fir,true\n3,long,false\n"))
    with pytest.warns(UserWarning, match="'leaf' in 2 rows") as caught:
        table = recipe.apply(later, labelled=False)
    assert len(caught) == 1
    assert table.unseen == {"leaf": 2}
    assert table.X[:2, 2:5].sum() == 0
    assert table.y is None


def test_held_out_rows_teach_nothing(write):
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    path = write("x,y\n" + "\n".join(f"{v!r},{'ab'[i % 2]}" for i, v in enumerate(x.tolist())))
    recipe = Recipe.learn(read_columns(path), target="y", validation=0.25, seed=1)
    held = recipe.apply(read_columns(path)).held
    assert held.sum() == 10
    assert recipe.columns[0].mean == pytest.approx(x[~held].mean(), abs=1e-12)
    other = Recipe.learn(read_columns(path), target="y", validation=0.25, seed=2)
    assert not np.array_equal(held, other.apply(read_columns(path)).held)


def test_split_is_even_over_strata_and_leaves_every_class_in_training():
    y = np.array(["rare"] + ["a"] * 50 + ["b"] * 100)
    site = np.array([f"s{i % 3}" for i in range(151)])
    held = split([site, y], 151, 0.2, seed=0)
    assert abs(held.sum() - 30) <= 1
    assert not held[0]
    for label in ("s0", "s1", "s2"):
        assert abs(held[site == label].mean() - 0.2) < 0.03
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match="expected the share"):
            split([y], 151, share, seed=0)


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        (["yes", "no"] * 4, "classes", ["no", "yes"]),
        (["true", "false"] * 4, "classes", ["false", "true"]),
        (["0", "1", "2", "2"] * 2, "classes", [0, 1, 2]),
        (["0.0", "1.0"] * 4, "values", None),
        ([str(i * i) for i in range(8)], "values", None),
        (["1.5", "2.25"] * 4, "values", None),
    ],
)
def test_the_kind_of_target_is_seen(write, values, kind, labels):
    path = write("x,y\n" + "\n".join(f"{i},{v}" for i, v in enumerate(values)))
    recipe = Recipe.learn(read_columns(path), target="y")
    assert recipe.target.kind == kind
    if labels:
        assert np.unique(recipe.apply(read_columns(path)).y).tolist() == labels


def test_the_kind_of_target_may_be_said(write):
    path = write("x,y\n" + "\n".join(f"{i},{i % 3}" for i in range(9)))
    assert Recipe.learn(read_columns(path), target="y", kind="values").target.kind == "values"
    path = write("x,y\n" + "\n".join(f"{i},{i % 3}.5" for i in range(9)))
    recipe = Recipe.learn(read_columns(path), target="y", kind="classes")
    assert np.unique(recipe.apply(read_columns(path)).y).tolist() == ["0.5", "1.5", "2.5"]


def rows(**named):
    length = max(len(v) for v in named.values() if isinstance(v, list))
    cells = [[str(v[i]) if isinstance(v, list) else str(v) for v in named.values()] for i in range(length)]
    return "\n".join(",".join(row) for row in [list(named), *cells])


N = 80


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (rows(x=list(range(4)), y="a"), {}, "at least two classes in 'y', the target, got one only: 'a'"),
        (rows(x=list(range(4)), y="1.5"), {}, "values that vary in 'y'"),
        (rows(x=list(range(4)), y=["a", "", "b", "b"]), {}, "none in 1 rows, first in row 2"),
        (rows(x=list(range(4)), y=["a", "b", "c", "d"]), {}, "got 4 classes in 4 rows"),
        (rows(x=list(range(4)), y=["a", "b", "b", "a"]), {"kind": "values"}, "numbers in column 'y', got 'a' in row 1"),
        (rows(x=list(range(4)), y=["a", "b"] * 2), {"target": "Y"}, "among 'x', 'y', got 'Y'"),
        (rows(x=list(range(4)), y=["a", "b"] * 2), {"environment": "site"}, "environment to be a column"),
        (rows(x=list(range(4)), y=["a", "b"] * 2), {"environment": "x"}, "several rows of each environment in 'x'"),
        (rows(x=list(range(4)), y=["a", "b"] * 2), {"environment": "y"}, "one use of column 'y'"),
        (rows(x=list(range(4)), y=["a", "b"] * 2), {"drop": ["z"]}, "column to drop among"),
        (
            rows(x=list(range(4)), s=["u", "", "u", "v"], y=["a", "b"] * 2),
            {"environment": "s"},
            "none in 1 rows, first in row 2",
        ),
        (rows(x=5, y=["a", "b"] * 2), {}, "columns to learn from"),
        (rows(x=[1, 2, "inf", 4], y=["a", "b"] * 2), {}, "finite numbers in column 'x', got inf in row 3"),
        (rows(x=[1, 2, "1e308", "-1e308"], y=["a", "b"] * 2), {}, "usual size in column 'x'"),
        (
            rows(day=["2020-01-02", "2021-12-30"] * 2, y=["a", "b"] * 2),
            {},
            "'day' has dates; leave them out with --drop day",
        ),
        (rows(day=["1/2/2020 10:00", "30/12/21"] * 2, y=["a", "b"] * 2), {}, "'day' has dates"),
        (rows(i=[f"u{i}" for i in range(N)], y=["a", "b"] * (N // 2)), {}, "80 different texts in 80 rows"),
        (rows(i=["oops", *range(1, N)], y=["a", "b"] * (N // 2)), {}, "'i' has numbers, but for 'oops' in row 1"),
        (rows(t=["x" * 2000, "y"] * 2, y=["a", "b"] * 2), {}, "text of up to 2000 characters"),
        (rows(**{"a b": ["2020-01-01"] * 4, "y": ["a", "b"] * 2}), {}, "--drop 'a b'"),
    ],
)
def test_refused_by_name(write, text, settings, message):
    with pytest.raises(ValueError) as caught:
        Recipe.learn(read_columns(write(text)), **{"target": "y", **settings})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dropped_columns_are_not_looked_at(write):
    text = rows(day=["2020-01-02"] * 4, i=["u", "v", "w", "x"], y=["a", "b"] * 2)
    recipe = Recipe.learn(read_columns(write(text)), target="y", drop=["day"])
    assert recipe.left_out == {"day": "asked for"}
    assert [c.name for c in recipe.columns] == ["i"]


def test_later_tables_must_have_the_read_columns(write):
    recipe = Recipe.learn(read_columns(write(TREES)), target="y")
    with pytest.raises(ValueError, match="none called 'height'; is it the one that is called 'heigth' there"):
        recipe.apply(read_columns(write("heigth,leaf,old\n1,long,true\n")), labelled=False)
    with pytest.raises(ValueError, match="expected numbers in column 'height', got 'tall' in row 2"):
        recipe.apply(read_columns(write("height,leaf,old\n1,long,true\ntall,long,true\n")), labelled=False)
    with pytest.raises(ValueError, match="expected true or false in column 'old', got 'maybe' in row 1"):
        recipe.apply(read_columns(write("height,leaf,old\n1,long,maybe\n")), labelled=False)


def test_missing_values_may_come_later(write):
    text = rows(x=[1.0, 2.0, 4.0, 8.0], y=["a", "b"] * 2)
    recipe = Recipe.learn(read_columns(write(text)), target="y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = recipe.apply(read_columns(write("x\nNA\n3\n")), labelled=False)
    assert table.X[0, 0] == table.X[1, 0]  # 3 is the median
