"""Adult, UCI's extract of the 1994 census: income above or below 50,000 dollars (Becker and Kohavi 1996)."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from drfl.core.errors import InputError
from drfl.core.files import open_file
from drfl.data.dataset import Dataset
from drfl.data.datasets.archives import Tree, damaged, open_tree
from drfl.data.tables.columns import Columns, one_hot
from drfl.data.tables.propose import inferred_schema

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
"""Columns of the published files, which have no header."""

NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")

UNUSED = ("fnlwgt", "education", "native-country")
"""Columns that are not inputs: the census weight of a row, the education that education-num also contains, and 42
countries. Most countries are so rare that their standardised columns would dominate the rows in which they occur."""

INCOMES = ("<=50K", ">50K")

DOCTORATE = "doctorate"

GROUPS = (
    DOCTORATE, "education", "workclass", "marital-status", "occupation", "relationship", "race", "sex",
    "native-country",
)  # fmt: skip
"""Possible groupings of the rows: by doctorate or not, as in AFL's experiment, or by a column of words."""

PARTS = {"adult.data": 32_561, "adult.test": 16_281}
"""The training file and the test file, with their numbers of rows."""


def read_adult(paths: Sequence[Path], group: str = DOCTORATE) -> Dataset:
    """Read the published split, with one group per value of a column.

    A column of words becomes columns of 0 and 1, one for each value except the first. The value "?", which means
    unknown, is treated like any other. The column that defines the groups is not an input, and neither are the columns
    of `UNUSED`.

    Returns:
        Inputs (32561, p) and (16281, p) as recorded, to be standardised; target 1 if the income is above 50,000.
    """
    import pandas as pd  # imported here, because it takes a while

    alone = paths[0] if len(paths) == 1 else None
    if alone is not None:
        with open_file(alone) as file:
            zipped = zipfile.is_zipfile(file)
        if not zipped:
            raise InputError(
                f"'{alone}' is not adult.zip. Pass the folder with adult.data and adult.test; for a table "
                "of your own, use data, target and group",
                code="wrong-dataset",
                field=str(alone),
            )
    # UCI's zip file and a folder of its files are read in the same way.
    with open_tree(alone or paths[0].parent, "") as tree:
        rows, held = (_rows(tree, name) for name in PARTS)
    frame = pd.DataFrame(rows + held, columns=list(COLUMNS)).astype(dict.fromkeys(NUMBERS, float))
    schooling = frame["education"]
    groups = schooling.eq("Doctorate").map({True: DOCTORATE, False: "others"}) if group == DOCTORATE else frame[group]
    # The group is not an input: a model must not see which client a row belongs to.
    unused = [name for name in COLUMNS if name in (*UNUSED, group, "income")]
    raw = frame.drop(columns=unused)
    features = one_hot(raw, "adult")
    x = torch.from_numpy(features.to_numpy(dtype=np.float64, copy=True))
    y = torch.from_numpy(frame["income"].eq(INCOMES[1]).to_numpy(dtype=np.int64, copy=True))
    schema = inferred_schema(raw, ["income"], Columns(("income",), None if group == DOCTORATE else group), INCOMES)
    names, n = tuple(groups), len(rows)
    return Dataset(
        "adult", x[:n], y[:n], x[n:], y[n:], 2, names[:n], standardise=True, columns=tuple(features.columns),
        test_groups=names[n:], schema=schema,
    )  # fmt: skip


def _rows(tree: Tree, name: str) -> list[list[str]]:
    where, found = f"{tree.path}: {name}", []
    lines = tree.read(name).decode("ascii", "replace").splitlines()
    for number, cells in enumerate(csv.reader(lines, skipinitialspace=True), start=1):
        # The test file begins with a comment, and its incomes end in a full stop, which is removed below.
        if not cells or cells[0].startswith("|"):
            continue
        if len(cells) != len(COLUMNS):
            problem = f"expected the {len(COLUMNS)} columns of UCI's Adult, found {len(cells)}"
            raise damaged(where, problem, f", line {number}:")
        row = dict(zip(COLUMNS, cells, strict=True)) | {"income": cells[-1].rstrip(".")}
        for column in NUMBERS:
            if not row[column].isdecimal():
                problem = f"expected a number, found '{row[column]}'"
                raise damaged(where, problem, f", line {number}, column '{column}':")
        if row["income"] not in INCOMES:
            problem = f"expected income <=50K or >50K, found '{row['income']}'"
            raise damaged(where, problem, f", line {number}:")
        found.append(list(row.values()))
    # Otherwise a file cut at the end of a line would be accepted.
    if len(found) != PARTS[name]:
        raise damaged(where, f"has {len(found):,} rows, but UCI's file has {PARTS[name]:,}")
    return found
