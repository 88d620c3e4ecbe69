"""Test the code around a CUDA graph with a stand-in for the device:

inputs are copied in, and results are the caller's own.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from drfl.engine.tracing import capture


class Recorder:
    """A stand-in for ``torch.cuda.CUDAGraph``: a replay runs the captured function again on its memory."""

    def __init__(self) -> None:
        self.replay = lambda: None


@pytest.fixture
def device(monkeypatch):
    """Use a stand-in for a CUDA device; a capture records how to recompute the outputs."""
    null = type("Stream", (), {"wait_stream": lambda self, other: None})

    @contextlib.contextmanager
    def anything(*arguments):
        yield

    monkeypatch.setattr(torch.cuda, "device", anything)
    monkeypatch.setattr(torch.cuda, "stream", anything)
    monkeypatch.setattr(torch.cuda, "graph", anything)
    monkeypatch.setattr(torch.cuda, "Stream", null)
    monkeypatch.setattr(torch.cuda, "current_stream", null)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorder)


def test_replay_copies_inputs_and_returns_new_outputs(device, monkeypatch):
    memory = {}

    def function(x, y):
        memory.setdefault("inputs", (x, y))
        memory["outputs"] = [x + y, x * y]
        return memory["outputs"]

    call = capture(function, [torch.ones(2), torch.ones(2)])
    outputs = memory["outputs"]

    def replay(self=None):
        x, y = memory["inputs"]
        outputs[0].copy_(x + y)
        outputs[1].copy_(x * y)

    (graph,) = (cell.cell_contents for cell in call.__closure__ if isinstance(cell.cell_contents, Recorder))
    graph.replay = replay
    first = call(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    kept = [r.clone() for r in first]
    second = call(torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0]))
    assert second[0].tolist() == [12.0, 14.0]
    assert second[1].tolist() == [35.0, 48.0]
    for a, b in zip(first, kept, strict=True):
        assert torch.equal(a, b), "a later replay wrote into an earlier result"
