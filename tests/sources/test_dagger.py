"""DAgger: where cloning's mistakes compound it is right; what it gathers is the expert's word on what was seen."""

import pytest
import torch
from tests.sources.rope import Rope, walker

import weft
from weft import Learner
from weft.core import Objective, Output, capability
from weft.data import CartPole
from weft.nets import MLP
from weft.objectives import REINFORCE, Classification, LeastSquares, Regression
from weft.sources import DAgger, Demonstrations, Rollouts

GAINS = torch.tensor([0.1, 0.3, 1.0, 0.5])


def balance(observation):
    return (observation @ GAINS > 0).long()


def of_cartpole(**settings):
    return DAgger(
        CartPole(), **{"expert": balance, "envs": 3, "length": 8, "updates_each": 4, "batch_size": 16, **settings}
    )


def learner(objective=None, **settings):
    objective = Classification(hidden=(8,)) if objective is None else objective
    return Learner(objective, **{"steps": 12, "every": 1, "random_state": 0, **settings})


def tree_of(learner):
    return learner.training_.runs[0].state.source


def equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], dict):
            equal(a[name], b[name])
        else:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, equal_nan=True)


def same_weights(one, other, **within):
    for p, q in zip(one.objective_.parameters(), other.objective_.parameters(), strict=True):
        torch.testing.assert_close(p, q, **(within or {"rtol": 0, "atol": 0}))


def test_where_small_mistakes_compound_it_is_right_and_cloning_fails():
    """What arXiv 1011.0686 is about, on five seeds: as many steps that the expert labels, as many updates."""
    settings = {"steps": 1200, "every": 1200, "replicas": 5, "random_state": 0}
    settings["validation"] = Rollouts(Rope(), envs=8, greedy=True)
    shown = Demonstrations(Rope(), walker, steps=1200)
    assert shown.demonstrated == 100.0
    assert not shown.fields["observation"][:, 0].any()  # the expert is never anywhere else
    cloned = Learner(Regression(hidden=(32,)), **settings).fit(shown)
    assert (cloned.history_["loss"][-1] < 0.01).all()  # it has learned what it was shown
    assert (cloned.history_["valid_return"][-1] < 30).all()
    source = DAgger(Rope(), walker, envs=4, length=25, updates_each=100)
    aggregated = Learner(Regression(hidden=(32,)), **settings).fit(source)
    assert aggregated.history_["env_steps"][-1].tolist() == [1200.0] * 5
    assert (aggregated.history_["valid_return"][-1] == 100).all()


# --- what is gathered ---------------------------------------------------------------------------------


def test_the_memory_is_what_the_expert_says_of_what_was_seen():
    trained = learner().fit(of_cartpole())
    tree = tree_of(trained)
    memory = tree["memory"]
    assert (int(tree["filled"]), len(memory["action"])) == (3 * 8 * 3, 72)  # three turns
    assert torch.equal(memory["action"], balance(memory["observation"]))
    record = trained.history_[-1]
    assert (record["kept"], record["forgotten"], record["env_steps"]) == (72, 0, 72)
    assert len(memory["observation"].unique(dim=0)) == 72


def test_at_first_the_expert_plays_alone_and_then_by_the_powers_of_beta():
    asked = []

    def watching(observation):
        asked.append(len(observation))
        return balance(observation)

    for beta, shares in ((0.0, [1, 0, 0]), (0.5, [1, 0.5, 0.25]), (1.0, [1, 1, 1])):
        found = learner().fit(of_cartpole(beta=beta)).history_["beta"]
        assert found[[0, 4, 8]].tolist() == shares
    asked.clear()
    learner(steps=8).fit(DAgger(CartPole(), watching, envs=3, length=8, updates_each=4))
    # twice to see that it answers alike; at each step of the first turn; and about all of each turn at once
    assert asked == [3, 3, *[3] * 7, 24, 24]


