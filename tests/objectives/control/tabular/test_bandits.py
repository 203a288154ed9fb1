"""Bandits against loops in NumPy that follow the same law, written down apart, and against what is known."""

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner
from weft.core.random import fold, key_of, keyed
from weft.data import Bandits, CartPole, FrozenLake
from weft.engine.build import build
from weft.objectives import UCB, EpsilonGreedy, GradientBandit, LinearBandit, Thompson
from weft.sources import Rollouts

STEPS, RUNS = 120, 2000


def held(objective, world):
    return Learner(objective, random_state=0).fit(Rollouts(world, envs=2))


def told(objective, steps=STEPS, runs=RUNS, **world):
    """What is paid for rewards, and for the best arm, by run."""
    learner = held(objective, Bandits(**world, horizon=steps))
    both = [Bandits(**world, horizon=steps, pays=pays) for pays in ("mean", "optimal")]
    return [learner.evaluate(each, runs).returns / steps for each in both]


# --- loops in NumPy ----------------------------------------------------------------------------------------


def by_loop(choose, learn, state, seed=0, arms=10, bernoulli=False, walk=0.0, spread=1.0):
    """(mean reward, share of the best arm) by run, of a policy given as functions of its arrays."""
    rng = np.random.default_rng(seed)
    means = rng.uniform(size=(RUNS, arms)) if bernoulli else spread * rng.normal(size=(RUNS, arms))
    earned, best, runs = np.zeros(RUNS), np.zeros(RUNS), np.arange(RUNS)
    for t in range(1, STEPS + 1):
        arm = choose(rng, state, t)
        mean = means[runs, arm]
        reward = (rng.uniform(size=RUNS) < mean) * 1.0 if bernoulli else mean + rng.normal(size=RUNS)
        learn(state, arm, reward, t)
        earned, best = earned + mean, best + (mean == means.max(1))
        means = means + walk * rng.normal(size=means.shape)
    return earned / STEPS, best / STEPS


def argmax(rng, worth):
    """The best one, drawn evenly among equals."""
    best = worth == worth.max(1, keepdims=True)
    return (best * rng.uniform(size=worth.shape)).argmax(1)


def greedily(epsilon, step=None, decay=None):
    def choose(rng, state, t):
        now = epsilon if decay is None else epsilon * decay / (decay + t - 1)
        stray = rng.uniform(size=RUNS) < now
        return np.where(stray, rng.integers(10, size=RUNS), argmax(rng, state["q"]))

    def learn(state, arm, reward, t):
        at = (np.arange(RUNS), arm)
        state["n"][at] += 1
        state["q"][at] += (reward - state["q"][at]) * (1 / state["n"][at] if step is None else step)

    return choose, learn


def estimates(initial=0.0, arms=10):
    return {"q": np.full((RUNS, arms), float(initial)), "n": np.zeros((RUNS, arms))}


def by_bounds(confidence):
    def choose(rng, state, t):
        n = np.maximum(state["n"], 1)
        bound = np.where(state["n"] > 0, state["q"] + confidence * np.sqrt(np.log(t) / n), np.inf)
        return argmax(rng, bound)

    return choose, greedily(0.0)[1]


