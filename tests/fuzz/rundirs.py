"""Run directories, of which one file is damaged."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from tests.report.conftest import write_directory

from drfl.papers.energy.measurements import from_runs
from drfl.report import load_run, write_report

from .judge import Parser
from .mutate import NUMBERS, WORDS, damaged, written

CONFIG = {"evaluate_every": 1, "steps": 5, "alpha": 0.1}
VALUES = (
    None,
    True,
    -1,
    0,
    1.5,
    1e999,
    -1e999,
    10**400,
    "",
    "x",
    "</script>",
    "a\nb",
    "\ud800",
    [],
    [1],
    {},
    {"a": {"b": []}},
)


@functools.cache
def files():
    """Name → content."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write_directory(
            Path(folder), "run", "DRFA", 1, clients=2, rounds=2, config=CONFIG, gap=[1.0, 0.1, 0.01]
        )
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def one_damaged(rng):
    """The name of a file and its content; None = it is missing."""
    name = rng.choice(list(files()))
    data = files()[name]
    kind = rng.randrange(20)
    if kind == 0:
        return name, rng.choice((None, b"", data))
    if kind <= 3:
        return name, damaged(rng, data)
    if kind <= 12 and not name.endswith(".toml"):
        return name, another_value(rng, name)
    return name, written(rng, data.decode())


def another_value(rng, name):
    """A file with a value in the place of another."""
    data = files()[name]
    if name == "summary.json":
        content = json.loads(data)
        part = rng.choice((content, content["final"], content["ledger"], content["partition"], content["versions"]))
        part[rng.choice([*part, "partition", "averaged", "skipped_rounds"])] = rng.choice(VALUES)
        return json.dumps(content).encode()
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice((rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(WORDS)))
    return "\n".join(map(",".join, rows)).encode()


def odd(rng):
    """As `one_damaged`, but mostly one that can be read: refusals are looked into above."""
    name = rng.choice(("summary.json",) * 3 + ("history.csv", "clients.csv"))
    return one_damaged(rng) if rng.random() < 0.1 else (name, another_value(rng, name))


def put(item, folder):
    """The directory with this file."""
    name, data = item
    directory = folder / "run"
    directory.mkdir(exist_ok=True)
    for known, content in {**files(), name: data}.items():
        (directory / known).unlink(missing_ok=True)
        if content is not None:
            (directory / known).write_bytes(content)
    return directory


def read_directory(item, folder):
    """As reports and `drfl energy` read it."""
    load_run(put(item, folder))
    from_runs([folder / "run"], 0.5)


def report(item, folder):
    """The report on it, alone."""
    write_report([load_run(put(item, folder))], folder / "report.html")


RUNS = (Parser("run directories", one_damaged, read_directory), Parser("reports", odd, report, cost=10))
