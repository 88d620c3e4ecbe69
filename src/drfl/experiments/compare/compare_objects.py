"""``drfl.compare``: a comparison of objects, in a folder that is kept or in one that is not."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, TypeVar, cast

from pydantic import ValidationError
from torch import nn

from drfl.core import checks
from drfl.core.errors import InputError, StoppedError
from drfl.core.key import Key
from drfl.core.user_code import keep_out
from drfl.data import ClientData
from drfl.experiments.compare.comparison import (
    Build,
    Design,
    PreparedComparison,
    check_cells_same,
    compare,
    kept_outcomes,
    start,
)
from drfl.experiments.compare.comparison_processes import compare_at_once
from drfl.experiments.compare.comparison_results import Comparison, write_comparison
from drfl.experiments.compare.objects import ObjectConfig, object_jobs
from drfl.experiments.config.config import input_error
from drfl.experiments.execution.pool import Workers, workers_of
from drfl.experiments.run.manifest import is_finished
from drfl.experiments.run.resume import check_received, kept_config, key_of
from drfl.experiments.run.run_directory import check_free, claimed, filled, tidy
from drfl.experiments.run.runner import Outcome, StopSignal
from drfl.federation.algorithm import Algorithm
from drfl.task.task import Task
from drfl.training.callbacks import bar, describe

T = TypeVar("T")


class ComparisonOptions(NamedTuple):
    """How a comparison is run and kept; see :func:`drfl.compare`."""

    seeds: int | Sequence[int]
    out: Path | None
    jobs: int | str
    resume: bool
    overwrite: bool
    progress: Callable[[str], None] | Literal["bar"]


def compare_objects(
    algorithms: Mapping[str, Algorithm],
    data: ClientData | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    settings: Mapping[str, object],
    options: ComparisonOptions,
) -> Comparison:
    """See :func:`drfl.compare`.

    Args:
        algorithms: by name.
        data: the clients' samples, or those at a seed.
        task: model and loss, or those at a seed.
        settings: of every run.
        options: how it is run and kept.
    """
    workers = workers_of(options.jobs)
    if isinstance(options.seeds, int):
        checks.whole("seeds", options.seeds)
    seeds = tuple(range(options.seeds) if isinstance(options.seeds, int) else options.seeds)
    for seed in seeds:
        checks.whole("a seed", seed, low=0)
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds {list(seeds)}: give at least one, none twice", code="invalid-value", field="seeds")
    clients = of_seed("data", data, ClientData)
    learned = of_seed("task", task, Task)
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise InputError(
            'algorithms must be a mapping of names, such as {"DRFA": drfl.DRFA(m=10)}',
            code="wrong-type",
            field="algorithms",
        )
    first = learned(seeds[0])
    try:
        config = ObjectConfig.of(algorithms, first, {**settings, "dtype": str(first.layout.dtype).rpartition(".")[2]})
    except ValidationError as error:
        raise input_error(error) from None
    design, build = Design(config, tuple(algorithms), seeds), object_jobs(config, clients, learned)
    # Workers may be unable to import the user's modules, so send the modules themselves.
    own = config.user_modules()
    if options.out is None:
        if options.resume or options.overwrite:
            raise InputError(
                "resume and overwrite need out, the folder of the comparison", code="needs-option", field="out"
            )
        with tempfile.TemporaryDirectory(prefix="drfl-") as folder:
            # The folder is deleted on exit: read now what is only in its files.
            found = _compared(build, design, Path(folder) / "comparison", options, workers, own)
            return found._replace(directory=None, histories=found.to_histories(), client_rows=found.to_clients())
    return _compared(build, design, options.out, options, workers, own)


def _compared(
    build: Build,
    design: Design,
    out: Path,
    options: ComparisonOptions,
    workers: Workers,
    own: Collection[ModuleType],
) -> Comparison:
    """The comparison in this folder; ``own`` are the user's modules."""
    kept = None
    if options.resume:
        keep_out(out)
        # Check the signatures before parsing any file of the folder.
        check_received(out, design.config.checkpoint_key)
        kept = kept_config(out, "comparison", overwrite=options.overwrite, given=True)
        check_cells_same(out, design)
    else:
        check_free(out, "comparison", overwrite=options.overwrite)
    ready = PreparedComparison.of(design, build, kept)
    # Nothing is left to run: read the results.
    if kept is not None and is_finished(out):
        tidy(out, "comparison")
        return Comparison(*design, kept_outcomes(out, ready), ready.clients, out, ready.warnings)
    watch, outcomes = StopSignal(), list[Outcome]()
    with (
        _shown(options.progress, design, ready.clients) as (tell, show),
        claimed(
            out, "comparison", resume=options.resume, overwrite=options.overwrite, cells=design.cells,
            config=ready.config, tell=tell, key=key_of(design.config, out),
        ) as claim,
    ):  # fmt: skip
        start(claim, ready, tell)
        for line in ready.warnings:
            tell(line)
        if workers == 1:
            found = compare(ready, claim, watch, warn=tell)
        else:
            found = compare_at_once(ready, claim, watch, workers, tell, own)
        for outcome in found:
            outcomes.append(outcome)
            show(outcome, len(outcomes))
        if not outcomes:
            raise StoppedError("interrupted before one run was finished")
        comparison = Comparison(*design, design.in_order(outcomes), ready.clients, out, ready.warnings)
        with filled(claim) as folder:
            write_comparison(comparison, folder, claim.directory, ready.identity)
        # Checkpoints and records of cells are needed until all cells are done.
        claim.finished = len(outcomes) == len(design.cells)
        for notice in comparison.notices:
            tell(notice)
    return comparison


