"""Store the wording of all errors and warnings in one file, tests/messages.txt.

    python scripts/messages.py            write the snapshot from src
    python scripts/messages.py --check    exit with 1 if the snapshot is not current
    python scripts/messages.py --apply    write wording that you edited in the snapshot back into src

The snapshot has a section per module and an entry per place that makes a message: a line ``CODE FIELD``, and below it,
indented, the text. ``{…}`` is an expression of the source, and so is a code or field in braces. ``-`` as the code means
that there is none. Entries are in the order of their codes, then of the source. Their kinds are:

* errors (DrflError and its subclasses) and notices (Notice), with their code and field;
* ``raise X``: an exception of another class, which has no code;
* ``part of FUNCTION``: a text that a message takes from a variable, a module's constant or a function that returns
  text;
* ``passed to FUNCTION``: a text that a call passes to a function which makes a message of it.

With --apply only text outside braces may differ: each entry keeps its place, code, field and expressions, which may
change their order. The snapshot does not cover texts inside braces (such as a plural "s"), texts that are collected in
a list before they become a message, docstrings, ``help=`` texts, log lines below a warning, and messages of other
packages.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src" / "drfl", ROOT / "src" / "drfl_papers")
SNAPSHOT = ROOT / "tests" / "messages.txt"

HEADER = """\
# The wording of all errors and warnings, written by `make messages`. To reword, edit the indented lines outside braces
# and run `python scripts/messages.py --apply`; scripts/messages.py describes the format.
"""

NOTICE = "Notice"
ERRORS_MODULE = "drfl.core.errors"
WIDTH = 120
PLAIN_WORD = re.compile(r"[\w.\-]*")
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "{": "{{", "}": "}}"}


class EditError(Exception):
    """The edited snapshot does not fit the source; the message is one line."""


@dataclass
class Text:
    """One text in the source.

    Args:
        node: The expression that makes it.
        template: The text with its expressions in braces.
        expressions: These expressions with their braces.
    """

    node: ast.expr
    template: str
    expressions: list[str]


@dataclass
class Entry:
    """A place that makes a message, or a part of one.

    Args:
        kind: "error", "notice", "raise", "part" or "passed".
        head: Code and field, or the kind and its subject.
        code: The code as it is in the snapshot; None if the kind has none.
        texts: Its texts; several if an expression chooses among them.
        node: The call, or for a part the first text's expression.
    """

    kind: str
    head: str
    code: str | None
    texts: list[Text]
    node: ast.expr

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts the entries of a module."""
        kinds = ("error", "notice", "raise", "part", "passed")
        rank = max(0, kinds.index(self.kind) - 1)
        return rank, self.head if rank != 0 else self.code, self.node.lineno, self.node.col_offset


@dataclass
class Module:
    """A file of the source.

    Args:
        path: The file.
        name: Its dotted name.
    """

    path: Path
    name: str
    entries: list[Entry] = field(default_factory=list)

    @cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The source, parsed."""
        return ast.parse(self.text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Each node's parent; the nodes are in the order of ``ast.walk``."""
        nodes, found = [self.tree], {}
        for node in nodes:
            for name in node._fields:
                value = getattr(node, name)
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                        found[child] = node
                        nodes.append(child)
        return found

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Functions and methods by name; of two with the same name the last."""
        return {node.name: node for node in self.parents if isinstance(node, ast.FunctionDef)}

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Values assigned at the top level."""
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        found[target.id] = node.value
        return found

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Names imported from drfl, as (module, name); of an imported module the name is empty."""
        found = {}
        for node in self.parents:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drfl"):
                for alias in node.names:
                    found[alias.asname or alias.name] = (node.module, alias.name)
        return found

    def enclosing(self, node: ast.AST) -> Iterator[ast.FunctionDef]:
        """Yield the functions around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                yield node


@cache
def assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Return the values that a function assigns to each variable."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


