"""Test the script for the table of attacks on models: its cells run, and each attack has the named effect."""

from __future__ import annotations

import sys

import pandas
import pytest
import scipy.stats
import torch
from tests.support.marks import long_except
from tests.support.pages import one_paragraph_quotes
from tests.support.scripts import ROOT, script

from drfl.assessment.seeds import seed_difference
from evidence import false_model_tables

sys.path.insert(0, str(ROOT / "evidence"))  # it imports a script from the same folder
SCRIPT = script("evidence/false_models.py")
sys.path.pop(0)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setitem(SCRIPT.JOB, "rounds", 2)
    monkeypatch.setitem(SCRIPT.JOB, "steps", 2)


def cell(attack="none", algorithm="DualDRDM", defence="default", outlier="no"):
    return SCRIPT.Cell("digits", outlier, attack, algorithm, defence, 0)


def test_every_cell_occurs_once():
    cells = SCRIPT.cells()
    assert len(cells) == len(set(cells)) == 2 * 5 * 2 * 9 * (6 * 8 + 2 * 4)


@pytest.mark.parametrize("defence", long_except(["default", "geometric median", "probe"], SCRIPT.DEFENCES))
def test_every_defence_runs_beside_an_attack(defence):
    found = SCRIPT.measure(cell("sign flip", defence=defence, outlier="yes"), None)
    assert 0 <= found.worst <= found.average <= 100
    assert found.mass <= (100 if defence in SCRIPT.WITHOUT_SET else 40 + 1e-6)  # four of twenty in CVaR(0.5)


@pytest.mark.parametrize(
    "attack", long_except(["vanish half way", "labels flipped", "adaptive to probe"], SCRIPT.ATTACKS)
)
def test_attacks_differ_from_each_other(attack):
    clean, attacked = (SCRIPT.measure(cell(name, "FedAvg"), None) for name in ("none", attack))
    same = attack in ("none", "vanish half way")  # this attack starts after 30 rounds
    assert (clean == attacked) == same


def test_only_the_images_of_the_outlier_are_upside_down():
    config = SCRIPT.load_config(None, {"clients": 20, "dataset": "digits", "alpha": 1.0})
    data = SCRIPT.build(config).data
    turned = SCRIPT.upside_down(data, 19)
    for before, after, rows in (
        (data.inputs, turned.inputs, data.train), (data.test_inputs, turned.test_inputs, data.test),
    ):  # fmt: skip
        assert torch.equal(after[rows[19]], before[rows[19]].flip(-1).flip(-2))
        assert torch.equal(after[torch.cat(rows[:19])], before[torch.cat(rows[:19])])


def test_page_numbers_are_paired_over_stored_seeds():
    stored = pandas.read_csv(ROOT / "evidence/results/false_models/cells.csv", dtype={"seed": int})
    own = stored[(stored.dataset == "digits") & (stored.outlier == "no") & (stored.algorithm == "DualDRDM")]
    worst = own.set_index(["attack", "defence", "seed"]).worst.sort_index()
    apart = worst["sign flip", "probe"] - worst["none", "default"]
    half = scipy.stats.t.ppf(0.975, 4) * apart.std(ddof=1) / 5**0.5
    told = false_model_tables.costs().splitlines()[0]
    assert f"sign flip {apart.mean():+.1f} ({apart.mean() - half:+.1f} to {apart.mean() + half:+.1f})" in told
    tables = false_model_tables.outlier().split("\n\n")
    assert [table.partition(" | ")[0] for table in tables] == [
        f"| {data}, {attack}" for data in ("digits, α = 1", "MNIST, α = 0.1") for attack in ("no attack", "sign flip")
    ]
    assert "| CVaR alone | – | – |" in tables[1]


def test_mnist_numbers_on_the_page_are_stored():
    seen = {of[2:]: rows for of, rows in false_model_tables.cells().items() if of[:2] == ("mnist", "no")}

    def worst(attack, algorithm, defence):
        return seed_difference(false_model_tables.values(seen[attack, algorithm, defence], "worst"))

    told = [worst("adaptive to probe", "ScaffPD", defence) for defence in ("probe, no set", "probe")]
    assert [(round(one.mean), round(one.low), min(100, round(one.high))) for one in told] == [
        (62, 24, 100),
        (71, 49, 92),
    ]
    assert one_paragraph_quotes("docs/results/resilience.md", "62 %", "24", "100", "71 %", "49", "92")
    spared = [worst("none", "DualDRDM", defence).mean for defence in ("default", "median", "trimmed mean")]
    assert one_paragraph_quotes("docs/results/resilience.md", *(f"{value:.1f}" for value in spared))
    robust = ("median length", "geometric median", "centred clipping", "multi-Krum")
    both = ("DualDRDM", "ScaffPD")
    assert {int(worst("adaptive to probe", "ScaffPD", rule).mean) for rule in robust} <= set(range(74, 81))
    assert max(worst("sign flip", name, rule).mean for name in both for rule in (*robust, "median")) < 53.5
    every = {of[2] for of in seen if of[0] == "labels flipped" and of[1] == "DualDRDM"}
    assert max(worst("labels flipped", name, rule).mean for name in both for rule in every) < 54.5
    costs = [line for line in false_model_tables.costs().splitlines() if line.startswith("- MNIST")]
    assert len(costs) == 4


def test_table_has_every_stored_cell_and_dashes_otherwise():
    done = {cell: SCRIPT.Found(worst=50.0) for cell in SCRIPT.cells(["digits"])}
    text = SCRIPT.table(done)
    assert text.count("## digits") == 2 * len(SCRIPT.ATTACKS)
    (row,) = {line for line in text.splitlines() if line.startswith("| CVaR alone ")}
    assert [cell.strip() for cell in row.split("|")[2:4]] == ["–", "–"]
    stored = pandas.read_csv(ROOT / "evidence/results/false_models/cells.csv", dtype={"seed": int})
    assert set(stored[list(SCRIPT.Cell._fields)].itertuples(index=False, name=None)) == set(SCRIPT.cells())
