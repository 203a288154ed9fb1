"""Each claim's quick setting, and that broken methods fail their claims."""

import os
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from weft.bench.claims import Report, claims_folder, listed, load, reproduce
from weft.objectives import REINFORCE, LeastSquares
from weft.strategies import EWC, Laplace

# Those that need images in their quick setting.
IMAGES = {"coloured_mnist", "fisher_overlap", "fishers", "permuted_mnist", "richer_posteriors"}


@pytest.mark.parametrize("name", [claim.name for claim in listed()])
def test_the_quick_setting_holds(name, tmp_path):
    if name in IMAGES and not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set")  # where it is, the images must be there
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = reproduce(claims_folder() / f"{name}.py", out=tmp_path)
    finally:
        torch.set_num_threads(threads)
    print(f"{name}: {result['budget']} {[(f['name'], f['measured'], f['interval']) for f in result['figures']]}")
    assert result["verdict"] == "holds", result["why"]
    assert result["budget"]["trainings"] > 0
    assert any(figure["interval"] for figure in result["figures"])
    assert result["tables"]
    assert result["pictures"]
    for picture in result["pictures"]:
        path = tmp_path / "claims" / name / picture["file"]
        ElementTree.parse(path)
        assert path.stat().st_size < 300_000
        assert len(picture["alt"]) > 40
        assert picture["caption"]


def broken(name, monkeypatch, replaced):
    """A claim in whose file some names mean something else."""
    claim = load(claims_folder() / f"{name}.py")
    for what, value in replaced.items():
        assert what in type(claim).run.__globals__
        monkeypatch.setitem(type(claim).run.__globals__, what, value)
    return claim


def verdict(claim, **setting):
    report = Report()
    claim.run(SimpleNamespace(**{**claim.quick, "scale": "quick", **setting}), list(range(setting["seeds"])), report)
    return report.verdict()


@pytest.mark.parametrize(
    ("name", "other", "missed"),
    [
        ("EWC", lambda **_: EWC(strength=0.0, normalize=False), "EWC's maximum to the joint one"),
        ("Laplace", lambda **given: Laplace(**{**given, "curvature": "diagonal"}), "full: precision off"),
    ],
)
def test_forgetting_fails_the_posterior(monkeypatch, name, other, missed):
    claim = broken("posterior", monkeypatch, {name: other})
    found, why = verdict(claim, seeds=1)
    assert found == "fails"
    assert missed in why


def test_another_penalty_fails_the_decomposition(monkeypatch):
    claim = broken("bias_variance", monkeypatch, {"LeastSquares": lambda ridge: LeastSquares(ridge=2 * ridge)})
    found, why = verdict(claim, seeds=1)
    assert found == "fails"
    assert "variance: furthest" in why


@pytest.mark.parametrize(("exact", "far"), [(True, False), (False, True)])
def test_a_biased_gradient_is_far_from_the_exact_one(monkeypatch, exact, far):
    """Without the discount of later steps the usual practice is not the gradient of the discounted return."""
    claim = broken(
        "policy_gradient", monkeypatch, {"REINFORCE": lambda **given: REINFORCE(**{**given, "exact": exact})}
    )
    gap = type(claim).run.__globals__["gap"]
    assert (gap(0) > 1e-3) is far
    assert (gap(0) < 1e-9) is not far
