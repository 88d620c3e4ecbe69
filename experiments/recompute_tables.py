"""Make the tables of stored reproductions again from their cells.csv, without running anything.

    python experiments/recompute_tables.py                    # all of them
    python experiments/recompute_tables.py drdm-table-3
    python experiments/recompute_tables.py --equal-clients --data-dir DIR

Rewrites paired.csv, and of table.md what follows from the last models, by the functions that `drfl reproduce` uses.
With --equal-clients the clients' test sets are dealt again, as for the runs, from the data sets under DIR, and what
equally good clients would show on them is reckoned anew, in cells.csv too. All else stays as it was.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from drfl.atomic_files import atomic_write
from drfl.data import Dataset
from drfl.experiments.build import divide, load_data
from drfl.experiments.config import load_config
from drfl.papers.plan import Planned
from drfl.papers.stored import Sizes, recomputed

RESULTS = Path(__file__).parent / "results"
DIVIDES = ("dataset", "test_fraction", "partition", "clients", "alpha", "zipf", "seed")
"""What a job has that the clients' test sets depend on: labels, not features, and how they are dealt."""


def test_sizes(data_dir: Path | None) -> Sizes:
    """The test samples of the clients of a planned run, by its job."""

    @functools.lru_cache
    def loaded(dataset: str, test_fraction: float | None) -> Dataset:
        given = {"dataset": dataset, "data_dir": data_dir, "test_fraction": test_fraction}
        return load_data(load_config(None, {name: value for name, value in given.items() if value is not None}))

    @functools.lru_cache
    def sizes(*job: tuple[str, object]) -> list[int]:
        config = load_config(None, dict(job))
        return [len(rows) for rows in divide(config, loaded(config.dataset, config.test_fraction)).test]

    def of(planned: Planned) -> list[int]:
        return sizes(*((name, planned.cell.job[name]) for name in DIVIDES if name in planned.cell.job))

    return of


def stored() -> list[str]:
    """The results of training."""
    texts = {path.parent.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*/cells.csv")}
    return sorted(name for name, text in texts.items() if "worst_accuracy" in text.partition("\n")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="results; all of training if none is named")
    parser.add_argument("--equal-clients", action="store_true", help="reckon anew what equally good clients would show")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets' files")
    given = parser.parse_args()
    names = given.names or stored()
    sizes = test_sizes(given.data_dir) if given.equal_clients else None
    made = {RESULTS / name: recomputed(RESULTS / name, sizes) for name in names}
    for folder, texts in made.items():
        for name, text in texts.items():
            with atomic_write(folder / name) as file:
                file.write(text.encode())
        print(folder.name)


if __name__ == "__main__":
    main()
