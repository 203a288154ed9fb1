"""Environments of gymnasium as stages, beside loops over them written by hand."""

import copy
import gc
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FrameStackObservation, TimeLimit

from weft.core.random import fold, key_of
from weft.sources.gym.acted import Writer
from weft.sources.gym.observed import reader_of
from weft.sources.stage import stage_of
from weft.testing import check_stage

NUMBERS = spaces.Box(-1.0, 1.0, (2,))
MODES = [mode.value for mode in AutoresetMode]


def keys_of(n, *places):
    return fold(key_of(0), torch.arange(n), *places)


def seed_of(key):
    return int(key) & (2**31 - 1)


class Echo(gymnasium.Env):
    """Observes draws of a space, by its seed, keeps what it was told to do, and ends as it was told."""

    def __init__(self, observed=NUMBERS, acted=None, ends=(), cuts=(), info=None):
        self.observation_space, self.action_space = observed, spaces.Discrete(3) if acted is None else acted
        self.ends, self.cuts, self.info = ends, cuts, info or (lambda turn: {})
        self.told, self.seeds, self.closed, self.turn = [], [], False, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.turn = 0
        self.seeds.append(seed)
        return self.observation_space.sample(), self.info(0)

    def step(self, action):
        self.told.append(action)
        self.turn += 1
        return (
            self.observation_space.sample(),
            0.5,
            self.turn in self.ends,
            self.turn in self.cuts,
            self.info(self.turn),
        )

    def close(self):
        self.closed = True


def by_hand(make, turns, n, actions):
    """(observation after each step, what begins anew, reward, terminated, truncated) of a loop by hand."""
    keys = keys_of(n)
    environments = [make() for _ in range(n)]
    told = [[env.reset(seed=seed_of(key))[0] for env, key in zip(environments, keys, strict=True)]]
    for t in range(turns):
        for i, env in enumerate(environments):
            seen, reward, terminated, truncated, _ = env.step(actions[t][i])
            anew = env.reset(seed=seed_of(fold(keys, t, "reset")[i]))[0] if terminated or truncated else None
            told.append((seen, anew, np.float32(reward), terminated, truncated))
    return told


def on_stage(stage, turns, n, actions):
    keys = keys_of(n)
    kept, observation = stage.begin(keys)
    told = [list(observation.numpy())]
    for t in range(turns):
        moved = stage.step(kept, torch.as_tensor(np.array(actions[t])), fold(keys, t))
        kept, over = moved.kept, moved.terminated | moved.truncated
        anew = None
        if over.any():
            kept, anew = stage.restart(kept, over, fold(keys, t, "reset"))
        for i in range(n):
            ends = bool(moved.terminated[i]), bool(moved.truncated[i])
            fresh = anew[i].numpy() if over[i] else None
            told.append((moved.observation[i].numpy(), fresh, moved.reward[i].numpy(), *ends))
    return told


