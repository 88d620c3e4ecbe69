"""Checks that a run depends on the seed alone, and that the state contains everything a run needs."""

from __future__ import annotations

import copy

import torch

from drfl.core.global_rng import changed_generators, global_states, seed_globals
from drfl.core.key import Key
from drfl.engine import Loop, Stacked
from drfl.federation.algorithm import mixture_of
from drfl.federation.federation import WrappedFederation
from drfl.testing.federations import DropoutFederation, PermutedClients
from drfl.testing.report import NotApplicable, require
from drfl.testing.state import (
    bits_differ,
    by_client,
    copy_of,
    far_apart,
    leaves,
    of_model_shape,
    permuted,
    rebuild,
    through_a_file,
)
from drfl.testing.subject import SEED, Subject, last_of


def same_seed_same_bits(subject: Subject) -> None:
    """Check that two runs at one seed end in the same bits; catches draws without a key."""
    for make, rounds in ((subject.simulation, 2), (lambda: subject.exact, 6)):
        ends = [last_of(subject.variant(m=3, batch=2), make(), rounds) for _ in range(2)]
        differ = bits_differ(ends[0], ends[1])
        require(not differ, f"two runs at one seed differ in {', '.join(differ)}: draw from the round's key only")


def another_seed_differs(subject: Subject) -> None:
    """Check that another seed gives another run; catches keys that are not folded from the round's key."""
    first, second = (last_of(subject.variant(m=3, batch=2), subject.simulation(), 2, seed=seed) for seed in (1, 2))
    start, same = subject.simulation().w0, torch.equal(first.w, second.w)
    if torch.equal(first.w, start) and same:
        # If no parameter leaves the clients, only their own models and states change.
        same = not bits_differ(first, second)
    require(not same, "two seeds give the same model: fold every key from the round's key")


def no_global_generator(subject: Subject) -> None:
    """Check that the global generators of torch, NumPy and Python are neither used nor seeded, and have no effect."""
    ends = []
    for seed in (3, 4):
        with seed_globals(seed):
            before = global_states()
            ends.append(last_of(subject.variant(m=3, full=True, steps=2), subject.exact, 3))
            touched = changed_generators(before)
            require(not touched, f"the global generator of {', '.join(touched)} was used: draw from the round's key")
    differ = bits_differ(ends[0], ends[1])
    require(not differ, f"{', '.join(differ)} depend on the state of a global generator")


def engines_agree(subject: Subject) -> None:
    """Check that the plain and the stacked engine agree to 1e-10; catches dependence on how clients compute."""
    algorithm = subject.variant(m=3, steps=2, batch=2)
    engines = (Loop(), Stacked())
    ends = [last_of(copy.deepcopy(algorithm), subject.simulation(engine), 2) for engine in engines]
    far = far_apart(ends[0], ends[1], 1e-10)
    require(not far, f"the engines disagree in {', '.join(far)}")


def threads_agree(subject: Subject) -> None:
    """Check that one and two threads of torch give the same run, to 1e-12."""
    threads, ends = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            ends.append(last_of(subject.variant(m=3, full=True), subject.exact, 3))
    finally:
        torch.set_num_threads(threads)
    far = far_apart(ends[0], ends[1], 1e-12)
    require(not far, f"the number of threads changes {', '.join(far)}")


def order_of_replies(subject: Subject) -> None:
    """Check that the order of replies changes nothing but rounding; catches rows assumed to be in cohort order."""
    algorithm = subject.variant(m=4, full=True)
    ordered = last_of(algorithm, subject.exact, 4)
    for seed in range(3):
        shuffled = last_of(copy.deepcopy(algorithm), DropoutFederation(subject.exact, seed=seed), 4)
        far = far_apart(ordered, shuffled, 1e-11)
        require(not far, f"the order of the replies changes {', '.join(far)}: match rows by the replies' clients")


