"""Five messy tables about an invented disease: hospitals differ in column order, encoding and blank cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

NAMES = ("north", "south", "east", "west", "late")
ROWS = (160, 120, 90, 70, 80)


def patients(name: str, seed: int) -> pd.DataFrame:
    """Create the clean rows of a hospital. The risk depends on age, blood pressure and the kind of pain."""
    draw, n = np.random.default_rng(seed), ROWS[NAMES.index(name)]
    age, pressure = draw.normal(55 + 3 * seed, 9, n).round(), draw.normal(130, 15, n).round(1)
    pain = draw.choice(["none", "typical", "süß"], n, p=[0.5, 0.3, 0.2])
    odds = (age - 60) / 8 + (pressure - 130) / 20 + np.where(pain == "typical", 1.0, -0.3)
    sick = draw.random(n) < 1 / (1 + np.exp(-odds))
    score = (1 / (1 + np.exp(-(age - 60) / 8))).round(4)
    frame = {"age": age, "pressure": pressure, "pain": pain, "smoker": draw.choice(["yes", "no"], n)}
    return pd.DataFrame({**frame, "sick": np.where(sick, "yes", "no"), "old_score": score, "note": "…"})


def write_tables(folder: Path) -> dict[str, Path]:
    """Write the table of every hospital, and return the files by name."""
    files: dict[str, Path] = {}
    for seed, name in enumerate(NAMES):
        frame, draw = patients(name, seed), np.random.default_rng(100 + seed)
        missing = draw.random((len(frame), 2)) < 0.06
        frame["pressure"], frame["age"] = frame["pressure"].mask(missing[:, 0]), frame["age"].mask(missing[:, 1])
        options: dict[str, object] = {"index": False}
        if name == "south":  # another order, and decimal commas
            frame, options = frame[list(frame.columns[::-1])], {**options, "sep": ";", "decimal": ","}
        if name == "east":  # the legacy encoding of Western Europe
            options["encoding"] = "cp1252"
        if name == "west":
            options["sep"] = "\t"
        files[name] = folder / f"{name}.{'tsv' if name == 'west' else 'csv'}"
        frame.to_csv(files[name], **options)  # pyright: ignore[reportArgumentType]
    return files
