"""Test that cells on a Ray cluster give the same files as in this process, even if workers are lost."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
import torch
from tests.support.fake_ray import FakeRay
from tests.support.refusals import refused
from tests.support.small_spec import small_spec

import drfl
from drfl.cli.app import call
from drfl.core.errors import DrflError
from drfl.data import Dataset
from drfl.engine.ray_cluster import Cluster
from drfl.experiments.execution import cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import workers_of, workers_of_options
from drfl.experiments.execution.run_cells import run_all_cells
from drfl_papers.execute import run_cell
from drfl_papers.plan import Scale, plan

SMALL = ["--engine", "loop", "--clients", "6", "--cohort", "4", "--rounds", "2", "--steps", "2", "--seeds", "2"]
OF_TIME = ("seconds", "wall_seconds", "directory")


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def wanted(**changes):
    return [planned.cell for planned in plan(small_spec(**changes), Scale()).cells]


def files(folder):
    """Return the bytes of all files without times, and the content of JSON files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            found[name] = (
                {k: v for k, v in content.items() if k not in OF_TIME} if isinstance(content, dict) else content
            )
        elif path.is_file() and path.name not in ("timing.csv", "report.html", ".lock"):
            found[name] = path.read_bytes()
    return found


def records(folder, workers, some, run=run_cell):
    assert len(list(run_all_cells(some, folder, run, workers=workers))) == len(some)
    return files(folder)


def test_records_equal_local_ones_and_data_are_sent_once(tmp_path, ray):
    some = wanted(repeats=1)
    for cell in some:
        cells.write(tmp_path / "here", cell, run_cell(cell, None))
    assert records(tmp_path / "ray", Cluster(), some) == files(tmp_path / "here")
    assert sum(isinstance(what, Dataset) for what in ray.puts) == 1


def test_unstartable_or_lost_cell_ends_the_execution(tmp_path, ray):
    with refused("out-of-range", "m", "99"):
        records(tmp_path, Cluster(), [Cell("training", {**wanted()[0].job, "cohort": 99}, 1.0)])
    ray.lost = 2
    with refused("worker-lost", "ray", kind=DrflError):
        records(tmp_path, Cluster(), wanted()[:1])
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_comparison_writes_the_same_files(tmp_path, ray, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", *SMALL, "--algorithms", "FedAvg,DRDM"]
    assert call([*arguments, "--jobs", "1", "--out", "one"]) == 0
    assert call([*arguments, "--ray", "local", "--out", "ray"]) == 0
    assert files(tmp_path / "ray") == files(tmp_path / "one")
    assert len(ray.calls) == 4


def test_comparison_resumes_after_a_lost_worker(tmp_path, ray, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", *SMALL, "--algorithms", "FedAvg,DRDM", "--ray", "local", "--out", "a"]
    ray.lost = 3
    assert call(arguments) == 1
    ray.calls.clear()
    ray.lost = None
    assert call(["compare", "--resume", "--out", "a", "--ray", "local"]) == 0
    assert [given[-2:] for _, given in ray.calls] == [("FedAvg", 1)]
    assert (tmp_path / "a/compare.csv").is_file()


PARTS = [(torch.randn(12, 3, generator=torch.Generator().manual_seed(i)), torch.arange(12) % 2) for i in range(3)]
DATA = drfl.ClientData.from_arrays(PARTS)


@pytest.mark.long
def test_comparison_of_objects_on_ray(tmp_path, ray):
    pair, task = {"a": drfl.FedAvg(m=2), "b": drfl.DRFA(m=2)}, drfl.Task(torch.nn.Linear(3, 2))
    for jobs in (1, "ray"):
        drfl.compare(pair, DATA, task, rounds=2, seeds=1, jobs=jobs, out=tmp_path / str(jobs), progress=None)
    assert files(tmp_path / "ray") == files(tmp_path / "1")
    assert len(ray.calls) == 2


@pytest.mark.long
def test_search_on_ray(ray):
    def space(trial):
        return drfl.FedAvg(m=2, local=drfl.LocalSGD(steps=2, lr=trial.suggest_float("lr", 0.01, 1, log=True)))

    task, options = drfl.Task(torch.nn.Linear(3, 2)), {"rounds": 2, "seeds": 2, "trials": 3, "progress": None}
    one, two = (drfl.tune(space, DATA, task, jobs=jobs, **options) for jobs in (1, "ray"))
    assert (one.best_params, one.best_value) == (two.best_params, two.best_value)
    assert len(ray.calls) == 6


def test_jobs_and_ray_options_select_the_executor():
    assert workers_of("ray") == Cluster()
    assert workers_of(3) == workers_of_options(3, None, 1) == 3
    assert workers_of_options(2, "local", 1) == Cluster("local", 2)
    assert workers_of_options(None, "head:6379", 1) == Cluster("head:6379")
    with refused("conflicting-options", "jobs", "`jobs`"):
        workers_of_options(2, "head:6379", 1)
    with refused("invalid-value", "jobs", "'rya'", "'ray'"):
        workers_of("rya")


@pytest.mark.long
def test_unreachable_cluster_touches_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["compare", *SMALL, "--algorithms", "FedAvg", "--ray", "nowhere", "--out", "a"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.long
def test_killed_worker_leaves_the_same_records(tmp_path):
    died, some = tmp_path / "died", wanted()

    def run(cell, data_dir):
        if cell.key == some[2].key and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return run_cell(cell, data_dir)

    try:
        found = records(tmp_path / "ray", Cluster("local", 4), some, run)
    finally:
        sys.modules["ray"].shutdown()
    assert died.exists()
    assert found == records(tmp_path / "one", 1, some)
