"""Traits that lie: what an objective declares, held against what it does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, distributions
from torch.utils import _pytree as pytree

from weft.core.composed import Composed
from weft.core.objective import (
    DENSITY,
    DRAWN,
    KINDS,
    PROVIDED,
    RAGGED,
    SOLVES,
    TARGETS,
    Objective,
    Output,
    wrong_marks,
)
from weft.core.random import key_of
from weft.core.source import Batch, number_rows, rows_of
from weft.core.state import State
from weft.core.strategy import Loss
from weft.core.trees import Params, tree_map
from weft.engine.asking import call
from weft.engine.gradients.loss import base_loss, carried
from weft.engine.moves import projected

__all__ = ["lies"]

_HELD = ("logits", "features", "rescore", "mass")
_ENGINE = ("row", "weight", "group", "mask", "own_mass")  # fields that may be there whatever an objective reads


def lies(
    objective: Objective, params: Params, buffers: Params, batch: Batch, acts: bool | None = None
) -> Iterator[str]:
    """Each thing that a built objective says and does not hold to, in words.

    Args:
        objective: built.
        params, buffers: its own.
        batch: numbered rows that it can learn from.
        acts: whether they were drawn by its own actions; None where that cannot be told.
    """
    if isinstance(objective, Composed):
        yield from _of_parts(objective, params, buffers, batch)
    players = objective.players or ("",)
    losses = {player: base_loss(objective, {}, buffers, key_of(0), player) for player in players}
    outputs = {player: loss(params, batch) for player, loss in losses.items()}
    yield from _provided(objective, outputs)
    if not objective.episodic and "" in outputs and objective.likelihood and "distribution" in objective.provides:
        moved = {name: 1.1 * p + 0.01 for name, p in params.items()}
        yield from _likely([_gap(objective, one, batch) for one in (outputs[""], losses[""](moved, batch))])
    if objective.solved and type(objective).solve is Objective.solve:
        yield "expected solve(source, state), as solved = True says, got none"
    if objective.solves not in SOLVES:
        yield f"expected solves to be one of {', '.join(map(repr, SOLVES))}, got {objective.solves!r}"
    if objective.targets not in TARGETS:
        yield f"expected targets to be one of {', '.join(map(repr, TARGETS))}, got {objective.targets!r}"
    for name, kind in objective.kinds.items():
        if name not in objective.fields or kind not in KINDS:
            yield f"expected kinds to say which of {', '.join(KINDS)} the fields hold, got {name!r}: {kind!r}"
    if objective.columns not in ("features", "values"):
        yield f"expected columns to be 'features' or 'values', got {objective.columns!r}"
    if acts and not objective.declares("on_policy"):
        yield "expected an objective whose actions draw its batches to say on_policy = True or False, got neither"
    looks = hasattr(objective, "discount") and (objective.credits or "next_observation" in objective.fields)
    if acts and looks and not objective.declares("bootstraps"):
        yield (
            "expected an objective that discounts what follows a step to say bootstraps, its discount where its own "
            "values count on beyond a cut, else None, got nothing"
        )
    if acts is False and objective.on_policy:
        yield "expected a source that acts, as on_policy = True says, got one whose rows are given"
    yield from _weighs(losses, params, batch, outputs)
    yield from _unweighted(losses, params, batch, outputs) if objective.episodic else ()
    yield from _blind(objective, losses, params, batch, outputs)
    yield from _put_back(objective, params)
    yield from _carries(objective, params, buffers, batch)
    for name in objective.capabilities():
        if not callable(getattr(objective, name, None)):
            yield f"expected the capability {name!r} to be a method, got {getattr(objective, name, None)!r}"
    yield from _marked(State(objective, params, dict(buffers), torch.tensor(0)), batch)
    yield from _read(objective, params, buffers, batch)
    if "sample" in objective.capabilities():
        yield from _sampled(State(objective, params, dict(buffers), torch.tensor(0)))
    first = next(iter(outputs.values()))
    if _tells(objective, first) and (found := _laws(objective, first)) != objective.laws:
        said = sorted(objective.laws)
        yield f"expected laws to name the families that distribution tells, {sorted(found)}, got {said}"


def _of_parts(objective: Composed, params: Params, buffers: Params, batch: Batch) -> Iterator[str]:
    for name, part in objective.parts().items():
        prefix = next(f"{n}." for n, module in objective.named_modules() if module is part)
        own, kept = (
            {n.removeprefix(prefix): t for n, t in tree.items() if n.startswith(prefix)} for tree in (params, buffers)
        )
        if objective.shown(name):
            seen = objective.view(name, batch)
            yield from (f"its part {name!r}: {lie}" for lie in lies(part, own, kept, seen))


def _weighs(losses: dict[str, Loss], params: Params, batch: Batch, outputs: dict[str, Output]) -> Iterator[str]:
    """A mass is not negative, and is the same at other parameters."""
    for player, output in outputs.items():
        if output.mass is None:
            continue
        if not bool((output.mass >= 0).all()) or not bool((output.mass > 0).any()):
            yield "expected a mass >= 0 for every row, and more for some, got another"
        other = losses[player]({name: 1.1 * p + 0.01 for name, p in params.items()}, batch).mass
        if other is None or not torch.equal(other, output.mass) or output.mass.requires_grad:
            yield "expected a mass that depends on the row and its draws alone, got one that depends on the parameters"


def _put_back(objective: Objective, params: Params) -> Iterator[str]:
    """What is on the set where parameters live stays as it is, and what is put there depends on the parameters only."""
    if not objective.projects:
        return
    far = {name: 3.0 * p - 1.0 for name, p in params.items()}
    once = {**far, **projected(objective, None, far, far)}
    for what, given, wanted in (("again", once, once), ("the same", far, once)):
        found = projected(objective, None, given, given)
        odd = [name for name, p in found.items() if not torch.allclose(p, wanted[name])]
        if odd:
            yield f"expected project to give {odd[0]!r} {what} when asked twice, got another"


def _carries(objective: Objective, params: Params, buffers: Params, batch: Batch) -> Iterator[str]:
    """What is carried goes on alike from the same place and draws, and keeps its shape and dtype."""
    training = objective.training
    objective.train()
    try:
        for player in (objective.players or ("",)) if objective.carried else ():
            loss = base_loss(objective, {}, buffers, key_of(0), player)
            one, two = (loss(params, batch).buffers for _ in range(2))
            for name in sorted(carried(objective)):
                if (one[name].shape, one[name].dtype) != (buffers[name].shape, buffers[name].dtype):
                    yield f"expected the carried {name!r} to keep its shape and dtype, got {tuple(one[name].shape)}"
                elif not torch.equal(one[name], two[name]):
                    yield f"expected the carried {name!r} to go on alike from the same state and draws, got another"
    finally:
        objective.train(training)


def _provided(objective: Objective, outputs: dict[str, Output]) -> Iterator[str]:
    """What `provides` names is there for every player, and what is there for every player is named."""
    for name in sorted(objective.provides - PROVIDED.keys()):
        yield f"expected provides among {', '.join(PROVIDED)}, got {name!r}"
    for name in _HELD:
        without = [player for player, output in outputs.items() if getattr(output, name) is None]
        if name in objective.provides and without:
            whom = f" for the player {without[0]!r}" if without[0] else ""
            yield f"expected Output to hold {name!r}, as provides says, got None{whom}"
        if name not in objective.provides and not without:
            yield f"expected provides to name {name!r}, which Output holds; strategies that read it are refused else"
    for output in outputs.values():
        if output.rescore is not None and output.logits is not None:
            again = output.rescore(output.logits)
            if again.shape != output.losses.shape or not torch.allclose(again, output.losses):
                yield "expected rescore(logits) to give the losses, got others"
    defined = _tells(objective, next(iter(outputs.values())))
    if defined and "distribution" not in objective.provides:
        yield "expected provides to name 'distribution', which is defined; strategies that read it are refused else"
    if not defined and "distribution" in objective.provides:
        yield "expected distribution(output), as provides says, got none"


def _tells(objective: Objective, output: Output) -> bool:
    """Whether it tells a distribution; one whose setting decides says that it does not by NotImplementedError."""
    if type(objective).distribution is Objective.distribution:
        return False
    try:
        objective.distribution(output)
    except NotImplementedError:
        return False
    return True


def _laws(objective: Objective, output: Output) -> frozenset[str]:
    """The families of what is predicted, in torch's names."""
    told = objective.distribution(output)
    named = set()
    for one in told if isinstance(told, tuple) else (told,):
        base = one.base_dist if isinstance(one, distributions.Independent) else one
        kind = next((cls for cls in type(base).__mro__ if cls.__module__.startswith("torch.")), type(base))
        named.add(re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower())
    return frozenset(named)


