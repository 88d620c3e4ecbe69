"""Test that the snapshot of messages is current, every message has a code, and edited wording reaches the source."""

from __future__ import annotations

import gc
import re

import pytest
from scripts import messages
from scripts.error_codes import CODES
from scripts.messages import EditError, Scan, apply

KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")

ERRORS = """
class DrflError(Exception):
    code = "error"


class InputError(DrflError):
    code = "input"
"""

CODE = """
from drfl.core.errors import InputError

SEVERAL = "several parts"


def refuse(name: str, why: str) -> None:
    raise InputError(f"{name} is wrong: {why}", code="wrong-type", field=name)


def reason(n: int) -> str:
    return f"only {n} rows"


def check(x: float, names: list[str]) -> None:
    hint = "" if x else " or more"
    if x < 0:
        raise InputError(
            f"ä {x:.2f} \\u2026 \\"quoted\\" {{}}: {', '.join(names)}{hint}", code="out-of-range", field="x"
        )
    if x > 1:
        raise InputError("one" if x > 2 else "two", code="out-of-range")
    if x == 1:
        raise InputError(reason(3) + ", " + SEVERAL)
    refuse("x", "it has to be smaller")
"""


@pytest.fixture
def source(tmp_path):
    package = tmp_path / "drfl"
    package.mkdir()
    (package / "errors.py").write_text(ERRORS, encoding="utf-8")
    (package / "own.py").write_text(CODE, encoding="utf-8")
    return package


@pytest.fixture(scope="module")
def scan():
    # The trees have millions of objects, none of which is garbage.
    gc.disable()
    found = Scan()
    gc.freeze()
    gc.enable()
    return found


def codes(scan):
    """Return the literal codes, each with its module."""
    found = [(module.name, code) for module, entry in scan.entries() for code in (entry.code or "").split("|")]
    return [(name, code) for name, code in found if code and "{" not in code]


def test_snapshot_is_current(scan):
    assert scan.snapshot() == messages.SNAPSHOT.read_text(encoding="utf-8"), "run `make messages`"


def test_codes_are_well_formed_and_documented(scan):
    given = {code for _, code in codes(scan)} - {"-"}
    assert given
    assert given <= set(CODES), "add these to scripts/error_codes.py"
    assert [code for code in CODES if not KEBAB.fullmatch(code)] == []
    assert list(CODES) == sorted(CODES)


def test_every_message_has_a_code_and_every_code_a_message(scan):
    assert [name for name, code in codes(scan) if code == "-"] == []
    # A site's error has the code of the original one, if it has a code.
    made = {"site-failed", *(f"reply-{how}" for how in ("failed", "rejected", "silent"))}
    assert set(CODES) - made <= {code for _, code in codes(scan)}


def test_parser_finds_messages_and_their_parts(source):
    entries = {entry.head: [text.template for text in entry.texts] for _, entry in Scan(source).entries()}
    assert entries == {
        "out-of-range x": ["ä {x:.2f} … \"quoted\" {{}}: {', '.join(names)}{hint}"],
        "out-of-range": ["one", "two"],
        "-": ["{reason(3)}, {SEVERAL}"],
        "wrong-type {name}": ["{name} is wrong: {why}"],
        "part of check": [" or more"],
        "part of reason": ["only {n} rows"],
        "part of SEVERAL": ["several parts"],
        "passed to refuse": ["it has to be smaller"],
    }


def test_edited_wording_is_written_back_and_nothing_else(source):
    assert apply(Scan(source), Scan(source).snapshot()) == []
    edited = Scan(source).snapshot()
    for old, new in (
        (": {', '.join(names)}{hint}", "{hint} 'not' {', '.join(names)} " + " ".join(["word"] * 80)),
        ("    two\n", "    two {{more}}\n"),
        ("it has to be", "make it"),
        ("only {n}", "{n}"),
    ):
        assert old in edited
        edited = edited.replace(old, new)
    assert apply(Scan(source), edited) == [source / "own.py"]
    assert Scan(source).snapshot() == edited


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{name} is wrong: {why}", "{name} is wrong"),
        ("{name} is wrong: {why}", "{name} is wrong: {why} {why}"),
        ("{name} is wrong: {why}", "{name} is wrong: {other}"),
        ("{name} is wrong: {why}", "{name} is wrong: {why} }"),
        ("wrong-type {name}", "wrong-kind {name}"),
        ("    two\n", ""),
        ("[drfl.own]", "[drfl.other]"),
        ("[drfl.own]", "drfl.own"),
    ],
)
def test_other_edits_are_refused_and_leave_the_source(old, new, source):
    before = (source / "own.py").read_bytes()
    edited = Scan(source).snapshot()
    assert old in edited
    with pytest.raises(EditError):
        apply(Scan(source), edited.replace(old, new))
    assert (source / "own.py").read_bytes() == before


def test_difference_is_shown_and_fails(source, monkeypatch, capsys, tmp_path):
    snapshot = tmp_path / "messages.txt"
    monkeypatch.setattr(messages, "SNAPSHOT", snapshot)
    monkeypatch.setattr(messages, "Scan", lambda: Scan(source))
    assert messages.main([]) == 0
    assert messages.main(["--check"]) == 0
    snapshot.write_text(snapshot.read_text(encoding="utf-8").replace("only", "just"), encoding="utf-8")
    assert messages.main(["--check"]) == 1
    assert "just {n} rows" in capsys.readouterr().out


def test_page_lists_the_messages(capsys):
    page = (messages.ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed
