"""Supervised learning: a conditional distribution p(y | x) whose parameters a net gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, distributions, nn

from weft.core.legal import WIDTHS, Choice, Number, Several, Such
from weft.core.objective import Capability, Objective, Output, capability
from weft.core.source import Batch, Spec
from weft.nets import MLP, make_net
from weft.nets.make import NET, NetLike, tensor_of
from weft.objectives.supervised.loss import Loss, LossFor, LossLike, loss_of
from weft.objectives.supervised.losses import CrossEntropy, Squared

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


def _labels(p: Tensor) -> Tensor:
    return (p > 0.5).long()


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
        return None, tensor_of(net(x), net)
    return features, head(features)


class _ByLoss:
    """A trait that the loss decides; of the class, what it is where none is given."""

    def __init__(self, plain: object, decide: Callable[[Loss], object]) -> None:
        self.plain, self.decide = plain, decide

    def __get__(self, objective: _Labelled | None, owner: type) -> Any:
        return self.plain if objective is None else self.decide(objective.form)


_SCORED = frozenset({"logits", "rescore", "features"})
_TOLD = _SCORED | {"distribution"}


def _laws(loss: Loss) -> frozenset[str]:
    return frozenset({loss.law}) if loss.likelihood and loss.law else frozenset()


class _Labelled(Objective):
    """What y holds, whether the loss is a likelihood and of which distribution: all that the loss says."""

    on_policy = False  # a label is right, whoever went to where it is asked for
    likelihood = _ByLoss(True, lambda loss: loss.likelihood)
    provides = _ByLoss(_TOLD, lambda loss: _TOLD if loss.likelihood else _SCORED)

    @property
    def form(self) -> Loss:
        """The loss itself, where a name, a function or None was given."""
        raise NotImplementedError(f"{type(self).__name__} does not say which loss None is")

    def distribution(self, output: Output) -> distributions.Distribution:
        """p(y | x), over the rows."""
        z: Any = output.logits
        return self.form.distribution(z) if self.form.likelihood else super().distribution(output)


class Classification(_Labelled):
    """Learns which class: p(y | x) = softmax(net(x))_y, by maximum likelihood.

    The loss of an example is the cross-entropy,

        loss_i = -log p(y_i | x_i).

    Another one may be given: label smoothing, focal, hinge, Brier; for classes in an order `ordinal`; `multi-label`
    where y has a column of 0 and 1 for each label. Only likelihoods have a distribution: EWC and its kin refuse the
    others. Hinge and functions tell no probabilities, and have no `predict_proba`.

    Args:
        net: an `nn.Module` with one output per class, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        class_weight: weights by class label, `"balanced"` (inversely to the classes' frequencies) or
            None; they multiply the examples' weights.
        loss: a loss of classes (`weft.objectives.supervised.losses`), its name such as `"focal(gamma=1)"`, a function
            of (output, target) that gives one value per row, or None for cross-entropy.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Learner(Classification(), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
        >>> bool(Learner(Classification(loss="ordinal"), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    targets = _ByLoss("classes", lambda loss: loss.targets)
    laws = _ByLoss(frozenset({"categorical"}), _laws)
    ordered = _ByLoss(False, lambda loss: loss.ordered)
    legal = {"net": NET, "hidden": WIDTHS, "class_weight": CLASS_WEIGHT, "loss": LossFor("classes")}

    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden: Sequence[int] = (128, 128),
        class_weight: ClassWeight = None,
        loss: LossLike = None,
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.class_weight = class_weight
        self.loss = loss

    def validate(self) -> None:
        super().validate()
        if self.targets == "multilabel" and self.class_weight is not None:
            raise ValueError(
                f"expected class_weight=None with {self.form!r}, where a row has no single class, got "
                f"{self.class_weight!r}; give each row its sample_weight"
            )

    @property
    def form(self) -> Loss:
        return loss_of(self.loss, CrossEntropy())

    def build(self, spec: Spec) -> None:
        if "y" not in spec:
            raise ValueError("expected labels y for Classification, got none; call fit(X, y)")
        shape, classes = spec["y"].shape, spec["y"].classes
        if self.targets == "multilabel":
            if len(shape) != 1:
                raise ValueError(
                    f"expected y with a column of 0 and 1 for each label, as {self.form!r} reads it, got rows of shape "
                    f"{shape}; sklearn's MultiLabelBinarizer makes them"
                )
            classes = shape[0]
        elif classes is None:
            raise ValueError(
                "expected a source that says how many classes y numbers, got one that does not; for example "
                "Arrays(x, y, classes=3)"
            )
        elif shape:
            raise ValueError(
                f"expected one class for each row, got y with rows of shape {shape}; where a row may have several, "
                "Classification(loss='multi-label')"
            )
        self.net = make_net(self.net, spec["x"], self.form.outputs(classes), hidden=self.hidden)
        self.provides = self.provides - (set() if _headed(self.net) else {"features"})

    def forward(self, batch: Batch, player: str = "") -> Output:
        features, logits = _through(self.net, batch["x"])
        loss = self.form

        def rescore(z: Tensor) -> Tensor:
            return loss(z, batch["y"])

        return Output(rescore(logits), logits=logits, features=features, rescore=rescore)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        output = self(batch)
        z: Any = output.logits
        return {"loss": output.losses, "accuracy": self.form.right(z, batch["y"]).to(output.losses.dtype)}

    def capabilities(self) -> dict[str, Capability]:
        offered = super().capabilities()
        if self.targets == "multilabel":
            offered["predict"] = replace(offered["predict"], finish=_labels)
        if not self.form.probable:
            del offered["predict_proba"]
        return offered

    @capability(merge="mean")
    def predict_proba(self, x: Tensor) -> Tensor:
        """p(y | x), one column per class."""
        return self.form.answer(self.net(x))

    @capability(merge="mean", finish=_number)
    def predict(self, x: Tensor) -> Tensor:
        """The most probable class; of several labels, those more probable than not."""
        return self.predict_proba(x)


class Regression(_Labelled):
    """Learns a value: p(y | x) = Normal(net(x), noise^2), by maximum likelihood.

    The loss of an example is half its squared error in units of the noise, summed over outputs,

        loss_i = |y_i - net(x_i)|^2 / (2 noise^2),

    the negative log-likelihood up to a constant. Another one may be given: `absolute`, `huber`, `quantile(level=0.9)`,
    `gaussian` (whose variance is learned too); of counts `poisson` and `negative-binomial`, of amounts > 0 `gamma`.

    Args:
        net: an `nn.Module` with one output per target (with `gaussian` two), a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        noise: the standard deviation of the noise.
        loss: a loss of values (`weft.objectives.supervised.losses`), its name such as `"huber(width=2)"`, a function
            of (output, target) that gives one value per row, or None for the squared error.

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

    targets = _ByLoss("values", lambda loss: loss.targets)
    laws = _ByLoss(frozenset({"normal"}), _laws)
    legal = {"net": NET, "hidden": WIDTHS, "noise": Number(0, ends="()"), "loss": LossFor("values")}

    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden: Sequence[int] = (128, 128),
        noise: float = 1.0,
        loss: LossLike = None,
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.noise = noise
        self.loss = loss

    def validate(self) -> None:
        super().validate()
        if self.loss is not None and float(self.noise) != 1.0:
            raise ValueError(
                f"expected noise=1 with a loss of its own, {self.form!r}, which does not read it, got {self.noise!r}; "
                "Squared(noise=...) has one"
            )

    @property
    def form(self) -> Loss:
        return loss_of(self.loss, Squared(noise=self.noise))

    def build(self, spec: Spec) -> None:
        if "y" not in spec:
            raise ValueError("expected targets y for Regression, got none; call fit(X, y)")
        if len(spec["y"].shape) > 1:
            raise ValueError(
                f"expected targets with one axis of outputs, got rows of shape {spec['y'].shape}; flatten them to "
                "y.reshape(len(y), -1)"
            )
        size = spec["y"].shape[0] if spec["y"].shape else 1
        self._each = self.form.outputs(1)
        self.net = make_net(self.net, spec["x"], self.form.outputs(size), hidden=self.hidden)
        self.provides = self.provides - (set() if _headed(self.net) else {"features"})
        self._flat = spec["y"].shape == ()

    def forward(self, batch: Batch, player: str = "") -> Output:
        features, answer = _through(self.net, batch["x"])
        z, loss = self._shaped(answer), self.form

        def rescore(z: Tensor) -> Tensor:
            return loss(z, batch["y"])

        return Output(rescore(z), logits=z, features=features, rescore=rescore)

    @capability(merge="mean")
    def predict(self, x: Tensor) -> Tensor:
        """The mean of p(y | x), or what else the loss predicts."""
        return self.form.answer(self._shaped(self.net(x)))

    def _shaped(self, answer: Tensor) -> Tensor:
        each = () if self._each == 1 else (self._each,)
        return answer.reshape(answer.shape[0], *(() if self._flat else (-1,)), *each)
