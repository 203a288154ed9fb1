"""Q-learning with a memory: its targets by hand, its slow copy slow, its answers; and that it learns."""

import copy

import numpy as np
import pytest
import torch
from tests.sources.grounds import Guarded, state_of
from torch import nn
from torch.func import functional_call

from weft import Learner, Optimizer
from weft.core import Field
from weft.data import CartPole, FiniteMDP
from weft.objectives import DQN
from weft.sources import Replay, Rollouts, Segments

STATES, ACTIONS = 3, 2
SMALL = {"envs": 2, "capacity": 64, "start": 32, "batch_size": 16, "every": 4, "updates_each": 2}
Q = torch.tensor([[1.0, 4.0], [2.0, 3.0], [5.0, 0.0]])  # now
SLOW = torch.tensor([[0.5, -1.0], [7.0, 1.0], [2.0, 3.0]])
BATCH = {
    "observation": torch.eye(3)[[0, 1, 2, 0]],
    "action": torch.tensor([1, 0, 1, 0]),
    "reward": torch.tensor([1.0, -1.0, 0.0, 2.0]),
    "next_observation": torch.eye(3)[[1, 2, 0, 1]],
    "terminated": torch.tensor([False, False, False, True]),
    "truncated": torch.tensor([False, False, True, False]),
}
SPEC = {
    "observation": Field((3,), torch.float32),
    "action": Field((), torch.int64, classes=2),
    "reward": Field((), torch.float32),
    "next_observation": Field((3,), torch.float32),
    "terminated": Field((), torch.bool),
    "truncated": Field((), torch.bool),
}


class Table(nn.Module):
    """Q as a table of one-hot rows."""

    def __init__(self, inputs=3, outputs=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))

    def reset_parameters(self):
        nn.init.normal_(self.weight)

    def forward(self, x):
        return x @ self.weight


def told(q=Q, slow=SLOW, spec=SPEC, cls=DQN, **settings):
    """An objective that says Q now, and whose slow copy says another, in evaluation: nothing moves."""
    objective = cls(Table, **{"discount": 0.5, **settings})
    objective.build(spec)
    with torch.no_grad():
        objective.net.weight.copy_(q)
        objective.target.weight.copy_(slow)
    return objective.eval()


def huber(error):
    error = abs(error)
    return 0.5 * error**2 if error < 1 else error - 0.5


def losses_by_hand(after, batch=BATCH):
    """From V of the next states, in a loop over the rows."""
    found = []
    for i in range(4):
        worth = Q[int(batch["observation"][i].argmax()), int(batch["action"][i])].item()
        goal = batch["reward"][i].item()
        if not batch["terminated"][i]:  # a step that was cut has a value after it
            goal += 0.5 * after[i]
        found.append(huber(worth - goal))
    return torch.tensor(found)


# --- targets by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "after"),
    [
        ({}, [7.0, 3.0, 0.5, 7.0]),  # the slow copy's best
        ({"double_q": True}, [1.0, 2.0, -1.0, 1.0]),  # the slow copy's word on the best of now
        ({"discount": 0.5, "renew": 7}, [7.0, 3.0, 0.5, 7.0]),
    ],
    ids=str,
)
def test_targets_by_hand(settings, after):
    torch.testing.assert_close(told(**settings)(BATCH).losses, losses_by_hand(after))


def test_soft_targets_by_hand():
    """temperature log sum exp(Q / temperature), which is an expectation under the softmax and its entropy."""
    temperature = 0.7
    after = (temperature * (SLOW / temperature).logsumexp(-1))[[1, 2, 0, 1]].tolist()
    torch.testing.assert_close(told(temperature=temperature)(BATCH).losses, losses_by_hand(after))
    chance = (Q / temperature).softmax(-1)
    mixed = (chance * (SLOW - temperature * chance.log())).sum(-1)[[1, 2, 0, 1]].tolist()
    torch.testing.assert_close(told(temperature=temperature, double_q=True)(BATCH).losses, losses_by_hand(mixed))
    cold = told(temperature=1e-4)(BATCH).losses
    torch.testing.assert_close(cold, told()(BATCH).losses, atol=1e-3, rtol=0)


