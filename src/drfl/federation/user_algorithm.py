"""Calls of an algorithm. Faults of a user's algorithm or ambiguity set become errors of one line that name it."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.ambiguity.ambiguity_set import on_simplex
from drfl.core.errors import InputError, NonFiniteError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm, Info, S, ambiguity_of, core_of, lam_of, parts_of
from drfl.federation.federation import Federation
from drfl.federation.method_checks import hook_errors, is_of_user


def begin(algorithm: Algorithm[S], fed: Federation) -> S:
    """Create the state before the first round.

    Raises:
        InputError: If a user's code fails, or returns a state that does not fit the federation's model and clients.
    """
    if not _has_user_code(algorithm):
        return algorithm.init(fed)
    with hook_errors(algorithm, "init"):
        state = algorithm.init(fed)
    _check_model(algorithm, "init", state, fed.w0)
    _check_mixture(algorithm, "init", state, fed.n)
    _kinds_of_parts(algorithm, "init", state)
    return state


def play(algorithm: Algorithm[S], state: S, fed: Federation, key: Key) -> tuple[S, Info]:
    """Run one round.

    Raises:
        InputError: If a user's code fails, or the round returns something other than a state like the one before and
            an Info of existing clients.
        NonFiniteError: If λ is not finite because the model or a reported loss is not.
    """
    if not _has_user_code(algorithm):
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
    _check_model(algorithm, "round", after, state.w)
    losses = () if info.losses is None else (info.losses.values,)
    try:
        _check_mixture(algorithm, "round", after, fed.n)
    except InputError as error:
        if error.code == "not-finite" and not all(bool(torch.isfinite(part).all()) for part in (after.w, *losses)):
            # The run has diverged, which is not a fault of the class.
            raise NonFiniteError("the global model or a reported loss is NaN or infinite") from error
        raise
    kinds, new = (_kinds_of_parts(algorithm, "round", each) for each in (state, after))
    for part in {**kinds, **new}:
        if kinds.get(part) != new.get(part):
            raise InputError(
                f"{name}.round must keep the type and shape of {part}, which is {kinds.get(part, 'None')}, got "
                f"{new.get(part, 'None')}",
                code="wrong-shape",
                field=name,
            )
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


def _has_user_code(algorithm: Algorithm) -> bool:
    parts = (algorithm, ambiguity_of(algorithm))
    # The sampling function may be an object, such as a functools.partial, whose class is not the user's.
    rule = getattr(core_of(algorithm), "sampling", sampling.with_replacement)
    is_drfls = str(getattr(rule, "__module__", "")).partition(".")[0] == "drfl"
    return not is_drfls or any(is_of_user(type(part)) for part in parts if part is not None)


def _check_model(algorithm: object, hook: str, state: object, like: Tensor) -> None:
    name, w = type(algorithm).__name__, getattr(state, "w", None)
    if not isinstance(w, Tensor):
        got = f"w of type {type(w).__name__}" if hasattr(state, "w") else f"a {type(state).__name__} without w"
        raise InputError(
            f"{name}.{hook} must return a state with the global model as the tensor w, got {got}",
            code="wrong-type",
            field=name,
        )
    if w.shape != like.shape or w.dtype != like.dtype:
        raise InputError(
            f"{name}.{hook} must return a state whose w has shape {tuple(like.shape)} and type {like.dtype}, got "
            f"{tuple(w.shape)} and {w.dtype}",
            code="wrong-shape",
            field=name,
        )


def _kinds_of_parts(algorithm: object, hook: str, state: object) -> dict[str, str]:
    """Describe the type and shape of each tensor or table in a state.

    Raises:
        InputError: If a part is something else, which cannot be saved.
    """
    try:
        return {path: f"{part.dtype} of shape {tuple(part.shape)}" for path, part in parts_of(state)}
    except TypeError as error:
        name = type(algorithm).__name__
        raise InputError(
            f"{name}.{hook} must return a NamedTuple of tensors: {error}", code="wrong-type", field=name
        ) from None


def _check_mixture(algorithm: Algorithm, hook: str, state: object, n: int) -> None:
    """Raise InputError if the state has a λ that is not a mixture of the n clients."""
    lam: object = lam_of(state)
    if lam is None:
        return
    weights = "one weight of at least 0 per client, with sum 1"
    if is_of_user(type(algorithm)):
        name, remedy = type(algorithm).__name__, "Project it with ambiguity.project(lam)."
        expected = f"{name}.{hook} must return a state whose lam has {weights}"
    else:  # drfl's algorithms leave λ to the ambiguity set
        name, remedy = type(ambiguity_of(algorithm)).__name__, "Correct its project and prox."
        expected = f"the ambiguity set {name} must return a float64 λ with {weights}"
    if not isinstance(lam, Tensor):
        raise InputError(f"{expected}, got an object of type {type(lam).__name__}", code="wrong-type", field=name)
    if lam.shape != (n,):
        text = f"{expected}, got shape {tuple(lam.shape)} for {n} clients"
        raise InputError(text, code="wrong-shape", field=name)
    if lam.dtype != torch.float64 and not is_of_user(type(algorithm)):
        raise InputError(f"{expected}, got {lam.dtype}. {remedy}", code="wrong-type", field=name)
    values = lam.detach().double().cpu()
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"{expected}, got NaN or infinity", code="not-finite", field=name)
    if not on_simplex(values):
        text = f"{expected}, got a smallest weight of {float(values.min()):.3g} and a sum of {float(values.sum()):.7g}"
        raise InputError(f"{text}. {remedy}", code="out-of-range", field=name)
