"""A site's policy: limits on requests and replies, which no server can change.

The policy only affects drfl's app. Flower runs any submitted app at the sites, and another app does not obey the
policy.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from drfl.core.audit_log import AuditLog, clock_of
from drfl.core.errors import InputError
from drfl.core.files import read_bytes, read_text, sha256_of
from drfl.data.model_store import MODELS

KEY_BYTES = 32
"""Minimum length of the key with which sites hash their rows: shorter ones could be guessed."""

UNAPPROVED = "is not approved. A person at this site has to approve it"
"""End of a site's message about a run that is not approved there. The server then asks the site again for a while."""


class RefusedError(InputError):
    """Raised if a site's policy forbids a request. The server receives only the reason."""

    code = "request-refused"


class SitePolicy(BaseModel):
    """The table ``[policy]`` in ``site.toml``.

    Args:
        requests_a_day: Maximum number of requests that the site answers in a day (UTC), of every kind and over all
            runs; needs ``audit``. By default unlimited.
        max_step: Maximum norm of updates, gradients and messages of client-side methods; longer ones are scaled down to
            it. By default unlimited.
        approved: File with the numbers of approved runs, one per line, relative to ``site.toml``. In other runs the
            site answers nothing, not even a request for its description. By default all runs are approved.
        shared_rows_key: File with a secret that only the sites have, relative to ``site.toml``. If all sites have the
            same one, they send keyed hashes of their rows, by which the server counts the rows that two sites share.
            By default the site takes no part in this.
        warnings: What the server learns of each warning about the site's data: the kind of problem and the name of the
            column ("columns", by default), also the text with its figures ("figures"), or nothing ("none").
        code: Approved Python files of models, losses, metrics and client-side methods: SHA-256 by path relative to
            ``site.toml``. By default only drfl's own are used.
        receive_models: Which delivered models the site stores: "signed" with the server's key (``server_key``), "any",
            or "none".
        score_column: Column of the site's table with its own scores, which are tested beside the models of 'drfl deploy
            evaluate': the probability of the second class, or a predicted number. By default there are none.
        models: Folder of delivered models, relative to ``site.toml``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests_a_day: int | None = Field(default=None, ge=1)
    max_step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    approved: Path | None = None
    shared_rows_key: Path | None = None
    warnings: Literal["columns", "figures", "none"] = "columns"
    code: dict[str, str] = Field(default_factory=dict)
    receive_models: Literal["signed", "any", "none"] = "signed"
    score_column: str | None = None
    models: Path = Path(MODELS)

    def row_key(self, folder: Path) -> bytes | None:
        """Read the key with which the site hashes its rows; None if it takes no part."""
        if self.shared_rows_key is None:
            return None
        key = read_bytes(folder / self.shared_rows_key).strip()
        if len(key) < KEY_BYTES:
            raise InputError(
                f"the key in '{self.shared_rows_key}' has {len(key)} bytes, fewer than {KEY_BYTES}. Make one at a site "
                "with 'openssl rand -hex 32' and give it to the other sites, but not to the server",
                code="invalid-value",
                field="shared_rows_key",
            )
        return key

    def row_key_check(self, folder: Path) -> str:
        """Return a text by which sites and server see whether keys are equal; "" if the site takes no part."""
        key = self.row_key(folder)
        return "" if key is None else hmac.digest(key, b"drfl key of rows", "sha256").hex()[:16]

    def check_run(self, run: int, folder: Path) -> None:
        """Raise a :class:`RefusedError` if a run is not approved."""
        if self.approved is None:
            return
        path = folder / self.approved
        # Read the file for every request, because a person may approve the run or withdraw approval at any time.
        # Compare whole lines, so that a line such as "# 123" withdraws approval.
        if str(run) not in (map(str.strip, read_text(path).splitlines()) if path.exists() else []):
            raise RefusedError(f"run {run} {UNAPPROVED}")

    def check_code(self, files: Iterable[tuple[str, str]], folder: Path) -> None:
        """Raise a :class:`RefusedError` unless all files are approved, and the site's copies have the same digests."""
        for name, digest in files:
            if self.code.get(name) != digest:
                raise RefusedError(
                    f"'{name}' with the SHA-256 {digest[:12]}… is not approved at this site. Read the file, then add "
                    "its digest to [policy.code] in site.toml",
                    code="untrusted-code",
                    field="code",
                )
            if sha256_of(folder / name) != digest:
                raise RefusedError(
                    f"this site's copy of '{name}' is not the approved one", code="untrusted-code", field="code"
                )

    def check_count(self, log: AuditLog | None) -> None:
        """Raise a :class:`RefusedError` if today's requests, including this one, exceed the limit.

        Every request is written to the log before it is counted, so that concurrent requests are all counted. Requests
        that were refused or failed count too, because the reason of a failure may disclose something.
        """
        if self.requests_a_day is None or log is None:
            return
        today = datetime.now(UTC).date().isoformat()
        # The time of a line may be that of a clock that was ahead, but its day is that of the clock.
        days = [str(clock_of(line))[:10] for line in log.since(today) if line["event"] in ("asked", "identified")]
        if days.count(today) > self.requests_a_day:
            raise RefusedError(
                f"this site has reached its limit of {self.requests_a_day} requests today (policy.requests_a_day)",
                code="too-many-requests",
                field="requests_a_day",
            )

    def shorten(self, vector: Tensor, origin: Tensor | None = None) -> Tensor:
        """Move a vector (d,) towards an origin (d,), by default 0, to a distance of at most ``max_step``."""
        if self.max_step is None:
            return vector
        difference = vector if origin is None else vector - origin
        # Use float64, because the sum of squares may overflow or underflow in float32.
        length = float(torch.linalg.vector_norm(difference, dtype=torch.float64))
        if length <= self.max_step:
            return vector
        short = difference * (self.max_step / length)
        return short if origin is None else origin + short
