"""Without a discount, where no episode ends: values that count on beyond a cut do not exist, and that is said."""

import warnings
from inspect import signature

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.core.catalogue import entries
from weft.data import Bandits, CartPole, FiniteMDP, GridWorld, Pendulum, ShortCorridor, Taxi
from weft.objectives import A2C, DQN, PPO, REINFORCE, SAC, TD, TD3, Dyna, TDControl, TrueOnlineTD
from weft.sources import Replay, Rollouts, Segments

STAY = torch.ones(1, 2, 1)
PAID = torch.ones(1, 2)
SMALL = {"start": 8, "batch_size": 8, "every": 8, "updates_each": 1}


def chain(ends=None, horizon=5):
    """One state, worth 1 a step."""
    return FiniteMDP(STAY, PAID, ends=None if ends is None else torch.tensor([ends]), horizon=horizon)


FINITE = {
    "td": (TD, Segments),
    "monte carlo": (lambda **more: TD(trace=1.0, **more), Rollouts),
    "sarsa": (lambda **more: TDControl(target="sarsa", **more), Segments),
    "q": (TDControl, Segments),
    "true online": (lambda **more: TrueOnlineTD(episodes=4, **more), Rollouts),
    "dqn": (lambda **more: DQN(hidden=(4,), **more), lambda world: Replay(world, **SMALL)),
    "dyna": (lambda **more: Dyna(DQN(hidden=(4,), **more)), lambda world: Replay(world, **SMALL)),
    "a2c": (lambda **more: A2C(hidden=(4,), **more), Segments),
    "ppo": (lambda **more: PPO(hidden=(4,), **more), Segments),
    "ppo, memory": (lambda **more: PPO(hidden=(4,), memory="gru", **more), Segments),
}
NUMBERS = {"sac": SAC, "td3": TD3}


def learn(objective, source, steps=3, **settings):
    steps = {} if objective.solved else {"steps": steps}
    return Learner(objective, random_state=0, **steps, **settings).fit(source)


@pytest.mark.parametrize("name", FINITE)
def test_no_discount_where_no_episode_ends_is_refused(name):
    make, source = FINITE[name]
    message = (
        r"expected discount < 1 for \w+ in FiniteMDP, where episodes go on for ever .* got 1: the horizon of 5 steps"
    )
    with pytest.raises(ValueError, match=message):
        learn(make(discount=1.0), source(chain()))
    learn(make(discount=0.99), source(chain()))


@pytest.mark.parametrize("name", NUMBERS)
def test_so_it_is_where_actions_are_numbers(name):
    source = Replay(Pendulum(), **SMALL)
    with pytest.raises(ValueError, match=r"expected discount < 1 for \w+ in Pendulum, .* horizon of 200 steps"):
        learn(NUMBERS[name](hidden=(4,), discount=1.0), source)
    learn(NUMBERS[name](hidden=(4,), discount=0.99), source)


def test_one_of_several_worlds_is_enough():
    with pytest.raises(ValueError, match=r"expected discount < 1 for PPO"):
        learn(PPO(hidden=(4,), discount=1.0), Segments([chain(0.5), chain()]))


def test_what_was_played_alone_needs_no_discount():
    """The sum of the rewards up to a cut is what REINFORCE learns to raise: a task of so many steps."""
    learn(REINFORCE(hidden=(4,), discount=1.0), Rollouts(chain()))
    learn(REINFORCE(hidden=(4,), discount=1.0, baseline="learned"), Rollouts(Bandits(3, horizon=5)))


def test_playing_there_to_be_judged_is_no_learning():
    source = Segments(chain(0.5, horizon=100))
    learner = learn(TDControl(discount=1.0), source, validation=Rollouts(chain(), envs=2))
    assert learner.evaluate(chain(), 2).mean == 5.0


