"""Where a player's loss is no longer finite, the message says what its objective knows to mend it."""

import pytest
import torch

from weft import Learner
from weft.engine import Diverged
from weft.objectives import GAN


class Exploding(GAN):
    """Its generator has no finite loss from the fourth step on."""

    remedies = {"generator": "feed it less"}

    def build(self, spec):
        super().build(spec)
        self.register_buffer("clock", torch.zeros(()))

    def forward(self, batch, player=""):
        output = super().forward(batch, player)
        if player == "generator":
            self.clock = self.clock + self.training
            output.losses = torch.where(self.clock > 3, torch.inf, output.losses)
        return output


def test_a_remedy_is_told_with_the_step_and_for_each_replica():
    with pytest.raises(Diverged, match=r"diverged at step 3: the loss of 'generator' .* is not finite; feed it less$"):
        Learner(Exploding(hidden=(4,)), steps=6, random_state=0).fit(torch.randn(20, 2))
    with pytest.warns(RuntimeWarning, match="every replica has diverged"):
        learner = Learner(Exploding(hidden=(4,)), steps=6, replicas=2, random_state=0).fit(torch.randn(20, 2))
    assert all(why.endswith("; feed it less") for why in learner.stop_reason_)


def test_without_one_the_usual_is_said():
    class Plain(Exploding):
        remedies = {}

    with pytest.raises(Diverged, match=r"is not finite; lower the learning rate, clip the gradient"):
        Learner(Plain(hidden=(4,)), steps=6, random_state=0).fit(torch.randn(20, 2))