def assert_same(got, expected):
    for a, b in zip(got[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, np.float32(b))
    for a, b in zip(got[1:], expected[1:], strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_array_equal(x, np.float32(y))
    assert len(got) == len(expected)


# --- beside loops by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("CartPole-v1", {}), ("CartPole-v1", {"max_episode_steps": 11, "sutton_barto_reward": True}), ("Acrobot-v1", {})],
)
def test_by_id_as_a_loop_by_hand(name, arguments):
    actions = np.random.default_rng(0).integers(0, 2, (60, 3)).tolist()
    stage = stage_of(name, arguments)
    expected = by_hand(lambda: gymnasium.make(name, **arguments), 60, 3, actions)
    assert_same(on_stage(stage, 60, 3, actions), expected)
    assert stage.horizon == arguments.get("max_episode_steps", 500)
    assert name == "Acrobot-v1" or any(told[1] is not None for told in expected[1:])


def test_numbers_as_actions_as_a_loop_by_hand():
    actions = np.random.default_rng(0).uniform(-2, 2, (30, 2, 1)).astype(np.float32)
    stage = stage_of("Pendulum-v1", {"max_episode_steps": 12})
    assert_same(
        on_stage(stage, 30, 2, actions),
        by_hand(lambda: gymnasium.make("Pendulum-v1", max_episode_steps=12), 30, 2, actions),
    )
    assert (stage.action.shape, stage.action.low, stage.action.high, stage.action.dtype) == (
        *((1,), (-2.0,), (2.0,)),
        torch.float32,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copy", [True, False])
def test_vector_environments_as_a_loop_by_hand(mode, copy):
    actions = np.random.default_rng(0).integers(0, 2, (60, 3)).tolist()
    kwargs = {"max_episode_steps": 17}
    expected = by_hand(lambda: gymnasium.make("CartPole-v1", **kwargs), 60, 3, actions)
    given = {"autoreset_mode": mode, "copy": copy}
    stage = stage_of(gymnasium.make_vec("CartPole-v1", 3, "sync", vector_kwargs=given, **kwargs))
    assert_same(on_stage(stage, 60, 3, actions), expected)
    assert (stage.horizon, stage.resumes) == (17, "restart")
    assert {(told[3], told[4]) for told in expected[1:]} >= {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes_as_a_loop_by_hand(mode):
    actions = np.random.default_rng(0).integers(0, 2, (30, 2)).tolist()
    expected = by_hand(lambda: gymnasium.make("CartPole-v1", max_episode_steps=11), 30, 2, actions)
    kwargs = {"vector_kwargs": {"autoreset_mode": mode}, "max_episode_steps": 11}
    vector = gymnasium.make_vec("CartPole-v1", 2, "async", **kwargs)
    try:
        stage = stage_of(vector)
        assert stage.horizon == 11
        assert_same(on_stage(stage, 30, 2, actions), expected)
    finally:
        vector.close()


# --- the contract ---------------------------------------------------------------------------------------

WORLDS = ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "FrozenLake-v1", "Blackjack-v1", "MountainCarContinuous-v0"]


@pytest.mark.parametrize("name", WORLDS)
def test_the_contract_of_stages_by_id(name):
    check_stage(stage_of(name), steps=30)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4"])
def test_the_contract_of_vector_environments(name, mode):
    kwargs = {"max_episode_steps": 7}
    vector = gymnasium.make_vec(name, 4, "sync", vector_kwargs={"autoreset_mode": mode}, **kwargs)
    check_stage(stage_of(vector), like=stage_of(name, kwargs), steps=20)


def test_the_contract_of_an_instance():
    check_stage(stage_of(gymnasium.make("CartPole-v1")), like=stage_of("CartPole-v1"), steps=40, episodes=1)


# --- whose episodes these are ---------------------------------------------------------------------------


def test_an_instance_plays_one_episode_at_a_time():
    env = Echo()
    stage = stage_of(env)
    kept, _ = stage.begin(keys_of(1))
    stage.step(kept, torch.tensor([1]), keys_of(1))
    assert (env.seeds, env.told) == ([seed_of(keys_of(1)[0])], [1])
    with pytest.raises(
        ValueError, match=r"expected one episode at a time in an instance of .*Echo.*, got 2; give its id"
    ):
        stage.begin(keys_of(2))
    stage.close()
    del stage
    gc.collect()
    assert not env.closed  # whoever made it closes it


def test_an_instance_in_two_sources_loses_no_episode_in_silence():
    env = Echo()
    first, second = stage_of(env), stage_of(TimeLimit(env, 5))
    kept, _ = first.begin(keys_of(1))
    other, _ = second.begin(keys_of(1))
    with pytest.raises(RuntimeError, match="has been played in since, so begin anew"):
        first.step(kept, torch.tensor([0]), keys_of(1))
    second.step(other, torch.tensor([0]), keys_of(1))
    third = stage_of(env)
    assert third.masked is False  # which it finds out by beginning an episode
    with pytest.raises(RuntimeError, match="has been played in since"):
        second.restart(other, torch.tensor([True]), keys_of(1))


@pytest.mark.parametrize("ask", ["step", "restart", "render"])
def test_what_was_kept_of_an_earlier_turn_is_refused(ask):
    stage, keys = stage_of("CartPole-v1"), keys_of(2)
    kept, _ = stage.begin(keys)
    stage.step(kept, torch.tensor([0, 1]), keys)
    given = {"step": (torch.tensor([0, 1]), keys), "restart": (torch.tensor([True, False]), keys), "render": ()}
    with pytest.raises(RuntimeError, match="expected the episodes of CartPole-v1 as the last step has left them"):
        getattr(stage, ask)(kept, *given[ask])
    stage.begin(keys)
    with pytest.raises(RuntimeError, match="those of another turn"):
        getattr(stage, ask)(kept, *given[ask])


def test_a_function_makes_as_many_as_there_are_episodes_and_they_are_closed():
    made = []

    def make():
        made.append(Echo())
        return made[-1]

    stage = stage_of(make)
    assert len(made) == 1
    for n, closed in ((3, 0), (3, 0), (5, 0), (2, 3), (1, 4)):
        kept, observation = stage.begin(keys_of(n))
        assert len(observation) == n
        assert [env.closed for env in made].count(True) == closed
    assert len(made) == 5
    assert [env.seeds[-1] for env in made[:1]] == [seed_of(keys_of(1)[0])]
    stage.close()
    assert all(env.closed for env in made)
    with pytest.raises(RuntimeError, match="begin anew"):
        stage.step(kept, torch.tensor([0]), keys_of(1))
    stage.begin(keys_of(2))
    assert [env.closed for env in made] == [True] * 5 + [False] * 2
    del stage, kept
    gc.collect()
    assert all(env.closed for env in made)


def test_a_function_that_gives_the_same_one_twice_is_refused():
    env = Echo()
    for make in (lambda: env, lambda: TimeLimit(env, 5)):
        with pytest.raises(
            ValueError, match=r"expected <lambda> to make a new environment each time, got the same one"
        ):
            stage_of(make).begin(keys_of(2))


@pytest.mark.parametrize("wrong", [3, None, gymnasium.make_vec("CartPole-v1", 2, "sync")])
def test_a_function_that_makes_something_else_is_refused(wrong):
    with pytest.raises(TypeError, match=r"expected <lambda> to make an environment of gymnasium's .*, got "):
        stage_of(lambda: wrong)


def test_after_a_step_that_failed_half_way_there_is_no_going_on():
    class Fragile(Echo):
        def step(self, action):
            if action == 2:
                raise OSError("no answer")
            return super().step(action)

    vector = gymnasium.vector.SyncVectorEnv([Fragile, Fragile])
    for stage in (stage_of(Fragile), stage_of(vector)):
        kept, _ = stage.begin(keys_of(2))
        with pytest.raises(ValueError, match="expected actions below 3"):  # before anything has moved
            stage.step(kept, torch.tensor([0, 3]), keys_of(2))
        with pytest.raises(OSError, match="no answer"):
            stage.step(kept, torch.tensor([0, 2]), keys_of(2))
        with pytest.raises(RuntimeError, match="begin anew"):
            stage.step(kept, torch.tensor([0, 1]), keys_of(2))


def test_a_copy_plays_in_environments_of_its_own():
    stage = stage_of("CartPole-v1", {"max_episode_steps": 9})
    kept, first = stage.begin(keys_of(2))
    other = copy.deepcopy(stage)
    assert torch.equal(other.begin(keys_of(2))[1], first)
    assert other.horizon == 9
    stage.step(kept, torch.tensor([0, 1]), keys_of(2))
    assert pickle.loads(pickle.dumps(stage_of("CartPole-v1"))).begin(keys_of(2))[1].equal(first)
    for given, n in ((Echo(), 1), (gymnasium.vector.SyncVectorEnv([Echo, Echo]), 2)):
        stage = stage_of(given)
        kept, first = stage.begin(keys_of(n))
        assert torch.equal(copy.deepcopy(stage).begin(keys_of(n))[1], first)
        with pytest.raises(RuntimeError, match="has been played in since"):  # for there is but one
            stage.step(kept, torch.zeros(n, dtype=torch.int64), keys_of(n))


def test_a_class_of_environments_makes_them():
    assert stage_of(Echo).begin(keys_of(3))[1].shape == (3, 2)


def test_seeds_decide_whatever_was_played_before():
    stage, keys = stage_of("CartPole-v1"), keys_of(3)
    kept, first = stage.begin(keys)
    stage.step(kept, torch.tensor([0, 1, 0]), keys)
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(stage.begin(keys)[1], first)
    assert not torch.equal(stage.begin(keys_of(3, "other"))[1], first)


# --- ends ------------------------------------------------------------------------------------------------


def test_cut_apart_from_ended_and_both_at_once():
    stage = stage_of(lambda: Echo(ends=(2, 5), cuts=(4, 5)))
    kept, _ = stage.begin(keys_of(1))
    told = []
    for _ in range(5):  # nothing is begun anew by itself; those that have ended wait
        moved = stage.step(kept, torch.tensor([0]), keys_of(1))
        told.append((bool(moved.terminated), bool(moved.truncated)))
        kept = moved.kept
        if told[-1] == (True, False) and len(told) == 2:
            assert stage.step(kept, torch.tensor([0]), keys_of(1)).terminated.item()
            break
    assert told == [(False, False), (True, False)]
    both = stage_of(TimeLimit(Echo(ends=(3,)), 3))
    kept, _ = both.begin(keys_of(1))
    for expected in ((False, False), (False, False), (True, True)):
        moved = both.step(kept, torch.tensor([0]), keys_of(1))
        kept = moved.kept
        assert (bool(moved.terminated), bool(moved.truncated)) == expected
    assert both.horizon == 3


def test_what_has_ended_waits_and_is_told_to_do_nothing():
    made = []

    def make():
        made.append(Echo(ends=(1,) if not made else (), acted=spaces.Discrete(3, start=5)))
        return made[-1]

    stage = stage_of(make)
    kept, _ = stage.begin(keys_of(2))
    moved = stage.step(kept, torch.tensor([1, 2]), keys_of(2))
    last = moved.observation[0].clone()
    action = torch.tensor([99, 1])  # there it does not matter
    moved = stage.step(moved.kept, action, keys_of(2))
    assert (made[0].told, made[1].told) == ([6], [7, 6])
    assert action.tolist() == [99, 1]
    assert torch.equal(moved.observation[0], last)
    assert moved.reward.tolist() == [0.0, 0.5]
    assert moved.terminated.tolist() == [True, False]


@pytest.mark.parametrize("mode", MODES)
def test_in_a_vector_environment_it_waits_as_well(mode):
    first = Echo(ends=(1,))
    stage = stage_of(gymnasium.vector.SyncVectorEnv([lambda: first, Echo], autoreset_mode=mode))
    kept, _ = stage.begin(keys_of(2))
    moved = stage.step(kept, torch.tensor([1, 2]), keys_of(2))
    last = moved.observation[0].clone()
    for turn in range(4):
        moved = stage.step(moved.kept, torch.tensor([99, 1]), keys_of(2, turn))
        assert torch.equal(moved.observation[0], last)
        assert (moved.reward.tolist(), moved.terminated.tolist()) == ([0.0, 0.5], [True, False])
    kept, fresh = stage.restart(moved.kept, moved.terminated, keys_of(2, "anew"))
    assert first.seeds[-1] == seed_of(keys_of(2, "anew")[0])
    assert not torch.equal(fresh[0], last)
    assert stage.step(kept, torch.tensor([0, 1]), keys_of(2)).reward.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("limit", "horizon"), [(None, 500), (7, 7), (-1, None)])
def test_the_time_limit_in_force_is_the_horizon(limit, horizon):
    arguments = {} if limit is None else {"max_episode_steps": limit}
    assert stage_of("CartPole-v1", arguments).horizon == horizon
    assert stage_of(TimeLimit(Echo(), 9)).horizon == 9
    assert stage_of(Echo()).horizon is None
    loose = Echo()
    loose._max_episode_steps = np.inf
    assert stage_of(loose).horizon is None


# --- what is observed ------------------------------------------------------------------------------------

TREE = spaces.Dict(
    {
        "position": spaces.Box(-5, 5, (2,), np.float64),
        "goal": spaces.Dict({"cell": spaces.Discrete(3, start=2), "free": spaces.MultiBinary(2)}),
        "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(0, 9, (), np.int32))),
    }
)
NAMES = (
    *("goal.cell=2", "goal.cell=3", "goal.cell=4", "goal.free[0]", "goal.free[1]"),
    *(
        "pair.0[0]=1",
        "pair.0[0]=2",
        "pair.0[1]=0",
        "pair.0[1]=1",
        "pair.0[1]=2",
        "pair.1",
        "position[0]",
        "position[1]",
    ),
)
FLAT = [
    (spaces.Discrete(4), ("observation=0", "observation=1", "observation=2", "observation=3")),
    (spaces.Discrete(2, start=-1), ("observation=-1", "observation=0")),
    (spaces.MultiDiscrete([[2, 3], [1, 2]]), None),
    (
        spaces.Tuple((spaces.Discrete(2), NUMBERS)),
        ("observation.0=0", "observation.0=1", *(f"observation.1[{i}]" for i in (0, 1))),
    ),
    (TREE, NAMES),
]


@pytest.mark.parametrize(("space", "names"), FLAT)
def test_spaces_are_flattened_as_gymnasium_does_with_names(space, names):
    space.seed(3)
    stage = stage_of(lambda: Echo(space))
    read = reader_of(space)
    many = [space.sample() for _ in range(6)]
    expected = np.stack([spaces.flatten(space, one) for one in many]).astype(np.float32)
    np.testing.assert_array_equal(read(many, False), expected)
    batch = gymnasium.vector.utils.concatenate(space, many, gymnasium.vector.utils.create_empty_array(space, 6))
    np.testing.assert_array_equal(read(batch, True), expected)
    assert stage.observation.shape == expected.shape[1:]
    assert stage.observation.dtype == torch.float32
    assert len(stage.names) == expected.shape[1]
    if names is not None:
        assert stage.names == names


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(0, 7, (4,), np.int16), spaces.MultiBinary((2, 2)), NUMBERS],
)
def test_boxes_keep_their_shape(space):
    stage = stage_of(lambda: Echo(space))
    _, observation = stage.begin(keys_of(2))
    space.seed(seed_of(keys_of(2)[1]))
    assert torch.equal(observation[1], torch.from_numpy(space.sample().astype(np.float32)))
    assert stage.observation.shape == space.shape
    assert stage.names == ()


