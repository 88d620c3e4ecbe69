"""The manifest of a folder, ``manifest.json``, which lists drfl's files in it.

Only the manifest identifies a folder as drfl's. In such a folder drfl removes only files that the manifest lists and
that drfl could have written itself, because a manifest is a file like others and may be forged.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from drfl.core.atomic_files import atomic_write, is_file, is_folder, remove_known
from drfl.core.errors import InputError, Notice
from drfl.core.json_toml import read_json
from drfl.core.run_end import has_ended
from drfl.data.personal_models import DECISION
from drfl.experiments.config.config import MANIFEST as NAME
from drfl.report.read_run import FILES, REMEDY, REPORT
from drfl.training.checkpoint import read_signed, sign, store
from drfl.training.checkpoint.record import first_fault

CHECKPOINT, CONFIG, LOCK, STAGE, IDENTITY = "checkpoint", "config.toml", "lock", ".results", "identity.json"
OUTCOMES, SUMMARY, PREDICTIONS = "outcomes.json", "summary.json", "predictions.safetensors"
GIVEN_PREDICTIONS = "predictions.json"
"""Names in a folder of results. ``checkpoint`` is the sub-folder of unfinished work, with checkpoints and records."""

Kind = Literal["run", "comparison", "fit", "reproduction", "plan", "search", "benchmark", "sweep"]

COMMANDS: Mapping[Kind, str] = {"run": "run", "comparison": "compare", "fit": "fit", "sweep": "sweep"}
"""The commands that resume work with ``--resume``."""

ALGORITHM_NAME = r"[^\W\d_](?:[\w .()=+-]{0,98}[\w)])?"
"""The names that algorithms may have: names of their runs' folders begin so, on every system."""

CELL = rf"{ALGORITHM_NAME}-seed(?:0|[1-9][0-9]*)"
"""The names of a comparison's runs: algorithm and seed."""

SWEEP_CELL = rf"{CELL}-[0-9a-f]{{12}}"
"""The names of a sweep's runs, with a digest of everything that determines the run."""

WITH_CELLS: tuple[Kind, ...] = ("comparison", "sweep")
"""The kinds of results that consist of runs in sub-folders."""

_PART = r"\.[0-9a-f]{32}\.part"
_LEFT = re.compile(rf"\.{re.escape(NAME)}{_PART}")
"""A file that may remain if a process is killed while it writes a manifest."""


STEP = "step-[0-9]+"
"""The names of the sub-folders of ``checkpoint`` for the runs of a fit."""


class Names(NamedTuple):
    """The names that drfl uses in a folder of one kind.

    Args:
        files: Names of results.
        cells: Names of sub-folders, each a run.
        fixed: Results that every folder of the kind may have, so these names are reserved.
    """

    files: re.Pattern[str]
    cells: re.Pattern[str]
    fixed: tuple[str, ...]


def _names(fixed: tuple[str, ...], more: str = r"(?!)", cells: str = r"(?!)") -> Names:
    return Names(re.compile("|".join([*map(re.escape, fixed), more])), re.compile(cells), fixed)


_TABLES = (
    *("cells.csv", "curves.csv", "paired.csv", "paired_over_settings.csv", "equal_gradients.csv", "reached.csv"),
    *("energy.csv", "summary.json", "table.md"),
)
_SWEEP = ("config.toml", "summary.json", "sweep.csv", "outcomes.json", "table.md", "report.html")
_COMPARISON = ("config.toml", "summary.json", "compare.csv", "outcomes.json", "table.md", "report.html", PREDICTIONS)
READ = ("config.toml", "summary.json", "history.csv", "lambda.csv", "clients.csv")
"""The files of a run that comparisons and reports read; models and scores of single rows may be deleted."""
_PLAN = ("measurements.csv", "plan.csv", "plan.md", "summary.json", "heatmap.png", "heatmap.svg")

KINDS: Mapping[Kind, Names] = {
    "run": _names(FILES),
    "comparison": _names(_COMPARISON, cells=CELL),
    "sweep": _names(_SWEEP, cells=SWEEP_CELL),
    "fit": _names((*FILES, DECISION)),
    "reproduction": _names(_TABLES, r"figure(?:-[0-9]+)?\.(?:png|svg)"),
    "plan": _names(_PLAN),
    "search": _names(("study.db", "trials.csv"), r".+\.toml"),
    "benchmark": _names(("bench.csv", "bench.json")),
}


