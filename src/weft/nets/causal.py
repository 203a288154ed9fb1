"""Causal nets: what they say at a step depends on the steps up to it, and on none after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Causal", "make_causal", "transformed"]


class Causal(nn.Module):
    """A net from `(n, T, inputs)` to `(n, T, outputs)` whose output at step t depends on inputs at steps <= t alone.

    A subclass writes `forward`, all steps in one pass. With `begin` and `advance` it gives one step after another
    without doing again what was done (a hidden state, keys and values, queues), to the same answers.

    Attributes:
        context: the most steps that it takes, or None where there is no end.

    >>> class Sums(Causal):
    ...     def forward(self, x):
    ...         return x.cumsum(1)
    >>> net, x = Sums(), torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> kept = net.begin(x[:, 0], 3)
    >>> [net.advance(step, kept).item() for step in x.unbind(1)]
    [1.0, 3.0, 6.0]
    """

    context: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all steps, in one pass."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(x)")

    def begin(self, like: Tensor, steps: int) -> Any:
        """What `advance` keeps from step to step, before the first.

        Args:
            like: an input of a step, `(n, inputs)`.
            steps: how many there will be at most.
        """
        return []

    def advance(self, x: Tensor, kept: Any) -> Tensor:
        """The output of the next step, `(n, outputs)`, given its input `(n, inputs)`; `kept` is changed.

        By default all steps are done again.
        """
        kept.append(x)
        return self(torch.stack(kept, 1))[:, -1]


def transformed() -> bool:
    """Whether `vmap`, `grad` or another of torch's transforms is at work, for which fused kernels have no rule."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None


def make_causal(
    net: nn.Module | Callable[[int, int], nn.Module] | None,
    usual: Callable[[int, int], Causal],
    inputs: int,
    outputs: int,
    steps: int,
) -> nn.Module:
    """A causal net of the right sizes, of what a user gives, or an error that says why not.

    Args:
        net: a module, a factory of `(inputs, outputs)`, or None for the usual one. One that is no `Causal` is asked
            about all steps anew at each.
        usual: makes the net where none is given.
        inputs, outputs: values of a step.
        steps: how many steps rows have.
    """
    if net is None:
        return usual(inputs, outputs)
    made = net if isinstance(net, nn.Module) else net(inputs, outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(f"expected the net's factory to return an nn.Module, got {type(made).__name__}")
    made.to(torch.get_default_dtype())
    training = made.training
    made.eval()
    steps = max(2, steps)
    x = torch.linspace(-1, 1, 2 * steps * inputs).reshape(2, steps, inputs)
    later = torch.cat([x[:, :-1], x[:, -1:] + 1], 1)
    shape: tuple[int, ...] | None = None
    try:
        with torch.no_grad():
            answer, other = made(x), made(later)
        shape = tuple(answer.shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"expected a causal net that takes (n, T, {inputs}), got an error from {type(made).__name__} on shape "
            f"{tuple(x.shape)}: {error}"
        ) from error
    made.train(training)
    if shape != (2, steps, outputs):
        raise ValueError(
            f"expected a causal net from (2, {steps}, {inputs}) to (2, {steps}, {outputs}), got {shape} from "
            f"{type(made).__name__}; give its last layer {outputs} outputs, one answer for each step"
        )
    if not torch.equal(answer[:, :-1], other[:, :-1]):
        raise ValueError(
            f"expected a causal net, whose answer at a step depends on no later one, got {type(made).__name__}, whose "
            "earlier answers change with the last input; mask what comes later, pad convolutions on the left alone"
        )
    return made
