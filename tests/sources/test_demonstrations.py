"""What an expert has done: rows for whoever learns from labels, whoever the expert is."""

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from tests.sources.rope import Rope, walker

import weft
from weft import Learner
from weft.core import Field, Objective, Output, capability
from weft.core.random import unit
from weft.core.state import State
from weft.data import CartPole
from weft.nets import MLP
from weft.objectives import REINFORCE, Classification, Regression
from weft.sources import Arrays, Demonstrations, Rollouts
from weft.testing import check_source

GAINS = torch.tensor([0.1, 0.3, 1.0, 0.5])


def balance(observation):
    return (observation @ GAINS > 0).long()


def rows_of(source):
    """All rows of a source in their order."""
    return next(source.once(State(objective=None, params={}, buffers={}, seeds=torch.tensor(0)), 10**6))


class Cloned(Objective):
    """As a third party writes it: reads what was seen and done, and acts."""

    on_policy = False
    fields = ("observation", "action")

    def build(self, spec):
        self.net = MLP(spec["observation"].shape[0], spec["action"].classes, hidden=(16,))

    def forward(self, batch, player=""):
        logits = self.net(batch["observation"])
        return Output(torch.nn.functional.cross_entropy(logits, batch["action"], reduction="none"))

    @capability(merge="refuse")
    def act(self, observation):
        return self.net(observation).argmax(-1)


class Stretches(Cloned):
    trajectories = True
    fields = ("observation", "action", "mask")

    def forward(self, batch, player=""):
        logits = self.net(batch["observation"].flatten(0, 1))
        each = torch.nn.functional.cross_entropy(logits, batch["action"].flatten(0, 1), reduction="none")
        return Output((each.unflatten(0, batch["mask"].shape) * batch["mask"]).sum(1))


# --- what is given ------------------------------------------------------------------------------------


def test_the_contract_holds():
    check_source(Demonstrations(CartPole(), balance, episodes=3, horizon=40, batch_size=16))
    check_source(Demonstrations(CartPole(), balance, episodes=4, horizon=40, holdout=0.3, batch_size=16))


def test_rows_are_the_expert_s_steps_in_the_world():
    source = Demonstrations(CartPole(), balance, episodes=3, horizon=50)
    rows = rows_of(source)
    assert (source.size, source.epoch, source.demonstrated) == (150, 3, 50.0)
    assert torch.equal(rows["action"], balance(rows["observation"]))
    assert torch.equal(rows["x"], rows["observation"])
    assert torch.equal(rows["y"], rows["action"])
    _, seen, _, _ = CartPole().step(rows["observation"].double(), rows["action"])
    torch.testing.assert_close(seen, rows["next_observation"], rtol=1e-4, atol=1e-5)
    assert rows["truncated"].nonzero().flatten().tolist() == [49, 99, 149]
    inside = torch.arange(150) % 50 != 49
    assert torch.equal(rows["next_observation"][:-1][inside[:-1]], rows["observation"][1:][inside[:-1]])
    assert {name: field.classes for name, field in source.spec.items() if field.classes} == {"action": 2, "y": 2}
    assert source.extent("x") == source.extent("observation")


def test_as_many_episodes_as_have_so_many_steps():
    source = Demonstrations(CartPole(), lambda o: torch.zeros(len(o), dtype=torch.int64), steps=200)
    rows = rows_of(source)
    ends = (rows["terminated"] | rows["truncated"]).nonzero().flatten()
    assert ends[-1] + 1 == source.size >= 200 > ends[-2] + 1
    starts = rows["observation"][torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1] + 1])]
    assert len(starts.unique(dim=0)) == len(starts)  # beyond what is played at once, too
    assert len(starts) > 16


def test_play_depends_on_its_own_seed_alone():
    one, same, other = (Demonstrations(CartPole(), balance, episodes=2, random_state=k, horizon=20) for k in (1, 1, 2))
    assert torch.equal(one.fields["observation"], same.fields["observation"])
    assert not torch.equal(one.fields["observation"], other.fields["observation"])