@contextmanager
def _shown(
    progress: Callable[[str], None] | Literal["bar"], design: Design, clients: int
) -> Iterator[tuple[Callable[[str], None], Callable[[Outcome, int], None]]]:
    """What is told a line, and what is told of a run that ended and how many have."""
    if progress != "bar":
        yield progress, lambda outcome, done: progress(_told(outcome, done, design, clients))
        return
    with bar(len(design.cells), "drfl.compare", "run") as shown:

        def ended(outcome: Outcome, done: int) -> None:
            shown.set_postfix_str(_told(outcome, done, design, clients).partition("] ")[2], refresh=False)
            shown.update(done - shown.n)

        yield partial(shown.write, file=sys.stderr), ended


def _told(outcome: Outcome, done: int, design: Design, clients: int) -> str:
    """A line on a run that ended."""
    head = f"[{done}/{len(design.cells)}] {outcome.algorithm}, seed {outcome.seed}: "
    if outcome.metrics is None:
        return f"{head}{outcome.stopped}: {outcome.reason}"
    score = design.config.measures()[0]
    return head + describe(outcome.metrics, score, outcome.note(score.name, clients))


def of_seed(what: str, given: T | Callable[[int], T], kind: type[T]) -> Callable[[int], T]:
    """A function of the seed, whatever was given. While the user's works, torch's generator stands at the seed.

    Raises:
        InputError: it is neither such an object nor a function.
    """
    if isinstance(given, kind):
        return lambda seed: cast("T", given)
    if not callable(given) or isinstance(given, type | nn.Module):  # a module can be called, but not with a seed
        named = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InputError(
            f"{what} is {named}: give a drfl.{kind.__name__}, or a function that gives one of a seed",
            code="wrong-type",
            field=what,
        )

    def made(seed: int) -> T:
        with Key(seed).fold(what).torch_scope():  # else layers would begin elsewhere at every call
            found = given(seed)
        if not isinstance(found, kind):
            raise InputError(
                f"{what}({seed}) gave a {type(found).__name__}, not a drfl.{kind.__name__}",
                code="wrong-type",
                field=what,
            )
        return found

    return made
