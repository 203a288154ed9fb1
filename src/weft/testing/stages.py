"""What every stage must hold to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.random import fold, key_of
from weft.core.source import Field
from weft.core.trees import tree_map
from weft.sources.collector import even_action
from weft.sources.stage import Kept, Moved, Stage
from weft.testing.checks import _close, _expect
from weft.testing.worlds import _fits

__all__ = ["check_stage"]

CUT = 1
"""The turn at which an episode is begun anew that has not ended."""


def check_stage(stage: Stage, *, like: Stage | None = None, steps: int = 60, episodes: int = 4) -> None:
    """Checks that episodes on a stage depend on their keys and actions alone, as its fields say.

    That is: the same keys and actions give the same episodes, in whichever row; beginning some anew leaves the others
    as they are, and so do those that have ended and wait; the observation after a step is not what the next episode
    begins with; nothing that was given changes later. Where `kept` is all that there is (`resumes` is `exact`), a step
    from it can be taken twice; else a stage must refuse what was kept of an earlier turn. For stages whose episodes are
    deterministic given their seeds.

    Args:
        stage: the stage.
        like: another one of the same world, which must play the same: an independent word on what is observed last.
        steps: how many steps of random play to look at, in which some episodes should end.
        episodes: how many side by side.

    Example:
        >>> from weft.data import CartPole
        >>> from weft.sources.stage import stage_of
        >>> check_stage(stage_of(CartPole()))
    """
    if steps <= CUT + 1 or episodes < 1:
        raise ValueError(f"expected at least {CUT + 2} steps and an episode to look at, got {steps} and {episodes}")
    _says(stage)
    keys = fold(key_of(0), "check", torch.arange(episodes))
    played = _play(stage, keys, steps)
    _alike(_play(stage, keys, steps), played, "a play from the same keys and actions")
    if like is not None:
        says = [(one.observation, one.action, one.masked) for one in (stage, like)]
        _expect(says[0] == says[1], f"expected fields like the other stage's, got {says[0]} and {says[1]}")
        _alike(played, _play(like, keys, steps), "a play on the other stage")
    back = torch.arange(episodes).flip(0)
    _alike(_play(stage, keys[back], steps).rows(back), played, "episodes in another order")
    _begins_apart(stage, keys, steps, played)
    _ends_apart(played)
    _keeps(stage, keys)


@dataclass
class _Played:
    """What happened, turn by turn; of observations also what an episode began anew with."""

    before: list[Tensor] = field(default_factory=list)
    reward: list[Tensor] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    anew: list[Tensor] = field(default_factory=list)

    def rows(self, which: Tensor) -> _Played:
        """Some of the episodes."""
        return _Played(**{name: [value[which] for value in values] for name, values in vars(self).items()})

    def turns(self, first: int, last: int) -> _Played:
        """Some of the turns."""
        return _Played(**{name: values[first:last] for name, values in vars(self).items()})


def _alike(got: _Played, expected: _Played, what: str) -> None:
    for name, values in vars(expected).items():
        for t, value in enumerate(values):
            other = getattr(got, name)[t]
            same = torch.allclose(other, value, rtol=1e-5, atol=1e-6, equal_nan=True)
            _expect(same, f"expected {what} to be the same, got another {name} at turn {t}: {other}, {value}")


def _says(stage: Stage) -> None:
    whole = isinstance(stage.horizon, int) and not isinstance(stage.horizon, bool)
    limited = stage.horizon is None or (whole and stage.horizon > 0)
    _expect(limited, f"expected horizon > 0 or None, got {stage.horizon!r}")
    _expect(stage.resumes in ("exact", "restart"), f"expected resumes as exact or restart, got {stage.resumes!r}")
    _expect(isinstance(stage.masked, bool), f"expected masked as a truth, got {stage.masked!r}")
    action = stage.action
    said = sum((action.classes is not None, bool(action.choices), bool(action.low)))
    _expect(said <= 1, f"expected actions with classes, choices or bounds, got {action}")
    _expect(action.classes is None or action.shape == (), f"expected one class number as an action, got {action}")


def _chosen(action: Field, keys: Tensor, legal: Tensor | None) -> Tensor:
    """Actions drawn evenly; where there is no bound, as far as 3 from the other one, or from zero."""
    if action.classes is None and not action.choices:
        free = (math.inf,) * math.prod(action.shape)
        ends = list(zip(action.low or tuple(-v for v in free), action.high or free, strict=True))
        low = tuple(a if isfinite(a) else (b - 3.0 if isfinite(b) else -3.0) for a, b in ends)
        high = tuple(b if isfinite(b) else (a + 3.0 if isfinite(a) else 3.0) for a, b in ends)
        action = replace(action, low=low, high=high)
    return even_action(action, keys, legal)


def _play(
    stage: Stage, keys: Tensor, steps: int, *, begun: Tensor | None = None, first: int = 0, wait: bool = False
) -> _Played:
    """Random play; episode 0 is begun anew after turn `CUT`, in every order of the keys the one with that key.

    Args:
        stage: where.
        keys: of what is drawn in the turns, one for each row.
        steps: how many turns.
        begun: the keys that the episodes begin with; default: the same.
        first: the number of the first turn.
        wait: whether what has ended waits, in place of beginning anew, and nothing is cut.
    """
    n, played, given = len(keys), _Played(), []
    cut = keys == fold(key_of(0), "check", 0)
    kept, observation = stage.begin(keys if begun is None else begun)
    _fits(observation, stage.observation, n, "first observation")
    going = torch.ones(n, dtype=torch.bool)
    for t in range(first, first + steps):
        turn = fold(keys, "turn", t)
        legal = _offered(stage, kept, n, going)
        action = _chosen(stage.action, fold(turn, "action"), legal)
        if wait:
            action = torch.where(going.reshape(-1, *(1,) * (action.dim() - 1)), action, torch.zeros_like(action))
        moved = stage.step(kept, action, turn)
        _looks(stage, moved, n, going)
        over = moved.terminated | moved.truncated
        anew, kept = torch.zeros_like(moved.observation), moved.kept
        begins = torch.zeros_like(over) if wait else over | (cut & (t == CUT))
        if bool(begins.any()):
            kept, fresh = stage.restart(kept, begins, fold(turn, "anew"))
            _fits(fresh[begins], stage.observation, int(begins.sum()), "observation that an episode begins anew with")
            anew[begins] = fresh[begins]
        for name, value in (
            *(("before", observation), ("reward", moved.reward), ("after", moved.observation), ("anew", anew)),
            ("ends", torch.stack([moved.terminated, moved.truncated], -1)),
        ):
            getattr(played, name).append(value.clone())
            given.append((value, getattr(played, name)[-1], name, t))
        observation = torch.where(begins.reshape(-1, *(1,) * (anew.dim() - 1)), anew, moved.observation)
        going = going & ~over if wait else going
    for value, then, name, t in given:
        same = torch.allclose(value, then, equal_nan=True)
        _expect(same, f"expected what was given to stay as it is, got {name} of turn {t} changed: {value}, {then}")
    return played


def _looks(stage: Stage, moved: Moved, n: int, going: Tensor) -> None:
    """Shapes and dtypes of what a step leads to."""
    _fits(moved.observation, stage.observation, n, "observation", going)
    reward = moved.reward
    right = reward.shape == (n,) and reward.is_floating_point() and bool(reward[going].isfinite().all())
    _expect(right, f"expected a finite reward for each episode, got {reward}")
    for name in ("terminated", "truncated"):
        truth = getattr(moved, name)
        _expect(truth.shape == (n,) and truth.dtype == torch.bool, f"expected {name} as a truth for each, got {truth}")


def _offered(stage: Stage, kept: Kept, n: int, going: Tensor) -> Tensor | None:
    """Which actions are legal, and pictures."""
    lengths = {len(leaf) for leaf in pytree.tree_leaves(kept)}
    _expect(lengths <= {n}, f"expected kept with a row for each of {n} episodes, got tensors of {sorted(lengths)}")
    seen, legal = stage.render(kept), stage.legal(kept)
    if seen is not None:
        pictures = seen.dim() == 4 and len(seen) == n and seen.shape[-1] == 3 and seen.dtype == torch.uint8
        _expect(pictures, f"expected pictures (n, H, W, 3) in torch.uint8, got {tuple(seen.shape)} in {seen.dtype}")
    _expect((legal is not None) == stage.masked, f"expected legal actions where masked says so, got {legal}")
    if legal is not None:
        wanted, got = ((n, stage.action.classes), torch.bool), (tuple(legal.shape), legal.dtype)
        _expect(got == wanted, f"expected which actions are legal as {wanted}, got {got}")
        _expect(bool(legal[going].any(-1).all()), "expected a legal action in every episode that goes on, got none")
    return legal


def _begins_apart(stage: Stage, keys: Tensor, steps: int, played: _Played) -> None:
    """Beginning one anew does not touch the others, and the new one is that of its key, whatever was there before."""
    waited = _play(stage, keys, steps, wait=True)
    for i in range(len(keys)):
        row = torch.tensor([i])
        ends = torch.stack(played.ends)[:, i].any(-1).nonzero()
        last = int(ends[0]) + 1 if len(ends) else steps
        last = min(last, CUT + 1) if i == 0 else last
        alone = waited.rows(row).turns(0, last)
        beside = replace(played.rows(row).turns(0, last), anew=alone.anew)
        _alike(alone, beside, f"episode {i}, while others begin anew or wait,")
    first = CUT + 1
    fresh = _play(stage, keys, steps - first, begun=fold(keys, "turn", CUT, "anew"), first=first)
    row = torch.tensor([0])
    _alike(fresh.rows(row), played.rows(row).turns(first, steps), "an episode begun anew, and begun with its key,")


def _ends_apart(played: _Played) -> None:
    """What an episode ends with is not what the next one begins with."""
    kinds = (played.before, played.after, played.anew)
    before, after, anew = (torch.stack(kind).flatten(0, 1).flatten(1) for kind in kinds)
    over = torch.stack(played.ends).any(-1).flatten()
    moved = over & (after != before).any(-1)
    same = bool(moved.any()) and torch.equal(after[moved], anew[moved])
    _expect(not same, "expected the observation after an episode's last step, got that which the next one begins with")


def _keeps(stage: Stage, keys: Tensor) -> None:
    """A step from what is kept can be taken twice, or is refused."""
    kept, _ = stage.begin(keys)
    before = tree_map(lambda leaf: leaf.clone(), kept)
    turn = fold(keys, "turn", 0)
    action = _chosen(stage.action, turn, stage.legal(kept))
    moved = stage.step(kept, action, turn)
    _close(kept, before, "what is kept, after a step from it")
    if stage.resumes == "exact":
        again = stage.step(kept, action, turn)
        _close(again._asdict(), moved._asdict(), "a step taken twice from what is kept")
        return
    try:
        stage.step(kept, action, turn)
    except RuntimeError:
        return
    _expect(False, "expected a RuntimeError for what was kept of an earlier turn, which is gone, got a step")
