"""The command `weft fit`: what it trains, tells and refuses."""

import json
import re

import numpy as np
import pytest
from tests.commands.command_cases import fit, refused, run

import weft
from weft.commands.job import Job
from weft.core import capability
from weft.core.manifest import unsealed_beside
from weft.objectives import GAN


def test_fit_tells_the_result_as_json(fitted):
    folder, result = fitted
    assert result["rows"] == {"training": 96, "held_out": 24}
    assert result["measure"] == "accuracy"
    assert result["held_out"] > 0.6
    assert result["interval"][0] < result["held_out"] < result["interval"][1]
    assert result["environments"].keys() == {"a", "b", "c"}
    assert sum(part["rows"] for part in result["environments"].values()) == 24
    assert len(result["replicas"]) == 2
    assert result["strategy"] == "ANDMask(threshold=0.3)"
    assert {p.name for p in folder.iterdir()} >= {"config.json", "recipe.json", "metrics.jsonl", "state.json"}


def test_a_density_that_is_not_exact_says_so(table, tmp_path, monkeypatch):
    density = capability(merge="logmeanexp", kind="lower bound")(lambda self, x: x.sum(-1))
    monkeypatch.setattr(GAN, "log_prob", density, raising=False)
    options = ["--drop", "kind", "--objective", "gan(latent=2, hidden=(8,))", "--steps", "2"]
    told = run("fit", str(table), *options, "--out", str(tmp_path / "a")).stdout
    assert re.search(r"log_prob +lower bound +not exact", told)
    told = run("fit", str(table), *options, "--out", str(tmp_path / "b"), "--json").stdout
    assert json.loads(told)["kinds"] == {"log_prob": "lower bound", "ratio": "estimate"}


def test_held_out_score_is_of_rows_that_were_not_trained_on(fitted, table):
    folder, result = fitted
    job = Job.open(folder)
    arrays = job.data.recipe.apply(job.data.read(), quiet=True)
    learner = weft.load(folder)
    assert learner.score(arrays.X[arrays.held], arrays.y[arrays.held]) == pytest.approx(result["held_out"])
    assert learner.score(arrays.X[~arrays.held], arrays.y[~arrays.held]) == pytest.approx(result["training"])


def test_risk_by_environment_is_told_and_drawn(fitted, table, tmp_path):
    folder, result = fitted
    risk = result["risk"]
    assert (risk["environment"], risk["part"], risk["measure"]) == ("site", "held-out", "loss")
    job = Job.open(folder)
    arrays = job.data.recipe.apply(job.data.read(), quiet=True)
    learner = weft.load(folder)
    for name, part in risk["environments"].items():
        rows = arrays.held & (arrays.environment == name)
        each = []
        for k in range(2):
            p = learner.replica(k).predict_proba(arrays.X[rows])
            numbers = np.searchsorted(learner.classes_, arrays.y[rows])
            each.append(-np.log(p[np.arange(len(p)), numbers]).mean())
        assert part["rows"] == rows.sum()
        assert part["replicas"] == pytest.approx(each, rel=1e-4)
        assert part["risk"] == pytest.approx(np.mean(each), rel=1e-4)
        assert part["score"] == result["environments"][name]["score"]
        assert result["environments"][name]["risk"] == part["risk"]
    assert risk["worst"] == max(risk["environments"], key=lambda name: risk["environments"][name]["risk"])
    assert (folder / "risk.png").read_bytes().startswith(b"\x89PNG")
    assert unsealed_beside(folder / "risk.json") == risk
    assert json.loads(run("show", str(folder), "--json").stdout)["risk"] == risk
    shown = run("show", str(folder)).stdout
    assert "risk by environment: mean loss of the held-out rows, of a replica alone" in shown
    worst = next(line for line in shown.splitlines() if line.rstrip().endswith("the worst"))
    assert worst.split()[:2] == [risk["worst"], str(risk["environments"][risk["worst"]]["rows"])]


def test_risk_of_a_regression_and_of_training_rows(table, tmp_path):
    options = ["--target", "price", "--drop", "kind", "--environment", "site", "--epochs", "5", "--validation", "0"]
    result = run("fit", str(table), *options, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    assert "risk by environment: mean loss of the training rows\n" in result.stdout
    lines = result.stdout.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("site ")))
    assert lines[start].split() == ["site", "rows", "R2", "loss"]
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["a", "b", "c"]
    assert sum("the worst" in line for line in lines[start + 1 : start + 4]) == 1
    assert f"picture: {tmp_path / 'run'}/risk.png" in result.stdout
    (tmp_path / "run" / "risk.json").write_text('{"environments": {"a": 3}}')
    refused(run("show", str(tmp_path / "run")), "expected the risk by environment", "damaged or foreign")
    assert fit(table, tmp_path / "run", "--force").exit_code == 0  # the old run's own files go
    assert not (tmp_path / "run" / "risk.json").exists()


