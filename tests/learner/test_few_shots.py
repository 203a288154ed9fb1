import contextlib

import numpy as np
import pytest
import torch
from tests.contract.cases import STRATEGIES
from tests.objectives.third_party.process import NeuralProcess
from tests.objectives.third_party.prototypes import Prototypes
from torch import nn

import weft
from weft import Learner, Optimizer, weave
from weft.core import Output
from weft.core.state import State, aside
from weft.data import sinusoids
from weft.objectives import Classification, Heads, Regression
from weft.sources import Arrays, Episodes, Mapped
from weft.strategies import EMA, MAML, ANDMask
from weft.testing import ContractError, check_objective, check_refusal, check_strategy

rng = np.random.default_rng(0)
KIND = np.repeat(np.arange(24), 12)
X = (2 * rng.normal(size=(24, 4))[KIND] + rng.normal(size=(288, 4))).astype(np.float32)
OLD = KIND < 16


def kinds(rows=OLD, **how):
    return Episodes((X[rows], KIND[rows]), **{"ways": 4, "shots": 2, "queries": 3, "tasks": 6, **how})


def rows():
    return Arrays(torch.as_tensor(X), torch.as_tensor(KIND) % 4, classes=4)


def new(**how):
    return kinds(~OLD, **{"tasks": 10, **how})


def maml(**how):
    settings = {"strategy": MAML(inner_lr=0.2, inner_steps=2), "random_state": 0, "steps": 6, **how}
    return Learner(Classification(hidden=(8,)), **settings)


def judged(source, place=("validation",)):
    """The episodes by which a source is validated, as arrays."""
    batch = next(source.batches(aside(State(None, {}, {}, torch.tensor(0)), *place)))
    return {part: {name: t.numpy() for name, t in rows.items()} for part, rows in batch.items()}


def by_hand(learner, batch, hits=True):
    """The accuracy of `adapt` and `predict` on each episode."""
    found = []
    for e in range(len(batch["query"]["x"])):
        support, query = ({name: values[e] for name, values in batch[part].items()} for part in ("support", "query"))
        adapted = learner.adapt(support["x"], support["y"], sample_weight=support.get("weight"))
        right = adapted.predict(query["x"]) == query["y"]
        found.append(np.average(right, weights=query.get("weight")))
    return np.array(found)


