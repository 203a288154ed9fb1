"""What a run keeps about its table."""

import json
from pathlib import Path

import pytest

from weft.tables import KeptTable, Recipe, read_columns
from weft.tables.kept import keep

FITTED = Path(__file__).parents[1] / "guard" / "folders" / "fitted"


@pytest.fixture
def run(tmp_path):
    """A table, and a folder that keeps it."""
    data = tmp_path / "trees.csv"
    data.write_text("height,leaf,kind\n1.5,long,fir\n,round,oak\n2.5,round,oak\n3,long,für\n", encoding="latin-1")
    columns = read_columns(data, encoding="latin-1")
    kept = KeptTable.of(columns, Recipe.learn(columns, target="leaf"), encoding="latin-1")
    keep(tmp_path / "run", {**kept.to_json(), "options": {"encoding": "latin-1"}})
    return kept, data, tmp_path / "run"


def test_a_table_is_kept_and_read_again(run):
    kept, data, folder = run
    assert KeptTable.open(folder) == kept
    assert kept.read().data["kind"].to_pylist()[-1] == "für"
    moved = data.rename(data.with_name("moved.csv"))
    with pytest.raises(FileNotFoundError, match="which is not there; if it was moved"):
        kept.read()
    assert kept.read(moved).sha256 == kept.sha256
    moved.write_text("height,leaf,kind\n1.5,long,fir\n")
    with pytest.raises(ValueError, match="expected the data that the run was begun with"):
        kept.read(moved)


def test_a_folder_of_an_earlier_version_is_read():
    kept = KeptTable.open(FITTED)
    assert [column.name for column in kept.recipe.columns] == ["age"]
    assert kept.read(FITTED.with_name("table.csv")).rows


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: {**plain, "format": 7},
        lambda plain: {**plain, "weft": "0.0"},
        lambda plain: {name: value for name, value in plain.items() if name != "sha256"},
        lambda plain: {**plain, "options": {"encoding": 8}},
        lambda plain: {**plain, "data": {"path": "x"}},
        lambda plain: [],
    ],
)
def test_what_is_not_weft_s_is_refused(run, change):
    _, _, folder = run
    plain = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps(change(plain)))
    with pytest.raises(ValueError, match="damaged or foreign"):
        KeptTable.open(folder)
    (folder / "recipe.json").unlink()
    with pytest.raises(ValueError, match="made in Python"):
        KeptTable.open(folder)
