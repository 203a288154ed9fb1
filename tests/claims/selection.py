"""Which claims' quick runs, and which slow tests, a test run makes: those that a change touches, and a third of others.

A claim is touched where its file has changed, or its family's (`claims/<family>/_*.py`, and what stands in a folder of
that name in the package), or what runs all claims. The third is chosen by the commit's hash, so that it is another one
at every commit and the same one whenever that is tested again. `WEFT_CLAIMS=all` runs all, `WEFT_CLAIMS=REVISION` says
since when to look for changes; else it is where the branch left main, and on main the commit before. Of slow tests,
marked with `turns`, `WEFT_TURNS` says the same.
"""

import hashlib
import math
import os
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

NOT_YET = "slow, and neither touched nor of this commit's third; WEFT_TURNS=all runs it"
ROOT = Path(__file__).parents[2]
# Those that need images or text in their quick setting.
IMAGES = {
    "binarized_mnist",
    "coloured_codes",
    "coloured_mnist",
    "compression",
    "few_labels",
    "fisher_overlap",
    "fishers",
    "importance_weighted",
    "permuted_mnist",
    "richer_posteriors",
    "row_at_once",
    "shakespeare",
}
TEST = "test_the_quick_setting_holds"
# what every claim depends on and nothing else does; fnmatch's * also stands for folders
RUNNER = ("src/weft/bench/claims/*", "tests/claims/*")


def git(root, *words):
    """What git says, or None where there is no git, no repository or no such revision."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def base_of(root, since=""):
    """The commit to look for changes from, or None where none can be told."""
    if since:
        found = git(root, "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}")
        if found is None:
            raise ValueError(f"expected WEFT_CLAIMS=all or a revision that git knows, got {since!r}")
        return found
    here = git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    for main in ("origin/main", "main"):
        left = git(root, "merge-base", "HEAD", main)
        if left is not None and left != here:
            return left
    return git(root, "rev-parse", "--verify", "--quiet", "HEAD^")


def changed_since(root, base):
    """The files that differ from a commit, those not yet committed too; None where git does not tell."""
    said = (
        git(root, "diff", "--name-only", "--no-renames", base),
        git(root, "ls-files", "--others", "--exclude-standard"),
    )
    return None if None in said else {line for text in said for line in text.splitlines()}


def touched(claim, files):
    """Whether one of the files that changed is a claim's own, its family's or the runner.

    Args:
        claim: its file's path from the repository's root, such as `claims/games/ring.py`.
        files: of all that have changed, likewise.
    """
    family = claim.split("/")[-2]
    mine = (claim, f"claims/{family}/_*", f"src/weft/*/{family}/*", *RUNNER)
    return any(fnmatchcase(file, pattern) for file in files for pattern in mine)


def third(names, commit):
    """A third of the names, rounded up, by a hash of each with the commit."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{commit} {name}".encode()).hexdigest())
    return set(ranked[: math.ceil(len(ranked) / 3)])


def chosen(paths, root, said=""):
    """The names of the claims to run, of a dictionary of names and paths.

    Args:
        paths: by name, each claim's file.
        root: the repository's root.
        said: what `WEFT_CLAIMS` says.
    """
    if said == "all":
        return set(paths)
    base = base_of(root, said)
    files = None if base is None else changed_since(root, base)
    if files is None:
        return set(paths)
    mine = {name for name, path in paths.items() if touched(path.relative_to(root).as_posix(), files)}
    return mine | third(set(paths) - mine, git(root, "rev-parse", "HEAD"))


def turns(slow, root=ROOT, said=None):
    """The names of the slow tests to run: those of a file that has changed, or about one that has, and a third.

    Args:
        slow: by name, the test's file and patterns of the files that it is about.
        root: the repository's root.
        said: what `WEFT_TURNS` says.
    """
    said = os.environ.get("WEFT_TURNS", "") if said is None else said
    base = None if said == "all" else base_of(root, said)
    files = None if base is None else changed_since(root, base)
    if files is None:
        return set(slow)
    mine = {
        name
        for name, (path, *about) in slow.items()
        if any(fnmatchcase(f, p) for f in files for p in (Path(path).relative_to(root).as_posix(), *about))
    }
    return mine | third(set(slow) - mine, git(root, "rev-parse", "HEAD"))


def told(reports):
    """Lines that say which claims ran and which did not, from the reports of a test run."""
    ran, skipped = set(), set()
    for report in reports:
        name = re.search(rf"{TEST}\[(.+)\]$", getattr(report, "nodeid", ""))
        if name and getattr(report, "when", "") == "call":  # what -k leaves out is no report
            (skipped if report.skipped else ran).add(name[1])
    if not ran | skipped:
        return []
    return [
        f"ran {len(ran)}: {', '.join(sorted(ran)) or 'none'}",
        f"did not run {len(skipped)}: {', '.join(sorted(skipped)) or 'none'}",
        *(["WEFT_CLAIMS=all runs all of them"] if skipped else []),
    ]
