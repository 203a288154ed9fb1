"""Bundled and generated data, loaders, and worlds to act in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.data.bandits import Bandits
    from weft.data.binary import binarize, binarized
    from weft.data.cartpole import CartPole
    from weft.data.catch import Catch
    from weft.data.characters import Characters, held_classes, omniglot
    from weft.data.classic import Acrobot, MountainCar, MountainCarContinuous, Pendulum
    from weft.data.coloured import coloured_mnist
    from weft.data.corridors import ShortCorridor, TMaze
    from weft.data.finite import FiniteMDP
    from weft.data.gaussians import mode_coverage, ring
    from weft.data.grids import GridWorld
    from weft.data.images import cifar10, fashion_mnist, mnist
    from weft.data.labels import random_labels
    from weft.data.learned import Learned
    from weft.data.minatar.asterix import Asterix
    from weft.data.minatar.breakout import Breakout
    from weft.data.minatar.freeway import Freeway
    from weft.data.minatar.seaquest import Seaquest
    from weft.data.minatar.space_invaders import SpaceInvaders
    from weft.data.platform import Platform, platform_clones
    from weft.data.sine_waves import sinusoids
    from weft.data.sites import digits_sites
    from weft.data.sound import read_wave, speech, write_wave
    from weft.data.tasks import permuted_mnist, rotated_mnist, split_mnist
    from weft.data.text import names, tiny_shakespeare
    from weft.data.toytext import CliffWalking, FrozenLake, Taxi
    from weft.data.two_spirals import spirals, spirals_test

__getattr__, __dir__, __all__ = flat(__name__, __file__)
