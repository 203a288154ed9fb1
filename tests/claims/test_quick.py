"""Each claim's quick setting, that broken methods fail their claims, and the results that are kept for the docs."""

import os
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from weft.bench.claims import Report, altered, last, listed, load, reproduce
from weft.bench.statistics import FEWEST_SEEDS
from weft.objectives import GLO, REINFORCE, VAE, LeastSquares
from weft.strategies import EWC, Laplace

from .selection import IMAGES, TEST, chosen

# Whose full setting has not been run to its end, and why: shown as not run.
NOT_RUN: dict[str, str] = {
    "lunar_lander": "not yet",
}
PATHS = {claim.name: claim.path for claim in listed()}
CHOSEN = chosen(PATHS, Path(__file__).parents[2], os.environ.get("WEFT_CLAIMS", ""))


@pytest.mark.parametrize("name", PATHS)
def test_the_quick_setting_holds(name, tmp_path):
    if name in IMAGES and not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set")  # where it is, the images must be there
    if name not in CHOSEN:
        pytest.skip("not touched, and not of this commit's third; WEFT_CLAIMS=all runs it")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = reproduce(PATHS[name], out=tmp_path)
    finally:
        torch.set_num_threads(threads)
    print(f"{name}: {result['budget']} {[(f['name'], f['measured'], f['interval']) for f in result['figures']]}")
    assert result["verdict"] in ("holds", "not settled"), result["why"]
    assert result["budget"]["trainings"] > 0
    few = len(result["seeds"]) < FEWEST_SEEDS  # of those a mean has no interval, and is not settled
    assert few or any(figure["interval"] for figure in result["figures"])
    assert result["tables"]
    assert result["pictures"]
    for picture in result["pictures"]:
        path = tmp_path / "claims" / name / picture["file"]
        ElementTree.parse(path)
        assert path.stat().st_size < 300_000
        assert len(picture["alt"]) > 40
        assert picture["caption"]


def test_the_summary_knows_the_quick_runs():
    assert test_the_quick_setting_holds.__name__ == TEST


@pytest.mark.parametrize("name", PATHS)
def test_the_result_that_the_docs_show_is_the_claims(name):
    """A claim whose setting or texts have changed since has no result any more."""
    out = Path(__file__).parents[2] / "docs" / "results"
    result, claim = last(name, out), load(PATHS[name])
    assert (result is None) == (name in NOT_RUN)
    if result is None:
        return
    assert result["scale"] == "full"
    assert result["command"] == f"weft reproduce {name} --full"
    assert result["setting"] == {key: str(value) for key, value in claim.full.items()}
    assert result["seeds"] == list(range(claim.first_seed, claim.first_seed + claim.full["seeds"]))
    for text in ("title", "statement", "reference", "tolerance"):
        assert result[text] == getattr(claim, text), text
    files = {path.name for path in (out / "claims" / name).iterdir()}
    assert files == {"result.json", *(picture["file"] for picture in result["pictures"])}


def broken(name, monkeypatch, replaced):
    """A claim in whose file some names mean something else."""
    claim = load(PATHS[name])
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


class Narrow(GLO):
    """Draws the mean of its codes alone, and not from their normal."""

    def drawn(self, noise):
        return self.table.z.mean(0) + 0 * noise


def test_a_normal_without_its_covariances_fails_glo(monkeypatch):
    claim = broken("random_codes", monkeypatch, {"GLO": Narrow})
    found, why = verdict(claim, seeds=5)
    assert found == "fails"
    assert "GLO's told more often" in why


def test_a_weight_that_is_not_heard_fails_both_failures(monkeypatch):
    claim = broken("two_failures", monkeypatch, {"VAE": altered(VAE, beta=1.0)})
    found, why = verdict(claim, seeds=5, steps=200, widths=(2, 10))
    assert found == "fails"
    assert "draws at β = 1 told less often than at β = .001" in why
    assert "codes told from N(0, I)" in why
