"""The commands `weft sample`, `weft impute` and `weft score`, of runs that model a table and of one that predicts."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tests.commands.command_cases import refused, run

from weft import load

rng = np.random.default_rng(0)


def plants(rows):
    leaf = rng.choice(["=long", "round"], rows, p=[0.7, 0.3])
    height = (np.where(leaf == "round", 1.2, 1.8) + 0.2 * rng.normal(size=rows)).round(3)
    table = {"height": height, "leaf": leaf, "petals": rng.poisson(5, rows), "wild": rng.random(rows) < 0.4}
    return pd.DataFrame(table).assign(site=rng.choice(["a", "b"], rows), note="n")


def with_gaps(table):
    table = table.copy()
    table.loc[rng.random(len(table)) < 0.2, "height"] = np.nan
    table.loc[rng.random(len(table)) < 0.2, "leaf"] = None
    return table


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plants")
    for name, rows in (("data", 200), ("new", 60)):
        with_gaps(plants(rows)).to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def density(files):
    options = ["--environment", "site", "--drop", "note", "--validation", "0", "--dtype", "float64"]
    result = run(
        "fit",
        str(files / "data.csv"),
        "--objective",
        "independent(smoothing=0.0)",
        *options,
        "--out",
        str(files / "run"),
    )
    assert result.exit_code == 0, result.stderr
    return str(files / "run"), result.stdout


def log_prob(trained, rows):
    """By hand: each column's law of largest likelihood, of what is there of it."""
    height, petals, wild = trained["height"].dropna(), trained["petals"].mean(), trained["wild"].mean()
    shares = trained["leaf"].value_counts(normalize=True)
    each = [
        stats.norm(height.mean(), height.std(ddof=0)).logpdf(rows["height"]),
        np.log(rows["leaf"].map(shares).to_numpy(float)),
        stats.poisson(petals).logpmf(rows["petals"]),
        np.log(np.where(rows["wild"], wild, 1 - wild)),
    ]
    return np.nansum(each, axis=0)


def test_fit_without_a_target_tells_the_likelihood_and_its_kind(files, density):
    folder, printed = density
    data = pd.read_csv(files / "data.csv")
    mean = log_prob(data, data).mean()
    line = next(line for line in printed.splitlines() if "log-likelihood" in line)
    assert line.startswith("training log-likelihood")
    assert f"{mean:.3f}" in line
    assert "nats per row, exact; 95%: " in line
    for command in ("weft sample", "weft impute", "weft score"):
        assert f"{command} {folder}" in printed


def test_score_by_hand_and_by_environment(files, density):
    folder, _ = density
    data, new = pd.read_csv(files / "data.csv"), pd.read_csv(files / "new.csv")
    wanted = log_prob(data, new)
    told = json.loads(run("score", folder, str(files / "new.csv"), "--json").stdout)
    found = told["likelihood"]
    assert found["mean"] == pytest.approx(wanted.mean(), rel=1e-6)
    low, high = stats.ttest_1samp(wanted, 0).confidence_interval(0.95)
    assert found["interval"] == pytest.approx([low, high], rel=1e-6)
    assert (found["kind"], found["unit"], found["rows"]) == ("exact", "nats per row", 60)
    for site, part in told["environments"].items():
        assert part["likelihood"]["mean"] == pytest.approx(wanted[new["site"] == site].mean(), rel=1e-6)
    printed = run("score", folder, str(files / "new.csv")).stdout
    assert f"{wanted.mean():.3f}" in printed
    assert "mean over rows of log p in nats, exact" in printed
    refused(run("score", folder, str(files / "none.csv")), "none.csv")


def test_sample_has_the_columns_and_is_fixed_by_its_seed(files, density, tmp_path):
    folder, _ = density
    one = run("sample", folder, "-n", "500").stdout
    assert one == run("sample", folder, "-n", "500").stdout
    assert one != run("sample", folder, "-n", "500", "--seed", "1").stdout
    rows = pd.read_csv(io.StringIO(one))
    assert rows.columns.tolist() == ["height", "leaf", "petals", "wild"]
    assert set(rows["leaf"]) == {"'=long", "round"}  # which a spreadsheet does not run
    assert rows["wild"].dtype == bool
    data = pd.read_csv(files / "data.csv")
    assert stats.ks_2samp(rows["height"], data["height"].dropna()).pvalue > 1e-4
    assert stats.poisson(5).cdf(rows["petals"]).mean() == pytest.approx(0.55, abs=0.1)
    out = tmp_path / "s.csv"
    assert run("sample", folder, "-n", "500", "--out", str(out)).stdout == f"500 rows, direct draws, seed 0 in {out}\n"
    assert out.read_text() == one
    refused(run("sample", folder, "--out", str(out)), "a new file for the rows", "--force replaces it")
    plain = json.loads(run("sample", folder, "-n", "2", "--json").stdout)
    assert (plain["rows"], plain["kind"], len(plain["table"])) == (2, "direct", 2)
    refused(run("sample", folder, "-n", "0"), "'-n'", status=2)