class Strings(Echo):
    def __init__(self, space):
        super().__init__()
        self.observation_space = space


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (
            spaces.Dict({"image": NUMBERS, "mission": spaces.Text(9)}),
            r"got strings in 'mission': Text.*FilterObservation",
        ),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Text(9)})}), r"got strings in 'a\.b'"),
        (spaces.Tuple((NUMBERS, spaces.Sequence(NUMBERS))), r"got what has no fixed size in 'observation\.1'"),
        (spaces.Graph(NUMBERS, None), r"got what has no fixed size in 'observation': Graph"),
        (spaces.Dict({}), "got an empty space for 'observation'"),
    ],
)
def test_spaces_that_are_no_numbers_are_refused_by_name(space, says):
    with pytest.raises(ValueError, match=r"Strings.*" + says):
        stage_of(Strings(space))
    with pytest.raises(ValueError, match=r"<lambda>: .*" + says):
        stage_of(lambda: Strings(space))


def test_nan_passes_through_for_whoever_looks():
    class Bad(Echo):
        def step(self, action):
            return (np.array([np.nan, np.inf], np.float32), *super().step(action)[1:])

    stage = stage_of(Bad)
    kept, _ = stage.begin(keys_of(1))
    seen = stage.step(kept, torch.tensor([0]), keys_of(1)).observation
    assert seen.isnan().tolist() == [[True, False]]
    assert seen.isinf().tolist() == [[False, True]]


