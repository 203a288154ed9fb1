"""Running a claim, and keeping what came of it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from weft.bench.claims.claim import SCALES
from weft.bench.claims.folder import FORMAT, claims_folder, load
from weft.bench.claims.parts import Parts, identity
from weft.bench.claims.telling import Progress, Report
from weft.bench.machine import machine, versions
from weft.core.files import write_text

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["reproduce"]


def reproduce(
    path: Path,
    *,
    scale: str = "quick",
    seeds: int | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Json:
    """Runs the claim of a file, and keeps the result in `out/claims/NAME`.

    A run that was stopped goes on where it was, part by part, if the claim has parts.

    Args:
        path: the claim's file.
        scale: `quick` or `full`.
        seeds: how many, in place of the setting's.
        out: where results are kept; None keeps nothing.
        progress: called with the share done and what is being done.

    Returns:
        The result, as written to `result.json`.
    """
    from weft import __version__

    if scale not in SCALES:
        raise ValueError(f"expected scale to be 'quick' or 'full', got {scale!r}")
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
        raise ValueError(f"expected a number of seeds >= 1, got {seeds!r}")
    path = Path(path)
    claim = load(path)
    setting = {**getattr(claim, scale), **({} if seeds is None else {"seeds": seeds})}
    chosen = list(range(claim.first_seed, claim.first_seed + setting["seeds"]))
    folder = None if out is None else Path(out) / "claims" / path.stem
    parts = None if folder is None else Parts(folder / "parts.json", identity(path, setting, chosen))
    report = Report(path.stem, progress=progress, parts=parts)
    date, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    claim.run(SimpleNamespace(scale=scale, **setting), chosen, report)
    seconds = time.perf_counter() - begun + report.seconds
    verdict, why = report.verdict()
    told = "" if seeds is None else f" --seeds {seeds}"
    own = path.resolve().is_relative_to(claims_folder().resolve())
    elsewhere = "" if own else f" --folder {path.parent}"
    result = {
        "format": FORMAT,
        "kind": "claim",
        "name": path.stem,
        "title": claim.title,
        "statement": claim.statement,
        "reference": claim.reference,
        "scale": scale,
        "seeds": chosen,
        "setting": {name: str(value) for name, value in setting.items()},
        "figures": report.figures,
        "verdict": verdict,
        "why": why,
        "tolerance": claim.tolerance,
        "tables": report.tables,
        "pictures": report.pictures,
        "budget": {"seconds": round(seconds, 3), "trainings": report.trainings, "steps": report.steps},
        "weft": __version__,
        "date": date,
        "versions": versions(),
        "machine": machine(),
        "command": f"weft reproduce {path.stem} --{scale}{told}{elsewhere}",
    }
    if folder is not None:
        _keep(result, report.drawings, folder)
    return result


def _keep(result: Json, drawings: dict[str, str], folder: Path) -> None:
    """Writes the pictures, then the result that names them, then removes pictures of earlier runs and the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawings.items():
        write_text(folder / name, text)
    write_text(folder / "result.json", json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    for old in folder.glob("*.svg"):
        if old.name not in drawings:
            old.unlink()
    (folder / "parts.json").unlink(missing_ok=True)
