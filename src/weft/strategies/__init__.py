"""How a loss becomes an update: one file per method."""

from weft.strategies.adversarial import AdversarialTraining
from weft.strategies.agem import AGEM
from weft.strategies.anchor import L2Anchor
from weft.strategies.and_mask import ANDMask
from weft.strategies.coral import CORAL
from weft.strategies.erm import ERM
from weft.strategies.ewc import EWC
from weft.strategies.fishr import Fishr
from weft.strategies.generative import GenerativeReplay
from weft.strategies.geometric_mean import GeometricMean
from weft.strategies.group_dro import GroupDRO
from weft.strategies.irm import IRM
from weft.strategies.laplace import Laplace
from weft.strategies.lwf import LwF
from weft.strategies.maml import MAML
from weft.strategies.mas import MAS
from weft.strategies.mmd import MMD
from weft.strategies.pcgrad import PCGrad
from weft.strategies.penalty import L1, L2
from weft.strategies.replay import Replay
from weft.strategies.sand_mask import SANDMask
from weft.strategies.synaptic import SynapticIntelligence
from weft.strategies.temporal import TemporalANDMask
from weft.strategies.vrex import VREx

__all__ = [
    "AGEM",
    "CORAL",
    "ERM",
    "EWC",
    "IRM",
    "L1",
    "L2",
    "MAML",
    "MAS",
    "MMD",
    "ANDMask",
    "AdversarialTraining",
    "Fishr",
    "GenerativeReplay",
    "GeometricMean",
    "GroupDRO",
    "L2Anchor",
    "Laplace",
    "LwF",
    "PCGrad",
    "Replay",
    "SANDMask",
    "SynapticIntelligence",
    "TemporalANDMask",
    "VREx",
]
