"""How a loss becomes an update: one file per method."""

from weft.strategies.adversarial import AdversarialTraining
from weft.strategies.and_mask import ANDMask
from weft.strategies.coral import CORAL
from weft.strategies.erm import ERM
from weft.strategies.ewc import EWC
from weft.strategies.fishr import Fishr
from weft.strategies.geometric_mean import GeometricMean
from weft.strategies.group_dro import GroupDRO
from weft.strategies.irm import IRM
from weft.strategies.laplace import Laplace
from weft.strategies.maml import MAML
from weft.strategies.mmd import MMD
from weft.strategies.pcgrad import PCGrad
from weft.strategies.penalty import L1, L2
from weft.strategies.sand_mask import SANDMask
from weft.strategies.temporal import TemporalANDMask
from weft.strategies.vrex import VREx

__all__ = [
    "CORAL",
    "ERM",
    "EWC",
    "IRM",
    "L1",
    "L2",
    "MAML",
    "MMD",
    "ANDMask",
    "AdversarialTraining",
    "Fishr",
    "GeometricMean",
    "GroupDRO",
    "Laplace",
    "PCGrad",
    "SANDMask",
    "TemporalANDMask",
    "VREx",
]
