"""Test the rounds to a level."""

from __future__ import annotations

from tests.support.results import broken, results, trained
from tests.support.small_spec import SMALL, small_spec

from drfl_papers.records import runs
from drfl_papers.rounds_to_target import TargetReached, first_reached, levels, summary, tables, to_csv
from drfl_papers.specification import TargetLevel

HALF = TargetLevel(metric="worst_accuracy", value=0.5)
SPEC = {
    "kind": "curves",
    "values": {},
    "settings": SMALL["settings"][:1],
    "targets": [{"metric": "worst_accuracy", "value": 0.5}],
}


def one(record):
    collected = results(small_spec(**SPEC, repeats=1), lambda s, m, k: record)
    return runs(collected)["α = 0.1", "DRDM"][0]


def test_first_round_at_the_level_counts_despite_a_later_fall():
    run = one(trained(0.1, 0.3, 0.5, 0.4, 0.9, every=5))
    assert first_reached(run, HALF) == TargetReached(round=10, iterations=20, bytes=20_000)


def test_initial_model_can_be_at_the_level():
    assert first_reached(one(trained(0.6, 0.7)), HALF) == TargetReached(0, 0, 0)


def test_level_that_is_never_reached():
    assert first_reached(one(trained(0.1, 0.49)), HALF) is None
    assert first_reached(one(broken()), HALF) is None


def test_loss_must_fall_to_the_level():
    run = one(trained(0.1, 0.3, 0.5))  # worst losses 1.9, 1.7, 1.5
    assert first_reached(run, TargetLevel(metric="worst_loss", value=1.7)) == TargetReached(1, 2, 2000)


def mixed(setting, method, seed):
    if method == "DRDM":
        return trained(0.1, *[0.2] * seed, 0.6)
    return broken() if seed else trained(0.1, 0.2)


def test_table_has_every_seed_and_the_papers_number():
    collected = results(small_spec(**SPEC, reached={"DRDM": 41}), mixed)
    assert tables(collected)[0].markdown() == (
        "## Rounds to worst accuracy ≥ 50 %\n\n"
        "| method  | rounds per seed |    rounds | paper's rounds | local iterations |\n"
        "| ------- | --------------: | --------: | -------------: | ---------------: |\n"
        "| DRDM    |            1, 2 | 1.5 ± 6.4 |             41 |       3.0 ± 12.7 |\n"
        "| Fed-Avg |     –, diverged |         – |              – |                – |\n\n"
        "The first evaluated round at the level; models are evaluated every 2 rounds. – means: not reached within the "
        "rounds run. Means ± half the width of their 95 % t-intervals, if every seed reached the level.\n"
    )


def test_mean_requires_all_seeds():
    def some(setting, method, seed):
        return trained(0.1, 0.6 if seed else 0.4)

    assert [entry.text for entry in tables(results(small_spec(**SPEC), some))[0].rows[0][2:]] == ["1 of 2 seeds"] * 2


def test_single_seed_is_a_plain_number():
    table = tables(results(small_spec(**SPEC, repeats=1), lambda s, m, k: trained(0.1, 0.6)))[0]
    assert [entry.text for entry in table.rows[0]] == ["DRDM", "1", "1", "2"]


def test_file_has_a_row_per_seed():
    assert to_csv(results(small_spec(**SPEC), mixed)) == (
        "setting,method,seed,metric,target,round,iterations,bytes\n"
        "α = 0.1,DRDM,0,worst_accuracy,0.5,1,2,2000\n"
        "α = 0.1,DRDM,1,worst_accuracy,0.5,2,4,4000\n"
        "α = 0.1,Fed-Avg,0,worst_accuracy,0.5,,,\n"
        "α = 0.1,Fed-Avg,1,worst_accuracy,0.5,,,\n"
    )


def test_settings_and_targets_have_their_own_tables():
    targets = [{"metric": "worst_accuracy", "value": 0.5}, {"metric": "std_accuracy", "value": 0.02}]
    spec = small_spec(**{**SPEC, "settings": SMALL["settings"], "targets": targets}, reached={"DRDM": 41})
    found = tables(results(spec, mixed))
    assert [table.title for table in found] == [
        "Rounds to worst accuracy ≥ 50 %, α = 0.1",
        "Rounds to worst accuracy ≥ 50 %, α = 0.5",
        "Rounds to standard deviation ≤ 2 points, α = 0.1",
        "Rounds to standard deviation ≤ 2 points, α = 0.5",
    ]
    assert ["paper's rounds" in table.header for table in found] == [True, True, False, False]
    assert [bool(table.notes) for table in found] == [False, False, False, True]


def test_summary_has_the_rounds_of_each_seed():
    found = summary(results(small_spec(**SPEC), mixed))
    assert found == [
        {
            "metric": "worst_accuracy",
            "value": 0.5,
            "rounds": {"α = 0.1": {"DRDM": [1, 2], "Fed-Avg": [None, None]}},
        }
    ]


def test_energy_map_has_its_level_once():
    energy = {"target": 0.5, "snr": [0], "bandwidth": [1e6]}
    assert levels(small_spec(energy=energy)) == (HALF,)
    assert levels(small_spec(**SPEC, energy=energy)) == (HALF,)
    assert levels(small_spec()) == ()
    assert tables(results(small_spec(), mixed)) == ()
