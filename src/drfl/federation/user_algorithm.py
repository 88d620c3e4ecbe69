"""Calls of an algorithm. Faults of a user's own class become errors of one line that name the class."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, Info, S
from drfl.federation.federation import Federation
from drfl.federation.method_checks import hook_errors, is_of_user


def begin(algorithm: Algorithm[S], fed: Federation) -> S:
    """Create the state before the first round.

    Raises:
        InputError: If a user's ``init`` fails, or returns no state of the federation's model.
    """
    if not is_of_user(type(algorithm)):
        return algorithm.init(fed)
    with hook_errors(algorithm, "init"):
        state = algorithm.init(fed)
    _check_model(algorithm, "init", state, fed.w0.shape)
    return state


def play(algorithm: Algorithm[S], state: S, fed: Federation, key: Key) -> tuple[S, Info]:
    """Run one round.

    Raises:
        InputError: If a user's ``round`` fails, or returns something other than a state like the one before and an Info
            of existing clients.
    """
    if not is_of_user(type(algorithm)):
        return algorithm.round(state, fed, key)
    name, version = type(algorithm).__name__, state.w._version
    with hook_errors(algorithm, "round"):
        result: object = algorithm.round(state, fed, key)
    # A round may be repeated with a smaller step size, from the same state.
    if state.w._version != version:
        raise InputError(
            f"{name}.round changes `state.w` in place. Compute a new tensor, as in `state._replace(w=state.w + step)`",
            code="user-code-failed",
            field=name,
        )
    # A state is a tuple too, so the second part must be an Info.
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Info)):
        raise InputError(
            f"{name}.round must return a pair of a state and a drfl.Info, got an object of type "
            f"{type(result).__name__}",
            code="wrong-type",
            field=name,
        )
    after, info = result
    _check_model(algorithm, "round", after, state.w.shape, state.w.dtype)
    for what, clients in (("cohort.clients", info.cohort.clients), ("answered", info.answered)):
        # Without clients, a tensor has no minimum.
        if clients.numel() and not (int(clients.min()) >= 0 and int(clients.max()) < fed.n):
            raise InputError(
                f"{name}.round returned an Info whose {what} must be in 0..{fed.n - 1}, but range from "
                f"{int(clients.min())} to {int(clients.max())}",
                code="out-of-range",
                field=name,
            )
    return after, info


def _check_model(
    algorithm: object, hook: str, state: object, shape: torch.Size, dtype: torch.dtype | None = None
) -> None:
    name, w = type(algorithm).__name__, getattr(state, "w", None)
    if not isinstance(w, Tensor):
        raise InputError(
            f"{name}.{hook} must return a state with the global model as the tensor w, got an object of type "
            f"{type(state).__name__}",
            code="wrong-type",
            field=name,
        )
    if w.shape != shape or w.dtype != (dtype or w.dtype):
        raise InputError(
            f"{name}.{hook} must return a state whose w has shape {tuple(shape)} and type {dtype or w.dtype}, got "
            f"{tuple(w.shape)} and {w.dtype}",
            code="wrong-shape",
            field=name,
        )
