"""Trials on disk: one Optuna study per algorithm, all in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from drfl.errors import DrflError, InputError
from drfl.experiments.tuning.spaces import Space
from drfl.experiments.tuning.suggest import distribution, needed
from drfl.experiments.tuning.trial import Trial

if TYPE_CHECKING:
    from optuna import Study

FILE = "study.db"
"""Its name within the folder of results."""

_FINGERPRINT = "fingerprint"
_TRIAL = "trial"


class Store:
    """The trials that ended, kept so that a process killed at any time loses none of them.

    A trial enters the file whole, in one transaction, when its last seed has ended; the file never knows of one that
    runs. Trials of another origin, or still running because somebody else opened the study, are passed over.

    Args:
        folder: where the file lies or is made.

    Raises:
        InputError: Optuna is missing, or the file cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        optuna = needed()
        self.path = folder / FILE
        with self._readable():
            # by a function, as a URL would read signs such as ? and { in the path its own way
            self._storage = optuna.storages.RDBStorage(
                "sqlite:///study.db",
                engine_kwargs={"creator": lambda: sqlite3.connect(self.path, check_same_thread=False)},
            )
        self._studies: dict[str, Study] = {}

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def open(self, algorithm: str, fingerprint: Mapping[str, object]) -> list[Trial]:
        """The trials of an algorithm so far, in order.

        Args:
            algorithm: its name.
            fingerprint: all that the trials depend on, plain values.

        Raises:
            InputError: the file's trials are of another job, space or criterion, or it is damaged.
        """
        optuna = needed()
        with self._readable():
            study = optuna.create_study(
                storage=self._storage, study_name=algorithm, direction="maximize", load_if_exists=True
            )
            known = study.user_attrs.get(_FINGERPRINT)
            if known is None:
                study.set_user_attr(_FINGERPRINT, dict(fingerprint))
            elif known != dict(fingerprint):
                raise self._other(algorithm, known, fingerprint)
            self._studies[algorithm] = study
            found: dict[int, Trial] = {}
            for frozen in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
                own = frozen.user_attrs.get(_TRIAL)
                if own is not None:
                    trial = Trial(own[0], dict(frozen.params), own[1], tuple(own[2]), tuple(own[3]))
                    found.setdefault(trial.number, trial)
        return [found[number] for number in _run(found)]

    def add(self, algorithm: str, trial: Trial, space: Space) -> None:
        """Keep a trial that ended.

        Args:
            algorithm: whose.
            trial: which.
            space: where it was looked for.

        Raises:
            DrflError: the file cannot be written to.
        """
        optuna = needed()
        own = [trial.number, trial.table, trial.scores, trial.stopped]
        frozen = optuna.trial.create_trial(
            value=trial.score,
            params=trial.point,
            distributions={d.name: distribution(d) for d in space if d.name in trial.point},
            user_attrs={_TRIAL: own},
        )
        try:
            self._studies[algorithm].add_trial(frozen)
        except optuna.exceptions.StorageInternalError as error:
            cause = error.__cause__ or error
            raise DrflError(f"cannot write {self.path} ({cause}): run it again when it can be written to") from None

    def _other(self, algorithm: str, known: Mapping[str, object], wanted: Mapping[str, object]) -> InputError:
        name = next(name for name in {**known, **wanted} if known.get(name) != wanted.get(name))
        before, now = known.get(name, "nothing"), wanted.get(name, "nothing")
        return InputError(
            f"{self.path} has trials of {algorithm} with {name} = {before}, not {now}: "
            f"give another --out, or delete {self.path}"
        )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        optuna = needed()
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError, RuntimeError) as error:
            cause = getattr(error, "orig", None) or error.__cause__ or error
            raise InputError(f"cannot use {self.path} ({cause}): delete it, or give another --out") from None


def _run(numbers: Mapping[int, Trial]) -> Iterator[int]:
    """0, 1, … as far as they are there."""
    number = 0
    while number in numbers:
        yield number
        number += 1
