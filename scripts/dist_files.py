"""Rules for the contents of drfl's wheel and source archive."""

from __future__ import annotations

import email
import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement

LIMIT = 2_000_000
"""Maximum size of an archive in bytes; a data set or result that was included by mistake exceeds it."""

NEEDED = (
    "drfl/py.typed", "drfl/__init__.pyi",
    "drfl/data/datasets/embedded/heart_disease.csv", "drfl/data/datasets/embedded/CC-BY-4.0.txt",
    "drfl/report/style.css", "drfl/report/templates/report.html.j2", "drfl/report/templates/report.typ",
    "drfl/flower/deploy/templates/site.toml", "drfl/cli/new/templates/study.toml",
    "drfl_papers/specs/drdm-table-1.toml", "drfl_papers/tuned/cifar10-entk.toml", "drfl_papers/jobs/cifar10-entk.toml",
)  # fmt: skip
"""One data file of each kind; a comparison with git would not reveal a file that git does not track."""

PACKAGES = ("src/drfl/", "src/drfl_papers/")

BESIDE = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "SECURITY.md", "pyproject.toml")
"""Files of a source archive outside the package."""

MADE = ("PKG-INFO", "setup.cfg")
INFO = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
EGG = ("PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt")
"""Files that setuptools adds to a source archive, to a wheel's metadata folder, and to ``drfl.egg-info``."""


def differences(found: Iterable[str], wanted: Iterable[str], where: str) -> list[str]:
    """Return a line for every missing and every unexpected file."""
    there, due = set(found), set(wanted)
    missing = [f"{where} lacks {name}" for name in sorted(due - there)]
    return missing + [f"{where} has {name}, which has no place there" for name in sorted(there - due)]


def check_wheel(wheel: Path, tracked: Iterable[str], project: dict) -> list[str]:
    """Return the errors in a wheel.

    Args:
        wheel: the file.
        tracked: paths of the files in the repository.
        project: the table ``[project]`` of ``pyproject.toml``.
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
    """Return the errors in a source archive; the arguments are those of :func:`check_wheel`."""
    top = f"{project['name']}-{project['version']}/"
    wanted = {name for name in tracked if name.startswith(PACKAGES)} | {f"src/{name}" for name in NEEDED}
    wanted |= {*BESIDE, *MADE, *(f"src/drfl.egg-info/{name}" for name in EGG)}
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if not member.isdir()]
    return differences(names, (top + name for name in wanted), sdist.name) + too_large(sdist)


def check_metadata(metadata: Message, project: dict) -> list[str]:
    """Return the differences between the metadata and ``pyproject.toml``."""
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
    """Return a requirement's name, extras, versions, and drfl's extra to which it belongs, independent of spelling."""
    one = Requirement(line)
    extra = str(one.marker).partition('extra == "')[2].rstrip('"') if one.marker else ""
    return one.name.lower(), tuple(sorted(one.extras)), str(one.specifier), extra


def too_large(archive: Path) -> list[str]:
    """Return an error if the archive is larger than :data:`LIMIT`."""
    size = archive.stat().st_size
    return [f"{archive.name} has {size:,} bytes, more than {LIMIT:,}"] if size > LIMIT else []
