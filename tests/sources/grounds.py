"""Small worlds and policies for tests, and a state that acts."""

import copy

import torch
from torch import nn

from weft import Optimizer
from weft.core import Field, Objective, Output, capability
from weft.core.random import fold, key_of, unit
from weft.engine.build import build
from weft.engine.engine import Engine
from weft.engine.replicas import begun
from weft.strategies import ERM


class Walk:
    """A walk on a line from a random place; it slips now and then, and ends at either end, of worth at the right."""

    action = Field((), torch.int64, classes=2)

    def __init__(self, size=6, slip=0.2, horizon=9):
        self.size, self.slip, self.horizon = size, slip, horizon
        self.observation = Field((2,), torch.float32)

    def see(self, position):
        return torch.stack([position / self.size, (position % 2).float()], -1)

    def reset(self, keys):
        position = 1 + (unit(keys, ()) * (self.size - 1)).long().clamp_max(self.size - 2)
        return position, self.see(position)

    def step(self, position, action, keys):
        slips = unit(keys, ()) < self.slip
        after = (position + (2 * action - 1) * torch.where(slips, -1, 1)).clamp(0, self.size)
        done = (after == 0) | (after == self.size)
        return after, self.see(after), (after == self.size).float() - 0.01, done


class Guarded(Walk):
    """One may go right only from even places; the position is a tree."""

    def reset(self, keys):
        position, seen = super().reset(keys)
        return {"place": position, "more": (seen.double(),)}, seen

    def step(self, position, action, keys):
        after, seen, reward, done = super().step(position["place"], action, keys)
        return {"place": after, "more": (seen.double(),)}, seen, reward, done

    def legal(self, position):
        right = position["place"] % 2 == 0
        return torch.stack([torch.ones_like(right), right], -1)


class Policy(Objective):
    """A linear policy; it credits rows with the rewards that follow in the segment, if it is told to."""

    on_policy = False
    fields = ("observation", "action", "reward")

    def build(self, spec):
        self.net = nn.Linear(spec["observation"].shape[0], spec["action"].classes)

    def forward(self, batch, player=""):
        return Output(
            self.net(batch["observation"].flatten(0, -2))
            .square()
            .mean(-1)
            .reshape(batch["reward"].shape[0], -1)
            .mean(-1)
        )

    def sample_action(self, observation):
        from weft.core.random import categorical

        return categorical(3.0 * self.net(observation), place="action")

    @capability(merge="refuse")
    def act(self, observation):
        return self.net(observation).argmax(-1)


class Crediting(Policy):
    def credit(self, batch):
        assert batch["reward"].dim() == 2  # (environments, time)
        return {"following": batch["reward"].flip(1).cumsum(1).flip(1)}


class Whole(Crediting):
    trajectories = True


class Remembering(Policy):
    """Counts the steps of an episode, and acts by that alone."""

    def start(self, count):
        return {"steps": torch.zeros(count, dtype=torch.int64), "seen": torch.zeros(count, 2)}

    def sample_action(self, observation, memory):
        steps = memory["steps"]
        return steps % 2, {"steps": steps + 1, "seen": memory["seen"] + observation.to(memory["seen"].dtype)}

    act = capability(merge="refuse")(sample_action)


def state_of(source, objective, seeds=(0,), dtype=torch.float32):
    """(engine, state) of an objective that is about to learn from a source; one run for one seed, else replicas."""
    built = build(copy.deepcopy(objective), source.spec, 0, dtype)
    replicas = len(seeds) if len(seeds) > 1 else None
    engine = Engine(built, ERM(), {"": Optimizer("sgd", lr=0.1)}, grouped=source.grouped, replicas=replicas)
    state = engine.init(list(seeds), torch.device("cpu"))
    state.planned = 100
    state.source = begun(source, state)
    return engine, state


def keys_of(seed, place, rows):
    return fold(fold(key_of(seed), place), torch.arange(rows))
