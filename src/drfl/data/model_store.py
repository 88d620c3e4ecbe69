"""The models that a site has received: the current one and the previous one, in a folder with an index."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError, listing
from drfl.core.files import reading, sha256_of
from drfl.core.json_toml import SETTINGS_LIMIT, read_json, read_toml

INDEX = "models.json"
"""File that names the current model. It is replaced atomically, after the models that it names are complete."""

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredModel:
    """A model in the folder: the digest of its file, and when the server signed and the site stored it, in UTC."""

    sha256: str
    signed: str
    received: str

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"model-{self.sha256[:16]}{SUFFIX}"


def own_file(model: str) -> str:
    """Return the name of the file with the site's own model that belongs to a model file."""
    return f"own-{model.removeprefix('model-')}"


class ModelPlace(NamedTuple):
    """A model file, and the schema of the site's table at a site that has one."""

    file: Path
    schema: Path | None = None


def find_model(path: str | Path) -> ModelPlace:
    """Return the model file at a path: a file, or a folder of a run, a fit, a site, or the models of a site.

    Other folders, such as that of a comparison, a sweep or a deployment, must have a single run.
    """
    if not isinstance(path, str | Path):
        raise InputError(
            f"expected the path of a model file or of a run's folder, got an object of type {type(path).__name__}",
            code="wrong-type",
            field="model",
        )
    path = Path(path)
    if (path / SITE).is_file():
        data = read_toml(path / SITE).get("data")
        schema = data.get("schema") if isinstance(data, dict) else None
        return ModelPlace(site_store(path).current(), None if schema is None else path / str(schema))
    if (path / INDEX).is_file():
        return ModelPlace(ModelStore(path).current())
    if not path.is_dir() or (path / RETURNED).is_file():
        return ModelPlace(path / RETURNED if path.is_dir() else path)
    # The runs of comparisons and sweeps are in the folder itself, those of deployments one level below.
    runs = sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{RETURNED}"))
    if len(runs) == 1:
        return ModelPlace(runs[0] / RETURNED)
    if runs:
        names = listing([str(run.relative_to(path)) for run in runs], "model")
        raise InputError(
            f"{path} has {len(runs)} models, in {names}: pass the folder of one, such as {runs[-1]}",
            code="several-models",
            field=str(path),
        )
    unfinished = any(any(path.glob(f"{depth}checkpoint")) for depth in ("", "*/", "*/*/"))
    remedy = "continue its unfinished run" if unfinished else "pass a model file, or the folder of a finished run"
    raise InputError(f"{path} has no model: {remedy}", code="no-model", field=str(path))


def site_store(folder: Path) -> ModelStore:
    """Return the models of the site whose ``site.toml`` is in a folder."""
    policy = read_toml(folder / SITE, remedy="pass the folder of a site").get("policy")
    return ModelStore(folder / str(policy.get("models", MODELS) if isinstance(policy, dict) else MODELS))


SITE, RETURNED, MODELS = "site.toml", "model.safetensors", "models"
"""The settings of a site, the returned model in a run's folder, and the usual folder of a site's models."""


class ModelStore:
    """A folder of received models, which the first model creates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def current(self) -> Path:
        """Return the file of the current model."""
        current, _, _ = self._read()
        if current is None:
            raise InputError(
                f"{self.folder} has no model. The server delivers one at the end of a run",
                code="no-model",
                field=str(self.folder),
            )
        return self._intact(current)

    def add(self, content: bytes, signed: str, own: bytes | None = None) -> bool:
        """Make a model the current one, keep the one before as the previous one, and return whether it is new.

        ``own`` is the content of the file with the site's own model that belongs to it; None if there is none.
        """
        digest = hashlib.sha256(content).hexdigest()
        with self._locked():
            current, previous, newest = self._read()
            model = current
            if model is None or model.sha256 != digest:
                # Without this check, anyone who recorded an old delivery could put the old model back.
                if signed <= newest:
                    raise InputError(
                        f"this model was signed at {signed}, but a later one ({newest}) has been received. Deliver it "
                        "again with 'drfl deploy deliver'",
                        code="old-model",
                        field="signed",
                    )
                model, previous = StoredModel(digest, signed, datetime.now(UTC).isoformat(timespec="seconds")), current
            # Write through to the disk: after a power cut the index must not name an incomplete file.
            files = {model.file: content, **({} if own is None else {own_file(model.file): own})}
            for name, written in files.items():
                with atomic_write(self.folder / name, private=written is own) as file:
                    file.write(written)
                    file.flush()
                    os.fsync(file.fileno())
            # After a new delivery of the current model, deliveries that were recorded before it are refused.
            self._write(model, previous, max(signed, newest))
        return model is not current

    def roll_back(self) -> tuple[StoredModel, StoredModel]:
        """Exchange the current and the previous model, and return both in this order after the exchange."""
        with self._locked():
            current, previous, newest = self._read()
            if current is None or previous is None:
                count = "no model" if current is None else "only one model, which has no predecessor"
                raise InputError(f"{self.folder} has received {count}", code="no-model", field=str(self.folder))
            self._intact(previous)
            self._write(previous, current, newest)
        return previous, current

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Each message to a site has its own process, and a rollback may run at the same time.
            with (self.folder / ".lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise InputError(
                f"cannot write to {self.folder}: {error.strerror}", code="cannot-write", field=str(self.folder)
            ) from None

    def _read(self) -> tuple[StoredModel | None, StoredModel | None, str]:
        """Return the current and the previous model, and the latest time at which any received model was signed."""
        path = self.folder / INDEX
        if not path.exists():
            return None, None, ""
        content = read_json(path, limit=SETTINGS_LIMIT)
        with reading(path, "is damaged"):
            if not isinstance(content, dict):
                raise ValueError("expected an object")
            current, previous = (
                None if content[name] is None else StoredModel(**{key: str(x) for key, x in content[name].items()})
                for name in ("current", "previous")
            )
            return current, previous, str(content["newest"])

    def _write(self, current: StoredModel, previous: StoredModel | None, newest: str) -> None:
        names = {"current": current, "previous": previous}
        content = {name: None if model is None else asdict(model) for name, model in names.items()}
        with atomic_write(self.folder / INDEX) as file:
            file.write((json.dumps({**content, "newest": newest}, indent=2) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        # The index no longer names older models, nor parts that a killed process left.
        files = {model.file for model in names.values() if model is not None}
        files |= {own_file(name) for name in files}
        for path in self.folder.glob("*"):
            is_model = path.name.removesuffix(".part").lstrip(".").startswith(("model-", "own-"))
            if is_model and path.name not in files:
                with suppress(OSError):
                    path.unlink()

    def _intact(self, model: StoredModel) -> Path:
        path = self.folder / model.file
        if sha256_of(path) != model.sha256:
            raise InputError(
                f"{path} was changed after it was received. Ask the server to deliver it again",
                code="damaged-file",
                field=str(path),
            )
        return path
