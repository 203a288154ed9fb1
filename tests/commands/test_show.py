"""The command `weft show`."""

import json
import shutil

from tests.commands.command_cases import refused, run
from tests.faults.hostile import unlisted


def test_show_draws_the_curves(fitted, tmp_path):
    folder, result = fitted
    shown = run("show", str(folder), "--png", str(tmp_path / "c.png")).stdout
    assert "loss   . training, o validation   (median of 2 replicas)" in shown
    assert "accuracy" in shown
    assert f"at step {result['steps']}:" in shown
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    refused(run("show", str(folder), "--png", str(tmp_path / "c.png")), "--force replaces it")
    told = json.loads(run("show", str(folder), "--json").stdout)
    assert len(told["records"]) == 20
    assert told["records"][-1]["step"] == result["steps"]
    assert len(told["records"][0]["valid_loss"]) == 2


def test_show_reads_what_a_crash_of_an_earlier_version_has_left(fitted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fitted[0], folder)
    unlisted(folder)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-40])
    assert len(json.loads(run("show", str(folder), "--json").stdout)["records"]) == 19
    (folder / "metrics.jsonl").write_text("{]\n" + text)
    refused(run("show", str(folder)), "line 1")


def test_show_refuses_records_that_are_not_the_run_s(fitted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(fitted[0], folder)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace("1", "2", 1))
    refused(run("show", str(folder)), "metrics.jsonl as manifest.json says")
