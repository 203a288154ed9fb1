"""A study's folder: held by one process at a time, of one study only, with all that the study keeps.

It holds `study.toml` (what was asked), `plan.json` (what that means here), `study.db` (every trial, kept by
`weft.bench.search`), `finals/` (each method's scores by test row), `ledger.jsonl` (every look at the test),
`progress.json` and `results.json`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.bench.study import Study
from weft.bench.trainings import Final
from weft.core.configured import shown
from weft.core.files import parsed, read_bytes, sealed, unsealed, write_bytes, write_text

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["StudyFolder", "now"]

_OWN = {"study.toml", "plan.json", "study.db", "ledger.jsonl", "results.json", "progress.json", "finals", "report.html"}


def now() -> str:
    """The time, as files tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class StudyFolder:
    """A folder that a study works in, from when it is made until it is closed.

    Args:
        path: the folder, which is made if need be.
        study: what is asked.
        plan: what that means here; one that the folder already holds must have its fingerprint.

    Raises:
        ValueError: where the folder holds something else, or another process is at work in it.
    """

    def __init__(self, path: Path, study: Study, plan: Json) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"expected a folder for the study, got the file {shown(path)}; choose another with --out")
        names = {p.name for p in path.iterdir() if not p.name.startswith(".")} if path.exists() else set()
        if names and "plan.json" not in names and names - _OWN:
            raise ValueError(
                f"expected a new folder or a study's, got {shown(path)} with {shown(min(names - _OWN))} in it; "
                "choose another with --out"
            )
        try:
            (path / "finals").mkdir(parents=True, exist_ok=True)
            self._lock = open(path / ".lock", "a+")  # noqa: SIM115 (held while the study is at work)
        except OSError as error:
            raise OSError(f"expected a folder that can be written, got {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise ValueError(f"expected to work in {path} alone, got another process at work on that study") from error
        try:
            self._agree(plan)
            data = Path(study.data)
            here = os.path.relpath(data.resolve(), path.resolve()) if data.is_file() else study.data
            write_text(path / "study.toml", dataclasses.replace(study, data=here).to_toml())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets others work in it."""
        self._lock.close()

    def _agree(self, plan: Json) -> None:
        """Keeps the plan, or checks that it is the one that is kept."""
        path = self.path / "plan.json"
        plan = json.loads(json.dumps(plan))
        if not path.exists():
            write_text(path, sealed(plan))
            return
        try:
            kept = unsealed(path, must=False)
            fingerprint, about, asked = kept["fingerprint"], kept["data"], kept["study"]
            names = kept["methods"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected weft's plan in {path}, got a damaged or foreign file: {error!r}") from error
        if fingerprint == plan["fingerprint"]:
            return
        other = sorted(name for name in plan["study"] if asked.get(name) != plan["study"][name] and name != "data")
        if about.get("sha256") != plan["data"]["sha256"]:
            other.insert(0, "data")
        if names != plan["methods"] and "methods" not in other:
            other.append("methods")
        raise ValueError(
            f"expected the study that {self.path} holds, got one that differs in {', '.join(other) or 'its format'}; "
            f"go on with that one: weft compare --out {shlex.quote(str(self.path))}, or choose another --out"
        )

    def write(self, name: str, values: Json) -> None:
        """Writes a JSON file."""
        try:
            write_text(self.path / name, sealed(values))
        except OSError as error:
            raise OSError(
                f"expected to write {self.path / name}, got {error.strerror}; what had been recorded is kept, run "
                "the same command again to go on"
            ) from error

    def ledger(self) -> list[Json]:
        """Every look at the test so far."""
        path = self.path / "ledger.jsonl"
        if not path.exists():
            return []
        lines = read_bytes(path).decode(errors="replace").splitlines()
        return [parsed(line.encode(), path) for line in lines if line.endswith("}")]

    def note(self, what: str, method: str, rows: int, seeds: int) -> None:
        """Adds a look at the test to the ledger, before it happens."""
        line = {"time": now(), "what": what, "method": method, "rows": rows, "seeds": seeds, "part": "test"}
        with open(self.path / "ledger.jsonl", "a") as ledger:
            ledger.write(json.dumps(line) + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())

    def _final(self, number: int) -> Path:
        return self.path / "finals" / f"{number}.npz"

    def has_final(self, number: int) -> bool:
        """Whether the chosen setting of the method of this number has been trained."""
        return self._final(number).exists()

    def keep_final(self, number: int, final: Final) -> None:
        """Writes down what came of a method's chosen setting."""
        about = {field.name: getattr(final, field.name) for field in dataclasses.fields(final)}
        table, packed = about.pop("table"), io.BytesIO()
        np.savez_compressed(packed, table=table, about=np.array(json.dumps(about)))
        write_bytes(self._final(number), packed.getvalue())

    def final(self, number: int) -> Final:
        """What came of a method's chosen setting."""
        path = self._final(number)
        try:
            with np.load(path, allow_pickle=False) as kept:
                return Final(table=kept["table"], **json.loads(str(kept["about"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"expected a method's scores in {path}, got a damaged or foreign file ({error}); remove it, and the "
                "same command makes it anew"
            ) from error
