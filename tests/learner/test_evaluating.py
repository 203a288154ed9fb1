"""`evaluate`: fresh episodes of a trained policy, and what they say of it; `record`: a film of them."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from weft import Classifier, Learner, Regressor, load
from weft.core import Objective, Output, Strategy, capability
from weft.core.random import fold, gauss
from weft.core.source import Field
from weft.data import CartPole, FiniteMDP
from weft.engine.vectorize import VectorizationWarning
from weft.learner.evaluation import Evaluation
from weft.objectives import REINFORCE, Gaussian
from weft.sources import Rollouts
from weft.testing import check_world


class Walk:
    """A walk that earns a normal draw at each step, ends after as many as its start says, and draws itself."""

    observation = Field((2,), torch.float32)
    action = Field((), torch.int64, classes=2)
    horizon = 6

    def reset(self, keys):
        left = 3 + (fold(keys, "length") & 7)
        return {"left": left, "at": torch.zeros_like(left)}, self.seen(left)

    def seen(self, left):
        return torch.stack([left, left], -1).float()

    def step(self, position, action, keys):
        left, at = position["left"] - 1, position["at"] + 1
        reward = gauss(fold(keys, "reward"), ()) + 2.0 * action
        return {"left": left, "at": at}, self.seen(left), reward, left <= 0

    def render(self, position):
        shade = (40 * position["at"]).clamp(0, 255).to(torch.uint8)
        return shade[:, None, None, None].expand(-1, 4, 6, 3).contiguous()


class Blind(Walk):
    render = None

    def __getattribute__(self, name):
        if name == "render":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Policy(Objective):
    """Always 1 as its best action; its draws are 0."""

    on_policy = False
    fields = ("observation", "action")
    progress = ("loss", "min")

    def build(self, spec):
        self.net = nn.Linear(2, 1)

    def forward(self, batch, player=""):
        return Output(self.net(batch["observation"]).squeeze(-1).square())

    def sample_action(self, observation):
        return torch.zeros(len(observation), dtype=torch.int64)

    @capability(merge="refuse")
    def act(self, observation):
        return torch.ones(len(observation), dtype=torch.int64)


class OnlyActs(Policy):
    sample_action = None

    def __getattribute__(self, name):
        if name == "sample_action":
            raise AttributeError(name)
        return super().__getattribute__(name)


class OnlyDraws(Policy):
    act = None

    def __getattribute__(self, name):
        if name == "act":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def learner():
    return Learner(Policy(), steps=1, random_state=0).fit(Rollouts(Walk(), envs=2))


@pytest.fixture(scope="module")
def three():
    return Learner(REINFORCE(hidden=(4,)), steps=2, replicas=3, random_state=0).fit(Rollouts(CartPole(), envs=4))


def test_the_walk_is_a_world():
    check_world(Walk())


# --- what it plays --------------------------------------------------------------------------------------


def test_every_episode_is_played_to_its_end(learner):
    found = learner.evaluate(Walk(), 500, bound=10.0)
    assert found.returns.shape == found.lengths.shape == found.truncated.shape == (500,)
    assert set(found.lengths.tolist()) == {3, 4, 5, 6}  # of 3 to 10 that it would be, at most the horizon
    assert (found.truncated == (found.lengths == 6)).sum() > 400  # 6 by itself, or cut from 7 on
    assert not found.truncated[found.lengths < 6].any()
    assert 0 < found.cut < (found.lengths == 6).sum()
    spread = (found.returns - 2.0 * found.lengths) / np.sqrt(found.lengths)  # standard normal by itself
    assert abs(spread.mean()) < 0.15
    assert abs(spread.std() - 1.0) < 0.1
    assert found.mean == pytest.approx(found.returns.mean())
    assert found.share == pytest.approx((found.returns >= 10.0).mean())


def test_the_same_by_hand(learner):
    """Each episode as its keys say, one after another."""
    found = learner.evaluate(Walk(), 5, random_state=3)
    from weft.core.random import key_of

    world = Walk()
    root = fold(key_of(torch.tensor(0)), "evaluate", 3)
    for e in range(5):
        key = fold(root, "episode", torch.tensor([e]))
        position, _ = world.reset(fold(key, "reset"))
        total, steps, over = 0.0, 0, False
        while not over and steps < 6:
            position, _, reward, ended = world.step(position, torch.ones(1).long(), fold(key, steps))
            total, steps, over = total + float(reward), steps + 1, bool(ended)
        assert found.returns[e] == pytest.approx(total, rel=1e-6)
        assert found.lengths[e] == steps
        assert found.truncated[e] == (not over)


@pytest.mark.parametrize("envs", [1, 3, 7, 64])
def test_how_many_are_played_side_by_side_changes_nothing(learner, envs):
    whole, parts = learner.evaluate(Walk(), 20), learner.evaluate(Walk(), 20, envs=envs)
    np.testing.assert_array_equal(whole.returns, parts.returns)
    np.testing.assert_array_equal(whole.lengths, parts.lengths)
    np.testing.assert_array_equal(whole.truncated, parts.truncated)


def test_memory_bounds_how_many_are_played_at_once(learner, monkeypatch):
    counts = []
    plain = Walk.reset
    monkeypatch.setattr(Walk, "reset", lambda self, keys: counts.append(len(keys)) or plain(self, keys))
    small = clone(learner).set_params(memory=10_000)
    small.training_, small.objective_ = learner.training_, learner.objective_
    found = small.evaluate(Walk(), 100)
    assert 1 < max(counts) < 20
    np.testing.assert_array_equal(found.returns, learner.evaluate(Walk(), 100).returns)


def test_the_best_action_or_a_drawn_one(learner):
    best, drawn = learner.evaluate(Walk(), 50), learner.evaluate(Walk(), 50, deterministic=False)
    np.testing.assert_allclose(best.returns - drawn.returns, 2.0 * best.lengths, atol=1e-5)


def test_it_is_fixed_by_random_state_and_leaves_no_trace(learner):
    before = {name: p.clone() for name, p in learner.training_.runs[0].state.params.items()}
    first, second = learner.evaluate(Walk(), 10), learner.evaluate(Walk(), 10, random_state=1)
    np.testing.assert_array_equal(first.returns, learner.evaluate(Walk(), 10).returns)
    assert (first.returns != second.returns).all()
    for name, p in before.items():
        assert torch.equal(p, learner.training_.runs[0].state.params[name])


def test_the_horizon_may_be_shorter(learner):
    found = learner.evaluate(Walk(), 20, horizon=2)
    assert (found.lengths == 2).all()
    assert found.cut == 20
    assert "20 cut" in repr(found)


def test_a_kept_learner_plays_the_same(learner, tmp_path):
    learner.save(tmp_path / "run")
    kept = load(tmp_path / "run", objective=Policy())
    np.testing.assert_array_equal(kept.evaluate(Walk(), 7).returns, learner.evaluate(Walk(), 7).returns)


# --- replicas -------------------------------------------------------------------------------------------


def test_each_replica_plays_for_itself(three):
    found = three.evaluate(CartPole(), 6, bound=20)
    assert found.returns.shape == (3, 6)
    assert found.replicas == (0, 1, 2)
    for k in range(3):
        alone = three.replica(k).evaluate(CartPole(), 6, bound=20)
        assert alone.returns.shape == (6,)
        np.testing.assert_array_equal(alone.returns, found.returns[k])
    np.testing.assert_allclose(found.means, found.returns.mean(1))
    half = 4.3026527 * found.means.std(ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom
    assert found.interval == pytest.approx((found.mean - half, found.mean + half))
    assert "over 3 replicas of 6 episodes" in repr(found)


def test_one_that_has_diverged_does_not_play(three):
    state = three.training_.runs[0].state
    state.stopped[1] = "diverged at step 1: for this test"
    try:
        found = three.evaluate(CartPole(), 4)
    finally:
        del state.stopped[1]
    assert found.replicas == (0, 2)
    np.testing.assert_array_equal(found.returns, three.evaluate(CartPole(), 4).returns[[0, 2]])


def test_of_a_sweep_the_best_plays():
    sweep = {"optimizer__lr": [1e-9, 0.05]}
    swept = Learner(REINFORCE(hidden=(8,)), replicas=sweep, steps=15, random_state=0).fit(Rollouts(CartPole(), envs=8))
    found = swept.evaluate(CartPole(), 5)
    assert found.returns.shape == (5,)
    np.testing.assert_array_equal(found.returns, swept.replica(swept.best_replica_).evaluate(CartPole(), 5).returns)


def test_replicas_that_were_not_stacked_play_one_after_another():
    sweep = {"objective__hidden": [(4,), (8,)]}
    several = Learner(REINFORCE(), replicas=sweep, steps=1, random_state=0)
    with pytest.warns(VectorizationWarning, match="one after another"):
        several.fit(Rollouts(CartPole(), envs=4))
    assert len(several.training_.runs) == 2
    assert several.evaluate(CartPole(), 3).returns.shape == (3,)


# --- the interval ---------------------------------------------------------------------------------------


def test_the_interval_keeps_its_level():
    """Over many experiments on a policy whose mean is known."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(2000):
        returns = 3.0 + rng.normal(size=8)
        low, high = Evaluation.of(returns, np.ones(8, int), np.zeros(8, bool)).interval
        covered.append(low <= 3.0 <= high)
    assert abs(np.mean(covered) - 0.95) < 0.015


