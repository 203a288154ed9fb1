"""Objective: what is learned. A batch becomes one loss per example.

The file is long as it is one idea: whatever an objective may say of itself stands here, most of it in words.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from weft.core.configured import Configured

if TYPE_CHECKING:
    from weft.core.corpus import Corpus
    from weft.core.source import Batch, Source, Spec
    from weft.core.state import State

__all__ = [
    "DENSITY",
    "DRAWN",
    "KINDS",
    "PROVIDED",
    "RAGGED",
    "SOLVES",
    "TARGETS",
    "Capability",
    "Iterations",
    "Objective",
    "Output",
    "Solution",
    "Told",
    "capability",
    "inexact",
    "reduce",
    "wrong_marks",
]

PROVIDED = {
    "logits": "the logits of each row",
    "features": "the features of each row before the head",
    "rescore": "the losses as a function of the logits",
    "distribution": "the distribution that the model predicts for each row",
    "mass": "how much each row counts of itself",
}
"""What an objective may provide beyond its losses, in words."""
TARGETS = ("classes", "multilabel", "values", "counts", "amounts")
"""What `y` may hold."""
SOLVES = ("each", "together", "apart")
"""How replicas of what is solved may be solved."""
Solution = dict[str, Tensor]
"""Parameters and buffers by name, as `solve` gives them."""
Told = Mapping[str, float | Tensor]
"""A record of an iteration: numbers by name."""
Iterations = Generator[Told | tuple[Told, Solution], None, Solution | None]
"""A solution on its way: a record for each iteration, with the solution so far if it likes, and the solution."""
RAGGED = ("tokens", "sequences", "boxes")
"""What may be of another length in every row: padded, with the length in a field beside it, `x_length` for `x`."""
KINDS = (*TARGETS, *RAGGED, "images")
"""What a field may hold."""


@dataclass
class Output:
    """What a forward gives: one loss per example, and what strategies and measures may read.

    Attributes:
        losses: shape `(n,)`, never reduced.
        logits: the predictive distribution's parameters, where there is one.
        features: the representation before the head, where there is one.
        rescore: the losses as a function of the logits, where they are one; `rescore(logits)` gives `losses`.
        weight: one weight per loss, where the batch has them, times its mass; set by the engine.
        buffers: the module's buffers after this forward (running statistics), set by the engine.
        distribution: `distribution()` gives the objective's, where it provides one; set by the engine.
        parts: the outputs of the parts, by name, of an objective built of several.
        left: a detached tree for each strategy that sees all groups and is to be handed it in `combine`; whoever wraps
            a loss keeps what is there: `replace(output, losses=...)`, and adds its own behind it.
        mass: how much each row counts of itself (the tokens whose mean its loss is), where rows do not count alike:
            shape `(n,)`, not negative, a function of the row and its draws and not of the parameters.
    """

    losses: Tensor
    logits: Tensor | None = None
    features: Tensor | None = None
    rescore: Callable[[Tensor], Tensor] | None = None
    weight: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    distribution: Callable[[], Any] | None = None
    parts: dict[str, Output] = field(default_factory=dict)
    left: tuple[dict[str, Tensor], ...] = ()
    mass: Tensor | None = None


def reduce(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """The weighted mean over the examples (the last axis): the one place where losses are reduced.

    A batch whose weights are all zero (a group absent from it) reduces to zero.

    >>> reduce(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]))
    tensor(1.5000)
    """
    if weight is None:
        return values.mean(-1)
    weight = weight.to(values.dtype)
    return (values * weight).sum(-1) / weight.sum(-1).clamp_min(torch.finfo(values.dtype).tiny)


DENSITY = ("exact", "lower bound", "upper bound", "estimate")
"""What a number told of a row, such as a `log_prob`, may be."""
DRAWN = ("direct", "sequential", "chain")
"""How a draw, such as a `sample`, may be made: at once, part after part, or by a Markov chain."""
_ALWAYS_DRAWN = ("sample", "act", "impute", "posterior", "generate")
GIVEN = ("", "x", "density", "surprise")
"""What an answer may be said to be: a row such as `x`, a log-density of `x`, minus one, or neither."""


@dataclass(frozen=True)
class Capability:
    """How a capability is asked, what its answer is, and how several replicas answer together.

    Attributes:
        merge: `mean`, `logmeanexp` (densities), `share` (draws: each replica makes its share) or
            `refuse` (the answer of one replica only: representations, actions).
        finish: applied to the merged answer (class probabilities become a class).
        reads: whether it is asked about rows like those of training; not so a prior's, about latents.
        kind: of a number one of `DENSITY`, of a draw one of `DRAWN`, "" where neither is to be said.
        asks: `rows`, a `number` of them to draw, or a `function` of rows whose mean is asked for.
        rows: arguments with a value for each row, beside those that the objective's fields name.
        texts: options that are a text, or a tuple of tokens, as rows are: a Learner gives them as tokens.
        gives: `x` for rows such as those that were learned from, which a Learner puts back into columns and units, or
            into text; `density` for a log-density of them, which it puts into their units, `surprise` for minus one; ""
            for anything else; None where it is not said and the name does not tell.
    """

    merge: str = "mean"
    finish: Callable[[Tensor], Tensor] | None = None
    reads: bool = True
    kind: str = ""
    asks: str = "rows"
    rows: tuple[str, ...] = ()
    gives: str | None = ""
    texts: tuple[str, ...] = ()

    def draws(self, name: str) -> bool:
        """Whether the answer is a draw, another one at each call; else what it draws is a function of the row."""
        if self.kind:
            return self.kind in DRAWN
        return self.merge == "share" or name.rpartition("_")[2] in _ALWAYS_DRAWN


Method = TypeVar("Method", bound=Callable[..., Any])


def capability(
    *,
    merge: str = "mean",
    finish: Callable[[Tensor], Tensor] | None = None,
    kind: str = "",
    asks: str = "",
    rows: tuple[str, ...] = (),
    gives: str | None = None,
    texts: tuple[str, ...] = (),
) -> Callable[[Method], Method]:
    """Marks a method of an objective as something that the Learner offers under the same name.

    An override in a subclass inherits the mark, and one by None takes it away.

    Args:
        merge, finish, kind, rows, texts: see `Capability`.
        asks: `rows`, `number` or `function`; by default a number where the replicas share the answer out, and a
            function where it is called `expectation`.
        gives: see `Capability`. By default `x` for a `sample` of a number of rows, `impute` and `inverse_transform`,
            `density` for a `log_prob` of the rows alone; a `sample`, `generate` or `log_prob` of more must say it where
            it makes a difference.

    Some names have one meaning wherever a model answers them, beside those of scikit-learn:

    - `log_prob(x)`: the log-density (of whole numbers, the log-probability) of each row, in nats;
    - `ratio(x)`: log p(x) - log q(x), p being what was learned from and q what it is told from;
    - `forecast(x, *, steps)`: what follows each row, a series, in so many steps: shape `(n, steps, ...)`, and with an
      option `draws` of K paths `(n, K, steps, ...)`;
    - `expectation(f)`: the mean of f(x) under the model, where the objective knows better than by its draws: a
      tensor, or that and its standard error; f takes rows and gives one number or vector for each.
    """

    def mark(method: Method) -> Method:
        plain = "function" if method.__name__ == "expectation" else "rows"
        asked = asks or ("number" if merge == "share" else plain)
        reads = method.__name__ != "inverse_transform"  # which is asked about representations
        told = _gives(method, asked) if gives is None else gives
        made = Capability(merge, finish, reads, kind, asked, rows, told, texts)
        method.capability = made  # type: ignore[attr-defined]
        return method

    return mark


def inexact(objective: Objective) -> dict[str, str]:
    """The capabilities whose numbers are bounds or estimates, each with its kind."""
    return {name: mark.kind for name, mark in objective.capabilities().items() if mark.kind in DENSITY[1:]}


def _gives(method: Callable[..., Any], asks: str) -> str | None:
    """What an answer is by its name, or None where that is not told by it."""
    name = method.__name__
    if name in ("impute", "inverse_transform") or (name == "sample" and asks == "number"):
        return "x"
    if name == "log_prob":  # of the rows alone; with y it may be of either, or of both
        return None if "y" in signature(method).parameters else "density"
    return None if name in ("sample", "generate") else ""


MERGES = ("mean", "logmeanexp", "share", "refuse")


def wrong_marks(objective: Objective) -> Iterator[str]:
    """What an objective's capabilities say that nobody understands, in words."""
    for name, mark in objective.capabilities().items():
        called, word = f"expected the capability {name!r}", name.rpartition("_")[2]
        if mark.merge not in MERGES:
            yield f"{called} to merge by {', '.join(MERGES)}, got {mark.merge!r}"
        if mark.asks not in ("rows", "number", "function"):
            yield f"{called} to ask for rows or a number, got {mark.asks!r}"
        if (mark.asks == "function") != (word == "expectation"):
            yield f"{called} to ask for {'a function' if word == 'expectation' else 'rows'}, got {mark.asks!r}"
        if word in ("ratio", "forecast") and mark.asks != "rows":
            yield f"{called} to ask for rows, got {mark.asks!r}"
        if word == "forecast" and "steps" not in signature(getattr(objective, name)).parameters:
            yield f"{called} to take how many steps to look ahead by the name 'steps', got no such argument"
        numbers = name.endswith("log_prob") or word in ("ratio", "expectation")
        kinds = DENSITY if numbers else DRAWN if name.endswith("sample") else (*DENSITY, *DRAWN)
        if mark.kind and mark.kind not in kinds:
            yield f"{called} to say kind as one of {', '.join(kinds)}, got {mark.kind!r}"
        if mark.kind in DENSITY and mark.merge == "share":
            yield f"{called}, a number told of each row, to merge by mean, logmeanexp or refuse, got 'share'"
        if mark.kind in DRAWN and mark.merge in ("mean", "logmeanexp"):
            yield f"{called}, which draws, to merge by share or refuse, got {mark.merge!r}: a mean of draws is no draw"
        read = objective.columns == "values" or objective.holds("x") == "tokens"
        if mark.gives is None and read:
            yield f"{called} to say what it gives, 'x', 'density', 'surprise' or '', got nothing; capability(gives=...)"
        if mark.gives not in (None, *GIVEN):
            yield f"{called} to give 'x', 'density', 'surprise' or '', got {mark.gives!r}"
        if mark.gives == "x" and read and mark.merge in ("mean", "logmeanexp"):
            yield f"{called}, which gives rows, to merge by share or refuse, got {mark.merge!r}: a mean is no row"


