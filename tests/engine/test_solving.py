"""What is solved gives parameters and buffers of any shape, at once or in iterations; replicas together or apart."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from torch import nn

import weft
import weft.learner.folder
from weft import Learner
from weft.core import Objective, Output, capability
from weft.core.legal import Number, Whole
from weft.engine import VectorizationWarning
from weft.engine.engine import Diverged
from weft.sources import Arrays
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
X = np.concatenate([rng.normal(-2.0, 0.6, (60, 2)), rng.normal(2.0, 1.2, (40, 2))])
rng.shuffle(X)
FRESH = rng.normal(size=(30, 2))
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu"}


class Kernels(Objective):
    """A kernel density: the rows themselves are what is learned, and no parameter."""

    solved = True
    fields = ("x",)
    likelihood = True
    legal = {"bandwidth": Number(0, ends="()")}

    def __init__(self, *, bandwidth=0.5):
        super().__init__()
        self.bandwidth = bandwidth

    def build(self, spec):
        self.register_buffer("rows", torch.empty(0, *spec["x"].shape))
        self.register_buffer("seen", torch.empty(0, dtype=torch.int64))

    def solve(self, source, state):
        rows = torch.cat([batch["x"] for batch in source.once(state, 16)])
        return {"rows": rows, "seen": torch.arange(len(rows))}

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        n, d = self.rows.shape
        squares = ((x[:, None] - self.rows) ** 2).sum(-1)
        constant = np.log(n) + d / 2 * np.log(2 * np.pi * self.bandwidth**2)
        return torch.logsumexp(-squares / (2 * self.bandwidth**2), 1) - constant

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))


class Mixture(Objective):
    """Two round Gaussians by EM from rows chosen by the seed; all replicas in one call."""

    solved = True
    solves = "together"
    fields = ("x",)
    likelihood = True
    legal = {"iterations": Whole(1)}

    def __init__(self, *, iterations=8, told=True, spoil=None):
        super().__init__()
        self.iterations = iterations
        self.told = told
        self.spoil = spoil

    def build(self, spec):
        self.means = nn.Parameter(torch.zeros(2, *spec["x"].shape))
        self.scales = nn.Parameter(torch.ones(2))
        self.register_buffer("log_shares", torch.empty(0))

    def solve(self, source, state):
        x = torch.cat([batch["x"] for batch in source.once(state, 37)], 1)  # (replicas, rows, features)
        n, d = x.shape[1:]
        chosen = (torch.stack([torch.rand(2, generator=_generator(seed)) for seed in state.seeds]) * n).long()
        means = torch.gather(x, 1, chosen[..., None].expand(-1, -1, d))
        scales, shares = x.new_ones(len(x), 2), x.new_full((len(x), 2), 0.5)
        for turn in range(self.iterations):
            joint = _joint(x, means, scales, shares.log())
            evidence = torch.logsumexp(joint, -1)
            part = (joint - evidence[..., None]).exp()
            mass = part.sum(1)
            means = torch.einsum("rnk,rnd->rkd", part, x) / mass[..., None]
            squares = ((x[:, :, None] - means[:, None]) ** 2).sum(-1)
            scales, shares = ((part * squares).sum(1) / (d * mass)).sqrt(), mass / n
            if self.spoil is not None and turn == 2:
                scales = torch.where((state.seeds == self.spoil)[:, None], torch.nan, scales)
            solution = {"means": means, "scales": scales, "log_shares": shares.log()}
            told = {"log_likelihood": evidence.mean(1), "width": 1.0}
            yield (told, solution) if self.told else told
        return None if self.told else solution

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return torch.logsumexp(_joint(x[None], self.means[None], self.scales[None], self.log_shares[None])[0], -1)

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))


def _generator(seed):
    return torch.Generator().manual_seed(int(seed))


def _joint(x, means, scales, log_shares):
    squares = ((x[:, :, None] - means[:, None]) ** 2).sum(-1)
    d = x.shape[-1]
    return (
        log_shares[:, None]
        - squares / (2 * scales[:, None] ** 2)
        - d * torch.log(scales[:, None] * (2 * torch.pi) ** 0.5)
    )


class Single(Mixture):
    """The same one by one: its own code for a single state."""

    solves = "each"

    def solve(self, source, state):
        stacked = Mixture.solve(self, _Led(source), _Seeded(state))
        while True:
            try:
                given = next(stacked)
            except StopIteration as end:
                return None if end.value is None else {n: v[0] for n, v in end.value.items()}
            if self.told:
                yield (
                    {n: v if n == "width" else v[0] for n, v in given[0].items()},
                    {n: v[0] for n, v in given[1].items()},
                )
            else:
                yield {n: v if n == "width" else v[0] for n, v in given.items()}


class _Led:
    def __init__(self, source):
        self.source = source

    def once(self, state, rows):
        for batch in self.source.once(state.state, rows):
            yield {name: values[None] for name, values in batch.items()}


class _Seeded:
    def __init__(self, state):
        self.state, self.seeds = state, state.seeds[None]


def same(one, two):
    for a, b in (
        (one.training_.runs[0].state.params, two.training_.runs[0].state.params),
        (one.training_.runs[0].state.buffers, two.training_.runs[0].state.buffers),
    ):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-12)


# --- buffers of the data's size ----------------------------------------------------------------------------


def test_kernel_density_is_scikit_learns():
    learner = Learner(Kernels(bandwidth=0.7), **COMMON).fit(X)
    peer = KernelDensity(bandwidth=0.7).fit(X)
    np.testing.assert_allclose(learner.log_prob(FRESH), peer.score_samples(FRESH), rtol=1e-10)
    assert learner.objective_.rows.shape == (100, 2)
    assert learner.objective_.seen.dtype == torch.int64
    assert learner.module().rows.shape == (100, 2)


@pytest.mark.parametrize("replicas", [None, 3])
def test_what_was_built_empty_is_kept_loaded_copied(tmp_path, replicas):
    learner = Learner(Kernels(), replicas=replicas, validation=0.3, folder=tmp_path / "run", **COMMON).fit(X)
    expected = learner.log_prob(FRESH)
    for other in (
        weft.load(tmp_path / "run", objective=Kernels()),
        pickle.loads(pickle.dumps(learner)),
        copy.deepcopy(learner),
        clone(learner).set_params(folder=None).fit(X),
    ):
        np.testing.assert_array_equal(other.log_prob(FRESH), expected)
    for k in range(replicas or 0):
        single = Learner(Kernels(), validation=0.3, **{**COMMON, "random_state": k}).fit(X)
        np.testing.assert_array_equal(learner.replica(k).log_prob(FRESH), single.log_prob(FRESH))
        assert learner.history_["valid_loss"][-1][k] == single.history_["valid_loss"][-1]


def test_tasks_of_other_sizes_follow_one_another(tmp_path):
    learner = Learner(Kernels(), folder=tmp_path / "run", **COMMON)
    learner.partial_fit(X[:30], task="a").partial_fit(X[30:], task="b")
    assert learner.objective_.rows.shape == (70, 2)
    whole = Learner(Kernels(), **COMMON).fit(X[30:])
    np.testing.assert_array_equal(learner.log_prob(FRESH), whole.log_prob(FRESH))
    again = weft.load(tmp_path / "run", objective=Kernels()).partial_fit(X[:50], task="c")
    assert again.objective_.rows.shape == (50, 2)


def test_a_sweep_of_bandwidths_is_answered_by_the_best():
    widths = [0.01, 0.5, 30.0]
    with pytest.warns(VectorizationWarning, match="changes what is computed"):
        many = Learner(Kernels(), replicas={"objective__bandwidth": widths}, validation=0.3, **COMMON).fit(X)
    assert many.best_replica_ == int(many.history_["valid_loss"][-1].argmin()) == 1
    np.testing.assert_array_equal(many.log_prob(FRESH), many.replica(1).log_prob(FRESH))


class Distinct(Kernels):
    """The replicas' solutions have other shapes."""

    def solve(self, source, state):
        found = super().solve(source, state)
        return {name: value[: 50 + int(state.seeds)] for name, value in found.items()}


