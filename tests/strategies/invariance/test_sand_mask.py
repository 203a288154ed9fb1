import numpy as np
import pytest
import torch

from weft import Learner
from weft.objectives import Classification
from weft.strategies import ANDMask, SANDMask


def definition(g, threshold, steepness, rescale):
    """With the variance in two passes, and the cases of zero variance by hand."""
    agreement = np.abs(np.sign(g).mean(0))
    variance = g.var(0, ddof=1)
    excess = np.where(np.isclose(agreement, threshold, atol=1e-9), 0.0, agreement - threshold)
    mask = np.sign(excess)
    mask[variance > 0] = np.tanh(steepness * excess[variance > 0] / variance[variance > 0])
    mask = np.maximum(mask, 0.0)
    return mask * g.mean(0) / (mask.mean() + 1e-10 if rescale else 1.0)


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("steepness", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("environments", [2, 5, 10])
def test_the_definition(threshold, steepness, rescale, environments):
    rng = np.random.default_rng(environments)
    g = rng.normal(size=(environments, 6, 7))
    g[:, :3] = np.abs(g[:, :3])  # some that all agree on
    g[:, 2] = 0.5  # some that they agree on in size as well
    g[:, 1, :3] = 0.0  # and some that have none
    mask = SANDMask(threshold=threshold, steepness=steepness, rescale=rescale)
    weights = torch.full((environments,), 1 / environments, dtype=torch.float64)
    found, _ = mask.combine({"w": torch.as_tensor(g)}, torch.zeros(environments), weights, {})
    np.testing.assert_allclose(found["w"], definition(g, threshold, steepness, rescale), rtol=1e-7, atol=1e-12)


def test_a_small_spread_around_a_large_gradient():
    """In single precision the mean of squares less the square of the mean would be noise here."""
    g = 100.0 + 0.01 * torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    mask = SANDMask(threshold=0.5, steepness=1e-4, rescale=False)
    found, _ = mask.combine({"w": g}, torch.zeros(8), torch.full((8,), 1 / 8), {})
    assert found["w"].dtype == torch.float32
    np.testing.assert_allclose(found["w"], definition(g.double().numpy(), 0.5, 1e-4, False), rtol=1e-4)


def test_without_rescaling_an_open_mask_leaves_the_mean_as_it_is():
    g = torch.rand(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    found, _ = SANDMask(threshold=0.0, steepness=1e9, rescale=False).combine({"w": g}, torch.zeros(4), weights, {})
    assert torch.equal(found["w"], torch.tensordot(weights, g, dims=1))


def test_steep_it_is_the_and_mask():
    """Off the threshold, where the one opens and the other does not."""
    g = {"w": torch.randn(6, 40, generator=torch.Generator().manual_seed(0))}
    weights = torch.tensor([0.3, 0.1, 0.2, 0.2, 0.1, 0.1])  # unequal sizes
    found, _ = SANDMask(threshold=0.5, steepness=1e9).combine(g, torch.zeros(6), weights, {})
    expected, _ = ANDMask(threshold=0.5).combine(g, torch.zeros(6), weights, {})
    torch.testing.assert_close(found, expected)


def test_what_differs_in_size_moves_less():
    g = torch.tensor([[1.0, 0.5], [1.1, 1.6]])  # equal means, equal signs
    found, _ = SANDMask(steepness=0.1).combine({"w": g}, torch.zeros(2), torch.tensor([0.5, 0.5]), {})
    assert found["w"][0] > 2 * found["w"][1] > 0


def test_an_absent_environment_is_not_counted():
    g = torch.tensor([[1.0, 0.5], [2.0, 0.5], [0.0, 0.0]])
    mask = SANDMask(threshold=0.9)
    found, _ = mask.combine({"w": g}, torch.zeros(3), torch.tensor([0.5, 0.5, 0.0]), {})
    expected, _ = mask.combine({"w": g[:2]}, torch.zeros(2), torch.tensor([0.5, 0.5]), {})
    torch.testing.assert_close(found, expected)


def test_an_environment_alone_in_a_batch_agrees_with_itself():
    g = torch.tensor([[0.0, 0.0], [2.0, -0.5], [0.0, 0.0]])
    found, _ = SANDMask(threshold=0.9).combine({"w": g}, torch.zeros(3), torch.tensor([0.0, 1.0, 0.0]), {})
    torch.testing.assert_close(found["w"], g[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 1.1}, r"threshold to be a number in \[0, 1\], got 1.1"),
        ({"threshold": float("nan")}, r"threshold to be a number in \[0, 1\], got nan"),
        ({"steepness": 0.0}, "steepness to be a number > 0, got 0.0"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"SANDMask's {message}"):
        Learner(Classification(), strategy=SANDMask(**settings)).fit(np.eye(2), [0, 1], environment=[0, 1])


def test_one_environment_only():
    with pytest.raises(ValueError, match=r"SANDMask\(\) compares environments, got one only"):
        Learner(Classification(), strategy=SANDMask()).fit(np.eye(2), [0, 1], environment=[0, 0])
