"""What every model of p(x) shares."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.objectives.densities.laws import Laws

__all__ = ["Density"]


class Density(Objective):
    """A model of p(x): `log_prob(x)` for each row, in nats, and mostly `sample(n)`.

    A subclass writes `build(spec)` and `log_prob`, marked with its kind:

        @capability(merge="logmeanexp", kind="exact", gives="density")
        def log_prob(self, x, observed=None): ...

    The loss is -log p(x), of what is observed where the model takes gaps (`gaps = True`, and an argument `observed`).
    A table is modelled column by column in the columns' own kinds (`weft.objectives.densities.laws`), and what is
    sampled or imputed comes back as such a table. One that is solved gives its parameters in `solve` (EM, closed forms)
    and says so; one that is descended needs nothing more.

    Densities of real numbers are in nats for the units in which x was given; those of whole numbers are probabilities.

    Attributes:
        entries: the laws of a row's entries, set by `build` where each has one. Rows outside of their support are then
            refused, before training begins with them and whatever the model is asked about them.
        varies: whether columns of real numbers must vary, which are refused else: where no floor keeps it, a density
            has no bound on those that do not.
    """

    fields: tuple[str, ...] = ("x",)
    columns = "values"
    likelihood = True
    entries: Laws | None = None
    varies: bool = True

    def forward(self, batch: Batch, player: str = "") -> Output:
        return Output(-self.log_prob(*(batch[name] for name in ("x", *self.companions))))

    def log_prob(self, *args: Any, **kwargs: Any) -> Tensor:
        """log p of each row."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prob(x)")

    def free_parameters(self) -> int:
        """How many numbers are estimated, as AIC and BIC count them."""
        return sum(p.numel() for p in self.parameters())

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        laws = self.entries
        if laws is None:
            return
        x, observed, weight = rows["x"], rows.get("observed"), rows.get("weight")
        laws.refuse(x, observed)
        if not training:
            return
        real = [j for j, law in enumerate(laws.laws) if law.continuous]
        if not real:
            return
        there = torch.ones_like(x, dtype=torch.bool) if observed is None else observed
        there = there if weight is None else there & (weight > 0).unsqueeze(-1)
        names = tuple(laws.names[j] for j in real)
        if self.varies:
            self.refuse_constant(x[:, real], names, there[:, real])
        whole = (~there | (x == x.floor()))[:, real].all(0)
        if bool(whole.any()) and "y" not in self.fields:  # classes are told apart by whole numbers as well
            told = ", ".join([name for name, odd in zip(names, whole.tolist(), strict=True) if odd][:5])
            warnings.warn(
                f"expected real numbers for the density of {type(self).__name__}, got whole ones alone in {told}, "
                "which have probabilities: name their law ('categorical', 'poisson' or 'bernoulli'), or make them real "
                "by dequantizing: X + rng.random(X.shape)",
                stacklevel=7,
            )

    def refuse_constant(self, x: Tensor, names: tuple[str, ...] = (), observed: Tensor | None = None) -> None:
        """Raises where a column does not vary, in what is observed of it: a density would grow without bound on it."""
        there = torch.ones_like(x, dtype=torch.bool) if observed is None else observed
        if not len(x):
            return
        low, high = torch.where(there, x, torch.inf).amin(0), torch.where(there, x, -torch.inf).amax(0)
        same = low >= high
        if bool(same.any()):
            j = int(torch.nonzero(same)[0, 0])
            name = names[j] if names else f"column {j}"
            got = f"{low[j].item():g} in every row of {name}" if bool(there[:, j].any()) else f"no value in {name}"
            raise ValueError(
                f"expected numbers that vary for {type(self).__name__}, got {got}, whose density would have no bound; "
                "leave the column out, or model it as a category"
            )
