"""A world in place of rows: `fit(world)`, `validation=world`, and steps of worlds as the length of a training."""

import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from tests.objectives.third_party.dqn import DQN
from tests.objectives.third_party.ppo import PPO

from weft import Classifier, Learner, Optimizer, load, objectives
from weft.core.random import keyed
from weft.data import CartPole, Catch, FiniteMDP, FrozenLake
from weft.engine.build import build
from weft.learner.worlds import as_world, is_world, played
from weft.objectives import REINFORCE, Classification
from weft.sources import Replay, Rollouts, Segments
from weft.strategies import ANDMask


def vector(count):
    mode = gymnasium.vector.AutoresetMode.DISABLED
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count, autoreset_mode=mode)


def quick(objective=None, **settings):
    return Learner(objective or REINFORCE(hidden=(8,)), **{"random_state": 0, "steps": 2, **settings})


def same(one, other):
    assert list(one.history_[0]) == list(other.history_[0])
    for name in set(one.history_[0]) - {"seconds"}:
        np.testing.assert_array_equal(one.history_[name], other.history_[name])


# --- fit(world) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "source"),
    [
        (CartPole, lambda: Rollouts(CartPole(), envs=16)),
        (lambda: "cart-pole", lambda: Rollouts(CartPole(), envs=16)),
        (lambda: "CartPole-v1", lambda: Rollouts("CartPole-v1", envs=16)),
        (lambda: lambda: gymnasium.make("CartPole-v1"), lambda: Rollouts("CartPole-v1", envs=16)),
        (lambda: gymnasium.make("CartPole-v1"), lambda: Rollouts(gymnasium.make("CartPole-v1"), envs=1)),
        (lambda: vector(3), lambda: Rollouts("CartPole-v1", envs=3)),
        (lambda: [CartPole(), "cart-pole"], lambda: Rollouts([CartPole(), CartPole()], envs=16)),
    ],
    ids=["tensors", "name", "id", "factory", "environment", "vector", "list"],
)
def test_a_world_is_played_as_the_objective_plays(world, source):
    same(quick().fit(world()), quick().fit(source()))


def test_each_objective_has_a_source_of_its_own():
    kinds = {REINFORCE: Rollouts, PPO: Segments, DQN: Replay}
    for objective, kind in kinds.items():
        assert type(objective().plays("CartPole-v1")) is kind
    ppo = PPO(hidden=(8,))
    same(
        quick(ppo, env_steps=256, steps=None).fit(CartPole()), quick(ppo, steps=20, every=1).fit(ppo.plays(CartPole()))
    )


def test_names_are_those_of_weft_list_worlds():
    assert type(as_world("frozen-lake(slip=0.0)")) is FrozenLake
    assert as_world("catch(rows=5, columns=3)").observation.shape == (1, 5, 3)
    assert as_world("ALE/Pong-v5") == "ALE/Pong-v5"
    same(quick().fit("catch(rows=5)"), quick().fit(Catch(rows=5)))


def test_worlds_in_a_list_are_groups():
    learner = quick(strategy=ANDMask(threshold=1.0)).fit([CartPole(), CartPole()])
    assert learner.n_steps_ == 2
    with pytest.raises(
        ValueError, match=r"ANDMask.* compares environments, got Rollouts without any; give a list of worl"
    ):
        quick(strategy=ANDMask(threshold=1.0)).fit(CartPole())


def test_worlds_are_tasks():
    learner = quick().fit("cart-pole", task="first").partial_fit(CartPole(), task="second")
    assert learner.tasks_ == ["first", "second"]


