"""A function that is asked again and again with some of its arguments the same: as by `torch.vmap`, at each depth."""

import pytest
import torch

from weft.engine.vectorize import Repeated, vectorized, vectorizing

SAME = {"w": torch.arange(6.0).reshape(3, 2), "inner": {"b": torch.tensor([1.0, 2.0, 3.0])}}


def answer(same, x, given):
    return same["w"] * x + given["more"], (same["inner"]["b"].expand(2), torch.ones(2))


def test_each_call_is_that_of_vmap():
    often = Repeated(3, SAME)
    for turn in range(3):
        args = torch.randn(3, 2), {"more": torch.full((3, 2), float(turn))}
        found, (whole, constant) = often(answer, *args)
        expected, (other, _) = vectorized(answer)(SAME, *args)
        assert torch.equal(found, expected)
        assert torch.equal(whole, other)
        assert torch.equal(constant, torch.ones(3, 2))  # of what does not depend on them, one for each


def test_it_may_be_asked_within_others():
    """What is marked at one depth is marked anew at another."""
    often, rows = Repeated(3, SAME), torch.randn(4, 3, 2)
    plain = [often(answer, x, {"more": x})[0] for x in rows]
    within = torch.vmap(lambda x: often(answer, x, {"more": x})[0])(rows)
    assert torch.equal(within, torch.stack(plain))
    assert torch.equal(often(answer, rows[0], {"more": rows[0]})[0], plain[0])


def test_an_error_within_leaves_nothing_behind():
    def fails(same, x):
        assert vectorizing()
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        Repeated(3, SAME)(fails, torch.ones(3))
    assert not vectorizing()
    assert torch.equal(torch.vmap(torch.neg)(torch.ones(2)), -torch.ones(2))
    with pytest.raises(RuntimeError, match="random"):  # PyTorch's own draws are refused, as by torch.vmap
        Repeated(3, SAME)(lambda same, x: torch.rand(2) + x, torch.ones(3, 2))
