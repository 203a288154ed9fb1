"""Values and JSON: what goes in comes out, and what cannot is told."""

import json

import numpy as np
import pytest
import torch

from weft.core.values import Missing, describe, jsonable, pack, rebuild, unpack
from weft.strategies import EWC, ANDMask


def again(value):
    tensors = {}
    kept = json.loads(json.dumps(pack(value, tensors), allow_nan=False))
    return unpack(kept, tensors)


def test_a_state_comes_back():
    value = {"a": torch.arange(3), "b": (1, 2.5, float("inf")), "c": [None, True, "x"], "d": {0: "stopped"}}
    found = again(value)
    assert torch.equal(found.pop("a"), torch.arange(3))
    assert found == {"b": (1, 2.5, float("inf")), "c": [None, True, "x"], "d": {0: "stopped"}}


def test_arrays_and_names_come_back():
    found = again({"x": np.array([1.0, np.nan]), "y": np.array(["a", "b"])})
    np.testing.assert_array_equal(found["x"], [1.0, np.nan])
    assert found["y"].tolist() == ["a", "b"]


@pytest.mark.parametrize("name", ["array", "labels", "tensor", "tuple"])
def test_a_parameter_may_have_any_name(name):
    found = again({"params": {name: torch.ones(2)}})
    assert torch.equal(found["params"][name], torch.ones(2))


def test_what_is_no_value_is_refused():
    with pytest.raises(TypeError, match="got function"):
        pack({"f": again}, {})


def test_records_for_machines():
    assert jsonable({1: np.array([[1.0, np.inf]]), "t": (np.float32(2.0), "x")}) == {
        "1": [[1.0, None]],
        "t": [2.0, "x"],
    }


def test_parameters_are_rebuilt_by_name_or_must_be_given():
    described = json.loads(json.dumps(describe({"s": EWC(strength=2.0), "f": again, "t": (1, ANDMask())})))
    missing = []
    found = rebuild(described, {}, "all", missing)
    assert repr(found["s"]) == "EWC(strength=2.0)"
    assert repr(found["t"]) == "(1, ANDMask())"
    assert missing == [Missing("f", "function")]
    assert rebuild(described, {"f": again}, "all", [])["f"] is again


def test_nothing_outside_the_catalogue_is_imported():
    with pytest.raises(ValueError, match="nothing else is"):
        rebuild({"$method": "os/system", "params": {}}, {}, "x", [])
