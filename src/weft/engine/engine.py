"""The engine: one step, for every objective and every strategy, for one run or for stacked replicas."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.optimizer import Optimizer
from weft.core.source import Batch, Source, flatten_groups
from weft.core.state import State
from weft.core.strategy import Strategy, StrategyState
from weft.core.trees import AnyTree, Params, tree_map, tree_stack
from weft.engine import verbs
from weft.engine.asking import call, measure
from weft.engine.build import initialize, refuse_alike
from weft.engine.distributed import refuse_coupled, refuse_different, share, world
from weft.engine.fresh import Init, in_training
from weft.engine.gradients.gradient import conclude, gradient, local, pool, shared_axis
from weft.engine.gradients.loss import Parts, Place, Slope
from weft.engine.gradients.route import Route, look
from weft.engine.gradients.squares import MOST
from weft.engine.moves import alike, clipped, gate, gated, norm, projected, ungate, updated
from weft.engine.precision import lay_out
from weft.engine.rating import Plateau, factor_of, prepare, rate_of, scaled, set_rates
from weft.engine.refusals import refuse_groups, refuse_mixing, refuse_strategy
from weft.engine.replicas import batches, broadcast, fresh, going, mapped, numbered, once
from weft.engine.schedule import Schedule, as_schedule
from weft.engine.tasks import adapted, adapting, consolidated
from weft.engine.vectorize import Mapper

__all__ = ["Diverged", "Engine", "loss_name"]


class Diverged(FloatingPointError):  # noqa: N818 (what happened, not what went wrong)
    """Every replica's loss or gradient has become NaN or infinite."""


def loss_name(player: str) -> str:
    """Under which name a player's loss is reported."""
    return f"{player}_loss" if player else "loss"


