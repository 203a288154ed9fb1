"""Episodes as rows: a code of the support part, drawn for each episode, conditions predictions of the query part."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from weft.core import Objective, Output, capability, reduce
from weft.core.random import normal


class NeuralProcess(Objective):
    """Neural processes (Garnelo et al., 2018): one code of a task, from the mean over its rows."""

    episodic = True
    adapts = True

    def __init__(self, *, hidden=32, latent=4):
        super().__init__()
        self.hidden, self.latent = hidden, latent

    def build(self, spec):
        inputs, outputs = spec["x"].shape[0], spec["y"].shape[0]
        self.encoder = nn.Sequential(nn.Linear(inputs + outputs, self.hidden), nn.Tanh())
        self.code = nn.Linear(self.hidden, 2 * self.latent)
        self.decoder = nn.Sequential(nn.Linear(inputs + self.latent, self.hidden), nn.Tanh())
        self.head = nn.Linear(self.hidden, 2 * outputs)
        self.register_buffer("task", torch.zeros(self.latent))

    def posterior(self, *parts):
        """The law of the code, given all rows of some parts."""
        x, y = (torch.cat([part[name] for part in parts], -2) for name in "xy")
        weight = torch.cat([part.get("weight", torch.ones_like(part["x"][..., 0])) for part in parts], -1)
        mean = reduce(self.encoder(torch.cat([x, y], -1)).movedim(-1, 0), weight).movedim(0, -1)
        center, scale = self.code(mean).chunk(2, -1)
        return Normal(center, 0.1 + 0.9 * torch.sigmoid(scale), validate_args=False)

    def predicted(self, x, code):
        center, scale = self.head(self.decoder(torch.cat([x, code.expand(*x.shape[:-1], -1)], -1))).chunk(2, -1)
        return Normal(center, 0.1 + nn.functional.softplus(scale), validate_args=False)

    def forward(self, batch, player=""):
        support, query = batch["support"], batch["query"]
        before, after = self.posterior(support), self.posterior(support, query)
        code = after.loc + after.scale * normal(after.loc.shape, place="code", dtype=after.loc.dtype)
        likelihood = self.predicted(query["x"], code.unsqueeze(-2)).log_prob(query["y"]).sum(-1)
        return Output(reduce(-likelihood, query.get("weight")) + kl_divergence(after, before).sum(-1))

    def adapt(self, batch):
        return {"task": self.posterior(batch).loc}

    @capability()
    def predict(self, x):
        return self.predicted(x, self.task).mean
