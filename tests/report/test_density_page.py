"""The page of a run that models a table: its likelihood and kind, unusual rows, data beside samples."""

import numpy as np
import pandas as pd
import pytest
from tests.commands.command_cases import run
from tests.report.test_pages import Reader

import weft
from weft.report.writing import render

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    table = pd.DataFrame(
        {
            "height": rng.normal(1.7, 0.1, 150),
            "weight": rng.normal(70, 9, 150),
            "leaf": rng.choice(["long", "round"], 150),
            "petals": rng.poisson(5, 150),
        }
    )
    table.loc[7, "height"] = 9.9
    table.loc[3, "leaf"] = None
    table.to_csv(folder / "data.csv", index=False)
    result = run("fit", str(folder / "data.csv"), "--objective", "independent", "--out", str(folder / "run"), "-q")
    assert result.exit_code == 0, result.stderr
    return folder, pd.read_csv(folder / "data.csv")


def test_the_likelihood_with_its_kind_and_the_least_likely_rows(made):
    folder, table = made
    page = Reader(render([folder / "run"]))
    words = " ".join(page.words)
    logs = weft.load(folder / "run", validation=None).log_prob(table)
    assert "It is exact." in words
    assert "nats" in words
    unusual = page.table("The 10 rows that the model finds least likely")
    assert [int(row[0]) for row in unusual[1:]] == (np.argsort(logs)[:10] + 1).tolist()
    assert int(unusual[1][0]) == 8  # the giant
    assert float(unusual[1][1].replace("−", "-")) == pytest.approx(logs.min(), rel=1e-3)


def test_every_column_and_pair_is_drawn_beside_samples(made):
    folder, _ = made
    text = render([folder / "run"])
    for title in ("Histograms of height", "Histograms of weight", "Histograms of petals", "Shares of leaf"):
        assert f"<title>{title}" in text.replace("\n", "") or title in text
    for pair in ("height and weight", "height and petals", "weight and petals"):
        assert f"Points of 30 rows of data and 50 rows of samples in the plane of {pair}" in text
    assert "2 000 samples beside the 30 held-out rows" in text.replace("\u202f", " ").replace(",", " ").replace(
        "2000", "2 000"
    )


def test_without_its_data_the_page_has_samples_alone(made, tmp_path):
    folder, _ = made
    moved = folder / "data.csv"
    kept = moved.read_bytes()
    moved.write_bytes(kept + b"\n")
    try:
        text = render([folder / "run"])
    finally:
        moved.write_bytes(kept)
    assert "Unusual rows" not in text
    assert "samples are like" in text
