"""Test that large tensors reach worker processes as memory-mapped files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cloudpickle
import pytest
import torch
from tests.support.small_spec import small_spec
from torch import nn

from drfl.experiments.execution import shared_tensors
from drfl.experiments.execution.run_cells import make_pool
from drfl.experiments.execution.shared_tensors import SharedTensors
from drfl.experiments.execution.training_cells import run_cell
from drfl_papers.plan import Scale, plan


@pytest.fixture
def tensors(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shared_tensors, "LARGE", 100)
    shared = SharedTensors()
    yield shared
    shared.close()


def maps():
    return Path("/proc/self/maps").read_text()


def test_large_tensors_are_mapped_and_others_pickled(tensors, tmp_path):
    large, small = torch.rand(50, 3), torch.rand(2)
    payload = tensors.dumps({"a": large, "b": [large, small], "same": small})
    found = cloudpickle.loads(payload)
    assert torch.equal(found["a"], large)
    assert found["a"] is found["b"][0]
    assert torch.equal(found["b"][1], small)
    assert len(payload) < 1500
    assert maps().count(str(tmp_path)) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64, torch.bool, torch.bfloat16])
def test_types_shapes_and_views_are_preserved(tensors, dtype):
    pool = (torch.arange(600) % 3).to(dtype).view(10, 20, 3)
    for part in (pool, pool[2:9], pool.transpose(0, 1), pool[:, ::2]):
        found = cloudpickle.loads(tensors.dumps(part))
        assert found.dtype == dtype
        assert torch.equal(found, part)


def test_writes_to_a_tensor_stay_in_the_process(tensors):
    payload = tensors.dumps(torch.zeros(100))
    one, other = cloudpickle.loads(payload), cloudpickle.loads(payload)
    one += 1
    assert float(other.sum()) == 0
    assert float(cloudpickle.loads(payload).sum()) == 0


def test_parameters_stay_parameters(tensors):
    model = cloudpickle.loads(tensors.dumps(nn.Linear(30, 4)))
    assert isinstance(model.weight, nn.Parameter)
    assert model.weight.requires_grad


def test_mapped_tensors_outlive_their_files(tensors):
    found = cloudpickle.loads(tensors.dumps(torch.ones(100)))
    tensors.close()
    assert not tensors._files
    assert float(found.sum()) == 100


@pytest.mark.long
def test_cells_receive_mapped_data_and_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_tensors, "LARGE", 1000)
    cells = [planned.cell for planned in plan(small_spec(), Scale()).cells][:3]
    with make_pool(2, run_cell, shared=True) as pool:
        futures = [pool.submit(cell, tmp_path) for cell in cells]
        assert any(data.shared._tensors._files for data in pool._data.values())
        records = [future.result() for future in futures]
    assert not pool._data
    for cell, record in zip(cells, records, strict=True):
        assert record["rows"] == run_cell(cell, None)["rows"]
