"""An algorithm whose clients fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithm import Info
from drfl.faults.absent import Absent
from drfl.faults.duplicated import Duplicated
from drfl.faults.parameters import Faults
from drfl.faults.timed import Timed
from drfl.faults.unreached import Unreached
from drfl.federation import Federation
from drfl.key import Key
from drfl.request import TrainRequest
from drfl.wrapped import Carried, S, Wrapper


class FaultMemory(NamedTuple):
    """What lasts longer than a round.

    Args:
        down: (groups,) int64, how many more rounds each group's outage lasts.
    """

    down: Tensor

    def wrong(self) -> str | None:
        """See :class:`drfl.algorithm.Consistent`."""
        return "an outage of fewer than no rounds" if bool((self.down < 0).any()) else None


@dataclass(frozen=True)
class Faulty(Wrapper[S]):
    """An algorithm whose clients drop out, crash, are late, or answer twice.

    Only the algorithm sees the key of the round, so the draws are made here and each round gets a federation of its
    own: two algorithms lose the same clients in the same rounds. Where nothing can fail, that is the federation itself.

    Args:
        algorithm: the algorithm inside.
        faults: what can happen.

    The ledger counts what was sent to clients that drop out, but no work of theirs; the work of those that crash, but
    no local model; the bytes of replies that are late, or come twice.

    The dual step stays unbiased where failures do not depend on the data: v_i = (N/k')·ℓ_i has the mean ℓ_i as long as
    somebody answers. So does the mean of the local models under a uniform λ. Under another λ that mean is one over
    those who answered: Σ_i λ_i w_i / Σ_i λ_i over a random set of clients, which on average gives the clients with
    large λ_i somewhat less than λ_i. Where clients with large losses fail more often both are biased towards the
    others.
    """

    faults: Faults = field(default_factory=Faults)

    def init(self, fed: Federation) -> Carried[S, FaultMemory]:
        """The state of the algorithm inside, and all groups up."""
        self.faults.check(fed.n)
        return Carried(self.algorithm.init(fed), FaultMemory(torch.zeros(self.faults.groups, dtype=torch.int64)))

    def round(self, state: Carried[S, FaultMemory], fed: Federation, key: Key) -> tuple[Carried[S, FaultMemory], Info]:
        """One round of the algorithm inside, with what its clients deliver."""
        draws = key.fold("faults")
        down = self.faults.struck(state.memory.down, draws)
        inner, info = self.algorithm.round(state.inner, self._around(fed, down, draws), key)
        return Carried(inner, FaultMemory((down - 1).clamp(min=0))), info

    def _around(self, fed: Federation, down: Tensor, key: Key) -> Federation:
        """The federation of the round in which these groups are down, with what never happens left out."""
        faults, n = self.faults, fed.n
        silent = (down > 0)[torch.arange(n) % faults.groups] | faults.dropped(n, key)
        if bool(silent.any()):
            fed = Unreached(fed, silent)
        if faults.crash > 0:
            fed = Absent(fed, faults.crashed(n, key), kinds=(TrainRequest.kind,))
        if faults.duplicate > 0:
            fed = Duplicated(fed, faults.duplicate, key.fold("duplicate"))
        if faults.spread is not None:
            fed = Timed(fed, faults.pace(n, key), faults.spread, faults.deadline, key.fold("time"))
        return fed
