"""Test a long scenario of a deployment with real processes that are killed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.scripts import ROOT


@pytest.mark.long
@pytest.mark.first
def test_long_scenario_of_a_deployment():
    found = subprocess.run(
        [sys.executable, "scripts/try_story.py", "--long"], cwd=ROOT, capture_output=True, text=True, timeout=1800
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "the same results" in found.stdout
