"""Actors and critics against exact gradients, sums by hand and the mutants of both."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from weft import Learner, Optimizer
from weft.core import Field
from weft.data import CartPole, FiniteMDP, Pendulum
from weft.engine.build import build
from weft.objectives import A2C, PPO
from weft.objectives.control.advantage import generalized_advantage, standardized
from weft.sources import Replay, Rollouts, Segments
from weft.strategies import EWC, Laplace
from weft.testing import check_objective

STATES, ACTIONS, DISCOUNT = 4, 3, 0.9
KINDS = {
    "a2c": lambda **s: A2C(**s),
    "ppo": lambda **s: PPO(normalize=False, **s),
    "ppo with nothing": lambda **s: PPO(near="none", normalize=False, **s),
    "ppo with a penalty": lambda **s: PPO(near="penalty", normalize=False, **s),
    "ppo with the other one": lambda **s: PPO(near="reverse", normalize=False, **s),
    "ppo with one that adapts": lambda **s: PPO(near="adaptive", normalize=False, **s),
}


def world():
    """Transitions that may end an episode, on getting from anywhere to anywhere."""
    torch.manual_seed(1)
    transition = torch.rand(STATES, ACTIONS, STATES, dtype=torch.float64)
    reward = torch.randn(STATES, ACTIONS, STATES, dtype=torch.float64)
    ends = 0.5 * torch.rand(STATES, ACTIONS, STATES, dtype=torch.float64)
    start = torch.tensor([0.7, 0.3, 0.0, 0.0], dtype=torch.float64)
    return FiniteMDP(transition / transition.sum(-1, keepdim=True), reward, start=start, ends=ends, horizon=None)


def solved(mdp, policy):
    """(v, advantage, expected visits of an episode) by linear equations."""
    to = torch.einsum("sa,sax,sax->sx", policy, mdp.transition, 1 - mdp.ends)
    paid = (mdp.transition * mdp.reward).sum(-1)
    eye = torch.eye(STATES, dtype=torch.float64)
    v = torch.linalg.solve(eye - DISCOUNT * to, (policy * paid).sum(-1))
    q = paid + DISCOUNT * (mdp.transition * (1 - mdp.ends)) @ v
    visits = torch.linalg.solve(eye - to.T, mdp.start)
    return v, q - v[:, None], visits


def made(kind, **settings):
    objective = KINDS[kind](hidden=(5,), critic=nn.Linear(STATES, 1, bias=False), discount=DISCOUNT, **settings)
    torch.manual_seed(0)
    source = Segments(world(), envs=2, length=4, horizon=9)
    return build(objective, source.spec, 0, torch.float64)


def stretches(mdp, policy, length, cut=0.3):
    """Every stretch of play from where episodes are, cut by chance too, with its probability as weight.

    Where an episode is over the next step begins in state 0 or 1 again.
    """
    _, _, visits = solved(mdp, policy)
    rows = [((), s, visits[s].item()) for s in range(STATES)]
    for _ in range(length):
        longer = []
        for steps, s, chance in rows:
            for a in range(ACTIONS):
                for x in range(STATES):
                    p = chance * policy[s, a].item() * mdp.transition[s, a, x].item()
                    end = mdp.ends[s, a, x].item()
                    for done, trunc, share in ((1, 0, end), (0, 1, (1 - end) * cut), (0, 0, (1 - end) * (1 - cut))):
                        step = (s, a, x, done, trunc)
                        if done or trunc:
                            longer += [((*steps, step), b, p * share * mdp.start[b].item()) for b in (0, 1)]
                        else:
                            longer.append(((*steps, step), x, p * share))
        rows = longer
    steps = torch.tensor([r[0] for r in rows])
    s, a, x, done, trunc = steps.unbind(-1)
    return {
        "observation": one_hot(s, STATES).double(),
        "action": a,
        "reward": mdp.reward[s, a, x],
        "next_observation": one_hot(x, STATES).double(),
        "terminated": done.bool(),
        "truncated": trunc.bool(),
    }, torch.tensor([r[2] for r in rows], dtype=torch.float64)


def policy_of(objective):
    return objective.told(torch.eye(STATES, dtype=torch.float64)).softmax(-1)


def exact(objective, mdp):
    """- sum_s visits(s) sum_a A(s, a) d pi(a | s), by the policy-gradient theorem."""
    _, advantage, visits = solved(mdp, policy_of(objective).detach())
    total = -(visits[:, None] * advantage * policy_of(objective)).sum()
    return torch.autograd.grad(total, list(objective.policy.parameters()))


def found(objective, batch, weight):
    """The same from the first step of every stretch, by the objective's own loss."""
    first = {n: v[:, 0] for n, v in {**batch, **objective.credit(batch)}.items()}
    loss = (objective({n: v.detach() for n, v in first.items()}).losses * weight).sum()
    return torch.autograd.grad(loss, list(objective.policy.parameters()))


