"""The folders of a deployment's runs: one per run, named after the time of its start."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

DATE = "DATE"
"""Placeholder of the time in the name of a folder."""

TIME = r"[0-9]{8}T[0-9]{6}\.[0-9]{6}"
"""Pattern of that time, see :func:`timestamp`."""

FITS = Path("fits") / DATE
"""Folders of fits in a deployment's folder."""


def timestamp() -> str:
    """Format the current time, in UTC, for a name that sorts after earlier ones; make-keys.sh relies on this format."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"


def run_folders(root: Path, out: Path) -> list[Path]:
    """Return the folders of the runs so far, the newest last; without a placeholder, the only folder.

    ``out`` is absolute or relative to the deployment's folder; one of its parts may have the placeholder.
    """
    parts = out.parts
    place = next((i for i, part in enumerate(parts) if DATE in part), None)
    if place is None:
        return [root / out] if (root / out).exists() else []
    before, _, after = parts[place].partition(DATE)
    name = re.compile(rf"{re.escape(before)}{TIME}{re.escape(after)}")
    parent = root.joinpath(*parts[:place])
    found = sorted(path for path in parent.iterdir() if name.fullmatch(path.name)) if parent.is_dir() else []
    folders = (path.joinpath(*parts[place + 1 :]) for path in found)
    return [path for path in folders if path.exists()]


def shorten(root: Path, path: Path) -> Path:
    """Make a path relative to the deployment's folder, unless it is elsewhere because ``out`` is absolute."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def newest_run(root: Path, out: Path) -> Path:
    """Return the folder of the newest run, or the newest file at a path such as ``runs/DATE/model.safetensors``.

    If there is none, it is the path itself, with its placeholder.
    """
    return next(reversed(run_folders(root, out)), root / out)


def newest_model(root: Path, out: Path) -> Path | None:
    """Return the newest file at a path such as ``runs/DATE/model.safetensors`` whose run ended and did not diverge.

    Returns:
        The path; None if there is none.
    """
    from drfl.experiments.run.manifest import failure_of, is_finished  # imports torch

    # A server that was killed while it wrote its results may have left a model in the folder of an unfinished run.
    models = ((path, path.parent) for path in reversed(run_folders(root, out)))
    return next((path for path, run in models if is_finished(run) and failure_of(run) is None), None)


def first_model(root: Path, init_from: Path) -> Path:
    """Return the model of ``init_from``: a file, or the newest one at a path with the placeholder.

    A file without the placeholder is used even if its run diverged or is unfinished.
    """
    return (newest_model(root, init_from) if DATE in str(init_from) else None) or root / init_from


def folder_to_fill(root: Path, out: Path) -> Path:
    """Return the folder of the newest run if that is unfinished, which then resumes, and otherwise a new one."""
    from drfl.experiments.run.manifest import is_finished  # imports torch

    newest = newest_run(root, out)
    if DATE not in str(out) or (newest.exists() and not is_finished(newest)):
        return newest
    return root / str(out).replace(DATE, timestamp())
