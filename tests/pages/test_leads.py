"""Test that the tables of leads in EXPERIMENTS.md match the stored tables."""

from __future__ import annotations

import re

import pytest
from tests.support.scripts import script

LEADS = script("evidence/leads.py")
SEVERAL = ["drdm-table-3", "drdm-table-4", "drdm-table-5", "drdm-table-6", "scaffpd-table-1", "scaffpd-table-4"]
ONE = ["scaffpd-table-2", "scaffpd-table-3"]
SHOWN = ("better", "worse")


def asked(result):
    """Return every metric that the result compares."""
    metrics = dict.fromkeys(row["metric"] for row in LEADS.rows_of(result, "paired.csv"))
    return [LEADS.Leads("", result, metric) for metric in metrics]


@pytest.mark.parametrize("result", SEVERAL + ONE)
def test_leads_at_equal_rounds_match_the_stored_ones(result):
    file = "paired_over_settings.csv" if result in SEVERAL else "paired.csv"
    stored = {(row["metric"], row["method"]): row for row in LEADS.rows_of(result, file)}
    found = {(one.metric, method): lead for one in asked(result) for method, lead in LEADS.leads(one).items()}
    assert found.keys() == stored.keys()
    for name, lead in found.items():
        row, own = stored[name], lead.difference
        ends = [float(row[column]) for column in ("difference", "low", "high")]
        assert [own.mean, own.low, own.high] == pytest.approx(ends, abs=2e-6)
        assert lead.shown == (row["seen"] in SHOWN)


@pytest.mark.parametrize("result", SEVERAL)
def test_leads_at_equal_gradients_match_the_table(result):
    text = (LEADS.RESULTS / result / "table.md").read_text(encoding="utf-8")
    section = text.partition("## At equal gradients: paired differences: mean over the settings")[2]
    rows = re.findall(r"^\| (.+?) +\| (.*) \|$", section.partition("\n## ")[0], flags=re.MULTILINE)[2:]
    for at, one in enumerate(asked(result)):
        found = LEADS.leads(one._replace(equal_gradients=True))
        assert len(found) == len(rows)
        for (name, cells), (method, lead) in zip(rows, found.items(), strict=True):
            assert name.endswith(f" − {method}")
            cell = cells.split("|")[at].strip()
            assert cell.startswith(f"{LEADS.signed_text(100 * lead.difference.mean, 2)} [")
            assert lead.shown == cell.endswith(SHOWN)


def test_fewer_than_five_pairs_are_not_counted():
    difference = LEADS.seed_difference([0.01, 0.02, 0.04])
    assert LEADS.told(LEADS.Lead(difference, False, 0, 0, 4)) == "+2.3 [−1.5, +6.1]"
    five = LEADS.seed_difference([0.02, 0.02, 0.03, 0.03, 0.02])
    assert LEADS.told(LEADS.Lead(five, True, 3, 1, 4)) == "**+2.4** [+1.7, +3.1]; 3 of 4, 1 of 4 behind"
    assert LEADS.told(LEADS.Lead(five, False, 0, 2, 4)).endswith("; 2 of 4 behind")
    assert LEADS.told(None) == "–"