def test_disturbed_play_is_labelled_by_the_expert():
    source = Demonstrations(CartPole(), balance, episodes=30, stray=0.5, horizon=30)
    rows = rows_of(source)
    assert torch.equal(rows["y"], balance(rows["observation"]))
    done_otherwise = (rows["y"] != rows["action"]).double().mean()
    assert done_otherwise == pytest.approx(0.25, abs=0.08)  # half of those that are drawn
    _, seen, _, _ = CartPole().step(rows["observation"].double(), rows["action"])
    torch.testing.assert_close(seen, rows["next_observation"], rtol=1e-4, atol=1e-5)


def test_whole_episodes_are_held_out():
    parts = [
        Demonstrations(CartPole(), balance, episodes=10, stray=0.6, holdout=0.2, part=part)
        for part in ("train", "validation")
    ]
    train, held = map(rows_of, parts)
    assert parts[0].size + parts[1].size == len(parts[0].fields["action"])
    whole = parts[0].fields["terminated"] | parts[0].fields["truncated"]
    assert int((held["terminated"] | held["truncated"]).sum()) == 2
    assert int((train["terminated"] | train["truncated"]).sum()) == 8 == int(whole.sum()) - 2
    for rows in (train, held):  # each step is followed by the next one
        ended = rows["terminated"] | rows["truncated"]
        assert bool(ended[-1])
        assert torch.equal(rows["next_observation"][:-1][~ended[:-1]], rows["observation"][1:][~ended[:-1]])


