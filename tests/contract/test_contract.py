"""The contract over the whole catalogue."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, Optimizer, weave
from weft.attacks import PGD
from weft.bench.search import propose
from weft.core import Composed, Objective, Output, capability
from weft.core.catalogue import ROOMS, entries
from weft.core.random import normal, turns
from weft.engine import VectorizationWarning
from weft.nets import MLP
from weft.objectives import GAN, REINFORCE, TD, Classification, Heads, Regression
from weft.sources import Arrays, Rollouts, Segments
from weft.strategies import EMA, EWC, MAML, ANDMask, Laplace
from weft.testing import ContractError, check_objective, check_source, check_strategy, vectorization_table
from weft.testing.vectorization import LAYERS

from .cases import FEW, LABEL, OBJECTIVES, SITE, SOURCES, STRATEGIES, X, corridor, missing

ROOT = Path(__file__).parents[2]


def test_the_whole_catalogue_is_under_contract():
    assert missing() == {"objectives": [], "strategies": [], "sources": []}


@pytest.mark.parametrize("family", ROOMS)
def test_every_entry_is_documented(family):
    for entry in entries(family):
        assert entry.summary.endswith("."), entry
        assert entry.cls.__doc__, entry
        if family in ("objectives", "strategies"):
            assert entry.reference, f"{entry.name} names no reference"
            assert ">>> " in entry.cls.__doc__, f"{entry.name} has no example"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives(name):
    case = OBJECTIVES[name]
    if case.source is not None:
        source = case.source("played")
    else:
        y = case.arrays.get("y")
        labels = None if y is None else torch.as_tensor(y)
        rows = torch.as_tensor(case.arrays["X"])
        seen = {"observed": case.gaps(rows)} if case.make("plain").gaps else {}
        classes = 2 if y is LABEL or y is FEW else None
        if "index" in case.make("plain").fields:
            seen, classes = {**seen, "index": torch.arange(len(rows))}, {"index": len(rows)}
        source = Arrays(rows, labels, batch_size=12, classes=classes, **seen)
    check_objective(case.make("plain"), source)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies(name):
    check_strategy(STRATEGIES[name])


@pytest.mark.parametrize(
    "strategy",
    [
        weave(EWC(strength=2.0), ANDMask(threshold=0.5)),
        weave(MAML(inner_lr=0.1), ANDMask(threshold=0.5)),
        weave(STRATEGIES["adversarial-training"], EWC(), ANDMask(threshold=0.5)),
        weave(STRATEGIES["adversarial-training"], MAML(inner_lr=0.1)),
    ],
    ids=repr,
)
def test_weaves(strategy):
    check_strategy(strategy)


@pytest.mark.parametrize("name", SOURCES)
def test_sources(name):
    check_source(SOURCES[name]())


# --- what is vectorized ------------------------------------------------------------------------------


def test_the_table_of_what_is_vectorized_is_the_committed_one():
    page = (ROOT / "docs" / "vectorized.md").read_text()
    assert vectorization_page(vectorization_table()) == page


def vectorization_page(rows):
    lines = [
        "# What is vectorized",
        "",
        "Made by `python -m tests.contract.pages`: each layer is tried over environments (group gradients) and over",
        "replicas. A *loop* gives the same result more slowly, and says so once.",
        "",
        "| layer | groups | replicas |",
        "|---|---|---|",
        *(f"| `{r['layer']}` | {r['groups']} | {r['replicas']} |" for r in rows),
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_a_vectorized_layer_gives_what_a_single_run_gives(layer):
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    settings = {"epochs": 2, "batch_size": None, "dtype": "float64", "strategy": ANDMask(threshold=0.3)}
    make = LAYERS[layer]
    many = Learner(Classification(make), replicas=2, random_state=0, **settings).fit(x, y, environment=[0, 1, 2] * 4)
    single = Learner(Classification(make), random_state=1, **settings).fit(x, y, environment=[0, 1, 2] * 4)
    np.testing.assert_allclose(many.replica(1).predict_proba(x), single.predict_proba(x), rtol=1e-7)


@pytest.mark.parametrize("layer", ["GRU", "LSTM", "spectral_norm"])
def test_what_the_learner_serves_by_a_loop_is_accepted(layer):
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    source = Arrays(x, (x[:, 0] > 0).long(), batch_size=6, classes=2)
    with pytest.warns(VectorizationWarning, match="replicas are trained one after another") as told:
        check_objective(Classification(LAYERS[layer]), source)
    assert len(told) == 1
    with pytest.warns(VectorizationWarning, match="replicas are trained one after another") as told:
        check_strategy(EMA(decay=0.9), Classification(LAYERS[layer]), source)
    assert len(told) == 1


class Ambiguous(Classification):
    """Fails wherever it is trained: no loop serves it."""

    def forward(self, batch, player=""):
        if self.training:
            raise RuntimeError("cannot be trained")
        return super().forward(batch)


@pytest.mark.filterwarnings("ignore::weft.engine.VectorizationWarning")
def test_what_no_loop_serves_is_not_accepted():
    source = Arrays(torch.as_tensor(X), torch.as_tensor(LABEL), batch_size=12, classes=2)
    with pytest.raises(RuntimeError, match="cannot be trained"):
        check_objective(Ambiguous(hidden=(8,)), source)


# --- the checks themselves can fail ------------------------------------------------------------------


class Reduced(Classification):
    def forward(self, batch, player=""):
        output = super().forward(batch)
        output.losses = output.losses.mean()
        return output


class Coupled(Classification):
    def forward(self, batch, player=""):
        output = super().forward(batch)
        output.losses = output.losses - output.losses.mean()
        return output


class Ambient(Classification):
    def forward(self, batch, player=""):
        output = super().forward(batch)
        output.losses = output.losses * float(np.random.default_rng().uniform())
        return output


class Boasting(Classification):
    """Names features that its output does not hold."""

    def forward(self, batch, player=""):
        return replace(super().forward(batch), features=None)


class Modest(Classification):
    provides = frozenset({"features", "rescore", "distribution"})


class Misspelled(Classification):
    provides = Classification.provides | {"logit"}


class Secretive(Classification):
    """Tells the distribution, and does not say so."""

    provides = Classification.provides - {"distribution"}


class Silent(Classification):
    distribution = Objective.distribution


class Rescored(Classification):
    def forward(self, batch, player=""):
        output = super().forward(batch)
        return replace(output, rescore=lambda z: 2.0 * output.rescore(z))


class Doubled(Classification):
    """Twice a negative log-likelihood is none."""

    def forward(self, batch, player=""):
        output = super().forward(batch)
        return Output(2.0 * output.losses, output.logits, output.features, lambda z: 2.0 * output.rescore(z))


class Spread(Regression):
    """Learns the noise as well, and leaves its logarithm out: a difference by parameters, the same for all rows."""

    def build(self, spec):
        super().build(spec)
        self.noise = nn.Parameter(torch.ones(()))


class Peeking(Classification):
    def forward(self, batch, player=""):
        output = super().forward(batch)
        return replace(output, losses=output.losses + 0.0 * batch["site"], rescore=None)

    provides = Classification.provides - {"rescore"}


class Idle(Classification):
    fields = ("x", "y", "site")


class Unsolved(Classification):
    solved = True


class Mistargeted(Classification):
    targets = "class"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Reduced, "one loss per row"),
        (Coupled, "decomposable = False"),
        (Ambient, "the same key twice"),
        (Boasting, "Output to hold 'features', as provides says, got None"),
        (Modest, "provides to name 'logits', which Output holds"),
        (Misspelled, "expected provides among logits.*got 'logit'"),
        (Secretive, "provides to name 'distribution', which is defined"),
        (Silent, r"expected distribution\(output\), as provides says"),
        (Rescored, r"rescore\(logits\) to give the losses"),
        (Doubled, "as likelihood = True says, got a difference"),
        (Spread, "as likelihood = True says, got a difference"),
        (Peeking, "fields to name 'site', which is read"),
        (Idle, "'site' to be read of the batch, as fields says"),
        (Unsolved, r"solve\(source, state\), as solved = True says"),
        (Mistargeted, "targets to be one of 'classes', .*, got 'class'"),
    ],
)
def test_a_broken_objective_is_caught(broken, message):
    site = torch.as_tensor(SITE, dtype=torch.float32)
    source = Arrays(torch.as_tensor(X), torch.as_tensor(LABEL), batch_size=12, classes=2, site=site)
    with pytest.raises(ContractError, match=message):
        check_objective(broken(hidden=(8,)), source)
    if broken not in (Reduced, Coupled, Ambient, Peeking, Unsolved):  # a part does not see what it does not name
        with pytest.raises(ContractError, match=f"its part 'label': .*{message}"):
            check_objective(Heads({"label": broken(hidden=(8,))}), renamed(source))


def renamed(source):
    """The source for a head called `label`, which sees its own `site`."""
    fields = {f"label_{name}": source.fields[name] for name in ("y", "site")}
    return Arrays(source.fields["x"], batch_size=12, classes={"label_y": 2}, **fields)


class Cloud(Objective):
    """Normals around a learned mean, sampled by a chain of two turns."""

    fields = ("x",)

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))

    def forward(self, batch, player=""):
        return Output((batch["x"] - self.mean).square().sum(-1))

    def noise(self, n):
        return normal((n, *self.mean.shape), place="chain", dtype=self.mean.dtype)

    @capability(merge="share", kind="chain")
    def sample(self, n):
        x = self.mean.expand(n, -1)
        for _ in turns("turn", 2):
            x = 0.5 * x + self.noise(n)
        return x


class Repeating(Cloud):
    """Both turns draw at one place."""

    def sample(self, n):
        return 0.5 * (self.mean + self.noise(n)) + self.noise(n)


class Following(Cloud):
    """A row is drawn after those before it."""

    def sample(self, n):
        return super().sample(n).cumsum(0)


class Stuck(Cloud):
    def sample(self, n):
        return super().sample(n) * 0.0


def test_a_broken_sampler_is_caught():
    source = Arrays(torch.as_tensor(X), batch_size=12)
    check_objective(Cloud(), source)
    for broken, message in (
        (Repeating, r"sample: .*second draw at 'chain'.*turns"),
        (Following, "a row alone as it does among others"),
        (Stuck, "one row six times"),
    ):
        with pytest.raises(ContractError, match=message):
            check_objective(broken(), source)


class Unsaid(Cloud):
    @capability(merge="share")
    def sample(self, n):
        return super().sample(n)


class Misspelled(Cloud):
    @capability(merge="share", kind="chains")
    def sample(self, n):
        return super().sample(n)


class Silently(Cloud):
    """Draws, and says nothing of it."""

    @capability(merge="mean")
    def value(self, x):
        return x.sum(-1) + self.noise(len(x)).sum(-1)


class Lying(Cloud):
    """An estimate that calls itself exact."""

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return x.sum(-1) + self.noise(len(x)).sum(-1)


class Honest(Cloud):
    @capability(merge="logmeanexp", kind="estimate")
    def log_prob(self, x):
        return x.sum(-1) + self.noise(len(x)).sum(-1)


class Seeded(Cloud):
    @capability(merge="mean")
    def value(self, x, random_state=None):
        return x.sum(-1)


def test_a_capability_that_does_not_say_what_it_is_is_caught():
    source = Arrays(torch.as_tensor(X), batch_size=12)
    check_objective(Honest(), source)
    for broken, message in (
        (Unsaid, "'sample' to say its kind, one of direct, sequential, chain, got none"),
        (Misspelled, "'sample' to say kind as one of direct, sequential, chain, got 'chains'"),
        (Silently, "'value', which draws, to say so: kind as one of lower bound.*chain, got ''"),
        (Lying, "'log_prob', which draws, to say so: kind as one of lower bound.*got 'exact'"),
        (Seeded, "'value' to draw by weft.core.random, got an argument random_state"),
    ):
        with pytest.raises(ContractError, match=message):
            check_objective(broken(), source)


class Bystander(GAN):
    """A parameter of no player."""

    def build(self, spec):
        super().build(spec)
        self.scale = nn.Parameter(torch.ones(()))


class Sharing(GAN):
    """Parameters that both players have."""

    def build(self, spec):
        super().build(spec)
        self.critic.borrowed = self.generator


class Bare(GAN):
    players = ("critic", "generator", "judge")


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (Bystander, ValueError, "every parameter of Bystander under one of its players.*got 'scale'"),
        (Sharing, ValueError, "players of Sharing to have parameters of their own"),
        (Bare, ValueError, "expected the player 'judge' to have parameters"),
    ],
)
def test_a_game_whose_parameters_are_not_one_player_s_is_caught(broken, error, message):
    with pytest.raises(error, match=message):
        check_objective(broken(hidden=(8,)), Arrays(torch.as_tensor(X), batch_size=12))
    with pytest.raises(error, match=message):
        Learner(broken(hidden=(8,)), steps=1).fit(X)


class Undeclared(Objective):
    """Acts, and does not say whether rows of an earlier policy may be learned from."""

    fields, progress, provides, laws = REINFORCE.fields, REINFORCE.progress, REINFORCE.provides, REINFORCE.laws
    trajectories = True
    build, forward, distribution, measure = (
        getattr(REINFORCE, name) for name in ("build", "forward", "distribution", "measure")
    )
    _return, _decay, _told, sample_action = (
        getattr(REINFORCE, name) for name in ("_return", "_decay", "_told", "sample_action")
    )
    build_policy, told, default = REINFORCE.build_policy, REINFORCE.told, None
    bounds, deviation, entropy_weight = "clip", 1.0, 0.0

    def __init__(self, policy=None, *, hidden=(8,), discount=0.99, exact=False, baseline="none"):
        super().__init__()
        self.policy, self.hidden, self.discount, self.exact, self.baseline = policy, hidden, discount, exact, baseline


class OffPolicy(Undeclared):
    """May learn from any policy's rows."""

    on_policy = False