@cache
def returned_texts(function: ast.FunctionDef) -> list[ast.expr]:
    """Return the values that a function with text as its result returns; empty for other functions."""
    if function.returns is None or "str" not in ast.unparse(function.returns):
        return []
    returns = (node for node in ast.walk(function) if isinstance(node, ast.Return))
    return [node.value for node in returns if node.value is not None]


def escaped(text: str) -> str:
    """Escape text for a template."""
    return "".join(ESCAPES.get(c, c) for c in text)


def rendered(node: ast.expr) -> tuple[str, list[str]] | None:
    """Return the template and expressions of a text; None if it has no literal part."""
    if isinstance(node, ast.Constant):
        return (escaped(node.value), []) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts, expressions = [], []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(escaped(str(part.value)))
            else:
                source = ast.unparse(ast.JoinedStr([part]))[2:-1]
                parts.append(source)
                expressions.append(source)
        return "".join(parts), expressions
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [rendered(side) for side in (node.left, node.right)]
        if sides == [None, None]:
            return None
        texts, expressions = [], []
        for side, found in zip((node.left, node.right), sides, strict=True):
            template, inner = found or (f"{{{ast.unparse(side)}}}",) * 2
            texts.append(template)
            expressions += inner if isinstance(inner, list) else [inner]
        return "".join(texts), expressions
    return None


def texts_in(node: ast.expr) -> list[Text]:
    """Return the texts that an expression chooses among; empty if none has a literal part."""
    if isinstance(node, ast.IfExp):
        return texts_in(node.body) + texts_in(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in texts_in(value)]
    if (found := rendered(node)) is not None and found[0]:
        return [Text(node, *found)]
    return []


def is_wording(text: Text) -> bool:
    """Whether a text is a sentence and not only a name."""
    return not PLAIN_WORD.fullmatch(text.template)


