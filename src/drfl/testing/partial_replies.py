"""Checks of what an algorithm does when not everybody answers."""

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
"""Keys that are tried to find one that draws a given cohort."""


def survives_silence(subject: Subject) -> None:
    """With some clients silent for ever, in every kind of request, the state stays finite and λ a mixture.

    Also says whether ``Info`` tells truly who answered.
    """
    silent = sorted({1, subject.n - 1})
    for kinds in (("train",), ("losses",), ("gradients",), KINDS):
        lost = {kind: silent if kind in kinds else [] for kind in KINDS}
        lossy = Recording(
            DropoutFederation(subject.exact, train=lost["train"], losses=lost["losses"], gradients=lost["gradients"])
        )
        for state, info in rounds_of(subject.variant(m=3, full=True, gamma=0.1), lossy, 6):
            where = f"when clients {silent} are silent in {', '.join(kinds)}"
            _require_sane(state, where)
            heard = {i for call in lossy.take() if call.kind != "losses" for i in call.answered.tolist()}
            require(set(info.answered.tolist()) <= heard, f"Info names clients that did not answer, {where}")


def nobody_answers(subject: Subject) -> None:
    """When nobody answers the round returns the state as it was, bit for bit, and says that it was empty."""
    algorithm = subject.variant(m=3, full=True)
    state = last_of(algorithm, subject.exact, 2)
    nobody = DropoutFederation.without(subject.exact, range(subject.n))
    after, info = algorithm.round(state, nobody, Key(SEED).fold("round", 3))
    differ = bits_differ(state, after)
    require(not differ, f"a round that nobody answered changes {', '.join(differ)}")
    require(info.empty, "a round that nobody answered is not told as such: return Info.nobody(cohort)")


def nobody_trains(subject: Subject) -> None:
    """When losses or gradients are reported but nobody trains, what comes out is still finite, and λ a mixture."""
    lossy = DropoutFederation(subject.exact, train=range(subject.n))
    for state, _ in rounds_of(subject.variant(m=3, full=True, gamma=0.1), lossy, 3):
        _require_sane(state, "when nobody sends a local model")


def silence_is_absence(subject: Subject) -> None:
    """A client that was asked and did not answer might as well not have been asked.

    Catches means divided by the number who were asked. λ is held still: it also hangs on who reports losses.
    """
    subject.needs("m")
    n, fed = subject.n, subject.exact
    options = {"full": True, "steps": 1, "sampling": sampling.without_replacement, "gamma": 0.0}
    state = last_of(subject.variant(everybody=True, full=True, steps=1, gamma=0.0), fed, 2)
    many, few = (subject.variant(m=m, **options) for m in (n - 1, max(1, n - 3)))
    key = Key(SEED).fold("round", 3)
    asked = _asked(many, state, fed, key)
    answering = sorted(asked)[-max(1, n - 3) :]
    with_silent, _ = many.round(state, DropoutFederation.without(fed, asked - set(answering)), key)
    # Sampling accepts no given cohort: try keys until one draws exactly the clients that answered.
    clients = set(answering)
    keys = (Key(SEED).fold("trial", trial) for trial in range(TRIES))
    key = next((key for key in keys if _asked(few, state, fed, key) == clients), None)
    if key is None:
        raise NotApplicable(f"none of {TRIES} keys draws the cohort {sorted(clients)}")
    alone, _ = few.round(state, fed, key)
    mine, theirs = of_model_shape(with_silent), of_model_shape(alone)
    same = leaves(with_silent)
    far = far_apart(rebuild(with_silent, same | mine), rebuild(with_silent, same | theirs), 1e-9)
    require(not far, f"{', '.join(far)} depend on who was asked and did not answer: divide by the number who answered")


def alike_clients_are_alike(subject: Subject) -> None:
    """Where all clients have the same data, the first round's model does not depend on who answers.

    Catches means whose weights do not sum to 1 over those who answered. Corrections that weigh those who answered
    against all N are meant to differ, so algorithms with a table per client are left out.
    """
    one = subject.exact
    if not isinstance(one, QuadraticFederation):
        raise NotApplicable("the clients are not of the battery's own making")
    same = [part[:1].repeat(one.n, *[1] * (part.dim() - 1)) for part in (one.A, one.b, one.s)]
    fed = QuadraticFederation(*same, w0=one.w0)
    algorithm = subject.variant(everybody=True, full=True, steps=2)
    if tables(algorithm.init(fed), fed.n):
        raise NotApplicable("the state has a table per client, which silent clients leave as it was")
    key = Key(SEED).fold("round", 1)
    complete, _ = algorithm.round(algorithm.init(fed), fed, key)
    for silent in ([0], [1, 2], list(range(one.n - 1))):
        partial, _ = copy.deepcopy(algorithm).round(algorithm.init(fed), DropoutFederation.without(fed, silent), key)
        distance = gap(complete.w, partial.w)
        require(distance < 1e-9, f"the model moves by {distance:.1e} when clients {silent} of {one.n} alike are silent")


def tables_of_the_silent(subject: Subject) -> None:
    """Rows of tables move only for clients whose reply came."""
    algorithm, silent = subject.variant(m=4, full=True), [0, 2]
    start = algorithm.init(subject.exact)
    if not tables(start, subject.n):
        raise NotApplicable("the state has no table with a row per client")
    last = last_of(algorithm, DropoutFederation.without(subject.exact, silent), 5)
    moved = False
    for path, table in tables(last, subject.n).items():
        before = leaves(start)[path]
        require(gap(before[silent], table[silent]) == 0, f"{path} moved for clients that never answered")
        moved |= gap(before, table) > 0
    require(moved, "no table moved for anybody in five rounds")


def _require_sane(state: State, where: str) -> None:
    bad = [path for path, t in leaves(state).items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    require(not bad, f"{', '.join(bad)} are not finite {where}")
    lam = lam_of(state)
    if lam is not None:
        mixed = abs(float(lam.sum()) - 1) < 1e-9 and float(lam.min()) >= -1e-12
        require(mixed, f"λ is no mixture {where}: {lam.tolist()}")


def _asked(algorithm: Algorithm, state: State, fed: Federation, key: Key) -> set[int]:
    recording = Recording(fed)
    algorithm.round(state, recording, key)
    return set(first_asked(recording.calls).tolist())
