"""Vocabularies: how text becomes tokens, and tokens text again.

A vocabulary is plain data, so that it travels with a run as JSON: the character of each token, or of byte pairs what
the `tokenizers` library needs to know.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from weft.core.legal import Legal, Whole
from weft.core.spelling import called

__all__ = ["VOCABULARY", "Vocabulary", "decoded", "encoded", "learned", "size_of"]

Vocabulary = list[str] | dict[str, Any]
"""The character of each token; or byte pairs, in the `tokenizers` library's own JSON."""
_LEAST = 257  # all bytes, and a pair


def _pairs(spelling: str) -> int | None:
    """How many tokens of byte pairs are asked for, or None for characters."""
    name, settings = called(spelling)
    if name == "characters" and not settings:
        return None
    if name != "byte-pairs" or settings.keys() - {"size"}:
        raise ValueError
    size = ast.literal_eval(settings["size"]) if settings else 512
    if not Whole(_LEAST).allows(size):
        raise ValueError
    return int(size)


class _Spelling(Legal):
    words = f"'characters' or 'byte-pairs(size=512)', with a size of {_LEAST} or more"

    def kind(self, value: object) -> bool:
        return isinstance(value, str)

    def fits(self, value: object) -> bool:
        try:
            _pairs(str(value))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return False
        return True


VOCABULARY = _Spelling()
"""How an objective may ask for text: `characters`, or `byte-pairs(size=512)`."""


def learned(spelling: str, texts: Sequence[str]) -> Vocabulary:
    """The vocabulary of texts: every character, or the bytes and those pairs of tokens that come most often, merged one
    after another until there are as many as asked for, or no pair comes twice.

    >>> learned("characters", ["hello", "world"])
    ['d', 'e', 'h', 'l', 'o', 'r', 'w']

    References:
        Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units", arXiv 1508.07909.
    """
    size = _pairs(spelling)
    if size is None:
        return sorted(set().union(*texts))
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found


def size_of(vocabulary: Vocabulary) -> int:
    """How many tokens there are."""
    return len(vocabulary) if isinstance(vocabulary, list) else len(vocabulary["model"]["vocab"])


def encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    """The tokens of a text; a character that there is none for raises a KeyError.

    >>> encoded(["a", "b"], "abba")
    [0, 1, 1, 0]
    """
    if isinstance(vocabulary, list):
        numbers = _numbers(tuple(vocabulary))
        return [numbers[character] for character in text]
    found: list[int] = _tokenizer(json.dumps(vocabulary)).encode(text).ids
    return found


def decoded(vocabulary: Vocabulary, tokens: Iterable[int]) -> str:
    """The text of tokens; bytes that make no character become U+FFFD.

    >>> decoded(["a", "b"], [0, 1, 1, 0])
    'abba'
    """
    if isinstance(vocabulary, list):
        return "".join(vocabulary[int(k)] for k in tokens)
    text: str = _tokenizer(json.dumps(vocabulary)).decode([int(k) for k in tokens], skip_special_tokens=False)
    return text


@lru_cache(maxsize=8)
def _numbers(characters: tuple[str, ...]) -> dict[str, int]:
    return {character: k for k, character in enumerate(characters)}


@lru_cache(maxsize=8)
def _tokenizer(text: str) -> Any:
    return _library().Tokenizer.from_str(text)


def _library() -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # whose threads do not bear a fork
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401 (they are its attributes then)
    except ImportError as error:
        raise ImportError(
            "expected tokenizers, which learns byte pairs, to be installed, got none; pip install 'weft[text]', or "
            "take vocabulary='characters'"
        ) from error
    return tokenizers
