"""Where not every action is legal: policies are told, nothing else is ever done, and whoever does it speaks up."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from weft import Learner
from weft.core import Field, Objective, Output, capability
from weft.core.random import categorical, fold, key_of
from weft.nets import MLP
from weft.sources import Replay, Rollouts, Segments
from weft.sources.collector import even_action
from weft.testing import check_world

CELLS = 5


class Ledge:
    """Cells in a row, the last of which ends the episode and pays 1; what is forbidden there would pay 5.

    Left (0) is forbidden in the first cell, right (1) is always legal, to wait (2) is forbidden in even cells.
    """

    observation, action, horizon = Field((CELLS,), torch.float32), Field((), torch.int64, classes=3), 12

    def reset(self, keys):
        cell = torch.zeros_like(keys)
        return cell, one_hot(cell, CELLS).float()

    def legal(self, cell):
        return torch.stack([cell > 0, torch.ones_like(cell, dtype=torch.bool), cell % 2 == 1], -1)

    def step(self, cell, action, keys):
        legal = self.legal(cell).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        after = (cell + torch.tensor([-1, 1, 0])[action]).clamp(0, CELLS - 1)
        reached = after == CELLS - 1
        return after, one_hot(after, CELLS).float(), torch.where(legal, reached.float() - 0.05, 5.0), reached


class Careful(Objective):
    """A policy gradient over the legal actions, as a third party writes it."""

    on_policy = True
    fields = ("observation", "action", "reward", "terminated", "truncated", "legal")
    progress = ("return", "max")
    heeds = True

    def build(self, spec):
        assert spec["legal"] == spec["next_legal"] == Field((3,), torch.bool)
        self.net = MLP(spec["observation"].shape[0], spec["action"].classes, hidden=(16,))

    def _logits(self, observation, legal):
        logits = self.net(observation)
        return logits.masked_fill(~legal, -torch.inf) if self.heeds else logits

    def credit(self, batch):
        gains, last = [], torch.zeros_like(batch["reward"][:, 0])
        for t in reversed(range(batch["reward"].shape[1])):
            last = batch["reward"][:, t] + torch.where(batch["terminated"][:, t] | batch["truncated"][:, t], 0.0, last)
            gains.append(last)
        gain = torch.stack(gains[::-1], 1)
        return {"gain": gain - gain.mean()}

    def forward(self, batch, player=""):
        logits = self._logits(batch["observation"], batch["legal"]).log_softmax(-1)
        return Output(-batch["gain"] * logits.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1))

    def sample_action(self, observation, *, legal):
        return categorical(self._logits(observation, legal), place="action")

    @capability(merge="refuse")
    def act(self, observation, *, legal):
        return self._logits(observation, legal).argmax(-1)


class Worth(Careful):
    """Q-learning over the legal actions."""

    on_policy = False
    fields = ("observation", "action", "reward", "next_observation", "terminated", "next_legal")
    credit = Objective.credit

    def forward(self, batch, player=""):
        with torch.no_grad():
            after = self._logits(batch["next_observation"], batch["next_legal"]).amax(-1)
        worth = self.net(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        return Output((worth - batch["reward"] - 0.95 * after * ~batch["terminated"]).square())

    def sample_action(self, observation, *, legal):
        return self.act(observation, legal=legal)


class Careless(Careful):
    """The mutant: it takes the mask and does not look at it."""

    heeds = False


class Unaware(Careful):
    def sample_action(self, observation):
        return categorical(self.net(observation), place="action")


SOURCES = {
    "rollouts": (Careful, lambda: Rollouts(Ledge(), envs=8)),
    "segments": (Careful, lambda: Segments(Ledge(), envs=8, length=20)),
    "replay": (Worth, lambda: Replay(Ledge(), envs=4, start=64, every=4, batch_size=32, explore=0.5)),
}
CAREFUL = [name for name in SOURCES if name != "replay"]


@pytest.fixture(params=SOURCES)
def case(request):
    kind, source = SOURCES[request.param]
    return kind, source()


def learner(kind, **settings):
    return Learner(kind(), **{"steps": 6, "every": 1, "random_state": 0, "optimizer": "adam", **settings})


def told(legal_of, seen):
    return legal_of(seen.argmax(-1))


def test_the_world_is_one():
    check_world(Ledge())


@pytest.mark.parametrize("replicas", [None, 2])
def test_what_is_legal_is_told_and_nothing_else_is_done(case, replicas):
    kind, source = case
    rows = []

    class Watching(kind):
        def forward(self, batch, player=""):
            if replicas is None:
                rows.append({name: value.detach().clone() for name, value in batch.items()})
            return super().forward(batch, player)

    trained = learner(Watching, replicas=replicas).fit(source)
    if replicas:
        state = trained.training_.runs[0].state
        kept = state.source.get("memory", state.source.get("segment", {}))
        if not kept:
            return
        flat = {name: value.flatten(0, 1) for name, value in kept.items()}
        filled = state.source.get("filled")
        rows.append(flat if filled is None else {n: v[:, : int(filled[0])].flatten(0, 1) for n, v in kept.items()})
    for batch in rows:
        real = batch.get("weight", torch.ones_like(batch["reward"])) > 0
        seen, after = batch["observation"], batch["next_observation"]
        assert batch["legal"].gather(-1, batch["action"].unsqueeze(-1))[real].all()
        assert torch.equal(batch["legal"][real], told(Ledge().legal, seen)[real])
        ended = batch["terminated"]
        assert torch.equal(batch["next_legal"][real & ~ended], told(Ledge().legal, after)[real & ~ended])
        assert batch["next_legal"][ended].all()  # where nothing follows nothing is forbidden
        assert (batch["reward"][real] < 5).all()
    assert any(bool(batch["terminated"].any()) for batch in rows)


@pytest.mark.parametrize("replicas", [None, 2])
def test_whoever_does_not_heed_it_speaks(replicas):
    for source in (Rollouts(Ledge(), envs=8), Segments(Ledge(), envs=8, length=20)):
        with pytest.raises(ValueError, match=r"expected a legal action, one of \[.*\], got \d in Ledge, episode \d"):
            learner(Careless, replicas=replicas).fit(source)

    class Hasty(Worth):
        heeds = False

    with pytest.raises(ValueError, match="expected a legal action"):
        learner(Hasty, replicas=replicas).fit(Replay(Ledge(), envs=8, start=64, every=20, batch_size=32, explore=0.0))


def test_whoever_does_not_take_it_is_refused():
    with pytest.raises(TypeError, match=r"Unaware.sample_action\(observation, \*, legal\) in Ledge"):
        learner(Unaware).fit(Segments(Ledge(), envs=8, length=20))


def test_what_is_no_number_of_an_action_cannot_be_legal():
    class Wide(Ledge):
        action = Field((2,), torch.int64, choices=(3, 3))

    with pytest.raises(ValueError, match="finitely many actions in Wide, which says by legal"):
        Segments(Wide(), envs=2, length=4)


def test_a_position_without_any_action_speaks():
    class Stuck(Ledge):
        def legal(self, cell):
            return super().legal(cell) & (cell != 1).unsqueeze(-1)

    class Trusting(Worth):
        def _logits(self, observation, legal):
            return self.net(observation).masked_fill(~legal, -1e9)

    with pytest.raises(ValueError, match=r"one of \[\], got .*; let the world offer an action in every position"):
        learner(Trusting).fit(Replay(Stuck(), envs=4, start=64, batch_size=32))


def test_even_actions_are_even_among_the_legal_ones():
    legal = torch.tensor([[True, False, True]]).expand(4000, 3)
    drawn = even_action(Ledge.action, fold(key_of(0), torch.arange(4000)), legal)
    counts = torch.bincount(drawn, minlength=3)
    assert counts[1] == 0
    assert abs(int(counts[0]) - 2000) < 150


def test_they_learn_the_way_and_answer_with_the_mask(case):
    kind, source = case
    played = Rollouts(Ledge(), envs=2, greedy=True)
    steps = 60 if kind is Careful else 300
    trained = learner(kind, steps=steps, every=steps, validation=played, optimizer=("adam")).fit(source)
    assert trained.history_["valid_return"][-1] == pytest.approx(1 - 0.05 * (CELLS - 1), abs=1e-5)
    seen = np.eye(CELLS)[:2]
    only = np.array([[False, False, True], [True, False, False]])
    assert trained.act(seen, legal=only).tolist() == [2, 0]
    assert trained.act(seen[0], legal=only[:1]) == 2
