"""Failure models, over-selection, quorum, reply validation and guards, placed between an algorithm and its clients."""

from __future__ import annotations

from drfl.resilience.aggregators import (
    Aggregator,
    CentredClip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MedianClip,
    ProbeCosine,
    TrimmedMean,
)
from drfl.resilience.failures import (
    DuplicateReplies,
    FailureModel,
    FaultMemory,
    Faulty,
    LostReplies,
    Stragglers,
    UnreliableFederation,
)
from drfl.resilience.guards import (
    Audit,
    Clip,
    Guard,
    GuardResult,
    PeerAudit,
    RobustClip,
    Score,
    ServerProbe,
    Trim,
    WithoutMemory,
)
from drfl.resilience.participation import FirstK, OverSelection, Quorum
from drfl.resilience.protected import LambdaConcentration, Memory, Protected, Quarantine
from drfl.resilience.reply_log import Recorded, Replayed, ReplyLog, UsedReplies, read_replies
from drfl.resilience.step_bound import StepBound
from drfl.resilience.validation import Reason, Rejection, ValidationResult, validate_reply

__all__ = [
    "Aggregator",
    "Audit",
    "CentredClip",
    "Clip",
    "CoordinateMedian",
    "DuplicateReplies",
    "FailureModel",
    "FaultMemory",
    "Faulty",
    "FirstK",
    "GeometricMedian",
    "Guard",
    "GuardResult",
    "Krum",
    "LambdaConcentration",
    "LostReplies",
    "MedianClip",
    "Memory",
    "OverSelection",
    "PeerAudit",
    "ProbeCosine",
    "Protected",
    "Quarantine",
    "Quorum",
    "Reason",
    "Recorded",
    "Rejection",
    "Replayed",
    "ReplyLog",
    "RobustClip",
    "Score",
    "ServerProbe",
    "StepBound",
    "Stragglers",
    "Trim",
    "TrimmedMean",
    "UnreliableFederation",
    "UsedReplies",
    "ValidationResult",
    "WithoutMemory",
    "read_replies",
    "validate_reply",
]
