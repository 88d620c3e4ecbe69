"""Test tables and figures made from cells, also after a killed process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support.refusals import refused
from tests.support.small_spec import small_spec

from drfl_papers.execute import CELLS, check_place, reproduce, size
from drfl_papers.plan import Scale, plan

RUN = """
import sys
from pathlib import Path
from drfl_papers.execute import reproduce
from drfl_papers.plan import Scale, plan
from tests.support.small_spec import small_spec
if __name__ == "__main__":
    plans = [plan(small_spec(), Scale())]
    reproduce(plans, Path(sys.argv[1]), "a command", workers=2, done=lambda done: print(done.was_stored, flush=True))
"""


def files(folder):
    """Return all files except the records, which contain times."""
    found = (path for path in folder.rglob("*") if path.is_file() and CELLS not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def start(folder):
    return subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_killed_run_resumes_and_ends_the_same(tmp_path):
    whole = start(tmp_path / "whole")
    assert whole.communicate()[0].split() == ["False"] * 8
    assert whole.returncode == 0
    killed = start(tmp_path / "killed")
    assert killed.stdout.readline() == "False\n"  # a cell is finished
    killed.kill()
    killed.wait()
    killed.stdout.close()
    assert not (tmp_path / "killed" / "small-table-1").exists()
    known = len(list((tmp_path / "killed" / CELLS).glob("*.json")))
    assert known
    last = start(tmp_path / "killed")
    answers = last.communicate()[0].split()
    assert answers.count("True") >= known
    assert len(answers) == 8
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert "small-table-1/table.md" in files(tmp_path / "whole")


@pytest.mark.long
def test_short_result_does_not_replace_a_long_one(tmp_path):
    long, short = plan(small_spec(), Scale()), plan(small_spec(), Scale(repeats=1))
    reproduce([long], tmp_path, "a command", workers=2)
    before = json.loads((tmp_path / "small-table-1/summary.json").read_text())
    assert {name: before[name] for name in size(long)} == size(long)
    check_place(long, tmp_path, overwrite=False)
    with refused("other-run", "repeats", "2", "1"):
        check_place(short, tmp_path, overwrite=False)
    check_place(short, tmp_path, overwrite=True)
    written = []
    reproduce([short], tmp_path, "a command", workers=2, written=lambda collected, folder: written.append(folder))
    assert written == [tmp_path / "small-table-1"]
    assert json.loads((tmp_path / "small-table-1/summary.json").read_text())["repeats"] == 1


def test_foreign_folder_is_unchanged(tmp_path):
    (tmp_path / "small-table-1").mkdir()
    (tmp_path / "small-table-1/notes.txt").write_text("mine")
    with refused("foreign-folder", str(tmp_path / "small-table-1")):
        check_place(plan(small_spec(), Scale()), tmp_path, overwrite=True)
