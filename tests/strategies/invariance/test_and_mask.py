import numpy as np
import pytest
import torch

from weft import Classifier
from weft.core.strategy import weighted_mean
from weft.strategies import ANDMask


def definition(gradients, threshold, rescale):
    """Component by component, as the paper writes it: keep where d (tau + 1) / 2 signs agree."""
    d = len(gradients)
    mean = gradients.mean(0)
    masked = torch.zeros_like(mean)
    kept = 0
    for index in np.ndindex(*mean.shape):
        column = gradients[(slice(None), *index)].tolist()
        plus, minus = sum(v > 0 for v in column), sum(v < 0 for v in column)
        # exact arithmetic: |plus - minus| >= tau d, with tau a decimal fraction
        if abs(plus - minus) * 1000 >= round(threshold * 1000) * d:
            masked[index] = mean[index]
            kept += 1
    return masked / (kept / mean.numel() + 1e-10) if rescale else masked


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("environments", [1, 2, 5, 10, 16])
def test_the_definition(threshold, rescale, environments):
    g = torch.randn(environments, 6, 7, generator=torch.Generator().manual_seed(environments))
    g[:, 0] = g[:, 0].abs()  # some that all agree on
    g[:, 1, :3] = 0.0  # and some exact zeros, which vote for nothing
    weights = torch.full((environments,), 1 / environments)
    found, _ = ANDMask(threshold=threshold, rescale=rescale).combine({"w": g}, torch.zeros(environments), weights, {})
    torch.testing.assert_close(found["w"], definition(g, threshold, rescale))


def test_zero_keeps_everything():
    g = {"w": torch.randn(4, 3), "b": torch.randn(4)}
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    found, _ = ANDMask(threshold=0.0).combine(g, torch.zeros(4), weights, {})
    for name, mean in weighted_mean(g, weights).items():
        torch.testing.assert_close(found[name], mean)


def test_without_rescaling_what_is_kept_is_the_mean_itself():
    """Bit for bit, in double precision too."""
    g = {"w": torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    found, _ = ANDMask(threshold=0.0, rescale=False).combine(g, torch.zeros(4), weights, {})
    assert torch.equal(found["w"], weighted_mean(g, weights)["w"])


def test_every_example_its_own_environment():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(2, size=60)
    one = Classifier(strategy=ANDMask(threshold=0.3, each="example"), epochs=2, dtype="float64", random_state=0)
    same = Classifier(strategy=ANDMask(threshold=0.3), epochs=2, batch_size=None, dtype="float64", random_state=0)
    one.set_params(batch_size=None).fit(X, y)
    same.fit(X, y, environment=np.arange(60))
    np.testing.assert_allclose(one.predict_proba(X), same.predict_proba(X))


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_threshold_out_of_range(threshold):
    with pytest.raises(ValueError, match=r"threshold to be a number in \[0, 1\]"):
        Classifier(strategy=ANDMask(threshold=threshold)).fit([[0.0], [1.0]], [0, 1], environment=[0, 1])
