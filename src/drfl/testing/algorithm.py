"""The battery for algorithms."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, State
from drfl.testing import convergence, determinism, partial_replies, statistics
from drfl.testing.report import ConformanceError, Report, examine
from drfl.testing.subject import SEED, Reduction, Reference, Solves, Subject
from drfl.testing.toy_problem import ToyProblem, least_squares
from drfl.training import step_size

FEWEST = 3
"""Clients that a problem must have."""

S = TypeVar("S", bound=State)

AlgorithmCheck = Callable[[Subject], None]
"""Raises :class:`drfl.testing.CheckError` or :class:`drfl.testing.NotApplicable`, or returns."""

ALGORITHM_CHECKS: tuple[AlgorithmCheck, ...] = (
    determinism.same_seed_same_bits,
    determinism.another_seed_differs,
    determinism.no_global_generator,
    determinism.engines_agree,
    determinism.threads_agree,
    determinism.order_of_replies,
    determinism.round_is_pure,
    determinism.state_is_complete,
    determinism.clients_have_no_names,
    determinism.types_are_kept,
    partial_replies.survives_silence,
    partial_replies.nobody_answers,
    partial_replies.nobody_trains,
    partial_replies.silence_is_absence,
    partial_replies.alike_clients_are_alike,
    partial_replies.tables_of_the_silent,
    statistics.mixture_stays_in_its_set,
    statistics.mixture_follows_the_losses,
    statistics.poison_stays_out,
    statistics.snapshot_step,
    statistics.cohort_law,
    statistics.report_law,
    statistics.missing_reports_leave_no_bias,
    statistics.round_is_unbiased,
    statistics.fresh_samples,
    convergence.converges,
    convergence.converges_on_other_sets,
    convergence.average_is_of_the_iterates,
    convergence.reduces,
    convergence.matches_its_reference,
)
"""Every check by itself, e.g. for ``pytest.mark.parametrize``; each takes a :class:`Subject`."""


def subject_of(
    algorithm: Algorithm[S],
    *,
    solves: Solves | None = None,
    reductions: Sequence[Reduction] = (),
    reference: Reference | None = None,
    problem: ToyProblem | None = None,
    rounds: int = 500,
    tolerance: float = 1e-4,
) -> Subject:
    """What the single checks take; the arguments are those of :func:`check_algorithm`."""
    if isinstance(algorithm, type):
        raise InputError(
            f"{algorithm.__name__} is a class: give an algorithm, {algorithm.__name__}(…)",
            code="wrong-type",
            field="algorithm",
        )
    if not dataclasses.is_dataclass(algorithm) or not hasattr(algorithm, "local"):
        raise InputError(
            f"{type(algorithm).__name__} must be a dataclass with a field local, as every algorithm",
            code="wrong-type",
            field="algorithm",
        )
    checks.whole("rounds", rounds)
    checks.positive("tolerance", tolerance)
    trial = least_squares() if problem is None else problem
    given = copy.deepcopy(algorithm)
    subject = Subject(given, trial, solves, tuple(reductions), reference, rounds, tolerance)
    if subject.n < FEWEST:
        raise InputError(
            f"the problem has {subject.n} clients: a battery needs {FEWEST}, some of whom are silent",
            code="few-clients",
            field="problem",
        )
    cases = [
        case._replace(ours=_with_a_step_size(case.ours, subject), theirs=_with_a_step_size(case.theirs, subject))
        for case in subject.reductions
    ]
    return dataclasses.replace(subject, algorithm=_with_a_step_size(given, subject), reductions=tuple(cases))


def _with_a_step_size(algorithm: Algorithm[S], subject: Subject) -> Algorithm[S]:
    """The algorithm, with the local step size that a run would find where it has none: checks play single rounds."""
    if algorithm.local.lr is not None:
        return algorithm
    found = step_size.find(algorithm, subject.exact, subject.exact.w0, Key(SEED))
    return step_size.with_step_size(algorithm, float(found.eta))


def examine_algorithm(subject: Subject, *, waive: Mapping[str, str] | None = None) -> Report:
    """The report of all checks, without raising anything where some fail."""
    return examine(type(subject.algorithm).__name__, subject, ALGORITHM_CHECKS, waive)


def check_algorithm(
    algorithm: Algorithm[S],
    *,
    solves: Solves | None = None,
    reductions: Sequence[Reduction] = (),
    reference: Reference | None = None,
    problem: ToyProblem | None = None,
    rounds: int = 500,
    tolerance: float = 1e-4,
    waive: Mapping[str, str] | None = None,
) -> Report:
    """Try an algorithm on everything that an algorithm must get right; see ``docs/testing.md`` for the list.

    The checks vary ``m``, ``local``, ``dual_batch`` (or ``loss_batch``), ``sampling``, ``gamma`` (or ``sigma``),
    and ``ambiguity`` with ``dataclasses.replace`` where the algorithm has such a field; it must have
    ``local``. What does not apply is listed in the report with the reason.

    Args:
        algorithm: a frozen dataclass, with step sizes that suit the problem; a local one is found where it has none.
        solves: what the last iterate converges to with exact gradients: ``AVERAGE``, ``WEIGHTED``, ``SADDLE``,
            ``Q_FAIR``, ``also_sampled(…)`` of one, or a :class:`Solves` of your own.
        reductions: special cases in which it must become another algorithm.
        reference: a second implementation of a round, in NumPy.
        problem: makes the federations, such as one of :mod:`drfl.testing.problems`; None = five small least-squares
            clients.
        rounds: within which it converges.
        tolerance: how close it then is.
        waive: names of checks that are not meant for this algorithm, with the reason.

    Returns:
        The report.

    Raises:
        ConformanceError: listing every check that fails, with a sentence each.
        InputError: ``algorithm`` is no algorithm, or a waived check does not exist.

    Example:
        >>> from drfl import FedAvg, LocalSGD
        >>> from drfl.testing import WEIGHTED, check_algorithm
        >>> report = check_algorithm(FedAvg(local=LocalSGD(steps=1)), solves=WEIGHTED)
        >>> "converges" in report.passed
        True
    """
    subject = subject_of(
        algorithm,
        solves=solves,
        reductions=reductions,
        reference=reference,
        problem=problem,
        rounds=rounds,
        tolerance=tolerance,
    )
    report = examine_algorithm(subject, waive=waive)
    if report.failed:
        raise ConformanceError(report)
    return report
