"""CUDA graphs: a whole function's kernels started by one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from drfl.engine.replay import Function

WARM_UP = 2
"""Calls before the capture, in which libraries choose their kernels and take their work space."""


def captured(function: Function, arguments: Sequence[Tensor]) -> Function:
    """The function as a CUDA graph, for tensors like ``arguments``, all on one CUDA device.

    Inputs are copied into the graph's memory and results out of it, so that what is returned is the caller's own.

    Args:
        function: pure, without a synchronisation in it.
        arguments: an example.

    Raises:
        RuntimeError: the function cannot be captured.
    """
    with torch.cuda.device(arguments[0].device):
        inputs = [a.clone() for a in arguments]
        aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                function(*inputs)
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = function(*inputs)

    def replay(*arguments: Tensor) -> Sequence[Tensor]:
        for mine, given in zip(inputs, arguments, strict=True):
            mine.copy_(given)
        graph.replay()
        return [output.clone() for output in outputs]

    return replay
