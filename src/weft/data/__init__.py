"""Bundled and generated data, and loaders."""

from weft.data.cartpole import CartPole
from weft.data.files import read_columns
from weft.data.finite import FiniteMDP
from weft.data.gaussians import mode_coverage, ring
from weft.data.sinusoids import sinusoids
from weft.data.sites import digits_sites
from weft.data.spirals import spirals, spirals_test
from weft.data.tables import Recipe

__all__ = [
    "CartPole",
    "FiniteMDP",
    "Recipe",
    "digits_sites",
    "mode_coverage",
    "read_columns",
    "ring",
    "sinusoids",
    "spirals",
    "spirals_test",
]
