"""A language model of characters: causal convolutions, text in and text out."""

import torch
import torch.nn.functional as F
from torch import nn

from weft.core import Objective, Output, capability
from weft.core.random import categorical, turns


class Characters(Objective):
    """p(text) = prod p(character | those before); a row counts by its characters, its end among them."""

    fields = ("x",)
    kinds = {"x": "tokens"}
    likelihood = True
    provides = frozenset({"mass"})

    def __init__(self, *, width=16, reach=4):
        super().__init__()
        self.width, self.reach = width, reach

    def build(self, spec):
        self.end = spec["x"].classes  # after the last character, and before the first
        self.embed = nn.Embedding(self.end + 1, self.width)
        self.conv, self.head = nn.Conv1d(self.width, self.width, self.reach), nn.Linear(self.width, self.end + 1)

    def logits(self, x):
        """Of each next character, (n, length + 1, characters + 1)."""
        before = F.pad(x, (self.reach, 0), value=self.end)
        return self.head(self.conv(self.embed(before).mT).mT.relu())

    def each(self, x, x_length):
        goal = F.pad(x, (0, 1)).masked_fill(torch.arange(x.shape[1] + 1) >= x_length[:, None], self.end)
        nats = F.cross_entropy(self.logits(x).mT, goal, reduction="none")
        return nats * (torch.arange(x.shape[1] + 1) <= x_length[:, None])

    def forward(self, batch, player=""):
        mass = batch["x_length"] + 1
        return Output(self.each(batch["x"], batch["x_length"]).sum(-1) / mass, mass=mass)

    @capability(merge="logmeanexp", kind="exact", gives="")
    def log_prob(self, x, x_length):
        return -self.each(x, x_length).sum(-1)

    @capability(merge="refuse", kind="sequential", gives="x")
    def generate(self, x, x_length, *, length=8, temperature=1.0):
        for _ in turns("character", length):
            logits = self.logits(x).gather(1, x_length[:, None, None].expand(-1, 1, self.end + 1))[:, 0]
            new = categorical(logits / temperature, place="next")
            x = F.pad(x, (0, 1)).scatter(1, x_length[:, None], new[:, None])
            x_length = x_length + (new != self.end)
        return {"x": x.clamp_max(self.end - 1), "x_length": x_length}
