import pytest
import torch

from weft.core.random import fold, key_of
from weft.data import CartPole, FiniteMDP


def test_cartpole_moves_as_gymnasium_does():
    gymnasium = pytest.importorskip("gymnasium")
    theirs = gymnasium.make("CartPole-v1")
    ours = CartPole()
    ended = []
    for seed in range(20):
        observation, _ = theirs.reset(seed=seed)
        state = torch.tensor(theirs.unwrapped.state).unsqueeze(0)
        torch.testing.assert_close(state.float()[0], torch.tensor(observation))
        for t in range(ours.horizon + 1):
            # Three ways to play, which end by the clock, by position and by angle.
            steer = observation[2] + 0.3 * observation[3]
            action = (int(steer + 0.05 * observation[0] > 0), int(steer - 0.05 > 0), t // 3 % 2)[seed % 3]
            observation, reward, fallen, late, _ = theirs.step(action)
            state, seen, gain, done = ours.step(state, torch.tensor([action]))
            torch.testing.assert_close(seen[0], torch.tensor(observation), rtol=1e-5, atol=1e-6)
            assert gain.item() == reward
            assert done.item() == fallen
            assert late == (t == ours.horizon - 1)
            if fallen or late:
                ended.append("late" if late else "angle" if abs(observation[2]) > 0.2 else "position")
                break
    assert set(ended) == {"late", "angle", "position"}


def test_cartpole_starts_are_keyed_and_uniform():
    keys = fold(key_of(0), torch.arange(4000))
    state, seen = CartPole().reset(keys)
    assert seen.dtype == torch.float32
    assert state.shape == (4000, 4)
    assert state.abs().max() <= 0.05
    torch.testing.assert_close(state.mean(0), torch.zeros(4).double(), atol=2e-3, rtol=0.0)
    torch.testing.assert_close(state.std(0), torch.full((4,), 0.1 / 12**0.5).double(), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(CartPole().reset(keys[7:9])[0], state[7:9], atol=0.0, rtol=0.0)


def test_finite_mdp_draws_by_its_tables():
    transition = torch.tensor([[[0.2, 0.8], [1.0, 0.0]], [[0.5, 0.5], [0.1, 0.9]]])
    world = FiniteMDP(transition, torch.zeros(2, 2), start=torch.tensor([0.3, 0.7]))
    keys = fold(key_of(0), torch.arange(20000))
    state, seen = world.reset(keys)
    assert torch.equal(seen.argmax(-1), state)
    assert abs(state.double().mean().item() - 0.7) < 0.015
    action = torch.arange(20000) % 2
    after, *_ = world.step(state, action, fold(keys, "step"))
    for s in range(2):
        for a in range(2):
            share = after[(state == s) & (action == a)].double().mean().item()
            assert abs(share - transition[s, a, 1].item()) < 0.03


def test_finite_mdp_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="expected transition of shape"):
        FiniteMDP(torch.ones(2, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="expected transition to hold probabilities that sum to 1"):
        FiniteMDP(torch.ones(2, 2, 2), torch.zeros(2, 2))
