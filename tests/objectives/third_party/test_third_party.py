"""Each passes the contract, trains as replicas, goes on after an interruption and comes back from its folder."""

import ast
import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from tests.objectives.third_party.conditional import MixtureDensity
from tests.objectives.third_party.finetuned import Autoencoder, Headed
from tests.objectives.third_party.kernel import Kernels
from tests.objectives.third_party.language import Characters
from tests.objectives.third_party.process import NeuralProcess
from tests.objectives.third_party.prototypes import Prototypes
from tests.objectives.third_party.ragged import Pooled
from tests.objectives.third_party.unet import Segmentation
from tests.objectives.third_party.vae import VAE

import weft
from weft import Learner, Optimizer
from weft.data import sinusoids
from weft.sources import Arrays, Episodes
from weft.testing import check_objective

rng = np.random.default_rng(0)
LINE = rng.normal(size=(80, 1)) @ [[1.0, -0.5, 2.0]] + 0.3 * rng.normal(size=(80, 3))
WAVE = rng.uniform(-2, 2, size=(120, 1))
HEIGHT = np.sin(2 * WAVE[:, 0]) + 0.1 * rng.normal(size=120)
WORDS = ["anna", "hanna", "nan", "han", "anan", "na"] * 8
LENGTHS = rng.integers(1, 6, 60)
SERIES = [rng.normal(k % 2, 0.3, size=(n, 2)) for k, n in enumerate(LENGTHS)]
IMAGES = (rng.random((24, 8, 8)) * 100).astype(np.uint8)
MASKS = np.where(rng.random((24, 8, 8)) < 0.5, "sea", "land")
IMAGES[MASKS == "land"] += 120
KINDS = np.repeat(np.arange(20), 12)  # twenty kinds of flowers, twelve of each
FLOWERS = 2 * rng.normal(size=(20, 4))[KINDS] + rng.normal(size=(240, 4))
# Five of which nothing is learned before the end.
FEW, REST = np.arange(180, 240, 4), np.setdiff1d(np.arange(180, 240), np.arange(180, 240, 4))
QUICK = {"steps": 12, "batch_size": 16, "random_state": 3}


def flowers(rows=slice(180), **how):
    """Episodes of three or more rows of each of five kinds."""
    return Episodes((FLOWERS[rows], KINDS[rows]), **{"ways": 5, "shots": (1, 3), "queries": 4, "tasks": 8, **how})


def waves(**how):
    return Episodes(sinusoids, **{"tasks": 6, "shots": (2, 6), "queries": 8, **how})


CASES = {
    "vae": (VAE, {"X": LINE}, lambda m: m.log_prob(LINE)),
    "kernel": (Kernels, {"X": LINE}, lambda m: m.log_prob(LINE)),
    "conditional": (MixtureDensity, {"X": WAVE, "y": HEIGHT}, lambda m: m.log_prob(WAVE, y=HEIGHT)),
    "unet": (Segmentation, {"X": IMAGES, "y": MASKS}, lambda m: m.predict(IMAGES)),
    "language": (Characters, {"X": WORDS}, lambda m: m.log_prob(WORDS)),
    "ragged": (Pooled, {"X": SERIES, "y": np.arange(60) % 2}, lambda m: m.predict(SERIES)),
    "prototypes": (
        Prototypes,
        {"X": flowers()},
        lambda m: m.adapt(FLOWERS[FEW], KINDS[FEW] - 15).predict(FLOWERS[REST]),
    ),
    "process": (NeuralProcess, {"X": waves()}, lambda m: m.adapt(WAVE[:9], HEIGHT[:9, None]).predict(WAVE)),
    "finetuned": (Headed, {"X": LINE, "y": (LINE[:, 0] > 0).astype(int)}, lambda m: m.predict(LINE)),
}
TENSORS = {
    "vae": lambda: Arrays(torch.as_tensor(LINE), batch_size=8),
    "kernel": lambda: Arrays(torch.as_tensor(LINE), batch_size=8),
    "conditional": lambda: Arrays(torch.as_tensor(WAVE), torch.as_tensor(HEIGHT), batch_size=8),
    "unet": lambda: Arrays(torch.rand(12, 1, 8, 8), torch.randint(2, (12, 8, 8)), batch_size=4, classes=2),
    "language": lambda: Arrays(
        torch.randint(3, (20, 5)), x_length=torch.randint(1, 6, (20,)), batch_size=8, classes={"x": 3}
    ),
    "ragged": lambda: Arrays(
        torch.rand(20, 5, 2), torch.randint(2, (20,)), x_length=torch.randint(1, 6, (20,)), batch_size=8, classes=2
    ),
    "prototypes": flowers,
    "process": waves,
    "finetuned": lambda: Arrays(torch.as_tensor(LINE), torch.arange(80) % 2, batch_size=8, classes=2),
}


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def quick(make, **more):
    """Short trainings; what is solved takes no steps."""
    descended = {} if make().solved else QUICK
    return {"random_state": QUICK["random_state"], **descended, **more}


