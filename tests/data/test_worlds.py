"""Worlds of tensors, step for step and table for table as their peers': tests/fixtures/parity/worlds.npz."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from weft import Learner
from weft.core.random import fold, key_of
from weft.core.world import World
from weft.data import (
    Acrobot,
    CartPole,
    Catch,
    CliffWalking,
    FrozenLake,
    GridWorld,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    ShortCorridor,
    Taxi,
    TMaze,
)
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.sources.stage import stage_of
from weft.testing import any_action, check_world

PEER = np.load(Path(__file__).parents[1] / "fixtures" / "parity" / "worlds.npz")
CLASSIC = {
    "Acrobot-v1": Acrobot(),
    "MountainCar-v0": MountainCar(),
    "MountainCarContinuous-v0": MountainCarContinuous(),
    "Pendulum-v1": Pendulum(),
}
TEXT = {
    "lake 4x4": FrozenLake(),
    "lake 4x4 dry": FrozenLake("4x4", slip=0.0),
    "lake 8x8": FrozenLake("8x8"),
    "lake own": FrozenLake("SFFSF\nFHFFG\nFFGHF", slip=0.25),
    "taxi": Taxi(),
    "cliff": CliffWalking(),
}
OTHERS = {
    "cartpole": CartPole(),
    "grid": GridWorld(["S.#G", ".P#.", "...."], slip=0.3),
    "corridor": ShortCorridor(),
    "t-maze": TMaze(3),
    "catch": Catch(),
    "narrow catch": Catch(3, 1),
}
ALL = {**CLASSIC, **TEXT, **OTHERS}
KEYS = fold(key_of(0), torch.arange(4000))


def told(name, what):
    return torch.from_numpy(PEER[f"{name}/{what}"])


@pytest.mark.parametrize("world", ALL.values(), ids=ALL)
def test_worlds_hold_to_the_contract(world):
    assert isinstance(world, World)
    check_world(world, steps=12)


@pytest.mark.parametrize(("name", "world"), CLASSIC.items(), ids=CLASSIC)
def test_classic_control_moves_as_gymnasium_does(name, world):
    # Its continuous car keeps single precision from step to step.
    close = {"rtol": 0.0, "atol": 2e-7 if "Continuous" in name else 1e-12}
    after, seen, reward, ended = world.step(told(name, "position"), told(name, "action"))
    torch.testing.assert_close(after, told(name, "after"), **close)
    assert torch.equal(after, after.float().double()) == ("Continuous" in name)
    torch.testing.assert_close(seen, told(name, "seen"), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(reward.double(), told(name, "reward").double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(ended, told(name, "terminated"))
    assert bool(ended.any()) == (name != "Pendulum-v1")


@pytest.mark.parametrize(("name", "world"), CLASSIC.items(), ids=CLASSIC)
def test_a_whole_episode_is_played_as_gymnasium_does(name, world):
    """From the first position alone; where it is chaotic, what is rounded grows, and it is followed for a while."""
    episode = told(name, "episode")
    for number in range(int(episode.max()) + 1):
        rows = (episode == number).nonzero().squeeze(-1)
        position = told(name, "position")[rows[:1]]
        for t in rows[: 60 if name == "Acrobot-v1" else None]:
            position, seen, _, ended = world.step(position, told(name, "action")[t][None])
            torch.testing.assert_close(seen[0], told(name, "seen")[t], rtol=1e-4, atol=2e-5)
            assert ended.item() == told(name, "terminated")[t].item()


@pytest.mark.parametrize(("name", "world"), CLASSIC.items(), ids=CLASSIC)
def test_classic_control_begins_and_is_cut_as_gymnasium_s(name, world):
    truncated, episode = told(name, "truncated"), told(name, "episode")
    assert world.horizon == told(name, "limit").item() == (episode == episode[truncated][0]).sum().item()
    begins = torch.tensor([(episode == number).nonzero()[0] for number in range(int(episode.max()) + 1)])
    see = getattr(world, "_see", torch.Tensor.float)
    torch.testing.assert_close(see(told(name, "position")[begins]), told(name, "first"), rtol=1e-6, atol=1e-6)
    position, seen = world.reset(KEYS)
    assert torch.equal(seen, see(position))
    ends = {
        "Acrobot-v1": [(-0.1, 0.1)] * 4,
        "MountainCar-v0": [(-0.6, -0.4), (0.0, 0.0)],
        "MountainCarContinuous-v0": [(-0.6, -0.4), (0.0, 0.0)],
        "Pendulum-v1": [(-np.pi, np.pi), (-1.0, 1.0)],
    }[name]
    for values, (low, high) in zip(position.T, ends, strict=True):
        assert low <= values.min() <= values.max() <= high
        share = (values - low) / max(high - low, 1e-9)
        if high > low:  # uniform: the fourths of the range hold a fourth each, within 5 deviations
            counts = torch.histc(share.float(), 4, 0.0, 1.0)
            assert (counts - 1000).abs().max() < 5 * (4000 * 3 / 16) ** 0.5


def test_a_push_beyond_the_bounds_is_clipped_as_gymnasium_clips_it():
    car, pendulum = MountainCarContinuous(), Pendulum()
    at = torch.tensor([[-0.5, 0.01]]).double()
    far, near = (car.step(at, torch.tensor([[push]])) for push in (3.0, 1.0))
    assert torch.equal(far[0], near[0])
    assert (far[2].item(), near[2].item()) == pytest.approx((-0.9, -0.1))
    far, near = (pendulum.step(at, torch.tensor([[torque]])) for torque in (-3.0, -2.0))
    assert torch.equal(far[0], near[0])
    assert torch.equal(far[2], near[2])


@pytest.mark.parametrize(("name", "world"), TEXT.items(), ids=TEXT)
def test_text_worlds_have_gymnasium_s_tables(name, world):
    states, actions = len(world.start), world.action.classes
    shape = (states, actions, states)
    chance, paid, over = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for s, a, p, after, reward, terminated in told(name, "outcomes").tolist():
        at = (int(s), int(a), int(after))
        chance[at] += p
        paid[at] += p * reward
        over[at] += p * terminated
    torch.testing.assert_close(world.transition.double(), chance, rtol=0.0, atol=1e-12)
    reward = world.reward if world.reward.dim() == 3 else world.reward[:, :, None].expand(shape)
    torch.testing.assert_close(chance * reward, paid, rtol=0.0, atol=1e-12)
    ends = world.ends if world.ends.dim() == 3 else world.ends.expand(shape)
    torch.testing.assert_close(chance * ends, over, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(world.start.double(), told(name, "start"), rtol=0.0, atol=1e-12)
    assert (world.horizon or 0) == told(name, "limit").item()


def test_taxi_s_legal_actions_are_gymnasium_s_mask():
    assert torch.equal(Taxi().legal(torch.arange(500)), told("taxi", "mask"))


def best(world, turns=200):
    """The best values, by the equation of optimality."""
    value = torch.zeros(len(world.start), dtype=torch.float64)
    reward = world.reward if world.reward.dim() == 3 else world.reward[:, :, None]
    for _ in range(turns):
        value = (world.transition.double() * (reward + ~world.ends * value)).sum(-1).amax(1)
    return value


def test_best_values_are_the_known_ones():
    """The lake's within its hundred steps, as gymnasium's registry tells it, and the cliff's, as the book does."""
    lake = FrozenLake()
    assert (lake.start * best(lake, turns=100)).sum().item() == pytest.approx(0.74, abs=0.006)
    assert (CliffWalking().start * best(CliffWalking())).sum().item() == pytest.approx(-13.0)


