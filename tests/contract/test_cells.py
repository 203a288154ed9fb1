"""Every strategy on every class of traits, every objective with the sentinels; and that nothing is left out of that."""

import itertools
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest

from weft.core.objective import PROVIDED, Capability
from weft.core.strategy import Local, Penalty
from weft.engine import tasks
from weft.objectives import GAN, Classification
from weft.strategies import EWC, ANDMask, GenerativeReplay, Laplace
from weft.testing import ContractError, check_refusal, check_strategy, declared, trait_class

from .cases import OBJECTIVES, STRATEGIES
from .cells import SENTINELS, SETTINGS, Cell, cells, cross, settings, shard
from .pages import DOCS, support
from .training import SUPPORT, check_cell

MADE = {name: case.make("plain") for name, case in OBJECTIVES.items()}
CLASSES = {name: trait_class(objective) for name, objective in MADE.items()}


def trains(strategy, objective):
    return SUPPORT[strategy][objective] == "trains"


CELLS = cells(STRATEGIES, CLASSES, trains)

# --- refusals ----------------------------------------------------------------------------------------


def test_refusals_are_the_committed_ones():
    """A change may not add a refusal silently, nor change its reason."""
    assert support() == SUPPORT
    page = (DOCS / "support.md").read_text()
    for name, row in SUPPORT.items():
        assert name in page
        for cell in row.values():
            assert cell in page


class Fussy(ANDMask):
    def refuses(self, objective):
        return "it would rather not" if "features" in objective.provides else super().refuses(objective)


def test_a_refusal_that_was_added_is_seen():
    name = "and-mask"
    found = support({**STRATEGIES, name: Fussy(threshold=0.4)})
    assert {o for o in OBJECTIVES if found[name][o] != SUPPORT[name][o]} == {
        o for o, objective in MADE.items() if "features" in objective.provides
    }


# --- strategies read only traits ---------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_refusals_are_told_by_traits_alone(strategy):
    """Asked of a stand-in that has nothing else, every pair is answered alike."""
    for name, objective in MADE.items():
        reason = check_refusal(STRATEGIES[strategy], objective)
        assert (reason is None) == trains(strategy, name)


def test_objectives_of_one_class_are_answered_alike():
    """A strategy that tells them apart reads something that their class leaves out."""
    for strategy, row in SUPPORT.items():
        answers = defaultdict(set)
        for name, kind in CLASSES.items():
            told = row[name].replace(type(MADE[name]).__name__, "it")
            told = told.removesuffix("; name another by field='observation'")
            told = told.removesuffix(", ".join(MADE[name].fields))
            answers[kind].add(told.replace(f"({', '.join(MADE[name].players)})", "(its own)"))
        assert all(len(each) == 1 for each in answers.values()), strategy


def imagined():
    """Stand-ins for objectives that there may be one day: their traits in all combinations."""
    flags = itertools.product([(), ("a", "b")], *9 * [[True, False]])
    laws = [frozenset(), frozenset({"categorical"}), frozenset({"normal", "poisson"})]
    provides = [frozenset(), frozenset({"logits", "distribution"}), frozenset(PROVIDED)]
    fields = [("x",), ("x", "y"), ("x", "label_y"), ("x", "y", "environment"), ("x", "index"), ("seen", "reward")]
    offers = [(), ("predict",), ("sample",), ("predict", "sample"), ("label_predict", "predict")]
    for given in itertools.product(flags, zip(provides, laws, strict=True), fields, offers):
        flag, (provided, named), read, offered = given
        players, decomposable, movable, likelihood, on_policy, credits, episodic, solved, adapts, projects = flag
        yield SimpleNamespace(
            players=players,
            decomposable=decomposable,
            movable=movable,
            likelihood=likelihood,
            on_policy=on_policy,
            credits=credits,
            episodic=episodic,
            solved=solved,
            adapts=adapts,
            projects=projects,
            provides=provided,
            laws=named,
            fields=read,
            companions=(),
            capabilities=lambda offered=offered: dict.fromkeys(offered, Capability()),
        )


def test_whatever_objectives_come_those_of_one_class_are_answered_alike():
    several = [(trait_class(one), one) for one in imagined()]
    others = {"its own generator": GenerativeReplay(), "of labels": Laplace(fisher="empirical")}
    for name, strategy in {**STRATEGIES, **others}.items():
        refused = {}
        for kind, one in several:
            reason = strategy.refuses(one)
            assert refused.setdefault(kind, reason is not None) == (reason is not None), (name, one)


class Prying(ANDMask):
    """Refuses by a hyperparameter that is no trait."""

    def refuses(self, objective):
        return "too narrow" if getattr(objective, "hidden", (9,))[0] < 8 else super().refuses(objective)


class Sorting(ANDMask):
    """Refuses by the kind of objective."""

    def refuses(self, objective):
        return "a GAN" if isinstance(objective, GAN) else super().refuses(objective)


class Bold(ANDMask):
    def refuses(self, objective):
        return "too wide" if objective.hidden[0] > 80 else super().refuses(objective)


class Named(ANDMask):
    """Reads the class itself, which a stand-in's is not."""

    def refuses(self, objective):
        return "unknown" if type(objective) is not Classification else super().refuses(objective)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Prying(), "read only an objective's traits.*got hidden; declare a trait"),
        (Sorting(), "read only an objective's traits.*got __class__"),
        (Bold(), "read only an objective's traits.*got hidden"),
        (Named(), "by its traits alone, got None for itself and 'unknown' for a stand-in"),
    ],
)
def test_a_strategy_that_reads_more_than_traits_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_strategy(broken)


