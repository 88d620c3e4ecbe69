"""Test the tables of the methods' costs."""

from __future__ import annotations

from tests.support.results import broken, of, results, trained
from tests.support.small_spec import small_spec

from drfl.core.run_end import RESET
from drfl_papers.cost_tables import tables
from drfl_papers.output import cells_csv
from drfl_papers.plan import Scale


def costs(setting, method, seed):
    clients = 3.0 if setting == "α = 0.1" else 2.0
    return {**trained(0.1, 0.5, 0.6), "clients_per_round": clients} if method == "DRDM" or seed else broken()


def test_costs_are_means_over_settings_and_finished_seeds():
    (table,) = tables(*of(results(small_spec(), costs, Scale(repeats=2))))
    # two rounds of 20 gradients and 2 kB each
    assert [entry.text for entry in table.rows[0]] == ["DRDM", "2", "2.5", "4e-05", "0.004"]
    assert [entry.text for entry in table.rows[1]] == ["Fed-Avg", "2", "2.5", "4e-05", "0.004"]
    none = tables(*of(results(small_spec(), lambda s, m, k: broken())))[0]
    assert [entry.text for entry in none.rows[0]] == ["DRDM", "–", "–", "–", "–"]


def test_cells_file_has_the_clients_of_every_run():
    lines = cells_csv(results(small_spec(), costs, Scale(repeats=2))).splitlines()
    assert lines[0].endswith(",clients_per_round,halved")
    assert lines[1].endswith(",3.000,0")
    assert lines[3].endswith(",,"), "it broke off"


def test_runs_with_lowered_step_size_are_named():
    def lowered(setting, method, seed):
        return {**trained(0.1, 0.5, 0.6), "halved": 2 if (method, seed) == ("DRDM", 0) else 0}

    found = results(small_spec(), lowered, Scale(repeats=2))
    (table,) = tables(*of(found))
    assert table.notes[-1].endswith("as too large, in these runs: DRDM in 2 of 4 runs.")
    assert cells_csv(found).splitlines()[1].endswith(",2")
    assert len(tables(*of(results(small_spec(), costs)))[0].notes) == 1


def test_rolled_back_runs_are_named_unless_records_are_old():
    def back(setting, method, seed):
        told = {"halved": 1, "rollbacks": 1, "effective_rounds": 1} if (method, seed) == ("DRDM", 0) else {}
        return {**trained(0.1, 0.5, 0.6), "halved": 0, **told}

    (table,) = tables(*of(results(small_spec(), back, Scale(repeats=2))))
    assert table.notes[-1].startswith(f"{RESET.capitalize()}: DRDM, α = 0.1, seed 0 (1 of 2 rounds counts), ")
