"""Parameterizations: any of them, or a user's own `nn.Module`, fits any objective of the right shape."""

from weft.nets.make import make_net
from weft.nets.mlp import MLP, Linear

__all__ = ["MLP", "Linear", "make_net"]
