"""What stands between an algorithm and its clients for one round."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation import Federation
from drfl.protection import guard
from drfl.protection.guard import Guard
from drfl.protection.validation import FAULTS, REASONS, Checked, validated
from drfl.request import GradientRequest, LossRequest, R, Request, answers, reports_of, with_reports
from drfl.wrapped import WrappedFederation


class Validated(WrappedFederation):
    """Asks nobody who is in quarantine and hands on valid replies only; notes both for one round.

    Args:
        fed: the federation inside.
        quarantined: (N,) bool, who is not asked.
        norm: see :func:`drfl.protection.validation.validated`.
    """

    def __init__(self, fed: Federation, quarantined: Tensor, norm: float | None = None) -> None:
        super().__init__(fed)
        self.quarantined, self.norm = quarantined, norm
        self.answered = torch.zeros(fed.n, dtype=torch.bool)
        self.faulty = torch.zeros(fed.n, dtype=torch.bool)
        self.reasons = torch.zeros(fed.n + 1, len(REASONS), dtype=torch.bool)
        self.rejected = 0

    def exchange(self, request: Request[R]) -> R:
        """Put a request to those who may be asked; nobody is asked nothing."""
        away = self.quarantined[request.cohort]
        if bool(away.any()):
            request = request.only(~away)
        if not len(request.cohort):
            return request.nobody()
        checked = validated(request, request.put(self.fed), self.norm)
        self._note(checked)
        return checked.reply

    def _note(self, checked: Checked[R]) -> None:
        """(N + 1, reasons) why whose reply was rejected; whoever is no client at all counts as client N."""
        clients, codes = checked.clients, checked.codes
        bad = codes > 0
        self.answered[clients[codes == 0]] = True
        if bool(bad.any()):
            row = torch.where((clients >= 0) & (clients < self.n), clients, self.n)
            self.rejected += int(bad.sum())
            self.faulty[clients[checked.rows_with(*FAULTS)]] = True
            self.reasons[row[bad], codes[bad] - 1] = True


class Guarded(WrappedFederation):
    """Loss reports pass the guards on their way back; notes whose were changed in one round.

    Args:
        fed: the federation inside.
        guards: in their order.
        memory: (Σs,) float64, see :func:`drfl.protection.guard.start`.
    """

    def __init__(self, fed: Federation, guards: tuple[Guard, ...], memory: Tensor) -> None:
        super().__init__(fed)
        self.guards, self.memory = guards, memory
        self.changed = torch.zeros(fed.n, dtype=torch.bool)
        self.clipped = 0

    def exchange(self, request: Request[R]) -> R:
        """Put a request, and judge the reports that come; the very reply where the guards change nothing."""
        reply = request.put(self.fed)
        reports = reports_of(reply)
        if reports is None or not isinstance(request, LossRequest | GradientRequest) or not len(reports.clients):
            return reply
        values, kept, self.memory = guard.judge(self.guards, reports, request, self.fed, self.memory)
        changed = ~kept | (values != reports.values)
        if not bool(changed.any()):
            return reply
        self.changed[reports.clients[changed]] = True
        self.clipped += int(changed.sum())
        reply = with_reports(reply, values)
        return reply if bool(kept.all()) else answers(reply, kept)
