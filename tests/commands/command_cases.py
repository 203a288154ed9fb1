"""What tests of the commands share: running one, and what an error must look like."""

import os
import subprocess
import sys

import torch
from typer.testing import CliRunner

import weft
from weft.commands.app import app


def run(*args):
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200"})


def refused(result, *messages, status=1):
    """An error is one line on stderr, and nothing on stdout."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    for message in messages:
        assert message in result.stderr


QUICK = ["--epochs", "3", "--seed", "1"]
OPTIONS = ["--task", "site", "--strategy", "ewc(strength=10)", "--replicas", "2"]


def fit(table, folder, *more):
    return run("fit", str(table), "--target", "kind", *QUICK, "--out", str(folder), *more)


def command(*args, **env):
    code = "import sys; from weft.commands.app import app; sys.argv[0] = 'weft'; app()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def parameters(folder):
    return {f"{i}.{n}": p for i, (_, s) in enumerate(weft.load(folder).training_.runs) for n, p in s.params.items()}


def same(one, other):
    one, other = parameters(one), parameters(other)
    return one.keys() == other.keys() and all(torch.equal(p, other[n]) for n, p in one.items())
