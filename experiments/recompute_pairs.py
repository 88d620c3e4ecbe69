"""Make the paired differences of stored reproductions again from their cells.csv, without running anything.

    python experiments/recompute_pairs.py                    # all of them
    python experiments/recompute_pairs.py drdm-table-3

Rewrites paired.csv and the paired differences at the end of table.md by the functions that `drfl reproduce` uses. All
else stays as it was.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from drfl.atomic_files import atomic_write
from drfl.papers.stored import paired_files

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="results; all that have paired differences if none is named")
    names = parser.parse_args().names or sorted(path.parent.name for path in RESULTS.glob("*/paired.csv"))
    made = {RESULTS / name: paired_files(RESULTS / name) for name in names}
    for folder, texts in made.items():
        for name, text in texts.items():
            with atomic_write(folder / name) as file:
                file.write(text.encode())
        print(folder.name)


if __name__ == "__main__":
    main()