def test_the_first_turn_is_the_expert_s_and_later_ones_the_learner_s():
    class Never(Classification):
        """Would always do the same."""

        def predict(self, x):
            return torch.tensor([0.0, 1.0]).expand(len(x), 2)

        predict.capability = Classification.predict.capability

    tree = tree_of(learner(Never(hidden=(8,))).fit(of_cartpole(envs=8, length=40)))
    seen = tree["memory"]["observation"].unflatten(0, (3, 8, 40))
    assert seen[0, :, :, 2].abs().max() < 0.1  # upright
    assert seen[1:, :, :, 2].abs().max() > 0.15
    pushed = seen[1:, :, 1:, 1] - seen[1:, :, :-1, 1]
    falls = (seen[1:, :, 1:] - seen[1:, :, :-1]).abs().amax(-1) > 0.6  # begins anew
    assert (pushed[~falls] > 0).all()


def test_batches_are_drawn_from_all_that_was_gathered():
    source, seen = of_cartpole(batch_size=64), []

    class Watching(Classification):
        def forward(self, batch, player=""):
            seen.append(batch["x"].detach().clone())
            return super().forward(batch, player)

    memory = tree_of(learner(Watching(hidden=(8,))).fit(source))["memory"]["observation"]
    batches = [x for x in seen if x.shape == (64, 4)]
    rows = [{int((memory == row).all(1).nonzero()[0, 0]) for row in x} for x in batches]
    assert max(rows[0]) < 24
    assert max(rows[-1]) >= 48
    assert min(rows[-1]) < 24
    assert set().union(*rows) == set(range(72))


def test_a_smaller_memory_speaks_and_keeps_the_latest():
    with pytest.warns(UserWarning, match="all 72 steps .* got capacity=30: the oldest 42 will be overwritten"):
        trained = learner().fit(of_cartpole(capacity=30))
    whole = tree_of(learner().fit(of_cartpole()))
    tree, record = tree_of(trained), trained.history_
    assert (record["kept"][-1], record["forgotten"][-1]) == (30, 42)
    assert record["forgotten"][[0, 4, 8]].tolist() == [0, 18, 42]
    assert len(tree["memory"]["action"]) == 30
    assert not torch.equal(tree["memory"]["observation"], whole["memory"]["observation"][-30:])  # a ring
    filled = (torch.arange(42, 72) % 30).argsort()
    first = tree["memory"]["observation"][torch.arange(24, 48) % 30][6:]  # of the second turn what was not overwritten
    assert len(filled) == 30
    assert torch.equal(balance(first), tree["memory"]["action"][torch.arange(24, 48) % 30][6:])


# --- the contract -------------------------------------------------------------------------------------


def test_replicas_are_the_single_runs():
    both = learner(replicas=2, dtype="float64").fit(of_cartpole(beta=0.5))
    for k in range(2):
        one = learner(random_state=k, dtype="float64").fit(of_cartpole(beta=0.5))
        equal(tree_of(both.replica(k)), tree_of(one))
        same_weights(both.replica(k), one, rtol=1e-9, atol=1e-12)


