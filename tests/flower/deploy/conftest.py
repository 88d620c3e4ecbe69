"""A deployment's folder with keys, made once."""

from __future__ import annotations

import shutil

import pytest

from drfl.flower.deploy.init import DeploymentPlan, write


@pytest.fixture(scope="session")
def with_keys(tmp_path_factory):
    """A folder for two sites on localhost; tests that change it take a copy."""
    root = tmp_path_factory.mktemp("deploy") / "fl"
    write(DeploymentPlan(("a", "b"), port=18000), root, keys=True)
    return root


@pytest.fixture
def copy(with_keys, tmp_path):
    """A folder to spoil, at another place than it was made for."""
    return shutil.copytree(with_keys, tmp_path / "copy")
