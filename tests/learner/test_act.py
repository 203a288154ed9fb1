"""What a question needs is looked up once, and what it looks up is never stale."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, load
from weft.core import Objective, Output, capability
from weft.core.random import fold, key_of, keyed, row_hash, uniform
from weft.data import CartPole
from weft.engine.asking import call
from weft.engine.holding import evaluating
from weft.objectives import REINFORCE, Classification, Regression
from weft.sources import Rollouts

SEEN = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32) * 3


def policy(**further):
    return Learner(REINFORCE(hidden=(16,)), steps=5, random_state=0, optimizer="sgd", **further)


def bare(learner):
    """What the net says by itself."""
    with torch.no_grad():
        return learner.module().policy(torch.as_tensor(SEEN)).argmax(-1).numpy()


def turned(learner):
    """Turns every answer round, in place, as a step of training changes parameters."""
    for name, p in learner.training_.runs[0].state.params.items():
        if name.endswith(("4.weight", "4.bias", "head.weight", "head.bias", "2.weight", "2.bias")):
            p.neg_()


@pytest.fixture
def learner():
    return policy(warm_start=True).fit(Rollouts(CartPole(), envs=2))


def test_one_observation_or_many_as_the_net_says(learner):
    np.testing.assert_array_equal(learner.act(SEEN), bare(learner))
    assert [learner.act(row) for row in SEEN] == bare(learner).tolist()
    assert learner.act(SEEN[0].tolist()) == bare(learner)[0]


def test_after_further_training_it_answers_by_what_it_is_then(learner):
    before = learner.act(SEEN)
    learner.set_params(optimizer__lr=50.0, steps=20)
    learner.fit(Rollouts(CartPole(), envs=4))
    assert (learner.act(SEEN) != before).any()
    np.testing.assert_array_equal(learner.act(SEEN), bare(learner))


def test_parameters_changed_in_place_answer(learner):
    before = learner.act(SEEN)
    turned(learner)
    np.testing.assert_array_equal(learner.act(SEEN), bare(learner))
    assert (learner.act(SEEN) != before).any()


def test_another_fit_answers_for_itself(learner):
    first = learner.act(SEEN)
    learner.set_params(random_state=5, warm_start=False).fit(Rollouts(CartPole(), envs=2))
    np.testing.assert_array_equal(learner.act(SEEN), bare(learner))
    assert (learner.act(SEEN) != first).any()


def test_a_loaded_learner_and_a_copy_answer_for_themselves(learner, tmp_path):
    learner.act(SEEN)
    learner.save(tmp_path / "run")
    there, beside = load(tmp_path / "run"), copy.deepcopy(learner)
    before = learner.act(SEEN)
    turned(learner)
    for one in (there, beside):
        np.testing.assert_array_equal(one.act(SEEN), before)
    assert (learner.act(SEEN) != before).any()


def test_each_replica_answers_for_itself():
    three = policy(replicas=3).fit(Rollouts(CartPole(), envs=2))
    answers = [three.replica(k).act(SEEN) for k in range(3)]
    for k, answer in enumerate(answers):
        np.testing.assert_array_equal(answer, bare(three.replica(k)))
    assert (answers[0] != answers[1]).any()
    with pytest.raises(ValueError, match="expected one replica to answer 'act', got 3"):
        three.act(SEEN)


def test_an_answer_is_none_of_the_model_s_memory():
    class Told(Regression):
        @capability(merge="mean")
        def weights(self, x):
            return self.net[1].weight.expand(len(x), -1)

        @capability(merge="mean")
        def back(self, x):
            return x

    x = np.ones((3, 2), dtype=np.float32)
    learner = Learner(Told("linear"), steps=1, epochs=None, random_state=0).fit(x, x[:, :1])
    before = learner.weights(x)
    learner.weights(x)[:] = 7.0
    learner.back(x)[:] = 7.0
    np.testing.assert_array_equal(learner.weights(x), before)
    assert (x == 1.0).all()


def test_capabilities_are_each_objective_s_own():
    Classification().capabilities().clear()
    hinge, plain = Classification(loss="hinge"), Classification()
    assert "predict_proba" not in hinge.capabilities()
    assert "predict_proba" in plain.capabilities()


def test_arguments_are_those_of_the_method_that_is_asked():
    class Plain(Regression):
        @capability(merge="mean")
        def moved(self, x):
            return x

    class By(Plain):
        def moved(self, x, *, by):
            return x + by

    x = np.ones((3, 2), dtype=np.float32)
    plain, by = (Learner(cls("linear"), steps=1, random_state=0).fit(x, x[:, 0]) for cls in (Plain, By))
    assert (plain.moved(x) == 1.0).all()
    assert (by.moved(x, by=2.0) == 3.0).all()
    with pytest.raises(TypeError, match="expected no argument of 'moved' beside the first"):
        plain.moved(x, by=2.0)
    with pytest.raises(TypeError, match="expected 'by' to be given to 'moved'"):
        by.moved(x)


def test_rows_lead_before_the_answer_is_finished():
    class Across(Regression):
        @capability(merge="mean", finish=lambda answer: answer.T)
        def told(self, x):
            return x.T

    x = np.ones((3, 2), dtype=np.float32)
    learner = Learner(Across("linear"), steps=1, random_state=0).fit(x, x[:, 0])
    with pytest.raises(ValueError, match=r"expected one answer of 'told' for each of 3 rows, got shape \(2, 3\)"):
        learner.told(x)


# --- rows and modes -------------------------------------------------------------------------------------


class Noisy(Objective):
    """Answers with draws: of weft's, by place, and of torch's."""

    fields = ("x",)

    def build(self, spec):
        self.net = nn.Linear(2, 1)

    def forward(self, batch, player=""):
        return Output(self.net(batch["x"]).squeeze(-1).square())

    @capability(merge="mean", kind="estimate")
    def log_prob(self, x):
        return uniform((len(x),), place="u")

    @capability(merge="refuse", kind="direct")
    def noise_sample(self, x):
        return uniform((len(x),), place="u")


class NoisyNet(Noisy):
    """A layer of the user's that draws by torch itself."""

    class Layer(nn.Module):
        def forward(self, x):
            return x[:, 0] + torch.rand(len(x))

    def build(self, spec):
        super().build(spec)
        self.layer = NoisyNet.Layer()

    @capability(merge="mean", kind="estimate")
    def log_prob(self, x):
        return self.layer(x)


