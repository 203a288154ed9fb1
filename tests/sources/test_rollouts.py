import pytest
import torch

from weft.core.optimizer import as_optimizer
from weft.core.source import Field
from weft.data import CartPole, FiniteMDP
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.strategies import ERM

KINDS = ["tensors", "gymnasium"]


def environment(kind):
    if kind == "gymnasium":
        pytest.importorskip("gymnasium")
        return "CartPole-v1"
    return CartPole()


def engine_of(source, seeds=(0,), dtype=torch.float32):
    built = build(REINFORCE(hidden=(8,)), source.spec, 0, dtype)
    replicas = len(seeds) if len(seeds) > 1 else None
    engine = Engine(built, ERM(), {"": as_optimizer("adam")}, grouped=source.grouped, replicas=replicas)
    return engine, engine.init(list(seeds), torch.device("cpu"))


def first(source, seed=0, step=0):
    engine, state = engine_of(source, (seed,))
    state.step = step
    return next(engine.batches(source, state))


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_masks_and_spec(kind):
    source = Rollouts(environment(kind), envs=5)
    assert source.spec["observation"] == Field((4,), torch.float32)
    assert source.spec["action"].classes == 2
    assert source.resumes == ("exact" if kind == "tensors" else "restart")
    assert (source.horizon, source.grouped, source.epoch) == (500, False, None)
    batch = first(source)
    shapes = {n: tuple(v.shape) for n, v in batch.items()}
    assert shapes == {
        "observation": (5, 500, 4),
        "action": (5, 500),
        "reward": (5, 500),
        "mask": (5, 500),
        "advantage": (5, 500),
    }
    lengths = batch["mask"].sum(1).long()
    assert lengths.min() >= 8  # no CartPole falls sooner
    assert len(lengths.unique()) > 1
    for i, length in enumerate(lengths.tolist()):
        assert (batch["mask"][i, :length] == 1).all()
        assert (batch["mask"][i, length:] == 0).all()
        assert (batch["reward"][i] == batch["mask"][i]).all()
        assert (batch["advantage"][i, length:] == 0).all()
        assert (batch["observation"][i, length:] == batch["observation"][i, length - 1]).all()
    assert batch["action"].unique().tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_obey_the_dynamics(kind):
    batch = first(Rollouts(environment(kind), envs=4))
    real = batch["mask"][:, 1:] > 0
    before = batch["observation"][:, :-1][real]
    _, seen, _, done = CartPole().step(before.double(), batch["action"][:, :-1][real])
    torch.testing.assert_close(seen, batch["observation"][:, 1:][real], rtol=1e-4, atol=1e-5)
    assert not done.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_seed_and_step_alone(kind):
    source = Rollouts(environment(kind), envs=3, horizon=40)
    batch = first(source, seed=1, step=7)
    torch.manual_seed(99)
    first(source, seed=2)  # plays on in between
    assert_equal(first(source, seed=1, step=7), batch)
    assert_equal(first(Rollouts(environment(kind), envs=3, horizon=40), seed=1, step=7), batch)
    for other in (first(source, seed=1, step=8), first(source, seed=2, step=7)):
        assert not torch.equal(other["observation"][:, 0], batch["observation"][:, 0])
    _, state = engine_of(source)
    held_out = next(source.once(state, 100))
    assert not torch.equal(held_out["observation"][:, 0], first(source)["observation"][:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_does_not_depend_on_the_others(kind):
    few = first(Rollouts(environment(kind), envs=2, horizon=40))
    many = first(Rollouts(environment(kind), envs=6, horizon=40))
    for name in ("observation", "action", "reward", "mask"):
        torch.testing.assert_close(few[name], many[name][:2])


def test_replicas_play_for_themselves():
    source = Rollouts(CartPole(), envs=3, horizon=30)
    engine, state = engine_of(source, (4, 5))
    both = next(engine.batches(source, state))
    for k, seed in enumerate((4, 5)):
        assert_equal({n: v[k] for n, v in both.items()}, first(source, seed))


def test_environments_are_groups():
    class Shorter(CartPole):
        horizon = 20

    source = Rollouts([CartPole(), Shorter()], envs=3, horizon=30)
    assert source.grouped
    batch = first(source)
    assert batch["observation"].shape == (2, 3, 30, 4)
    assert (batch["mask"][1, :, 20:] == 0).all()
    assert not torch.equal(batch["observation"][0, :, 0], batch["observation"][1, :, 0])
    _, state = engine_of(source)
    assert next(source.once(state, 100))["observation"].shape == (6, 30, 4)


def test_dtype_follows_the_learner():
    source = Rollouts(CartPole(), envs=3, horizon=30)
    _, state = engine_of(source, dtype=torch.float64)
    batch = next(source.batches(state))
    assert {n: v.dtype for n, v in batch.items() if n != "action"} == dict.fromkeys(
        ("observation", "reward", "mask", "advantage"), torch.float64
    )


def test_discrete_observations_are_one_hot():
    pytest.importorskip("gymnasium")
    source = Rollouts("FrozenLake-v1", envs=3, horizon=10)
    assert source.spec["observation"].shape == (16,)
    assert source.spec["action"].classes == 4
    batch = first(source)
    assert (batch["observation"].sum(-1) == 1).all()
    assert (batch["observation"][:, 0, 0] == 1).all()


@pytest.mark.parametrize("name", ["envs", "horizon"])
@pytest.mark.parametrize("value", [0, -3, 2.5])
def test_bad_numbers(name, value):
    with pytest.raises(ValueError, match=f"expected Rollouts' {name} to be an integer >= 1( or None)?, got {value}"):
        Rollouts(CartPole(), **{name: value})


def test_bad_environments():
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="expected the id of an installed gymnasium environment, got 'CartPool-v1'"):
        Rollouts("CartPool-v1")
    with pytest.raises(ValueError, match="expected an environment with finitely many actions"):
        Rollouts("Pendulum-v1", envs=2)
    with pytest.raises(ValueError, match="at least one environment"):
        Rollouts([])
    with pytest.raises(TypeError, match=r"a gymnasium id such as .*, got 3"):
        Rollouts(3)
    mdp = FiniteMDP(torch.ones(1, 2, 1), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="one kind of observation and action"):
        Rollouts([CartPole(), mdp])


@pytest.mark.parametrize("action", [Field((1,), torch.float32), Field((), torch.float32), Field((2,), torch.int64, 3)])
def test_actions_that_are_numbers_are_refused(action):
    world = CartPole()
    world.action = action
    with pytest.raises(ValueError, match=r"expected an environment with finitely many actions.*not served yet"):
        Rollouts(world, envs=4)
    with pytest.raises(ValueError, match="finitely many actions"):
        Rollouts([world, world], envs=4)


def test_a_box_of_gymnasium_is_refused():
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="finitely many actions"):
        Rollouts("Pendulum-v1", envs=4)