# --- validation and measures ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"shots": (1, 4), "queries": (2, 5)}], ids=["even", "ragged"])
@pytest.mark.parametrize("net", [None, "norm and dropout"])
def test_validation_adapts_and_then_measures(how, net):
    """What `adapt` and `predict` give, episode by episode; with statistics and draws as there."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    made = Classification(hidden=(8,)) if net is None else Classification(layers)
    learner = Learner(made, strategy=MAML(inner_lr=0.2), steps=4, random_state=0, validation=new(**how)).fit(
        kinds(**how)
    )
    assert learner.history_["valid_accuracy"][-1] == pytest.approx(
        by_hand(learner, judged(new(**how))).mean(), abs=1e-6
    )


def test_an_objective_that_reads_episodes_is_validated_alike():
    how = {"shots": (1, 4), "queries": (2, 5)}
    learner = Learner(Prototypes(), steps=6, random_state=0, validation=new(**how)).fit(kinds(**how))
    assert learner.history_["valid_accuracy"][-1] == pytest.approx(
        by_hand(learner, judged(new(**how))).mean(), abs=1e-6
    )


@pytest.mark.parametrize("make", [Prototypes, NeuralProcess, None])
def test_validation_measures_the_same_episodes_each_time(make):
    """Nothing is learned, so nothing changes."""
    still = Optimizer("sgd", lr=0.0)
    source, held = (
        (kinds(), new()) if make is not NeuralProcess else (Episodes(sinusoids), Episodes(sinusoids, tasks=8))
    )
    learner = maml() if make is None else Learner(make(), steps=6, random_state=0)
    learner.set_params(optimizer=still, validation=held, every=1).fit(source)
    column = learner.history_["valid_loss"]
    assert len(column) == 6
    assert len({*column}) == 1
    assert len({*learner.history_["loss"]}) == 6


@pytest.mark.parametrize("make", [Prototypes, None])
def test_replicas_are_validated_as_the_single_runs(make):
    settings = {"validation": new(shots=(1, 3)), "dtype": "float64", "every": 1}
    both = maml(replicas=2) if make is None else Learner(make(), steps=6, replicas=2, random_state=0)
    one = maml(random_state=1) if make is None else Learner(make(), steps=6, random_state=1)
    for learner in (both, one):
        learner.set_params(**settings).fit(kinds(shots=(1, 3)))
    np.testing.assert_allclose(both.history_["valid_loss"][:, 1], one.history_["valid_loss"], rtol=1e-9)
    np.testing.assert_allclose(both.history_["loss"][:, 1], one.history_["loss"], rtol=1e-9)
    assert not np.allclose(both.history_["valid_loss"][:, 0], one.history_["valid_loss"])


def test_a_sweep_of_inner_rates_is_validated_at_each_rate():
    rates = [0.01, 0.5]
    settings = {"validation": new(), "dtype": "float64", "steps": 5, "random_state": 0}
    both = Learner(Classification(hidden=(8,)), strategy=MAML(), replicas={"strategy__inner_lr": rates}, **settings)
    both.fit(kinds())
    for k, rate in enumerate(rates):
        one = Learner(Classification(hidden=(8,)), strategy=MAML(inner_lr=rate), **settings).fit(kinds())
        np.testing.assert_allclose(both.history_["valid_loss"][:, k], one.history_["valid_loss"], rtol=1e-9)
    assert both.best_replica_ == 1
    assert both.measure(new(), 20)["loss"].mean == pytest.approx(one.measure(new(), 20)["loss"].mean)


def test_early_stopping_looks_at_episodes():
    learner = maml(steps=200, every=2, patience=2, validation=new(tasks=5), optimizer=Optimizer("adam", lr=0.3))
    learner.fit(kinds())
    assert learner.n_steps_ < 200
    assert "no progress" in learner.stop_reason_


def test_what_cannot_be_vectorized_is_validated_by_a_loop():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.lstm(x.unsqueeze(-1))[0][:, -1])

    learner = Learner(
        Classification(Last), strategy=MAML(inner_lr=0.5), steps=2, random_state=0, validation=new(tasks=4)
    )
    with pytest.warns(weft.engine.VectorizationWarning):
        learner.fit(kinds(tasks=3))
    assert learner.history_["valid_accuracy"][-1] == pytest.approx(
        by_hand(learner, judged(new(tasks=4))).mean(), abs=1e-6
    )


@pytest.mark.parametrize("memory", [2**30, 2**14])
def test_measure_tells_means_and_intervals_over_episodes(memory):
    learner = maml(memory=memory).fit(kinds())
    told = learner.measure(new(), 25)
    batches = [judged(new(), ("measure", 0, turn)) for turn in range(3)]
    each = np.concatenate([by_hand(learner, batch) for batch in batches])[:25]
    assert told["accuracy"].mean == pytest.approx(each.mean(), abs=1e-6)
    assert told["accuracy"].error == pytest.approx(each.std(ddof=1) / 5, abs=1e-6)
    assert told["accuracy"].n == 25
    assert not learner.objective_.training
    low, high = told["accuracy"].interval
    assert low < each.mean() < high
    assert "25 draws; assumes independent episodes" in repr(told["accuracy"])
    assert learner.measure(new(), 25, level=0.5)["loss"].interval[0] > told["loss"].interval[0]
    assert learner.measure(new(), 25, random_state=1)["loss"].mean != told["loss"].mean


def test_measure_means_over_replicas_and_answers_for_the_average():
    learner = Learner(Prototypes(), steps=6, replicas=2, random_state=0).fit(kinds())
    each = [learner.replica(k).measure(new(), 20)["loss"].mean for k in range(2)]
    assert learner.measure(new(), 20)["loss"].mean == pytest.approx(np.mean(each))
    averaged = maml(strategy=weave(MAML(inner_lr=0.2), EMA(decay=0.5)), validation=new()).fit(kinds())
    assert averaged.history_["valid_accuracy"][-1] == pytest.approx(by_hand(averaged, judged(new())).mean(), abs=1e-6)


def test_the_interval_covers_what_many_episodes_tell():
    learner = Learner(Prototypes(), steps=1, random_state=0).fit(kinds())
    true = learner.measure(new(tasks=500), 10_000)["accuracy"].mean
    inside = [learner.measure(new(tasks=50), 50, random_state=s)["accuracy"].interval for s in range(1, 101)]
    assert 88 <= sum(low <= true <= high for low, high in inside) <= 100


class Careful(Prototypes):
    """Learns of rows near to others only, and says what it was asked about."""

    def refuse_rows(self, rows, *, training):
        if bool((rows["x"].abs() > 50).any()):
            raise ValueError(f"expected rows near 0, got another among {len(rows['x'])}, training={training}")


def test_rows_of_both_parts_may_be_refused():
    Learner(Careful(), steps=1, validation=new()).fit(kinds())
    far = X.copy()
    far[~OLD] += 100
    odd = Episodes((far[~OLD], KIND[~OLD]), ways=4, shots=2, queries=3, tasks=10)
    with pytest.raises(ValueError, match="among 200, training=False"):
        Learner(Careful(), steps=1, validation=odd).fit(kinds())
    with pytest.raises(ValueError, match="among 200, training=True"):
        Learner(Careful(), steps=1).fit(odd)
    learner = Learner(Careful(), steps=1, random_state=0).fit(kinds()).adapt(X[:4], [0, 1, 2, 3])
    with pytest.raises(ValueError, match="among 1, training=False"):
        learner.predict([[99.0, 0.0, 0.0, 0.0]])


# --- padding --------------------------------------------------------------------------------------------


class Scribbled(Episodes):
    """Fills up with other rows than usual: none of them may count."""

    def batches(self, state):
        for batch in super().batches(state):
            for rows in batch.values():
                gone = rows["weight"] == 0
                rows["x"] = torch.where(gone.unsqueeze(-1), 7.0 + rows["x"], rows["x"])
                rows["y"] = torch.where(gone, (rows["y"] + 1) % 4, rows["y"])
            yield batch


@pytest.mark.parametrize("make", [Prototypes, lambda: Classification(hidden=(8,))], ids=["prototypes", "maml"])
def test_what_fills_up_changes_nothing(make):
    strategy = None if make is Prototypes else MAML(inner_lr=0.2)
    data, how = (X[OLD], KIND[OLD]), {"ways": 4, "shots": (1, 4), "queries": (2, 5), "tasks": 6}
    held = (X[~OLD], KIND[~OLD])
    settings = {"strategy": strategy, "steps": 5, "every": 1, "dtype": "float64", "random_state": 0}
    losses = []
    for kind in (Episodes, Scribbled):
        learner = Learner(make(), validation=kind(held, **how), **settings).fit(kind(data, **how))
        told = learner.measure(kind(held, **how), 10)["loss"].mean
        losses.append([*learner.history_["loss"], *learner.history_["valid_loss"], told])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


class Forgetful(Prototypes):
    """Takes plain means, whatever fills up."""

    def judged(self, batch):
        plain = {part: {n: t for n, t in batch[part].items() if n != "weight"} for part in ("support", "query")}
        return super().judged({**batch, **plain})


class HalfForgetful(Prototypes):
    def judged(self, batch):
        return super().judged({**batch, "query": {n: t for n, t in batch["query"].items() if n != "weight"}})


class Single(Prototypes):
    """Gives a loss for each query row."""

    def forward(self, batch, player=""):
        return Output(super().forward(batch).losses.repeat(2))


class Silent(Prototypes):
    fields = ("x",)


def test_the_contract_finds_objectives_that_are_wrong_about_episodes():
    for source in (kinds(), kinds(shots=(1, 3))):
        check_objective(Prototypes(), source)
        for broken, message in (
            (Forgetful, "rows of weight 0 in the support part"),
            (HalfForgetful, "rows of weight 0 in the query part"),
            (Single, "one loss per row"),
            (Silent, "fields to name 'y', which is read"),
        ):
            with pytest.raises(ContractError, match=message):
                check_objective(broken(), source)
    with pytest.raises(ContractError, match="expected a source of episodes for Prototypes, got Arrays"):
        check_objective(Prototypes(), Arrays(torch.as_tensor(X), torch.as_tensor(KIND), classes=24))


# --- strategies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_on_episodes_or_says_why_not(name):
    strategy, objective = STRATEGIES[name], Prototypes(hidden=8, width=4)
    reason = check_refusal(strategy, objective)
    if strategy.sight.grouped or name == "adversarial-training":
        assert reason is not None
    elif name == "sgld":
        with pytest.raises(ValueError, match="known number of rows"):
            Learner(objective, strategy=strategy, optimizer=Optimizer("sgd", lr=0.1), steps=40).fit(kinds())
    elif reason is None:
        check_strategy(strategy, objective, kinds())


def test_tasks_of_episodes_follow_each_other():
    """What an earlier task left is kept of episodes, too."""
    learner = Learner(Prototypes(), strategy=STRATEGIES["replay"], steps=5, random_state=0)
    learner.partial_fit(kinds(), task="a").partial_fit(new(), task="b")
    assert learner.tasks_ == ["a", "b"]
    assert learner.training_.runs[0].state.strategy[""]["memory"]["rows"]["query"]["x"].shape[1:] == (12, 4)


def test_rows_are_run_through_in_pieces():
    settings = {"steps": 5, "dtype": "float64", "random_state": 0}
    whole, pieces = (Learner(NeuralProcess(), accumulate=n, **settings).fit(Episodes(sinusoids)) for n in (1, 3))
    np.testing.assert_allclose(whole.history_["loss"], pieces.history_["loss"], rtol=1e-9)


def test_augmented_rows_of_episodes():
    def moved(row):
        return row + torch.rand(())

    settings = {"steps": 3, "random_state": 0}
    one, other = (
        Learner(Prototypes(), **settings).fit(Mapped(kinds(), moved)),
        Learner(Prototypes(), augment=moved, **settings).fit(kinds()),
    )
    plain = Learner(Prototypes(), **settings).fit(kinds())
    np.testing.assert_array_equal(one.history_["loss"], other.history_["loss"])
    assert not np.array_equal(one.history_["loss"], plain.history_["loss"])


# --- adapting and keeping -------------------------------------------------------------------------------


def test_prototypes_of_a_new_task():
    learner = Learner(Prototypes(), steps=200, random_state=0, optimizer=Optimizer("adam", lr=0.01)).fit(kinds())
    with pytest.raises(ValueError, match=r"learner.adapt\(X, y\).predict"):
        learner.predict(X[:3])
    batch = judged(new(tasks=30))
    adapted = learner.adapt(batch["support"]["x"][0], batch["support"]["y"][0])
    codes = learner.module().net
    with torch.no_grad():
        z, q = (codes(torch.as_tensor(batch[part]["x"][0])).numpy() for part in ("support", "query"))
    means = np.stack([z[batch["support"]["y"][0] == k].mean(0) for k in range(4)])
    nearest = ((q[:, None] - means) ** 2).sum(-1).argmin(-1)
    np.testing.assert_array_equal(adapted.predict(batch["query"]["x"][0]), nearest)
    assert by_hand(learner, batch).mean() > 0.8
    two = learner.adapt(batch["support"]["x"][0][:1], [3])  # of one class only
    assert {*two.predict(X).tolist()} == {3}


def test_an_interrupted_run_ends_as_it_would_have(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    ragged = {"shots": (1, 3)}
    settings = {"steps": 8, "every": 1, "random_state": 0}

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] >= 4:
            raise StopError

    for make in (Prototypes, None):
        folder = tmp_path / str(make)
        own = {"strategy": MAML(inner_lr=0.2)} if make is None else {}
        objective = Classification(hidden=(8,)) if make is None else make()
        whole = Learner(objective, validation=new(**ragged), **settings, **own).fit(kinds(**ragged))
        with contextlib.suppress(StopError):
            cut = Learner(objective, validation=new(**ragged), folder=folder, callbacks=[stop], **settings, **own)
            cut.fit(kinds(**ragged))
        again = weft.load(folder, objective=objective, callbacks=[], validation=new(**ragged))
        with pytest.raises(ValueError, match="episodes"):
            weft.load(folder, objective=objective, callbacks=[], validation=new(**ragged)).resume(kinds(shots=(1, 2)))
        again.resume(kinds(**ragged))
        for column in ("loss", "valid_loss"):
            np.testing.assert_array_equal(again.history_[column], whole.history_[column])


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (
            lambda: Learner(Prototypes()).fit(X, KIND),
            r"Prototypes learns from episodes.*got arrays; call fit\(Episodes",
        ),
        (
            lambda: Learner(Prototypes()).fit(Arrays(torch.as_tensor(X), torch.as_tensor(KIND), classes=24)),
            "Prototypes learns from episodes, got Arrays",
        ),
        (
            lambda: Learner(Classification()).fit(kinds()),
            r"neither ERM\(\) nor Classification reads; use MAML.*episodic",
        ),
        (
            lambda: Learner(NeuralProcess(), strategy=ANDMask()).fit(Episodes(sinusoids)),
            "each row of NeuralProcess is an episode",
        ),
        (lambda: Learner(Prototypes(), strategy=MAML()).fit(kinds()), "both adapt to a few examples"),
        (lambda: Learner(Heads({"a": Prototypes()})).fit(X, a_y=KIND), "Heads's a to learn from rows, got Prototypes"),
        (
            lambda: Learner(Prototypes(), steps=1, validation=rows()).fit(kinds()),
            "expected validation to give episodes, which Prototypes reads, got Arrays",
        ),
        (
            lambda: Learner(Prototypes(), steps=1, validation=0.2).fit(kinds()),
            "expected validation to be a source",
        ),
        (
            lambda: Learner(Regression(), steps=1, validation=Episodes(sinusoids)).fit(torch.ones(4, 1), torch.ones(4)),
            "expected validation to give rows, as training does, got Episodes",
        ),
        (lambda: maml(validation=new(), metrics=["accuracy"]).fit(kinds()), "expected no metrics beside"),
        (
            lambda: maml(validation=Episodes((X[:, :3], KIND), ways=4, shots=1)).fit(kinds()),
            r"validation with 'x' of shape \(4,\)",
        ),
        (lambda: maml(validation=new(ways=5)).fit(kinds()), "validation with at most 4 classes of 'y'.*got 5"),
    ],
)
def test_what_does_not_go_together_is_refused(learn, message):
    with pytest.raises(ValueError, match=message):
        learn()


class Fixed(Regression):
    """One that reads episodes and does not adapt, which MAML might be asked to do."""

    episodic = True


def test_a_strategy_does_not_adapt_what_reads_both_parts():
    reason = MAML().refuses(Fixed())
    assert reason == "it adapts by a loss of the support rows alone, and the loss of Fixed needs both parts"


def test_measure_is_of_episodes():
    few = maml(steps=1).fit(kinds())
    with pytest.raises(TypeError, match=r"a source of episodes.*got ndarray; for rows, score"):
        few.measure(X)
    with pytest.raises(TypeError, match="got Arrays"):
        few.measure(Arrays(torch.as_tensor(X)))
    with pytest.raises(TypeError, match=r"rows to score, got Episodes; .*measure\(source\)"):
        few.score(new())
    with pytest.raises(ValueError, match="at most 4 classes"):
        few.measure(new(ways=5))
    with pytest.raises(ValueError, match="episodes to measure to be an integer >= 2"):
        few.measure(new(), 1)
    with pytest.raises(ValueError, match="level in"):
        few.measure(new(), 10, level=95)
    plain = Learner(Classification(), epochs=1, random_state=0).fit(X, KIND)
    with pytest.raises(ValueError, match="a learner that learns from episodes"):
        plain.measure(new())


def test_classes_that_are_in_both_are_told():
    with pytest.warns(UserWarning, match="rows that are in both"):
        maml(steps=1, validation=kinds()).fit(kinds())
    with pytest.warns(UserWarning, match="class names that are in both, such as '0'"):
        Learner(Prototypes(), steps=1, validation=kinds(np.arange(288) % 2 == 0)).fit(kinds(np.arange(288) % 2 == 1))
