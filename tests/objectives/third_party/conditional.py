"""A conditional density: p(y | x) is a mixture of normals whose numbers a net gives from x."""

import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

from weft.core import Objective, Output, capability
from weft.core.random import categorical, normal


class MixtureDensity(Objective):
    """A mixture density network (Bishop, 1994)."""

    likelihood = True

    def __init__(self, *, components=3, width=16):
        super().__init__()
        self.components, self.width = components, width

    def build(self, spec):
        inputs = spec["x"].shape[0]
        self.net = nn.Sequential(nn.Linear(inputs, self.width), nn.Tanh(), nn.Linear(self.width, 3 * self.components))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["y"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, y):
        logits, mean, log_scale = self.net(x).chunk(3, -1)
        parts = MixtureSameFamily(Categorical(logits=logits), Normal(mean, log_scale.exp()), validate_args=False)
        return parts.log_prob(y)

    @capability(merge="refuse", kind="direct", asks="rows", gives="")
    def sample_y(self, x):
        logits, mean, log_scale = self.net(x).chunk(3, -1)
        k = categorical(logits, place="component").unsqueeze(-1)
        noise = normal((len(x),), place="noise", dtype=x.dtype)
        return mean.gather(-1, k).squeeze(-1) + log_scale.exp().gather(-1, k).squeeze(-1) * noise

    @capability()
    def predict(self, x):
        logits, mean, _ = self.net(x).chunk(3, -1)
        return (torch.softmax(logits, -1) * mean).sum(-1)
