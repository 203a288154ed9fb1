"""`precision="bf16"`: layers in bfloat16 over float32 parameters, losses and statistics in float32."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft import Classifier, Learner, Regressor, load
from weft.attacks import PGD
from weft.core import Objective, Output, capability
from weft.data import sinusoids
from weft.objectives import GAN, Classification, Regression
from weft.sources import Episodes
from weft.strategies import EWC, MAML, AdversarialTraining, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
SITE = np.repeat([0, 1], 32)


class Spy(Objective):
    """Writes down in which dtypes it computes."""

    seen: dict = {}

    def build(self, spec):
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, batch, player=""):
        logits = self.net(batch["x"])
        type(self).seen = {"logits": logits.dtype, "weight": self.net[0].weight.dtype}
        return Output((logits**1).mean(-1) * 0 + logits[:, 0] * batch["y"], logits=logits, features=logits)

    provides = frozenset({"logits", "features"})

    @capability()
    def predict(self, x):
        return self.net(x)[:, 0]


def test_layers_compute_in_bfloat16_and_all_else_is_float32():
    learner = Learner(Spy(), epochs=2, precision="bf16", random_state=0).fit(X, Y.astype(float))
    assert Spy.seen == {"logits": torch.bfloat16, "weight": torch.float32}
    run = learner.training_.runs[0]
    assert all(p.dtype == torch.float32 for p in run.state.params.values())
    assert all(b.dtype != torch.bfloat16 for b in run.state.buffers.values())
    moments = [v for s in run.state.optimizers[""].state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert moments
    assert all(v.dtype == torch.float32 for v in moments)
    batch = {"x": torch.tensor(X), "y": torch.tensor(Y).float(), "row": torch.arange(64)}
    from weft.engine.gradients.loss import base_loss

    state = run.state
    output = base_loss(run.engine.objective, {}, state.buffers, state.key("test"), "")(state.params, batch)
    assert {output.losses.dtype, output.logits.dtype, output.features.dtype} == {torch.float32}
    assert learner.predict(X).dtype == np.float64  # as scikit-learn's regressors answer
    Learner(Spy(), epochs=1, random_state=0).fit(X, Y.astype(float))
    assert Spy.seen["logits"] == torch.float32


def test_a_step_is_that_of_a_bare_loop_under_autocast():
    """The same numbers as PyTorch's own way, written out: autocast, a float32 loss, Adam on float32 parameters."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    learner = Classifier(
        nn.Sequential(*net), steps=5, batch_size=None, init="keep", precision="bf16", random_state=0, device="cpu"
    ).fit(X, Y)
    optimizer = torch.optim.Adam(net.parameters(), lr=learner.training_.runs[0].state.optimizers[""].defaults["lr"])
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(torch.tensor(X))
        F.cross_entropy(logits.float(), torch.tensor(Y)).backward()
        optimizer.step()
    found = dict(learner.training_.runs[0].state.params)
    for name, p in net.named_parameters():
        torch.testing.assert_close(found[f"net.{name}"], p.detach(), rtol=0, atol=2e-4)
    plain = Classifier(nn.Sequential(*net), steps=1, init="keep", random_state=0, device="cpu").fit(X, Y)
    assert not np.array_equal(plain.predict_proba(X), learner.predict_proba(X))


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [
        (None, {}),
        (ANDMask(threshold=0.5), {"environment": SITE}),
        (AdversarialTraining(PGD(eps=0.1)), {}),
        (EWC(strength=1.0), {"task": SITE}),
    ],
    ids=["erm", "and-mask", "adversarial", "ewc"],
)
def test_replicas_are_the_single_runs(strategy, fields):
    settings = {"epochs": 2, "batch_size": 16, "precision": "bf16", "strategy": strategy, "device": "cpu"}
    both = Classifier(hidden=(8,), replicas=2, random_state=3, **settings).fit(X, Y, **fields)
    for k in range(2):
        one = Classifier(hidden=(8,), random_state=3 + k, **settings).fit(X, Y, **fields)
        np.testing.assert_allclose(one.predict_proba(X), both.replica(k).predict_proba(X), atol=0.02)


def test_it_learns_about_as_well_and_is_kept_with_the_run(tmp_path):
    settings = {"epochs": 80, "random_state": 0}
    low = Classifier(precision="bf16", folder=tmp_path / "run", **settings).fit(X, Y)
    assert low.score(X, Y) > 0.95
    twin = load(tmp_path / "run")
    assert twin.precision == "bf16"
    assert np.array_equal(twin.predict_proba(X), low.predict_proba(X))
    assert low.predict_proba(X).dtype == np.float32
    assert Learner(GAN(), steps=3, precision="bf16", random_state=0).fit(X).sample(4).dtype == np.float32


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="expected dtype='float32' beside precision='bf16'"):
        Regressor(precision="bf16", dtype="float64").fit(X, Y)
    with pytest.raises(ValueError, match="precision"):
        Regressor(precision="fp8").fit(X, Y)
    with pytest.raises(ValueError, match="expected replicas to differ in what each has of its own, got 'precision'"):
        Learner(Classification(), replicas={"precision": ["bf16", None]}).fit(X, Y)


def test_meta_learning_in_lower_precision():
    settings = {"strategy": MAML(), "steps": 3, "precision": "bf16", "random_state": 0}
    learner = Learner(Regression(hidden=(8,)), **settings).fit(Episodes(sinusoids, tasks=4, shots=5))
    assert np.isfinite(learner.history_["loss"]).all()


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_a_gated_optimizer_steps_by_the_rate_told_or_not_at_all(make):
    """What recorded steps rely on: here on the CPU, where the fused kernels are the same in this."""
    from weft.engine.moves import gate, gated, ungate

    def stepped(active, rate):
        p = nn.Parameter(torch.ones(3))
        optimizer = make([p], lr=0.5, fused=True)
        assert gated(optimizer)
        p.grad = torch.full((3,), torch.nan if not active else 1.0)
        if rate is not None:
            gate(optimizer, [torch.tensor(rate)], torch.tensor(active))
        optimizer.step()
        ungate(optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert set(optimizer.param_groups[0]) == set(make([p], lr=0.5, fused=True).param_groups[0])
        assert not hasattr(optimizer, "found_inf")
        return p.detach()

    assert torch.equal(stepped(False, 0.25), torch.ones(3))
    torch.testing.assert_close(stepped(True, 0.25), 1 - (1 - stepped(True, None)) / 2)
    assert not gated(make([nn.Parameter(torch.ones(3, dtype=torch.float64))], lr=0.5, fused=True))
    assert not gated(make([nn.Parameter(torch.ones(3))], lr=0.5))
