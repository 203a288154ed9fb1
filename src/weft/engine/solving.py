"""What is solved, not descended: at once or in iterations, with the same records, validation and conventions around it.

Replicas are solved side by side, an iteration of each at a time, or all together in one call, as the objective says.
While it goes on, the state holds the solution so far, and in its tally what it began with: an interrupted one begins
anew from there, and ends where it would have ended.
"""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from weft.core.objective import Solution
from weft.core.source import Batch, Source, SourceState
from weft.core.state import State
from weft.core.trees import Params, tree_map, tree_stack
from weft.engine.asking import measure, rows_to_measure
from weft.engine.engine import Diverged, Engine
from weft.engine.loop import TOLD, History, Plan, Record, progress_of, recorded
from weft.engine.replicas import apart, batches, fresh, once, reading, reported
from weft.engine.vectorize import VectorizationWarning

__all__ = ["solving"]


def solving(engine: Engine, state: State, source: Source, plan: Plan, history: History) -> Iterator[Record]:
    """Solves while it is iterated over, giving each record: of every so-many-th iteration, and of the solution.

    A record of an iteration has the numbers that `solve` yields. Where the solution comes along it is measured too, on
    all rows of the data and on the validation, as is the one that `solve` returns. They are appended to `history`; an
    interrupted one is cleared, and it begins anew.
    """
    history.clear()
    _begin(state)
    started = time.perf_counter()
    reading(source, state, plan.steps)
    work = _Work(engine, state, source, plan)
    while work.going:
        values = work.iterate()
        if values is None:
            continue
        told = {name: recorded(value if state.replicas else value[0]) for name, value in values.items()}
        told.update({name: recorded(value) for name, value in reported(source, state, {*told, *TOLD}).items()})
        record = {"step": state.step, "epoch": len(history) + 1, **told}
        history.append({**record, "seconds": time.perf_counter() - started})
        yield history[-1]
        if plan.pause.asked:
            work.close()
            raise KeyboardInterrupt
        if not bool(state.active.any()):
            work.stop()
    work.conclude()


def _begin(state: State) -> None:
    """Notes what the state begins with, or puts that back after an interruption."""
    begun = state.tally.get("begun")
    if begun is not None:
        state.params, state.buffers, state.active = begun["params"], begun["buffers"], begun["active"]
        state.stopped = dict(begun["stopped"])
    state.step, state.best = state.origin, {}
    state.ended = dict.fromkeys(state.diverged, state.step)
    tensors = {"params": dict(state.params), "buffers": dict(state.buffers), "active": state.active.clone()}
    state.tally = {"begun": {**tensors, "stopped": dict(state.stopped)}}


class _Stacked(Source):
    """A source as all replicas read it at once, whether or not it stacks them itself."""

    stacks = True

    def __init__(self, source: Source) -> None:
        self.source, self.spec, self.size, self.epoch = source, source.spec, source.size, source.epoch
        self.grouped, self.episodic = source.grouped, source.episodic
        self.resumes, self.acts = source.resumes, source.acts

    def init(self, state: State) -> SourceState:
        return self.source.init(state)

    def batches(self, state: State) -> Iterator[Batch]:
        return batches(self.source, state)

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        return once(self.source, state, rows)


class _Solver:
    """A call of `solve`, for one replica or for all of them, and how far it has come.

    Attributes:
        numbers: the replicas that it solves.
        told: the numbers of its last iteration.
        done: whether it has given its solution.
    """

    def __init__(self, run: State, source: Source, numbers: list[int], *, stacked: bool) -> None:
        self.numbers, self.stacked, self.done = numbers, stacked, False
        self.told: dict[str, Tensor] = {}
        self.name = f"{type(run.objective).__name__}.solve"
        found = run.objective.solve(source, run)
        self.turns = found if inspect.isgenerator(found) else None
        self.found = None if self.turns is not None else found

    def advance(self) -> tuple[dict[str, Tensor], Solution | None]:
        """An iteration: its numbers over the replicas, and the solution where it came along.

        The solution that it ends with is that of its last iteration, whose numbers are told with it.
        """
        if self.turns is None:
            self.done = True
            return {}, self._solution(self.found)
        try:
            given = next(self.turns)
        except StopIteration as end:
            self.done = True
            return self.told, None if end.value is None else self._solution(end.value)
        told, found = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(told, Mapping):
            raise TypeError(
                f"expected {self.name} to yield a record, numbers by name, or a record and the solution so far, got "
                f"{type(given).__name__}"
            )
        self.told = {str(name): self._number(name, value) for name, value in told.items()}
        return self.told, None if found is None else self._solution(found)

    def close(self) -> None:
        """Ends it where it stands."""
        self.done = True
        if self.turns is not None:
            self.turns.close()

    def _solution(self, found: object) -> Solution:
        if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
            raise TypeError(
                f"expected {self.name} to give tensors by the names of parameters and buffers, got "
                f"{type(found).__name__}{'' if not isinstance(found, Mapping) else ' of something else'}"
            )
        return dict(found)

    def _number(self, name: object, value: object) -> Tensor:
        if name in TOLD:
            raise ValueError(
                f"expected {self.name} to name its numbers otherwise, got {name!r}, which every record has"
            )
        try:
            number = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"expected {self.name} to yield a number for {name!r}, got {value!r}") from error
        wanted: tuple[tuple[int, ...], ...] = ((), (len(self.numbers),)) if self.stacked else ((),)
        if tuple(number.shape) not in wanted:
            each = f", or one for each of {len(self.numbers)} replicas," if self.stacked else ""
            raise ValueError(
                f"expected {self.name} to yield one number for {name!r}{each} got shape {tuple(number.shape)}"
            )
        return number.expand(len(self.numbers))


