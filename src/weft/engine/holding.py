"""A module computing with tensors that are not its own: `torch.func.functional_call` at a tenth of its price.

Where each name lives in the module is looked up once, so that a forward pays for the exchange alone.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

__all__ = ["evaluating", "holding"]

Home = dict[str, Any]
"""A layer's own parameters or buffers, by name: where tensors are exchanged."""
Slots = dict[str, list[tuple[Home, str]]]
_known: WeakKeyDictionary[nn.Module, Slots] = WeakKeyDictionary()


def _slots(module: nn.Module) -> Slots:
    """By a tensor's first name, every place that holds it: tied weights have several."""
    slots = _known.get(module)
    if slots is None:
        slots = _known[module] = {}
        first: dict[int, str] = {}
        for prefix, layer in module.named_modules(remove_duplicate=False):
            homes: tuple[Home, Home] = (layer._parameters, layer._buffers)
            for home in homes:
                for own, tensor in home.items():
                    if tensor is not None:
                        name = first.setdefault(id(tensor), f"{prefix}.{own}" if prefix else own)
                        places = slots.setdefault(name, [])
                        if not any(h is home and o == own for h, o in places):
                            places.append((home, own))
    return slots


_layers: WeakKeyDictionary[nn.Module, tuple[nn.Module, ...]] = WeakKeyDictionary()


class evaluating:
    """Within it a module is in evaluation mode; after it every layer is in the mode in which it was.

    The layers are looked up once; where one has a `train` of its own, that is asked, and it is put back by `train`.

    >>> layer = nn.Sequential(nn.Dropout())
    >>> with evaluating(layer):
    ...     layer.training, layer[0].training
    (False, False)
    >>> layer.training, layer[0].training
    (True, True)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, found = module, _layers.get(module)
        if found is None:
            every = tuple(module.modules())
            plain = all(type(layer).train is nn.Module.train and type(layer).eval is nn.Module.eval for layer in every)
            found = _layers[module] = every if plain else ()
        self.layers = found

    def __enter__(self) -> None:
        self.training = self.module.training
        self.before = [layer for layer in self.layers if layer.training]
        for layer in self.before:
            layer.__dict__["training"] = False
        if not self.layers:
            self.module.eval()

    def __exit__(self, *exc: object) -> None:
        for layer in self.before:
            layer.__dict__["training"] = True
        if not self.layers:
            self.module.train(self.training)


class holding:
    """Within it the module's parameters and buffers are those given, by their names in `named_parameters`.

    A buffer that the forward replaces (`self.count = self.count + 1`) is replaced in `buffers` as well.

    >>> import torch
    >>> layer = nn.Linear(1, 1)
    >>> with holding(layer, {"weight": torch.tensor([[2.0]]), "bias": torch.ones(1)}):
    ...     layer(torch.ones(1, 1))
    tensor([[3.]])
    """

    def __init__(self, module: nn.Module, params: dict[str, Tensor], buffers: dict[str, Tensor] | None = None) -> None:
        self.slots = _slots(module)
        self.params, self.buffers = params, {} if buffers is None else buffers

    def __enter__(self) -> None:
        self.kept: list[tuple[Home, str, Tensor | None]] = []
        for values in (self.params, self.buffers):
            for name, value in values.items():
                for home, own in self.slots[name]:
                    self.kept.append((home, own, home[own]))
                    home[own] = value

    def __exit__(self, *exc: object) -> None:
        for name in self.buffers:
            home, own = self.slots[name][0]
            self.buffers[name] = home[own]
        for home, own, value in reversed(self.kept):
            home[own] = value