def by_gradient(step, baseline):
    def policy(state):
        e = np.exp(state["h"] - state["h"].max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def choose(rng, state, t):
        return (policy(state).cumsum(1) < rng.uniform(size=(RUNS, 1))).sum(1).clip(max=9)

    def learn(state, arm, reward, t):
        mean = state["total"] / (t - 1) if t > 1 else reward
        less = mean if baseline else 0.0
        state["h"] += step * (reward - less)[:, None] * (np.eye(10)[arm] - policy(state))
        state["total"] = state["total"] + reward

    return choose, learn


def by_belief(bernoulli):
    def choose(rng, state, t):
        n, s = state["n"], state["s"]
        if bernoulli:
            return rng.beta(1 + s, 1 + n - s).argmax(1)
        return rng.normal(s / (1 + n), 1 / np.sqrt(1 + n)).argmax(1)

    def learn(state, arm, reward, t):
        at = (np.arange(RUNS), arm)
        state["n"][at] += 1
        state["s"][at] += reward

    return choose, learn


def sums():
    return {"n": np.zeros((RUNS, 10)), "s": np.zeros((RUNS, 10))}


WALK = {"walk": 0.1, "spread": 0.0}
CASES = {
    "greedy": (EpsilonGreedy(epsilon=0.0), greedily(0.0), estimates, {}),
    "epsilon": (EpsilonGreedy(epsilon=0.1), greedily(0.1), estimates, {}),
    "decaying": (EpsilonGreedy(epsilon=1.0, decay=10.0), greedily(1.0, decay=10.0), estimates, {}),
    "optimistic": (
        EpsilonGreedy(epsilon=0.0, initial=5.0, step=0.1),
        greedily(0.0, 0.1),
        lambda: estimates(5.0),
        {},
    ),
    "walking": (EpsilonGreedy(epsilon=0.1, step=0.2), greedily(0.1, 0.2), estimates, WALK),
    "bounds": (UCB(confidence=2.0), by_bounds(2.0), estimates, {}),
    "gradient": (
        GradientBandit(step=0.2),
        by_gradient(0.2, True),
        lambda: {"h": np.zeros((RUNS, 10)), "total": np.zeros(RUNS)},
        {},
    ),
    "gradient, bare": (
        GradientBandit(step=0.2, baseline=False),
        by_gradient(0.2, False),
        lambda: {"h": np.zeros((RUNS, 10)), "total": np.zeros(RUNS)},
        {},
    ),
    "thompson": (Thompson(), by_belief(False), sums, {}),
    "thompson, beta": (Thompson(belief="beta"), by_belief(True), sums, {"bernoulli": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_law_as_a_loop_in_numpy(name):
    objective, functions, state, settings = CASES[name]
    world = {"rewards": "bernoulli"} if settings.get("bernoulli") else settings
    for own, other in zip(told(objective, **world), by_loop(*functions, state(), **settings), strict=True):
        error = np.hypot(own.std(), other.std()) / RUNS**0.5
        assert abs(own.mean() - other.mean()) < 4 * error, (own.mean(), other.mean(), error)


class Forgetful(EpsilonGreedy):
    """The mutant: what an arm gave is not learned."""

    def learned(self, memory, arm, reward):
        return {"worth": memory["worth"], "times": memory["times"] + arm}


def test_a_policy_that_learns_nothing_is_told_apart():
    own, loop = told(Forgetful(epsilon=0.1))[1], by_loop(*greedily(0.1), estimates())[1]
    assert abs(own.mean() - loop.mean()) > 10 * np.hypot(own.std(), loop.std()) / RUNS**0.5
    assert abs(own.mean() - 0.1) < 0.01


# --- by hand -----------------------------------------------------------------------------------------------


def remembered(objective, world, arms, rewards, contexts=None):
    """What one policy remembers after so many arms and rewards, with what it was built as."""
    built = build(objective, Rollouts(world, envs=1).spec, 0, torch.float64)
    memory = built.start(1)
    seen = torch.zeros(1, built.arms + 1 + built.contexts, dtype=torch.float64)
    for t in range(len(arms) + 1):
        if contexts is not None:
            seen[0, built.arms + 1 :] = torch.as_tensor(contexts[t])
        with keyed(fold(key_of(0), t), torch.arange(1)):
            arm, memory = built.sample_action(seen, memory)
        if t < len(arms):
            seen = torch.zeros_like(seen)
            seen[0, arms[t]], seen[0, built.arms] = 1.0, rewards[t]
    return built, memory, int(arm)


def test_each_arm_is_tried_once_before_any_twice():
    played = held(UCB(), Bandits(6, horizon=6))
    assert played.evaluate(Bandits(6, horizon=6, pays="optimal"), 200).returns.tolist() == [1.0] * 200


def test_ucb_by_hand():
    """Means .5, .6, 0 after 4, 4, 1 tries: .5 + c, .6 + c and 0 + 2c, c = confidence sqrt(ln 10 / 4)."""
    arms, rewards = [0] * 4 + [1] * 4 + [2], [0.5] * 4 + [0.6] * 4 + [0.0]
    for confidence, expected in ((0.1, 1), (2.0, 2)):
        assert remembered(UCB(confidence=confidence), Bandits(3), arms, rewards)[2] == expected


def test_means_and_steps_by_hand():
    arms, rewards = [0, 1, 0, 0], [1.0, 5.0, 2.0, 6.0]
    _, memory, _ = remembered(EpsilonGreedy(epsilon=0.0), Bandits(3), arms, rewards)
    np.testing.assert_allclose(memory["worth"][0], [3.0, 5.0, 0.0])
    _, memory, _ = remembered(EpsilonGreedy(step=0.5, initial=4.0), Bandits(3), arms, rewards)
    np.testing.assert_allclose(memory["worth"][0], [((4 + 1) / 2 + 2) / 4 + 3, 4.5, 4.0])
    assert float(memory["gone"]) == 5


def test_the_belief_is_the_posterior():
    """Of the normal, and of Beta(1 + wins, 1 + losses), whose draws have its distribution."""
    arms, wins = [0] * 5 + [1] * 3, [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    built, memory, _ = remembered(Thompson(belief="beta"), Bandits(2, rewards="bernoulli"), arms, wins)
    many = {name: value.expand(40_000, *value.shape[1:]) for name, value in memory.items()}
    with keyed(key_of(1), torch.arange(40_000)):
        share = float((built.scores(many, torch.zeros(40_000, 0))[:, 0] == 0).double().mean())
    a, b = stats.beta(5, 2), stats.beta(2, 3)
    grid = (np.arange(20_000) + 0.5) / 20_000
    exact = (a.pdf(grid) * b.cdf(grid)).mean()
    assert abs(share - exact) < 4 * (exact * (1 - exact) / 40_000) ** 0.5

    built, memory, _ = remembered(Thompson(spread=2.0, noise=0.5), Bandits(2), [0, 0, 1], [1.0, 2.0, 1.2])
    many = {name: value.expand(40_000, *value.shape[1:]) for name, value in memory.items()}
    with keyed(key_of(1), torch.arange(40_000)):
        share = float((built.scores(many, torch.zeros(40_000, 0))[:, 0] == 0).double().mean())
    v = [1 / (1 / 4 + 2 / 0.25), 1 / (1 / 4 + 1 / 0.25)]
    m = [3.0 * v[0] / 0.25, 1.2 * v[1] / 0.25]
    exact = stats.norm.cdf((m[0] - m[1]) / (v[0] + v[1]) ** 0.5)
    assert abs(share - exact) < 4 * (exact * (1 - exact) / 40_000) ** 0.5


@pytest.mark.parametrize("explore", ["ucb", "thompson"])
def test_linear_bandits_are_ridge_regressions(explore):
    rng = np.random.default_rng(0)
    contexts, rewards, arms = rng.normal(size=(13, 4)), rng.normal(size=12), rng.integers(3, size=12)
    objective = LinearBandit(explore=explore, width=0.7, ridge=2.0)
    built, memory, chosen = remembered(objective, Bandits(3, contexts=4), arms.tolist(), rewards, contexts)
    mean, spread = [], []
    for k in range(3):
        x, y = contexts[:-1][arms == k], rewards[arms == k]
        gram = 2.0 * np.eye(4) + x.T @ x
        np.testing.assert_allclose(memory["inverse"][0, k], np.linalg.inv(gram))
        mean.append(contexts[-1] @ np.linalg.solve(gram, x.T @ y))
        spread.append(0.7 * (contexts[-1] @ np.linalg.solve(gram, contexts[-1])) ** 0.5)
    if explore == "ucb":
        assert chosen == np.argmax(np.add(mean, spread))
        return
    many = {name: value.expand(40_000, *value.shape[1:]) for name, value in memory.items()}
    with keyed(key_of(1), torch.arange(40_000)):
        logits = built.scores(many, torch.as_tensor(contexts[-1]).expand(40_000, 4))
    share = (logits == 0).double().mean(0).numpy()
    drawn = rng.normal(mean, spread, size=(400_000, 3)).argmax(1)
    np.testing.assert_allclose(share, np.bincount(drawn, minlength=3) / 400_000, atol=0.012)


def test_contexts_are_made_use_of():
    """Regret grows slower and slower, and is far below that of chance."""
    world = {"arms": 3, "contexts": 4, "pays": "regret"}
    learner = held(LinearBandit(), Bandits(**world, horizon=50))
    early, late = (learner.evaluate(Bandits(**world, horizon=t), 300).mean for t in (50, 200))
    assert late < 2 * early
    assert early < 0.6 * 50 * 0.8


# --- through the Learner -----------------------------------------------------------------------------------


def test_replicas_play_for_themselves_and_nothing_is_trained():
    learner = Learner(EpsilonGreedy(), replicas=2, random_state=0).fit(Rollouts(Bandits(horizon=20), envs=4))
    single = Learner(EpsilonGreedy(), random_state=1).fit(Rollouts(Bandits(horizon=20), envs=4))
    found = learner.evaluate(Bandits(horizon=20), 50).returns
    np.testing.assert_allclose(found[1], single.evaluate(Bandits(horizon=20), 50).returns)
    assert not np.allclose(found[0], found[1])
    assert not list(single.objective_.parameters())


def test_an_episode_begins_without_a_memory():
    """Of an arm that another episode has found nothing is known."""
    learner = held(UCB(), Bandits(4, horizon=4))
    first = learner.evaluate(Bandits(4, horizon=4, pays="optimal"), 100)
    assert first.returns.tolist() == [1.0] * 100
    assert learner.act(np.zeros((500, 5))).min() == 0
    assert set(learner.act(np.zeros((500, 5)))) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("make", "world", "message"),
    [
        (EpsilonGreedy, CartPole(), "bandits without contexts"),
        (UCB, FrozenLake(), "bandits without contexts"),
        (UCB, Bandits(contexts=2), "bandits without contexts for UCB.*got 13"),
        (LinearBandit, Bandits(), "bandits with contexts for LinearBandit.*got 11"),
        (lambda: Thompson(belief="beta"), Bandits(), "rewards 0 and 1 for Thompson"),
        (lambda: Thompson(belief="beta", noise=2.0), Bandits(), "no spread and noise with belief='beta'"),
        (lambda: EpsilonGreedy(epsilon=1.5), Bandits(), "epsilon"),
        (lambda: EpsilonGreedy(step=0.0), Bandits(), "step"),
        (lambda: EpsilonGreedy(decay=0.0), Bandits(), "decay"),
        (lambda: UCB(confidence=-1.0), Bandits(), "confidence"),
        (lambda: GradientBandit(step=0.0), Bandits(), "step"),
        (lambda: LinearBandit(ridge=0.0), Bandits(contexts=2), "ridge"),
        (lambda: LinearBandit(explore="greedy"), Bandits(contexts=2), "explore"),
    ],
)
def test_what_is_refused(make, world, message):
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        held(make(), world)


def test_rewards_that_a_belief_does_not_know_are_refused_of_replicas_too():
    with pytest.raises(ValueError, match="expected"):
        Learner(Thompson(belief="beta"), replicas=2, random_state=0).fit(Rollouts(Bandits(), envs=2))
