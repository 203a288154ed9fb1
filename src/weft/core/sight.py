"""What a strategy sees of a batch, in one word, and what strategies woven together see.

- `rows`: all of them; their mean loss is differentiated, as it is for whatever does not say `each`;
- `groups`: a gradient for each; `examples`: one for each row;
- `whole groups`: `wrap` is given each group by itself; `all groups`: all in one pass;
- `episodes`: whole groups with a `support` and a `query` part.

Weaving one that needs groups whole with one that combines makes `whole groups, each` or `episodes, each`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.configured import closest

__all__ = ["SIGHTS", "Sight", "joined", "sight_of"]


@dataclass(frozen=True)
class Sight:
    """What a word asks of the engine.

    Attributes:
        grouped: batches have groups stacked on a leading axis.
        whole: the loss is asked of one group at a time, with all its rows.
        each: there is a gradient for each group or example, and `combine` makes one of them.
        together: all groups are in one pass, and the batch says which row is whose (the field `group`).
        episodic: groups are episodes.
    """

    grouped: bool = False
    whole: bool = False
    each: bool = False
    together: bool = False
    episodic: bool = False


SIGHTS = {
    "rows": Sight(),
    "groups": Sight(grouped=True, each=True),
    "examples": Sight(each=True),
    "whole groups": Sight(grouped=True, whole=True),
    "whole groups, each": Sight(grouped=True, whole=True, each=True),
    "all groups": Sight(grouped=True, together=True),
    "episodes": Sight(grouped=True, whole=True, episodic=True),
    "episodes, each": Sight(grouped=True, whole=True, each=True, episodic=True),
}
# Who sees rows sees what the other does, two who see the same see that; of all others only these agree.
_JOINS = {
    frozenset({"groups", "whole groups"}): "whole groups, each",
    frozenset({"groups", "whole groups, each"}): "whole groups, each",
    frozenset({"groups", "episodes"}): "episodes, each",
    frozenset({"groups", "episodes, each"}): "episodes, each",
    frozenset({"whole groups", "whole groups, each"}): "whole groups, each",
    frozenset({"whole groups", "episodes"}): "episodes",
    frozenset({"whole groups", "episodes, each"}): "episodes, each",
    frozenset({"whole groups, each", "episodes"}): "episodes, each",
    frozenset({"whole groups, each", "episodes, each"}): "episodes, each",
    frozenset({"episodes", "episodes, each"}): "episodes, each",
}


def sight_of(word: str) -> Sight:
    """What a word asks of the engine; raises where it is none."""
    if word not in SIGHTS:
        raise closest(str(word), SIGHTS, "what a strategy sees")
    return SIGHTS[word]


def joined(first: str, second: str) -> str | None:
    """What two strategies see together, or None where they do not agree on what a group is.

    >>> joined("rows", "groups"), joined("whole groups", "groups"), joined("whole groups", "examples")
    ('groups', 'whole groups, each', None)
    """
    both = {word for word in (first, second) if word != "rows"}
    if len(both) < 2:
        return both.pop() if both else "rows"
    return _JOINS.get(frozenset(both))