def told_truth(objective, mdp):
    """Puts the true values into the critic."""
    with torch.no_grad():
        objective.critic.weight.copy_(solved(mdp, policy_of(objective))[0][None])


def apart(objective, length=2):
    mdp = world()
    batch, weight = stretches(mdp, policy_of(objective).detach(), length)
    pairs = zip(found(objective, batch, weight), exact(objective, mdp), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trace", [0.0, 0.6, 1.0])
def test_with_a_true_critic_the_gradient_is_exact(kind, trace):
    objective = made(kind, trace=trace)
    told_truth(objective, world())
    assert apart(objective) < 1e-12
    assert max(g.abs().max() for g in exact(objective, world())) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_with_another_critic_it_is_not(kind):
    objective = made(kind, trace=0.0)
    assert apart(objective) > 1e-3


@pytest.mark.parametrize("wrong", ["truncated as terminated", "terminated as truncated", "across ends"])
def test_mutants_of_the_bootstrap_are_not_exact(wrong):
    class Wrong(A2C):
        def credit(self, batch):
            ended, cut = batch["terminated"], batch["truncated"]
            no = torch.zeros_like(ended)
            flags = {
                "truncated as terminated": (ended | cut, no),
                "terminated as truncated": (no, ended | cut),
                "across ends": (no, no),
            }[wrong]
            return super().credit({**batch, "terminated": flags[0], "truncated": flags[1]})

    objective = Wrong(hidden=(5,), critic=nn.Linear(STATES, 1, bias=False), discount=DISCOUNT, trace=0.6)
    torch.manual_seed(0)
    objective = build(objective, Segments(world(), envs=2, length=4, horizon=9).spec, 0, torch.float64)
    told_truth(objective, world())
    assert apart(objective) > 1e-3


# --- advantages ------------------------------------------------------------------------------------------


def played(rows=6, time=9):
    torch.manual_seed(2)
    reward, value, after = torch.randn(3, rows, time, dtype=torch.float64)
    flag = torch.rand(rows, time)
    return reward, value, after, flag < 0.2, (flag > 0.2) & (flag < 0.4)


def by_hand(reward, value, after, terminated, truncated, discount, trace):
    found = torch.zeros_like(reward)
    for i in range(len(reward)):
        for t in range(reward.shape[1]):
            for k in range(t, reward.shape[1]):
                then = 0.0 if terminated[i, k] else after[i, k]
                found[i, t] += (discount * trace) ** (k - t) * (reward[i, k] + discount * then - value[i, k])
                if terminated[i, k] or truncated[i, k]:
                    break
    return found


@pytest.mark.parametrize(("discount", "trace"), [(0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.7)])
def test_advantages_are_the_sums_by_hand(discount, trace):
    reward, value, after, terminated, truncated = played()
    settings = {"terminated": terminated, "over": terminated | truncated, "discount": discount, "trace": trace}
    found = generalized_advantage(reward, value, after, **settings)
    torch.testing.assert_close(found, by_hand(reward, value, after, terminated, truncated, discount, trace))
    if 0 < trace < 1 and discount:
        ignored = generalized_advantage(reward, value, after, **{**settings, "trace": 1.0})
        assert (ignored - found).abs().max() > 0.1  # the mutant that ignores lambda
        swapped = generalized_advantage(reward, value, after, **{**settings, "terminated": truncated})
        assert (swapped - found).abs().max() > 0.1


def test_standardized_is_by_what_counts():
    advantage, mask = torch.randn(4, 5).double(), (torch.rand(4, 5) < 0.6).double()
    own = standardized(advantage, mask)[mask > 0]
    assert own.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert own.std().item() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(standardized(advantage, mask)[mask == 0], torch.zeros(int((mask == 0).sum())).double())
    torch.testing.assert_close(standardized(advantage), (advantage - advantage.mean()) / (advantage.std() + 1e-8))
    assert torch.isfinite(standardized(torch.ones(1, 1))).all()


# --- losses ----------------------------------------------------------------------------------------------


def segment(objective, dtype=torch.float64):
    torch.manual_seed(3)
    n = 40
    batch = {
        "observation": torch.randn(n, STATES, dtype=dtype),
        "action": torch.randint(ACTIONS, (n,)),
        "advantage": torch.randn(n, dtype=dtype),
        "goal": torch.randn(n, dtype=dtype),
        "told": torch.randn(n, ACTIONS, dtype=dtype),
    }
    return {**batch, "played": objective.law.log_prob(batch["told"], batch["action"])}


@pytest.mark.parametrize("kind", ["a2c", "ppo", "ppo with a penalty", "ppo with the other one"])
def test_the_losses_by_hand(kind):
    settings = {"a2c": {}, "ppo": {"eps": 0.1}}.get(kind, {"beta": 0.4})
    objective = made(kind, value_weight=0.7, entropy_weight=0.3, **settings)
    batch = segment(objective)
    log, old = objective.policy(batch["observation"]).log_softmax(-1), batch["told"].log_softmax(-1)
    score = log.gather(1, batch["action"][:, None])[:, 0]
    gain, ratio, entropy = batch["advantage"], (score - batch["played"]).exp(), -(log.exp() * log).sum(-1)
    kl, error = (old.exp() * (old - log)).sum(-1), objective.critic(batch["observation"])[:, 0] - batch["goal"]
    bounded = torch.where(gain > 0, ratio.clamp_max(1.1), ratio.clamp_min(0.9))
    other = (log.exp() * (log - old)).sum(-1)
    actor = {
        "a2c": -score * gain,
        "ppo": -bounded * gain,
        "ppo with a penalty": 0.4 * kl - ratio * gain,
        "ppo with the other one": 0.4 * other - ratio * gain,
    }[kind]
    assert ((ratio > 1.1) & (gain > 0)).any()
    torch.testing.assert_close(objective(batch).losses, actor + 0.7 * error**2 - 0.3 * entropy)
    measured = objective.measure(batch)
    torch.testing.assert_close(measured["entropy"], entropy)
    torch.testing.assert_close(measured["kl"], kl)
    corpus = measured["explained_variance"]
    told = corpus.conclude({n: v.sum() for n, v in corpus.sums.items()})
    torch.testing.assert_close(told, 1 - error.var(correction=0) / batch["goal"].var(correction=0))


def test_beta_follows_the_kl():
    """Of two policies on the states of the segment at hand, halved where they are near and doubled where far."""
    objective = made("ppo with one that adapts", beta=1.0, target=0.01)
    mdp = world()
    batch, _ = stretches(mdp, policy_of(objective).detach(), 1)

    def seen():
        found = objective.witness(batch)
        objective.load_state_dict({**objective.state_dict(), **found})
        return found["strength"].item()

    assert seen() == 1.0  # nothing was played before
    assert seen() == 0.5  # the same policy
    before = objective.told(batch["observation"]).detach()
    with torch.no_grad():
        for p in objective.policy.parameters():
            p.add_(3.0 * torch.randn_like(p))
    kl = objective.law.kl(before, objective.told(batch["observation"])).mean().item()
    assert kl > 0.015
    assert seen() == 1.0
    objective.target = kl
    with torch.no_grad():
        next(objective.policy.parameters()).add_(0)
    assert seen() == 0.5


# --- playing ---------------------------------------------------------------------------------------------


class Wide(Pendulum):
    """Three choices at once, of which the first decides the torque."""

    action = Field((3,), torch.int64, choices=(3, 2, 4))

    def step(self, position, action, keys):
        return super().step(position, action[:, :1].float() - 1.0, keys)


WORLDS = {"classes": CartPole, "numbers": Pendulum, "choices": Wide}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", WORLDS)
def test_a_replica_is_the_single_run(kind, at):
    def fitted(**settings):
        objective = KINDS[kind](hidden=(8,), entropy_weight=0.01)
        passes = {} if kind == "a2c" else {"passes": 2, "batch_size": 16}
        source = Segments(WORLDS[at](), envs=4, length=8, horizon=7, **passes)
        return Learner(objective, steps=6, every=1, dtype="float64", **settings).fit(source)

    both = fitted(replicas=2, random_state=3)
    for k in range(2):
        alone = fitted(random_state=3 + k)
        for name, value in alone.training_.runs[0].state.params.items():
            torch.testing.assert_close(both.replica(k).training_.runs[0].state.params[name], value)
        for name in ("loss", "kl", "entropy", "explained_variance"):
            np.testing.assert_allclose(both.history_[name][:, k], alone.history_[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("at", WORLDS)
@pytest.mark.parametrize(
    "objective",
    [
        A2C(hidden=(8,)),
        A2C(hidden=(8,), memory="lstm", normalize=True),
        PPO(hidden=(8,), near="adaptive"),
        PPO(hidden=(8,), near="penalty", memory="gru"),
        PPO(hidden=(8,), near="none", entropy_weight=0.1),
    ],
)
def test_they_hold_to_what_they_declare(objective, at):
    check_objective(objective, Segments(WORLDS[at](), envs=4, length=6, horizon=5))


@pytest.mark.parametrize("at", WORLDS)
def test_a_critic_has_no_part_in_the_fisher_information(at):
    """By Kronecker factors and by the diagonal: what EWC and Laplace keep is the policy."""
    for strategy in (Laplace(curvature="kronecker", penalties="per_task"), EWC()):
        learner = Learner(A2C(hidden=(8,)), strategy=strategy, steps=2, random_state=0)
        source = Segments(WORLDS[at](), envs=4, length=6)
        learner.partial_fit(source, task="first").partial_fit(source, task="second")
        kept = learner.training_.runs[0].state.strategy[""]["tasks"]["first"]["precision"]
        layers = {name: part["outputs"] for name, part in kept["layers"].items()} if "layers" in kept else kept
        for name, value in layers.items():
            assert bool((value == 0).all()) is name.startswith("critic")


@pytest.mark.parametrize("bounds", ["clip", "squash"])
def test_numbers_stay_between_their_bounds_and_the_deviation_learns(bounds):
    objective = PPO(hidden=(8,), bounds=bounds, deviation=3.0, entropy_weight=0.1)
    learner = Learner(objective, steps=8, random_state=0).fit(Segments(Pendulum(), envs=4, length=16, passes=2))
    batch = learner.training_.runs[0].state.source["segment"]
    assert batch["action"].abs().max() <= 2.0 + 1e-6
    if bounds == "clip":
        assert (batch["action"].abs() == 2.0).any()
    policy = learner.module().policy
    assert policy.log.exp().item() != pytest.approx(3.0, abs=1e-6)
    assert learner.act([[1.0, 0.0, 0.0]]).shape == (1, 1)
    assert learner.value([[1.0, 0.0, 0.0]]).shape == (1,)


def test_what_is_not_legal_is_never_done():
    from tests.sources.test_masks import Ledge

    for objective in (A2C(hidden=(8,)), PPO(hidden=(8,))):
        learner = Learner(objective, steps=4, random_state=0, replicas=2).fit(objective.plays(Ledge()))
        assert np.isfinite(learner.history_["kl"]).all()
        seen, legal = np.eye(5)[:2], np.array([[False, False, True], [True, False, False]])
        assert learner.replica(0).act(seen, legal=legal).tolist() == [2, 0]
        with pytest.raises(ValueError, match="expected legal"):
            learner.replica(0).act(seen)


def test_what_cannot_be():
    with pytest.raises(TypeError, match=r"expected a world that PPO learns in by acting.*got array"):
        Learner(PPO(), steps=1).fit(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="expected actions that are numbers for A2C"):
        Learner(A2C(bounds="squash"), steps=1).fit(Segments(CartPole(), envs=2, length=4))
    with pytest.raises(ValueError, match="learns from what the current policy does"):
        Learner(A2C(), steps=1).fit(Segments(CartPole(), envs=2, length=4, passes=2))
    with pytest.raises((ValueError, TypeError), match="together"):
        Learner(PPO(), steps=1).fit(Replay(CartPole(), envs=2))
    for settings in ({"discount": 1.5}, {"trace": -0.1}, {"eps": 0.0}, {"near": "clap"}, {"deviation": 0.0}):
        with pytest.raises(ValueError, match=f"expected PPO's {next(iter(settings))}"):
            Learner(PPO(**settings), steps=1).fit(Segments(CartPole(), envs=2, length=4))
    with pytest.raises(ValueError, match="expected near='clip' or 'penalty'"):
        Learner(PPO(near="adaptive", memory="gru"), steps=1).fit(Segments(CartPole(), envs=2, length=4))


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/segments.py")
def test_ppo_learns_to_balance():
    objective = PPO(discount=0.98, trace=0.8)
    source = objective.plays(CartPole(), envs=16, length=32, passes=8, batch_size=512)
    learner = Learner(objective, optimizer=Optimizer("adam", lr=3e-3), clip=0.5, env_steps=45_000, random_state=1)
    learner.fit(source)
    fresh = Rollouts(CartPole(), envs=64, greedy=True)
    batch = next(fresh.once(learner.training_.runs[0].state, 64 * 500))
    assert batch["reward"].mul(batch["weight"]).sum().item() / 64 > 400
    assert learner.history_["return"][0] < 50
