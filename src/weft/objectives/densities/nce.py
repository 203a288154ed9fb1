"""Noise-contrastive estimation: any unnormalized density, learned with its normalizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.legal import WIDTHS, Choice, Such, Whole
from weft.core.objective import Objective, Output, Solution, capability
from weft.core.optimizer import Optimizer
from weft.core.random import bernoulli, normal, turns
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.nets.make import NET, make_net
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import laws_of
from weft.objectives.densities.rows import all_rows, weights_of

__all__ = ["NCE"]


def _density(value: object) -> bool:
    return isinstance(value, Objective) or isinstance(getattr(value, "objective_", None), Objective)


_NOISE = Choice("normal", "bernoulli") | Such("a fitted density", _density)


class NCE(Density):
    """Noise-contrastive estimation: a model without its normalizer learns to tell data from noise of a known density.

    With f(x) the model's log-density up to a constant, q the noise's density, nu draws y of it for each row, and c a
    parameter that stands for log Z, the log-odds of data against noise are

        g(x) = f(x) - c - log q(x) - log nu,      loss_i = -log sigmoid(g(x_i)) - sum_j log sigmoid(-g(y_ij)).

    At the minimum f - c is the log-density of the data, normalizer included, if the model can be it and the noise is
    there wherever the data are; with more noise the estimate of both comes closer to that of maximum likelihood. The
    nearer the noise to the data, the fewer draws are needed.

    `log_prob(x)` is f(x) - c: an estimate, since nothing but training makes c the normalizer of f. `ratio(x)` is
    log p(x) - log q(x), for which no normalizer is needed where q is one's own reference.

    Args:
        model: an `nn.Module` that gives one number for a row, a factory, a name, None for an MLP, or an objective with
            a method `log_unnormalized(x)`, such as `RBM()`.
        noise: `normal`, with the mean and covariance of the data; `bernoulli`, bits with their base rates; or a density
            that was fitted before, a Learner or its `objective_`, whose `log_prob` is exact and whose `sample` is no
            chain.
        draws: noise draws for each row, nu.
        hidden: hidden widths of the MLP.

    References:
        Gutmann and Hyvärinen, "Noise-contrastive estimation of unnormalized statistical models, with applications to
        natural image statistics", Journal of Machine Learning Research 13, 2012.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> class Square(nn.Module):  # exp(-x^2 / 2), whose normalizer is sqrt(2 pi)
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.precision = nn.Parameter(torch.ones(1))
        ...     def forward(self, x):
        ...         return -0.5 * self.precision * (x**2).sum(-1)
        >>> X = np.random.default_rng(0).normal(size=(2000, 1))
        >>> learner = Learner(NCE(Square, draws=5), steps=300, random_state=0).fit(X)
        >>> bool(abs(learner.objective_.log_normalizer.item() - 0.5 * np.log(2 * np.pi)) < 0.1), learner.log_prob.kind
        (True, 'estimate')
    """

    centre: Tensor
    factor: Tensor
    likelihood = False
    optimizer = Optimizer("adam", lr=0.01)
    carried = ("centre", "factor")
    legal = {"model": NET, "noise": _NOISE, "draws": Whole(1), "hidden": WIDTHS}

    def __init__(
        self, model: Any = None, *, noise: Any = "normal", draws: int = 1, hidden: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        self.model: Any = model  # a module, once built
        self.noise: Any = noise
        self.draws = draws
        self.hidden = hidden

    def validate(self) -> None:
        super().validate()
        fitted = self._fitted()
        if fitted is None:
            return
        marks, name = fitted.capabilities(), type(fitted).__name__
        told = {what: marks[what].kind if what in marks else "none" for what in ("log_prob", "sample")}
        if told["log_prob"] != "exact" or told["sample"] not in ("direct", "sequential"):
            raise ValueError(
                f"expected NCE's noise to have an exact log_prob and a sample that is no chain, got {name}, whose "
                f"log_prob is {told['log_prob']} and whose sample is {told['sample']}; its density must be known"
            )
        if not any(True for _ in fitted.parameters()):
            raise ValueError(f"expected NCE's noise to be fitted, got {name} as made; fit it with a Learner first")
        if getattr(self.noise, "recipe_", None) is not None:
            raise ValueError(
                f"expected NCE's noise to be fitted to an array, got {name} fitted to a table, whose columns were put "
                "into units of its own; give both the same array"
            )

    def _fitted(self) -> Objective | None:
        """The density that was fitted before, where that is the noise."""
        if isinstance(self.noise, str):
            return None
        return self.noise if isinstance(self.noise, Objective) else self.noise.objective_

    def build(self, spec: Spec) -> None:
        row, fitted = spec["x"], self._fitted()
        if fitted is not None:  # rows that it could not have drawn are refused
            self.entries = getattr(fitted, "entries", None)
        else:
            laws = self.entries = laws_of(row, "auto" if self.noise == "normal" else "bernoulli")
            if self.noise == "normal" and not all(law.continuous for law in laws.laws):
                raise ValueError(
                    "expected rows of real numbers for noise='normal', got columns of whole ones or categories; choose "
                    "noise='bernoulli' for bits, or a fitted density of such rows"
                )
        if isinstance(self.model, Objective):
            if not callable(getattr(self.model, "log_unnormalized", None)):
                raise TypeError(
                    f"expected NCE's model to have log_unnormalized(x), got {type(self.model).__name__}, whose density "
                    "comes with its normalizer: fit it as it is; or give an nn.Module"
                )
            self.model.build(spec)
        else:
            self.model = make_net(self.model, row, 1, hidden=self.hidden, what="model")
        columns = row.shape[0]
        self.log_normalizer = nn.Parameter(torch.zeros(()))
        self.register_buffer("centre", torch.zeros(columns))
        self.register_buffer("factor", torch.eye(columns))
        if fitted is not None:
            self.noise = fitted.requires_grad_(False)

    def reset_parameters(self) -> None:
        """The normalizer begins at 1."""
        nn.init.zeros_(self.log_normalizer)

    def survey(self, source: Source, state: State) -> Solution:
        """Mean and Cholesky factor of the data's covariance, or the logits of their base rates."""
        if not isinstance(self.noise, str):
            return {}
        rows = all_rows(source, state)
        x, weight = rows["x"].double(), weights_of(rows).double()
        share = weight / weight.sum()
        if self.noise == "bernoulli":
            return {"centre": torch.logit((weight @ x + 0.5) / (weight.sum() + 1))}
        mean = share @ x
        factor, wrong = torch.linalg.cholesky_ex((share[:, None] * (x - mean)).T @ (x - mean))
        if bool(wrong) or bool((factor.diagonal() < 1e-6 * x.std(0)).any()):
            raise ValueError(
                f"expected columns none of which follows from the others for noise='normal', got {len(x)} rows of "
                f"{x.shape[1]} columns with a singular covariance; leave some out, or give a fitted density"
            )
        return {"centre": mean, "factor": factor}

    def forward(self, batch: Batch, player: str = "") -> Output:
        x = batch["x"].to(self.log_normalizer.dtype)
        nu = int(self.draws)
        drawn = self._draw(len(x), nu).detach().flatten(0, 1)
        told = F.softplus(self.ratio(drawn) - math.log(nu)).reshape(len(x), nu)
        return Output(F.softplus(math.log(nu) - self.ratio(x)) + told.sum(1))

    def _draw(self, n: int, nu: int) -> Tensor:
        """Draws of the noise for each row, `(n, nu, columns)`."""
        if not isinstance(self.noise, str):
            return torch.stack([self.noise.sample(n) for _ in turns("noise", nu)], 1)
        shape = (n, nu, len(self.centre))
        if self.noise == "bernoulli":
            return bernoulli(self.centre.sigmoid().expand(shape), place="y")
        return self.centre + normal(shape, place="y", dtype=self.centre.dtype) @ self.factor.mT

    def _log_noise(self, x: Tensor) -> Tensor:
        """log q of each row."""
        if not isinstance(self.noise, str):
            logs: Tensor = self.noise.log_prob(x)
            return logs
        if self.noise == "bernoulli":
            return -F.softplus(torch.where(x > 0.5, -self.centre, self.centre)).sum(-1)
        z = torch.linalg.solve_triangular(self.factor, (x - self.centre).mT, upper=False)
        scale = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (z**2).sum(-2) - scale - 0.5 * len(self.centre) * math.log(2 * math.pi)

    def log_unnormalized(self, x: Tensor) -> Tensor:
        """f(x), the model's log-density up to a constant."""
        model: Any = self.model
        give = model.log_unnormalized if isinstance(model, Objective) else model
        found: Tensor = give(x).reshape(len(x))  # type: ignore[operator]
        return found

    @capability(merge="logmeanexp", kind="estimate", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p(x) with the normalizer that was learned: an estimate."""
        return self.log_unnormalized(x.to(self.log_normalizer.dtype)) - self.log_normalizer

    @capability(merge="mean", kind="estimate")
    def ratio(self, x: Tensor) -> Tensor:
        """log p(x) - log q(x): how much likelier a row is as data than as noise."""
        x = x.to(self.log_normalizer.dtype)
        return self.log_prob(x) - self._log_noise(x)