class Scan:
    """All messages of some packages.

    Args:
        sources: The folders of the packages.
    """

    def __init__(self, *sources: Path) -> None:
        self.modules: dict[str, Module] = {}
        for folder in sources or SOURCES:
            for path in sorted(folder.rglob("*.py")):
                if "templates" not in path.parts:
                    parts = path.relative_to(folder.parent).with_suffix("").parts
                    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                    self.modules[name] = Module(path, name)
        self.classes = self._error_classes()
        """Subclasses of DrflError with their default code; None if they have none."""
        self.flows: dict[tuple[str, str], set[str]] = {}
        self._codes: dict[tuple[str, str], str] = {}
        """Parameters that give the codes of the messages of a function."""
        self._seen: set[tuple[str, int, int]] = set()
        self._followed: set[ast.expr] = set()
        for module in self.modules.values():
            for node in module.parents:
                if isinstance(node, ast.Call):
                    self._message(module, node)
        self._passed()
        for module in self.modules.values():
            module.entries.sort(key=lambda entry: entry.order)

    def _error_classes(self) -> dict[str, str | None]:
        nodes = (node for module in self.modules.values() for node in module.parents)
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        known: dict[str, str | None] = {"DrflError": None}
        before = 0
        while before != (before := len(known)):
            for node in classes:
                base = next((b.id for b in node.bases if isinstance(b, ast.Name) and b.id in known), None)
                if base is None or node.name in known:
                    continue
                values = [
                    inner.value.value
                    for inner in node.body
                    if isinstance(inner, ast.Assign)
                    and ast.unparse(inner.targets[0]) == "code"
                    and isinstance(inner.value, ast.Constant)
                ]
                code = str(values[0]) if values else known[base]
                known[node.name] = None if node.name == "InputError" else code
        return known

    def entries(self) -> Iterator[tuple[Module, Entry]]:
        """Every entry with its module."""
        for module in self.modules.values():
            for entry in module.entries:
                yield module, entry

    def resolve(self, module: Module, node: ast.expr) -> tuple[Module, str] | None:
        """Return the module and name that a name or attribute refers to within drfl; None if unknown."""
        if isinstance(node, ast.Name):
            if node.id in module.functions or node.id in module.constants:
                return module, node.id
            target = module.imports.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("self", "cls"):
                return module, node.attr
            home = module.imports.get(node.value.id)
            target = None if home is None else (f"{home[0]}.{home[1]}", node.attr)
        else:
            return None
        if target is None or target[0] not in self.modules:
            return None
        there = self.modules[target[0]]
        if target[1] in there.imports:  # exported by a package's __init__
            home, name = there.imports[target[1]]
            return (self.modules[home], name) if home in self.modules else None
        return there, target[1]

    def _message(self, module: Module, call: ast.Call) -> None:
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if not call.args:
            return
        raised = isinstance(module.parents.get(call), ast.Raise)
        if name in self.classes or name == NOTICE:
            if module.name == ERRORS_MODULE and isinstance(call.args[0], ast.Name):
                return
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            positional = dict(zip(("code", "field"), call.args[1:], strict=False)) if name == NOTICE else {}
            code, about = ((positional | keywords).get(key) for key in ("code", "field"))
            if isinstance(code, ast.Name):
                self._give_code(module, call, code)
            shown = self.classes.get(name) or "-" if code is None else self._value(code)
            head = shown if about is None else f"{shown} {self._value(about)}"
            entry = Entry("notice" if name == NOTICE else "error", head.strip(), shown, texts_in(call.args[0]), call)
        elif (raised and name.endswith(("Error", "Exception", "Exit"))) or name == "NotApplicable":
            entry = Entry("raise", f"raise {name}", None, texts_in(call.args[0]), call)
            if not entry.texts:
                return
        else:
            return
        if not entry.texts:
            source = f"{{{ast.unparse(call.args[0])}}}"
            entry.texts = [Text(call.args[0], source, [source])]
        module.entries.append(entry)
        self._parts(module, call, call.args[0])

    def _give_code(self, module: Module, call: ast.Call, code: ast.Name) -> None:
        """Note which parameter gives the code of the notices or errors that the function around a call returns."""
        for function in module.enclosing(call):
            made = "" if function.returns is None else ast.unparse(function.returns)
            if code.id in {a.arg for a in function.args.args} and (NOTICE in made or "InputError" in made):
                self._codes[module.name, function.name] = code.id

    @staticmethod
    def _value(node: ast.expr) -> str:
        if isinstance(node, ast.IfExp):
            return f"{Scan._value(node.body)}|{Scan._value(node.orelse)}"
        if isinstance(node, ast.Constant):
            return "" if node.value is None else str(node.value)
        found = rendered(node)
        return found[0] if found else f"{{{ast.unparse(node)}}}"

    def _parts(self, module: Module, at: ast.AST, message: ast.expr) -> None:
        """Add what a message takes from variables, constants and functions, and note which parameters it shows."""
        around = list(module.enclosing(at))
        for node in ast.walk(message):
            if isinstance(node, ast.Call) and (target := self.resolve(module, node.func)) is not None:
                home, name = target
                for value in returned_texts(home.functions[name]) if name in home.functions else ():
                    self._part(home, name, value)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(module, around, node)

    def _name(self, module: Module, around: list[ast.FunctionDef], node: ast.Name) -> None:
        """Add what a variable or constant of a message holds; of a parameter note that it is shown."""
        for function in around:
            if node.id in {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}:
                self.flows.setdefault((module.name, function.name), set()).add(node.id)
                return
            for value in assigned(function).get(node.id, ()):
                self._part(module, function.name, value)
        if (target := self.resolve(module, node)) is None or target[1] not in target[0].constants:
            return
        home, name = target
        value = home.constants[name]
        for part in value.values if isinstance(value, ast.Dict) else [value]:
            self._part(home, name, part)

    def _part(self, module: Module, name: str, value: ast.expr) -> None:
        if value in self._followed:  # for example if a text is built in several steps
            return
        self._followed.add(value)
        texts = [text for text in texts_in(value) if is_wording(text)]
        self._add(module, Entry("part", f"part of {name}", None, texts, value))
        if texts:
            self._parts(module, value, value)

    def _add(self, module: Module, entry: Entry) -> None:
        place = module.name, entry.node.lineno, entry.node.col_offset
        if entry.texts and place not in self._seen:
            self._seen.add(place)
            module.entries.append(entry)

    def _passed(self) -> None:
        """Add texts that calls pass to functions which show that parameter in a message, directly or indirectly."""
        calls = [(m, n) for m in self.modules.values() for n in m.parents if isinstance(n, ast.Call)]
        targets = [(m, n, target) for m, n in calls if (target := self.resolve(m, n.func)) is not None]
        done = set[ast.expr]()
        before = -1
        while before != (before := sum(map(len, self.flows.values()))):
            for module, call, (home, name) in targets:
                shown = self.flows.get((home.name, name))
                if not shown or name not in home.functions:
                    continue
                names = [a.arg for a in home.functions[name].args.args]
                if names[:1] in (["self"], ["cls"]):
                    names = names[1:]
                given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
                code = dict(given).get(self._codes.get((home.name, name), ""))
                literal = str(code.value) if isinstance(code, ast.Constant) else None
                if isinstance(code, ast.Name):
                    self._give_code(module, call, code)
                for parameter, value in given:
                    if parameter not in shown or isinstance(value, ast.Starred) or value in done:
                        continue
                    done.add(value)
                    texts = [text for text in texts_in(value) if is_wording(text)]
                    self._add(module, Entry("passed", f"passed to {name}", literal, texts, value))
                    self._parts(module, call, value)

    def snapshot(self) -> str:
        """Return the text of the snapshot."""
        lines = [HEADER]
        for module in self.modules.values():
            if module.entries:
                lines.append(f"\n[{module.name}]\n")
                for entry in module.entries:
                    lines.append(f"\n{entry.head}\n")
                    lines += [f"    {text.template}\n" for text in entry.texts]
        return "".join(lines)


