"""Test the lock files: one version per package, all with hashes, and none missing."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = ("constraints.txt", "constraints-torch.txt", "constraints-dev.txt")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CPU_BUILD = "sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
"""Hash of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl from download.pytorch.org."""


def pins(*names: str) -> dict[str, tuple[str, list[str]]]:
    """Return name → version and hashes of some lock files; any other line is an error."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name in names:
        text = re.sub(r" *\\\n *", " ", (ROOT / name).read_text(encoding="utf-8"))
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            pin, *hashes = line.split(" --hash=")
            entry = re.fullmatch(r"([a-z0-9-]+)==([0-9][\w.]*)( ; .+)?", pin)
            assert entry, f"{name}: {pin} is no name==version"
            assert entry[1] not in found, f"{entry[1]} stands twice"
            found[entry[1]] = (entry[2], hashes)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_line_has_hashes(name):
    found = pins(name)
    assert found
    for package, (_, hashes) in found.items():
        assert hashes, f"{name}: {package} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), package
        assert len(set(hashes)) == len(hashes)


def fits(requirement: Requirement, locked: dict[str, tuple[str, list[str]]]) -> bool:
    name = canonicalize_name(requirement.name)
    return name in locked and requirement.specifier.contains(locked[name][0])


def test_dependencies_are_locked_in_allowed_versions():
    extras = PROJECT["project"]["optional-dependencies"]
    user = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], "pip"]
    dev = [line for extra in extras.values() for line in extra if not line.startswith("drfl[")]
    for lines, names in ((user, FILES[:2]), (dev, FILES)):
        locked = pins(*names)
        assert [line for line in lines if not fits(Requirement(line), locked)] == []


def needs(name: str, extras: tuple[str, ...]) -> list[Requirement]:
    """Return the requirements of an installed package on this machine."""
    lines = map(Requirement, importlib.metadata.requires(name) or [])
    asked = [{"extra": extra} for extra in ("", *extras)]
    return [line for line in lines if not line.marker or any(line.marker.evaluate(one) for one in asked)]


@pytest.mark.long
@pytest.mark.parametrize("names", [FILES[:2], FILES], ids=["user", "dev"])
def test_indirect_dependencies_are_locked_too(names):
    """CUDA is an exception, because torch's build for it names its own dependencies."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    if names == FILES:
        lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    left, seen, locked = list(map(Requirement, lines)), set(), pins(*names)
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name == "drfl" or str(one) in seen or re.match(r"(nvidia|cuda)-|triton$", name):
            continue
        seen.add(str(one))
        assert fits(one, locked), f"{one} is not locked"
        left += needs(name, tuple(one.extras))
    assert len(seen) > 20


def test_torch_has_its_own_lock_file_with_the_cpu_build():
    found = pins("constraints-torch.txt")
    assert list(found) == ["torch"]
    assert CPU_BUILD in found["torch"][1], "a new torch: renew CPU_BUILD here, and scripts/lock.py --wheel FILE"
    assert [name for name in pins(*FILES) if re.match(r"(nvidia|cuda)-|triton$", name)] == []


def test_make_installs_only_from_lock_files():
    rules = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in rules.splitlines() if " install " in line and not line.startswith("#")]
    # all packages have hashes, except this folder and an installed torch
    allowed = ("install $(LOCKED) ", "install $(ITSELF)", "install --quiet --disable-pip-version-check torch")
    for line in lines:
        for command in re.findall(r"install .*?(?=\|\||;|$)", line):
            assert command.startswith(allowed), command
    assert all(flag in rules for flag in ("--require-hashes", "--no-deps", "--only-binary :all:"))
    assert sum(name in rules.split("LOCKED) -r ", 1)[1] for name in FILES) == len(FILES)
