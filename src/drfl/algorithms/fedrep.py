"""FedRep: one body for all clients, and a separate head at each client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from drfl.algorithms.client_side import PersonalClientSide
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class FedRep(PersonalClientSide):
    """FedRep (Collins, Hassani, Mokhtari and Shakkottai 2021, Algorithm 1).

    In a round, a client first trains its head with the body fixed, then the body with its head fixed. It sends only the
    body, and the server takes the mean of the bodies. Each client is tested with its head on the global body.

    ========== ======================= =====================================================
    paper      code                    meaning
    ========== ======================= =====================================================
    φ^t        ``state.w``             global body; the head in ``state.w`` stays the initial one
    h_i        ``state.store``         client i's head
    τ          ``local``               steps − ``body_steps`` updates of the head
    α          ``local``               step size, for both parts
    I^t, rn    ``D``, ``m``            cohort, uniform without replacement
    ========== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver. A single step trains both parts at once.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the bodies; None uses the mean as the next body.
        head: Layers of the head by name, such as ``"fc"``, separated by commas; None = the last layer with parameters.
        body_steps: Number of the last local steps, which train the body, at least 1. At least the first of several
            steps trains the head.

    Deviations: the paper weights clients equally. Heads start from the initial model in a client's first round.

    Raises:
        InputError: If body_steps is out of range, if the model consists of the head alone, or if m > N (the last two on
            first use).
    """

    head: str | None = None
    body_steps: int = 1

    def __post_init__(self) -> None:
        checks.integer("body_steps", self.body_steps)

    def private(self, model: ClientModel) -> Collection[str]:
        """Return the parameters of the head."""
        head = model.head if self.head is None else model.below(self.head)
        if set(head) == set(model.names):
            raise InputError(
                "FedRep needs a body below the head, but the head has all parameters of the model. Use a model with "
                "several layers, such as 'mlp'.",
                code="unsupported-model",
                field="model",
            )
        return head

    def trains(self, model: ClientModel, step: int, steps: int) -> Collection[str]:
        """Return the head for the first steps, and the body for the last ones."""
        head = self.private(model)
        if steps == 1:
            return model.names
        if step <= max(1, steps - self.body_steps):
            return head
        return [name for name in model.names if name not in head]
