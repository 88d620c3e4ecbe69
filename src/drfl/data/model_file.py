"""The file of a trained model: the ``state_dict()`` of the user's module, with metadata that describe how to use it."""

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
"""Key of the document in the metadata."""

FORMAT = 1
"""Version of the document. It increases if older readers would use a newer model incorrectly."""


class SavedModel(NamedTuple):
    """The content of a model file.

    Args:
        weights: The ``state_dict()`` of the user's module.
        standardisation: Standardisation of the input columns; None if they were not standardised.
        about: The document in the metadata.
    """

    weights: dict[str, Tensor]
    standardisation: Standardisation | None
    about: Mapping[str, object]

    def into(self, module: nn.Module) -> nn.Module:
        """Load the weights into a module and put the input preparation in front of it.

        Args:
            module: Module with the architecture that was trained. Its parameters and buffers are overwritten.

        Returns:
            A module that takes inputs in raw units: ``module`` itself if the inputs were not standardised.

        Raises:
            InputError: If names, shapes or types differ from the module's.
        """
        # torch.compile adds a prefix to names, which an uncompiled module does not have.
        own = {name.replace(f"{COMPILED}.", ""): (name, value) for name, value in module.state_dict().items()}
        for name in sorted(own.keys() ^ self.weights.keys()):
            lacking = "the file" if name in own else f"the module {type(module).__name__}"
            raise _mismatch(f"{lacking} has no '{name}'", name)
        for name, (_, value) in own.items():
            saved = self.weights[name]
            if (saved.shape, saved.dtype) != (value.shape, value.dtype):
                raise _mismatch(
                    f"'{name}' is {saved.dtype} of shape {tuple(saved.shape)} in the file, but "
                    f"{value.dtype} of shape {tuple(value.shape)} in the module {type(module).__name__}",
                    name,
                )
        module.load_state_dict({full: self.weights[name] for name, (full, _) in own.items()})
        # The scaling is part of the returned model, which therefore takes raw columns.
        return module if self.standardisation is None else self.standardisation.before(module)


def _mismatch(problem: str, name: str) -> InputError:
    return InputError(
        f"the weights do not match the module: {problem}. Build the module as for the run",
        code="weights-mismatch",
        field=name,
    )


def model_bytes(
    state: Mapping[str, Tensor], standardisation: Standardisation | None, about: Mapping[str, object]
) -> bytes:
    """Return the content of a model file.

    Args:
        state: The module's ``state_dict()``. No two tensors may share memory, because safetensors does not accept that.
        standardisation: Standardisation of the input columns; None if they were not standardised.
        about: Other entries of the document, as JSON values.
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
    """Read a model file: the weights, the input preparation and the description of the model.

    Args:
        path: A run's ``model.safetensors``, ``model-last.safetensors`` or ``model-averaged.safetensors``.

    Raises:
        InputError: If the file cannot be read, was not written by drfl, or has a newer format than this version reads.

    Example::

        served = drfl.read_model("runs/a/model.safetensors").into(model).eval()
    """
    path = Path(path)
    tensors, metadata = read_tensors(path, problem="is not a drfl model file")
    if KEY not in metadata:
        raise InputError(
            f"{path} is not a drfl model file: its metadata have no '{KEY}'. Read plain weights with "
            "safetensors.torch.load_file",
            code="unsupported-file",
            field=str(path),
        )
    return SavedModel(tensors, *parse_document(path, metadata[KEY]))


def parse_document(path: Path, document: str) -> tuple[Standardisation | None, Mapping[str, object]]:
    """Return the standardisation in a model file's document, and the document.

    Raises:
        InputError: If the document is damaged, or has a newer format than this version reads.
    """
    damaged = "has damaged metadata"
    about = parse_json(document.encode(), path, damaged)
    with reading(path, damaged):
        if not isinstance(about, dict):
            raise ValueError(f"expected an object, found a {type(about).__name__}")
        version, preparation = about["format_version"], about["preparation"]
        # Do not ignore an unknown preparation step: the model's outputs would be wrong.
        if type(version) is not int or version > FORMAT or set(preparation) - {"standardisation"}:
            raise InputError(
                f"{path} was written by a newer drfl: format {version!r:.20}, preparation "
                f"{sorted(preparation)!r:.60}. This version reads format {FORMAT}. Update drfl",
                code="unsupported-file",
                field=str(path),
            )
        columns = preparation.get("standardisation")
        if columns is None:
            return None, about
        return Standardisation(*(torch.tensor(columns[n], dtype=torch.float64) for n in ("mean", "scale"))), about


def split_weights(tensors: Mapping[str, Tensor]) -> tuple[Standardisation | None, dict[str, Tensor]]:
    """Return tensors that were read without their metadata, with None for the standardisation.

    This gives a warning, because ``safetensors.torch.load_file`` drops the metadata, which hold the input preparation.
    Use :func:`read_model` to read both.

    Args:
        tensors: Tensors by name.

    Returns:
        None for the standardisation, and the weights.
    """
    text = "these tensors do not contain the input preparation. Pass the file's path to drfl.read_model"
    warnings.warn(DrflWarning(Notice(text, "no-preparation")), stacklevel=2)
    return None, dict(tensors)