def _gap(objective: Objective, output: Output, batch: Batch) -> Tensor:
    """loss_i + log p(y_i | x_i): the constant by which a loss differs from the likelihood."""
    told: Any = output.distribution() if output.distribution is not None else ()
    each = zip(told if isinstance(told, tuple) else (told,), _targets(objective, batch), strict=True)
    return output.losses + torch.stack([one.log_prob(target) for one, target in each]).sum(0)


def _targets(objective: Objective, batch: Batch) -> Iterator[Tensor]:
    """What the parts predict, of an objective built of several."""
    if not isinstance(objective, Composed):
        yield batch["y" if "y" in objective.fields else objective.fields[0]]
        return
    for name, part in objective.parts().items():
        yield from _targets(part, objective.view(name, batch))


def _likely(gaps: list[Tensor]) -> Iterator[str]:
    """One constant for all rows and at any parameters."""
    constant = gaps[0].flatten()[0]
    if not all(torch.allclose(gap, constant.expand_as(gap), atol=1e-6) for gap in gaps):
        yield (
            "expected losses that are -log_prob of the distribution up to a constant, as likelihood = True says, got "
            "a difference that varies with the rows or the parameters"
        )


def _read(objective: Objective, params: Params, buffers: Params, batch: Batch) -> Iterator[str]:
    """No field of the batch is read that is not declared, and none is declared that nothing reads."""

    def told(rows: Batch) -> dict[str, Tensor]:
        found = {
            player: base_loss(objective, {}, buffers, key_of(0), player)(params, rows).losses
            for player in objective.players or ("",)
        }
        state = State(objective, params, dict(buffers), torch.tensor(0))
        measured = call(state, "measure", rows, key=key_of(0), rows=rows["row"])
        seen = {"measured": measured, "credited": played("credit", rows), "witnessed": played("witness", rows)}
        return {**found, **{f"{n} {how}": v for how, each in seen.items() for n, v in each.items()}}

    def played(name: str, rows: Batch) -> Batch:
        """What it says of the rows as they were played."""
        if not (objective.credits if name == "credit" else objective.witnesses):
            return {}
        state = State(objective, params, dict(buffers), torch.tensor(0))
        stretches = rows if objective.trajectories else {n: value.unsqueeze(1) for n, value in rows.items()}
        answer: Batch = call(state, name, stretches, key=key_of(0))
        return answer

    def same(rows: Batch) -> bool:
        try:
            other = told(rows)
        except KeyError:
            return False
        return other.keys() == whole.keys() and all(torch.equal(other[n], value) for n, value in whole.items())

    whole = told(batch)
    declared = {*objective.fields, *objective.companions, *_ENGINE, *played("credit", batch)}
    present = {*batch["support"], *batch["query"]} if objective.episodic else {*batch}
    for name in present - declared:
        if not same(_without(batch, name)):
            yield f"expected fields to name {name!r}, which is read of the batch, got {objective.fields}"
    for name in objective.fields:
        if _without(batch, name) is not batch and same(_without(batch, name)):
            yield f"expected {name!r} to be read of the batch, as fields says, got losses and measures without it"


