"""The command `weft predict`."""

import csv
import io
import json

import pytest
from tests.commands.command_cases import refused, run


def test_predict_writes_csv_that_spreadsheets_do_not_run(fitted, table, tmp_path):
    folder, _ = fitted
    result = run("predict", str(folder), str(table), "--proba")
    assert result.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == 120
    assert {row["prediction"] for row in rows} == {"'=1+1", "no"}
    for row in rows:
        assert float(row["p(=1+1)"]) + float(row["p(no)"]) == pytest.approx(1.0, abs=1e-5)
        assert row["prediction"] == ("no" if float(row["p(no)"]) > 0.5 else "'=1+1")
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    plain = json.loads(run("predict", str(folder), str(table), "--json").stdout)
    assert plain["predictions"] == [row["prediction"].lstrip("'") for row in rows]
    assert plain["measure"] == "accuracy"
    assert plain["score"] > 0.6


def test_predict_does_not_overwrite(fitted, table, tmp_path):
    folder, _ = fitted
    out = tmp_path / "p.csv"
    assert run("predict", str(folder), str(table), "--out", str(out)).exit_code == 0
    before = out.read_text()
    assert before.startswith("row,prediction\n1,")
    refused(run("predict", str(folder), str(table), "--out", str(out)), "--force replaces it")
    refused(run("predict", str(folder), str(table), "--out", str(tmp_path)), "a folder")
    assert run("predict", str(folder), str(table), "--out", str(out), "--force", "-q").output == ""
    assert out.read_text() == before


def test_predict_counts_new_categories_and_names_missing_columns(fitted, tmp_path):
    folder, _ = fitted
    later = tmp_path / "later.csv"
    later.write_text("age,colour,smokes,price,--target\n41,teal,true,9000,1\n,red,false,8000,0\n")
    result = run("predict", str(folder), str(later))
    assert result.stdout.count("\n") == 3
    assert result.stderr == (
        "warning: categories that training has not seen, encoded as none of them: 'colour' in 1 rows\n"
    )
    later.write_text("age,color,smokes,price,--target\n41,red,true,9000,1\n")
    refused(run("predict", str(folder), str(later)), "got none called 'colour'; is it the one that is called 'color'")
