"""A segment of play: weft's collector beside a bare loop over the same tensors, in time and in operations dispatched.

A third party's policy costs more than one of the catalogue: PyTorch's own draws within it are watched for.

Both play 128 steps of CartPole side by side with the same policy (two hidden layers of 64), draw every action, begin
episodes anew where they end, and write down what a segment holds: observation, action, reward, both ends and the next
observation. The bare loop is the best that we know to write by hand: its noise is drawn by `torch.rand` once for the
whole segment, and it looks after nothing else. Weft's draws are keyed by replica, turn and row, its numbers are looked
at, its returns are kept in mind, and it plays for all replicas in one call.

    python benchmarks/collecting.py

Both take turns; a ratio is the median over the rounds. Operations are those that reach PyTorch's dispatcher.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from harness import engine_of
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from weft.core import Field, Objective, Output
from weft.core.random import categorical, fold, key_of
from weft.data import CartPole
from weft.objectives import REINFORCE
from weft.sources import Segments
from weft.strategies import ERM

ROUNDS, LENGTH, AIM = 15, 128, 1.3


class Foreign(Objective):
    """Two hidden layers of 64, as a third party would write it."""

    on_policy = False
    fields = ("observation",)

    def build(self, spec: dict[str, Field]) -> None:
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, batch: dict[str, Tensor], player: str = "") -> Output:
        return Output(self.net(batch["observation"]).square().sum(-1))

    def sample_action(self, observation: Tensor) -> Tensor:
        return categorical(self.net(observation), place="action")


def own() -> Objective:
    """The same net, of the catalogue."""
    return REINFORCE(hidden=(64, 64))


POLICIES: dict[str, Callable[[], Objective]] = {"the catalogue's": own, "a third party's": Foreign}


class Bare:
    """The loop by hand; with replicas, over nets whose weights are stacked."""

    def __init__(self, replicas: int, envs: int) -> None:
        torch.manual_seed(0)
        self.replicas, self.rows = replicas, replicas * envs
        self.world = CartPole()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.stacked = [
            (layer.weight.detach().mT.repeat(replicas, 1, 1), layer.bias.detach().repeat(replicas, 1, 1))
            for layer in self.net
            if isinstance(layer, nn.Linear)
        ]
        self.position = self.fresh(self.rows)
        self.age = torch.zeros(self.rows, dtype=torch.int64)

    def fresh(self, rows: int) -> Tensor:
        return (torch.rand(rows, 4, dtype=torch.float64) - 0.5) * 0.1

    def logits(self, seen: Tensor) -> Tensor:
        if self.replicas == 1:
            return self.net(seen)
        seen = seen.unflatten(0, (self.replicas, -1))
        for weight, bias in self.stacked[:-1]:
            seen = torch.baddbmm(bias, seen, weight).relu()
        return torch.baddbmm(self.stacked[-1][1], seen, self.stacked[-1][0]).flatten(0, 1)

    @torch.no_grad()
    def play(self) -> dict[str, Tensor]:
        noise = -torch.log(-torch.log(torch.rand(LENGTH, self.rows, 2)))
        kept: dict[str, list[Tensor]] = {name: [] for name in ("seen", "action", "reward", "ended", "cut", "after")}
        seen = self.position.float()
        for t in range(LENGTH):
            action = (self.logits(seen) + noise[t]).argmax(-1)
            self.position, after, reward, ended = self.world.step(self.position, action)
            self.age += 1
            cut = (self.age >= 500) & ~ended
            for name, value in zip(kept, (seen, action, reward, ended, cut, after), strict=True):
                kept[name].append(value)
            over, seen = ended | cut, after
            if bool(over.any()):
                which = over.nonzero().squeeze(-1)
                self.position[which] = self.fresh(len(which))
                self.age[which] = 0
                seen = self.position.float()
        return {name: torch.stack(values, 1) for name, values in kept.items()}


class Ours:
    """The collector of a source."""

    def __init__(self, policy: Objective, replicas: int, envs: int) -> None:
        source = Segments(CartPole(), envs=envs, length=LENGTH)
        many = {} if replicas == 1 else {"replicas": replicas}
        _, self.state = engine_of(policy, ERM(), source, **many)
        self.collector, self.turn = source.collectors[0], 0
        self.tree: Any = self.state.source["0"]
        self.key = key_of(0) if replicas == 1 else fold(key_of(0), torch.arange(replicas))

    def play(self) -> dict[str, Tensor]:
        self.turn += 1
        self.tree, rows = self.collector.play(self.state, self.tree, LENGTH, fold(self.key, self.turn))
        return rows


class Counted(TorchDispatchMode):
    """Counts what is dispatched."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(play: Callable[[], object]) -> float:
    """Operations in a step."""
    with Counted() as counted:
        play()
    return counted.count / LENGTH


def seconds(play: Callable[[], object]) -> float:
    """Of a segment."""
    started = time.perf_counter()
    play()
    return time.perf_counter() - started


def measure(name: str, replicas: int, envs: int) -> dict[str, object]:
    """A line: both, by turns."""
    ours, bare = Ours(POLICIES[name](), replicas, envs), Bare(replicas, envs)
    ours.play(), bare.play()
    rounds = [(seconds(ours.play), seconds(bare.play)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    line: dict[str, object] = {
        "policy": name,
        "replicas": replicas,
        "envs": envs,
        "ours, s": mine,
        "bare, s": theirs,
        "ratio": ratio,
    }
    line |= {"aim": AIM, "met": ratio <= AIM}
    return {**line, "ours, operations a step": operations(ours.play), "bare, operations a step": operations(bare.play)}


def looped(replicas: int, envs: int) -> dict[str, float]:
    """All replicas in one call, and one call for each."""
    together, each = Ours(own(), replicas, envs), [Ours(own(), 1, envs) for _ in range(replicas)]
    together.play(), [one.play() for one in each]
    rounds = [(seconds(together.play), seconds(lambda: [one.play() for one in each])) for _ in range(5)]
    return {
        "replicas": replicas,
        "together, s": statistics.median(a for a, _ in rounds),
        "one by one, s": statistics.median(b for _, b in rounds),
        "faster": statistics.median(b / a for a, b in rounds),
    }


def main() -> None:
    """Measures, prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "collecting.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    lines = [measure(name, replicas, envs) for name in POLICIES for replicas, envs in ((1, 8), (1, 64), (8, 8))]
    table = Table(*lines[0], title=f"{LENGTH} steps of CartPole")
    for line in lines:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()))
    Console(width=160).print(table)
    stacked = looped(8, 8)
    print(stacked)
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.processor() or "cpu"}
    about |= {"torch": torch.__version__, "command": "python benchmarks/collecting.py"}
    out.write_text(json.dumps({**about, "lines": lines, "replicas": stacked}, indent=1) + "\n")


if __name__ == "__main__":
    main()
