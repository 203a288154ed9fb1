"""How a loss becomes an update: a folder for each family, one file per method, every name here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.strategies.continual.agem import AGEM
    from weft.strategies.continual.anchor import L2Anchor
    from weft.strategies.continual.ewc import EWC
    from weft.strategies.continual.generative import GenerativeReplay
    from weft.strategies.continual.laplace import Laplace
    from weft.strategies.continual.lwf import LwF
    from weft.strategies.continual.mas import MAS
    from weft.strategies.continual.replay import Replay
    from weft.strategies.continual.synaptic import SynapticIntelligence
    from weft.strategies.descent.ema import EMA
    from weft.strategies.descent.lbfgs import LBFGS
    from weft.strategies.descent.natural_gradient import NaturalGradient
    from weft.strategies.descent.sam import SAM
    from weft.strategies.descent.swa import SWA
    from weft.strategies.descent.trust_region import TrustRegion
    from weft.strategies.erm import ERM
    from weft.strategies.invariance.and_mask import ANDMask
    from weft.strategies.invariance.coral import CORAL
    from weft.strategies.invariance.fishr import Fishr
    from weft.strategies.invariance.geometric_mean import GeometricMean
    from weft.strategies.invariance.group_dro import GroupDRO
    from weft.strategies.invariance.irm import IRM
    from weft.strategies.invariance.mmd import MMD
    from weft.strategies.invariance.pcgrad import PCGrad
    from weft.strategies.invariance.sand_mask import SANDMask
    from weft.strategies.invariance.temporal import TemporalANDMask
    from weft.strategies.invariance.vrex import VREx
    from weft.strategies.meta.maml import MAML
    from weft.strategies.posterior.sgld import SGLD
    from weft.strategies.regularization.penalty import L1, L2
    from weft.strategies.robust.adversarial import AdversarialTraining

__getattr__, __dir__, __all__ = flat(__name__, __file__)
