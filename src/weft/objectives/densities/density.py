"""What every model of p(x) shares."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.objective import Objective, Output
from weft.core.source import Batch

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
    """

    fields = ("x",)
    columns = "values"
    likelihood = True

    def forward(self, batch: Batch, player: str = "") -> Output:
        return Output(-self.log_prob(*(batch[name] for name in ("x", *self.companions))))

    def log_prob(self, *fields: Tensor) -> Tensor:
        """log p of each row."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prob(x)")

    def free_parameters(self) -> int:
        """How many numbers are estimated, as AIC and BIC count them."""
        return sum(p.numel() for p in self.parameters())

    def refuse_constant(self, x: Tensor, names: tuple[str, ...] = ()) -> None:
        """Raises where a column does not vary: a density would grow without bound on it."""
        same = (x == x[:1]).all(0) if len(x) else torch.zeros(x.shape[1:], dtype=torch.bool)
        if bool(same.any()):
            j = int(torch.nonzero(same)[0, 0])
            name = names[j] if names else f"column {j}"
            raise ValueError(
                f"expected numbers that vary for {type(self).__name__}, got {x[0, j].item():g} in every row of {name}, "
                "whose density would have no bound; leave the column out, or model it as a category"
            )
