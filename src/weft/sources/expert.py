"""Expert: whoever is known to act well, asked for one action for each observation."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.legal import Such
from weft.core.objective import Objective
from weft.core.source import Field
from weft.sources.collector import bounded
from weft.sources.strange import outside

__all__ = ["EXPERT", "Expert"]


def _acts(given: object) -> bool:
    """Whether it can be asked for actions: a learner, a module or a function; no class."""
    asked = callable(given) or callable(getattr(given, "act", None)) or callable(getattr(given, "predict", None))
    return asked and not inspect.isclass(given)


EXPERT = Such("a trained learner that acts or predicts actions, or a function from observations to actions", _acts)


class Expert(Objective):
    """An expert as an objective that acts and learns nothing, so that a collector can play it.

    It is asked `act`, else `predict`, else called, about rows of observations, and answers one action for each. What it
    answers must be a function of the observation alone.

    Args:
        given: a trained learner, a module with such a method, a function, a model of scikit-learn's.
        observation, action: of the world.
        name: what the messages call the world.
    """

    on_policy = False

    def __init__(self, given: Any, observation: Field, action: Field, name: str) -> None:
        super().__init__()
        self.__dict__["given"] = given  # no submodule: nothing in it is to be moved or put into training
        self.observed, self.actions, self.world, self._asked = observation, action, name, False
        self.way = next((way for way in ("act", "predict") if callable(getattr(given, way, None))), "")
        self._refuse_untrained()
        method = getattr(getattr(given, "objective_", given), self.way) if self.way else given
        try:
            told = inspect.signature(method).parameters.values()
        except (TypeError, ValueError):  # builtins have none
            told = {}.values()
        self._masked = any(p.name == "legal" or p.kind is p.VAR_KEYWORD for p in told)

    def _refuse_untrained(self) -> None:
        given, kind = self.__dict__["given"], type(self.__dict__["given"]).__name__
        fitted = getattr(given, "__sklearn_is_fitted__", None)
        if fitted is not None and not fitted():
            raise ValueError(f"expected a trained expert, got a {kind} that is not fitted; call fit first")
        if getattr(getattr(given, "objective_", given), "remembers", False):
            raise ValueError(
                f"expected an expert that acts by the observation alone, got a {kind} that remembers its episode; play "
                "it yourself, and give what it did as arrays: Demonstrations(world, (observations, actions))"
            )

    def sample_action(self, observation: Tensor, *, legal: Tensor | None = None) -> Tensor:
        """What the expert does."""
        return self.told(observation, legal)

    def told(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """What the expert does at each of the observations, `(n, ...)`: an action of the world's kind for each."""
        action = self._checked(observation, self._answer(observation, legal))
        if not self._asked:
            again = self._checked(observation, self._answer(observation, legal))
            if not torch.equal(action, again):
                raise ValueError(
                    "expected an expert whose answer is a function of the observation, got two for the same one; let "
                    "it tell its best action (stray=... disturbs it by keyed draws), or give what it did as arrays"
                )
            self._asked = True
        return action

    def _answer(self, observation: Tensor, legal: Tensor | None) -> object:
        given = self.__dict__["given"]
        ask = getattr(given, self.way) if self.way else given
        named = {"legal": legal} if self._masked and legal is not None else {}
        training = isinstance(given, nn.Module) and given.training
        if training:
            given.eval()
        try:
            with torch.no_grad():
                return ask(observation.to(self.observed.dtype), **named)
        except (RuntimeError, NotImplementedError, AttributeError) as error:  # which would be taken for the learner's
            raise ValueError(
                f"expected an expert that answers observations {tuple(observation.shape)} in {self.observed.dtype}, "
                f"got {type(error).__name__}: {error}"
            ) from error
        finally:
            if training:
                given.train()

    def _checked(self, observation: Tensor, answer: object) -> Tensor:
        space, rows = self.actions, len(observation)
        try:
            action = torch.as_tensor(answer)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"expected the expert to give one action for each of {rows} observations, a tensor or array of shape "
                f"{(rows, *space.shape)}, got {type(answer).__name__}; where it answers more, take the actions out of "
                "it: lambda observation: expert.predict(observation)[0]"
            ) from None
        odd = action.is_floating_point() and not space.dtype.is_floating_point
        if tuple(action.shape) != (rows, *space.shape) or odd or action.dtype == torch.bool:
            raise ValueError(
                f"expected the expert to give one action for each of {rows} observations, of shape "
                f"{(rows, *space.shape)} in {space.dtype}, got {tuple(action.shape)} in {action.dtype}; where it gives "
                "scores, take their argmax"
            )
        action = action.to(observation.device, space.dtype)
        if self.way == "predict":
            action = bounded(space, action)
        wrong, said = outside(space, action)
        if bool(wrong.any()):
            at = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"expected the expert's actions in {self.world} to be {said}, got {action[tuple(at)].item():g} for the "
                f"observation {observation[at[0]].flatten()[:8].tolist()}"
            )
        return action
