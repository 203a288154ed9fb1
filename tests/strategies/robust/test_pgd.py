import numpy as np
import pytest
import torch

from weft import Classifier, weave
from weft.attacks import PGD
from weft.core.objective import Output
from weft.objectives import Regression
from weft.sources import Arrays, Episodes
from weft.strategies import MAML, AdversarialTraining

rng = np.random.default_rng(0)
X = rng.integers(0, 2, size=(60, 4)).astype(np.float32)  # pixels, all at the ends of their range
Y = (X[:, 0] > 0.5).astype(int)


class Watched(PGD):
    """Keeps what it has made."""

    made: list = []

    def __call__(self, loss, params, batch):
        found = super().__call__(loss, params, batch)
        self.made.append(found)
        return found


def attacked(**settings):
    Watched.made = []
    learner = Classifier(strategy=AdversarialTraining(Watched(eps=0.2, **settings)), epochs=2, random_state=0)
    learner.fit(X, Y)
    return learner, torch.cat(Watched.made)


@pytest.mark.parametrize("start", ["clean", "random"])
def test_without_bounds_the_range_of_the_training_rows_holds(start):
    _, made = attacked(start=start, steps=2)
    assert made.aminmax() == (0.0, 1.0)
    assert ((made > 0.1) & (made < 0.9)).any()  # and something was moved


@pytest.mark.parametrize("start", ["clean", "random"])
def test_bounds(start):
    _, made = attacked(bounds=(-0.1, 1.05), start=start, steps=3)
    torch.testing.assert_close(torch.stack(made.aminmax()), torch.tensor([-0.1, 1.05]))


def test_none_is_no_range():
    _, made = attacked(bounds=None)
    torch.testing.assert_close(torch.stack(made.aminmax()), torch.tensor([-0.2, 1.2]))


def test_the_range_is_that_of_all_rows_not_of_a_batch_and_is_kept(tmp_path):
    import weft

    rows = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    learner = Classifier(strategy=AdversarialTraining(), epochs=1, batch_size=4, replicas=2, random_state=0)
    learner.fit(rows, (rows[:, 0] > 0.5).astype(int))
    kept = learner.training_.runs[0].state.strategy[""]
    assert (kept["low"].tolist(), kept["high"].tolist()) == ([0.0, 0.0], [1.0, 1.0])
    learner.save(tmp_path / "run")
    assert weft.load(tmp_path / "run").training_.runs[0].state.strategy[""]["high"].tolist() == [1.0, 1.0]
    learner.partial_fit(2 * rows, (rows[:, 0] > 0.5).astype(int))  # other rows, another range
    assert learner.training_.runs[0].state.strategy[""]["high"].tolist() == [2.0, 2.0]


def test_rows_outside_the_bounds_are_refused():
    with pytest.raises(ValueError, match=r"expected rows within \(0.0, 1.0\).*got values from 0 to 3"):
        Classifier(strategy=AdversarialTraining(PGD(bounds=(0.0, 1.0))), epochs=1).fit(3 * X, Y)


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0, 0.0), (0.0,), (0.0, float("nan")), "row", 1.0])
def test_bounds_that_are_none(bounds):
    with pytest.raises((ValueError, TypeError), match="bounds to be"):
        Classifier(strategy=AdversarialTraining(PGD(bounds=bounds)), epochs=1).fit(X, Y)


def test_a_source_that_does_not_tell_its_range_needs_bounds():
    from weft import Learner
    from weft.data import sinusoids

    both = weave(AdversarialTraining(PGD()), MAML())
    with pytest.raises(ValueError, match=r"expected a source that tells the range.*give it bounds=\(low, high\)"):
        Learner(Regression(), strategy=both, steps=1).fit(Episodes(sinusoids, tasks=2, shots=2))
    task = np.arange(60) % 3
    pool = Episodes((X, Y.astype(np.float32), task), tasks=2, shots=2)
    assert pool.extent("x") == (0.0, 1.0)
    Learner(Regression(), strategy=both, steps=1).fit(pool)


def test_called_by_itself_it_takes_the_rows_given():
    def loss(params, batch):
        return Output(batch["x"].sum(-1))

    x = torch.tensor([[0.0, 0.5], [1.0, 0.9]])
    assert PGD(eps=0.2)(loss, {}, {"x": x}).max() == 1.0
    assert PGD(eps=0.2, bounds=None)(loss, {}, {"x": x}).max() == pytest.approx(1.2)


def test_extents():
    source = Arrays(torch.tensor([[0.1], [3.0]]), torch.tensor([1, 2]))
    assert source.extent("y") == (1, 2)
    assert source.extent("x") == (pytest.approx(0.1), 3.0)
