"""check_density passes what is a density, and catches what is not: a mutant for each thing that it looks at."""

import numpy as np
import pytest
import torch
from torch import nn

from weft.core import capability
from weft.core.random import bernoulli, normal
from weft.objectives.densities import Density
from weft.testing import ContractError, check_density, every_row

rng = np.random.default_rng(0)
BITS = (rng.random((200, 3)) < [0.2, 0.5, 0.7]).astype(float)
LINE = rng.normal(1.0, 2.0, size=(200, 1))
QUICK = {"steps": 60, "batch_size": None}


class Bits(Density):
    """Independent coins; what is broken is told."""

    gaps = True

    def __init__(self, *, broken=""):
        super().__init__()
        self.broken = broken

    def build(self, spec):
        self.logit = nn.Parameter(torch.zeros(spec["x"].shape))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed):
        each = torch.distributions.Bernoulli(logits=self.logit).log_prob(x.clamp(0, 1))
        if self.broken == "no normalizer":
            each = x * self.logit
        if self.broken == "a factor twice":
            each = torch.cat([each, each[:, :1]], -1)
            observed = torch.cat([observed, observed[:, :1]], -1)
        if self.broken == "gaps ignored":
            observed = torch.ones_like(observed)
        total = (each * observed).sum(-1)
        if self.broken == "rows mixed":
            return total - 0.1 * total.mean()
        return total

    @capability(merge="share", kind="direct")
    def sample(self, n):
        share = self.logit.sigmoid()
        return bernoulli((1 - share if self.broken == "samples" else share).expand(n, -1), place="x")

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x, observed):
        drawn = bernoulli(self.logit.sigmoid().expand(x.shape), place="impute")
        if self.broken == "imputed by the likeliest":
            drawn = (self.logit > 0).to(x).expand(x.shape)
        if self.broken == "imputed over":
            return drawn
        return torch.where(observed, x, drawn)


def test_a_density_of_bits_passes():
    check_density(Bits(), BITS, support=every_row([2, 2, 2]), settings=QUICK)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("no normalizer", "total probability of 1 by enumeration"),
        ("a factor twice", "total probability of 1 by enumeration"),
        ("rows mixed", "the density of row 0 alone"),
        ("samples", "samples with the frequencies"),
        ("gaps ignored", "the density of what is observed"),
        ("imputed over", "impute to keep what was observed"),
        ("imputed by the likeliest", "imputed values with the frequencies"),
    ],
)
def test_mutants_are_caught(broken, told):
    with pytest.raises(ContractError, match=told):
        check_density(Bits(broken=broken), BITS, support=every_row([2, 2, 2]), settings=QUICK)


class Line(Density):
    """A normal, its density bounded or estimated by draws of a latent: x = z + e, z ~ N(m, s^2), e ~ N(0, 1)."""

    def __init__(self, *, broken=""):
        super().__init__()
        self.broken = broken

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(1))
        self.log_scale = nn.Parameter(torch.zeros(1))

    def given(self, x):
        """log p(x | z) for some z of the prior."""
        z = self.mean + self.log_scale.exp() * normal((len(x), 64), place="z", dtype=x.dtype)
        return torch.distributions.Normal(z, 1.0).log_prob(x)

    @capability(merge="logmeanexp", kind="lower bound")
    def log_prob(self, x):
        if self.broken == "upper":
            return self.exact(x) + 0.01
        logs = self.given(x)
        if self.broken == "log of a mean":  # of the squares, say: no bound any more
            return 0.5 * (torch.logsumexp(2 * logs, -1) - np.log(64))
        return logs.mean(-1)  # Jensen: E log p(x | z) <= log E p(x | z)

    def exact(self, x):
        scale = (1 + (2 * self.log_scale).exp()).sqrt()
        return torch.distributions.Normal(self.mean, scale).log_prob(x).sum(-1)


@pytest.mark.parametrize("broken", ["", "upper", "log of a mean"])
def test_a_bound_is_one(broken):
    truth = {}

    def exact(rows):
        model = truth["learner"].objective_
        with torch.no_grad():
            return model.exact(torch.as_tensor(rows)).numpy()

    class Told(Line):
        def build(self, spec):
            super().build(spec)
            truth["learner"] = type("Held", (), {"objective_": self})

    if not broken:
        check_density(Told(), LINE, box=[(-15, 15)], exact=exact, settings={**QUICK, "steps": 3})
        return
    with pytest.raises(ContractError, match=r"as lower bound says|at most 1"):
        check_density(Told(broken=broken), LINE, box=[(-15, 15)], exact=exact, settings={**QUICK, "steps": 3})


def test_what_is_asked_must_be_clear():
    with pytest.raises(TypeError, match=r"expected support .* or box"):
        check_density(Bits(), BITS, settings=QUICK)
    with pytest.raises(ValueError, match="a box for one or two columns"):
        check_density(Bits(), BITS, box=[(0, 1)] * 3, settings=QUICK)
