"""Segmentation: a small U-Net gives a label to every pixel."""

import torch
import torch.nn.functional as F
from torch import nn

from weft.core import Objective, Output, capability


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


class Segmentation(Objective):
    """Cross-entropy over pixels; y is a mask of labels (n, height, width)."""

    likelihood = True
    kinds = {"x": "images", "y": "classes"}
    targets = "classes"

    def __init__(self, *, width=8):
        super().__init__()
        self.width = width

    def build(self, spec):
        channels, width = spec["x"].shape[0], self.width
        self.down, self.deep = block(channels, width), block(width, 2 * width)
        self.up, self.head = block(3 * width, width), nn.Conv2d(width, spec["y"].classes, 1)

    def logits(self, x):
        first = self.down(x)
        second = F.interpolate(self.deep(F.max_pool2d(first, 2)), scale_factor=2)
        return self.head(self.up(torch.cat([first, second], 1)))

    def forward(self, batch, player=""):
        return Output(F.cross_entropy(self.logits(batch["x"]), batch["y"], reduction="none").sum((-2, -1)))

    def measure(self, batch):
        right = (self.logits(batch["x"]).argmax(1) == batch["y"]).to(torch.float32).mean((-2, -1))
        return {**super().measure(batch), "pixels": right}

    @capability(finish=lambda shares: shares.argmax(1))
    def predict(self, x):
        return self.logits(x).softmax(1)
