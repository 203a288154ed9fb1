"""A run's folder: a free name for it, and making way for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from weft.core.configured import shown
from weft.report.folder import is_run

__all__ = ["clear", "new_folder", "own", "remove"]

_OWN = re.compile(
    r"\.lock|(config\.json|manifest\.json|metrics\.jsonl|state\.json|state-\d+\.safetensors|recipe\.json|report\.html|(risk|tasks)\.(json|png)|evaluation\.json|film\.gif)"
    r"|\.(config|manifest|metrics|state(-\d+)?|recipe|risk|tasks)\.(json|jsonl|safetensors|png)\.(\d+\.tmp|next)"
)


def new_folder(data: Path) -> Path:
    """A free name for a run on this data: `runs/iris`, `runs/iris-2`, ..."""
    base = Path("runs") / (re.sub(r"[^\w.-]+", "_", data.stem).lstrip(".-") or "table")
    number = 1
    while (folder := base if number == 1 else base.with_name(f"{base.name}-{number}")).exists():
        number += 1
    return folder


def clear(folder: Path, *, force: bool) -> None:
    """Makes way for a new run: removes an old run's own files, if asked to, and never anything else."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"expected a folder for the run, got the file {shown(folder)}; choose another with --out")
    names = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    if not names:
        return
    foreign = [name for name in names if not _OWN.fullmatch(name)]
    if foreign or not is_run(folder):
        what = shown((foreign or names)[0])
        raise ValueError(
            f"expected a new or empty folder for the run, got {shown(folder)} with what is not a run's ({what}); "
            "choose another with --out"
        )
    if not force:
        raise ValueError(
            f"expected a new or empty folder for the run, got {shown(folder)} with a run in it; choose another with "
            f"--out, replace it with --force, or go on with it: weft resume {folder}"
        )
    remove(folder, names)


def own(folder: Path) -> list[str]:
    """The names of weft's own files in a folder."""
    return [path.name for path in folder.iterdir() if _OWN.fullmatch(path.name)]


def remove(folder: Path, names: Iterable[str]) -> None:
    """Removes weft's own files; what says that this is a run goes last, so that it can be done again."""
    for name in sorted(names, key=lambda name: name in ("recipe.json", "config.json", "manifest.json")):
        (folder / name).unlink(missing_ok=True)
