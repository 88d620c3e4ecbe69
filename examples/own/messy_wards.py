"""Write the messy tables of six invented wards into a folder: python examples/own/messy_wards.py FOLDER."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def ward(seed, patients):
    """Visits to one ward. Patients come once or several times."""
    rng = np.random.default_rng(seed)
    who = np.sort(rng.integers(0, patients, 2 * patients))
    age = rng.normal(62, 12, patients).round()[who]
    creatinine = (np.exp(rng.normal(0, 0.3, len(who))) * (0.6 + age / 150)).round(2)
    platelets = rng.normal(245_000, 60_000, len(who)).round(-2)
    smoker = rng.random(patients)[who] < 0.3
    risk = 2 * (creatinine - 1) + (age - 62) / 15 + smoker - (platelets - 245_000) / 90_000
    day = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, len(who)), "D")
    return pd.DataFrame(
        {
            "patient": [f"{seed}-{k:03}" for k in who],
            "admitted": day.strftime("%Y-%m-%d"),
            "age": age.astype(int),
            "creatinine": creatinine,
            "platelets": platelets.astype(int),
            "smoker": np.where(smoker, "yes", "no"),
            "died": np.where(risk + rng.normal(size=len(who)) > 0.6, "yes", "no"),
        }
    )


def some(values, share, word, seed):
    """Replace a share of the values by a word."""
    values = values.astype(object)
    values.iloc[np.random.default_rng(seed).choice(len(values), round(share * len(values)), replace=False)] = word
    return values


folder = Path(sys.argv[1])
folder.mkdir(parents=True)
north, south, east, west, lake, hill = (ward(seed, 60 + 10 * seed) for seed in range(6))

north.to_csv(folder / "north.csv", index=False)

# A German spreadsheet: semicolons, decimal commas, points between thousands, days first.
south["admitted"] = pd.to_datetime(south["admitted"]).dt.strftime("%d.%m.%Y")
south["platelets"] = south["platelets"].map(lambda count: f"{count:,}".replace(",", "."))
south.to_csv(folder / "south.csv", index=False, sep=";", decimal=",", encoding="cp1252")

# "Unicode text" of a spreadsheet: tabs and UTF-16, with the columns in another order.
east[east.columns[::-1]].to_csv(folder / "east.tsv", index=False, sep="\t", encoding="utf-16")

# An export of an American database: months first, commas between thousands, packed.
west["admitted"] = pd.to_datetime(west["admitted"]).dt.strftime("%m/%d/%Y")
west["platelets"] = west["platelets"].map("{:,}".format)
(folder / "west.csv.gz").write_bytes(gzip.compress(west.to_csv(index=False).encode(), mtime=0))

# Words and a code for missing values.
lake["creatinine"] = some(lake["creatinine"], 0.1, "not measured", 1)
lake["platelets"] = some(lake["platelets"], 0.05, "?", 2)
lake.to_csv(folder / "lake.csv", index=False)
hill["age"] = some(hill["age"], 0.1, -9, 3)
hill["smoker"] = some(hill["smoker"], 0.1, "", 4)
hill.to_csv(folder / "hill.csv", index=False)

(folder / "readme.docx").write_bytes(b"PK")
