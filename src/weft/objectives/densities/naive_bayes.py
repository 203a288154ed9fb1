"""Naive Bayes: classes whose columns are independent, each by its own law."""

from __future__ import annotations

from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import legal_of
from weft.core.source import Batch
from weft.objectives.densities.class_conditional import ClassConditional
from weft.objectives.densities.density import Density
from weft.objectives.densities.independent import Independent

__all__ = ["NaiveBayes"]


class NaiveBayes(ClassConditional):
    """Bayes' rule with columns that are independent given the class: p(x, y) = p(y) prod_j p_j(x_j | y).

    `ClassConditional` of `Independent`, in closed form: Gaussian naive Bayes for numbers, Bernoulli, categorical and
    Poisson ones for what is true or false, classes and counts, and for a table each column by its kind. What is missing
    of a row is left out of the product, which is exact.

    Args:
        law: `auto` by the columns' kinds, or one for all: normal, bernoulli, categorical, poisson.
        classes: of the law `categorical` for an array, how many there are.
        floor: so much of the largest variance of a column among all rows is added to each variance.
        smoothing: so many imagined rows of each class for each outcome, of laws of whole numbers.

    References:
        Domingos and Pazzani, "On the optimality of the simple Bayesian classifier under zero-one loss", Machine
        Learning 29, 1997.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> X, y = load_iris(return_X_y=True)
        >>> Learner(NaiveBayes(), dtype="float64", random_state=0).fit(X, y).score(X, y)
        0.96
    """

    space = {"floor": Range(1e-9, 1e-1, log=True), "smoothing": Range(1e-2, 10.0, log=True)}
    legal = legal_of(Independent)

    def __init__(
        self, *, law: str = "auto", classes: int | None = None, floor: float = 1e-9, smoothing: float = 1.0
    ) -> None:
        super().__init__()
        self.law = law
        self.classes = classes
        self.floor = floor
        self.smoothing = smoothing

    def each(self) -> Density:
        return Independent(law=self.law, classes=self.classes, floor=self.floor, smoothing=self.smoothing)

    def parts_for(self, taken: Batch, weight: Tensor) -> list[Density]:
        """With the floor in the units of the rows."""
        parts = self.densities()
        laws = parts[0].entries.laws if isinstance(parts[0], Independent) else ()
        continuous = [j for j, law in enumerate(laws) if law.continuous]
        if not continuous or not self.floor:
            return parts
        x, share = taken["x"].double()[..., continuous], weight.unsqueeze(-1) * taken["observed"][..., continuous]
        mass = share.sum(-2, keepdim=True)
        mean = (share * x).sum(-2, keepdim=True) / mass
        variance = ((share * (x - mean) ** 2).sum(-2) / mass.squeeze(-2)).amax()
        return [part.having(floor=self.floor * float(variance)) for part in parts]
