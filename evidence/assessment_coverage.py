"""Measure the coverage of the intervals, sets and tests of drfl.assessment on 10,000 simulated federations per setting.

    python evidence/assessment_coverage.py [--federations 10000] [--smoke]

The settings and statements are those of ``tests/assessment/settings.py``. They have 2 to 1,000 clients with 3 to
100,000 test rows, whose true scores are equal, spread, clustered at the worst, near 0 or near 1; clients may share
rows. The scores are in [0, 1] for up to 10⁴ rows in all, some with rare large losses; there are also AUCs with 1 to 200
positives and ties, rates, new clients, required numbers of test rows, and seeds. Slow settings have fewer than 10,000
federations, as the tables state.

results/assessment_coverage/coverage.csv lists the statements. A statement is rejected if an exact binomial test shows
that it misses more often than allowed, after Holm's correction over all settings and statements. Statements about
unbounded scores are only approximate, so they are measured but not tested. wrong_variants.csv has the results of
deliberately wrong statements in the same suite. power.csv and power.png show how often a better worst client is
significant, and the same for the measured minima. Counts are stored in cells.csv, and settings that it contains are not
simulated again.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import assessment_power
import kept
import script
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import json_text, versions

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "assessment_coverage"
SEED = 0
KEYS = ("suite", "setting", "tried", "statement")
CELLS = (*KEYS, "federations", "misses", "nominal", "demanded", "seconds")
COLUMNS = ("setting", "statement", "federations", "misses", "share", "nominal", "demanded", "p", "p_holm", "rejected")


def part(name: str) -> Any:
    """Import the test module that defines the settings and statements."""
    return importlib.import_module(f"tests.assessment.{name}")


def simulate(path: Path, suite: str, cases: Iterable[Any], federations: int) -> None:
    """Simulate the cases that are missing in the file, and append them."""
    tallied = part("statements").tallied
    rows = kept.known(path, len(KEYS))
    there = {key[:-1] for key in rows}
    for case in cases:
        tried = " ".join(way.__name__ for way in case.ways)
        if (suite, case.setting.name, tried) in there:
            continue
        start, count = time.perf_counter(), min(case.federations, federations)
        found = tallied(case.setting, case.ways, count, Key(SEED), demanded=case.demanded)
        seconds = f"{time.perf_counter() - start:.0f}"
        for tally in found:
            told = (tally.federations, tally.misses, tally.nominal, tally.demanded, seconds)
            rows[suite, tally.setting, tried, tally.statement] = [str(cell) for cell in told]
        kept.save(path, CELLS, rows)
        print(suite, case.setting.name, tried, f"{seconds} s", flush=True)


def verdicts(path: Path, suite: str, cases: Iterable[Any]) -> tuple[list[list[str]], int]:
    """The rows of a suite's table, in the order of its cases, and the number of rejected statements."""
    statements, table, tallies = part("statements"), [], []
    known = kept.known(path, len(KEYS)).items()
    for case in cases:
        tried = " ".join(way.__name__ for way in case.ways)
        tallies += [
            statements.Tally(case.setting.name, key[3], int(row[0]), int(row[1]), float(row[2]), case.demanded)
            for key, row in known
            if key[:3] == (suite, case.setting.name, tried)
        ]
    rejected = statements.rejected(tallies)
    for tally, p_holm in zip(tallies, statements.adjusted(tallies), strict=True):
        share, holm = f"{tally.misses / tally.federations:.5f}", f"{p_holm:.4g}" if tally.demanded else ""
        counts = [str(tally.federations), str(tally.misses), share, f"{tally.nominal:.6g}", str(tally.demanded)]
        table.append([tally.setting, tally.statement, *counts, f"{tally.p:.4g}", holm, str(tally in rejected)])
    return table, len(rejected)


def main() -> None:
    """Simulate missing cases and write the tables."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--federations", type=int, default=script.sized(10_000, 2))
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    settings, cells = part("settings"), options.out / "cells.csv"
    simulate(cells, "wrong", settings.WRONG, options.federations)
    assessment_power.measure(options.out)
    simulate(cells, "ours", settings.OURS, options.federations)
    about: dict[str, object] = {
        "command": "python evidence/assessment_coverage.py",
        "seed": SEED,
        "device": f"CPU, {os.cpu_count()} cores, one process",
        "alpha": part("statements").ALPHA,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    suites = {"ours": (settings.OURS, "coverage.csv"), "wrong": (settings.WRONG, "wrong_variants.csv")}
    for suite, (cases, file) in suites.items():
        table, rejected = verdicts(cells, suite, cases)
        script.store(options.out, {file: csv_text(COLUMNS, table)})
        demanded = [row for row in table if row[6] == "True"]
        about[suite] = {
            "settings": len({row[0] for row in table}),
            "statements": len(table),
            "demanded": len(demanded),
            "rejected": rejected,
            "largest_share_over_nominal": max(float(row[4]) / float(row[5]) for row in demanded),
            "fewer_federations": sorted({row[0] for row in table if int(row[2]) < options.federations}),
        }
    script.store(options.out, {"summary.json": about})
    print(json_text(about, indent=2))


if __name__ == "__main__":
    main()
