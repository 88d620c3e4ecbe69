"""What a site lets go out, and when: its own rules, which no server can change.

They bind drfl's app. Flower runs whatever app is submitted at the sites, and another one does not ask them.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.errors import InputError
from drfl.core.files import read_text
from drfl.federation.requests import GradientRequest, LossRequest, Request, TrainRequest

UNAPPROVED = "is not approved: a person at this site has to agree to it"
"""What a site says of a run that nobody there has agreed to; the server asks it again for a while."""


class RefusedError(InputError):
    """A site's policy is against it; the server sees the reason, and no more."""

    code = "request-refused"


class SitePolicy(BaseModel):
    """``[policy]`` of site.toml.

    Args:
        requests_a_day: requests that are answered in a day (UTC), of every kind: for models, gradients, losses, tests,
            and who the site is, of all runs together; needs ``audit``. None = any number.
        max_step: the greatest distance from the model sent at which a model leaves, and norm of a gradient; what is
            longer is shortened to it. None = as they are.
        approved: file with the numbers of the runs that a person has agreed to, one a line, relative to site.toml; in
            all others the site tells nothing, not even who it is. None = it takes part in every run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests_a_day: int | None = Field(default=None, ge=1)
    max_step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    approved: Path | None = None

    def check_run(self, run: int, folder: Path) -> None:
        """Raise a :class:`RefusedError` where nobody has agreed to a run.

        Args:
            run: Flower's number of it.
            folder: that site.toml lies in.
        """
        if self.approved is None:
            return
        path = folder / self.approved
        # Read the file for every request, as a person may approve the run, or withdraw approval, at any time.
        if str(run) not in (read_text(path).split() if path.exists() else []):
            raise RefusedError(f"run {run} {UNAPPROVED}")

    def check_count(self, log: AuditLog | None) -> None:
        """Raise a :class:`RefusedError` if more requests have come today than may be answered, this one included.

        Every request has a line in the log before it is counted, so that of several at once none is overlooked. Those
        that were refused, or failed, have a second line and do not count.
        """
        if self.requests_a_day is None or log is None:
            return
        today = Counter(line["event"] for line in log.since(datetime.now(UTC).date().isoformat()))
        # Refused requests disclosed nothing, so they do not count.
        if today["asked"] + today["identified"] - today["refused"] > self.requests_a_day:
            raise RefusedError(
                f"this site answers {self.requests_a_day} requests a day, and has done so today",
                code="too-many-requests",
                field="requests_a_day",
            )

    def shortened(self, request: Request | None, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The parts of a reply as they may leave: models near the one sent, gradients not long."""
        if self.max_step is None or request is None or isinstance(request, LossRequest):
            return parts
        if isinstance(request, GradientRequest):
            return (_within(parts[0], torch.zeros_like(parts[0]), self.max_step), *parts[1:])
        assert isinstance(request, TrainRequest)
        return tuple(_within(part, request.w, self.max_step) for part in parts)


def _within(vector: Tensor, origin: Tensor, radius: float) -> Tensor:
    """The vector (d,) itself where it is near the origin, else the point at the radius on the way to it."""
    away = vector - origin
    # Use float64, as the sum of squares may overflow or vanish in float32.
    length = float(torch.linalg.vector_norm(away, dtype=torch.float64))
    return vector if length <= radius else origin + away * (radius / length)
