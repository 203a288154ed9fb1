"""A fine-tuned encoder: taken from a trained autoencoder, frozen, with a fresh head."""

import torch.nn.functional as F
from torch import nn

from weft.core import Objective, Output, capability


def encoder(inputs):
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Tanh())


class Autoencoder(Objective):
    """Learns x from x, through few numbers."""

    fields = ("x",)

    def build(self, spec):
        (d,) = spec["x"].shape
        self.net = nn.ModuleDict({"encoder": encoder(d), "decoder": nn.Linear(8, d)})

    def forward(self, batch, player=""):
        return Output(((self.net["decoder"](self.transform(batch["x"])) - batch["x"]) ** 2).sum(-1))

    @capability(merge="refuse")
    def transform(self, x):
        return self.net["encoder"](x)


class Headed(Objective):
    """Classes from an encoder, `init={"net.encoder.*": autoencoder}`."""

    targets = "classes"
    likelihood = True

    def build(self, spec):
        self.net = nn.ModuleDict({"encoder": encoder(spec["x"].shape[0]), "head": nn.Linear(8, spec["y"].classes)})

    def forward(self, batch, player=""):
        return Output(F.cross_entropy(self.logits(batch["x"]), batch["y"], reduction="none"))

    def logits(self, x):
        return self.net["head"](self.net["encoder"](x))

    @capability(finish=lambda shares: shares.argmax(-1))
    def predict(self, x):
        return self.logits(x).softmax(-1)
