"""Soft actor-critic: gradients against integration and enumeration, targets by hand, and a temperature that speaks."""

import contextlib
import math
import warnings

import numpy as np
import pytest
import torch
from tests.objectives.control.test_dqn import Boxed, Two
from tests.sources.grounds import Guarded, Walk
from torch import nn

import weft
from weft import Learner, Optimizer
from weft.core import Field
from weft.core.random import key_of, keyed
from weft.data import CartPole, Pendulum
from weft.engine import Diverged
from weft.objectives import DQN, SAC, TD3
from weft.sources import Replay, Rollouts
from weft.testing import check_objective

SMALL = {"envs": 2, "capacity": 64, "start": 32, "batch_size": 16, "every": 4, "updates_each": 2}
SPEC = {
    "observation": Field((2,), torch.float32),
    "action": Field((1,), torch.float32, low=(-2.0,), high=(2.0,)),
    "reward": Field((), torch.float32),
    "next_observation": Field((2,), torch.float32),
    "terminated": Field((), torch.bool),
    "truncated": Field((), torch.bool),
}
FINITE = {**SPEC, "action": Field((), torch.int64, classes=3)}


def built(spec=SPEC, cls=SAC, seed=0, **settings):
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        objective = cls(**{"hidden": (8,), "discount": 0.5, **settings})
        objective.build(spec)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        if "temperature" in objective.players:
            objective.temperature.log.fill_(math.log(0.3))
        for value in objective.slow.buffers():
            if value.is_floating_point():
                value.mul_(0.7).add_(0.1)  # another word than that of now
    return objective.double().eval()


def batch_of(rows, finite=False, seed=1):
    torch.manual_seed(seed)
    action = torch.randint(3, (rows,)) if finite else 4 * torch.rand(rows, 1, dtype=torch.float64) - 2
    return {
        "observation": torch.randn(rows, 2, dtype=torch.float64),
        "action": action,
        "reward": torch.randn(rows, dtype=torch.float64),
        "next_observation": torch.randn(rows, 2, dtype=torch.float64),
        "terminated": torch.arange(rows) % 3 == 0,
        "truncated": torch.arange(rows) % 3 == 1,
    }


def integral(objective, observation, critics):
    """E[min_j Q_j(s, a)], E[log pi(a | s)] over the actions of one place, on a grid of them."""
    edge = 2.0 - 1e-5
    grid = torch.linspace(-edge, edge, 40_001, dtype=torch.float64).unsqueeze(-1)
    seen = observation.expand(len(grid), -1)
    log = objective.law.log_prob(objective._told(seen), grid)
    chance = log.exp()
    worth = critics(seen, grid).amin(0)
    width = 2 * edge / 40_000
    assert chance.sum().item() * width == pytest.approx(1.0, abs=2e-3)
    return (chance * worth).sum() * width, (chance * log).sum() * width


# --- the soft gradient -----------------------------------------------------------------------------------


def gradients(loss, objective):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(objective.actor.parameters()))])


class Hard(SAC):
    """A mutant: it forgets the entropy."""

    def _alpha(self):
        return 0.0


def agrees(cls):
    """Whether the mean gradient of the actor's loss is that of E[alpha log pi - min Q], by integration."""
    objective = built(cls=cls)
    observation = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    worth, log = integral(objective, observation, objective.critics)
    truth = gradients(0.3 * log - worth, objective)
    found = []
    for k in range(40):
        with keyed(key_of(k), torch.arange(2000)):
            losses = objective({"observation": observation.expand(2000, -1)}, "actor").losses
        found.append(gradients(losses.mean(), objective))
    draws = torch.stack(found)
    error = draws.std(0) / len(draws) ** 0.5
    live = error > 1e-12
    assert truth[live].norm() > 10 * error[live].norm()
    return bool(((draws.mean(0) - truth).abs()[live] < 4.5 * error[live]).all())


def test_the_soft_gradient_is_that_of_the_integral():
    assert agrees(SAC)
    assert not agrees(Hard)


def test_of_finitely_many_actions_it_is_exact():
    """sum_a pi(a) grad log pi(a) (alpha log pi(a) - min Q(a)), by enumeration of the score."""
    objective, batch = built(FINITE), batch_of(5, finite=True)
    losses = objective(batch, "actor").losses
    log = objective.actor(batch["observation"]).log_softmax(-1)
    worth = objective.critics(batch["observation"]).amin(0)
    torch.testing.assert_close(losses, (log.exp() * (0.3 * log - worth)).sum(-1))
    weight = (log.exp() * (0.3 * log - worth)).detach()
    torch.testing.assert_close(gradients(losses.sum(), objective), gradients((weight * log).sum(), objective))


