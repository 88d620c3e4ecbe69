"""The mistakes, each with its wrong variant and the checks that must reject it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.conformance.rows import ROWS
from tests.conformance.wrong import ambiguity as a
from tests.conformance.wrong import baselines as b
from tests.conformance.wrong import dual as d
from tests.conformance.wrong import federations as f
from tests.conformance.wrong.trap import right

from drfl.ambiguity import AmbiguitySet
from drfl.engine import Loop, Simulation
from drfl.testing import AmbiguitySubject, FederationSubject, Subject

REFERENCE, CONVERGES = "matches_its_reference", "converges"


class Trap(NamedTuple):
    """A mistake, a subject that makes it, and the checks that must reject it.

    Args:
        part: the algorithm whose conformance row tests the variant, "Federation" or "Ambiguity set".
        mistake: the mistake in words.
        variant: name of the wrong class.
        subject: argument of the checks.
        caught_by: names of checks that must reject it; others may reject it as well.
    """

    part: str
    mistake: str
    variant: str
    subject: Callable[[], Subject | FederationSubject | AmbiguitySubject]
    caught_by: tuple[str, ...]


def trap(row: str, wrong: type, mistake: str, *caught_by: str) -> Trap:
    """Return a wrong algorithm with the hyperparameters and claims of a row."""
    return Trap(row, mistake, wrong.__name__, lambda: ROWS[row].subject(right(ROWS[row].algorithm, wrong)), caught_by)


def served(wrong: type, mistake: str, *caught_by: str) -> Trap:
    """Return a wrong federation: a simulation of another class, or with another engine."""
    if issubclass(wrong, Loop):
        return Trap("Federation", mistake, wrong.__name__, lambda: FederationSubject(with_engine(wrong)), caught_by)
    subject = FederationSubject(lambda data, task: wrong(data, task, engine=Loop()))
    return Trap("Federation", mistake, wrong.__name__, lambda: subject, caught_by)


def tried(wrong: AmbiguitySet, mistake: str, *caught_by: str) -> Trap:
    """Return a wrong ambiguity set for eight clients."""
    return Trap("Ambiguity set", mistake, type(wrong).__name__, lambda: AmbiguitySubject(wrong), caught_by)


def with_engine(engine: type):
    """Make simulations run with this engine."""
    return lambda data, task: Simulation(data, task, engine=engine())


ALGORITHM_TRAPS = [
    trap("SCAFFOLD", b.SignFlipped, "sign of the model difference flipped", CONVERGES, REFERENCE),
    trap("SCAFFOLD", b.OneOverEpochs, "1/epochs instead of 1/(Kη)", REFERENCE),
    trap("SCAFFOLD", b.ShareForgotten, "|S|/N forgotten", REFERENCE),
    trap("SCAFFOLD", b.DividesByAsked, "divides by clients asked, not answered", "dropout_equals_absence", REFERENCE),
    trap("SCAFFOLD", b.DecayedRate, "controls from the decayed learning rate", REFERENCE),
    trap("SCAFFOLD", b.ControlsOfTheAsked, "controls of silent clients move", "table_rows_need_replies", REFERENCE),
    trap("FedDyn", b.PullLost, "quadratic half of the penalty lost", REFERENCE),
    trap("FedDyn", b.DecayForgotten, "the penalty's quadratic half left to a weight decay of 0", CONVERGES, REFERENCE),
    trap("FedDyn", b.HistoryOfTheCohort, "history averaged over the cohort, not all N", CONVERGES, REFERENCE),
    trap("FedDyn", b.HistorySign, "sign of the history term", CONVERGES, REFERENCE),
    trap("FedDyn", b.RowsInCohortOrder, "rows of replies taken for the cohort's order", "order_of_replies"),
    trap("QFedAvg", b.LossAfterTraining, "loss taken after training", REFERENCE),
    trap("QFedAvg", b.LossDuringTraining, "loss taken during training", REFERENCE),
    trap("QFedAvg", b.NormOfTheScaled, "norm of an already scaled difference", REFERENCE),
    trap("DRFA", d.UniformCohort, "uniform cohort instead of one drawn by λ", "cohort_law"),
    trap("DRFA", d.LeavesOutTau, "`randint` that excludes τ", "snapshot_step"),
    trap("DRFA", d.SnapshotPerClient, "another t' per client", "snapshot_step"),
    trap(
        "DRFA", d.DecayOnSelf, "silent decay of γ, counted on the object",
        "mixture_follows_the_losses", "round_is_pure", "state_is_complete",
    ),
    trap("DRFA", d.DecayInState, "silent decay of γ, counted in the state", "mixture_follows_the_losses"),
    trap("DRFA", d.FloorOfTheFirst, "a floor that lifts only the first zero", "mixture_stays_in_its_set"),
    trap("DRFA", d.FloorByRenormalising, "λ floor by renormalising, not projecting", "mixture_stays_in_its_set"),
    trap(
        "DRFA",
        d.TypeTested,
        "`isinstance(x, float)` as the only check on a reported loss",
        "nonfinite_losses_are_refused",
    ),
    trap("DRFA", d.CountsOnce, "a client drawn twice counts once", "round_is_unbiased"),
    trap(
        "DRFA", d.ScaledByAsked, "N/m with those asked, not those who reported",
        "missing_reports_leave_no_bias", REFERENCE,
    ),
    trap("DRFA", d.ReportsOfTheTrained, "losses from those who trained, not a uniform sample", "report_law"),
    trap("DRFA", d.TrainedSamples, "losses on the samples just trained on", "fresh_samples"),
    trap("DRFA", d.GlobalDraw, "cohort drawn by a global generator", "no_global_generator"),
    trap("DRFA", d.OneKey, "a key made up, not folded from the round's", "another_seed_differs", "fresh_samples"),
    trap("DRFA", d.SingleMixture, "λ in float32", "dtypes_are_preserved", "mixture_stays_in_its_set"),
    trap("DRFA", d.AverageOfTheLast, "averaged model lags: the one before the round", "average_is_of_the_iterates"),
    trap("DRFA", d.InPlace, "state changed in place", "round_is_pure"),
    trap("DRFAProx", d.PenaltyForgotten, "the penalty left out of the dual step", "converges_on_other_sets"),
    trap("AFL", d.Promoted, "averaged model promoted to λ's type", "dtypes_are_preserved"),
    trap("AFL", d.ByThreads, "result depends on the number of threads", "threads_agree"),
    trap("AFL", d.KnowsTheEngine, "result depends on the engine", "engines_agree"),
    trap("ScaffPD", d.CacheOnSelf, "last losses kept on the object", "state_is_complete", "round_is_pure"),
    trap("DRDM", d.DriftCountedTwice, "a client drawn twice moves its h_i twice", REFERENCE),
    trap("DualDRDM", d.UniformMean, "DRDM as published, said to reach the saddle point", CONVERGES),
    trap("DualDRDM", d.OldMixture, "c weighed by an old λ", CONVERGES, REFERENCE),
    trap("DualDRDM", d.Uncentred, "the reports' mean left in", REFERENCE),
    trap("DualDRDM", d.CentredByReports, "centred reports scaled by N/k", REFERENCE),
    trap("FedProx", b.ZeroMeansDefault, "μ = 0 taken for no value given", "reduces"),
    trap("FedAvg", b.WeightsOfTheAsked, "weights sum to 1 over those asked", "identical_clients_are_interchangeable"),
    trap("FedAvg", b.UniformThoughBySamples, "plain mean though the loss is weighted by samples", CONVERGES),
    trap("FedAvg", b.SumOfNobody, "a round without replies gives a model of zeros", "round_without_replies"),
    trap("FedAvg", b.TellsWhoWasAsked, "Info names those who were asked", "state_is_valid_under_dropout"),
    trap("FedAvg", b.FirstCountsDouble, "a client is treated by its index", "client_order_is_irrelevant"),
    trap("FedAvg", b.CohortWithoutKey, "cohort drawn by an unseeded generator", "same_seed_same_bits"),
    trap("DeltaFL", b.MeanOfNobody, "the mean of no model is NaN", "round_without_models"),
    trap("DeltaFL", b.TailOfTheLucky, "the tail with the smallest losses trains", REFERENCE),
]  # fmt: skip

FEDERATION_TRAPS = [
    served(f.MomentumKept, "momentum kept across clients", "momentum_starts_at_zero", "all_options_together"),
    served(f.Sharing, "one generator for all clients and calls", "samples_belong_to_key_and_client"),
    served(f.ByVisit, "one generator per request: batches depend on client order", "samples_belong_to_key_and_client"),
    served(f.AcceptsAnything, "BatchNorm accepted, with the buffers of the last client", "no_running_statistics"),
    served(f.SnapshotBefore, "snapshot off by one", "snapshot_is_after_its_step"),
    served(f.ShiftOnce, "shift applied once only", "shift_at_every_step"),
    served(f.ShiftOfAnother, "shifts go to the wrong clients", "shift_at_every_step"),
    served(f.PullLost, "prox lost", "prox_pulls"),
    served(f.MeanWithStart, "the average counts the start", "average_is_over_the_steps"),
    served(f.InPlace, "local steps in place on the server's model", "inputs_are_unchanged"),
    served(f.SumOfLosses, "gradient of the summed loss", "local_steps"),
    served(f.MeanOverAllRows, "rows that the loss ignores count in the mean", "ignored_targets_do_not_count"),
    served(f.PlainSteps, "weight decay and radius forgotten", "decay_and_radius"),
    served(f.GlobalDraw, "minibatches from a global generator", "no_generator_used"),
    served(f.WithReplacement, "minibatches with replacement", "minibatches_are_distinct_samples"),
    served(f.FirstSamples, "minibatches favour the first samples", "minibatches_are_unbiased"),
    served(f.FreeUploads, "uploads not booked", "ledger_counts"),
    served(f.SingleLosses, "losses in float32", "losses_and_gradients"),
    served(f.PooledTest, "one score for all clients", "evaluates_every_client"),
    served(f.EqualShares, "shares taken for equal", "describes_its_clients"),
    served(f.DoublePrecision, "models promoted to float64", "single_precision"),
    served(f.SplitByThreads, "result depends on the number of threads", "threads_are_irrelevant"),
]

UNEVEN = (0.02, 0.02, 0.06, 0.1, 0.1, 0.2, 0.2, 0.3)

AMBIGUITY_TRAPS = [
    tried(a.FloorOfTheFirstZero(0.01), "a floor that lifts only the first zero", "answers_are_mixtures"),
    tried(a.FloorByRenormalising(0.01), "floor by renormalising, not projecting", "answers_are_mixtures"),
    tried(a.NaNPasses(), "NaN passes", "nonfinite_input_is_refused"),
    tried(a.Softmax(), "softmax instead of projection", "projection_is_nearest", "projection_is_firm"),
    tried(a.InSinglePrecision(), "projection in float32", "answers_are_float64_vectors", "answers_are_mixtures"),
    tried(a.StillSorted(), "weights left in sorted order", "order_is_irrelevant", "projection_is_nearest"),
    tried(a.ContainsEverything(), "contains is always true", "contains_rejects_nonmembers"),
    tried(a.WorstOfTheBest(), "the worst case of the smallest loss", "worst_case_is_worst"),
    tried(a.ClippedAndRenormalised(0.3), "CVaR by clipping and renormalising", "answers_are_mixtures"),
    tried(a.WholeClients(0.3), "CVaR of whole clients: αN rounded up", "worst_case_is_worst"),
    tried(a.CapAboveOne(0.3), "CVaR's cap above 1 where αN < 1", "one_client"),
    tried(a.CapOfTheFirst(0.3), "what is above the cap goes to the first clients", "order_is_irrelevant"),
    tried(a.StepForgotten(0.1), "χ² prox that forgets the step", "prox_is_optimal", "prox_tends_to_the_projection"),
    tried(a.GradientOfTheShare(0.1), "χ² gradient without the factor N", "penalty_fits_its_gradient"),
    tried(a.MoreConvexThanItIs(0.1), "strong convexity ρN² instead of ρN", "penalty_is_strongly_convex"),
    tried(a.PriorForgotten(0.1, UNEVEN), "KL prox without the prior", "prox_is_optimal"),
    tried(a.MirrorStep(0.1), "KL prox by a step of mirror ascent", "prox_is_optimal", "prox_tends_to_the_projection"),
    tried(a.PenaltyNotPaid(0.1), "worst case's value without the penalty", "worst_case_is_attained"),
    tried(a.RadiusSquared(0.3), "χ² ball's radius squared", "projection_is_nearest", "worst_case_is_worst"),
    tried(a.KLRadiusSquared(0.3, UNEVEN), "KL ball's radius squared", "projection_is_nearest", "worst_case_is_worst"),
    tried(a.ShrunkIntoTheBall(0.3), "KL ball by shrinking towards the prior", "projection_is_nearest"),
]