@pytest.mark.parametrize(
    ("space", "seen", "says"),
    [
        (NUMBERS, np.zeros(1), r"expected 'observation' in shape \(2,\), as the space says, got \(1,\)"),
        (NUMBERS, "left", "expected 'observation' to be numbers of shape"),
        (spaces.Discrete(3), 3, r"expected 'observation' in \[3\] choices from \[0\], got \[\[3\]\]|got \[3\]"),
        (spaces.Discrete(3), -1, "choices from"),
        (spaces.Discrete(3), 1.7, "expected 'observation' to be numbers of shape"),
        (spaces.Box(0, 2, ()), "1.5", "expected 'observation' to be numbers of shape"),
        (
            spaces.Dict({"a": NUMBERS, "b": NUMBERS}),
            {"a": np.zeros(2)},
            "expected 'b' in 'observation', as the space says",
        ),
        (
            spaces.Box(0, 255, (4, 4), np.uint8),
            np.zeros((4, 4)),
            "in numpy.uint8, as the space says, got .* in float64",
        ),
    ],
)
def test_observations_that_are_not_of_their_space_are_refused(space, seen, says):
    class Liar(Echo):
        def step(self, action):
            return (seen, *super().step(action)[1:])

    stage = stage_of(lambda: Liar(space))
    kept, _ = stage.begin(keys_of(1))
    with pytest.raises(ValueError, match=says):
        stage.step(kept, torch.tensor([0]), keys_of(1))


@pytest.mark.parametrize("reward", [np.zeros(2), "much", np.zeros(1)])
def test_rewards_that_are_no_number_are_refused(reward):
    class Liar(Echo):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return (seen, reward, *rest)

    stage = stage_of(Liar)
    kept, _ = stage.begin(keys_of(2))
    with pytest.raises(ValueError, match=r"expected a (number as the )?reward"):
        stage.step(kept, torch.tensor([0, 0]), keys_of(2))


# --- pictures --------------------------------------------------------------------------------------------


def picture(shape, dtype=np.uint8, high=255):
    return spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("given", "shape", "order"),
    [
        ((6, 8), (1, 6, 8), lambda p: p[None]),
        ((6, 8, 1), (1, 6, 8), lambda p: p.transpose(2, 0, 1)),
        ((6, 8, 3), (3, 6, 8), lambda p: p.transpose(2, 0, 1)),
        ((6, 8, 4), (4, 6, 8), lambda p: p.transpose(2, 0, 1)),
        ((5, 8, 9), (5, 8, 9), lambda p: p),
        ((3, 8, 9), (3, 8, 9), lambda p: p),
        ((2, 6, 8, 3), (6, 6, 8), lambda p: np.concatenate([frame.transpose(2, 0, 1) for frame in p])),
        ((5, 6, 8, 1), (5, 6, 8), lambda p: p[..., 0]),
    ],
)
def test_pictures_are_scaled_with_channels_first(given, shape, order):
    space = picture(given)
    stage = stage_of(lambda: Echo(space))
    assert (stage.observation.shape, stage.names) == (shape, ())
    _, seen = stage.begin(keys_of(2))
    space.seed(seed_of(keys_of(2)[1]))
    np.testing.assert_array_equal(seen[1].numpy(), (order(space.sample()) / np.float32(255)).astype(np.float32))
    assert seen.is_contiguous()


