"""PPO: a policy improved in several passes over what it has played, as far as a clipped ratio lets it."""

from itertools import pairwise
from math import prod

import torch
from torch import nn

from weft.core import Objective, Output, capability
from weft.core.corpus import explained_variance
from weft.core.random import categorical
from weft.sources import Segments


def mlp(inputs, outputs, hidden):
    sizes = (inputs, *hidden)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], outputs))


class PPO(Objective):
    """Schulman, Wolski, Dhariwal, Radford and Klimov, arXiv 1707.06347, with generalized advantages (1506.02438).

    loss = -min(r A, clip(r, 1 - eps, 1 + eps) A) + c (V(s) - R)^2 - h H,    r = pi(a | s) / pi_played(a | s)
    """

    on_policy = False  # the ratio makes rows of the last segment right
    fields = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
    progress = ("return", "max")
    provides = frozenset({"logits"})

    def __init__(self, *, hidden=(64, 64), discount=0.98, trace=0.8, eps=0.2, value=0.5, entropy=0.0):
        super().__init__()
        self.hidden, self.discount, self.trace, self.eps = hidden, discount, trace, eps
        self.value, self.entropy = value, entropy

    @property
    def bootstraps(self):
        return self.discount  # where play is cut, what follows counts on

    def plays(self, world, **settings):
        return Segments(world, **{"envs": 8, "length": 32, "passes": 20, "batch_size": 256, **settings})

    def build(self, spec):
        inputs = prod(spec["observation"].shape)
        self.policy = mlp(inputs, spec["action"].classes, self.hidden)
        self.critic = mlp(inputs, 1, self.hidden)

    def _values(self, observation, lead):
        return self.critic(observation.flatten(0, lead - 1)).reshape(observation.shape[:lead])

    def credit(self, batch):
        """Advantages and returns of a segment (environments, time), and how probable the actions were."""
        value, after = self._values(batch["observation"], 2), self._values(batch["next_observation"], 2)
        error = batch["reward"] + self.discount * after * ~batch["terminated"] - value
        kept = self.discount * self.trace * ~(batch["terminated"] | batch["truncated"])
        last, advantages = torch.zeros_like(value[:, 0]), []
        for t in reversed(range(value.shape[1])):
            last = error[:, t] + kept[:, t] * last
            advantages.append(last)
        advantage = torch.stack(advantages[::-1], 1)
        logits = self.policy(batch["observation"].flatten(0, 1)).unflatten(0, value.shape)
        played = logits.log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return {"advantage": scaled, "goal": advantage + value, "played": played}

    def forward(self, batch, player=""):
        logits = self.policy(batch["observation"]).log_softmax(-1)
        ratio = (logits.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1) - batch["played"]).exp()
        gain = batch["advantage"]
        policy = -torch.minimum(ratio * gain, ratio.clamp(1 - self.eps, 1 + self.eps) * gain)
        value = (self._values(batch["observation"], 1) - batch["goal"]).square()
        entropy = -(logits.exp() * logits).sum(-1)
        return Output(policy + self.value * value - self.entropy * entropy, logits=logits)

    def measure(self, batch):
        """How undecided the policy is, how far it has moved from what was played, and what the critic explains."""
        output = self(batch)
        law = output.logits
        moved = batch["played"] - law.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        told = {"entropy": -(law.exp() * law).sum(-1), "kl": (-moved).exp() - 1 + moved}
        return {"loss": output.losses, **told, "explained_variance": self._explained(batch)}

    def _explained(self, batch):
        return explained_variance(self._values(batch["observation"], 1), batch["goal"])

    def sample_action(self, observation):
        return categorical(self.policy(observation), place="action")

    @capability(merge="refuse")
    def act(self, observation):
        return self.policy(observation).argmax(-1)
