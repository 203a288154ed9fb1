"""Mutants of play that learn something else: cuts taken for ends, replay in order, the future in what is seen."""

import pytest
import torch
from tests.sources.grounds import Policy, state_of
from torch import nn

from weft import Learner, Optimizer
from weft.core.random import fold, unit
from weft.core.source import Field
from weft.data import CartPole, Pendulum
from weft.objectives import A2C, PPO, SAC, TD3, TDControl
from weft.sources import Replay, Segments
from weft.sources.segments import taken

# --- a cut taken for an end --------------------------------------------------------------------------------

HORIZON, DISCOUNT = 10, 0.9


class Constant(nn.Module):
    """The same worth everywhere, whatever is observed: all that it can learn is the mean."""

    def __init__(self, *_):
        super().__init__()
        self.worth = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.worth + 0.0 * x.flatten(1).sum(-1, keepdim=True)


def ended(source):
    """The mutant: whatever is cut has ended."""

    class Ended(source):
        def rows(self, state, batch):
            return super().rows(state, {**batch, "terminated": batch["terminated"] | batch["truncated"]})

        def credited(self, state, batch, key):
            return super().credited(state, {**batch, "terminated": batch["terminated"] | batch["truncated"]}, key)

        def _drawn(self, state, tree, key):
            batch = super()._drawn(state, tree, key)
            return {**batch, "terminated": batch["terminated"] | batch["truncated"]}

    return Ended


def segments(source):
    return source(Pendulum(), envs=16, length=HORIZON, horizon=HORIZON)


def replay(source):
    return source(Pendulum(), envs=4, every=4, start=64, batch_size=64, horizon=HORIZON, explore=1.0)


STILL = {"optimizer": {"critics": Optimizer("sgd", lr=0.1), "actor": Optimizer("sgd", lr=0.0)}}
WAYS = {
    "a2c": (A2C(nn.Linear(3, 1), critic=Constant(), discount=DISCOUNT, trace=0.5), segments, Segments, {}),
    "ppo": (PPO(nn.Linear(3, 1), critic=Constant(), discount=DISCOUNT, trace=0.5), segments, Segments, {}),
    "td3": (TD3(critic=Constant, hidden=(4,), discount=DISCOUNT, rate=1.0), replay, Replay, STILL),
    "sac": (SAC(critic=Constant, hidden=(4,), discount=DISCOUNT, rate=1.0, temperature=0.0), replay, Replay, STILL),
}


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/*")
@pytest.mark.parametrize("name", WAYS)
def test_pendulum_turns_where_a_cut_is_taken_for_an_end(name):
    """Of one worth for all, v = r + discount v is r / (1 - discount); with an end every 10 steps it is about half."""
    objective, play, source, settings = WAYS[name]

    def worth(kind):
        settled = settings or {"optimizer": Optimizer("sgd", lr=0.05)}
        learner = Learner(objective, steps=400, random_state=0, **settled).fit(play(kind))
        paid = learner.history_["return"][-1] / HORIZON
        return float(learner.value(torch.zeros(1, 3))[0]) / (paid / (1 - DISCOUNT))

    assert worth(source) == pytest.approx(1.0, abs=0.15)
    assert worth(ended(source)) == pytest.approx((1 - DISCOUNT) / (1 - DISCOUNT * (1 - 1 / HORIZON)), abs=0.15)


# --- steps replayed in order -------------------------------------------------------------------------------


class InOrder(Replay):
    """The mutant: what was played last is given in the order in which it was played."""

    def _drawn(self, state, tree, key):
        filled = int(tree["filled"].reshape(-1)[0])
        index = (torch.arange(self.batch_size) + filled - self.batch_size) % self.capacity
        return {name: taken(value, index) for name, value in tree["memory"].items()}


def following(kind):
    """The share of the rows of batches that go on where the row before has led."""
    source = kind(CartPole(), start=512, capacity=512, batch_size=64, every=1)
    engine, state = state_of(source, Policy(), (0,))
    stream, found = engine.batches(source, state), []
    for _ in range(20):
        batch = next(stream)
        found.append((batch["observation"][1:] == batch["next_observation"][:-1]).all(-1))
        state.step += 1
    return float(torch.cat(found).double().mean())


def test_replay_in_order_is_seen():
    """Drawn evenly a row goes on where the one before has led once in 512; a test of even shares alone misses that."""
    assert following(Replay) < 0.02
    assert following(InOrder) > 0.9


# --- the future in what is seen ----------------------------------------------------------------------------


class Coin:
    """Guess how a coin will fall, and see how it fell: worth 1 where the guess is right."""

    observation = Field((2,), torch.float32)
    action = Field((), torch.int64, classes=2)
    horizon = 10

    def reset(self, keys):
        return self._fall(keys)

    def step(self, position, action, keys):
        after, seen = self._fall(keys)
        return after, seen, (action == after).float(), torch.zeros_like(after, dtype=torch.bool)

    def _fall(self, keys):
        fell = (unit(fold(keys, "coin"), (), torch.float64) < 0.5).long()
        return fell, torch.eye(2)[fell]


class Leaking(Segments):
    """The mutant: each step shows what was only observed after it."""

    def credited(self, state, batch, key):
        return super().credited(state, {**batch, "observation": batch["next_observation"]}, key)


@pytest.mark.parametrize(("source", "gap"), [(Segments, 0.0), (Leaking, 1.0)], ids=["as it is", "leaking"])
def test_who_sees_the_future_is_found(source, gap):
    """No guess is better than another by what is seen before the coin falls."""
    objective = TDControl(target="q", discount=0.0, epsilon=1.0)
    sgd = Optimizer("sgd", lr=2.0)
    learner = Learner(objective, optimizer=sgd, schedule="linear", steps=200, random_state=0)
    q = learner.fit(source(Coin(), envs=64, length=8)).q(torch.eye(2))
    assert abs(q.diagonal() - q[::-1].diagonal()).max() == pytest.approx(gap, abs=0.1)
