"""Check your own algorithm, federation or ambiguity set.

``check_algorithm``, ``check_federation`` and ``check_ambiguity`` raise a :class:`ConformanceError` that lists every
failed check. The federations that they use are public too: :class:`Recording`, :class:`DropoutFederation`,
:class:`ConstantFederation` and others.
"""

from __future__ import annotations

from drfl.testing.algorithm_battery import ALGORITHM_CHECKS, check_algorithm, examine_algorithm, subject_of
from drfl.testing.ambiguity_battery import AMBIGUITY_CHECKS, AmbiguitySubject, check_ambiguity, examine_ambiguity
from drfl.testing.attacks import (
    AdaptiveAttack,
    ALittleIsEnough,
    ConstantLosses,
    ConstantPush,
    DeflatedLosses,
    InflatedLosses,
    InnerProductManipulation,
    PermanentDropout,
    ScaledUpdates,
    SignFlip,
    flip_labels,
    label_noise,
)
from drfl.testing.convergence import AVERAGE, Q_FAIR, SADDLE, WEIGHTED, also_sampled
from drfl.testing.federation_battery import FEDERATION_CHECKS, check_federation, examine_federation
from drfl.testing.federation_checks import FederationSubject, Make
from drfl.testing.federations import Call, ConstantFederation, DropoutFederation, PermutedClients, Recording
from drfl.testing.hyperplane import Hyperplane
from drfl.testing.quadratic_federation import QuadraticFederation
from drfl.testing.report import CheckError, ConformanceError, NotApplicable, Note, Report, verdict
from drfl.testing.subject import Oracle, Reduction, Reference, ReplayedRound, Solves, Subject
from drfl.testing.toy_problem import Classification, ToyProblem, least_squares

__all__ = [
    "ALGORITHM_CHECKS",
    "AMBIGUITY_CHECKS",
    "AVERAGE",
    "FEDERATION_CHECKS",
    "Q_FAIR",
    "SADDLE",
    "WEIGHTED",
    "ALittleIsEnough",
    "AdaptiveAttack",
    "AmbiguitySubject",
    "Call",
    "CheckError",
    "Classification",
    "ConformanceError",
    "ConstantFederation",
    "ConstantLosses",
    "ConstantPush",
    "DeflatedLosses",
    "DropoutFederation",
    "FederationSubject",
    "Hyperplane",
    "InflatedLosses",
    "InnerProductManipulation",
    "Make",
    "NotApplicable",
    "Note",
    "Oracle",
    "PermanentDropout",
    "PermutedClients",
    "QuadraticFederation",
    "Recording",
    "Reduction",
    "Reference",
    "ReplayedRound",
    "Report",
    "ScaledUpdates",
    "SignFlip",
    "Solves",
    "Subject",
    "ToyProblem",
    "also_sampled",
    "check_algorithm",
    "check_ambiguity",
    "check_federation",
    "examine_algorithm",
    "examine_ambiguity",
    "examine_federation",
    "flip_labels",
    "label_noise",
    "least_squares",
    "subject_of",
    "verdict",
]
