"""A kernel density: nothing is descended, the rows themselves are kept."""

import math

import torch

from weft.core import Objective, Output, capability
from weft.core.legal import Number
from weft.core.random import normal, uniform


class Kernels(Objective):
    """The mean of normals around the rows."""

    fields = ("x",)
    likelihood = True
    solved = True
    legal = {"bandwidth": Number(0, ends="()")}

    def __init__(self, *, bandwidth=0.5):
        super().__init__()
        self.bandwidth = bandwidth

    def build(self, spec):
        self.register_buffer("rows", torch.empty(0, *spec["x"].shape))

    def solve(self, source, state):
        return {"rows": torch.cat([batch["x"] for batch in source.once(state, 1024)])}

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        n, d = self.rows.shape
        squares = ((x.unsqueeze(1) - self.rows) ** 2).sum(-1) / self.bandwidth**2
        return torch.logsumexp(-0.5 * squares, 1) - math.log(n) - d * math.log(self.bandwidth * math.sqrt(2 * math.pi))

    @capability(merge="share", kind="direct")
    def sample(self, n):
        chosen = (uniform((n,), place="row", dtype=torch.float64) * len(self.rows)).long()
        noise = normal((n, *self.rows.shape[1:]), place="noise", dtype=self.rows.dtype)
        return self.rows[chosen] + self.bandwidth * noise
