"""Small data sets with the names and formats of the real ones, made from data that come with drfl and scikit-learn.

Scripts read them with ``--smoke``; see script.py. Images are scikit-learn's digits, census rows are patients of four
hospitals, and the lines of a play are the text of a licence.
"""

from __future__ import annotations

import csv
from importlib import resources
from itertools import cycle, islice
from pathlib import Path

from drfl.data import load
from drfl.data.datasets.adult import COLUMNS, PARTS
from drfl.data.datasets.formats import write_idx
from drfl.data.datasets.shakespeare import SHORTEST

EMBEDDED = resources.files("drfl.data.datasets") / "embedded"
ROLES = 20


def write(folder: Path) -> None:
    """Write mnist, fashion-mnist, kmnist, adult, adult.csv and shakespeare.txt below the folder."""
    _pictures(folder)
    _people(folder)
    _plays(folder / "shakespeare.txt")


def _pictures(folder: Path) -> None:
    """Write 1,198 training and 599 test images of 28 × 28 pixels; Fashion-MNIST's are MNIST's, turned by 90°."""
    digits = load("digits")
    parts = {"train": (digits.inputs, digits.targets), "t10k": (digits.test_inputs, digits.test_targets)}
    for part, (inputs, targets) in parts.items():
        pixels = (255 * inputs[:, 0]).round().byte().repeat_interleave(3, 1).repeat_interleave(3, 2)
        pictures = pixels.new_zeros(len(pixels), 28, 28)
        pictures[:, 2:26, 2:26] = pixels
        for name in ("mnist", "fashion-mnist", "kmnist"):
            turned = pictures.transpose(1, 2) if name == "fashion-mnist" else pictures
            write_idx(folder / name / f"{part}-images-idx3-ubyte", turned.numpy())
            write_idx(folder / name / f"{part}-labels-idx1-ubyte", targets.byte().numpy())


def _people(folder: Path) -> None:
    """Write 740 people: once with a header in adult.csv, and repeated up to UCI's number of rows in adult/."""
    patients = list(csv.DictReader((EMBEDDED / "heart_disease.csv").read_text(encoding="utf-8").splitlines()))
    schools = dict(zip(sorted({row["hospital"] for row in patients}), ("Bachelors", "Doctorate", "HS-grad", "Masters"),
                       strict=True))  # fmt: skip
    people = []
    for row in patients:
        told = {
            "age": row["age"], "workclass": f"class {row['restecg']}", "fnlwgt": row["trestbps"],
            "education": schools[row["hospital"]], "education-num": str(int(row["age"]) % 16),
            "marital-status": f"status {row['exang']}", "occupation": f"occupation {row['cp']}",
            "relationship": f"relation {row['cp']}", "race": f"race {row['fbs']}", "sex": f"sex {row['sex']}",
            "capital-gain": row["chol"], "capital-loss": row["trestbps"], "hours-per-week": row["thalach"],
            "native-country": "country", "income": "<=50K" if row["num"] == "0" else ">50K",
        }  # fmt: skip
        people.append([told[name] for name in COLUMNS])
    with (folder / "adult.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*COLUMNS[:-1], "income-per-year"], *people])
    (folder / "adult").mkdir()
    for name, count in PARTS.items():
        lines = [", ".join(person) for person in islice(cycle(people), count)]
        (folder / "adult" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _plays(path: Path) -> None:
    """Write a play whose roles each speak a part of the licence, long enough for a client."""
    text = " ".join((EMBEDDED / "CC-BY-4.0.txt").read_text(encoding="utf-8").split())
    speeches = (text[start:] + text[:start] for start in range(0, len(text), len(text) // ROLES))
    said = [
        f"{chr(ord('A') + k)}.\n{speech[: SHORTEST + 200]}\n" for k, speech in zip(range(ROLES), speeches, strict=False)
    ]
    path.write_text("\n".join(said), encoding="utf-8")