class Apart(Distinct):
    """The same, and says so."""

    solves = "apart"


def test_solutions_of_other_shapes_are_runs_of_their_own_or_refused(tmp_path):
    with pytest.raises(ValueError, match=r"one shape for all replicas of Distinct.*'rows' of shape.*solves = 'apart'"):
        Learner(Distinct(), replicas=2, **COMMON).fit(X)
    with pytest.warns(VectorizationWarning, match="solutions of Apart may differ in shape"):
        many = Learner(Apart(), replicas=2, folder=tmp_path / "run", **COMMON).fit(X)
    assert [len(run.state.buffers["rows"]) for run in many.training_.runs] == [50, 51]
    again = weft.load(tmp_path / "run", objective=Apart())
    np.testing.assert_array_equal(again.log_prob(FRESH), many.log_prob(FRESH))


# --- iterations ------------------------------------------------------------------------------------------


def test_em_is_scikit_learns_and_its_records_stand_in_the_history():
    learner = Learner(Mixture(iterations=200), **COMMON).fit(X)
    assert list(learner.history_["epoch"]) == list(learner.history_["step"]) == list(range(1, 201))
    assert (np.diff(learner.history_["log_likelihood"]) > -1e-12).all()
    peer = GaussianMixture(2, covariance_type="spherical", tol=1e-14, max_iter=1000, random_state=0, reg_covar=0).fit(X)
    assert -learner.history_["loss"][-1] == pytest.approx(peer.score(X), rel=1e-8)
    np.testing.assert_allclose(learner.history_["log_likelihood"][1:], -learner.history_["loss"][:-1], rtol=1e-12)
    assert (learner.stop_reason_, learner.n_steps_) == ("solved in 200 iterations", 200)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", [Mixture, Single])
