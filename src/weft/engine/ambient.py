"""PyTorch's own random functions, served from the key in force.

A user's module draws by `nn.Dropout`, `torch.randn_like`, attention's dropout and the like, from an
ambient generator. Inside `ambient(...)` those calls are answered by `weft.core.random` instead, keyed by
their number of call in the forward, so that such a module too gives the same draws in a replica, in a
chunk, on another rank or after a resume. What draws inside a kernel (the dropout between the layers
of `nn.LSTM` and its kin) cannot be reached and is refused by `refuse_hidden_randomness`.

Batch normalization is answered here too, where torch's own rule under `vmap` is wrong.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from weft.core import random
from weft.engine.vectorize import vectorizing

__all__ = ["Axes", "ambient", "refuse_hidden_randomness"]

Axes = dict[int, tuple[int, int] | None]
"""Of each call that draws, by its number: the axis of the rows and how many positions each has there, or None."""


class ambient(TorchFunctionMode):
    """Within it PyTorch's random functions draw from the key in force.

    Args:
        axes: of the calls; None to draw for all rows alike, and to find them out.
        rows: how many there are.

    Attributes:
        shapes: what was drawn, by number of call.
    """

    def __init__(self, axes: Axes | None = None, rows: int = 0) -> None:
        super().__init__()
        self._calls, self._axes, self._rows = 0, axes, rows
        self.shapes: dict[int, tuple[int, ...]] = {}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        served = _SERVED.get(func)
        if served is None:
            return func(*args, **(kwargs or {}))
        self._calls += 1
        return served(self, self._calls, *args, **(kwargs or {}))

    def uniform(self, shape: Sequence[int], call: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform in [0, 1), row by row where the call has rows."""
        return self._draw(random.uniform, tuple(shape), call, dtype)

    def normal(self, shape: Sequence[int], call: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal, row by row where the call has rows."""
        return self._draw(random.normal, tuple(shape), call, dtype)

    def order(self, n: int, call: int) -> Tensor:
        """A permutation of 0..n-1, the same for all rows: of the rows themselves there is none."""
        words = self.uniform((n,), call, torch.float64)
        if self._axes is not None and self._axes[call] is not None:
            raise ValueError(
                "expected draws row by row, or for all rows alike, got torch.randperm over the rows of a batch: it "
                "mixes examples, so that no chunk, group or rank could draw its part; permute features or positions, "
                "or mix rows in the source"
            )
        return words.argsort()

    def _draw(self, draw: Callable[..., Tensor], shape: tuple[int, ...], call: int, dtype: torch.dtype) -> Tensor:
        self.shapes[call] = shape
        if self._axes is None:
            return draw(shape, place=call, shared=True, dtype=dtype)
        if call not in self._axes:
            raise ValueError(
                f"expected a forward that draws as often for every batch, got a draw more, of shape {shape}: it cannot "
                "be told which of its axes are rows; draw always and choose by torch.where, or draw by weft.core.random"
            )
        found = self._axes[call]
        if found is None:
            return draw(shape, place=call, shared=True, dtype=dtype)
        axis, positions = found
        if len(shape) <= axis or shape[axis] != self._rows * positions:
            raise ValueError(
                f"expected {self._rows * positions} along axis {axis} of the {call}. random call in a forward of "
                f"{self._rows} rows, as its shape went with the rows at first, got {shape}; draw by weft.core.random"
            )
        others = shape[:axis] + shape[axis + 1 :]
        drawn = draw((self._rows, positions, *others), place=call, dtype=dtype)
        return drawn.flatten(0, 1).movedim(0, axis)


def refuse_hidden_randomness(module: nn.Module) -> None:
    """Raises for layers whose randomness lies inside a kernel."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0:
            raise ValueError(
                f"expected layers whose randomness can be keyed, got {name!r} ({type(layer).__name__} with "
                f"dropout={layer.dropout}), which draws inside its kernel; set dropout=0 there and put an "
                "nn.Dropout between single-layer recurrences"
            )


def _size(size: Any) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _dropout_along(spatial: bool) -> Callable[..., Tensor]:
    def dropout(
        frame: ambient, call: int, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training:
            return input
        shape = input.shape[:2] + (1,) * (input.dim() - 2) if spatial else input.shape
        frame.shapes[call] = shape  # also of one that draws nothing yet: its p may rise
        if p == 0.0:
            return input
        if p == 1.0:
            return input * 0.0
        keep = frame.uniform(shape, call) >= p
        return input * keep / (1.0 - p)

    return dropout


def _torch_dropout(frame: ambient, call: int, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout_along(False)(frame, call, input, p, train)


def _alpha_dropout(
    frame: ambient, call: int, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    if not training or p == 0.0:
        return input
    saturated = -1.7580993408473766  # SELU's negative limit: -scale * alpha
    keep = (frame.uniform(input.shape, call) >= p).to(input.dtype)
    a = ((1 - p) * (1 + p * saturated**2)) ** -0.5
    return a * (input * keep + saturated * (1 - keep)) - a * saturated * p


def _attention(
    frame: ambient,
    call: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p == 0.0:
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, **options)  # type: ignore[arg-type]
    if enable_gqa:
        repeat = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
    scores = query @ key.transpose(-2, -1) * (scale if scale is not None else query.shape[-1] ** -0.5)
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return _dropout_along(False)(frame, call, scores.softmax(-1), dropout_p) @ value


def _inside(function: Any) -> Callable[..., object]:
    """Serves a composite written in Python by running its body with the mode still on: a copy of the
    function whose own dispatch check is off, so that the draws inside it are served too."""
    body = types.FunctionType(
        function.__code__,
        {**function.__globals__, "has_torch_function": lambda *_: False, "has_torch_function_unary": lambda *_: False},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__

    def run(frame: ambient, call: int, *args: object, **kwargs: object) -> object:
        with frame:
            return body(*args, **kwargs)

    return run


def _filled(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An in-place random fill (`x.normal_()`), by copying the draw in."""

    def fill(frame: ambient, call: int, input: Tensor, *args: object, **kwargs: object) -> Tensor:
        kwargs.pop("generator", None)
        return input.copy_(draw(frame, call, input, *args, **kwargs))

    return fill


def _uniform_fill(frame: ambient, call: int, x: Tensor, low: float = 0.0, high: float = 1.0, **bounds: float) -> Tensor:
    low, high = bounds.get("from", low), bounds.get("to", high)
    return low + (high - low) * frame.uniform(x.shape, call, x.dtype)


def _normal_fill(frame: ambient, call: int, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * frame.normal(x.shape, call, x.dtype)


def _bernoulli_fill(frame: ambient, call: int, x: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return (frame.uniform(x.shape, call, torch.float64) < p).to(x.dtype)


def _exponential_fill(frame: ambient, call: int, x: Tensor, lambd: float = 1.0) -> Tensor:
    return -torch.log1p(-frame.uniform(x.shape, call, torch.float64)) / lambd


def _fresh(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(
        frame: ambient,
        call: int,
        *size: int | Sequence[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> Tensor:
        given = options.pop("size", None)
        value = draw(frame, _size(size) if given is None else given, call, dtype or torch.get_default_dtype())
        return value.to(device) if device is not None else value

    return make


def _fresh_like(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(frame: ambient, call: int, input: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
        return draw(frame, input.shape, call, dtype or input.dtype)

    return make


def _torch_normal(
    frame: ambient,
    call: int,
    mean: Tensor | float,
    std: Tensor | float = 1.0,
    size: Sequence[int] | None = None,
    **options: object,
) -> Tensor:
    like = mean if isinstance(mean, Tensor) else std
    shape = (
        size if size is not None else torch.broadcast_shapes(*(v.shape for v in (mean, std) if isinstance(v, Tensor)))
    )
    dtype = like.dtype if isinstance(like, Tensor) else torch.get_default_dtype()
    return mean + std * frame.normal(shape, call, dtype)


def _torch_bernoulli(frame: ambient, call: int, input: Tensor, p: float | None = None, **options: object) -> Tensor:
    return _bernoulli_fill(frame, call, input, input if p is None else p)


def _randint(
    frame: ambient, call: int, *args: Any, dtype: torch.dtype = torch.int64, device: Any = None, **named: Any
) -> Tensor:
    """`randint(high, size)` or `randint(low, high, size)`, each by position or by name."""
    given = list(args)
    shape = named["size"] if "size" in named else given.pop()
    high = named["high"] if "high" in named else given.pop()
    low = given.pop() if given else named.get("low", 0)
    drawn = (low + (high - low) * frame.uniform(shape, call, torch.float64)).floor().to(dtype)
    return drawn.to(device) if device is not None else drawn


def _randperm(
    frame: ambient, call: int, n: int, *, dtype: torch.dtype = torch.int64, device: Any = None, **options: object
) -> Tensor:
    return frame.order(n, call).to(device=device, dtype=dtype)


def _batch_norm(
    _: ambient,
    call: int,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalization in elementary operations where a vmap is around it: the second derivative of
    torch's own rule for it there is wrong (seen with torch 2.13: the statistics count as constants)."""
    if not training or not vectorizing():
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    axes = [d for d in range(input.dim()) if d != 1]
    count = input.numel() // input.shape[1]
    mean, var = input.mean(axes), input.var(axes, correction=0)
    if running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
        running_var.mul_(1 - momentum).add_(momentum * var.detach() * (count / max(count - 1, 1)))
    shape = (1, -1, *(1,) * (input.dim() - 2))
    output = (input - mean.reshape(shape)) * torch.rsqrt(var + eps).reshape(shape)
    output = output if weight is None else output * weight.reshape(shape)
    return output if bias is None else output + bias.reshape(shape)


def _refuse(function: Callable[..., object]) -> Callable[..., object]:
    def refused(*_: object, **__: object) -> object:
        raise NotImplementedError(
            f"expected randomness that can be keyed, got torch's {function.__name__} in a forward; draw by "
            "weft.core.random (uniform, normal, categorical, permutation) instead"
        )

    return refused


_REFUSED: tuple[Callable[..., object], ...] = (
    torch.multinomial,
    torch.poisson,
    torch.binomial,
    torch.randint_like,
    torch.rrelu,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.feature_alpha_dropout,
    torch.native_dropout,
    torch._sample_dirichlet,
    torch._standard_gamma,
    torch.Tensor.multinomial,
    torch.Tensor.cauchy_,
    torch.Tensor.geometric_,
    torch.Tensor.log_normal_,
    torch.Tensor.random_,
    F.feature_alpha_dropout,
    F.rrelu,
)
_SERVED: dict[Callable[..., object], Callable[..., object]] = {
    F.dropout: _dropout_along(False),
    F.dropout1d: _dropout_along(True),
    F.dropout2d: _dropout_along(True),
    F.dropout3d: _dropout_along(True),
    F.alpha_dropout: _alpha_dropout,
    torch.dropout: _torch_dropout,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _inside(F.multi_head_attention_forward),
    F.gumbel_softmax: _inside(F.gumbel_softmax),
    F.batch_norm: _batch_norm,
    torch.rand: _fresh(ambient.uniform),
    torch.randn: _fresh(ambient.normal),
    torch.randint: _randint,
    torch.randperm: _randperm,
    torch.rand_like: _fresh_like(ambient.uniform),
    torch.randn_like: _fresh_like(ambient.normal),
    torch.normal: _torch_normal,
    torch.bernoulli: _torch_bernoulli,
    torch.Tensor.bernoulli: _torch_bernoulli,
    torch.Tensor.uniform_: _filled(_uniform_fill),
    torch.Tensor.normal_: _filled(_normal_fill),
    torch.Tensor.bernoulli_: _filled(_bernoulli_fill),
    torch.Tensor.exponential_: _filled(_exponential_fill),
    **{function: _refuse(function) for function in _REFUSED},
}
