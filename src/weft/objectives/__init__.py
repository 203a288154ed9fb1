"""What is learned: one file per method or closest kin."""

from weft.objectives.least_squares import LeastSquares
from weft.objectives.supervised import Classification, Regression

__all__ = ["Classification", "LeastSquares", "Regression"]