def test_what_one_episode_says(learner):
    found = learner.evaluate(Walk(), 1)
    assert found.interval is None
    assert repr(found).startswith(f"{found.mean:.4g} (1 episode")
    assert float(found) == found.mean
    assert found.share is None


# --- what it refuses ------------------------------------------------------------------------------------


class Wider(Walk):
    observation = Field((3,), torch.float32)


class Threefold(Walk):
    action = Field((), torch.int64, classes=3)


class Endless(Walk):
    horizon = None


def test_bad_questions_speak(learner, three):
    cases = [
        (lambda: Learner(Policy(), steps=1).evaluate(Walk()), NotFittedError, "not fitted"),
        (
            lambda: learner.evaluate(Wider()),
            ValueError,
            r"shape \(2,\) in float32, got shape \(3,\).* in Wider; play in",
        ),
        (lambda: learner.evaluate(Threefold()), ValueError, "one of 2 classes, got one of 3 classes in Threefold"),
        (lambda: learner.evaluate(Endless()), ValueError, "got Endless without a limit of steps; give horizon="),
        (lambda: learner.evaluate([Walk(), Walk()]), TypeError, "expected one world to play in, got 2 of them"),
        (lambda: learner.evaluate(Walk), TypeError, r"expected a world, got the class Walk; make one: Walk\(\)"),
        (lambda: learner.evaluate(Walk(), 0), ValueError, "evaluate's episodes to be an integer >= 1, got 0"),
        (lambda: learner.evaluate(Walk(), deterministic="no"), TypeError, "True or False, got 'no'"),
        (lambda: learner.evaluate(Walk(), level=1.5), ValueError, r"a level in \(0, 1\)"),
        (lambda: learner.evaluate(Walk(), envs=0), ValueError, "evaluate's envs to be an integer >= 1"),
        (lambda: learner.evaluate(Walk(), bound="high"), TypeError, "evaluate's bound to be a number"),
        (lambda: three.record(CartPole()), ValueError, r"expected one replica to film, got 3; .*replica\(0\)"),
    ]
    for ask, error, said in cases:
        with pytest.raises(error, match=said):
            ask()