# --- targets ---------------------------------------------------------------------------------------------


def surprise_by_hand(objective, batch, after):
    """From the soft values of the next places, in a loop."""
    found = []
    for i in range(len(batch["reward"])):
        goal = batch["reward"][i] + (0.0 if batch["terminated"][i] else 0.5 * after[i])
        says = objective._says(objective.critics, batch["observation"][i : i + 1], batch["action"][i : i + 1])
        found.append(0.5 * ((says[0, 0] - goal) ** 2 + (says[1, 0] - goal) ** 2))
    return torch.stack(found)


class Ended(SAC):
    """A mutant: takes a step that was cut for one that has ended."""

    def _surprise(self, batch):
        return super()._surprise({**batch, "terminated": batch["terminated"] | batch["truncated"]})


class Quick(SAC):
    """A mutant: its targets are not slow."""

    def _soft(self, critics, *rest):
        return super()._soft(self.critics, *rest)


class Single(SAC):
    """A mutant: believes the first critic alone."""

    def _soft(self, critics, *rest):
        return super()._soft(lambda *seen: critics(*seen)[:1], *rest)


@pytest.mark.parametrize("cls", [SAC, Hard, Ended, Quick, Single])
def test_targets_by_hand(cls):
    """By enumeration; each mutant has others."""
    batch, objective = batch_of(9, finite=True), built(FINITE, cls)
    log = objective.actor(batch["next_observation"]).log_softmax(-1)
    after = (log.exp() * (objective.slow(batch["next_observation"]).amin(0) - 0.3 * log)).sum(-1)
    found = objective(batch, "critics").losses
    assert torch.allclose(found, surprise_by_hand(objective, batch, after)) == (cls is SAC)


def test_targets_of_numbers_by_integration():
    batch, objective = batch_of(1), built()
    batch["terminated"] = torch.tensor([False])
    worth, log = integral(objective, batch["next_observation"], objective.slow)
    says = objective._says(objective.critics, batch["observation"], batch["action"])
    many = {n: v.expand(50_000, *v.shape[1:]) for n, v in batch.items()}
    with keyed(key_of(0), torch.arange(50_000)):
        losses = objective(many, "critics").losses
    # E of the losses has the variance of the target in it: look at their slope in Q, which is linear in the target.
    slope = torch.autograd.grad(losses.mean(), objective.critics.nets[0].head.bias)[0]
    expected = says[0, 0] - (batch["reward"] + 0.5 * (worth - 0.3 * log))
    torch.testing.assert_close(slope, expected, atol=0.02, rtol=0)
    with keyed(key_of(1), torch.arange(2000)):
        value = objective.value(batch["next_observation"].expand(2000, -1))
    slow = integral(objective, batch["next_observation"], objective.critics)
    assert value.mean().item() == pytest.approx((slow[0] - 0.3 * slow[1]).item(), abs=0.03)


def test_the_temperatures_gradient_is_the_entropy_that_is_too_much():
    objective, batch = built(FINITE, entropy=0.4), batch_of(6, finite=True)
    losses = objective(batch, "temperature").losses
    log = objective.actor(batch["observation"]).log_softmax(-1)
    surplus = -(log.exp() * log).sum(-1) - 0.4
    torch.testing.assert_close(losses, 0.3 * surplus)
    (slope,) = torch.autograd.grad(losses.sum(), objective.temperature.log)
    torch.testing.assert_close(slope, (0.3 * surplus).sum())  # falls where there is too much


def test_what_is_not_legal_is_never_done():
    legal = torch.tensor([[True, False, True]] * 5)
    spec = {**FINITE, "legal": Field((3,), torch.bool), "next_legal": Field((3,), torch.bool)}
    objective, batch = built(spec), {**batch_of(5, finite=True), "legal": legal, "next_legal": legal}
    assert {"legal", "next_legal"} < set(objective.fields)
    log = objective.actor(batch["observation"])[:, [0, 2]].log_softmax(-1)
    worth = objective.critics(batch["observation"]).amin(0)[:, [0, 2]]
    torch.testing.assert_close(objective(batch, "actor").losses, (log.exp() * (0.3 * log - worth)).sum(-1))
    assert (objective.act(batch["observation"], legal) != 1).all()
    assert np.isneginf(objective.q(batch["observation"], None, legal)[:, 1].tolist()).all()
    for player in objective.players:
        loss = objective(batch, player).losses.sum()
        own = [p for n, p in objective.named_parameters() if n.startswith(player)]
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, own))
    learner = Learner(SAC(hidden=(8,)), steps=6, random_state=0).fit(Replay(Guarded(), **SMALL))
    with pytest.raises(ValueError, match=r"expected legal beside what is observed, as SAC"):
        learner.act(torch.zeros(1, 2))