class Engine:
    """Runs steps. Everything that a method brings comes through the four nouns.

    Args:
        objective: built.
        strategy: how losses become updates.
        optimizers: by player ("" where there is one player).
        grouped, episodic: whether the source stacks groups, and whether those are episodes.
        clip: the largest norm of a gradient, per player and replica.
        pieces, memory, weighting: see `weft.engine.gradients.route.look`; the replicas share the memory.
        schedule: a factor of the learning rate by progress, or a `torch` scheduler class.
        total: steps that the schedule spans.
        capture: on CUDA, record the step as a graph where that is possible.
        swept: hyperparameters that differ between replicas, by name, each a tensor over replicas:
            the strategy's own by their names, and `lr`.
        replicas: how many, or None for a single run.
        progress: the measure that says how training goes, in place of the objective's own.
        lowered: a dtype for the layers to compute in, lower than the parameters'; None for theirs.
    """

    call = staticmethod(call)
    measure = staticmethod(measure)
    batches = staticmethod(batches)
    once = staticmethod(once)

    def __init__(
        self,
        objective: Objective,
        strategy: Strategy,
        optimizers: dict[str, Optimizer],
        *,
        grouped: bool = False,
        episodic: bool = False,
        clip: float | None = None,
        pieces: int = 1,
        memory: int = 2**30,
        weighting: str = "example",
        schedule: str | Schedule | None = None,
        total: int = 1,
        capture: bool = True,
        swept: dict[str, Tensor] | None = None,
        replicas: int | None = None,
        progress: tuple[str, str] | None = None,
        lowered: torch.dtype | None = None,
    ) -> None:
        objective.lowered = lowered
        self.objective, self.strategy, self.optimizers = objective, strategy, optimizers
        self.grouped, self.episodic, self.clip, self.total = grouped, episodic, clip, total
        self.replicas, self.capture = replicas, capture
        self.schedule = as_schedule(schedule)
        self.schedulers: dict[str, torch.optim.lr_scheduler.LRScheduler | Plateau] = {}
        self.settings: dict[str, list[float]] = {}  # the rates of each player's groups, before any schedule
        self.used: dict[str, float] = {}  # the rate of the last step, where a scheduler of torch's has set it
        self.progress = progress or objective.progress
        swept = dict(swept or {})
        self.rates = swept.pop("lr", None)
        self.swept = swept
        self.players = objective.players or ("",)
        self.names = {player: self._trained(player) for player in self.players}
        made = (*objective.named_parameters(), *objective.named_buffers())
        self.open = frozenset(name for name, tensor in made if not tensor.numel())  # a solution says of what shape
        self.pieces, self.memory, self.weighting = pieces, memory // (replicas or 1), weighting
        self.routes: dict[tuple[str, bool], Route] = {}  # by player, of a share of a batch or of all, from the first on
        self.mappers = {player: Mapper() for player in self.players}
        self.data_rows: int | None = None  # of the source at hand
        self._alike = False
        self._settled: set[str] = set()
        self._groups: int | None = None
        refuse_strategy(strategy, objective, optimizers, pieces)
        objective.train()

    def _trained(self, player: str) -> list[str]:
        prefix = f"{player}." if player else ""
        optimizer = self.optimizers[player]
        owned = {n: p for n, p in self.objective.named_parameters() if n.startswith(prefix)}
        names = [n for n, p in owned.items() if optimizer.trains(n) and p.requires_grad]
        if self.objective.solved:
            return names
        if not owned:
            raise ValueError(f"expected the player {player!r} to have parameters, got none; check its net")
        if not names:
            raise ValueError(
                f"expected something to train, got every parameter frozen by {optimizer.freeze!r} or requires_grad"
            )
        return names

    # --- state ---------------------------------------------------------------------------------------

    def init(
        self, seeds: list[int], device: torch.device, init: Init = "reset", builds: list[Objective] | None = None
    ) -> State:
        """The state before the first step; of `builds`, one for each seed, all but the first are used up."""
        each = zip(builds or [self.objective] * len(seeds), seeds, strict=True)
        starts = [initialize(own, seed, init, spare=bool(builds and k)) for k, (own, seed) in enumerate(each)]
        for player in self.players:
            starts = [({**p, **self._projected(p, player, replicas=False)}, b) for p, b in starts]
        if len(starts) > 1:
            refuse_alike(self.objective, [params for params, _ in starts], init)
        to_device = partial(Tensor.to, device=device)
        state = State(
            objective=self.objective,
            params=tree_map(to_device, self._joined([p for p, _ in starts])),
            buffers=tree_map(to_device, self._joined([b for _, b in starts])),
            seeds=torch.tensor(seeds if self.replicas else seeds[0], dtype=torch.int64, device=device),
            replicas=self.replicas,
            active=torch.ones(len(seeds) if self.replicas else (), dtype=torch.bool, device=device),
        )
        for player in self.players:
            states = [verbs.init(self.strategy, {n: p[n] for n in self.names[player]}) for p, _ in starts]
            state.strategy[player] = tree_map(to_device, self._joined(states))
        self.prepare(state)
        return state

    def _joined(self, trees: list[AnyTree]) -> AnyTree:
        """The runs' trees stacked, or the only one."""
        return tree_stack(trees) if self.replicas else trees[0]

    def prepare(self, state: State) -> None:
        """Fresh optimizers and schedules over the state's parameters, where they are descended."""
        state.act, state.adapting = self.call, partial(adapting, self)
        lay_out(state)
        for player in () if self.objective.solved else self.players:
            params = {n: state.params[n] for n in self.names[player]}
            # Replicas with rates of their own: a step at rate 1, as precise as it can be, is scaled for each of them.
            optimizer = self.optimizers[player].having(lr=1.0) if self.rates is not None else self.optimizers[player]
            state.optimizers[player] = optimizer.make(params)
            prepare(self, player, state.optimizers[player])

    def adopt(self, other: Engine) -> None:
        """Takes what another engine knows of the same objective: what cannot be vectorized, what was built open."""
        self.mappers, self.open = other.mappers, other.open

    # --- a step ---------------------------------------------------------------------------------------

    def numbered(self, batch: Batch, *, grouped: bool) -> Batch:
        """The batch with row numbers on it, the same in every replica."""
        return numbered(batch, self.replicas, grouped=grouped)

    def gradient(self, state: State, batch: Batch, player: str) -> Slope:
        """(gradient, mean loss, buffers, strategy state) of a player, per replica."""
        at = self._place(state, player)
        if not self.episodic and self.strategy.sight.grouped:
            stacked = 0 if self.replicas is None else 1
            self._groups = refuse_groups(self.strategy, batch, stacked, state.step, self._groups)
        if world()[1] > 1:
            return self._gradient_over_ranks(state, at, batch, player)
        route, mapper = self._route(player, at, batch), self.mappers[player]

        # The place goes in part by part: vmap asks every tuple of a class of its own what it is, at every step.
        def one(
            params: Params,
            others: Params,
            buffers: Params,
            key: Tensor,
            batch: Batch,
            own: StrategyState,
            swept: Params,
        ) -> Slope:
            return gradient(route, mapper, Place(params, others, buffers, key), batch, self._having(swept), own)

        return mapped(self.replicas, one, *at, batch, state.strategy[player], self.swept)

    def _place(self, state: State, player: str) -> Place:
        """Where a player stands at this step."""
        names = set(self.names[player])
        params = {n: p.detach() for n, p in state.params.items() if n in names}
        others = {n: p.detach() for n, p in state.params.items() if n not in names}
        return Place(params, others, state.buffers, state.key("step", player))

    def _gradient_over_ranks(self, state: State, at: Place, batch: Batch, player: str) -> Slope:
        """The same, each process taking its share of the batch; sums are made outside of the replicas' map."""
        where = f"at step {state.step}"
        if not self._alike:
            refuse_coupled(self.objective)
            if self.strategy.sight.together:
                raise ValueError(
                    f"expected a strategy whose loss the processes can share where {world()[1]} of them train, got "
                    f"{self.strategy!r}, whose penalty couples all rows of an update; train it in one process"
                )
            seeds, both = state.seeds, {**at.params, **at.others}
            refuse_different({"random_state": seeds, "parameters": both, "batch": batch}, where)
            if not self.strategy.sight.whole:
                first, rows = self._first(at, batch)
                refuse_mixing(self.objective, first, flatten_groups(rows) if self.grouped else rows)
            self._alike = True
        stacked = 0 if self.replicas is None else 1
        part = share(batch, stacked + shared_axis(self.grouped, self.strategy))
        route, mapper, own = self._route(player, at, part, share=True), self.mappers[player], state.strategy[player]
        entire = self._route(player, at, batch) if self.strategy.does("steer") else route

        def before(at: Place, part: Batch, own: StrategyState, swept: Params) -> Parts:
            return local(route, mapper, at, part, self._having(swept), own)

        def after(parts: Parts, at: Place, batch: Batch, own: StrategyState, swept: Params) -> Slope:
            return conclude(entire, mapper, parts, at, batch, self._having(swept), own)

        parts = mapped(self.replicas, before, at, part, own, self.swept)
        check = player not in self._settled
        parts = pool(route, parts, state.buffers, batch, self.strategy, stacked, where, check=check)
        self._settled.add(player)
        return mapped(self.replicas, after, parts, at, batch, own, self.swept)

    def _having(self, swept: Params) -> Strategy:
        """The strategy with a replica's own hyperparameters."""
        return self.strategy.having(**swept) if swept else self.strategy

    def _first(self, at: Place, batch: Batch) -> tuple[Place, Batch]:
        """The first replica's tensors and batch, or the only one's."""
        return (at, batch) if self.replicas is None else (at.replica(0), tree_map(itemgetter(0), batch))

    def _route(self, player: str, at: Place, batch: Batch, *, share: bool = False) -> Route:
        """How a player's gradient is computed, looked up once: at the first batch, of the first replica."""
        if (player, share) not in self.routes:
            first, rows = self._first(at, batch)
            self.routes[player, share] = look(
                self.objective,
                player,
                first,
                rows,
                self.strategy,
                grouped=self.grouped,
                weighting=self.weighting,
                pieces=self.pieces,
                memory=self.memory,
                transform=self.replicas is not None,
            )
        return self.routes[player, share]

    def probe(self, state: State, source: Source) -> None:
        """One gradient and one evaluation, without effect: raises what training would raise."""
        batch = next(self.batches(source, fresh(source, state)))
        in_training(self.objective)
        for player in self.players:
            self.gradient(state, self.numbered(batch, grouped=self.grouped), player)
            self._projected(state.params, player)
        if not self.episodic:
            self.measure(state, iter([batch]), grouped=self.grouped)

    def step(self, state: State, batch: Batch) -> dict[str, Tensor]:
        """One update of every player whose turn it is; returns their losses, per replica."""
        batch = self.numbered(batch, grouped=self.grouped)
        in_training(self.objective)
        report = {loss_name(player): self.move(state, batch, player) for player in self.movers(state)}
        state.step += 1
        return report

    def movers(self, state: State) -> tuple[str, ...]:
        """The players whose turn it is, in the order of their moves."""
        return tuple(player for player in self.players if state.step % self.objective.every(player) == 0)

    def move(self, state: State, batch: Batch, player: str, factor: Tensor | None = None) -> Tensor:
        """One player's update, in place; returns its loss.

        Args:
            state: where the run stands.
            batch: numbered.
            player: who moves.
            factor: in a step that is recorded to be replayed, the schedule's; then nothing is asked of the host,
                and what has diverged is frozen by a mask alone.
        """
        gradient, loss, buffers, own = self.gradient(state, batch, player)
        length = norm(self.replicas, gradient)
        state.active.logical_and_(torch.isfinite(length + loss))
        if factor is None:
            self.settle(state, player)
        frozen = factor is not None or (self.replicas is not None and not bool(state.active.all()))
        gradient = clipped(self.replicas, gradient, length, self.clip)
        self.apply(state, player, batch, gradient, own, factor, frozen=frozen)
        for name, p in self._projected(state.params, player).items():
            old = state.params[name]
            old.copy_(torch.where(self.broadcast(state.active, old), p, old))
        for name, b in buffers.items():
            old = state.buffers[name]
            torch.where(self.broadcast(state.active, b), b.to(old.dtype), old, out=old) if frozen else old.copy_(b)
        return loss

    def _projected(self, params: Params, player: str, replicas: bool = True) -> Params:
        """A player's parameters put back on the sets where they live, if any do."""
        each = self.replicas if replicas else None
        return projected(self.objective, each, params, self.names[player]) if self.objective.projects else {}

    def broadcast(self, value: Tensor, like: Tensor) -> Tensor:
        """One number per replica, shaped to multiply a stacked tensor."""
        return broadcast(self.replicas, value, like)

    def settle(self, state: State, player: str = "") -> None:
        """Records what has diverged (it stays at its last good parameters); raises when all have."""
        if bool(state.active.all()):
            return
        where = f" of {player!r}" if player else ""
        mend = self.objective.remedies.get(player, "")
        for k, active in enumerate(state.active.reshape(-1).tolist()):
            if not active and k not in state.stopped:
                state.ended[k] = state.step
                told = f"diverged at step {state.step_of(k)}: the loss{where} or its gradient is not finite"
                state.stopped[k] = f"{told}; {mend}" if mend else told
        if len(state.diverged) == (state.replicas or 1):
            usual = "; lower the learning rate, clip the gradient (clip=1.0), or look for extreme values in the data"
            why = state.stopped[max(state.stopped)] + ("" if mend else usual)
            raise Diverged(f"expected finite losses, got NaN or infinity: {why}")

    def apply(
        self,
        state: State,
        player: str,
        batch: Batch,
        gradient: Params,
        own: StrategyState,
        factor: Tensor | None = None,
        *,
        frozen: bool,
    ) -> None:
        """The optimizer proposes a step; the strategy, the replicas' own rates and what is frozen amend it.

        With a `factor` (in a recorded step) the schedule too is applied to the step; `frozen` says whether a replica
        may have stopped.
        """
        optimizer, scheduler = state.optimizers[player], self.schedulers.get(player)
        amend = self.strategy.does("update") or self.rates is not None
        if factor is None and (scheduler is None or isinstance(scheduler, Plateau)):
            now = factor_of(self, state, player)
            set_rates(self, state, player, 1.0 if isinstance(now, Tensor) else now)
            if isinstance(now, Tensor):  # each replica its own: of the step, not of the rate
                factor, amend = now, True
        if frozen and not amend:
            amend = self.replicas is not None or factor is None or not gated(optimizer)
            if not amend and factor is not None:
                gate(optimizer, [factor * rate for rate in self.settings[player]], state.active)
        before = {n: state.params[n].clone() for n in gradient} if amend else {}
        rate = optimizer.param_groups[0]["lr"]
        for name, g in gradient.items():
            state.params[name].grad = alike(g, state.params[name])
        optimizer.step()
        for name in gradient:
            state.params[name].grad = None
        ungate(optimizer)
        if scheduler is not None and not isinstance(scheduler, Plateau):
            self.used[player] = rate
            scheduler.step()
        if not amend:
            state.strategy[player] = own
            return
        step = scaled(self, player, {n: state.params[n] - old for n, old in before.items()}, factor)
        if self.strategy.does("update"):
            if self.objective.projects:  # it is told of the step that is made
                ends = {**state.params, **{n: old + step[n] for n, old in before.items()}}
                step |= {n: p - before[n] for n, p in self._projected(ends, player).items()}
            at = self._place(state, player)._replace(params=before)
            route, lr = self._route(player, at, batch), rate_of(self, rate, factor, next(iter(step.values())))

            def act(
                at: Place, batch: Batch, step: Params, lr: Tensor, key: Tensor, own: StrategyState, swept: Params
            ) -> tuple[Params, StrategyState]:
                return updated(route, at, batch, step, lr, key, self._having(swept), own, self.data_rows)

            step, own = mapped(self.replicas, act, at, batch, step, lr, state.key("update", player), own, self.swept)
        for name, old in before.items():
            moved = old + step[name]
            state.params[name].copy_(torch.where(self.broadcast(state.active, old), moved, old))
        kept = frozen and self.replicas is not None  # a single run that has stopped makes no further step
        state.strategy[player] = going(state.active, own, state.strategy[player]) if kept else own

    # --- a task's beginning and end ------------------------------------------------------------------

    def release(self, state: State, task: str) -> None:
        """Begins a task: what the same task left before no longer counts."""
        for player in self.players:
            state.strategy[player] = verbs.release(self.strategy, state.strategy[player], task)

    def consolidate(self, state: State, source: Source, task: str, rows: int = MOST) -> None:
        """Ends a task: the strategy keeps what it needs of it, from the unwrapped loss, so many rows at once."""
        if self.episodic and self.strategy.does("consolidate"):
            raise ValueError(
                f"expected the task {task!r} to have rows for {self.strategy!r} to look back on, got episodes; train "
                "on them without a task, by fit(source)"
            )
        memory = self.memory * (self.replicas or 1)  # one after another
        going = [k for k in range(self.replicas or 1) if k not in state.diverged]
        for player in self.players if going else ():
            after: dict[int, StrategyState] = {}
            for k in going:
                strategy = self.strategy.having(**tree_map(itemgetter(k), self.swept))
                run, names = state.replica(k), self.names[player]
                after[k] = consolidated(run, strategy, player, names, source, task, rows, memory)
            nothing = tree_map(torch.zeros_like, after[going[0]])  # what has diverged has nothing to keep
            every = [after.get(k, nothing) for k in range(self.replicas or 1)]
            state.strategy[player] = self._joined(every)
        state.tasks = [t for t in state.tasks if t != task] + [task]

    def forget(self, run: State) -> None:
        """Lets the parameters of one run answer themselves, whatever of earlier ones the strategy has kept for that."""
        for player, state in run.strategy.items():
            params = {n: run.params[n] for n in self.names[player]}
            for name, part, _ in verbs.each(self.strategy, state):
                if part.does("answer"):
                    state = verbs.replaced(state, name, verbs.init(part, params))
            run.strategy[player] = state

    def adapt(self, run: State, batch: Batch) -> tuple[Params, Params]:
        """One run's parameters and buffers, adapted to a few examples: by the objective, or by the strategy."""
        player = self.players[0]
        return adapted(run, self.strategy, player, self.names[player], batch)
