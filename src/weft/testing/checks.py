"""check_objective, check_strategy, check_source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from weft.core.configured import Configured
from weft.core.corpus import Corpus
from weft.core.objective import Objective, Output, reduce
from weft.core.optimizer import Optimizer
from weft.core.random import key_of
from weft.core.source import Batch, Source, number_rows, rows_of
from weft.core.state import State
from weft.core.strategy import Loss, Penalty, Strategy, StrategyState, Summing
from weft.core.trees import Params, tree_leaves, tree_map
from weft.core.weave import weave
from weft.engine import verbs
from weft.engine.answering import answers
from weft.engine.build import build, initialize
from weft.engine.engine import Engine
from weft.engine.gradients.loss import base_loss
from weft.engine.loop import History, Plan, begin, train
from weft.engine.replicas import called, fresh
from weft.engine.solving import solving
from weft.learner.runs import vectorizes
from weft.sources import Arrays, Episodes
from weft.sources.cast import Cast
from weft.sources.rowed import Rowed
from weft.strategies import ERM
from weft.testing.classes import TRAITS, declared
from weft.testing.traits import lies

__all__ = ["ContractError", "check_objective", "check_refusal", "check_strategy"]


class ContractError(AssertionError):
    """A method breaks the contract."""


def _expect(condition: object, message: str) -> None:
    if not bool(condition):
        raise ContractError(message)


def _close(a: object, b: object, what: str, rtol: float = 1e-6) -> None:
    """Two trees of tensors are equal to rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        _expect(a.keys() == b.keys(), f"expected {what} to hold {sorted(b)}, got {sorted(a)}")
        for name in a:
            _close(a[name], b[name], f"{what}, {name!r}", rtol)
        return
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-8)
    except AssertionError as error:
        raise ContractError(f"{what}: {error}") from error


def _params_survive(thing: Configured) -> None:
    """Hyperparameters are assigned as they are, so that scikit-learn can clone it."""
    from sklearn.base import clone

    params = thing.get_params(deep=False)
    twin = clone(thing, safe=False)
    _expect(type(twin) is type(thing), f"expected clone to give a {type(thing).__name__}, got {type(twin).__name__}")
    _expect(
        twin.get_params(deep=False).keys() == params.keys(),
        f"expected the same parameters after clone, got {sorted(twin.get_params(deep=False))}",
    )


def _engine(
    objective: Objective, strategy: Strategy, source: Source, *, replicas: int | None = None, memory: int = 2**30
) -> Engine:
    optimizers = {player: Optimizer("sgd", lr=0.05) for player in objective.players or ("",)}
    return Engine(
        objective,
        strategy,
        optimizers,
        grouped=source.grouped,
        episodic=source.episodic,
        memory=memory,
        replicas=replicas,
    )


class _Trained(NamedTuple):
    """A trained state, and as it answers."""

    state: State
    answers: list[State]

    def replica(self, k: int) -> dict[str, Params]:
        """The parameters trained, and those that answer."""
        run = self.state.replica(k)
        found = {f"answer {i}": one.replica(k).params for i, one in enumerate(self.answers)}
        solved = {"buffers": run.buffers} if run.objective.solved else {}
        return {"parameters": run.params, **solved, **found}


class _Apart(NamedTuple):
    """A run for each replica, where a layer cannot be vectorized over them."""

    runs: list[_Trained]

    def replica(self, k: int) -> dict[str, Params]:
        """The parameters trained, and those that answer."""
        return self.runs[k].replica(0)


def _begun(
    objective: Objective, strategy: Strategy, source: Source, seeds: list[int], memory: int = 2**30
) -> tuple[Engine, State]:
    """An engine in double precision with a state for these seeds, each built by its own."""
    builds = [build(objective, source.spec, seed, torch.float64) for seed in seeds]
    replicas = len(seeds) if len(seeds) > 1 else None
    engine = _engine(builds[0], strategy, source, replicas=replicas, memory=memory)
    return engine, engine.init(seeds, torch.device("cpu"), builds=builds)


def _replicas(
    objective: Objective, strategy: Strategy, source: Source, seeds: list[int], tasks: int = 0
) -> _Trained | _Apart:
    """Replicas as a Learner trains them: at once, or one after another where a layer has no rule for it, told once."""
    together = objective.solves != "apart" if objective.solved else None
    if vectorizes(*_begun(objective, strategy, source, seeds), source) if together is None else together:
        return _trained(objective, strategy, source, seeds, tasks=tasks)
    return _Apart([_trained(objective, strategy, source, [seed], tasks=tasks) for seed in seeds])


def _trained(
    objective: Objective,
    strategy: Strategy,
    source: Source,
    seeds: list[int],
    steps: int = 3,
    tasks: int = 0,
    memory: int = 2**30,
) -> _Trained:
    """A run after a few steps, in double precision, or after a few in each of some tasks."""
    engine, state = _begun(objective, strategy, source, seeds, memory)
    plan = Plan(steps=steps, every=steps)
    if objective.solved:
        for _ in solving(engine, state, source, plan, History()):
            pass
    elif not tasks:
        train(engine, state, source, plan)
    for task in map(str, range(tasks)):
        begin(engine, state, plan)
        engine.release(state, task)
        train(engine, state, source, plan)
        engine.consolidate(state, source, task)
    return _Trained(state, answers(engine, state))


