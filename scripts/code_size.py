"""Measure the size of the source: lines, files, import levels, cycles, functions and names.

    python scripts/code_size.py [FOLDER]

FOLDER holds the packages, by default src/. Imports inside functions count too, but imports for type
checkers do not. Neither do the templates of `drfl new`.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("drfl", "drfl_papers")
Function = ast.FunctionDef | ast.AsyncFunctionDef
KEEPS = {"cache", "lru_cache", "contextmanager"}
"""Decorators of functions that cannot be inlined."""


class Source:
    """The Python files below a folder, parsed.

    Args:
        folder: The folder of the packages.
    """

    def __init__(self, folder: Path) -> None:
        self.texts: dict[str, str] = {}
        """Dotted module → its text."""
        self.packages: set[str] = set()
        """Modules that are the ``__init__`` of a package."""
        for path in sorted(path for name in PACKAGES for path in (folder / name).rglob("*.py")):
            if "templates" not in path.parts:
                parts = path.relative_to(folder).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.texts[module] = path.read_text("utf-8")
                if parts[-1] == "__init__":
                    self.packages.add(module)
        self.trees = {module: ast.parse(text) for module, text in self.texts.items()}

    def imports(self, module: str) -> set[str]:
        """Return the modules of these packages that a module imports."""
        return {found for name in imported(self.trees[module]) if (found := self._known(name)) not in (None, module)}

    def _known(self, name: str) -> str | None:
        """Return the module of a dotted name, without an attribute at its end."""
        while name and name not in self.texts:
            name = name.rpartition(".")[0]
        return name or None


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that code imports, except those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # expressions contain no statements
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from imported(ast.Module(child.orelse, []))
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imported(child)


def rooms(source: Source) -> dict[str, set[str]]:
    """Return the imports between rooms: drfl_papers, and the packages and modules directly in drfl."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2]) if module.startswith("drfl.") else module.split(".")[0]

    found: dict[str, set[str]] = {}
    for module in source.texts:
        others = found.setdefault(room(module), set())
        others |= {room(other) for other in source.imports(module)} - {room(module), "drfl"}
    return found


def levels(imports: Mapping[str, set[str]]) -> tuple[int, int]:
    """Return the number of levels of a graph, in which a cycle counts as one node, and the number of cycles."""

    @cache
    def reached(name: str) -> frozenset[str]:
        seen, left = set[str](), [name]
        while left:
            for other in imports[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        return frozenset(seen)

    circle = {name: frozenset(other for other in reached(name) if name in reached(other)) | {name} for name in imports}

    @cache
    def level(nodes: frozenset[str]) -> int:
        below = {circle[other] for name in nodes for other in imports[name]} - {nodes}
        return 1 + max(map(level, below), default=0)

    return max(map(level, circle.values())), sum(len(nodes) > 1 for nodes in set(circle.values()))


def called_once(tree: ast.AST) -> list[str]:
    """Return the private functions and methods that a module calls once and mentions nowhere else.

    These exclude functions that are passed as arguments, hooks such as ``_repr_html_``, and functions that cannot be
    inlined because they are cached or are context managers.
    """
    names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    names += Counter(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    private = [node for node in ast.walk(tree) if isinstance(node, Function) and node.name.startswith("_")]
    found = [node.name for node in private if not node.name.endswith("_") and not KEEPS & decorators(node)]
    return [name for name in found if names[name] == 1 and name in called]


def decorators(node: Function) -> set[str]:
    """Return the names of a function's decorators, without their modules and arguments."""
    plain = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return {ast.unparse(each).rpartition(".")[2] for each in plain}


def lines_of_code(text: str, tree: ast.AST) -> tuple[int, int]:
    """Return the numbers of lines with code and of comments; docstrings are neither."""
    documented = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code, comments = set[int](), 0
    nothing = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += not token.string.startswith(("# noqa", "# pyright", "# type:", "# fmt"))
        elif token.type not in nothing:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented), comments


def counted(source: Source) -> dict[str, int | float]:
    """Return all numbers by name."""
    functions = [n for tree in source.trees.values() for n in ast.walk(tree) if isinstance(n, Function)]
    classes = Counter(n.name for tree in source.trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    code, comments = map(sum, zip(*(lines_of_code(source.texts[m], t) for m, t in source.trees.items()), strict=True))
    modules = Counter(module.rpartition(".")[2] for module in source.texts if module not in source.packages)
    height, circles = levels(rooms(source))
    found: dict[str, int | float] = {}
    for package in PACKAGES:
        own = [text for module, text in source.texts.items() if module.split(".")[0] == package]
        found |= {f"{package}: lines": sum(len(text.splitlines()) for text in own), f"{package}: files": len(own)}
    return found | {
        "lines of code": code,
        "packages and loose modules": len(rooms(source)),
        "import levels": height,
        "import cycles": circles,
        "functions": len(functions),
        "median lines of a function": statistics.median((n.end_lineno or 0) - n.lineno + 1 for n in functions),
        "private functions called once": sum(len(called_once(tree)) for tree in source.trees.values()),
        "class names used twice": sum(count > 1 for count in classes.values()),
        "module names used twice": sum(count > 1 for count in modules.values()),
        "comments per 100 lines of code": round(100 * comments / code, 1),
    }


def main() -> None:
    """Print the numbers."""
    for name, value in counted(Source(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src")).items():
        print(f"{name:32} {value:>8,}")


if __name__ == "__main__":
    main()
