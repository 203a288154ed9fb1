"""What models of token sequences share: the probability of a row is that of each token given those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.corpus import Corpus
from weft.core.legal import Flag, Legal, Number, Whole
from weft.core.objective import Output, capability
from weft.core.random import categorical, turns
from weft.core.source import Batch, Spec
from weft.core.vocabulary import VOCABULARY
from weft.nets.causal import Causal, make_causal
from weft.nets.make import NetLike
from weft.objectives.densities.density import Density
from weft.objectives.densities.sequences import inside, readable

__all__ = ["CAUSAL", "TokenDensity", "nats_a_token"]


class _Causal(Legal):
    words = "a causal nn.Module, a factory of (inputs, outputs) or None"

    def kind(self, value: object) -> bool:
        return value is None or (callable(value) and not isinstance(value, str))


CAUSAL = _Causal()
"""What a net may be."""


class TokenDensity(Density):
    """p(x) = prod_t p(x_t | x_1, ..., x_(t-1)), with any causal net for the conditionals.

    A row is text or a list of token numbers, of any length. With `ends`, a row is whole: after its last token an end is
    predicted as well, so that all texts of all lengths together have probability one. Without, what comes after the row
    is left open (windows of a long text), and the rows of each length have probability one.

    A model writes `connect(inputs, outputs, steps)`, which makes its net. A row counts by its tokens: the loss is its
    nats a token, its end among them.

    Args:
        net: a causal net of one's own, `(n, T, width)` to `(n, T, outputs)`, or a factory of `(inputs, outputs)`; see
            `weft.nets.causal.Causal`.
        width: of the vectors that stand for tokens.
        ends: whether rows are whole.
        context: the most tokens that a row may have; None for no bound, or for what the net can do.
        conditional: whether it is p(x | y), of rows with a class each: a vector for each class is added at every step.
        vocabulary: how text becomes tokens: `characters`, or `byte-pairs(size=512)`, learned from the rows.

    Attributes:
        symbols: how many tokens there are. A token of this number stands before every row, and is the end.
    """

    kinds: Mapping[str, str] = {"x": "tokens"}
    columns = "features"
    targets = "classes"
    movable = False
    provides = frozenset({"mass"})
    spread = 1.0  # the deviation that tokens' vectors begin with
    symbols: int
    legal = {
        "net": CAUSAL,
        "width": Whole(1),
        "ends": Flag(),
        "context": Whole(1) | None,
        "conditional": Flag(),
        "vocabulary": VOCABULARY,
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        width: int = 128,
        ends: bool = True,
        context: int | None = None,
        conditional: bool = False,
        vocabulary: str = "characters",
    ) -> None:
        super().__init__()
        self.net = net
        self.width = width
        self.ends = ends
        self.context = context
        self.conditional = conditional
        self.vocabulary = vocabulary

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("x", "y") if self.conditional else ("x",)

    def build(self, spec: Spec) -> None:
        self.symbols = self._count(spec)
        self.longest = int(spec["x"].shape[0])  # of training
        given = int(spec["y"].classes or 0) if self.conditional else 0
        if self.conditional and not given:
            raise ValueError(
                f"expected the number of classes for {type(self).__name__}(conditional=True), got none in the source's "
                "spec; give classes=... to it"
            )
        self.embed = nn.Embedding(self.symbols + 1, self.width)
        self.given = nn.Embedding(given, self.width) if given else None
        steps = (self.context or self.longest) + self.ends
        self.net = make_causal(
            self.net,  # type: ignore[arg-type]
            lambda i, o: self.connect(i, o, steps),
            self.width,
            self.symbols + self.ends,
            steps,
        )
        self.reset_parameters()

    def _count(self, spec: Spec) -> int:
        if not spec["x"].classes:
            raise ValueError("expected the number of tokens in the source, got none; Arrays(..., classes={'x': k})")
        return spec["x"].classes

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The vectors of tokens and classes; the net has its own."""
        for vectors in (self.embed, self.given):
            if vectors is not None:
                vectors.weight.normal_(std=self.spread)

    def connect(self, inputs: int, outputs: int, steps: int) -> Causal:
        """The net, for rows of at most so many steps."""
        raise NotImplementedError(f"{type(self).__name__} does not define connect(inputs, outputs, steps)")

    # --- the density ------------------------------------------------------------------------------------

    def encode(self, x: Tensor) -> Tensor:
        """Rows as token numbers."""
        return x

    def decode(self, tokens: Tensor) -> Tensor:
        """Token numbers as rows."""
        return tokens

    def read(self, tokens: Tensor, y: Tensor | None) -> Tensor:
        """Tokens `(n, ...)` as the net reads them, `(n, ..., width)`, with their class."""
        if self.conditional != (y is not None):
            got = "none" if y is None else "one"
            fix = "give y=..." if y is None else "leave it out, or make it with conditional=True"
            raise ValueError(
                f"expected {'a' if self.conditional else 'no'} class y for each row of {type(self).__name__}"
                f"(conditional={self.conditional}), got {got}; {fix}"
            )
        vectors = self.embed(tokens)
        if self.given is None or y is None:
            return vectors
        return vectors + self.given(y).reshape(len(y), *[1] * (tokens.dim() - 1), -1)

    def logits(self, tokens: Tensor, y: Tensor | None = None) -> Tensor:
        """Of each next token given those before, `(n, T, symbols)`; with `ends` T + 1 of them, the end among all."""
        begin = torch.full_like(tokens[:, :1] if tokens.shape[1] else tokens.new_zeros(len(tokens), 1), self.symbols)
        before = torch.cat([begin, tokens if self.ends else tokens[:, :-1]], 1)
        answer: Tensor = self.net(self.read(before, y))  # type: ignore[operator, misc, assignment]
        return answer

    def nats(self, x: Tensor, length: Tensor, y: Tensor | None) -> Tensor:
        """-log p of each token, and with `ends` of the end behind them: `(n, T)`, 0 after a row's own."""
        goal = self.encode(x)
        counted = inside(length + self.ends, goal.shape[1] + self.ends)
        goal = torch.where(inside(length, goal.shape[1]), goal, 0)
        logits = self.logits(goal, y)
        if self.ends:
            goal = F.pad(goal, (0, 1))
            goal = torch.where(inside(length, goal.shape[1]), goal, self.symbols)
        each = F.cross_entropy(logits.flatten(0, 1), goal.flatten(), reduction="none").reshape(goal.shape)
        return torch.where(counted, each, 0)

    def forward(self, batch: Batch, player: str = "") -> Output:
        mass = self.masses(batch)
        nats = self.nats(batch["x"], self._length(batch), batch["y"] if self.conditional else None)
        return Output(nats.sum(-1) / mass, mass=mass)

    def masses(self, batch: Batch) -> Tensor:
        return (self._length(batch) + self.ends).clamp_min(1)

    def _length(self, batch: Batch) -> Tensor:
        if "x_length" not in batch:
            raise ValueError(
                f"expected rows with their lengths for {type(self).__name__}, got none; give a list of them, or a "
                "source with the field 'x_length'"
            )
        length: Tensor = batch["x_length"]
        return length

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, x_length: Tensor, y: Tensor | None = None) -> Tensor:
        """log p of each row, in nats: its end included with `ends`, given its length without."""
        return -self.nats(x, x_length, y).sum(-1)

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        """Nats a token, and with characters bits a character, of all rows together: ends cost, and are no character."""
        length, output = self._length(batch), self(batch)
        nats = output.losses * output.mass
        told: dict[str, Tensor | Corpus] = {"loss": output.losses}
        told["nats_per_token"] = Corpus(sums={"nats": nats, "tokens": output.mass}, conclude=nats_a_token)
        if self.holds("x") == "tokens" and self.vocabulary == "characters":
            told["bits_per_character"] = Corpus(sums={"nats": nats, "tokens": length}, conclude=bits_a_token)
        return told

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        length = rows.get("x_length")
        if length is None:
            return
        most = self._most()
        if most is not None and bool((length > most).any()):
            row = int(torch.nonzero(length > most)[0, 0])
            raise ValueError(
                f"expected rows of at most {most} tokens, the context of {type(self).__name__}, got {int(length[row])} "
                f"in row {row}; cut them, or make it with context={int(length.max())}"
            )
        if training and not self.ends and bool((length == 0).any()):
            raise ValueError(
                f"expected rows of at least one token for {type(self).__name__}, got "
                f"{int((length == 0).sum())} without any; leave them out"
            )

    def _most(self) -> int | None:
        """How many tokens a row may have."""
        own = self.net.context if isinstance(self.net, Causal) else None
        able = [m for m in (self.context, None if own is None else own - self.ends) if m is not None]
        return min(able, default=None)

    # --- draws ------------------------------------------------------------------------------------------

    @capability(merge="share", kind="sequential", gives="x", texts=("prefix",))
    def sample(
        self,
        n: int,
        y: Tensor | None = None,
        *,
        length: int | None = None,
        prefix: tuple[float, ...] = (),
        temperature: float = 1.0,
        top_k: int | None = None,
        cached: bool = True,
    ) -> Any:
        """Rows drawn token by token.

        Args:
            n: how many.
            y: the class of each, of a conditional model.
            length: how many tokens a row has, with `ends` at most; as many as the longest of training by default.
            prefix: what all of them begin with: text where rows are text, else a tuple.
            temperature: each token is drawn in proportion to p^(1 / temperature): below 1 nearer to the likeliest.
            top_k: among how many of the likeliest; None for all.
            cached: whether what is known is kept from step to step; the draws are the same.
        """
        steps = self._steps(length, "length", min(self.longest, self._most() or self.longest))
        x = self._prefix(prefix).expand(n, -1)
        given = x.shape[1]
        if given >= steps:
            raise ValueError(
                f"expected a prefix shorter than the length, {steps}, got {given} tokens; give length={given + 1} or "
                "more"
            )
        long = torch.full((n,), given, device=x.device)
        tokens, size = self._drawn(x, long, y, steps - given, temperature, top_k, cached)
        return {"x": self.decode(tokens), "x_length": size} if self.ends else self.decode(tokens)

    @capability(merge="share", kind="sequential", asks="rows", gives="x")
    def generate(
        self,
        x: Tensor,
        x_length: Tensor,
        y: Tensor | None = None,
        *,
        length: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        cached: bool = True,
    ) -> Any:
        """Rows that go on from where prompts end, by so many tokens, with `ends` at most.

        By default by 16, or as many as the context leaves room for; the other options are those of `sample`.
        """
        steps, most = self._steps(length, "length", 16), self._most()
        if length is None and most is not None:
            steps = max(0, min(steps, most - _longest(x_length)))
        tokens, size = self._drawn(self.encode(x), x_length, y, steps, temperature, top_k, cached)
        return {"x": self.decode(tokens), "x_length": size}

    def _steps(self, asked: int | None, name: str, usual: int) -> int:
        steps = usual if asked is None else asked
        Whole(1).check(steps, f"{name} of what is asked of {type(self).__name__}")
        return int(steps)

    def _prefix(self, prefix: tuple[float, ...]) -> Tensor:
        """Tokens that all rows begin with, `(1, length)`."""
        device = self.embed.weight.device
        if isinstance(prefix, str) or not isinstance(prefix, tuple):
            raise TypeError(
                f"expected a prefix as a tuple of token numbers 0..{self.symbols - 1}, as rows were no text, got "
                f"{prefix!r}"
            )
        wrong = [k for k in prefix if not Whole(0, self.symbols - 1).allows(k)]
        if wrong:
            raise ValueError(f"expected a prefix of token numbers 0..{self.symbols - 1}, got {wrong[0]!r}")
        return torch.tensor([prefix], dtype=torch.int64, device=device).reshape(1, -1)

    def _drawn(
        self,
        x: Tensor,
        length: Tensor,
        y: Tensor | None,
        more: int,
        temperature: float,
        top_k: int | None,
        cached: bool,
    ) -> tuple[Tensor, Tensor]:
        """Tokens that go on after so many of each row, and how many there are then.

        All rows go from step to step together: where one has a token it is read, where it has none one is drawn.
        """
        Number(0, ends="(]").check(temperature, "the temperature")
        if top_k is not None:
            Whole(1, self.symbols + self.ends).check(top_k, "top_k")
        first, steps, most = int(_bare(length).min()), _longest(length) + more, self._most()
        if most is not None and steps > most:
            raise ValueError(
                f"expected at most {most} tokens, the context of {type(self).__name__}, got {steps}, of which {more} "
                "are to be drawn; ask for fewer, or give shorter prompts"
            )
        begin, advance = self._ways(cached)
        token = torch.full_like(length, self.symbols)
        size, ended = length, torch.zeros_like(length, dtype=torch.bool)
        kept: Any = None
        rows: list[Tensor] = []
        for t in turns("token", steps, ahead=True):
            step = self.read(token, y)
            kept = begin(step, steps) if kept is None else kept
            logits = advance(step, kept)
            if t < first:  # of every row it is known
                token = x[:, t]
            else:
                new = categorical(tempered(logits, float(temperature), top_k), place="x")
                drawn = t >= length
                token = torch.where(drawn, new, x[:, t]) if t < x.shape[1] else new
                ended = ended | (drawn & ((new == self.symbols) | (t >= length + more)))
                size = size + (drawn & ~ended)
            rows.append(torch.where(ended, 0, token))
            if readable(ended) and bool(ended.all()):
                break
        found = torch.stack(rows, 1) if rows else x[:, :0]
        return F.pad(found, (0, x.shape[1] + more - found.shape[1])), size  # as wide as that of any other rows

    def _ways(self, cached: bool) -> tuple[Callable[..., Any], Callable[..., Tensor]]:
        """How to go from step to step: by what is kept, or by all steps anew."""
        net: Any = self.net
        if cached and isinstance(net, Causal):
            return net.begin, net.advance
        return lambda like, steps: [], lambda x, kept: Causal.advance(net, x, kept)


def tempered(logits: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """Logits in proportion to p^(1 / temperature), those that are not among the k largest at -infinity.

    >>> tempered(torch.tensor([1.0, 3.0, 2.0]), 0.5, 2)
    tensor([-inf, 6., 4.])
    """
    logits = logits / temperature
    if top_k is None:
        return logits
    return torch.where(logits < logits.topk(top_k, -1).values[..., -1:], -math.inf, logits)


def _longest(length: Tensor) -> int:
    return int(_bare(length).max())


def _bare(tensor: Tensor) -> Tensor:
    """A tensor's own numbers, those of all replicas that are asked at once."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def nats_a_token(sums: Mapping[str, Tensor]) -> Tensor:
    """Of a corpus."""
    return sums["nats"] / sums["tokens"]


def bits_a_token(sums: Mapping[str, Tensor]) -> Tensor:
    """Of a corpus."""
    return sums["nats"] / sums["tokens"] / math.log(2)
