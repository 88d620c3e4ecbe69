"""Write a model as ONNX."""

from __future__ import annotations

import importlib
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from drfl.core.errors import DrflError, InputError
from drfl.core.output_files import write_bytes

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
"""The packages that write ONNX and check it."""

TOLERANCE = 1e-5
"""Largest difference, relative to the largest result, between the file and the model."""

ROWS = 7
"""Number of rows for checking the file."""


def write_onnx(module: nn.Module, output: str, example: Tensor, path: Path) -> None:
    """Write a module with its preparation as ONNX, and check the file with onnxruntime.

    The input is ``inputs`` (n, …), and ``output`` is the name of the result.
    """
    try:
        # torch needs the first two, and would fail with a message of its own.
        _, _, onnxruntime = (importlib.import_module(name) for name in PACKAGES)
    except ImportError as error:
        raise InputError(
            f"writing ONNX needs {error.name}: pip install 'drfl[onnx]'",
            code="package-missing",
            field=error.name,
        ) from None
    module = module.eval()
    # The exporter reports each step, but the exception contains the error.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                module, (example,), input_names=["inputs"], output_names=[output], dynamo=True, verbose=False,
                dynamic_shapes=({0: torch.export.Dim("rows")},),
            )  # fmt: skip
        assert program is not None
        content = program.model_proto.SerializeToString()
    except Exception as error:  # torch raises exceptions of any kind
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"cannot convert the model to ONNX: {reason}", code="unsupported-model", field="model"
        ) from error
    with torch.no_grad():
        expected = module(example).double().numpy()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, {"inputs": example.numpy()})[0], dtype=np.float64)
    if np.abs(found - expected).max() > TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise DrflError(
            f"onnxruntime does not reproduce the model's outputs, so {path} was not written",
            code="results-differ", field=str(path),
        )  # fmt: skip
    write_bytes(content, path)
