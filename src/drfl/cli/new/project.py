"""The files of a new study: a table, a model, an algorithm with its test, and a TOML file of options."""

from __future__ import annotations

import random
from importlib import resources
from pathlib import Path

from drfl.core.atomic_files import check_new, new_folder

DATA = "visits.csv"

ROWS = {"city": 500, "coast": 350, "hills": 250, "island": 150}
"""Clinic → rows. A fifth of them are test rows, which is enough for a score that is not too coarse."""

TEMPLATES = ("README.md", "algorithm.py", "gitignore", "model.py", "study.toml", "test_study.py")


def write(path: Path) -> None:
    """Write the folder of a study completely, or not at all.

    Raises:
        InputError: If the folder is not empty or cannot be written.
    """
    check_new(path)
    with new_folder(path.absolute()) as stage:
        for name, text in files(path.absolute().name).items():
            (stage / name).write_text(text, encoding="utf-8", newline="\n")


def files(name: str) -> dict[str, str]:
    """Return the texts of all files by file name."""
    folder = resources.files("drfl.cli.new") / "templates"
    texts = {file: (folder / file).read_text(encoding="utf-8") for file in TEMPLATES}
    texts["README.md"] = texts["README.md"].replace("@NAME@", name)
    # A template named .gitignore would hide files in drfl's own repository.
    texts[".gitignore"] = texts.pop("gitignore")
    # Synthetic patients return depending on age and pressure; on the island pressure has the opposite effect.
    draw = random.Random(0)
    lines = ["clinic,age,pressure,smoker,returns"]
    for clinic, rows in ROWS.items():
        pressure_counts = -1.5 if clinic == "island" else 1.5
        for _ in range(rows):
            age, pressure, smoker = draw.gauss(0, 1), draw.gauss(0, 1), draw.random() < 0.3
            returns = 1.5 * age + pressure_counts * pressure + smoker + draw.gauss(0, 0.7) > 0.3
            habit = "yes" if smoker else "no"
            lines.append(f"{clinic},{55 + 12 * age:.0f},{130 + 15 * pressure:.0f},{habit},{int(returns)}")
    return texts | {DATA: "\n".join(lines) + "\n"}