def _without(batch: Batch, name: str) -> Batch:
    """The batch without a field, in either part of its episodes; the same where nothing has it."""
    parts = {part: _without(rows, name) if isinstance(rows, dict) else rows for part, rows in batch.items()}
    gone = {part: rows for part, rows in parts.items() if part != name}
    return batch if len(gone) == len(batch) and all(gone[part] is batch[part] for part in batch) else gone


def _unweighted(losses: dict[str, Loss], params: Params, batch: Batch, outputs: dict[str, Output]) -> Iterator[str]:
    """Rows of weight 0 in a part of an episode move no loss: what fills a part up is no example."""
    for part in ("support", "query"):
        rows = batch[part]
        count = rows_of(rows, 1)
        index = torch.cat([torch.arange(count), torch.zeros(1, dtype=torch.int64)])
        more = tree_map(lambda t: t[:, index], rows)  # noqa: B023 (called at once)
        weight = rows.get("weight", torch.ones(rows_of(rows), count, dtype=next(iter(params.values())).dtype))
        more["weight"] = torch.cat([weight, torch.zeros_like(weight[:, :1])], 1)
        for player, loss in losses.items():
            found = loss(params, {**batch, part: more}).losses
            if not torch.allclose(found, outputs[player].losses, rtol=1e-6, atol=1e-8):
                yield (
                    f"expected losses that do not depend on rows of weight 0 in the {part} part, got others with one "
                    f"more of them; take means by batch[{part!r}].get('weight'), as weft.core.objective.reduce does"
                )


