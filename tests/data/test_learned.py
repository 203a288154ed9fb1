"""`Learned`: a trained model of the dynamics is a world, and a policy that has learned in it acts in the true one."""

import math

import numpy as np
import pytest
import torch

from weft import Classifier, Learner
from weft.core.random import fold, gauss, key_of
from weft.core.source import Field
from weft.data import CartPole, Learned, Pendulum
from weft.objectives import REINFORCE, Dynamics, LeastSquares, Regression
from weft.sources import Demonstrations, Rollouts
from weft.testing import check_world

PUSH = Field((2,), torch.float32, low=(-1.0, -1.0), high=(1.0, 1.0))
A = torch.tensor([[0.9, 0.2], [-0.1, 0.8]])
B = torch.tensor([[0.5, 0.0], [0.1, 1.0]])


def following(place, push):
    return place @ A.T + push @ B.T


def steps(n=200, noise=0.0, seed=0):
    place, push, off = (gauss(fold(key_of(seed), name), (n, 2)) for name in ("place", "push", "noise"))
    after = following(place, push) + noise * off
    return place, push, after, 3.0 * after[:, 0] - push[:, 1]


@pytest.fixture(scope="module")
def linear():
    place, push, after, reward = steps()
    return Learner(LeastSquares(), random_state=0).fit(*Learned.rows(PUSH, place, push, after, reward))


def made(learner, **further):
    return Learned(learner, **{"action": PUSH, "start": torch.ones(3, 2), "horizon": 30, **further})


def keys(n, name="here"):
    return fold(key_of(0), name, torch.arange(n))


