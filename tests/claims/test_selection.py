"""Which claims are run, in small repositories."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.bench.claims import listed

from .selection import ROOT, TEST, chosen, third, told, touched, turns

NAMES = [f"claim{i}" for i in range(12)]


@pytest.fixture
def repository(tmp_path):
    """Two families of six claims in a repository with one commit."""

    class Repository:
        root = tmp_path
        paths = {
            name: tmp_path / "claims" / ("even" if i % 2 == 0 else "odd") / f"{name}.py" for i, name in enumerate(NAMES)
        }

        def git(self, *words):
            own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
            subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

        def commit(self, *files, text=""):
            for file in files:
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file).write_text(text)
            self.git("add", "--all")
            self.git("commit", "--allow-empty", "-m", "one")

        def chosen(self, said=""):
            return chosen(self.paths, tmp_path, said)

    made = Repository()
    made.git("init", "-b", "main")
    made.commit(*(path.relative_to(tmp_path) for path in made.paths.values()))
    return made


def evens():
    return set(NAMES[::2])


def test_without_a_parent_or_git_all_run(repository, tmp_path_factory):
    assert repository.chosen() == set(NAMES)
    bare = tmp_path_factory.mktemp("bare")
    assert chosen({"a": bare / "claims" / "f" / "a.py"}, bare) == {"a"}


def test_a_third_of_those_that_did_not_change(repository):
    for i in range(3):
        repository.commit("README.md", text=str(i))
        found = repository.chosen()
        assert len(found) == 4
        assert repository.chosen() == found
    assert set().union(*(third(set(NAMES), f"commit {i}") for i in range(60))) == set(NAMES), "each has its turn"
    assert repository.chosen("all") == set(NAMES)


@pytest.mark.parametrize(
    ("file", "must", "size"),
    [
        ("claims/even/claim4.py", {"claim4"}, 1 + 4),
        ("claims/even/_shared.py", evens(), 6 + 2),
        ("src/weft/strategies/even/sam.py", evens(), 6 + 2),
        ("src/weft/objectives/even/deep/er.py", evens(), 6 + 2),
        ("src/weft/strategies/uneven/sam.py", set(), 4),
        ("src/weft/engine/engine.py", set(), 4),
        ("src/weft/bench/claims/running.py", set(NAMES), 12),
    ],
)
@pytest.mark.parametrize("committed", [True, False])
def test_what_changed_runs(repository, file, must, size, committed):
    repository.commit()
    if committed:
        repository.commit(file, text="new")
    else:
        (repository.root / file).parent.mkdir(parents=True, exist_ok=True)
        (repository.root / file).write_text("new")
    found = repository.chosen()
    assert must <= found
    assert len(found) == size


def test_a_branch_is_compared_with_where_it_left_main(repository):
    repository.git("checkout", "-b", "branch")
    repository.commit("claims/even/claim4.py", text="new")
    repository.commit("claims/odd/claim5.py", text="new")
    repository.git("checkout", "main")
    repository.commit("claims/even/_shared.py", text="another's")
    repository.git("checkout", "branch")
    found = repository.chosen()
    assert {"claim4", "claim5"} <= found
    assert len(found) == 2 + 4
    assert len(repository.chosen("HEAD^")) == 1 + 4
    with pytest.raises(ValueError, match="expected WEFT_CLAIMS=all or a revision that git knows, got 'every'"):
        repository.chosen("every")


def test_the_claims_that_there_are_have_families():
    root = Path(__file__).parents[2]
    for claim in listed():
        path = claim.path.relative_to(root).as_posix()
        assert touched(path, {path})
        assert touched(path, {f"claims/{path.split('/')[-2]}/_shared.py"})
        assert not touched(path, {"src/weft/engine/engine.py", "claims/README.md"})


def test_a_third_is_by_name_and_commit():
    assert third(set(), "a") == set()
    assert len(third(set("abcd"), "a")) == 2
    assert third(set("abcdef"), "a") == third(set("fedcba"), "a")


def test_the_summary_names_what_ran_and_what_did_not():
    def report(name, outcome, when="call", test=TEST):
        return SimpleNamespace(
            nodeid=f"tests/claims/test_quick.py::{test}[{name}]", when=when, skipped=outcome == "skipped"
        )

    reports = [
        report("ring", "passed"),
        report("ring", "passed", when="setup"),
        report("spirals", "failed"),
        report("levels", "skipped"),
        report("other", "passed", test="test_another"),
        SimpleNamespace(message="a warning"),
    ]
    assert told(reports) == ["ran 2: ring, spirals", "did not run 1: levels", "WEFT_CLAIMS=all runs all of them"]
    assert told([report("ring", "passed")]) == ["ran 1: ring", "did not run 0: none"]
    assert told(reports[4:]) == []


def test_slow_tests_take_turns(repository):
    slow = {
        name: (path, "src/a/*.py" if i < 2 else "src/b.py") for i, (name, path) in enumerate(repository.paths.items())
    }

    def taken(said=""):
        return turns(slow, repository.root, said)

    assert taken() == set(NAMES), "without a parent all run"
    repository.commit("src/a/one.py", text="new")
    assert set(NAMES[:2]) <= taken()
    assert len(taken()) == 2 + 4
    repository.commit("claims/even/claim4.py", text="new")
    assert "claim4" in taken()
    assert len(taken()) == 1 + 4
    assert taken("all") == set(NAMES)
    assert set(NAMES[:2]) <= taken("HEAD^^")


def test_what_slow_tests_are_about_exists():
    """A file that was renamed would be missed in silence."""
    said = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for given in re.findall(r"mark\.turns\(([^)]*)\)\n", path.read_text()):
            said |= set(re.findall(r'"([^"{]+)"', given))
    assert len(said) > 10
    assert not [pattern for pattern in said if not any(ROOT.glob(pattern))]