def test_replicas_see_the_same_rows_in_orders_of_their_own():
    source = Demonstrations(CartPole(), balance, episodes=2, horizon=32)
    both = Learner(Classification(hidden=(8,)), epochs=2, replicas=2, random_state=0).fit(source)
    for k in range(2):
        one = Learner(Classification(hidden=(8,)), epochs=2, random_state=k).fit(source)
        for p, q in zip(both.replica(k).objective_.parameters(), one.objective_.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# --- who the expert may be ----------------------------------------------------------------------------


def test_a_function_is_cloned_and_the_clone_plays():
    source = Demonstrations(CartPole(), balance, episodes=4)
    played = Rollouts(CartPole(), envs=8, greedy=True)
    learner = Learner(Classification(), epochs=10, validation=played, random_state=0).fit(source)
    assert learner.history_["demonstrated_return"][-1] == 500.0
    assert learner.history_["valid_return"][-1] > 300
    taught = Demonstrations(CartPole(), learner, episodes=2, random_state=5)  # a clone is an expert itself
    assert torch.equal(taught.fields["action"], torch.as_tensor(learner.predict(taught.fields["observation"])))


def test_numbers_are_cloned_and_kept_between_the_bounds():
    source = Demonstrations(Rope(), walker, episodes=2)
    assert source.spec["y"] == Rope.action
    played = Rollouts(Rope(), envs=4, greedy=True)
    learner = Learner(Regression(hidden=(16,)), steps=5, every=1, validation=played, random_state=0)
    learner.fit(source)
    wild = Learner(Regression(hidden=(16,), net=lambda i, o: Wild()), steps=1, validation=played, random_state=0)
    assert wild.fit(source).history_["valid_return"][-1] < 10  # it says 7, which is played as 1
    taught = Demonstrations(Rope(), wild, episodes=2)
    assert (taught.fields["action"] == 1.0).all()


class Wild(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.much = torch.nn.Parameter(torch.tensor(7.0))

    def forward(self, x):
        return self.much.expand(len(x), 1)


def test_learners_modules_and_models_of_others():
    learner = Learner(REINFORCE(hidden=(8,)), steps=2, random_state=0).fit(Rollouts(CartPole(), envs=4))
    by_learner = Demonstrations(CartPole(), learner, episodes=3)
    module = learner.module().train()
    by_module = Demonstrations(CartPole(), module, episodes=3)
    assert module.training  # as it was
    assert torch.equal(by_learner.fields["action"], by_module.fields["action"])
    rows = by_learner.fields
    tree = DecisionTreeClassifier(random_state=0).fit(rows["observation"].numpy(), rows["action"].numpy())
    by_tree = Demonstrations(CartPole(), tree, episodes=3)
    assert (by_tree.fields["action"].numpy() == tree.predict(by_tree.fields["observation"].numpy())).all()


def test_a_module_is_asked_in_evaluation_mode():
    class Dropping(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, observation):
            assert not torch.is_grad_enabled()
            return balance(self.drop(observation))

    module = Dropping()
    rows = Demonstrations(CartPole(), module, episodes=2, horizon=20).fields
    assert torch.equal(rows["action"], balance(rows["observation"]))
    assert module.training


def test_what_was_recorded_is_given_as_it_is():
    played = Demonstrations(CartPole(), balance, episodes=3, horizon=20).fields
    plain = Demonstrations(CartPole(), (played["observation"].numpy(), played["action"].tolist()))
    assert plain.demonstrated is None
    assert plain.size == 60
    named = {name: values.numpy() for name, values in played.items()}
    whole = Demonstrations(CartPole(), named, holdout=0.3)
    assert whole.demonstrated == 20.0
    assert whole.size == 40
    for name, values in played.items():
        assert torch.equal(whole.fields[name], values), name
    wide = {**named, "observation": named["observation"].astype(float)}
    assert Demonstrations(CartPole(), wide).fields["observation"].dtype == torch.float32


def test_episodes_that_have_not_ended_are_no_return():
    arrays = {"observation": np.zeros((5, 4)), "action": np.zeros(5), "reward": [1.0, 2.0, 4.0, 8.0, 16.0]}
    ends = np.array([0, 1, 0, 1, 0])
    assert Demonstrations(CartPole(), {**arrays, "terminated": ends}).demonstrated == (3 + 12) / 2
    assert Demonstrations(CartPole(), {**arrays, "terminated": 0 * ends}).demonstrated is None


# --- whoever learns -----------------------------------------------------------------------------------


def test_third_parties_read_what_was_done():
    played = Rollouts(CartPole(), envs=4, greedy=True)
    source = Demonstrations(CartPole(), balance, episodes=4)
    learner = Learner(Cloned(), epochs=8, validation=played, random_state=0).fit(source)
    assert learner.history_["valid_return"][-1] > 60  # by chance about 20


def test_whole_episodes_as_rows():
    fallen = {"stray": 0.8, "episodes": 5}
    steps = Demonstrations(CartPole(), balance, **fallen)
    source = Demonstrations(CartPole(), balance, trajectories=True, batch_size=2, **fallen)
    assert (source.size, source.epoch) == (5, 3)
    rows = rows_of(source)
    assert rows["observation"].dim() == 3
    assert source.spec["observation"] == CartPole.observation  # of one step, as play has it
    real = rows["mask"] > 0
    for name in ("observation", "action", "reward", "terminated", "next_observation", "y"):
        assert torch.equal(rows[name][real], rows_of(steps)[name]), name
    assert not rows["reward"][~real].any()
    assert (rows["mask"].sum(1) == torch.bincount(real.nonzero()[:, 0])).all()
    learner = Learner(Stretches(), epochs=2, random_state=0).fit(source)
    assert np.isfinite(learner.history_["loss"]).all()
    with pytest.raises(ValueError, match=r"trajectories=True.* for Stretches, which learns from whole episodes"):
        Learner(Stretches(), epochs=1).fit(steps)
    with pytest.raises(ValueError, match=r"trajectories=False.* for Classification, which learns from single steps"):
        Learner(Classification(), epochs=1).fit(source)


def test_a_resumed_run_is_the_uninterrupted_one_and_knows_its_data(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    class Killed(Exception):  # noqa: N818
        pass

    def stop(record):
        if record["step"] == 7:
            raise Killed

    def source(k):
        return Demonstrations(CartPole(), balance, episodes=3, horizon=50, random_state=k)

    settings = {"steps": 12, "every": 1, "random_state": 0}
    whole = Learner(Classification(hidden=(4,)), **settings).fit(source(0))
    with pytest.raises(Killed):
        Learner(Classification(hidden=(4,)), **settings, folder=tmp_path, callbacks=[stop]).fit(source(0))
    with pytest.raises(ValueError, match="observation"):
        weft.load(tmp_path).resume(source(1))
    resumed = weft.load(tmp_path).resume(source(0))
    for p, q in zip(resumed.objective_.parameters(), whole.objective_.parameters(), strict=True):
        assert torch.equal(p, q)


def test_what_is_held_out_validates():
    train, held = (
        Demonstrations(CartPole(), balance, episodes=5, horizon=40, holdout=0.4, part=part)
        for part in ("train", "validation")
    )
    learner = Learner(Classification(hidden=(8,)), epochs=2, validation=held, random_state=0).fit(train)
    assert 0.3 < learner.history_["valid_accuracy"][-1] <= 1


def test_rows_are_augmented_where_they_are_read():
    seen = []

    class Watching(Classification):
        def forward(self, batch, player=""):
            seen.append(batch["x"].detach())
            return super().forward(batch, player)

    source = Demonstrations(CartPole(), balance, episodes=2, horizon=20)
    Learner(Watching(hidden=(4,)), epochs=1, augment=lambda row: row + 100.0, random_state=0).fit(source)
    assert any((x > 90).all() for x in seen)
    with pytest.raises(ValueError, match=r"augment to change what Cloned reads, .* a row of 'x', the first field"):
        Learner(Cloned(), epochs=1, augment=lambda row: row + 100.0).fit(source)


# --- what is refused ----------------------------------------------------------------------------------

SEEN, DONE = torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)
WRONG = {
    "another width": (
        (torch.zeros(6, 3), DONE),
        r"'observation' has shape \(4,\) .* in CartPole, got \(3,\); give what",
    ),
    "actions of another shape": ((SEEN, torch.zeros(6, 2)), r"'action' has shape \(\) .* got \(2,\)"),
    "outside of the space": ((SEEN, DONE + 2), r"demonstrated actions in CartPole to be .* 0\.\.1, got 2 in row 0"),
    "between two actions": ((SEEN, torch.full((6,), 0.5)), "'action' in torch.int64, got other values"),
    "NaN": ((SEEN / 0, DONE), r"finite demonstrations, got nan in 'observation', row 0, entry \[0\]"),
    "unequal": ((SEEN, DONE[1:]), "demonstrations of one length, got .*6.*5"),
    "none": ((SEEN[:0], DONE[:0]), "at least one demonstrated step, got none"),
    "misspelled": ({"observations": SEEN, "action": DONE}, "did you mean 'observation'"),
    "no actions": ({"observation": SEEN}, r"demonstrations with 'action', got \['observation'\]"),
    "text": ((["a"] * 6, DONE), "'observation' as numbers"),
    "a class": (DecisionTreeClassifier, "the class DecisionTreeClassifier; make one"),
    "a number": (3, "expert to be a trained learner"),
    "untrained": (Learner(REINFORCE()), "a trained expert, got a Learner that is not fitted; call fit first"),
    "scores": (lambda o: o[:, :2], r"of shape \(20,\) in torch.int64, got \(20, 2\) .*; where it gives scores"),
    "one for all": (lambda o: torch.tensor(1), r"got \(\) in torch.int64"),
    "two answers": (lambda o: (balance(o), None), "got tuple; where it answers more"),
    "action 2": (lambda o: balance(o) + 2, "expert's actions in CartPole to be a class number in 0..1, got 2|3"),
    "chance": (lambda o: (torch.rand(len(o)) < 0.5).long(), "a function of the observation, got two for the same"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_learned_from_is_refused(what):
    given, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        Demonstrations(CartPole(), given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes to be an integer >= 1"),
        ({"episodes": 2, "steps": 3}, "episodes or steps, got both"),
        ({"stray": 1.0}, r"stray to be a number in \[0, 1\)"),
        ({"episodes": 1, "holdout": 0.5}, "at least two episodes"),
        ({"expert": (SEEN, DONE), "episodes": 3}, "expected episodes for an expert that plays, got it beside"),
        ({"expert": (SEEN, DONE), "stray": 0.1}, "expected stray for an expert that plays"),
        ({"expert": (SEEN, DONE), "trajectories": True}, "tell where episodes end"),
        ({"world": [CartPole()]}, "one world for Demonstrations, got 1"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Demonstrations(**{"world": CartPole(), "expert": balance, **settings})


class Remembering(Cloned):
    def start(self, count):
        return {"h": torch.zeros(count, 1)}

    @capability(merge="refuse")
    def act(self, observation, *, memory):
        return self.net(observation).argmax(-1), memory


class Crediting(Cloned):
    def credit(self, batch):
        return {"advantage": batch["reward"]}


class Rewarded(Cloned):
    fields = ("observation", "action", "reward")


def test_whoever_cannot_learn_from_them_is_refused():
    source = Demonstrations(CartPole(), balance, episodes=2, horizon=10)
    with pytest.raises(ValueError, match="Crediting, which credits what it has played itself"):
        Learner(Crediting(), epochs=1).fit(source)
    with pytest.raises(ValueError, match="REINFORCE learns from what the current policy does"):
        Learner(REINFORCE(), epochs=1).fit(source)
    with pytest.raises(ValueError, match="demonstrations with 'reward', which Rewarded reads"):
        Learner(Rewarded(), epochs=1).fit(Demonstrations(CartPole(), (SEEN, DONE)))
    with pytest.raises(ValueError, match="acts by the observation alone"):
        Demonstrations(CartPole(), Remembering())


class Three(CartPole):
    action = Field((), torch.int64, classes=3)


def test_a_policy_is_played_only_where_it_belongs():
    source = Demonstrations(CartPole(), balance, episodes=2, horizon=10)
    with pytest.raises(TypeError, match=r"Classification to draw its actions.*greedy=True"):
        Learner(Classification(), epochs=1, validation=Rollouts(CartPole(), envs=2)).fit(source)
    with pytest.raises(
        ValueError, match=r"action has shape \(\) and 2 classes, as 'y' .* with shape \(\) and 3 classes"
    ):
        Learner(Classification(), epochs=1, validation=Rollouts(Three(), envs=2, greedy=True)).fit(source)
    with pytest.raises(ValueError, match=r"a world whose observation has shape \(4,\), as 'x' has"):
        Learner(Classification(), epochs=1, validation=Rollouts(Rope(), envs=2, greedy=True)).fit(source)
    X, y = SEEN.numpy(), np.array([1, 2, 1, 2, 1, 2])
    with pytest.raises(ValueError, match=r"y to be the actions 0\.\.1 .* got the labels \[1, 2\]"):
        Learner(Classification(), epochs=1, validation=Rollouts(CartPole(), envs=2, greedy=True)).fit(X, y)
    learner = Learner(Classification(), epochs=1, validation=Rollouts(CartPole(), envs=2, greedy=True)).fit(X, y - 1)
    assert learner.history_["valid_return"][-1] > 5


def test_one_whose_act_was_taken_away_is_asked_what_it_predicts():
    class Mute(Classification):
        act = None

    source = Demonstrations(CartPole(), balance, episodes=2, horizon=10)
    learner = Learner(Mute(hidden=(4,)), epochs=1, validation=Rollouts(CartPole(), envs=2, greedy=True)).fit(source)
    assert learner.history_["valid_return"][-1] > 5


class Grouping(Cloned):
    """What it predicts is nothing that anybody did."""

    fields = ("x",)
    act = None

    def build(self, spec):
        self.net = MLP(spec["x"].shape[0], 2, hidden=(4,))

    def forward(self, batch, player=""):
        return Output(self.net(batch["x"]).square().sum(1))

    @capability(merge="refuse")
    def predict(self, x):
        return self.net(x).argmax(-1)


def test_a_prediction_that_was_not_learned_from_actions_is_none():
    with pytest.raises(TypeError, match=r"the method act\(observation\), got Grouping"):
        Learner(Grouping(), epochs=1, validation=Rollouts(CartPole(), envs=2, greedy=True)).fit(Arrays(SEEN))


class Doors:
    """Three doors of which one, seen, is open; one episode is five of them."""

    observation, action, horizon = Field((3,), torch.float32), Field((), torch.int64, classes=3), 5

    def reset(self, keys):
        position = (unit(keys, ()) * 3).long()
        return position, torch.nn.functional.one_hot(position, 3).float()

    def step(self, position, action, keys):
        after = (unit(keys, ()) * 3).long()
        seen = torch.nn.functional.one_hot(after, 3).float()
        return after, seen, (action == position).float(), torch.zeros_like(after, dtype=torch.bool)

    def legal(self, position):
        return torch.nn.functional.one_hot(position, 3).bool()


def test_an_expert_is_told_what_is_legal():
    def told(observation, legal):
        return legal.long().argmax(-1)

    rows = rows_of(Demonstrations(Doors(), told, episodes=4))
    assert torch.equal(rows["action"], rows["observation"].argmax(-1))
    assert rows["legal"].gather(1, rows["action"].unsqueeze(1)).all()
    rows_of(Demonstrations(Doors(), lambda observation: observation.argmax(-1), episodes=4))  # who knows it by itself
    with pytest.raises(ValueError, match=r"expected a legal action, one of \[\d\], got"):
        Demonstrations(Doors(), lambda observation: (observation.argmax(-1) + 1) % 3, episodes=2)
