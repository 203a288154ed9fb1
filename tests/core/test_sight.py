"""What a strategy sees: words that are known, joins that are written down, and what does not agree speaks."""

import itertools

import pytest

from weft import Classifier, weave
from weft.core.catalogue import entries
from weft.core.sight import SIGHTS, joined, sight_of
from weft.core.strategy import Strategy
from weft.strategies import CORAL, IRM, L2, MMD, ANDMask, TemporalANDMask


def of(word):
    return type("Sees", (Strategy,), {"sees": word})()


def test_every_strategy_of_the_catalogue_says_a_word():
    for entry in entries("strategies"):
        assert entry.cls().sees in SIGHTS, entry.name


@pytest.mark.parametrize("word", ["group", "mean", "each", 3])
def test_another_word_is_refused(word):
    with pytest.raises(ValueError, match="expected what a strategy sees among all groups, episodes"):
        sight_of(word)
    with pytest.raises(ValueError, match="expected what a strategy sees"):
        _ = of(word).sight


@pytest.mark.parametrize("old", ["needs", "per_group", "across", "episodic"])
def test_the_words_of_old_speak(old):
    """On a class or on an instance, alone or woven: what was meant for groups must not train on rows in silence."""
    of_class = type("Old", (Strategy,), {old: "group"})()
    of_instance = type("Old", (Strategy,), {})()
    setattr(of_instance, old, "group")
    for strategy in (of_class, of_instance, weave(L2(), of_instance)):
        with pytest.raises(TypeError, match=f"Old .* got '{old}'.*what it sees in one word"):
            Classifier(strategy=strategy, epochs=1).fit([[0.0], [1.0]], [0, 1])


def test_joins_are_commutative_associative_and_have_rows_as_their_identity():
    for a, b in itertools.product(SIGHTS, repeat=2):
        assert joined(a, b) == joined(b, a)
        assert joined(a, "rows") == a
        assert joined(a, a) == a
    for a, b, c in itertools.product(SIGHTS, repeat=3):
        left, right = joined(a, b), joined(b, c)
        whole = None if left is None else joined(left, c)
        assert whole == (None if right is None else joined(a, right)), (a, b, c)


def test_a_join_asks_for_no_less_than_its_parts():
    for a, b in itertools.product(SIGHTS, repeat=2):
        if (word := joined(a, b)) is not None:
            whole, parts = SIGHTS[word], (SIGHTS[a], SIGHTS[b])
            for trait in ("grouped", "whole", "each", "together", "episodic"):
                assert getattr(whole, trait) == any(getattr(part, trait) for part in parts), (a, b, trait)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((IRM(), ANDMask(each="example")), r"agree on what a group is.*IRM.*whole groups.*ANDMask"),
        ((MMD(), IRM()), r"agree on what a loss is.*MMD.*IRM"),
        ((CORAL(), TemporalANDMask(each="environment")), r"agree on what a loss is.*CORAL.*TemporalANDMask"),
        ((MMD(), ANDMask()), r"agree on what a loss is.*MMD.*ANDMask"),
    ],
)
def test_what_does_not_agree_names_both(parts, message):
    with pytest.raises(ValueError, match=message):
        weave(*parts)


def test_a_setting_that_is_no_word_is_left_to_validation():
    mask = ANDMask(each=["example"])
    assert mask.sees == "groups"
    with pytest.raises(TypeError, match="ANDMask's each to be one of 'environment', 'example'"):
        mask.validate()
