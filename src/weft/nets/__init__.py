"""Parameterizations: any of them, or a user's own `nn.Module`, fits any objective of the right shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.nets.attention import Transformer
    from weft.nets.convolution import ConvDecoder, ConvEncoder
    from weft.nets.make import make_net
    from weft.nets.mlp import MLP, Linear
    from weft.nets.recurrent import Recurrent
    from weft.nets.running import Running, RunningReturn
    from weft.nets.slow import SlowCopy
    from weft.nets.wavenet import DilatedConvolutions

__getattr__, __dir__, __all__ = flat(__name__, __file__)