def test_replica_k_is_the_single_run(kind, told):
    many = Learner(kind(told=told), replicas=4, validation=0.2, **COMMON).fit(X)
    for k in range(4):
        single = Learner(Single(told=told), validation=0.2, **{**COMMON, "random_state": k}).fit(X)
        same(many.replica(k), single)
        for name in ("log_likelihood", "valid_loss"):
            np.testing.assert_allclose(many.history_[name][:, k], single.history_[name], rtol=1e-10)
        assert many.stop_reason_[k] == single.stop_reason_ == "solved in 8 iterations"
    assert len(many.history_) == (8 if told else 9)
    assert many.best_replica_ == int(many.history_["valid_loss"][-1].argmin())


class Hasty(Single):
    """Some replicas need fewer iterations."""

    def solve(self, source, state):
        for turn, given in enumerate(super().solve(source, state)):
            yield given
            if turn == 2 + 2 * int(state.seeds):
                return


def test_replicas_may_end_at_different_iterations():
    many = Learner(Hasty(), replicas=3, **COMMON).fit(X)
    assert many.stop_reason_ == [f"solved in {n} iterations" for n in (3, 5, 7)]
    assert np.isnan(many.history_["loss"]).sum(0).tolist() == [4, 2, 0]
    finals = [many.history_["loss"][n - 1, k] for k, n in enumerate((3, 5, 7))]
    assert many.best_replica_ == int(np.argmin(finals))
    for k in range(3):
        same(many.replica(k), Learner(Hasty(), **{**COMMON, "random_state": k}).fit(X))
    many.partial_fit(X, task="next")
    assert many.n_steps_ == 14


