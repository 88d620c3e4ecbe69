"""Test ``drfl report`` on runs of several folders."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from tests.support.pdf_text import texts
from tests.support.refusals import check_refusal

from drfl.cli.app import call


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, small = tmp_path_factory.mktemp("made"), "--clients 4 --rounds 1 --steps 1 --param lr=0.1"
    assert call(f"run --algorithm FedAvg {small} --out {folder / 'one'}".split()) == 0
    assert call(f"compare --algorithms DRFA,AFL --seeds 2 {small} --out {folder / 'several'}".split()) == 0
    return folder


@pytest.fixture(autouse=True)
def folder(made, tmp_path, monkeypatch, capsys):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "compare.csv").write_text("a\n1\n")
    capsys.readouterr()


def test_report_on_runs_and_comparisons(capsys):
    assert call(["report", "one", "several", "--out", "all.html", "--title", "Mine"]) == 0
    assert re.fullmatch(r".* all\.html\n", capsys.readouterr().out)
    page = Path("all.html").read_text()
    assert all(name in page for name in ("FedAvg", "DRFA", "AFL", "<h1>Mine"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("none", ("not-a-run", "none")),
        ("foreign", ("file-not-found", "foreign/summary.json")),
        ("several/compare.csv", ("not-a-run", "several/compare.csv")),
        ("one --out one", ("not-a-file", "one")),
        ("one --out one --overwrite", ("not-a-file", "one")),
        ("one --out nowhere/r.html", ("folder-not-found", "nowhere")),
        ("", ("usage", None, "missing")),
    ],
)
def test_mistake_is_a_one_line_error(words, error, capsys):
    check_refusal(["report", *words.split()], *error)
    assert not Path("report.html").exists()


def test_existing_report_is_replaced_only_with_overwrite(capsys):
    Path("report.html").write_text("mine")
    assert call(["report", "one"]) == 2
    assert Path("report.html").read_text() == "mine"
    assert call(["report", "one", "--overwrite"]) == 0
    assert "FedAvg" in Path("report.html").read_text()


def test_pdf_is_written_alone_or_with_the_page(capsys):
    assert call(["report", "one", "several", "--pdf", "all.pdf", "--title", "Mine"]) == 0
    assert re.fullmatch(r".* all\.pdf\n", capsys.readouterr().out)
    assert not Path("report.html").exists()
    whole = Path("all.pdf").read_bytes()
    assert "Mine" in texts(whole)[0]
    assert call(["report", "one", "several", "--pdf", "all.pdf", "--out", "all.html", "--title", "Mine"]) == 2
    assert not Path("all.html").exists()
    words = ["--pdf", "again.pdf", "--out", "all.html", "--title", "Mine"]
    assert call(["report", "one", "several", *words]) == 0
    assert Path("again.pdf").read_bytes() == whole
    assert Path("all.html").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("none --pdf r.pdf", ("not-a-run", "none")),
        ("one --pdf one", ("not-a-file", "one", "--pdf")),
        ("one --pdf nowhere/r.pdf", ("folder-not-found", "nowhere")),
        ("one --pdf r.pdf --out r.pdf", ("conflicting-options", "pdf", "--out", "--pdf", "r.pdf")),
    ],
)
def test_mistake_about_the_pdf_is_a_one_line_error(words, error, capsys):
    check_refusal(["report", *words.split()], *error)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert not Path("r.pdf").exists()


def test_missing_extra_is_named_before_runs_are_read(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typst" else found(name))
    assert call(["report", "none", "--pdf", "r.pdf"]) == 2
    assert "pip install 'drfl[pdf]'" in capsys.readouterr().err


def test_comparison_without_finished_runs_is_refused():
    for path in Path("several").glob("*/summary.json"):
        path.unlink()
    assert call(["report", "several"]) == 2