class Killed(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("step", [6, 8])
def test_a_resumed_run_is_the_uninterrupted_one(replicas, step, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def stop(record):
        if record["step"] == step + 1:
            raise Killed

    source = of_cartpole(beta=0.5)
    whole = learner(replicas=replicas).fit(source)
    with pytest.raises(Killed):
        learner(replicas=replicas, folder=tmp_path, callbacks=[stop]).fit(source)
    resumed = weft.load(tmp_path).resume(of_cartpole(beta=0.5))
    equal(tree_of(resumed), tree_of(whole))
    same_weights(resumed, whole)
    changed = tmp_path / "changed"
    with pytest.raises(Killed):
        learner(replicas=replicas, folder=changed, callbacks=[stop]).fit(source)
    with pytest.raises(ValueError, match="dagger"):
        weft.load(changed).resume(of_cartpole(beta=0.25))
    with pytest.raises(ValueError, match="expert"):
        weft.load(changed).resume(of_cartpole(beta=0.5, expert=lambda seen: 1 - balance(seen)))


def test_looks_leave_no_trace():
    class Choosy(Classification):
        def refuse_rows(self, rows, *, training):
            assert len(rows["x"]) == 24  # before anything is gathered: what the expert does

    plain = learner().fit(of_cartpole())
    watched = learner(Choosy(hidden=(8,)), validation=Rollouts(CartPole(), envs=2, greedy=True)).fit(of_cartpole())
    equal(tree_of(watched), tree_of(plain))
    same_weights(watched, plain)


def test_a_third_party_s_policy_acts_by_itself():
    class Policy(Objective):
        on_policy = False
        fields = ("observation", "action")

        def build(self, spec):
            self.net = MLP(spec["observation"].shape[0], spec["action"].classes, hidden=(8,))

        def forward(self, batch, player=""):
            logits = self.net(batch["observation"])
            return Output(torch.nn.functional.cross_entropy(logits, batch["action"], reduction="none"))

        @capability(merge="refuse")
        def act(self, observation):
            return self.net(observation).argmax(-1)

    for replicas in (None, 2):
        trained = learner(Policy(), replicas=replicas, validation=of_cartpole()).fit(of_cartpole())
        assert "valid_return" in trained.history_[-1]


def test_env_steps_are_turns():
    assert of_cartpole().updates(100, None) == 16
    assert learner(env_steps=100, steps=None).fit(of_cartpole()).n_steps_ == 16


def test_an_expert_that_fails_is_not_taken_for_a_learner_that_cannot_be_stacked():
    def narrow(observation):
        return (observation @ GAINS[:3] > 0).long()

    with pytest.raises(
        ValueError, match=r"an expert that answers observations \(6, 4\) in torch.float32, got RuntimeError"
    ):
        learner(replicas=2).fit(DAgger(CartPole(), narrow, envs=3, length=8))


# --- what is refused ----------------------------------------------------------------------------------


class Undeclared(Objective):
    fields = ("x", "y")


class OnPolicy(Classification):
    on_policy = True


class Masked(CartPole):
    def legal(self, position):
        return torch.ones(len(position), 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (REINFORCE(), "play with 'reward', which REINFORCE reads, got DAgger"),
        (Undeclared(), "Undeclared, whose batches its own actions draw, to say whether on_policy"),
        (OnPolicy(hidden=(4,)), "OnPolicy learns from what the current policy does, got DAgger, whose rows an earlier"),
        (LeastSquares(), "LeastSquares is solved at once"),
    ],
)
def test_whoever_cannot_learn_so_is_refused(objective, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Learner(objective, **({} if objective.solved else {"steps": 3})).fit(of_cartpole())


class Valued(Classification):
    fields = ("x", "y", "reward")


class Wanting(Classification):
    predict = None


def test_whoever_reads_more_or_does_not_act_is_refused():
    with pytest.raises(ValueError, match="play with 'reward', which Valued reads, got DAgger"):
        learner(Valued(hidden=(8,))).fit(of_cartpole())
    with pytest.raises(TypeError, match=r"the method act\(observation\), got Wanting"):
        learner(Wanting(hidden=(8,))).fit(of_cartpole())
    with pytest.raises(TypeError, match=r"Classification.predict\(observation, \*, legal\)"):
        learner().fit(DAgger(Masked(), balance, envs=3, length=8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 1.5}, r"beta to be a number in \[0, 1\]"),
        ({"capacity": 23}, "at least the 24 steps .* got capacity=23"),
        ({"world": [CartPole()]}, "one world for DAgger"),
        ({"expert": Learner(REINFORCE())}, "a trained expert, got a Learner"),
        ({"expert": "expert"}, "expert to be a trained learner"),
    ],
)
def test_bad_settings(settings, message):
    given = {"world": CartPole(), "expert": balance, "envs": 3, "length": 8, **settings}
    with pytest.raises((ValueError, TypeError), match=message):
        DAgger(**given)


def test_an_expert_that_errs_later_on_speaks():
    def wide(observation):
        return balance(observation) + 2 * (observation[:, 2].abs() > 0.05).long()

    with pytest.raises(ValueError, match=r"expert's actions in CartPole to be a class number in 0\.\.1, got"):
        learner(steps=100).fit(DAgger(CartPole(), wide, envs=3, length=40, updates_each=2))
