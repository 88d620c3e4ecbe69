"""The weight μ of FedDyn's penalty (μ/2)·‖u − w̄‖², given or by rule."""

from __future__ import annotations

from drfl import checks
from drfl.errors import InputError
from drfl.local import LocalSGD

KAPPA = 0.2
"""κ of the built-in rule μ = κ/(ητ)."""


LARGEST = 1e30
"""A larger μ would leave the numbers of a float32 model."""


def check_penalty(mu: float | None) -> None:
    """Raise an :class:`drfl.errors.InputError` unless μ is None or a number above 0 and at most :data:`LARGEST`."""
    if mu is None:
        return
    checks.positive("mu", mu)
    if mu > LARGEST:
        raise InputError(f"mu must be at most {LARGEST:g}, not {mu}")


def penalty(mu: float | None, local: LocalSGD) -> float:
    """μ; where it is None, κ/(η·τ) with τ the effective number of local steps.

    With κ = 1, −μ(w_i − w̄) is the mean direction along client i's local steps, so that h_i becomes the mean gradient
    of f_i(u) + (μ/2)·‖u − w̄‖² met there, much as c_i does in SCAFFOLD's option II. A smaller κ lengthens the server's
    step −c/μ, which helps where local steps go a short way (the usual case), but credits h_i with less than the client
    saw, which is slower where they go a long way and clients take part rarely. ``docs/defaults.md`` says how κ was
    found.

    Args:
        mu: the user's value, or None.
        local: what a client runs.
    """
    return KAPPA / (local.lr * local.effective_steps) if mu is None else mu
