"""Fisher information by products: the curvature of the divergence between what is predicted now and nearby."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, distributions
from torch.func import grad

from weft.core.objective import Output
from weft.core.random import normal
from weft.core.strategy import Move
from weft.core.trees import Params

__all__ = ["KNOWN", "conjugate_gradients", "divergence", "dot", "information", "predicting"]

Product = Callable[[Params], Params]
KNOWN = ("categorical", "normal")


def divergence(then: Output, now: Output) -> Tensor:
    """KL(then || now) of what is predicted for each row, that of its parts summed; `then` is held fixed."""
    total: Tensor | float = 0.0
    for old, new in zip(_told(then), _told(now), strict=True):
        if isinstance(old, distributions.Categorical):
            log = old.logits.detach()
            kl = (log.exp() * (log - cast(distributions.Categorical, new).logits)).sum(-1)
        else:
            mean, scale = old.mean.detach(), old.stddev.detach()
            ratio = scale / new.stddev
            kl = 0.5 * (ratio.square() + ((mean - new.mean) / new.stddev).square() - 1.0) - ratio.log()
        total = total + kl.reshape(len(kl), -1).sum(1)
    return torch.as_tensor(total)


def _told(output: Output) -> list[distributions.Distribution]:
    if output.distribution is None:
        raise ValueError("expected an output that tells its distribution, got one without")
    told = output.distribution()
    each = told if isinstance(told, tuple) else (told,)
    return [one.base_dist if isinstance(one, distributions.Independent) else one for one in each]


def information(move: Move, damping: float) -> Product:
    """v -> (F + damping I) v, with F the Fisher information of a row, in the mean over those of the step.

    F is the second derivative of KL(theta || theta + d) in d at 0, so that F v = grad (v^T grad KL).
    """

    def kl(params: Params) -> Tensor:
        return move.mean(divergence, move.params, params)

    def product(v: Params) -> Params:
        along = grad(lambda params: dot(grad(kl)(params), v))(move.params)
        return {name: f + damping * v[name] for name, f in along.items()}

    return product


def predicting(move: Move) -> Params:
    """1 where an entry of the parameters moves what is predicted, 0 where it does not (those of a critic)."""
    drawn = {
        name: normal(p.shape, place=f"predicting {name}", shared=True, dtype=p.dtype) for name, p in move.params.items()
    }
    return {name: (f != 0).to(f.dtype) for name, f in information(move, 0.0)(drawn).items()}


def conjugate_gradients(product: Product, b: Params, iterations: int) -> Params:
    """x with product(x) = b, as far as so many iterations from 0 lead; they end early where nothing is left.

    References:
        Hestenes and Stiefel, "Methods of conjugate gradients for solving linear systems", Journal of Research of the
        National Bureau of Standards 49, 1952.
    """
    x = {name: torch.zeros_like(part) for name, part in b.items()}
    r, p, left = b, b, dot(b, b)
    least = torch.finfo(left.dtype).eps ** 2 * left
    for _ in range(iterations):
        ap = product(p)
        curvature = dot(p, ap)
        going = (left > least) & (curvature > 0)
        length = torch.where(going, left / torch.where(going, curvature, 1.0), 0.0)
        x = {name: part + length * p[name] for name, part in x.items()}
        r = {name: part - length * ap[name] for name, part in r.items()}
        now = dot(r, r)
        turn = torch.where(going, now / torch.where(going, left, 1.0), 0.0)
        p = {name: part + turn * p[name] for name, part in r.items()}
        left = torch.where(going, now, 0.0)
    return x


def dot(a: Params, b: Params) -> Tensor:
    """The sum over all entries of the products."""
    return torch.stack([(part * b[name]).sum() for name, part in a.items()]).sum()