@pytest.fixture
def asked(monkeypatch):
    """What strategies ask of the objective at a task's end, where each is given a stand-in with traits alone."""
    given = []

    def local(objective, *rest):
        given.append(declared(objective))
        return Local(given[-1], *rest)

    monkeypatch.setattr(tasks, "Local", local)
    return lambda: {name for one in given for name in vars(one)["untold"]}


class Nosy(EWC):
    def consolidate(self, local, state, task):
        getattr(local.objective, "hidden", None)
        return super().consolidate(local, state, task)


def test_what_is_asked_at_a_task_s_end_is_heard(asked):
    check_strategy(Nosy())
    assert asked() == {"hidden"}


# --- trainings ---------------------------------------------------------------------------------------


def turn(cell):
    """Those of ERM and the sentinels are always trained, the others take turns."""
    often = cell.strategy in ("erm", *SENTINELS)
    about = ("tests/contract/*", f"src/weft/strategies/*/{cell.strategy.partition(',')[0].replace('-', '_')}.py")
    return pytest.param(cell, id=str(cell), marks=() if often else pytest.mark.turns(*about))


@pytest.mark.filterwarnings("ignore:expected the same rows at every step for LBFGS")  # it is here to compose
@pytest.mark.filterwarnings("ignore:expected at least .* steps for the draws of SGLD")  # of a case of few steps
@pytest.mark.parametrize("cell", [turn(cell) for cell in CELLS])
def test_trains(cell, asked):
    check_cell(**cell._asdict())
    assert not asked(), f"{cell.strategy} reads of the objective what is no trait"


def left_out(found, strategies, classes, trains, sentinels=SENTINELS):
    """What the cells do not hold of what they must."""
    trained = [cell for cell in found if trains(cell.strategy, cell.objective)]
    met = {(cell.strategy, classes[cell.objective]) for cell in found}
    yield from ((s, kind) for s in strategies for kind in classes.values() if (s, kind) not in met)
    both = {(cell.strategy, cell.objective) for cell in found}
    yield from ((s, o) for s in ("erm", *sentinels) for o in classes if (s, o) not in both)
    for k, (name, values) in enumerate(SETTINGS.items(), start=2):
        for kind, enough in ((0, 2), (1, 3)):  # of a strategy, of an objective
            seen, count = defaultdict(set), defaultdict(int)
            for cell in trained:
                seen[cell[kind]].add(cell[k])
                count[cell[kind]] += 1
            yield from ((who, name) for who in seen if count[who] >= enough and len(seen[who]) < len(values))
    if {cell[2:] for cell in found} != {tuple(settings(turn)) for turn in range(16)}:
        yield "a combination of settings"


def test_nothing_is_left_out():
    assert list(left_out(CELLS, STRATEGIES, CLASSES, trains)) == []
    assert len(set(CELLS)) == len(CELLS)


@pytest.mark.parametrize("one", [CELLS[0], CELLS[20], CELLS[-1]], ids=str)
def test_a_representative_that_is_left_out_is_missed(one):
    fewer = [cell for cell in CELLS if cell != one]
    assert list(left_out(fewer, STRATEGIES, CLASSES, trains)) != []


def test_a_setting_that_a_strategy_never_meets_is_missed():
    same = [cell._replace(dtype="float32") if cell.strategy == "ewc" else cell for cell in CELLS]
    assert ("ewc", "dtype") in list(left_out(same, STRATEGIES, CLASSES, trains))


def test_the_sentinels_do_all_that_acts_in_training():
    sentinels = [STRATEGIES[name] for name in SENTINELS]
    for verb in ("wrap", "combine", "steer", "update", "consolidate"):
        assert any(strategy.does(verb) for strategy in sentinels), verb
    assert any(isinstance(strategy, Penalty) for strategy in sentinels)
    assert any(strategy.sight.grouped for strategy in sentinels)
    for name in OBJECTIVES:
        if not MADE[name].solved:
            least = 1 if CLASSES[name].numbered else 2  # rows with numbers have no tasks, which two of them learn from
            assert sum(trains(sentinel, name) for sentinel in SENTINELS) >= least, name


def test_seventy_by_thirty_five_stays_small():
    """The number of cells grows with strategies + objectives, where classes of traits are few."""
    classes = {f"o{i}": i % 12 for i in range(35)}
    several = ["erm", *SENTINELS, *(f"s{i}" for i in range(66))]

    def found(strategies, objectives):
        return cells(strategies, dict(list(classes.items())[:objectives]), lambda s, o: True)

    began = time.process_time()
    whole = found(several, 35)
    assert time.process_time() - began < 0.5
    assert len(whole) == 66 * 12 + 4 * 35  # of 70 x 35 x 16 = 39,200
    assert len(found([*several, "one more"], 35)) == len(whole) + 12
    assert len(found(several, 34)) == len(whole) - 4
    assert list(left_out(whole, several, classes, lambda s, o: True)) == []


# --- the full cross, in shards -----------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_shards_are_the_cross(parts):
    whole = cross(STRATEGIES, OBJECTIVES)
    assert len(whole) == len(STRATEGIES) * len(OBJECTIVES) * 16
    assert set(CELLS) <= set(whole)
    shards = [shard(whole, f"{k}/{parts}") for k in range(1, parts + 1)]
    assert sorted(str(cell) for each in shards for cell in each) == sorted(map(str, whole))
    assert max(map(len, shards)) < 1.2 * len(whole) / parts + 1


@pytest.mark.parametrize("wrong", ["0/8", "9/8", "3", "3/", "/8", "a/b", "-1/2", ""])
def test_bad_shards(wrong):
    with pytest.raises(ValueError, match="expected SHARD=k/n with 1 <= k <= n, such as 3/8, got"):
        shard([Cell("erm", "gan", None, "plain", "float32", "example")], wrong)
