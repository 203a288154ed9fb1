"""Which strategy trains which objective, and with which other settings: few cells, chosen by traits.

Strategies read of an objective nothing but its traits (`weft.testing.classes`), so that one objective of each class
speaks for its class: every strategy meets one of each, in turn another. Every objective meets ERM and the three
sentinels. The number of cells is strategies x classes + 4 x objectives. `cross` gives all of them, with every setting.
"""

import itertools
import zlib
from typing import NamedTuple

SETTINGS = {
    "replicas": [None, 2],
    "net": ["plain", "noisy"],
    "dtype": ["float32", "float64"],
    "weighting": ["example", "group"],
}
# Between them every verb that acts in training, on any class of traits but the on-policy one that replay refuses:
# combine, by sums over groups; steer, update, consolidate and a penalty; wrap, with rows that are kept.
SENTINELS = ("and-mask", "synaptic-intelligence", "replay")


class Cell(NamedTuple):
    """A strategy with an objective, in one setting."""

    strategy: str
    objective: str
    replicas: int | None
    net: str
    dtype: str
    weighting: str

    def __str__(self):
        return "-".join(map(str, self))


def settings(turn):
    """The other settings in turn: of two turns that follow an even one each setting has both its values."""
    pair, other = divmod(turn, 2)
    bits = pair % 2 ** (len(SETTINGS) - 1)
    bits ^= (2 ** len(SETTINGS) - 1) * other
    return [values[bits >> k & 1] for k, values in enumerate(SETTINGS.values())]


def cells(strategies, classes, trains, sentinels=SENTINELS):
    """The cells that `make test` trains or sees refused.

    Args:
        strategies: names, `erm` among them.
        classes: by the name of an objective its class of traits.
        trains: `trains(strategy, objective)`.
        sentinels: the strategies that every objective meets, as it does ERM.
    """
    alike = {}
    for objective, kind in classes.items():
        alike.setdefault(kind, []).append(objective)
    everywhere = ("erm", *sentinels)
    found = []
    for i, strategy in enumerate(strategies):
        if strategy in everywhere:
            k = everywhere.index(strategy)
            turns = {o: 2 * j + (j + k) % len(everywhere) for j, o in enumerate(classes)}
        else:
            met = [own[i % len(own)] for own in alike.values()]
            trained = [o for o in met if trains(strategy, o)]
            turns = {o: 2 * i + (trained.index(o) if o in trained else 0) for o in met}
        found += [Cell(strategy, objective, *settings(turn)) for objective, turn in turns.items()]
    return found


def cross(strategies, objectives):
    """Every strategy with every objective in every setting."""
    return [Cell(*chosen) for chosen in itertools.product(strategies, objectives, *SETTINGS.values())]


def shard(cells, spelled):
    """One of some parts of about the same size, such as "3/8"; the whole for "1/1".

    A cell's part depends on its name alone, so that a new method moves none.
    """
    part, slash, parts = spelled.partition("/")
    if not (slash and part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"expected SHARD=k/n with 1 <= k <= n, such as 3/8, got {spelled!r}")
    return [cell for cell in cells if zlib.crc32(str(cell).encode()) % int(parts) == int(part) - 1]
