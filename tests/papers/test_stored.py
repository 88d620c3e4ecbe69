"""Tables and paired differences made again from stored files."""

from __future__ import annotations

import csv
import json

import pytest
from tests.support.results import broken, results, trained
from tests.support.scripts import ROOT, script
from tests.support.small_spec import small_spec

from drfl.errors import InputError
from drfl.experiments.training_cells import train
from drfl.history import csv_text
from drfl.papers import stored
from drfl.papers.output import write
from drfl.papers.plan import Scale, plan
from drfl.papers.specification import load_spec

RESULTS = ROOT / "experiments" / "results"
SCRIPT = script("experiments/recompute_tables.py")
TRAINED = SCRIPT.stored()
SAMPLES = [20, 30] * 15


@pytest.fixture
def copy(tmp_path):
    for name in ("summary.json", "cells.csv", "table.md"):
        (tmp_path / name).write_bytes((RESULTS / "drdm-figure-5" / name).read_bytes())
    return tmp_path


@pytest.fixture
def fresh(tmp_path):
    """A result of clients with 20 and 30 test rows; one run broke off."""

    def record(setting, method, seed):
        if (method, seed) == ("DRFA", 1):
            return broken()
        return {**trained(0.1, round((len(method) + 2 * seed) / 30, 6)), "samples": SAMPLES}

    spec = load_spec("drdm-table-1")
    write(results(spec, record, Scale(repeats=6, settings=("α = 0.5",))), tmp_path, "drfl reproduce")
    return tmp_path


def without_equal(folder):
    """Make `cells.csv` as it was before it said what equally good clients would show."""
    rows = list(csv.reader((folder / "cells.csv").read_text(encoding="utf-8").splitlines()))
    kept = [k for k, name in enumerate(rows[0]) if not name.startswith("equal_")]
    assert len(kept) == len(rows[0]) - 2
    (folder / "cells.csv").write_text(csv_text([], ([row[k] for k in kept] for row in rows))[1:], encoding="utf-8")


def test_all_reproductions_of_training_are_there():
    assert len(TRAINED) == 21
    assert len(list(RESULTS.glob("*/paired.csv"))) == 20


@pytest.mark.parametrize("name", TRAINED)
def test_the_stored_tables_follow_from_the_stored_cells(name):
    for file, text in stored.recomputed(RESULTS / name).items():
        assert (RESULTS / name / file).read_bytes() == text.encode(), "run python experiments/recompute_tables.py"


@pytest.mark.parametrize("name", TRAINED)
def test_no_worst_client_is_stored_without_that_of_equally_good_ones(name):
    text = (RESULTS / name / "table.md").read_text(encoding="utf-8")
    assert "## Worst accuracy of equally good clients, %\n" in text
    rows = list(csv.DictReader((RESULTS / name / "cells.csv").read_text(encoding="utf-8").splitlines()))
    for row in rows:
        assert bool(row["equal_worst"]) == bool(row["equal_std"]) == bool(row["worst_accuracy"])
        assert not row["equal_worst"] or float(row["equal_worst"]) < float(row["avg_accuracy"])


def test_files_just_written_are_made_again_byte_for_byte(fresh):
    for file, text in stored.recomputed(fresh).items():
        assert (fresh / file).read_bytes() == text.encode()


def test_older_files_say_nothing_of_equally_good_clients_until_test_sizes_are_given(fresh):
    before = {name: (fresh / name).read_text(encoding="utf-8") for name in ("cells.csv", "table.md")}
    without_equal(fresh)
    texts = stored.recomputed(fresh)
    assert "equally good" not in texts["table.md"]
    assert texts["cells.csv"].splitlines()[0] == before["cells.csv"].splitlines()[0]
    texts = stored.recomputed(fresh, lambda planned: SAMPLES)
    assert {name: texts[name] for name in before} == before


def test_test_sizes_that_are_not_the_runs_are_refused(fresh):
    with pytest.raises(InputError, match="DRDM, seed 0: no client has a test set on which"):
        stored.recomputed(fresh, lambda planned: [20] * 30)


def test_test_sets_dealt_again_are_those_of_the_runs():
    planned = plan(small_spec(), Scale(rounds=1, repeats=2)).cells
    sizes = SCRIPT.test_sizes(None)
    for cell in (planned[0], planned[-1]):
        assert sizes(cell) == train(cell.cell.job, None)["samples"]
    assert sizes(planned[0]) != sizes(planned[-1])


def test_a_changed_cell_changes_both_files(copy):
    before = stored.recomputed(copy)
    text = (copy / "cells.csv").read_text(encoding="utf-8")
    worst = next(csv.DictReader(text.splitlines()))["worst_accuracy"]
    (copy / "cells.csv").write_text(text.replace(worst, "0.123456", 1), encoding="utf-8")
    after = stored.recomputed(copy)
    assert all(before[name] != after[name] for name in ("paired.csv", "table.md"))
    heading = "## Average accuracy, %"
    assert before["table.md"].partition(heading)[0] == after["table.md"].partition(heading)[0]


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
        stored.recomputed(copy)
    assert "\n" not in str(error.value)
