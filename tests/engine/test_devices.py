"""Test that a CUDA device sets deterministic options, and that a CPU changes no setting of the process."""

from __future__ import annotations

import os

import pytest
import torch
from tests.support.problems import federation
from tests.support.refusals import refused

from drfl.engine import devices

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def settings():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, os.environ.get(WORKSPACE)


@pytest.fixture
def other_settings(monkeypatch):
    """Use settings that differ from drfl's until the test ends."""
    monkeypatch.delenv(WORKSPACE, raising=False)
    # matmul computes its attributes, which monkeypatch cannot restore.
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    for name, value in (("allow_tf32", True), ("deterministic", False), ("benchmark", True)):
        monkeypatch.setattr(torch.backends.cudnn, name, value)
    yield settings()
    torch.backends.cuda.matmul.allow_tf32 = before


def test_cuda_device_sets_deterministic_options(other_settings, monkeypatch):
    # Without CUDA, torch would refuse the allocation that follows the settings.
    monkeypatch.setattr(torch, "empty", lambda *shape, device: None)
    assert devices.device_of("cuda:0").type == "cuda"
    assert settings() == (False, False, True, False, ":4096:8")


def test_workspace_setting_of_the_user_is_kept(other_settings, monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":16:8")
    devices.make_deterministic()
    assert settings()[-1] == ":16:8"


def test_cpu_changes_no_setting(other_settings):
    federation(device="cpu")
    assert settings() == other_settings


@pytest.mark.parametrize("name", ["cuda:99", "nothing"])
def test_missing_device_is_refused(name, other_settings):
    with refused("device-missing", "device", name):
        devices.device_of(name)
