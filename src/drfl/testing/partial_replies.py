"""Checks of an algorithm's behaviour if some clients do not answer."""

from __future__ import annotations

import copy

import torch

from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm, State, lam_of
from drfl.federation.federation import Federation
from drfl.testing.federations import DropoutFederation, Recording, first_asked
from drfl.testing.quadratic_federation import QuadraticFederation
from drfl.testing.report import NotApplicable, require
from drfl.testing.state import bits_differ, far_apart, gap, leaves, of_model_shape, rebuild, tables
from drfl.testing.subject import SEED, Subject, last_of, rounds_of

KINDS = ("train", "losses", "gradients")
TRIES = 400
"""Number of keys tried to find one that draws a certain cohort."""


def state_is_valid_under_dropout(subject: Subject) -> None:
    """Check that the state stays finite and λ a mixture if some clients never answer, for every kind of request.

    Also checks that ``Info`` names only clients that answered.
    """
    silent = sorted({1, subject.n - 1})
    for kinds in (("train",), ("losses",), ("gradients",), KINDS):
        lost = {kind: silent if kind in kinds else [] for kind in KINDS}
        lossy = Recording(
            DropoutFederation(subject.exact, train=lost["train"], losses=lost["losses"], gradients=lost["gradients"])
        )
        for state, info in rounds_of(subject.variant(m=3, full=True, gamma=0.1), lossy, 6):
            case = f"if clients {silent} do not answer {', '.join(kinds)} requests"
            _require_sane(state, case)
            heard = {i for call in lossy.take() if call.kind != "losses" for i in call.answered.tolist()}
            require(set(info.answered.tolist()) <= heard, f"Info names clients that did not answer, {case}")


def round_without_replies(subject: Subject) -> None:
    """Check that a round without replies returns the state unchanged, bit for bit, and an empty ``Info``."""
    algorithm = subject.variant(m=3, full=True)
    state = last_of(algorithm, subject.exact, 2)
    nobody = DropoutFederation.without(subject.exact, range(subject.n))
    after, info = algorithm.round(state, nobody, Key(SEED).fold("round", 3))
    differ = bits_differ(state, after)
    require(not differ, f"a round without replies changes {', '.join(differ)}")
    require(info.is_empty, "Info does not say that the round had no replies: return Info.without_replies(cohort)")


def round_without_models(subject: Subject) -> None:
    """Check that the state stays finite and λ a mixture if losses or gradients are reported but no client trains."""
    lossy = DropoutFederation(subject.exact, train=range(subject.n))
    for state, _ in rounds_of(subject.variant(m=3, full=True, gamma=0.1), lossy, 3):
        _require_sane(state, "if no client sends a local model")


def dropout_equals_absence(subject: Subject) -> None:
    """Check that a client that does not answer has the same effect as a client outside the cohort.

    Catches means divided by the size of the cohort. λ is fixed, because it also depends on the reported losses.
    """
    subject.needs("m")
    n, fed = subject.n, subject.exact
    options = {"full": True, "steps": 1, "sampling": sampling.without_replacement, "gamma": 0.0}
    state = last_of(subject.variant(full_participation=True, full=True, steps=1, gamma=0.0), fed, 2)
    many, few = (subject.variant(m=m, **options) for m in (n - 1, max(1, n - 3)))
    key = Key(SEED).fold("round", 3)
    cohort = _cohort_of(many, state, fed, key)
    answering = sorted(cohort)[-max(1, n - 3) :]
    with_silent, _ = many.round(state, DropoutFederation.without(fed, cohort - set(answering)), key)
    # Sampling cannot be given a cohort: try keys until one draws exactly the clients that answered.
    clients = set(answering)
    keys = (Key(SEED).fold("trial", trial) for trial in range(TRIES))
    key = next((key for key in keys if _cohort_of(few, state, fed, key) == clients), None)
    if key is None:
        raise NotApplicable(f"none of {TRIES} keys draws the cohort {sorted(clients)}")
    alone, _ = few.round(state, fed, key)
    # Compare models and their tables only: other fields may depend on which clients were asked.
    mine, theirs = of_model_shape(with_silent), of_model_shape(alone)
    same = leaves(with_silent)
    far = far_apart(rebuild(with_silent, same | mine), rebuild(with_silent, same | theirs), 1e-9)
    require(not far, f"{', '.join(far)} depend on clients that did not answer: divide by the number of replies")


def identical_clients_are_interchangeable(subject: Subject) -> None:
    """Check that the first round's model does not depend on which clients answer, if all have the same data.

    Catches means whose weights do not sum to 1 over the replies. Corrections that weigh replies against all N clients
    are meant to differ, so algorithms with a table per client are excluded.
    """
    original = subject.exact
    if not isinstance(original, QuadraticFederation):
        raise NotApplicable("the clients' losses are not quadratics in closed form")
    # Every client gets the data of client 0.
    same = [part[:1].repeat(original.n, *[1] * (part.dim() - 1)) for part in (original.A, original.b, original.s)]
    fed = QuadraticFederation(*same, w0=original.w0)
    algorithm = subject.variant(full_participation=True, full=True, steps=2)
    if tables(algorithm.init(fed), fed.n):
        raise NotApplicable("the state has a table per client, whose rows change only with replies")
    key = Key(SEED).fold("round", 1)
    complete, _ = algorithm.round(algorithm.init(fed), fed, key)
    for silent in ([0], [1, 2], list(range(original.n - 1))):
        partial, _ = copy.deepcopy(algorithm).round(algorithm.init(fed), DropoutFederation.without(fed, silent), key)
        distance = gap(complete.w, partial.w)
        case = f"clients {silent} of {original.n} equal clients do not answer"
        require(distance < 1e-9, f"the model changes by {distance:.1e} if {case}")


def table_rows_need_replies(subject: Subject) -> None:
    """Check that rows of tables change only for clients that answered."""
    algorithm, silent = subject.variant(m=4, full=True), [0, 2]
    start = algorithm.init(subject.exact)
    if not tables(start, subject.n):
        raise NotApplicable("the state has no table with a row per client")
    last = last_of(algorithm, DropoutFederation.without(subject.exact, silent), 5)
    moved = False
    for path, table in tables(last, subject.n).items():
        before = leaves(start)[path]
        require(gap(before[silent], table[silent]) == 0, f"{path} changed for clients that never answered")
        moved |= gap(before, table) > 0
    # A table that never changes would pass the check above.
    require(moved, "no table changed for any client in five rounds")


def _require_sane(state: State, where: str) -> None:
    bad = [path for path, t in leaves(state).items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    require(not bad, f"{', '.join(bad)} are not finite {where}")
    lam = lam_of(state)
    if lam is not None:
        mixed = abs(float(lam.sum()) - 1) < 1e-9 and float(lam.min()) >= -1e-12
        require(mixed, f"λ is not a mixture {where}: {lam.tolist()}")


def _cohort_of(algorithm: Algorithm, state: State, fed: Federation, key: Key) -> set[int]:
    recording = Recording(fed)
    algorithm.round(state, recording, key)
    return set(first_asked(recording.calls).tolist())
