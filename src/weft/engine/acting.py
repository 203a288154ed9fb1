"""Acting: an objective asked about many episodes at the parameters as they are, all replicas in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.core.foresight import Foresight
from weft.core.objective import Objective
from weft.core.random import Asked, Drawn, keyed
from weft.core.source import Batch
from weft.core.state import State
from weft.core.trees import Params
from weft.engine.asking import call
from weft.engine.holding import holding
from weft.engine.precision import lowering, raised
from weft.engine.replicas import mapped
from weft.engine.serving import serving
from weft.engine.vectorize import Repeated

__all__ = ["Acting", "asked_of", "way_to_act"]


def way_to_act(objective: Objective, ask: str) -> str:
    """The method that tells what to do: as it is asked, or for the best (`act`) also `predict`, of what has learned
    from labels and does not act itself: the labels are then what an expert does."""
    labelled = "y" in objective.fields and "predict" in objective.capabilities()
    return "predict" if ask == "act" and labelled and getattr(objective, "act", None) is None else ask


def asked_of(state: State, name: str, batch: Batch, key: Tensor) -> Any:
    """What a method of the objective answers about a batch, in every replica about its own."""

    def one(params: Params, buffers: Params, batch: Batch, key: Tensor) -> Any:
        return call(State(state.objective, params, buffers, key), name, batch, key=key)

    return mapped(state.replicas, one, state.params, state.buffers, batch, key)


class Acting:
    """Asks a method of the objective turn after turn, in evaluation mode and without gradients.

    What a turn draws is drawn for many turns at once, from each turn's own key; what goes around a forward (parameters
    put into the module, what serves its draws) is done once for all turns, where there is one run.

    Args:
        state: whose objective and parameters; its replicas have each their own rows.
        name: the method, such as `sample_action`.
        keys: of the turns, `(turns,)`, or `(replicas, turns)`.
        rows: what the draws of a turn are keyed by beside that, `(n,)`.
    """

    def __init__(self, state: State, name: str, keys: Tensor, rows: Tensor) -> None:
        self.state, self.name, self.keys, self.rows = state, name, keys, rows
        self.ahead, self._turns = Foresight(keys, rows), keys.unbind(-1)
        self._training = state.objective.training
        self._method: Callable[..., Any] = getattr(state.objective, name)
        mark = state.objective.capabilities().get(name)
        self._finish = None if mark is None else mark.finish
        self._held = ExitStack()

    def __enter__(self) -> Self:
        state = self.state
        state.objective.eval()
        self._held.enter_context(torch.no_grad())
        self._held.enter_context(lowering(state.objective, state.device))
        if state.replicas is None:
            self._held.enter_context(holding(state.objective, state.params, dict(state.buffers)))
        else:
            self._held.enter_context(sdpa_kernel(SDPBackend.MATH))  # which has a rule for stacked replicas
            self._all = Repeated(state.replicas, state.params, state.buffers)
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()
        self.state.objective.train(self._training)

    def start(self, count: int) -> dict[str, Tensor]:
        """What the objective remembers at the beginning of so many episodes, of each replica."""
        start: Callable[[int], dict[str, Tensor]] = self.state.objective.start  # type: ignore[assignment]
        memory: dict[str, Tensor] = self._over(lambda: start(count))
        return memory

    def __call__(self, turn: int, observation: Tensor, given: dict[str, Any]) -> Any:
        """What the method answers at one of the turns.

        Args:
            turn: its number.
            observation: `(n, ...)`, or `(replicas, n, ...)`.
            given: further arguments by name, trees of tensors likewise.
        """
        foreseen, key = self.ahead.at(turn), self._turns[turn]
        if self.state.replicas is None:
            answer, asked = self._asked(key, observation, given, foreseen)
        else:
            names: list[Asked] = []

            def ask(key: Tensor, observation: Tensor, given: dict[str, Any], foreseen: Drawn) -> Any:
                answer, names[:] = self._asked(key, observation, given, foreseen)
                return answer

            answer, asked = self._over(ask, key, observation, given, foreseen), names
        if asked:
            self.ahead.learn(asked)
        return answer if self.state.objective.lowered is None else raised(answer)

    def _asked(
        self, key: Tensor, observation: Tensor, given: dict[str, Any], foreseen: Drawn
    ) -> tuple[Any, list[Asked]]:
        """What one run answers, and what it has drawn that was not foreseen."""
        frame, method = keyed(key, self.rows, foreseen=foreseen), self._method
        asked = (lambda seen, given: method(seen, **given), (observation, given))
        with frame, serving(self.state.objective, *asked, self.rows, self.name):
            return self._finished(method(observation, **given)), frame.asked

    def _finished(self, answer: Any) -> Any:
        """The answer as it is meant: class probabilities become a class."""
        if self._finish is None:
            return answer
        return (self._finish(answer[0]), *answer[1:]) if isinstance(answer, tuple) else self._finish(answer)

    def _over(self, ask: Callable[..., Any], *args: Any) -> Any:
        """A function of one run's arguments, over all replicas at once."""
        state = self.state
        if state.replicas is None:
            return ask(*args)

        def one(params: Params, buffers: Params, *own: Any) -> Any:
            with holding(state.objective, params, dict(buffers)):
                return ask(*own)

        return self._all(one, *args)