def test_catch_is_bsuite_s():
    boards, actions = told("catch", "board"), told("catch", "action")
    world, ball = Catch(), boards[:, 0, 0].long().argmax(-1)
    position, _ = world.reset(KEYS[: len(boards)])
    position = torch.stack([position[:, 0], ball, position[:, 2]], -1)
    assert torch.equal(world._see(position)[:, 0].bool(), boards[:, 0])
    for t in range(world.horizon):
        position, seen, reward, ended = world.step(position, actions[:, t])
        assert torch.equal(seen[:, 0].bool(), boards[:, t + 1])
        assert torch.equal(reward.double(), told("catch", "reward")[:, t])
        assert torch.equal(ended, told("catch", "last")[:, t])
    assert told("catch", "reward")[:, -1].unique().tolist() == [-1.0, 1.0]
    column = Catch().reset(KEYS)[0][:, 1]
    assert (torch.bincount(column, minlength=5) - 800).abs().max() < 5 * (4000 * 0.16) ** 0.5
    assert ball.unique().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "world"), ALL.items(), ids=ALL)
def test_worlds_are_played_on_a_stage(name, world):
    """As sources play them: episodes that are over begin anew among others that go on."""
    stage = stage_of(world)
    kept, _ = stage.begin(KEYS[:6])
    over = torch.tensor([True, False] * 3)
    for t in range(12):
        legal = stage.legal(kept)
        assert (legal is not None) == stage.masked == (name == "taxi")
        action = any_action(world, stage._position(kept), fold(KEYS[:6], "action", t))
        kept = stage.step(kept, action, fold(KEYS[:6], "turn", t)).kept
        fresh, first = stage.restart(kept, over, fold(KEYS[:6], "restart", t))
        for leaf, before in zip(fresh.values(), kept.values(), strict=True):
            assert torch.equal(leaf[~over], before[~over])
        assert torch.equal(first[over], world.reset(fold(KEYS[:6], "restart", t))[1][over])
        kept = fresh


