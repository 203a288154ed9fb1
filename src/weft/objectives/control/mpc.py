"""MPC: a policy that plans ahead at every step, in a model of the world that it learns as it acts."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.core.objective import Objective, capability
from weft.core.random import normal, turns, uniform
from weft.core.source import Batch, Source, Spec
from weft.objectives.control.dynamics import Dynamics
from weft.sources.replay import Replay

__all__ = ["MPC"]


class MPC(Dynamics):
    """Learns what happens next (`Dynamics`), and does the first action of the best plan that it finds by it.

    A plan is a sequence of actions. The cross-entropy method draws `plans` of them by a law, plays each in the model,

        R = sum_k discount^k r_k,    r_k and s_(k+1) as the model expects them, until it expects the end,

    and fits the law to the `elites` that earn most, `rounds` times: a normal law between the bounds for numbers,
    shares for finitely many actions. It exploits what the model has wrong as well: far from where it was, what it
    expects is a guess.

    Args:
        model: a regression; None for `Regression()`.
        ahead: steps of a plan.
        plans: how many are drawn in a round.
        elites: how many of them the law is fitted to.
        rounds: of drawing and fitting.
        discount: of later rewards.
        draws: as for `Dynamics`; plans are always judged by what the model expects.

    References:
        Rubinstein and Kroese, "The cross-entropy method", 2004; Chua, Calandra, McAllister and Levine, "Deep
        reinforcement learning in a handful of trials using probabilistic dynamics models", arXiv 1805.12114.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Pendulum
        >>> planner = MPC(ahead=3, plans=8, elites=2, rounds=1)
        >>> source = planner.plays(Pendulum(), start=64, every=8, updates_each=1)
        >>> learner = Learner(planner, env_steps=80, random_state=0).fit(source)
        >>> learner.act([[1.0, 0.0, 0.0]]).shape
        (1, 1)
    """

    on_policy = False
    bootstraps = None  # what a plan earns is counted for so many steps
    progress = ("return", "max")
    legal = {
        **Dynamics.legal,
        "ahead": Whole(1),
        "plans": Whole(2),
        "elites": Whole(2),
        "rounds": Whole(1),
        "discount": Number(0, 1),
    }

    def __init__(
        self,
        model: Objective | None = None,
        *,
        ahead: int = 15,
        plans: int = 100,
        elites: int = 10,
        rounds: int = 3,
        discount: float = 1.0,
        draws: bool = False,
    ) -> None:
        super().__init__(model, draws=draws)
        self.ahead = ahead
        self.plans = plans
        self.elites = elites
        self.rounds = rounds
        self.discount = discount

    def validate(self) -> None:
        super().validate()
        if self.elites > self.plans:
            raise ValueError(f"expected at most as many elites as plans, got {self.elites} of {self.plans}")

    def build(self, spec: Spec) -> None:
        super().build(spec)
        action = self._action
        if action.classes is None and not action.low:
            raise ValueError(
                f"expected actions with bounds to draw plans between, got {action}; gymnasium's wrappers can give them"
            )

    def plays(self, world: object, **settings: object) -> Source:
        """A memory of steps: 200 at random, then one update for each step."""
        return Replay(world, **{"start": 200, "explore": 0.1, "batch_size": 64, **settings})  # type: ignore[arg-type]

    surveys = False
    witnesses = True

    def witness(self, batch: Batch) -> dict[str, Tensor]:
        return self.scales(batch)

    def sample_action(self, observation: Tensor) -> Tensor:
        """The first action of a plan; the source explores."""
        return self.act(observation)

    @capability(merge="refuse")
    def act(self, observation: Tensor) -> Tensor:
        """The first action of the best plan found for each row."""
        return self._planned_classes(observation) if self._action.classes else self._planned_numbers(observation)

    def earned(self, observation: Tensor, actions: Tensor) -> Tensor:
        """What the model expects of plans, `(n, plans)`, for `(n, plans, ahead, ...)`."""
        n, plans = actions.shape[:2]
        seen = observation.unsqueeze(1).expand(n, plans, *observation.shape[1:]).flatten(0, 1)
        steps = actions.flatten(0, 1)
        total, goes_on = seen.new_zeros(n * plans), seen.new_ones(n * plans)
        for k in range(int(self.ahead)):
            told = self.expected(seen, steps[:, k])
            total = total + goes_on * self.discount**k * told["reward"]
            goes_on = goes_on * (told["terminated"] < 0.5)
            seen = told["observation"]
        return total.unflatten(0, (n, plans))

    def _planned_numbers(self, observation: Tensor) -> Tensor:
        n, action = len(observation), self._action
        low, high = (observation.new_tensor(ends).reshape(action.shape) for ends in (action.low, action.high))
        shape = (n, int(self.plans), int(self.ahead), *action.shape)
        mean = ((low + high) / 2).expand(n, int(self.ahead), *action.shape)
        deviation = ((high - low) / 2).expand(mean.shape)
        for _ in turns("plan", int(self.rounds)):
            drawn = mean.unsqueeze(1) + deviation.unsqueeze(1) * normal(shape, place="action", dtype=mean.dtype)
            drawn = torch.minimum(torch.maximum(drawn, low), high)
            best = self._elite(observation, drawn)
            mean, deviation = best.mean(1), best.std(1)
        return mean[:, 0].to(action.dtype)

    def _planned_classes(self, observation: Tensor) -> Tensor:
        n, classes = len(observation), int(self._action.classes or 0)
        shape = (n, int(self.plans), int(self.ahead), classes)
        share = observation.new_full((n, int(self.ahead), classes), 1.0 / classes)
        for _ in turns("plan", int(self.rounds)):
            noise = -torch.log(-torch.log(uniform(shape, place="action", dtype=share.dtype)))
            drawn = (share.clamp_min(1e-6).log().unsqueeze(1) + noise).argmax(-1)
            best = self._elite(observation, drawn).unsqueeze(-1) == torch.arange(classes, device=drawn.device)
            share = best.to(share.dtype).mean(1)
        return share[:, 0].argmax(-1)

    def _elite(self, observation: Tensor, drawn: Tensor) -> Tensor:
        """The plans that earn most, `(n, elites, ahead, ...)`."""
        best = self.earned(observation, drawn).topk(int(self.elites), dim=1).indices
        return drawn.gather(
            1, best.reshape(*best.shape, *(1,) * (drawn.dim() - 2)).expand(*best.shape, *drawn.shape[2:])
        )
