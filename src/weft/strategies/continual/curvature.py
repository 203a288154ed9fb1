"""Kinds of curvature: how the precision of a Gaussian posterior is measured, used and added up.

Each is a Fisher information F of all of a task's examples, summed over them, in some approximation, as a tree of
tensors. `measure` takes it from a task's data, `times` is F d, and `add` is decay * F + G in the same form, so that
a sequence of tasks takes the memory of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.core.random import fold, gauss, key_of
from weft.core.source import rows_of
from weft.core.strategy import Local
from weft.core.trees import Params

__all__ = ["CURVATURES", "Curvature", "Diagonal", "Full", "Identity", "Kronecker", "LowRank"]

Precision = dict[str, Any]
Term = dict[str, Any]
"""A Gaussian prior: `anchor` and `precision`, and a `constant` where it is of several."""


class Curvature:
    """A kind of curvature."""

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        """The precision of the task that has ended, summed over its examples, and their number."""
        raise NotImplementedError

    def times(self, precision: Precision, d: Params) -> Params:
        """F d."""
        raise NotImplementedError

    def quadratic(self, precision: Precision, d: Params) -> Tensor:
        """d^T F d."""
        product = self.times(precision, d)
        return _sum([(v * product[name]).sum() for name, v in d.items()])

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        """decay * before + after, in the same form."""
        raise NotImplementedError

    def scale(self, precision: Precision, factor: float) -> Precision:
        """factor * F."""
        raise NotImplementedError

    def one(self, terms: list[Term]) -> Term | None:
        """One term whose quadratic is the sum of those of several, or None where no sum is of this form.

        With F = sum_t F_t and the mean theta = F^-1 sum_t F_t theta_t the sum is (. - theta)^T F (. - theta) and a
        `constant`, what the anchors lack of being one.
        """
        return None


class Identity(Curvature):
    """The same for every parameter, 1 from each example: nothing of the task but how much of it there was."""

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        each = (b["weight"].sum(dtype=torch.float64) if "weight" in b else rows_of(b) for b in local.batches())
        examples = float(sum(each))
        first = next(iter(local.params.values()))
        return {"scale": first.new_tensor(examples)}, examples

    def times(self, precision: Precision, d: Params) -> Params:
        return {name: precision["scale"] * v for name, v in d.items()}

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        return {"scale": decay * before["scale"] + after["scale"]}

    def scale(self, precision: Precision, factor: float) -> Precision:
        return {"scale": factor * precision["scale"]}

    def one(self, terms: list[Term]) -> Term | None:
        return _mean(self, terms, [dict.fromkeys(t["anchor"], t["precision"]["scale"]) for t in terms])


class Diagonal(Curvature):
    """F's diagonal, exactly: sums of squared single-example gradients."""

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        return local.squares(readout)

    def times(self, precision: Precision, d: Params) -> Params:
        return {name: precision[name] * v for name, v in d.items()}

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        return {name: decay * before[name] + after[name] for name in after}

    def scale(self, precision: Precision, factor: float) -> Precision:
        return {name: factor * p for name, p in precision.items()}

    def one(self, terms: list[Term]) -> Term | None:
        return _mean(self, terms, [t["precision"] for t in terms])


def _mean(form: Curvature, terms: list[Term], weights: list[Params]) -> Term:
    """Terms without correlations as one: parameter by parameter the mean of the anchors, weighted."""
    latest, total = terms[-1]["anchor"], {name: _sum([w[name] for w in weights]) for name in weights[0]}
    anchor = {}
    for name, a in latest.items():
        pull = _sum([w[name] * (t["anchor"][name] - a) for t, w in zip(terms, weights, strict=True)])
        anchor[name] = a + torch.where(total[name] > 0, pull / total[name], 0.0)
    precision = terms[0]["precision"]
    for term in terms[1:]:
        precision = form.add(precision, term["precision"], 1.0)
    apart = [{name: a - anchor[name] for name, a in t["anchor"].items()} for t in terms]
    constant = _sum([form.quadratic(t["precision"], d) for t, d in zip(terms, apart, strict=True)])
    return {"anchor": anchor, "precision": precision, "constant": constant}