@pytest.mark.parametrize("given", [(6, 8), (6, 8, 3)])
def test_frames_that_gymnasium_stacks_are_channels(given):
    space = picture(given)
    stage = stage_of(lambda: FrameStackObservation(Echo(space), 4, padding_type="zero"))
    channels = 1 if len(given) == 2 else 3
    assert stage.observation.shape == (4 * channels, 6, 8)
    kept, first = stage.begin(keys_of(1))
    assert (first[0, : 3 * channels] == 0).all()
    second = stage.step(kept, torch.tensor([0]), keys_of(1)).observation
    assert torch.equal(second[0, 2 * channels : 3 * channels], first[0, 3 * channels :])
    assert not torch.equal(second[0, 3 * channels :], first[0, 3 * channels :])


def test_whole_numbers_that_are_no_pictures():
    space = picture((7, 7, 3))
    stage = stage_of(lambda: Echo(space), {"pixels": False})
    _, seen = stage.begin(keys_of(1))
    assert stage.observation.shape == (7, 7, 3)
    assert seen.max() > 1
    memory = stage_of(lambda: Echo(picture((128,))))  # such as Atari's
    assert memory.observation.shape == (128,)
    assert memory.begin(keys_of(1))[1].max() > 1
    few = stage_of(lambda: Echo(picture((6, 8), high=7)))
    assert few.observation.shape == (6, 8)
    told = stage_of(lambda: Echo(picture((6, 8), high=7)), {"pixels": True})
    assert told.observation.shape == (1, 6, 8)
    inside = stage_of(lambda: Echo(spaces.Dict({"eye": picture((2, 2, 3)), "x": NUMBERS})))
    assert inside.observation.shape == (14,)
    assert inside.names[:2] == ("eye[0,0,0]", "eye[0,0,1]")
    assert inside.begin(keys_of(1))[1][0, :12].max() <= 1


@pytest.mark.parametrize(
    ("space", "pixels", "says"),
    [
        (picture((40, 8, 10)), None, r"got shape \(40, 8, 10\); say arguments=\{'pixels': False\}"),
        (picture((2, 8, 8, 5)), None, "1, 3 or 4 channels last"),
        (NUMBERS, True, "expected pictures, of numpy.uint8"),
        (picture((8, 8), np.int32), True, "expected pictures, of numpy.uint8"),
    ],
)
def test_what_may_or_may_not_be_pictures_is_asked(space, pixels, says):
    with pytest.raises(ValueError, match=says):
        stage_of(lambda: Echo(space), {} if pixels is None else {"pixels": pixels})


@pytest.mark.parametrize("name", ["pixels", "masks"])
def test_pixels_and_masks_are_truths(name):
    with pytest.raises(TypeError, match=f"expected {name} as True, False or None, got 'yes'"):
        stage_of("CartPole-v1", {name: "yes"})
    with pytest.raises(TypeError, match=f"expected {name} as True, False or None, got 0"):
        stage_of("CartPole-v1", {name: 0})


# --- what is done ----------------------------------------------------------------------------------------

DONE = [
    (spaces.Discrete(3, start=5), [[2], [0]], [7, 5]),
    (spaces.MultiDiscrete([2, 5], start=[1, -1]), [[1, 4], [0, 0]], [np.array([2, 3]), np.array([1, -1])]),
    (spaces.MultiDiscrete([[2, 2]]), [[1, 0], [0, 1]], [np.array([[1, 0]]), np.array([[0, 1]])]),
    (spaces.MultiBinary(2), [[1, 0], [1, 1]], [np.array([1, 0], np.int8), np.array([1, 1], np.int8)]),
    (spaces.Box(-1, 2, (2,), np.float64), [[-1, 2], [0.5, 0.25]], [np.array([-1.0, 2.0]), np.array([0.5, 0.25])]),
    (
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiDiscrete([3, 3])}),
        [[2, 1, 1], [0, 0, 0]],
        [{"a": np.array([2, 1]), "b": 1}, {"a": np.array([0, 0]), "b": 0}],
    ),
    (
        spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Box(-1, 0, (1, 2)))),
        [[1, -1, 0], [0.5, -0.5, -0.25]],
        [(np.array([1.0]), np.array([[-1.0, 0.0]])), (np.array([0.5]), np.array([[-0.5, -0.25]]))],
    ),
]


def assert_tree(got, expected):
    if isinstance(expected, dict | tuple):
        assert type(got) is type(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            assert_tree(got[key], expected[key])
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("space", "rows", "expected"), DONE)
def test_actions_as_their_spaces_have_them(space, rows, expected):
    made = []
    stage = stage_of(lambda: made.append(Echo(acted=space)) or made[-1])
    action = torch.tensor(rows).reshape(2, *stage.action.shape).to(stage.action.dtype)
    kept, _ = stage.begin(keys_of(2))
    stage.step(kept, action, keys_of(2))
    for env, told in zip(made, expected, strict=True):
        assert_tree(env.told[0], told)
        assert space.contains(env.told[0])
    batch = Writer(space).together(action)
    vectors = gymnasium.vector.utils.batch_space(space, 2)
    for got, told in zip(gymnasium.vector.utils.iterate(vectors, batch), expected, strict=True):
        assert_tree(got, told)


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (spaces.Discrete(3, start=5), {"classes": 3, "shape": ()}),
        (spaces.MultiDiscrete([2, 5]), {"choices": (2, 5), "shape": (2,)}),
        (spaces.MultiBinary((1, 2)), {"choices": (2, 2), "shape": (1, 2)}),
        (spaces.Box(-np.inf, np.inf, (2,)), {"low": (-np.inf,) * 2, "high": (np.inf,) * 2, "shape": (2,)}),
        (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.MultiBinary(1)}), {"choices": (3, 2), "shape": (2,)}),
    ],
)
def test_fields_of_actions(space, fields):
    action = Writer(space).field
    assert {name: getattr(action, name) for name in fields} == fields
    assert action.dtype == (torch.float32 if "low" in fields else torch.int64)


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Tuple((NUMBERS, spaces.Discrete(2))), "all numbers or all choices, got both"),
        (spaces.Box(0, 4, (2,), np.int64), "whole numbers as actions in a MultiDiscrete space"),
        (spaces.Text(4), "got strings in 'action'"),
        (spaces.Dict({"a": spaces.Sequence(NUMBERS)}), r"got what has no fixed size in 'action\.a'"),
        (spaces.Dict({}), "got an empty space for 'action'"),
    ],
)
def test_actions_of_other_kinds_are_refused_with_the_reason(space, says):
    with pytest.raises(ValueError, match=says):
        stage_of(lambda: Echo(acted=space))


