"""The search for a setting: Optuna proposes, the study's database keeps what was tried.

Proposals come in synchronous batches. Those of a batch depend on the study's seed, on the trial's number and on
the results of the batches before, and on nothing else: not on what else of the same batch has been
finished, nor on when a study was interrupted. So a study that is continued makes the proposals it would have
made, runs only those that are not recorded, and comes to the same table.

Reference:
    Akiba et al., "Optuna: a next-generation hyperparameter optimization framework", arXiv 1907.10902; Bergstra et
    al., "Algorithms for hyper-parameter optimization", NeurIPS 2011 (the sampler, TPE).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from weft.core.configured import Range

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

__all__ = ["STARTUP", "Outcome", "Record", "Setting", "Trial", "propose"]

STARTUP = 8
"""Trials that are drawn at random, before the search learns from any."""

Setting = dict[str, float]
"""Values of what is tuned, by their names in a Learner."""


class Outcome(TypedDict):
    """How a trial ended: `complete` with a value on validation, `failed` or `diverged` without one, and why."""

    value: float | None
    state: str
    why: str
    seconds: float


class Trial(Outcome):
    """A setting of a method that was tried, by its number."""

    method: str
    number: int
    setting: Setting


def _distributions(space: dict[str, Range]) -> dict[str, BaseDistribution]:
    import optuna

    whole, real = optuna.distributions.IntDistribution, optuna.distributions.FloatDistribution
    return {
        name: whole(int(r.low), int(r.high), log=r.log) if r.whole else real(r.low, r.high, log=r.log)
        for name, r in space.items()
    }


def propose(
    space: dict[str, Range],
    known: list[Trial],
    numbers: list[int],
    *,
    rising: bool,
    seed: int,
    name: str,
    default: Setting | None = None,
) -> list[Setting]:
    """Settings for the trials of these numbers, given the trials of earlier batches; the first is the default.

    >>> space = {"lr": Range(1e-3, 1e-1, log=True)}
    >>> first = propose(space, [], [0, 1], rising=True, seed=0, name="erm")
    >>> propose(space, [], [1], rising=True, seed=0, name="erm") == first[1:]
    True
    """
    import optuna

    from weft.core.random import fold, integer, key_of

    if not space:
        return [{} for _ in numbers]
    kinds = _distributions(space)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    proposals = []
    for number in numbers:
        if number == 0 and default is not None:
            proposals.append(default)
            continue
        random = integer(fold(key_of(seed), "proposal", name, number)) % 2**32
        sampler = optuna.samplers.TPESampler(seed=random, n_startup_trials=STARTUP)
        study = optuna.create_study(direction="maximize" if rising else "minimize", sampler=sampler)
        for trial in known:
            study.add_trial(_frozen(trial, kinds))
        proposals.append({name: space[name].nearest(value) for name, value in study.ask(kinds).params.items()})
    return proposals


def _frozen(trial: Trial, kinds: dict[str, BaseDistribution]) -> FrozenTrial:
    import optuna

    state = optuna.trial.TrialState.COMPLETE if trial["state"] == "complete" else optuna.trial.TrialState.FAIL
    notes = {"number": trial["number"], "state": trial["state"], "why": trial["why"], "seconds": trial["seconds"]}
    return optuna.trial.create_trial(
        state=state, value=trial["value"], params=trial["setting"], distributions=kinds, user_attrs=notes
    )


class Record:
    """What has been tried, in an Optuna storage: a SQLite file in the study's folder, or any RDB by its URL.

    Args:
        url: of the storage; None for `study.db` in the folder.
        folder: the study's.
        fingerprint: of the plan; a storage that holds another plan's trials under this name is refused.
        rising: whether more is better.
    """

    def __init__(self, url: str | None, folder: Path, fingerprint: str, *, rising: bool) -> None:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.url = url or f"sqlite:///{folder.resolve() / 'study.db'}"
        self.fingerprint, self.rising = fingerprint, rising
        self.studies: dict[str, Study] = {}
        try:
            self.storage = optuna.storages.RDBStorage(self.url)
        except (SQLAlchemyError, RuntimeError, ImportError, ValueError, OSError) as error:
            raise self._foreign(error) from error

    def _foreign(self, error: BaseException) -> ValueError:
        told = " ".join(str(error).split())[:200]
        return ValueError(
            f"expected the study's database at {self.url}, which cannot be opened or is not one ({told}); put it back, "
            "name another with --storage URL, or begin anew in another folder with --out"
        )

    def study(self, method: str) -> Study:
        """The Optuna study of one method."""
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        if method in self.studies:
            return self.studies[method]
        name = f"weft {self.fingerprint[:12]} {method}"
        try:
            study = optuna.create_study(
                storage=self.storage,
                study_name=name,
                direction="maximize" if self.rising else "minimize",
                load_if_exists=True,
            )
            if study.user_attrs.get("fingerprint", self.fingerprint) != self.fingerprint:
                raise ValueError(
                    f"expected trials of this plan in {self.url} under {name!r}, got another's; choose another --out"
                )
            if "fingerprint" not in study.user_attrs:
                study.set_user_attr("fingerprint", self.fingerprint)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise self._foreign(error) from error
        self.studies[method] = study
        return study

    def trials(self, method: str) -> list[Trial]:
        """What is recorded of a method, by number."""
        kept: dict[int, Trial] = {}
        for trial in self.study(method).get_trials(deepcopy=False):
            notes = trial.user_attrs
            number = int(notes["number"])
            value = trial.value if notes["state"] == "complete" else None
            kept.setdefault(
                number,
                {
                    "method": method,
                    "number": number,
                    "setting": dict(trial.params),
                    "value": value,
                    "state": notes["state"],
                    "why": notes["why"],
                    "seconds": notes["seconds"],
                },
            )
        return [kept[number] for number in sorted(kept)]

    def add(self, method: str, trial: Trial, space: dict[str, Range]) -> None:
        """Records a trial that has ended, well or not."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        if trial["value"] is not None and not math.isfinite(trial["value"]):
            trial = {**trial, "value": None, "state": "diverged", "why": "the score is not finite"}
        try:
            self.study(method).add_trial(_frozen(trial, _distributions(space)))
        except (SQLAlchemyError, StorageInternalError) as error:
            told = " ".join(str(error.__cause__ or error).split())[:200]
            raise OSError(
                f"expected to record a trial at {self.url}, which failed ({told}); what had been recorded is kept, run "
                "the same command again to go on"
            ) from error
