"""Torch devices by name, and the settings with which CUDA devices give equal results."""

from __future__ import annotations

import os

import torch

from drfl.core.errors import InputError


def device_of(name: str) -> torch.device:
    """Return the device of this name, ready for use.

    Raises:
        InputError: If there is none.
    """
    try:
        device = torch.device(name)
        if device.type == "cuda":
            make_deterministic()
        # A valid name does not mean that the device exists; only an allocation shows that.
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        # For an unknown type torch lists twenty types, most of which this build lacks.
        reason = str(error).strip().splitlines()[0]
        reason = "torch has no such device" if reason.startswith("Expected one of") else reason
        raise InputError(
            f"device '{name}' is not available: {reason}", code="device-missing", field="device"
        ) from error
    return device


def make_deterministic() -> None:
    """Fix the settings of torch, for the whole process, on which the last bits of results on CUDA devices depend.

    A run that resumes in another process then computes the same. The workspace of cuBLAS is read when cuBLAS is first
    used, and a value that the user has set is kept.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # TF32 has 10 of the 23 bits of float32. By default torch uses it in convolutions, but not in products.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    # Otherwise cuDNN may sum in any order, and choose its algorithms by benchmarks.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
