"""Load a site's data, and the probe rows that a server holds for its sites."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from drfl.core.array_files import open_arrays
from drfl.core.errors import InputError, unknown
from drfl.data import ClientData
from drfl.data.datasets.formats import read_idx
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import SiteRows, read_site_table
from drfl.flower.settings import SiteData, SiteEntry, read_site

ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
Pair = tuple[Tensor, Tensor]


def load_site(path: Path) -> ClientData:
    """Load the data of a site.

    Args:
        path: ``site.toml`` of the site. Paths in it are relative to the file; modules can be in the same folder.
    """
    settings, folder = read_site(path), path.resolve().parent
    source = settings.data
    if source.loader is not None:
        return _run_loader(source.loader, folder)
    rows = _read_files(source, folder)
    tests = None if rows.test is None else {settings.name: rows.test}
    dtype = getattr(torch, settings.dtype)
    patients = None if rows.patients is None else {settings.name: rows.patients}
    return ClientData.from_arrays(
        {settings.name: rows.train},
        tests,
        test_fraction=source.test_fraction,
        dtype=dtype,
        patients=patients,
        **rows.about(),
    )


def load_scores(source: SiteData, folder: Path, column: str, data: ClientData) -> Tensor:
    """Load a site's own score of each of its test rows from its table.

    Returns:
        (n,) float64 scores, in the order of the test rows.
    """
    path = folder / str(source.csv if source.test_csv is None else source.test_csv)
    schema = None if source.schema_file is None else TableSchema.read(folder / source.schema_file)
    frame = Table.whole(path, schema, options=source.reading()).frame
    if column not in frame:
        raise unknown("column", column, list(frame.columns), field="score_column", place=f"in {path.name}")
    if column in (data.columns or ()):
        raise InputError(
            f"column '{column}' has the site's own scores, but models are trained on it. Remove it from the features",
            code="conflicting-options",
            field="score_column",
        )
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(float)[data.test[0].numpy()]
    if not np.isfinite(values).all():
        raise InputError(
            f"column '{column}' has {int((~np.isfinite(values)).sum())} test rows without a number",
            code="not-a-number",
            field="score_column",
        )
    return torch.from_numpy(values)


def load_probe_rows(sites: Sequence[SiteEntry], folder: Path, dtype: str) -> ClientData | None:
    """Load the probe rows that a server holds for its sites, as one client per site.

    Returns:
        The rows; None if no site has a probe.
    """
    probes = {site.name: site.probe for site in sites if site.probe is not None}
    if not probes:
        return None
    rows: dict[str, SiteRows] = {}
    for name, probe in probes.items():
        if probe.loader is None:
            rows[name] = _read_files(probe, folder)
        else:
            # A loader returns a whole client, so take only its training rows.
            data = _run_loader(probe.loader, folder)
            train = data.inputs[data.train[0]], data.targets[data.train[0]]
            rows[name] = SiteRows(train, None, data.columns, data.classes, data.schema)
    first_name, first = next(iter(rows.items()))
    for name, other in rows.items():
        if (other.columns, other.classes, other.schema) != (first.columns, first.classes, first.schema):
            raise InputError(
                f"the probes of '{first_name}' and '{name}' differ in columns, classes or schema: give both the same",
                code="columns-differ",
                field=name,
            )
    # Give the rows as test rows too: otherwise a share of them would be split off for testing.
    pairs = {name: each.train for name, each in rows.items()}
    return ClientData.from_arrays(pairs, pairs, dtype=getattr(torch, dtype), **first.about())


def _run_loader(name: str, folder: Path) -> ClientData:
    module, _, function = name.partition(":")
    # Import the loader from the folder of the settings, not from the working directory.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        load: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"cannot import the loader '{name}' ({error}). Write it as module:function",
            code="unknown-name",
            field="loader",
        ) from error
    data = load()
    if not isinstance(data, ClientData) or data.n != 1:
        raise InputError(
            f"the loader '{name}' must return a drfl.data.ClientData of one client, got {type(data).__name__}",
            code="wrong-type",
            field="loader",
        )
    return data


def _read_files(source: SiteData, folder: Path) -> SiteRows:
    """Read the rows of a source that is not a loader."""
    if source.npz is not None:
        path = folder / source.npz
        with open_arrays(path) as arrays:
            if not set(ARRAYS[:2]) <= set(arrays.names):
                raise InputError(f"'{path}' lacks {' or '.join(ARRAYS[:2])}", code="missing-column", field=str(path))
            values = [torch.from_numpy(each) for each in arrays.read([name for name in ARRAYS if name in arrays.names])]
        if len(values) == 3:
            raise InputError(
                f"'{path}' has only one of test_inputs and test_targets. Store both or neither",
                code="missing-column",
                field=str(path),
            )
        # Integer inputs are columns of a table, not tokens.
        values[::2] = [x if x.is_floating_point() or x.is_complex() else x.double() for x in values[::2]]
        return SiteRows((values[0], values[1]), (values[2], values[3]) if len(values) == 4 else None)
    if source.csv is not None:
        schema = None if source.schema_file is None else TableSchema.read(folder / source.schema_file)
        tests = None if source.test_csv is None else folder / source.test_csv
        return read_site_table(
            folder / source.csv, tests, source.target, source.task, schema, source.patient, source.reading()
        )
    test = None
    if source.test_images is not None:
        test = _read_images(folder / source.test_images, folder / str(source.test_labels))
    return SiteRows(_read_images(folder / str(source.images), folder / str(source.labels)), test)


def _read_images(images: Path, labels: Path) -> Pair:
    # Scale bytes to [0, 1], as in drfl's data sets.
    pixels = torch.from_numpy(read_idx(images)).unsqueeze(1) / 255
    return pixels, torch.from_numpy(read_idx(labels).astype(np.int64))