# --- in training -----------------------------------------------------------------------------------------


def test_the_copy_is_slow_and_follows_once_a_step():
    source = Replay(Walk(), **SMALL)
    engine, state = state_of_game(source, SAC(hidden=(4,), rate=0.25))
    name = "nets.0.head.weight"
    stream, expected = engine.batches(source, state), state.params[f"critics.{name}"].clone()
    for _ in range(4):
        now = state.params[f"critics.{name}"].clone()
        engine.step(state, next(stream))
        expected = expected + 0.25 * (now - expected)
        torch.testing.assert_close(state.buffers[f"slow.{name.replace('.', '__')}"], expected)
    assert not torch.allclose(state.params[f"critics.{name}"], expected)


def state_of_game(source, objective):
    from weft.engine.build import build
    from weft.engine.engine import Engine
    from weft.engine.replicas import begun
    from weft.strategies import ERM

    made = build(objective, source.spec, 0, torch.float32)
    engine = Engine(made, ERM(), {player: Optimizer("adam", lr=0.01) for player in made.players})
    state = engine.init([0], torch.device("cpu"))
    state.source = begun(source, state)
    return engine, state


@pytest.mark.parametrize("world", [Pendulum, Walk])
def test_replicas_are_single_runs(world):
    settings = {"steps": 8, "every": 1, "dtype": "float64"}
    source = Replay(world(), **SMALL)
    both = Learner(SAC(hidden=(8,)), replicas=2, random_state=3, **settings).fit(source)
    for k in range(2):
        alone = Learner(SAC(hidden=(8,)), random_state=3 + k, **settings).fit(source)
        mine, theirs = (m.training_.runs[0].state for m in (both.replica(k), alone))
        for name, value in {**theirs.params, **theirs.buffers}.items():
            torch.testing.assert_close({**mine.params, **mine.buffers}[name], value)
    assert {"entropy", "temperature", "q", "actor_loss", "critics_loss"} <= set(both.history_[-1])


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.2}], ids=str)
def test_the_contract_with_numbers_as_actions(settings):
    check_objective(SAC(hidden=(8,), **settings), Replay(Pendulum(), **SMALL))


@pytest.mark.parametrize("made", [SAC, TD3, DQN], ids=lambda made: made.__name__)
def test_an_interrupted_run_ends_as_it_would_have(made, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    settings = {"steps": 21, "every": 1, "random_state": 0, "replicas": 2}
    more = {"steps": 2, **SMALL, **({"temperature": (1.0, 0.1, 0.5)} if made is DQN else {})}
    world, objective = (Walk if made is DQN else Pendulum)(), made(hidden=(4,))
    whole = Learner(objective, **settings).fit(Replay(world, **more))

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] == 9:
            raise StopError

    with contextlib.suppress(StopError):
        Learner(objective, **settings, folder=tmp_path / "run", callbacks=[stop]).fit(Replay(world, **more))
    again = weft.load(tmp_path / "run", callbacks=[]).resume(Replay(world, **more))
    mine, theirs = (m.training_.runs[0].state for m in (again, whole))
    for name, value in {**theirs.params, **theirs.buffers}.items():
        assert torch.equal({**mine.params, **mine.buffers}[name], value), name


def test_answers():
    learner = Learner(SAC(hidden=(8,)), steps=4, random_state=0).fit(Replay(Pendulum(), **SMALL))
    seen, action = torch.randn(5, 3), torch.zeros(5, 1)
    assert learner.act(seen).shape == (5, 1)
    assert learner.q(seen, action=action).shape == (5,)
    assert np.asarray(learner.value(seen)).shape == (5,)
    with pytest.raises(ValueError, match=r"expected an action beside what is observed, .*give q\("):
        learner.q(seen)
    finite = Learner(SAC(hidden=(8,)), steps=4, random_state=0).fit(Replay(CartPole(), **SMALL))
    assert finite.q(torch.randn(5, 4)).shape == (5, 2)
    fixed = Learner(SAC(hidden=(8,), temperature=0.2), steps=4, random_state=0).fit(Replay(Pendulum(), **SMALL))
    assert fixed.history_[-1]["temperature"] == pytest.approx(0.2)
    assert "temperature_loss" not in fixed.history_[-1]


