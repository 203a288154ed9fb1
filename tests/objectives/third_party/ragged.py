"""Sequences of unequal length: a net of each element, their mean, a label for the whole."""

import torch
import torch.nn.functional as F
from torch import nn

from weft.core import Objective, Output, capability


class Pooled(Objective):
    """A deep set (Zaheer et al., 2017): what a row has beyond its length does not count."""

    kinds = {"x": "sequences"}
    targets = "classes"
    likelihood = True

    def __init__(self, *, width=16):
        super().__init__()
        self.width = width

    def build(self, spec):
        self.each = nn.Sequential(nn.Linear(spec["x"].shape[-1], self.width), nn.Tanh())
        self.head = nn.Linear(self.width, spec["y"].classes)

    def logits(self, x, x_length):
        there = (torch.arange(x.shape[1], device=x.device) < x_length[:, None]).unsqueeze(-1)
        return self.head((self.each(x) * there).sum(1) / x_length[:, None])

    def forward(self, batch, player=""):
        logits = self.logits(batch["x"], batch["x_length"])
        return Output(F.cross_entropy(logits, batch["y"], reduction="none"))

    @capability(finish=lambda shares: shares.argmax(-1))
    def predict(self, x, x_length):
        return self.logits(x, x_length).softmax(-1)
