"""Presets: a classifier and a regressor, each a Learner with its objective made from a few parameters of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from sklearn.base import ClassifierMixin, RegressorMixin

from weft.core.legal import WIDTHS, Legal
from weft.core.objective import Objective
from weft.learner.estimator import Learner
from weft.nets.make import NET
from weft.objectives.supervised.labelled import CLASS_WEIGHT
from weft.objectives.supervised.loss import LossFor, LossLike

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
                raise TypeError(str(self._unknown(name)))
        super().__init__(**settings)

    @classmethod
    def _unknown(cls, name: str) -> ValueError:
        """The error for a parameter that there is none of."""
        if name == "module":  # `module(k)` is the trained one
            return ValueError(f"expected the net of {cls.__name__} as net=..., got 'module'; {cls.__name__}(net)")
        return super()._unknown(name)


class Classifier(ClassifierMixin, _Preset):
    """A classifier in scikit-learn's manner: `Learner(Classification(net))`.

    Args:
        net: an `nn.Module` with one output per class, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        class_weight: weights by label, `"balanced"`, or None.
        loss: as for `Classification`, such as `"focal"`, or `"multi-label"` where y has a column of 0 and 1 for each
            label; None for cross-entropy.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> Classifier(random_state=0).fit(X, y).predict(X[:3]).tolist()
        [0, 0, 0]
    """

    legal: ClassVar[dict[str, Legal]] = {
        "net": NET,
        "hidden": WIDTHS,
        "class_weight": CLASS_WEIGHT,
        "loss": LossFor("classes"),
    }

    def __init__(
        self,
        net: Any = None,
        *,
        hidden: Sequence[int] = (128, 128),
        class_weight: Any = None,
        loss: LossLike = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.net = net
        self.hidden = hidden
        self.class_weight = class_weight
        self.loss = loss

    def _objective(self) -> Objective:
        from weft.objectives import Classification

        return Classification(self.net, hidden=self.hidden, class_weight=self.class_weight, loss=self.loss)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags = _Preset.__sklearn_tags__(self).classifier_tags  # the mixin knows of no labels
        return tags


class Regressor(RegressorMixin, _Preset):
    """A regressor in scikit-learn's manner: `Learner(Regression(net))`.

    Args:
        net: an `nn.Module` with one output per target, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        loss: as for `Regression`, such as `"huber"`, or `"poisson"` where y holds counts; None for the squared error.
        settings: those of `Learner`.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> Regressor(random_state=0).fit(X, y / 100).predict(X[:3]).shape
        (3,)
    """

    legal: ClassVar[dict[str, Legal]] = {"net": NET, "hidden": WIDTHS, "loss": LossFor("values")}

    def __init__(
        self, net: Any = None, *, hidden: Sequence[int] = (128, 128), loss: LossLike = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.net = net
        self.hidden = hidden
        self.loss = loss

    def _objective(self) -> Objective:
        from weft.objectives import Regression

        return Regression(self.net, hidden=self.hidden, loss=self.loss)
