"""DQN: what each action is worth, learned from a memory of steps towards a slow copy's word."""

from itertools import pairwise
from math import prod

import torch
from torch import nn
from torch.nn.functional import huber_loss

from weft.core import Objective, Output, capability
from weft.nets import SlowCopy
from weft.sources import Replay


class DQN(Objective):
    """Mnih et al., Nature 518, 2015; with `double`, van Hasselt, Guez and Silver, arXiv 1509.06461.

    loss = huber(Q(s, a) - r - discount (1 - terminated) max_a' Q_slow(s', a'))
    """

    on_policy = False
    fields = ("observation", "action", "reward", "next_observation", "terminated")
    progress = ("return", "max")
    carried = ("target.*",)

    def __init__(self, *, hidden=(256, 256), discount=0.99, renew=128, rate=1.0, double=False):
        super().__init__()
        self.hidden, self.discount, self.renew, self.rate, self.double = hidden, discount, renew, rate, double

    @property
    def bootstraps(self):
        return self.discount  # where play is cut, what follows counts on

    def plays(self, world, **settings):
        own = {"envs": 1, "start": 1000, "every": 4, "updates_each": 4, "explore": (1.0, 0.04, 0.16)}
        return Replay(world, **{**own, **settings})

    def build(self, spec):
        sizes = (prod(spec["observation"].shape), *self.hidden)
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.net = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], spec["action"].classes))
        self.target = SlowCopy(self.net, rate=self.rate, every=self.renew)

    def _errors(self, batch):
        if self.training:
            self.target.follow(self.net)
        worth = self.net(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            after = self.target(batch["next_observation"])
            best = self.net(batch["next_observation"]) if self.double else after
            after = after.gather(-1, best.argmax(-1, keepdim=True)).squeeze(-1)
        return worth, batch["reward"] + self.discount * after * ~batch["terminated"]

    def forward(self, batch, player=""):
        return Output(huber_loss(*self._errors(batch), reduction="none"))

    def priority(self, batch):
        """How wrong it is about each step."""
        worth, goal = self._errors(batch)
        return (worth - goal).abs()

    def sample_action(self, observation):
        return self.act(observation)  # the source explores

    @capability(merge="refuse")
    def act(self, observation):
        return self.net(observation).argmax(-1)
