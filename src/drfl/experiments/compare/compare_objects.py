"""``drfl.compare``: compare algorithms that are objects, with or without a folder of results."""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

import numpy as np
from torch import nn

from drfl.core import checks
from drfl.core.errors import InputError, StoppedError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.experiments.assess.predictions import read_predictions
from drfl.experiments.compare.comparison import (
    Build,
    Design,
    PreparedComparison,
    extended_design,
    is_up_to_date,
)
from drfl.experiments.compare.comparison_results import Comparison
from drfl.experiments.compare.objects import (
    check_algorithms,
    object_job_builder,
    rule_objects,
    run_settings,
    sources_of,
    user_modules,
)
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.compare.run_comparison import check_tracker, run_comparison, stored_comparison
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.execution.executor import Workers, workers_of
from drfl.experiments.run.resume import check_folder
from drfl.experiments.run.run_directory import tidy
from drfl.experiments.run.runner import stop_on_interrupt
from drfl.federation.algorithm import Algorithm
from drfl.task.task import Task
from drfl.training.callbacks import bar, describe

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class ComparisonOptions(NamedTuple):
    """Execution and storage of a comparison; see :func:`drfl.compare`."""

    seeds: int | Sequence[int]
    out: Path | None
    jobs: int | str
    resume: bool
    overwrite: bool
    progress: Callable[[str], None] | Literal["bar"]
    track: str | None = None
    predictions: Mapping[str, pd.DataFrame | str | Path] | None = None


def compare_objects(
    algorithms: Mapping[str, Algorithm],
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    settings: Mapping[str, object],
    options: ComparisonOptions,
) -> Comparison:
    """See :func:`drfl.compare`."""
    import pandas as pd

    workers = workers_of(options.jobs)
    seeds = _seeds_of(options.seeds)
    predictions: object = {} if options.predictions is None else options.predictions
    values = list(predictions.values()) if isinstance(predictions, Mapping) else [predictions]
    odd = [value for value in values if not isinstance(value, pd.DataFrame | str | Path)]
    if odd or not isinstance(predictions, Mapping):
        raise InputError(
            "`predictions` must be a mapping of names to data frames or paths of CSV files, such as "
            f'{{"other tool": frame}}, got {type((odd or values)[0]).__name__}',
            code="wrong-type",
            field="predictions",
        )
    clients = clients_by_seed(data)
    learned = as_seed_function("task", task, Task)
    if not isinstance(algorithms, Mapping) or not algorithms:
        given = "an empty one" if isinstance(algorithms, Mapping) else f"a {type(algorithms).__name__}"
        raise InputError(
            f'algorithms must be a mapping of names, such as {{"DRFA": drfl.DRFA(m=10)}}, got {given}',
            code="wrong-type",
            field="algorithms",
        )
    check_algorithms(algorithms)
    first = learned(seeds[0])
    run = run_settings(settings, first)
    objects = [*algorithms.values(), first.model, *rule_objects(run)]
    design, build = (
        Design(run, tuple(algorithms), seeds),
        object_job_builder(run, algorithms, clients, learned, description_of(data), sources_of(objects)),
    )
    # Workers may be unable to import the user's modules, so the modules themselves are sent.
    modules = user_modules(objects)
    if options.out is None:
        if options.resume or options.overwrite:
            raise InputError(
                "`resume` and `overwrite` require `out`, the folder of the comparison", code="needs-option", field="out"
            )
        with tempfile.TemporaryDirectory(prefix="drfl-") as folder:
            # The folder is deleted on exit, so the tables of its files are read now.
            comparison = _run_in_folder(build, design, Path(folder) / "comparison", options, workers, modules)
            return replace(
                comparison, directory=None, histories=comparison.to_histories(), client_rows=comparison.to_clients()
            )
    return _run_in_folder(build, design, options.out, options, workers, modules)


def _seeds_of(given: int | Iterable[int]) -> tuple[int, ...]:
    """Return the seeds from their number or as they are."""
    if isinstance(given, int | np.integer):
        checks.integer("seeds", given)
        return tuple(range(int(given)))
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(
            f"`seeds` must be the number of seeds, or a list of them such as [0, 1, 2], got {given!r:.80}",
            code="wrong-type",
            field="seeds",
        )
    seeds = tuple(given)
    for seed in seeds:
        checks.integer("each of `seeds`", seed, low=0, field="seeds")
    seeds = tuple(map(int, seeds))  # NumPy's integers cannot be stored as JSON
    if not seeds:
        raise InputError("`seeds` must have at least one seed, got none", code="invalid-value", field="seeds")
    checks.distinct("seeds", seeds)
    return seeds


