"""The catalogue: every objective, strategy, source, net and attack by name, as `weft list` shows them.

A method registers itself by standing among the names of its room; its entry is read off its file's place and docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from weft.core.configured import closest

__all__ = ["LISTED", "REBUILT", "ROOMS", "Entry", "class_of", "entries", "find", "named", "spelled"]

ROOMS = ("objectives", "strategies", "sources", "nets", "attacks")
LISTED = (*ROOMS, "worlds")  # what methods act in is no method, and goes by a name as they do
REBUILT = (*LISTED, "learner", "losses")  # no methods, but they may be spelled, kept and rebuilt by name like them
_HOMES = {"losses": "objectives.supervised.losses", "worlds": "data.worlds"}


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        room: `objectives`, `strategies`, ...
        family: the folder of its file within the room (`invariance`, `games`), or "" where it has none.
        name: as it is spelled on the command line.
        cls: its class.
        summary, reference: from its docstring.
    """

    room: str
    family: str
    name: str
    cls: type
    summary: str
    reference: str


@cache
def spelled(name: str) -> str:
    """The command line's spelling of a class name.

    >>> spelled("ANDMask"), spelled("VREx"), spelled("L2Anchor"), spelled("DAgger")
    ('and-mask', 'vrex', 'l2-anchor', 'dagger')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z].)|(?<=[A-Z]{2})(?=[A-Z][a-z]{2})", "-", name).lower()


def _module(room: str) -> ModuleType:
    return importlib.import_module(f"weft.{_HOMES.get(room, room)}")


def named(room: str) -> dict[str, str]:
    """The classes of a room by their spelling; none of them is imported for that."""
    if room not in REBUILT:
        raise closest(room, LISTED, "a room of the catalogue")
    listed = _module(room).__all__
    return {spelled(name): name for name in listed if name[0].isupper()}


def entries(room: str | None = None) -> list[Entry]:
    """The methods of the catalogue, or one room of it."""
    listed = []
    for part in ROOMS if room is None else (room,):
        for spelling, name in named(part).items():
            cls = getattr(_module(part), name)
            text = inspect.getdoc(cls) or ""
            reference = re.search(r"^References?:\n\s+(.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
            place = cls.__module__.split(".")
            listed.append(
                Entry(
                    room=part,
                    family=place[2] if len(place) > 3 else "",
                    name=spelling,
                    cls=cls,
                    summary=text.partition("\n")[0],
                    reference=" ".join(reference.group(1).split()) if reference else "",
                )
            )
    return listed


def class_of(room: str, name: str) -> type:
    """A class by name, `and-mask` or `ANDMask`; its file alone is imported."""
    known = named(room)
    spelling = name if name in known else spelled(name)
    if spelling not in known:
        raise closest(name, known, f"one of {room}")
    cls: type = getattr(_module(room), known[spelling])
    return cls


def find(room: str, name: str, **settings: Any) -> Any:
    """An instance by name.

    >>> find("strategies", "and-mask", threshold=0.5)
    ANDMask(threshold=0.5)
    >>> find("strategies", "and-musk")
    Traceback (most recent call last):
        ...
    ValueError: expected one of strategies among adversarial-training, agem, ..., got 'and-musk'; did you mean \
'and-mask'?
    """
    return class_of(room, name)(**settings)
