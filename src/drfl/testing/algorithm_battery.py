"""The conformance checks for algorithms."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from drfl.core import checks
from drfl.core.errors import DrflError, InputError, first_line
from drfl.core.key import Key
from drfl.engine import Loop
from drfl.federation.algorithm import Algorithm, State, check_algorithm_type
from drfl.federation.local_method import LocalMethod, has_user_loss
from drfl.federation.method_checks import check_class
from drfl.testing import convergence, determinism, partial_replies, statistics
from drfl.testing.report import Report, examine
from drfl.testing.subject import SEED, Reduction, Reference, Solves, Subject
from drfl.testing.toy_problem import Classification, ToyProblem, least_squares
from drfl.training import step_size

FEWEST = 3
"""Smallest number of clients that a problem may have."""

S = TypeVar("S", bound=State)

AlgorithmCheck = Callable[[Subject], None]
"""A check: it raises :class:`drfl.testing.CheckError` or :class:`drfl.testing.NotApplicable`, or returns."""

ALGORITHM_CHECKS: tuple[AlgorithmCheck, ...] = (
    determinism.same_seed_same_bits,
    determinism.another_seed_differs,
    determinism.no_global_generator,
    determinism.engines_agree,
    determinism.threads_agree,
    determinism.order_of_replies,
    determinism.round_is_pure,
    determinism.state_is_complete,
    determinism.client_order_is_irrelevant,
    determinism.dtypes_are_preserved,
    partial_replies.state_is_valid_under_dropout,
    partial_replies.round_without_replies,
    partial_replies.round_without_models,
    partial_replies.dropout_equals_absence,
    partial_replies.identical_clients_are_interchangeable,
    partial_replies.table_rows_need_replies,
    statistics.mixture_stays_in_its_set,
    statistics.mixture_follows_the_losses,
    statistics.nonfinite_losses_are_refused,
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
"""All checks, e.g. for ``pytest.mark.parametrize``; each takes a :class:`Subject`."""


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
    """Make the argument of the single checks; the parameters are those of :func:`check_algorithm`."""
    check_algorithm_type(algorithm)
    if not dataclasses.is_dataclass(algorithm):
        raise InputError(
            f"{type(algorithm).__name__} must be a dataclass, like every algorithm",
            code="wrong-type",
            field="algorithm",
        )
    checks.integer("rounds", rounds)
    checks.positive("tolerance", tolerance)
    # Make a copy, because a faulty algorithm may change itself during the checks.
    original = copy.deepcopy(algorithm)
    if problem is not None:
        trial = problem
    elif isinstance(algorithm, LocalMethod):
        check_class(type(algorithm))
        trial = _trial_of(original, has_claim=solves is not None)
    else:
        trial = least_squares()
    subject = Subject(original, trial, solves, tuple(reductions), reference, rounds, tolerance)
    if subject.n < FEWEST:
        raise InputError(
            f"the problem has {subject.n} clients, but the checks need at least {FEWEST}, because some do not answer",
            code="few-clients",
            field="problem",
        )
    cases = [
        case._replace(ours=_with_a_step_size(case.ours, subject), theirs=_with_a_step_size(case.theirs, subject))
        for case in subject.reductions
    ]
    return dataclasses.replace(subject, algorithm=_with_a_step_size(original, subject), reductions=tuple(cases))


def _trial_of(algorithm: Algorithm, *, has_claim: bool) -> ToyProblem:
    """Return the built-in problem on which a client-side method can play a round.

    Classification comes first, because most methods need class labels, features or a last linear layer. Only least
    squares have the unique optimum that a claim of ``solves`` is about.
    """
    problems: dict[str, ToyProblem] = {"classification": Classification(), "least squares": least_squares()}
    reasons = []
    for name in reversed(problems) if has_claim else problems:
        trial = copy.deepcopy(algorithm)
        trial = trial if trial.local.lr is not None else step_size.with_step_size(trial, 0.01)
        fed = problems[name].federation(Loop())
        try:
            trial.round(trial.init(fed), fed, Key(SEED))
        except Exception as error:  # the user's code can raise anything
            reasons.append(f"{name}: {error if isinstance(error, DrflError) else first_line(error)}")
        else:
            return problems[name]
    raise InputError(
        f"{type(algorithm).__name__} cannot play a round on either built-in problem ({'; '.join(reasons)}). Correct "
        "it, or pass a problem with suitable data and model",
        code="unsuitable-problem",
        field="problem",
    )


def _with_a_step_size(algorithm: Algorithm[S], subject: Subject) -> Algorithm[S]:
    """Set a missing local step size to the one that a run would find, because checks run single rounds."""
    if algorithm.local.lr is not None:
        return algorithm
    suggestion = step_size.find(algorithm, subject.exact, subject.exact.w0, Key(SEED))
    # The curvature of a user's loss is unknown, and a run that diverges shows rounding as a difference.
    factor = 0.1 if has_user_loss(algorithm) else 1.0
    return step_size.with_step_size(algorithm, factor * float(suggestion.eta))


def examine_algorithm(subject: Subject, *, waive: Mapping[str, str] | None = None) -> Report:
    """Run all checks and return the report, without an exception if some fail."""
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
    """Check everything that an algorithm must get right; ``docs/testing.md`` lists the checks.

    The checks vary ``m``, ``local``, ``dual_batch`` (or ``loss_batch``), ``sampling``, ``gamma`` (or ``sigma``),
    and ``ambiguity`` with ``dataclasses.replace`` if the algorithm has this field; it must have ``local``.
    The report lists checks that do not apply, with the reason.

    Args:
        algorithm: A frozen dataclass with step sizes that suit the problem; a missing local step size is chosen.
        solves: The limit of the last iterate with exact gradients: ``AVERAGE``, ``WEIGHTED``, ``SADDLE``, ``Q_FAIR``,
            ``also_sampled(…)`` of one of these, or your own :class:`Solves`.
        reductions: Special cases in which it must equal another algorithm.
        reference: A second implementation of a round, in NumPy.
        problem: Makes the federations, such as one of :mod:`drfl.testing.problems`; None for five small least-squares
            clients, or :class:`drfl.testing.Classification` for a client-side method without ``solves``.
        rounds: Number of rounds within which it converges.
        tolerance: Distance from the solution that counts as converged.
        waive: Names of checks to skip for this algorithm, with the reason.

    Returns:
        The report.

    Raises:
        ConformanceError: If a check fails; it lists every failed check with a sentence.
        InputError: If ``algorithm`` is not an algorithm, a waived check does not exist, or a client-side method fits
            neither of the built-in problems.

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
    return examine_algorithm(subject, waive=waive).raise_failures()
