import pytest
import torch
from tests.sources.grounds import Crediting, Walk, Whole, state_of

from weft import Learner
from weft.core.source import Field
from weft.data import CartPole, FiniteMDP
from weft.engine.replicas import fresh
from weft.objectives import REINFORCE, Classification
from weft.sources import Rollouts

KINDS = ["tensors", "gymnasium"]


def environment(kind):
    if kind == "gymnasium":
        pytest.importorskip("gymnasium")
        return "CartPole-v1"
    return CartPole()


def engine_of(source, seeds=(0,), dtype=torch.float32):
    return state_of(source, REINFORCE(hidden=(8,)), seeds, dtype)


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
    lengths = batch["mask"].sum(1).long()
    longest = int(lengths.max())  # 5 % of a fresh batch of 500 steps would be real
    shapes = {n: tuple(v.shape) for n, v in batch.items()}
    assert shapes == {
        "observation": (5, longest, 4),
        "next_observation": (5, longest, 4),
        **dict.fromkeys(("action", "reward", "mask", "terminated", "truncated", "advantage"), (5, longest)),
    }
    assert lengths.min() >= 8  # no CartPole falls sooner
    assert len(lengths.unique()) > 1
    for i, length in enumerate(lengths.tolist()):
        assert (batch["mask"][i, :length] == 1).all()
        assert (batch["mask"][i, length:] == 0).all()
        assert (batch["reward"][i] == batch["mask"][i]).all()
        assert (batch["advantage"][i, length:] == 0).all()
        assert (batch["observation"][i, length:] == batch["observation"][i, length - 1]).all()
        assert batch["terminated"][i].nonzero().tolist() == [[length - 1]]
        assert not batch["truncated"][i].any()
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
        length = few[name].shape[1]
        torch.testing.assert_close(few[name], many[name][:2, :length])
    assert not many["mask"][:2, length:].any()


def test_replicas_play_for_themselves():
    source = Rollouts(CartPole(), envs=3, horizon=30)
    engine, state = engine_of(source, (4, 5))
    both = next(engine.batches(source, state))
    for k, seed in enumerate((4, 5)):
        alone = first(source, seed)
        length = alone["mask"].shape[1]
        own = {n: v[k, :, :length] for n, v in both.items()}
        torch.testing.assert_close(own.pop("advantage"), alone.pop("advantage"))  # of sums as long as the longest
        assert_equal(own, alone)
        assert not both["mask"][k, :, length:].any()


def test_environments_are_groups():
    class Shorter(CartPole):
        horizon = 20

    source = Rollouts([CartPole(), Shorter()], envs=3, horizon=30)
    assert source.grouped
    batch = first(source)
    assert batch["observation"].shape == (2, 3, batch["mask"].shape[-1], 4)
    assert batch["mask"][0].sum(-1).max() == batch["mask"].shape[-1] > 20
    assert (batch["mask"][1, :, 20:] == 0).all()
    assert batch["mask"][1].any()
    assert not torch.equal(batch["observation"][0, :, 0], batch["observation"][1, :, 0])
    _, state = engine_of(source)
    assert next(source.once(state, 100))["observation"].shape[:1] == (6,)


def test_dtype_follows_the_learner():
    source = Rollouts(CartPole(), envs=3, horizon=30)
    _, state = engine_of(source, dtype=torch.float64)
    batch = next(source.batches(state))
    numbers = ("observation", "next_observation", "reward", "mask", "advantage")
    assert {n: batch[n].dtype for n in numbers} == dict.fromkeys(numbers, torch.float64)
    assert batch["terminated"].dtype == batch["truncated"].dtype == torch.bool


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
    with pytest.raises(ValueError, match=r"expected .* got 'CartPool-v1'.*CartPole-v1"):
        Rollouts("CartPool-v1")
    with pytest.raises(ValueError, match="at least one world"):
        Rollouts([])
    with pytest.raises(TypeError, match=r"a gymnasium id such as .*, got 3"):
        Rollouts(3)
    mdp = FiniteMDP(torch.ones(1, 2, 1), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="one kind of observation and action"):
        Rollouts([CartPole(), mdp])


def test_steps_are_weighted_by_the_mask():
    """An objective that learns from single steps."""
    source = Rollouts(Walk(), envs=5)
    engine, state = state_of(source, Crediting())
    batch = next(engine.batches(source, state))
    rows = len(batch["reward"])
    assert rows % 5 == 0
    assert torch.equal(batch["weight"], batch["mask"])
    assert 0 < batch["weight"].sum() < rows
    by_episode = {n: v.unflatten(0, (5, rows // 5)) for n, v in batch.items()}
    following = by_episode["reward"].flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(by_episode["following"], following)


def test_what_is_told_is_of_the_last_batch_and_steps_add_up():
    source = Rollouts(Walk(), envs=6)
    engine, state = state_of(source, Whole())
    stream, steps = engine.batches(source, state), 0
    for _ in range(3):
        batch = next(stream)
        steps += batch["mask"].sum().item()
        told = source.report(state)
        assert told["env_steps"].item() == steps
        assert told["return"].item() == pytest.approx(batch["reward"].sum(1).mean().item(), abs=1e-6)
        assert told["length"].item() == pytest.approx(batch["mask"].sum(1).mean().item())
        state.step += 1


def test_a_source_that_looks_is_judged_by_fresh_episodes():
    source = Rollouts(Walk(), envs=50)
    _, state = state_of(source, Whole(), (0, 1))
    state.source = fresh(source, state).source
    told = source.judge(state)
    assert set(told) == {"return", "length"}
    assert told["return"].shape == (2,)
    assert told["return"][0] != told["return"][1]
    batch = next(source.once(state, 50))
    torch.testing.assert_close(told["length"], batch["mask"].sum(-1).mean(-1).double())


def test_steps_of_worlds_are_counted_as_episodes_end():
    assert Rollouts(Walk(), envs=2).updates(100, REINFORCE()) is None  # nobody knows how long episodes are
    told = Learner(REINFORCE(), env_steps=100, every=1, random_state=0).fit(Rollouts(Walk(), envs=2)).history_
    assert told["env_steps"][-1] >= 100 > told["env_steps"][-2]
    with pytest.raises(ValueError, match=r"expected one of epochs, steps and env_steps, got steps=3 and env_steps=100"):
        Learner(REINFORCE(), steps=3, env_steps=100).fit(Rollouts(Walk(), envs=2))
    with pytest.raises(ValueError, match=r"which does not act, got env_steps=100"):
        Learner(Classification(), env_steps=100).fit([[0.0], [1.0]], [0, 1])
