"""Episodes as rows: the support part makes a prototype of each class, the query part is judged by the nearest."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from weft.core import Objective, Output, capability, reduce


class Prototypes(Objective):
    """Prototypical networks (Snell, Swersky and Zemel, 2017)."""

    episodic = True
    adapts = True
    targets = "classes"
    progress = ("accuracy", "max")

    def __init__(self, *, hidden=32, width=16):
        super().__init__()
        self.hidden, self.width = hidden, width

    def build(self, spec):
        inputs, self.classes = math.prod(spec["x"].shape), spec["y"].classes
        self.net = nn.Sequential(nn.Linear(inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.width))
        self.register_buffer("means", torch.zeros(self.classes, self.width))
        self.register_buffer("counts", torch.zeros(self.classes))

    def prototypes(self, rows):
        """Of each class the weighted mean of its codes, and how much weight it has."""
        member = (rows["y"].unsqueeze(-1) == torch.arange(self.classes, device=rows["y"].device)).to(self.means.dtype)
        member = member * rows["weight"].unsqueeze(-1) if "weight" in rows else member
        counts = member.sum(-2)
        return member.mT @ self.net(rows["x"].flatten(rows["y"].dim())) / counts.clamp_min(1.0).unsqueeze(-1), counts

    def logits(self, x, means, counts):
        """Minus the squared distances; a class without support is infinitely far."""
        codes = self.net(x.flatten(means.dim() - 1))
        distances = (codes.unsqueeze(-2) - means.unsqueeze(-3)).square().sum(-1)
        return -distances + torch.where(counts > 0, 0.0, -torch.inf).unsqueeze(-2)

    def judged(self, batch):
        """Losses and hits of the query parts."""
        query = batch["query"]
        logits, y = self.logits(query["x"], *self.prototypes(batch["support"])), query["y"]
        losses = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").reshape(y.shape)
        return [reduce(each, query.get("weight")) for each in (losses, (logits.argmax(-1) == y).to(losses.dtype))]

    def forward(self, batch, player=""):
        return Output(self.judged(batch)[0])

    def measure(self, batch):
        return dict(zip(("loss", "accuracy"), self.judged(batch), strict=True))

    def adapt(self, batch):
        return dict(zip(("means", "counts"), self.prototypes(batch), strict=True))

    @capability(finish=lambda shares: shares.argmax(-1))
    def predict(self, x):
        if not bool((self.counts > 0).any()):
            raise ValueError("expected a few examples first, got none; ask learner.adapt(X, y).predict(...)")
        return self.logits(x, self.means, self.counts).softmax(-1)
