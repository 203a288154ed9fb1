"""Running statistics of what is played: observations and rewards on a scale that nets learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from weft.core.legal import Legal, Number, Several, Whole, check

__all__ = ["Running", "RunningReturn"]


class Running(nn.Module):
    """Rows on a scale of their own, by the mean and the variance of all that was played.

    Entry by entry,

        x -> clip((x - mean) / sqrt(variance + eps)).

    A part a (count, mean, sum of squared deviations M) and a part b make a whole by

        n = n_a + n_b,   mean = mean_a + d n_b / n,   M = M_a + M_b + d^2 n_a n_b / n,   d = mean_b - mean_a.

    What it keeps are buffers, which an objective names in `carried`. They change where its `witness` gives what `after`
    gives, once for all that is played to be learned from, and nowhere else: neither in evaluation nor in updates.
    Before anything is witnessed rows are clipped alone.

        def build(self, spec):
            self.seen = Running(spec["observation"].shape)

        def witness(self, batch):
            return self.seen.after(batch, "observation", name="seen")

    Args:
        shape: of a row.
        clip: the largest absolute value that it gives; None for any.
        eps: what is added to the variance.

    References:
        Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American Statistician 37, 1983.

    Example:
        >>> seen = Running((1,))
        >>> buffers = seen.after({"observation": torch.tensor([[[10.0], [30.0]]])}, "observation", name="seen")
        >>> {name: value.tolist() for name, value in buffers.items()}
        {'seen.count': 2, 'seen.mean': [20.0], 'seen.squares': [200.0]}
        >>> seen.load_state_dict({name.removeprefix("seen."): value for name, value in buffers.items()})
        <All keys matched successfully>
        >>> seen(torch.tensor([[30.0], [25.0]])).flatten().tolist()
        [1.0, 0.5]
    """

    legal: dict[str, Legal] = {
        "shape": Several("the shape of a row such as (4,)", Whole(1)),
        "clip": Number(0, ends="()") | None,
        "eps": Number(0, ends="()"),
    }
    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, shape: Sequence[int], *, clip: float | None = 10.0, eps: float = 1e-8) -> None:
        super().__init__()
        check(Running, {"shape": shape, "clip": clip, "eps": eps})
        self.shape, self.clip, self.eps = tuple(shape), clip, eps
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(self.shape))
        self.register_buffer("squares", torch.zeros(self.shape))

    def after(self, batch: Mapping[str, Tensor], field: str, *, name: str) -> dict[str, Tensor]:
        """The buffers once a field of what was played is counted in as well, by their names in the objective.

        What a `mask` in the batch marks as after an episode's end does not count.

        Args:
            batch: what was played, `(environments, time, ...)`.
            field: the one that is witnessed.
            name: how the objective calls this module.
        """
        values = batch[field]
        lead = values.dim() - len(self.shape)
        if lead < 1 or tuple(values.shape[lead:]) != self.shape:
            raise ValueError(f"expected {field!r} with rows of shape {self.shape}, got {tuple(values.shape)}")
        mask = batch.get("mask")
        weight = torch.ones(values.shape[:lead], device=values.device) if mask is None else mask
        return self._joined(values.flatten(0, lead - 1), weight.flatten(), name)

    def _joined(self, rows: Tensor, weight: Tensor, name: str) -> dict[str, Tensor]:
        rows, weight = rows.to(self.mean.dtype), weight.to(self.mean.dtype)
        each = weight.reshape(-1, *(1,) * (rows.dim() - 1))
        before, new = self.count.to(rows.dtype), weight.sum()
        mean = (rows * each).sum(0) / new.clamp_min(1.0)
        apart, total = mean - self.mean, (before + new).clamp_min(1.0)
        squares = ((rows - mean).square() * each).sum(0)
        return {
            f"{name}.count": self.count + new.round().to(self.count.dtype),
            f"{name}.mean": self.mean + apart * (new / total),
            f"{name}.squares": self.squares + squares + apart.square() * (before * (new / total)),
        }

    @property
    def variance(self) -> Tensor:
        """Of all that was witnessed; 1 before there is anything."""
        known = self.squares / self.count.clamp_min(1).to(self.squares.dtype)
        return torch.where(self.count > 0, known, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - self.mean) / (self.variance + self.eps).sqrt()
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)


class RunningReturn(Running):
    """Rewards on the scale of what they come to, by the variance of discounted returns.

        r -> clip(r / sqrt(variance + eps)),

    by the variance of

        R_t = r_t + discount R_{t-1},    R = 0 where an episode begins,

    over all that was witnessed. A mean is not taken away, which would change what is best.

    An episode goes on from one segment to the next, so R of each row is kept as well: the rows are those that a source
    plays on (of several worlds all of theirs), always as many.

        def witness(self, batch):
            return self.earned.after(batch, name="earned")

    Args:
        envs: rows that are played side by side, as the source has them; of several worlds, of all together.
        discount: of R, as of the objective.
        clip, eps: as of `Running`.

    References:
        Engstrom et al., "Implementation matters in deep policy gradients: a case study on PPO and TRPO", arXiv
        2005.12729 (reward scaling).

    Example:
        >>> earned = RunningReturn(1, discount=0.5)
        >>> no = torch.tensor([[False, False]])
        >>> batch = {"reward": torch.tensor([[2.0, 4.0]]), "terminated": no, "truncated": no}
        >>> {name: value.tolist() for name, value in earned.after(batch, name="earned").items()}
        {'earned.count': 2, 'earned.mean': 3.5, 'earned.squares': 4.5, 'earned.last': [5.0]}
    """

    legal: dict[str, Legal] = {"envs": Whole(1), "discount": Number(0, 1)}
    last: Tensor

    def __init__(self, envs: int, *, discount: float = 0.99, clip: float | None = 10.0, eps: float = 1e-8) -> None:
        super().__init__((), clip=clip, eps=eps)
        check(RunningReturn, {"envs": envs, "discount": discount})
        self.envs, self.discount = int(envs), float(discount)
        self.register_buffer("last", torch.zeros(self.envs))

    def after(self, batch: Mapping[str, Tensor], field: str = "reward", *, name: str) -> dict[str, Tensor]:
        """The buffers once what was earned is counted in as well; arguments as for `Running`."""
        reward = batch[field]
        if reward.dim() != 2 or len(reward) != self.envs:
            raise ValueError(
                f"expected {field!r} of {self.envs} rows that are played on, (envs, time), as RunningReturn(envs="
                f"{self.envs}) keeps them, got {tuple(reward.shape)}; say envs as the source does"
            )
        over, returns, last = batch["terminated"] | batch["truncated"], [], self.last
        for t in range(reward.shape[1]):
            returns.append(reward[:, t].to(last.dtype) + self.discount * last)
            last = torch.where(over[:, t], 0.0, returns[-1])
        weight = batch["mask"] if "mask" in batch else torch.ones_like(reward)
        return {**self._joined(torch.stack(returns, 1).flatten(), weight.flatten(), name), f"{name}.last": last}

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / (self.variance + self.eps).sqrt()
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)
