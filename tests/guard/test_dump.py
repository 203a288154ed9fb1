"""The guard looks at every strategy of the catalogue, and its comparison turns at one bit."""

import torch

from tests.guard.compare import differences
from tests.guard.dump import STRATEGIES
from weft.core.catalogue import entries
from weft.core.weave import Weave
from weft.strategies import MAML, Laplace


def test_every_strategy_is_guarded():
    guarded = {type(part) for s in STRATEGIES.values() for part in (s.parts if isinstance(s, Weave) else [s])}
    missing = {entry.cls for entry in entries("strategies")} - guarded - {MAML}  # on episodes: see by_objective
    assert not missing
    assert {s.curvature for s in STRATEGIES.values() if type(s) is Laplace} == {"kronecker", "low_rank", "full"}


def test_one_bit_is_a_difference():
    value = torch.tensor([1.0, 2.0], dtype=torch.float64)
    other = value.clone()
    other.view(torch.int64)[1] += 1
    zeros = torch.tensor([0.0]), torch.tensor([-0.0])
    texts = {"case": "completed"}
    assert differences(({"a": value}, texts), ({"a": value.clone()}, texts)) == {}
    assert list(differences(({"a": value}, texts), ({"a": other}, texts))) == ["a"]
    assert list(differences(({"a": zeros[0]}, texts), ({"a": zeros[1]}, texts))) == ["a"]
    assert list(differences(({"a": value}, texts), ({}, texts))) == ["a"]
    assert list(differences(({}, texts), ({"case:a": value}, texts))) == ["case:a"]
    assert differences(({}, texts), ({"more:a": value}, {**texts, "more": "completed"})) == {}
    assert list(differences(({}, texts), ({}, {"case": "diverged"}))) == ["case"]
