"""What a run's folder tells: what the run is, its records, and its risk by environment."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core import manifest
from weft.core.files import parsed, read_bytes, read_json, write_bytes, write_text
from weft.report.picture import picture

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["about", "done", "evaluation", "inexact", "is_run", "keep_risk", "records", "risk", "run_folder", "world_of"]


def run_folder(folder: Path) -> Path:
    """The folder, if it holds a run."""
    if not folder.exists():
        near = [p.parent for p in Path().glob("runs/*/recipe.json")][:3]
        hint = f"; there are {', '.join(map(str, near))}" if near else ""
        raise FileNotFoundError(f"expected a run's folder, got {str(folder)!r}, which is not there{hint}")
    if not folder.is_dir():
        raise ValueError(f"expected a run's folder, got the file {str(folder)!r}")
    if not is_run(folder):
        raise ValueError(f"expected a run of weft in {str(folder)!r}, got another kind of folder")
    return folder


def is_run(folder: Path) -> bool:
    """Whether one of the files says that it is weft's."""
    marked = {"recipe.json": {"recipe"}, "config.json": {"params"}, manifest.NAME: {"run", "files"}}
    for name, marks in marked.items():
        try:
            plain = read_json(folder / name)
        except (OSError, ValueError):
            continue
        if isinstance(plain, dict) and {"weft", *marks} <= plain.keys():
            return True
    return False


def about(folder: Path) -> Json:
    """What a run is, in a line and by its configuration."""
    run_folder(folder)
    told: Json = {"title": str(folder)}
    found = manifest.opened(folder)
    for name in ("config", "recipe"):
        path = folder / f"{name}.json"
        text = _read(path) if path.exists() or (found is not None and path.name in found.files) else None
        if text is None:
            continue
        plain = parsed(text, path)
        told[name] = plain if isinstance(plain, dict) else {}
    worlds = (told.get("recipe", {}).get("recipe") or {}).get("worlds")
    if isinstance(worlds, list) and isinstance(told["recipe"].get("options"), dict):
        own = told["recipe"]["options"]
        asked = [f"{name} {own[name]}" for name in ("objective", "strategy", "replicas") if own.get(name)]
        told["title"] = f"{folder}: {', '.join([*map(str, worlds), *asked])}"
    data, options = (told.get("recipe", {}).get(part) for part in ("data", "options"))
    if isinstance(data, dict) and isinstance(options, dict) and "path" in data:
        asked = [
            f"{name} {options[name]}" for name in ("target", "objective", "strategy", "replicas") if options.get(name)
        ]
        told["title"] = f"{folder}: {', '.join([Path(str(data['path'])).name, *asked])}"
    return told


def inexact(told: Json) -> str:
    """What a run answers with bounds or estimates, of what `about` tells; "" where all is exact.

    >>> inexact({"config": {"kinds": {"log_prob": "lower bound"}}})
    'log_prob is a lower bound, not exact'
    """
    kinds = (told.get("config") or {}).get("kinds")
    if not isinstance(kinds, dict) or not kinds:
        return ""
    each = [f"{name} is {'an' if str(kind)[:1] in 'aeiou' else 'a'} {kind}" for name, kind in kinds.items()]
    return f"{', '.join(each)}, not exact"


def world_of(folder: Path) -> list[str] | None:
    """The worlds in which a run acts, as they were written; None where `weft train` has not made it."""
    text = None if not (folder / "recipe.json").exists() else read_bytes(folder / "recipe.json")
    try:
        worlds = None if text is None else parsed(text, folder / "recipe.json")["recipe"]["worlds"]
    except (ValueError, KeyError, TypeError):
        return None
    return [str(world) for world in worlds] if isinstance(worlds, list) else None


def evaluation(folder: Path) -> Json | None:
    """What a run's policy earned in fresh episodes at the end of its training; None where it does not act."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    try:
        found: Json = manifest.unsealed_beside(path)
        for part in found["worlds"]:
            sum([part["mean"], *(part["interval"] or []), *part["means"]])
            if not isinstance(part["world"], str) or not isinstance(part["said"], str):
                raise ValueError("parts are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected an evaluation in {path}, got a damaged or foreign file: {error!r}") from error
    return found


def _read(path: Path) -> bytes | None:
    """A file of a run, as its manifest says; None where there is neither."""
    if (path.parent / manifest.NAME).exists():
        return manifest.contents(path.parent, path.name)[0]
    return read_bytes(path) if path.exists() else None


def done(folder: Path) -> bool:
    """Whether the run has come to its end, as far as its last checkpoint tells."""
    text = _read(folder / "state.json")
    try:
        phase = None if text is None else parsed(text, folder / "state.json")["tree"]["fitted"]["_phase"]["runs"]
        return phase is not None and all(part["done"] for part in phase)
    except (ValueError, KeyError, TypeError):
        return False


def records(folder: Path) -> list[Json]:
    """The records of a run's `metrics.jsonl`; a last line that a crash has cut off is passed over."""
    path = folder / "metrics.jsonl"
    history: list[Json] = []
    lines = (_read(path) or b"").decode(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int | float):
                raise ValueError("no record with a step")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"expected a record per line in {path}, got in line {number}: {error}") from error
        history.append(record)
    return history


def keep_risk(risk: Json, folder: Path) -> None:
    """Writes the risk by environment to a run's folder: as `risk.json`, and drawn as `risk.png`."""
    canvas = io.BytesIO()
    picture([], canvas, risk=risk)
    write_bytes(folder / "risk.png", canvas.getvalue())
    write_text(folder / "risk.json", manifest.sealed_beside(folder, risk))


def risk(folder: Path) -> Json | None:
    """A run's risk by environment; None where it has no environments, or has not ended."""
    path = folder / "risk.json"
    if not path.exists():
        return None
    try:
        risk: Json = manifest.unsealed_beside(path)
        for part in risk["environments"].values():
            sum(value or 0.0 for value in [part["rows"], part["risk"], part["score"], *part["replicas"]])
        if not {"environment", "part", "measure", "direction", "score", "worst", "mean"} <= risk.keys():
            raise ValueError("parts are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"expected the risk by environment in {path}, got a damaged or foreign file: {error!r}"
        ) from error
    return risk
