"""Test that the compose file of `drfl deploy init` is valid and names existing files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from tests.flower.deploy.programs import needed

from drfl.flower.deploy.init import DeploymentPlan, write

SITES = ("cleveland", "no", "1", "0x1F", "null")
"""Names that YAML would not read as text."""

PLANS = {"secure": DeploymentPlan(SITES, "fl.example.org", 8443), "insecure": DeploymentPlan(SITES, insecure=True)}

Text = Annotated[str, StringConstraints(min_length=1, strict=True)]
Absolute = Annotated[str, StringConstraints(pattern=r"^/", strict=True)]
Bind = Annotated[str, StringConstraints(pattern=r"^\.[^:]*:/[^:]+$", strict=True)]
Ports = Annotated[str, StringConstraints(pattern=r"^[0-9]+:[0-9]+$", strict=True)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]+$", strict=True)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Build(Strict):
    """The used part of the Compose Specification's `build`."""

    context: Text
    args: dict[Name, Text]


class Shared(Strict):
    """The common part of all services."""

    image: Text
    build: Build
    user: Annotated[str, StringConstraints(pattern=r"^[0-9]+:[0-9]+$", strict=True)]
    init: bool
    restart: Literal["no", "always", "on-failure", "unless-stopped"]


class Service(Shared):
    """The used part of the Compose Specification's `services`."""

    hostname: Text | None = None
    environment: dict[Name, Text]
    working_dir: Absolute
    volumes: list[Bind] = Field(min_length=1)
    command: list[Text] = Field(min_length=1)
    ports: list[Ports] = []
    depends_on: list[Name] = []


class Compose(Strict):
    shared: Shared = Field(alias="x-drfl")
    services: dict[Name, Service]


def interpolated(value: object) -> object:
    """Replace $$ and ${NAME:-default} in a tree as compose does without variables."""
    if isinstance(value, dict):
        return {key: interpolated(part) for key, part in value.items()}
    if isinstance(value, list):
        return [interpolated(part) for part in value]
    if not isinstance(value, str):
        return value
    left = re.sub(r"\$\$|\$\{[A-Z_]+:-[^}$]*\}", "", value)
    assert "$" not in left, f"{value!r} has a variable without a default"
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", value).replace("$$", "$")


def checked(folder: Path) -> Compose:
    """Check a folder's compose file, and name missing files."""
    found = Compose.model_validate(interpolated(yaml.safe_load((folder / "compose.yaml").read_text())))
    for name, service in found.services.items():
        assert set(service.depends_on) <= set(found.services) - {name}, f"{name} depends on a service that is not there"
        assert (folder / service.build.context / "Dockerfile").is_file(), f"{name} has no Dockerfile"
        mounts = {target: folder / source for source, target in (volume.split(":") for volume in service.volumes)}
        assert all(source.is_dir() for source in mounts.values()), f"{name} mounts a folder that is not there"
        assert service.working_dir in mounts, f"{name} works in a folder that is not mounted"
        assert (mounts[service.working_dir] / service.command[-1]).is_file(), f"{name} runs what is not there"
    return found


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


@pytest.fixture
def folder(plan, tmp_path):
    write(plan, tmp_path / "a folder")
    return tmp_path / "a folder"


def test_compose_file_is_valid_and_its_files_exist(plan, folder):
    found = checked(folder)
    assert set(found.services) == {"superlink", *SITES}
    for name in SITES:
        service = found.services[name]
        assert service.depends_on == ["superlink"]
        assert service.environment["DRFL_SUPERLINK"] == f"{found.services['superlink'].hostname}:{plan.port}"
        assert service.volumes == [f"./sites/{name}:/site"]
    superlink = found.services["superlink"]
    assert superlink.ports == [f"{plan.port}:{plan.port}"]
    assert superlink.volumes == [f".:{folder}"]  # flwr/config.toml and app/pyproject.toml contain this path
    assert superlink.build.args == {"DRFL_PACKAGE": "drfl[flower]"}


def test_set_variables_are_read_by_the_scripts(folder):
    for service in checked(folder).services.values():
        script = folder / service.volumes[0].partition(":")[0] / service.command[-1]
        for name in service.environment.keys() - {"HOME"}:
            assert f"{{{name}:-" in script.read_text(), f"{script.name} does not read {name}"


def test_image_contains_no_file_of_the_folder(folder):
    """The folder contains private keys."""
    assert [path.name for path in (folder / "image").iterdir()] == ["Dockerfile"]
    lines = [line for line in (folder / "image/Dockerfile").read_text().splitlines() if not line.startswith("#")]
    assert [line.split()[0] for line in lines] == ["FROM", "ARG", "RUN"]
    assert lines[1] == "ARG DRFL_PACKAGE"


BROKEN = {
    "an unknown key": ("init: true", "innit: true"),
    "a wrong type": ("init: true", "init: [true]"),
    "a key that is missing": ("  image: drfl-flower\n", ""),
    "a number for a text": ("hostname: superlink", "hostname: 8000"),
    "an anchor that is not there": ("<<: *drfl", "<<: *other"),
    "a service that is not there": ("depends_on: [superlink]", "depends_on: [superlunk]"),
    "a port that is none": ('ports: ["8000:8000"]', 'ports: ["8000:http"]'),
    "a name that is no text": ('  "no":\n', "  no:\n"),
    "a folder that is not there": ("./sites/cleveland:", "./sites/hungary:"),
    "a script that is not there": ("start-supernode.sh", "start-node.sh"),
    "a variable without a default": ("${DRFL_USER:-1000:1000}", "$DRFL_USER"),
}


def broken(folder: Path, what: str) -> Path:
    """Make a deployment whose compose file has a mistake."""
    write(PLANS["insecure"], folder)
    path = folder / "compose.yaml"
    before, after = BROKEN[what]
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    return folder


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_is_refused(what, tmp_path):
    with pytest.raises((AssertionError, ValidationError, yaml.YAMLError)):
        checked(broken(tmp_path / "fl", what))


def config(folder: Path) -> subprocess.CompletedProcess[str]:
    """Return Compose's own interpretation of a folder, which needs no engine."""
    program = needed("docker-compose", "docker-compose")
    return subprocess.run([program, "config"], cwd=folder, capture_output=True, text=True)


def test_compose_accepts_the_file(folder):
    done = config(folder)
    assert (done.returncode, done.stderr) == (0, "")
    resolved = yaml.safe_load(done.stdout)["services"]
    assert set(resolved) == {"superlink", *SITES}
    assert all(Path(service["build"]["context"]) == folder / "image" for service in resolved.values())


@pytest.mark.parametrize("what", [what for what in BROKEN if what.endswith(("type", "service that is not there"))])
def test_compose_refuses_a_broken_file(what, tmp_path):
    assert config(broken(tmp_path / "fl", what)).returncode != 0
