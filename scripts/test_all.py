"""Run all tests, including the long ones, and store the date, the commit and the outcome.

The result is written to evidence/results/test-all/summary.json. It notes uncommitted changes in the working tree.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "evidence/results/test-all/summary.json"


class Outcomes:
    """Counts outcomes of tests; a test whose set-up or tear-down fails counts as failed."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of a test; pytest also calls this for tests in worker processes."""
        if report.when == "call" or report.failed or (report.when == "setup" and report.skipped):
            self.counts[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)


def git(*words: str) -> str:
    """Return the output of git."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run the tests, write the result, and return pytest's exit code."""
    began, outcomes = time.perf_counter(), Outcomes()
    commit = git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain") else "")
    # Two processes more than there are cores, because some long tests mostly wait for other processes or for the disk.
    workers = ["-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal"]
    code = int(pytest.main([*workers, "-m", "", *sys.argv[1:]], plugins=[outcomes]))
    content = {
        "command": "make test-all",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "exit_code": code,
        "counts": dict(sorted(outcomes.counts.items())),
        "failed": sorted(outcomes.failed),
        "seconds": round(time.perf_counter() - began),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
