"""Models of a world: what they learn of it, plans made in them, and steps imagined beside those that were taken."""

import numpy as np
import pytest
import torch
from tests.objectives.third_party.dqn import DQN
from torch.nn.functional import one_hot

from weft import Learner, Optimizer, load
from weft.core import Field
from weft.core.random import fold, key_of, keyed, unit
from weft.engine.build import build
from weft.learner import folder as folders
from weft.objectives import MPC, REINFORCE, Dyna, Dynamics, Regression
from weft.sources import Demonstrations, Replay, Rollouts


class Slide:
    """A place on a line that is pushed; one earns minus the square of where one is, and falls off beyond 2."""

    observation, horizon = Field((1,), torch.float32), 10
    action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))

    def reset(self, keys):
        place = 3.0 * unit(keys, (1,)) - 1.5
        return place, place

    def step(self, position, action, keys):
        after = position + 0.5 * action
        return after, after, -after[:, 0].square(), after[:, 0].abs() > 2


class Steps(Slide):
    """The same, pushed by -1, 0 or 1."""

    action = Field((), torch.int64, classes=3)

    def step(self, position, action, keys):
        return super().step(position, (action.float() - 1).unsqueeze(-1), keys)


def evenly(world, n, seed=0):
    """Steps from even places by even actions: what a model learns from."""
    keys = fold(key_of(seed), torch.arange(n))
    place = 4.2 * unit(fold(keys, "place"), (1,)) - 2.1
    share = unit(fold(keys, "action"), ())
    action = (share * 3).long() if world.action.classes else (2 * share - 1).unsqueeze(-1)
    _, seen, reward, ended = world.step(place, action, keys)
    return {"observation": place, "action": action, "reward": reward, "next_observation": seen, "terminated": ended}


def built(objective, world, seed=0):
    spec = {"observation": world.observation, "action": world.action, "next_observation": world.observation}
    spec |= {
        "reward": Field((), torch.float32),
        "terminated": Field((), torch.bool),
        "truncated": Field((), torch.bool),
    }
    return build(objective, spec, seed, torch.float32)


def pushed(observation):
    return (torch.sin(17 * observation[:, :1]) * 0.9).clamp(-1, 1)


@pytest.fixture(scope="module")
def model():
    steps = Demonstrations(Slide(), pushed, episodes=60, stray=0.5)
    return Learner(Dynamics(), epochs=60, optimizer=Optimizer("adam", lr=3e-3), random_state=0).fit(steps)


def test_it_tells_what_happens(model):
    true = evenly(Slide(), 200)
    near = true["observation"].abs()[:, 0] < 1.4
    told = model.imagine(true["observation"][near].numpy(), action=true["action"][near].numpy())
    assert abs(told["observation"] - true["next_observation"][near].numpy()).max() < 0.1
    assert abs(told["reward"] - true["reward"][near].numpy()).max() < 0.3
    assert ((told["terminated"] > 0.5) == true["terminated"][near].numpy()).mean() > 0.97


@pytest.mark.parametrize("world", [Slide(), Steps()])
def test_scales_are_those_of_the_steps_and_put_back(world):
    dynamics = built(Dynamics(), world)
    steps = evenly(world, 300)
    dynamics.load_state_dict({**dynamics.state_dict(), **dynamics.scales(steps)})
    told = dynamics._told(steps)
    width = 1 + (world.action.classes or 1)
    assert told["x"].shape == (300, width)
    if world.action.classes:
        assert torch.equal(told["x"][:, 1:], one_hot(steps["action"], 3).float())
    ends = steps["terminated"].float()
    by_hand = torch.stack([(steps["next_observation"] - steps["observation"])[:, 0], steps["reward"], ends], 1)
    torch.testing.assert_close(told["y"], by_hand)
    torch.testing.assert_close(dynamics.seen.mean, told["x"].mean(0))
    torch.testing.assert_close(dynamics.made.variance, told["y"].var(0, correction=0))
    scaled = (by_hand - by_hand.mean(0)) / (by_hand.var(0, correction=0) + 1e-8).sqrt()
    x = (told["x"] - told["x"].mean(0)) / (told["x"].var(0, correction=0) + 1e-8).sqrt()
    answer = dynamics.model.net(x)
    torch.testing.assert_close(dynamics(steps).losses, (answer - scaled).square().sum(1) / 2)
    said = dynamics.imagine(steps["observation"], action=steps["action"])
    back = answer * (by_hand.var(0, correction=0) + 1e-8).sqrt() + by_hand.mean(0)
    torch.testing.assert_close(said["reward"], back[:, 1])
    torch.testing.assert_close(said["observation"], steps["observation"] + back[:, :1])
    torch.testing.assert_close(said["terminated"], back[:, 2].clamp(0, 1))


