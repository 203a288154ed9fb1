"""How well text is foreseen, whatever its tokens are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["bits_per_character"]


def bits_per_character(learner: Learner, texts: Sequence[str]) -> float:
    """-sum log2 p(text) / characters: of characters and of byte pairs, in one unit.

    What texts cost includes their ends, where the model has them; an end is no character.

    Args:
        learner: fitted to text, with `log_prob`.
        texts: rows such as it was fitted to.

    Example:
        >>> from weft import Learner
        >>> from weft.objectives import CharRNN
        >>> learner = Learner(CharRNN(width=4), steps=1, random_state=0).fit(["abba", "baab"])
        >>> 1 < bits_per_character(learner, ["abba"]) < 3
        True
    """
    if "x" not in getattr(learner, "vocabulary_", {}):
        raise ValueError("expected a learner of text, got one of token numbers; its nats_per_token is in history_")
    characters = sum(map(len, texts))
    if not characters:
        raise ValueError("expected some character in the texts, got empty ones only")
    return -float(learner.log_prob(texts).sum()) / characters / math.log(2)
