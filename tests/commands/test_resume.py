"""The command `weft resume`: an interrupted run ends as if nothing had happened."""

import shutil
import signal

import pytest
from tests.commands.command_cases import OPTIONS, fit, refused, run, same

from weft.core.manifest import unsealed_beside
from weft.learner.folder import Folder


@pytest.mark.parametrize("moment", [1, 3, 7])
def test_ctrl_c_saves_and_resume_ends_as_if_nothing_had_happened(table, tmp_path, monkeypatch, uninterrupted, moment):
    folder, calls, keep = tmp_path / "run", [], Folder.keep

    def interrupt(self, learner, must=True):
        keep(self, learner, must)
        calls.append(1)
        if len(calls) == moment:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "keep", interrupt)
        result = fit(table, folder, *OPTIONS)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == f"interrupted; go on with: weft resume {folder}\n"
    assert not same(folder, uninterrupted)
    result = run("resume", str(folder))
    assert result.exit_code == 0, result.stderr
    assert "resumed at step" in result.stdout
    assert same(folder, uninterrupted)
    assert unsealed_beside(folder / "tasks.json") == unsealed_beside(uninterrupted / "tasks.json")
    assert "it had already ended" in run("resume", str(folder)).stdout
    assert unsealed_beside(folder / "tasks.json") == unsealed_beside(uninterrupted / "tasks.json")


def test_a_run_without_a_checkpoint_begins_anew(table, tmp_path, uninterrupted):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("recipe.json", "config.json"):
        shutil.copy(uninterrupted / name, folder / name)
    refused(run("predict", str(folder), str(table)), "had not come to a checkpoint")
    assert run("resume", str(folder), "-q").output == ""
    assert same(folder, uninterrupted)


def test_resume_wants_the_same_data(table, tmp_path):
    data, folder = tmp_path / "data.csv", tmp_path / "run"
    shutil.copy(table, data)
    assert fit(data, folder).exit_code == 0
    data.rename(tmp_path / "moved.csv")
    refused(run("resume", str(folder)), "which is not there; if it was moved: --data PATH")
    assert run("resume", str(folder), "--data", str(tmp_path / "moved.csv")).exit_code == 0
    data.write_text(table.read_text().replace("red", "rot"))
    refused(run("resume", str(folder)), "put the file back, or fit anew")
