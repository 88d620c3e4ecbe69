"""The store of results: a folder with one JSON file per record, written atomically, and signed if there is a key.

`drfl compare`, `drfl tune` and `drfl reproduce` store the results of finished runs here and do not repeat those runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.json_toml import parse_json
from drfl.core.output_files import writing_into
from drfl.experiments.run.artifacts import json_text
from drfl.training.checkpoint import read_signed, sign

CELLS = ".cells"
"""The folder of records within a folder of results."""

Record = dict[str, object]
"""A record as JSON gives it: its name under ``key``, and its content."""


def write(folder: Path, name: str, content: Mapping[str, object], key: bytes | None = None) -> Record:
    """Write a record atomically, and return it as :func:`read` will.

    Args:
        folder: The store, made if need be.
        name: The record's name, unique within the folder.
        content: Plain values. Infinities and NaN become text.
        key: Signs the record together with the names of folder and file; None = it is not signed.
    """
    text = json_text({"key": name, **content}).encode()
    with writing_into(folder, "make room and resume"), atomic_write(folder / f"{name}.json") as file:
        file.write(sign(key, _signed_path(folder, name), text))
    # Parse the text again, so that a new record has the same types as a stored one.
    return json.loads(text)


def read(folder: Path, name: str, key: bytes | None = None) -> Record | None:
    """Read a record; returns None if it is missing, damaged, of another name, or not signed with the key.

    The content is not checked.
    """
    path = _signed_path(folder, name)
    try:
        record = parse_json(read_signed(key, folder.absolute().parent, path), folder / f"{name}.json")
    except InputError:
        return None
    return record if isinstance(record, dict) and record.get("key") == name else None


def _signed_path(folder: Path, name: str) -> str:
    # Sign the path within the folder of results, so that a signed record cannot take the place of another file.
    return f"{folder.absolute().name}/{name}.json"