def _run_in_folder(
    build: Build,
    design: Design,
    out: Path,
    options: ComparisonOptions,
    workers: Workers,
    modules: Collection[ModuleType],
) -> Comparison:
    """Run or resume a comparison in a folder; ``modules`` are the user's modules."""
    key = design.settings.checkpoint_key
    stored_config = check_folder(out, "comparison", resume=options.resume, overwrite=options.overwrite, key=key)
    if options.resume:
        design = extended_design(out, design)
    check_tracker(options.track, workers)
    ready = PreparedComparison.of(design, build, stored_config)._replace(track=options.track)
    # If nothing is left to run, read the results.
    if stored_config is not None and is_up_to_date(out, ready) and not options.predictions:
        tidy(out, "comparison")
        return stored_comparison(ready, out)
    predictions = {
        name: read_predictions(Path(given)) if isinstance(given, str | Path) else given
        for name, given in (options.predictions or {}).items()
    }
    with stop_on_interrupt() as watch, _show_progress(options.progress, ready) as (warn, ended):
        comparison = run_comparison(
            ready, out, watch, workers, ended=ended, warn=warn, resume=options.resume,
            overwrite=options.overwrite, modules=modules, predictions=predictions,
        )  # fmt: skip
        if not comparison.outcomes:
            raise StoppedError("interrupted before a run was finished")
        for notice in comparison.notices:
            warn(notice)
    return comparison


@contextmanager
def _show_progress(
    progress: Callable[[str], None] | Literal["bar"], ready: PreparedComparison
) -> Iterator[tuple[Callable[[str], None], Callable[[Outcome, int], None]]]:
    """Yield a function for lines of text, and one for runs that have ended."""
    if progress != "bar":
        yield progress, lambda outcome, done: progress(_describe_end(outcome, done, ready))
        return
    with bar(len(ready.design.cells), "drfl.compare", "run") as live_bar:

        def ended(outcome: Outcome, done: int) -> None:
            live_bar.set_postfix_str(_describe_end(outcome, done, ready).partition("] ")[2], refresh=False)
            live_bar.update(done - live_bar.n)

        yield lambda line: live_bar.write(line, file=sys.stderr), ended


def _describe_end(outcome: Outcome, done: int, ready: PreparedComparison) -> str:
    head = f"[{done}/{len(ready.design.cells)}] {outcome.algorithm}, seed {outcome.seed}: "
    if outcome.metrics is None:
        return f"{head}{outcome.stopped}: {outcome.reason}"
    score = ready.measures[0]
    return head + describe(outcome.metrics, score, outcome.note(score.name, ready.clients))


def clients_by_seed(given: ClientData | DataSettings | Callable[[int], ClientData]) -> Callable[[int], ClientData]:
    """Return the clients' samples as a function of the seed, see :func:`as_seed_function`."""
    return given.for_seed if isinstance(given, DataSettings) else as_seed_function("data", given, ClientData)


def description_of(given: object) -> dict[str, object]:
    """Return the description of data for files; empty if the data were made in Python."""
    return given.description if isinstance(given, DataSettings) else {}


def as_seed_function(what: str, given: T | Callable[[int], T], kind: type[T]) -> Callable[[int], T]:
    """Return a function of the seed. While a user's function runs, torch's generator depends on the seed."""
    if isinstance(given, kind):
        return lambda seed: cast("T", given)
    if not callable(given) or isinstance(given, type | nn.Module):  # a module is callable, but not with a seed
        named = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InputError(
            f"{what} is {named}: pass a drfl.{kind.__name__}, or a function of the seed that returns one",
            code="wrong-type",
            field=what,
        )
    try:
        with suppress(ValueError):  # some built-in functions have no signature
            inspect.signature(given).bind(0)
    except TypeError:
        raise InputError(
            f"{what} is a function that cannot be called with the seed alone: define it as `def {what}(seed):`",
            code="wrong-type",
            field=what,
        ) from None

    def made(seed: int) -> T:
        # Otherwise the layers' initial values would differ from call to call.
        with Key(seed).fold(what).torch_scope():
            value = given(seed)
        if not isinstance(value, kind):
            raise InputError(
                f"{what}({seed}) returned a {type(value).__name__}, not a drfl.{kind.__name__}",
                code="wrong-type",
                field=what,
            )
        return value

    return made
