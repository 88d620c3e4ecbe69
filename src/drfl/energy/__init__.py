"""Energy and channels: what local steps and messages cost, and how many local steps cost least.

After DRDM (Krouka et al. 2025), §IV.B.3, equation 18 and Figure 4.
"""

from __future__ import annotations

from drfl.energy.account import Bill, Cost, Payload, Radio, bill, cost_of, mean_payload, payload_of, round_seconds
from drfl.energy.channel import Channel, Link, Place, Rayleigh
from drfl.energy.measurements import from_runs, read_csv
from drfl.energy.metering import Meter, Metered, Usage
from drfl.energy.participation import Absent, OverChannel
from drfl.energy.planner import Candidate, Cell, Measurement, Plan, choose, plan
from drfl.energy.processing import Processor, sample_flops

__all__ = [
    "Absent",
    "Bill",
    "Candidate",
    "Cell",
    "Channel",
    "Cost",
    "Link",
    "Measurement",
    "Meter",
    "Metered",
    "OverChannel",
    "Payload",
    "Place",
    "Plan",
    "Processor",
    "Radio",
    "Rayleigh",
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
