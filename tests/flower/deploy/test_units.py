"""Test that the systemd units of `drfl deploy init` start from any folder."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.flower.deploy.programs import needed
from tests.support.refusals import refused

from drfl.flower.deploy.init import DeploymentPlan, write

SUPERLINK, SUPERNODE = "drfl-superlink.service", "drfl-supernode@.service"
PLAN = DeploymentPlan(("a", "long-beach"))

KNOWN = {
    "Unit": {"Description", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        "User", "WorkingDirectory", "ExecStart", "Restart", "RestartSec", "KillSignal", "TimeoutStopSec", "UMask",
        "NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ReadWritePaths",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
"""The directives of systemd.unit(5), systemd.service(5) and systemd.exec(5) that the units use, by section."""

QUOTED = {"ExecStart", "ReadWritePaths"}
"""Directives whose values are split at spaces, with quotes as in a shell; the others take quotes literally."""


@pytest.fixture(params=["fl", "a folder", "folder/../up"])
def deployed(request, tmp_path):
    """Return a folder as it is named, and its real path."""
    (tmp_path / "folder").mkdir()
    write(PLAN, tmp_path / request.param)
    return (tmp_path / request.param).resolve()


def directives(path: Path) -> dict[str, dict[str, str]]:
    """Return a unit's directives by section."""
    found: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert name not in section, f"{path.name}: {name} stands twice"
            section[name] = value
    return found


@pytest.mark.parametrize("unit", [SUPERLINK, SUPERNODE])
def test_every_directive_exists_in_its_section(deployed, unit):
    found = directives(deployed / "systemd" / unit)
    assert {section: set(names) - KNOWN[section] for section, names in found.items()} == {name: set() for name in KNOWN}


@pytest.mark.parametrize("unit", [SUPERLINK, SUPERNODE])
def test_only_lists_are_quoted(deployed, unit):
    for section in directives(deployed / "systemd" / unit).values():
        for name, value in section.items():
            assert name in QUOTED or not set("\"'") & set(value), f"{name}={value}"


def test_paths_of_the_superlink_exist(deployed):
    service = directives(deployed / "systemd" / SUPERLINK)["Service"]
    assert service["WorkingDirectory"] == str(deployed)
    assert shlex.split(service["ExecStart"]) == ["/bin/sh", str(deployed / "start-superlink.sh")]
    assert shlex.split(service["ReadWritePaths"]) == [str(deployed)]
    assert (deployed / "start-superlink.sh").is_file()


def test_paths_of_the_supernode_are_those_of_the_site(deployed):
    service = directives(deployed / "systemd" / SUPERNODE)["Service"]
    place = service["WorkingDirectory"]
    assert place == "/srv/drfl/%i"  # %i leaves the name after the @ unchanged; %I would turn long-beach into long/beach
    assert shlex.split(service["ExecStart"]) == ["/bin/sh", f"{place}/start-supernode.sh"]
    assert shlex.split(service["ReadWritePaths"]) == [place]
    assert (deployed / "sites/long-beach/start-supernode.sh").is_file()


@pytest.mark.parametrize("unit", [SUPERLINK, SUPERNODE])
def test_service_restarts_without_limit(deployed, unit):
    found = directives(deployed / "systemd" / unit)
    assert (found["Service"]["Restart"], found["Unit"]["StartLimitIntervalSec"]) == ("on-failure", "0")


def verified(unit: Path) -> subprocess.CompletedProcess[str]:
    """Return systemd's messages on a unit, which must be the only one of its name in its folder."""
    program = needed("systemd-analyze", "systemd")
    return subprocess.run([program, "verify", unit.name], cwd=unit.parent, capture_output=True, text=True)


@pytest.mark.parametrize(
    "unit",
    [SUPERLINK, pytest.param("drfl-supernode@a.service", marks=pytest.mark.long), "drfl-supernode@long-beach.service"],
)
def test_systemd_accepts_the_units(deployed, unit):
    folder = deployed / "systemd"
    if unit != SUPERLINK:
        shutil.copy(folder / SUPERNODE, folder / unit)
    done = verified(folder / unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_refuses_a_quoted_path(deployed):
    unit = deployed / "systemd" / SUPERLINK
    unit.write_text(unit.read_text().replace(f"WorkingDirectory={deployed}", f'WorkingDirectory="{deployed}"'))
    done = verified(unit)
    assert done.returncode
    assert "path is not absolute" in done.stderr


def test_path_that_systemd_would_cut_is_refused(tmp_path):
    with refused("invalid-name", str(tmp_path / "fl ")):
        write(PLAN, tmp_path / "fl ")
    assert list(tmp_path.iterdir()) == []