def test_a_run_goes_on_in_its_world(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    whole = quick(steps=4, every=1).fit("cart-pole")

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] == 2:
            raise StopError

    with pytest.raises(StopError):
        quick(steps=4, every=1, folder=tmp_path / "run", callbacks=[stop]).fit("cart-pole")
    same(load(tmp_path / "run").resume(CartPole()), whole)


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        (lambda m: m.fit("CartPol-v1"), ValueError, "got 'CartPol-v1'; did you mean 'CartPole-v1'"),
        (
            lambda m: m.fit("CartPole"),
            ValueError,
            "one of weft's own worlds among .*got 'CartPole'; did you mean 'cart-pole'",
        ),
        (
            lambda m: m.fit("catch(rws=3)"),
            ValueError,
            "a setting of catch among columns, rows, got 'rws'; did you mean 'rows'",
        ),
        (lambda m: m.fit(CartPole), TypeError, r"expected a world, got the class CartPole; make one: CartPole\(\)"),
        (
            lambda m: m.fit("runs/data.csv"),
            ValueError,
            "a world that REINFORCE learns in .* got the path 'runs/data.csv'",
        ),
        (lambda m: m.fit("pyproject.toml"), ValueError, "got the path 'pyproject.toml'"),
        (lambda m: m.fit([[0.0]], [0]), TypeError, r"a world that REINFORCE learns in by acting.*got \[\[0.0\]\]"),
        (lambda m: m.fit([]), TypeError, r"a world that REINFORCE learns in by acting.*got \[\]"),
        (lambda m: m.fit("0.2"), TypeError, "a world that REINFORCE learns in by acting.*got '0.2'"),
        (lambda m: m.fit(None), TypeError, "a world that REINFORCE learns in by acting.*got None"),
        (
            lambda m: m.fit("CartPole-v1", envs=16),
            TypeError,
            r"nothing beside 'CartPole-v1', got envs.* fit\(REINFORCE\(...\).plays\('CartPole-v1', envs=16\)\)",
        ),
        (lambda m: m.fit(CartPole(), [0]), TypeError, "nothing beside CartPole, got y"),
        (lambda m: m.partial_fit(CartPole(), [0]), TypeError, "nothing beside CartPole, got y"),
        (
            lambda m: m.fit([CartPole(), CartPole()], environment=[0, 1]),
            TypeError,
            r"got environment; .* give a list of worlds, fit\(\[world_a, world_b\]\)",
        ),
        (
            lambda m: m.set_params(objective=objectives.DQN()).fit("Pendulum-v1"),
            ValueError,
            "expected finitely many actions for DQN",
        ),
        (
            lambda m: m.set_params(validation=0.2).fit(CartPole()),
            ValueError,
            "validation to be a source.*got 0.2; pass a world to play in",
        ),
        (
            lambda m: m.set_params(validation="catch").fit(CartPole()),
            ValueError,
            "validation with 'observation' of shape",
        ),
        (lambda m: m.set_params(validation="cart-pool").fit(CartPole()), ValueError, "did you mean 'cart-pole'"),
    ],
)
def test_what_is_no_world_is_refused(fit, error, message):
    with pytest.raises(error, match=message):
        fit(quick())


def test_who_does_not_act_says_what_plays():
    for world in (CartPole(), "CartPole-v1", "cart-pole", gymnasium.make("CartPole-v1"), [CartPole()]):
        with pytest.raises(TypeError, match="Classification, which does not define plays"):
            Classifier().fit(world, [0])
    with pytest.raises(TypeError, match=r"got the path 'data.csv'; read the file first.*weft fit data.csv --target"):
        Classifier().fit("data.csv", [0])
    rows = ["a", "b"]
    assert not is_world(rows)
    assert not is_world(np.zeros((3, 2)), acts=True)
    assert played(Classification(), given := _columns(rows)) is given


def _columns(X):
    from weft.learner.columns import Columns

    return Columns(X)


# --- validation in a world ----------------------------------------------------------------------------


def test_a_world_validates_by_fresh_greedy_episodes():
    one = quick(validation=CartPole()).fit(CartPole())
    same(one, quick(validation=Rollouts(CartPole(), envs=10, greedy=True)).fit(CartPole()))
    same(one, quick(validation="cart-pole").fit(CartPole()))
    assert "valid_return" in quick(validation="CartPole-v1").fit(CartPole()).history_[-1]
    assert np.isfinite(
        Classifier(steps=3, epochs=None, validation="cart-pole").fit(*cloned()).history_["valid_return"]
    ).all()


def cloned():
    X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    return X, (X @ [0.1, 0.3, 1.0, 0.5] > 0).astype(int)


def remembered(seen):
    def callback(record, learner):
        seen.append({name: value.clone() for name, value in learner.training_.runs[0].state.params.items()})

    return callback


def bandit(*pays):
    return FiniteMDP(torch.ones(1, 2, 1), torch.tensor([pays]), horizon=1)


@pytest.mark.parametrize("replicas", [None, 4])
def test_the_best_by_evaluation_is_put_back(replicas):
    seen = []
    learner = quick(
        steps=12,
        every=1,
        random_state=1,
        validation=bandit(1.0, 0.0),  # where what is learned is worth nothing
        replicas=replicas,
        callbacks=[remembered(seen)],
        optimizer=Optimizer("adam", lr=0.02),
    ).fit(bandit(0.0, 1.0))
    returns = learner.history_["valid_return"].reshape(len(seen), -1)
    best = returns.argmax(0)  # the first of them, where several are as good
    kept = learner.training_.runs[0].state.params
    for k, at in enumerate(best):
        for name, value in kept.items():
            own = slice(None) if replicas is None else k
            assert torch.equal(value[own], seen[at][name][own]), (k, name)
    assert all("completed 12 steps" in why for why in np.atleast_1d(learner.stop_reason_))
    assert set(returns[-1]) == {0.0}
    assert returns.max() == 1.0


def test_without_evaluation_the_last_stays():
    seen = []
    learner = quick(steps=6, every=1, callbacks=[remembered(seen)]).fit(CartPole())
    assert all(torch.equal(value, seen[-1][n]) for n, value in learner.training_.runs[0].state.params.items())


# --- steps of worlds ----------------------------------------------------------------------------------


