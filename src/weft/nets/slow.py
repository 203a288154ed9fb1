"""A slow copy of a net, which follows what is learned: a target to learn towards that does not run away."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from weft.core.legal import Legal, Number, Such, Whole, check
from weft.engine.holding import holding

__all__ = ["SlowCopy"]


class SlowCopy(nn.Module):
    """Answers as a net that follows another slowly, in buffers.

    At every so-many-th step of training

        slow <- slow + rate (now - slow),

    and at the first step slow <- now. At `rate` 1 it is a copy taken now and then, at `every` 1 a running mean. What it
    keeps are buffers, without a gradient, which an objective names in `carried`. Its `forward` asks for `follow` once.

    Args:
        net: the other net.
        rate: in (0, 1].
        every: steps from one move to the next.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015 (a copy now and then);
        Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971 (a running mean).

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> slow = SlowCopy(net, rate=0.5)
        >>> _ = slow.follow(net), net.weight.data.add_(1.0), slow.follow(net)
        >>> (net(torch.ones(1, 1)) - slow(torch.ones(1, 1))).item()
        0.5
    """

    legal: ClassVar[dict[str, Legal]] = {
        "net": Such("a module", lambda given: isinstance(given, nn.Module)),
        "rate": Number(0, 1, "(]"),
        "every": Whole(1),
    }

    def __init__(self, net: nn.Module, *, rate: float = 1.0, every: int = 1) -> None:
        super().__init__()
        check(SlowCopy, {"net": net, "rate": rate, "every": every})
        self.rate, self.every = rate, every
        self.__dict__["_shape"] = copy.deepcopy(net)  # no submodule: what it computes with are the buffers
        self._own = {name: name.replace(".", "__") for name in _tensors(net)}
        for name, value in _tensors(net).items():
            self.register_buffer(self._own[name], value.detach().clone())
        self._moved = {name for name, _ in net.named_buffers()}
        self.clock: Tensor
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))

    def follow(self, net: nn.Module) -> None:
        """One step towards a net, in training."""
        clock, self.clock = self.clock, self.clock + 1
        if not clock.is_cuda and not is_functorch_wrapped_tensor(clock) and int(clock) % self.every:
            return  # to look at one number costs less than to move by nothing
        rate = torch.where(clock == 0, 1.0, torch.where(clock % self.every == 0, self.rate, 0.0))
        for name, now in _tensors(net).items():
            own = self._own[name]
            slow, now = getattr(self, own), now.detach()
            if slow.is_floating_point() and self.rate < 1.0:
                setattr(self, own, torch.where(rate == 1.0, now, slow + rate.to(slow.dtype) * (now - slow)))
            else:
                setattr(self, own, torch.where(rate > 0.0, now, slow))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        shape: nn.Module = self.__dict__["_shape"]
        held: dict[str, Tensor] = {name: getattr(self, own) for name, own in self._own.items()}
        buffers = {name: held.pop(name) for name in self._moved}
        shape.train(self.training)
        with holding(shape, held, buffers):
            return shape(*args, **kwargs)


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}