def test_a_callback_ends_it_at_the_solution_so_far():
    stopped = Learner(Mixture(), callbacks=[lambda record: record["epoch"] == 3], **COMMON).fit(X)
    assert stopped.stop_reason_ == "stopped by a callback at step 3"
    same(stopped, Learner(Mixture(iterations=3), **COMMON).fit(X))
    with pytest.raises(ValueError, match=r"before any was told; have it yield record, solution"):
        Learner(Mixture(told=False), callbacks=[lambda record: True], **COMMON).fit(X)


def test_every_so_many_iterations_are_recorded():
    learner = Learner(Mixture(iterations=8), every=3, **COMMON).fit(X)
    assert list(learner.history_["step"]) == [3, 6, 8]
    same(learner, Learner(Mixture(iterations=8), **COMMON).fit(X))


@pytest.mark.parametrize("replicas", [None, 3])
@pytest.mark.parametrize("kind", [Mixture, Single])
@pytest.mark.parametrize("every", [1, 3, 50])
def test_the_solution_at_the_end_is_told_with_the_numbers_of_its_iteration(kind, every, replicas):
    told = Learner(kind(told=True), replicas=replicas, **COMMON).fit(X).history_[-1]
    learner = Learner(kind(told=False), replicas=replicas, every=every, **COMMON).fit(X)
    last = learner.history_[-1]
    assert last.keys() == told.keys()
    for name in ("step", "log_likelihood", "width", "loss"):
        np.testing.assert_allclose(last[name], told[name], rtol=1e-12)
    assert np.isfinite(np.stack(learner.history_["log_likelihood"])).all()


def test_patience_keeps_the_best():
    class Worse(Mixture):
        def solve(self, source, state):
            for turn, (told, found) in enumerate(super().solve(source, state)):
                yield told, {**found, "means": found["means"] + 3.0 * abs(turn - 2)}

    for replicas in (None, 2):
        settings = {**COMMON, "replicas": replicas, "validation": Arrays(torch.as_tensor(X))}
        learner = Learner(Worse(iterations=20), patience=2, **settings).fit(X)
        reasons = learner.stop_reason_ if replicas else [learner.stop_reason_]
        assert set(reasons) == {"no progress in 2 evaluations, at iteration 5"}
        same(learner, Learner(Mixture(iterations=3), replicas=replicas, **COMMON).fit(X))


@pytest.mark.parametrize("kind", [Mixture, Single])
def test_what_is_not_finite_is_named_and_frozen(kind):
    many = Learner(kind(spoil=1), replicas=3, **COMMON).fit(X)
    assert many.stop_reason_[1] == "diverged at iteration 3: 'scales' of the solution is not finite"
    assert many.stop_reason_[0] == many.stop_reason_[2] == "solved in 8 iterations"
    last = many.replica(1).training_.runs[0].state
    assert bool(torch.isfinite(last.params["scales"]).all())  # the last that was one
    assert np.isnan(many.history_["log_likelihood"][3:, 1]).all()
    for k in (0, 2):
        same(many.replica(k), Learner(Single(), **{**COMMON, "random_state": k}).fit(X))
    with pytest.raises(Diverged, match=r"finite solution of .*at iteration 3: 'scales'"):
        Learner(kind(spoil=0), **COMMON).fit(X)

    class Odd(kind):
        def solve(self, source, state):
            for turn, (told, found) in enumerate(super().solve(source, state)):
                yield {**told, "change": float("nan") if turn == 4 else 0.0}, found

    with pytest.raises(Diverged, match="at iteration 5: 'change' is NaN"):
        Learner(Odd(), **COMMON).fit(X)


