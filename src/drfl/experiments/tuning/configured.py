"""The subjects of ``drfl tune``: algorithms by name, on a job from a file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.experiments.config.build import build
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.config.ready_run import Job
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.training_cells import cost_of, job_from_config
from drfl.experiments.run.run_warnings import check_strict, warnings_of
from drfl.experiments.tuning import own_spaces, spaces
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.job import FIRST_SEED, TunedMethod, TuningJob
from drfl.experiments.tuning.search import Search
from drfl.experiments.tuning.suggestion import SearchPoint, import_optuna
from drfl.training import step_size

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Configured:
    """An algorithm by its name.

    Args:
        job: The job to tune.
        method: The algorithm as the job has it.
        clients: N.
        eta: 1/L̂ of the job, see :func:`step_size_from_curvature`; None if η is searched for in multiples of each run's
            own.
        space_reference: The reference of the user's search space; None = the space of the class, or drfl's.
    """

    job: TuningJob
    method: TunedMethod
    clients: int
    eta: float | None
    space_reference: str | None = None

    @property
    def base(self) -> dict[str, Value]:
        """The parameters that all trials share."""
        return spaces.fixed_parameters(self.method.algorithm, self.method.table, self.clients)

    @property
    def space(self) -> spaces.Space:
        """The search space of drfl, for algorithms without their own."""
        whole = spaces.space_around(self.method.algorithm, self.eta)
        held = self.method.table if self.method.held else {}
        return tuple(d for d in whole if (d.parameter or d.name) not in held)

    def fingerprint(self) -> dict[str, object]:
        """See :class:`drfl.experiments.tuning.search.SearchSubject`."""
        name = self.method.algorithm
        space = own_spaces.space_of(name, self.space_reference)
        table = {f"{name}.{parameter}": value for parameter, value in self.base.items()}
        table |= {f"{key} of the method": value for key, value in self.method.changes.items()}
        files = self.job.config(self.method, self.base, FIRST_SEED).user_files(name)
        if space is None:
            ranges = {f"the range of {name}.{d.parameter or d.name}": str(d) for d in self.space}
            return {**table, **ranges, **_file_digests(files)}
        if self.space_reference is not None:
            files |= user_code.digests(self.space_reference)
        return {**table, f"the space of {name}": self.space_reference or "its class's", **_file_digests(files)}

    def defaults(self) -> SearchPoint:
        """Return the parameters of the job, then the defaults."""
        base, algorithm = self.base, self.method.algorithm
        config = self.job.config(self.method, base, FIRST_SEED)
        table = spaces.default_table(config, base)
        if own_spaces.space_of(algorithm, self.space_reference) is not None:
            return SearchPoint({}, table)
        values = spaces.default_point(config.parameters(algorithm), self.space)
        return SearchPoint(values, table, spaces.places(self.space) if values else {})

    def check_step_size(self) -> None:
        """Check that runs choose η themselves, because the search is over multiples of their choice."""
        name = self.method.algorithm
        if spaces.MULTIPLE not in self.space or own_spaces.space_of(name, self.space_reference) is not None:
            return
        config = self.job.config(self.method, self.base, FIRST_SEED)
        for parameter, free in (("lr", None), ("lr_schedule", "constant")):
            value = config.parameters(name)[parameter]
            if value != free:
                raise InputError(
                    f"the job sets {parameter} = {value!r} for {name}, but drfl tune searches for "
                    f"multiples of the step size that each run finds: remove {parameter}, or use "
                    "`absolute_step_size`",
                    code="conflicting-options",
                    field=parameter,
                )

    def draw(self, trial: optuna.Trial) -> SearchPoint:
        """See :class:`drfl.experiments.tuning.search.SearchSubject`."""
        space = own_spaces.space_of(self.method.algorithm, self.space_reference)
        if space is None:
            values = spaces.draw(self.space, trial)
            return SearchPoint(values, spaces.table_at(self.space, self.base, values))
        table = own_spaces.parameters(user_code.label_of(self.method.algorithm), space, trial)
        return SearchPoint(dict(trial.params), {**self.base, **table})

    def cells(self, table: Mapping[str, Value], seeds: Sequence[int]) -> list[Cell]:
        """See :class:`drfl.experiments.tuning.search.SearchSubject`."""
        configs = [self.job.config(self.method, table, seed) for seed in seeds]
        return [Cell("training", job_from_config(config), cost_of(config)) for config in configs]


def _file_digests(files: Mapping[str, str]) -> dict[str, object]:
    return {f"the SHA-256 of {path}": digest[:12] for path, digest in files.items()}


PLAIN = TunedMethod("FedAvg")
"""The method for loading data and computing the curvature, which are the same for all methods."""

OF_ONE = ("algorithm", "algorithms", "seed", "files")
"""The keys of a job that differ between algorithms. The user's files are in each algorithm's fingerprint."""


def step_size_from_curvature(jobs: Sequence[Job]) -> float:
    """Return 1/L̂ at the initial models: the median over the jobs, rounded."""
    sizes = []
    for job in jobs:
        # The same key and requests as in a run.
        key, is_checked = Key(job.settings.seed).fold("step size"), job.settings.safeguard == "best"
        sizes.append(float(step_size.find(job.algorithm, job.fed, job.fed.w0, key, is_checked=is_checked).eta))
    # Use the median, because the curvature at a single initial model may be an outlier.
    return spaces.round_value(statistics.median(sizes))


def prepare(
    job: TuningJob,
    names: Sequence[str],
    *,
    trials: int,
    repeats: int,
    criterion: str,
    data_dir: Path | None,
    relative: bool = True,
    own: Mapping[str, str] | None = None,
    log: Callable[[str], None] | None = None,
) -> Search:
    """Load the data, so that downloads and features are ready, and check that each method can start.

    With ``relative``, η is searched for in multiples of the 1/L̂ that each run computes, and not as one number for all
    runs.
    """
    import_optuna()
    judge = Criterion(criterion, job.measure())  # an unknown one is an error before anything is loaded
    where = {} if data_dir is None else {"data_dir": data_dir}
    first = [job.config(PLAIN, {}, FIRST_SEED + k) for k in range(repeats)]
    try:
        dataset = load_data(first[0].model_copy(update=where), log)
    except InputError as error:
        raise InputError(
            ", ".join(filter(None, (str(error), job.without_data))), code=error.code, field=error.field
        ) from None
    jobs, references = [build(config, dataset) for config in first], own or {}
    check_strict(first[0].strict, warnings_of(jobs[0]))
    eta = step_size_from_curvature(jobs)
    around, n = None if relative else eta, jobs[0].data.n
    subjects = {name: Configured(job, job.method(name), n, around, references.get(name)) for name in names}
    common = {key: value for key, value in job_from_config(first[0]).items() if key not in OF_ONE}
    about = {
        "rounds": first[0].rounds,
        "validation": first[0].validation,
        "score": judge.score.name,
        "stand_in": job.stand_in,
        "device": first[0].device,
        "step_size_from_curvature": eta,
        **({"relative_step_size": True} if relative else {}),
        "job": dict(job.values),
    }
    search = Search(job.name, subjects, trials, repeats, judge, common, about)
    for name, subject in subjects.items():
        if relative:
            subject.check_step_size()
        build(job.config(subject.method, subject.defaults().table, FIRST_SEED), dataset)
        if own_spaces.space_of(subject.method.algorithm, subject.space_reference) is not None:  # try the user's space
            build(job.config(subject.method, search.suggest_point(name, ()).table, FIRST_SEED), dataset)
    return search