@pytest.mark.parametrize(
    ("space", "action", "says"),
    [
        (spaces.Discrete(2), [0, 2], "expected actions below 2, got 2 in entry .. of episode 1"),
        (spaces.Discrete(2), [-1, 0], "got -1 in entry .. of episode 0"),
        (
            spaces.Discrete(2),
            [0.0, 1.0],
            r"expected an action of shape \(\) in torch.int64 .* got \(\) in torch.float32",
        ),
        (spaces.Discrete(2), [[0], [1]], r"got \(1,\) in torch.int64"),
        (spaces.MultiDiscrete([2, 3]), [[1, 2], [2, 2]], r"below \(2, 3\), got 2 in entry \[0\] of episode 1"),
        (NUMBERS, [[0.0, 0.0], [0.0, 1.5]], r"between \(-1.0, -1.0\) and .*, got 1.5 in entry \[1\] of episode 1"),
        (NUMBERS, [[0.0, float("nan")], [0.0, 0.0]], r"got nan in entry \[1\] of episode 0"),
        (spaces.Box(-np.inf, np.inf, (1,)), [[float("inf")], [0.0]], "got inf"),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_actions_outside_of_the_space_are_refused(space, action, says, together):
    def make():
        return Echo(acted=space)

    vector = gymnasium.vector.SyncVectorEnv([make, make], autoreset_mode="Disabled")
    stage = stage_of(vector) if together else stage_of(make)
    kept, _ = stage.begin(keys_of(2))
    with pytest.raises(ValueError, match=says):
        stage.step(kept, torch.tensor(action), keys_of(2))


def test_rounding_beyond_a_bound_is_put_back():
    made = []
    stage = stage_of(lambda: made.append(Echo(acted=spaces.Box(-0.1, 0.1, (1,), np.float64))) or made[-1])
    kept, _ = stage.begin(keys_of(1))
    stage.step(kept, torch.tensor([[0.100001]]), keys_of(1))
    assert made[0].told[0] == [0.1]


# --- what is legal ----------------------------------------------------------------------------------------


def test_taxi_says_what_is_legal():
    stage, keys = stage_of("Taxi-v4"), keys_of(3)
    assert stage.masked is True
    kept, _ = stage.begin(keys)
    environments = [gymnasium.make("Taxi-v4") for _ in range(3)]
    masks = [env.reset(seed=seed_of(key))[1]["action_mask"] for env, key in zip(environments, keys, strict=True)]
    for _ in range(20):
        legal = stage.legal(kept)
        assert legal.dtype == torch.bool
        assert legal.int().tolist() == np.stack(masks).tolist()
        action = legal.int().argmax(-1)
        kept = stage.step(kept, action, keys).kept
        masks = [env.step(int(a))[4]["action_mask"] for env, a in zip(environments, action, strict=True)]
    fresh, _ = stage.restart(kept, torch.tensor([False, True, False]), keys)
    masks[1] = environments[1].reset(seed=seed_of(keys[1]))[1]["action_mask"]
    assert stage.legal(fresh).int().tolist() == np.stack(masks).tolist()


class Masked(Echo):
    """Only the action that is the turn's number is legal."""

    def action_masks(self):
        return [a == self.turn % 3 for a in range(3)]


class Told(Echo):
    def __init__(self, **kwargs):
        super().__init__(info=lambda turn: {"action_mask": np.eye(3, dtype=np.int8)[turn % 3]}, **kwargs)


@pytest.mark.parametrize("kind", [Masked, Told])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_masks_by_a_method_or_the_info_in_every_mode(kind, mode):
    def make():
        return TimeLimit(kind(), 2)

    vector = mode and gymnasium.vector.SyncVectorEnv([make] * 2, autoreset_mode=mode)
    if mode == "SameStep" and kind is Masked:
        with pytest.raises(
            ValueError, match="tells in autoreset_mode SameStep of the episode after the one that ended"
        ):
            stage_of(vector).masked  # noqa: B018
        return
    stage, keys = stage_of(vector if mode else make), keys_of(2)
    assert stage.masked
    kept, _ = stage.begin(keys)
    for turn in (1, 2):
        kept = stage.step(kept, torch.tensor([turn - 1, turn - 1]), keys).kept
        assert stage.legal(kept).tolist() == torch.eye(3).bool()[[turn, turn]].tolist()
    kept, _ = stage.restart(kept, torch.tensor([True, False]), keys)
    assert stage.legal(kept).tolist() == torch.eye(3).bool()[[0, 2]].tolist()


def masked(info, **kwargs):
    return lambda: Echo(info=info, **kwargs)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (masked(lambda t: {"action_mask": np.ones(2)}), "for 3 actions in each of 2 episodes, got shape"),
        (
            masked(lambda t: {"action_mask": np.ones(3)} if t < 1 else {"else": 1}),
            r"of every step of .*with \['else'\]",
        ),
        (
            masked(lambda t: {"action_mask": np.full(3, t < 1)}),
            "expected an action that is legal, got none in episode 0",
        ),
        (
            masked(lambda t: {"action_mask": np.ones(2)}, acted=NUMBERS),
            "expected actions that are one of finitely many",
        ),
    ],
)
def test_masks_that_are_none_are_refused(make, says):
    stage = stage_of(make)
    with pytest.raises(ValueError, match=says):
        stage.step(stage.begin(keys_of(2))[0], torch.zeros(2, dtype=torch.int64), keys_of(2))


