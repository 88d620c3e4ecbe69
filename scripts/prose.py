"""Count the patterns of hard-to-read English in the documentation, docstrings, comments, messages and help texts.

    python scripts/prose.py                     print occurrences per 1,000 words; exit with 1 if one is above 1
    python scripts/prose.py --list NAME         print the sentences in which a pattern occurs; "all" for every pattern
    python scripts/prose.py PATH ...            look at these files or folders only

Code, tables of numbers, quoted output and generated blocks do not count. ``ALLOWED`` lists phrases that match a pattern
and are good English.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MOST = 1.0
"""Occurrences per 1,000 words of a kind of text at which the check fails."""

PATTERNS = {
    "headless clause": r"\b(?:what|whatever|whoever)\b(?! (?:to|if|about|else|kind|happens|changes|changed)\b)",
    "where": r"\bwhere\b",
    "told": r"\btold\b|\bis said\b|\bare said\b|\bsays? so\b|\bhas its word\b",
    "is no": r"\b(?:is|are|was|were) no (?!longer\b|more than\b|less than\b|fewer than\b|larger than\b|other\b)",
    "so many": r"\bso (?:many|much|few|often)\b(?! (?:that|as)\b)",
    "such a": r"\bsuch (?:a|an|one|ones)\b",
    "anew": r"\banew\b",
    "be had": r"\b(?:be|is|are) had\b",
    "go on": r"\bgo(?:es|ing)? on\b|\bwent on\b",
    "leave it out": r"\bleave (?:it|them|\S+) out\b|\bleft out\b",
    "means nothing": r"\bmeans? nothing\b",
    "of its own": r"\bof (?:its|their|one's) own\b|\bone's own\b",
    "literary verb": (
        r"\b(?:hangs?|hold|holds) (?:on|against)\b|\bbe it\b|\bcomes? (?:out|of it)\b|\bcame out\b|\btakes? over\b"
        r"|\bstands? (?:for|in|below|above|beside)\b|\blies? (?:in|at|below|beside)\b|\bbears? on\b"
    ),
    "person": r"\b(?:he|she|his|her|him|nobody|somebody|everybody)\b",
    "glossary": (
        r"\bworst[- ]off\b|\bequally good clients\b|\bthe promise\b|\bmay be said\b|\bconspicuous\b|\bwho is asked\b"
        r"|\bthose asked\b|\brows kept out\b|\bhas no say\b"
    ),
}

ALLOWED = (
    "from where",
    "where to ",
    "know where",
    "no matter what",
)
"""Phrases that match a pattern and are good English."""


class Text(NamedTuple):
    """A piece of text.

    Args:
        kind: "docs", "docstrings", "comments", "messages" or "help".
        place: file and line.
        words: the text.
    """

    kind: str
    place: str
    words: str


def sources(paths: list[Path]) -> Iterator[Text]:
    """All texts below some files and folders."""
    for path in paths:
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if "templates" in file.parts and file.suffix != ".py":
                continue
            if file.suffix == ".md":
                yield from markdown(file)
            elif file.suffix == ".py":
                yield from python(file)
            elif file.name == "messages.txt":
                yield from messages(file)


def markdown(file: Path) -> Iterator[Text]:
    """The paragraphs of a page without code, tables, links' addresses and generated blocks."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"<!-- begin.*?<!-- end.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    line = 1
    for paragraph in re.split(r"(\n{2,})", text):
        start, line = line, line + paragraph.count("\n")
        rows = [row for row in paragraph.splitlines() if not re.match(r"\s*\|", row)]
        if words := plain(" ".join(rows)):
            yield Text("docs", f"{file}:{start}", words)


def python(file: Path) -> Iterator[Text]:
    """The docstrings, comments and help texts of a module; its messages are in the snapshot."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # docstrings, and strings below constants and fields
            for one in body:
                if (
                    isinstance(one, ast.Expr)
                    and isinstance(one.value, ast.Constant)
                    and isinstance(one.value.value, str)
                ):
                    words = re.sub(r"^\s*(?:>>>|\.\.\.).*$", "", one.value.value, flags=re.MULTILINE)
                    yield Text("docstrings", f"{file}:{one.lineno}", plain(words))
        for text in help_texts(node):
            parts = (part.value for part in ast.walk(text) if isinstance(part, ast.Constant))
            words = " ".join(part for part in parts if isinstance(part, str))
            yield Text("help", f"{file}:{text.lineno}", plain(words))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(?:noqa|type:|pyright|fmt)", token.string):
            yield Text("comments", f"{file}:{token.start[0]}", plain(token.string.lstrip("# ")))


def help_texts(node: ast.AST) -> list[ast.expr]:
    """Return the help texts that a keyword or a call declares: of argparse and typer, and drfl's own declarations."""
    if isinstance(node, ast.keyword) and node.arg == "help":
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Setting", "option"):
        return [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg in ("none", "default"))]
    return []


def messages(file: Path) -> Iterator[Text]:
    """The wording of errors and warnings: the indented lines of the snapshot."""
    for number, row in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if row.startswith("    "):
            yield Text("messages", f"{file}:{number}", plain(re.sub(r"\{[^{}]*\}", "X", row)))


def plain(text: str) -> str:
    """Text without code, addresses and mark-up."""
    text = re.sub(r"``.+?``|`[^`]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)
    return " ".join(text.split())


def found_in(text: Text) -> Iterator[tuple[str, str]]:
    """Pattern and sentence of every occurrence."""
    for sentence in re.split(r"(?<=[.:;!?])\s+", text.words):
        # A question may begin with "what", and a heading may be one.
        if sentence.endswith("?"):
            continue
        cleaned = sentence
        for phrase in ALLOWED:
            cleaned = re.sub(re.escape(phrase), "", cleaned, flags=re.IGNORECASE)
        for name, pattern in PATTERNS.items():
            for _ in re.finditer(pattern, cleaned, flags=re.IGNORECASE):
                yield name, sentence


def main() -> int:
    """Count, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--list", metavar="NAME")
    options = parser.parse_args()
    defaults = [
        ROOT / name for name in ("README.md", "EXPERIMENTS.md", "docs", "examples", "src", "tests/messages.txt")
    ]
    words: Counter[str] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for text in sources(options.paths or defaults):
        words[text.kind] += len(text.words.split())
        for name, sentence in found_in(text):
            counts[name, text.kind] += 1
            if options.list in (name, "all"):
                print(f"{text.place} [{name}] {sentence}")
    if options.list:
        return 0
    kinds = [kind for kind in ("docs", "docstrings", "comments", "messages", "help") if words[kind]]
    print(f"{'per 1,000 words':18}" + "".join(f"{kind:>12}" for kind in kinds))
    rates = {(name, kind): 1000 * counts[name, kind] / words[kind] for name in PATTERNS for kind in kinds}
    for name in PATTERNS:
        print(f"{name:18}" + "".join(f"{rates[name, kind]:12.2f}" for kind in kinds))
    print(f"{'words':18}" + "".join(f"{words[kind]:12,}" for kind in kinds))
    high = [f"{name} in {kind}" for (name, kind), rate in rates.items() if rate > MOST]
    if high:
        print(
            f"above {MOST:g} per 1,000 words: {', '.join(high)}. See: python scripts/prose.py --list NAME",
            file=sys.stderr,
        )
    return bool(high)


if __name__ == "__main__":
    raise SystemExit(main())
