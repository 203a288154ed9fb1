"""The engine that runs every loop. No method's name appears here."""

from weft.core.optimizer import Optimizer
from weft.engine.engine import Diverged, Engine
from weft.engine.loop import History, Plan, train
from weft.engine.vectorize import VectorizationWarning

__all__ = ["Diverged", "Engine", "History", "Optimizer", "Plan", "VectorizationWarning", "train"]
