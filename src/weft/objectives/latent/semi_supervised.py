"""A few labels and many rows without: the variational autoencoder whose class is unseen where it is not told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number, Whole
from weft.core.objective import Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical, turns
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.densities.density import Density
from weft.objectives.latent.coded import Coded

__all__ = ["SemiSupervisedVAE"]


def _number(probabilities: Tensor) -> Tensor:
    return probabilities.argmax(-1)


class SemiSupervisedVAE(Coded):
    """Rows of classes, of which most have no label: the code of a row is z and, where it is not told, its class y (M2).

        p(x, y, z) = p(y) p(z) p(x | y, z),      q(y, z | x) = q(y | x) q(z | x, y),      p(y) even

    A row with a label is bounded by L(x, y) <= log p(x, y); of one without, the class is summed over:

        L(x, y) = E_q(z | x, y) [log p(x | y, z)] + log p(y) - KL(q(z | x, y) || p(z))
        U(x)    = sum_y q(y | x) (L(x, y) - log q(y | x)) <= log p(x)

    The loss is -U(x) without a label, and -L(x, y) - alpha log q(y | x) with one, from which q(y | x) learns as a
    classifier does. Every class is tried for every row, so a step costs as many passes as there are classes.

    Rows without a label have y = -1, as in `sklearn.semi_supervised`. `predict` and `predict_proba` answer by q(y | x);
    `log_prob(X)` and `elbo(X)` bound log p(x), with y=... log p(x | y); what asks for a code needs y too.

    The simpler way, M1, is a classifier of a VAE's codes, and a pipeline: `make_pipeline(Learner(VAE(8)),
    Classifier())`, or the VAE trained on all rows first and a classifier on `vae.transform(X)` of those with labels.

    Args:
        latent: the entries of z.
        alpha: the weight of -log q(y | x) for a row with a label. The paper's 0.1 N times the mean over those with one
            is 0.1 N / (rows with a label) here.
        classifier: from rows to one output for each class, a net as a user may give it.
        draws: codes drawn for a row and a class in training.
        hidden, encoder, decoder, law, classes, parts, noise, scale, prior: see `weft.objectives.latent.coded.Coded`.

    References:
        Kingma, Rezende, Mohamed and Welling, "Semi-supervised learning with deep generative models", arXiv 1406.5298.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> rng = np.random.default_rng(0)
        >>> which = rng.integers(0, 2, 300)
        >>> X = rng.normal(size=(300, 2)) + 3 * which[:, None]
        >>> y = np.where(np.arange(300) < 20, which, -1)  # all but 20 have no label
        >>> model = SemiSupervisedVAE(1, hidden=(16,), noise="shared")
        >>> learner = Learner(model, optimizer=Optimizer("adam", lr=0.01), steps=200, random_state=0).fit(X, y)
        >>> bool(learner.score(X, which) > 0.9), learner.sample(2, y=[0, 1], random_state=0).shape
        (True, (2, 2))
    """

    unlabelled = True
    likelihood = False
    optimizer = Optimizer("adam", lr=1e-3)
    progress = ("loss", "min")
    space = {"alpha": Range(0.1, 100, log=True), "latent": Range(2, 64, log=True, whole=True)}
    legal = {"alpha": Number(0), "classifier": NET, "draws": Whole(1)}

    def __init__(
        self,
        latent: int = 10,
        *,
        alpha: float = 10.0,
        hidden: Sequence[int] = (128, 128),
        encoder: NetLike = None,
        decoder: NetLike = None,
        classifier: NetLike = None,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 1,
        noise: str | float = "net",
        scale: str = "exp",
        prior: int | Density | None = None,
        draws: int = 1,
    ) -> None:
        super().__init__(
            latent,
            hidden=hidden,
            encoder=encoder,
            decoder=decoder,
            law=law,
            classes=classes,
            parts=parts,
            noise=noise,
            scale=scale,
            prior=prior,
            conditional=True,
        )
        self.alpha = alpha
        self.classifier = classifier
        self.draws = draws

    def build(self, spec: Spec) -> None:
        super().build(spec)
        first, *rest = self._read_shape()
        read = Field((first - self.given, *rest), torch.get_default_dtype())
        self.told = make_net(self.classifier, read, self.given, hidden=self.hidden, what="classifier")

    def log_class(self, x: Tensor) -> Tensor:
        """log q(y | x), `(n, classes)`."""
        logits: Tensor = self.told(self._inputs(x.reshape(x.shape[0], -1), None, None))
        return logits.log_softmax(-1)

    def bounds(self, x: Tensor, draws: int) -> Tensor:
        """L(x, y) for every class, `(n, classes)`."""
        return torch.stack([self._bound(x, self._all(x, c), draws) for c in turns("class", self.given)], -1)

    def _bound(self, x: Tensor, y: Tensor, draws: int) -> Tensor:
        q = self.guess(x, None, y)
        z = q.draw(draws, "z")
        rate = q.each_rate().sum(-1) if self.prior is None else (q.log_prob(z) - self.log_prior(z, y)).mean(-1)
        return self.log_given(x, z, None, y).mean(-1) - rate - math.log(self.given)

    def _all(self, x: Tensor, c: int) -> Tensor:
        """A class for all rows."""
        return torch.full((x.shape[0],), c, dtype=torch.int64, device=x.device)

    def forward(self, batch: Batch, player: str = "") -> Output:
        x, y = batch["x"], batch["y"]
        each, log_class = self.bounds(x, int(self.draws)), self.log_class(x)
        own = y.clamp_min(0).unsqueeze(-1)
        labelled = (each + self.alpha * log_class).gather(-1, own).squeeze(-1)
        return Output(-torch.where(y < 0, self._summed(each, log_class), labelled))

    def _summed(self, each: Tensor, log_class: Tensor) -> Tensor:
        """U(x)."""
        return (log_class.exp() * (each - log_class)).sum(-1)

    # --- answers ------------------------------------------------------------------------------------------

    @capability(merge="mean")
    def predict_proba(self, x: Tensor) -> Tensor:
        """q(y | x), one column per class."""
        return self.log_class(x).exp()

    @capability(merge="mean", finish=_number)
    def predict(self, x: Tensor) -> Tensor:
        """The most probable class."""
        return self.predict_proba(x)

    def log_prob(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 64
    ) -> Tensor:
        """The bound of so many draws for log p(x), or for log p(x | y) where the class is told."""
        if y is not None:
            return super().log_prob(x, observed, y, draws=draws)
        each = []
        for c in turns("class", self.given):
            each.append(super().log_prob(x, None, self._all(x, c), draws=draws))
        return torch.stack(each, -1).logsumexp(-1) - math.log(self.given)

    def elbo(
        self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None, *, draws: int = 8, refine: int = 0
    ) -> Tensor:
        """U(x), or where the class is told the bound of log p(x | y)."""
        if y is not None:
            return super().elbo(x, observed, y, draws=draws, refine=refine)
        Whole(1).check(draws, "the draws of elbo")
        if refine:
            raise ValueError(f"expected refine=0 where no class is told, got {refine}; give y=...")
        return self._summed(self.bounds(x, int(draws)), self.log_class(x))

    def sample(self, n: int, y: Tensor | None = None) -> Tensor:
        """Rows of these classes, or of classes drawn evenly."""
        if y is None:
            like = next(self.told.parameters())
            y = categorical(like.new_zeros(n, self.given), place="class")
        return super().sample(n, y)
