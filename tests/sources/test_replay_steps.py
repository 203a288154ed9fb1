"""Rows of a memory that tell several steps, against a loop by hand; and exploration by what actions are worth."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from tests.sources.grounds import Guarded, Policy, Walk, state_of
from torch import nn

from weft import Learner, Optimizer
from weft.core import capability
from weft.data import FiniteMDP
from weft.objectives import DQN
from weft.sources import Replay
from weft.testing import check_source

SMALL = {"envs": 2, "capacity": 50, "start": 30, "batch_size": 16, "every": 3, "updates_each": 2, "steps": 3}


class Reading(Policy):
    """Reads what several steps came to."""

    fields = ("observation", "action", "rewards", "steps")

    def priority(self, batch):
        return 0.01 + batch["rewards"].abs().sum(-1)

    def q(self, observation):
        return self.net(observation)


def source_of(world=None, cls=Replay, **more):
    return cls(Walk() if world is None else world, **{**SMALL, **more})


def batches_of(source, objective=None, seeds=(0,), count=12):
    """The batches, and all that was played for them, `(envs, time, ...)`."""
    engine, state = state_of(source, objective or Reading(), seeds)
    played, play = [], source.collectors[0].play

    def listening(*args, **kwargs):
        tree, rows = play(*args, **kwargs)
        played.append(rows)
        return tree, rows

    source.collectors[0].play = listening
    stream, found = engine.batches(source, state), []
    for _ in range(count):
        found.append({n: v.clone() for n, v in next(stream).items()})
        state.step += 1
    return found, {n: torch.cat([p[n] for p in played], -1 - (n.endswith(("observation", "legal")))) for n in played[0]}


def by_hand(played, row, t, n):
    """What n steps from t on came to, in a loop; None while the end is not known."""
    rewards, k = [0.0] * n, 0
    for k in range(n):
        if t + k >= played["reward"].shape[1]:
            return None
        rewards[k] = played["reward"][row, t + k].item()
        if played["terminated"][row, t + k] or played["truncated"][row, t + k]:
            break
    end = t + k
    after = (played["next_observation"][row, end], played["terminated"][row, end], played["truncated"][row, end])
    return (rewards, k + 1, *(np.asarray(v).tolist() for v in after))


def told(batch, i):
    """The same, as a row of a batch tells it."""
    names = ("rewards", "steps", "next_observation", "terminated", "truncated")
    return tuple(np.asarray(batch[name][i]).tolist() for name in names)


def is_right(source, objective=None, count=12):
    """Whether each row of each batch is what so many steps came to, from some step of the play."""
    found, played = batches_of(source, objective, count=count)
    known = {}
    for row in range(source.envs):
        for t in range(played["reward"].shape[1]):
            start = (*played["observation"][row, t].tolist(), int(played["action"][row, t]))
            known.setdefault(start, []).append(by_hand(played, row, t, source.steps))
    for batch in found:
        for i in range(len(batch["reward"])):
            start = (*batch["observation"][i].tolist(), int(batch["action"][i]))
            if told(batch, i) not in known.get(start, []):
                return False
            assert batch["reward"][i] == batch["rewards"][i, 0]
    ends = torch.cat([b["terminated"] | b["truncated"] for b in found])
    fewer = torch.cat([b["steps"] < source.steps for b in found])
    assert fewer.any()
    assert (ends | ~fewer).all()
    assert source.steps > 3 or (~ends).any()
    return True


class Runaway(Replay):
    """A mutant: it does not see where an episode ends."""

    def _rows(self, memory, index, room=None):
        blind = {**memory, **{n: torch.zeros_like(memory[n]) for n in ("terminated", "truncated")}}
        return super()._rows(blind, index, room)


class Uncut(Replay):
    """A mutant: it goes on over where an episode was cut."""

    def _rows(self, memory, index, room=None):
        return super()._rows({**memory, "truncated": torch.zeros_like(memory["truncated"])}, index, room)


class Hasty(Replay):
    """A mutant: it gives steps whose followers are not there yet."""

    def _ripe(self, filled):
        first, size = super()._ripe(filled)
        return first, size + self._waits


@pytest.mark.parametrize("more", [{}, {"priority": 0.7}, {"envs": 3, "steps": 2}, {"envs": 1, "steps": 5}], ids=str)
def test_rows_are_what_several_steps_came_to(more):
    """A ring that is full and turns, and episodes that end and are cut within the steps."""
    assert is_right(source_of(Walk(horizon=5), **more), count=30)


@pytest.mark.parametrize("mutant", [Runaway, Uncut, Hasty])
def test_mutants_are_caught(mutant):
    assert not is_right(source_of(Walk(horizon=5), cls=mutant), count=30)


@pytest.mark.parametrize("more", [{}, {"priority": 0.6}], ids=str)
def test_the_contract(more):
    check_source(source_of(**more), steps=8, objective=Reading())


def test_what_is_drawn_is_even_over_all_that_is_ripe():
    source = source_of(capacity=24, start=24, batch_size=16, every=1, updates_each=10_000)
    engine, state = state_of(source, Reading())
    next(engine.batches(source, state))
    tree = state.source
    tree["memory"]["reward"] = torch.arange(24.0)  # each step by its place; the start and one more turn were played
    counts = np.zeros(24)
    for t in range(300):
        drawn = source._drawn(state, tree, state.key("test", str(t)))["rewards"][:, 0]
        counts += np.bincount(drawn.long().numpy(), minlength=24)
    filled = int(tree["filled"])
    waiting = {(filled - 1 - i) % 24 for i in range(4)}
    assert filled == 26
    assert all((counts[i] == 0) == (i in waiting) for i in range(24))
    assert stats.chisquare(counts[counts > 0]).pvalue > 1e-3


class InOrder(Replay):
    """A mutant: a batch begins anywhere, and goes on in the order of play; each step is as probable as any."""

    def _rows(self, memory, index, room=None):
        ahead = torch.arange(index.shape[-1])
        return super()._rows(memory, (index[..., :1] + ahead) % self.capacity, room)


def followed(cls):
    """The share of rows that are followed in the batch by what was played next, among 20 steps."""
    source = source_of(cls=cls, envs=1, capacity=20, start=20, every=1, updates_each=10_000, steps=1)
    engine, state = state_of(source, Reading())
    next(engine.batches(source, state))
    state.source["memory"]["reward"] = torch.arange(20.0)
    drawn = [source._drawn(state, state.source, state.key("test", str(t)))["reward"] for t in range(200)]
    return torch.stack([(rows[1:] - rows[:-1]) % 20 == 1 for rows in drawn]).double().mean().item()


def test_rows_of_a_batch_are_drawn_apart():
    """Not in order, which evenness alone does not tell."""
    assert followed(Replay) == pytest.approx(1 / 20, abs=0.02)
    assert followed(InOrder) == 1.0


def test_one_pass_gives_what_is_ripe_and_before_that_fresh_episodes():
    source = source_of()
    engine, state = state_of(source, Reading())
    fresh = torch.cat([b["rewards"] for b in source.once(state, 7)])
    weight = torch.cat([b["weight"] for b in source.once(state, 7)])
    assert fresh.shape[1] == 3
    assert 0 < weight.sum() <= len(weight)
    next(engine.batches(source, state))
    assert sum(len(b["steps"]) for b in source.once(state, 7)) == 36 - 4


def test_replicas_are_single_runs():
    for more in ({}, {"priority": 0.6}, {"temperature": (1.0, 0.1, 0.5), "explore": 0.2}):
        both, _ = batches_of(source_of(**more), Reading(), (3, 4))
        for k, seed in enumerate((3, 4)):
            one, _ = batches_of(source_of(**more), Reading(), (seed,))
            for mine, theirs in zip(both, one, strict=True):
                assert all(torch.equal(mine[n][k], theirs[n]) for n in theirs)


def test_dqn_discounts_them_by_hand():
    objective = DQN(lambda: nn.Linear(2, 2), discount=0.5)
    source = source_of(Walk(horizon=5))
    engine, state = state_of(source, objective)
    assert {"rewards", "steps"} < set(engine.objective.fields)
    batch = next(engine.batches(source, state))
    built = copy.deepcopy(engine.objective).eval()
    worth, goal = built._errors(batch)
    for i in range(16):
        expected = sum(0.5**k * batch["rewards"][i, k].item() for k in range(int(batch["steps"][i])))
        if not batch["terminated"][i]:
            expected += 0.5 ** int(batch["steps"][i]) * built.target(batch["next_observation"][i : i + 1]).max().item()
        assert goal[i].item() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(built.priority(batch), (worth - goal).abs())


def test_several_steps_learn_a_value_on_policy():
    """A line of six places on which one can only go on, the last step worth 1: q of each, and in fewer updates."""
    line = torch.eye(6).roll(1, 1).unsqueeze(1)
    world = FiniteMDP(line, torch.eye(6)[:, 5:], ends=torch.arange(6) == 0, start=torch.eye(6)[1])
    settings = {"envs": 2, "start": 80, "every": 1, "batch_size": 32}
    errors = {}
    for n in (1, 3):
        objective = DQN("linear", discount=0.9, renew=10)
        learner = Learner(objective, steps=60, optimizer=Optimizer("sgd", lr=0.5), random_state=0)
        found = learner.fit(Replay(world, **settings, steps=n)).q(torch.eye(6))[1:, 0]
        errors[n] = np.abs(found - 0.9 ** np.arange(4, -1, -1)).max()
    assert errors[3] < 0.5 * errors[1]


# --- exploring by what actions are worth -------------------------------------------------------------------


class Fixed(Policy):
    """Knows what actions are worth, by the place; left to itself it always goes left."""

    def sample_action(self, observation):
        return torch.zeros(len(observation), dtype=torch.int64)

    @capability()
    def q(self, observation):
        return torch.stack([torch.zeros(len(observation)), 0.5 + observation[:, 1]], -1)


class Masked(Fixed):
    def sample_action(self, observation, legal):
        return super().sample_action(observation)

    def q(self, observation, legal):
        return super().q(observation)


def test_actions_are_drawn_by_what_they_are_worth():
    """Shares against softmax(q / temperature) in each kind of place."""
    more = {"start": 30, "capacity": 8000, "every": 200, "updates_each": 1, "explore": 0.0, "steps": 1}
    for temperature in (0.5, 2.0):
        _, played = batches_of(source_of(**more, temperature=temperature), Fixed(), count=10)
        later = {n: v[:, 15:].flatten(0, 1) for n, v in played.items()}
        for odd in (0.0, 1.0):
            here = later["action"][later["observation"][:, 1] == odd].double()
            chance = 1 / (1 + np.exp(-(0.5 + odd) / temperature))
            assert stats.binomtest(int(here.sum()), len(here), chance).pvalue > 1e-3
            assert stats.binomtest(int(here.sum()), len(here), 0.5).pvalue < 1e-3


def test_temperatures_fall_and_are_told():
    source = source_of(temperature=(2.0, 0.5, 0.5), steps=1)
    told = Learner(DQN(hidden=(8,)), steps=20, every=1, random_state=0).fit(source).history_["temperature"]
    expected = [0.5 + 1.5 * max(0.0, 1 - t / 20 / 0.5) for t in range(1, 21)]
    np.testing.assert_allclose(told, expected)


def test_what_is_not_legal_is_not_drawn():
    _, played = batches_of(source_of(Guarded(), temperature=5.0, explore=0.0, steps=1), Masked(), count=20)
    assert played["legal"].gather(-1, played["action"].unsqueeze(-1)).all()
    assert (played["action"] == 1).any()


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, r"expected Replay's steps to be an integer >= 1"),
        ({"steps": 9}, r"expected a start of at least 32 steps, a batch and the 16 that wait .*got start=30"),
        ({"temperature": 0.0}, r"expected Replay's temperature to be"),
        ({"temperature": (1.0, 0.0, 0.5)}, r"expected temperatures > 0 and a share"),
        ({"temperature": (1.0, 0.5)}, r"expected temperature as \(first, last, share of the training\)"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        source_of(**settings)


def test_what_does_not_know_of_several_steps_is_refused():
    with pytest.raises(TypeError, match=r"expected Policy, whose rows tell 3 steps, to read 'rewards' and 'steps'"):
        state_of(source_of(), Policy())
    with pytest.raises(TypeError, match=r"expected Policy to say q\(observation\), .*beside a temperature, got none"):
        state_of(source_of(temperature=1.0, steps=1), Policy())
