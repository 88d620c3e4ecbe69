"""Adult, UCI's extract of the census of 1994: who earns more than 50,000 dollars a year (Becker and Kohavi 1996)."""

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
from drfl.data.datasets.archives import Tree, open_tree
from drfl.data.tables.columns import one_hot

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
"""Of the published files, which have no head."""

NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")

UNUSED = ("fnlwgt", "education", "native-country")
"""No inputs: the census' weight of a row, what education-num says as well, and 42 countries, most of them so rare that
their columns, once standardised, would decide whatever they occur in."""

INCOMES = ("<=50K", ">50K")

DOCTORATE = "doctorate"

GROUPS = (
    DOCTORATE, "education", "workclass", "marital-status", "occupation", "relationship", "race", "sex",
    "native-country",
)  # fmt: skip
"""What rows can be grouped by: who has a doctorate and who has not, as in AFL's experiment, or a column of words."""

PARTS = {"adult.data": 32_561, "adult.test": 16_281}
"""The training and the test file, and their rows."""


def read_adult(paths: Sequence[Path], group: str = DOCTORATE) -> Dataset:
    """The published split, one group a value of a column.

    Columns of words become columns of 0 and 1, one for each value but the first; "?", where the source does not know,
    is a value like any other. The column that names the group is no input, nor are those of `UNUSED`.

    Args:
        paths: the two files, or ``adult.zip`` alone, which has them.
        group: one of `GROUPS`.

    Returns:
        Inputs (32561, p) and (16281, p) as recorded, to be standardised; target 1 where the income is above 50,000.

    Raises:
        InputError: a file is missing, cut short, or not as published; names file and line.
    """
    import pandas as pd  # here, as it takes a while to import

    alone = paths[0] if len(paths) == 1 else None
    if alone is not None:
        with open_file(alone) as file:
            zipped = zipfile.is_zipfile(file)
        if not zipped:
            raise InputError(
                f"'{alone}' is not adult.zip. Give the folder with adult.data and adult.test; for a table "
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
    features = one_hot(frame.drop(columns=unused), "adult")
    x = torch.from_numpy(features.to_numpy(dtype=np.float64, copy=True))
    y = torch.from_numpy(frame["income"].eq(INCOMES[1]).to_numpy(dtype=np.int64, copy=True))
    names, n = tuple(groups), len(rows)
    return Dataset(
        "adult", x[:n], y[:n], x[n:], y[n:], 2, names[:n], standardise=True, columns=tuple(features.columns),
        test_groups=names[n:],
    )  # fmt: skip


def _rows(tree: Tree, name: str) -> list[list[str]]:
    where, found = f"'{tree.path}': {name}", []
    lines = tree.read(name).decode("ascii", "replace").splitlines()
    for number, cells in enumerate(csv.reader(lines, skipinitialspace=True), start=1):
        # The test file begins with a remark, and its incomes end in a full stop, which is removed below.
        if not cells or cells[0].startswith("|"):
            continue
        if len(cells) != len(COLUMNS):
            raise InputError(
                f"{where}, line {number}: expected the {len(COLUMNS)} columns of UCI's Adult, found "
                f"{len(cells)}. Download the file again",
                code="damaged-file",
                field=str(where),
            )
        row = dict(zip(COLUMNS, cells, strict=True)) | {"income": cells[-1].rstrip(".")}
        for column in NUMBERS:
            if not row[column].isdecimal():
                raise InputError(
                    f"{where}, line {number}, column '{column}': expected a number, found "
                    f"'{row[column]}'. Download the file again",
                    code="damaged-file",
                    field=str(where),
                )
        if row["income"] not in INCOMES:
            raise InputError(
                f"{where}, line {number}: expected income <=50K or >50K, found '{row['income']}'. "
                "Download the file again",
                code="damaged-file",
                field=str(where),
            )
        found.append(list(row.values()))
    # Otherwise a file cut at the end of a line would be accepted.
    if len(found) != PARTS[name]:
        raise InputError(
            f"{where} has {len(found):,} rows, but UCI's file has {PARTS[name]:,}. Download the file again",
            code="damaged-file",
            field=str(where),
        )
    return found
