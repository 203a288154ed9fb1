"""Every claim fails under the broken method that it names, and no result that is kept was changed by hand."""

import os
from pathlib import Path

import pytest
import torch

from weft.bench.claims import caught, last, listed, load
from weft.report.digests import BY_HAND, EARLIER, digest, standing

from .selection import IMAGES, chosen

PATHS = {claim.name: claim.path for claim in listed()}
CHOSEN = chosen(PATHS, Path(__file__).parents[2], os.environ.get("WEFT_CLAIMS", ""))
RESULTS = Path(__file__).parents[2] / "docs" / "results"
# Results made before digests, by the beginning of their files' SHA-256; one that is made anew leaves this list.
MADE_EARLIER = {
    "beyond_classifiers": "f517b9ec6fc0",
    "bias_variance": "d4fd058605b5",
    "coloured_mnist": "a6798743c979",
    "fisher_overlap": "287f8a199c3a",
    "fishers": "5754a7ade749",
    "levels": "f72faee1e061",
    "permuted_mnist": "394f3df99994",
    "policy_gradient": "f4e27ca83cf0",
    "posterior": "106f40ea6c77",
    "random_gradients": "ad411fd6bdb3",
    "random_labels": "ed15dab82aa1",
    "random_patterns": "782b499632dd",
    "richer_posteriors": "f724dd463e68",
    "ring": "c5facdbffd1d",
    "shortcuts": "49b5ce4ebfe8",
    "sinusoids": "40a150cf2f18",
    "spirals": "b2d923ab44f5",
    "test_set_tuning": "d5104afc4acd",
}


@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")  # what is broken need not be swept at once
@pytest.mark.parametrize("name", PATHS)
def test_a_broken_method_fails_its_claim(name):
    if name in IMAGES and not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set")
    if name not in CHOSEN:
        pytest.skip("not touched, and not of this commit's third; WEFT_CLAIMS=all runs it")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = caught(PATHS[name])
    finally:
        torch.set_num_threads(threads)
    assert result["caught"], f"{result['mutant']}: {result['verdict']}. {result['why']}"


@pytest.mark.parametrize("name", PATHS)
def test_a_claim_names_its_mutant(name):
    mutant = load(PATHS[name]).mutant
    assert mutant is not None
    assert mutant.what
    assert mutant.misses


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RESULTS.glob("claims/*/result.json")))
def test_a_kept_result_is_as_it_was_written(name):
    folder = RESULTS / "claims" / name
    fault = standing(last(name, RESULTS), folder)
    assert fault != BY_HAND
    if fault == EARLIER:
        assert digest((folder / "result.json").read_bytes())[:12] == MADE_EARLIER[name]
    else:
        assert name not in MADE_EARLIER
