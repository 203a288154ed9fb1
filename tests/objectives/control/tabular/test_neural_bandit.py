"""Neural bandits: ridge regression where the net is linear, a step of the filter by hand where it is not."""

import numpy as np
import pytest
import torch

from weft import Learner
from weft.core.random import key_of, keyed
from weft.data import Bandits
from weft.engine.build import build
from weft.objectives import LinearBandit, NeuralBandit
from weft.sources import Rollouts


def played(objective, contexts, arms, rewards):
    """The objective, and its memory after some steps of one bandit."""
    count, width = max(arms) + 1, contexts.shape[1]
    source = Rollouts(Bandits(count, contexts=width), envs=1)
    built = build(objective, source.spec, 0, torch.float64)
    memory = built.start(1)
    for t, context in enumerate(torch.as_tensor(contexts)[: len(arms) + 1]):
        arm = torch.zeros(1, count, dtype=torch.float64)
        if t:
            arm[0, arms[t - 1]] = 1.0
        reward = torch.tensor([[rewards[t - 1] if t else 0.0]], dtype=torch.float64)
        memory = {**memory, **built.learned(memory, arm, reward), **built.chose(memory, context.unsqueeze(0))}
    return built, memory


@pytest.mark.parametrize("explore", ["ucb", "thompson"])
def test_with_a_linear_net_it_is_ridge_regression(explore):
    """Of the contexts and a constant 1, of each arm by itself, about nought."""
    rng = np.random.default_rng(0)
    contexts, rewards, arms = rng.normal(size=(13, 4)), rng.normal(size=12), [*rng.integers(3, size=11), 2]
    built, memory = played(NeuralBandit(hidden=(), explore=explore, width=0.7, ridge=2.0), contexts, arms, rewards)
    rows, mean, square = np.column_stack([contexts, np.ones(13)]), [], []
    for k in range(3):
        x, y = rows[:-1][np.array(arms) == k], rewards[np.array(arms) == k]
        gram = 2.0 * np.eye(5) + x.T @ x
        mean.append(rows[-1] @ np.linalg.solve(gram, x.T @ y))
        square.append(rows[-1] @ np.linalg.solve(gram, rows[-1]))
    last = torch.as_tensor(contexts[-1:])
    values, slopes = built._told(memory["weights"], last)
    np.testing.assert_allclose(values[0].detach(), mean, rtol=1e-9, atol=1e-12)
    told = ((slopes @ memory["belief"]) * slopes).sum(-1)
    np.testing.assert_allclose(told[0].detach(), square, rtol=1e-9, atol=1e-12)
    many = {name: value.expand(20_000, *value.shape[1:]) for name, value in memory.items()}
    with keyed(key_of(1), torch.arange(20_000)):
        share = (built.scores(many, last.expand(20_000, -1)) == 0).double().mean(0).numpy()
    spread = 0.7 * np.sqrt(square)
    if explore == "ucb":
        assert share[np.argmax(mean + spread)] == 1.0
    else:
        drawn = rng.normal(mean, spread, size=(400_000, 3)).argmax(1)
        np.testing.assert_allclose(share, np.bincount(drawn, minlength=3) / 400_000, atol=0.015)


def test_a_step_of_the_filter_by_hand():
    """The belief after two rewards, by the slopes of autograd at the weights of then."""
    rng = np.random.default_rng(1)
    contexts, rewards, arms = rng.normal(size=(3, 2)), [1.5, -0.5], [1, 0]
    built, memory = played(NeuralBandit(hidden=(3,), ridge=0.5), contexts, arms, rewards)
    params = [p.detach().clone().requires_grad_() for p in built.net.parameters()]
    names = [name for name, _ in built.net.named_parameters()]
    belief = torch.eye(sum(p.numel() for p in params), dtype=torch.float64) / 0.5
    for context, arm, reward in zip(torch.as_tensor(contexts), arms, rewards, strict=False):
        told = torch.func.functional_call(built.net, dict(zip(names, params, strict=True)), (context[None],))
        answer = (told - built.net(context[None]))[0, arm]
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(answer, params)])
        gain = belief @ slope / (1 + slope @ belief @ slope)
        moved = gain * (reward - answer.detach())
        belief = belief - torch.outer(gain, slope @ belief)
        parts = moved.split([p.numel() for p in params])
        params = [(p.detach() + part.view_as(p)).requires_grad_() for p, part in zip(params, parts, strict=True)]
    flat = torch.cat([p.detach().flatten() for p in params])
    torch.testing.assert_close(memory["weights"][0].detach(), flat)
    torch.testing.assert_close(memory["belief"][0].detach(), belief)


def test_at_first_no_arm_is_better():
    built, memory = played(NeuralBandit(), np.ones((1, 3)), [2], [0.0])
    values, _ = built._told(built.start(1)["weights"], torch.ones(1, 3, dtype=torch.float64))
    assert values.abs().max() == 0.0
    assert set(memory) == {"gone", "weights", "belief", "context"}


def test_what_is_not_linear_is_learned():
    world = Bandits(2, contexts=2, curve="square", noise=0.1, pays="regret", horizon=120)
    regret = {}
    for objective in (NeuralBandit(width=0.3, hidden=(8,)), LinearBandit(width=0.3)):
        learner = Learner(objective, random_state=0).fit(objective.plays(world, envs=2))
        regret[type(objective)] = learner.evaluate(world, 30).mean
    assert regret[NeuralBandit] < 0.5 * regret[LinearBandit]


def test_replicas_have_nets_of_their_own_and_are_single_runs():
    world = Bandits(2, contexts=2, horizon=8)
    source = Rollouts(world, envs=2)
    both = Learner(NeuralBandit(hidden=(3,)), replicas=2, random_state=0).fit(source)
    single = Learner(NeuralBandit(hidden=(3,)), random_state=1).fit(source)
    found = both.evaluate(world, 20).returns
    np.testing.assert_allclose(found[1], single.evaluate(world, 20).returns, rtol=1e-5)
    assert not np.allclose(found[0], found[1])


@pytest.mark.parametrize(
    ("make", "world", "message"),
    [
        (NeuralBandit, lambda: Bandits(), "bandits with contexts for NeuralBandit.*got 11"),
        (lambda: NeuralBandit(ridge=0.0), lambda: Bandits(contexts=2), "ridge"),
        (lambda: NeuralBandit(explore="greedy"), lambda: Bandits(contexts=2), "explore"),
        (NeuralBandit, lambda: Bandits(curve="square"), "contexts beside curve='square'"),
        (NeuralBandit, lambda: Bandits(contexts=2, curve="round"), "curve"),
    ],
)
def test_what_is_refused(make, world, message):
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        Learner(make(), random_state=0).fit(Rollouts(world(), envs=2))