class Narrow(nn.Module):
    """An actor that cannot keep any entropy."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(3, 1)

    def forward(self, x):
        mean = self.mean(x)
        return torch.cat([mean, torch.full_like(mean, -6.0)], -1)


def test_a_temperature_that_runs_away_speaks():
    fast = {"temperature": Optimizer("adam", lr=1.0)}
    learner = Learner(SAC(Narrow, hidden=(8,)), steps=40, optimizer=fast, random_state=0)
    message = r"diverged at step \d+: the loss of 'temperature' .*has run away.*set a lower entropy \(entropy=...\), or"
    with pytest.raises(Diverged, match=message):
        learner.fit(Replay(Pendulum(), **SMALL))


@pytest.mark.parametrize("many", [{}, {"replicas": 2}], ids=str)
def test_a_temperature_that_is_about_to_run_away_warns(many):
    """A training that ends before the loss does says since when, and what to set; not where the entropy is kept."""
    fast = {"temperature": Optimizer("adam", lr=0.3)}
    settings = {"steps": 25, "optimizer": fast, "random_state": 0, "every": 1, **many}
    message = (
        r"keeps -1 nats of entropy, got -4.* above 100 since step 1\d and runs away: set a lower entropy \(entropy="
    )
    with pytest.warns(UserWarning, match=message):
        Learner(SAC(Narrow, hidden=(8,)), **settings).fit(Replay(Pendulum(), **SMALL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Learner(SAC(Narrow, hidden=(8,), temperature=0.2), **{**settings, "optimizer": None}).fit(
            Replay(Pendulum(), **SMALL)
        )
        Learner(SAC(Narrow, hidden=(8,), entropy=-15.0), **settings).fit(Replay(Pendulum(), **SMALL))


def test_a_high_temperature_alone_is_no_fault():
    """Where rewards are large it may be high; what is told is that it has no effect, of the last stretch."""
    objective = built(FINITE, entropy=0.4)

    def record(step, temperature, entropy):
        return {"step": step, "temperature": temperature, "entropy": entropy}

    assert objective.warns([record(1, 500.0, 0.5)]) is None
    assert objective.warns([record(1, 500.0, 0.1), record(2, 90.0, 0.1)]) is None
    rising = [record(1, 90.0, 0.1), record(2, 200.0, 0.1), record(3, 500.0, 0.1)]
    assert "above 100 since step 2 " in objective.warns(rising)
    both = record(7, np.array([1.0, 500.0]), np.array([0.5, 0.1]))
    assert "got 0.1 at a temperature of 500" in objective.warns([both])


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/replay.py")
def test_pendulum_is_learned():
    objective, adam = SAC(hidden=(64, 64)), Optimizer("adam", lr=1e-3)
    source = objective.plays(Pendulum(), batch_size=128, start=500)
    learner = Learner(objective, env_steps=5000, optimizer=adam, random_state=0).fit(source)
    judged = Rollouts(Pendulum(), envs=50, greedy=True).judge(learner.training_.runs[0].state)
    assert judged["return"] > -700  # chance earns -1,200


def test_numbers_are_kept_in_the_precision_of_the_run():
    """Actions that are drawn evenly come in the world's precision, those of the policy in its own."""
    source = Replay(Pendulum(), **SMALL, explore=0.5)
    learner = Learner(SAC(hidden=(4,)), steps=4, dtype="float64", random_state=0).fit(source)
    assert learner.training_.runs[0].state.source["memory"]["action"].dtype == torch.float64


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"entropy": 1.5},
            r"expected an entropy below 1.386.* nats, the most that there .*got 1.5: the temperature",
        ),
        ({"temperature": -0.1}, "expected SAC's temperature to be a number >= 0 or None"),
        ({"rate": 0.0}, r"expected SAC's rate to be a number in \(0, 1\]"),
        ({"actor": nn.Linear(3, 3)}, r"expected a actor whose answer .* has shape \(2, 2\)"),
        ({"critic": nn.Linear(4, 1)}, r"expected critic as something that makes nets, of which there are 2, got"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Learner(SAC(**settings), steps=1).fit(Replay(Pendulum()))


class Unbounded(Boxed):
    action = Field((1,), torch.float32)


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"expected actions between finite bounds.*got rows of choices; PPO"):
        Learner(SAC(), steps=1).fit(Replay(Two()))
    with pytest.raises(ValueError, match=r"expected actions between finite bounds.*got numbers without bounds; let"):
        Learner(SAC(), steps=1).fit(Replay(Unbounded(), explore=0.0))
    with pytest.raises(TypeError, match=r"expected a world that SAC learns in by acting.*got array"):
        Learner(SAC(), steps=1).fit(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="a player of SAC"):
        built()(batch_of(2), "critic")
