"""Energy and channels: the cost of local steps and messages, and the number of local steps with the least cost.

After DRDM (Krouka et al. 2025), §IV.B.3, equation 18 and Figure 4.
"""

from __future__ import annotations

from drfl_papers.energy.channel import Channel, Link, LinkConditions, OverChannel, Rayleigh
from drfl_papers.energy.cost import (
    Bill,
    Cost,
    Payload,
    Processor,
    Radio,
    bill,
    cost_of,
    mean_payload,
    payload_of,
    round_seconds,
    sample_flops,
)
from drfl_papers.energy.measurements import from_runs, read_csv
from drfl_papers.energy.planner import LocalStepsPlan, Measurement, PlannedSteps, StepsCandidate, choose, plan
from drfl_papers.energy.usage import Meter, Metered, Usage

__all__ = [
    "Bill",
    "Channel",
    "Cost",
    "Link",
    "LinkConditions",
    "LocalStepsPlan",
    "Measurement",
    "Meter",
    "Metered",
    "OverChannel",
    "Payload",
    "PlannedSteps",
    "Processor",
    "Radio",
    "Rayleigh",
    "StepsCandidate",
    "Usage",
    "bill",
    "choose",
    "cost_of",
    "from_runs",
    "mean_payload",
    "payload_of",
    "plan",
    "read_csv",
    "round_seconds",
    "sample_flops",
]
