"""weft weaves any learning objective with any learning strategy.

>>> from sklearn.datasets import load_iris
>>> from weft import Classifier
>>> X, y = load_iris(return_X_y=True)
>>> bool(Classifier(random_state=0).fit(X, y).score(X, y) > 0.9)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.core.strategy import weave
    from weft.engine.optim import Optimizer
    from weft.learner import Classifier, Learner, Regressor

__version__ = "0.1.0"
__all__ = ["Classifier", "Learner", "Optimizer", "Regressor", "weave"]

_HOMES = {
    "Classifier": "weft.learner",
    "Learner": "weft.learner",
    "Regressor": "weft.learner",
    "Optimizer": "weft.engine.optim",
    "weave": "weft.core.strategy",
}


def __getattr__(name: str) -> Any:
    """Imports on first use, so that `import weft` stays quick."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
