"""Losses: how far what a net gives lies from what was seen, one number for each row.

`Classification(loss=...)` and `Regression(loss=...)` are what their loss is. Named by text it is spelled as on the
command line: `"focal(gamma=1)"`.

    classes     cross-entropy, focal, hinge, brier, ordinal; multi-label, where a row may have any of them
    values      squared, absolute, huber, quantile, gaussian; poisson, negative-binomial (counts), gamma (amounts)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, distributions

from weft.core.legal import Number
from weft.objectives.supervised.loss import Likelihood, Loss, Values

__all__ = [
    "Absolute",
    "Brier",
    "CrossEntropy",
    "Focal",
    "Gamma",
    "Gaussian",
    "Hinge",
    "Huber",
    "MultiLabel",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Quantile",
    "Squared",
]


# --- classes ------------------------------------------------------------------------------------------


class CrossEntropy(Loss):
    """-sum_k q_k log p_k, with p = softmax(z) and q = (1 - smoothing) 1[k = y] + smoothing / K.

    Without smoothing it is the likelihood of the class; with it, it is none: the targets are not what was seen.

    Args:
        smoothing: the share of the target that is spread over all K classes.

    References:
        Szegedy et al., "Rethinking the Inception architecture for computer vision", arXiv 1512.00567.
    """

    law = "categorical"
    legal = {"smoothing": Number(0, 1, "[)")}

    def __init__(self, *, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    @property
    def likelihood(self) -> bool:
        return float(self.smoothing) == 0.0

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="none", label_smoothing=self.smoothing)

    def distribution(self, z: Tensor) -> distributions.Distribution:
        return distributions.Categorical(logits=z, validate_args=False)


class Focal(Loss):
    """-(1 - p_y)^gamma log p_y, with p = softmax(z): rows that are known already count less.

    Its p are no calibrated probabilities: they lie nearer to 1 / K than those of the likelihood.

    Args:
        gamma: how much less; 0 is cross-entropy.

    References:
        Lin et al., "Focal loss for dense object detection", arXiv 1708.02002.
    """

    legal = {"gamma": Number(0)}

    def __init__(self, *, gamma: float = 2.0) -> None:
        self.gamma = gamma

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(z, y, reduction="none")
        rest = -torch.expm1(-loss)  # 1 - p_y; where it is 0 the slope of a power below 1 would be infinite
        return rest.clamp_min(torch.finfo(z.dtype).tiny) ** self.gamma * loss


class Hinge(Loss):
    """max(0, margin + max_{k != y} z_k - z_y): a class is to lead all others by the margin. No probabilities.

    Args:
        margin: by how much.

    References:
        Crammer and Singer, "On the algorithmic implementation of multiclass kernel-based vector machines", Journal of
        Machine Learning Research 2, 2001.
    """

    probable = False
    legal = {"margin": Number(0, ends="()")}

    def __init__(self, *, margin: float = 1.0) -> None:
        self.margin = margin

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        own = torch.arange(z.shape[-1], device=z.device) == y[..., None]
        best = z.masked_fill(own, -math.inf).amax(-1)
        return (self.margin + best - z.gather(-1, y[..., None]).squeeze(-1)).clamp_min(0.0)

    def answer(self, z: Tensor) -> Tensor:
        return z


class Brier(Loss):
    """sum_k (p_k - 1[k = y])^2, with p = softmax(z): a proper score that is bounded, and no likelihood.

    References:
        Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78, 1950.
    """

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        own = torch.arange(z.shape[-1], device=z.device) == y[..., None]
        return (z.softmax(-1) - own.to(z.dtype)).square().sum(-1)


class Ordinal(Loss):
    """-log p(y), of classes in an order, by the K - 1 questions whether y goes on beyond the class that it has reached.

        p(y > k | y >= k) = sigmoid(z_k),    k = 0, ..., K - 2

    Labels are numbers, whose order is the classes'; text, which has no order of its own, is refused.

    References:
        McCullagh, "Regression models for ordinal data", Journal of the Royal Statistical Society B 42, 1980 (section
        5.1, continuation ratios); Shi, Cao and Raschka, "Deep neural networks for rank-consistent ordinal regression
        based on conditional probabilities", arXiv 2111.08851.
    """

    law = "categorical"
    ordered = True

    @property
    def likelihood(self) -> bool:
        return True

    def outputs(self, size: int) -> int:
        return size - 1

    def _log(self, z: Tensor) -> Tensor:
        """log p of each class: on beyond all before it, and not beyond itself."""
        beyond = F.pad(F.logsigmoid(z).cumsum(-1), (1, 0))
        return beyond + F.pad(F.logsigmoid(-z), (0, 1))

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        return -self._log(z).gather(-1, y[..., None]).squeeze(-1)

    def answer(self, z: Tensor) -> Tensor:
        return self._log(z).exp()

    def right(self, z: Tensor, y: Tensor) -> Tensor:
        return self._log(z).argmax(-1) == y

    def distribution(self, z: Tensor) -> distributions.Distribution:
        return distributions.Categorical(logits=self._log(z), validate_args=False)


class _Labels(distributions.Bernoulli):
    """Labels of 0 and 1, which data holds as integers."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.to(self.logits.dtype))