LEARNED = {name: world for name, world in ALL.items() if world.action.classes and name != "taxi"}


@pytest.mark.filterwarnings("ignore:expected rewards to learn from")  # in so few steps
@pytest.mark.parametrize("world", LEARNED.values(), ids=LEARNED)
def test_a_policy_is_trained_in_them(world):
    source = Rollouts(world, envs=4, horizon=15)
    learner = Learner(REINFORCE(hidden=(8,)), steps=2, random_state=0).fit(source)
    assert np.isfinite(learner.history_["return"]).all()
    assert learner.act(np.zeros((2, *world.observation.shape), dtype=np.float32)).max() < world.action.classes


@pytest.mark.parametrize("name", ["cliff", "corridor", "t-maze"])
def test_where_nothing_cuts_an_episode_a_limit_is_asked_for(name):
    with pytest.raises(ValueError, match="without a limit of steps; give horizon="):
        Rollouts(ALL[name], envs=4)


@pytest.mark.parametrize("world", ALL.values(), ids=ALL)
def test_actions_of_another_shape_are_refused(world):
    """A column in place of a row would be broadcast to a square of all pairs."""
    position, _ = world.reset(KEYS[:3])
    action = torch.zeros(3, *world.action.shape, dtype=world.action.dtype)
    world.step(position, action, KEYS[:3])
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        world.step(position, action.squeeze(-1) if world.action.shape else action[:, None], KEYS[:3])


DRAWN = {name: world for name, world in ALL.items() if hasattr(world, "render")}


def test_what_is_drawn():
    assert set(DRAWN) == set(ALL) - {"corridor", "t-maze"}


@pytest.mark.parametrize("world", DRAWN.values(), ids=DRAWN)
def test_pictures_tell_positions_apart(world):
    position = start = world.reset(KEYS[:3])[0]
    pictures = {world.render(start)[0].numpy().tobytes()}
    for t in range(30):
        legal = getattr(world, "legal", lambda p: torch.ones(3, world.action.classes, dtype=torch.bool))
        if world.action.classes:
            action = (
                legal(position) * torch.rand(3, world.action.classes, generator=torch.Generator().manual_seed(t))
            ).argmax(-1)
        else:
            action = torch.tensor([[1.0], [-1.0], [0.0]])
        position, *_, ended = world.step(position, action, fold(KEYS[:3], t))
        pictures.add(world.render(position)[0].numpy().tobytes())
        if ended[0]:
            break
    assert len(pictures) >= 2
    assert torch.equal(world.render(position[:2]), world.render(position)[:2])


