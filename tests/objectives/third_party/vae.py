"""A variational autoencoder, with the importance-weighted estimate of its likelihood."""

import math

import torch
from torch import nn
from torch.distributions import Normal

from weft.core import Objective, Output, capability
from weft.core.random import normal


class VAE(Objective):
    """x = f(z) + noise, z ~ N(0, I); the posterior is a normal that a net gives."""

    fields = ("x",)
    likelihood = True

    def __init__(self, *, latent=2, width=16):
        super().__init__()
        self.latent, self.width = latent, width

    def build(self, spec):
        (d,) = spec["x"].shape
        self.encoder = nn.Sequential(nn.Linear(d, self.width), nn.Tanh(), nn.Linear(self.width, 2 * self.latent))
        self.decoder = nn.Sequential(nn.Linear(self.latent, self.width), nn.Tanh(), nn.Linear(self.width, d))
        self.log_noise = nn.Parameter(torch.zeros(()))

    def weights(self, x, draws):
        """log p(x, z) - log q(z | x) for some draws of z, (n, draws)."""
        mean, log_scale = self.encoder(x).chunk(2, -1)
        q = Normal(mean.unsqueeze(1), log_scale.exp().unsqueeze(1))
        z = q.mean + q.scale * normal((len(x), draws, self.latent), place="z", dtype=x.dtype)
        given = Normal(self.decoder(z), self.log_noise.exp()).log_prob(x.unsqueeze(1)).sum(-1)
        return given + Normal(0.0, 1.0).log_prob(z).sum(-1) - q.log_prob(z).sum(-1)

    def forward(self, batch, player=""):
        return Output(-self.weights(batch["x"], 1).mean(-1))

    @capability(merge="logmeanexp", kind="lower bound")
    def log_prob(self, x, *, draws=1):
        return torch.logsumexp(self.weights(x, draws), -1) - math.log(draws)

    @capability(merge="share", kind="direct")
    def sample(self, n):
        mean = self.decoder(normal((n, self.latent), place="z", dtype=self.log_noise.dtype))
        return mean + self.log_noise.exp() * normal(mean.shape, place="x", dtype=mean.dtype)

    @capability(merge="refuse")
    def transform(self, x):
        return self.encoder(x)[:, : self.latent]
