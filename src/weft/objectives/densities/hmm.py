"""Hidden Markov models of tokens and of numbers over time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Iterations, Solution, capability
from weft.core.random import fold, uniform, unit
from weft.core.source import Batch, Field, Source, Spec
from weft.core.state import State
from weft.objectives.densities.chains import Chain, best_path, drawn_path
from weft.objectives.densities.emissions import Correlated, Emissions, Independent, Tokens, log_shares
from weft.objectives.densities.laws import laws_of
from weft.objectives.densities.sequences import SequenceDensity, chosen_far_apart, inside, rising, widened

__all__ = ["HMM"]


class HMM(SequenceDensity):
    """A chain of hidden states, each of which shows what is seen by a law of its own.

        p(x_1..x_T) = sum over z_1..z_T of a(z_1) b(x_1 | z_1) prod_{t > 1} A(z_{t-1}, z_t) b(x_t | z_t)

    The sum is exact, by the forward recursion in log space (`chains.py`). `inference="em"` is Baum and Welch's
    algorithm, from a start that is drawn for each replica, so that `replicas=50` are fifty restarts in one call;
    `inference="gradient"` descends to the same parameters: the logits of start and moves, and the law's numbers.

    A row is a sequence: text or token numbers for `law="categorical"`, else an array, `(length,)` or `(length, d)`, in
    which NaN is a gap (with `covariance="diagonal"`): what is missing is summed out exactly. Densities are given the
    length.

    Args:
        states: how many.
        law: of what is seen: `categorical` (tokens), `normal`, `student` (by gradient only), `bernoulli` or `poisson`.
        covariance: of `normal`: `diagonal`, or `full`.
        inference: `em` or `gradient`.
        iterations: of EM, at most.
        tolerance: EM ends where an iteration raises the log-likelihood of a step by less than this, on the mean.
        floor: what is added to variances in EM, in squared units of x.
        prior: how often EM imagines to have seen each start, move and token beside the data.

    References:
        Baum, Petrie, Soules and Weiss, "A maximization technique occurring in the statistical analysis of probabilistic
        functions of Markov chains", Annals of Mathematical Statistics 41, 1970; Rabiner, "A tutorial on hidden Markov
        models and selected applications in speech recognition", Proceedings of the IEEE 77, 1989.

    Example:
        >>> from weft import Learner
        >>> hmm = Learner(HMM(states=2), random_state=0).fit(["aaabbbbaaaa", "bbbaaaaabb", "aabbbbb"])
        >>> hmm.log_prob(["aabb"]).round(2), hmm.decode(["aabb"])[0, :4]
        (array([-2.32]), array([1, 1, 0, 0]))
    """

    solves = "together"
    space = {"states": Range(2, 12, whole=True)}
    legal = {
        "states": Whole(1),
        "law": Choice("categorical", "normal", "student", "bernoulli", "poisson"),
        "covariance": Choice("diagonal", "full"),
        "inference": Choice("em", "gradient"),
        "iterations": Whole(1),
        "tolerance": Number(0),
        "floor": Number(0),
        "prior": Number(0),
    }

    def __init__(
        self,
        states: int = 2,
        *,
        law: str = "categorical",
        covariance: str = "diagonal",
        inference: str = "em",
        iterations: int = 200,
        tolerance: float = 1e-6,
        floor: float = 1e-6,
        prior: float = 0.0,
    ) -> None:
        super().__init__()
        self.states = states
        self.law = law
        self.covariance = covariance
        self.inference = inference
        self.iterations = iterations
        self.tolerance = tolerance
        self.floor = floor
        self.prior = prior

    @property
    def solved(self) -> bool:  # type: ignore[override]
        return self.inference == "em"

    @property
    def kinds(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"x": "tokens" if self.law == "categorical" else "sequences"}

    @property
    def gaps(self) -> bool:  # type: ignore[override]
        return self.law != "categorical" and self.covariance == "diagonal"

    def build(self, spec: Spec) -> None:
        if self.inference == "em" and self.law == "student":
            raise ValueError(
                "expected a law with a maximum in closed form for inference='em', got 'student'; take "
                "inference='gradient', or law='normal'"
            )
        if self.covariance == "full" and self.law != "normal":
            raise ValueError(
                f"expected covariance='diagonal' for the law {self.law!r}, got 'full', which is of 'normal' alone"
            )
        field = spec["x"]
        self.longest, self.single = field.shape[0], len(field.shape) == 1
        self.emissions = self._emissions(field)
        self.start = nn.Parameter(torch.zeros(self.states))
        self.moves = nn.Parameter(torch.zeros(self.states, self.states))
        self.seen_by = nn.Parameter(torch.zeros(self.states, self.emissions.size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Where a descent begins: states that rather stay, with laws at random."""
        self.start.zero_()
        self.moves.normal_(std=0.1).diagonal().add_(1.0)
        self.seen_by.normal_()

    def _emissions(self, field: Field) -> Emissions:
        if self.law == "categorical":
            if field.classes is None:
                raise ValueError("expected the number of tokens in the source, got none; Arrays(..., classes={'x': k})")
            return Tokens(field.classes)
        entries = 1 if self.single else field.shape[1]
        if self.covariance == "full":
            return Correlated(entries)
        return Independent(laws_of(Field((entries,), field.dtype), self.law))

    def refuse_rows(self, rows: Batch, *, training: bool) -> None:
        super().refuse_rows(rows, training=training)
        if isinstance(self.emissions, Independent) and "x_length" in rows:
            x = rows["x"]
            within = inside(rows["x_length"], x.shape[1]).reshape(*x.shape[:2], *[1] * (not self.single))
            seen, steps = within & rows.get("observed", torch.ones_like(x) > 0), (-1, len(self.emissions.laws))
            self.emissions.laws.refuse(x.reshape(steps), seen.reshape(steps))

    # --- the joint density ----------------------------------------------------------------------------------

    def _chain(
        self, theta: Solution, x: Tensor, length: Tensor, observed: Tensor | None, *, best: bool = False
    ) -> Chain:
        """The chain of parameters `(..., K)` beside what is seen, `(..., n, L[, d])`."""
        axis = length.dim() - 1
        n, steps = x.shape[axis : axis + 2]
        flat = None if observed is None else observed.flatten(axis, axis + 1)
        scores = self.emissions.score(theta["seen_by"], x.flatten(axis, axis + 1), flat).unflatten(-1, (n, steps))
        within = inside(length, steps).movedim(-1, 0).unsqueeze(-2)
        seen = torch.where(within, scores.movedim(-1, 0), 0.0).contiguous()
        start, moves = theta["start"].log_softmax(-1), theta["moves"].log_softmax(-1)
        return Chain(start, moves, seen, within, torch.amax if best else torch.logsumexp)

    def _asked(self, x: Tensor, length: Tensor, observed: Tensor | None, *, best: bool = False) -> Chain:
        x, observed = self.seen(x, length, observed)
        return self._chain(self._theta(), x, length, observed, best=best)

    def _theta(self) -> Solution:
        return {"start": self.start.double(), "moves": self.moves.double(), "seen_by": self.seen_by.double()}

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None) -> Tensor:
        """log p of each sequence given its length, in nats."""
        return self._asked(x, x_length, observed).evidence()

    def free_parameters(self) -> int:
        """Start, moves and laws."""
        return self.states - 1 + self.states * (self.states - 1) + self.states * self.emissions.free

    # --- Baum and Welch ---------------------------------------------------------------------------------------

    def solve(self, source: Source, state: State) -> Iterations:
        """EM from a start drawn for each replica, until each gains too little."""
        x, length, observed, weight = self.everything(source, state)
        self.refuse_steps(x, length, observed, self.states)
        steps = (weight * length).sum(-1)

        def improve(theta: Solution) -> tuple[Tensor, Solution]:
            level, new = self.improve(theta, x, length, observed, weight)
            return level / steps, new

        begun = self._begin(x, length, observed, weight, state.key("start"))
        return (yield from rising(improve, begun, self.iterations, self.tolerance))

    def improve(
        self, theta: Solution, x: Tensor, length: Tensor, observed: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Solution]:
        """An iteration: the log-likelihood of all rows, and the parameters that come next."""
        evidence, each, moved = self._chain(theta, x, length, observed).posterior(weight)
        each = each * weight.unsqueeze(-2)
        new = self._estimate(x, observed, each.movedim(0, -1), moved, each[0].sum(-1))
        empty = each.sum((0, -1)) < 1e-8  # a state that nothing is left for stays as it was
        new["seen_by"] = torch.where(empty.unsqueeze(-1), theta["seen_by"], new["seen_by"])
        return (weight * evidence).sum(-1), new

    def _estimate(self, x: Tensor, observed: Tensor | None, each: Tensor, moved: Tensor, begun: Tensor) -> Solution:
        """The likeliest parameters where states have shares `(..., K, n, L)` in the steps."""
        flat = None if observed is None else observed.flatten(1, 2)
        seen_by = self.emissions.estimate(x.flatten(1, 2), each.flatten(-2), flat, self.floor, self.prior)
        return {"start": log_shares(begun + self.prior), "moves": log_shares(moved + self.prior), "seen_by": seen_by}

    def _begin(self, x: Tensor, length: Tensor, observed: Tensor | None, weight: Tensor, key: Tensor) -> Solution:
        """Shares of the states in the steps, drawn: by the nearest of some steps, of tokens by chance."""
        within = inside(length, x.shape[2])
        if not x.is_floating_point():
            chance = unit(fold(key, "tokens"), (self.states, self.emissions.size), torch.float64)
            parts = -torch.log1p(-chance)  # so that each token's shares are uniform over the simplex
            each = (parts / parts.sum(-2, keepdim=True)).gather(-1, _beside(x, self.states)).unflatten(-1, x.shape[1:])
        else:
            known = within.unsqueeze(-1).expand(x.shape) if observed is None else within.unsqueeze(-1) & observed
            count = known.sum((1, 2), keepdim=True)
            mean = (x * known).sum((1, 2), keepdim=True) / count
            scale = (((x - mean) * known).square().sum((1, 2), keepdim=True) / count).sqrt()
            z = torch.where(known, (x - mean) / scale, 0.0).flatten(1, 2)
            seeds = chosen_far_apart(z, within.flatten(1), self.states, fold(key, "far apart"))
            nearest = torch.cdist(z, seeds).argmin(-1, keepdim=True)
            each = (nearest == torch.arange(self.states, device=x.device)).double().mT.unflatten(-1, x.shape[1:3])
        each = each * (within * weight.unsqueeze(-1)).unsqueeze(1)
        chance = unit(fold(key, "moves"), (self.states, self.states), torch.float64)
        moved = -torch.log1p(-chance) + torch.eye(self.states, dtype=torch.float64, device=x.device)
        return self._estimate(x, observed, each, moved, torch.ones_like(moved[..., 0]))

    # --- what one can ask -------------------------------------------------------------------------------------

    @capability(merge="share", kind="sequential")
    def sample(self, n: int, length: int | None = None) -> Tensor:
        """Sequences of one length, by default that of the longest in training."""
        states = self._walk(self.start.double().softmax(-1).expand(n, -1), self.long(length, "length", self.longest))
        return self._shown(states, "x")

    @capability(merge="refuse")
    def decode(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None) -> Tensor:
        """The likeliest path of states of each sequence (Viterbi), -1 after its end."""
        path = best_path(self._asked(x, x_length, observed, best=True))
        return widened(path.T, x.shape[1], -1)

    @capability(merge="refuse", kind="exact")
    def smooth(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None) -> Tensor:
        """p(state | the whole sequence) at every step, `(n, L, K)`, 0 after its end."""
        _, each, _ = self._asked(x, x_length, observed).posterior()
        return widened(each.permute(2, 0, 1), x.shape[1])

    @capability(merge="refuse", kind="exact", gives="")
    def forecast(
        self, x: Tensor, x_length: Tensor, observed: Tensor | None = None, steps: int = 1
    ) -> dict[str, Tensor]:
        """What comes after each sequence, step by step, by the exact predictive law.

        Args:
            x, x_length, observed: the sequences.
            steps: how many.

        Returns:
            `mean` and `variance` of each number, `(n, steps[, d])`; of tokens the `probability` of each,
            `(n, steps, k)`, and the likeliest `token`.
        """
        share, moves, ahead = self._now(x, x_length, observed), self.moves.double().softmax(-1), []
        for _ in range(self.long(steps, "steps")):
            share = share @ moves
            ahead.append(share)
        shares, theta = torch.stack(ahead, 1), self.seen_by.double()
        if isinstance(self.emissions, Tokens):
            probability = shares @ theta.softmax(-1)
            return {"token": probability.argmax(-1), "probability": probability}
        mean, variance = self.emissions.moments(theta)
        middle = shares @ mean
        spread = shares @ variance + torch.einsum("nsk,nskd->nsd", shares, (mean - middle.unsqueeze(2)).square())
        return {"mean": self.plain(middle), "variance": self.plain(spread)}

    @capability(merge="share", kind="sequential", asks="rows", gives="x")
    def forecast_sample(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None, steps: int = 1) -> Tensor:
        """One continuation of each sequence, drawn, `(n, steps[, d])`; `steps` says how long."""
        share = self._now(x, x_length, observed) @ self.moves.double().softmax(-1)
        return self._shown(self._walk(share, self.long(steps, "steps")), "continuation")

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, x_length: Tensor, observed: Tensor | None = None) -> Tensor:
        """The rows with their gaps drawn from what is missing given what is observed."""
        if observed is None:
            raise ValueError(
                f"expected a model of sequences with gaps, got HMM(law={self.law!r}, covariance={self.covariance!r}), "
                "which has none; there is nothing to impute"
            )
        chain = self._asked(x, x_length, observed)
        u = uniform((len(x), len(chain.seen)), place="states", dtype=torch.float64)
        drawn = widened(self._shown(drawn_path(chain, u.T).T, "gaps"), x.shape[1])
        missing = inside(x_length, x.shape[1]).reshape(*x.shape[:2], *[1] * (x.dim() - 2)) & ~observed
        return torch.where(missing, drawn.to(x.dtype), x)

    def _now(self, x: Tensor, length: Tensor, observed: Tensor | None) -> Tensor:
        """p(the last state | x), `(n, K)`."""
        return self._asked(x, length, observed).forward()[-1].softmax(-2).T

    def _walk(self, first: Tensor, steps: int) -> Tensor:
        """States drawn one after another, `(n, steps)`, from the shares of the first."""
        u = uniform((len(first), steps), place="states", dtype=torch.float64)
        below = self.moves.double().softmax(-1).cumsum(-1)[:, :-1]
        path = [(u[:, :1] >= first.cumsum(-1)[:, :-1]).sum(-1)]
        for t in range(1, steps):
            path.append((u[:, t : t + 1] >= below[path[-1]]).sum(-1))
        return torch.stack(path, 1)

    def _shown(self, states: Tensor, place: str) -> Tensor:
        """What states `(n, L)` show, drawn."""
        drawn = self.emissions.draw(self.seen_by[states], place)
        return drawn if isinstance(self.emissions, Tokens) else self.plain(drawn)


def _beside(x: Tensor, states: int) -> Tensor:
    """Tokens `(replicas, n, L)` for each state, `(replicas, K, n * L)`."""
    return x.long().flatten(1).unsqueeze(1).expand(-1, states, -1)
