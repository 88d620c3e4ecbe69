"""Test everything that reads user input with bad input: it must succeed or end with a one-line error.

    python evidence/fuzz.py [--inputs 1000] [--seed 0] [NAME …] [--smoke]

The inputs are drawn by the Hypothesis strategies of ``tests/fuzz``. They are first applied to deliberately broken
parsers, all of which must be detected. The script writes ``results/fuzz/table.md`` and ``results/fuzz/summary.json``;
rows of parsers that are not named are not changed. It exits with 1 if a parser failed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from hypothesis import Phase, settings

import script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "fuzz"
BROKEN_INPUTS = script.sized(300, 200)
"""Inputs for each broken parser."""


def tallied(parser, inputs: int, seed: int) -> dict:
    """Fuzz a parser and return the counts as plain values."""
    from tests.fuzz.judge import fuzz

    how = settings(max_examples=inputs, phases=[Phase.generate])
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz(parser, Path(folder), how, collect=True, number=seed)
    counts = {"inputs": tally.inputs, "accepted": tally.accepted, "refused": tally.refused}
    failures = {"failures": len(tally.failures), "first_failures": tally.failures[:5]}
    return {"parser": parser.name, **counts, **failures, "seconds": round(tally.seconds, 1)}


def table(rows: list[dict]) -> str:
    """Format the counts as Markdown."""
    names = ("parser", "inputs", "accepted", "refused", "failures", "seconds")
    lines = [f"| {' | '.join(names)} |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in names)} |" for row in rows)]) + "\n"


def shown(row: dict) -> dict:
    """Print a result and return it."""
    print(f"{row['parser']}: {row['inputs']} inputs, {row['failures']} failures, {row['seconds']} s", flush=True)
    for failure in row["first_failures"]:
        print(f"  {failure}")
    return row


def main() -> int:
    """Fuzz all parsers, print the results and store them."""
    options = script.parser(__doc__, RESULTS)
    options.add_argument("names", nargs="*", help="parsers (default: all)")
    options.add_argument("--inputs", type=int, default=script.sized(1000, 1))
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    sys.path.insert(0, str(ROOT))
    os.environ["DRFL_MIRROR"] = "http://127.0.0.1:9"  # no server answers there
    torch.set_num_threads(1)
    known = importlib.import_module("tests.fuzz.parsers").PARSERS
    wrong = importlib.import_module("tests.fuzz.broken").BROKEN
    judge = importlib.import_module("tests.fuzz.judge")
    enough, judge.MEMORY = judge.MEMORY, 2**26  # one of the broken parsers fills the allowed memory
    broken = [tallied(parser, BROKEN_INPUTS, given.seed) for parser in wrong]
    judge.MEMORY = enough
    for row in broken:
        print(f"broken on purpose: {row['parser']}: {row['failures']} of {row['inputs']} found", flush=True)
    chosen = [known[name] for name in given.names] if given.names else list(known.values())
    rows = [shown(tallied(parser, given.inputs, given.seed)) for parser in chosen]
    from drfl.experiments.run.artifacts import versions

    path, mine = given.out / "summary.json", {row["parser"] for row in rows}
    if given.names and path.exists():  # keep the rows of other parsers
        rows = [*(r for r in json.loads(path.read_text())["parsers"] if r["parser"] not in mine), *rows]
    content = {
        "command": f"python evidence/fuzz.py --inputs {given.inputs} --seed {given.seed}",
        "seed": given.seed,
        "parsers": rows,
        "broken_on_purpose": [{**row, "first_failures": row["first_failures"][:1]} for row in broken],
        "versions": versions(),
    }
    script.store(given.out, {"summary.json": content, "table.md": table(rows)})
    print(table(rows))
    return 0 if not any(row["failures"] for row in rows) and all(row["failures"] for row in broken) else 1


if __name__ == "__main__":
    sys.exit(main())
