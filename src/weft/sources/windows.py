"""A long text as windows: drawn anywhere for training, side by side for judging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from weft.core.legal import Choice, Legal, Number, Such, Whole, check
from weft.core.random import fold, unit
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.core.vocabulary import VOCABULARY, Vocabulary, encoded, learned, size_of

__all__ = ["Windows"]


class Windows(Source):
    """Windows of `context` tokens of one long text (or of token numbers).

    A step draws its windows anywhere in the text, overlapping as it happens, by the run's seed and the step: a run goes
    on where it was left, and replicas have draws of their own. A pass of `epoch` steps draws as many windows as lie
    side by side in the text. Whatever measures the source reads those: each token once, the last window shorter.

    What is held out is the end of the text. The vocabulary is that of the whole text, and goes on to the Learner, which
    then takes and gives text.

    Args:
        text: the text, or an array of token numbers.
        context: how many tokens a window has.
        batch_size: windows in a step.
        holdout: the share at the end of the text that is kept out for validation.
        part: `train` or `validation`, the part of the text that this source gives.
        vocabulary: `characters` or `byte-pairs(size=512)`; or what another source's `vocabulary["x"]` has.
        classes: of token numbers, how many there are; by default as many as the largest says.

    Example:
        >>> from weft import Learner
        >>> from weft.objectives import CharRNN
        >>> text = "to be or not to be, that is the question. " * 20
        >>> train, held = (Windows(text, context=16, holdout=0.1, part=part) for part in ("train", "validation"))
        >>> learner = Learner(CharRNN(width=16, ends=False), steps=20, validation=held, random_state=0).fit(train)
        >>> len(learner.generate(["to be"], length=3)[0]), train.epoch, train.size
        (8, 1, 48)
    """

    stacks = True
    legal: ClassVar[dict[str, Legal]] = {
        "text": Such("a text, or a sequence of token numbers", lambda given: isinstance(given, str) or _numbers(given)),
        "context": Whole(1),
        "batch_size": Whole(1),
        "holdout": Number(0, 1, "[)"),
        "part": Choice("train", "validation"),
        "vocabulary": VOCABULARY
        | Such(
            "the vocabulary of another source",
            lambda given: isinstance(given, list | dict),
            lambda given: _listed(given),
        ),
        "classes": Whole(1) | None,
    }

    def __init__(
        self,
        text: str | Any,
        *,
        context: int = 256,
        batch_size: int = 64,
        holdout: float = 0.0,
        part: str = "train",
        vocabulary: str | Vocabulary = "characters",
        classes: int | None = None,
    ) -> None:
        check(Windows, locals())
        self.context, self.batch_size = context, batch_size
        if isinstance(text, str):
            if classes is not None:
                raise ValueError(f"expected classes for token numbers alone, got {classes} for a text; leave it out")
            known = learned(vocabulary, [text]) if isinstance(vocabulary, str) else vocabulary
            self.vocabulary = {"x": known}
            tokens, classes = torch.tensor(_tokens(known, text), dtype=torch.int64), size_of(known)
        else:
            tokens = torch.as_tensor(np.asarray(text), dtype=torch.int64)
            classes = int(tokens.max()) + 1 if classes is None else classes
            if int(tokens.min()) < 0 or int(tokens.max()) >= classes:
                raise ValueError(
                    f"expected token numbers 0..{classes - 1}, got {int(tokens.min())} to {int(tokens.max())}; give "
                    "classes=..."
                )
        held = round(holdout * len(tokens))
        self.tokens = tokens[len(tokens) - held :] if part == "validation" else tokens[: len(tokens) - held]
        if len(self.tokens) < context:
            raise ValueError(
                f"expected a text of at least {context} tokens in the {part} part, one window, got {len(self.tokens)}; "
                "take a smaller context, or a longer text"
            )
        self.size = -(-len(self.tokens) // context)
        self.epoch = -(-self.size // batch_size)
        self.spec = {"x": Field((context,), torch.int64, classes), "x_length": Field((), torch.int64)}

    def batches(self, state: State) -> Iterator[Batch]:
        """Windows that begin anywhere, without end."""
        while True:
            rows = torch.arange(self.batch_size, device=state.device)
            u = unit(fold(state.key("windows").unsqueeze(-1), rows), (), torch.float64)
            first = (u * (len(self.tokens) - self.context + 1)).long()
            yield self._cut(first, torch.full_like(first, self.context))

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """Windows side by side, every token once."""
        first = torch.arange(0, len(self.tokens), self.context, device=state.device)
        length = (len(self.tokens) - first).clamp_max(self.context)
        for part, own in zip(first.split(rows), length.split(rows), strict=True):
            batch = self._cut(part, own)
            yield {name: values.expand(*state.seeds.shape, *values.shape) for name, values in batch.items()}

    def _cut(self, first: Tensor, length: Tensor) -> Batch:
        self.tokens = self.tokens.to(first.device)
        step = torch.arange(self.context, device=first.device)
        place = (first.unsqueeze(-1) + step).clamp_max(len(self.tokens) - 1)
        return {"x": torch.where(step < length.unsqueeze(-1), self.tokens[place], 0), "x_length": length}

    def contents(self) -> dict[str, Any]:
        """The tokens, and how they are cut."""
        return {"tokens": self.tokens, "context": str(self.context)}

    def extent(self, field: str) -> tuple[float, float] | None:
        """The least and the largest token."""
        if field != "x":
            return None
        low, high = self.tokens.aminmax()
        return low.item(), high.item()


def _listed(given: object) -> bool:
    return bool(given) and (isinstance(given, dict) or all(isinstance(one, str) for one in given))  # type: ignore[attr-defined]


def _numbers(given: object) -> bool:
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return False
    return array.ndim == 1 and array.dtype.kind in "iu" and array.size > 0


def _tokens(known: Vocabulary, text: str) -> list[int]:
    try:
        return encoded(known, text)
    except KeyError as error:
        raise ValueError(
            f"expected characters that the vocabulary has, got {error.args[0]!r}; make it of both texts together"
        ) from None
