"""Presets: a classifier and a regressor, each a Learner with its objective made from a few parameters of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from sklearn.base import ClassifierMixin, RegressorMixin

from weft.core.configured import closest
from weft.core.legal import WIDTHS, Legal
from weft.core.objective import Objective
from weft.learner.estimator import Learner
from weft.nets.make import NET
from weft.objectives.supervised.labelled import CLASS_WEIGHT

__all__ = ["Classifier", "Regressor"]


class _Preset(Learner):
    """A Learner with its objective made from a few parameters of its own, the others passed on.

    The passed-on parameters are put into the signature of `__init__`, where scikit-learn, `help` and
    editors look for them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.__init__).parameters
        if "settings" in own:
            passed = [p for name, p in inspect.signature(Learner).parameters.items() if name != "objective"]
            named = [p for name, p in own.items() if name != "settings"]
            cls.__init__.__signature__ = inspect.Signature([*named, *passed])  # type: ignore[attr-defined]

    def __init__(self, **settings: Any) -> None:
        for name in settings:
            if name not in self._get_param_names():
                raise TypeError(str(closest(name, self._get_param_names(), f"a parameter of {type(self).__name__}")))
        super().__init__(**settings)


class Classifier(ClassifierMixin, _Preset):
    """A classifier in scikit-learn's manner: `Learner(Classification(module))`.

    Args:
        module: an `nn.Module` with one output per class, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        class_weight: weights by label, `"balanced"`, or None.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> Classifier(random_state=0).fit(X, y).predict(X[:3]).tolist()
        [0, 0, 0]
    """

    legal: ClassVar[dict[str, Legal]] = {"module": NET, "hidden": WIDTHS, "class_weight": CLASS_WEIGHT}

    def __init__(
        self, module: Any = None, *, hidden: Sequence[int] = (128, 128), class_weight: Any = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.module = module
        self.hidden = hidden
        self.class_weight = class_weight

    def _objective(self) -> Objective:
        from weft.objectives import Classification

        return Classification(self.module, hidden=self.hidden, class_weight=self.class_weight)


class Regressor(RegressorMixin, _Preset):
    """A regressor in scikit-learn's manner: `Learner(Regression(module))`.

    Args:
        module: an `nn.Module` with one output per target, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> Regressor(random_state=0).fit(X, y / 100).predict(X[:3]).shape
        (3,)
    """

    legal: ClassVar[dict[str, Legal]] = {"module": NET, "hidden": WIDTHS}

    def __init__(self, module: Any = None, *, hidden: Sequence[int] = (128, 128), **settings: Any) -> None:
        super().__init__(**settings)
        self.module = module
        self.hidden = hidden

    def _objective(self) -> Objective:
        from weft.objectives import Regression

        return Regression(self.module, hidden=self.hidden)
