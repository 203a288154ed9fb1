"""Natural gradients against dense Fisher information, and trust regions that are kept."""

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence
from torch.func import functional_call, jacrev, vmap

from weft import Learner, Optimizer, weave
from weft.data import CartPole, Pendulum
from weft.objectives import A2C, GAN, PPO, REINFORCE, Classification, Regression
from weft.sources import Rollouts, Segments
from weft.strategies import L2, ANDMask, NaturalGradient, TrustRegion
from weft.strategies.descent.fisher import conjugate_gradients

SGD = Optimizer("sgd", lr=0.1)


def labelled(n=40):
    torch.manual_seed(0)
    return torch.randn(n, 3, dtype=torch.float64), torch.randint(3, (n,))


def flat(tree):
    return torch.cat([tree[name].reshape(-1) for name in sorted(tree)])


def beginning(objective, X, y):
    learner = Learner(
        objective, steps=1, optimizer=Optimizer("sgd", lr=0.0), batch_size=None, dtype="float64", random_state=0
    ).fit(X, y)
    return learner.module(), {n: p.detach().clone() for n, p in learner.training_.runs[0].state.params.items()}


def fisher_of_classes(module, params, X, weight):
    """F by every row and class, dense."""
    names = sorted(params)

    def log(p, x):
        return functional_call(module.net, {n.removeprefix("net."): v for n, v in p.items()}, (x[None],))[
            0
        ].log_softmax(-1)

    jac = vmap(lambda x: jacrev(log)(params, x))(X)
    scores = torch.cat([jac[n].reshape(len(X), 3, -1) for n in names], -1)
    chance = vmap(lambda x: log(params, x))(X).exp()
    return torch.einsum("n,nk,nki,nkj->ij", weight, chance, scores, scores)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_step_is_that_of_the_dense_fisher_information(weighted):
    X, y = labelled()
    weight = torch.rand(len(X), dtype=torch.float64) if weighted else torch.ones(len(X), dtype=torch.float64)
    objective = Classification(hidden=(4,))
    module, params = beginning(objective, X, y)
    fisher = fisher_of_classes(module, params, X, weight / weight.sum())
    given = {"sample_weight": weight} if weighted else {}
    found = {}
    for strategy in (None, NaturalGradient(damping=0.01, iterations=200)):
        learner = Learner(
            objective, strategy=strategy, steps=1, optimizer=SGD, batch_size=None, dtype="float64", random_state=0
        ).fit(X, y, **given)
        found[strategy is None] = flat(learner.training_.runs[0].state.params) - flat(params)
    eye = torch.eye(len(fisher), dtype=torch.float64)
    expected = torch.linalg.solve(fisher + 0.01 * eye, found[True])
    moved = found[True] != 0
    torch.testing.assert_close(found[False][moved], expected[moved], rtol=1e-6, atol=1e-9)
    assert (found[False] - found[True]).abs().max() > 1e-2


