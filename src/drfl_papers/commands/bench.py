"""``drfl bench``."""

from __future__ import annotations

import os
from pathlib import Path

from drfl.cli import console
from drfl.core import checks
from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError, unknown
from drfl.core.screen import ScreenTable
from drfl.core.user_code import label_of
from drfl.experiments.config.algorithm_settings import AlgorithmSettings
from drfl.experiments.config.hyperparameters import Value, algorithm_name, has_parameter
from drfl.experiments.run.artifacts import json_text, versions
from drfl.experiments.run.run_directory import check_free, claim_folder, fill_folder
from drfl.federation.algorithm import Algorithm
from drfl_papers.bench.ranking import BASELINE, rank, ranking, run_suite
from drfl_papers.bench.suite import SUITE
from drfl_papers.commands.options import BenchOptions

RESULTS = Path("bench")
DEFAULT = "SCAFFOLD,DRFA,DRDM,DualDRDM,ScaffPD"


def bench_command(options: BenchOptions) -> int:
    """Run the benchmark, write and print the ranking, and return the exit code."""
    known = {job.name: job for job in SUITE}
    chosen = list(known)
    if options.suite_jobs is not None:
        chosen = [name.strip() for name in options.suite_jobs.split(",")]
    for name in chosen:
        if name not in known:
            raise unknown("job", name, known)
    checks.distinct("--suite", chosen, field="suite")
    texts = (DEFAULT if options.names is None else options.names).split(",")
    others = [algorithm_name(text.strip()) for text in texts]
    checks.distinct("--algorithms", others, field="algorithms")
    names = dict.fromkeys([BASELINE, *others])
    if len(names) < 2:
        raise InputError(
            f"--algorithms names only {BASELINE}, with which the others are compared: name another one",
            code="missing-option",
            field="algorithms",
        )
    tables: dict[str, dict[str, Value]] = {}
    for name in names:
        # All algorithms use every row for reported losses; of the small data this is cheap.
        rows: dict[str, Value] = {"dual_batch": "full"} if has_parameter(name, "dual_batch") else {}
        tables[name] = {"weight_decay": 1e-3, "batch": 50, **rows}
    settings = AlgorithmSettings.checked({"algorithms": tables})

    def algorithms(clients: int) -> dict[str, Algorithm]:
        return {label_of(name): settings.build_algorithm(name, clients) for name in names}

    out, quiet = options.out or RESULTS, options.as_json
    check_free(out, "benchmark", overwrite=True)
    with claim_folder(out, "benchmark", resume=True) as claim:
        runs = run_suite(
            [known[name] for name in chosen], algorithms, out, rounds=options.rounds, seeds=options.seeds,
            workers=options.jobs or os.cpu_count() or 1, progress=console.lines(quiet),
        )  # fmt: skip
        differences = rank(runs)
        plain, order = [difference.to_plain() for difference in differences], ranking(differences)
        content = {
            "baseline": BASELINE,
            "jobs": chosen,
            "rounds": options.rounds,
            "seeds": options.seeds,
            "ranking": [name for name, _, _ in order],
            "differences": plain,
            "versions": versions(),
        }
        columns = list(plain[0])
        cells = [["" if row[name] is None else row[name] for name in columns] for row in plain]
        with fill_folder(claim) as stage:
            (stage / "bench.json").write_bytes(json_text(content).encode())
            (stage / "bench.csv").write_bytes(csv_text(columns, cells).encode())
            claim.finished = True
    if quiet:
        print(json_text({**content, "directory": str(out)}))
        return 0
    title = f"difference to {BASELINE}, mean of {len(chosen)} jobs, {options.seeds} seeds"
    table = ScreenTable("algorithm", "worst accuracy, points", "verdict", "worst loss", "verdict", title=title)
    for name, accuracy, loss in order:
        table.add_row(name, accuracy.text, accuracy.verdict, loss.text, loss.verdict)
    console.out.print(table)
    console.out.print(f"all differences: {out / 'bench.csv'}", markup=False)
    return 0
