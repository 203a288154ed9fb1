"""GLO: codes of the training rows that are learned along with the net, and no encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Whole
from weft.core.objective import Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import fold, gauss, key_of, normal, row_hash
from weft.core.source import Batch, Spec
from weft.core.trees import Params
from weft.nets.make import NetLike
from weft.objectives.latent.decoded import Decoded
from weft.objectives.latent.inference import numbered, searched

__all__ = ["GLO"]


class GLO(Decoded):
    """Generative latent optimization: each training row has a code of its own, learned together with the decoder.

        min over g and z_1, ..., z_N in the unit ball   sum_i off(x_i, g(z_i))

    After each step, codes that have left the ball are put back on it, z / max(|z|, 1). There is no encoder and no
    adversary. `sample(n)` fits one normal to the codes, with all covariances, and gives g of its draws:

        z ~ N(m, S),   m = 1/N sum_i z_i,   S = 1/N sum_i (z_i - m)(z_i - m)'

    Codes of rows are searched for, be they new or learned from: `transform(X)` goes down off(x, g(z)) within the ball
    from several starts, drawn from that normal by a key of the row, and keeps the best end. So an answer is a function
    of the row and the parameters. The learned codes are the parameter `z` of `learner.objective_.table`, in the order
    of the training rows.

    A loss that is a distance gives no density, and a code that is one point no posterior: `VAE` has both. Rows that are
    held out have no code, so that there is no validation; compare `reconstruction_error(X)` of other rows instead.

    Args:
        latent: the entries of a code.
        hidden: hidden widths of the default decoder, reversed, as of an autoencoder's.
        decoder: from a code to a row, a net as a user may give it; `conv-decoder` for images.
        loss: `squared`, `absolute` or `bernoulli`, see `weft.objectives.latent.decoded.Decoded`. The paper adds a
            distance of Laplacian pyramids for large images, which is not here.

    References:
        Bojanowski, Joulin, Lopez-Paz and Szlam, "Optimizing the latent space of generative networks", arXiv 1707.05776.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> angle = np.random.default_rng(0).uniform(0, 6.28, 200)
        >>> X = np.stack([np.cos(angle), np.sin(angle), np.cos(angle + 1)], 1)
        >>> learner = Learner(GLO(2, hidden=(32,)), steps=300, batch_size=None, random_state=0).fit(X)
        >>> codes = learner.objective_.table.z.detach()
        >>> codes.shape, bool((codes.norm(dim=1) <= 1.0001).all())
        (torch.Size([200, 2]), True)
        >>> learner.transform(X[:3]).shape, learner.sample(4, random_state=0).shape
        ((3, 2), (4, 3))
    """

    fields = ("x", "index")
    optimizer = Optimizer("adam", lr=0.01)
    space = {"latent": Range(2, 64, log=True, whole=True)}

    def __init__(
        self,
        latent: int = 10,
        *,
        hidden: Sequence[int] = (128, 128),
        decoder: NetLike = None,
        loss: str = "squared",
    ) -> None:
        super().__init__(latent, hidden=hidden, decoder=decoder, loss=loss)

    def build(self, spec: Spec) -> None:
        super().build(spec)
        self.table = _Table(numbered(spec, "GLO"), int(self.latent))

    def project(self, params: Params) -> Params:
        return {"table.z": in_ball(params["table.z"])}

    def forward(self, batch: Batch, player: str = "") -> Output:
        return Output(self.off(self.raw(self.table.z[batch["index"]]), self.numbers(batch["x"])))

    # --- a normal of the codes ----------------------------------------------------------------------------

    def drawn(self, noise: Tensor) -> Tensor:
        """m + noise S^(1/2), the root being the symmetric one: there is one also where codes lie in a subspace."""
        z = self.table.z
        centred = z - z.mean(0)
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(z))
        return z.mean(0) + noise @ (vectors * values.clamp_min(0).sqrt()) @ vectors.T

    @capability(merge="share", kind="direct", gives="x")
    def sample(self, n: int) -> Tensor:
        """g(z) for z drawn from the normal of the codes; under `bernoulli` these are shares, not bits."""
        return self.mean(self.raw(self.drawn(normal((n, int(self.latent)), place="z", dtype=self.table.z.dtype))))

    # --- search -------------------------------------------------------------------------------------------

    def found(self, x: Tensor, steps: int, starts: int) -> tuple[Tensor, Tensor]:
        """The best code that was found for each row, and how far off it is: projected steps of Adam."""
        x, shape = self.numbers(x), (len(x), starts, int(self.latent))
        many = x.unsqueeze(1).expand(-1, starts, *x.shape[1:]).flatten(0, 1)

        def off(z: Tensor) -> Tensor:
            return self.off(self.raw(z.flatten(0, 1)), many).reshape(shape[:2])

        slopes = torch.func.grad(lambda z: off(z).sum(), argnums=(0,))
        # by the row alone, not by the question: transform, reconstruct and reconstruction_error tell of one code
        keys = fold(key_of(0, x.device), "start", row_hash(x))
        start = in_ball(self.drawn(gauss(keys, shape[1:], x.dtype)))
        (z,) = searched(slopes, [start], steps, rate=0.1, project=in_ball)
        far, best = off(z).min(1)
        return z.gather(1, best.reshape(-1, 1, 1).expand(-1, 1, shape[2])).squeeze(1), far

    @capability(merge="refuse", kind="estimate")
    def transform(self, x: Tensor, *, steps: int = 200, starts: int = 4) -> Tensor:
        """The code in the ball from which each row is made best, as far as the search finds it.

        Args:
            x: rows.
            steps: of the search.
            starts: from which it begins; the best end counts.
        """
        Whole(1).check(steps, "the steps of transform")
        Whole(1).check(starts, "the starts of transform")
        return self.found(x, int(steps), int(starts))[0]

    @capability(merge="refuse", kind="estimate", gives="x")
    def reconstruct(self, x: Tensor, *, steps: int = 200, starts: int = 4) -> Tensor:
        """g of the code that `transform` finds."""
        return self.mean(self.raw(self.transform(x, steps=steps, starts=starts)))

    @capability(merge="mean", kind="upper bound")
    def reconstruction_error(self, x: Tensor, *, steps: int = 200, starts: int = 4) -> Tensor:
        """How far off each row's reconstruction is, at least so near as the best code."""
        Whole(1).check(steps, "the steps of reconstruction_error")
        Whole(1).check(starts, "the starts of reconstruction_error")
        return self.found(x, int(steps), int(starts))[1]


def in_ball(z: Tensor) -> Tensor:
    """z / max(|z|, 1)."""
    return z / torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp_min(1.0)


class _Table(nn.Module):
    """A code for each training row, by its number."""

    def __init__(self, rows: int, latent: int) -> None:
        super().__init__()
        self.z = nn.Parameter(torch.zeros(rows, latent))

    def reset_parameters(self) -> None:
        """Normal ones of about unit length, the longer of which `project` shortens."""
        nn.init.normal_(self.z, std=self.z.shape[1] ** -0.5)
