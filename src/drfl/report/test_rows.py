"""The file with a returned model's scores on every test row, for pairing two runs row by row."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.tensor_files import read_tensors
from drfl.data.row_scores import RowScores
from drfl.task.measure import NAME

STARTS, ROWS, LARGEST = "starts", "rows", "rows.largest"
OUTPUT, POSITIVE = ".output", ".positive"
"""Suffixes of the name of a measure that ranks rows."""

DIGEST = re.compile(r"[0-9a-f]{32}")


def content(scores: RowScores) -> bytes:
    """Return the content of the file; the same scores give the same bytes."""
    return save(tensors_of(scores), {"data": scores.data})


def tensors_of(scores: RowScores) -> dict[str, Tensor]:
    """Return the tensors of the file by name."""
    tensors = {STARTS: scores.starts, ROWS: scores.rows, **scores.scores}
    if scores.largest is not None:
        tensors[LARGEST] = scores.largest
    return {name: value.contiguous() for name, value in tensors.items()}


def read(path: Path) -> RowScores:
    """Read the file.

    Raises:
        InputError: If the file is missing or damaged.
    """
    tensors, metadata = read_tensors(path, follow=False, problem="is damaged", remedy="run it again")
    return checked(tensors, metadata.get("data", ""), path)


def checked(tensors: dict[str, Tensor], data: str, path: Path) -> RowScores:
    """Return scores from the tensors of a file, which are removed from the mapping.

    Args:
        tensors: See :func:`tensors_of`.
        data: Digest of the clients' data.
        path: The file, for messages.

    Raises:
        InputError: If they are damaged.
    """
    if STARTS not in tensors or ROWS not in tensors or DIGEST.fullmatch(data) is None:
        raise _damaged(path, f"it lacks '{STARTS}', '{ROWS}' or the digest of the data")
    scores = RowScores(tensors.pop(STARTS), tensors.pop(ROWS), tensors, data, tensors.pop(LARGEST, None))
    starts, rows = scores.starts, scores.rows
    if starts.dtype != torch.int64 or rows.dtype != torch.int64 or starts.dim() != 1 or rows.dim() != 1:
        raise _damaged(path, f"'{STARTS}' and '{ROWS}' must be one-dimensional and of type int64")
    # Wrong indices would pair the rows of one client with those of another.
    if len(starts) < 2 or int(starts[0]) or int(starts[-1]) != len(rows) or bool((starts.diff() < 1).any()):
        raise _damaged(path, f"'{STARTS}' are not valid indices of the clients' first rows")
    largest = scores.largest
    if largest is not None and not (
        largest.dtype == torch.int64
        and largest.shape == starts.diff().shape
        and bool(((largest >= 1) & (largest <= starts.diff())).all())
    ):
        raise _damaged(path, f"'{LARGEST}' are not valid numbers of rows")
    if bool((rows < 0).any()):
        raise _damaged(path, f"'{ROWS}' contains negative row indices")
    for name, values in scores.scores.items():
        plain = name.removesuffix(OUTPUT).removesuffix(POSITIVE)
        # A measure that ranks rows needs both of its parts: the model's output, and whether the row is positive.
        if values.dtype == torch.uint8 and not name.endswith(OUTPUT):
            is_possible = bool((values <= 1).all()) and (name == plain or plain + OUTPUT in scores.scores)
        else:
            has_pair = plain + POSITIVE in scores.scores if name.endswith(OUTPUT) else name == plain
            is_possible = values.dtype == torch.float64 and has_pair and not bool(values.isinf().any())
        if values.shape != rows.shape or NAME.fullmatch(plain) is None or not is_possible:
            raise _damaged(path, f"'{name}' does not hold one valid value per row")
    return scores


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged: {why}. Run it again.", code="damaged-file", field=str(path))
