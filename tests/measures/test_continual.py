"""Measures of tasks in sequence against formulas worked out by hand and naive loops."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer, Regressor
from weft.measures import (
    accuracy_matrix,
    average_accuracy,
    backward_transfer,
    fisher,
    fisher_overlap,
    forgetting,
    forward_transfer,
    task_scores,
)
from weft.objectives import GAN, LeastSquares
from weft.strategies import ERM, EWC

R = np.array([[0.9, 0.2, 0.3], [0.8, 0.7, 0.4], [0.85, 0.5, 0.6]])
BEFORE = np.array([0.1, 0.15, 0.2])
RANDOM = np.random.default_rng(0)


# --- closed forms -------------------------------------------------------------------------------------


def test_numbers_by_hand():
    assert average_accuracy(R) == pytest.approx((0.85 + 0.5 + 0.6) / 3)
    assert backward_transfer(R) == pytest.approx(((0.85 - 0.9) + (0.5 - 0.7)) / 2)
    assert forward_transfer(R, BEFORE) == pytest.approx(((0.2 - 0.15) + (0.4 - 0.2)) / 2)
    assert forgetting(R) == pytest.approx(((0.9 - 0.85) + (0.7 - 0.5)) / 2)
    assert forgetting(R, kind="learned") == pytest.approx(-backward_transfer(R))


def test_the_definitions_of_forgetting_differ_where_a_later_task_helped():
    helped = np.array([[0.5, 0.0, 0.0], [0.9, 0.8, 0.0], [0.7, 0.8, 0.9]])
    assert forgetting(helped) == pytest.approx((0.9 - 0.7 + 0.0) / 2)
    assert forgetting(helped, kind="learned") == pytest.approx((0.5 - 0.7 + 0.0) / 2)  # less than 0: it got better
    many = RANDOM.random((100, 6, 6))
    assert (forgetting(many) >= forgetting(many, kind="learned") - 1e-12).all()


def test_leading_axes_are_kept_and_losses_have_the_sign_turned():
    many = RANDOM.random((4, 3, 3))
    before = RANDOM.random((4, 3))
    for k in range(4):
        assert average_accuracy(many)[k] == pytest.approx(average_accuracy(many[k]))
        assert forgetting(many)[k] == pytest.approx(forgetting(many[k]))
        assert forward_transfer(many, before)[k] == pytest.approx(forward_transfer(many[k], before[k]))
    for function in (backward_transfer, forgetting):
        np.testing.assert_allclose(function(1 - many, more=False), function(many))
    np.testing.assert_allclose(
        forward_transfer(1 - many, 1 - before, more=False), forward_transfer(many, before), atol=1e-12
    )


def test_one_task_has_nothing_to_forget():
    assert average_accuracy([[0.5]]) == 0.5
    for value in (backward_transfer([[0.5]]), forgetting([[0.5]]), forgetting([[0.5]], kind="learned")):
        assert np.isnan(value)
    assert np.isnan(forward_transfer([[0.5]], [0.1]))


def test_bad_matrices():
    for wrong in ([0.5], [[0.5, 0.5]], np.zeros((0, 0))):
        with pytest.raises(ValueError, match="a row and a column for each task"):
            average_accuracy(wrong)
    with pytest.raises(ValueError, match="expected kind to be 'max' or 'learned', got 'mean'"):
        forgetting(R, kind="mean")
    with pytest.raises(ValueError, match=r"expected before to have shape \(3,\)"):
        forward_transfer(R, [0.1, 0.2])


# --- the matrix of a learner --------------------------------------------------------------------------

CENTRES = RANDOM.normal(size=(6, 8)) * 2.0


def drawn(n, seed):
    """Six classes, two in each of the tasks c, a, b (in this order)."""
    random = np.random.default_rng(seed)
    y = np.repeat([4, 5, 0, 1, 2, 3], n)
    X = CENTRES[y] + random.normal(size=(len(y), 8))
    return X, y, np.repeat(["c", "a", "b"], 2 * n)


X, Y, TASK = drawn(60, 1)
TEST = drawn(40, 2)


def net(**settings):
    return Classifier(
        **{"hidden": (16,), "epochs": 10, "optimizer": Optimizer("adam", lr=0.01), "random_state": 0, **settings}
    )


def naive(learner):
    """The same by hand."""
    lines = []
    for name in ("c", "a", "b"):
        learner.partial_fit(X[name == TASK], Y[name == TASK], classes=range(6), task=name)
        own = [learner] if learner.replicas is None else [learner.replica(k) for k in range(len(learner.seeds_))]
        rows = [[r.score(TEST[0][TEST[2] == n], TEST[1][TEST[2] == n]) for n in ("c", "a", "b")] for r in own]
        lines.append(rows if learner.replicas is not None else rows[0])
    return np.stack(lines, axis=-2)


@pytest.mark.parametrize("strategy", [ERM(), EWC(strength=10.0)])
def test_the_matrix_is_that_of_a_loop(strategy):
    learner = net(strategy=strategy)
    found = accuracy_matrix(learner, X, Y, task=TASK, test=TEST)
    assert (found.measure, found.more, found.names, found.rows) == ("accuracy", True, ["c", "a", "b"], [80, 80, 80])
    np.testing.assert_allclose(found.values, naive(net(strategy=strategy)), rtol=1e-6)
    assert learner.tasks_ == ["c", "a", "b"]
    untrained = net(steps=0, epochs=None).fit(X, Y)
    before = [untrained.score(TEST[0][TEST[2] == n], TEST[1][TEST[2] == n]) for n in ("c", "a", "b")]
    np.testing.assert_allclose(found.before, before, rtol=1e-6)
    assert found.average == average_accuracy(found.values)
    assert found.backward == backward_transfer(found.values)
    assert found.forward == forward_transfer(found.values, found.before)
    assert found.forgetting("learned") == forgetting(found.values, kind="learned")
    assert found.forgetting() > 0.1


def test_replicas_each_by_itself_and_sweeps():
    found = accuracy_matrix(net(replicas=2), X, Y, task=TASK, test=TEST)
    assert found.values.shape == (2, 3, 3)
    assert found.before.shape == (2, 3)
    np.testing.assert_allclose(found.values, naive(net(replicas=2)), rtol=1e-6)
    one = accuracy_matrix(net(random_state=1), X, Y, task=TASK, test=TEST)
    np.testing.assert_allclose(found.before[1], one.before, rtol=1e-6)
    assert found.average.shape == found.forward.shape == (2,)
    swept = net(strategy=EWC(), replicas={"strategy__strength": [0.0, 100.0]})
    both = accuracy_matrix(swept, X, Y, task=TASK, test=TEST)
    np.testing.assert_allclose(both.before[0], both.before[1])
    np.testing.assert_allclose(both.values[0], accuracy_matrix(net(), X, Y, task=TASK, test=TEST).values, atol=0.03)


def test_where_the_task_is_told_the_answer_is_one_of_its_classes():
    plain = accuracy_matrix(net(), X, Y, task=TASK, test=TEST)
    learner = net()
    told = accuracy_matrix(learner, X, Y, task=TASK, test=TEST, told=True)
    assert (told.values >= plain.values - 1e-9).all()
    assert told.values[0, 0] >= plain.values[0, 0]
    share = learner.predict_proba(TEST[0])
    rows = TEST[2] == "a"
    right = (share[rows, 1] > share[rows, 0]) == (TEST[1][rows] == 1)
    assert told.values[2, 1] == pytest.approx(right.mean())


def test_training_rows_without_others_and_a_fitted_learner_goes_on():
    learner = net()
    found = accuracy_matrix(learner, X, Y, task=TASK)
    assert found.rows == [120, 120, 120]
    np.testing.assert_allclose(found.values[-1], task_scores(learner, X, Y, task=TASK, names=["c", "a", "b"]))
    again = accuracy_matrix(learner, X, Y, task=TASK)
    np.testing.assert_allclose(again.before, found.values[-1])


def test_values_are_measured_by_r2_and_losses_turn_the_sign():
    target = X @ RANDOM.normal(size=8) + np.where(TASK == "c", 3.0, 0.0)
    learner = Regressor(hidden=(16,), epochs=5, random_state=0)
    found = accuracy_matrix(learner, X, target, task=TASK)
    assert (found.measure, found.more) == ("R2", True)
    own = [learner.score(X[name == TASK], target[name == TASK]) for name in ("c", "a", "b")]
    np.testing.assert_allclose(found.values[-1], own, rtol=1e-5)
    loss = accuracy_matrix(Regressor(hidden=(16,), epochs=5, random_state=0), X, target, task=TASK, measure="loss")
    assert (loss.measure, loss.more) == ("loss", False)
    assert loss.backward == pytest.approx(-np.mean([loss.values[2, j] - loss.values[j, j] for j in range(2)]))
    flat = task_scores(learner, X, np.where(TASK == "a", 1.0, target), task=TASK)
    assert np.isnan(flat[0])
    assert np.isfinite(flat[1:]).all()


def test_what_has_no_target_or_no_untrained_net():
    gan = Learner(GAN(), steps=3, random_state=0)
    name = GAN().progress[0]
    found = accuracy_matrix(gan, X, task=TASK, measure=name)
    assert found.values.shape == (3, 3)
    solved = accuracy_matrix(Learner(LeastSquares()), X, Y * 1.0, task=TASK)
    assert np.isnan(solved.before).all()
    assert np.isfinite(solved.values).all()


def test_bad_rows():
    with pytest.raises(ValueError, match="expected a task for each of the 360 rows of X, got shape"):
        accuracy_matrix(net(), X, Y, task=TASK[:5])
    with pytest.raises(ValueError, match="expected a task for each"):
        accuracy_matrix(net(), X, Y, task=None)
    with pytest.raises(ValueError, match="expected rows of every task to measure and of no other"):
        accuracy_matrix(net(), X, Y, task=TASK, test=(X[:120], Y[:120], TASK[:120]))
    with pytest.raises(ValueError, match="expected test to be X, y and the task of each row"):
        accuracy_matrix(net(), X, Y, task=TASK, test=(X, Y))
    with pytest.raises(ValueError, match="expected labels to choose among"):
        accuracy_matrix(Regressor(), X, Y * 1.0, task=TASK, told=True)


# --- Fisher information -------------------------------------------------------------------------------


def one_by_one(clf, kind):
    """Squares of single-example gradients by a loop."""
    leaves = {n: p.detach().double().requires_grad_() for n, p in clf.training_.runs[0][1].params.items()}
    inner = {name.removeprefix("net."): p for name, p in leaves.items()}
    total = [torch.zeros_like(p) for p in leaves.values()]
    for x, y in zip(torch.tensor(X), Y, strict=True):
        scores = torch.log_softmax(torch.func.functional_call(clf.objective_.net, inner, (x[None],))[0], 0)
        for k, score in enumerate(scores):
            weight = score.exp().item() if kind == "true" else float(k == y)
            if weight:
                slopes = torch.autograd.grad(score, list(leaves.values()), retain_graph=True)
                for t, g in zip(total, slopes, strict=True):
                    t += weight * g.square() / len(X)
    return total


@pytest.mark.parametrize("kind", ["true", "empirical"])
def test_fisher_is_the_mean_of_single_squares(kind):
    clf = net(epochs=2, dtype="float64").fit(X, Y)
    found = fisher(clf, X, Y, kind=kind)
    assert all(f.dtype == torch.float64 for f in found.values())
    for mine, naive in zip(found.values(), one_by_one(clf, kind), strict=True):
        torch.testing.assert_close(mine, naive)


def test_fisher_sampled_scatters_around_the_true_one_and_ewc_keeps_it():
    clf = net(epochs=2, strategy=EWC(strength=1.0)).partial_fit(X, Y, task="all")
    true, drawn_ = fisher(clf, X, Y), fisher(clf, X, Y, kind="sampled")
    assert sum(f.sum() for f in drawn_.values()) == pytest.approx(float(sum(f.sum() for f in true.values())), rel=0.3)
    kept = clf.training_.runs[0][1].strategy[""]["tasks"]["all"]["precision"]
    for name, f in true.items():
        torch.testing.assert_close(f.float(), kept[name], rtol=1e-3, atol=1e-6)
    many = fisher(clf, np.tile(X, (5, 1)), np.tile(Y, 5))  # more than one chunk; a mean
    for name, f in true.items():
        torch.testing.assert_close(many[name], f)


def test_fisher_refuses():
    clf = net(epochs=1, replicas=2).fit(X, Y)
    with pytest.raises(ValueError, match="got several replicas; measure one"):
        fisher(clf, X, Y)
    with pytest.raises(ValueError, match="expected Laplace's fisher to be one of"):
        fisher(clf.replica(0), X, Y, kind="exact")
    gan = Learner(GAN(), steps=1, random_state=0).fit(X)
    with pytest.raises(ValueError, match="a game of players"):
        fisher(gan, X)


def test_overlap_in_closed_form():
    F = {
        "a.weight": torch.rand(3, 4, generator=torch.manual_seed(0)),
        "a.bias": torch.rand(3),
        "b.weight": torch.ones(2),
    }
    G = {name: torch.rand_like(f) for name, f in F.items()}
    found = fisher_overlap(F, G)
    f, g = (torch.cat([t["a.weight"].flatten(), t["a.bias"]]).double() for t in (F, G))
    assert found["a"] == pytest.approx(float((f / f.sum() * g / g.sum()).sqrt().sum()))
    assert set(found) == {"a", "b"}
    assert set(fisher_overlap(F, G, by="parameter")) == set(F)
    assert set(fisher_overlap(F, G, by="whole")) == {"all"}
    same = fisher_overlap(F, {name: 7 * value for name, value in F.items()})
    assert same == pytest.approx({"a": 1.0, "b": 1.0})
    assert fisher_overlap(G, F) == pytest.approx(found)
    # a matrix square root gives the same for full (diagonal) matrices
    from scipy.linalg import sqrtm

    m, n = (np.diag((t / t.sum()).numpy()) for t in (f, g))
    assert found["a"] == pytest.approx(1 - 0.5 * np.trace(m + n - 2 * sqrtm(m @ n)).real)
    assert np.isnan(fisher_overlap({"a": torch.zeros(2)}, {"a": torch.ones(2)}, by="parameter")["a"])


def test_overlap_of_the_same_and_of_other_inputs():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))
    clf = Classifier(module, epochs=3, random_state=0).fit(X, Y)
    left, right = X.copy(), X.copy()
    left[:, 4:], right[:, :4] = 0.0, 0.0  # no first-layer weight matters to both, biases apart
    first, second = fisher(clf, left, Y), fisher(clf, right, Y)
    apart = fisher_overlap(first, second, by="parameter")
    weights = [name for name in apart if name.endswith("weight")]
    assert apart[weights[0]] == pytest.approx(0.0, abs=1e-12)
    assert apart[weights[1]] > 0.5


def test_overlap_refuses():
    a, b = {"a": torch.ones(2)}, {"a": torch.ones(3)}
    for other in (b, {}, {"b": torch.ones(2)}):
        with pytest.raises(ValueError, match="expected Fisher diagonals of the same parameters"):
            fisher_overlap(a, other)
    with pytest.raises(ValueError, match="expected by to be 'layer', 'parameter' or 'whole', got 'net'"):
        fisher_overlap(a, a, by="net")
    with pytest.raises(ValueError, match="expected Fisher diagonals >= 0"):
        fisher_overlap(a, {"a": torch.tensor([1.0, -1.0])})
