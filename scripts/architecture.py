"""The parts of drfl and which imports which, read from the source: the picture and the table of the architecture page.

    python scripts/architecture.py [FILE.svg]

A part is a package, or a group of modules of drfl itself; every module is in exactly one. Rows are levels: a part
stands one above the highest that it imports. An arrow that follows from others is left out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.layered_drawing import Box, drawing

from drfl.atomic_files import atomic_write

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "drfl"
PICTURE = ROOT / "docs" / "contributing" / "architecture.svg"


class Part(NamedTuple):
    """A box of the picture and a row of the table.

    Args:
        about: in the box, a few words.
        first: the file to begin reading with, within src/drfl.
        modules: of drfl itself; none = the package of the part's name.
        says: a sentence; "" = the first of the package's docstring.
    """

    about: str
    first: str
    modules: tuple[str, ...] = ()
    says: str = ""


STARTED, STUDIES, CORE, COMMON = "start", "studies", "core", "common"
"""The colours: what a person starts; what makes studies of runs; what a run consists of; what all of it stands on."""

PARTS: dict[str, dict[str, Part]] = {
    STARTED: {
        "cli": Part(
            "the command drfl", "cli/app.py", ("cli", "__main__", "starter"),
            "The command: parse, build, run, print; `starter` has what `drfl new` writes.",
        ),
        "study": Part(
            "compare, tune, assess", "study.py", ("study",),
            "From Python what the command does: algorithms side by side, tuning, assessment.",
        ),
        "papers": Part("the papers' tables", "papers/specification.py"),
        "deploy": Part("deployments as folders", "deploy/init.py"),
    },
    STUDIES: {
        "experiments": Part("a job → a run's folder", "experiments/runner.py"),
        "tuning": Part("hyperparameters", "tuning/job.py"),
        "flower": Part("clients elsewhere", "flower/federation.py"),
        "report": Part("HTML and PDF reports", "report/summary_text.py"),
        "assessment": Part("the worst client's interval", "assessment/clients.py"),
        "features": Part("frozen networks' features", "features/featurise.py"),
        "testing": Part("conformance checks", "testing/algorithm.py"),
    },
    CORE: {
        "algorithms": Part("FedAvg … DualDRDM", "algorithms/fedavg.py"),
        "checkpoint": Part("going on after a stop", "checkpoint/__init__.py"),
        "resilience": Part("failures and guards", "resilience/wrappers.py"),
        "loop": Part(
            "run, rounds, history", "loop.py",
            ("loop", "rounds", "run_state", "run_log", "history", "step_size", "averages", "model_selection",
             "callbacks", "trackers", "plots"),
            "`run`: rounds, tests, callbacks, step sizes, the returned model and the history.",
        ),
        "engine": Part("computes the local steps", "engine/loop.py"),
        "algorithm": Part(
            "init, round", "algorithm.py", ("algorithm",), "The contract of an algorithm: its state, and a round.",
        ),
        "certificate": Part(
            "duality gap, theorems", "certificate.py", ("certificate", "convexity", "theory"),
            "How far a run is from the saddle point, and the theorems' step sizes.",
        ),
        "federation": Part(
            "ask, replies, ledger", "federation.py", ("federation", "requests", "sampling", "client_table"),
            "The contract between server and clients: requests and replies, cohorts, what was sent.",
        ),
        "ambiguity": Part("the set Λ, the penalty ψ", "ambiguity/base.py"),
        "data": Part("who holds which rows", "data/client_data.py"),
        "local": Part(
            "LocalSGD, schedules", "local.py", ("local", "local_optimizers", "schedules", "server_optimizers"),
            "What a client runs: the local solver with its optimisers and schedules; the server's optimisers.",
        ),
        "task": Part(
            "model, loss, metrics", "task.py",
            (
                *("task", "losses", "layout", "model_checks", "models"),
                *("metrics", "measure", "augmentations", "training_noise"),
            ),
            "What is trained and how it is scored: model ↔ vector, loss, metrics, augmentation.",
        ),
    },
    COMMON: {
        "base": Part(
            "Key, errors, checks, files", "key.py",
            ("key", "errors", "checks", "registry", "hashing", "atomic_files", "audit_log", "audit_signatures",
             "csv_cells", "files", "html_table", "figures", "intraop", "run_end", "screen", "user_code"),
            "What all of it stands on: random streams, errors, checks of arguments, files written whole.",
        ),
    },
}  # fmt: skip
"""By colour and name; a test says that no module is left out or there twice."""

ALL = {name: part for parts in PARTS.values() for name, part in parts.items()}
COLOURS = {name: colour for colour, parts in PARTS.items() for name in parts}
HOMES = {module: name for name, part in ALL.items() for module in part.modules or (name,)}
"""Modules and packages of drfl → the part."""


class UnknownModuleError(Exception):
    """A module of drfl that no part names."""


def sources() -> Iterator[tuple[str, Path]]:
    """The module or package of drfl that each file belongs to; what a study of one's own is begun from is no part."""
    for path in sorted(SOURCE.rglob("*.py")):
        first, *rest = path.relative_to(SOURCE).with_suffix("").parts
        if "templates" not in rest and first != "__init__":
            yield first, path


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules and packages of drfl that code imports; not what type checkers alone see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported(ast.Module(node.orelse, []))
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "drfl":
            names = [f"drfl.{alias.name}" for alias in node.names]
        else:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name.split(".")[1] for name in names if name.startswith("drfl."))
        yield from imported(node)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules and packages of drfl that a file imports."""
    return frozenset(imported(ast.parse(path.read_text(encoding="utf-8"))))


def graph() -> dict[str, set[str]]:
    """Which parts each part imports.

    Raises:
        UnknownModuleError: a module is in no part.
    """
    found: dict[str, set[str]] = {name: set() for name in ALL}
    for module, path in sources():
        if module not in HOMES:
            raise UnknownModuleError(f"src/drfl/{module} is in no part: name it in PARTS of scripts/architecture.py")
        found[HOMES[module]] |= {HOMES[name] for name in imports_of(path) if name in HOMES} - {HOMES[module]}
    return found


def levels(imports: Mapping[str, set[str]]) -> dict[str, int]:
    """Of each part, 0 for those that import none.

    Raises:
        RecursionError: imports go round in a circle.
    """

    @cache
    def level(name: str) -> int:
        return 1 + max((level(other) for other in imports[name]), default=-1)

    return {name: level(name) for name in imports}


def direct(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The imports that do not follow from others: the transitive reduction."""

    @cache
    def reached(name: str) -> frozenset[str]:
        return frozenset(imports[name]).union(*map(reached, imports[name]))

    return {
        name: {other for other in others if not any(other in reached(between) for between in others - {other})}
        for name, others in imports.items()
    }


