"""Run directories with one damaged file."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from hypothesis.strategies import composite, integers, one_of, sampled_from
from tests.report.conftest import write_directory

from drfl.report import document, load_run, write_html
from drfl_papers.energy.measurements import from_runs

from .judge import Parser
from .strategies import NUMBERS, WORDS, chance, mutated_bytes, mutated_file, mutated_json

CONFIG = {"evaluate_every": 1, "steps": 5, "alpha": 0.1}


@functools.cache
def files():
    """Return name → content of a run directory."""
    with tempfile.TemporaryDirectory() as folder:
        directory = write_directory(
            Path(folder), "run", "DRFA", 1, clients=2, rounds=2, config=CONFIG, gap=[1.0, 0.1, 0.01]
        )
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@composite
def other_value(draw, name):
    """Draw the file with one value replaced."""
    data = files()[name]
    if name == "summary.json":
        return json.dumps(draw(mutated_json(json.loads(data)))).encode()
    rows = [line.split(",") for line in data.decode().splitlines()]
    row = draw(sampled_from(rows))
    row[draw(integers(0, len(row) - 1))] = draw(one_of(sampled_from(NUMBERS), sampled_from(WORDS)))
    return "\n".join(map(",".join, rows)).encode("utf-8", "surrogatepass")


@composite
def one_damaged(draw):
    """Draw the name of a file and its content; None = it is missing."""
    name = draw(sampled_from(list(files())))
    data = files()[name]
    kind = draw(sampled_from(("special", *("bytes",) * 3, *("text",) * 7, *("value",) * 9)))
    if kind == "special":
        return name, draw(sampled_from((None, b"", data)))
    if kind == "bytes":
        return name, draw(mutated_bytes(data))
    if kind == "text" or name.endswith(".toml"):
        return name, draw(mutated_file(data.decode()))
    return name, draw(other_value(name))


@composite
def odd(draw):
    """Draw like `one_damaged`, but mostly readable files, because `one_damaged` covers refusals."""
    name = draw(sampled_from(("summary.json",) * 3 + ("history.csv", "clients.csv")))
    return draw(one_damaged()) if draw(chance(10)) else (name, draw(other_value(name)))


def put(item, folder):
    """Write the directory with this file."""
    name, data = item
    directory = folder / "run"
    directory.mkdir(exist_ok=True)
    for known, content in {**files(), name: data}.items():
        (directory / known).unlink(missing_ok=True)
        if content is not None:
            (directory / known).write_bytes(content)
    return directory


def read_directory(item, folder):
    """Read the directory like reports and `drfl energy`."""
    load_run(put(item, folder))
    from_runs([folder / "run"], 0.5)


def report(item, folder):
    """Write the report on this run alone."""
    write_html(document([load_run(put(item, folder))]), folder / "report.html")


RUNS = (Parser("run directories", one_damaged(), read_directory), Parser("reports", odd(), report, seconds=20))
