"""The catalogue: every objective, strategy and source by name, as `weft list` shows them.

A method registers itself by standing in its family's `__all__`; its entry (summary and reference) is
read off its docstring, so the two cannot drift apart.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

from weft.core.configured import closest

__all__ = ["FAMILIES", "Entry", "called", "entries", "find", "spelled"]

FAMILIES = ("objectives", "strategies", "sources", "nets")
FORM = "a name, or name(setting=value, ...) with numbers, text or tuples as values"


@dataclass(frozen=True)
class Entry:
    """One method: its family, class, one-line summary and reference."""

    family: str
    name: str
    cls: type
    summary: str
    reference: str


def spelled(name: str) -> str:
    """The command line's spelling of a class name.

    >>> spelled("ANDMask"), spelled("VREx"), spelled("L2Anchor")
    ('and-mask', 'vrex', 'l2-anchor')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z].)|(?<=[A-Z])(?=[A-Z][a-z]{2})", "-", name).lower()


def called(text: str) -> tuple[str, dict[str, ast.expr]]:
    """A name and the settings in brackets after it, read but not evaluated.

    >>> name, settings = called("and-mask(threshold=0.8)")
    >>> name, ast.literal_eval(settings["threshold"])
    ('and-mask', 0.8)
    """
    found = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL) if len(text) <= 2000 else None
    try:
        call: Any = ast.parse(f"_({found.group(2) or ''})", mode="eval").body if found else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
    if found is None or not plain or not all(keyword.arg for keyword in call.keywords):
        raise ValueError(f"expected {FORM}, got {text if len(text) <= 60 else f'{text[:60]}...'!r}")
    return found.group(1), {keyword.arg: keyword.value for keyword in call.keywords}


def entries(family: str | None = None) -> list[Entry]:
    """The catalogue, or one family of it."""
    if family is not None and family not in FAMILIES:
        raise closest(family, FAMILIES, "a family")
    found = []
    for part in FAMILIES if family is None else (family,):
        module = importlib.import_module(f"weft.{part}")
        for name in module.__all__:
            cls = getattr(module, name)
            if not inspect.isclass(cls):
                continue
            text = inspect.getdoc(cls) or ""
            reference = re.search(r"^References?:\n\s+(.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
            found.append(
                Entry(
                    family=part,
                    name=spelled(name),
                    cls=cls,
                    summary=text.partition("\n")[0],
                    reference=" ".join(reference.group(1).split()) if reference else "",
                )
            )
    return found


def find(family: str, name: str, **settings: Any) -> Any:
    """An instance by name, `and-mask` or `ANDMask`.

    >>> find("strategies", "and-mask", threshold=0.5)
    ANDMask(threshold=0.5)
    >>> find("strategies", "and-musk")
    Traceback (most recent call last):
        ...
    ValueError: expected one of strategies among adversarial-training, agem, ..., got 'and-musk'; did you mean \
'and-mask'?
    """
    known = {entry.name: entry.cls for entry in entries(family)}
    spelling = name if name in known else spelled(name)
    if spelling not in known:
        raise closest(name, known, f"one of {family}")
    return known[spelling](**settings)