def round_is_pure(subject: Subject) -> None:
    """Check that a round is a function of state and key, and leaves its input unchanged.

    Catches counters and caches on ``self``, in closures or modules, and tensors changed in place.
    """
    algorithm, fed, key = subject.variant(m=3, full=True), subject.exact, Key(SEED).fold("round", 9)
    state = last_of(algorithm, fed, 2)
    before = copy_of(state)
    first, _ = algorithm.round(state, fed, key)
    changed = bits_differ(state, before)
    require(not changed, f"a round changes {', '.join(changed)} of its input state: make new tensors")
    last_of(algorithm, DropoutFederation.without(fed, [0]), 3, seed=SEED + 1)  # another run in between
    again, _ = algorithm.round(state, fed, key)
    differ = bits_differ(first, again)
    require(not differ, f"the same state and key give another {', '.join(differ)} after another run: use the state")


def state_is_complete(subject: Subject) -> None:
    """Check that a run ends in the same bits if it is saved, loaded into a fresh algorithm and continued.

    Catches data stored outside the state, and state that a file of tensors cannot hold.
    """
    options = {"m": 3, "full": True}
    whole = last_of(subject.variant(**options), subject.exact, 4)
    half = through_a_file(last_of(subject.variant(**options), subject.exact, 2))
    resumed = last_of(subject.variant(**options), subject.exact, 2, state=half, done=2)
    differ = bits_differ(whole, resumed)
    require(not differ, f"a resumed run differs in {', '.join(differ)}: the state lacks something that a run needs")


def client_order_is_irrelevant(subject: Subject) -> None:
    """Check that swapping clients swaps their rows in λ and the tables, and does not change the model.

    Catches weights assigned to the wrong client, and treatment of clients by their index.
    """
    n = subject.n
    if subject.exact.w0.numel() == n:
        raise NotApplicable("models have as many entries as there are clients, so tables cannot be recognised")
    # A permutation with few fixed points; i ↦ 2i + 1 modulo n is one only for odd n.
    order = [(2 * i + 1) % n if n % 2 else n - 1 - i for i in range(n)]
    algorithm = subject.variant(full_participation=True, full=True)
    here = last_of(algorithm, subject.exact, 3)
    there = last_of(copy.deepcopy(algorithm), PermutedClients(subject.exact, order), 3)
    rows = by_client(here, subject.n)
    expected = rebuild(here, {path: permuted(t, order) if path in rows else t for path, t in leaves(here).items()})
    far = far_apart(expected, there, 1e-9)
    require(not far, f"swapping clients changes {', '.join(far)} beyond the swap")


def dtypes_are_preserved(subject: Subject) -> None:
    """Check that models have the type of w0 and λ is float64, and that single precision is close to double precision.

    Catches silent promotion, and a λ or a loss in float32.
    """
    algorithm = subject.variant(m=3, full=True)
    ends = {}
    for dtype in (torch.float32, torch.float64):
        fed = subject.exact_in(dtype)
        ends[dtype] = last_of(copy.deepcopy(algorithm), fed, 3)
        # If N = d, vectors over clients have the shape of models.
        models = of_model_shape(ends[dtype]) if fed.n != fed.w0.numel() else {"w": ends[dtype].w}
        turned = [f"{path} into {t.dtype}" for path, t in models.items() if t.dtype != dtype]
        require(not turned, f"a model in {dtype} turned {', '.join(turned)}")
        averaging, fresh = WrappedFederation(fed), copy.deepcopy(algorithm)
        averaging.averaged = True
        _, info = fresh.round(fresh.init(averaging), averaging, Key(SEED).fold("round", 1))
        if info.average is not None:
            mean_dtype = info.average.dtype
            require(mean_dtype == dtype, f"the averaged model in {dtype} turned into {mean_dtype}")
        lam = mixture_of(algorithm, ends[dtype], fed)
        require(lam.dtype == torch.float64, f"λ is {lam.dtype}, not float64")
    far = far_apart(ends[torch.float32], ends[torch.float64], 1e-3)
    require(not far, f"float32 and float64 differ in {', '.join(far)}")
