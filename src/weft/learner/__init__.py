"""The Learner: scikit-learn's conventions around an objective, a strategy and the engine.

`estimator` and `presets` are what a user meets; `reading` turns the arguments of `fit` into sources, `runs` trains,
`answers` asks what was trained, `folder` keeps it, `observers` tell others of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.learner.estimator import Learner
    from weft.learner.loading import load
    from weft.learner.presets import Classifier, Regressor

__getattr__, __dir__, __all__ = flat(__name__, __file__)
