"""The tuning of a study's methods: each trial as a point, and all of them in a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.page import charts
from weft.report.page.charts import Dot
from weft.report.page.markup import Cell, Markup, Sections, details, el, is_number, num, table

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["setting_text", "tuning"]

MOST_TRIALS = 2000


def setting_text(setting: object) -> str:
    """A setting in a line."""
    if not isinstance(setting, dict) or not setting:
        return "–"
    return ", ".join(f"{k} = {num(v) if is_number(v) else v}" for k, v in setting.items())


def tuning(
    results: Json, methods: list[Json], numbers: dict[str, int], measure: Json, sections: Sections
) -> list[Markup | None]:
    """What was tried of each method: a figure for each setting that was varied, and every trial in a table."""
    trials = [t for t in results.get("trials") or [] if isinstance(t, dict)]
    if not trials:
        return []
    out: list[Markup | None] = [
        el(
            "p",
            f"Validation {measure.get('name')} of each trial against each setting. The ring marks the chosen one; a "
            "cross at the foot is a trial that failed or diverged.",
            class_="note",
        )
    ]
    for m in methods:
        own = [t for t in trials if t.get("method") == m["name"]]
        settings = list(dict.fromkeys(k for t in own for k in (t.get("setting") or {})))
        chosen = el("p", f"Chosen: {setting_text(m.get('setting'))}", class_="note") if m.get("setting") else None
        varied = [k for k in settings if len({str((t.get("setting") or {}).get(k)) for t in own}) > 1]
        if not varied:
            out += [sections.heading(m["name"]), chosen] if chosen else []
            continue
        figures = []
        for k in varied:
            dots = [_dot(t, k, numbers[str(m["name"])], m.get("setting")) for t in own if k in (t.get("setting") or {})]
            good = [d for d in dots if d.y is not None]
            told = f"{len(dots)} trials, {len(dots) - len(good)} of them without a value"
            if good:
                best = (max if measure.get("direction") == "max" else min)(good, key=lambda d: float(d.y or 0.0))
                told += f"; the best, {num(best.y)}, at {k} = {num(best.x) if is_number(best.x) else best.x}"
            figures.append(
                el(
                    "figure",
                    charts.scatter(
                        dots,
                        title=f"{m['name']}: validation {measure.get('name')} by {k}",
                        describe=f"{told}.",
                        names=sections.names,
                        x_label=k,
                        y_label="",
                    ),
                )
            )
        out += [sections.heading(m["name"]), chosen, el("div", *figures, class_="charts small")]
    order = [
        [
            f"{t.get('method')} {t.get('number')}",
            str(t.get("method")),
            t.get("number"),
            Cell(t.get("value")),
            str(t.get("state", "")),
            setting_text(t.get("setting")),
            Cell(t.get("seconds")),
            str(t.get("why") or ""),
        ]
        for t in trials[:MOST_TRIALS]
    ]
    heads = ["trial", "method", "number", f"validation {measure.get('name')}", "state", "setting", "seconds", "why"]
    cut = f" (the first {MOST_TRIALS} of {len(trials)})" if len(trials) > MOST_TRIALS else ""
    lost = sum(t.get("state") != "complete" for t in trials)
    said = f"All {len(trials)} trials" + (f", {lost} of them failed or diverged" if lost else "")
    out.append(details(said, table(f"Every trial{cut}.", heads, order, names=sections.names, file="trials")))
    return out


def _dot(trial: Json, setting: str, number: int, chosen: Json | None) -> Dot:
    value = trial.get("value")
    x = trial["setting"][setting]
    x = x if is_number(x) else str(x)
    y = float(value) if is_number(value) and trial.get("state") == "complete" else None
    said = f"trial {trial.get('number')}: {setting} = {x}, " + (num(y) if y is not None else str(trial.get("state")))
    return Dot(x, y, number, said, ring=y is not None and trial["setting"] == chosen)
