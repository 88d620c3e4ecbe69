"""Load a site's data, and the probe rows that a server holds for its sites."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.files import open_arrays, read_csv
from drfl.data import ClientData
from drfl.data.datasets.formats import read_idx
from drfl.flower.settings import SiteData, SiteEntry, read_site

ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")
Pair = tuple[Tensor, Tensor]


def load_site(path: Path) -> ClientData:
    """Load the data of a site.

    Args:
        path: ``site.toml`` of the site. Paths in it are relative to the file; modules can be in the same folder.

    Raises:
        InputError: If the data are missing, cannot be read, or are not the data of one client.
    """
    settings, folder = read_site(path), path.resolve().parent
    source = settings.data
    if source.loader is not None:
        return _run_loader(source.loader, folder)
    train, test = _read_files(source, folder)
    tests = None if test is None else {settings.name: test}
    dtype = getattr(torch, settings.dtype)
    return ClientData.from_arrays({settings.name: train}, tests, test_fraction=source.test_fraction, dtype=dtype)


def load_probe_rows(sites: Sequence[SiteEntry], folder: Path, dtype: str) -> ClientData | None:
    """Load the probe rows that a server holds for its sites, as one client per site.

    Args:
        sites: The sites, in the order of the clients.
        folder: Folder of ``server.toml``.
        dtype: Name of the data type of inputs, and of targets that are not labels.

    Returns:
        The rows; None if no site has a probe.

    Raises:
        InputError: If rows are missing, cannot be read, or differ in shape between sites.
    """
    probes = {site.name: site.probe for site in sites if site.probe is not None}
    if not probes:
        return None
    rows: dict[str, Pair] = {}
    for name, probe in probes.items():
        if probe.loader is None:
            rows[name] = _read_files(probe, folder)[0]
        else:
            # A loader returns a whole client, so take only its training rows.
            data = _run_loader(probe.loader, folder)
            rows[name] = data.inputs[data.train[0]], data.targets[data.train[0]]
    # Give them as test rows too: otherwise a share of them would be split off for testing.
    return ClientData.from_arrays(rows, rows, dtype=getattr(torch, dtype))


def _run_loader(name: str, folder: Path) -> ClientData:
    module, _, function = name.partition(":")
    # Import the loader from the folder of the settings, not from the working directory.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        load: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"cannot import the loader '{name}' ({error}). Give it as module:function",
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


def _read_files(source: SiteData, folder: Path) -> tuple[Pair, Pair | None]:
    """Read (inputs, targets) of the training rows and of the test rows; None without a test file."""
    if source.npz is not None:
        path = folder / source.npz
        with open_arrays(path) as arrays:
            if not set(ARRAYS[:2]) <= set(arrays.names):
                raise InputError(f"'{path}' lacks {' or '.join(ARRAYS[:2])}", code="missing-column", field=str(path))
            values = [torch.from_numpy(each) for each in arrays.read([name for name in ARRAYS if name in arrays.names])]
        if len(values) == 3:
            raise InputError(
                f"'{path}' has only one of test_inputs and test_targets. Give both or neither",
                code="missing-column",
                field=str(path),
            )
        # Integer inputs are columns of a table, not tokens.
        values[::2] = [x if x.is_floating_point() or x.is_complex() else x.double() for x in values[::2]]
        return (values[0], values[1]), (values[2], values[3]) if len(values) == 4 else None
    if source.csv is not None:
        target = str(source.target)
        test = None if source.test_csv is None else _read_table(folder / source.test_csv, target)
        return _read_table(folder / source.csv, target), test
    test = None
    if source.test_images is not None:
        test = _read_images(folder / source.test_images, folder / str(source.test_labels))
    return _read_images(folder / str(source.images), folder / str(source.labels)), test


def _read_table(path: Path, target: str) -> Pair:
    import pandas as pd  # imported here, because the import would delay every message by half a second

    table = read_csv(path)
    if target not in table:
        raise InputError(f"'{path}' has no column '{target}'", code="missing-column", field=target)
    targets, inputs = table[target], table.drop(columns=target)
    textual = [str(name) for name in inputs if not pd.api.types.is_numeric_dtype(inputs[name])]
    if textual or not pd.api.types.is_numeric_dtype(targets):
        raise InputError(
            f"'{path}', column '{[*textual, target][0]}': expected numbers. Encode it in the same way at all sites",
            code="not-a-number",
            field=[*textual, target][0],
        )
    # Integers are class labels; other numbers are regression targets.
    kind = np.int64 if pd.api.types.is_integer_dtype(targets) else np.float64
    return torch.from_numpy(np.array(inputs, np.float64)), torch.from_numpy(np.array(targets, kind))


def _read_images(images: Path, labels: Path) -> Pair:
    # Scale bytes to [0, 1], as in drfl's data sets.
    pixels = torch.from_numpy(read_idx(images)).unsqueeze(1) / 255
    return pixels, torch.from_numpy(read_idx(labels).astype(np.int64))
