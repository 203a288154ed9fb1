"""Whatever a user names as a net becomes an `nn.Module` of the right shape, or an error that says why not."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from weft.core.catalogue import class_of, named, spelled
from weft.core.configured import closest
from weft.core.legal import Legal, check
from weft.core.source import Field
from weft.core.spelling import called

__all__ = ["NET", "NetLike", "make_net", "tensor_of"]

NetLike = nn.Module | Callable[..., nn.Module] | str | None
"""What a user may give as a net: a module, a factory, a name, or None for an MLP."""


class _Net(Legal):
    """A net as a user may give it; of a name, that it is one, with settings that it takes."""

    words = "an nn.Module, a factory, a name or None"

    def kind(self, value: object) -> bool:
        return value is None or isinstance(value, str) or callable(value)

    def check(self, value: object, what: str, default: object = None) -> None:
        super().check(value, what, default)
        if isinstance(value, str):
            _named(value, what, ())


NET = _Net()


def make_net(
    net: NetLike,
    inputs: Field,
    outputs: int | tuple[int, ...],
    *,
    hidden: Sequence[int] = (128, 128),
    what: str = "net",
) -> nn.Module:
    """A module from rows like `inputs` to `outputs` values.

    A class of nets that says `shaped = True`, in the catalogue or a user's, is made of the shapes of a row and of its
    answer, `cls((1, 28, 28), (10,))`; any other of their sizes, `cls(784, 10)`.

    Args:
        net: an `nn.Module` (used as it is), a factory that takes nothing or `(inputs, outputs)`
            (sizes, or shapes where it is `shaped`), the name of a net in the catalogue, with settings in brackets if
            need be (`mlp(dropout=0.5)`), or None for an MLP.
        inputs: shape and dtype of a row.
        outputs: how many values a row's answer has, or its shape: then an answer may have that shape or be flat, and
            the caller makes of it what it needs.
        hidden: the MLP's hidden widths, where the text names none.
        what: how the errors call it.
    """
    shape = outputs if isinstance(outputs, tuple) else (int(outputs),)
    if isinstance(net, nn.Module):
        module = net
    elif net is None or isinstance(net, str):
        make = _named("mlp" if net is None else net, what, hidden)
        module = make(*_told(make.func, inputs, shape))
    elif callable(net):
        required = [
            p
            for p in inspect.signature(net).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(required) not in (0, 2):
            raise TypeError(
                f"expected the {what}'s factory to take nothing or (inputs, outputs), got one that takes "
                f"{', '.join(p.name for p in required)}; wrap it in a lambda"
            )
        module = net(*_told(net, inputs, shape)) if required else net()
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected the {what}'s factory to return an nn.Module, got {type(module).__name__}")
    else:
        raise TypeError(
            f"expected {what} to be an nn.Module, a factory, a name or None, got {type(net).__name__}; for example "
            "nn.Sequential(...), lambda inputs, outputs: nn.Linear(inputs, outputs), or 'mlp'"
        )
    _check(module, inputs, shape, what)
    return module


def _told(make: Callable[..., nn.Module], inputs: Field, outputs: tuple[int, ...]) -> tuple[object, object]:
    """What a net is made of: the shapes of a row and of its answer, where it says that it is shaped, or their sizes."""
    if getattr(make, "shaped", False):
        return tuple(inputs.shape), outputs
    return math.prod(inputs.shape), math.prod(outputs)


def _named(text: str, what: str, hidden: Sequence[int]) -> partial[nn.Module]:
    """A net of the catalogue by name, with its settings."""
    name, nodes = called(text)
    if spelled(name) not in named("nets"):
        raise closest(name, named("nets"), f"{what} as a net's name")
    make = class_of("nets", name)
    taken = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    settings: dict[str, object] = {"hidden": hidden} if "hidden" in taken else {}
    for setting, node in nodes.items():
        if setting not in taken:
            raise closest(setting, taken, f"a setting of {name}")
        try:
            settings[setting] = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"expected a number, text or a tuple for {setting} of {name}, got {text!r}") from error
    check(make, settings)
    return partial(make, **settings)


def _check(module: nn.Module, inputs: Field, outputs: tuple[int, ...], what: str) -> None:
    """Runs two rows of zeros through it (which also materializes lazy layers) and looks at the shape."""
    dtype = inputs.dtype if not inputs.dtype.is_floating_point else torch.get_default_dtype()
    rows = torch.zeros(2, *inputs.shape, dtype=dtype)
    training = module.training
    module.to(torch.get_default_dtype()).eval()
    try:
        with torch.no_grad():
            answer = module(rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        hint = "" if dtype.is_floating_point else "; integers in a tensor are token numbers: pass X.float() for numbers"
        raise ValueError(
            f"expected a {what} that takes rows of shape {tuple(inputs.shape)}, got an error from "
            f"{type(module).__name__} on a batch of shape {tuple(rows.shape)}: {error}{hint}"
        ) from error
    module.train(training)
    shape = tuple(tensor_of(answer, module, what).shape)
    size = math.prod(outputs)
    if shape not in ((2, *outputs), (2, size)) and not (size == 1 and shape == (2,)):
        shaped = f" or {(2, *outputs)}" if len(outputs) > 1 else ""
        raise ValueError(
            f"expected a {what} whose answer to a batch of 2 rows has shape (2, {size}){shaped}, got {shape}; "
            f"give its last layer {size} outputs"
        )


def tensor_of(answer: object, module: nn.Module, what: str = "net") -> torch.Tensor:
    """A net's answer, if it is a tensor; raises for others by what they are, such as torchvision's.

    >>> tensor_of({"loss": torch.zeros(())}, nn.Identity())
    Traceback (most recent call last):
        ...
    TypeError: expected a net whose answer is a tensor, in training too, got dict (loss) from Identity; it has ...
    """
    if isinstance(answer, torch.Tensor):
        return answer
    fields: tuple[str, ...] = getattr(answer, "_fields", ())  # a named tuple, as torchvision's Inception gives
    parts = tuple(map(str, answer)) if isinstance(answer, dict) else fields
    got = type(answer).__name__ + (f" ({', '.join(parts)})" if parts else "")
    why = "wrap it in a module that gives the tensor alone"
    if any("aux" in name for name in fields):
        why = (
            "its auxiliary logits, which it gives in training, ask for a loss of their own: make it with "
            "aux_logits=False, or write an objective that adds their losses"
        )
    elif isinstance(answer, dict | list):
        why = "it has losses, boxes or masks of its own, as models of detection have: write an objective around it"
    raise TypeError(
        f"expected a {what} whose answer is a tensor, in training too, got {got} from {type(module).__name__}; {why} "
        "(docs/adding.md)"
    )