def _plain(name: str) -> str:
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a plain file name")
    return name


Plain = Annotated[str, AfterValidator(_plain)]


class Manifest(BaseModel):
    """The content of a folder.

    Args:
        kind: The kind of results.
        format: The version of the format. It increases if older versions of drfl would misread the folder.
        drfl: The version of drfl that wrote it.
        files: The results in it, by name.
        cells: The sub-folders that are runs, in the order in which they start.
        hmac_sha256: The file's signature, see :func:`drfl.training.checkpoint.sign`; None = it is not signed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    format: Literal[1] = 1
    drfl: str
    files: tuple[Plain, ...] = ()
    cells: tuple[Plain, ...] = ()
    hmac_sha256: str | None = None

    @model_validator(mode="after")
    def _only_names_of_its_kind(self) -> Manifest:
        names = KINDS[self.kind]
        for known, listed in ((names.files, self.files), (names.cells, self.cells)):
            for name in listed:
                if not known.fullmatch(name):
                    raise ValueError(f"{name!r} is not a name in a {self.kind}")
        return self

    @classmethod
    def new(cls, kind: Kind, files: tuple[str, ...] = (), cells: tuple[str, ...] = ()) -> Manifest:
        """Make a manifest of this version of drfl."""
        return cls(kind=kind, drfl=importlib.metadata.version("drfl"), files=tuple(sorted(files)), cells=cells)

    def write(self, folder: Path, key: bytes | None = None) -> None:
        """Write the manifest into its folder atomically, signed if there is a key.

        Raises:
            OSError: If the folder cannot be written to.
        """
        with atomic_write(folder / NAME) as file:
            # The signature covers the file without the signature.
            content = self.model_dump_json(indent=2, exclude={"hmac_sha256"}).encode() + b"\n"
            file.write(sign(key, NAME, content))


def read_manifest(folder: Path, remedy: str = "give another `out`") -> Manifest | None:
    """Read a folder's manifest; returns None if it has none.

    Raises:
        InputError: If it is damaged or of another version; the remedy depends on whether the folder is read or written.
    """
    path = folder / NAME
    if not is_file(path):
        return None
    content = read_json(path, follow=False, problem="was not written by this drfl", remedy=remedy)
    try:
        return Manifest.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise InputError(
            f"{path} was not written by this drfl ({first_fault(error)}): {remedy}",
            code="foreign-folder",
            field=str(path),
        ) from None


def entries(folder: Path) -> set[str]:
    """Return the names in a folder, without files that remain if a process is killed while it writes a manifest."""
    return {path.name for path in folder.iterdir() if not (_LEFT.fullmatch(path.name) and is_file(path))}


def foreign_names(folder: Path, manifest: Manifest) -> list[str]:
    """Return the names in a folder that are not drfl's."""
    # A search writes no checkpoints, so such a folder is not its own.
    known = {*manifest.files, *manifest.cells, NAME}
    return sorted(entries(folder) - (known if manifest.kind == "search" else {*known, CHECKPOINT}))


def is_finished(folder: Path) -> bool:
    """Return whether the work in a folder reached its end according to its record, and no work is unfinished.

    The configuration in ``checkpoint/`` exists from the start of work until its results are complete. Only this file
    decides what ``--resume`` continues.
    """
    # Only this file marks unfinished work, because results may be from an earlier run.
    if is_file(folder / CHECKPOINT / CONFIG):
        return False
    manifest = read_manifest(folder)
    summary = _json(folder / SUMMARY)
    if summary is None or manifest is None:
        return False
    if manifest.kind in WITH_CELLS:
        return not missing_files(folder) and not _missing_cells(folder, manifest)
    return manifest.kind not in ("run", "fit") or has_ended(summary)


def missing_files(folder: Path) -> list[str]:
    """Return the results that a folder lacks according to its manifest, except for a report."""
    manifest = read_manifest(folder)
    listed = () if manifest is None else manifest.files
    return [name for name in listed if name != REPORT and not is_file(folder / name)]


