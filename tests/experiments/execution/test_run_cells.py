"""Test cells in parallel processes, each stored when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.marks import long_beyond
from tests.support.refusals import refused
from tests.support.results import broken
from tests.support.small_spec import small_spec

from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.run_cells import run_all_cells
from drfl_papers.execute import run_cell
from drfl_papers.plan import Scale, plan


def wanted(**changes):
    return [planned.cell for planned in plan(small_spec(**changes), Scale()).cells]


def without_time(record):
    return {name: value for name, value in record.items() if name != "seconds"}


@pytest.mark.long
def test_records_do_not_depend_on_the_number_of_processes(tmp_path):
    few = wanted(repeats=1)
    one = {end.cell.key: end.record for end in run_all_cells(few, tmp_path / "one", run_cell, workers=1)}
    two = {end.cell.key: end.record for end in run_all_cells(few, tmp_path / "two", run_cell, workers=2)}
    here = {cell.key: run_cell(cell, None) for cell in few}
    assert one.keys() == two.keys() == here.keys()
    for key, record in one.items():
        assert without_time(record) == without_time(two[key])
        assert record["rows"] == here[key]["rows"]
        assert record["rounds"] == 3
        assert [row["round"] for row in record["rows"]] == [0, 2, 3]


@pytest.mark.long
def test_known_results_are_not_computed_again(tmp_path):
    some = wanted(repeats=1, settings=[{"name": "a"}], values={})
    first = list(run_all_cells([*some, *some], tmp_path, run_cell, workers=2))
    assert [end.finished for end in first] == [1, 2]
    assert first[-1].share == pytest.approx(1)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = list(run_all_cells(some, tmp_path, run_cell, workers=2))
    assert all(end.was_stored for end in again)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == stamps
    assert {e.cell.key: e.record for e in again} == {e.cell.key: e.record for e in first}


@pytest.mark.parametrize("damage", long_beyond(2, [b"{", b'{"key": "another"}', b"", b"[]", b"\xff"]))
def test_damaged_record_is_computed_again(tmp_path, damage):
    cell = wanted(repeats=1)[0]
    record = run_cell(cell, None)
    cells.write(tmp_path, cell, record)
    whole = (tmp_path / f"{cell.key}.json").read_bytes()
    assert cells.read(tmp_path, cell) == json.loads(whole)
    (tmp_path / f"{cell.key}.json").write_bytes(damage)
    assert cells.read(tmp_path, cell) is None


@pytest.mark.parametrize("samples", [[-1, 20], [20.0], "20", [2**31]])
def test_record_with_impossible_test_samples_is_computed_again(tmp_path, samples):
    cell = wanted(repeats=1)[0]
    record = {**broken(), "samples": [20]}
    cells.write(tmp_path, cell, record)
    assert cells.read(tmp_path, cell) is not None
    cells.write(tmp_path, cell, {**record, "samples": samples})
    assert cells.read(tmp_path, cell) is None


def test_failed_run_is_a_result():
    methods = [{"name": "wild", "algorithm": "FedAvg", "parameters": {"lr": 1e38, "weight_decay": 1e3}}]
    record = run_cell(wanted(methods=methods, values={}, rounds=5)[0], None)
    assert record["stopped"] == "diverged"
    assert "lower lr" in str(record["reason"])
    assert record["rows"] == []


@pytest.mark.long
def test_unstartable_job_ends_the_execution(tmp_path):
    impossible = Cell("training", {**wanted()[0].job, "cohort": 99}, 1.0)
    with refused("out-of-range", "m", "99"):
        list(run_all_cells([impossible], tmp_path, run_cell, workers=1))
    assert not list(tmp_path.iterdir())


SLOW = """
import sys
from pathlib import Path
import numpy.random  # its modules in C lose an interrupt that arrives while they load
from drfl.experiments.execution.run_cells import run_all_cells
from drfl_papers.execute import run_cell
from tests.support.small_spec import small_spec
from drfl_papers.plan import Scale, plan
if __name__ == "__main__":
    cells = [p.cell for p in plan(small_spec(rounds=100_000, repeats=1), Scale()).cells]
    for end in run_all_cells(cells, Path(sys.argv[1]), run_cell, workers=2):
        print("done", flush=True)
"""


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in found]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("signum", long_beyond(1, [signal.SIGINT, signal.SIGKILL]))
def test_workers_end_with_their_parent(tmp_path, signum):
    parent = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path)], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while len(workers := children(parent.pid)) < 3 and time.monotonic() < deadline:  # two and the resource tracker
            time.sleep(0.1)
        assert len(workers) == 3
        os.kill(parent.pid, signum)
        parent.wait(timeout=60)
    finally:
        parent.kill()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)
    assert not list(tmp_path.glob("*.json"))
