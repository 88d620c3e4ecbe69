"""Test that the page on a run's files names every file and column of a comparison."""

from __future__ import annotations

import re

import pytest
from tests.support.scripts import ROOT

from drfl.cli.app import call

PAGE = (ROOT / "docs" / "reference" / "files.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "three"
    job = ["--clients", "3", "--rounds", "1", "--seeds", "1", "--algorithms", "DRFA,DualDRDM", "--metric", "log-loss"]
    more = ["--certificate", "--averaged", "--lr", "0.1", "--param", "weight_decay=0.01"]
    assert call(["compare", *job, *more, "--out", str(out)]) == 0
    return out


@pytest.mark.long
def test_page_names_every_file(folder):
    named = set(re.findall(r"^\| .*", PAGE, flags=re.MULTILINE))
    files = {name for row in named for name in re.findall(r"`([\w.-]+)`", row.split("|")[1])}
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert left <= files, left - files


@pytest.mark.parametrize("name", ["compare.csv", "history.csv", "clients.csv", "timing.csv"])
def test_page_names_every_column(folder, name):
    (path,) = [folder / name] if name == "compare.csv" else folder.glob(f"DRFA-seed0/{name}")
    (row,) = re.findall(rf"^\| `{name}`, one row .*?\| (.*) \|$", PAGE, flags=re.MULTILINE) or re.findall(
        rf"^\| `{name}` \| (`round`.*) \|$", PAGE, flags=re.MULTILINE
    )
    named = {
        "history.csv": ["log_loss"],
        "clients.csv": ["accuracy", "log_loss", "accuracy_count", "log_loss_sum", "log_loss_squares"],
    }.get(name, [])  # the page describes the score, other metrics and sums in words
    tokens = re.findall(r"`([\w.…]+)`", row)
    patterns = [re.escape(token).replace("…", r"\w+") for token in [*tokens, *named]]
    for column in path.read_text().splitlines()[0].split(","):
        assert any(re.fullmatch(pattern, column) for pattern in patterns), column
