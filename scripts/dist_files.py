"""What a wheel and a source archive of drfl hold: rules that they are checked by."""

from __future__ import annotations

import email
import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement

LIMIT = 2_000_000
"""Bytes that an archive may have; a result or a data set that came in by mistake is larger."""

NEEDED = (
    "drfl/py.typed", "drfl/__init__.pyi",
    "drfl/data/datasets/embedded/heart_disease.csv", "drfl/data/datasets/embedded/CC-BY-4.0.txt",
    "drfl/report/style.css", "drfl/report/templates/report.html.j2", "drfl/report/templates/report.typ",
    "drfl/flower/deploy/templates/site.toml", "drfl/cli/new/templates/study.toml",
    "drfl_papers/specs/drdm-table-1.toml", "drfl_papers/tuned/cifar10-entk.toml", "drfl_papers/jobs/cifar10-entk.toml",
)  # fmt: skip
"""One file of every kind of data; were one lost from git too, comparing with git would not show it."""

PACKAGES = ("src/drfl/", "src/drfl_papers/")

BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "SECURITY.md", "pyproject.toml")
"""What a source archive has besides the package."""

MADE = ("PKG-INFO", "setup.cfg")
INFO = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
EGG = ("PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt")
"""What setuptools adds: to a source archive, to a wheel's folder of metadata, and below ``drfl.egg-info``."""


def differences(found: Iterable[str], wanted: Iterable[str], where: str) -> list[str]:
    """Return a line for every missing and every unexpected file."""
    there, due = set(found), set(wanted)
    missing = [f"{where} lacks {name}" for name in sorted(due - there)]
    return missing + [f"{where} has {name}, which has no place there" for name in sorted(there - due)]


def check_wheel(wheel: Path, tracked: Iterable[str], project: dict) -> list[str]:
    """Return the mistakes of a wheel.

    Args:
        wheel: the file.
        tracked: the files of the repository, by paths.
        project: the table of that name in ``pyproject.toml``.
    """
    info = f"{project['name']}-{project['version']}.dist-info"
    package = {name.removeprefix("src/") for name in tracked if name.startswith(PACKAGES)}
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        wrong = differences(names, package | set(NEEDED) | {f"{info}/{name}" for name in INFO}, wheel.name)
        if f"{info}/METADATA" in names:
            text = archive.read(f"{info}/METADATA").decode()
            wrong += [f"{wheel.name}: {line}" for line in check_metadata(email.message_from_string(text), project)]
    return wrong + too_large(wheel)


def check_sdist(sdist: Path, tracked: Iterable[str], project: dict) -> list[str]:
    """Return the mistakes of a source archive; the arguments are those of :func:`check_wheel`."""
    top = f"{project['name']}-{project['version']}/"
    wanted = {name for name in tracked if name.startswith(PACKAGES)} | {f"src/{name}" for name in NEEDED}
    wanted |= {*BESIDE, *MADE, *(f"src/drfl.egg-info/{name}" for name in EGG)}
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if not member.isdir()]
    return differences(names, (top + name for name in wanted), sdist.name) + too_large(sdist)


def check_metadata(metadata: Message, project: dict) -> list[str]:
    """Return the differences from ``pyproject.toml``."""
    said = {
        "Name": project["name"],
        "Version": project["version"],
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
    }
    wrong = [f"{key} is {metadata[key]}, not {value}" for key, value in said.items() if metadata[key] != value]
    extras = project["optional-dependencies"]
    wrong += differences(metadata.get_all("Provides-Extra", []), extras, "Provides-Extra")
    due = [key(line) for line in project["dependencies"]]
    due += [(*key(line)[:3], extra) for extra, lines in extras.items() for line in lines]
    found = [key(line) for line in metadata.get_all("Requires-Dist", [])]
    return wrong + differences(map(str, found), map(str, due), "Requires-Dist")


def key(line: str) -> tuple[str, tuple[str, ...], str, str]:
    """Name, extras, versions and the extra of drfl that a requirement is of, however it is written."""
    one = Requirement(line)
    extra = str(one.marker).partition('extra == "')[2].rstrip('"') if one.marker else ""
    return one.name.lower(), tuple(sorted(one.extras)), str(one.specifier), extra


def too_large(archive: Path) -> list[str]:
    """Return a line if the archive has more bytes than :data:`LIMIT`."""
    size = archive.stat().st_size
    return [f"{archive.name} has {size:,} bytes, more than {LIMIT:,}"] if size > LIMIT else []