class Kept(Rollouts):
    """Trajectories that somebody else has drawn, as far as it tells."""

    acts = False


class Forward(TD):
    """Says nothing of what its values count on."""

    def declares(self, trait):
        return trait != "bootstraps" and super().declares(trait)


def test_who_discounts_what_follows_says_whether_it_counts_on():
    with pytest.raises(ContractError, match="to say bootstraps, its discount where"):
        check_objective(Forward(), Segments(corridor(), envs=8))


def test_who_acts_says_whether_on_policy():
    source = Rollouts(corridor(), envs=8)
    with pytest.raises(ContractError, match="to say on_policy = True or False"):
        check_objective(Undeclared(), source)
    with pytest.raises(TypeError, match="Undeclared, whose batches its own actions draw, to say whether on_policy"):
        Learner(Undeclared(), steps=1).fit(source)
    check_objective(OffPolicy(), source)
    Learner(OffPolicy(), steps=1).fit(source)
    for strategy in ("replay", "agem", "maml"):
        assert STRATEGIES[strategy].refuses(OffPolicy()) is None, strategy
        assert "policy" in STRATEGIES[strategy].refuses(REINFORCE()), strategy
    with pytest.raises(ValueError, match="REINFORCE learns from what the current policy does, got Kept"):
        Learner(REINFORCE(), steps=1).fit(Kept(corridor(), envs=8))
    with pytest.raises(ContractError, match="a source that acts, as on_policy = True says"):
        check_objective(REINFORCE(), Kept(corridor(), envs=8))