def test_draws_are_of_the_law_that_was_learned():
    rng, n = np.random.default_rng(0), 4000
    seen, pushes = rng.normal(size=(n, 1)), rng.uniform(-1, 1, (n, 1))
    after = seen + 0.5 * pushes + 0.3 * rng.normal(size=(n, 1))
    arrays = {"observation": seen, "action": pushes, "reward": np.zeros(n), "next_observation": after}
    arrays |= {"terminated": np.zeros(n, bool), "truncated": np.zeros(n, bool)}
    arrays = {
        name: torch.as_tensor(v).float() if v.dtype == float else torch.as_tensor(v) for name, v in arrays.items()
    }
    wide = Slide()
    wide.action = Field((1,), torch.float32)
    noisy = Dynamics(Regression(loss="gaussian", hidden=(32,)), draws=True)
    settings = {"epochs": 30, "optimizer": Optimizer("adam", lr=3e-3), "random_state": 0}
    learner = Learner(noisy, **settings).fit(Demonstrations(wide, arrays))
    rows = np.zeros((3000, 1), np.float32)
    drawn = learner.imagine(rows, action=rows)["observation"][:, 0]
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.std() - 0.3) < 0.05


def test_a_plan_earns_what_its_steps_are_expected_to():
    planner = built(MPC(ahead=3, discount=0.5), Steps())
    seen = torch.tensor([[0.3], [-1.0]])
    plans = torch.randint(3, (2, 5, 3), generator=torch.Generator().manual_seed(0))
    by_hand = torch.zeros(2, 5)
    for row in range(2):
        for plan in range(5):
            here, goes_on = seen[row : row + 1], 1.0
            for k in range(3):
                told = planner.expected(here, plans[row, plan, k : k + 1])
                by_hand[row, plan] += goes_on * 0.5**k * told["reward"][0]
                goes_on *= float(told["terminated"][0] < 0.5)
                here = told["observation"]
    torch.testing.assert_close(planner.earned(seen, plans), by_hand)


class Knows(MPC):
    """A planner whose model is the world."""

    def expected(self, observation, action):
        world = Steps() if self._action.classes else Slide()
        _, seen, reward, ended = world.step(observation, action, None)
        return {"observation": seen, "reward": reward, "terminated": ended.float()}


class Forgets(Knows):
    """A mutant: the law is not fitted to the elites."""

    def _elite(self, observation, drawn):
        return drawn[:, : int(self.elites)]


@pytest.mark.parametrize("world", [Slide(), Steps()])
def test_plans_in_the_true_world_are_the_best(world):
    """From |s| <= .5 one push reaches 0; from afar one pushes as far as may be."""
    seen = torch.tensor([[0.4], [-0.2], [1.5], [-1.5]])
    wanted = torch.tensor([-0.8, 0.4, -1.0, 1.0])

    def first(kind):
        planner = built(kind(ahead=4, plans=200, elites=20, rounds=5), world)
        with keyed(key_of(0), torch.arange(4)):
            return planner.act(seen)

    if world.action.classes:
        assert first(Knows).tolist() == [0, 1, 0, 2]
        assert first(Forgets).tolist() != [0, 1, 0, 2]
    else:
        assert (first(Knows)[:, 0] - wanted).abs().max() < 0.1
        assert (first(Forgets)[:, 0] - wanted).abs().max() > 0.2
        assert first(Knows).abs().max() <= 1.0


def test_after_the_expected_end_a_plan_earns_nothing():
    planner = built(Knows(ahead=3), Slide())
    pushes = torch.tensor([[[[1.0], [1.0], [1.0]], [[-1.0], [-1.0], [-1.0]]]])
    earned = planner.earned(torch.tensor([[1.8]]), pushes)
    torch.testing.assert_close(earned, torch.tensor([[-(2.3**2), -(1.3**2 + 0.8**2 + 0.3**2)]]))


class Ends(Dyna):
    """A model that is sure of an end where one stands to the right."""

    def expected(self, observation, action):
        told = super().expected(observation, action)
        return {**told, "terminated": torch.where(observation[:, 0] > 0, 0.9, 0.2)}


def test_where_the_model_expects_an_end_the_imagined_step_ends():
    dyna = built(Ends(DQN(hidden=(8,)), imagined=1.0), Steps())
    steps = {**evenly(Steps(), 40), "truncated": torch.zeros(40, dtype=torch.bool)}
    with keyed(key_of(0), torch.arange(40)):
        assert torch.equal(dyna.mixed(steps)["terminated"], steps["observation"][:, 0] > 0)


def test_a_planner_learns_from_few_steps():
    planner = MPC(Regression(hidden=(32, 32)), ahead=4, plans=50, elites=5)
    settings = {"env_steps": 300, "random_state": 0, "optimizer": Optimizer("adam", lr=3e-3)}
    learner = Learner(planner, **settings).fit(planner.plays(Slide(), start=100))
    chance = Learner(planner, **{**settings, "env_steps": 65}).fit(planner.plays(Slide(), start=64))
    earned = [one.evaluate(Slide(), 30).mean for one in (learner, chance)]
    assert earned[0] > -6.0  # the best is about -2.7: pushes of 1 until one is at 0
    assert earned[0] > earned[1]