def test_they_keep_the_contract(case):
    check_objective(CASES[case][0](), TENSORS[case]())


def test_replicas_are_the_single_runs(case):
    make, given, ask = CASES[case]
    both = Learner(make(), replicas=2, dtype="float64", **quick(make)).fit(**given)
    one = Learner(make(), dtype="float64", **quick(make, random_state=4)).fit(**given)
    answers = ask(both.replica(1)), ask(one)
    if answers[0].dtype.kind in "fc":
        np.testing.assert_allclose(*answers, atol=1e-9)
    else:
        assert np.array_equal(*answers)


def test_an_interrupted_run_ends_as_it_would_have(case, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    make, given, ask = CASES[case]
    whole = Learner(make(), **quick(make)).fit(**given)

    class StopError(Exception):
        pass

    def stop(record):
        if make is not Kernels and record["step"] >= 6:
            raise StopError

    with contextlib.suppress(StopError):
        Learner(make(), **quick(make), folder=tmp_path / "run", callbacks=[stop]).fit(**given)
    loaded = weft.load(tmp_path / "run", objective=make(), callbacks=[])
    assert np.array_equal(ask(loaded.resume(**given)), ask(whole))
    again = weft.load(tmp_path / "run", objective=make(), callbacks=[])
    assert np.array_equal(ask(again), ask(whole))


def test_more_draws_bring_the_bound_nearer():
    vae = Learner(VAE(latent=1), steps=300, optimizer=Optimizer("adam", lr=0.01), random_state=0).fit(LINE)
    bounds = [vae.log_prob(LINE, draws=k).mean() for k in (1, 10, 200)]
    assert bounds == sorted(bounds)
    assert vae.log_prob.kind == "lower bound"
    assert repr(vae.score(LINE)).endswith("(lower bound)")
    true = stats.multivariate_normal(LINE.mean(0), np.cov(LINE.T)).logpdf(LINE).mean()  # the best that a line can do
    assert bounds[-1] < true + 0.1


def test_the_kernel_density_is_the_mean_of_kernels():
    model = Learner(Kernels(bandwidth=0.7), dtype="float64", random_state=0).fit(LINE)
    each = stats.norm.pdf(LINE[:, None], LINE, 0.7).prod(-1).mean(1)
    np.testing.assert_allclose(model.log_prob(LINE), np.log(each), rtol=1e-9)


def test_the_conditional_density_integrates_to_one_and_draws_by_it():
    model = Learner(MixtureDensity(), steps=200, random_state=0).fit(WAVE, HEIGHT)
    grid = np.linspace(-12, 12, 4001)
    here = np.full((len(grid), 1), 0.4)
    assert np.exp(model.log_prob(here, y=grid)).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-3)
    drawn = model.sample_y(np.full((2000, 1), 0.4))
    shares = np.cumsum(np.exp(model.log_prob(here, y=grid))) * (grid[1] - grid[0])
    assert stats.kstest(drawn, lambda v: np.interp(v, grid, shares)).pvalue > 1e-3


def test_masks_come_back_in_their_own_labels():
    model = Learner(Segmentation(), steps=150, batch_size=8, random_state=0).fit(IMAGES, MASKS)
    found = model.predict(IMAGES)
    assert found.shape == MASKS.shape
    assert (found == MASKS).mean() > 0.95
    assert model.history_["pixels"][-1] > 0.9


def test_text_goes_on_as_it_was_learned():
    adam = Optimizer("adam", lr=0.01)
    model = Learner(Characters(), steps=300, optimizer=adam, batch_size=None, random_state=0).fit(WORDS)
    written = model.generate(["h", "n", "a"] * 50, length=6, random_state=0)
    assert all(isinstance(text, str) for text in written)
    assert all("hn" not in text and "nh" not in text for text in model.generate(["h"] * 40, temperature=0.05))
    total = np.exp(model.log_prob(sorted(set(WORDS)))).sum()
    assert 0.5 < total < 1


def test_the_encoder_is_taken_and_stays():
    source = Learner(Autoencoder(), epochs=5, random_state=0).fit(LINE)
    y = (LINE[:, 0] > 0).astype(int)
    frozen = Optimizer("adam", lr=0.05, freeze="net.encoder.*")
    model = Learner(Headed(), init={"net.encoder.*": source}, optimizer=frozen, epochs=30, random_state=1).fit(LINE, y)
    mine, theirs = model.module().net["encoder"].state_dict(), source.module().net["encoder"].state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert model.score(LINE, y) > 0.9


def test_they_are_short_and_use_the_public_api_alone():
    here = Path(__file__).parent
    for path in here.glob("[!t_]*.py"):
        tree = ast.parse(path.read_text())
        taken = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "weft" in node.module]
        public = {"core", "core.random", "core.legal", "core.corpus", "nets", "sources"}
        assert set(taken) <= {f"weft.{name}" for name in public}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno < 75, (path, node.name)