ACTING = [name for name, case in OBJECTIVES.items() if case.source is not None and case.source("flat").acts]


@pytest.mark.parametrize("name", ACTING)
def test_who_acts_says_how_it_plays(name):
    objective, source = OBJECTIVES[name].make("plain"), OBJECTIVES[name].source("flat")
    world = source.collectors[0].stage.world
    assert objective.acts
    assert objective.plays(world).acts
    few = objective.plays(world, envs=2)
    assert few.envs == 2  # settings replace what the paper plays
    assert set(objective.fields) <= set(few.spec) | {"advantage"}
    learner = Learner(objective, steps=None if objective.solved else 2, random_state=0).fit(few)
    assert objective.solved or learner.n_steps_ == 2
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        objective.plays(world, no_such_setting=1)


def test_who_does_not_say_how_it_plays_names_the_sources():
    assert not Classification().acts
    with pytest.raises(
        TypeError, match=r"Classification, which does not define plays\(world\).*fit\(Rollouts\(world\)\)"
    ):
        Classification().plays(corridor())
    with pytest.raises(TypeError, match="got OffPolicy, which does not define"):
        OffPolicy().plays(corridor())


def test_who_wraps_an_objective_plays_as_that_does():
    class Wrapped(Composed):
        """An objective around another."""

        composes, wraps = ("inner",), "inner"

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    assert Wrapped(REINFORCE()).acts
    assert Wrapped(REINFORCE()).plays(corridor(), envs=3).envs == 3
    assert not Wrapped(Classification()).acts
    with pytest.raises(TypeError, match="got Classification, which does not define plays"):
        Wrapped(Classification()).plays(corridor())


