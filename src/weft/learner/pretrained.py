"""What the parts of a net are taken from, as `init` says: another learner, a module or a file."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from weft.core.legal import told
from weft.engine.fresh import Init
from weft.engine.taking import Pretrained, takes

__all__ = ["ENDING", "NOTE", "Taking", "is_given", "noted", "resolved"]

ENDING, NOTE = ".safetensors", "taken from "


class Taking(BaseEstimator):
    """An estimator whose clones begin with what it begins with: what `init` takes from is shared, not cloned."""

    init: Any

    def __sklearn_clone__(self) -> Self:
        twin: Self = super().__sklearn_clone__()
        twin.init = self.init
        return twin


def is_given(said: object) -> bool:
    """Whether a pattern of `init` may say this."""
    if isinstance(said, str):
        return said in ("reset", "keep") or said.endswith(ENDING) or said.startswith(NOTE)
    return isinstance(said, PathLike | nn.Module) or _is_learner(said)


def noted(init: Any) -> Any:
    """`init` as a run's folder keeps it: what was taken is among the tensors there, and needs no other file."""
    if not isinstance(init, Mapping):
        return init
    return {p: str(said) if isinstance(said, str | PathLike) else f"{NOTE}{_kind(said)}" for p, said in init.items()}


def resolved(init: Any) -> Init:
    """`init` with the tensors themselves in the place of learners, modules and files."""
    if isinstance(init, str):
        return init
    return {p: said if not takes(said) or _is_note(said) else _read(p, said) for p, said in init.items()}


def _is_note(said: object) -> bool:
    return isinstance(said, str) and said.startswith(NOTE)


def _is_learner(said: object) -> bool:
    from weft.learner.estimator import Learner

    return isinstance(said, Learner)


def _kind(said: object) -> str:
    return type(said).__name__


def _read(pattern: str, said: Any) -> Pretrained:
    if isinstance(said, str | PathLike):
        return Pretrained(_of_file(Path(said)), str(said))
    module = said
    if _is_learner(said):
        if not hasattr(said, "training_"):
            raise ValueError(f"expected a trained learner for {pattern!r} in init, got {told(said)}; fit it first")
        if (count := len(said.seeds_)) > 1:
            raise ValueError(
                f"expected one trained run for {pattern!r} in init, got {count} replicas; give one: learner.replica(0)"
            )
        module = said.objective_
    tensors = {name: t.detach().clone() for name, t in module.state_dict().items() if isinstance(t, Tensor)}
    if not tensors:
        raise ValueError(f"expected a module with parameters for {pattern!r} in init, got none in {told(said)}")
    frozen = frozenset(name for name, p in module.named_parameters() if not p.requires_grad)
    return Pretrained(tensors, _kind(said), frozen)


def _of_file(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.is_dir():
        raise ValueError(f"expected a safetensors file in init, got the folder {path}; of a run, weft.load(folder)")
    if not path.exists():
        raise FileNotFoundError(f"expected a safetensors file in init, got {path}, which is not there")
    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"expected a safetensors file in init, got {path}: {error}") from error
    return found
