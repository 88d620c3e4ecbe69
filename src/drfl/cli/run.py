"""``drfl run``."""

from __future__ import annotations

from pathlib import Path

from drfl.cli import console, signals
from drfl.cli.options import RunOptions
from drfl.cli.to_config import named_code, overrides
from drfl.core.run_end import OWN_MODELS, RESET
from drfl.core.screen import ScreenTable
from drfl.core.user_code import label_of
from drfl.data.personal_models import PERSONAL
from drfl.experiments.compare.comparison_results import UNDEFINED, score_columns
from drfl.experiments.config.about_run import run_toml
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config, config_of, read_file
from drfl.experiments.config.data_settings import load_data
from drfl.experiments.run.artifacts import json_text, summary
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.manifest import SUMMARY, interruption, is_finished
from drfl.experiments.run.resume import (
    check_data_settings,
    check_folder,
    check_stored_config,
    checkpoint_writer,
    key_of,
    load_resume_point,
)
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.run_warnings import check_strict, warnings_of
from drfl.experiments.run.runner import execute, write_results
from drfl.federation.federation import Evaluation
from drfl.report.formatting import plural
from drfl.report.read_run import remark_lines
from drfl.task.measure import number, undefined_note, undefined_share
from drfl.training.certificate import Certificate
from drfl.training.history import Metrics, undefined_counts
from drfl.training.trackers import tracking


def run_command(options: RunOptions) -> int:
    """Execute a run, write and print its results, and return the exit code."""
    out, resume, quiet = options.out, options.resume, options.as_json
    with signals.end_at_once():  # there is nothing to clean up yet
        # Read it only for the key of the folder. The code that the file names is checked below, but not loaded here.
        values = {**read_file(options.config, trust=True), **options.settings}
        stored = check_folder(
            out, "run", resume=resume, overwrite=options.overwrite, trust=options.trust,
            key=values.get("checkpoint_key"), given=any((options.config, options.settings, options.param)),
        )  # fmt: skip
        path = options.config or stored
        file = read_file(path, named_code(options.settings, options.param), trust=options.trust, resuming=resume)
        tables = file.get("algorithms")
        if "algorithm" not in file and isinstance(tables, dict) and len(tables) == 1:
            file["algorithm"] = next(iter(tables))
        # --param without the name of an algorithm applies to the algorithm that runs, which the file may name.
        algorithm = options.settings.get("algorithm") or file.get("algorithm", Config.model_fields["algorithm"].default)
        config = config_of(file, overrides(options.settings, options.param, [str(algorithm)]))
        default = Path("runs") / f"{label_of(config.algorithm)}-{config.data_label}-seed{config.seed}".lower()
        key = key_of(config, out or default)
        if resume:
            check_data_settings(config, out)
    # Loading may download, which takes long and needs a clean-up: a signal raises an exception here.
    data = load_data(config, console.lines(quiet))
    with console.interruptible() as watch:
        job = build(config, data)
        warnings = warnings_of(job)
        check_strict(config.strict, warnings)
        if out is not None and resume:
            check_stored_config(out, job)
        if out is not None and resume and is_finished(out):
            return console.end_finished(out, "run", SUMMARY, quiet)
        place, toml = out or default, run_toml(job.about)
        with claim_folder(
            place,
            resume=resume,
            overwrite=options.overwrite,
            numbered=out is None,
            config=toml,
            warn=console.warn,
            key=key,
        ) as claim:
            point = load_resume_point(claim.checkpoints, job, console.warn, key) if resume else None
            start = None if point is None else point.progress
            for line in warnings:
                console.warn(line)
            label = label_of(config.algorithm)
            with console.progress(label, quiet) as show, tracking(options.track, claim.directory.name) as trackers:
                keep = checkpoint_writer(claim, job, key)
                finished = execute(job, [show, *trackers], watch, start=start, keep=keep)
            write_results(finished, claim)
    if quiet:
        print(json_text({**summary(finished), "directory": str(claim.directory)}))
    else:
        _print(finished, claim.directory)
    if not console.warn_of_checks(finished.checks):
        return console.BROKEN
    if finished.has_ended:
        return 0
    unfinished = interruption(claim.directory)
    if unfinished is not None:
        console.warn(unfinished)
    return watch.code


def _print(finished: FinishedRun, directory: Path) -> None:
    about, result = finished.job.about, finished.result
    row, returned, score = result.history.last, result.returned, result.history.score
    rows: dict[str, tuple[Evaluation, Certificate | None]] = {returned: (result.evaluation, row.certificate)}
    if returned != "last":
        rows["last"] = (result.last, None)
    if result.averaged is not None:
        rows["averaged"] = (result.averaged, result.averaged_certificate)
    counts = {name: undefined_counts(evaluation)[:1] for name, (evaluation, _) in rows.items()}
    has_gap, has_undefined = finished.job.certify is not None, any(map(any, counts.values()))
    clients, headings = [finished.job.data.n], score_columns(score, fifth=True).values()
    more = (*([UNDEFINED] if has_undefined else []), "avg loss", "worst loss", *(["gap"] if has_gap else []))
    what = f"{label_of(about.algorithm)} on {about.label}"
    table = ScreenTable(
        "iterate", *headings, *more, text=("iterate",), no_wrap=(UNDEFINED,),
        title=f"{what}, {finished.job.data.n} clients, {plural(result.rounds, 'round')}",
    )  # fmt: skip
    for name, (evaluation, certificate) in rows.items():
        m = Metrics.of(evaluation, score)
        table.add_row(
            name,
            *map(score.number, (m.avg_score, m.worst_score, m.std_score, m.worst20_score)),
            *([undefined_share(counts[name], clients)] if has_undefined else []),
            number(m.avg_loss, 3),
            number(m.worst_loss, 3),
            *([console.gap(certificate)] if has_gap else []),
        )
    console.out.print(table)
    line, more = finished.interval_line(), "" if result.stopped_on == "test" else "; for details: drfl assess"
    intervals = [] if line is None else [f"{line}{more}"]
    stored = f"{PERSONAL} has them" if (directory / PERSONAL).exists() else "they are not stored"
    own = [f"{OWN_MODELS}: {stored}, and model.safetensors has the global one"] if finished.is_personal else []
    for text in (*own, *intervals, *remark_lines(finished.reading_aids)):
        console.out.print(text, markup=False)
    for name, (_, certificate) in rows.items():
        if has_gap and name in (returned, "averaged"):
            console.out.print(f"{name}: {console.certificate(certificate)}")
    size = result.step_size
    if size is not None:  # otherwise the user gave η and knows it
        text = f"η = {float(size.eta):.3g}"
        if int(size.client) >= 0:
            text += f", from curvature {float(size.curvature):.3g} at {finished.job.data.names[int(size.client)]}"
        if int(size.lowered):
            text += f", halved {int(size.lowered)} {'time' if int(size.lowered) == 1 else 'times'}"
        text += f"; {RESET}, {result.marks.rounds_text}" if result.rollbacks else ""
        console.out.print(text, markup=False)
    if finished.stopped == "target":
        by = result.selection if result.stopped_on == "validation" else None
        note = undefined_note(counts[returned] if by is None else [len(by.undefined)], clients)
        console.out.print(f"target {finished.job.settings.until} reached in round {result.rounds}{note}")
    console.out.print(f"report: {directory / 'report.html'}", markup=False)
