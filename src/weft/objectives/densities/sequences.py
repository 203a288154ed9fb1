"""What models of sequences share: rows of unequal length, whose steps after the end never count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.legal import Whole
from weft.core.objective import Iterations, Output, Solution
from weft.core.random import fold, unit
from weft.core.source import Batch, Source
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.rows import all_rows

__all__ = ["SequenceDensity", "chosen_far_apart", "inside", "readable", "rising", "widened"]


class SequenceDensity(Density):
    """A density of a sequence given its length; a row is one sequence, `(length,)` or `(length, d)`.

    Rows are padded, and `x_length` says where each ends. What stands after the end has no part in anything.
    """

    single: bool  # whether a step is one number, and not several
    columns = "features"  # a row is a sequence and not a record of columns

    def forward(self, batch: Batch, player: str = "") -> Output:
        if "x_length" not in batch:
            raise ValueError(
                f"expected sequences for {type(self).__name__}, with their lengths, got rows of a table; give a list "
                "of arrays, (length,) or (length, values) each, or an array with a sequence in each row"
            )
        return Output(-self.log_prob(batch["x"], **{name: batch[name] for name in self.companions}))

    def seen(self, x: Tensor, length: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Steps `(..., n, L, d)` in double precision (tokens as they are), no longer than the longest sequence."""
        if readable(length) and length.numel():
            longest = max(1, int(length.max()))
            axis = length.dim()
            x = x.narrow(axis, 0, min(longest, x.shape[axis]))
            observed = None if observed is None else observed.narrow(axis, 0, x.shape[axis])
        if not x.is_floating_point():
            return x, observed
        if x.dim() == length.dim() + 1:  # a number at each step
            x, observed = x.unsqueeze(-1), None if observed is None else observed.unsqueeze(-1)
        return x.double(), observed

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        length = rows.get("x_length")
        if length is not None and bool((length == 0).any()):
            row = int(torch.nonzero(length == 0)[0, 0])
            raise ValueError(
                f"expected sequences of at least one step for {type(self).__name__}, got {int((length == 0).sum())} "
                f"without any, first in row {row}; leave them out"
            )

    def everything(self, source: Source, state: State) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """All rows, `(replicas, n, ...)`: steps, lengths, what is observed, and how much each row counts."""
        rows = all_rows(source, state)
        if "x_length" not in rows:
            self(rows)  # which tells what is missing
        length = rows["x_length"]
        x, observed = self.seen(rows["x"], length, rows.get("observed"))
        weight = rows.get("weight")
        return x, length, observed, torch.ones_like(length, dtype=torch.float64) if weight is None else weight.double()

    def plain(self, values: Tensor) -> Tensor:
        """Without the last axis, where a step is one number."""
        return values.squeeze(-1) if self.single else values

    def long(self, asked: int | None, name: str, usual: int = 1) -> int:
        """How many steps are asked for."""
        steps = usual if asked is None else asked
        Whole(1).check(steps, f"{name} of what is asked of {type(self).__name__}")
        return steps

    def refuse_steps(self, x: Tensor, length: Tensor, observed: Tensor | None, states: int) -> None:
        """Raises where there is too little to learn from: fewer steps than states, columns that do not vary."""
        within = inside(length, x.shape[length.dim()])
        steps = int(within[0].sum())
        if steps < states:
            raise ValueError(
                f"expected at least as many steps as the {states} states of {type(self).__name__}, got {steps} in "
                f"{length.shape[-1]} sequences; take fewer states, or more data"
            )
        if not x.is_floating_point():
            return
        for j in range(x.shape[-1]):
            some = within[0] if observed is None else within[0] & observed[0, ..., j]
            column = x[0, ..., j][some]
            if not len(column):
                raise ValueError(f"expected some value in every column of X, got none in column {j}; leave it out")
            self.refuse_constant(column[:, None], (f"column {j}",))


def inside(length: Tensor, steps: int) -> Tensor:
    """Which steps are before the end, `(..., n, steps)`."""
    return torch.arange(steps, device=length.device) < length.unsqueeze(-1)


def widened(answer: Tensor, steps: int, fill: float = 0) -> Tensor:
    """An answer for every step `(n, L, ...)`, as wide as the rows were given."""
    rest = answer.new_full((answer.shape[0], steps - answer.shape[1], *answer.shape[2:]), fill)
    return torch.cat([answer, rest], 1)


def readable(tensor: Tensor) -> bool:
    """Whether its numbers can be read at no cost: on the CPU, with no transformation such as vmap around it."""
    return tensor.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def chosen_far_apart(x: Tensor, usable: Tensor, count: int, key: Tensor) -> Tensor:
    """The first and then ever farther of some steps, drawn by their squared distance from those chosen (k-means++).

    Args:
        x: `(replicas, N, d)`, of about one scale.
        usable: which of them may be chosen, `(replicas, N)`.
        count: how many.
        key: of each replica.

    Returns:
        `(replicas, count, d)`.

    References:
        Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    far, chosen = usable.double(), []
    for turn in range(count):
        reach = far.cumsum(-1)
        u = unit(fold(key, turn), (1,), torch.float64) * reach[..., -1:]
        place = torch.searchsorted(reach, u, right=True).clamp_max(x.shape[-2] - 1)
        chosen.append(x.gather(-2, place.unsqueeze(-1).expand(*place.shape, x.shape[-1])))
        away = (x - chosen[-1]).square().sum(-1) * usable
        far = away if turn == 0 else torch.minimum(far, away)
        far = torch.where(far.sum(-1, keepdim=True) > 0, far, usable.double())
    return torch.cat(chosen, -2)


def rising(
    improve: Callable[[Solution], tuple[Tensor, Solution]], found: Solution, iterations: int, tolerance: float
) -> Iterations:
    """Iterations of EM for all replicas, each of which stays where it is once it gains too little.

    Args:
        improve: the log-likelihood of each replica at its parameters, and those that come next.
        found: what to begin with, replicas on the leading axis.
        iterations: how many at most.
        tolerance: the gain below which a replica rests.
    """
    told = torch.full((len(next(iter(found.values()))),), -torch.inf, dtype=torch.float64)
    resting = torch.zeros(len(told), dtype=torch.bool)
    for _ in range(iterations):
        level, new = improve(found)
        resting = resting | (level.cpu() - told < tolerance)
        told = torch.where(resting & told.isfinite(), torch.maximum(told, level.cpu()), level.cpu())
        yield {"log_likelihood": told}
        if bool(resting.all()):
            break
        moving = ~resting.to(level.device)
        found = {
            name: torch.where(moving.reshape(-1, *[1] * (value.dim() - 1)), new[name], value)
            for name, value in found.items()
        }
    return found