def test_dueling_is_a_value_and_advantages_about_their_mean():
    objective = DQN(lambda: Table(3, 3), dueling=True)
    objective.build(SPEC)
    weight = objective.net.weight
    expected = weight[:, :1] + weight[:, 1:] - weight[:, 1:].mean(-1, keepdim=True)
    torch.testing.assert_close(objective.q(torch.eye(3)), expected)


def test_no_gradient_passes_through_the_target():
    objective = told()
    objective(BATCH).losses.sum().backward()
    expected = torch.zeros(3, 2)
    for i, after in enumerate([7.0, 3.0, 0.5, 7.0]):
        s, a = int(BATCH["observation"][i].argmax()), int(BATCH["action"][i])
        goal = BATCH["reward"][i].item() + 0.5 * after * (not BATCH["terminated"][i])
        expected[s, a] += float(np.clip(Q[s, a].item() - goal, -1, 1))
    torch.testing.assert_close(objective.net.weight.grad, expected)
    assert all(not value.requires_grad for value in objective.target.buffers())


class Ended(DQN):
    """A mutant: takes a step that was cut for one that has ended."""

    def _errors(self, batch):
        return super()._errors({**batch, "terminated": batch["terminated"] | batch["truncated"]})


class Unending(DQN):
    """A mutant: what has ended by itself has a value after it, too."""

    def _errors(self, batch):
        return super()._errors({**batch, "terminated": torch.zeros_like(batch["terminated"])})


class Quick(DQN):
    """A mutant: targets of the net itself."""

    def _errors(self, batch):
        self.target.clock.zero_()
        self.target.follow(self.net)
        return super()._errors(batch)


@pytest.mark.parametrize("mutant", [Ended, Unending, Quick])
def test_mutants_have_other_targets(mutant):
    found = told(cls=mutant)(BATCH).losses
    assert not torch.allclose(found, losses_by_hand([7.0, 3.0, 0.5, 7.0]))


def test_what_is_not_legal_is_never_best():
    masked = {**SPEC, "legal": Field((2,), torch.bool), "next_legal": Field((2,), torch.bool)}
    legal = torch.tensor([[False, True], [True, True], [False, True], [True, True]])
    objective = told(spec=masked)
    assert "next_legal" in objective.fields
    found = objective({**BATCH, "next_legal": legal}).losses
    torch.testing.assert_close(found, losses_by_hand([1.0, 3.0, -1.0, 7.0]))
    soft = told(spec=masked, temperature=0.5)({**BATCH, "next_legal": legal}).losses
    after = [0.5 * float((SLOW[s][m] / 0.5).logsumexp(-1)) for s, m in zip([1, 2, 0, 1], legal, strict=True)]
    torch.testing.assert_close(soft, losses_by_hand(after))
    only = torch.tensor([[True, False]] * 3)
    assert objective.act(torch.eye(3), only).tolist() == [0, 0, 0]
    assert objective.q(torch.eye(3), only)[:, 1].eq(-torch.inf).all()
    assert objective.value(torch.eye(3), only).tolist() == Q[:, 0].tolist()
    with pytest.raises(ValueError, match=r"expected legal beside what is observed.*give act\(observation, legal="):
        objective.act(torch.eye(3))


# --- the slow copy ---------------------------------------------------------------------------------------


def trained(cls=DQN, steps=7, **settings):
    """The slow copy before each update, and the net."""
    source = Replay(chain(), **SMALL)
    engine, state = state_of(source, cls(Table, **settings))
    stream, nets, slow = engine.batches(source, state), [], []
    for _ in range(steps):
        nets.append(state.params["net.weight"].clone())
        engine.step(state, next(stream))
        slow.append(state.buffers["target.weight"].clone())
    return nets, slow


