"""Policies with a memory: what is recalled in an update is what was remembered in play, and a maze that asks for it."""

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.data import CartPole, TMaze
from weft.objectives import A2C, PPO
from weft.objectives.control.advantage import generalized_advantage
from weft.sources import Rollouts, Segments

KINDS = ("rnn", "gru", "lstm")


def maze():
    return TMaze(length=1, horizon=4)  # so that stretches hold both ends and cuts


def fitted(objective, *, steps=2, envs=4, length=12, world=maze, **settings):
    source = Segments(world(), envs=envs, length=length, **settings.pop("source", {}))
    learner = Learner(objective, steps=steps, dtype="float64", every=1, **{"random_state": 0, **settings})
    return learner.fit(source)


def at_rest(objective):
    """A trained objective and a segment that it has played as it is: its rate is 0."""
    learner = fitted(objective, optimizer=Optimizer("sgd", lr=0.0), steps=3)
    return learner.module(), learner.training_.runs[0].state.source["segment"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [A2C, PPO])
def test_what_is_recalled_is_what_was_remembered(make, kind):
    objective, batch = at_rest(make(memory=kind, hidden=(6, 5)))
    over = batch["terminated"] | batch["truncated"]
    assert batch["terminated"].any()
    assert batch["truncated"].any()
    assert not over[:, -1].all()
    names = [name for name in batch if name.startswith("memory_")]
    assert len(names) == (2 if kind == "lstm" else 1)
    before = {}
    for t in range(over.shape[1]):
        memory = {name.removeprefix("memory_"): batch[name][:, t] for name in names}
        with torch.no_grad():
            seen, after = objective._recalled(batch["observation"][:, t], memory)
            torch.testing.assert_close(objective.told(seen), batch["told"][:, t])
        for name, value in before.items():  # it goes on, and forgets where an episode has ended
            torch.testing.assert_close(memory[name], torch.where(over[:, t - 1, None], 0.0, value))
        before = after


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_that_was_reached_is_judged_by_what_is_remembered_there(kind):
    objective, batch = at_rest(A2C(memory=kind, hidden=(6,), trace=0.7, discount=0.9))
    names = [name for name in batch if name.startswith("memory_")]
    values, then = [], []
    with torch.no_grad():
        for t in range(batch["reward"].shape[1]):
            memory = {name.removeprefix("memory_"): batch[name][:, t] for name in names}
            values.append(objective.value(batch["observation"][:, t], memory=memory))
            _, memory = objective._recalled(batch["observation"][:, t], memory)
            then.append(objective.value(batch["next_observation"][:, t], memory=memory))
    value, then = torch.stack(values, 1), torch.stack(then, 1)
    ended = batch["terminated"]
    step = {"terminated": ended, "over": ended | batch["truncated"], "discount": 0.9, "trace": 0.7}
    advantage = generalized_advantage(batch["reward"], value, then, **step)
    torch.testing.assert_close(batch["advantage"], advantage)
    torch.testing.assert_close(batch["goal"], advantage + value)


def test_the_mutant_that_does_not_forget_is_another():
    class Clinging(A2C):
        def features(self, batch, *, after):
            never = torch.zeros_like(batch["terminated"])
            return super().features({**batch, "terminated": never, "truncated": never}, after=after)

    objective, batch = at_rest(Clinging(memory="gru", hidden=(6,)))
    honest = at_rest(A2C(memory="gru", hidden=(6,)))[0]
    honest.load_state_dict(objective.state_dict())
    with torch.no_grad():
        assert (objective.credit(batch)["told"] - honest.credit(batch)["told"]).abs().max() > 1e-6


def test_the_loss_of_a_stretch_stands_by_itself_and_looks_back_through_time():
    objective, batch = at_rest(A2C(memory="lstm", hidden=(6,)))
    whole = objective(batch).losses
    assert whole.shape == (4,)
    each = torch.cat([objective({n: v[i : i + 1] for n, v in batch.items()}).losses for i in range(4)])
    torch.testing.assert_close(whole, each)
    seen = batch["observation"].clone().requires_grad_()
    told = objective.parts({**batch, "observation": seen})["told"]
    over = batch["terminated"] | batch["truncated"]
    for t in (3, 7, 11):
        slope = torch.autograd.grad(told[:, t].square().sum(), seen, retain_graph=True)[0].abs().sum(-1) > 0
        for i in range(4):
            ends = over[i, :t].nonzero().flatten().tolist()
            since = ends[-1] + 1 if ends else 0
            assert slope[i, since : t + 1].all()  # back to where the episode began
            assert not slope[i, :since].any()
            assert not slope[i, t + 1 :].any()  # the mutant that sees the future


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [A2C, PPO])
def test_a_replica_is_the_single_run(make, kind):
    several = {"passes": 2, "batch_size": 2} if make is PPO else {}
    settings = {"steps": 5, "source": several}
    both = fitted(make(memory=kind, hidden=(5, 4)), replicas=2, **settings, random_state=3)
    for k in range(2):
        alone = fitted(make(memory=kind, hidden=(5, 4)), **settings, random_state=3 + k)
        for name, value in alone.training_.runs[0].state.params.items():
            torch.testing.assert_close(both.replica(k).training_.runs[0].state.params[name], value)
        np.testing.assert_allclose(both.history_["loss"][:, k], alone.history_["loss"], rtol=1e-8)


def test_evaluation_remembers():
    learner = fitted(PPO(memory="gru", hidden=(5,)))
    assert np.isfinite(learner.evaluate(maze(), episodes=5).returns).all()


def test_what_cannot_be():
    with pytest.raises(ValueError, match="expected a hidden width for PPO's memory"):
        Learner(PPO(memory="gru", hidden=()), steps=1).fit(Segments(CartPole(), envs=2, length=4))
    with pytest.raises(ValueError, match="expected PPO's memory to be"):
        Learner(PPO(memory="gro"), steps=1).fit(Segments(CartPole(), envs=2, length=4))
    with pytest.raises(ValueError, match="a batch_size that divides the 3 stretches of a segment"):
        Learner(PPO(memory="gru"), steps=1).fit(Segments(CartPole(), envs=3, length=4, batch_size=2))
    learner = fitted(A2C(memory="gru", hidden=(5,)))
    with pytest.raises(ValueError, match="expected what A2C remembers beside what it observes"):
        learner.act([[0.0, 1.0, 1.0]])


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/segments.py")
def test_a_maze_is_learned_by_memory_and_not_without():
    returns = {}
    for memory in ("lstm", None):
        objective = PPO(memory=memory, hidden=(32, 32), entropy_weight=0.02, discount=0.95)
        size = {"batch_size": 16 if memory else 512}
        source = objective.plays(TMaze(length=5, horizon=30), envs=32, length=32, passes=4, **size)
        learner = Learner(objective, optimizer=Optimizer("adam", lr=5e-3), clip=0.5, env_steps=60_000, random_state=0)
        learner.fit(source)
        fresh = Rollouts(TMaze(length=5, horizon=30), envs=64)
        batch = next(fresh.once(learner.training_.runs[0].state, 64 * 30))
        returns[memory] = (batch["reward"] * batch["mask"]).sum().item() / 64
    assert returns["lstm"] > 3.8
    assert returns[None] < 2.6  # 1.95 on average, by turning at random
