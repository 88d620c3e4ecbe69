"""Test which algorithm serves the worst client best, and the evidence of the seeds."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from drfl.assessment.scope import Reach, population_low
from drfl.assessment.seeds import seed_difference
from drfl.core.run_end import DOUBLE_DAGGER, INITIAL
from drfl.data.row_scores import RowScores
from drfl.report.compared import pair_by_seed, rank_algorithms, verdicts_on_best
from drfl.report.formatting import mean, score_text
from drfl.report.groups import OWN_MODELS, group_runs, kinds_of_models, lost_algorithms
from drfl.report.read_run import FailedRun, measures_of
from drfl.report.summary_text import cards, takeaway, takeaways
from drfl.report.tables import summary_table

WORST = {"FedAvg": 0.70, "DRFA": 0.80, "DRDM": 0.801}
NOISE = (0.003, -0.004, 0.002, -0.003, 0.004, 0.0)


@pytest.fixture
def groups(record):
    """Return a function that makes runs at some seeds, over which DRFA and DRDM vary more than they differ."""

    def made(seeds, *names, **changes):
        return group_runs(
            [
                record(f"{n}-{s}", n, s, rounds=1, worst=WORST[n] + NOISE[(s + i) % 6], **changes)
                for i, n in enumerate(names or WORST)
                for s in range(seeds)
            ]
        )

    return made


def test_five_seeds_show_large_but_not_small_differences(groups):
    found = rank_algorithms(groups(5))
    assert found is not None
    assert (found.best.label, found.tests, found.reach) == ("DRDM", 3, Reach.NOWHERE)
    assert [one.reach for one in found.comparisons] == [Reach.NOWHERE, Reach.SEEDS]
    assert [(one.rival.label, one.verdict) for one in found.comparisons] == [
        ("DRFA", "not significant"),
        ("FedAvg", "better"),
    ]
    assert found.comparisons[1].gain.mean == pytest.approx(0.101, abs=2e-3)
    assert [one.rival.label for one in found.rivals("better")] == ["FedAvg"]


def test_best_of_all_needs_no_pairwise_correction():
    """The p-values would be too large after a correction for all six pairs of four algorithms."""
    own = [seed_difference(np.array([1.0, 1.3, 0.8, 1.2, 0.7]) * scale) for scale in (1, 2, 3)]
    weak = own[0]._replace(p_t=0.012)
    others = [weak._replace(p_t=0.5)] * 3
    assert verdicts_on_best([weak] * 3, others) == (["better"] * 3, 3)
    assert verdicts_on_best([weak, weak, weak._replace(p_t=0.06)], others) == (["not significant"] * 3, 6)
    assert verdicts_on_best([weak._replace(n=4), *own[1:]], others)[0] == ["not decided", "better", "better"]


def test_fewer_seeds_are_undecided(groups):
    found = rank_algorithms(groups(4))
    assert found is not None
    assert {one.verdict for one in found.comparisons} == {"not decided"}
    assert (found.tests, found.reach) == (0, Reach.NOWHERE)


def test_less_can_be_better(record):
    measure = {"name": "brier", "more_is_better": False, "percent": False, "rows": "unit"}
    runs = []
    for name, value in (("FedAvg", 0.3), ("DRFA", 0.2)):
        run = record(name, name, rounds=1)
        run.summary["final"] = {"worst_brier": value}
        runs.append(dataclasses.replace(run, measures=measures_of({"measures": [measure]})))
    found = rank_algorithms(group_runs(runs))
    assert found is not None
    assert (found.best.label, found.comparisons[0].verdict) == ("DRFA", "one pair only")
    assert found.comparisons[0].gain.mean == pytest.approx(0.1)


def test_runs_on_other_clients_are_not_paired(groups, record):
    one, other = group_runs([record("a", "FedAvg", worst=0.7), record("b", "DRFA", worst=0.8, clients=7)])
    assert pair_by_seed(one, other) == []
    found = rank_algorithms([one, other])
    assert found is not None
    assert found.comparisons[0].verdict == "no pair"
    one, other = group_runs([record("c", "FedAvg"), record("d", "DRFA", dataset="letters")])
    assert pair_by_seed(one, other) == []


def test_failed_seed_excludes_its_algorithm(groups):
    found = groups(5)
    found[1].runs[2].summary["final"] = {"avg_accuracy": None, "worst_accuracy": None}
    told = rank_algorithms(found)
    assert told is not None
    assert [one.rival.label for one in told.comparisons] == ["FedAvg"]
    assert told.last == ("DRFA",)
    assert rank_algorithms(found[1:2] + found[:1]) is None


def test_algorithm_with_untrained_models_ranks_last(groups):
    """DRDM scores best, but one of its runs returned the initial model."""
    found = groups(5)
    found[2].runs[3].summary.update(rounds=2, effective_rounds=0)
    told = rank_algorithms(found)
    assert told is not None
    assert (told.best.label, [one.rival.label for one in told.comparisons]) == ("DRFA", ["FedAvg"])
    assert told.last == ("DRDM (untrained: 1 of 5 runs, seed 3)",)
    table = summary_table(found)
    column = table.head.index("Worst client")
    assert [row[column].strong for row in table.rows] == [False, True, False]
    assert table.rows[2][column].text == score_text(found[2].finals("worst_score"), found[2].score), "the number stays"
    assert table.rows[2][0].text == f"DRDM {DOUBLE_DAGGER}"
    assert f"{INITIAL}, so it is not ranked: DRDM (1 of 5 runs, seed 3)" in table.caption
    assert "DRFA" in cards(found, told)[0].note
    assert "DRDM" not in cards(found, told)[0].note


def test_only_trained_algorithm_is_named_and_not_compared(groups):
    both = groups(5, "FedAvg", "DRFA")
    for run in both[1].runs:
        run.summary.update(rounds=2, effective_rounds=0)
    assert rank_algorithms(both) is None
    told = takeaway(both, None)
    assert told is not None
    assert "only FedAvg" in told.text
    assert "DRFA (untrained: 5 of 5 runs, seeds 0, 1, 2, 3, 4)" in told.text
    both[0].runs[0].summary.update(rounds=2, effective_rounds=0)
    assert takeaway(both, None) is None


def test_only_algorithm_without_failed_runs_is_named_and_not_compared(groups):
    failed = [FailedRun("DRFA", "5", "diverged")]
    both = group_runs([run for group in groups(5, "FedAvg", "DRFA") for run in group.runs], failed)
    assert rank_algorithms(both) is None
    told = takeaway(both, None)
    assert told is not None
    assert "FedAvg" in told.text
    assert "DRFA (1 of 6 runs failed)" in told.text
    assert takeaway(both[:1], None) is None
    assert takeaway(both[:1] * 2, None) is None


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), 2])
def test_algorithm_with_failed_runs_ranks_last(groups, n):
    """It diverges at some of 14 seeds, and scores best over the others."""
    failed = [FailedRun("DRDM", str(seed), "diverged") for seed in range(n)]
    runs = [run for group in groups(14) for run in group.runs if not (run.algorithm == "DRDM" and int(run.seed) < n)]
    everything = group_runs(runs, failed)
    assert [group.label for group in everything] == ["FedAvg", "DRFA", f"DRDM ({n} of 14 runs failed)"]
    assert math.isnan(mean(everything[2].finals("worst_score")))
    assert np.isnan(everything[2].curve("worst_score")[1].mean(0)).all()
    found = rank_algorithms(everything)
    assert found is not None
    assert (found.best.label, [one.rival.label for one in found.comparisons]) == ("DRFA", ["FedAvg"])
    assert found.last == (f"DRDM ({n} of 14 runs failed)",)


def test_algorithm_with_only_failed_runs_is_named():
    failed = [FailedRun("DRDM", str(seed), "diverged") for seed in range(3)] + [FailedRun("AFL", "0", "refused")]
    assert lost_algorithms([], failed) == ["DRDM (all 3 runs failed)", "AFL (its run failed)"]


def test_references_are_not_ranked(groups, record):
    runs = [run for group in groups(5) for run in group.runs]
    told = rank_algorithms(
        group_runs([*runs, *(record(f"p-{s}", "Pooled", s, rounds=1, worst=0.99) for s in range(5))])
    )
    assert told is not None
    assert told.best.label == "DRDM"
    assert told.tests == 3  # as without the reference
    named = record("own", "mine", rounds=1, worst=0.99, summary={"reference": True})
    assert named.is_reference
    assert rank_algorithms(group_runs([runs[0], named])) is None


@pytest.fixture
def on_rows(record):
    """Return a function that makes two algorithms' runs at five seeds, with scores of the test rows of 6 clients.

    The second algorithm's share of right rows is larger by ``gain``.
    """

    def made(rows, gain, digests):
        starts = torch.arange(7) * rows
        runs = []
        for seed in range(5):
            share = gain + 0.02 * (seed % 3)  # the gain at every client
            place = torch.arange(rows)
            for name, many in (("FedAvg", 0.7), ("DRFA", 0.7 + share)):
                values = (place < round(many * rows)).to(torch.uint8).repeat(6)
                worst = float(values[:rows].double().mean())
                rows_digest, model = digests(seed)
                run = record(
                    f"{name}-{seed}-{rows}-{gain}", name, seed, rounds=1, worst=worst,
                    summary={"test_rows": rows_digest, "initial_model": model},
                )  # fmt: skip
                scores = RowScores(starts, torch.arange(6 * rows), {"accuracy": values}, "d")
                runs.append(dataclasses.replace(run, row_scores=lambda found=scores: found))
        return group_runs(runs)

    return made


FIXED, SPLITS = lambda seed: ("r", "m"), lambda seed: (f"r{seed}", f"m{seed}")


@pytest.mark.parametrize(
    ("rows", "digests", "reach", "words"),
    [
        (40, FIXED, Reach.SEEDS, "on these test rows and from this initial model"),
        (40, SPLITS, Reach.SEEDS, "over data splits"),
        (40, lambda seed: ("r", f"m{seed}"), Reach.SEEDS, "on these test rows"),
        (40, lambda seed: (f"r{seed}", "m"), Reach.SEEDS, "over data splits, from this initial model"),
        (40, lambda seed: (f"r{seed % 4}", f"m{seed}"), Reach.SEEDS, "on these test rows"),
        (40, lambda seed: (None, None), Reach.SEEDS, "on these test rows and from this initial model"),
        (4000, FIXED, Reach.POPULATION, "on these test rows and from this initial model"),
    ],
)
def test_scope_follows_from_redrawn_parts_and_rows(on_rows, rows, digests, reach, words):
    found = rank_algorithms(on_rows(rows, 0.1, digests))
    assert found is not None
    assert found.best.label == "DRFA"
    assert [one.verdict for one in found.comparisons] == ["better"]
    assert (found.reach, found.redrawn.words) == (reach, words)
    assert (found.comparisons[0].population > 0) == (reach is Reach.POPULATION)
    assert found.comparisons[0].population < found.comparisons[0].gain.low  # the errors add up


def test_population_needs_row_values(on_rows):
    bare = [dataclasses.replace(run, row_scores=lambda: None) for g in on_rows(4000, 0.1, SPLITS) for run in g.runs]
    found = rank_algorithms(group_runs(bare))
    assert found is not None
    assert found.reach is Reach.SEEDS
    assert math.isnan(found.comparisons[0].population)


def test_population_bound_adds_both_errors():
    gains, lows = [0.10, 0.12, 0.08, 0.11, 0.09], [0.05, 0.07, 0.03, 0.06, 0.04]
    seeds = seed_difference(gains)
    assert population_low(gains, lows, 0.05) == pytest.approx(0.05 - (seeds.mean - seeds.low))
    assert population_low(gains, lows, 0.01) < population_low(gains, lows, 0.05)
    assert math.isnan(population_low([0.1] * 5, lows, 0.05))
    assert math.isnan(population_low([0.1], [0.05], 0.05))


def test_gain_is_paired_by_seed(groups):
    found = groups(5)
    told = rank_algorithms(found)
    assert told is not None
    by_seed = [
        b.final("worst_score") - a.final("worst_score") for a, b in zip(found[0].runs, found[2].runs, strict=True)
    ]
    assert told.comparisons[1].gain == seed_difference(by_seed)


def own(record, name, worst, seeds=5):
    """Return runs in which each client is tested with its own model."""
    changes = {"rounds": 1, "summary": {"own_models": True}}
    return [record(f"{name}-{s}", name, s, worst=worst + NOISE[s], **changes) for s in range(seeds)]


def test_global_models_and_own_models_are_ranked_separately(groups, record):
    runs = [run for group in groups(5, "FedAvg", "DRFA") for run in group.runs]
    mixed = group_runs([*runs, *own(record, "Ditto", 0.9), *own(record, "FedProto", 0.95)])
    assert [group.label for group in mixed] == [
        "FedAvg", "DRFA", f"Ditto ({OWN_MODELS})", f"FedProto ({OWN_MODELS})",
    ]  # fmt: skip
    kinds = kinds_of_models(mixed)
    assert kinds == [mixed[:2], mixed[2:]]
    both, shared, personal = takeaways(mixed)
    assert all(group.label in both.text for group in mixed)
    names = {
        kind.start: [name in f"{kind.start} {kind.text}" for name in WORST | {"Ditto": 0}]
        for kind in (shared, personal)
    }
    assert list(names.values()) == [[True, True, False, False], [False, False, False, True]]
    bold = {cell.text for row in summary_table(mixed).rows for cell in row if not isinstance(cell, str) and cell.strong}
    assert {score_text(mixed[i].finals("worst_score"), mixed[i].score) for i in (1, 3)} <= bold
    assert score_text(mixed[0].finals("worst_score"), mixed[0].score) not in bold


def test_only_algorithm_of_its_kind_is_not_ranked(groups, record):
    runs = [run for group in groups(5, "FedAvg") for run in group.runs]
    mixed = group_runs([*runs, *own(record, "Ditto", 0.9)])
    (line,) = takeaways(mixed)
    assert all(group.label in line.text for group in mixed)
    assert not any(cell.strong for row in summary_table(mixed).rows for cell in row if not isinstance(cell, str))


def test_own_models_of_a_reference_do_not_split_the_ranking(groups, record):
    runs = [run for group in groups(5, "FedAvg", "DRFA") for run in group.runs]
    alone = [record(f"alone-{s}", "LocalOnly", s, rounds=1, summary={"own_models": True}) for s in range(5)]
    with_reference = group_runs([*runs, *alone])
    assert len(kinds_of_models(with_reference)) == 1
    (line,) = takeaways(with_reference)
    assert line.start == "DRFA"