class Objective(Configured, nn.Module):
    """A pure function from a batch to one loss per example, with the networks it needs.

    A subclass keeps its hyperparameters in `__init__` (assigned and nothing else), makes its
    networks in `build` once shapes are known, and writes its mathematics in `forward`. What it can
    do once trained are plain methods marked with `capability`; they take and give tensors with one
    row per example, or trees of them (`sample` takes a number), further fields and options by name.

    Attributes:
        players: the names of the submodules that learn by losses of their own, in the order of their
            moves within a step; empty for the usual one player that owns every parameter. A game's
            `forward` takes the player as its second argument, and what it provides it provides for each of them.
        decomposable: whether an example's loss depends on that example alone, given the net's outputs. Coupled losses
            (contrastive) say False, and single-example gradients are refused; a net that mixes the rows (batch
            normalization) is found out by itself.
        movable: whether the losses have a gradient in `x`, so that inputs can be moved by it; tokens, and what is
            quantized, have none.
        likelihood: whether the losses are negative log-likelihoods, up to a constant.
        on_policy: whether the loss is right only for batches that the current policy has drawn, so that rows of
            an earlier policy must not be learned from. Whoever acts says it, True or False.
        bootstraps: the discount of its own values of what follows, where it learns towards those as soon as play is
            cut; None where it learns from what was played alone. At 1 such values exist only where episodes end.
        trajectories: whether its rows are whole stretches of play, `(n, time, ...)`, where it acts, since its loss
            belongs to the sequence; else they are single steps.
        episodic: whether a row is an episode, one task with a part to learn from and a part to be judged by: then a
            batch's `support` and `query` are batches themselves, of shape `(episodes, rows, ...)`, `fields` names what
            a row of theirs holds, and the losses are one for each episode. Rows of weight 0 there count for nothing.
        solved: whether `solve` gives parameters and buffers, so that there is no descent.
        solves: how replicas are solved: `each` by itself, side by side; all `together` in one call, which takes and
            gives tensors with the replicas on their leading axis; or `apart`, as runs of their own, where the shapes of
            their solutions may differ.
        adapts: whether `adapt` fits what was trained to a few examples (prototypes, a memory).
        carried: patterns of the names of buffers that go on from step to step (chains, slow copies) and are never
            averaged over groups or processes; others are statistics.
        provides: what `Output` holds beside the losses (`logits`, `features`, `rescore`, `mass`), and `distribution`
            where the method of that name tells what is predicted.
        laws: of what families those distributions are, where it provides them, in torch's names in small letters:
            `categorical`, `bernoulli`, `normal`, `laplace`, `poisson`, `negative binomial`, `gamma`, ...
        fields: what it reads of a batch, in the order of `fit`'s arguments; those after `x`, `y` and `environment` are
            given to `fit` by their names.
            `index` is given by nobody: it is each row's number in the training data.
        kinds: what such a field holds, by name: one of `KINDS`, `classes` being labels in any shape; `values` where
            it says nothing. `y` is what `targets` says, unless it is named here: `classes` for a mask of labels.
        vocabulary: how text becomes tokens, where fields hold those: `characters`, or `byte-pairs(size=512)`.
        columns: how a table is read: as `features` (numbers standardized, one entry for each category, one that says
            what is missing) or as `values` (one entry for each column, for what models `x` itself).
        gaps: whether values may be missing in `x`: they are 0 there, and `observed`, of its shape, is False.
        progress: the measure that says how training goes, and whether it should fall or rise.
        optimizer: the optimizer's name or settings that its paper uses.
        targets: what `y` holds: `classes` (labels to be numbered), `multilabel` (0 or 1 for each label), `values`
            (numbers), `counts` (0, 1, 2, ...) or `amounts` (numbers > 0).
        ordered: whether the order of the classes counts, so that labels without one (text) are refused.
        unlabelled: whether rows to learn from may lack a class: -1 in `y`, as in `sklearn.semi_supervised`.
        class_weight: weights by class label, `balanced`, or None.
        remedies: what to do where a player's loss is no longer finite, by the player's name, in words for the message.
        lowered: the dtype in which its layers compute, where it is a lower one than the parameters'; set by the engine.
    """

    players: ClassVar[tuple[str, ...]] = ()
    decomposable: bool = True
    movable: bool = True
    likelihood: bool = False
    on_policy: bool = False
    bootstraps: float | None = None
    trajectories: bool = False
    episodic: bool = False
    solved: bool = False
    solves: str = "each"
    adapts: bool = False
    carried: tuple[str, ...] = ()
    provides: frozenset[str] = frozenset()
    laws: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ("x", "y")
    kinds: Mapping[str, str] = MappingProxyType({})
    vocabulary: str = "characters"
    columns: str = "features"
    gaps: bool = False
    progress: tuple[str, str] = ("loss", "min")
    optimizer: Any = "adam"
    targets: str = "values"
    ordered: bool = False
    unlabelled: bool = False
    class_weight: Any = None
    remedies: Mapping[str, str] = MappingProxyType({})
    lowered: torch.dtype | None = None

    def build(self, spec: Spec) -> None:
        """Makes the networks, given the names, shapes and dtypes of a batch."""
        raise NotImplementedError(f"{type(self).__name__} does not define build(spec)")

    def forward(self, batch: Batch, player: str = "") -> Output:
        """One loss per example; in a game, the player's."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(batch)")

    def distribution(self, output: Output) -> Any:
        """What the model predicts for each row, from what `forward` gave: a `torch.distributions.Distribution`, or a
        tuple of them for targets that are independent given the row."""
        raise NotImplementedError(
            f"{type(self).__name__} does not tell the distribution that it predicts: define distribution(output) and "
            "name it in provides"
        )

    def solve(self, source: Source, state: State) -> Solution | Iterations:
        """Parameters and buffers by name, where it is solved and not descended: all of them, or those that it finds.

        What `build` made with no elements (`torch.empty(0)`) may be given in any shape, the rest in the shape that it
        has; dtypes stay as they were built. Draws are keyed by `state.key(...)`.

        It may be a generator, which yields a record for each iteration (numbers by name) and returns the solution.
        `yield record, solution` tells the solution so far as well: it is measured, callbacks may end the run there, and
        with `patience` the best is kept; a generator that then returns nothing means the last one. Where `solves` is
        `together`, `state` has all replicas (of a single run, one) on the leading axis, and so have the source's
        batches, each number of a record and each tensor of the solution.
        """
        raise NotImplementedError(f"{type(self).__name__} is descended, not solved: it does not define solve(source)")

    def adapt(self, batch: Batch) -> dict[str, Tensor]:
        """After training, the parameters and buffers by name that a few examples change, where it adapts."""
        raise NotImplementedError(f"{type(self).__name__} does not adapt: it does not define adapt(batch)")

    def survey(self, source: Source, state: State) -> Solution:
        """Buffers by name that the data tell before the first step (a whitening, base rates), where it is descended.

        Asked of each replica whenever a training begins to read a source, so that it may refuse rows that it cannot
        learn from; what it gives counts at the very first step and is kept from then on, also after a resume.
        """
        return {}

    @property
    def surveys(self) -> bool:
        """Whether it looks at the data before the first step: whoever defines `survey` says so."""
        return type(self).survey is not Objective.survey

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        """Raises for rows that it can neither learn from nor say anything about, such as those outside of a support.

        Asked with all rows of the data whenever a training begins to read them (of a source that draws its rows, with
        those of a batch; of episodes, with those of both parts), with those of the validation, and with `x` and what
        comes along of whatever it is asked.

        Args:
            rows: fields by name, without replicas.
            training: whether they are all the rows that it is about to learn from; so much may be asked of them that
                need not be so of a few, as that columns vary.
        """

    @property
    def refuses(self) -> bool:
        """Whether there are rows that it refuses: whoever defines `refuse_rows` says so."""
        return type(self).refuse_rows is not Objective.refuse_rows

    def plays(self, world: Any, **settings: Any) -> Source:
        """The source by which it learns from acting in a world, with what its paper plays; `settings` replace that.

        `Learner.fit(world)` asks it. `world` is what sources that act take: a world of tensors, an id of gymnasium's,
        an environment or a function that makes one, or a list of those, each a group of its own.
        """
        raise TypeError(
            f"expected an objective that says how it plays in a world, got {type(self).__name__}, which does not "
            "define plays(world); give a source that acts: fit(Rollouts(world)) plays whole episodes, Segments(world) "
            "stretches of one length, Replay(world) keeps a memory of steps, DAgger(world, expert) asks for labels"
        )

    @property
    def acts(self) -> bool:
        """Whether it learns by acting in a world: whoever defines `plays` says so."""
        return type(self).plays is not Objective.plays

    def credit(self, batch: Batch) -> Batch:
        """Further fields for rows that were collected together (an advantage over the others), where it acts.

        The rows are as they were played, whatever they are learned from as: `(episodes or environments, time, ...)`.
        """
        return {}

    @property
    def credits(self) -> bool:
        """Whether it learns from rows that were played together: whoever defines `credit` says so."""
        return type(self).credit is not Objective.credit

    def witness(self, batch: Batch) -> Solution:
        """Buffers by name that what was just played changes (running means of what is observed), where it acts.

        Asked once for whatever is played to be learned from, before `credit`, with the same rows; in evaluation mode.
        """
        return {}

    @property
    def witnesses(self) -> bool:
        """Whether it looks at what is played before it learns from it: whoever defines `witness` says so."""
        return type(self).witness is not Objective.witness

    @property
    def remembers(self) -> bool:
        """Whether it acts by what it remembers of an episode: whoever defines `start(count)` says so.

        `start` gives tensors by name, a row for each of so many episodes that begin. Then `sample_action(observation,
        memory=...)` and `act` are given what it remembers and answer `(action, memory)`.
        """
        return callable(getattr(type(self), "start", None))

    def every(self, player: str) -> int:
        """A player moves at every so-many-th step."""
        return 1

    def masses(self, batch: Batch) -> Tensor:
        """How much each row counts of itself, where it provides that."""
        mass = self(batch).mass
        if mass is None:
            raise ValueError(f"expected Output of {type(self).__name__} to hold 'mass', as provides says, got None")
        return mass

    def project(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The parameters by name, those that live on a set (non-negative, of unit norm) put back on it.

        Asked at the beginning and after each step of what has moved, as a strategy has amended it. It may give only
        those that it puts back, computes with tensors alone, and gives back what is on the set already.
        """
        return params

    @property
    def projects(self) -> bool:
        """Whether some parameters live on a set: whoever defines `project` says so."""
        return type(self).project is not Objective.project

    def measure(self, batch: Batch) -> Mapping[str, Tensor | Corpus]:
        """What to report of a batch, by name: a value for each row, whose mean is reported; already one number, which
        counts by the rows; or a `Corpus`, for what is no mean over rows."""
        if self.players:
            return {f"{player}_loss": self(batch, player).losses for player in self.players}
        return {"loss": self(batch).losses}

    def warns(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """What whoever has trained it should know at the end, by what was recorded: measures and step (with replicas an
        array of each, a number for every one)."""
        return None

    def capabilities(self) -> dict[str, Capability]:
        """The methods that a Learner offers once trained."""
        marked = _marks.get(self)
        if marked is None:
            marked = _marks[self] = _marked(type(self))
        return dict(marked)

    def holds(self, name: str) -> str:
        """What a field holds."""
        return self.kinds.get(name, self.targets if name == "y" else "values")

    @property
    def companions(self) -> tuple[str, ...]:
        """Fields that come along with those that it reads: which entries of x are observed, how long rows are."""
        lengths = tuple(f"{name}_length" for name in self.fields if self.holds(name) in RAGGED)
        return (*(("observed",) if self.gaps else ()), *lengths)

    def orders(self, name: str) -> bool:
        """Whether the order of a field's classes counts."""
        return name == "y" and self.ordered

    def declares(self, trait: str) -> bool:
        """Whether it says a trait itself, in place of the default that every objective has."""
        own = (vars(cls) for cls in type(self).__mro__[: type(self).__mro__.index(Objective)])
        return trait in vars(self) or any(trait in said for said in own)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "solve" in vars(cls) and not cls.solved:
            raise TypeError(f"expected {cls.__name__}, which defines solve, to say solved = True, got False")
        if "adapt" in vars(cls) and not cls.adapts:
            raise TypeError(f"expected {cls.__name__}, which defines adapt, to say adapts = True, got False")
        if cls.adapts is True and cls.adapt is Objective.adapt:
            raise TypeError(f"expected {cls.__name__}, which says adapts = True, to define adapt(batch), got none")

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        own = ((name, dict(kept) if name in _HELD else kept) for name, kept in vars(self).items())
        vars(twin).update(own)  # else a copy with another part would put it into the first as well
        return twin

    def __repr__(self) -> str:
        return Configured.__repr__(self)


_marks: WeakKeyDictionary[Objective, dict[str, Capability]] = WeakKeyDictionary()  # looked up once for each


def _marked(own: type) -> dict[str, Capability]:
    """The methods that a class marks or inherits, in the order of their names."""
    marked: dict[str, Capability] = {}
    for cls in reversed(own.__mro__):
        for name, method in vars(cls).items():
            mark = getattr(method, "capability", None)
            if isinstance(mark, Capability):
                marked[name] = mark
            elif method is None:
                marked.pop(name, None)
    return dict(sorted(marked.items()))


_HELD = ("_modules", "_parameters", "_buffers")
