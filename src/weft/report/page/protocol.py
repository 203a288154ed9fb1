"""What a study rests on: its protocol and the ledger of looks at the test; and how anything is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.page.markup import Markup, Names, el, is_number, num, pairs, seconds, table

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["again", "file_name", "protocol"]


def file_name(path: object) -> str:
    """The last part of a path; none is the bundled data's."""
    return str(path).replace("\\", "/").rsplit("/", 1)[-1] or "bundled data"


def protocol(results: Json, names: Names) -> list[Markup]:
    """How a study was done, and every look at its test rows."""
    told, data = results.get("protocol") or {}, results.get("data") or {}
    split = told.get("split") or {}
    rows = split.get("rows") or {}
    items = [
        ("data", file_name(data.get("path", ""))),
        ("SHA-256", el("code", f"{str(data.get('sha256', ''))[:16]}…", title=str(data.get("sha256", "")))),
        ("target", data.get("target")),
        *[(k, data[k]) for k in ("environment", "task", "group") if data.get(k)],
        ("split by", f"{split.get('by')}, seed {split.get('seed')}"),
        ("rows", " · ".join(f"{k} {num(v)}" for k, v in rows.items())),
        ("test environments", ", ".join(map(str, split.get("test_environments") or []))),
        ("settings chosen by", told.get("selection")),
        ("trials for each method", num(told.get("budget"))),
        ("trials at once", num(told.get("batch"))),
        ("steps of a training", num(told.get("steps"))),
        ("seeds of the final fits", ", ".join(map(str, told.get("seeds") or []))),
        ("interval", f"{100 * float(told['level']):g}%, over seeds and test points")
        if is_number(told.get("level"))
        else ("interval", None),
        ("correction", told.get("correction")),
    ]
    out = [pairs([(k, v) for k, v in items if v not in (None, "", "–")])]
    notes = [str(n) for n in told.get("notes") or []]
    if notes:
        out.append(el("ul", *[el("li", n) for n in notes], class_="said"))
    ledger = [entry for entry in results.get("ledger") or [] if isinstance(entry, dict)]
    if ledger:
        heads = ["time", "what", "method", "rows", "seeds", "part"]
        cells = [[_time(e.get("time")), *[e.get(h) for h in heads[1:]]] for e in ledger]
        times = "once" if len(ledger) == 1 else f"{len(ledger)} times"
        out.append(
            table(
                f"The ledger: the test rows were looked at {times}, and this is every time.",
                heads,
                cells,
                names=names,
                file="ledger",
            )
        )
    else:
        out.append(el("p", "The test rows have not been looked at.", class_="note"))
    return out


def _time(value: object) -> str:
    return str(value or "–")[:19].replace("T", " ")


def again(results: Json) -> list[Markup | None]:
    """The command, the versions and the machine."""
    out = []
    if results.get("command"):
        out.append(el("pre", el("code", results["command"]), tabindex="0"))
    machine = results.get("machine") or {}
    items = [
        ("processor", machine.get("processor")),
        ("cores", num(machine.get("cores")) if machine.get("cores") else None),
        ("accelerator", machine.get("accelerator")),
        ("python", machine.get("python")),
        ("weft", results.get("weft")),
        ("made", _time(results.get("date"))),
        ("took", seconds(results.get("seconds")) if results.get("seconds") is not None else None),
        *sorted((results.get("versions") or {}).items()),
    ]
    kept = [(k, v) for k, v in dict(items).items() if v]
    return [*out, pairs(kept) if kept else None]
