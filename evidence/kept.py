"""Store the cells of a table as rows of a CSV file, so that a stopped script continues with the missing cells."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from drfl.core.csv_cells import csv_text

C = TypeVar("C")
Key = tuple[str, ...]
Rows = dict[Key, list[str]]


class Workers(NamedTuple):
    """Processes with one thread each, which call ``start(*given)`` first."""

    processes: int
    start: Callable[..., None]
    given: tuple[object, ...]

    def ready(self) -> None:
        """Prepare a process."""
        torch.set_num_threads(1)
        self.start(*self.given)


def known(path: Path, keys: int) -> Rows:
    """Read the cells of earlier runs: the other columns, by the first ones."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[:keys]): row[keys:] for row in list(csv.reader(file))[1:]}


def save(path: Path, columns: Iterable[str], rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(csv_text(columns, ([*key, *row] for key, row in rows.items())), encoding="utf-8")


def fill(
    path: Path, columns: Iterable[str], cells: Mapping[Key, C], measure: Callable[[C], list[str]], workers: Workers
) -> Rows:
    """Measure the cells that the file lacks, append them, and return the rows of all cells in their order."""
    columns = tuple(columns)
    rows = known(path, len(next(iter(cells))))
    todo = {key: cell for key, cell in cells.items() if key not in rows}
    with ProcessPoolExecutor(workers.processes, initializer=workers.ready) as pool:
        for key, row in zip(todo, pool.map(measure, todo.values()), strict=True):
            rows[key] = row
            save(path, columns, rows)
            print(*key, *row, flush=True)
    return {key: rows[key] for key in cells}
