"""Strategies on what acts: each equals a loop that is written by hand."""

import numpy as np
import pytest
import torch
from tests.objectives.third_party.ppo import PPO
from tests.sources.grounds import Walk

from weft import Learner, Optimizer
from weft.attacks import PGD
from weft.engine.build import build
from weft.objectives import REINFORCE
from weft.strategies import EWC, AdversarialTraining, ANDMask

RATE = 0.2


class Other(Walk):
    """A walk whose right is left."""

    def step(self, position, action, keys):
        return super().step(position, 1 - action, keys)


def learner(objective, strategy, **settings):
    told = {"steps": 3, "every": 1, "random_state": 0, "dtype": "float64", "optimizer": Optimizer("sgd", lr=RATE)}
    return Learner(objective, strategy=strategy, **{**told, **settings})


def params_of(trained):
    return {n: p.clone() for n, p in trained.training_.runs[0].state.params.items()}


class Watched:
    """What a source has given, batch by batch, as it was given."""

    def __init__(self, source):
        self.batches, plain = [], source.batches

        def batches(state):
            for batch in plain(state):
                self.batches.append({name: value.clone() for name, value in batch.items()})
                yield batch

        source.batches, self.source = batches, source


def begun(objective, world):
    """The objective's net and its parameters before the first step."""
    source = objective.plays(world)
    untrained = learner(objective, None, steps=0).fit(source)
    module = build(objective, source.spec, 0, torch.float64)
    return module, {name: p.requires_grad_() for name, p in params_of(untrained).items()}


def called(module, params, what):
    return torch.func.functional_call(module, params, what)


def score(module, params, batch):
    """The loss of each trajectory, - sum_t A_t log pi(a_t | s_t), written out."""
    logits = torch.func.functional_call(
        module.policy,
        {n.removeprefix("policy."): p for n, p in params.items()},
        batch["observation"].flatten(0, 1).double(),
    )
    law = logits.log_softmax(-1).unflatten(0, batch["action"].shape)
    said = law.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    return -(batch["advantage"].double() * said * batch["mask"].double()).sum(-1), law


def test_the_and_mask_over_worlds_is_the_loop_by_hand():
    objective = REINFORCE(hidden=(5,))
    watched = Watched(objective.plays([Walk(), Other(), Walk(size=4)], envs=6))
    trained = learner(objective, ANDMask(threshold=0.9, rescale=False)).fit(watched.source)
    module, params = begun(objective, Walk())
    kept = []
    for batch in watched.batches[:3]:
        each = []
        for world in range(3):
            rows = {name: value[world] for name, value in batch.items()}
            loss = score(module, params, rows)[0].mean()
            each.append(dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True)))
        for name, p in params.items():
            slopes = torch.stack([g[name] for g in each])
            agree = slopes.sign().sum(0).abs() >= 3  # .9 of three is three
            kept.append(agree.double().mean().item())
            params[name] = (p.detach() - RATE * slopes.mean(0) * agree).requires_grad_()
    for name, value in params_of(trained).items():
        torch.testing.assert_close(value, params[name].detach(), rtol=1e-9, atol=1e-12)
    assert 0.05 < np.mean(kept) < 0.95  # else there is nothing to see
    plain = learner(objective, None).fit(objective.plays([Walk(), Other(), Walk(size=4)], envs=6))
    assert any(not torch.allclose(value, params[name].detach()) for name, value in params_of(plain).items())


