"""The data and settings of a site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.errors import DrflError, InputError
from drfl.core.hashing import digest_of
from drfl.data import ClientData
from drfl.flower.messages import ModelRecipe
from drfl.flower.records import ProtocolError
from drfl.flower.site_policy import RefusedError, SitePolicy
from drfl.flower.site_task import task_of
from drfl.task.task import Task

LOG = logging.getLogger("drfl.flower")


class HungError(TimeoutError):
    """Raised if a request takes longer than the site allows."""


class SiteError(InputError):
    """Raised instead of an error whose text must not leave the site."""


PUBLIC_ERRORS = (RefusedError, ProtocolError, HungError, SiteError)
"""Errors whose texts contain only rules of the site's policy, its time limit, and the server's message."""


@contextmanager
def private_errors(site: str, what: str) -> Iterator[None]:
    """Log errors at the site, and raise them without their text, which may quote paths, columns or cells of the site.

    Flower sends the text of an exception to the server.

    Args:
        site: Name of the site; "" if it is unknown.
        what: What the site cannot do, for the message.

    Raises:
        SiteError: Instead of any error that is not one of :data:`PUBLIC_ERRORS`, with the code of the original one.
    """
    try:
        yield
    except PUBLIC_ERRORS:
        raise
    except Exception as error:
        LOG.error("cannot %s: %s", what, error, exc_info=not isinstance(error, DrflError))
        code = error.code if isinstance(error, DrflError) else "site-failed"
        name = f"site '{site}'" if site else "this site"
        raise SiteError(
            f"{name} cannot {what} ({code}). The log of its SuperNode shows why, "
            "and 'drfl deploy check' at the site names most causes",
            code=code,
            field=site or None,
        ) from None


@dataclass(frozen=True)
class Site:
    """The data and settings of a site.

    Args:
        name: Name of the site.
        data: Samples of the site, a :class:`drfl.data.ClientData` of one client.
        task: Model and loss of the site; by default those that the server names.
        timeout: Seconds that a request may take.
        device: PyTorch device.
        threads: Number of PyTorch threads; by default PyTorch's.
        audit: Audit log of requests and replies; by default there is none.
        policy: Limits on requests and replies.
        folder: Folder to which the paths in the policy are relative.
        own_scores: Function that loads the site's own scores of its test rows, (n,) float64; None if it has none.
        server_key: Public key of the server, as an OpenSSH line, which verifies the heads of the server's audit log.
            Without it, heads are not verified.

    Raises:
        InputError: If the data have several clients, or were standardised at this site alone.
    """

    name: str
    data: ClientData
    task: Task | None = None
    timeout: float = 3600.0
    device: str = "cpu"
    threads: int | None = None
    audit: AuditLog | None = None
    policy: SitePolicy = field(default_factory=SitePolicy)
    folder: Path = Path()
    server_key: str | None = None
    own_scores: Callable[[], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.data.n != 1:
            raise InputError(
                f"a site must have the data of one client, got {self.data.n} clients",
                code="count-mismatch",
                field="data",
            )
        if self.data.standardisation is not None:
            raise InputError(
                f"the data of site '{self.name}' are standardised with the statistics of this site only. Load them "
                "with standardise=False: drfl standardises the data of all sites in the same way",
                code="conflicting-options",
                field="standardise",
            )

    @cached_property
    def digest(self) -> str:
        """Digest of the data, from which the server notices changes during a run."""
        return digest_of(self.data.tensors())

    def build_task(self, model: ModelRecipe) -> Task:
        """Build the task that the server names, for this site's inputs.

        Raises:
            RefusedError: If it needs code that the policy does not approve.
            InputError: If it cannot be built.
        """
        self.policy.check_code(((file.name, file.sha256) for file in model.code), self.folder)
        return task_of(model, tuple(self.data.inputs.shape[1:]), self.folder)
