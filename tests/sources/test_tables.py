import pytest
import torch

from weft import Learner
from weft.data import CartPole, CliffWalking, FiniteMDP, FrozenLake, GridWorld, ShortCorridor, Taxi
from weft.objectives import LinearProgram, Regression
from weft.sources import Rollouts, Tables
from weft.testing import check_source


@pytest.mark.parametrize("world", [FrozenLake(), CliffWalking(), GridWorld(["S.G", "..P"], slip=0.2), ShortCorridor()])
def test_the_contract(world):
    check_source(Tables(world))


@pytest.mark.parametrize("world", [FrozenLake(), Taxi(), CliffWalking(), ShortCorridor()])
def test_a_row_is_a_state_and_an_action_and_its_chances_sum_to_one(world):
    source = Tables(world)
    rows = source.rows
    states, actions = world.reward.shape[:2]
    assert source.size == states * actions == len(rows["action"])
    assert torch.equal(rows["observation"].argmax(-1), torch.arange(states).repeat_interleave(actions))
    torch.testing.assert_close(rows["transition"].sum(-1) + rows["ends"], torch.ones(source.size, dtype=torch.float64))


def test_ends_and_rewards_of_any_shape():
    torch.manual_seed(0)
    transition = torch.rand(3, 2, 3, dtype=torch.float64)
    transition = transition / transition.sum(-1, keepdim=True)
    reward, ends = torch.randn(3, 2, 3, dtype=torch.float64), torch.rand(3, 2, 3, dtype=torch.float64)
    rows = Tables(FiniteMDP(transition, reward, ends=ends)).rows
    for i in range(6):
        s, a = divmod(i, 2)
        assert rows["reward"][i] == pytest.approx(float(sum(transition[s, a, t] * reward[s, a, t] for t in range(3))))
        assert rows["ends"][i] == pytest.approx(float(sum(transition[s, a, t] * ends[s, a, t] for t in range(3))))
        torch.testing.assert_close(rows["transition"][i], transition[s, a] * (1 - ends[s, a]))


def test_where_an_episode_has_ended_nothing_is_earned_whatever_the_table_says():
    stay = torch.eye(2)[:, None].expand(2, 1, 2)
    go = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])
    world = FiniteMDP(go, torch.full((2, 1), 5.0), start=torch.tensor([1.0, 0.0]), ends=torch.tensor([False, True]))
    rows = Tables(world).rows
    assert rows["reward"].tolist() == [5.0, 0.0]
    assert rows["ends"].tolist() == [1.0, 1.0]
    assert not rows["transition"].any()
    assert Tables(FiniteMDP(stay, torch.ones(2, 1))).rows["ends"].tolist() == [0.0, 0.0]


def test_what_has_no_tables_is_refused():
    with pytest.raises(TypeError, match=r"expected Tables' world to be a finite decision process with its tables"):
        Tables(CartPole())
    with pytest.raises(TypeError, match="expected a world that LinearProgram learns in by acting"):
        Learner(LinearProgram()).fit(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(ValueError, match="expected play with 'transition', which LinearProgram reads, got Rollouts"):
        Learner(LinearProgram()).fit(Rollouts(FrozenLake()))
    with pytest.raises(ValueError, match="expected batches with 'x'"):
        Learner(Regression()).fit(Tables(FrozenLake()))