def test_who_defines_solve_says_solved():
    """It would be descended in silence."""
    with pytest.raises(TypeError, match="which defines solve, to say solved = True"):

        class Solves(Regression):
            def solve(self, source, state):
                return {}


class Biased(ANDMask):
    def conclude(self, sums, losses, weights, state):
        masked, state = super().conclude(sums, losses, weights, state)
        return {n: 1.01 * g for n, g in masked.items()}, state


class Counting(ANDMask):
    """Keeps state where the engine cannot see it."""

    calls = 0

    def combine(self, gradients, losses, weights, state):
        Counting.calls += 1
        return {n: g.mean(0) / Counting.calls for n, g in gradients.items()}, state


class Slack(EWC):
    def pull(self, params, state):
        return {name: 0.5 * p for name, p in super().pull(params, state).items()}


class Stale(EMA):
    """Trains as ERM does, and says that its average is the last parameters where it is not."""

    neutral = {"decay": 0.5}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Stale(decay=0.9), "answer 0 of Stale.* against ERM"),
        (Biased(threshold=0.5), "against ERM"),
        (Counting(threshold=0.5), "replica 1"),
        (Slack(strength=1.0), "pull against"),
    ],
)
def test_a_broken_strategy_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_strategy(broken)


class Shuffled(Arrays):
    def batches(self, state):
        while True:
            yield {"x": self.fields["x"][np.random.default_rng().permutation(len(X))[:5]]}


