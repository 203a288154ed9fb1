import numpy as np
import pytest
import torch

from weft.core.random import fold, key_of
from weft.data import Bandits
from weft.testing import check_world


@pytest.mark.parametrize(
    "world", [Bandits(), Bandits(3, rewards="bernoulli"), Bandits(4, walk=0.1, spread=0.0), Bandits(3, contexts=2)]
)
def test_they_are_worlds(world):
    check_world(world)


def keys(n, place="test"):
    return fold(fold(key_of(0), place), torch.arange(n))


def test_means_and_rewards_have_their_laws():
    world = Bandits(5, centre=4.0, spread=2.0, noise=0.5)
    position, seen = world.reset(keys(20_000))
    assert not seen.any()
    means = world.means(position)
    assert abs(float(means.std()) - 2.0) < 0.02
    assert abs(float(means.mean()) - 4.0) < 0.03
    _, after, reward, ended = world.step(position, torch.full((20_000,), 2), keys(20_000, "step"))
    assert abs(float((reward - means[:, 2]).std()) - 0.5) < 0.01
    assert abs(float((reward - means[:, 2]).mean())) < 0.015
    np.testing.assert_array_equal(after[:, :5].argmax(-1), 2)
    np.testing.assert_array_equal(after[:, 5], reward)
    assert not ended.any()


def test_rewards_of_0_and_1():
    world = Bandits(2, rewards="bernoulli")
    position, _ = world.reset(keys(40_000))
    _, _, reward, _ = world.step(position, torch.zeros(40_000, dtype=torch.int64), keys(40_000, "step"))
    assert set(reward.tolist()) == {0.0, 1.0}
    high = position["arms"][:, 0] > 0.9  # about .95 on the average
    assert abs(float(reward[high].mean()) - 0.95) < 0.02


def test_arms_that_walk_and_contexts():
    world = Bandits(3, walk=0.3, spread=0.0)
    position, _ = world.reset(keys(10_000))
    assert not position["arms"].any()
    for t in range(4):
        position = world.step(position, torch.zeros(10_000, dtype=torch.int64), keys(10_000, f"step {t}"))[0]
    assert abs(float(position["arms"].std()) - 0.6) < 0.01

    world = Bandits(3, contexts=4, noise=0.0)
    position, seen = world.reset(keys(100))
    expected = torch.einsum("nkd,nd->nk", position["arms"], seen[:, 4:].double())
    _, after, reward, _ = world.step(position, torch.ones(100, dtype=torch.int64), keys(100, "step"))
    torch.testing.assert_close(reward, expected[:, 1].float(), atol=1e-5, rtol=1e-5)
    assert (after[:, 4:] != seen[:, 4:]).all()


def test_what_is_paid_may_be_another_thing_than_what_is_seen():
    arms = torch.arange(50) % 3
    found = {}
    for pays in ("reward", "mean", "regret", "optimal"):
        world = Bandits(3, pays=pays)
        position, _ = world.reset(keys(50))
        found[pays] = world.step(position, arms, keys(50, "step"))
    means = Bandits(3).means(position)
    for _, after, paid, _ in found.values():
        torch.testing.assert_close(after, found["reward"][1])
        assert paid.dtype == torch.float32
    own = means.gather(-1, arms[:, None])[:, 0]
    torch.testing.assert_close(found["mean"][2], own.float())
    torch.testing.assert_close(found["regret"][2], (means.amax(-1) - own).float())
    torch.testing.assert_close(found["optimal"][2], (means.argmax(-1) == arms).float())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arms": 1}, "arms"),
        ({"rewards": "cauchy"}, "rewards"),
        ({"noise": -1.0}, "noise"),
        ({"pays": "money"}, "pays"),
        ({"horizon": 0}, "horizon"),
        ({"rewards": "bernoulli", "walk": 0.1}, "without centre, spread, noise, walk or contexts"),
        ({"walk": 0.1, "contexts": 2}, "no walk and no centre beside contexts"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        Bandits(**settings)