def read_snapshot(text: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Read the entries (head, templates) of a snapshot by module."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("    ") and found and found[list(found)[-1]]:
            found[list(found)[-1]][-1][1].append(line[4:])
        elif line.startswith("[") and line.endswith("]"):
            found[line[1:-1]] = []
        elif line.strip() and not line.startswith(("#", " ")) and found:
            found[list(found)[-1]].append((line, []))
        elif line.strip() and not line.startswith("#"):
            raise EditError(f"{SNAPSHOT.name}, line {number}: expected '[module]', 'CODE FIELD' or an indented text")
    return found


def tokens(template: str, expressions: Iterable[str], where: str) -> list[tuple[bool, str]]:
    """Split an edited template into parts (is an expression, source or text).

    Raises:
        EditError: It does not have the same expressions.
    """
    known = sorted(set(expressions), key=len, reverse=True)
    unescape = {value: key for key, value in ESCAPES.items()}
    found: list[tuple[bool, str]] = []
    at = 0
    while at < len(template):
        if template[at : at + 2] in unescape:
            found.append((False, unescape[template[at : at + 2]]))
            at += 2
        elif template[at] in "{}\\":
            match = next((e for e in known if template.startswith(e, at)), None)
            if match is None:
                raise EditError(f"{where}: '{template[at:][:40]}' is not an expression of the message in the source")
            found.append((True, match))
            at += len(match)
        else:
            found.append((False, template[at]))
            at += 1
    if Counter(text for is_code, text in found if is_code) != Counter(expressions):
        raise EditError(f"{where}: the message needs each of {' '.join(expressions)} exactly as often as in the source")
    return found


def literal(parts: list[tuple[bool, str]], where: str) -> str:
    """One string literal of Python 3.11, in which an expression holds neither the outer quote nor a backslash."""
    code = "".join(text for is_code, text in parts if is_code)
    plain = "".join(text for is_code, text in parts if not is_code)
    quotes = [q for q in "\"'" if q not in code]
    if not quotes or "\\" in code:
        raise EditError(f"{where}: its expressions cannot be written back; edit it in the source")
    quote = next((q for q in quotes if q not in plain), quotes[0])

    def source(text: str) -> str:
        for old, new in (("\\", "\\\\"), ("\n", "\\n"), ("\t", "\\t"), (quote, "\\" + quote)):
            text = text.replace(old, new)
        return text.replace("{", "{{").replace("}", "}}") if code else text

    return ("f" if code else "") + quote + "".join(t if c else source(t) for c, t in parts) + quote


def expression(template: str, text: Text, indent: int, where: str) -> str:
    """Return the source of an edited template: adjacent literals, each short enough for a line."""
    room = max(40, WIDTH - indent - 16)
    pieces: list[list[tuple[bool, str]]] = [[]]
    word: list[tuple[bool, str]] = []
    for token in [*tokens(template, text.expressions, where), (False, " ")]:
        word.append(token)
        if token == (False, " "):
            if sum(len(t) for _, t in pieces[-1] + word) > room and pieces[-1]:
                pieces.append([])
            pieces[-1] += word
            word = []
    pieces[-1].pop()  # the space after the last word
    return " ".join(literal(piece, where) for piece in pieces if piece) or '""'


def edits(module: Module, new: list[tuple[str, list[str]]]) -> Iterator[tuple[Text, str, str]]:
    """Return the texts of a module that differ in an edited snapshot, with new template and position."""
    if len(new) != len(module.entries):
        raise EditError(f"[{module.name}] has {len(new)} entries, src has {len(module.entries)}: run `make messages`")
    for (head, templates), entry in zip(new, module.entries, strict=True):
        where = f"[{module.name}] {head}"
        if head != entry.head or len(templates) != len(entry.texts):
            raise EditError(f"{where}: src has '{entry.head}' here; only the indented texts may be edited")
        for template, text in zip(templates, entry.texts, strict=True):
            if template != text.template:
                yield text, template, where


def apply(scan: Scan, edited: str) -> list[Path]:
    """Write the texts of an edited snapshot into the source and return the changed files.

    Raises:
        EditError: Something other than wording differs. Nothing has been written then.
    """
    new = read_snapshot(edited)
    current = {name: module for name, module in scan.modules.items() if module.entries}
    if list(new) != list(current):
        differ = sorted(set(new) ^ set(current)) or ["their order"]
        raise EditError(f"the snapshot and src differ in modules ({', '.join(differ)}): run `make messages` first")
    sources: dict[Path, str] = {}
    for name, module in current.items():
        changes = sorted(edits(module, new[name]), key=lambda edit: (edit[0].node.lineno, edit[0].node.col_offset))
        lines = module.text.encode().splitlines(keepends=True)  # the columns of nodes count bytes
        for text, template, where in reversed(changes):
            node = text.node
            first, last = node.lineno - 1, (node.end_lineno or 0) - 1
            indent = len(lines[first]) - len(lines[first].lstrip())
            made = expression(template, text, indent, where).encode()
            lines[first : last + 1] = [lines[first][: node.col_offset] + made + lines[last][node.end_col_offset :]]
        if changes:
            sources[module.path] = b"".join(lines).decode()
            ast.parse(sources[module.path])
    for path, source in sources.items():
        path.write_text(source, encoding="utf-8")
    return list(sources)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="exit with 1 if the snapshot is not current")
    choice.add_argument("--apply", action="store_true", help="write edited wording back into src")
    options = parser.parse_args(arguments)
    scan = Scan()
    before = SNAPSHOT.read_text(encoding="utf-8") if SNAPSHOT.exists() else ""
    if options.apply:
        try:
            changed = apply(scan, before)
        except EditError as error:
            print(error, file=sys.stderr)
            return 2
        if changed:
            subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *map(str, changed)], check=True)
        print(f"{len(changed)} files changed")
        scan = Scan()
    now = scan.snapshot()
    if options.check:
        difference = list(unified_diff(before.splitlines(), now.splitlines(), SNAPSHOT.name, "src", n=1, lineterm=""))
        print("\n".join(difference[:40]))
        return int(bool(difference))
    if now != before:
        SNAPSHOT.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