def is_readable(run: Path) -> bool:
    """Return whether a run is finished and has the files that comparisons and reports read."""
    return is_finished(run) and not {*READ}.intersection(missing_files(run))


def failure_of(folder: Path) -> Notice | None:
    """Return why the finished run in a folder failed, for example that it diverged; None if it did not fail."""
    failure = (_json(folder / SUMMARY) or {}).get("failure")
    return Notice(failure, "loss-rose", "lr") if isinstance(failure, str) else None


def current_cells(folder: Path, manifest: Manifest) -> list[str]:
    """Return the runs of a comparison or a sweep, without those that the study of a sweep no longer has."""
    former = (_json(folder / OUTCOMES) or {}).get("former")
    return [cell for cell in manifest.cells if not (isinstance(former, list) and cell in former)]


def _missing_cells(folder: Path, manifest: Manifest) -> list[str]:
    """Return the runs of a comparison or a sweep that are not among its outcomes, or whose files are missing."""
    outcomes = (_json(folder / OUTCOMES) or {}).get("outcomes")
    known = [item for item in outcomes if isinstance(item, dict)] if isinstance(outcomes, list) else []
    # The file may hold anything. An entry that is not an outcome matches no cell.
    ended = {str(item.get("run") or f"{item.get('algorithm')}-seed{item.get('seed')}"): item for item in known}
    return [
        cell
        for cell in current_cells(folder, manifest)
        # A failed run has an outcome without metrics, and no files.
        if cell not in ended or (ended[cell].get("metrics") is not None and not is_readable(folder / cell))
    ]


def _json(path: Path) -> dict[str, object] | None:
    """Return the object in a JSON file; None if there is no such file or it holds something else."""
    try:
        content = read_json(path, follow=False) if is_file(path) else None
    except InputError:
        return None
    return content if isinstance(content, dict) else None


def interruption(folder: Path) -> Notice | None:
    """Return a sentence if the run or comparison in a folder did not reach its end; None otherwise."""
    manifest, summary = read_manifest(folder, REMEDY), _json(folder / SUMMARY)
    kind: Kind = "run" if manifest is None else manifest.kind
    if kind not in COMMANDS or summary is None or is_finished(folder) or (manifest is None and has_ended(summary)):
        return None
    if manifest is not None and kind in WITH_CELLS:
        # A comparison writes a summary even if some of its runs are missing.
        missing, total = len(_missing_cells(folder, manifest)), len(current_cells(folder, manifest))
        how = f"lacks {missing} of {total} runs" if missing else f"lacks {missing_files(folder)[0]}"
    elif has_ended(summary):
        how = "has older results, and newer work in the same folder is unfinished"
    else:
        how = f"was interrupted after round {summary.get('rounds', 0)}"
    return Notice(
        f"the {kind} in {folder} {how}: "
        f"'drfl {COMMANDS[kind]} --resume --out {folder}', or the same call in Python, continues it",
        "interrupted", str(folder),
    )  # fmt: skip


def check_links(folder: Path) -> None:
    """Check that drfl would not write or remove anything through a link."""
    top = folder / CHECKPOINT
    for path in (top, *(top.rglob("*") if is_folder(top) else ())):  # rglob does not follow links
        if path.is_symlink():
            raise InputError(
                f"{path} is a link, and drfl does not write or remove anything through links: remove it",
                code="link-in-the-way",
                field=str(path),
            )


def clear_checkpoint(folder: Path, kind: Kind, *, begun: bool = False) -> None:
    """Remove drfl's files of unfinished work, except for the lock. The configuration is removed first.

    If new work has begun, its configuration is kept.
    """
    top = folder / CHECKPOINT
    record = rf"(?:{CELL}|{SWEEP_CELL})\.json"
    written = "|".join((*map(re.escape, (store.REPLIES, IDENTITY, GIVEN_PREDICTIONS)), record))
    known = (
        rf"(?:{written})|\.(?:{written}|{re.escape(CONFIG)}){_PART}"
        rf"|(?:{STEP}/)?(?:(?:round-[0-9]+|\.round-[0-9]+\.part)/(?:{store.FILES.pattern})?)?"
        rf"|{re.escape(STAGE)}/(?:{KINDS[kind].files.pattern})?"
    )
    if is_folder(top):
        if is_file(top / CONFIG) and not begun:  # without it, files that remain are not taken for unfinished work
            with suppress(OSError):
                (top / CONFIG).unlink()
        remove_known(top, re.compile(known))


