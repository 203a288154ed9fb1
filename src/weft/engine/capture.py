"""On CUDA, a whole step recorded once as a graph and replayed: no Python and no launch overhead between kernels.

Inside the graph everything happens in place on the state's own tensors; the clock of the keyed draws is
a tensor that the graph advances, the schedule's factors and the batch are copied into it before each
replay, and a replica that diverges is frozen by a mask, which the host reads at the next record.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.core.source import Batch
from weft.core.state import State
from weft.core.trees import tree_copy_, tree_leaves, tree_map, tree_same
from weft.engine.distributed import world
from weft.engine.engine import Engine, loss_name
from weft.engine.fresh import in_training
from weft.engine.rating import Plateau, factor_of, set_rates

__all__ = ["Captured", "stepper"]

_WARMUP = 3  # steps made eagerly before a graph is recorded, as PyTorch asks
_GRAPHS = 8  # more kinds of batches than this are not worth a graph each


def stepper(engine: Engine, state: State) -> Engine | Captured:
    """What makes a step: the engine itself, or its recorded steps where that is possible."""
    alone = world()[1] == 1  # what several processes say to each other is not recorded
    # cuDNN's recurrent kernels, once recorded, write into memory that is another's by then (seen with torch 2.11).
    recurrent = any(isinstance(layer, nn.RNNBase) for layer in engine.objective.modules())
    plain = all(isinstance(scheduler, Plateau) for scheduler in engine.schedulers.values())
    capturable = state.device.type == "cuda" and plain and engine.capture and alone and not recurrent
    return Captured(engine, state) if capturable else engine


@contextmanager
def _searching() -> Iterator[None]:
    """Within it cuDNN tries its kernels once for each shape and takes the fastest, unless determinism is asked for."""
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.benchmark
    cudnn.benchmark = before or not (cudnn.deterministic or torch.are_deterministic_algorithms_enabled())
    try:
        yield
    finally:
        cudnn.benchmark = before


Kind = tuple[tuple[str, ...], tuple[tuple[tuple[int, ...], torch.dtype], ...]]
"""Who moves, and the shapes and dtypes of the batch."""


class _Graph:
    def __init__(self, batch: Batch) -> None:
        self.seen = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch = tree_map(torch.clone, batch)
        self.losses: dict[str, Tensor] = {}


class Captured:
    """An engine's step on one state, recorded for each kind of batch and each set of players that move."""

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine, self.state = engine, state
        self.graphs: dict[Kind, _Graph] = {}
        self.clock = torch.as_tensor(state.own(state.step), device=state.device)
        each = {player: factor_of(engine, state, player) for player in engine.players}
        self.factors = {p: torch.as_tensor(f, device=state.device).to(state.dtype).clone() for p, f in each.items()}
        self.failed = False

    def step(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """One update of every player whose turn it is; as `Engine.step`."""
        engine = self.engine
        movers = engine.movers(state)
        numbered = engine.numbered(batch, grouped=engine.grouped)
        kind = (movers, tuple((tuple(t.shape), t.dtype) for t in tree_leaves(numbered)))
        if self.failed or (kind not in self.graphs and len(self.graphs) >= _GRAPHS):
            return self._eager(batch)
        entry = self.graphs.setdefault(kind, _Graph(numbered))
        entry.seen += 1
        if entry.seen <= _WARMUP:
            return self._eager(batch)
        for player in movers:
            now, held = factor_of(engine, state, player), self.factors[player]
            held.copy_(now) if isinstance(now, Tensor) else held.fill_(now)
        own = state.own(state.step)
        self.clock.copy_(own) if isinstance(own, Tensor) else self.clock.fill_(own)
        tree_copy_(entry.batch, numbered)
        if entry.graph is None and not self._record(entry, movers):
            return self._eager(batch)
        if entry.graph is not None:
            entry.graph.replay()
        state.step += 1
        return {name: loss.clone() for name, loss in entry.losses.items()}

    def _eager(self, batch: Batch) -> dict[str, Tensor]:
        """A step by the engine, its results put where the graphs look for them."""
        kept = dict(self.state.strategy)
        with _searching():
            report = self.engine.step(self.state, batch)
        for player, tree in kept.items():
            if tree_same(tree, self.state.strategy[player]):  # else it has grown, as it may in its first steps
                tree_copy_(tree, self.state.strategy[player])
                self.state.strategy[player] = tree
        return report

    def _record(self, entry: _Graph, movers: tuple[str, ...]) -> bool:
        """Records the step; False (said once) where something in it cannot be recorded."""
        engine, state = self.engine, self.state
        state.clock = self.clock
        graph = torch.cuda.CUDAGraph()
        for player in movers:
            set_rates(engine, state, player, 1.0)  # the factor is applied to the step, inside
        torch.cuda.synchronize()
        try:
            with _searching(), torch.cuda.graph(graph):
                in_training(engine.objective)
                for player in movers:
                    kept = state.strategy[player]
                    entry.losses[loss_name(player)] = engine.move(state, entry.batch, player, self.factors[player])
                    tree_copy_(kept, state.strategy[player])
                    state.strategy[player] = kept
        except RuntimeError as error:
            self.failed = True
            warnings.warn(
                f"the step is not recorded as a CUDA graph ({str(error).splitlines()[0][:120]}); it runs eagerly",
                RuntimeWarning,
                stacklevel=4,
            )
            return False
        finally:
            state.clock = None
        entry.graph = graph
        return True
