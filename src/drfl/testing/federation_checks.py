"""Checks of a federation: its replies, its handling of requests, and its ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from drfl.core.global_rng import changed_generators, global_states, seed_globals
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.federation.federation import SCALAR_BYTES, Federation
from drfl.federation.requests import Gradients, Losses, Replies
from drfl.optim.local import LocalSGD
from drfl.task.task import Task
from drfl.testing.report import CheckError, require
from drfl.testing.toy_problem import linear_model

Make = Callable[[ClientData, Task], Federation]
"""(the clients' data, the task) → a fresh federation of these clients."""

SIZES = (2, 4, 7, 11)
"""Training samples per client: fewer than, equal to and more than a batch."""
BATCH = 4
KEY = Key(5)


@dataclass(frozen=True)
class FederationSubject:
    """A federation to check.

    Args:
        make: Makes the federation.
        tolerance: Largest difference from the plain simulation, relative to 1 + size.
    """

    make: Make
    tolerance: float = 1e-9

    def both(
        self, dtype: torch.dtype = torch.float64, clients: ClientData | None = None
    ) -> tuple[Federation, Federation]:
        """Make a fresh federation and the plain simulation of the same clients: three classes, a linear model.

        Args:
            dtype: Type of the model.
            clients: Data of the clients; None for :func:`data`.
        """
        clients = data(dtype) if clients is None else clients
        return self.make(clients, task(dtype)), Simulation(clients, task(dtype), engine=Loop())

    def close(self, mine: Tensor, oracles: Tensor, what: str, tolerance: float | None = None) -> None:
        """Raise :class:`drfl.testing.CheckError` unless two tensors agree."""
        require(mine.shape == oracles.shape, f"{what} has shape {tuple(mine.shape)}, not {tuple(oracles.shape)}")
        if not oracles.numel():
            return
        # Relative for large numbers, absolute near 0.
        allowed = (self.tolerance if tolerance is None else tolerance) * (1 + float(oracles.double().abs().max()))
        off = float((mine.double() - oracles.double()).abs().max())
        require(off <= allowed, f"{what} is off by {off:.1e}")


def data(dtype: torch.dtype = torch.float64) -> ClientData:
    """Make clients of unequal size, each with its own shift of the inputs."""
    rng = np.random.default_rng(0)
    train = [_labelled(rng, n, 0.5 * i) for i, n in enumerate(SIZES)]
    test = [_labelled(rng, 2 + i, 0.5 * i) for i in range(len(SIZES))]
    return ClientData.from_arrays(train, test, dtype=dtype)


def _labelled(rng: np.random.Generator, n: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(n, 2)) + shift, rng.integers(3, size=n)


def task(dtype: torch.dtype = torch.float64) -> Task:
    """Make a linear model of three classes with fixed parameters."""
    return Task(linear_model(2, 3, -0.7, 0.9, bias=True, dtype=dtype))


def by_client(reply: Replies | Losses | Gradients, part: Tensor, cohort: Sequence[int]) -> Tensor:
    """Return the rows of one part of a reply in the cohort's order.

    Raises:
        CheckError: If a client did not answer, answered twice, or was not in the cohort.
    """
    clients = reply.clients.tolist()
    require(sorted(clients) == sorted(cohort), f"clients {sorted(cohort)} were asked and {sorted(clients)} answered")
    require(len(part) == len(clients), f"there are {len(part)} rows for {len(clients)} clients")
    return part[torch.tensor([clients.index(i) for i in cohort], dtype=torch.int64)]


ALL_CLIENTS = tuple(range(len(SIZES)))
LOCAL = LocalSGD(steps=3, lr=0.3, batch=BATCH)


@dataclass(frozen=True, eq=False)
class TrainCall:
    """A request to train, with the cohort's clients in this order.

    Args:
        local: The local solver.
        cohort: (k,) clients.
        prox: Weight of the proximal term.
        shift: (N, d) constants, one row for every client of the federation; None for no shift.
        snapshot: Step of the snapshot.
        average: Whether to request the mean over the local steps.
    """

    local: LocalSGD = LOCAL
    cohort: Sequence[int] = ALL_CLIENTS
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False

    def of(self, fed: Federation) -> Replies:
        """Send the request and return the reply in the cohort's order."""
        clients = torch.tensor(self.cohort)
        shift = None if self.shift is None else self.shift[clients].to(fed.w0)
        reply = fed.train(
            clients, fed.w0, self.local, KEY, prox=self.prox, shift=shift, snapshot=self.snapshot, average=self.average
        )
        requested = (True, self.snapshot is not None, self.average)
        for name, part, wanted in zip(reply._fields[1:], reply.models, requested, strict=False):
            require(wanted or part is None, f"the reply has a {name} that was not requested")
            require(not wanted or part is not None, f"the reply lacks the {name}")
        w, *rest = (None if part is None else by_client(reply, part, self.cohort) for part in reply.models)
        return Replies(clients, reply.w if w is None else w, *rest)


def require_part(part: Tensor | None) -> Tensor:
    """Return a requested part of a reply; raise CheckError if it is missing."""
    if part is None:
        raise CheckError("a requested part of the reply is missing")
    return part


def shifts(d: int) -> Tensor:
    """Make (N, d) constants that differ by client."""
    return torch.linspace(-0.5, 0.5, len(SIZES) * d, dtype=torch.float64).view(len(SIZES), d)


def _same(
    served: FederationSubject, ask: TrainCall, dtype: torch.dtype = torch.float64, clients: ClientData | None = None
) -> None:
    mine, oracle = (ask.of(fed) for fed in served.both(dtype, clients))
    tolerance = None if dtype == torch.float64 else 1e-4
    for name, ours, theirs in zip(Replies._fields[1:], mine[1:], oracle[1:], strict=True):
        if ours is None or theirs is None:
            continue
        require(ours.dtype == theirs.dtype, f"the reply's {name} is {ours.dtype}, not {theirs.dtype}")
        served.close(ours, theirs, f"the reply's {name}", tolerance)


def local_steps(served: FederationSubject) -> None:
    """Check that plain local steps give the plain simulation's models, on minibatches and full batches."""
    for batch in (BATCH, None):
        _same(served, TrainCall(replace(LOCAL, batch=batch)))


def shift_at_every_step(served: FederationSubject) -> None:
    """Check that each client's shift enters every step; catches shifts added once, or to another client's steps."""
    d = served.both()[1].w0.numel()
    for cohort in (ALL_CLIENTS, (3, 1)):
        _same(served, TrainCall(cohort=cohort, shift=shifts(d)))


def prox_pulls(served: FederationSubject) -> None:
    """Check that the proximal term prox·(u − w) enters the direction; catches a penalty without a gradient."""
    _same(served, TrainCall(prox=0.8))


def snapshot_is_after_its_step(served: FederationSubject) -> None:
    """Check that the snapshot of step t is the model after t steps; catches t off by one."""
    for t in range(1, LOCAL.tau + 1):
        _same(served, TrainCall(snapshot=t))
    reply = TrainCall(snapshot=LOCAL.tau).of(served.both()[0])
    served.close(require_part(reply.snapshot), reply.w, "the snapshot after the last step")


def average_is_over_the_steps(served: FederationSubject) -> None:
    """Check that the average is over the models after steps 1…τ; catches averages with the start or without the end."""
    _same(served, TrainCall(average=True, snapshot=2))


def momentum_starts_at_zero(served: FederationSubject) -> None:
    """Check that momentum starts at zero in every client and call; catches momentum that is carried over."""
    ask = TrainCall(replace(LOCAL, momentum=0.9))
    _same(served, ask)
    fed = served.both()[0]
    # Call one federation twice: the second call must not start with the momentum of the first.
    first, again = ask.of(fed), ask.of(fed)
    served.close(again.w, first.w, "the same call again")


def decay_and_radius(served: FederationSubject) -> None:
    """Check that weight decay and the projection onto a ball are applied at every step."""
    _same(served, TrainCall(replace(LOCAL, weight_decay=0.4)))
    _same(served, TrainCall(replace(LOCAL, radius=1.0)))


def all_options_together(served: FederationSubject) -> None:
    """Check everything that a training request can contain, together."""
    local = LocalSGD(steps=4, lr=0.2, batch=BATCH, momentum=0.5, weight_decay=0.1, radius=1.5)
    _same(served, TrainCall(local, prox=0.6, shift=shifts(served.both()[1].w0.numel()), snapshot=2, average=True))


def single_precision(served: FederationSubject) -> None:
    """Check that a float32 model stays float32 and is close to the plain simulation's."""
    _same(served, TrainCall(prox=0.5, snapshot=1, average=True), torch.float32)


def losses_and_gradients(served: FederationSubject) -> None:
    """Check that losses and gradients, on all data and minibatches, are the plain simulation's; losses are float64."""
    mine, oracle = served.both()
    w, clients = oracle.w0 * 1.5, torch.tensor(ALL_CLIENTS)
    for batch in (None, BATCH):
        f, expected = (fed.losses(clients, w, KEY, batch=batch) for fed in (mine, oracle))
        require(f.values.dtype == torch.float64, f"losses are {f.values.dtype}, not float64")
        served.close(by_client(f, f.values, ALL_CLIENTS), expected.values, f"losses with batch={batch}")
        g, expected = (fed.gradients(clients, w, KEY, batch=batch) for fed in (mine, oracle))
        require(g.losses.dtype == torch.float64, f"the gradients' losses are {g.losses.dtype}, not float64")
        served.close(by_client(g, g.values, ALL_CLIENTS), expected.values, f"gradients with batch={batch}")
        served.close(by_client(g, g.losses, ALL_CLIENTS), expected.losses, f"the gradients' losses with batch={batch}")


def evaluates_every_client(served: FederationSubject) -> None:
    """Check that every client's test data are scored separately, for any number of samples."""
    mine, oracle = served.both()
    ours, theirs = mine.evaluate(oracle.w0), oracle.evaluate(oracle.w0)
    for name in ("score", "loss", "samples"):
        served.close(getattr(ours, name), getattr(theirs, name), f"the evaluation's {name}")
    require(
        len(ours.others) == len(theirs.others),
        f"the evaluation has {len(ours.others)} further metrics, not {len(theirs.others)}",
    )
    for metric, values, wanted in zip(oracle.measures[1:], ours.others, theirs.others, strict=True):
        served.close(values, wanted, f"the evaluation's {metric.name}")
    if ours.sums is not None and theirs.sums is not None:  # a federation need not count sums
        served.close(ours.sums.nan_to_num(-1), theirs.sums.nan_to_num(-1), "the evaluation's sums")


def ignored_targets_do_not_count(served: FederationSubject) -> None:
    """Check that targets ignored by the loss enter no loss, step or score; catches means over all rows."""
    whole = data()
    # PyTorch's losses ignore the target −100.
    masked = replace(
        whole,
        targets=whole.targets.index_fill(0, torch.arange(1, len(whole.targets), 3), -100),
        test_targets=whole.test_targets.index_fill(0, torch.arange(1, len(whole.test_targets), 3), -100),
    )
    _same(served, TrainCall(snapshot=1, average=True), clients=masked)
    mine, oracle = served.both(clients=masked)
    w, clients = oracle.w0 * 1.5, torch.tensor(ALL_CLIENTS)
    f, expected = (fed.losses(clients, w, KEY) for fed in (mine, oracle))
    served.close(by_client(f, f.values, ALL_CLIENTS), expected.values, "losses")
    g, expected = (fed.gradients(clients, w, KEY) for fed in (mine, oracle))
    served.close(by_client(g, g.values, ALL_CLIENTS), expected.values, "gradients")
    ours, theirs = mine.evaluate(w), oracle.evaluate(w)
    for name in ("score", "loss", "samples"):
        served.close(getattr(ours, name), getattr(theirs, name), f"the evaluation's {name}")


def describes_its_clients(served: FederationSubject) -> None:
    """Check that n, shares and w0 are those of the data and the model, before and after training."""
    mine, oracle = served.both()
    require(mine.n == oracle.n, f"n is {mine.n}, not {oracle.n}")
    require(mine.shares.dtype == torch.float64, f"the shares are {mine.shares.dtype}, not float64")
    served.close(mine.shares, oracle.shares, "shares")
    served.close(mine.w0, oracle.w0, "the initial model")
    require(mine.w0.dtype == oracle.w0.dtype, f"w0 is {mine.w0.dtype}, not {oracle.w0.dtype}")
    TrainCall().of(mine)
    served.close(mine.w0, oracle.w0, "the initial model after training")


def ledger_counts(served: FederationSubject) -> None:
    """Check that the ledger counts as :class:`drfl.federation.federation.Ledger` defines."""
    mine, oracle = served.both()
    require(set(mine.ledger.totals().values()) == {0}, "the ledger of a fresh federation is not empty")
    vector, k = mine.w0.numel() * mine.w0.element_size(), len(ALL_CLIENTS)
    # A minibatch has at most as many rows as the client.
    drawn, clients = sum(min(BATCH, n) for n in SIZES), torch.tensor(ALL_CLIENTS)

    def expect(what: str, down: int, up: int, gradients: int, losses: int) -> None:
        nonlocal before
        now = mine.ledger.totals()
        counts = {name: now[name] - before[name] for name in now}
        # One request and one reply per client.
        expected = (k * down, k * up, 2 * k, gradients, losses)
        require(tuple(counts.values()) == expected, f"for {what} the ledger counts {counts}, not {expected}")
        before = now

    before = mine.ledger.totals()
    TrainCall().of(mine)
    expect("training", vector, vector, 3 * drawn, 0)
    TrainCall(shift=shifts(mine.w0.numel()), snapshot=1, average=True).of(mine)
    expect("training with shift, snapshot and average", 2 * vector, 3 * vector, 3 * drawn, 0)
    mine.losses(clients, oracle.w0, KEY, batch=BATCH)
    expect("losses", vector, SCALAR_BYTES, 0, drawn)
    mine.gradients(clients, oracle.w0, KEY)
    expect("gradients on all data", vector, vector + SCALAR_BYTES, sum(SIZES), 0)
    mine.evaluate(oracle.w0)
    require(mine.ledger.totals() == before, "evaluation on test data is counted, although it is not part of training")


def inputs_are_unchanged(served: FederationSubject) -> None:
    """Check that requests do not change cohort, model and shifts; catches local steps on the server's tensors."""
    fed = served.both()[0]
    cohort, w = torch.tensor(ALL_CLIENTS), fed.w0.clone()
    shift = shifts(w.numel())
    inputs = {"cohort": cohort, "model": w, "shift": shift}
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    reply = fed.train(cohort, w, LOCAL, KEY, prox=0.2, shift=shift, snapshot=1, average=True)
    fed.losses(cohort, w, KEY, batch=BATCH)
    fed.gradients(cohort, w, KEY, batch=BATCH)
    fed.evaluate(w)
    changed = [name for name, tensor in inputs.items() if not torch.equal(tensor, before[name])]
    require(not changed, f"requests changed their input {', '.join(changed)}")
    # If the reply shared memory with the server's model, this would change it.
    reply.w.zero_()
    served.close(fed.w0, before["model"], "the initial model, after a reply was overwritten,")


def no_generator_used(served: FederationSubject) -> None:
    """Check that the global generators of torch, NumPy and Python are neither used nor seeded, and have no effect."""
    models = []
    for seed in (3, 4):
        with seed_globals(seed):
            before = global_states()
            fed = served.both()[0]
            models.append(TrainCall().of(fed).w)
            fed.losses(torch.tensor(ALL_CLIENTS), fed.w0, KEY, batch=BATCH)
            touched = changed_generators(before)
            require(not touched, f"the global generator of {', '.join(touched)} was used: draw from the key")
    served.close(models[1], models[0], "models under another state of the global generators")
