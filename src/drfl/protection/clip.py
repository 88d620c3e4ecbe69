"""Loss reports cut to a bound that is known, or found from all clients' reports."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.federation import Federation, Losses
from drfl.protection.guard import Forgetful, Judged
from drfl.request import GradientRequest, LossRequest

SIGMAS = 1.4826
"""A normal law's standard deviation over its MAD."""


@dataclass(frozen=True)
class Clip(Forgetful):
    """Reports are cut to [−bound, bound]: for losses whose range is known.

    Args:
        bound: above 0.

    Raises:
        InputError: the bound is not a finite number above 0.
    """

    bound: float

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """See :class:`drfl.protection.guard.Guard`."""
        return keep_all(reports.values.clamp(-self.bound, self.bound), memory)


@dataclass(frozen=True)
class RobustClip:
    """Reports are cut to med + k·max(1.4826·MAD, floor·peak), as found from every client's latest report.

    med and MAD are the median, and the median distance from it, over each client's latest report: this request's as
    they came, and the older ones of the clients that it did not reach, as they were cut. So the first round is judged
    by its own reports, and a round in which all losses jump is not cut. peak is the largest |med| so far: late in
    training, when nearly all losses are tiny, an honest client that is hard may still report what was normal once.

    The defaults are wide: a report is cut when it is above eleven times the greatest median so far, and farther than
    ten times the spread. That keeps a claim of a million from poisoning λ and the dual step's scale for good; a liar
    who claims ten times the truth is not held. k=3, floor=0.1 is tight: it does hold him, and may cut a hard client.

    Medians hold while fewer than half of the reports are false; those of the first round may be few. A report below
    −(|med| + k·…) is raised to it: it would spoil the dual step's scale.

    Args:
        k: widths above the median, > 0.
        floor: the least width as a share of the peak, ≥ 0.

    Raises:
        InputError: a value is out of range.
    """

    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def start(self, n: int) -> Tensor:
        """(n + 1,) every client's latest report, NaN where there was none, and the peak."""
        return torch.cat([torch.full((n,), torch.nan, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])

    def judge(self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor) -> Judged:
        """See :class:`drfl.protection.guard.Guard`."""
        last, peak = memory[:-1], memory[-1]
        latest = last.index_copy(0, reports.clients, reports.values)
        latest = latest[~latest.isnan()]
        peak = torch.maximum(peak, latest.median().abs())
        values = near_median(reports.values, latest, self.k, self.floor * peak)
        last = last.index_copy(0, reports.clients, values)
        return keep_all(values, torch.cat([last, peak[None]]))


def near_median(values: Tensor, reference: Tensor, k: float, least: Tensor) -> Tensor:
    """(k',) values cut to within k·max(1.4826·MAD, least) of the median of a reference (r,), r ≥ 1, on the far sides.

    The lower of the two middle ones counts as the median. Where the width is 0 there is nothing to judge by: no cut.
    """
    middle = reference.median()
    width = k * torch.maximum(SIGMAS * (reference - middle).abs().median(), least)
    return values.clamp(-(middle.abs() + width), middle + width) if width > 0 else values


def keep_all(values: Tensor, memory: Tensor) -> Judged:
    """A judgement that drops nobody."""
    return Judged(values, torch.ones(len(values), dtype=torch.bool), memory)