def picture() -> str:
    """The SVG of the architecture page."""
    imports = graph()
    height = levels(imports)
    rows = [[name for name in ALL if height[name] == level] for level in range(max(height.values()), -1, -1)]
    boxes = {name: Box(name, part.about, COLOURS[name]) for name, part in ALL.items()}
    arrows = [(name, other) for name, others in direct(imports).items() for other in sorted(others)]
    return drawing("The parts of drfl and their imports", [row for row in rows if row], boxes, arrows)


def sentence(name: str) -> str:
    """What a part is."""
    part = ALL[name]
    if part.says:
        others = [f"`{module}`" for module in part.modules if module not in (name, "__main__")]
        rest = ", ".join(module for module in others if module not in part.says)
        return f"{part.says} With {rest}." if rest else part.says
    text = ast.get_docstring(ast.parse((SOURCE / name / "__init__.py").read_text(encoding="utf-8"))) or ""
    whole = " ".join(text.split("\n\n")[0].split()).replace("``", "`")
    return whole if whole.endswith(".") else f"{whole}."


def table() -> list[list[str]]:
    """Part, sentence and where to begin, from the top of the picture down."""
    height = levels(graph())
    return [
        [f"`{name}`", sentence(name), f"[{ALL[name].first}](../../src/drfl/{ALL[name].first})"]
        for name in sorted(ALL, key=lambda name: -height[name])
    ]


def main() -> None:
    """Write the picture."""
    with atomic_write(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE) as file:
        file.write(picture().encode())


if __name__ == "__main__":
    main()
