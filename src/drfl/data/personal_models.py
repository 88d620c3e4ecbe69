"""The personal models that a fit writes beside its global model, in a separate file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from torch import Tensor

from drfl.core.errors import InputError, listing, unknown
from drfl.core.files import read_json, read_tensors, reading
from drfl.data.model_store import RETURNED

PERSONAL, DECISION = "personal.safetensors", "fit.json"
"""The file of the personal models, with the parameters as CLIENT/PARAMETER, and that of the clients' names."""


def personal_clients(model: Path) -> tuple[str, ...]:
    """Return the clients that have a personal model beside the model file of a fit."""
    return tuple(dict.fromkeys(name.rpartition("/")[0] for name in _tensors(model)))


def has_own_models(model: Path) -> bool:
    """Return whether a model file is that of a run that tested its clients' own models, which it does not store."""
    document = None
    # The file beside the model may be another program's.
    with suppress(InputError):
        document = read_json(model.parent / "summary.json")
    has_models = (model.parent / DECISION).exists()
    return not has_models and isinstance(document, dict) and document.get("own_models") is True


def personal_weights(model: Path, client: str) -> dict[str, Tensor]:
    """Return the parameters of a client's personal model; empty if the client uses the global model.

    Args:
        model: The model file of the fit.
        client: Name of the client.

    Raises:
        InputError: If the model is not one of a fit with personal models, or the fit had no client of this name.
    """
    file = model.parent / DECISION
    document = read_json(file) if model.name == RETURNED and file.is_file() else None
    clients = document.get("personal") if isinstance(document, dict) else None
    if has_own_models(model):
        raise InputError(
            f"the run of {model} does not store its clients' own models. Write that of client '{client}' with "
            "result.write_into(module, client=…) after drfl.run in Python, or fit with `personalise`",
            code="no-personal-models",
            field="client",
        )
    if not isinstance(clients, dict):
        raise InputError(
            f"{model} has no personal models, so it is the same for client '{client}' and all others. Fit with "
            "`personalise`, or omit `client`",
            code="no-personal-models",
            field="client",
        )
    if client not in clients:
        raise unknown("client", client, clients, field="client", place=f"in {file}")
    own = {name: value for name, value in _tensors(model).items() if name.rpartition("/")[0] == client}
    return {name.rpartition("/")[2]: value for name, value in own.items()}


def advice_of(model: Path) -> str | None:
    """Return which clients have a personal model, and how to use it; None if there is none."""
    clients = personal_clients(model)
    if not clients:
        return None
    named = listing([f"'{client}'" for client in clients], "client")
    return f"{model.parent / PERSONAL} has personal models of {named}: use one with `drfl predict … --client NAME`"


def _tensors(model: Path) -> dict[str, Tensor]:
    file = model.parent / PERSONAL
    if model.name != RETURNED or not file.is_file():
        return {}
    tensors, _ = read_tensors(file, problem="is not a file of personal models")
    with reading(file, "is not a file of personal models"):
        if not all(name.rpartition("/")[0] for name in tensors):
            raise ValueError("a tensor has no client")
    return tensors