class MultiLabel(Loss):
    """-sum_k log p(y_k), with p(y_k = 1) = sigmoid(z_k): a row may have any of the labels, or none.

    y has a column of 0 and 1 for each label; given x they are independent.

    References:
        Read et al., "Classifier chains for multi-label classification", Machine Learning 85, 2011 (binary relevance).
    """

    law = "bernoulli"
    targets = "multilabel"

    @property
    def likelihood(self) -> bool:
        return True

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(z, y.to(z.dtype), reduction="none").sum(-1)
        return torch.where(((y == 0) | (y == 1)).all(-1), losses, math.inf)

    def answer(self, z: Tensor) -> Tensor:
        return z.sigmoid()

    def right(self, z: Tensor, y: Tensor) -> Tensor:
        return ((z > 0) == (y > 0)).all(-1)

    def distribution(self, z: Tensor) -> distributions.Distribution:
        return distributions.Independent(_Labels(logits=z, validate_args=False), 1, validate_args=False)


# --- values -------------------------------------------------------------------------------------------


class Squared(Likelihood):
    """(y - z)^2 / (2 noise^2): the likelihood of Normal(z, noise^2), up to a constant. It predicts the mean.

    Args:
        noise: the standard deviation.
    """

    law = "normal"
    legal = {"noise": Number(0, ends="()")}

    def __init__(self, *, noise: float = 1.0) -> None:
        self.noise = noise

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return (y - z).square() / (2.0 * self.noise**2)

    def marginal(self, z: Tensor) -> distributions.Distribution:
        return distributions.Normal(z, self.noise, validate_args=False)


class Absolute(Likelihood):
    """|y - z|: the likelihood of Laplace(z, 1), up to a constant. It predicts the median."""

    law = "laplace"

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return (y - z).abs()

    def marginal(self, z: Tensor) -> distributions.Distribution:
        return distributions.Laplace(z, torch.ones_like(z), validate_args=False)


class Huber(Values):
    """e^2 / 2 for errors |e| <= width, width (|e| - width / 2) beyond: far values pull no more than near ones.

    Args:
        width: where the square ends.

    References:
        Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.
    """

    legal = {"width": Number(0, ends="()")}

    def __init__(self, *, width: float = 1.0) -> None:
        self.width = width

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return F.huber_loss(z, y.to(z.dtype), reduction="none", delta=self.width)


class Quantile(Values):
    """max(level e, (level - 1) e) for the error e = y - z. It predicts the value below which that share of y lies.

    Args:
        level: the share.

    References:
        Koenker and Bassett, "Regression quantiles", Econometrica 46, 1978.
    """

    legal = {"level": Number(0, 1, "()")}

    def __init__(self, *, level: float = 0.5) -> None:
        self.level = level

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        error = y - z
        return torch.maximum(self.level * error, (self.level - 1.0) * error)