class Spoiled(Arrays):
    def batches(self, state):
        for batch in super().batches(state):
            yield {**batch, "x": batch["x"][:, :2]}


@pytest.mark.parametrize(("broken", "message"), [(Shuffled, "the same seed twice"), (Spoiled, "expected 'x' like")])
def test_a_broken_source_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_source(broken(torch.as_tensor(X), batch_size=5))


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.room in ("strategies", "objectives")], ids=lambda e: e.name
)
def test_search_spaces_are_hyperparameters_in_range(entry):
    """What a search may vary exists, and what it may propose is valid, both ends of the range too."""
    method = entry.cls() if entry.name != "adversarial-training" else entry.cls(PGD())
    for name, limits in method.space.items():
        assert limits.low < limits.high
        assert limits.low > 0 or not limits.log
        for end in (limits.low, limits.high):
            having = method.having(**{name: end})
            assert having.get_params()[name] == end
            if entry.room in ("strategies", "objectives"):
                having.validate()
    for proposed in propose(method.space, [], [0, 1], rising=True, seed=0, name=entry.name):
        method.having(**proposed).validate()
    if entry.room == "strategies" and entry.name not in ("erm", "maml"):
        assert set(method.space) >= set(method.sweeps), "what may be swept at once may be searched"


class Scaled(nn.Module):
    """A net with a parameter that is one number."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.net = MLP(inputs, outputs, hidden=(4,))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.scale.exp() * self.net(x)

    def reset_parameters(self):
        nn.init.constant_(self.scale, 0.5)


ALL = {**STRATEGIES, "laplace, low rank": Laplace(curvature="low_rank")}
for other in ("maml", "coral", "mmd", "fishr"):  # of episodes, of features
    del ALL[other]


@pytest.mark.filterwarnings("ignore:expected the same rows at every step for LBFGS")
@pytest.mark.parametrize("strategy", ALL)
def test_a_parameter_may_be_one_number(strategy):
    chosen = ALL[strategy]
    more = {"optimizer": Optimizer("sgd", lr=0.1)} if chosen.own_step else {}
    learner = Learner(Classification(Scaled), strategy=chosen, steps=35, random_state=0, batch_size=None, **more)
    for task in ("first", "second"):
        learner.partial_fit(X, LABEL, environment=SITE if chosen.sight.grouped else None, task=task)
    assert learner.predict(X[:3]).shape == (3,)
