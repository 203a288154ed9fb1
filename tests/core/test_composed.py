"""Objectives built of objectives: names, traits and capabilities follow by rule."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner
from weft.core import Composed, Field, Objective, Output, capability
from weft.core.random import key_of, keyed, normal
from weft.data import FiniteMDP
from weft.engine.build import build
from weft.objectives import DANN, GAN, REINFORCE, Classification, Heads, LeastSquares, Regression
from weft.sources import Arrays, Rollouts
from weft.strategies import ANDMask, Replay
from weft.testing import check_objective

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Normal(Objective):
    """A density: independent normals with learned means and deviations."""

    likelihood = True
    fields = ("x",)

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))
        self.scale = nn.Parameter(torch.zeros(spec["x"].shape))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return torch.distributions.Normal(self.mean, self.scale.exp()).log_prob(x).sum(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n):
        return self.mean + self.scale.exp() * normal((n, *self.mean.shape), place="z", dtype=self.mean.dtype)


class Coded(Composed):
    """A linear code z of x, likely under a prior that is learned with it: |x - decode(z)|^2 / 2 - log prior(z)."""

    composes = ("prior",)
    fields = ("x",)

    def __init__(self, prior=None, *, latent=2):
        super().__init__()
        self.prior = prior
        self.latent = latent

    def build(self, spec):
        width = spec["x"].shape[0]
        self.encode, self.decode = nn.Linear(width, self.latent), nn.Linear(self.latent, width)
        self.assemble({"prior": {"x": Field((self.latent,), torch.get_default_dtype())}})

    def forward(self, batch, player=""):
        z = self.encode(batch["x"])
        error = (batch["x"] - self.decode(z)).square().sum(-1) / 2
        return Output(error + self.ask("prior", {"x": z}).losses)

    @capability(merge="mean")
    def transform(self, x):
        return self.encode(x)


class Wrapped(Composed):
    """An objective whose loss is raised by the square of one parameter of its own."""

    composes, wraps = ("objective",), "objective"

    def __init__(self, objective=None):
        super().__init__()
        self.objective = objective

    def build(self, spec):
        self.shift = nn.Parameter(torch.zeros(()))
        self.assemble({"objective": spec})

    def forward(self, batch, player=""):
        return Output(self.ask("objective", batch).losses + self.shift.square())

    def measure(self, batch):
        return self.parts()["objective"].measure(batch)


class Noisy(Regression):
    """Adds a draw to each loss."""

    def forward(self, batch, player=""):
        output = super().forward(batch)
        return Output(normal(output.losses.shape, place="z", dtype=torch.float64) + 0.0 * output.losses)


class Coupled(Regression):
    decomposable = False


def test_a_density_given_as_a_prior():
    check_objective(Coded(Normal()), Arrays(X, batch_size=8))
    built = build(Coded(Normal()), {"x": Field((3,), torch.float64)}, 0, torch.float64)
    names = [name for name, _ in built.named_parameters()]
    assert sorted(names) == [
        "decode.bias",
        "decode.weight",
        "encode.bias",
        "encode.weight",
        "prior.mean",
        "prior.scale",
    ]
    offered = built.capabilities()
    assert set(offered) == {"transform", "prior_log_prob", "prior_sample"}
    assert offered["transform"].reads
    assert not offered["prior_log_prob"].reads
    z = torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(built.prior_log_prob(z), built.prior.log_prob(z))
    assert not built.likelihood  # it is not the prior's place to say
    assert built.fields == ("x",)
    learner = Learner(Coded(Normal()), steps=20, replicas=2, random_state=0).fit(X)
    assert learner.prior_sample(5).shape == (5, 2)
    assert learner.prior_log_prob(np.zeros((4, 2))).shape == (4,)
    assert not hasattr(learner, "prior_predict")
    with pytest.raises(ValueError, match="positive number of samples, got 0"):
        learner.prior_sample(0)
    with pytest.raises(AttributeError, match="no attribute 'prior_predict'"):
        learner.prior_predict(X)


def test_traits_follow_by_rule():
    assert Wrapped(Regression()).decomposable
    assert not Wrapped(Coupled()).decomposable
    assert not Heads({"a": Regression(), "b": Coupled()}).decomposable
    assert "couples the examples" in ANDMask(each="example").refuses(Heads({"a": Regression(), "b": Coupled()}))
    assert Wrapped(REINFORCE()).on_policy
    assert "earlier policy" in Replay().refuses(Wrapped(REINFORCE()))
    assert not Wrapped(Regression()).on_policy
    assert Wrapped(REINFORCE()).declares("on_policy")
    assert Wrapped(Regression()).declares("on_policy")
    assert not Wrapped(Normal()).declares("on_policy")
    wrapped = Wrapped(Classification(class_weight="balanced"))
    assert (wrapped.targets, wrapped.class_weight, wrapped.fields) == ("classes", "balanced", ("x", "y"))
    assert Wrapped(GAN()).optimizer is GAN.optimizer
    assert Wrapped(REINFORCE()).progress == ("return", "max")
    assert Heads({"a": Classification(class_weight="balanced")}).class_weight is None
    assert wrapped.provides == frozenset()
    assert not wrapped.likelihood


def test_a_wrapped_policy_acts():
    bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
    learner = Learner(Wrapped(REINFORCE()), steps=50, random_state=0).fit(Rollouts(bandit, envs=16))
    assert learner.act([[1.0]]).tolist() == [1]


@pytest.mark.parametrize(
    ("objective", "error", "message"),
    [
        (Wrapped(GAN()), ValueError, "Wrapped's objective to have one player, got GAN, which is a game"),
        (Wrapped(LeastSquares()), ValueError, "trained by descent, got LeastSquares, which is solved"),
        (Heads({"a": DANN()}), ValueError, "Heads's a to have one player, got DANN"),
        (Wrapped(Regression), TypeError, "Wrapped's objective to be one such as"),
        (Heads({"a": "regression"}), TypeError, "Heads' heads to be objectives by name"),
    ],
)
def test_parts_that_are_refused(objective, error, message):
    with pytest.raises(error, match=message):
        build(
            objective, Arrays(X, X[:, 0], a_y=X[:, 1], environment=[0, 1] * 12, with_environment=True).spec, 0, X.dtype
        )


def test_parts_draw_apart():
    rows = torch.arange(24)
    batch = {"x": X, "a_y": X[:, 0], "b_y": X[:, 0], "row": rows}
    built = build(
        Heads({"a": Noisy("linear"), "b": Noisy("linear")}), Arrays(X, a_y=X[:, 0], b_y=X[:, 0]).spec, 0, X.dtype
    )
    with keyed(key_of(0), rows, again=True):
        one, other = (built.ask(name, built.view(name, batch)).losses for name in ("a", "b"))
        again = built.ask("a", built.view("a", batch)).losses
    assert not torch.equal(one, other)
    assert torch.equal(one, again)


def test_a_part_sees_its_own_fields_alone():
    heads = Heads({"a": Regression(), "a_b": Regression()})
    assert heads.fields == ("x", "a_y", "a_b_y")
    rows = {"x": 0, "y": 1, "a_y": 2, "a_b_y": 3, "row": 4, "weight": 5, "environment": 6}
    kept = {"x": 0, "row": 4, "weight": 5, "environment": 6}
    assert heads.view("a", rows) == {**kept, "y": 2}
    assert heads.view("a_b", rows) == {**kept, "y": 3}
    del rows["a_y"]
    assert heads.view("a", rows) == kept, "another one's target, or one of nobody, is not taken in its place"


def test_a_copy_with_another_part_leaves_the_first_alone():
    inner = Regression(hidden=(4,))
    for outer in (Wrapped(inner), DANN(inner)):
        twin = outer.having(objective__hidden=(8,))
        assert twin.objective.hidden == (8,)
        assert outer.objective is inner
        assert inner.hidden == (4,)
    net = nn.Linear(3, 1)
    first = Regression(net)
    assert first.having(net=nn.Linear(3, 1)).net is not net
    assert first.net is net
    assert copy.copy(first).net is net


def test_names_that_would_not_be_told_apart():
    class Nested(Heads):
        pass

    inner = Nested({"b": Regression()})
    with pytest.raises(ValueError, match="names of their own, got 'a_b_predict' twice"):
        Heads({"a": inner, "a_b": Regression()}).capabilities()
    one = Regression()
    with pytest.raises(ValueError, match="got 'b' twice"):
        Heads({"a": one, "b": one}).parts()
    for name in ("a.b", "keys", "a__b", "1"):
        with pytest.raises(ValueError, match="plain word to name one of heads"):
            Heads({name: Regression()}).parts()