def test_a_linear_system_is_played_as_the_true_one(linear):
    world = made(linear, start=gauss(key_of(1), (5, 2)))
    check_world(world, steps=20)
    place, _ = world.reset(keys(6))
    true = place.clone()
    for t in range(20):
        push = gauss(fold(keys(6), t), (2,)).clamp(-1, 1)
        place, seen, reward, ended = world.step(place, push, keys(6, f"step {t}"))
        true = following(true, push)
        torch.testing.assert_close(seen, true, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(reward, 3.0 * true[:, 0] - push[:, 1], rtol=1e-3, atol=1e-3)
        assert not ended.any()


def test_reward_and_end_may_be_told(linear):
    place, push, after, _ = steps()
    bare = Learner(LeastSquares(), random_state=0).fit(*Learned.rows(PUSH, place, push, after))
    told = []

    def reward(before, push, after):
        told.append((before, push, after))
        return push[:, 0]

    world = made(bare, reward=reward, terminated=lambda before, push, after: after[:, 0] > 1.2)
    check_world(world)
    here, _ = world.reset(keys(2))
    pushes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    there, _, gained, ended = world.step(here, pushes, keys(2))
    torch.testing.assert_close(there, following(torch.ones(2, 2), pushes), rtol=1e-3, atol=1e-4)
    assert gained.tolist() == [1.0, -1.0]
    assert ended.tolist() == [True, False]
    before, push, after = told[-1]
    assert torch.equal(before, here)
    assert torch.equal(push, pushes)
    assert torch.equal(after, there)


def test_it_begins_at_the_starts_evenly(linear):
    start = torch.arange(8.0).reshape(4, 2)
    world = made(linear, start=start)
    first = world.reset(keys(4000))[0]
    counts = (first.unsqueeze(1) == start).all(-1).sum(0)
    assert counts.sum() == 4000
    assert ((counts - 1000).abs() < 4 * math.sqrt(4000 * 3 / 16)).all()


def test_finitely_many_actions_have_an_entry_each():
    turn = Field((), torch.int64, classes=3)
    place = gauss(key_of(0), (90, 1))
    turned = torch.arange(90) % 3
    moved = torch.tensor([-1.0, 0.5, 0.0])[turned].unsqueeze(-1)  # no line through 0, 1, 2
    x, y = Learned.rows(turn, place, turned, place + moved)
    assert x.shape == (90, 4)
    learner = Learner(LeastSquares(), random_state=0).fit(x, y)
    world = Learned(
        learner, action=turn, start=torch.zeros(1, 1), horizon=9, reward=lambda before, action, after: after[:, 0]
    )
    check_world(world)
    place, _ = world.reset(keys(3))
    torch.testing.assert_close(
        world.step(place, torch.arange(3), keys(3))[2], torch.tensor([-1.0, 0.5, 0.0]), rtol=0, atol=1e-4
    )


def test_draws_are_of_the_law_that_the_model_predicts():
    place, push, after, reward = steps(4000, noise=0.3)
    rows = Learned.rows(PUSH, place, push, after, reward)
    learner = Learner(LeastSquares(), random_state=0).fit(*rows)
    drawn, mean = made(learner, draws=True), made(learner)
    check_world(drawn)
    n = 20_000
    here, push = torch.zeros(n, 2), torch.zeros(n, 2)
    there, _, _, _ = drawn.step(here, push, keys(n))
    centre = mean.step(here, push, keys(n))[0]
    off = there - centre  # LeastSquares is Normal(mean, 1)
    assert off.mean(0).abs().max() < 4 / math.sqrt(n)
    assert (off.std(0) - 1.0).abs().max() < 4 / math.sqrt(2 * n)
    assert abs(np.corrcoef(off.T)[0, 1]) < 4 / math.sqrt(n)
    again = drawn.step(here, push, keys(n, "elsewhere"))[0]
    assert (again != there).all()


def test_a_spread_that_was_learned_is_drawn():
    place, push, after, _ = steps(2000, noise=0.3)
    gaussian = Regression("linear", loss="gaussian")
    learner = Learner(gaussian, optimizer="adam", epochs=40, random_state=0)
    learner.set_params(optimizer__lr=0.02).fit(*Learned.rows(PUSH, place, push, after))
    world = made(learner, draws=True, reward=lambda before, push, after: push[:, 0])
    check_world(world)
    off = world.step(torch.zeros(5000, 2), torch.zeros(5000, 2), keys(5000))[0]
    assert (off.std(0) - 0.3).abs().max() < 0.05


def test_what_the_learner_learns_later_changes_nothing(linear):
    place, push, after, reward = steps()
    rows = Learned.rows(PUSH, place, push, after, reward)
    learner = Learner(Regression("linear"), optimizer="sgd", steps=5, warm_start=True, random_state=0).fit(*rows)
    world, asked_later = made(learner), made(learner)
    before = world.step(torch.ones(2, 2), torch.ones(2, 2), keys(2))
    learner.fit(*rows)
    assert (made(learner).step(torch.ones(2, 2), torch.ones(2, 2), keys(2))[0] != before[0]).all()
    for each in (world, asked_later):
        for now, then in zip(each.step(torch.ones(2, 2), torch.ones(2, 2), keys(2)), before, strict=True):
            assert torch.equal(now, then)


def test_a_policy_that_has_learned_in_it_balances_in_the_true_world():
    true = CartPole()
    share = torch.rand(3000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    place = (share - 0.5) * torch.tensor([4.8, 4.0, 0.42, 4.0])
    push = torch.arange(3000) % 2
    _, after, _, _ = true.step(place, push)
    model = Learner(LeastSquares(), random_state=0).fit(*Learned.rows(true.action, place.float(), push, after))
    dream = Learned(
        model,
        action=true.action,
        start=0.1 * (share[:50] - 0.5),
        horizon=200,
        reward=lambda before, action, after: torch.ones(len(after)),
        terminated=lambda before, action, after: (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.2094),
    )
    check_world(dream)
    learner = Learner(REINFORCE(hidden=(16,)), steps=45, replicas=2, random_state=0).fit(Rollouts(dream, envs=8))
    found = learner.evaluate(true, 20, horizon=200)
    assert (found.means > 120).all(), found.means  # evenly drawn pushes last about 22
    for k in range(2):
        alone = learner.replica(k).evaluate(dream, 4)
        np.testing.assert_array_equal(alone.returns, learner.evaluate(dream, 4).returns[k])


# --- what it refuses ------------------------------------------------------------------------------------


def test_bad_models_and_starts_speak(linear):
    place, push, after, reward = steps(20)
    three = Learner(LeastSquares(), replicas=3, random_state=0).fit(*Learned.rows(PUSH, place, push, after, reward))
    bound = Learner(Regression("linear", loss="huber"), steps=1).fit(*Learned.rows(PUSH, place, push, after, reward))
    kinds = Classifier(epochs=1).fit(torch.cat([place, push], 1), np.arange(20) % 2)
    whole = Field((2,), torch.int64, choices=(2, 2))
    cases = [
        (lambda: made(Learner(LeastSquares())), Exception, "not fitted"),
        (lambda: made("model"), TypeError, "expected a trained learner, got 'model'"),
        (lambda: made(three), ValueError, "got None; module"),
        (lambda: made(kinds), TypeError, "expected a model that predicts values, .* got Classification"),
        (
            lambda: made(linear, start=torch.ones(3, 3)),
            ValueError,
            r"x of width 5, which is observation and action",
        ),
        (
            lambda: made(linear, reward=lambda *told: told[0][:, 0]),
            ValueError,
            r"y of width 2, which is the observation's change alone, got rows of shape \(3,\)",
        ),
        (lambda: made(linear, start=torch.ones(2)), ValueError, "expected start with a row for each"),
        (lambda: made(linear, start=torch.full((1, 2), math.nan)), ValueError, "at least one finite observation"),
        (lambda: made(linear, start=torch.ones(0, 2)), ValueError, "which is empty"),
        (lambda: made(linear, horizon=0), ValueError, "Learned's horizon to be an integer >= 1"),
        (lambda: made(linear, horizon=None), TypeError, "Learned's horizon to be an integer >= 1"),
        (lambda: made(linear, draws=1), TypeError, "Learned's draws to be True or False"),
        (lambda: made(bound, draws=True), TypeError, "provides a 'distribution' to draw from, got Regression"),
        (lambda: made(linear, action=whole), ValueError, "one of finitely many .*, or numbers"),
        (
            lambda: Learned.rows(PUSH, place, push[:3], after),
            ValueError,
            "expected taken of each of the 20 steps, got 3",
        ),
        (lambda: Learned.rows(PUSH, place, push, after[:, :1]), ValueError, r"observed, \(20, 2\), .*got \(20, 1\)"),
        (lambda: Learned.rows(PUSH, place.long(), push, after.long()), ValueError, "both of real numbers"),
    ]
    for make, error, said in cases:
        with pytest.raises(error, match=said):
            make()


def test_a_law_without_an_inverse_is_refused():
    place, push, after, _ = steps(20)
    x, y = Learned.rows(PUSH, place, push, after)

    class Wide(Regression):
        def distribution(self, output):
            return torch.distributions.StudentT(3.0, output.logits)

    learner = Learner(Wide("linear"), steps=1, random_state=0).fit(x, y)
    world = made(learner, draws=True, reward=lambda before, push, after: push[:, 0])
    with pytest.raises(TypeError, match=r"inverse distribution function to draw from, .* got StudentT"):
        world.step(torch.ones(2, 2), torch.ones(2, 2), keys(2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("draws", [False, True])
def test_on_a_gpu_it_is_the_same(linear, draws):
    world = made(linear, draws=draws)
    here, there = (world.reset(keys(4).to(device))[0] for device in ("cpu", "cuda"))
    for t in range(5):
        own = keys(4, f"step {t}")
        here, _, gain, _ = world.step(here, torch.ones(4, 2), own)
        there, _, same, _ = world.step(there, torch.ones(4, 2).cuda(), own.cuda())
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(same.cpu(), gain, rtol=1e-4, atol=1e-5)


def test_a_model_of_dynamics_knows_its_actions_and_ends():
    def pushed(seen):
        return torch.sin(17 * seen[:, :1])

    steps = Demonstrations(Pendulum(), pushed, episodes=2, stray=0.5)
    model = Learner(Dynamics(), steps=30, random_state=0).fit(steps)
    world = Learned(model, start=torch.tensor([[1.0, 0.0, 0.0]]), horizon=5)
    assert (world.action, world.observation.shape) == (Pendulum().action, (3,))
    keys = fold(key_of(0), torch.arange(4))
    position, seen = world.reset(keys)
    after, observed, reward, ended = world.step(position, torch.full((4, 1), 0.5), keys)
    told = model.imagine(seen.numpy(), action=np.full((4, 1), 0.5, np.float32))
    assert torch.equal(after, observed)
    np.testing.assert_allclose(observed, told["observation"], rtol=1e-6)
    np.testing.assert_allclose(reward, told["reward"], rtol=1e-6)
    assert ended.tolist() == (told["terminated"] > 0.5).tolist()
    check_world(world)
    with pytest.raises(ValueError, match="start with observations of shape \\(3,\\)"):
        Learned(model, start=torch.zeros(1, 2), horizon=5)
    with pytest.raises(ValueError, match="the actions that the model was trained on"):
        Learned(model, action=Field((), torch.int64, classes=2), start=torch.zeros(1, 3), horizon=5)
    with pytest.raises(ValueError, match="let it draw itself"):
        Learned(model, start=torch.zeros(1, 3), horizon=5, draws=True)