def test_an_endless_world_is_played_up_to_a_horizon(learner):
    assert learner.evaluate(Endless(), 10, horizon=4).lengths.max() == 4


def test_who_does_not_act_cannot_be_asked():
    density = Learner(Gaussian()).fit(np.random.randn(20, 2))
    assert not hasattr(density, "evaluate")
    assert "record" not in dir(density)
    with pytest.raises(AttributeError, match="has no attribute 'evaluate'") as told:
        density.evaluate(Walk())
    assert re.search("expected an objective that acts, .* got Gaussian", str(told.value.__cause__))


def test_labels_play_only_where_they_are_actions():
    seen = np.random.default_rng(0).normal(size=(40, 4))
    left = (seen[:, 2] > 0).astype(int)
    net = Classifier(epochs=1, random_state=0)
    assert net.fit(seen, left).evaluate(CartPole(), 2).returns.shape == (2,)
    for y, said in (
        (np.array(["a", "b"])[left], "'a', 'b'"),
        (left + 1, "1, 2"),
        (left + 2 * (seen[:, 1] > 0), "0, 1"),
    ):
        with pytest.raises(ValueError, match=rf"the actions 0..1 of .* evaluated in, got the labels \[{said}"):
            net.fit(seen, y).evaluate(CartPole(), 2)
    with pytest.raises(ValueError, match="evaluated in, got numbers; call fit"):
        Regressor(epochs=1).fit(seen, seen[:, 0]).evaluate(CartPole(), 2)