class Kronecker(Curvature):
    """For each layer a Kronecker product, the diagonal for the rest.

    With a layer's inputs a (a 1 appended for the bias) and gradients g of its outputs,

        F = sum_i (a_i a_i^T) x (g_i g_i^T)  ~  A x G / n,    A = sum_i a_i a_i^T,   G = sum_i g_i g_i^T,

    which takes a and g as independent. The sum of two products is not one; `add` keeps the nearest, the
    combination A = x_1 A_1 + x_2 A_2, G = y_1 G_1 + y_2 G_2 of least Frobenius distance: the leading
    eigenvector of a matrix of two rows and columns, whose entries are not negative, so neither are x and y.

    References:
        Martens and Grosse, "Optimizing neural networks with Kronecker-factored approximate curvature", arXiv
        1503.05671; Ritter, Botev and Barber, "Online structured Laplace approximations for overcoming
        catastrophic forgetting", arXiv 1805.07810; Van Loan and Pitsianis, "Approximation with Kronecker
        products", 1993.
    """

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        layers, rest, examples = local.factors(readout)
        return {"layers": layers, "rest": rest}, examples

    def times(self, precision: Precision, d: Params) -> Params:
        products = {name: p * d[name] for name, p in precision["rest"].items()}
        for name, factors in precision["layers"].items():
            weight, bias = f"{name}.weight", f"{name}.bias"
            step = d[weight].flatten(1)
            if bias in d:
                step = torch.cat([step, d[bias].unsqueeze(1)], dim=1)
            product = factors["outputs"] @ step @ factors["inputs"]
            if bias in d:
                products[bias] = product[:, -1]
                product = product[:, :-1]
            products[weight] = product.reshape(d[weight].shape)
        return products

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        layers = {n: _nearest(before["layers"][n], f, decay) for n, f in after["layers"].items()}
        return {"layers": layers, "rest": Diagonal().add(before["rest"], after["rest"], decay)}

    def scale(self, precision: Precision, factor: float) -> Precision:
        layers = {n: {**f, "outputs": factor * f["outputs"]} for n, f in precision["layers"].items()}
        return {"layers": layers, "rest": Diagonal().scale(precision["rest"], factor)}


def _nearest(before: dict[str, Tensor], after: dict[str, Tensor], decay: float) -> dict[str, Tensor]:
    """The Kronecker product nearest to decay * before + after.

    With the Gram matrices P of the two A and Q of the two G, each of norm 1, and the weights d of their products, the
    best y given x is d * (P x) / (x^T P x), and so the other way round: x is the leading eigenvector of d Q d P, whose
    entries are not negative. No root is taken of what may be zero, as where the two G are parallel.
    """
    pairs = [torch.stack([before[kind], after[kind]]) for kind in ("inputs", "outputs")]
    size = [p.flatten(1).norm(dim=1).clamp_min(torch.finfo(p.dtype).tiny) for p in pairs]
    unit = [p / s[:, None, None] for p, s in zip(pairs, size, strict=True)]
    gram = [u.flatten(1) @ u.flatten(1).T for u in unit]
    weights = torch.stack([size[0][0] * size[1][0] * decay, size[0][1] * size[1][1]])
    share = weights / weights.max().clamp_min(torch.finfo(weights.dtype).tiny)
    x = _leading((share[:, None] * gram[1] * share) @ gram[0])
    x = x / (x @ gram[0] @ x).sqrt()
    y = weights * (gram[0] @ x)
    return {"inputs": torch.tensordot(x, unit[0], dims=1), "outputs": torch.tensordot(y, unit[1], dims=1)}


def _leading(m: Tensor) -> Tensor:
    """The leading eigenvector of a matrix of two rows and columns without negative entries; ones where all are."""
    (a, b), (c, d) = m.clamp_min(0)
    half, product = (a - d) / 2, b * c
    root = (half**2 + product).sqrt()
    far = half.abs() + root
    near = product / far.clamp_min(torch.finfo(m.dtype).tiny)
    over_d, over_a = torch.where(half >= 0, far, near), torch.where(half >= 0, near, far)
    found = torch.stack([over_d + b, over_a + c])  # (over_d, c) and (b, over_a) are eigenvectors both
    return torch.where(found.sum() > 0, found, torch.ones_like(found))


