"""The file of a trained model: the ``state_dict()`` of the user's module, and in the metadata how it is used."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from drfl.core.errors import DrflWarning, InputError, Notice
from drfl.core.files import parse_json, read_tensors, reading
from drfl.data.standardisation import Standardisation
from drfl.task.model_checks import COMPILED

KEY = "drfl"
"""The key of the metadata that holds the document."""

FORMAT = 1
"""Version of the document. It grows if a reader that ignores what is new would use the model wrongly."""


class SavedModel(NamedTuple):
    """A model file.

    Args:
        weights: The ``state_dict()`` of the user's module.
        standardisation: How the columns of the inputs were scaled; None if they were not.
        about: The document of the metadata.
    """

    weights: dict[str, Tensor]
    standardisation: Standardisation | None
    about: Mapping[str, object]

    def into(self, module: nn.Module) -> nn.Module:
        """Load the weights into a module and put the preparation of the inputs in front of it.

        Args:
            module: Of the architecture that was trained. Its parameters and buffers are overwritten.

        Returns:
            A module that takes inputs in raw units: ``module`` itself if the inputs were not standardised.

        Raises:
            InputError: If names, shapes or types differ from the module's.
        """
        # torch.compile puts a prefix before names, which the module does not have if it is not compiled.
        own = {name.replace(f"{COMPILED}.", ""): (name, value) for name, value in module.state_dict().items()}
        for name in sorted(own.keys() ^ self.weights.keys()):
            lacking = "the file" if name in own else f"the module {type(module).__name__}"
            raise _mismatch(f"{lacking} has no '{name}'", name)
        for name, (_, value) in own.items():
            saved = self.weights[name]
            if (saved.shape, saved.dtype) != (value.shape, value.dtype):
                raise _mismatch(
                    f"'{name}' is {saved.dtype} of shape {tuple(saved.shape)} in the file, and {value.dtype} of "
                    f"{tuple(value.shape)} in the module {type(module).__name__}",
                    name,
                )
        module.load_state_dict({full: self.weights[name] for name, (full, _) in own.items()})
        # The scaling is part of the returned model, which therefore takes raw columns.
        return module if self.standardisation is None else self.standardisation.before(module)


def _mismatch(problem: str, name: str) -> InputError:
    return InputError(
        f"the weights do not fit: {problem}. Build the module as for the run", code="weights-mismatch", field=name
    )


def model_bytes(
    state: Mapping[str, Tensor], standardisation: Standardisation | None, about: Mapping[str, object]
) -> bytes:
    """The content of a model file.

    Args:
        state: The module's ``state_dict()``; no two tensors may share memory, which safetensors refuses.
        standardisation: How the columns of the inputs were scaled; None if they were not.
        about: What else the document says, in values of JSON.
    """
    preparation = {}
    if standardisation is not None:
        columns = {"mean": standardisation.mean.tolist(), "scale": standardisation.scale.tolist()}
        preparation = {"standardisation": columns}
    # The document is in the file's metadata, as a second file could get lost.
    document = {"format_version": FORMAT, **about, "preparation": preparation}
    return save(
        {name: value.contiguous() for name, value in state.items()}, {KEY: json.dumps(document, allow_nan=False)}
    )


def read_model(path: str | Path) -> SavedModel:
    """Read a model file: weights, preparation of the inputs, and all else that is known of the model.

    Args:
        path: A run's ``model.safetensors``, ``model-last.safetensors`` or ``model-averaged.safetensors``.

    Raises:
        InputError: If the file cannot be read, was not written by drfl, or has a newer format than this drfl reads.

    Example::

        served = drfl.read_model("runs/a/model.safetensors").into(model).eval()
    """
    path = Path(path)
    tensors, metadata = read_tensors(path, problem="is not a model file of drfl")
    if KEY not in metadata:
        raise InputError(
            f"{path} is not a model file of drfl: its metadata have no '{KEY}'. Read plain weights with "
            "safetensors.torch.load_file",
            code="unsupported-file",
            field=str(path),
        )
    return SavedModel(tensors, *described(path, metadata[KEY]))


def described(path: Path, document: str) -> tuple[Standardisation | None, Mapping[str, object]]:
    """The preparation in the document of a model file, and the document.

    Raises:
        InputError: If the document is damaged, or of a newer format than this drfl reads.
    """
    damaged = "has damaged metadata"
    about = parse_json(document.encode(), path, damaged)
    with reading(path, damaged):
        if not isinstance(about, dict):
            raise ValueError(f"a {type(about).__name__} in place of an object")
        version, preparation = about["format_version"], about["preparation"]
        # A step that is not known must not be left out: outputs would be wrong.
        if type(version) is not int or version > FORMAT or set(preparation) - {"standardisation"}:
            raise InputError(
                f"{path} was written by a newer drfl: format {version!r:.20}, preparation {sorted(preparation)!r:.60}. "
                f"This one reads format {FORMAT}: update it",
                code="unsupported-file",
                field=str(path),
            )
        columns = preparation.get("standardisation")
        if columns is None:
            return None, about
        return Standardisation(*(torch.tensor(columns[n], dtype=torch.float64) for n in ("mean", "scale"))), about


def split_weights(tensors: Mapping[str, Tensor]) -> tuple[Standardisation | None, dict[str, Tensor]]:
    """Take the weights from tensors that were read without their metadata; :func:`read_model` reads both.

    Warns, because the preparation of the inputs is in the metadata, which ``safetensors.torch.load_file`` drops.

    Args:
        tensors: By name.

    Returns:
        None for the standardisation, and the weights.
    """
    text = "these tensors do not say how inputs are prepared: pass the file's path to drfl.read_model"
    warnings.warn(DrflWarning(Notice(text, "no-preparation")), stacklevel=2)
    return None, dict(tensors)
