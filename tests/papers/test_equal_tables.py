"""Test the metrics expected if all clients were equally good, beside the measured ones."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from tests.support.results import broken, of, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl.assessment.equal_clients import equal_clients
from drfl_papers.equal_tables import tables
from drfl_papers.output import cells_csv, contents
from drfl_papers.plan import Scale

SAMPLES = [20] * 30
ONE = {"settings": SMALL["settings"][:1]}


def measured(worst, samples=SAMPLES):
    """Return a run with this worst accuracy; the average is 0.1 above it."""
    return {**trained(0.1, worst), "samples": samples}


def by_method(spec=None, **records):
    spec = spec or small_spec(**ONE)
    names = {"DRDM": "DRDM", "Fed-Avg": "FedAvg"}
    return results(spec, lambda s, method, seed: records[names[method]][seed], Scale(repeats=2))


def test_expectation_assumes_clients_equal_to_the_average():
    collected = by_method(DRDM=[measured(0.80), measured(0.84)], FedAvg=[measured(0.5), measured(0.5)])
    worst, std = tables(*of(collected))
    found = [equal_clients(p, np.array(SAMPLES)) for p in (0.90, 0.94)]
    assert worst.rows[0][1].text == f"{50 * (found[0].worst + found[1].worst):.1f} (82.0, not below)"
    assert worst.rows[1][1].text == f"{100 * equal_clients(0.6, np.array(SAMPLES)).worst:.1f} (50.0, not below)"
    assert std.rows[0][1].text == f"{50 * (found[0].std + found[1].std):.1f} (3.4, not above)"
    assert [table.title for table in (worst, std)] == [
        "Worst accuracy expected if equal, %",
        "Standard deviation expected if equal, points",
    ]
    assert not worst.notes
    assert "measured value is in brackets" in std.notes[0]


def test_larger_spread_than_noise_is_not_marked():
    large = [measured(0.8, [2000] * 30)] * 2
    worst, std = tables(*of(by_method(DRDM=large, FedAvg=large)))
    assert worst.rows[0][1].text == "88.6 (80.0)"
    assert std.rows[0][1].text == "0.7 (3.4)"


def test_cells_file_has_the_expectation_of_finished_runs():
    collected = by_method(DRDM=[measured(0.80), broken()], FedAvg=[measured(0.5), trained(0.5)])
    rows = list(csv.DictReader(cells_csv(collected).splitlines()))
    found = equal_clients(0.9, np.array(SAMPLES))
    assert (rows[0]["equal_worst"], rows[0]["equal_std"]) == (f"{found.worst:.6f}", f"{found.std:.6f}")
    assert [bool(row["equal_worst"]) for row in rows] == [True, False, True, False]
    assert rows[0]["bytes_up"] == "1000"


def test_methods_with_failed_seeds_are_marked():
    worst, _ = tables(*of(by_method(DRDM=[broken(), broken("refused")], FedAvg=[measured(0.5)] * 2)))
    assert worst.rows[0][1].text == "1 of 2 diverged, 1 of 2 refused"
    worst, _ = tables(*of(by_method(DRDM=[measured(0.8), broken()], FedAvg=[measured(0.5)] * 2)))
    assert worst.rows[0][1].text == "1 of 2 diverged"


@pytest.mark.parametrize(
    ("metrics", "titles"),
    [
        (["worst20_accuracy"], ["Worst accuracy expected if equal, %"]),
        (["std_accuracy"], ["Standard deviation expected if equal, points"]),
        (["avg_accuracy", "worst_loss"], []),
    ],
)
def test_tables_with_worst_or_spread_have_the_expectation(metrics, titles):
    both = [measured(0.8)] * 2
    collected = by_method(small_spec(**ONE, metrics=metrics, values={}), DRDM=both, FedAvg=both)
    assert [table.title for table in contents(collected) if "expected if equal" in table.title] == titles


def test_missing_test_sizes_give_no_expectation():
    assert tables(*of(by_method(DRDM=[trained(0.8)] * 2, FedAvg=[trained(0.8)] * 2))) == ()
