"""The command `weft`: usage, help, errors, and weft as a process."""

import signal
import subprocess
import sys
import time

import pytest
from tests.commands.command_cases import command, refused, run

import weft


def test_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"weft {weft.__version__}\n"


def test_starts_without_torch():
    code = "import sys, weft.commands.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "x.csv", "--tragte", "y"], "--target"),
        (["fit", "x.csv", "--epochs", "many"], "'--epochs'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_takes_one_line(args, message):
    refused(run(*args), message, "--help", status=2)


def test_without_a_command_there_is_help():
    assert "predict" in run().output
    for name in ("fit", "predict", "resume", "show", "list"):
        assert run(name, "--help").exit_code == 0


def test_debug_shows_where():
    result = run("fit", "nowhere.csv", "--target", "y", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: expected a file with a table, got 'nowhere.csv'")


def test_names_in_a_file_reach_the_terminal_without_control_characters(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"\x1b[31mred",[bold]y\n' + "\n".join(f"{i},{'ab'[i % 2]}" for i in range(20)))
    refused(run("fit", str(path), "--target", "z"), "'\\x1b[31mred', '[bold]y'")
    result = run("fit", str(path), "--target", "[bold]y", "--epochs", "1", "--environment", "[bold]y")
    refused(result, "one use of column '[bold]y'")
    result = run("fit", str(path), "--target", "[bold]y", "--epochs", "1", "--out", str(tmp_path / "[red]\x1b"))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "[red]" in result.stdout


@pytest.mark.turns("src/weft/commands/*")
def test_piped_output_has_no_control_characters_and_ctrl_c_ends_with_130(table, tmp_path):
    folder = tmp_path / "run"
    going = command("fit", table, "--target", "kind", "--epochs", "100000", "--out", folder)
    deadline = time.monotonic() + 60
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=60)
    assert going.returncode == 130
    assert (out, err) == ("", f"interrupted; go on with: weft resume {folder}\n")
    ended = command("show", folder)
    out, err = ended.communicate(timeout=60)
    assert ended.returncode == 0
    assert err == ""
    assert "loss" in out
    assert all(c.isprintable() or c == "\n" for c in out)


def test_shell_completion():
    going = command(_WEFT_COMPLETE="complete_bash", COMP_WORDS="weft fit --tar", COMP_CWORD="2")
    assert "--target" in going.communicate(timeout=60)[0]