def clear(folder: Path, manifest: Manifest, key: bytes | None = None) -> None:
    """Remove drfl's files from a folder: results, unfinished work, and the runs of a comparison by their own manifests.

    Other files stay. A run's folder in which something stays keeps a manifest.

    Raises:
        OSError: If the system refuses to remove a file.
    """
    if SUMMARY in manifest.files and is_file(folder / SUMMARY):
        (folder / SUMMARY).unlink()  # first, so that a partly cleared folder does not count as finished
    clear_checkpoint(folder, manifest.kind)
    for name in manifest.files:
        if is_file(folder / name):
            (folder / name).unlink()
    for name in manifest.cells:
        cell = folder / name
        manifest_of_cell = read_manifest(cell) if is_folder(cell) else None
        if manifest_of_cell is None or manifest_of_cell.kind != "run":
            continue
        clear(cell, manifest_of_cell, key)
        lock = cell / CHECKPOINT / LOCK
        if is_folder(lock.parent) and is_file(lock):
            lock.unlink()
            remove_known(lock.parent, re.compile(r"(?!)"))
        Manifest.new("run").write(cell, key)
        if entries(cell) == {NAME}:
            (cell / NAME).unlink()
            cell.rmdir()


def check_signatures(folder: Path, key: bytes) -> None:
    """Check that the owner of the key wrote all files that resuming reads, before any of them is parsed.

    Checkpoints have their own signatures, see :func:`drfl.training.checkpoint.resume_point`: if one is damaged, an
    older one is used.

    The folder may be missing or empty.

    Raises:
        InputError: If a file has a wrong signature or none, or is missing although other files show that it existed.
    """
    if not folder.is_dir() or not entries(folder):
        return
    read_signed(key, folder, NAME)
    top = folder / CHECKPOINT
    configs = [name for name in (f"{CHECKPOINT}/{CONFIG}", CONFIG) if os.path.lexists(folder / name)]
    begun = any(top.glob("round-*")) or os.path.lexists(folder / SUMMARY)
    results = [SUMMARY] if os.path.lexists(folder / SUMMARY) else []
    for name in [*(configs or ([CONFIG] if begun else [])), *results]:
        read_signed(key, folder, name)
    names = {f"{CHECKPOINT}/{path.name}" for path in top.glob("*.json")}
    cells = sorted(path.parent for path in folder.glob(f"*/{NAME}"))
    if os.path.lexists(top / CONFIG):
        # A run's record is written before its results, and the identity before the first run starts.
        names |= {f"{CHECKPOINT}/{cell.name}.json" for cell in cells if os.path.lexists(cell / SUMMARY)}
        names |= {f"{CHECKPOINT}/{IDENTITY}"} if cells else set()
    elif cells:
        names.add(OUTCOMES)
    for name in sorted(names):
        read_signed(key, folder, name)
    for cell in cells:
        check_signatures(cell, key)


def runs_in(path: Path) -> list[Path]:
    """Return the finished runs in the folder of a comparison or a sweep; other folders are a run themselves.

    Raises:
        InputError: If a comparison has none, a run has no results yet, or the manifest cannot be read.
    """
    manifest = read_manifest(path, REMEDY) if os.path.isdir(path) else None
    if manifest is None or manifest.kind not in COMMANDS:
        return [path]
    places = (path / cell for cell in current_cells(path, manifest))
    cells = [place for place in places if is_folder(place) and is_finished(place)]
    if manifest.kind not in WITH_CELLS and (manifest.files or not is_file(path / CHECKPOINT / CONFIG)):
        cells = [path]
    if not cells:
        has_cells = manifest.kind in WITH_CELLS
        which = f"no run of the {manifest.kind}" if has_cells else f"the {manifest.kind}"
        raise InputError(
            f"{which} {path} has {'' if has_cells else 'not '}ended: "
            f"'drfl {COMMANDS[manifest.kind]} --resume --out {path}', or the same call in Python, continues it",
            code="unfinished-run", field=str(path),
        )  # fmt: skip
    return cells
