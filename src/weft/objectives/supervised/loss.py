"""What a loss is: one number for each row, of outputs from which it predicts, and perhaps a likelihood."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor, distributions

from weft.core.catalogue import class_of, named
from weft.core.configured import Configured
from weft.core.legal import Legal
from weft.core.spelling import parse

__all__ = ["Function", "Likelihood", "Loss", "LossFor", "LossLike", "Values", "loss_of"]


class Loss(Configured):
    """One loss for each row, of a net's outputs z and the targets y: `loss(z, y)` has shape `(n,)`.

    Attributes:
        targets: what y holds: `classes` (numbers of classes), `multilabel` (0 or 1 for each label), `values`, `counts`
            (0, 1, 2, ...) or `amounts` (numbers > 0).
        ordered: whether the order of the classes counts.
        likelihood: whether it is -log p(y | z) up to a constant, p being its `distribution`.
        law: of what family that is, in torch's name in small letters; "" where it is no likelihood.
        probable: whether it tells the probability of each class.
    """

    targets: str = "classes"
    ordered: bool = False
    probable: bool = True
    law: str = ""

    @property
    def likelihood(self) -> bool:
        return False

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        """One loss per row."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(z, y)")

    def outputs(self, size: int) -> int:
        """How many numbers a net gives for a row, of so many classes or values."""
        return size

    def answer(self, z: Tensor) -> Tensor:
        """What is predicted: the value, or the classes' probabilities (scores, where it tells no probabilities)."""
        return z.softmax(-1)

    def right(self, z: Tensor, y: Tensor) -> Tensor:
        """Whether the class predicted is the one seen."""
        return z.argmax(-1) == y

    def distribution(self, z: Tensor) -> distributions.Distribution:
        """p(y | z), where it is a likelihood."""
        raise NotImplementedError(f"{self!r} is the likelihood of no distribution")


class Function(Loss):
    """A user's function of (output, target), one loss per row; what it is a likelihood of is not known.

    Args:
        function: of z and y, as the net and the data have them.
        targets: as in `Loss`.
    """

    probable = False

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], targets: str) -> None:
        self.function = function
        self.targets = targets

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        losses = self.function(z, y)
        if not isinstance(losses, Tensor) or losses.shape != z.shape[:1]:
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"expected the loss to give one value per row, shape ({len(z)},), got {got}; leave the mean to weft "
                "(reduction='none') and sum over a row's own outputs"
            )
        return losses

    def answer(self, z: Tensor) -> Tensor:
        return z


class Values(Loss):
    """A loss of values, summed over a row's; z has their shape, with a last axis more where one takes several numbers.

    Attributes:
        numbers: how many a net gives for each value.
    """

    targets = "values"
    numbers: int = 1

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss of each value."""
        raise NotImplementedError(f"{type(self).__name__} does not define each(z, y)")

    def marginal(self, z: Tensor) -> distributions.Distribution:
        """p(y | z) of each value."""
        raise NotImplementedError(f"{self!r} is the likelihood of no distribution")

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        losses = self.each(z, y)
        return losses if losses.dim() == 1 else losses.sum(-1)

    def outputs(self, size: int) -> int:
        return self.numbers * size

    def answer(self, z: Tensor) -> Tensor:
        return z

    def distribution(self, z: Tensor) -> distributions.Distribution:
        one = self.marginal(z)
        return one if len(one.batch_shape) == 1 else distributions.Independent(one, 1, validate_args=False)


class Likelihood(Values):
    """A loss of values that is a likelihood."""

    @property
    def likelihood(self) -> bool:
        return True


LossLike = Loss | Callable[[Tensor, Tensor], Tensor] | str | None
"""What a user may give as a loss: a `Loss`, its name, a function of (output, target) per row, or None."""


@lru_cache(maxsize=64)
def _named(text: str) -> Loss:
    loss: Loss = parse(text, "losses")
    loss.validate()
    return loss


def loss_of(given: LossLike, default: Loss) -> Loss:
    """The loss that a user means, where None means the default."""
    if given is None:
        return default
    if isinstance(given, str):
        return _named(given)
    return given if isinstance(given, Loss) else Function(given, default.targets)


class LossFor(Legal):
    """A loss as a user may give it, for an objective that learns classes or values.

    Args:
        kind: `classes` or `values`.
    """

    def __init__(self, kind: str) -> None:
        self.targets = ("classes", "multilabel") if kind == "classes" else ("values", "counts", "amounts")
        self.words = f"a loss of {kind}, its name, a function of (output, target) per row, or None"

    def kind(self, value: object) -> bool:
        return value is None or isinstance(value, str) or (callable(value) and not isinstance(value, type))

    def fits(self, value: object) -> bool:
        loss = _named(value) if isinstance(value, str) else value
        return not isinstance(loss, Loss) or loss.targets in self.targets

    def near(self, value: object) -> str:
        known = [spelling for spelling in named("losses") if class_of("losses", spelling).targets in self.targets]  # type: ignore[attr-defined]
        return f"there are {', '.join(known)}"