class _Work:
    """The solutions of all replicas on their way.

    Attributes:
        solutions: by replica the last one told, and with patience the best.
        turn: iterations made.
    """

    def __init__(self, engine: Engine, state: State, source: Source, plan: Plan) -> None:
        self.engine, self.state, self.source, self.plan = engine, state, source, plan
        self.count, self.turn, self.iterative = state.replicas or 1, 0, False
        self.solutions: dict[int, Solution] = {}
        self.best: dict[int, Solution] = {}
        self.lost: dict[int, str] = {k: state.stopped[k] for k in state.diverged}
        self.ends: dict[int, int] = {}
        self.active: list[bool] = []
        self.untold: tuple[dict[str, Tensor], list[int]] = ({}, [])  # of the iteration before, where it had no record
        device, self.together = state.device, engine.objective.solves == "together"
        state.best = {
            "value": torch.full((self.count,), math.inf, dtype=torch.float64, device=device),
            "waited": torch.zeros(self.count, dtype=torch.int64, device=device),
        }
        living = [k for k in range(self.count) if k not in self.lost]
        # What `solve` is shown stays as it began, whatever becomes of the state.
        shown = replace(state, params=dict(state.params), buffers=dict(state.buffers), optimizers={}, _roots={})
        if self.together:
            every = shown if state.replicas else _alone(shown)
            self.solvers = [_Solver(every, _Stacked(source), list(range(self.count)), stacked=True)] if living else []
        else:
            self.solvers = [_Solver(shown.replica(k), source, [k], stacked=False) for k in living]

    @property
    def going(self) -> bool:
        return any(not solver.done for solver in self.solvers)

    def iterate(self) -> dict[str, Tensor] | None:
        """An iteration of every solver; what a record tells of it, over the replicas, or None."""
        values: dict[str, Tensor] = {}
        new: list[int] = []
        yielded = ended = False
        for solver in self.solvers:
            if solver.done:
                continue
            numbers, found = solver.advance()
            yielded, ended = yielded or not solver.done, ended or solver.done
            if solver.done and found is None and not any(self.untold):  # what it told last has been recorded
                numbers = {}
            living = [k for k in solver.numbers if k not in self.lost and k not in self.ends]
            for name, value in numbers.items():
                own = value if solver.stacked else value.expand(self.count)
                if len(living) == self.count:  # as mostly
                    values[name] = own.clone()
                else:
                    column = values.setdefault(name, torch.full((self.count,), math.nan, dtype=torch.float64))
                    column[living] = own[living]
                for k in [k for k in living if k not in self.lost] if bool(own.isnan().any()) else ():
                    if bool(own[k].isnan()):
                        self._lose(k, f" at iteration {self.turn + 1}: {name!r} is NaN")
            if found is not None:
                new += self._take(solver, found, living)
            elif solver.done:  # what it told last stands
                new += [k for k in living if k in self.untold[1]]
            if solver.done:
                for k in living:
                    self.ends.setdefault(k, self.turn)
        self.turn += yielded
        self.iterative = self.iterative or yielded
        self.state.step = self.state.origin + self.turn
        self._settle()
        ended = ended or not self.going
        if not (ended or self.turn % (self.plan.every or 1) == 0) or not (values or new):
            self.untold = (values, new)
            return None
        self.untold = ({}, [])
        if new:
            self._put()
            values |= self._measured(new, {*values, *TOLD})
            self._settle()
        return values

    def _settle(self) -> None:
        """Says why those stopped that have, and ends what goes on for nobody; raises when all have diverged."""
        state = self.state
        for k, turn in self.ends.items():
            solved = f"solved in {turn} iterations" if self.iterative else "solved"
            state.stopped.setdefault(k, self.lost.get(k, solved))
        active = [k not in self.ends and k not in self.lost for k in range(self.count)]
        if active != self.active:
            self.active = active
            state.active = torch.tensor(active if state.replicas else active[0], device=state.device)
        for solver in self.solvers:
            if not solver.done and not any(active[k] for k in solver.numbers):
                solver.close()
        if len(self.lost) == self.count:
            self.close()
            raise Diverged(
                f"expected a finite solution of {type(self.engine.objective).__name__}, got NaN or infinity: "
                f"{self.lost[max(self.lost)]}; look for extreme values in the data, or for hyperparameters at which "
                "there is none"
            )

    # --- what was found -------------------------------------------------------------------------------

    def _take(self, solver: _Solver, found: Solution, living: list[int]) -> list[int]:
        """Checks a solution and keeps it, replica by replica; those of which there is a new one."""
        state, stacked = self.state, 1 if solver.stacked else 0
        held = {**state.tally["begun"]["params"], **state.tally["begun"]["buffers"]}
        lead = 0 if state.replicas is None else 1
        cast: Solution = {}
        for name, value in found.items():
            if name not in held:
                raise KeyError(
                    f"expected {solver.name} to give parameters and buffers among {sorted(held)}, got {name!r}; make "
                    "it in build"
                )
            old = held[name]
            if stacked and value.shape[:1] != (self.count,):
                raise ValueError(
                    f"expected {solver.name} to give {name!r} with the {self.count} replicas on its leading axis, as "
                    f"solves = 'together' says, got shape {tuple(value.shape)}"
                )
            if name not in self.engine.open and value.shape[stacked:] != old.shape[lead:]:
                raise ValueError(
                    f"expected {solver.name} to give {name!r} in the shape that it was built, "
                    f"{tuple(old.shape[lead:])}, got {tuple(value.shape[stacked:])}; reshape it there, or build it "
                    "empty (torch.empty(0)) where only the solution tells its shape"
                )
            if not old.is_floating_point() and not old.is_complex() and value.is_floating_point():
                raise TypeError(
                    f"expected {solver.name} to give {name!r} as {old.dtype}, as it was built, got {value.dtype}; "
                    "round it there, or build it in another dtype"
                )
            cast[name] = value.detach().to(old.device, old.dtype, copy=True)
        taken = []
        sound = {n: _sound(v, stacked, parameter=n in state.params).tolist() for n, v in cast.items()}
        for k in living:
            if k in self.lost:
                continue
            own = {n: v[k] for n, v in cast.items()} if solver.stacked else cast
            odd = next((n for n, each in sound.items() if not (each[k] if solver.stacked else each)), None)
            if odd is not None:
                after = f" after {self.turn} iterations" if self.turn else ""
                when = after if solver.done else f" at iteration {self.turn + 1}"
                self._lose(k, f"{when}: {odd!r} of the solution is not finite")
                continue
            self.solutions[k] = own
            taken.append(k)
        return taken

    def _lose(self, k: int, why: str) -> None:
        self.lost[k] = f"diverged{why}"
        self.ends[k] = self.turn

    def _put(self) -> None:
        """The solutions so far into the state; what has none stays as it began, or is NaN where that has no shape."""
        state, begun = self.state, self.state.tally["begun"]
        names = {name for found in self.solutions.values() for name in found}
        for kind in ("params", "buffers"):
            tree: Params = getattr(state, kind)
            for name in sorted(names & tree.keys()):
                old = begun[kind][name] if state.replicas else begun[kind][name][None]
                own = {k: found[name] for k, found in self.solutions.items() if name in found}
                shapes = {tuple(value.shape): k for k, value in own.items()}
                if len(shapes) > 1:
                    (one, first), (two, second) = list(shapes.items())[:2]
                    raise ValueError(
                        f"expected solutions of one shape for all replicas of {type(state.objective).__name__}, got "
                        f"{name!r} of shape {one} for replica {first} and {two} for {second}; say solves = 'apart' in "
                        "the class, so that each is a run of its own"
                    )
                like = next(iter(own.values()))
                each = [own.get(k, old[k] if old[k].shape == like.shape else _nothing(like)) for k in range(self.count)]
                tree[name] = torch.stack(each) if state.replicas else each[0]

    # --- how good it is -------------------------------------------------------------------------------

    def _measured(self, new: list[int], taken: set[str]) -> dict[str, Tensor]:
        """The measures of the new solutions, on the data and on what is held out; NaN for other replicas."""
        values = dict(self._over(self.source, new))
        if self.plan.validation is not None:
            held = self._over(self.plan.validation, new)
            values |= {f"valid_{name}": value for name, value in held.items()}
            judged = self.plan.judged(self.engine, self.state, values)
            values |= {name: value if self.state.replicas else value[None] for name, value in judged.items()}
        odd = sorted(taken & values.keys())
        if odd:
            raise ValueError(
                f"expected {type(self.state.objective).__name__}.solve to name its numbers otherwise, got {odd[0]!r}, "
                "which is a measure of the solution as well"
            )
        _, now = progress_of(self.engine, values)
        best, now = self.state.best, now.to(self.state.best["value"])
        for k in new:
            least = best["value"][k] - self.plan.tolerance * best["value"][k].abs().clamp_max(1.0)
            better = self.plan.patience is None or bool(now[k] < least)
            best["waited"][k] = 0 if better else best["waited"][k] + 1
            if better:
                best["value"][k], self.best[k] = now[k], self.solutions[k]
            elif k not in self.ends and int(best["waited"][k]) >= (self.plan.patience or math.inf):
                self.ends[k] = self.turn
                self.state.stopped[k] = f"no progress in {self.plan.patience} evaluations, at iteration {self.turn}"
        return values

    def _over(self, source: Source, new: list[int]) -> dict[str, Tensor]:
        state = self.state if source is self.source else fresh(source, self.state)
        rows = rows_to_measure(state, source, self.plan.memory)
        if self.together and state.replicas is not None:
            try:
                every = measure(state, once(source, state, rows))
                others = torch.tensor([k not in new for k in range(self.count)], device=state.device)
                return {name: value.masked_fill(others, math.nan) for name, value in every.items()}
            except (RuntimeError, NotImplementedError) as error:
                warnings.warn(
                    f"replicas are measured one after another: {type(state.objective).__name__} cannot be vectorized "
                    f"by torch.vmap ({str(error).splitlines()[0][:120]})",
                    VectorizationWarning,
                    stacklevel=6,
                )
                self.together = False
        runs = [state.replica(k) for k in new]
        found = tree_stack([measure(run, source.once(apart(run), rows)) for run in runs])
        where = torch.tensor(new, device=state.device)
        return {n: v.new_full((self.count,), math.nan).index_copy(0, where, v) for n, v in found.items()}

    # --- its end --------------------------------------------------------------------------------------

    def close(self) -> None:
        for solver in self.solvers:
            solver.close()

    def stop(self) -> None:
        """Ends what a callback has ended, at the solutions so far."""
        if self.going and any(k not in self.solutions and k not in self.lost for k in range(self.count)):
            self.close()
            name = type(self.engine.objective).__name__
            raise ValueError(
                f"expected a solution so far to end with, got a callback that ends {name}.solve at iteration "
                f"{self.turn}, before any was told; have it yield record, solution, or leave the callback out"
            )
        self.close()

    def conclude(self) -> None:
        """The solutions into the state, for good."""
        missing = [k for k in range(self.count) if k not in self.solutions and k not in self.lost]
        if missing:
            raise ValueError(
                f"expected {type(self.engine.objective).__name__}.solve to return the solution, got None without one "
                "that was yielded; end it by return {...}"
            )
        if self.plan.patience is not None:
            self.solutions |= self.best
        self._put()
        state = self.state
        state.ended |= {k: state.origin + turn for k, turn in self.ends.items()}
        active = [k not in self.lost for k in range(self.count)]
        state.active = torch.tensor(active if state.replicas else active[0], device=state.device)
        value, waited = state.best["value"], state.best["waited"]
        state.best = {"value": value if state.replicas else value[0], "waited": waited if state.replicas else waited[0]}
        state.tally = {}


def _alone(state: State) -> State:
    """A single run as one replica of a stacked one."""
    lead = partial(torch.unsqueeze, dim=0)
    trees = {n: tree_map(lead, getattr(state, n)) for n in ("params", "buffers", "strategy", "statistics", "source")}
    return replace(state, **trees, seeds=state.seeds[None], active=state.active[None], replicas=1, _roots={})


def _sound(value: Tensor, lead: int, *, parameter: bool) -> Tensor:
    """Whether it is a solution, for all or each: parameters are finite; buffers may be infinite, as log 0 is."""
    sound = torch.isfinite(value) if parameter else ~value.isnan()
    return sound.flatten(lead).all(-1) if sound.dim() > lead else sound


def _nothing(like: Tensor) -> Tensor:
    return torch.full_like(like, math.nan) if like.is_floating_point() else torch.zeros_like(like)
