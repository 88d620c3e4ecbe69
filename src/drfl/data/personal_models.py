"""The personal models of clients that a fit or a run writes beside its global model, in a separate file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from torch import Tensor

from drfl.core.errors import InputError, unknown
from drfl.core.files import reading
from drfl.core.json_toml import read_json
from drfl.core.tensor_files import read_tensors
from drfl.data.model_store import RETURNED, own_file

PERSONAL, DECISION = "personal.safetensors", "fit.json"
"""The file of the personal models, with the parameters as CLIENT/PARAMETER, and that of the clients' names in a fit."""

MOST_BYTES, MOST_TENSORS = 2**28, 2**15
"""Size of all personal models of a run, and number of their tensors, above which the run does not store them. A file of
more tensors would have too large a header to be read."""


def personal_file(model: Path) -> Path:
    """Return the file of the personal models beside a model file, which need not exist."""
    if model.name == RETURNED:
        return model.parent / PERSONAL
    return model.with_name(own_file(model.name))


def tensor_name(client: str, parameter: str) -> str:
    """Return the name of a parameter of a client's model in the file of personal models."""
    # The last slash ends the client's name, so a parameter must have none.
    return f"{client}/{quote(parameter, safe='')}"


def client_and_parameter(name: str) -> tuple[str, str]:
    """Return what :func:`tensor_name` combined."""
    client, _, parameter = name.rpartition("/")
    return client, unquote(parameter)


def personal_weights(model: Path) -> dict[str, dict[str, Tensor]]:
    """Return the parameters of the personal models beside a model file, by client; empty if there are none."""
    file, weights = personal_file(model), dict[str, dict[str, Tensor]]()
    if not file.is_file():
        return weights
    tensors, _ = read_tensors(file, problem="is not a file of personal models")
    for name, value in tensors.items():
        client, parameter = client_and_parameter(name)
        weights.setdefault(client, {})[parameter] = value
    with reading(file, "is not a file of personal models"):
        if "" in weights:
            raise ValueError("a tensor has no client")
    return weights


def has_own_models(about: Mapping[str, object]) -> bool:
    """Return whether a model file with this description is that of a run that tested its clients' own models."""
    return about.get("own_models") is True


def weights_of(model: Path, about: Mapping[str, object], client: str) -> dict[str, Tensor]:
    """Return the parameters of a client's personal model; empty if the client of a fit uses the global model.

    Args:
        model: The model file of the fit or the run.
        about: The description in it.
        client: Name of the client.

    Raises:
        InputError: If there are no personal models beside the model, or no client of this name.
    """
    weights = personal_weights(model)
    named = () if has_own_models(about) and not weights else clients_of_fit(model)
    clients, file = (named, model.parent / DECISION) if named else (tuple(weights), personal_file(model))
    if not clients:
        raise no_personal_models(model, about, client)
    if client not in clients:
        raise unknown("client", client, clients, field="client", place=f"in {file}")
    return weights.get(client, {})


def clients_of_fit(model: Path) -> tuple[str, ...]:
    """Return the clients of a fit with personal models, which may have given none of them one; () for other runs."""
    file = model.parent / DECISION
    document = read_json(file) if model.name == RETURNED and file.is_file() else None
    named = document.get("personal") if isinstance(document, dict) else None
    return tuple(named) if isinstance(named, dict) else ()


def no_personal_models(model: Path, about: Mapping[str, object], client: str | None = None) -> InputError:
    """Return the error for a model without personal models; ``client`` is None if those of all clients are needed."""
    field, whose, all_clients = (
        ("personal", "a client", "all clients")
        if client is None
        else ("client", f"client '{client}'", f"client '{client}' and all others")
    )
    if has_own_models(about):
        text = (
            f"{model} has no personal models beside it: a run stores those of all clients if they take at most "
            f"{MOST_BYTES >> 20} MiB and {MOST_TENSORS:,} tensors, and a site stores its own. In Python, write that of "
            f"{whose} with result.write_into(module, client=…) after drfl.run"
        )
    else:
        text = (
            f"{model} has no personal models, so it is the same for {all_clients}. Fit with `personalise`, or omit "
            f"`{field}`"
        )
    return InputError(text, code="no-personal-models", field=field)
