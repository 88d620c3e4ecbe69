"""Client-side methods in a deployment: which code a site runs, and where it stores its state."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from drfl import algorithms
from drfl.core import user_code
from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError, Notice
from drfl.core.files import read_bytes, sha256_of
from drfl.core.hashing import digest_of
from drfl.core.tensor_files import read_tensors
from drfl.data.personal_models import client_and_parameter, tensor_name
from drfl.federation.local_method import LocalMethod
from drfl.flower.records import Message
from drfl.flower.site_policy import SitePolicy
from drfl.task.task import Task

LOG = logging.getLogger("drfl.flower")

OPTIONS = (bool, int, float, str, type(None))
"""Types of the fields of a method that the server sends to sites."""

STATES, KEY = "drfl-clients", "key"
"""Folder of a site's states, beside ``site.toml``, and in it the key of their numbers."""

MOST_BYTES = 2**28
"""Bytes of states that a site stores; the newest :data:`FEWEST` are stored in any case."""

FEWEST = 3
"""Number of states that a site stores in any case."""

MOST_QUOTED = 200
"""Maximum number of characters of a site's name in the name of its folder. A digest of the name replaces the rest."""

MOST_TEXT = 128
"""Maximum number of characters of a method's name, and of the texts in its fields."""

Short = Annotated[str, Meta(max_length=MOST_TEXT)]
Sha256 = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]


class SentMethod(Message, frozen=True):
    """The name of a client-side method, which the site loads from its own files.

    Args:
        name: Name of one of drfl's algorithms, or ``FILE.py:NAME``.
        sha256: Digest of the file; "" for drfl's algorithms.
        options: The fields of the method, by name.
        number: Number of the site's state, see :class:`SiteStates`; 0 for the start value.
    """

    name: Short
    sha256: Sha256
    options: Annotated[tuple[tuple[Short, bool | int | float | Short | None], ...], Meta(max_length=64)]
    number: Annotated[int, Meta(ge=0, lt=2**53)]


def sent_method(method: LocalMethod, row: Tensor | None) -> SentMethod:
    """Describe a method for a site.

    ``row`` (1,) is the site's row of the client store; None if the sites store nothing.
    """
    kind = type(method)
    options = []
    for field in dataclasses.fields(method) if dataclasses.is_dataclass(method) else ():
        value = getattr(method, field.name)
        # Other fields, such as functions, cannot be sent: the site's own code gives them their defaults.
        if field.init and isinstance(value, OPTIONS):
            options.append((field.name, value))
    number = 0 if row is None else int(row[0])
    if kind.__module__.partition(".")[0] == "drfl":
        return SentMethod(kind.__name__, "", tuple(options), number)
    try:
        file = Path(inspect.getfile(kind))
        digest = sha256_of(file)
    except (OSError, TypeError, InputError) as error:
        raise InputError(
            f"{kind.__name__} is not defined in a file, so sites cannot have the same code. Move the class to a file.",
            code="needs-file",
            field=kind.__name__,
        ) from error
    sent = f"{file.name}:{kind.__qualname__}"
    for text in (sent, *(value for _, value in options)):
        if isinstance(text, str) and len(text) > MOST_TEXT:
            raise InputError(
                f"'{text}' of {kind.__name__} has {len(text)} characters, and messages to the sites have room for "
                f"{MOST_TEXT}. Use a shorter text",
                code="invalid-name",
                field=kind.__name__,
            )
    return SentMethod(sent, digest, tuple(options), number)


def load_method(sent: SentMethod, policy: SitePolicy, folder: Path) -> LocalMethod:
    """Make the method that a server names, from drfl's or the site's own code.

    Raises:
        RefusedError: If the site has not approved the code, or has another version of it.
        InputError: If the name or an option is unknown.
    """
    # A site never receives code. It runs its own copy, if its policy approves the digest.
    if sent.sha256:
        file = sent.name.rpartition(":")[0]
        policy.check_code([(file, sent.sha256)], folder)
        kind = user_code.load("method", f"{folder / file}:{user_code.label_of(sent.name)}")
    else:
        kind = {**algorithms.ALGORITHMS, **algorithms.CLIENT_SIDE, "LocalMethod": LocalMethod}.get(sent.name)
    if not isinstance(kind, type) or not issubclass(kind, LocalMethod):
        raise InputError(
            f"this drfl has no client-side method '{sent.name[:60]}'. Install the server's version",
            code="unknown-name",
            field="method",
        )
    options = dict(sent.options)
    try:
        return kind(**options)
    except InputError:
        raise
    except Exception as error:  # a class of the user may raise anything
        raise InputError(
            f"the method '{sent.name[:60]}' cannot be made from the server's options ({type(error).__name__})",
            code="user-code-failed",
            field="method",
        ) from error