@pytest.mark.parametrize("kind", [Mixture, Single])
@pytest.mark.parametrize("replicas", [None, 3])
def test_an_interrupted_one_begins_anew_and_ends_alike(tmp_path, monkeypatch, kind, replicas):
    monkeypatch.setattr(weft.learner.folder, "SECONDS", 0.0)

    class Warm(kind):
        """Its solution depends on where it begins."""

        def solve(self, source, state):
            start = state.params["means"]
            for told, found in super().solve(source, state):
                yield told, {**found, "means": found["means"] + start.mean()}

        def build(self, spec):
            super().build(spec)
            self.means.data = torch.randn(self.means.shape)

        def reset_parameters(self):
            torch.nn.init.normal_(self.means)

    def interrupt(record):
        if record["epoch"] == 4:
            raise RuntimeError("pulled")

    settings = {**COMMON, "replicas": replicas, "validation": 0.2}
    with pytest.raises(RuntimeError, match="pulled"):
        Learner(Warm(), folder=tmp_path / "run", callbacks=[interrupt], **settings).fit(X)
    half = weft.load(tmp_path / "run", objective=Warm())
    assert len(half.training_.phase.runs[0].records) == 3
    assert half.log_prob(FRESH).shape == (30,)  # the solution so far answers
    done = half.resume(X)
    whole = Learner(Warm(), **settings).fit(X)
    for name in ("params", "buffers"):
        one, two = (getattr(each.training_.runs[0].state, name) for each in (done, whole))
        assert all(torch.equal(one[n], two[n]) for n in two)
    np.testing.assert_array_equal(done.history_["valid_loss"], whole.history_["valid_loss"])
    assert done.stop_reason_ == whole.stop_reason_
    assert not done.training_.runs[0].state.tally


# --- the contract ---------------------------------------------------------------------------------------


def test_the_contract_holds_and_a_lie_is_found():
    source = Arrays(torch.as_tensor(X), batch_size=20)
    for objective in (Kernels(), Mixture(), Single(), Hasty(), Apart()):
        check_objective(objective, source)

    class First(Mixture):
        """All replicas get the first one's solution."""

        def solve(self, source, state):
            for told, found in super().solve(source, state):
                yield told, {name: value[:1].expand_as(value) for name, value in found.items()}

    class Somehow(Kernels):
        solves = "somehow"

    with pytest.raises(ContractError, match="replica 1 against the single run"):
        check_objective(First(iterations=1), source)
    with pytest.raises(ContractError, match="expected solves to be one of 'each', 'together', 'apart'"):
        check_objective(Somehow(), source)


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "error", "match"),
    [
        (
            {"row": torch.zeros(2)},
            KeyError,
            r"Wrong.solve to give parameters and buffers among \['rows', 'seen'\].*'row'",
        ),
        ({"seen": torch.zeros(3)}, TypeError, r"'seen' as torch.int64, as it was built, got torch.float32"),
        ({}, TypeError, "Wrong.solve to give tensors by the names"),
        ([1.0], TypeError, "got list"),
        (None, TypeError, "got NoneType"),
    ],
)
def test_wrong_solutions_are_refused(found, error, match):
    class Wrong(Kernels):
        def solve(self, source, state):
            return found

    with pytest.raises(error, match=match):
        Learner(Wrong(), **COMMON).fit(X)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (1.0, TypeError, "to yield a record, numbers by name"),
        ({"step": 1.0}, ValueError, "name its numbers otherwise, got 'step'"),
        ({"a": "much"}, TypeError, "a number for 'a'"),
        ({"a": torch.zeros(5)}, ValueError, r"one number for 'a'.*got shape \(5,\)"),
        (({"loss": 1.0}, {"means": torch.zeros(1, 2, 2), "log_shares": torch.zeros(1, 2)}), ValueError, "got 'loss'"),
        (
            ({}, {"means": torch.zeros(1, 3, 2)}),
            ValueError,
            r"'means' in the shape that it was built, \(2, 2\), got \(3, 2\)",
        ),
        (({}, {"means": torch.zeros(2, 2)}), ValueError, "with the 1 replicas on its leading axis"),
        ({"a": 1.0}, ValueError, "return the solution, got None"),
    ],
)
def test_wrong_records_are_refused(given, error, match):
    class Wrong(Mixture):
        def solve(self, source, state):
            yield given

    with pytest.raises(error, match=match):
        Learner(Wrong(), **COMMON).fit(X)
