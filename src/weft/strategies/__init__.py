"""How a loss becomes an update: one file per method."""

from weft.strategies.adversarial import AdversarialTraining
from weft.strategies.and_mask import ANDMask
from weft.strategies.erm import ERM
from weft.strategies.ewc import EWC
from weft.strategies.maml import MAML

__all__ = ["ERM", "EWC", "MAML", "ANDMask", "AdversarialTraining"]
