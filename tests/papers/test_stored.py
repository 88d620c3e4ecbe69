"""Paired differences made again from stored files."""

from __future__ import annotations

import csv
import json

import pytest
from tests.support.results import broken, results, trained
from tests.support.scripts import ROOT

from drfl.errors import InputError
from drfl.papers import stored
from drfl.papers.output import write
from drfl.papers.plan import Scale
from drfl.papers.specification import load_spec

RESULTS = ROOT / "experiments" / "results"
PAIRED = sorted(path.parent.name for path in RESULTS.glob("*/paired.csv"))


@pytest.fixture
def copy(tmp_path):
    for name in ("summary.json", "cells.csv", "table.md"):
        (tmp_path / name).write_bytes((RESULTS / "drdm-figure-5" / name).read_bytes())
    return tmp_path


def test_all_reproductions_with_pairs_are_there():
    assert len(PAIRED) == 20


@pytest.mark.parametrize("name", PAIRED)
def test_the_stored_differences_follow_from_the_stored_cells(name):
    for file, text in stored.paired_files(RESULTS / name).items():
        assert (RESULTS / name / file).read_bytes() == text.encode(), "run python experiments/recompute_pairs.py"


def test_files_just_written_are_made_again_byte_for_byte(tmp_path):
    def record(setting, method, seed):
        return broken() if (method, seed) == ("DRFA", 1) else trained(0.1, (len(method) + 2 * seed) / 41)

    write(
        results(load_spec("drdm-table-1"), record, Scale(repeats=6, settings=("α = 0.5",))), tmp_path, "drfl reproduce"
    )
    for file, text in stored.paired_files(tmp_path).items():
        assert (tmp_path / file).read_bytes() == text.encode()


def test_a_changed_cell_changes_both_files(copy):
    before = stored.paired_files(copy)
    text = (copy / "cells.csv").read_text(encoding="utf-8")
    worst = next(csv.DictReader(text.splitlines()))["worst_accuracy"]
    (copy / "cells.csv").write_text(text.replace(worst, "0.123456", 1), encoding="utf-8")
    after = stored.paired_files(copy)
    assert all(before[name] != after[name] for name in ("paired.csv", "table.md"))
    assert before["table.md"].partition(stored.PAIRED)[0] == after["table.md"].partition(stored.PAIRED)[0]


def test_runs_that_do_not_fit_the_specification_are_refused(copy):
    lines = (copy / "cells.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "cells.csv").write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(InputError, match="other runs than the specification drdm-figure-5"):
        stored.read(copy)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("summary.json", "{"),
        ("summary.json", "[]"),
        ("summary.json", json.dumps({"name": "drdm-figure-5"})),
        ("cells.csv", "setting,method,seed\na,b,c\n"),
        ("table.md", "# Nothing\n"),
        ("table.md", None),
    ],
)
def test_files_that_are_not_drfls_are_refused_in_one_line(copy, file, text):
    (copy / file).unlink()
    if text is not None:
        (copy / file).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="make it again") as error:
        stored.paired_files(copy)
    assert "\n" not in str(error.value)
