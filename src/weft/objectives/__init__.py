"""What is learned: one file per method or closest kin."""

from weft.objectives.dann import DANN
from weft.objectives.gan import GAN
from weft.objectives.least_squares import LeastSquares
from weft.objectives.reinforce import REINFORCE
from weft.objectives.supervised import Classification, Regression

__all__ = ["DANN", "GAN", "REINFORCE", "Classification", "LeastSquares", "Regression"]
