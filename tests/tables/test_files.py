"""Files of tables: reading CSV, Parquet and NPZ."""

import codecs
import pickle

import numpy as np
import pandas as pd
import pytest

from weft.tables.files import plain_cell, read_columns
from weft.tables.recipe import Recipe


def texts(path, **settings):
    return {name: column.to_pylist() for name, column in read_columns(path, **settings).data.items()}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n1,x\n", {"a": ["1"], "b": ["x"]}),
        ("a,b\n1,x", {"a": ["1"], "b": ["x"]}),
        ("\n\na,b\r\n1,x\r\n\r\n", {"a": ["1"], "b": ["x"]}),
        ("a,b\r1,x\r", {"a": ["1"], "b": ["x"]}),
        (codecs.BOM_UTF8 + b"a,b\n1,x\n", {"a": ["1"], "b": ["x"]}),
        ('"a\nc", b\n1,"x ""y"", z\nw"\n', {"a\nc": ["1"], "b": ['x "y", z\nw']}),
        ("a;b\n1,5;x\n", {"a": ["1,5"], "b": ["x"]}),
        ("a\tb\n1\tx\n", {"a": ["1"], "b": ["x"]}),
        ("=cmd|' /C calc'!A0,--target,help\n=1+1,@SUM(A1),-2\n", None),
        (",a\n0,x\n", {"a": ["x"]}),
    ],
)
def test_csv_is_read_as_it_is_written(write, content, expected):
    read = texts(write(content))
    if expected is None:
        expected = {"=cmd|' /C calc'!A0": ["=1+1"], "--target": ["@SUM(A1)"], "help": ["-2"]}
    assert read == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty file"),
        ("  \n \n", "empty file"),
        ("a,b\n", "a header only"),
        ("a,b", "a header only"),
        ("a,b\n1\n", "Row #1: Expected 2 columns, got 1"),
        ("a,b\n1,2\n1,2,3\n", "Row #2: Expected 2 columns, got 3"),
        ("a,b,a,b,c\n1,2,3,4,5\n", "got 'a', 'b' more than once; rename them"),
        (b"a,b\n1,\0\n", "NUL byte in line 2"),
        ("a,b\nä,1\n".encode("latin-1"), "byte 0xe4 in line 2; name the file's encoding, often --encoding latin-1"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16; read it with --encoding utf-16"),
    ],
)
def test_bad_csv_is_refused(write, content, message):
    with pytest.raises(ValueError) as caught:
        read_columns(write(content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_other_encodings_are_read_when_named(write, encoding):
    assert texts(write("größe,b\n1,ä\n".encode(encoding)), encoding=encoding) == {"größe": ["1"], "b": ["ä"]}


@pytest.mark.parametrize("encoding", ["nope", "hex", "zip"])
def test_what_is_no_encoding_is_refused(write, encoding):
    with pytest.raises(ValueError, match="expected an encoding"):
        read_columns(write("a\n1\n"), encoding=encoding)


def test_a_field_longer_than_a_block(write):
    long = "x" * (17 << 20)
    assert texts(write(f"a,b\n1,{long}\n2,y\n"))["b"] == [long, "y"]


def test_ten_thousand_read_columns(write):
    names = [f"c{i}" for i in range(10_000)]
    rows = np.random.default_rng(0).normal(size=(6, 10_000)).round(3)
    table = read_columns(write(",".join(names) + "\n" + "\n".join(",".join(map(str, row)) for row in rows)))
    recipe = Recipe.learn(table, target="c7")
    assert recipe.apply(table).X.shape[1] >= 9_990
    with pytest.raises(ValueError, match=r"\(10000 in all\), got 'c77777'"):
        Recipe.learn(table, target="c77777")


def test_parquet_keeps_its_types(tmp_path):
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3, 4],
            "x": [0.5, None, 1.5, 2.5],
            "code": ["01", "02", "01", "02"],
            "flag": [True, False, True, False],
            "kind": pd.Categorical(["a", "b", "a", None]),
        },
        index=pd.Index([7, 8, 9, 10]),
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_columns(tmp_path / "t.parquet")
    recipe = Recipe.learn(table, target="n", kind="values")
    kinds = {column.name: column.kind for column in recipe.columns}
    assert kinds == {"x": "number", "code": "category", "flag": "boolean", "kind": "category"}
    names = recipe.apply(table).names
    assert names[2:] == ["code=01", "code=02", "flag", "kind=a", "kind=b", "kind=(missing)"]


@pytest.mark.parametrize("values", [[[1, 2], [3]], [b"a", b"b"]])
def test_parquet_columns_that_are_no_numbers_are_named(tmp_path, values):
    pd.DataFrame({"odd": values, "y": [0.5, 1.5]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="'odd' has nothing that weft can encode"):
        Recipe.learn(read_columns(tmp_path / "t.parquet"), target="y")


def test_npz_arrays_are_read_columns(tmp_path):
    X, y = np.arange(8.0).reshape(4, 2), np.array(["a", "b", "a", "b"])
    np.savez(tmp_path / "t.npz", X=X, y=y)
    recipe = Recipe.learn(read_columns(tmp_path / "t.npz"), target="y")
    table = recipe.apply(read_columns(tmp_path / "t.npz"))
    assert table.names == ["X[0]", "X[1]"]
    np.testing.assert_allclose(table.X, (X - X.mean(0)) / X.std(0))


def test_npz_with_pickles_is_refused(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.array([{}, None], dtype=object))
    with pytest.raises(ValueError, match="pickles and not loaded"):
        read_columns(tmp_path / "t.npz")
    (tmp_path / "p.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="expected an NPZ file"):
        read_columns(tmp_path / "p.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3), "b": np.zeros(2)}, "3 in 'a' and 2 in 'b'"),
        ({"a": np.zeros((2, 2, 2))}, "'a' with shape"),
        ({"a": np.zeros(2, complex)}, "complex128"),
        ({"a": np.float64(1.0)}, "'a' with shape"),
    ],
)
def test_npz_arrays_that_are_no_read_columns(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_columns(tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["t.parquet", "t.npz"])
def test_damaged_files(write, name):
    with pytest.raises(ValueError, match=r"expected an? (NPZ|Parquet) file"):
        read_columns(write(b"PAR1 and nothing else", name))


def test_missing_file_folder_and_unknown_kind(write, tmp_path):
    write("a\n1\n", "flowers.csv")
    with pytest.raises(FileNotFoundError, match=r"did you mean .*flowers\.csv"):
        read_columns(tmp_path / "flower.csv")
    with pytest.raises(ValueError, match="got the folder"):
        read_columns(tmp_path)
    with pytest.raises(ValueError, match=r"\.csv.*got 'book\.xlsx'"):
        read_columns(write("a", "book.xlsx"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0"])
def test_cells_that_a_spreadsheet_would_run_are_quoted(text):
    assert plain_cell(text) == f"'{text}"
