import numpy as np
import torch

from weft import Classifier
from weft.attacks import PGD
from weft.strategies import AdversarialTraining

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)


def test_adversarial_training_makes_it_robust():
    """The loss under attack is lower than plain training's."""
    plain = Classifier(epochs=60, random_state=0).fit(X, Y)
    robust = Classifier(strategy=AdversarialTraining(PGD(eps=0.3, steps=3)), epochs=60, random_state=0).fit(X, Y)
    slopes = []
    for learner in (plain, robust):
        x = torch.as_tensor(X, dtype=torch.float32).requires_grad_()
        run = learner.training_.runs[0][1]
        loss = torch.func.functional_call(
            learner.objective_, run.params, ({"x": x, "y": torch.as_tensor(Y)},)
        ).losses.sum()
        direction = torch.autograd.grad(loss, x)[0].sign()
        moved = (x + 0.3 * direction).detach().numpy()
        slopes.append(learner.score(moved, Y))
    assert slopes[1] > slopes[0]
