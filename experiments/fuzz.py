"""Bad input for everything that reads what a user gives: nothing but success or one line may come of it.

    python experiments/fuzz.py [--inputs 10000] [--seed 0] [NAME …] [--smoke]

The fuzzers are those of ``tests/fuzz``. First they are put to parsers that are broken on purpose, each of which must be
found out. Writes ``results/fuzz/table.md`` and ``results/fuzz/summary.json``, of which the rows of parsers that are not
named stay; ends with 1 where a parser failed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

import evidence

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results" / "fuzz"
BROKEN_INPUTS = evidence.sized(100, 50)
"""Inputs for each broken parser."""


def tallied(parser, inputs: int, seed: int) -> dict:
    """What a parser did, as plain values."""
    from tests.fuzz.judge import fuzz

    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(parser, Path(folder), inputs=inputs, seed=seed)
    counts = {"inputs": tally.inputs, "accepted": tally.accepted, "refused": tally.refused}
    failures = {"failures": len(tally.failures), "first_failures": tally.failures[:5]}
    return {"parser": parser.name, **counts, **failures, "seconds": round(tally.seconds, 1)}


def table(rows: list[dict]) -> str:
    """The counts as Markdown."""
    names = ("parser", "inputs", "accepted", "refused", "failures", "seconds")
    lines = [f"| {' | '.join(names)} |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows)]) + "\n"


def shown(row: dict) -> dict:
    """Says how it went; gives it back."""
    print(f"{row['parser']}: {row['inputs']} inputs, {row['failures']} failures, {row['seconds']} s", flush=True)
    for failure in row["first_failures"]:
        print(f"  {failure}")
    return row


def main() -> int:
    """Fuzz, print and write."""
    options = evidence.parser(__doc__, RESULTS)
    options.add_argument("names", nargs="*", help="parsers (default: all)")
    options.add_argument("--inputs", type=int, default=evidence.sized(10_000, 1))
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ["DRFL_MIRROR"] = "http://127.0.0.1:9"  # nobody answers there
    torch.set_num_threads(1)
    known = importlib.import_module("tests.fuzz.parsers").PARSERS
    wrong = importlib.import_module("tests.fuzz.broken").BROKEN
    broken = [tallied(parser, BROKEN_INPUTS, given.seed) for parser in wrong]
    for row in broken:
        print(f"broken on purpose: {row['parser']}: {row['failures']} of {row['inputs']} found", flush=True)
    chosen = [known[name] for name in given.names] if given.names else list(known.values())
    rows = [shown(tallied(parser, given.inputs, given.seed)) for parser in chosen]
    from drfl.experiments.artifacts import versions

    path, mine = given.out / "summary.json", {row["parser"] for row in rows}
    if given.names and path.exists():  # the others stay as they were
        rows = [*(r for r in json.loads(path.read_text())["parsers"] if r["parser"] not in mine), *rows]
    command = f"python experiments/fuzz.py --inputs {given.inputs} --seed {given.seed}"
    content = {"command": command, "seed": given.seed}
    content |= {
        "parsers": rows,
        "broken_on_purpose": [{**row, "first_failures": row["first_failures"][:1]} for row in broken],
    }
    content["versions"] = versions()
    evidence.store(given.out, {"summary.json": content, "table.md": table(rows)})
    print(table(rows))
    return 0 if not any(row["failures"] for row in rows) and all(row["failures"] for row in broken) else 1


if __name__ == "__main__":
    sys.exit(main())
