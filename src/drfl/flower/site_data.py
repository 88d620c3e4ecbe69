"""A site's data, and the rows that a server holds for sites, from where their files say that they lie."""

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
    """The data of one client.

    Args:
        path: its site.toml; paths in it are relative to it, and modules are looked for beside it too.

    Raises:
        InputError: they are not there, cannot be read, or are not a client's data.
    """
    settings, folder = read_site(path), path.resolve().parent
    source = settings.data
    if source.loader is not None:
        return _loaded(source.loader, folder)
    train, test = _pairs(source, folder)
    held = None if test is None else {settings.name: test}
    dtype = getattr(torch, settings.dtype)
    return ClientData.from_arrays({settings.name: train}, held, test_fraction=source.test_fraction, dtype=dtype)


def held_rows(sites: Sequence[SiteEntry], folder: Path, dtype: str) -> ClientData | None:
    """The rows that a server holds for its sites, each of them a client; None where it holds none.

    Args:
        sites: in the order of the clients.
        folder: that of server.toml.
        dtype: the name of the inputs' type, and of targets' that are no labels.

    Raises:
        InputError: they are not there, cannot be read, or the sites' do not have one shape.
    """
    probes = {site.name: site.probe for site in sites if site.probe is not None}
    if not probes:
        return None
    rows: dict[str, Pair] = {}
    for name, probe in probes.items():
        if probe.loader is None:
            rows[name] = _pairs(probe, folder)[0]
        else:
            # A loader returns a whole client: take only its training rows.
            found = _loaded(probe.loader, folder)
            rows[name] = found.inputs[found.train[0]], found.targets[found.train[0]]
    return ClientData.from_arrays(rows, rows, dtype=getattr(torch, dtype))


def _loaded(name: str, folder: Path) -> ClientData:
    module, _, function = name.partition(":")
    # Import a loader from the folder of the settings, not from the working directory.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        load: Callable[[], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"there is no loader '{name}' ({error}): give it as module:function", code="unknown-name", field="loader"
        ) from error
    found = load()
    if not isinstance(found, ClientData) or found.n != 1:
        raise InputError(
            f"the loader '{name}' must give a drfl.data.ClientData of one client, not {type(found).__name__}",
            code="wrong-type",
            field="loader",
        )
    return found


def _pairs(source: SiteData, folder: Path) -> tuple[Pair, Pair | None]:
    """Training and test (inputs, targets) of the files; None for the latter where there are none."""
    if source.npz is not None:
        path = folder / source.npz
        with open_arrays(path) as arrays:
            if not set(ARRAYS[:2]) <= set(arrays.names):
                raise InputError(f"'{path}' lacks {' or '.join(ARRAYS[:2])}", code="missing-column", field=str(path))
            values = [torch.from_numpy(each) for each in arrays.read([name for name in ARRAYS if name in arrays.names])]
        if len(values) == 3:
            raise InputError(
                f"'{path}' has test_inputs or test_targets without the other", code="missing-column", field=str(path)
            )
        # Integer inputs are columns of a table, not tokens.
        values[::2] = [x if x.is_floating_point() or x.is_complex() else x.double() for x in values[::2]]
        return (values[0], values[1]), (values[2], values[3]) if len(values) == 4 else None
    if source.csv is not None:
        target = str(source.target)
        test = None if source.test_csv is None else _of_csv(folder / source.test_csv, target)
        return _of_csv(folder / source.csv, target), test
    test = None
    if source.test_images is not None:
        test = _of_idx(folder / source.test_images, folder / str(source.test_labels))
    return _of_idx(folder / str(source.images), folder / str(source.labels)), test


def _of_csv(path: Path, target: str) -> Pair:
    import pandas as pd  # half a second, which each message would pay

    table = read_csv(path)
    if target not in table:
        raise InputError(f"'{path}' has no column '{target}'", code="missing-column", field=target)
    targets, inputs = table[target], table.drop(columns=target)
    odd = [str(name) for name in inputs if not pd.api.types.is_numeric_dtype(inputs[name])]
    if odd or not pd.api.types.is_numeric_dtype(targets):
        raise InputError(
            f"'{path}': column '{[*odd, target][0]}' must hold numbers: encode it at all sites alike",
            code="not-a-number",
            field=[*odd, target][0],
        )
    # Integers are class labels; other numbers are regression targets.
    kind = np.int64 if pd.api.types.is_integer_dtype(targets) else np.float64
    return torch.from_numpy(np.array(inputs, np.float64)), torch.from_numpy(np.array(targets, kind))


def _of_idx(images: Path, labels: Path) -> Pair:
    # Scale bytes to [0, 1], as in drfl's data sets.
    pixels = torch.from_numpy(read_idx(images)).unsqueeze(1) / 255
    return pixels, torch.from_numpy(read_idx(labels).astype(np.int64))