def _blind(
    objective: Objective, losses: dict[str, Loss], params: Params, batch: Batch, outputs: dict[str, Output]
) -> Iterator[str]:
    """What stands at gaps, and after a row's end, moves no loss."""
    hidden: dict[str, tuple[str, Tensor]] = {}
    if objective.gaps:
        if "observed" not in batch:
            yield "expected rows with 'observed', as gaps = True says, got none; give the source that field"
            return
        hidden["x at gaps"] = ("x", ~batch["observed"])
    for name in objective.fields:
        length = batch.get(f"{name}_length")
        if objective.holds(name) in RAGGED and name in batch:
            if length is None:
                yield f"expected rows with '{name}_length', as kinds says, got none; give the source that field"
                return
            values = batch[name]
            after = torch.arange(values.shape[1]) >= length[:, None]
            hidden[f"{name} after a row's end"] = (name, after.reshape(*after.shape, *[1] * (values.dim() - 2)))
    for where, (name, mask) in hidden.items():
        values = batch[name]
        other = values + 1 if values.is_floating_point() else torch.where(values == 0, values.max(), 0)
        moved = {**batch, name: torch.where(mask, other, values)}
        for player, loss in losses.items():
            if not torch.equal(loss(params, moved).losses, outputs[player].losses):
                yield f"expected losses that do not depend on {where}, got others for other values there; mask them"


def _marked(state: State, batch: Batch) -> Iterator[str]:
    """Marks are understood; a density, a sample and whatever draws say their kind; what is exact does not draw."""
    objective = state.objective
    yield from wrong_marks(objective)
    if objective.episodic:
        state, batch = _first_episode(state, batch)
    for name, mark in objective.capabilities().items():
        for word, kinds in (("log_prob", DENSITY), ("sample", DRAWN)):
            if name.endswith(word) and not mark.kind:
                yield f"expected the capability {name!r} to say its kind, one of {', '.join(kinds)}, got none"
        if (
            not mark.reads
            or mark.asks == "number"
            or objective.fields[:1] != ("x",)
            or not callable(method := getattr(objective, name, None))
        ):
            continue
        further = list(inspect.signature(method).parameters.values())[1:]
        if "random_state" in [p.name for p in further]:
            yield f"expected {name!r} to draw by weft.core.random, got an argument random_state, the Learner's own"
        fields = {p.name: batch[p.name] for p in further if p.name in batch}
        if any(p.default is p.empty and p.kind != p.VAR_KEYWORD and p.name not in fields for p in further):
            continue  # who knows what it asks for
        one, other = (
            call(state, name, batch["x"], key=key_of(seed), rows=batch["row"], fields=fields) for seed in (0, 1)
        )
        pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
        if mark.kind in ("", "exact") and not all(torch.equal(a, b) for a, b in pairs):
            yield (
                f"expected the capability {name!r}, which draws, to say so: kind as one of "
                f"{', '.join((*DENSITY[1:], *DRAWN))}, got {mark.kind!r}"
            )


def _first_episode(state: State, batch: Batch) -> tuple[State, Batch]:
    """The query part of the first episode, and the state adapted to its support part."""
    support, query = (number_rows(tree_map(itemgetter(0), batch[part]), 1) for part in ("support", "query"))
    if not state.objective.adapts:
        return state, query
    changed = call(state, "adapt", support, key=key_of(0), rows=support["row"])
    params, buffers = (
        {name: changed.get(name, value) for name, value in tree.items()} for tree in (state.params, state.buffers)
    )
    return replace(state, params=params, buffers=buffers), query


def _sampled(state: State) -> Iterator[str]:
    """A sampler draws each place once, and its rows alone are its rows together."""
    rows = torch.arange(6)
    try:
        whole, *parts = (call(state, "sample", len(own), key=key_of(0), rows=own) for own in (rows, rows[:2], rows[2:]))
    except ValueError as error:
        yield f"sample: {error}"
        return
    together, alone = _each_row(whole), [row for part in parts for row in _each_row(part)]
    if not all(_close(a, b) for a, b in zip(together, alone, strict=True)):
        yield "expected sample to draw a row alone as it does among others, got another; draw by row, or shared=True"
    if all(_close(together[0], row) for row in together[1:]):
        yield "expected sample to draw each row by itself, got one row six times"


def _each_row(answer: Any) -> list[list[Tensor]]:
    """The rows of an answer, each with the leaves of its tree; a list has an entry for each row."""
    if isinstance(answer, list):
        return [[torch.as_tensor(row)] for row in answer]
    return [list(row) for row in zip(*pytree.tree_leaves(answer), strict=True)]


def _close(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.allclose(a, b) for a, b in zip(one, other, strict=True))
