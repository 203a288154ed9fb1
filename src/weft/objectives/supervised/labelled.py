"""Supervised learning: a conditional distribution p(y | x) whose parameters a net gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, distributions, nn

from weft.core.legal import WIDTHS, Choice, Number, Several, Such
from weft.core.objective import Objective, Output, capability
from weft.core.source import Batch, Spec
from weft.nets import MLP, make_net
from weft.nets.make import NET, NetLike

__all__ = ["CLASS_WEIGHT", "ClassWeight", "Classification", "Regression"]

ClassWeight = Mapping[Any, float] | str | None
"""Weights by class label, `balanced`, or None."""


def _listed(given: object) -> object:
    if isinstance(given, np.ndarray):
        return given.tolist()
    return list(given.values()) if isinstance(given, Mapping) else given


_WEIGHTS = Several("finite class weights >= 0 by label", Number(0))
_BY_LABEL = Such(_WEIGHTS.words, lambda w: _WEIGHTS.kind(_listed(w)), lambda w: _WEIGHTS.fits(_listed(w)))
CLASS_WEIGHT = _BY_LABEL | Choice("balanced") | None


def _number(p: Tensor) -> Tensor:
    return p.argmax(-1)


def _headed(net: nn.Module) -> bool:
    """Whether a net's representation and its head can be told apart: an MLP, or layers that end in a linear one."""
    if isinstance(net, MLP):
        return True
    layers = list(net) if type(net) is nn.Sequential else []
    learned = any(True for layer in layers[:-1] for _ in layer.parameters())
    return learned and isinstance(layers[-1], nn.Linear)


def _through(net: nn.Module, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """The features before the head, where they can be told, and the answer."""
    head: nn.Module
    if isinstance(net, MLP):
        features, head = net.features(x), net.head
    elif isinstance(net, nn.Sequential) and _headed(net):
        features, head = net[:-1](x), net[-1]
    else:
        return None, net(x)
    return features, head(features)


class Classification(Objective):
    """Learns which class: p(y | x) = softmax(net(x))_y, by maximum likelihood.

    The loss of an example is the cross-entropy,

        loss_i = -log p(y_i | x_i).

    Args:
        net: an `nn.Module` with one output per class, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        class_weight: weights by class label, `"balanced"` (inversely to the classes' frequencies) or
            None; they multiply the examples' weights.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Learner(Classification(), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    likelihood = True
    provides = frozenset({"logits", "rescore", "features", "distribution"})
    targets = "classes"
    legal = {"net": NET, "hidden": WIDTHS, "class_weight": CLASS_WEIGHT}

    def __init__(
        self, net: NetLike = None, *, hidden: Sequence[int] = (128, 128), class_weight: ClassWeight = None
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.class_weight = class_weight

    def build(self, spec: Spec) -> None:
        if "y" not in spec:
            raise ValueError("expected labels y for Classification, got none; call fit(X, y)")
        if spec["y"].classes is None:
            raise ValueError(
                "expected a source that says how many classes y numbers, got one that does not; for example "
                "Arrays(x, y, classes=3)"
            )
        classes = spec["y"].classes
        self.net = make_net(self.net, spec["x"], classes, hidden=self.hidden)
        self.provides = self.provides - (set() if _headed(self.net) else {"features"})

    def forward(self, batch: Batch, player: str = "") -> Output:
        features, logits = _through(self.net, batch["x"])

        def rescore(z: Tensor) -> Tensor:
            return F.cross_entropy(z, batch["y"], reduction="none")

        return Output(rescore(logits), logits=logits, features=features, rescore=rescore)

    def distribution(self, output: Output) -> distributions.Distribution:
        """p(y | x), over the rows."""
        return distributions.Categorical(logits=output.logits, validate_args=False)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        output = self(batch)
        return {"loss": output.losses, "accuracy": (output.logits.argmax(-1) == batch["y"]).to(output.losses.dtype)}

    @capability(merge="mean")
    def predict_proba(self, x: Tensor) -> Tensor:
        """p(y | x), one column per class."""
        return self.net(x).softmax(-1)

    @capability(merge="mean", finish=_number)
    def predict(self, x: Tensor) -> Tensor:
        """The most probable class."""
        return self.predict_proba(x)


class Regression(Objective):
    """Learns a value: p(y | x) = Normal(net(x), noise^2), by maximum likelihood.

    The loss of an example is half its squared error in units of the noise, summed over outputs,

        loss_i = |y_i - net(x_i)|^2 / (2 noise^2),

    the negative log-likelihood up to a constant.

    Args:
        net: an `nn.Module` with one output per target, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        noise: the standard deviation of the noise.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.1.1.

    Example:
        >>> import torch
        >>> from weft import Learner, Optimizer
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> line = Learner(Regression("linear"), optimizer=Optimizer("sgd", lr=0.3), steps=200, batch_size=None)
        >>> line.fit(x, 2 * x + 1).predict(torch.tensor([[3.0]])).round(2).tolist()
        [[7.0]]
    """

    likelihood = True
    provides = frozenset({"logits", "rescore", "features", "distribution"})
    legal = {"net": NET, "hidden": WIDTHS, "noise": Number(0, ends="()")}

    def __init__(self, net: NetLike = None, *, hidden: Sequence[int] = (128, 128), noise: float = 1.0) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.noise = noise

    def build(self, spec: Spec) -> None:
        if "y" not in spec:
            raise ValueError("expected targets y for Regression, got none; call fit(X, y)")
        if len(spec["y"].shape) > 1:
            raise ValueError(
                f"expected targets with one axis of outputs, got rows of shape {spec['y'].shape}; flatten them to "
                "y.reshape(len(y), -1)"
            )
        self.net = make_net(self.net, spec["x"], spec["y"].shape[0] if spec["y"].shape else 1, hidden=self.hidden)
        self.provides = self.provides - (set() if _headed(self.net) else {"features"})
        self._flat = spec["y"].shape == ()

    def forward(self, batch: Batch, player: str = "") -> Output:
        features, answer = _through(self.net, batch["x"])
        mean = self._shaped(answer)

        def rescore(z: Tensor) -> Tensor:
            error = (batch["y"] - z).square() / (2.0 * self.noise**2)
            return error if self._flat else error.sum(-1)

        return Output(rescore(mean), logits=mean, features=features, rescore=rescore)

    def distribution(self, output: Output) -> distributions.Distribution:
        """p(y | x), over the rows."""
        mean: Any = output.logits
        normal = distributions.Normal(mean, self.noise, validate_args=False)
        return normal if self._flat else distributions.Independent(normal, 1, validate_args=False)

    @capability(merge="mean")
    def predict(self, x: Tensor) -> Tensor:
        """The mean of p(y | x)."""
        return self._shaped(self.net(x))

    def _shaped(self, answer: Tensor) -> Tensor:
        return answer.reshape(answer.shape[0]) if self._flat else answer.reshape(answer.shape[0], -1)
