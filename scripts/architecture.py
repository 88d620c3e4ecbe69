"""Draw the packages and their imports, and list every file, for the architecture page.

    python scripts/architecture.py [FILE.svg]

A package is one row above the highest package that it imports. Arrows that follow from others are not drawn.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.code_size import imported
from scripts.layered_drawing import Box, drawing

from drfl.core.atomic_files import atomic_write

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PICTURE = ROOT / "docs" / "contributing" / "architecture.svg"


class Part(NamedTuple):
    """A box of the picture and a row of the table.

    Args:
        about: Description in the box.
        first: First file to read, relative to the package.
    """

    about: str
    first: str


STARTED, STUDIES, CORE, COMMON = "start", "studies", "core", "common"
"""Colours of entry points, studies of runs, parts of a run, and foundations."""

PARTS: dict[str, dict[str, Part]] = {
    STARTED: {
        "drfl_papers": Part("the papers' tables", "specification.py"),
        "cli": Part("the command drfl", "app.py"),
        "flower": Part("deployments", "deployed_federation.py"),
    },
    STUDIES: {
        "experiments": Part("configured jobs and studies", "api.py"),
        "report": Part("HTML and PDF reports", "compose.py"),
        "assessment": Part("the worst client's interval", "clients.py"),
        "testing": Part("conformance checks", "algorithm_battery.py"),
    },
    CORE: {
        "algorithms": Part("FedAvg … DualDRDM", "fedavg.py"),
        "resilience": Part("failures and guards", "wrappers.py"),
        "training": Part("run, history, checkpoints", "loop.py"),
        "engine": Part("computes the local steps", "loop_engine.py"),
        "federation": Part("ask, replies, ledger", "federation.py"),
        "data": Part("who holds which rows", "client_data.py"),
        "ambiguity": Part("the set Λ, the penalty ψ", "ambiguity_set.py"),
        "optim": Part("local solvers, schedules", "local.py"),
        "task": Part("model, loss, metrics", "task.py"),
    },
    COMMON: {"core": Part("keys, errors, checks, files", "key.py")},
}
"""By colour and name; a test checks that no package is missing."""

ALL = {name: part for parts in PARTS.values() for name, part in parts.items()}
COLOURS = {name: colour for colour, parts in PARTS.items() for name in parts}


def folder(name: str) -> Path:
    """Return the folder of a package."""
    return SOURCE / name if name == "drfl_papers" else SOURCE / "drfl" / name


def sources(name: str) -> list[Path]:
    """List the Python files of a package, without the templates of `drfl new`."""
    found = [path for path in folder(name).rglob("*.py") if "templates" not in path.parts]
    return sorted(found, key=lambda path: (path.parent, path.name))


def package(module: str) -> str | None:
    """Return the package of a module; None if it is not a module of drfl."""
    words = module.split(".")
    if words[0] == "drfl_papers":
        return words[0]
    return words[1] if words[0] == "drfl" and len(words) > 1 and words[1] in ALL else None


@cache
def graph() -> dict[str, set[str]]:
    """Return the packages that each package imports."""
    found: dict[str, set[str]] = {}
    for name in ALL:
        modules = (module for path in sources(name) for module in imported(ast.parse(path.read_text(encoding="utf-8"))))
        found[name] = {other for module in modules if (other := package(module)) not in (None, name)}
    return found


def levels(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the level of each package, 0 for those that import none.

    Raises:
        RecursionError: If imports form a cycle.
    """

    @cache
    def level(name: str) -> int:
        return 1 + max((level(other) for other in imports[name]), default=-1)

    return {name: level(name) for name in imports}


def direct(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that do not follow from others: the transitive reduction."""

    @cache
    def reached(name: str) -> frozenset[str]:
        return frozenset(imports[name]).union(*map(reached, imports[name]))

    return {
        name: {other for other in others if not any(other in reached(between) for between in others - {other})}
        for name, others in imports.items()
    }


def picture() -> str:
    """Draw the SVG of the architecture page."""
    imports = graph()
    height = levels(imports)
    rows = [[name for name in ALL if height[name] == level] for level in range(max(height.values()), -1, -1)]
    boxes = {name: Box(name, part.about, COLOURS[name]) for name, part in ALL.items()}
    arrows = [(name, other) for name, others in direct(imports).items() for other in sorted(others)]
    return drawing("The packages of drfl and their imports", [row for row in rows if row], boxes, arrows)


def sentence(path: Path) -> str:
    """Return the first sentence of a file's docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    words = " ".join(text.split("\n\n")[0].split()).replace("``", "`")
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", words).removesuffix(".")


def table() -> list[list[str]]:
    """List package, sentence and first file to read, from the top of the picture down."""
    height = levels(graph())
    return [
        [f"`{name}`", f"{sentence(folder(name) / '__init__.py')}.", link(folder(name) / ALL[name].first)]
        for name in sorted(ALL, key=lambda name: -height[name])
    ]


def files() -> str:
    """List every file with its sentence, per package."""
    height = levels(graph())
    lines: list[str] = []
    for name in sorted(ALL, key=lambda name: -height[name]):
        lines += ["", f"### `{name}`", ""]
        lines += [f"- {link(path)}: {sentence(path)}." for path in sources(name) if path.name != "__init__.py"]
    return "\n".join(lines[1:])


def link(path: Path) -> str:
    """Return a link from the architecture page to a file of src/."""
    place = path.relative_to(SOURCE).as_posix()
    return f"[{place.removeprefix('drfl/')}](../../src/{place})"


def main() -> None:
    """Write the picture."""
    with atomic_write(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE) as file:
        file.write(picture().encode())


if __name__ == "__main__":
    main()
