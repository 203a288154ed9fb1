"""Running a claim, and keeping what came of it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from weft.bench.claims.claim import SCALES, Claim
from weft.bench.claims.folder import FORMAT, claims_folder, last, load
from weft.bench.claims.judging import FAILS, anew, as_kept, concluded
from weft.bench.claims.parts import Parts, claim_digests, identity
from weft.bench.claims.telling import Progress, Report
from weft.bench.machine import machine, versions
from weft.bench.statistics import FEWEST_SEEDS
from weft.core.files import write_text
from weft.report.digests import BY_HAND, EARLIER, code, content, digest, standing

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["caught", "judge", "reproduce"]


def reproduce(
    path: Path,
    *,
    scale: str = "quick",
    seeds: int | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    workers: int = 1,
) -> Json:
    """Runs the claim of a file, and keeps the result in `out/claims/NAME`.

    A run that was stopped goes on where it was, part by part, if the claim has parts.

    Args:
        path: the claim's file.
        scale: `quick` or `full`.
        seeds: how many, in place of the setting's.
        out: where results are kept; None keeps nothing.
        progress: called with the share done and what is being done.
        workers: processes among which the claim's parts are shared out; one without parts runs in one process, and
            `processes` in the result's budget says so.

    Returns:
        The result, as written to `result.json`.
    """
    if scale not in SCALES:
        raise ValueError(f"expected scale to be 'quick' or 'full', got {scale!r}")
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
        raise ValueError(f"expected a number of seeds >= 1, got {seeds!r}")
    path = Path(path)
    claim = load(path)
    setting = {**getattr(claim, scale), **({} if seeds is None else {"seeds": seeds})}
    folder = None if out is None else Path(out) / "claims" / path.stem
    key = identity(path, setting, _seeds(claim, setting))
    parts = Parts() if folder is None else Parts(folder / "parts.json", key)
    report = Report(path.stem, progress=progress, parts=parts, workers=workers)
    result = _run(claim, path, scale, setting, report)
    told = "" if seeds is None else f" --seeds {seeds}"
    own = path.resolve().is_relative_to(claims_folder().resolve())
    elsewhere = "" if own else f" --folder {path.parent}"
    result["command"] = f"weft reproduce {path.stem} --{scale}{told}{elsewhere}"
    _sign(result, {"parts": parts.digests()})
    if folder is not None:
        _keep(result, report.drawings, folder)
    return result


def caught(path: Path, *, progress: Progress | None = None) -> Json:
    """Runs a claim's mutant in its quick setting, with as many seeds as an interval needs; nothing of it is kept.

    Args:
        path: the claim's file.
        progress: called with the share done and what is being done.

    Returns:
        The result; `mutant` in it says what was broken, and `caught` whether the figures failed that must.
    """
    claim = load(Path(path))
    with claim.broken() as mutant:
        report = Report(Path(path).stem, progress=progress)
        setting = {**claim.quick, "seeds": max(claim.quick["seeds"], FEWEST_SEEDS + 1), **mutant.setting}
        result = _run(claim, Path(path), "quick", setting, report)
    missed = [f["name"] for f in result["figures"] if f["verdict"] == FAILS]
    result |= {"mutant": mutant.what, "caught": any(mutant.misses in name for name in missed)}
    return result


def judge(name: str, out: Path) -> Json:
    """Judges a claim's kept result anew, without training: by every seed's score and the bounds that it holds.

    Args:
        name: the claim's.
        out: where results are kept.
    """
    folder = Path(out) / "claims" / name
    result = last(name, Path(out))
    if result is None:
        raise FileNotFoundError(f"expected a result of {name} in {folder}, got none; run it: weft reproduce {name}")
    fault = standing(result, folder)
    if fault in (EARLIER, BY_HAND):
        raise ValueError(f"expected the result in {folder} as it was written, got one that was {fault}; run it again")
    result["figures"] = [anew(figure) for figure in result["figures"]]
    result["verdict"], result["why"] = concluded(result["figures"])
    kept = [figure["name"] for figure in result["figures"] if as_kept(figure)]
    result["judged"] = {"date": _now(), "weft": versions()["weft"], "intervals_as_kept": kept}
    _sign(result, {})
    write_text(folder / "result.json", _text(result))
    return result


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _seeds(claim: Claim, setting: Json) -> list[int]:
    return list(range(claim.first_seed, claim.first_seed + setting["seeds"]))


def _run(claim: Claim, path: Path, scale: str, setting: Json, report: Report) -> Json:
    """The result, without what says who asked for it."""
    date, begun, chosen = _now(), time.perf_counter(), _seeds(claim, setting)
    claim.run(SimpleNamespace(scale=scale, **setting), chosen, report)
    seconds = time.perf_counter() - begun + report.seconds
    verdict, why = report.verdict()
    return {
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
        "pictures": [{**p, "sha256": digest(report.drawings[p["file"]].encode())} for p in report.pictures],
        "budget": {
            "seconds": round(seconds, 3),
            "trainings": report.trainings,
            "steps": report.steps,
            "processes": report.processes,
        },
        "weft": versions()["weft"],
        "date": date,
        "versions": versions(),
        "machine": machine(),
        "digests": {"weft": code(), **claim_digests(path, setting), "data": digest(sorted(report.data))},
    }


def _text(result: Json) -> str:
    return json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _sign(result: Json, more: Json) -> None:
    """Puts the digest of all that a result says into it."""
    result["digests"] |= more
    result["digests"]["content"] = content(json.loads(_text(result)))


def _keep(result: Json, drawings: dict[str, str], folder: Path) -> None:
    """Writes the pictures, then the result that names them, then removes pictures of earlier runs and the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawings.items():
        write_text(folder / name, text)
    write_text(folder / "result.json", _text(result))
    for old in folder.glob("*.svg"):
        if old.name not in drawings:
            old.unlink()
    (folder / "parts.json").unlink(missing_ok=True)