def chain():
    """Three places in a row; going right pays at the last one."""
    to = torch.eye(3)[torch.tensor([[0, 1], [0, 2], [1, 2]])]
    return FiniteMDP(to, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), horizon=5)


def is_slow(nets, slow):
    """Whether the copy is the net as it was at the last renewal, every third update."""
    return all(torch.equal(copy, nets[t // 3 * 3]) for t, copy in enumerate(slow))


def test_the_copy_is_slow():
    assert is_slow(*trained(renew=3))
    assert not is_slow(*trained(Quick, renew=3))  # the mutant whose targets are not
    nets, slow = trained(renew=1, rate=0.25)
    expected = nets[0]
    for now, copied in zip(nets, slow, strict=True):
        expected = expected + 0.25 * (now - expected)
        torch.testing.assert_close(copied, expected)


# --- in a world --------------------------------------------------------------------------------------------


def optimal(mdp, discount):
    """q*, by value iteration, of a task that goes on: what is cut at the horizon goes on in truth."""
    q = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(400):
        q = mdp.reward.double() + discount * mdp.transition.double() @ q.max(-1).values
    return q


def learned(cls=DQN, steps=800, **settings):
    source = Replay(chain(), envs=4, start=200, batch_size=64, every=8, updates_each=8, explore=1.0)
    objective = cls(Table, discount=0.8, renew=20, **settings)
    adam = Optimizer("adam", lr=0.05)
    return Learner(objective, optimizer=adam, schedule="linear", steps=steps, random_state=0).fit(source)


@pytest.mark.parametrize("settings", [{}, {"double_q": True}], ids=str)
def test_it_learns_what_actions_are_worth(settings):
    """Against value iteration, in a task that goes on and is cut after five steps."""
    learner = learned(**settings)
    np.testing.assert_allclose(learner.q(torch.eye(3)), optimal(chain(), 0.8), atol=0.02)
    np.testing.assert_allclose(learner.value(torch.eye(3)), optimal(chain(), 0.8).max(-1).values, atol=0.02)
    assert learner.act(torch.eye(3)).tolist() == [1, 1, 1]


def test_a_cut_taken_for_an_end_is_seen():
    """The mutant: q falls short by what would have come after the cut."""
    found = learned(Ended).q(torch.eye(3))
    assert (found < optimal(chain(), 0.8).numpy() - 0.1).all()


def test_soft_values_are_those_of_the_soft_recursion():
    q = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(400):
        q = chain().reward + 0.8 * chain().transition.double() @ (0.5 * (q / 0.5).logsumexp(-1))
    learner = learned(temperature=0.5)
    np.testing.assert_allclose(learner.q(torch.eye(3)), q, atol=0.03)
    np.testing.assert_allclose(learner.value(torch.eye(3)), 0.5 * (q / 0.5).logsumexp(-1), atol=0.03)
    batch = next(Rollouts(chain(), envs=2000).once(learner.training_.runs[0].state, 2000))
    shares = torch.stack([batch["action"][batch["observation"][:, s] == 1].double().mean() for s in range(3)])
    torch.testing.assert_close(shares, (q / 0.5).softmax(-1)[:, 1], atol=0.03, rtol=0)


def test_masked_worlds_are_played_and_learned():
    learner = Learner(DQN(hidden=(8,)), steps=30, random_state=0).fit(Replay(Guarded(), **SMALL, explore=0.2))
    seen = torch.tensor([[0.5, 1.0], [1 / 3, 0.0]])
    legal = np.array([[True, False], [True, True]])
    assert learner.act(seen, legal=legal)[0] == 0
    assert np.isneginf(learner.q(seen, legal=legal)).tolist() == [[False, True], [False, False]]


def test_replicas_are_single_runs():
    settings = {"steps": 12, "every": 1}
    source = Replay(chain(), **SMALL, priority=0.5)
    both = Learner(DQN(hidden=(8,), renew=4), replicas=2, random_state=3, **settings).fit(source)
    for k in range(2):
        alone = Learner(DQN(hidden=(8,), renew=4), random_state=3 + k, **settings).fit(source)
        mine, theirs = (m.training_.runs[0].state for m in (both.replica(k), alone))
        for name, value in {**theirs.params, **theirs.buffers}.items():
            torch.testing.assert_close({**mine.params, **mine.buffers}[name], value)
    np.testing.assert_allclose(
        both.q(torch.eye(3)), np.mean([both.replica(k).q(torch.eye(3)) for k in range(2)], 0), rtol=1e-6
    )
    with pytest.raises(ValueError, match="expected one replica to answer 'act'"):
        both.act(np.eye(3))


def test_priorities_are_errors():
    objective = told()
    worth, goal = objective._errors(BATCH)
    assert torch.equal(objective.priority(BATCH), (worth - goal).abs())
    before = copy.deepcopy(objective.state_dict())
    objective.priority(BATCH)
    assert all(torch.equal(before[n], v) for n, v in objective.state_dict().items())  # asking moves nothing
    stated = dict(objective.named_parameters()) | dict(objective.named_buffers())
    assert torch.equal(functional_call(objective, stated, (BATCH,)).losses, objective(BATCH).losses)


@pytest.mark.turns("src/weft/objectives/control/*", "src/weft/sources/replay.py")
def test_cartpole_is_learned():
    objective = DQN(hidden=(128, 128))
    source = objective.plays(CartPole(), explore=(1.0, 0.04, 0.3))
    learner = Learner(objective, env_steps=15_000, schedule="linear", clip=10.0, random_state=0).fit(source)
    judged = Rollouts(CartPole(), envs=50, greedy=True).judge(learner.training_.runs[0].state)
    assert judged["return"] > 80  # chance earns 22


# --- bad input ---------------------------------------------------------------------------------------------


class Boxed:
    """Moves by a number."""

    observation, action, horizon = Field((1,), torch.float32), Field((1,), torch.float32, low=(-1,), high=(1,)), 5

    def reset(self, keys):
        return torch.zeros(len(keys), 1), torch.zeros(len(keys), 1)

    def step(self, position, action, keys):
        after = position + action
        return after, after, -after.abs()[:, 0], torch.zeros(len(after), dtype=torch.bool)


class Two(Boxed):
    action = Field((2,), torch.int64, choices=(2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.5}, r"expected DQN's discount to be a number in \[0, 1\]"),
        ({"renew": 0}, "expected DQN's renew to be an integer >= 1"),
        ({"rate": 0.0}, r"expected DQN's rate to be a number in \(0, 1\]"),
        ({"temperature": -1.0}, "expected DQN's temperature to be a number >= 0"),
        ({"net": nn.Linear(4, 3)}, r"expected a net whose answer .* has shape \(2, 2\)"),
        ({"net": nn.Linear(4, 2), "dueling": True}, r"expected a net whose answer .* has shape \(2, 3\)"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(DQN(**settings), steps=1).fit(Replay(CartPole()))


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"expected finitely many actions for DQN, .*got numbers.*SAC and TD3"):
        Learner(DQN(), steps=1).fit(Replay(Boxed()))
    with pytest.raises(ValueError, match=r"expected finitely many actions for DQN, .*got rows of choices.*PPO"):
        Learner(DQN(), steps=1).fit(Replay(Two()))
    with pytest.raises(TypeError, match=r"expected a world that DQN learns in by acting.*got array"):
        Learner(DQN(), steps=1).fit(np.zeros((4, 2)))


def test_it_learns_from_steps_that_others_played():
    """Whole episodes and segments are steps of some policy as well."""
    for source in (Rollouts(CartPole(), envs=4, horizon=20), Segments(CartPole(), envs=2, length=8)):
        assert len(Learner(DQN(hidden=(8,)), steps=2, every=1, random_state=0).fit(source).history_) == 2
