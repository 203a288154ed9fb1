"""Values of finite decision processes against closed forms, independent linear algebra, and each other."""

import itertools

import numpy as np
import pytest
import torch

from weft import Learner
from weft.data import CliffWalking, FiniteMDP, FrozenLake, GridWorld, ShortCorridor, Taxi
from weft.engine import VectorizationWarning
from weft.objectives import BackwardInduction, LinearProgram, PolicyEvaluation, PolicyIteration, ValueIteration
from weft.objectives.control.tabular.process import Process
from weft.sources import Tables

OPTIMAL = {"policy": PolicyIteration, "value": ValueIteration, "program": LinearProgram}
TEXTBOOK = GridWorld(["...G", ".#.P", "S..."], step=-0.04, slip=0.2)


def solved(objective, world, **settings):
    return Learner(objective, dtype="float64", random_state=0, **settings).fit(Tables(world))


def every(world):
    return np.eye(len(world.start))


def drawn(seed, states=5, actions=3, ends=None, horizon=10):
    """A process of random tables, with single states that are not reached from others too often."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    reward, start = rng.normal(size=(states, actions)), rng.dirichlet(np.ones(states))
    tables = [torch.as_tensor(table) for table in (p, reward, start)]
    ends = None if ends is None else torch.full((states,), ends, dtype=torch.float64)
    return FiniteMDP(tables[0], tables[1], start=tables[2], ends=ends, horizon=horizon)


def policy_of(seed, states=5, actions=3):
    return np.random.default_rng([seed, 1]).dirichlet(np.ones(actions), size=states)


# --- a policy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("discount", "ends"), [(0.9, None), (0.9, 0.1), (1.0, 0.1), (0.0, None)])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_the_sum_of_what_is_earned(seed, discount, ends):
    """v = sum_t discount^t P^t r, summed up; visits likewise; v = sum pi q, q = r + discount P v; reward = visits r."""
    world, policy = drawn(seed, ends=ends), policy_of(seed)
    learner = solved(PolicyEvaluation(policy.tolist(), discount=discount), world)
    p, r = world.transition.numpy() * (1 - (ends or 0.0)), world.reward.numpy()
    way, earned = np.einsum("sa,sat->st", policy, p), (policy * r).sum(1)
    value, visits, power = np.zeros(5), np.zeros(5), np.eye(5)
    for _ in range(600):
        value, visits, power = value + power @ earned, visits + world.start.numpy() @ power, discount * power @ way
    rows = every(world)
    np.testing.assert_allclose(learner.value(rows), value, rtol=1e-9)
    np.testing.assert_allclose(learner.visits(rows), visits, rtol=1e-9)
    np.testing.assert_allclose(learner.q(rows), r + discount * p @ value, rtol=1e-9)
    np.testing.assert_allclose((learner.probabilities(rows) * learner.q(rows)).sum(1), value, rtol=1e-9)
    np.testing.assert_allclose((learner.probabilities(rows) * learner.advantage(rows)).sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(learner.visits(rows) @ earned, world.start.numpy() @ value, rtol=1e-9)
    if ends is None:
        np.testing.assert_allclose(learner.visits(rows).sum(), 1 / (1 - discount))
    assert learner.history_[-1]["loss"] < 1e-20


def hold(stay=0.75):
    """A state that is held some steps, and then left for ever."""
    transition = torch.tensor([[[stay, 1 - stay]], [[0.0, 1.0]]], dtype=torch.float64)
    first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return FiniteMDP(transition, torch.tensor([[1.0], [0.0]]), start=first, ends=torch.tensor([False, True]))


def reached_only(self, policy, discount):
    """The mutant: how likely a state is ever visited, and not how often."""
    way = self.following(policy)[0]
    return (torch.linalg.solve(torch.eye(len(way)).to(way) - discount * way.T, self.start) > 0).double()


def test_a_state_that_is_held_counts_each_step(monkeypatch):
    assert solved(PolicyEvaluation(), hold()).visits([[1.0, 0.0]]) == pytest.approx(4.0)
    monkeypatch.setattr(Process, "visits", reached_only)
    assert solved(PolicyEvaluation(), hold()).visits([[1.0, 0.0]]) != pytest.approx(4.0)


def test_the_long_run_is_that_of_episodes_that_begin_anew():
    """Of a task that ends, visits by their sum; of one that goes on, the stationary law, periods and all."""
    world = drawn(0, ends=0.2)
    learner = solved(PolicyEvaluation(), world)
    visits = learner.visits(every(world))
    np.testing.assert_allclose(learner.visits(every(world), average=True), visits / visits.sum(), rtol=1e-9)

    ring = FiniteMDP(torch.eye(3).roll(1, 1)[:, None], torch.ones(3, 1), start=torch.eye(3)[0])
    np.testing.assert_allclose(solved(PolicyEvaluation(discount=0.5), ring).visits(np.eye(3), average=True), 1 / 3)

    both = torch.tensor([[0.0, 0.3, 0.7], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])[:, None]  # caught in either
    caught = FiniteMDP(both, torch.ones(3, 1), start=torch.eye(3)[0])
    long_run = solved(PolicyEvaluation(discount=0.5), caught).visits(np.eye(3), average=True)
    np.testing.assert_allclose(long_run, [0.0, 0.3, 0.7], atol=1e-6)


@pytest.mark.parametrize("right", [0.1, 0.5, 2 - 2**0.5, 0.9])
def test_the_short_corridor(right):
    learner = solved(PolicyEvaluation([[1 - right, right]] * 4), ShortCorridor())
    assert learner.value(np.eye(4)[:1]) == pytest.approx((2 * right - 4) / (right * (1 - right)))


def test_a_policy_as_a_function():
    table = policy_of(2)
    known = solved(PolicyEvaluation(table, discount=0.9), drawn(2))
    asked = solved(PolicyEvaluation(lambda seen: seen @ torch.as_tensor(table), discount=0.9), drawn(2))
    np.testing.assert_array_equal(known.value(np.eye(5)), asked.value(np.eye(5)))


# --- the best policy ---------------------------------------------------------------------------------------


def brute(world, discount, ends):
    """The best of all policies that draw nothing, one linear system each."""
    p, r = world.transition.numpy() * (1 - ends), world.reward.numpy()
    states, actions = r.shape
    found = [
        np.linalg.solve(np.eye(states) - discount * p[range(states), way], r[range(states), way])
        for way in map(list, itertools.product(range(actions), repeat=states))
    ]
    return np.max(found, 0)


@pytest.mark.parametrize("method", OPTIMAL)
@pytest.mark.parametrize(("discount", "ends"), [(0.9, None), (1.0, 0.2)])
def test_no_policy_is_better(method, discount, ends):
    for seed in range(3):
        world = drawn(seed, states=4, ends=ends)
        learner = solved(OPTIMAL[method](discount=discount), world)
        best = brute(world, discount, ends or 0.0)
        np.testing.assert_allclose(learner.value(np.eye(4)), best, atol=1e-7)
        again = solved(PolicyEvaluation(learner.probabilities(np.eye(4)), discount=discount), world)
        np.testing.assert_allclose(again.value(np.eye(4)), best, atol=1e-7)


@pytest.mark.parametrize("method", OPTIMAL)
def test_the_textbook_utilities(method):
    """Russell and Norvig, figure 17.3."""
    learner = solved(OPTIMAL[method](discount=1.0), TEXTBOOK)
    value = learner.value(every(TEXTBOOK))
    told = [0.812, 0.868, 0.918, 0.0, 0.762, 0.660, 0.0, 0.705, 0.655, 0.611, 0.388]
    np.testing.assert_allclose(value, told, atol=6e-4)


@pytest.mark.parametrize(
    ("world", "discount"), [(FrozenLake(), 1.0), (FrozenLake("8x8"), 0.99), (CliffWalking(), 1.0), (Taxi(), 1.0)]
)
def test_three_ways_to_the_same_values(world, discount):
    found = [solved(make(discount=discount), world) for make in OPTIMAL.values()]
    for other in found[1:]:
        np.testing.assert_allclose(other.value(every(world)), found[0].value(every(world)), atol=1e-6)


@pytest.mark.parametrize("method", OPTIMAL)
def test_at_discount_1_the_best_actions_lead_to_an_end(method, monkeypatch):
    """Without ice every way that gets there is worth 1, and most of the best actions lead around in circles."""
    world = FrozenLake(slip=0.0)
    assert solved(OPTIMAL[method](discount=1.0), world).evaluate(world, 5).mean == 1.0
    usual = Process.greedy
    monkeypatch.setattr(Process, "greedy", lambda self, q, discount: usual(self, q, 0.0))
    with pytest.raises((ValueError, AssertionError)):
        assert solved(OPTIMAL[method](discount=1.0), world).evaluate(world, 5).mean == 1.0


def test_values_are_unique_and_policies_are_not():
    world = FrozenLake(slip=0.0)
    learner = solved(ValueIteration(discount=0.9), world)
    best = np.isclose(learner.advantage(every(world)), 0)
    assert (best.sum(1) > 1).any()
    last = best.shape[1] - 1 - best[:, ::-1].argmax(1)
    other = solved(PolicyEvaluation(np.eye(4)[last], discount=0.9), world)
    assert (learner.act(every(world)) != last).any()
    np.testing.assert_allclose(other.value(every(world)), learner.value(every(world)), atol=1e-7)


@pytest.mark.parametrize("discount", [0.5, 0.9])
def test_value_iteration_contracts_and_knows_how_far_it_is(discount):
    world = drawn(3)
    learner = solved(ValueIteration(discount=discount, tolerance=1e-4), world)
    change = np.array(learner.history_["change"])[:-1]  # the last record is of the solution
    assert (change[1:] <= discount * change[:-1] * (1 + 1e-9)).all()
    assert len(change) > 5
    exact = solved(PolicyIteration(discount=discount), world).value(np.eye(5))
    assert np.abs(learner.value(np.eye(5)) - exact).max() <= 1e-4


def test_policy_iteration_never_gets_worse():
    learner = solved(PolicyIteration(discount=0.95), FrozenLake("8x8"))
    worth, changed = np.array(learner.history_["worth"]), np.array(learner.history_["changed"])
    assert (np.diff(worth) >= -1e-12).all()
    assert changed[-2:].tolist() == [0, 0]  # of the last iteration, and of the solution
    assert (changed[:-2] > 0).all()


@pytest.mark.parametrize("method", OPTIMAL)
def test_what_is_earned_by_playing_is_the_value(method):
    world = GridWorld(["...G", ".#.P", "S..."], step=-0.04, slip=0.2, horizon=None)
    learner = solved(OPTIMAL[method](discount=1.0), world)
    played = learner.evaluate(world, 4000, horizon=1000, random_state=1)
    assert played.interval[0] - 0.01 < learner.value(every(world))[7] < played.interval[1] + 0.01


# --- so many steps -----------------------------------------------------------------------------------------


def test_backward_induction_is_the_best_of_all_that_count_steps():
    """Against expectimax, written down by recursion; the policy that remembers how many are left earns it."""
    world = drawn(5, states=3, actions=2, ends=0.1, horizon=4)
    p, r = world.transition.numpy() * 0.9, world.reward.numpy()

    def best(s, left):
        return max(r[s, a] + sum(p[s, a, t] * best(t, left - 1) for t in range(3)) for a in range(2)) if left else 0.0

    learner = solved(BackwardInduction(horizon=4), world)
    np.testing.assert_allclose(learner.value(np.eye(3)), [best(s, 4) for s in range(3)])
    np.testing.assert_allclose(learner.value(np.eye(3), gone=3), [best(s, 1) for s in range(3)])
    expected = float(world.start @ torch.as_tensor(learner.value(np.eye(3))))
    played = learner.evaluate(world, 20_000, level=0.999)
    assert played.interval[0] < expected < played.interval[1]
    np.testing.assert_allclose(learner.visits(np.eye(3), average=True).sum(), 1.0)


def test_backward_induction_counts_visits():
    ring = FiniteMDP(torch.eye(3).roll(1, 1)[:, None], torch.ones(3, 1), start=torch.eye(3)[0])
    learner = solved(BackwardInduction(horizon=4), ring)
    np.testing.assert_allclose(learner.visits(np.eye(3)), [2, 1, 1])
    assert learner.value(np.eye(3))[0] == 4


# --- what is refused ---------------------------------------------------------------------------------------


def way(*to, reward, ends=None):
    """States in which each action leads somewhere for sure."""
    to, reward = torch.tensor(to), torch.tensor(reward, dtype=torch.float64)
    return FiniteMDP(
        torch.eye(len(to), dtype=torch.float64)[to],
        reward,
        start=torch.eye(len(to))[0],
        ends=None if ends is None else torch.tensor(ends),
    )


@pytest.mark.parametrize("make", [PolicyEvaluation, *OPTIMAL.values()])
def test_discount_1_where_rewards_go_on_is_refused(make):
    world = way([1, 2], [1, 1], [2, 2], reward=[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], ends=[False, False, True])
    with pytest.raises(ValueError, match=r"discount < 1.*values of the states \[1\] are infinite|states \[0, 1\] are"):
        solved(make(discount=1.0), world)
    solved(make(discount=0.99), world)
    solved(BackwardInduction(horizon=5), world)


@pytest.mark.parametrize("make", [PolicyEvaluation, *OPTIMAL.values()])
def test_discount_1_where_nothing_more_is_earned_is_no_trouble(make):
    world = way([1], [2], [2], reward=[[3.0], [4.0], [0.0]])
    learner = solved(make(discount=1.0), world)
    np.testing.assert_allclose(learner.value(np.eye(3)), [7, 4, 0])
    np.testing.assert_allclose(learner.visits(np.eye(3)), [1, 1, np.inf])


@pytest.mark.parametrize("method", OPTIMAL)
def test_rewards_that_can_be_collected_for_ever_are_refused(method):
    world = way([0, 1], [1, 1], reward=[[1.0, 0.0], [0.0, 0.0]], ends=[False, True])
    settings = {"sweeps": 500} if method == "value" else {}
    with pytest.raises(ValueError, match="expected"):
        solved(OPTIMAL[method](discount=1.0, **settings), world)


def test_staying_for_ever_is_found_by_value_iteration_and_refused_by_what_looks_at_ends():
    """Better to stay, for 0, than to end at a cost."""
    world = way([0, 1], [1, 1], reward=[[0.0, -1.0], [0.0, 0.0]], ends=[False, True])
    learner = solved(ValueIteration(discount=1.0), world)
    assert learner.value(np.eye(2))[0] == 0
    assert learner.act([1.0, 0.0]) == 0
    for make in (PolicyIteration, LinearProgram):
        with pytest.raises(ValueError, match=r"never best to stay for ever, got the states \[0\]"):
            solved(make(discount=1.0), world)


def test_of_equals_one_is_taken_that_gets_there():
    """In 0 one may wait, for nothing, or go where there is something: once the rest is known both look as good."""
    world = way([0, 1], [1, 2], [2, 2], reward=[[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]], ends=[False, False, True])
    learner = solved(ValueIteration(discount=1.0), world)
    assert learner.value(np.eye(3))[0] == 1
    assert learner.act(np.eye(3)[:2]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (PolicyEvaluation, {"policy": [[0.5, 0.5]] * 3}, "table of 5 states and 3 actions"),
        (PolicyEvaluation, {"policy": [[0.5, 0.5, 0.5]] * 5}, "sum to 1 in each state"),
        (PolicyEvaluation, {"policy": lambda seen: seen[:, :2]}, "a probability for each of 3 actions"),
        (PolicyEvaluation, {"policy": "even"}, "a table of probabilities"),
        (ValueIteration, {"discount": 1.5}, "discount"),
        (ValueIteration, {"tolerance": 0.0}, "tolerance"),
        (ValueIteration, {"sweeps": 3}, "settle within 3 sweeps"),
        (BackwardInduction, {"horizon": 0}, "horizon"),
    ],
)
def test_bad_settings(make, settings, message):
    with pytest.raises((ValueError, TypeError), match=f"expected.*{message}"):
        solved(make(**{"discount": 0.9, **settings}), drawn(0))


@pytest.mark.parametrize("make", [PolicyEvaluation, BackwardInduction, *OPTIMAL.values()])
def test_a_world_that_pays_nothing_is_told(make):
    ring = FiniteMDP(torch.eye(3).roll(1, 1)[:, None], torch.zeros(3, 1))
    with pytest.warns(UserWarning, match=f"expected rewards for {make.__name__}, got a world that pays 0 everywhere"):
        assert not solved(make(discount=0.9), ring).value(np.eye(3)).any()


def test_bad_questions():
    learner = solved(ValueIteration(discount=0.9), drawn(0))
    with pytest.raises(ValueError, match=r"expected states as one-hot rows, \(n, 5\), got shape \(3, 3\)"):
        learner.value(np.eye(3))
    with pytest.raises(ValueError, match="observations that the policy was trained on"):
        solved(PolicyEvaluation(), ShortCorridor()).evaluate(ShortCorridor(horizon=10))
    with pytest.raises(ValueError, match="gone below the horizon, 5, got 5"):
        solved(BackwardInduction(horizon=5), drawn(0)).value(np.eye(5), gone=5)


def test_of_probabilities_of_states_the_answer_is_the_mean():
    learner = solved(ValueIteration(discount=0.9), drawn(0))
    belief = np.random.default_rng(0).dirichlet(np.ones(5), size=3)
    np.testing.assert_allclose(learner.value(belief), belief @ learner.value(np.eye(5)))
    np.testing.assert_allclose(learner.q(belief), belief @ learner.q(np.eye(5)))


def test_replicas_are_sweeps_of_the_discount():
    sweep = {"objective__discount": [0.5, 0.9], "random_state": [0, 1]}
    with pytest.warns(VectorizationWarning, match="one after another"):
        learner = Learner(ValueIteration(), dtype="float64", replicas=sweep).fit(Tables(drawn(0)))
    for k, discount in enumerate((0.5, 0.9)):
        alone = solved(ValueIteration(discount=discount), drawn(0)).value(np.eye(5))
        np.testing.assert_allclose(learner.replica(k).value(np.eye(5)), alone)


def test_objectives_say_what_they_learn_from():
    assert isinstance(ValueIteration().plays(FrozenLake()), Tables)


def test_the_best_legal_action_is_played():
    """Forbidden what is best, it takes the best of the rest."""
    learner = solved(ValueIteration(discount=0.9), drawn(1))
    q, best = learner.q(np.eye(5)), learner.act(np.eye(5))
    legal = torch.ones(5, 3, dtype=torch.bool)
    legal[range(5), best] = False
    run = learner.objective_.among(torch.eye(5, dtype=torch.float64), legal).argmax(-1)
    np.testing.assert_array_equal(run, np.where(legal, q, -np.inf).argmax(1))