def test_masks_are_left_out_or_must_be_there():
    free = stage_of("Taxi-v4", {"masks": False})
    assert free.masked is False
    kept, _ = free.begin(keys_of(2))
    assert free.legal(free.step(kept, torch.tensor([4, 4]), keys_of(2)).kept) is None
    check_stage(free, steps=10)
    assert stage_of(Masked, {"masks": True}).masked is True
    with pytest.raises(ValueError, match=r"to say which actions are legal, .* beside masks=True, got neither"):
        stage_of("CartPole-v1", {"masks": True}).begin(keys_of(2))


def test_where_an_episode_has_ended_nothing_need_be_legal():
    stage = stage_of(masked(lambda t: {"action_mask": np.full(3, t < 1)}, ends=(1,)))
    moved = stage.step(stage.begin(keys_of(2))[0], torch.zeros(2, dtype=torch.int64), keys_of(2))
    assert stage.legal(moved.kept).all()


# --- ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("CartPool-v1", r"got 'CartPool-v1'; did you mean 'CartPole-v1'\? .*pip install 'gymnasium\[all\]'"),
        ("CARTPOLE-V1", "did you mean 'CartPole-v1'"),
        ("CartPole-v9", "did you mean 'CartPole-v1'"),
        ("Zzz/Qqq-v0", r"got 'Zzz/Qqq-v0'; gymnasium's own extras .* 'minigrid:MiniGrid-Empty-5x5-v0'"),
        ("not an id", "got 'not an id'"),
    ],
)
def test_an_unknown_id_is_told_with_the_closest(name, says):
    with pytest.raises(ValueError, match="expected the id of an installed gymnasium environment, .*" + says):
        stage_of(name)


def test_what_an_id_needs_is_told():
    with pytest.raises(
        ImportError, match="expected the package that nowhere_to_be_found:X-v0 is of, got No module named"
    ):
        stage_of("nowhere_to_be_found:X-v0")
    with pytest.raises(
        TypeError, match=r"expected arguments that CartPole-v1 takes, got \{'mass': 2\}: .*unexpected keyword"
    ):
        stage_of("CartPole-v1", {"mass": 2})

    def needs(**given):
        raise gymnasium.error.DependencyNotInstalled("box is not installed, pip install box")

    gymnasium.register("Needy-v0", needs)
    try:
        with pytest.raises(
            ImportError, match="expected what Needy-v0 needs, got box is not installed, pip install box"
        ):
            stage_of("Needy-v0")
    finally:
        del gymnasium.registry["Needy-v0"]


@pytest.mark.parametrize("world", [Echo, Echo(), gymnasium.make_vec("CartPole-v1", 2, "sync")])
def test_arguments_beside_anything_but_an_id_are_refused(world):
    with pytest.raises(ValueError, match=r"expected further arguments beside an id of gymnasium's, got \['gravity'\]"):
        stage_of(world, {"gravity": 1.0})


def test_an_environment_without_spaces_is_refused():
    class Bare(gymnasium.Env):
        pass

    with pytest.raises(TypeError, match=r"expected .*Bare.* with an observation_space and an action_space"):
        stage_of(Bare())


# --- vector environments that begin anew otherwise -------------------------------------------------------


def test_what_cannot_begin_one_episode_anew_is_refused():
    with pytest.raises(ValueError, match=r"begins single episodes anew, got CartPoleVectorEnv.*NextStep.*'Disabled'"):
        stage_of(gymnasium.make_vec("CartPole-v1", 2))
    vector = gymnasium.make_vec("CartPole-v1", 2)
    vector.metadata = {}
    with pytest.raises(ValueError, match="to say how its episodes begin anew, got None"):
        stage_of(vector)


def test_processes_without_shared_memory_that_begin_a_step_later_are_refused():
    kwargs = {"vector_kwargs": {"shared_memory": False}}
    vector = gymnasium.make_vec("CartPole-v1", 1, "async", **kwargs)
    try:
        with pytest.raises(ValueError, match="with shared_memory=True beside autoreset_mode NextStep"):
            stage_of(vector)
    finally:
        vector.close()


class Pushed(gymnasium.vector.VectorEnv):
    """Counts upwards in each row from a number of its seed, ends at 3, and begins anew as its mode says."""

    def __init__(self, mode, heeds=True):
        self.metadata, self.num_envs, self.heeds = {"autoreset_mode": mode}, 2, heeds
        self.single_observation_space, self.single_action_space = spaces.Box(-99, 99, (1,)), spaces.Discrete(2)
        self.mode, self.at, self.seed = mode, np.zeros((2, 1), np.float32), None

    def reset(self, *, seed=None, options=None):
        self.seed = seed if seed is not None else self.seed
        which = (options or {}).get("reset_mask", np.ones(2, bool)) if self.heeds else np.ones(2, bool)
        self.at[which] = 0
        return self.at.copy(), {}

    def step(self, actions):
        self.at += 1 + actions[:, None]
        seen, ended, infos = self.at.copy(), self.at[:, 0] >= 3, {}
        if self.mode == AutoresetMode.SAME_STEP and ended.any():
            infos = {
                "final_obs": np.array([row if over else None for row, over in zip(seen, ended, strict=True)], object)
            }
            self.at[ended] = -1
        return self.at.copy(), np.ones(2), ended, np.zeros(2, bool), infos


def test_another_vector_environment_that_waits_to_be_begun_anew():
    stage, keys = stage_of(Pushed(AutoresetMode.DISABLED)), keys_of(2)
    kept, first = stage.begin(keys)
    assert first.tolist() == [[0], [0]]
    assert stage.envs.seed == seed_of(keys[0])
    for expected, ended in (([[1], [2]], [False, False]), ([[2], [4]], [False, True])):
        moved = stage.step(kept, torch.tensor([0, 1]), keys)
        kept = moved.kept
        assert moved.observation.tolist() == expected
        assert moved.terminated.tolist() == ended
    kept, fresh = stage.restart(kept, moved.terminated, keys)
    assert fresh[1].tolist() == [0]
    assert stage.step(kept, torch.tensor([0, 1]), keys).observation.tolist() == [[3], [2]]