def test_ewc_over_two_worlds_is_the_loop_by_hand():
    objective, strength = REINFORCE(hidden=(5,)), 3.0
    first, second = (Watched(objective.plays(world, envs=6)) for world in (Walk(), Other()))
    looks = []
    plain = first.source.once
    first.source.once = lambda state, rows: (
        looks.append({k: v.clone() for k, v in b.items()}) or b for b in plain(state, rows)
    )
    trained = learner(objective, EWC(strength=strength)).fit(first.source, task="first")
    anchor = params_of(trained)
    trained.partial_fit(second.source, task="second")
    module, params = begun(objective, Walk())
    for batch in first.batches[:3]:
        slopes = torch.autograd.grad(score(module, params, batch)[0].mean(), list(params.values()))
        params = {n: (p.detach() - RATE * g).requires_grad_() for (n, p), g in zip(params.items(), slopes, strict=True)}
    for name, value in anchor.items():
        torch.testing.assert_close(value, params[name].detach(), rtol=1e-9, atol=1e-12)
    fisher, episodes = {name: torch.zeros_like(p) for name, p in params.items()}, 0
    for batch in looks:
        for i in range(len(batch["action"])):
            one = {name: value[i : i + 1] for name, value in batch.items()}
            law = score(module, params, one)[1][0]
            for t in range(int(one["mask"].sum())):  # the choices of a trajectory are independent given what was seen
                for action in range(2):
                    slopes = torch.autograd.grad(law[t, action], list(params.values()), retain_graph=True)
                    for name, g in zip(params, slopes, strict=True):
                        fisher[name] += law[t, action].exp().detach() * g.square()
            episodes += 1
    for batch in second.batches[:3]:
        loss = score(module, params, batch)[0].mean()
        slopes = torch.autograd.grad(loss, list(params.values()))
        params = {
            n: (p.detach() - RATE * (g + strength * fisher[n] / episodes * (p.detach() - anchor[n]))).requires_grad_()
            for (n, p), g in zip(params.items(), slopes, strict=True)
        }
    for name, value in params_of(trained).items():
        torch.testing.assert_close(value, params[name].detach(), rtol=1e-8, atol=1e-11)
    free = learner(objective, None).fit(objective.plays(Walk(), envs=6), task="first")
    free.partial_fit(objective.plays(Other(), envs=6), task="second")
    assert any(not torch.allclose(value, params[name].detach()) for name, value in params_of(free).items())


def test_adversarial_observations_are_the_loop_by_hand():
    objective, eps = PPO(hidden=(5,)), 0.15
    watched = Watched(objective.plays(Walk(), envs=4, length=8, passes=2, batch_size=16))
    strategy = AdversarialTraining(PGD(eps=eps, bounds=None), field="observation")
    trained = learner(objective, strategy, steps=6).fit(watched.source)
    module, params = begun(objective, Walk())
    module.requires_grad_(False)
    for batch in watched.batches[:6]:

        def loss(params, seen, batch=batch):
            named = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
            return called(module, params, ({**named, "observation": seen},)).losses

        seen = batch["observation"].double().requires_grad_()
        (slope,) = torch.autograd.grad(loss({n: p.detach() for n, p in params.items()}, seen).sum(), seen)
        worst = (seen + eps * slope.sign()).detach()
        slopes = torch.autograd.grad(loss(params, worst).mean(), list(params.values()))
        params = {n: (p.detach() - RATE * g).requires_grad_() for (n, p), g in zip(params.items(), slopes, strict=True)}
    for name, value in params_of(trained).items():
        torch.testing.assert_close(value, params[name].detach(), rtol=1e-8, atol=1e-11)
    clean = learner(objective, None, steps=6).fit(objective.plays(Walk(), envs=4, length=8, passes=2, batch_size=16))
    assert any(not torch.allclose(value, params[name].detach()) for name, value in params_of(clean).items())


def test_what_cannot_be_moved_is_told():
    strategy = AdversarialTraining(PGD(eps=0.1, bounds=None))
    with pytest.raises(
        ValueError, match=r"moves the inputs x, and PPO reads none.*name another by field='observation'"
    ):
        learner(PPO(), strategy).fit(Walk())
    with pytest.raises(ValueError, match="batches are drawn by the learner's own actions"):
        learner(REINFORCE(), AdversarialTraining(PGD(bounds=None), field="observation")).fit(Walk())
    with pytest.raises(ValueError, match=r"a source that tells the range of its rows.*give it bounds=\(low, high\)"):
        learner(PPO(), AdversarialTraining(PGD(eps=0.1), field="observation")).fit(Walk())