def test_the_worst_of_many_environments_are_shown(tmp_path):
    data = tmp_path / "many.csv"
    rows = [f"{i % 7},{i % 30},{(i * i) % 11}" for i in range(240)]
    data.write_text("x,site,y\n" + "\n".join(rows))
    options = ["--target", "y", "--environment", "site", "--objective", "regression", "--epochs", "1"]
    result = run("fit", str(data), *options, "--out", str(tmp_path / "run"))
    assert "; the 20 worst of 30\n" in result.stdout
    lines = result.stdout.splitlines()
    start = lines.index(next(line for line in lines if line.startswith("site ")))
    risks = [float(line.split()[3]) for line in lines[start + 1 : start + 21]]
    assert risks == sorted(risks, reverse=True)
    assert lines[start + 1].rstrip().endswith("the worst")


def test_net_schedule_patience_and_device_reach_the_learner(table, tmp_path):
    folder = tmp_path / "run"
    options = ["--net", "mlp(hidden=(8,), dropout=0.5, batch_norm=True)", "--schedule", "cosine", "--device", "cpu"]
    result = fit(table, folder, *options, "--patience", "1", "--optimizer", "sgd(lr=0.0)")
    assert result.exit_code == 0, result.stderr
    learner = weft.load(folder)
    kinds = [type(layer).__name__ for layer in learner.objective_.net.features]
    assert kinds == ["Flatten", "Linear", "BatchNorm1d", "ReLU", "Dropout"]
    assert learner.objective_.net.features[-1].p == 0.5
    assert (learner.schedule, learner.patience, learner.device) == ("cosine", 1, "cpu")
    assert "without progress" in learner.stop_reason_ or learner.n_steps_ < 6
    assert run("resume", str(folder)).exit_code == 0


def test_a_target_in_the_thousands_trains(table, tmp_path):
    options = ["--target", "price", "--drop", "kind", "--epochs", "60", "--out", str(tmp_path / "run")]
    result = json.loads(run("fit", str(table), *options, "--json").stdout)
    assert result["measure"] == "R2"
    assert result["held_out"] > 0.6
    predicted = json.loads(run("predict", str(tmp_path / "run"), str(table), "--json").stdout)
    assert 7_000 < np.mean(predicted["predictions"]) < 11_000
    refused(run("predict", str(tmp_path / "run"), str(table), "--proba"), "drop --proba")


