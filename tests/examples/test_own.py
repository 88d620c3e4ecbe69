"""Test the examples of own code: their length, and that they run from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.support.scripts import ROOT

OWN = ROOT / "examples" / "own"
HOSPITALS = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]


def lines(path):
    """Return the lines with code."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] not in '"#']


def ran(command, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_examples_are_short():
    assert len(lines(OWN / "own_study.py")) <= 30
    assert len(lines(OWN / "four_hospitals.sh")) <= 10


@pytest.mark.long
def test_own_study_runs_from_another_folder(tmp_path):
    out = ran([sys.executable, OWN / "own_study.py"], tmp_path)
    assert [line.split("|")[1].strip() for line in out.strip().splitlines()[-3:]] == ["FedAdam", "DRFA", "DualDRDM"]
    assert "worst AUC" in out
    assert "worst F1" in out
    folder = tmp_path / "runs" / "own"
    assert (folder / "worst.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "report.html").is_file()
    rows = pd.read_csv(folder / "compare.csv")
    assert rows.groupby("algorithm")["seed"].nunique().eq(5).all()
    assert (rows["stopped"] == "patience").any()


@pytest.mark.long
def test_four_csv_files_run_from_another_folder(tmp_path):
    ran(["sh", OWN / "four_hospitals.sh"], tmp_path)
    folder = tmp_path / "runs" / "hospitals"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(f'<th scope="row">{name}</th>' in page for name in HOSPITALS)
    assert "AUC by client" in page
    assert "Calibration error by client" in page
    clients = pd.read_csv(folder / "LocalOnly-seed0" / "clients.csv")
    assert clients["client"].tolist() == HOSPITALS
    assert clients["auc"].isna().tolist() == [False, False, True, False]
