"""The pages on deployments say what the trials have stored."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "hospitals"
SPEC = importlib.util.spec_from_file_location("trial_tables", ROOT / "scripts" / "trial_tables.py")
assert SPEC is not None
assert SPEC.loader is not None
TABLES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TABLES)


@pytest.mark.parametrize("table", TABLES.TABLES, ids=lambda table: table.__name__)
def test_tables(table):
    assert table() in PAGE


def test_nothing_that_was_stored_is_off():
    summary = TABLES.stored("summary")
    for row in summary["same"] + summary["cold"]:
        assert max(row["max |w - w_sim|"], row["max |lambda - lambda_sim|"]) < 1e-6
    for row in summary["large"]:
        for way, booked in (("of these for training", "down"), ("of these from training", "up")):
            assert row[way] == pytest.approx(row[f"ledger's bytes {booked}"], rel=0.05)
    seen = {row["event"] for part in ("killed", "faults", "servers", "refusals") for row in summary[part]}
    assert {"a client that raises", "SIGKILL of the SuperLink, started again", "plain HTTP against TLS"} <= seen


def test_other_versions_of_flower_were_tried():
    found = TABLES.stored("quick")
    for version in ("1.40.0", "1.42.0"):
        assert version in PAGE
        assert found[f"flwr {version}"][0]["max |w - w_sim|"] == 0


def test_the_hospitals_page_has_the_stored_table():
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    table = (EXAMPLE / "results" / "deployed.md").read_text(encoding="utf-8").split("\n\n")[0]
    assert table.startswith("| largest difference in")
    assert table in page
    runs = json.loads((EXAMPLE / "results" / "deployed.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 8
    assert max(apart for run in runs for apart in run["apart"].values()) < 1e-6


def test_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)", PAGE) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