def test_where_things_are_drawn():
    car = MountainCar().render(torch.tensor([[-1.1, 0.0], [0.5, 0.0]])).int()
    blue = (car[..., 2] > car[..., 0] + 100).float()
    columns = (blue.sum(1) * torch.arange(144.0)).sum(1) / blue.sum((1, 2))
    assert columns.tolist() == pytest.approx([8, 136], abs=1.5)
    tip = Pendulum().render(torch.tensor([[0.0, 0.0], [np.pi, 0.0], [np.pi / 2, 0.0]]))
    red = ((tip[..., 0] > 180) & (tip[..., 1] < 100)).float()
    middle = torch.stack([(red.sum(axis) * torch.arange(96.0)).sum(1) / red.sum((1, 2)) for axis in (2, 1)], 1)
    assert (middle - torch.tensor([[29.5, 47.5], [65.5, 47.5], [47.5, 29.5]])).abs().max() < 2  # (row, column)
    pole = CartPole().render(torch.tensor([[1.0, 0.0, 0.2, 0.0]]))[0].int()
    brown = ((pole[..., 0] - pole[..., 2] > 60) & (pole[..., 1] < 150)).float()
    assert brown[:30].any(0).nonzero().min() > 102  # leans to the right of the cart, at column 102
    arm = Acrobot().render(torch.tensor([[0.0, 0.0, 0.0, 0.0], [np.pi, 0.0, 0.0, 0.0]]))
    lower = (arm[..., 1].int() - arm[..., 0].int() > 80).float()
    rows = (lower.sum(2) * torch.arange(96.0)).sum(1) / lower.sum((1, 2))
    assert rows[0] > 70
    assert rows[1] < 25
    board = Catch().render(torch.tensor([[3, 1, 4]]))[0, ::16, ::16].int()
    assert ((board[..., 0] > 180).nonzero().tolist(), (board[..., 2] > 180).nonzero().tolist()) == ([[3, 1]], [[9, 4]])
    grid = GridWorld(["S#G", "..."])
    seen = grid.render(torch.tensor([4]))[0, 8::16, 8::16].int()  # middles of the squares; state 4: row 1, column 2
    assert (seen[..., 2] - seen[..., 0] > 100).nonzero().tolist() == [[1, 2]]
    assert (seen[0, 1] < 60).all()
    taxi = Taxi().render(torch.tensor([((2 * 5 + 3) * 5 + 4) * 4 + 1]))[0].int()
    assert (taxi[2 * 32 + 16, 3 * 32 + 16] < 60).all()  # the passenger, dark, in the taxi
    assert (taxi[29, 4 * 32 + 16] < 60).all()  # the destination's mark, upper right


@pytest.mark.parametrize("world", ALL.values(), ids=ALL)
def test_worlds_can_be_copied_and_pickled(world):
    for other in (copy.deepcopy(world), pickle.loads(pickle.dumps(world))):
        assert torch.equal(other.reset(KEYS[:3])[1], world.reset(KEYS[:3])[1])


@pytest.mark.parametrize("world", ALL.values(), ids=ALL)
def test_worlds_stay_on_the_keys_device_and_ask_it_nothing(world):
    """Without a GPU: tensors that only say what they would be refuse two devices in one operation, and `item()`."""
    world = copy.deepcopy(world)  # which keeps copies of its tables
    with FakeTensorMode(allow_non_fake_inputs=True):
        keys = torch.empty(16, dtype=torch.int64, device="cuda")
        position, seen = world.reset(keys)
        action = torch.zeros(16, *world.action.shape, dtype=world.action.dtype, device="cuda")
        told = [position, seen, *world.step(position, action, keys)]
        told += [getattr(world, more)(position) for more in ("legal", "render") if hasattr(world, more)]
        assert all(part.is_cuda for part in told)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("world", ALL.values(), ids=ALL)
def test_worlds_are_played_on_cuda_without_waiting_for_it(world):
    keys = KEYS[:16].cuda()
    position, _ = world.reset(keys)
    kind = world.action
    action = torch.zeros(16, *kind.shape, dtype=kind.dtype, device="cuda")
    position = world.step(position, action, keys)[0]  # tables are copied by now
    if hasattr(world, "legal"):
        world.legal(position)
    torch.cuda.set_sync_debug_mode("error")
    try:
        position, seen, reward, ended = world.step(position, action, keys)
        world.reset(keys)
        legal = getattr(world, "legal", lambda p: torch.ones(1, device="cuda"))(position)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(part.is_cuda for part in (seen, reward, ended, legal))
    if hasattr(world, "render"):
        assert world.render(position).is_cuda
