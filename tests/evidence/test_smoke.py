"""Test that every script and job file of the stored evidence runs at its smallest size; see evidence/script.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.scripts import ROOT

import drfl
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.config.data_settings import load_data
from evidence import script, stand_in_data

PLACES = ("evidence", "benchmarks")

PATIENCE = 900
"""Seconds after which a script counts as hanging."""


def scripts() -> list[str]:
    """Return the files that are commands, without those in packages, such as the adapters of benchmarks/peer."""
    paths = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py"))
    return [
        path.relative_to(ROOT).as_posix()
        for path in paths
        if not (path.parent / "__init__.py").exists() and 'if __name__ == "__main__":' in path.read_text()
    ]


WAITING = (
    "evidence/flower_backends.py",
    "evidence/hostile_sites.py",
    "evidence/signal_storm.py",
    "benchmarks/ray_cluster.py",
)
"""Scripts that mostly wait for processes of Flower or Ray."""


def job_files() -> list[str]:
    """Return the TOML files that `drfl compare` reads."""
    found = sorted((ROOT / "evidence").rglob("*.toml"))
    found = [path for path in found if "results" not in path.parts and "dataset" in tomllib.loads(path.read_text())]
    return [path.relative_to(ROOT).as_posix() for path in found]


def smoke(path: Path, folder: Path, data: Path) -> tuple[int, str]:
    """Run a script at its smallest size into ``folder``/out, and return exit code and output."""
    command = [sys.executable, str(path), "--smoke", "--out", str(folder / "out")]
    environment = {**os.environ, "DRFL_STAND_IN": str(data), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, (folder / "log").read_text(errors="replace")


def written() -> dict[str, tuple[int, int]]:
    """Return time and size of every file of the repository that a script could write."""
    folders = [ROOT / name for name in (*PLACES, "docs", "examples", "src")]
    paths = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stand-in") / "data"
    stand_in_data.write(folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.first if name in WAITING else ()) for name in scripts()]
)
def test_every_script_runs_and_writes_only_to_its_folder(name, data, tmp_path):
    before = written()
    code, log = smoke(ROOT / name, tmp_path, data)
    assert code == 0, log[-5000:]
    assert any(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert written() == before


@pytest.mark.long
@pytest.mark.parametrize("name", job_files())
def test_every_algorithm_of_a_job_file_plays_a_round(name, data):
    place = data / "shakespeare.txt" if "shakespeare" in name else data
    config = load_config(ROOT / name, {"data_dir": place, "steps": 1})
    dataset = load_data(config)
    for algorithm in config.algorithms:
        job = build(config.for_algorithm(algorithm, 0), dataset)
        assert drfl.run(job.algorithm, job.fed, rounds=1).rounds == 1


def test_script_without_a_smoke_mode_fails(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    code, log = smoke(script, tmp_path, tmp_path)
    assert code == 2
    assert "--smoke" in log


def test_scripts_are_found_without_modules_and_adapters():
    found = scripts()
    assert {"evidence/promise.py", "evidence/promise/rules.py", "benchmarks/peers.py"} <= set(found)
    assert not [name for name in found if "/peer/" in name or name.endswith(("/tables.py", "/evidence.py"))]
    assert "evidence/promise/mnist_dirichlet.toml" in job_files()


def test_only_smoke_runs_use_small_sizes_and_other_folders(tmp_path):
    assert script.sized(100, 1) == 100
    options = script.parser("doc", tmp_path, data=True).parse_args([])
    assert (options.out, options.data_dir, options.smoke) == (tmp_path, None, False)


def test_smoke_cannot_be_abbreviated(tmp_path):
    with pytest.raises(SystemExit, match="2"):
        script.parser("doc", tmp_path).parse_args(["--smo"])


def test_tuned_hyperparameters_exist_in_the_algorithms():
    tuned = script.tuned("mnist-linear")
    assert set(tuned) == {"DRDM", "DRFA", "SCAFFOLD", "ScaffPD", "FedAvg", "DualDRDM", "FedDyn"}
    assert set(tuned) <= set(drfl.ALGORITHMS)
    assert tuned["ScaffPD"].keys() == {"m", "lr", "sigma"}  # without settings such as 20 clients or minibatch reports
