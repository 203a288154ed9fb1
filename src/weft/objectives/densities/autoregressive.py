"""The chain rule: the probability of a row is the product of those of its entries, each given those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from weft.core.legal import Choice, Flag, Legal, Number, Several, Whole
from weft.core.objective import Output, capability
from weft.core.random import categorical, fold, key_of, permutation, place, turns
from weft.core.source import Batch, Field, Spec
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import LAWS, Law, Laws
from weft.objectives.densities.outputs import MIXTURES, output_laws, refuse_parts

__all__ = ["Autoregressive"]

_PARTS = 10
ORDER: Legal = Choice("given", "random") | Several("a tuple with the number of every column once", Whole(0), least=1)
"""What an order may be."""
Altered = Callable[[Law, Tensor], Tensor]
"""Parameters of a law to those of the one to draw from in its place."""


class Autoregressive(Density):
    """p(x) = prod_i p(x_o(i) | x_o(1), ..., x_o(i-1)) for an order o of the entries of a row.

    A model writes `connect()`, which makes its net, and `conditionals(inputs, member)`, the parameters of all entries'
    laws in one pass, those of an entry from inputs that come before it alone. With `begin` and `advance` it gives those
    of one entry after another as well, without doing again what has been done: what is drawn is drawn so.

    A density may be the mean of several members, each with an order: p(x) = mean_m p_m(x), of probabilities. The mean
    of their logits would be no density.

    What is missing costs nothing where it comes last in the order, in training too: its factors are left out, and
    `impute` draws it entry by entry. Other gaps would ask for a sum over all that may stand there, and are refused.

    Rows with a shape, such as images, are laid flat within, and come back in their shape.

    Args:
        law: `auto` by the columns' kinds (normal, bernoulli, categorical, poisson), or one of these or `student` for
            all; `normal-mixture` is `auto` with mixtures of `parts` normals for real numbers; `logistic-mixture` is for
            whole numbers 0..`classes`-1 whose neighbours are alike, such as bytes.
        classes: of `categorical` and `logistic-mixture`, for an array, how many there are.
        parts: of the mixtures, how many.
        order: `given`, that of the columns; `random`, another one, always the same; or the numbers of the columns.
        conditional: whether it is p(x | y), of rows with a class each.

    Attributes:
        shape: of a row.
        members: how many orders, or nets with one, it is the mean of.
        sequences: of each member, the numbers of the entries in its order.
        reads: of each input, the entry that it belongs to; those of a class, which all entries depend on, come first
            and belong to -1.
        spans: of each entry, where its inputs stand.
    """

    gaps = True
    entries: Laws
    shape: tuple[int, ...]
    targets = "classes"
    legal = {
        "law": Choice("auto", *LAWS, *MIXTURES),
        "classes": Whole(2) | None,
        "parts": Whole(1),
        "order": ORDER,
        "conditional": Flag(),
    }

    def __init__(
        self,
        *,
        law: str = "auto",
        classes: int | None = None,
        parts: int = _PARTS,
        order: str | Sequence[int] = "given",
        conditional: bool = False,
    ) -> None:
        super().__init__()
        self.law = law
        self.classes = classes
        self.parts = parts
        self.order = order
        self.conditional = conditional

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("x", "y") if self.conditional else ("x",)

    def build(self, spec: Spec) -> None:
        self.shape = tuple(spec["x"].shape)
        self.entries = self._laws(spec["x"])
        refuse_parts(self.entries, self.parts, _PARTS, type(self).__name__)
        self.table = bool(spec["x"].columns)
        self.given = _given(spec["y"]) if self.conditional else 0
        if self.conditional and not self.given:
            raise ValueError(
                f"expected the number of classes for {type(self).__name__}(conditional=True), got none in the source's "
                "spec; give classes=... to it"
            )
        widths = [law.width for law in self.entries.laws]
        self.reads = [-1] * self.given + [j for j, width in enumerate(widths) for _ in range(width)]
        ends = accumulate(widths, initial=self.given)
        self.spans = [slice(*ends_of) for ends_of in pairwise(ends)]
        self.sequences = [self._sequence()]
        self.connect()

    def _laws(self, field: Field) -> Laws:
        return output_laws(field, self.law, classes=self.classes, parts=int(self.parts))

    def _sequence(self) -> list[int]:
        d = len(self.entries)
        if self.order == "given":
            return list(range(d))
        if self.order == "random":
            return random_order(d, 0)
        order = [int(j) for j in self.order]
        if sorted(order) != list(range(d)):
            raise ValueError(
                f"expected the order of {type(self).__name__} to have each of the numbers 0..{d - 1} of the columns "
                f"once, got {tuple(order)!r}"
            )
        return order

    # --- what a model writes ------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        return len(self.sequences)

    def connect(self) -> None:
        """Makes the net, once `entries`, `reads` and `sequences` are known; several sequences are set here."""
        raise NotImplementedError(f"{type(self).__name__} does not define connect()")

    def conditionals(self, inputs: Tensor, member: int = 0) -> Tensor:
        """The parameters of every entry's law, `(n, entries.size)`, each from inputs before its entry alone."""
        raise NotImplementedError(f"{type(self).__name__} does not define conditionals(inputs)")

    def begin(self, inputs: Tensor, member: int = 0) -> Any:
        """What `advance` keeps from entry to entry, where it keeps something; none of them is known yet."""
        return None

    def advance(self, known: int, inputs: Tensor, kept: Any, member: int = 0) -> Tensor:
        """The parameters of the law of the entry that is next in the order, `(n, size)`, once so many are known.

        By default all are computed and the others left.
        """
        return self.conditionals(inputs, member)[:, self.entries.places[self.sequences[member][known]]]

    # --- the density --------------------------------------------------------------------------------------

    def read(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Rows as the net reads them, after their class, or the numbers that they are given."""
        if self.conditional != (y is not None):
            got = "none" if y is None else "one"
            fix = "give y=..." if y is None else "leave it out, or make it with conditional=True"
            raise ValueError(
                f"expected {'a' if self.conditional else 'no'} class y for each row of {type(self).__name__}"
                f"(conditional={self.conditional}), got {got}; {fix}"
            )
        inputs = self.entries.read(x)
        if y is None:
            return inputs
        if y.is_floating_point():  # a code, of whoever has this density as its decoder
            return torch.cat([y.to(inputs.dtype), inputs], -1)
        number = torch.arange(self.given, device=x.device)
        return torch.cat([(y.reshape(-1, 1) == number).to(x.dtype), inputs], -1)

    def log_members(self, x: Tensor, observed: Tensor | None, y: Tensor | None) -> Tensor:
        """log p_m of what is observed, for each member, `(members, n)`."""
        x = x if observed is None else torch.where(observed, x, 0)
        inputs = self.read(x, y)
        each = [self.log_given(self.conditionals(inputs, m), x, observed) for m in range(self.members)]
        return torch.stack(each)

    def log_given(self, theta: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """The sum of what is observed of the entries' log-probabilities."""
        logs = self.entries.log_prob(theta, x)
        return (logs if observed is None else torch.where(observed, logs, 0)).sum(-1)

    def flat(self, x: Tensor) -> Tensor:
        """Rows of `shape` as rows of entries."""
        return x.flatten(-len(self.shape))

    def _log_prob(self, x: Tensor, observed: Tensor | None, y: Tensor | None) -> Tensor:
        each = self.log_members(self.flat(x), None if observed is None else self.flat(observed), y)
        return each[0] if len(each) == 1 else torch.logsumexp(each, 0) - math.log(len(each))

    def forward(self, batch: Batch, player: str = "") -> Output:
        y = batch["y"] if self.conditional else None
        if self.training:  # whose rows were looked at before it began
            return Output(-self._log_prob(batch["x"], batch["observed"], y))
        return Output(-self.log_prob(batch["x"], batch["observed"], y))

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """log p(x), or log p(x | y), of what is observed: exact where what is missing comes last in the order."""
        self.refuse_gaps(observed)
        return self._log_prob(x, observed, y)

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(
            {**rows, **{n: self.flat(rows[n]) for n in ("x", "observed") if n in rows}}, training=training
        )
        if training:
            self.refuse_gaps(rows.get("observed"))

    def refuse_gaps(self, observed: Tensor | None) -> None:
        """Raises where something is missing that does not come last in the order of every member."""
        held = observed
        while held is not None and torch._C._functorch.is_batchedtensor(held):  # of replicas with rows of their own
            held = torch._C._functorch.get_unwrapped(held)
        if held is None:
            return
        held = held.reshape(-1, len(self.entries))
        if bool(held.all()):
            return
        for sequence in self.sequences:
            along = held[:, sequence]
            wrong = along[:, 1:] & ~along[:, :-1]
            if bool(wrong.any()):
                row, t = torch.nonzero(wrong)[0].tolist()
                names = self.entries.names
                raise ValueError(
                    f"expected gaps in what comes last in the order of {type(self).__name__}, got one in "
                    f"{names[sequence[t]]}, which {names[sequence[t + 1]]} comes after, in {int(wrong.any(1).sum())} "
                    f"of {len(held)} rows, first in row {row}; {self.mend}"
                )

    mend = (
        "take an order that ends with the columns that have gaps (order=...), or MADE(agnostic=True), which imputes in "
        "any order"
    )
    """What to do about gaps that are refused."""

    # --- draws --------------------------------------------------------------------------------------------

    @capability(merge="share", kind="sequential", gives="x")
    def sample(
        self,
        n: int,
        y: Tensor | None = None,
        *,
        prefix: tuple[float | None, ...] = (),
        temperature: float = 1.0,
        top_k: int | None = None,
        cached: bool = True,
    ) -> Tensor:
        """Rows drawn entry by entry.

        Args:
            n: how many.
            y: the class of each, of a conditional model.
            prefix: what all rows begin with, None where an entry is to be drawn; what is given must come first in the
                order. Of a table, whose columns have kinds and units, give rows with gaps to `impute`.
            temperature: each entry is drawn in proportion to p^(1 / temperature): below 1 nearer to the likeliest. Of
                bits and classes the logits are divided by it, of normals the variance is multiplied; other laws have
                none but 1.
            top_k: each class is drawn among so many likeliest, in proportion to their probabilities; for classes alone.
            cached: whether what is known is kept from entry to entry; the draws are the same.
        """
        Number(0, ends="(]").check(temperature, "the temperature of sample")
        if top_k is not None:
            Whole(1).check(top_k, "the top_k of sample")
        x, observed = self._prefix(n, prefix)
        altered = partial(_altered, temperature=float(temperature), top_k=top_k)
        return self._completed(x, observed if prefix else None, y, altered, cached).unflatten(-1, self.shape)

    @capability(merge="share", kind="sequential", asks="rows", gives="x")
    def impute(self, x: Tensor, observed: Tensor, y: Tensor | None = None) -> Tensor:
        """Rows whose gaps are drawn given the rest: exact where what is missing comes last in the order."""
        self.refuse_gaps(observed)
        x, observed = self.flat(x), self.flat(observed)
        return self._completed(torch.where(observed, x, 0), observed, y, _altered, True).unflatten(-1, self.shape)

    @property
    def prefixed(self) -> Sequence[int]:
        """The entries that the numbers of a prefix are for."""
        return range(len(self.entries))

    def _prefix(self, n: int, prefix: Sequence[float | None]) -> tuple[Tensor, Tensor]:
        """Rows that begin with it, 0 elsewhere, and which entries are given."""
        d, like = len(self.entries), next(self.parameters())
        if prefix and self.table:
            raise ValueError(
                "expected a prefix for a model of arrays, got one for a table, whose columns have kinds and units; "
                "give rows with gaps to impute"
            )
        if not isinstance(prefix, tuple) or len(prefix) > d:
            raise ValueError(f"expected a prefix of at most {d} numbers, such as (1, None, 0), got {prefix!r}")
        whole: list[float | None] = [None] * d
        for j, value in zip(self.prefixed, prefix, strict=False):
            whole[j] = value
        observed = torch.tensor([[v is not None for v in whole]])
        row = torch.tensor([[0.0 if v is None else float(v) for v in whole]], dtype=torch.float64)
        self.refuse_gaps(observed)
        self.entries.refuse(row, observed)
        return row.to(like.device, like.dtype).expand(n, -1), observed.to(like.device).expand(n, -1)

    def _completed(
        self, x: Tensor, observed: Tensor | None, y: Tensor | None, altered: Altered, cached: bool
    ) -> Tensor:
        """Rows with what is missing drawn: by the member that each row's posterior over them draws, given the rest.

        Where nothing is observed it is None.
        """
        drawn = []
        for member in range(self.members):
            with place("member", member):
                drawn.append(self.complete(x, observed, y, altered, cached, member))
        if len(drawn) == 1:
            return drawn[0]
        logs = x.new_zeros(len(drawn), len(x)) if observed is None else self.log_members(x, observed, y)
        which = categorical(logs.mT, place="which member")
        return torch.stack(drawn, 1).gather(1, which.reshape(-1, 1, 1).expand(-1, 1, x.shape[1])).squeeze(1)

    def complete(
        self, x: Tensor, observed: Tensor | None, y: Tensor | None, altered: Altered, cached: bool, member: int
    ) -> Tensor:
        """The same by one member."""
        batched = next(self.parameters()).new_zeros(())  # where replicas draw at once, so that what is written into is
        inputs, columns = self.read(x, y) + batched, [x[:, 0]] * len(self.entries)
        kept = self.begin(inputs, member) if cached else None
        for known in turns("entry", len(self.entries), ahead=True):
            j = self.sequences[member][known]
            law = self.entries.laws[j]
            if cached:
                theta = self.advance(known, inputs, kept, member)
            else:
                theta = self.conditionals(inputs, member)[:, self.entries.places[j]]
            drawn = law.draw(altered(law, theta), "x")
            if observed is not None:
                drawn = torch.where(observed[:, j], x[:, j], drawn)
            columns[j] = drawn
            inputs[:, self.spans[j]] = law.read(drawn)
        return torch.stack(columns, 1)


def _altered(law: Law, theta: Tensor, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    """The parameters of the law that is drawn from in place of this one."""
    theta = theta if temperature == 1 else law.tempered(theta, temperature)
    return theta if top_k is None else law.likeliest(theta, top_k)


def _given(field: Field) -> int:
    """How many inputs tell what rows are given: one for each class, or real numbers, of a model that has codes."""
    return math.prod(field.shape) if field.dtype.is_floating_point else int(field.classes or 0)


def random_order(entries: int, number: int) -> list[int]:
    """An order of so many entries: random, and always the same of this number."""
    order: list[int] = permutation(fold(key_of(0), "order", number), entries).tolist()
    return order