class LowRank(Curvature):
    """The leading eigenvectors of F, and the diagonal of what they leave:  F ~ B^T B + diag(r).

    B holds sqrt(eigenvalue) * eigenvector in its rows, found by products of F with a random matrix (a sketch,
    one step of subspace iteration), so F itself is never formed.

    Args:
        rank: rows of B.

    References:
        Halko, Martinsson and Tropp, "Finding structure with randomness", arXiv 0909.4061; Mishkin et al., "SLANG:
        fast structured covariance approximations for Bayesian deep learning with natural gradient", arXiv
        1811.04504, has the same form.
    """

    oversample = 8

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        shapes = {name: p.shape for name, p in local.params.items()}
        size = sum(p.numel() for p in local.params.values())
        first = next(iter(local.params.values()))
        count = min(self.rank + self.oversample, size)
        v = gauss(fold(key_of(0, device=first.device), "sketch"), (count, size), first.dtype)
        for _ in range(2):
            v = torch.linalg.qr(_flat(local.products(readout, _parted(v, shapes))[0]).T)[0].T
        small = v @ _flat(local.products(readout, _parted(v, shapes))[0]).T
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        keep = slice(max(count - self.rank, 0), None)
        basis = values[keep].clamp_min(0).sqrt()[:, None] * (vectors[:, keep].T @ v)
        diagonal, examples = local.squares(readout)
        tops = _parted(basis, shapes)
        rest = {name: (p - tops[name].square().sum(0)).clamp_min(0) for name, p in diagonal.items()}
        return {"basis": tops, "rest": rest}, examples

    def times(self, precision: Precision, d: Params) -> Params:
        basis, rest = precision["basis"], precision["rest"]
        along = _sum([b.reshape(len(b), -1) @ d[name].flatten() for name, b in basis.items()])
        return {name: torch.tensordot(along, b, dims=1) + rest[name] * d[name] for name, b in basis.items()}

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        shapes = {name: b.shape[1:] for name, b in after["basis"].items()}
        both = torch.cat([decay**0.5 * _flat(before["basis"]), _flat(after["basis"])])
        vectors = torch.linalg.eigh(both @ both.T)[1]
        rotated = vectors.T @ both  # rows by falling importance from the end
        top = _parted(rotated[-self.rank :], shapes)
        dropped = _parted(rotated[: -self.rank], shapes)
        rest = Diagonal().add(before["rest"], after["rest"], decay)
        return {"basis": top, "rest": {name: r + dropped[name].square().sum(0) for name, r in rest.items()}}

    def scale(self, precision: Precision, factor: float) -> Precision:
        basis = {name: factor**0.5 * b for name, b in precision["basis"].items()}
        return {"basis": basis, "rest": Diagonal().scale(precision["rest"], factor)}


class Full(Curvature):
    """F itself, parameters by parameters: exact, for small models.

    Args:
        most: bytes that F may take.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def measure(self, local: Local, readout: Callable[..., Any]) -> tuple[Precision, float]:
        shapes = {name: p.shape for name, p in local.params.items()}
        first = next(iter(local.params.values()))
        size = sum(p.numel() for p in local.params.values())
        bytes_ = size**2 * first.element_size()
        if bytes_ > self.most:
            raise ValueError(
                f"expected a model whose full curvature fits {self.most / 2**30:.3g} GiB, got {size:,} parameters, "
                f"whose curvature takes {bytes_ / 2**30:.3g} GiB; choose curvature='kronecker' or 'low_rank', or raise "
                "memory"
            )
        eye = torch.eye(size, dtype=first.dtype, device=first.device)
        rows, examples = local.products(readout, _parted(eye, shapes))
        matrix = _flat(rows)
        return {"matrix": (matrix + matrix.T) / 2}, examples

    def times(self, precision: Precision, d: Params) -> Params:
        product = precision["matrix"] @ torch.cat([v.flatten() for v in d.values()])
        parts = product.split([v.numel() for v in d.values()])
        return {name: p.reshape(v.shape) for (name, v), p in zip(d.items(), parts, strict=True)}

    def add(self, before: Precision, after: Precision, decay: float) -> Precision:
        return {"matrix": decay * before["matrix"] + after["matrix"]}

    def scale(self, precision: Precision, factor: float) -> Precision:
        return {"matrix": factor * precision["matrix"]}


def _sum(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def _flat(tree: Params) -> Tensor:
    """Tensors with one leading axis in common as the rows of a matrix."""
    return torch.cat([t.reshape(len(t), -1) for t in tree.values()], dim=1)


def _parted(rows: Tensor, shapes: dict[str, Any]) -> Params:
    """The inverse of `_flat`."""
    parts = rows.split([torch.Size(s).numel() for s in shapes.values()], dim=1)
    return {name: p.reshape(len(rows), *s) for (name, s), p in zip(shapes.items(), parts, strict=True)}


CURVATURES = ("identity", "diagonal", "kronecker", "low_rank", "full")
