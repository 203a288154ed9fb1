"""Trainings in worlds: what `weft train`, `weft play` and, of their runs, `weft resume` do, without the printing."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.commands.job.acting import Acting, Place
from weft.commands.job.folder import own, remove
from weft.commands.job.trained import trained
from weft.core.files import write_text
from weft.core.manifest import sealed_beside
from weft.engine.checkpoint import kept
from weft.report.folder import run_folder, world_of
from weft.tables.kept import keep as keep_recipe
from weft.tables.kept import opened

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.learner.evaluation import Evaluation

__all__ = ["PlayJob", "play", "train_in"]


@dataclass(frozen=True)
class PlayJob:
    """A training in worlds: which, and what was asked for; kept as `recipe.json` beside the run's own files.

    Attributes:
        worlds: as they were written; of several each is a group.
        options: what was asked for.
    """

    worlds: tuple[str, ...]
    options: Acting

    @property
    def places(self) -> list[Place]:
        """The worlds."""
        return [Place.of(text) for text in self.worlds]

    def keep(self, folder: Path) -> None:
        """Writes `recipe.json` to the run's folder, which is made if need be."""
        keep_recipe(folder, {"recipe": {"worlds": list(self.worlds)}, "options": dataclasses.asdict(self.options)})

    @classmethod
    def open(cls, folder: Path) -> PlayJob:
        """The job of a run that `weft train` made."""
        folder = run_folder(folder)
        if world_of(folder) is None:
            raise ValueError(f"expected a run that `weft train` made in a world, got {folder}; for Python: weft.load")

        def read(plain: Json) -> PlayJob:
            return cls(tuple(map(str, plain["recipe"]["worlds"])), Acting.from_json(plain["options"]))

        return opened(folder, read)


def train_in(job: PlayJob, folder: Path, *, verbose: bool = False, resume: bool = False) -> Json:
    """Trains in a folder, or goes on with what was interrupted there; gives the result, with an evaluation."""
    from weft.learner.loading import load

    places, objective, options = job.places, job.options.make_objective(), job.options
    source, before = options.source(objective, places), 0
    if resume and kept(folder):
        learner = load(folder, validation=options.evaluated(objective, places))
        before = learner.set_params(verbose=verbose).n_steps_
        learner.resume(source)
    else:
        learner = options.make_learner(objective, places, folder, verbose=verbose)
        if resume:  # it had not come to its first checkpoint
            remove(folder, [name for name in own(folder) if name != "recipe.json"])
        else:
            job.keep(folder)
        try:
            learner.fit(source)
        except Exception:
            if not resume and not kept(folder):
                remove(folder, own(folder))
                with contextlib.suppress(OSError):  # what else is in it stays
                    folder.rmdir()
            raise
    each = [
        {"world": place.text, **_told(learner.evaluate(place.world, options.episodes, arguments=place.arguments))}
        for place in places
    ]
    evaluation = {"episodes": options.episodes, "worlds": each}
    write_text(folder / "evaluation.json", sealed_beside(folder, evaluation))
    last = learner.history_[-1] if learner.history_ else {}
    return {
        "run": str(folder),
        "worlds": list(job.worlds),
        "objective": repr(learner.objective),
        "strategy": repr(learner.strategy) if learner.strategy is not None else "ERM()",
        "replicas": learner.replicas,
        "steps": learner.n_steps_,
        "env_steps": _largest(last.get("env_steps")),
        "seconds": float(last.get("seconds", 0.0)),
        "stop": learner.stop_reason_,
        "resumed_at": before if resume else None,
        "evaluation": evaluation,
    }


def _largest(counted: object) -> int | None:
    import numpy as np

    if counted is None or bool(np.isnan(np.asarray(counted, dtype=float)).all()):
        return None
    return int(np.nanmax(np.asarray(counted, dtype=float)))


def _told(found: Evaluation) -> Json:
    """An evaluation as plain values."""
    return {
        "mean": found.mean,
        "interval": None if found.interval is None else list(found.interval),
        "level": found.level,
        "means": found.means.tolist(),
        "replicas": list(found.replicas),
        "length": float(found.lengths.mean()),
        "cut": found.cut,
        **({} if found.bound is None else {"bound": found.bound, "share": found.share}),
        "said": repr(found),
    }


def play(
    folder: Path,
    *,
    world: str | None = None,
    episodes: int = 10,
    gif: Path | None = None,
    replica: int | None = None,
    drawn: bool = False,
    bound: float | None = None,
    seed: int = 0,
) -> Json:
    """Fresh episodes of a run's policy, what they earn, and a film of the first one."""
    known = world_of(run_folder(folder))
    if world is None and known is None:
        raise ValueError(
            f"expected the world to play in, which {folder} does not tell, as it was made in Python, got none; name it "
            "with --world"
        )
    texts = [world] if world is not None else known or []
    learner = trained(folder)
    several = len(learner.training_.every) > 1
    if replica is not None:
        learner = learner.replica(replica)
    told: list[Json] = []
    for place in map(Place.of, texts):
        asked = {"deterministic": not drawn, "random_state": seed, "arguments": place.arguments}
        found = learner.evaluate(place.world, episodes, bound=bound, **asked)
        told.append({"world": place.text, "seed": seed, **_told(found)})
        if gif is not None and len(told) == 1:
            filmed, k = learner, replica
            if several and replica is None:
                k = int(found.replicas[int(found.means.argmax())]) if found.replicas else learner.best_replica_
                filmed = learner.replica(k)
            film = filmed.record(place.world, gif, **asked)
            told[0]["film"] = {"path": str(film.path), "return": float(film.returns[0]), "pictures": film.pictures}
            told[0]["film"]["replica"] = k
    return {"run": str(folder), "episodes": episodes, "worlds": told}
