"""Digests of a claim's result: whether it is as it was written, and whether the code has changed since."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["BY_HAND", "EARLIER", "code", "content", "digest", "standing"]

EARLIER, BY_HAND = "stale: made before digests, with other draws", "changed by hand"


def digest(value: object) -> str:
    """The SHA-256 of bytes, or of anything else as JSON."""
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.sha256(data).hexdigest()


def content(result: Json) -> str:
    """The digest of all that a result says, but for this digest itself."""
    others = {name: value for name, value in result["digests"].items() if name != "content"}
    return digest({**result, "digests": others})


@cache
def code() -> str:
    """The digest of weft's own code, as it is now."""
    home = Path(__file__).parents[1]
    return digest([[str(path.relative_to(home)), digest(path.read_bytes())] for path in sorted(home.rglob("*.py"))])


def standing(result: Json, folder: Path, claim: Json | None = None) -> str:
    """What there is to say against a result; nothing where it is as it was written, by the code as it is now.

    Args:
        result: what `result.json` holds.
        folder: where it lies, with its pictures.
        claim: the digests that the claim's file and setting have now, where they are known.
    """
    kept = result.get("digests")
    if not isinstance(kept, dict):
        return EARLIER
    pictures = [(folder / str(p["file"]), p.get("sha256")) for p in result.get("pictures") or []]
    whole = all(path.is_file() and digest(path.read_bytes()) == found for path, found in pictures)
    if kept.get("content") != content(result) or not whole:
        return BY_HAND
    now = {"weft": code(), **(claim or {})}
    names = {"weft": "weft's code", "claim": "the claim's file", "setting": "its setting"}
    changed = [names[name] for name, value in now.items() if kept.get(name) != value]
    return f"{' and '.join(changed)} {'have' if len(changed) > 1 else 'has'} changed since" if changed else ""
