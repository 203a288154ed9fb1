import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.objectives import Classification, Regression
from weft.strategies import ERM, GroupDRO


def algorithm(gradients, losses, rate):
    """The paper's algorithm 1 with every group at each step, in plain products."""
    q = np.full(len(losses[0]), 1 / len(losses[0]))
    steps = []
    for g, loss in zip(gradients, losses, strict=True):
        q = q * np.exp(rate * loss)
        q = q / q.sum()
        steps.append(q @ g)
    return np.array(steps), q


@pytest.mark.parametrize("rate", [0.0, 0.01, 1.0])
def test_the_algorithm(rate):
    rng = np.random.default_rng(0)
    gradients, losses = rng.normal(size=(7, 4, 3)), rng.uniform(0, 3, size=(7, 4))
    strategy, weights = GroupDRO(rate=rate), torch.full((4,), 0.25, dtype=torch.float64)
    state = strategy.init({"w": torch.zeros(3, dtype=torch.float64)})
    found = []
    for g, loss in zip(gradients, losses, strict=True):
        combined, state = strategy.combine({"w": torch.as_tensor(g)}, torch.as_tensor(loss), weights, state)
        found.append(combined["w"].numpy())
    expected, q = algorithm(gradients, losses, rate)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(state["scores"].softmax(0), q, rtol=1e-10)


def test_large_losses_do_not_overflow():
    strategy = GroupDRO(rate=1.0)
    g = {"w": torch.eye(2)}
    state = strategy.init(g)
    for _ in range(5):
        found, state = strategy.combine(g, torch.tensor([1e4, 2e4]), torch.tensor([0.5, 0.5]), state)
    torch.testing.assert_close(found["w"], torch.tensor([0.0, 1.0]))


@pytest.mark.turns("src/weft/strategies/invariance/*")
def test_it_minimizes_the_worst_risk():
    """One constant for targets 0 (nine rows) and 4 (one row): the mean is .4, the worst risk is least at 2."""
    x, y, site = np.zeros((10, 1)), np.array([0.0] * 9 + [4.0]), [0] * 9 + [1]
    settings = {"batch_size": None, "dtype": "float64", "steps": 3000, "optimizer": Optimizer("sgd", lr=0.05)}
    erm = Learner(Regression("linear"), strategy=ERM(), **settings).fit(x, y).predict(x)
    dro = Learner(Regression("linear"), strategy=GroupDRO(rate=0.01), **settings).fit(x, y, environment=site).predict(x)
    np.testing.assert_allclose(erm, 0.4, atol=1e-3)
    np.testing.assert_allclose(dro, 2.0, atol=0.1)


def test_an_absent_environment_keeps_its_place():
    strategy = GroupDRO(rate=1.0)
    g = {"w": torch.tensor([[1.0], [2.0], [0.0]])}
    state = strategy.init(g)
    found, after = strategy.combine(g, torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0.5, 0.5, 0.0]), state)
    q = torch.tensor([1.0, 2.0]).softmax(0)
    torch.testing.assert_close(found["w"], (q * torch.tensor([1.0, 2.0])).sum().reshape(1))
    torch.testing.assert_close(after["scores"], torch.tensor([-1.0, 0.0, -2.0]))


def test_unequal_sizes_start_by_their_weights():
    strategy = GroupDRO(rate=0.0)
    g = {"w": torch.tensor([[1.0], [0.0]])}
    found, _ = strategy.combine(g, torch.ones(2), torch.tensor([0.75, 0.25]), strategy.init(g))
    torch.testing.assert_close(found["w"], torch.tensor([0.75]))


def test_environments_that_come_later():
    """Two at first, then three, then two again: what is known of each is kept."""
    strategy = GroupDRO(rate=1.0)
    state = strategy.init({"w": torch.zeros(1)})
    for losses in ([1.0, 3.0], [0.0, 0.0, 4.0], [1.0, 1.0]):
        count = len(losses)
        weights = torch.full((count,), 1 / count)
        _, state = strategy.combine({"w": torch.zeros(count, 1)}, torch.tensor(losses), weights, state)
    gained = torch.tensor([-2.0 + 1.0, 0.0 + 1.0, 4.0])
    torch.testing.assert_close(state["scores"], gained - gained.max())


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_out_of_range(rate):
    with pytest.raises(ValueError, match="expected GroupDRO's rate to be a number >= 0, got"):
        Learner(Classification(), strategy=GroupDRO(rate=rate)).fit(np.eye(2), [0, 1], environment=[0, 1])


def test_one_environment_only():
    with pytest.raises(ValueError, match=r"GroupDRO\(\) compares environments, got one only"):
        Learner(Classification(), strategy=GroupDRO()).fit(np.eye(2), [0, 1], environment=[0, 0])