def test_impute_fills_in_gaps_and_leaves_the_rest_as_it_is(files, density):
    folder, _ = density
    result = run("impute", folder, str(files / "new.csv"))
    before = list(csv.DictReader(io.StringIO((files / "new.csv").read_text())))
    after = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(after) == len(before) == 60
    gaps = 0
    for old, new in zip(before, after, strict=True):
        for name, cell in old.items():
            if cell:
                assert new[name].lstrip("'").lower() == cell.lower()
            else:
                gaps += 1
                assert new[name]
    plain = json.loads(run("impute", folder, str(files / "new.csv"), "--json").stdout)
    assert sum(plain["filled"].values()) == gaps
    assert set(plain["filled"]) == {"height", "leaf"}


def test_impute_tells_of_gaps_that_it_leaves(files, density, tmp_path):
    folder, _ = density
    table = pd.read_csv(files / "new.csv")
    table["note"] = None
    table.to_csv(tmp_path / "t.csv", index=False)
    result = run("impute", folder, str(tmp_path / "t.csv"), "--out", str(tmp_path / "whole.csv"))
    assert result.stderr == "note: gaps are left in columns that the run does not model: note\n"
    refused(run("impute", folder, str(tmp_path / "t.csv"), "--out", str(tmp_path / "whole.csv")), "--force")


def test_a_category_without_a_probability_is_told(files, density, tmp_path):
    table = pd.read_csv(files / "new.csv")
    table.loc[3, "leaf"] = "square"
    table.to_csv(tmp_path / "t.csv", index=False)
    for command in ("impute", "score"):
        refused(run(command, density[0], str(tmp_path / "t.csv")), "got 'square' in row 4", "no probability is known")


def test_a_run_that_predicts_is_scored_and_draws_nothing(fitted, table, tmp_path):
    folder = str(fitted[0])
    told = json.loads(run("score", folder, str(table), "--json").stdout)
    answers = json.loads(run("predict", folder, str(table), "--json").stdout)
    assert told["score"] == answers["score"]
    right = round(told["score"] * 120)
    assert told["interval"] == pytest.approx(list(stats.binomtest(right, 120).proportion_ci(method="wilson")), rel=1e-5)
    assert set(told["environments"]) == {"a", "b", "c"}
    assert "likelihood" not in told
    assert "accuracy" in run("score", folder, str(table)).stdout
    refused(run("sample", folder), "expected a run that draws rows", "offers", "independent or mixture")
    refused(run("impute", folder, str(table)), "expected a run that fills in what is missing")
    bare = tmp_path / "bare.csv"
    pd.read_csv(table).drop(columns="kind").to_csv(bare, index=False)
    refused(run("score", folder, str(bare)), "a table with its target", "no column 'kind'")


def test_a_model_of_rows_given_their_class_is_told_the_class(files, tmp_path):
    """It is fitted, scored by log p(x | y), and fills in gaps given y; without that column it says so."""
    data, folder = str(files / "data.csv"), str(tmp_path / "run")
    options = ["--target", "site", "--drop", "note", "--steps", "100", "--out", folder]
    result = run("fit", data, "--objective", "vae(latent=1, hidden=(8,), conditional=True, gaps=True)", *options)
    assert result.exit_code == 0, result.stderr
    learner = load(folder)
    table = pd.read_csv(files / "new.csv")
    known = learner.log_prob(table.drop(columns=["site", "note"]), y=table["site"].to_numpy())
    told = json.loads(run("score", folder, str(files / "new.csv"), "--json").stdout)
    assert told["likelihood"]["mean"] == pytest.approx(float(np.mean(known)), rel=1e-5)
    other = table.assign(site=np.where(table["site"] == "a", "b", "a"))
    other.to_csv(tmp_path / "other.csv", index=False)
    turned = json.loads(run("score", folder, str(tmp_path / "other.csv"), "--json").stdout)
    assert turned["likelihood"]["mean"] != told["likelihood"]["mean"]
    filled = json.loads(run("impute", folder, str(files / "new.csv"), "--json").stdout)
    assert filled["filled"]["height"] == int(table["height"].isna().sum())
    table.drop(columns="site").to_csv(tmp_path / "bare.csv", index=False)
    for command in ("score", "impute"):
        refused(run(command, folder, str(tmp_path / "bare.csv")), "expected a column 'site'", "the class that VAE")
    refused(run("sample", folder), "without being told their class", "learner.sample(n, y=[...])")