def test_who_has_only_one_way_of_acting_says_which():
    acts = Learner(OnlyActs(), steps=1).fit(Rollouts(Walk(), envs=2, greedy=True))
    assert acts.evaluate(Walk(), 2).returns.shape == (2,)
    with pytest.raises(TypeError, match="got OnlyActs, which has act alone; ask with deterministic=True"):
        acts.evaluate(Walk(), 2, deterministic=False)
    draws = Learner(OnlyDraws(), steps=1).fit(Rollouts(Walk(), envs=2))
    assert draws.evaluate(Walk(), 2, deterministic=False).returns.shape == (2,)
    with pytest.raises(TypeError, match="got OnlyDraws, which has sample_action alone; ask with deterministic=False"):
        draws.evaluate(Walk(), 2)


class Others(Strategy):
    """What answers are so many other parameters: those trained, and those with another sign."""

    neutral = None

    def __init__(self, signs=(-1.0,)):
        self.signs = signs

    def answer(self, params, state):
        return [{name: sign * p for name, p in params.items()} for sign in self.signs]


class Signed(Policy):
    """Pushes right where its bias is positive."""

    def build(self, spec):
        super().build(spec)
        nn.init.ones_(self.net.bias)

    @capability(merge="refuse")
    def act(self, observation):
        return (self.net.bias > 0).long().expand(len(observation))


def test_the_parameters_that_answer_play():
    source = Rollouts(Walk(), envs=2)
    plain, other = (
        Learner(Signed(), strategy=strategy, steps=1, init="keep", random_state=0).fit(source)
        for strategy in (None, Others())
    )
    best, worst = plain.evaluate(Walk(), 9), other.evaluate(Walk(), 9)
    assert plain.act([0.0, 0.0]) == 1
    assert other.act([0.0, 0.0]) == 0
    np.testing.assert_allclose(best.returns - worst.returns, 2.0 * best.lengths, atol=1e-5)


def test_several_sets_of_parameters_are_refused():
    several = Learner(Signed(), strategy=Others((1.0, -1.0)), steps=1, init="keep", random_state=0)
    several.fit(Rollouts(Walk(), envs=2))
    with pytest.raises(ValueError, match=r"expected one set of parameters that plays, got 2, which Others\("):
        several.evaluate(Walk())