def test_imagined_steps_are_the_model_s():
    dyna = built(Dyna(DQN(hidden=(8,)), imagined=1.0), Steps())
    steps = {**evenly(Steps(), 40), "truncated": torch.ones(40, dtype=torch.bool)}
    with keyed(key_of(0), torch.arange(40)):
        mixed = dyna.mixed(steps)
    told = dyna.expected(steps["observation"], mixed["action"])
    assert torch.equal(mixed["observation"], steps["observation"])
    assert sorted(mixed["action"].unique().tolist()) == [0, 1, 2]
    torch.testing.assert_close(mixed["next_observation"], told["observation"])
    torch.testing.assert_close(mixed["reward"], told["reward"])
    assert torch.equal(mixed["terminated"], told["terminated"] > 0.5)
    assert not mixed["truncated"].any()
    with keyed(key_of(0), torch.arange(40)):
        losses = dyna(steps).losses
    alone = dyna.policy(mixed).losses + Dynamics.forward(dyna, steps).losses
    torch.testing.assert_close(losses, alone)


def test_as_many_are_imagined_as_was_said():
    steps = {**evenly(Steps(), 4000), "truncated": torch.ones(4000, dtype=torch.bool)}
    dyna = built(Dyna(DQN(hidden=(8,)), imagined=0.3), Steps())
    with keyed(key_of(1), torch.arange(4000)):
        assert abs(float((~dyna.mixed(steps)["truncated"]).float().mean()) - 0.3) < 0.03


def test_with_nothing_imagined_the_policy_is_learned_alone():
    steps = {**evenly(Steps(), 40), "truncated": torch.zeros(40, dtype=torch.bool)}
    dyna = built(Dyna(DQN(hidden=(8,)), imagined=0.0), Steps())
    with keyed(key_of(0), torch.arange(40)):
        dyna(steps).losses.sum().backward()
    together = [p.grad.clone() for p in dyna.policy.parameters()]
    dyna.zero_grad()
    dyna.policy(steps).losses.sum().backward()
    for mine, alone in zip(together, dyna.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, alone.grad)


@pytest.mark.parametrize("make", [lambda: MPC(Regression(hidden=(8,)), ahead=2, plans=6, elites=2, rounds=2)])
def test_stacked_planners_are_single_ones(make):
    settings = {"steps": 12, "optimizer": "adam", "dtype": "float64"}
    many = Learner(make(), replicas=2, random_state=3, **settings).fit(make().plays(Slide(), start=64))
    one = Learner(make(), random_state=4, **settings).fit(make().plays(Slide(), start=64))
    mine = many.training_.runs[0].state.replica(1)
    for name, value in one.training_.runs[0].state.params.items():
        torch.testing.assert_close(mine.params[name], value, rtol=1e-9, atol=1e-9)
    for name, value in one.training_.runs[0].state.buffers.items():
        torch.testing.assert_close(mine.buffers[name], value, rtol=1e-9, atol=1e-9)


def test_an_interrupted_run_ends_as_it_would_have(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SECONDS", 0.0)

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] == 9:
            raise StopError

    def made(**settings):
        return Learner(Dyna(DQN(hidden=(8,))), steps=16, every=1, random_state=0, **settings)

    source = {"start": 64, "every": 4, "batch_size": 16, "envs": 2}
    whole = made().fit(Replay(Steps(), **source))
    with pytest.raises(StopError):
        made(folder=tmp_path / "run", callbacks=[stop]).fit(Replay(Steps(), **source))
    loaded = load(tmp_path / "run", policy=DQN(hidden=(8,)), callbacks=[])
    again = loaded.resume(Replay(Steps(), **source)).training_.runs[0].state
    for name, value in whole.training_.runs[0].state.params.items():
        assert torch.equal(again.params[name], value)


def test_bad_input():
    steps = Demonstrations(Slide(), pushed, episodes=1)
    with pytest.raises(TypeError, match="a model that predicts values y from x"):
        Learner(Dynamics(REINFORCE()), steps=1).fit(steps)
    with pytest.raises(ValueError, match="a normal law to draw from"):
        Learner(Dynamics(Regression(loss="huber"), draws=True), steps=1).fit(
            Demonstrations(Slide(), pushed, episodes=1)
        )
    with pytest.raises(ValueError, match="expected steps for Dynamics, got rows without"):
        Learner(Dynamics(), steps=1).fit(np.zeros((4, 2), np.float32), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="as many elites as plans, got 10 of 5"):
        Learner(MPC(plans=5), steps=1).fit(MPC().plays(Slide()))
    with pytest.raises(ValueError, match="learns from single steps of any policy, such as a DQN, got REINFORCE"):
        Learner(Dyna(REINFORCE()), steps=1).fit(Rollouts(Steps(), envs=2))
    endless = Slide()
    endless.action = Field((1,), torch.float32)
    with pytest.raises(ValueError, match="with bounds to draw plans between"):
        Learner(MPC(), steps=1).fit(Replay(endless))