class SiteStates:
    """A site's private parameters and states, on disk. The server holds only the number of each.

    A state has its own file, so that a server that repeats a round or resumes an older one gets the same result. The
    number is a keyed hash of the state, with a key that the site alone has, so that it reveals nothing.
    """

    def __init__(self, folder: Path, site: str) -> None:
        # Quote the name, because names such as "../x" and ".." must not lead out of the folder.
        name = quote(site, safe="").replace(".", "%2E")
        if len(name) > MOST_QUOTED:
            name = f"{name[:MOST_QUOTED]}-{hashlib.sha256(site.encode()).hexdigest()[:16]}"
        self.site, self.folder = site, folder / STATES / name

    def read(self, number: int, like: Tensor) -> Tensor:
        """Return the row with a number; zeros, which represent the start value, for 0 or if the site lost it.

        ``like`` (s,) has the length and type of a row.
        """
        empty = torch.zeros_like(like)
        if not number:
            return empty
        try:
            row = load(read_bytes(self.folder / f"{number}.safetensors", limit=None, follow=False))["row"]
        except (InputError, SafetensorError, KeyError):
            row = None
        if row is None or row.shape != like.shape or row.dtype != like.dtype or not bool(torch.isfinite(row).all()):
            text = f"{self.site} has lost its state {number}, and continues from the start value"
            LOG.warning(Notice(text, "state-lost", self.site))
            return empty
        return row

    def write(self, row: Tensor) -> int:
        """Store a row (s,) and return its number."""
        row = row.detach().cpu().contiguous()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # it may exist with wider permissions
        key = self.folder / KEY
        if not key.exists():
            with atomic_write(key, private=True) as file:
                file.write(secrets.token_bytes(32))
        digest = hashlib.blake2b(row.numpy().tobytes(), digest_size=6, key=read_bytes(key, follow=False)).digest()
        # 0 represents the start value. Six bytes fit exactly into the float64 in which messages carry the number.
        number = 1 + int.from_bytes(digest, "big")
        with atomic_write(self.folder / f"{number}.safetensors", private=True) as file:
            file.write(save({"row": row}))
        # A server may resume from an earlier round, so keep as many older states as there is room for.
        self._remove_old("[0-9]*.safetensors", max(FEWEST, MOST_BYTES // max(1, row.nbytes)))
        return number

    def keep_own_model(self, task: Task, w: Tensor, shared: Tensor) -> None:
        """Store the site's own model w (d,), and a digest of the global model ``shared`` (d,) that it belongs to."""
        digest = _digest(task.state_dict(shared, trained=True))
        tensors = {tensor_name(self.site, name): value for name, value in task.state_dict(w, trained=True).items()}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(self.folder / f"own-{digest}.safetensors", private=True) as file:
            file.write(save(tensors, {"global": digest}))
        # The server may deliver the model of a run after later runs. Each may test two models at its end.
        self._remove_old("own-*.safetensors", 2 * FEWEST)

    def own_model_of(self, shared: Mapping[str, Tensor]) -> bytes | None:
        """Return the file of the site's own model that belongs to a global model's tensors; None if it has none."""
        for path in self.folder.glob("own-*.safetensors"):
            with suppress(InputError):  # the file is damaged
                tensors, about = read_tensors(path, follow=False)
                names = [client_and_parameter(name)[1] for name in tensors]
                if shared.keys() >= {*names} and about.get("global") == _digest({name: shared[name] for name in names}):
                    return save(tensors)
        return None

    def _remove_old(self, pattern: str, most: int) -> None:
        files = sorted(self.folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - most)]:
            path.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    return digest_of([tensors[name] for name in sorted(tensors)], "\n".join(sorted(tensors)))
