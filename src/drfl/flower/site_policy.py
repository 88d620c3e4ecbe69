"""What a site lets go out, and when: its own rules, which no server can change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from drfl.audit_log import AuditLog
from drfl.errors import InputError
from drfl.requests import GradientRequest, LossRequest, Request, TrainRequest


class RefusedError(InputError):
    """A site's policy is against it; the server sees the reason, and no more."""


class SitePolicy(BaseModel):
    """``[policy]`` of site.toml.

    Args:
        requests_a_day: requests for models, gradients or losses that are answered in a day (UTC); needs ``audit``. None
            = any number.
        max_step: the greatest distance from the model sent at which a model leaves, and norm of a gradient; what is
            longer is shortened to it. None = as they are.
        approved: file with the numbers of the runs that a person has agreed to, one a line, relative to site.toml; in
            all others the site tells who it is, and nothing else. None = it takes part in every run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests_a_day: int | None = Field(default=None, ge=1)
    max_step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    approved: Path | None = None

    def check(self, run: int, log: AuditLog | None, folder: Path) -> None:
        """Raise a :class:`RefusedError` where a request of this run is not to be answered.

        Args:
            run: Flower's number of it.
            log: of the site.
            folder: that site.toml lies in.
        """
        if self.approved is not None:
            path = folder / self.approved
            agreed = path.read_text(encoding="utf-8").split() if path.exists() else []
            if str(run) not in agreed:
                raise RefusedError(f"run {run} is not approved: a person at this site has to agree to it")
        if self.requests_a_day is not None and log is not None:
            today = log.since(datetime.now(UTC).date().isoformat())
            if sum(line["event"] == "sent" and line["what"] != "test" for line in today) >= self.requests_a_day:
                raise RefusedError(f"this site answers {self.requests_a_day} requests a day, and has done so today")

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
    length = float(torch.linalg.vector_norm(away, dtype=torch.float64))
    return vector if length <= radius else origin + away * (radius / length)
