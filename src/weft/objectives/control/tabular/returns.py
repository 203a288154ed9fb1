"""Returns that end in an estimate: n-step, lambda- and Monte Carlo returns, off-policy too, by one recursion."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.source import Batch

__all__ = ["first_visits", "returns"]


def returns(
    batch: Batch,
    value: Tensor,
    after: Tensor,
    *,
    discount: float,
    trace: float = 1.0,
    steps: int | None = None,
    ratio: Tensor | None = None,
) -> Tensor:
    """The return from each step on of what was played together, (environments, time):

        G_t = rho_t (r_t + discount ((1 - trace) v(s_{t+1}) + trace G_{t+1})) + (1 - rho_t) v(s_t),

    without what comes after an end (`terminated`), and with v(s_{t+1}) for G_{t+1} where nothing further is known:
    where an episode was cut (`truncated`), at the last step, and after so many `steps`.

    Args:
        batch: with `reward`, `terminated` and `truncated`.
        value: v(s_t), or what the action there is worth.
        after: v(s_{t+1}), of the state that was come to, whatever begins anew there.
        discount: of what comes later.
        trace: lambda: 0 is the one-step return, 1 the sum of all rewards.
        steps: of the n-step return; None for all that there are.
        ratio: rho_t = pi(a_t | s_t) / b(a_t | s_t), where b has played and pi is judged.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, sections 7.1, 7.4, 12.1 and 12.8.

    Example:
        >>> ends = torch.tensor([[False, False, True]])
        >>> batch = {"reward": torch.ones(1, 3), "terminated": ends, "truncated": ends & False}
        >>> value = torch.full((1, 3), 10.0)
        >>> returns(batch, value, value, discount=0.5), returns(batch, value, value, discount=0.5, trace=0.0)
        (tensor([[1.7500, 1.5000, 1.0000]]), tensor([[6., 6., 1.]]))
    """
    goes_on = ~(batch["terminated"] | batch["truncated"])
    goes_on = torch.cat([goes_on[:, :-1], torch.zeros_like(goes_on[:, -1:])], 1)
    kept = discount * (~batch["terminated"]).to(value.dtype)

    rho = torch.ones_like(value) if ratio is None else ratio

    def one(t: slice, then: Tensor) -> Tensor:
        """The returns from some steps on, given those from the next steps on."""
        ahead = (1 - trace) * after[:, t] + trace * torch.where(goes_on[:, t], then, after[:, t])
        return rho[:, t] * (batch["reward"][:, t] + kept[:, t] * ahead) + (1 - rho[:, t]) * value[:, t]

    time = value.shape[1]
    if steps is not None and trace > 0:
        found = value
        for _ in range(min(steps, time)):
            found = one(slice(None), found.roll(-1, 1))
        return found
    each = [after[:, -1:]]
    for t in reversed(range(time)):
        each.append(one(slice(t, t + 1), each[-1]))
    return torch.cat(each[:0:-1], 1)


def first_visits(batch: Batch) -> Tensor:
    """Which steps are the first of their episode in which that is observed, (environments, time).

    >>> seen = torch.tensor([[[0.0], [1.0], [0.0], [0.0]]])
    >>> ends = torch.tensor([[False, False, True, False]])
    >>> first_visits({"observation": seen, "terminated": ends, "truncated": ends & False})
    tensor([[ True,  True, False,  True]])
    """
    seen = batch["observation"].flatten(2)
    over = (batch["terminated"] | batch["truncated"]).long()
    episode = over.cumsum(1) - over
    same = (seen.unsqueeze(1) == seen.unsqueeze(2)).all(-1) & (episode.unsqueeze(1) == episode.unsqueeze(2))
    time = torch.arange(seen.shape[1], device=seen.device)
    return ~(same & (time < time[:, None])).any(-1)