@pytest.mark.parametrize("name", FINITE)
def test_worlds_in_which_all_was_cut_are_told(name):
    """An episode can end, but none has: as far as was played the values count on without end."""
    make, source = FINITE[name]
    message = r"expected episodes that end by themselves .* FiniteMDP, in which every episode of [\d,]+ steps was cut"
    with pytest.warns(UserWarning, match=message):
        learn(make(discount=1.0), source(chain(1e-9)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(make(discount=0.99), source(chain(1e-9)))
        learn(make(discount=1.0), source(chain(0.5, horizon=50)))  # some have ended
        if source is not Rollouts:
            learn(make(discount=1.0), source(chain(1e-9, horizon=10_000)))  # none is over yet


def test_so_are_those_of_gymnasium():
    source = Replay("Pendulum-v1", **{**SMALL, "every": 250})
    with pytest.warns(UserWarning, match=r"'Pendulum-v1', in which every episode of [\d,]+ steps was cut"):
        learn(TD3(hidden=(4,), discount=1.0), source)


def test_each_replica_and_each_world_counts():
    with pytest.warns(UserWarning, match=r"every episode .* was cut"):
        learn(TD(discount=1.0), Segments([chain(0.9), chain(1e-9)]))
    with pytest.warns(UserWarning, match=r"every episode .* was cut"):
        learn(TD(discount=1.0), Segments(chain(1e-9)), replicas=2)


ALONE = ("mpc", "reinforce")


def test_who_counts_on_says_so():
    """All of the catalogue that have a discount and act, but for those that are told a world's tables."""
    found = set()
    for entry in entries("objectives"):
        if "discount" not in signature(entry.cls).parameters or "transition" in entry.cls().fields:
            continue
        found.add(entry.name)
        assert entry.cls().declares("bootstraps"), entry.name
        assert entry.cls(discount=0.7).bootstraps == (None if entry.name in ALONE else 0.7), entry.name
    assert found == {"td", "td-control", "true-online-td", "dqn", "sac", "td3", "a2c", "ppo", "reps", *ALONE}


class Unaware(TD):
    """Does not say that its values count on."""

    bootstraps = None


def test_there_values_grow_with_every_update():
    """What is refused: the fixed point is infinite, however often an episode is cut; with ends it is the horizon."""
    sgd, at = Optimizer("sgd", lr=1.0), []
    for steps in (50, 100, 200):
        source = Segments(chain(), envs=4, length=5)
        learner = Learner(Unaware(discount=1.0), optimizer=sgd, steps=steps, random_state=0).fit(source)
        at.append(float(learner.value(np.ones((1, 1)))[0]))
    np.testing.assert_allclose(at, [50.0, 100.0, 200.0], rtol=1e-4)


class TestEndless:
    """What a finite world says of itself."""

    def test_ends_and_rest(self):
        assert chain().endless
        assert not chain(0.1).endless
        assert not FiniteMDP(STAY, 0 * PAID).endless  # nothing is earned: as good as an end

    def test_where_one_gets_to_counts(self):
        """The first state ends or leads to the second, which pays for ever, or rests."""
        to = torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]])
        ends = torch.tensor([0.5, 0.0])
        for pays, begins, said in ((1.0, [1.0, 0.0], True), (0.0, [1.0, 0.0], False), (0.0, [0.0, 1.0], False)):
            reward = torch.tensor([[1.0], [pays]])
            assert FiniteMDP(to, reward, start=torch.tensor(begins), ends=ends).endless is said
        back = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # the second is never come to
        assert not FiniteMDP(back, torch.ones(2, 1), start=torch.tensor([1.0, 0.0]), ends=ends).endless

    def test_rewards_by_where_a_step_leads(self):
        """What is paid for steps that are never made counts for nothing."""
        reward = torch.zeros(2, 1, 2)
        reward[0, 0, 1] = 1.0
        assert not FiniteMDP(torch.eye(2)[:, None], reward).endless

    def test_the_worlds_at_hand(self):
        assert Pendulum().endless
        assert Bandits(3).endless
        for world in (Taxi(), GridWorld(["S.G"]), ShortCorridor(horizon=10)):
            assert not world.endless
        assert not hasattr(CartPole(), "endless")