def test_whole_episodes_are_played_until_the_steps_are_made():
    learner = quick(steps=None, env_steps=1000, replicas=2).fit(CartPole())
    played = learner.history_["env_steps"]
    for k in range(2):
        own = played[np.isfinite(played[:, k]), k]
        assert own[-1] >= 1000 > own[-2]
        assert learner.stop_reason_[k].startswith("played 1000 steps of its worlds, at step")
        one = Learner(REINFORCE(hidden=(8,)), env_steps=1000, random_state=k).fit(CartPole())
        assert one.history_["env_steps"][-1] == own[-1]
        shorter = learner.replica(k).training_.runs[0].state.params
        for name, value in one.training_.runs[0].state.params.items():
            torch.testing.assert_close(value, shorter[name], atol=1e-5, rtol=1e-4)
    few = Learner(REINFORCE(hidden=(8,)), env_steps=1500, random_state=0).fit(REINFORCE().plays(CartPole(), envs=1))
    assert 30 < len(few.history_) <= 51 < few.n_steps_  # a record for each fiftieth


def test_steps_of_gymnasiums_worlds_go_on_counting(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    class StopError(Exception):
        pass

    def stop(record):
        if record["env_steps"] > 800:
            raise StopError

    with pytest.raises(StopError):
        quick(steps=None, env_steps=1600, folder=tmp_path / "run", callbacks=[stop]).fit("CartPole-v1")
    with pytest.warns(UserWarning, match="begins anew at step"):
        learner = load(tmp_path / "run").resume("CartPole-v1")
    counted = learner.history_["env_steps"]
    assert (np.diff(counted) > 0).all()
    assert 1600 <= counted[-1] < 3000


def test_a_rate_by_the_share_of_unknown_updates_is_refused():
    with pytest.raises(ValueError, match=r"expected steps=.*beside schedule='linear'.*env_steps=100 are for Rollouts"):
        quick(steps=None, env_steps=100, schedule="linear").fit(CartPole())


# --- what is told -------------------------------------------------------------------------------------


def test_a_record_measures_the_whole_segment(tmp_path):
    source = Segments(CartPole(), envs=4, length=32, passes=2, batch_size=16)
    learner = Learner(PPO(hidden=(8,)), steps=20, every=7, random_state=0, dtype="float64").fit(source)
    state = learner.training_.runs[0].state
    segment, objective = state.source["segment"], build(PPO(hidden=(8,)), source.spec, 0, torch.float64)
    objective.load_state_dict(state.params)
    assert len(segment["reward"]) == 4 * 32
    with keyed(torch.tensor(0), torch.arange(128)), torch.no_grad():
        logits = objective.policy(segment["observation"]).log_softmax(-1)
        value = objective.critic(segment["observation"]).squeeze(-1)
    told = learner.history_[-1]
    assert told["entropy"] == pytest.approx(-(logits.exp() * logits).sum(-1).mean().item(), abs=1e-9)
    ratio = logits.gather(-1, segment["action"].unsqueeze(-1)).squeeze(-1) - segment["played"]
    assert told["kl"] == pytest.approx((ratio.exp() - 1 - ratio).mean().item(), abs=1e-9)
    left = (segment["goal"] - value).var(correction=0) / segment["goal"].var(correction=0)
    assert told["explained_variance"] == pytest.approx(1 - left.item(), abs=1e-9)
    both = Learner(PPO(hidden=(8,)), steps=20, every=7, random_state=0, dtype="float64", replicas=2).fit(source)
    for name in ("entropy", "kl", "explained_variance", "return", "length", "env_steps"):
        np.testing.assert_allclose(both.history_[name][:, 0], learner.history_[name], atol=1e-8)


class Silent(CartPole):
    """Pays nothing."""

    def step(self, state, action, keys=None):
        state, observation, reward, over = super().step(state, action, keys)
        return state, observation, 0.0 * reward, over


class Fair(CartPole):
    """Pays 1 and takes 1 by turns, so that returns are zero and rewards are not."""

    def step(self, state, action, keys=None):
        state, observation, reward, over = super().step(state, action, keys)
        return state, observation, reward * (2.0 * action - 1.0), over


@pytest.mark.parametrize("objective", [REINFORCE(hidden=(8,)), PPO(hidden=(8,)), DQN(hidden=(8,))], ids=str)
def test_rewards_that_are_all_zero_are_told(objective):
    message = r"expected rewards to learn from, got zero at all steps, [\d,]+ in Silent: nothing can be learned"
    with pytest.warns(UserWarning, match=message) as told:
        quick(objective).fit(Silent())
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"got zero at all steps, .* in Silent"):
        quick(objective, replicas=2).fit(Silent())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(objective).fit(Fair())
        quick(objective, steps=0).fit(Silent())  # nothing was played
        if not isinstance(objective, DQN):  # whose memory is one
            quick(objective).fit([Silent(), CartPole()])


def test_rewards_do_not_matter_to_who_does_not_read_them():
    from weft.sources import DAgger

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = DAgger(Silent(), lambda seen: (seen[:, 2] > 0).long(), envs=2, length=8, updates_each=2)
        Learner(Classification(hidden=(4,)), steps=2, random_state=0).fit(source)


def test_progress_is_told_with_what_the_objective_measures(capsys):
    quick(PPO(hidden=(8,)), verbose=True, steps=20, every=10).fit(CartPole())
    line = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert re.search(r"return [\d.]+, 256 env_steps, entropy [\d.]+, kl [-\d.e]+, explained", line)
