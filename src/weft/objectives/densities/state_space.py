"""The linear-Gaussian state space model."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Iterations, Solution, capability
from weft.core.random import fold, gauss, normal
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.emissions import factor
from weft.objectives.densities.kalman import Filtered, Linear, drawn, filtered, smoothed
from weft.objectives.densities.sequences import SequenceDensity, inside, rising, widened

__all__ = ["StateSpace"]


class StateSpace(SequenceDensity):
    """A hidden state that moves linearly under Gaussian shocks and is seen through linear, noisy eyes.

        z_1 ~ N(m, P),    z_t = A z_{t-1} + N(0, Q),    x_t = C z_t + c + N(0, diag s^2)

    The likelihood is exact, by Kalman's filter in square roots (`kalman.py`). `inference="em"` alternates the smoother
    and regressions in closed form, from a start drawn for each replica; `inference="gradient"` descends to the same
    parameters. A row is a sequence of numbers, `(length,)` or `(length, d)`; NaN is a gap, of a whole step or of a
    single number, and is integrated out exactly. Densities are given the length. States are known up to a linear map.

    Args:
        states: the dimension of z.
        inference: `em` or `gradient`.
        iterations: of EM, at most.
        tolerance: EM ends where an iteration raises the log-likelihood of a step by less than this, on the mean.
        floor: what is added to variances in EM.

    References:
        Shumway and Stoffer, "An approach to time series smoothing and forecasting using the EM algorithm", Journal of
        Time Series Analysis 3, 1982; Ghahramani and Hinton, "Parameter estimation for linear dynamical systems",
        University of Toronto, 1996.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> walk = np.random.default_rng(0).normal(size=(20, 30)).cumsum(1)
        >>> model = Learner(StateSpace(states=1, iterations=20), random_state=0).fit(walk)
        >>> ahead = model.forecast(walk[:1], steps=3)
        >>> ahead["mean"].shape, bool((np.diff(ahead["variance"]) > 0).all())
        ((1, 3), True)
    """

    kinds = MappingProxyType({"x": "sequences"})
    gaps = True
    solves = "together"
    space = {"states": Range(1, 8, whole=True)}
    legal = {
        "states": Whole(1),
        "inference": Choice("em", "gradient"),
        "iterations": Whole(1),
        "tolerance": Number(0),
        "floor": Number(0),
    }

    def __init__(
        self,
        states: int = 2,
        *,
        inference: str = "em",
        iterations: int = 100,
        tolerance: float = 1e-5,
        floor: float = 1e-6,
    ) -> None:
        super().__init__()
        self.states = states
        self.inference = inference
        self.iterations = iterations
        self.tolerance = tolerance
        self.floor = floor

    @property
    def solved(self) -> bool:  # type: ignore[override]
        return self.inference == "em"

    def build(self, spec: Spec) -> None:
        self.longest, self.single = spec["x"].shape[0], len(spec["x"].shape) == 1
        entries = 1 if self.single else spec["x"].shape[1]
        square = (self.states, self.states)
        self.moves, self.shock, self.spread = (nn.Parameter(torch.zeros(square)) for _ in range(3))
        self.start = nn.Parameter(torch.zeros(self.states))
        self.loading = nn.Parameter(torch.zeros(entries, self.states))
        self.offset, self.log_scale = (nn.Parameter(torch.zeros(entries)) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Where a descent begins: states that fade slowly, seen at random."""
        for parameter in self.parameters():
            parameter.zero_()
        self.moves.diagonal().fill_(0.9)
        self.loading.normal_(std=0.5)

    def _model(self, theta: Solution | None = None) -> Linear:
        given = dict(self.named_parameters()) if theta is None else theta
        double = {name: value.double() for name, value in given.items()}
        return Linear(**{**double, "shock": factor(double["shock"]), "spread": factor(double["spread"])})

    def _asked(self, x: Tensor, length: Tensor, observed: Tensor) -> tuple[Linear, Filtered]:
        steps, seen = self.seen(x, length, observed)
        model = self._model()
        return model, filtered(model, steps, self._within(length, steps, seen))

    def _within(self, length: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """What is seen, before the end."""
        before = inside(length, x.shape[-2]).unsqueeze(-1)
        return before.expand(x.shape) if observed is None else before & observed

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor, observed: Tensor, x_length: Tensor) -> Tensor:
        """log p of each sequence given its length, of what is observed of it, in nats."""
        return self._asked(x, x_length, observed)[1].evidence

    def free_parameters(self) -> int:
        """All numbers, less those of a linear map of the states, which changes nothing."""
        z, d = self.states, len(self.offset)
        return z * z + z * (z + 1) + z + d * z + 2 * d - z * z

    # --- EM -----------------------------------------------------------------------------------------------------

    def solve(self, source: Source, state: State) -> Iterations:
        """EM from a start drawn for each replica, until each gains too little."""
        x, length, observed, weight = self.everything(source, state)
        self.refuse_steps(x, length, observed, self.states)
        within = self._within(length, x, observed)
        x = torch.where(within, x, 0.0)
        steps = (weight * length).sum(-1)

        def improve(theta: Solution) -> tuple[Tensor, Solution]:
            level, new = self.improve(theta, x, length, within, weight)
            return level / steps, new

        begun = self._begin(x, within, weight, state.key("start"))
        return (yield from rising(improve, begun, self.iterations, self.tolerance))

    def improve(
        self, theta: Solution, x: Tensor, length: Tensor, within: Tensor, weight: Tensor
    ) -> tuple[Tensor, Solution]:
        """An iteration: the log-likelihood of all rows, and the parameters that come next.

        Args:
            theta: parameters, `(replicas, ...)`.
            x, length, within: what is seen, `(replicas, n, L, d)`, and how long.
            weight: how much each row counts, `(replicas, n)`.
        """
        model = self._model(theta)
        run = filtered(model, x, within)
        states = smoothed(model, run)
        mean, spread = states.mean, states.spread
        counts = (inside(length, x.shape[2]) * weight.unsqueeze(-1)).movedim(-1, 0)  # (L, R, n)
        new = self._first(mean[0], spread[0], weight)
        if len(mean) > 1:
            new |= self._moved(mean, spread, states.lag, counts[1:])
        else:
            new |= {"moves": theta["moves"], "shock": theta["shock"]}
        new |= self._shown(x, within * weight[..., None, None], mean, spread)
        return (weight * run.evidence).sum(-1), new

    def _first(self, mean: Tensor, spread: Tensor, weight: Tensor) -> Solution:
        share = (weight / weight.sum(-1, keepdim=True)).unsqueeze(-1)
        start = (share * mean).sum(1)
        away = mean - start.unsqueeze(1)
        whole = (share.unsqueeze(-1) * (spread + away.unsqueeze(-1) * away.unsqueeze(-2))).sum(1)
        return {"start": start, "spread": self._root(whole)}

    def _moved(self, mean: Tensor, spread: Tensor, lag: Tensor, counts: Tensor) -> Solution:
        """The regression of each state on the one before it."""

        def total(a: Tensor, b: Tensor, open_: Tensor) -> Tensor:
            return torch.einsum("trn,trnij->rij", counts, a.unsqueeze(-1) * b.unsqueeze(-2) + open_)

        early, late = total(mean[:-1], mean[:-1], spread[:-1]), total(mean[1:], mean[1:], spread[1:])
        across = total(mean[1:], mean[:-1], lag)
        moves = torch.linalg.solve(early, across.mT).mT
        left = late - moves @ across.mT - across @ moves.mT + moves @ early @ moves.mT
        return {"moves": moves, "shock": self._root(left / counts.sum((0, 2))[:, None, None])}

    def _shown(self, x: Tensor, weight: Tensor, mean: Tensor, spread: Tensor) -> Solution:
        """The regression of each number on the states, over the steps at which it is seen."""
        wide = torch.cat([mean, torch.ones_like(mean[..., :1])], -1)
        second = wide.unsqueeze(-1) * wide.unsqueeze(-2)
        second = second + torch.nn.functional.pad(spread, (0, 1, 0, 1))
        squares = torch.einsum("rntd,trnij->rdij", weight, second)
        cross = torch.einsum("rntd,rntd,trni->rdi", weight, x, wide)
        both = torch.linalg.solve(squares, cross)
        left = (x - torch.einsum("rdi,trni->rntd", both, wide)).square()
        loading = both[..., :-1]
        unsure = torch.einsum("rdi,trnij,rdj->rntd", loading, spread, loading)
        variance = (weight * (left + unsure)).sum((1, 2)) / weight.sum((1, 2)) + self.floor
        return {"loading": loading, "offset": both[..., -1], "log_scale": 0.5 * variance.log()}

    def _root(self, covariance: Tensor) -> Tensor:
        """The unconstrained factor of a covariance, with the floor."""
        eye = torch.eye(self.states, dtype=covariance.dtype, device=covariance.device)
        lower = torch.linalg.cholesky(0.5 * (covariance + covariance.mT) + self.floor * eye)
        return factor(lower, inverse=True)

    def _begin(self, x: Tensor, within: Tensor, weight: Tensor, key: Tensor) -> Solution:
        """The directions of largest variance, shaken; states of unit variance that half explain the numbers."""
        counted = within * weight[..., None, None]
        count = counted.sum((1, 2))
        mean = (counted * x).sum((1, 2)) / count
        away = torch.where(within, x - mean[:, None, None], 0.0)
        variance = (counted * away.square()).sum((1, 2)) / count
        spread = torch.einsum("rntd,rnt,rnte->rde", away, counted.amax(-1), away) / count.amax(-1)[:, None, None]
        values, vectors = torch.linalg.eigh(spread)
        main = (vectors * (0.5 * values).clamp_min(0).sqrt().unsqueeze(-2)).flip(-1)[..., : self.states]
        main = torch.nn.functional.pad(main, (0, self.states - main.shape[-1]))
        shake = gauss(fold(key, "loading"), main.shape[1:], torch.float64)
        eye = torch.eye(self.states, dtype=torch.float64, device=x.device).expand(len(x), -1, -1)
        twist = gauss(fold(key, "moves"), eye.shape[1:], torch.float64)
        return {
            "moves": 0.8 * eye + 0.05 * twist,
            "shock": factor(0.6 * eye, inverse=True),
            "start": torch.zeros_like(eye[:, 0]),
            "spread": torch.zeros_like(eye),
            "loading": main + 0.2 * variance.sqrt().unsqueeze(-1) * shake,
            "offset": mean,
            "log_scale": 0.5 * (0.5 * variance).log(),
        }

    # --- what one can ask -------------------------------------------------------------------------------------

    @capability(merge="refuse", kind="exact")
    def smooth(self, x: Tensor, observed: Tensor, x_length: Tensor) -> dict[str, Tensor]:
        """The states given the whole sequence: `mean` `(n, L, z)` and `covariance` `(n, L, z, z)`, 0 after its end."""
        found = smoothed(*self._asked(x, x_length, observed))
        before = inside(x_length, len(found.mean))
        mean = torch.where(before[..., None], found.mean.movedim(0, 1), 0.0)
        spread = torch.where(before[..., None, None], found.spread.movedim(0, 1), 0.0)
        return {"mean": widened(mean, x.shape[1]), "covariance": widened(spread, x.shape[1])}

    @capability(merge="refuse", kind="exact", gives="")
    def forecast(self, x: Tensor, observed: Tensor, x_length: Tensor, steps: int = 1) -> dict[str, Tensor]:
        """What comes after each sequence: `mean` and `variance` of each number, `(n, steps[, d])`, exact."""
        model, mean, root = self._last(x, observed, x_length)
        found = []
        for _ in range(self.long(steps, "steps")):
            mean, root = model.ahead(mean, root)
            found.append(model.shown(mean, root))
        means, variances = (torch.stack(each, 1) for each in zip(*found, strict=True))
        return {"mean": self.plain(means), "variance": self.plain(variances)}

    @capability(merge="share", kind="sequential", asks="rows", gives="x")
    def forecast_sample(self, x: Tensor, observed: Tensor, x_length: Tensor, steps: int = 1) -> Tensor:
        """One continuation of each sequence, drawn, `(n, steps[, d])`."""
        model, mean, root = self._last(x, observed, x_length)
        return self._walk(model, *model.ahead(mean, root), self.long(steps, "steps"))

    @capability(merge="share", kind="sequential")
    def sample(self, n: int, length: int | None = None) -> Tensor:
        """Sequences of one length, by default that of the longest in training."""
        model = self._model()
        mean, root = model.start.expand(n, -1), model.spread.expand(n, -1, -1)
        return self._walk(model, mean, root, self.long(length, "length", self.longest))

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, observed: Tensor, x_length: Tensor) -> Tensor:
        """The rows with their gaps drawn from what is missing given what is observed."""
        model, run = self._asked(x, x_length, observed)
        steps = len(run.mean)
        noise = normal((len(x), steps, 2 * self.states), place="states", dtype=torch.float64)
        states = drawn(model, run, noise.movedim(1, 0)).movedim(0, 1)
        shown = widened(self._seen_of(model, states, "gaps"), x.shape[1])
        missing = inside(x_length, x.shape[1]).reshape(*x.shape[:2], *[1] * (x.dim() - 2)) & ~observed
        return torch.where(missing, shown.to(x.dtype), x)

    def _last(self, x: Tensor, observed: Tensor, length: Tensor) -> tuple[Linear, Tensor, Tensor]:
        """The state at each sequence's last step given all of it."""
        model, run = self._asked(x, length, observed)
        end, row = (length - 1).clamp_min(0), torch.arange(len(length), device=length.device)
        return model, run.mean[end, row], run.root[end, row]

    def _walk(self, model: Linear, mean: Tensor, root: Tensor, steps: int) -> Tensor:
        """Numbers drawn one after another, from the law of the first state."""
        noise = normal((len(mean), steps, self.states), place="states", dtype=torch.float64)
        state = mean + (root @ noise[:, 0].unsqueeze(-1)).squeeze(-1)
        path = [state]
        for t in range(1, steps):
            state = state @ model.moves.mT + noise[:, t] @ model.shock.mT
            path.append(state)
        return self._seen_of(model, torch.stack(path, 1), "x")

    def _seen_of(self, model: Linear, states: Tensor, place: str) -> Tensor:
        """What states `(n, L, z)` show, drawn."""
        middle = states @ model.loading.mT + model.offset
        noise = normal(middle.shape, place=place, dtype=torch.float64)
        return self.plain(middle + model.log_scale.exp() * noise).to(self.offset.dtype)
