"""The conformance checks for federations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drfl.testing import federation_checks, minibatches
from drfl.testing.federation_checks import FederationSubject, Make
from drfl.testing.report import Report, examine

FederationCheck = Callable[[FederationSubject], None]
"""A check: it raises :class:`drfl.testing.CheckError`, or returns."""

FEDERATION_CHECKS: tuple[FederationCheck, ...] = (
    federation_checks.describes_its_clients,
    federation_checks.local_steps,
    federation_checks.shift_at_every_step,
    federation_checks.prox_pulls,
    federation_checks.snapshot_is_after_its_step,
    federation_checks.average_is_over_the_steps,
    federation_checks.momentum_starts_at_zero,
    federation_checks.decay_and_radius,
    federation_checks.all_options_together,
    federation_checks.single_precision,
    federation_checks.losses_and_gradients,
    federation_checks.evaluates_every_client,
    federation_checks.ignored_targets_do_not_count,
    minibatches.samples_belong_to_key_and_client,
    minibatches.threads_are_irrelevant,
    minibatches.minibatches_are_distinct_samples,
    minibatches.minibatches_are_unbiased,
    minibatches.no_running_statistics,
    federation_checks.ledger_counts,
    federation_checks.inputs_are_unchanged,
    federation_checks.no_generator_used,
)
"""All checks, e.g. for ``pytest.mark.parametrize``; each takes a :class:`FederationSubject`."""


def examine_federation(served: FederationSubject, *, waive: Mapping[str, str] | None = None) -> Report:
    """Run all checks and return the report, without an exception if some fail."""
    return examine("the federation", served, FEDERATION_CHECKS, waive)


def check_federation(make: Make, *, tolerance: float = 1e-9, waive: Mapping[str, str] | None = None) -> Report:
    """Check everything that a federation must get right; ``docs/testing.md`` lists the checks.

    The federation is compared with the plain simulation at the same keys, so a client's minibatches must be those of
    ``drfl.engine.batches.draw``. All clients of a cohort must answer.

    Args:
        make: (data, task) → a fresh federation of these clients.
        tolerance: Largest difference of float64 results, relative to 1 + size.
        waive: Names of checks to skip for this federation, with the reason.

    Returns:
        The report.

    Raises:
        ConformanceError: If a check fails; it lists every failed check with a sentence.
        InputError: If a waived check does not exist.

    Example:
        >>> from drfl import Loop, Simulation
        >>> from drfl.testing import check_federation
        >>> check_federation(lambda data, task: Simulation(data, task, engine=Loop())).failed
        ()
    """
    return examine_federation(FederationSubject(make, tolerance), waive=waive).raise_failures()