def test_solved_objectives_and_columns_named_like_options(table, tmp_path):
    folder = tmp_path / "run"
    options = ["--target", "--target", "--drop", "kind", "--objective", "least-squares(ridge=0.1)"]
    result = run("fit", str(table), *options, "--out", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "held-out R2" in result.stdout
    assert run("resume", str(folder)).exit_code == 0
    assert "solved in closed form: training loss" in run("show", str(folder)).stdout
    refused(run("show", str(folder), "--png", str(tmp_path / "c.png")), "expected records to draw")


def test_objectives_without_a_target(table, tmp_path):
    options = ["--drop", "kind", "--objective", "gan(latent=2, hidden=(8,))", "--steps", "2"]
    result = run("fit", str(table), *options, "--out", str(tmp_path / "run"), "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["progress"]) == 1
    refused(run("predict", str(tmp_path / "run"), str(table)), "expected a run that predicts")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name it with --target COLUMN"),
        (["--target", "knd"], "did you mean 'kind'?"),
        (["--target", "kind", "--environment", "sight"], "did you mean 'site'?"),
        (["--target", "kind", "--task", "age"], "task"),
        (["--target", "kind", "--drop", "colours"], "did you mean 'colour'?"),
        (["--target", "kind", "--strategy", "and-musk"], "did you mean 'and-mask'?"),
        (["--target", "kind", "--strategy", "and-mask(treshold=1)"], "did you mean 'threshold'?"),
        (
            ["--target", "kind", "--strategy", "and-mask(threshold=2)", "--environment", "site"],
            "threshold to be a number in [0, 1]",
        ),
        (["--target", "kind", "--strategy", "and-mask"], "compares environments, got none"),
        (["--target", "kind", "--strategy", "erm+erm+"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(strength=__import__('os'))"], "expected"),
        (["--target", "kind", "--strategy", "ewc(strength=1 + 1)"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(3)"], "expected a name"),
        (["--target", "kind", "--strategy", "ewc(**{})"], "expected a name"),
        (["--target", "kind", "--strategy", "__import__('os').system('true')"], "expected a name"),
        (["--target", "kind", "--strategy", "maml"], "learns from episodes"),
        (["--target", "kind", "--objective", "clasification"], "did you mean 'classification'?"),
        (["--target", "kind", "--objective", "reinforce"], "learns from rows"),
        (["--target", "kind", "--objective", "regression"], "expected numbers in column 'kind', got '=1+1' in row"),
        (["--target", "kind", "--objective", "gan"], "leave --target out"),
        (["--target", "kind", "--optimizer", "adamm"], "did you mean 'adam'?"),
        (["--target", "kind", "--optimizer", "sgd(rate=1)"], "rate"),
        (["--target", "kind", "--epochs", "3", "--steps", "3"], "one of epochs, steps and env_steps"),
        (["--target", "kind", "--batch-size", "-1"], "batch_size"),
        (["--target", "kind", "--replicas", "0"], "replicas"),
        (["--target", "kind", "--validation", "1.5"], "share"),
        (["--target", "kind", "--dtype", "float23"], "did you mean 'float32'?"),
        (["--target", "kind", "--schedule", "cosin"], "did you mean 'cosine'?"),
        (["--target", "kind", "--patience", "0"], "patience to be an integer >= 1"),
        (["--target", "kind", "--device", "gpu"], "expected a device that PyTorch finds here"),
        (["--target", "kind", "--net", "mpl"], "did you mean 'mlp'?"),
        (["--target", "kind", "--net", "mlp(dropuot=0.5)"], "did you mean 'dropout'?"),
        (["--target", "kind", "--net", "mlp(hidden=8)"], "hidden to be widths of layers"),
        (["--target", "kind", "--net", "mlp(dropout=open('x'))"], "expected a number, text or a tuple for dropout"),
        (["--objective", "gan", "--net", "mlp", "--drop", "kind"], "expected an objective with one net"),
        (["--target", "kind", "--objective", "classification(net=mpl())"], "did you mean 'mlp'?"),
        (["--target", "kind", "--strategy", "erm()(x=1)"], "expected a name"),
        (["--target", "kind", "--encoding", "nope"], "expected an encoding"),
    ],
)
def test_fit_refuses_in_one_line_and_leaves_nothing(table, tmp_path, options, message):
    folder = tmp_path / "run"
    refused(run("fit", str(table), *options, "--out", str(folder)), message)
    assert not folder.exists()


def test_a_loss_is_spelled_as_a_setting_and_counts_stay_counts(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    data = tmp_path / "visits.csv"
    rows = zip(x, rng.poisson(np.exp(1 + x / 2)), np.where(x > 0, "ill", "well"), strict=True)
    data.write_text("age,visits,state\n" + "".join(f"{a},{n},{s}\n" for a, n, s in rows))
    quick = ["--epochs", "40", "--optimizer", "adam(lr=0.01)", "--json"]
    counted = ["--target", "visits", "--drop", "state", *quick]
    result = run("fit", str(data), *counted, "--objective", "regression(loss=poisson)", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["training"] > 0.2
    predicted = weft.load(tmp_path / "run").predict(np.array([[-1.0], [1.0]]))
    assert (predicted > 0).all()
    assert predicted[1] > predicted[0]
    assert run("predict", str(tmp_path / "run"), str(data), "--out", str(tmp_path / "p.csv")).exit_code == 0
    named = ["--target", "state", "--drop", "visits", *quick]
    result = run("fit", str(data), *named, "--objective", "classification(loss=cross-entropy(smoothing=0.1))")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["held_out"] > 0.8
    refused(run("fit", str(data), *named, "--objective", "classification(loss=focul)"), "did you mean 'focal'?")
    refused(run("fit", str(data), *named, "--objective", "classification(loss=focal(gama=1))"), "did you mean 'gamma'?")
    refused(run("fit", str(data), *named, "--objective", "classification(loss=ordinal)"), "expected labels in an order")
    refused(run("fit", str(data), *counted, "--objective", "classification(loss=multi-label)"), "it is for Python")
    refused(
        run("fit", str(data), *counted, "--objective", "regression(loss=gamma)"), "expected numbers > 0 in y, got 0"
    )
