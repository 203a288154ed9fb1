"""What is a stage, and what the contract finds in those that are none."""

import sys

import gymnasium
import pytest
import torch

from weft.core.random import fold, key_of
from weft.core.source import Field
from weft.data import CartPole, Catch, ShortCorridor
from weft.sources.stage import Tensors, stage_of
from weft.testing import check_stage
from weft.testing.checks import ContractError


@pytest.mark.parametrize("world", [CartPole(), ShortCorridor(), Catch()], ids=lambda world: type(world).__name__)
def test_a_world_of_tensors_is_a_stage(world):
    check_stage(stage_of(world), steps=25)


class Corridor(CartPole):
    """Five cells; the last one ends the episode, and every one begins in the first."""

    def reset(self, keys):
        return torch.zeros(len(keys), 4), torch.zeros(len(keys), 4)

    def step(self, position, action, keys):
        after = (position + action.unsqueeze(-1) - 0.5).clamp_min(0.0)
        return after, after.clone(), after[:, 0], after[:, 0] > 1.0


class Ambient(Tensors):
    def begin(self, keys):
        kept, observation = super().begin(keys)
        return kept, observation + torch.rand(())


class Hidden(Tensors):
    turn = 0

    def step(self, kept, action, keys):
        self.turn += 1
        moved = super().step(kept, action, keys)
        return moved._replace(reward=moved.reward + self.turn % 2)


class ByPlace(Tensors):
    def step(self, kept, action, keys):
        moved = super().step(kept, action, keys)
        return moved._replace(reward=moved.reward + torch.arange(len(keys)))


class Crossed(Tensors):
    def step(self, kept, action, keys):
        moved = super().step(kept, action, keys)
        return moved._replace(observation=moved.observation - moved.observation.mean(0))


class InPlace(Tensors):
    def step(self, kept, action, keys):
        moved = super().step(kept, action, keys)
        for name, leaf in kept.items():
            leaf.copy_(moved.kept[name])
        return moved._replace(kept=kept)


class Buffer(Tensors):
    seen = None

    def step(self, kept, action, keys):
        moved = super().step(kept, action, keys)
        self.seen = moved.observation if self.seen is None else self.seen.copy_(moved.observation)
        return moved._replace(observation=self.seen)


class AllAnew(Tensors):
    def restart(self, kept, over, keys):
        return super().restart(kept, torch.ones_like(over), keys)


class NoneAnew(Tensors):
    def restart(self, kept, over, keys):
        return kept, super().restart(kept, over, keys)[1]


class OwnKeys(Tensors):
    def restart(self, kept, over, keys):
        return super().restart(kept, over, fold(keys, "own"))


class NextOne(Tensors):
    """After the last step of an episode it tells of the next one."""

    def step(self, kept, action, keys):
        moved = super().step(kept, action, keys)
        over = (moved.terminated | moved.truncated).unsqueeze(-1)
        return moved._replace(observation=torch.where(over, self.begin(fold(keys, "next"))[1], moved.observation))


class FailsWhenOver(Tensors):
    def step(self, kept, action, keys):
        if bool((kept["0"][:, 2].abs() > 12 * 6.3 / 360).any()):
            raise AssertionError("over")
        return super().step(kept, action, keys)


class Forgetful(Tensors):
    resumes = "restart"


class WrongReward(Tensors):
    def step(self, kept, action, keys):
        return (moved := super().step(kept, action, keys))._replace(reward=moved.reward.long())


class WrongEnd(Tensors):
    def step(self, kept, action, keys):
        return (moved := super().step(kept, action, keys))._replace(truncated=moved.truncated.float())


class WrongBegin(Tensors):
    def begin(self, keys):
        kept, observation = super().begin(keys)
        return kept, observation[:, :3]


class WrongAnew(Tensors):
    def restart(self, kept, over, keys):
        kept, observation = super().restart(kept, over, keys)
        return kept, observation.double()


class WrongWidth(Tensors):
    def step(self, kept, action, keys):
        return (moved := super().step(kept, action, keys))._replace(observation=moved.observation[:, :3])


class OneForAll(Tensors):
    def begin(self, keys):
        kept, observation = super().begin(keys)
        return {**kept, "1": torch.zeros(1)}, observation


class Masked(Tensors):
    def __init__(self, world):
        super().__init__(world)
        self.masked = True

    def legal(self, kept):
        return None


