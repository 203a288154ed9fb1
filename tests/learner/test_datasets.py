"""Data sets whose rows are drawn at each reading, and numbers that are whole."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import weft
from weft import Classifier, Learner, Regressor
from weft.core.objective import Objective, Output, capability
from weft.objectives import DANN, Classification
from weft.strategies import ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(48, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
COMMON = {"hidden": (4,), "epochs": 3, "batch_size": 16, "random_state": 0}


class Shaken(Dataset):
    """Rows with noise, from one of the global generators or from its own."""

    def __init__(self, how="torch", size=1.0):
        self.how, self.size, self.read, self.own = how, size, [], np.random.default_rng(0)

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        draws = {
            "torch": lambda: torch.randn(3).numpy(),
            "numpy": lambda: np.random.normal(size=3),
            "python": lambda: np.array([random.gauss(0, 1) for _ in range(3)]),
            "own": lambda: self.own.normal(size=3),
            "none": lambda: np.zeros(3),
        }
        row = (X[i] + self.size * draws[self.how]()).astype(np.float32)
        self.read.append((i, row))
        return row, int(Y[i])


def seen(data, **settings):
    """What was read of row 5 in each pass, after the first reading and the tried ones."""
    data.read.clear()
    learner = Classifier(**{**COMMON, **settings}).fit(data)
    before = len(X) + min(len(X), 64)
    return learner, [row for i, row in data.read[before:] if i == 5]


@pytest.mark.parametrize("how", ["torch", "numpy", "python", "own"])
def test_what_is_random_is_read_anew_in_every_pass(how):
    _, rows = seen(Shaken(how))
    assert len(rows) == 3
    assert len({row.tobytes() for row in rows}) == 3


def test_what_is_not_random_is_read_once():
    data = Shaken("none")
    learner, rows = seen(data)
    assert not rows
    plain = Classifier(**COMMON).fit(torch.from_numpy(X), Y)
    np.testing.assert_array_equal(learner.predict_proba(X), plain.predict_proba(X))


def test_noise_that_is_drawn_seldom_is_found_too():
    class Seldom(Shaken):
        def __getitem__(self, i):
            row, label = Shaken("none")[i]
            return (row + 1 if torch.rand(()) < 0.1 else row), label

    drawn, plain = Classifier(**COMMON).fit(Seldom()), Classifier(**COMMON).fit(Shaken("none"))
    assert not np.array_equal(drawn.predict_proba(X), plain.predict_proba(X))
    assert drawn.training_.every[0].state.params["net.head.bias"].isfinite().all()


@pytest.mark.parametrize("how", ["torch", "numpy", "python"])
def test_draws_depend_on_seed_step_and_row_alone(how):
    ambient = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    one = Classifier(**COMMON).fit(Shaken(how))
    assert torch.equal(ambient[0], torch.get_rng_state())
    assert (ambient[1] == np.random.get_state()[1]).all()
    assert ambient[2] == random.getstate()
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    again = Classifier(**COMMON).fit(Shaken(how))
    np.testing.assert_array_equal(one.predict_proba(X), again.predict_proba(X))


def test_replica_k_is_the_single_run_k():
    many = Classifier(**{**COMMON, "dtype": "float64"}, replicas=2).fit(Shaken())
    single = Classifier(**{**COMMON, "dtype": "float64", "random_state": 1}).fit(Shaken())
    np.testing.assert_allclose(many.replica(1).predict_proba(X), single.predict_proba(X))
    assert not np.allclose(many.replica(0).predict_proba(X), single.predict_proba(X))


def test_it_goes_on_where_it_was_stopped(tmp_path):
    class Stop(Exception):  # noqa: N818
        pass

    def stop(record):
        if record["epoch"] == 2:
            raise Stop

    whole = Classifier(**COMMON).fit(Shaken())
    with pytest.raises(Stop):
        Classifier(**COMMON, folder=tmp_path / "run", callbacks=[stop]).fit(Shaken())
    resumed = weft.load(tmp_path / "run").resume(Shaken())
    np.testing.assert_array_equal(whole.predict_proba(X), resumed.predict_proba(X))


def test_environments_tasks_and_rows_held_out():
    site = np.arange(48) % 3
    grouped = Classifier(**COMMON, strategy=ANDMask(threshold=0.2), validation=0.25)
    assert len(grouped.fit(Shaken(), environment=site).history_) == 3
    _, rows = seen(data := Shaken(), validation=data)
    assert len(rows) >= 3
    many = Shaken()
    Classifier(**COMMON).fit(many, task=np.arange(48) % 2)
    assert sum(i == 5 for i, _ in many.read) == 2 + 3  # before training, and in each pass of its task


def test_it_learns_from_the_noise():
    """Noise that hides what one reading would let it learn by heart."""
    labels = rng.integers(2, size=48)

    class Hidden(Shaken):
        def __getitem__(self, i):
            return super().__getitem__(i)[0], int(labels[i])

    settings = {"hidden": (64,), "epochs": 100, "random_state": 0, "optimizer": weft.Optimizer("adam", lr=3e-2)}
    rows = torch.stack([torch.from_numpy(Hidden(size=3.0)[i][0]) for i in range(48)])
    once = Classifier(**settings).fit(rows, labels)
    anew = Classifier(**settings).fit(Hidden(size=3.0))
    assert once.history_["accuracy"][-1] > 0.9
    assert anew.history_["accuracy"][-5:].mean() < 0.8


def test_targets_that_change_are_refused():
    class Moving(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return X[i], int(torch.randint(2, ()))

    with pytest.raises(ValueError, match="expected a data set whose targets are the same at each reading"):
        Classifier(**COMMON).fit(Moving())


def test_shapes_that_change_are_refused():
    class Growing(Shaken):
        count = 0

        def __getitem__(self, i):
            self.count += 1
            return (torch.randn(3 if self.count < 97 else 4), int(Y[i]))

    with pytest.raises(ValueError, match=r"expected items of shape \(3,\) at each reading, got \(4,\)"):
        Classifier(**COMMON).fit(Growing())


# --- whole numbers ---------------------------------------------------------------------------------------


TOKENS = np.array([[257, 258], [256, 259]] * 24)
KIND = np.arange(48) % 2


def embedding():
    return nn.Sequential(nn.Embedding(300, 4), nn.Flatten(), nn.Linear(8, 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("given", [np.int64, np.int32, np.uint16])
def test_integers_stay_integers_where_the_net_takes_them(dtype, given):
    learner = Classifier(embedding, epochs=30, dtype=dtype, random_state=0, optimizer=weft.Optimizer("adam", lr=0.05))
    learner.fit(TOKENS.astype(given), KIND)
    assert learner.training_.spec["x"].dtype == torch.int64
    assert learner.score(TOKENS.astype(given), KIND) == 1.0
    assert learner.score(TOKENS.astype(float), KIND) == 1.0
    with pytest.raises(ValueError, match="expected whole numbers in X"):
        learner.predict(TOKENS + 0.5)
    tensor = Classifier(embedding, epochs=30, dtype=dtype, random_state=0, optimizer=weft.Optimizer("adam", lr=0.05))
    tensor.fit(torch.from_numpy(TOKENS), KIND)
    np.testing.assert_array_equal(learner.predict_proba(TOKENS), tensor.predict_proba(TOKENS))


def test_in_a_composed_objective_too():
    net = embedding()
    learner = Learner(DANN(Classification(net)), epochs=1, random_state=0)
    learner.fit(TOKENS, KIND, environment=np.arange(48) % 3)
    assert learner.training_.spec["x"].dtype == torch.int64


def test_integers_become_numbers_where_the_net_asks_for_numbers():
    whole = Classifier(**COMMON).fit((10 * X).astype(int), Y)
    plain = Classifier(**COMMON).fit((10 * X).astype(int).astype(float), Y)
    assert whole.training_.spec["x"].dtype == torch.float32
    np.testing.assert_array_equal(whole.predict_proba((10 * X).astype(int)), plain.predict_proba((10 * X).astype(int)))


class Counted(Objective):
    """What is counted must be whole: a Poisson's loss, looked up in a table of logarithms of factorials."""

    def __init__(self, table=400):
        super().__init__()
        self.table = table

    def build(self, spec):
        assert spec["y"].dtype == torch.int64
        self.rate = nn.Linear(spec["x"].shape[0], 1)
        self.register_buffer("logs", torch.lgamma(torch.arange(1, self.table, dtype=torch.float64)))

    def forward(self, batch, player=""):
        assert batch["y"].dtype == torch.int64
        rate = self.rate(batch["x"]).squeeze(-1)
        return Output(rate.exp() - batch["y"] * rate + self.logs[batch["y"]].to(rate.dtype))

    @capability(merge="mean")
    def predict(self, x):
        return self.rate(x).squeeze(-1).exp()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_targets_stay_whole(dtype):
    counts = np.where(KIND, 257, 3)
    learner = Learner(Counted(), epochs=1, dtype=dtype, random_state=0).fit(X, counts)
    assert learner.training_.spec["y"].dtype == torch.int64
    assert learner.read(X, counts)["y"].max() == 257
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(counts))
    tensor = Learner(Counted(), epochs=1, dtype=dtype, random_state=0).fit(data)
    np.testing.assert_array_equal(learner.predict(X), tensor.predict(X))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_regression_on_whole_numbers_is_that_on_numbers(dtype):
    counts = np.arange(48) % 5
    whole = Regressor(**COMMON, dtype=dtype).fit(X, counts)
    plain = Regressor(**COMMON, dtype=dtype).fit(X, counts.astype(float))
    np.testing.assert_array_equal(whole.predict(X), plain.predict(X))
    assert whole.score(X, counts) == plain.score(X, counts)