@pytest.mark.parametrize("objective", [Noisy(), NoisyNet()])
def test_an_estimate_draws_by_the_row_one_or_many_at_a_time(objective):
    x = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    learner = Learner(objective, steps=1, random_state=0).fit(x)
    whole = learner.log_prob(x)
    assert len(set(whole.tolist())) == 9
    np.testing.assert_array_equal(whole, [learner.log_prob(row[None])[0] for row in x])
    np.testing.assert_array_equal(whole[::-1], learner.log_prob(x[::-1]))


def test_an_estimate_is_the_draw_of_its_hash():
    x = torch.randn(5, 2)
    learner = Learner(Noisy(), steps=1, random_state=3).fit(x)
    with keyed(fold(key_of(3), "log_prob"), row_hash(x)):
        np.testing.assert_array_equal(learner.log_prob(x), uniform((5,), place="u").numpy())


def test_draws_go_on_by_position():
    x = torch.zeros(4, 2)
    learner, twin = (Learner(Noisy(), steps=1, random_state=3).fit(x) for _ in range(2))
    parts = np.concatenate([learner.noise_sample(x[:1]), learner.noise_sample(x[1:])])
    np.testing.assert_array_equal(parts, twin.noise_sample(x))
    assert len(set(parts.tolist())) == 4


def test_rows_are_asked_for_only_where_something_is_drawn():
    asked = []

    def rows():
        asked.append(1)
        return torch.arange(3)

    learner = Learner(Noisy(), steps=1, random_state=0).fit(torch.zeros(4, 2))
    state = learner.training_.runs[0].state
    call(state, "forward", {"x": torch.zeros(3, 2)}, key=key_of(0), rows=rows)
    asked.clear()  # the first time it is looked at whether torch itself draws
    call(state, "forward", {"x": torch.zeros(3, 2)}, key=key_of(0), rows=rows)
    assert not asked
    drawn = call(state, "log_prob", torch.zeros(3, 2), key=key_of(0), rows=rows)
    assert len(asked) == 1
    assert torch.equal(drawn, call(state, "log_prob", torch.zeros(3, 2), key=key_of(0), rows=torch.arange(3)))


def test_a_draw_of_torch_s_that_comes_later_is_refused():
    class Later(Noisy):
        drawing = False

        @capability(merge="mean")
        def told(self, x):
            return x[:, 0] + (torch.rand(len(x)) if type(self).drawing else 0.0)

    x = torch.zeros(4, 2)
    learner = Learner(Later(), steps=1, random_state=0).fit(x)
    np.testing.assert_array_equal(learner.told(x), np.zeros(4))
    np.testing.assert_array_equal(learner.told(x), np.zeros(4))
    Later.drawing = True
    with pytest.raises(ValueError, match="expected a forward that draws as often for every batch, got a draw more"):
        learner.told(x)


def test_every_layer_is_in_evaluation_and_then_in_its_own_mode():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout()))
    net[1].eval()
    modes = [layer.training for layer in net.modules()]
    with evaluating(net):
        assert not any(layer.training for layer in net.modules())
    assert [layer.training for layer in net.modules()] == modes
    with pytest.raises(ZeroDivisionError), evaluating(net):
        1 / 0  # noqa: B018
    assert [layer.training for layer in net.modules()] == modes


def test_a_layer_with_a_train_of_its_own_is_asked():
    class Counts(nn.Dropout):
        told = ()

        def train(self, mode=True):
            self.told = (*self.told, mode)
            return super().train(mode)

    net = nn.Sequential(Counts())
    with evaluating(net):
        assert not net[0].training
    assert net[0].training
    assert net[0].told == (False, True)
