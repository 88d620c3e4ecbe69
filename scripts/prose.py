"""Count patterns of hard-to-read English, and measure how easy the first pages are to read.

    python scripts/prose.py                     print occurrences per 1,000 words and the reading ease of first pages;
                                                exit with 1 if a value is beyond its limit
    python scripts/prose.py --list NAME         print the sentences in which a pattern occurs; "all" for every pattern
    python scripts/prose.py PATH ...            read only these files or folders, and measure no reading ease

It reads the documentation, docstrings, comments, messages and help texts. Code, tables, quoted output and generated
blocks do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import math
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

try:
    import pyphen
except ImportError:
    pyphen = None

ROOT = Path(__file__).parents[1]
HIGHEST_RATE = 1.0
"""Occurrences per 1,000 words of a kind of text above which the check fails."""

LOWEST_EASE = 50.0
"""Flesch reading ease of a first page below which the check fails."""

LONGEST_SENTENCE = 40
"""Words of a sentence of a first page above which the check fails."""


def first_pages() -> list[Path]:
    """Return the pages that a newcomer reads first."""
    return [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "start").glob("*.md"))]


PATTERNS = {
    "headless clause": r"\b(?:what|whatever|whoever)\b(?! (?:to|if|about|else|kind|happens|changes|changed)\b)",
    "where": r"\bwhere\b",
    "told": r"\btold\b|\bis said\b|\bare said\b|\bsays? so\b|\bhas its word\b",
    "is no": (
        r"(?<!\bthere )\b(?:is|are|was|were) no "
        r"(?!longer\b|other\b|(?:more|less|fewer|larger|better|worse|faster) than\b)"
    ),
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
    "torch.where",
)
"""Phrases that match a pattern but are good English."""


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
    """Yield all texts in these files and folders."""
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
    """Yield the paragraphs of a page without code, tables, addresses of links and generated blocks."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(
        r"<!-- \S+: written by.*?<!-- end -->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL
    )
    text = re.sub(r"^( *)```.*?^\1```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    line = 1
    for paragraph in re.split(r"(\n{2,})", text):
        start, line = line, line + paragraph.count("\n")
        rows = [row for row in paragraph.splitlines() if not re.match(r"\s*\|", row)]
        if words := plain(" ".join(rows)):
            yield Text("docs", f"{file}:{start}", words)


def python(file: Path) -> Iterator[Text]:
    """Yield the docstrings, comments and help texts of a module; the snapshot has its messages."""
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
    """Yield the wording of errors and warnings, which are the indented lines of the snapshot."""
    for number, row in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if row.startswith("    "):
            yield Text("messages", f"{file}:{number}", plain(re.sub(r"\{[^{}]*\}", "X", row)))


def plain(text: str) -> str:
    """Remove code, addresses and mark-up from text."""
    text = re.sub(r"``.+?``|`[^`]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)
    return " ".join(text.split())


def found_in(text: Text) -> Iterator[tuple[str, str]]:
    """Yield the pattern and the sentence of every occurrence."""
    for sentence in re.split(r"(?<=[.:;!?])\s+", text.words):
        # A question may begin with "what", and "what:" may be the name of an argument.
        if sentence.endswith("?") or re.fullmatch(r"\w+:", sentence):
            continue
        cleaned = sentence
        for phrase in ALLOWED:
            cleaned = re.sub(re.escape(phrase), "", cleaned, flags=re.IGNORECASE)
        for name, pattern in PATTERNS.items():
            for _ in re.finditer(pattern, cleaned, flags=re.IGNORECASE):
                yield name, sentence


class Ease(NamedTuple):
    """How easy a page is to read.

    Args:
        flesch: Flesch reading ease, 206.835 − 1.015·words/sentences − 84.6·syllables/words; NaN without pyphen.
        longest: The longest sentence.
    """

    flesch: float
    longest: str


def ease(file: Path) -> Ease:
    """Measure the reading ease of a page; the end of a paragraph or of a list item ends a sentence."""
    sentences = []
    for block in blocks_of(file.read_text(encoding="utf-8")):
        sentences += [one for one in re.split(r"(?<=[.!?])\s+", block) if words_of(one)]
    words = [word for one in sentences for word in words_of(one)]
    flesch = math.nan
    if pyphen is not None:
        # A word has one syllable more than places at which it may be divided.
        places = pyphen.Pyphen(lang="en_US").positions
        syllables = sum(1 + len(places(word.lower())) for word in words)
        flesch = 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * syllables / len(words)
    return Ease(flesch, max(sentences, key=lambda one: len(words_of(one))))


def blocks_of(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page as plain text, without headings, tables, pictures and code."""
    text = re.sub(r"<!-- \S+: written by.*?<!-- end -->|<!--.*?-->", "", page, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^\1```|^\$\$.*?^\$\$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\s*(?:\||!\[|#).*$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        yield plain(re.sub(r"`[^`]*`", "", block.lstrip("-* \n")))


def words_of(text: str) -> list[str]:
    """Split text into words."""
    return re.findall(r"[^\W\d_]+(?:['’-][^\W\d_]+)*", text)


def print_ease() -> list[str]:
    """Print the reading ease of the first pages, and return the values that are beyond their limits."""
    wrong = []
    print(f"\n{'first pages':28}{'Flesch ease':>12}{'longest sentence':>18}")
    for file in first_pages():
        name, (flesch, longest) = str(file.relative_to(ROOT)), ease(file)
        count = len(words_of(longest))
        print(f"{name:28}{flesch:12.1f}{count:>18}")
        if flesch < LOWEST_EASE:
            wrong.append(f"{name}: reading ease {flesch:.1f}, below {LOWEST_EASE:g}")
        if count > LONGEST_SENTENCE:
            wrong.append(f"{name}: {count} words in a sentence, above {LONGEST_SENTENCE}: {longest}")
    if pyphen is None:
        print("The reading ease was not measured, because pyphen is not installed (extra 'dev').")
    return wrong


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
    wrong = [
        f"{name} in {kind}: above {HIGHEST_RATE:g} per 1,000 words. See: python scripts/prose.py --list '{name}'"
        for (name, kind), rate in rates.items()
        if rate > HIGHEST_RATE
    ]
    if not options.paths:
        wrong += print_ease()
    print(*wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
