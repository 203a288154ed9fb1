import numpy as np
import pytest
import torch

from weft import Learner
from weft.core.random import key_of, keyed, uniform
from weft.core.strategy import weighted_mean
from weft.objectives import Classification
from weft.strategies import PCGrad


def algorithm(gradients, weights, order):
    """The paper's algorithm 1 on whole vectors, one after the other."""
    projected = gradients.copy()
    for i in range(len(gradients)):
        for j in order[i]:
            if j == i:
                continue
            inner = projected[i] @ gradients[j]
            if inner < 0:
                projected[i] -= inner / (gradients[j] @ gradients[j]) * gradients[j]
    return weights @ projected


def combine(gradients, weights, seed=0):
    with keyed(key_of(seed)):
        return PCGrad().combine(gradients, torch.zeros(len(weights)), weights, {})[0]


@pytest.mark.parametrize("environments", [2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_algorithm(environments, seed):
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(environments, 10))
    weights = rng.uniform(0.5, 1.0, environments)
    weights /= weights.sum()
    with keyed(key_of(seed)):
        order = uniform((environments, environments), place="order").argsort(-1).numpy()
    parts = {"w": torch.as_tensor(g[:, :6]).reshape(-1, 2, 3), "b": torch.as_tensor(g[:, 6:])}
    found = combine(parts, torch.as_tensor(weights), seed)
    joined = np.concatenate([found["w"].reshape(-1), found["b"]])
    np.testing.assert_allclose(joined, algorithm(g, weights, order), atol=1e-12)


def test_without_conflict_it_is_the_mean():
    g = {"w": torch.rand(5, 4, generator=torch.Generator().manual_seed(0))}  # all inner products are positive
    weights = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1])
    torch.testing.assert_close(combine(g, weights), weighted_mean(g, weights))


def test_two_in_conflict_no_longer_undo_each_other():
    """The closed form for two: each loses its part along the other."""
    a, b = torch.tensor([2.0, 1.0]), torch.tensor([-1.0, 1.0])
    found = combine({"w": torch.stack([a, b])}, torch.tensor([0.5, 0.5]))["w"]
    inner = a @ b
    expected = 0.5 * (a - inner / (b @ b) * b) + 0.5 * (b - inner / (a @ a) * a)
    torch.testing.assert_close(found, expected)
    assert found @ a >= 0
    assert found @ b >= 0


def test_the_order_is_drawn_anew_by_key():
    g = {"w": torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    weights = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert torch.equal(combine(g, weights, 1)["w"], combine(g, weights, 1)["w"])
    assert any(not torch.allclose(combine(g, weights, 0)["w"], combine(g, weights, k)["w"]) for k in range(1, 5))


def test_an_absent_environment_is_not_counted():
    g = torch.tensor([[2.0, 1.0], [-1.0, 1.0], [0.0, 0.0]])
    found = combine({"w": g}, torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(found, combine({"w": g[:2]}, torch.tensor([0.5, 0.5])))


def test_one_environment_only():
    with pytest.raises(ValueError, match=r"PCGrad\(\) compares environments, got one only"):
        Learner(Classification(), strategy=PCGrad()).fit(np.eye(2), [0, 1], environment=[0, 0])