def test_one_that_begins_all_anew_in_place_of_one_is_found():
    stage, keys = stage_of(Pushed(AutoresetMode.DISABLED, heeds=False)), keys_of(2)
    moved = stage.step(stage.begin(keys)[0], torch.tensor([0, 1]), keys)
    with pytest.raises(RuntimeError, match=r"to begin anew the episodes of options\['reset_mask'\] alone"):
        stage.restart(moved.kept, torch.tensor([False, True]), keys)


def test_another_vector_environment_that_begins_anew_by_itself():
    stage, keys = stage_of(Pushed(AutoresetMode.SAME_STEP)), keys_of(2)
    moved = stage.step(stage.begin(keys)[0], torch.tensor([0, 1]), keys)
    with pytest.raises(ValueError, match=r"whose episodes can be cut, .* leave horizon out"):
        stage.restart(moved.kept, torch.tensor([True, False]), keys)
    moved = stage.step(moved.kept, torch.tensor([0, 1]), keys)
    assert moved.observation.tolist() == [[2], [4]]  # which the episode ended with
    assert moved.terminated.tolist() == [False, True]
    kept, fresh = stage.restart(moved.kept, moved.terminated, keys)
    assert fresh[1].tolist() == [-1]
    moved = stage.step(kept, torch.tensor([0, 1]), keys)
    assert moved.observation.tolist() == [[3], [1]]
    assert moved.terminated.tolist() == [True, False]


def test_one_that_does_not_say_what_it_ended_with_is_found():
    class Silent(Pushed):
        def step(self, actions):
            return (*super().step(actions)[:4], {})

    stage, keys = stage_of(Silent(AutoresetMode.SAME_STEP)), keys_of(2)
    moved = stage.step(stage.begin(keys)[0], torch.tensor([0, 1]), keys)
    with pytest.raises(ValueError, match=r"expected final_obs in the info of .*Silent"):
        stage.step(moved.kept, torch.tensor([0, 1]), keys)


def test_a_vector_environment_has_its_number_of_episodes():
    stage = stage_of(gymnasium.make_vec("CartPole-v1", 3, "sync"))
    with pytest.raises(ValueError, match=r"expected 3 episodes side by side \(envs=3, no replicas\), .*, got 2"):
        stage.begin(keys_of(2))


# --- pictures of the world --------------------------------------------------------------------------------


class Drawn(Echo):
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def render(self):
        return np.full((4, 5, 3), self.turn, np.uint8)


def test_frames_where_the_environment_draws():
    for stage in (stage_of(Drawn), stage_of(gymnasium.vector.SyncVectorEnv([Drawn, Drawn]))):
        kept, _ = stage.begin(keys_of(2))
        kept = stage.step(kept, torch.tensor([0, 1]), keys_of(2)).kept
        frames = stage.render(kept)
        assert (frames.shape, frames.dtype, frames.unique().tolist()) == ((2, 4, 5, 3), torch.uint8, [1])
    silent = stage_of("CartPole-v1")
    assert silent.render(silent.begin(keys_of(2))[0]) is None


@pytest.mark.parametrize("frame", [np.zeros((4, 5, 3)), np.zeros((4, 5), np.uint8), None])
def test_frames_that_are_no_pictures_are_refused(frame):
    class Blurred(Drawn):
        def render(self):
            return frame

    for stage in (stage_of(Blurred), stage_of(gymnasium.vector.SyncVectorEnv([Blurred, Blurred]))):
        kept, _ = stage.begin(keys_of(2))
        with pytest.raises(ValueError, match=r"to render pictures \(H, W, 3\) in numpy.uint8, got"):
            stage.render(kept)


def test_a_way_to_draw_is_asked_for_by_the_arguments():
    stage = stage_of("FrozenLake-v1", {"render_mode": "ansi"})
    assert stage._envs[0].render_mode == "ansi"
    assert stage.render(stage.begin(keys_of(1))[0]) is None
    pytest.importorskip("pygame")
    stage = stage_of("CartPole-v1", {"render_mode": "rgb_array"})
    assert stage.render(stage.begin(keys_of(2))[0]).shape == (2, 400, 600, 3)


# --- envpool -----------------------------------------------------------------------------------------------


def test_environments_of_envpool():
    envpool = pytest.importorskip(
        "envpool", reason="envpool is not installed; pip install envpool where there is a wheel"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its spaces' bounds
        pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, seed=4, max_episode_steps=17)
        stage = stage_of(pool)
    keys, rng = keys_of(3), np.random.default_rng(0)
    assert (stage.horizon, stage.masked, stage.action.classes) == (17, False, 2)
    kept, before = stage.begin(keys)
    from weft.data import CartPole

    ends = set()
    for t in range(60):
        action = torch.from_numpy(rng.integers(0, 2, 3))
        moved = stage.step(kept, action, fold(keys, t))
        _, expected, _, ended = CartPole().step(before.double(), action)  # the true observation after every step
        torch.testing.assert_close(moved.observation, expected, rtol=1e-4, atol=1e-5)
        assert moved.reward.tolist() == [1.0] * 3
        assert torch.equal(moved.terminated, ended)
        over, kept, before = moved.terminated | moved.truncated, moved.kept, moved.observation
        ends |= set(zip(moved.terminated.tolist(), moved.truncated.tolist(), strict=True))
        if over.any():
            kept, fresh = stage.restart(kept, over, keys)
            assert (fresh[over].abs() <= 0.05).all()
            before = torch.where(over.unsqueeze(-1), fresh, before)
    assert ends >= {(True, False), (False, True), (False, False)}
