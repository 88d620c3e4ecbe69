"""Names of data sets of Hugging Face ``datasets``: ``hf:NAME`` on the hub, or ``hf:FOLDER`` on this machine."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

from drfl.core.errors import InputError

PREFIX = "hf:"
"""Prefix of the name of a data set on the hub."""

COMMIT = re.compile(r"[0-9a-f]{40}")

SECONDS = 10.0
"""Seconds to wait for the hub's answer about the current commit."""


def is_saved(path: Path) -> bool:
    """Return whether ``save_to_disk`` wrote a folder."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def folder_name(text: str) -> Path | None:
    """Return the folder of ``hf:FOLDER``; None if the text is the name of a data set on the hub.

    The text is a folder if the folder exists, or if the text begins like a path.
    """
    name = text.removeprefix(PREFIX).strip()
    path = Path(name).expanduser()
    if not name or not (name.startswith((".", "/", "~")) or path.is_dir()):
        return None
    if not is_saved(path):
        problem = "is not a folder that save_to_disk wrote" if path.is_dir() else "is a folder that does not exist"
        raise InputError(
            f"dataset '{text}' {problem}. Pass a folder that save_to_disk wrote, or the name of a data set on the hub",
            code="invalid-value",
            field="dataset",
        )
    return path


class HubName(NamedTuple):
    """A data set on the hub: ``hf:NAME`` or ``hf:NAME:CONFIGURATION``, optionally with ``@REVISION``.

    The revision is a commit, branch or tag; None is the newest.
    """

    name: str
    configuration: str | None = None
    revision: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, so that the data cannot change."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None

    @property
    def label(self) -> str:
        """The text without the revision."""
        return PREFIX + ":".join(filter(None, (self.name, self.configuration)))

    def __str__(self) -> str:
        return self.label if self.revision is None else f"{self.label}@{self.revision}"


def hub_name(text: str) -> HubName:
    """Parse the name of a data set on the hub."""
    label, at, revision = text.removeprefix(PREFIX).strip().partition("@")
    name, _, configuration = label.partition(":")
    if not name or (at and not revision):
        raise InputError(
            f"dataset '{text}' has no {('revision behind @' if name else 'name')}. Write the name on the "
            f"hub as {PREFIX}NAME or {PREFIX}NAME@REVISION",
            code="invalid-name", field="dataset",
        )  # fmt: skip
    return HubName(name, configuration or None, revision or None)


@functools.cache
def pin_revision(text: str) -> str:
    """Replace the revision in a hub data set's name by its current commit; unchanged if the hub cannot be reached."""
    name = hub_name(text)
    if name.is_pinned:
        return text
    try:
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(name.name, revision=name.revision, timeout=SECONDS).sha
    except Exception:  # no package, network or data set: reading it reports the reason
        return text
    return text if commit is None else str(name._replace(revision=commit))
