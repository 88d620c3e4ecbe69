"""Checks that a federation's clients compute what the plain simulation's compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drfl.federation import Federation, Replies
from drfl.local import LocalSGD
from drfl.testing.report import require
from drfl.testing.served import BATCH, KEY, SIZES, Served, by_client

EVERYBODY = tuple(range(len(SIZES)))
LOCAL = LocalSGD(steps=3, lr=0.3, batch=BATCH)


@dataclass(frozen=True, eq=False)
class Ask:
    """A request to train, of the cohort's clients in this order.

    Args:
        local: the solver.
        cohort: (k,) clients.
        prox: weight of the pull.
        shift: (N, d) constants, a row for every client of the federation; None = none.
        snapshot: step of the snapshot.
        average: whether the mean over the steps is wanted.
    """

    local: LocalSGD = LOCAL
    cohort: Sequence[int] = EVERYBODY
    prox: float = 0.0
    shift: Tensor | None = None
    snapshot: int | None = None
    average: bool = False

    def of(self, fed: Federation) -> Replies:
        """The reply, in the cohort's order."""
        clients = torch.tensor(self.cohort)
        shift = None if self.shift is None else self.shift[clients].to(fed.w0)
        reply = fed.train(
            clients, fed.w0, self.local, KEY, prox=self.prox, shift=shift, snapshot=self.snapshot, average=self.average
        )
        asked = (True, self.snapshot is not None, self.average)
        for name, part, wanted in zip(reply._fields[1:], reply[1:], asked, strict=True):
            require(wanted or not part.numel(), f"the reply has a {name} that nobody asked for")
        pairs = zip(reply[1:], asked, strict=True)
        parts = (by_client(reply, part, self.cohort) if wanted else part for part, wanted in pairs)
        return Replies(clients, *parts)


def shifts(d: int) -> Tensor:
    """(N, d) constants, another one for every client."""
    return torch.linspace(-0.5, 0.5, len(SIZES) * d, dtype=torch.float64).view(len(SIZES), d)


def _same(served: Served, ask: Ask, dtype: torch.dtype = torch.float64) -> None:
    mine, oracle = (ask.of(fed) for fed in served.both(dtype))
    tolerance = None if dtype == torch.float64 else 1e-4
    for name, got, want in zip(Replies._fields[1:], mine[1:], oracle[1:], strict=True):
        require(got.dtype == want.dtype, f"the reply's {name} is {got.dtype}, not {want.dtype}")
        served.close(got, want, f"the reply's {name}", tolerance)


def local_steps(served: Served) -> None:
    """Plain local steps end where the plain simulation's do, on minibatches and on full batches."""
    for batch in (BATCH, None):
        _same(served, Ask(replace(LOCAL, batch=batch)))


def shift_at_every_step(served: Served) -> None:
    """Each client's shift is part of its direction at every step; catches one that is added once, or to another's."""
    d = served.both()[1].w0.numel()
    for cohort in (EVERYBODY, (3, 1)):
        _same(served, Ask(cohort=cohort, shift=shifts(d)))


def prox_pulls(served: Served) -> None:
    """The pull prox·(u − w) is part of the direction; catches a penalty that no gradient flows through."""
    _same(served, Ask(prox=0.8))


def snapshot_is_after_its_step(served: Served) -> None:
    """The snapshot of step t is the model after t steps, the last one being the model itself; catches t off by one."""
    for t in range(1, LOCAL.steps + 1):
        _same(served, Ask(snapshot=t))
    reply = Ask(snapshot=LOCAL.steps).of(served.both()[0])
    served.close(reply.snapshot, reply.w, "the snapshot after the last step")


def average_is_over_the_steps(served: Served) -> None:
    """The average is over the models after steps 1…τ; catches one that counts the start or leaves out the end."""
    _same(served, Ask(average=True, snapshot=2))


def momentum_starts_anew(served: Served) -> None:
    """Momentum starts from zero at every client and in every call; catches one that is kept across either."""
    ask = Ask(replace(LOCAL, momentum=0.9))
    _same(served, ask)
    fed = served.both()[0]
    first, again = ask.of(fed), ask.of(fed)
    served.close(again.w, first.w, "the same call again")


def decay_and_radius(served: Served) -> None:
    """Weight decay and the projection on a ball are applied at every step."""
    _same(served, Ask(replace(LOCAL, weight_decay=0.4)))
    _same(served, Ask(replace(LOCAL, radius=1.0)))


def all_at_once(served: Served) -> None:
    """Everything that training can be asked for, together."""
    local = LocalSGD(steps=4, lr=0.2, batch=BATCH, momentum=0.5, weight_decay=0.1, radius=1.5)
    _same(served, Ask(local, prox=0.6, shift=shifts(served.both()[1].w0.numel()), snapshot=2, average=True))


def single_precision(served: Served) -> None:
    """A float32 model stays float32, and near what the plain simulation makes of it."""
    _same(served, Ask(prox=0.5, snapshot=1, average=True), torch.float32)


def losses_and_gradients(served: Served) -> None:
    """Losses and gradients, on all data and on minibatches, are the plain simulation's; losses are float64."""
    mine, oracle = served.both()
    w, everybody = oracle.w0 * 1.5, torch.tensor(EVERYBODY)
    for batch in (None, BATCH):
        f, want = (fed.losses(everybody, w, KEY, batch=batch) for fed in (mine, oracle))
        require(f.values.dtype == torch.float64, f"losses are {f.values.dtype}, not float64")
        served.close(by_client(f, f.values, EVERYBODY), want.values, f"losses with batch={batch}")
        g, want = (fed.gradients(everybody, w, KEY, batch=batch) for fed in (mine, oracle))
        require(g.losses.dtype == torch.float64, f"the gradients' losses are {g.losses.dtype}, not float64")
        served.close(by_client(g, g.values, EVERYBODY), want.values, f"gradients with batch={batch}")
        served.close(by_client(g, g.losses, EVERYBODY), want.losses, f"the gradients' losses with batch={batch}")


def evaluates_every_client(served: Served) -> None:
    """Every client's test data are scored by themselves, however many there are."""
    mine, oracle = served.both()
    got, want = mine.evaluate(oracle.w0), oracle.evaluate(oracle.w0)
    for name in want._fields:
        served.close(getattr(got, name), getattr(want, name), f"the evaluation's {name}")