class NoneLegal(Masked):
    def legal(self, kept):
        return torch.zeros(len(kept["0"]), 2, dtype=torch.bool)


class WrongMask(Masked):
    def legal(self, kept):
        return torch.ones(len(kept["0"]), 3)


class Somewhat(Tensors):
    def __init__(self, world):
        super().__init__(world)
        self.masked = 1


class TwoKinds(Tensors):
    def __init__(self, world):
        super().__init__(world)
        self.action = Field((), torch.int64, classes=2, choices=(2,))


class ManyClasses(Tensors):
    def __init__(self, world):
        super().__init__(world)
        self.action = Field((2,), torch.int64, classes=2)


class Painted(Tensors):
    def render(self, kept):
        return torch.zeros(len(kept["0"]), 3, 8, 8)


class NoEnd(Tensors):
    def __init__(self, world):
        super().__init__(world)
        self.horizon = 0


class Maybe(Tensors):
    resumes = "maybe"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Ambient, "the same keys and actions to be the same"),
        (Hidden, "taken twice"),
        (ByPlace, "another order"),
        (Crossed, "while others begin anew or wait"),
        (InPlace, "after a step from it"),
        (Buffer, "to stay as it is"),
        (AllAnew, "while others begin anew or wait"),
        (NoneAnew, "begun with its key"),
        (OwnKeys, "begun with its key"),
        (FailsWhenOver, "over"),
        (Forgetful, "an earlier turn"),
        (WrongReward, "finite reward"),
        (WrongEnd, "truncated as a truth"),
        (WrongBegin, "expected the first observation as"),
        (WrongWidth, "expected the observation as"),
        (WrongAnew, "expected the observation that an episode begins anew with as"),
        (WrongMask, "expected which actions are legal as"),
        (Somewhat, "masked as a truth"),
        (TwoKinds, "classes, choices or bounds"),
        (ManyClasses, "one class number"),
        (OneForAll, "a row for each"),
        (Masked, "where masked says so"),
        (NoneLegal, "got none"),
        (Painted, "pictures"),
        (NoEnd, "horizon > 0"),
        (Maybe, "exact or restart"),
    ],
)
def test_a_broken_stage_is_found(broken, says):
    with pytest.raises((ContractError, AssertionError), match=says):
        check_stage(broken(CartPole()), steps=40)


def test_the_next_beginning_in_place_of_an_end_is_found():
    check_stage(Tensors(Corridor()))
    with pytest.raises(ContractError, match="which the next one begins with"):
        check_stage(NextOne(Corridor()))
    with pytest.raises(ContractError, match="a play on the other stage to be the same, got another after"):
        check_stage(NextOne(CartPole()), like=Tensors(CartPole()))


def test_other_fields_than_the_other_stage_are_found():
    with pytest.raises(ContractError, match="expected fields like the other stage's"):
        check_stage(Tensors(CartPole()), like=stage_of("Acrobot-v1"))


def test_too_few_steps_to_see_anything_are_refused():
    with pytest.raises(ValueError, match="at least 3 steps"):
        check_stage(Tensors(CartPole()), steps=2)


def test_what_is_no_world_says_what_it_lacks():
    class Half:
        reset = step = None
        observation = action = None

    with pytest.raises(TypeError, match=r"got 3, which is no world of tensors without observation, action, horizon"):
        stage_of(3)
    with pytest.raises(TypeError, match="without horizon"):
        stage_of(Half())
    with pytest.raises(
        TypeError, match=r"expected CartPole to make an environment of gymnasium's .* given as they are"
    ):
        stage_of(CartPole)


def test_arguments_beside_a_world_of_tensors_are_refused():
    with pytest.raises(
        ValueError, match=r"arguments beside what gymnasium makes, got \['sutton_barto'\] beside the world"
    ):
        stage_of(CartPole(), {"sutton_barto": True})


def test_tensors_need_no_gymnasium(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert stage_of(CartPole()).begin(fold(key_of(0), torch.arange(2)))[1].shape == (2, 4)
    with pytest.raises(ImportError, match=r"expected gymnasium for 'CartPole-v1', which is not installed; pip install"):
        stage_of("CartPole-v1")


def test_gymnasium_is_not_imported_before_it_is_asked_for():
    import subprocess

    code = "import sys, weft.sources.stage, weft.sources.rollouts, weft; assert 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert gymnasium.__version__ >= "1"
