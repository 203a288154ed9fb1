"""Damages a run's files in every way that comes to mind, and asks everything that reads them.

What is damaged must either be refused, by an error that names the file, or make no difference.
"""

import json
import os
import re
import shutil
import signal
from contextlib import contextmanager

import numpy as np

import weft
from weft.commands.job import Job, train
from weft.commands.job.asked import Options
from weft.report.folder import about, done, records, risk
from weft.report.tasks import tasks
from weft.report.writing import render
from weft.tables.files import read_columns


def made(path, seed, **options):
    """A run of `weft fit`, with environments or tasks."""
    rng = np.random.default_rng(0)
    rows = [
        f"{a:.3f},{b:.3f},{'abc'[i % 3]},{'yes' if a > b else 'no'}"
        for i, (a, b) in enumerate(rng.normal(size=(60, 2)))
    ]
    table = path.with_name("table.csv")
    table.write_text("\n".join(["a,b,site,kind", *rows]))
    columns = read_columns(table)
    options = Options(target="kind", epochs=2, seed=seed, net="mlp(hidden=(4,))", device="cpu", **options)
    train(Job.plan(columns, options), columns, path)
    return path


def _flip(data, rng):
    i = rng.integers(len(data))
    return data[:i] + bytes([data[i] ^ 1 << rng.integers(8)]) + data[i + 1 :]


def _byte(data, rng):
    i = rng.integers(len(data))
    return data[:i] + bytes([rng.integers(256)]) + data[i + 1 :]


def _digit(data, rng):
    """Another digit in place of one: a text that is still well-formed."""
    places = [m.start() for m in re.finditer(rb"[0-9]", data)]
    if not places:
        return _flip(data, rng)
    i = places[rng.integers(len(places))]
    return data[:i] + str((data[i] - 48 + rng.integers(1, 10)) % 10).encode() + data[i + 1 :]


def _word(data, rng):
    """Another word of JSON in place of one."""
    places = list(re.finditer(rb"true|false|null", data))
    if not places:
        return _digit(data, rng)
    found = places[rng.integers(len(places))]
    return (
        data[: found.start()] + {b"true": b"false", b"false": b"true", b"null": b"true"}[found[0]] + data[found.end() :]
    )


def _key(data, rng):
    """A name in JSON that is another."""
    places = list(re.finditer(rb'"(\w+)":', data))
    if not places:
        return _flip(data, rng)
    i = places[rng.integers(len(places))].start(1)
    return data[:i] + b"q" + data[i + 1 :]


def _span(data, rng):
    i, j = sorted(rng.integers(len(data) + 1, size=2))
    return i, j


def _cut(data, rng):
    return data[: rng.integers(len(data))]


def _zeros(data, rng):
    i, j = _span(data, rng)
    return data[:i] + bytes(j - i) + data[j:]


def _lose(data, rng):
    i, j = _span(data, rng)
    return data[:i] + data[j:]


def _twice(data, rng):
    i, j = _span(data, rng)
    return data[:j] + data[i:]


def _more(data, rng):
    return data + rng.bytes(rng.integers(1, 40))


def _line(data, rng):
    """Lines in another order."""
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _nest(data, rng):
    depth = int(rng.choice([800, 100_000]))
    return b"[" * depth + b"]" * depth


DAMAGE = [_flip, _byte, _digit, _digit, _word, _key, _cut, _zeros, _lose, _twice, _more, _line, _nest]


def damage(folder, other, rng):
    """Damages one file of a run, given another run's folder; gives what was done, and the file's name."""
    names = sorted(p.name for p in folder.iterdir())
    name = names[rng.integers(len(names))]
    path = folder / name
    data = path.read_bytes()
    while True:
        kind = rng.integers(len(DAMAGE) + 5)
        if kind < len(DAMAGE):
            told, new = DAMAGE[kind].__name__, DAMAGE[kind](data, rng)
            if new == data:
                continue
            path.write_bytes(new)
            return told, name
        told = ("_gone", "_folder", "_pipe", "_empty", "_other")[kind - len(DAMAGE)]
        twin = sorted(other.glob("*.safetensors" if name.endswith(".safetensors") else name))
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        if told == "_gone" and name not in listed:
            continue  # that there is no such file says nothing wrong
        if told == "_other" and (not twin or twin[0].read_bytes() == data):
            continue
        path.unlink()
        if told == "_folder":
            path.mkdir()
        elif told == "_pipe":
            os.mkfifo(path)
        elif told == "_empty":
            path.write_bytes(b"")
        elif told == "_other":
            shutil.copy(twin[0], path)
        return told, name


def _loaded(folder):
    learner = weft.load(folder, validation=None)
    X = np.linspace(-1, 1, 3 * learner.n_features_in_).reshape(3, -1)
    seen = [learner.predict_proba(X).tolist(), learner.stop_reason_, learner.n_steps_, learner.tasks_, learner.seeds_]
    return repr([learner.get_params(), seen, learner.history_, learner.training_.phase.data])


def _recipe(folder):
    return repr(Job.open(folder))


def _page(folder):
    return re.sub(r'href="data:[^"]*"', "", render([folder]))


READERS = {f.__name__: f for f in (_loaded, _recipe, _page, about, done, records, risk, tasks)}


@contextmanager
def limited(seconds):
    """What takes longer hangs."""

    def late(number, frame):
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answers(folder):
    """What each reader gives, or the error that it raises."""
    found = {}
    for name, read in READERS.items():
        try:
            with limited(20):
                found[name] = repr(read(folder))
        except Exception as error:
            found[name] = error
    return found


def told(error, name):
    """Whether an error is one that a user understands: of the right kind, and it names the file."""
    return isinstance(error, ValueError | FileNotFoundError) and name in str(error) and "expected" in str(error)


def fuzz(folders, place, number, seed):
    """Damages copies of runs; gives what was silent or obscure, and how many were refused or harmless."""
    rng = np.random.default_rng(seed)
    place.mkdir(parents=True, exist_ok=True)
    work, wrong, counts = place / "run", [], {"refused": 0, "harmless": 0}
    expected = {}
    for folder in folders:
        shutil.copytree(folder, work)
        expected[folder] = answers(work)
        shutil.rmtree(work)
    for folder, found in expected.items():
        errors = {name: answer for name, answer in found.items() if isinstance(answer, Exception)}
        if errors:
            raise RuntimeError(f"{folder} cannot be read: {errors}")
    for _ in range(number):
        folder, other = rng.permutation(len(folders))[:2]
        shutil.copytree(folders[folder], work)
        kind, name = damage(work, folders[other], rng)
        refused = False
        for reader, answer in answers(work).items():
            if isinstance(answer, Exception):
                refused = True
                if not told(answer, name):
                    wrong.append((kind, name, reader, "obscure", repr(answer)[:400]))
            elif answer != expected[folders[folder]][reader]:
                wrong.append((kind, name, reader, "silent", answer[:200]))
        counts["refused" if refused else "harmless"] += 1
        shutil.rmtree(work)
    return wrong, counts