def test_products_of_what_is_normal_are_those_of_its_divergence():
    """The mean and the logarithm of the deviation of each action: F = diag(1 / deviation^2, 2) in them."""
    source = Segments(Pendulum(), envs=8, length=16)
    objective = PPO("linear(bias=False)", critic="linear", near="none", deviation=0.5, value_weight=0.0)
    found = {}
    for strategy in (None, NaturalGradient(damping=1e-6, iterations=60)):
        learner = Learner(objective, strategy=strategy, steps=1, optimizer=SGD, dtype="float64", random_state=0)
        state = learner.fit(source).training_.runs[0].state
        found[strategy is None] = {n: p for n, p in state.params.items() if n.startswith("policy.")}
    X = state.source["segment"]["observation"]
    start = {
        n: torch.full_like(p, np.log(0.5)) if n == "policy.log" else torch.zeros_like(p) for n, p in found[True].items()
    }
    plain, natural = ({n: p - start[n] for n, p in tree.items()} for tree in (found[True], found[False]))
    second = X.T @ X / len(X) / 0.25 + 1e-6 * torch.eye(3, dtype=torch.float64)
    weight = next(n for n in plain if n.endswith("weight"))
    torch.testing.assert_close(natural[weight][0], torch.linalg.solve(second, plain[weight][0]), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(natural["policy.log"], plain["policy.log"] / (2 + 1e-6), rtol=1e-6, atol=1e-9)


def test_conjugate_gradients_solve():
    torch.manual_seed(0)
    root = torch.randn(7, 7, dtype=torch.float64)
    matrix, b = root @ root.T + 0.1 * torch.eye(7), torch.randn(7, dtype=torch.float64)
    for iterations in (7, 60):  # more than are needed change nothing
        found = conjugate_gradients(lambda v: {"w": matrix @ v["w"]}, {"w": b}, iterations)["w"]
        torch.testing.assert_close(found, torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)
    nothing = conjugate_gradients(lambda v: {"w": matrix @ v["w"]}, {"w": torch.zeros(7, dtype=torch.float64)}, 5)
    assert torch.equal(nothing["w"], torch.zeros(7, dtype=torch.float64))


# --- trust regions ---------------------------------------------------------------------------------------


def theirs(then, now):
    """The divergence as torch has it."""
    return kl_divergence(then.distribution(), now.distribution()).detach()


def watched(kind, **settings):
    """A strategy that notes the KL of every step, and how much the loss falls with the policy's part of it."""
    seen = []

    class Watched(kind):
        def update(self, move, state):
            step, after = super().update(move, state)
            own = {n: step[n] if n.startswith("policy.") else torch.zeros_like(p) for n, p in move.params.items()}
            there = {n: p + own[n] for n, p in move.params.items()}
            kl = move.mean(theirs, move.params, there).item()
            seen.append((kl, (move.loss(there) - move.loss(move.params)).item()))
            return step, after

    return Watched(**settings), seen


def played(strategy, world=CartPole, steps=6, lr=0.01):
    objective, optimizer = PPO(near="none", hidden=(16,)), Optimizer("sgd", lr=lr)
    learner = Learner(objective, strategy=strategy, steps=steps, optimizer=optimizer, dtype="float64", random_state=0)
    return learner.fit(Segments(world(), envs=16, length=32))


@pytest.mark.parametrize("world", [CartPole, Pendulum])
@pytest.mark.parametrize("radius", [0.001, 0.02])
def test_every_step_keeps_within_its_radius_and_lowers_the_loss(world, radius):
    strategy, seen = watched(TrustRegion, radius=radius)
    played(strategy, world)
    kls, falls = np.array(seen).T
    assert (kls <= radius * (1 + 1e-4)).all()
    assert (kls > 0.2 * radius).sum() >= 4
    assert (falls < 0).sum() >= 5
    assert (falls <= 0).all()


def test_the_mutant_without_a_search_leaves_it():
    class Bold(TrustRegion):
        def _tried(self, move, step, g, moves):
            return torch.ones_like(move.loss(move.params))

    for kind, leaves in ((Bold, True), (TrustRegion, False)):
        strategy, seen = watched(kind, radius=0.5, damping=1e-3)
        played(strategy)
        assert bool((np.array(seen)[:, 0] > 0.5 * (1 + 1e-4)).any()) is leaves


def test_the_rate_is_the_critics_alone():
    still, moved = (played(TrustRegion(), steps=1, lr=lr).training_.runs[0].state.params for lr in (1e-4, 0.1))
    for name, value in still.items():
        if name.startswith("policy."):
            torch.testing.assert_close(value, moved[name], rtol=1e-6, atol=1e-8)
        elif name.startswith("critic.") and name.endswith("weight"):
            assert not torch.allclose(value, moved[name])
    nothing = played(TrustRegion(radius=0.0), steps=1).training_.runs[0].state.params
    start = played(None, steps=1, lr=0.0).training_.runs[0].state.params
    for name in start:
        if name.startswith("policy."):
            torch.testing.assert_close(nothing[name], start[name])


@pytest.mark.parametrize(
    "strategy", [NaturalGradient(damping=0.1), TrustRegion(), weave(L2(strength=0.01), TrustRegion())]
)
@pytest.mark.parametrize("world", [CartPole, Pendulum])
def test_a_replica_is_the_single_run(strategy, world):
    def fitted(**settings):
        objective = PPO(near="none", hidden=(6,))
        learner = Learner(objective, strategy=strategy, steps=1, optimizer=SGD, dtype="float64", **settings)
        return learner.fit(Segments(world(), envs=4, length=16))

    both = fitted(replicas=2, random_state=3)
    for k in range(2):
        alone = fitted(random_state=3 + k).training_.runs[0].state.params
        for name, value in both.replica(k).training_.runs[0].state.params.items():
            torch.testing.assert_close(value, alone[name], rtol=1e-6, atol=1e-8)


def test_they_join_with_masks_over_worlds_and_with_memories():
    levels = Segments([CartPole(), CartPole()], envs=4, length=8)
    for strategy in (NaturalGradient(), TrustRegion()):
        learner = Learner(
            PPO(near="none", hidden=(8,)), strategy=weave(ANDMask(threshold=0.5), strategy), optimizer=SGD, steps=3
        )
        assert np.isfinite(learner.fit(levels).history_["loss"]).all()
        recurrent = PPO(near="none", hidden=(8,), memory="gru")
        learner = Learner(recurrent, strategy=strategy, optimizer=SGD, steps=3)
        assert np.isfinite(learner.fit(Segments(CartPole(), envs=4, length=8)).history_["loss"]).all()
    trajectories = Learner(REINFORCE(hidden=(8,)), strategy=NaturalGradient(), optimizer=SGD, steps=3)
    assert np.isfinite(trajectories.fit(Rollouts(CartPole(), envs=4)).history_["loss"]).all()


def test_what_they_cannot_train():
    X, y = labelled()
    with pytest.raises(ValueError, match="each player of a game"):
        Learner(GAN(), strategy=NaturalGradient(), steps=1).fit(X)
    for objective in (A2C(), REINFORCE()):
        with pytest.raises(ValueError, match="unless they are weighed by a ratio"):
            Learner(objective, strategy=TrustRegion(), steps=1).fit(Rollouts(CartPole(), envs=2))
    with pytest.raises(ValueError, match="divergence between distributions of classes"):
        Learner(Regression(loss="poisson"), strategy=NaturalGradient(), optimizer=SGD, steps=1).fit(X, y)
    with pytest.raises(ValueError, match="expected plain SGD"):
        Learner(Classification(), strategy=NaturalGradient(), optimizer="adam", steps=1).fit(X, y)
    for wrong in ({"radius": -1.0}, {"damping": 0.0}, {"backtrack": 1.0}, {"trials": 0}):
        with pytest.raises(ValueError, match=f"expected TrustRegion's {next(iter(wrong))}"):
            Learner(PPO(near="none"), strategy=TrustRegion(**wrong), optimizer=SGD).fit(Segments(CartPole()))
