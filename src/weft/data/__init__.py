"""Bundled and generated data, and loaders."""

from weft.data.cartpole import CartPole
from weft.data.coloured import coloured_mnist
from weft.data.files import read_columns
from weft.data.finite import FiniteMDP
from weft.data.gaussians import mode_coverage, ring
from weft.data.images import cifar10, fashion_mnist, mnist
from weft.data.labels import random_labels
from weft.data.platform import Platform, platform_clones
from weft.data.sinusoids import sinusoids
from weft.data.sites import digits_sites
from weft.data.spirals import spirals, spirals_test
from weft.data.tables import Recipe
from weft.data.tasks import permuted_mnist, rotated_mnist, split_mnist

__all__ = [
    "CartPole",
    "FiniteMDP",
    "Platform",
    "Recipe",
    "cifar10",
    "coloured_mnist",
    "digits_sites",
    "fashion_mnist",
    "mnist",
    "mode_coverage",
    "permuted_mnist",
    "platform_clones",
    "random_labels",
    "read_columns",
    "ring",
    "rotated_mnist",
    "sinusoids",
    "spirals",
    "spirals_test",
    "split_mnist",
]