def test_actions_between_other_bounds_are_refused():
    class Push(Walk):
        action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))

        def step(self, position, action, keys):
            return super().step(position, action.squeeze(-1), keys)

    class Harder(Push):
        action = Field((1,), torch.float32, low=(-2.0,), high=(2.0,))

    class Pushes(Policy):
        def sample_action(self, observation):
            return torch.zeros(len(observation), 1)

        @capability(merge="refuse")
        def act(self, observation):
            return torch.zeros(len(observation), 1)

    pushes = Learner(Pushes(), steps=1, random_state=0).fit(Rollouts(Push(), envs=2))
    assert pushes.evaluate(Push(), 2).returns.shape == (2,)
    with pytest.raises(ValueError, match=r"between \(-1.0,\) and \(1.0,\), got .* and \(2.0,\) in Harder"):
        pushes.evaluate(Harder(), 2)


def test_bounds_are_kept_with_the_run(tmp_path):
    class Push(FiniteMDP):
        def __init__(self):
            super().__init__(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=3)
            self.action = Field((), torch.int64, classes=2)
            self.observation = Field((1,), torch.float32, low=(0.0,), high=(float("inf"),))

    kept = Learner(REINFORCE(hidden=(2,)), steps=1, random_state=0).fit(Rollouts(Push(), envs=2))
    kept.save(tmp_path / "run")
    assert load(tmp_path / "run").training_.spec == kept.training_.spec


# --- a film ---------------------------------------------------------------------------------------------


def frames(path):
    shades, held = [], []
    with Image.open(path) as film:
        for k in range(film.n_frames):
            film.seek(k)
            shades.append(film.convert("RGB").getpixel((0, 0))[0])
            held.append(film.info["duration"])
        return film, shades, held


def test_a_film_shows_the_beginning_and_what_every_step_leads_to(learner, tmp_path):
    told = learner.record(Walk(), tmp_path / "film.gif", episodes=2, fps=20)
    same = learner.evaluate(Walk(), 2)
    np.testing.assert_array_equal(told.returns, same.returns)
    film, shades, held = frames(told.path)
    a, b = same.lengths.tolist()
    assert film.size == (6, 4)
    assert film.info["loop"] == 0
    wanted = [40 * t for t in [*range(a + 1), *range(b + 1)]]
    np.testing.assert_allclose(shades, wanted, atol=2)
    assert held == [*[50] * a, 500, *[50] * b, 500]
    assert told.pictures == a + b + 2
    assert told.fps == 20.0
    assert repr(told).startswith(f"{tmp_path / 'film.gif'} ({a + b + 2} pictures, 20 in a second; returns ")


def test_the_rate_is_the_nearest_that_a_gif_has(learner, tmp_path):
    told = learner.record(Walk(), tmp_path / "film.gif", fps=30)
    assert told.fps == pytest.approx(100 / 3)
    assert frames(told.path)[2][0] == 30


def test_what_cannot_be_filmed_says_so(learner, tmp_path):
    class Grey(Walk):
        def render(self, position):
            return super().render(position)[..., 0]

    cases = [
        (Blind(), "film.gif", {}, TypeError, r"expected a world that draws, .* got Blind, which draws nothing"),
        (Grey(), "film.gif", {}, ValueError, r"expected Grey to draw 1 pictures .* got \(1, 4, 6\) in torch.uint8"),
        (Walk(), "film.mp4", {}, ValueError, r"ends in .gif, got .*film.mp4"),
        (Walk(), "nowhere/film.gif", {}, FileNotFoundError, "expected a folder to put the film in"),
        (Walk(), "film.gif", {"fps": 60}, ValueError, r"fps to be a number in \(0.0, 50.0\], got 60"),
        (Walk(), "film.gif", {"episodes": 0}, ValueError, "record's episodes to be an integer >= 1"),
    ]
    for world, name, further, error, said in cases:
        with pytest.raises(error, match=said):
            learner.record(world, tmp_path / name, **further)
    assert not list(tmp_path.iterdir())
