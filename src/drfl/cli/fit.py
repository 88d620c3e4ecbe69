"""``drfl fit``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drfl.cli import console, signals
from drfl.cli.options import FitOptions
from drfl.cli.to_config import overrides
from drfl.core.screen import ScreenTable
from drfl.data.personal_models import DECISION
from drfl.experiments.config.config import code_references, config_of, read_file
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.fit.fitted import Fitted
from drfl.experiments.fit.members import PORTFOLIO, REFERENCES
from drfl.experiments.fit.personal import GLOBAL
from drfl.experiments.fit.run_fit import check_finished, evaluate_every, jobs_of_config, run_fit
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import is_finished
from drfl.experiments.run.resume import check_data_settings, check_folder
from drfl.report.formatting import plural
from drfl.report.read_run import remark_lines
from drfl.task.measure import NOTHING, number
from drfl.training.history import Metrics
from drfl.training.loop import Callback

BUDGET = 100
"""Rounds of each run by default."""


def fit_command(options: FitOptions) -> int:
    """Execute a fit, write and print its results, and return the exit code."""
    out, quiet, resume = options.out, options.as_json, options.resume
    with signals.end_at_once():  # there is nothing to clean up yet
        given = dict(options.settings)
        if options.data:
            given["data"] = list(map(str, options.data))
        path = check_folder(
            out, "fit", resume=resume, overwrite=options.overwrite, trust=options.trust,
            given=any((given, options.budget, options.personalise)),
        )  # fmt: skip
        file = read_file(path, code_references(given), trust=options.trust)
        personal = bool(file.pop("personalise", False)) or options.personalise
        if options.budget is not None or path is None:
            budget = options.budget or BUDGET
            given |= {"rounds": budget, "evaluate_every": evaluate_every(budget)}
        config = config_of(file, overrides(given, None, [member.algorithm for member in PORTFOLIO]))
        if out is not None and resume and is_finished(out) and not given and not options.personalise:
            return console.end_finished(out, "fit", DECISION, quiet)
        if resume:
            check_data_settings(config, out)
    # Loading may download, which takes long and needs a clean-up: a signal raises an exception here.
    jobs = jobs_of_config(config, load_data(config, console.lines(quiet)))
    if out is not None and resume and is_finished(out):
        check_finished(out, jobs, given, personal=options.personalise)
        return console.end_finished(out, "fit", DECISION, quiet)

    @contextmanager
    def show(label: str) -> Iterator[Sequence[Callback]]:
        # Other outputs get the lines on ended runs alone.
        with console.progress(label, quiet or not console.err.is_terminal) as callback:
            yield [callback]

    with console.interruptible() as watch:
        fitted = run_fit(
            jobs, out or Path("runs") / f"fit-{config.data_label}-seed{config.seed}", personal=personal, watch=watch,
            show=show, log=console.lines(quiet) or (lambda line: None),
            warn=console.warn, resume=resume, overwrite=options.overwrite, numbered=out is None,
        )  # fmt: skip
    if quiet:
        print(json_text({**fitted.summary(), "directory": str(fitted.directory)}))
    else:
        _print(fitted)
    return 0 if console.warn_of_checks(fitted.finished.checks) else console.BROKEN


def _print(fitted: Fitted) -> None:
    job, score = fitted.finished.job, fitted.finished.job.fed.measures[0]
    view = ScreenTable(
        "member", "worst validation loss", "average validation loss", "p", f"worst {score.words}", text=("member",),
        title="members, trained without the validation rows",
    )  # fmt: skip
    for candidate, p, test, row in zip(
        fitted.candidates, fitted.choice.p.tolist(), fitted.tests, fitted.members, strict=True
    ):
        view.add_row(
            candidate.member.name + " *" * (candidate.member is fitted.chosen),
            number(float(str(row["worst_validation_loss"])), 4),
            number(float(str(row["average_validation_loss"])), 4),
            "excluded" if candidate.excluded else NOTHING if math.isnan(p) else f"{p:.2g}",
            NOTHING if test is None else score.number(Metrics.of(test, score).worst_score),
        )
    console.out.print(view)
    lines = [f"validation losses: {group}" for group in fitted.pooled]
    lines += [f"{c.member.name} {c.excluded}" for c in fitted.candidates if c.excluded]
    for text in (*lines, f"chosen: {fitted.reason}"):
        console.out.print(text, markup=False)
    view = ScreenTable(
        "model", f"worst {score.words}", f"average {score.words}", "worst loss", text=("model",),
        title=f"test rows, {job.data.n} clients, {plural(job.settings.rounds, 'round')}",
    )  # fmt: skip
    references = {REFERENCES[key][0]: test for key, test in fitted.references.items()}
    models = {"fit": fitted.result.evaluation}
    if fitted.global_test is not None:
        models = {"fit, with personal models": fitted.result.evaluation, "fit, global model alone": fitted.global_test}
    for name, test in {**models, **references}.items():
        if test is not None:
            m = Metrics.of(test, score)
            view.add_row(name, score.number(m.worst_score), score.number(m.avg_score), number(m.worst_loss, 3))
    console.out.print(view)
    line, used = fitted.finished.interval_line(), [] if fitted.personal is None else fitted.personal.used
    lines = [] if line is None else [f"{line}; for details: drfl assess"]
    own = sum(name != GLOBAL for name in used)
    lines += [f"{own} of {job.data.n} clients have their own model"] if used else []
    lines += [f"for these, predict with drfl predict {fitted.directory} TABLE --client NAME"] if own else []
    for text in (*lines, *remark_lines(fitted.finished.reading_aids)):
        console.out.print(text, markup=False)
    console.out.print(f"report: {Path(fitted.directory or '') / 'report.html'}", markup=False)
