"""Folders of deployments with keys, made once, and a stand-in for the SuperLink that records calls."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from drfl.core.errors import DrflError
from drfl.flower.deploy import flower_cli, keys, runs
from drfl.flower.deploy.init import DeploymentPlan, write


@pytest.fixture(scope="session")
def with_keys(tmp_path_factory):
    """Return a folder for two sites on localhost; tests that change it use a copy."""
    root = tmp_path_factory.mktemp("deploy") / "fl"
    write(DeploymentPlan(("a", "b"), port=18000), root, keys=True)
    return root


@pytest.fixture
def copy(with_keys, tmp_path):
    """Return a copy of the folder at another path, which tests may change."""
    return shutil.copytree(with_keys, tmp_path / "copy")


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """Return a folder for sites a, b and c; tests that change it use a copy."""
    root = tmp_path_factory.mktemp("keys") / "fl"
    write(DeploymentPlan(("a", "b", "c"), port=18000), root, keys=True)
    return root


@pytest.fixture
def trio(three, tmp_path):
    """Return a copy of the folder for three sites, which are registered as 11 to 13."""
    root = shutil.copytree(three, tmp_path / "trio")
    for name, node in (("a", "11"), ("b", "12"), ("c", "13")):
        (root / f"keys/{name}.node").write_text(f"{node}\n")
    return root


@pytest.fixture
def superlink(trio, monkeypatch):
    """Use a stand-in for the SuperLink that records changes and fails at given verbs, "gone" and "run"."""
    asked: list[list[str]] = []
    failing: list[str] = []

    def ask(home, arguments):
        assert home == trio / "flwr"
        verb = arguments[min(1, len(arguments) - 1)]
        if verb != "list":
            asked.append(list(arguments))
        if verb in failing:
            raise DrflError("[code: 23] Public key already in use.")
        gone = [one[2] for one in asked[:-1] if one[1] == "unregister"] if "gone" in failing else []
        nodes = [{"node-id": n, "status": "unregistered" if n in gone else "online"} for n in ("11", "12", "13")]
        states = [{"run-id": "6", "status": "finished:failed"}, {"run-id": "7", "status": "running"}]
        return {"success": True, "node-id": "99", "nodes": nodes, "runs": states[: 1 + ("run" in failing)]}

    for module in (keys, runs, flower_cli):
        monkeypatch.setattr(module, "run_flwr", ask)
    return asked, failing


@pytest.fixture
def new_key(tmp_path):
    """Return a public key that is not registered."""
    path = tmp_path / "new"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub")