class Gaussian(Likelihood):
    """-log Normal(y; m, exp(s)), up to a constant, of two outputs for each value: the mean m and the log-variance s.

        loss = s / 2 + (y - m)^2 exp(-s) / 2

    References:
        Nix and Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994.
    """

    law = "normal"
    numbers = 2

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        mean, spread = z.unbind(-1)
        return 0.5 * (spread + (y - mean).square() * (-spread).exp())

    def answer(self, z: Tensor) -> Tensor:
        return z[..., 0]

    def marginal(self, z: Tensor) -> distributions.Distribution:
        mean, spread = z.unbind(-1)
        return distributions.Normal(mean, (0.5 * spread).exp(), validate_args=False)


class _Logarithmic(Likelihood):
    """The likelihood of a distribution whose mean is exp(z). What it cannot give (a count of -1) has no likelihood."""

    def answer(self, z: Tensor) -> Tensor:
        return z.exp()


def _of_counts(y: Tensor, losses: Tensor) -> Tensor:
    return torch.where((y >= 0) & (y == y.floor()), losses, math.inf)


class Poisson(_Logarithmic):
    """-log Poisson(y; exp(z)) = exp(z) - y z + log y!, of counts. It predicts the mean, exp(z).

    References:
        McCullagh and Nelder, "Generalized linear models", 1989, chapter 6.
    """

    law = "poisson"
    targets = "counts"

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        y = y.to(z.dtype)
        return _of_counts(y, z.exp() - y * z + torch.lgamma(y + 1.0))

    def marginal(self, z: Tensor) -> distributions.Distribution:
        return distributions.Poisson(z.exp(), validate_args=False)


class NegativeBinomial(_Logarithmic):
    """-log NegativeBinomial(y), of counts with mean m = exp(z) and variance m + dispersion m^2. It predicts the mean.

        p(y) = Gamma(y + r) / (y! Gamma(r)) (r / (r + m))^r (m / (r + m))^y,    r = 1 / dispersion

    Args:
        dispersion: how much more than a Poisson's the variance is.

    References:
        Hilbe, "Negative binomial regression", 2011, chapter 8.
    """

    law = "negative binomial"
    targets = "counts"
    legal = {"dispersion": Number(0, ends="()")}

    def __init__(self, *, dispersion: float = 1.0) -> None:
        self.dispersion = dispersion

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        y, r = y.to(z.dtype), 1.0 / self.dispersion
        odds = z - math.log(r)
        choices = torch.lgamma(y + r) - torch.lgamma(y + 1.0) - math.lgamma(r)
        return _of_counts(y, -choices - r * F.logsigmoid(-odds) - y * F.logsigmoid(odds))

    def marginal(self, z: Tensor) -> distributions.Distribution:
        r = 1.0 / self.dispersion
        return distributions.NegativeBinomial(torch.full_like(z, r), logits=z - math.log(r), validate_args=False)


class Gamma(_Logarithmic):
    """-log Gamma(y; shape, shape / m), of amounts > 0 with mean m = exp(z) and variance m^2 / shape. It predicts m.

    Args:
        shape: 1 is an exponential distribution.

    References:
        McCullagh and Nelder, "Generalized linear models", 1989, chapter 8.
    """

    law = "gamma"
    targets = "amounts"
    legal = {"shape": Number(0, ends="()")}

    def __init__(self, *, shape: float = 1.0) -> None:
        self.shape = shape

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        y, a = y.to(z.dtype), self.shape
        constant = math.lgamma(a) - a * math.log(a)
        return a * (z + y * (-z).exp()) - (a - 1.0) * y.log() + constant

    def marginal(self, z: Tensor) -> distributions.Distribution:
        return distributions.Gamma(torch.full_like(z, self.shape), self.shape * (-z).exp(), validate_args=False)
