"""Protection from replies that cannot be used and from loss reports that are not true."""

from __future__ import annotations

from drfl.protection.audit import Audit, PeerAudit, Score
from drfl.protection.clip import Clip, RobustClip
from drfl.protection.dominance import Dominance
from drfl.protection.guard import Forgetful, Guard, Judged
from drfl.protection.probe import Probe
from drfl.protection.protected import Memory, Protected
from drfl.protection.quarantine import Quarantine
from drfl.protection.trim import Trim
from drfl.protection.validation import Checked, Reason, check_row, validated

__all__ = [
    "Audit",
    "Checked",
    "Clip",
    "Dominance",
    "Forgetful",
    "Guard",
    "Judged",
    "Memory",
    "PeerAudit",
    "Probe",
    "Protected",
    "Quarantine",
    "Reason",
    "RobustClip",
    "Score",
    "Trim",
    "check_row",
    "validated",
]
