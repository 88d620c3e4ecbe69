"""The files of a new study: a table, a model, an algorithm with its test, and what is run."""

from __future__ import annotations

import random
from importlib import resources
from pathlib import Path

from drfl.core.atomic_files import check_new, new_folder

DATA = "visits.csv"

ROWS = {"city": 300, "coast": 210, "hills": 150, "island": 90}
"""Clinic → rows: at each a third, which are tested on, are enough for a score that is not coarse."""

TEMPLATES = ("README.md", "algorithm.py", "gitignore", "model.py", "study.toml", "test_study.py")


def write(path: Path) -> None:
    """Write a study's folder: all of it, or nothing.

    Args:
        path: the folder; it must be empty or not exist.

    Raises:
        InputError: the folder is not empty or cannot be written.
    """
    check_new(path)
    with new_folder(path.absolute()) as stage:
        for name, text in files(path.absolute().name).items():
            (stage / name).write_text(text, encoding="utf-8", newline="\n")


def files(name: str) -> dict[str, str]:
    """The texts of all files by name.

    Args:
        name: what the study is called, for its README.
    """
    folder = resources.files("drfl.cli.new") / "templates"
    made = {file: (folder / file).read_text(encoding="utf-8") for file in TEMPLATES}
    made["README.md"] = made["README.md"].replace("@NAME@", name)
    # a template named .gitignore would hide files in drfl's own repository
    made[".gitignore"] = made.pop("gitignore")
    # synthetic patients: age and pressure decide whether they return; the island has the opposite effect of pressure
    draw = random.Random(0)
    lines = ["clinic,age,pressure,smoker,returns"]
    for clinic, rows in ROWS.items():
        pressure_counts = -1.5 if clinic == "island" else 1.5
        for _ in range(rows):
            age, pressure, smoker = draw.gauss(0, 1), draw.gauss(0, 1), draw.random() < 0.3
            returns = 1.5 * age + pressure_counts * pressure + smoker + draw.gauss(0, 0.7) > 0.3
            habit = "yes" if smoker else "no"
            lines.append(f"{clinic},{55 + 12 * age:.0f},{130 + 15 * pressure:.0f},{habit},{int(returns)}")
    return made | {DATA: "\n".join(lines) + "\n"}