def check_objective(objective: Objective, source: Source) -> None:
    """Checks losses, keyed randomness, what it declares, weights, measures and replicas of an objective.

    Replicas that a layer keeps from being trained at once (an LSTM) are trained as the Learner does it, one after
    another, with a `VectorizationWarning`.

    Args:
        objective: as a user would pass it to a Learner.
        source: data that it can learn from, ungrouped; episodes, where it reads those.

    Example:
        >>> import torch
        >>> from weft.objectives import Regression
        >>> from weft.sources import Arrays
        >>> check_objective(Regression(hidden=(8,)), Arrays(torch.randn(20, 3), torch.randn(20), batch_size=6))
    """
    _params_survive(objective)
    source = Cast(_read_by(objective, source), torch.float64)
    built = build(objective, source.spec, 0, torch.float64)
    params, buffers = initialize(built, 0, "reset")
    engine = _engine(built, ERM(), source)
    state = engine.init([0], torch.device("cpu"))
    if objective.solved and type(objective).solve is not Objective.solve:  # what was built may be empty
        state = replace(_trained(objective, ERM(), source, [0]).state, objective=built)
        params, buffers = state.params, state.buffers
    batch = number_rows(next(engine.batches(source, fresh(source, state))), 1)
    rows = rows_of(batch)
    built.eval()  # statistics of a batch are the layers' affair; here it is the loss's turn
    for player in objective.players or ("",):
        if player:
            owned = [n for n in params if n.startswith(f"{player}.")]
            _expect(owned, f"expected parameters under the player {player!r}, got {sorted(params)}")
        loss = base_loss(built, {}, buffers, key_of(0), player)
        output = loss(params, batch)
        _expect(isinstance(output, Output), f"expected an Output, got {type(output).__name__}")
        _expect(
            output.losses.shape == (rows,), f"expected one loss per row, ({rows},), got {tuple(output.losses.shape)}"
        )
        _expect(torch.isfinite(output.losses).all(), "expected finite losses")
        _close(loss(params, batch).losses, output.losses, "the same key twice", 0.0)
        if built.decomposable:
            half = rows // 2
            first, rest = (tree_map(lambda t: t[s], batch) for s in (slice(0, half), slice(half, None)))  # noqa: B023
            joined = torch.cat([loss(params, first).losses, loss(params, rest).losses])
            _close(joined, output.losses, "losses of parts against those of the whole (say decomposable = False?)")
            index = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(rows)])
            doubled = tree_map(lambda t: t[index], batch)  # noqa: B023
            weight = torch.ones(rows, dtype=torch.float64)
            weight[0] = 2.0
            _close(
                reduce(loss(params, doubled).losses),
                reduce(output.losses, weight),
                "a row of weight 2 against the row twice",
            )
    for lie in lies(built, params, buffers, batch, source.acts):
        raise ContractError(lie)
    told = source.judge(fresh(source, state)) if source.acts else {}
    measures = {**engine.call(state, "measure", batch, key=key_of(0), rows=batch["row"]), **told}
    name, direction = built.progress
    _expect(name in measures, f"expected the progress measure {name!r} among measure()'s {sorted(measures)}")
    _expect(direction in ("min", "max"), f"expected progress to say 'min' or 'max', got {direction!r}")
    for key, value in measures.items():
        if isinstance(value, Corpus):
            value.checked(key, rows)
            cut = [tree_map(lambda t: t[s], batch) for s in (slice(0, rows // 2), slice(rows // 2, None))]  # noqa: B023
            parts, whole = (engine.measure(state, iter(each))[key] for each in (cut, [batch]))
            _close(parts, whole, f"{key!r} of a batch in two parts against the whole")
            continue
        _expect(value.shape in ((), (rows,)), f"expected {key!r} of shape () or ({rows},), got {tuple(value.shape)}")
    many = _replicas(objective, ERM(), source, [0, 1])
    single = _trained(objective, ERM(), source, [1])
    _close(many.replica(1), single.replica(0), "replica 1 against the single run with its seed")


def check_strategy(strategy: Strategy, objective: Objective | None = None, source: Source | None = None) -> None:
    """Checks parameters, what it reads of the objective, neutrality, replicas, chunks and the state of a strategy.

    One that looks back on tasks is given three of them.

    Args:
        strategy: with settings that do something.
        objective: what to train; default: a small classification.
        source: with groups or episodes where the strategy needs them; default: made for it.

    Example:
        >>> from weft.strategies import ANDMask
        >>> check_strategy(ANDMask(threshold=0.6))
    """
    from weft.objectives import Classification

    _params_survive(strategy)
    strategy.validate()
    objective = objective if objective is not None else Classification(hidden=(8,))
    reason = check_refusal(strategy, objective)
    _expect(reason is None, f"expected a strategy that trains {type(objective).__name__}, got a refusal: {reason}")
    source = Cast(_read_by(objective, source if source is not None else _material(strategy)), torch.float64)
    grouped = strategy.sight.grouped
    _expect(source.grouped or not grouped, "expected a grouped source for a strategy that works on groups")

    tasks = 3 if strategy.does("consolidate") and not source.episodic else 0
    many = _replicas(objective, strategy, source, [0, 1], tasks)
    single = _trained(objective, strategy, source, [1], tasks=tasks)
    _close(many.replica(1), single.replica(0), "replica 1 against the single run with its seed")
    for part in strategy.parts:
        _sums(part, {name: p.detach() for name, p in single.state.params.items()})
    tight = _trained(objective, strategy, source, [1], tasks=tasks, memory=1)
    _close(tight.replica(0), single.replica(0), "chunked against unchunked")
    for tree in single.state.strategy.values():
        _expect(all(isinstance(leaf, Tensor) for leaf in tree_leaves(tree)), "expected a state of tensors only")
    for kept in single.state.strategy.values():
        for part, own in verbs.penalties(strategy, kept):
            _pulls(part, {name: p.detach() + 0.1 for name, p in single.state.params.items()}, own)
    _keeps_what_is_left(strategy, objective)
    if strategy.neutral:
        neutral = strategy.having(**strategy.neutral)
        plain: Strategy = ERM()
        base: Source = source
        if source.episodic:  # ERM on the query parts
            base = _Queries(source)
        a = _trained(objective, neutral, source, [0], tasks=tasks)
        b = _trained(objective, plain, base, [0], tasks=tasks)
        for name, params in a.replica(0).items():
            _close(params, b.state.params, f"{name} of {neutral!r} against ERM")


def check_refusal(strategy: Strategy, objective: Objective) -> str | None:
    """Why a strategy refuses an objective; checks that it reads nothing of it but the traits.

    Args:
        strategy: the strategy.
        objective: what it may refuse.

    Example:
        >>> from weft.objectives import GAN
        >>> from weft.strategies import SGLD
        >>> check_refusal(SGLD(), GAN())
        'a game has a loss for each player, and no one density of which they are the logarithm'
    """
    stand_in = declared(objective)
    reason, error = None, ""
    try:
        reason = strategy.refuses(cast(Objective, stand_in))
    except AttributeError as got:
        error = str(got)
    untold = sorted(vars(stand_in)["untold"])
    _expect(
        not untold and not error,
        f"expected refuses of {strategy!r} to read only an objective's traits ({', '.join(TRAITS)}), got "
        f"{', '.join(untold) or error}; declare a trait instead",
    )
    whole = strategy.refuses(objective)
    _expect(
        reason == whole,
        f"expected {strategy!r} to answer {type(objective).__name__} by its traits alone, got {whole!r} for itself and "
        f"{reason!r} for a stand-in with the same traits",
    )
    return reason


def _pulls(strategy: Penalty, params: Params, state: StrategyState) -> None:
    """Checks that `pull` is the gradient of `penalty`."""
    pulled = strategy.pull(params, state) if strategy.pulls else None
    if pulled is None:
        return
    slope = torch.func.grad(lambda p: strategy.penalty(p, state))(params)
    _close(pulled, slope, "pull against the gradient of penalty")


def _sums(part: Strategy, params: Params) -> None:
    """Checks that a combiner by sums keeps its memory bound: what it keeps does not grow with the groups."""
    if not isinstance(part, Summing):
        return
    name = type(part).__name__
    _expect(
        verbs.sums_of(part) is not None,
        f"expected {name} to combine by its sums alone, got a combine of its own, which holds every group's gradient; "
        "derive it from Strategy, or write summarize and conclude",
    )
    sizes = []
    for groups in (2, 5):
        gradients = {n: torch.ones(groups, *p.shape, dtype=p.dtype) for n, p in params.items()}
        sums = part.summarize(gradients, torch.full((groups,), 1 / groups, dtype=torch.float64))
        sizes.append(sum(leaf.numel() for leaf in tree_leaves(sums)))
    _expect(
        sizes[0] == sizes[1],
        f"expected {name}'s summarize to give sums over the groups, of one size whatever their number, got {sizes[0]} "
        f"numbers for 2 groups and {sizes[1]} for 5: that keeps no memory bound",
    )


class _Leaving(Strategy):
    """Leaves a tree in the output of a pass over all groups, and asks for it."""

    sees = "all groups"

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def leaving(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            return replace(output, left=(*output.left, {"seen": output.losses.detach().sum()}))

        return leaving

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        return {name: g[0] for name, g in gradients.items()}, {}


def _keeps_what_is_left(strategy: Strategy, objective: Objective) -> None:
    """Checks that a wrapper passes on what a strategy before it has left in the output."""
    if objective.episodic or not strategy.does("wrap") or strategy.sees not in ("rows", "all groups"):
        return
    both = weave(_Leaving(), strategy)
    try:
        _trained(objective, both, Cast(_material(both), torch.float64), [0], steps=1)
    except ValueError as error:
        if "Output.left" in str(error):
            raise ContractError(f"{strategy!r}: {error}") from error
        raise


def _read_by(objective: Objective, source: Source) -> Source:
    """A source as the objective reads it."""
    if not objective.episodic:
        return source
    _expect(source.episodic, f"expected a source of episodes for {type(objective).__name__}, got {called(source)}")
    return Rowed(source)


class _Queries(Source):
    """The query parts of episodes, as ordinary groups."""

    grouped = True
    stacks = True

    def __init__(self, source: Source) -> None:
        self.inner, self.spec = source, source.spec

    def batches(self, state: State) -> Iterator[Batch]:
        for batch in self.inner.batches(state):
            yield batch["query"]


def _material(strategy: Strategy) -> Source:
    """Small data of the kind a strategy needs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=generator)
    y = (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    environment = np.arange(48) % 3
    if strategy.sight.episodic:
        return Episodes((x, y, environment), tasks=4, shots=4, classes=2)
    grouped = strategy.sight.grouped
    return Arrays(x, y, environment=environment, grouped=grouped, batch_size=6, classes=2)
