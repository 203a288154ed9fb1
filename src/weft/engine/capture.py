"""On CUDA, a whole step recorded once as a graph and replayed: no Python and no launch overhead between kernels.

Inside the graph everything happens in place on the state's own tensors; the clock of the keyed draws is
a tensor that the graph advances, the schedule's factors and the batch are copied into it before each
replay, and a replica that diverges is frozen by a mask, which the host reads at the next record.

Where a source has rounds (a segment of play and the passes over it), a round is one graph: what is played, what the
objective credits, and all its updates. What is strange in what was played is looked for when the round is over.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from weft.core.source import Batch, Source
from weft.core.state import State
from weft.core.trees import tree_copy_, tree_leaves, tree_map, tree_same
from weft.engine.distributed import world
from weft.engine.engine import Engine, loss_name
from weft.engine.fresh import in_training
from weft.engine.rating import Plateau, factor_of, set_rates

__all__ = ["Captured", "stepper"]

_WARMUP = 3  # steps made eagerly before a graph is recorded, as PyTorch asks
_GRAPHS = 8  # more kinds of batches than this are not worth a graph each
_UPDATES = 1024  # a longer round is not worth its graph


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


class _Round:
    """A source's round, recorded."""

    def __init__(self, state: State, factors: dict[str, Tensor]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.source, self.factors = state.source, factors  # where the graph reads what is kept, and the schedule
        self.losses: list[dict[str, Tensor]] = []
        self.batch: Batch = {}
        self.check: Callable[[], None] = lambda: None


class Captured:
    """An engine's step on one state, recorded for each kind of batch and each set of players that move."""

    def __init__(self, engine: Engine, state: State) -> None:
        self.engine, self.state = engine, state
        self.graphs: dict[Kind, _Graph] = {}
        self.clock = torch.as_tensor(state.own(state.step), device=state.device)
        each = {player: factor_of(engine, state, player) for player in engine.players}
        self.factors = {p: torch.as_tensor(f, device=state.device).to(state.dtype).clone() for p, f in each.items()}
        self.buffers = dict(state.buffers)  # where the graphs read them
        self.failed = self.unrolled = False
        self.begun = 0
        self.rounds: dict[int, _Round] = {}

    def round(self, source: Source, room: int) -> tuple[Batch, list[dict[str, Tensor]]] | None:
        """The updates of the round that begins here: (the last one's batch, the losses of each).

        None where none begins, or it does not fit into `room` updates, or has to be made step by step.
        """
        engine, state = self.engine, self.state
        if self.unrolled or any(engine.objective.every(player) != 1 for player in engine.players):
            return None
        updates = source.rounds(state)
        self.begun += updates > 0
        if not 0 < updates <= min(room, _UPDATES) or self.begun <= _WARMUP:
            return None
        if updates not in self.rounds and not self._record_round(source, updates):
            return None
        made = self.rounds[updates]
        tree_copy_(made.source, state.source)
        state.source = made.source
        self._advanced(made, updates)
        made.graph.replay()
        state.step += updates
        made.check()
        return made.batch, [{name: loss.clone() for name, loss in each.items()} for each in made.losses]

    def _advanced(self, made: _Round, updates: int) -> None:
        """The clock and the schedule's factors of a round, put where its graph reads them."""
        engine, state = self.engine, self.state
        self._timed()
        for player, held in made.factors.items():
            now = [factor_of(engine, state, player, state.step + k) for k in range(updates)]
            each = [one if isinstance(one, Tensor) else torch.full(held.shape[1:], one) for one in now]
            held.copy_(torch.stack(each))

    def _timed(self) -> None:
        """The clock, and the buffers that were replaced since, put where the graphs read them."""
        own = self.state.own(self.state.step)
        self.clock.copy_(own) if isinstance(own, Tensor) else self.clock.fill_(own)
        tree_copy_(self.buffers, self.state.buffers)
        self.state.buffers.update(self.buffers)

    def _record_round(self, source: Source, updates: int) -> bool:
        """Records a round; False (said once) where something in it cannot be recorded."""
        engine, state = self.engine, self.state
        factors = {player: now.expand(updates, *now.shape).clone() for player, now in self.factors.items()}
        made, strategy = _Round(state, factors), dict(state.strategy)

        def moves() -> None:
            batches, made.check = source.round(state)
            for update, made.batch in enumerate(batches):
                batch, losses = engine.numbered(made.batch, grouped=engine.grouped), {}
                for player in engine.players:
                    losses[loss_name(player)] = engine.move(state, batch, player, factors[player][update])
                made.losses.append(losses)
                self.clock.add_(1)
            tree_copy_(made.source, state.source)
            tree_copy_(self.buffers, state.buffers)
            for player, kept in strategy.items():
                tree_copy_(kept, state.strategy[player])

        recorded = self._recorded(made.graph, engine.players, moves, "round of play and updates")
        state.source, state.strategy = made.source, strategy
        state.buffers.update(self.buffers)
        if recorded:
            self.rounds[updates] = made
        self.unrolled = not recorded
        return recorded

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
        self._timed()
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
        engine, state, graph = self.engine, self.state, torch.cuda.CUDAGraph()

        def moves() -> None:
            for player in movers:
                kept = state.strategy[player]
                entry.losses[loss_name(player)] = engine.move(state, entry.batch, player, self.factors[player])
                tree_copy_(kept, state.strategy[player])
                state.strategy[player] = kept

        self.failed = not self._recorded(graph, movers, moves, "step")
        if not self.failed:
            entry.graph = graph
        return not self.failed

    def _recorded(
        self, graph: torch.cuda.CUDAGraph, movers: tuple[str, ...], moves: Callable[[], None], what: str
    ) -> bool:
        """Records what is done by some players; False (said once) where something in it cannot be recorded."""
        engine, state = self.engine, self.state
        state.clock = self.clock
        for player in movers:
            set_rates(engine, state, player, 1.0)  # the factor is applied to the step, inside
        torch.cuda.synchronize()
        try:
            with _searching(), torch.cuda.graph(graph):
                in_training(engine.objective)
                moves()
        except RuntimeError as error:
            warnings.warn(
                f"the {what} is not recorded as a CUDA graph ({str(error).splitlines()[0][:120]}); it runs eagerly",
                RuntimeWarning,
                stacklevel=5,
            )
            return False
        finally:
            state.clock = None
        return True
