"""Test that the pages' conclusions from stored results hold in these results."""

from __future__ import annotations

import json
import re
import tomllib
from statistics import fmean, median

import pytest
from tests.ambiguity.cases import CASES
from tests.support.pages import one_paragraph_quotes
from tests.support.scripts import ROOT, script

from drfl.task.metrics import ACCURACY
from drfl.training.model_selection import Target
from drfl_papers.heading import sentences
from drfl_papers.plan import Scale, plan
from drfl_papers.specification import load_spec

DEPLOYED = script("scripts/trial_tables.py").stored
TABLES = script("evidence/tables.py")
RESULTS = ROOT / "evidence" / "results"


def read(path: str):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_ambiguity_set_errors_are_within_bounds():
    evidence = read("evidence/results/ambiguity/summary.json")
    assert [record["set"] for record in evidence["sets"]] == list(CASES)
    assert sum(evidence["draws_by_length"].values()) == 10_000
    residuals = [max(record["residuals"].values()) for record in evidence["sets"]]
    objectives = [record["solver"]["objective"] for record in evidence["sets"] if record["solver"]]
    assert max(residuals) == evidence["largest_residual"] <= 1e-9
    assert max(objectives) == evidence["largest_objective_difference"] <= 1e-6


@pytest.mark.parametrize("name", ["drdm-figure-3", "drdm-figure-4"])
def test_figures_stopped_at_a_target_match_their_specification(name):
    """Test rows stop these runs, as they did originally, and the page mentions it."""
    planned = plan(load_spec(name), Scale(stand_in=True))
    targets = {cell.cell.job["until"] for cell in planned.cells}
    assert targets == {job["until"] for job in read(f"evidence/results/{name}/summary.json")["jobs"].values()}
    assert {Target.parse(target, ACCURACY) for target in targets} == {Target("worst_accuracy", 0.85, "test")}
    page = (RESULTS / name / "table.md").read_text(encoding="utf-8")
    assert all(line in page for line in sentences(planned))


def test_ambiguity_set_operations_are_fast_enough():
    times = read("benchmarks/results/ambiguity.json")
    assert max(row["median_s"] for row in times["rows"]) == times["slowest_median_s"] <= 0.050


def test_deployment_results_are_consistent():
    summary = DEPLOYED("summary")
    for row in summary["same"] + summary["cold"]:
        assert max(row["max |w - w_sim|"], row["max |lambda - lambda_sim|"]) < 1e-6
    for row in summary["large"]:
        down, up = (row[f"ledger's bytes {way}"] for way in ("down", "up"))
        assert row["of these from training"] == pytest.approx(up, rel=0.05)
        # DRDM's ledger also counts shifts, which sites store.
        assert row["of these for training"] == pytest.approx(down, rel=0.05 if row["algorithm"] == "FedAvg" else 0.2)
        assert row["of these for training"] < 1.001 * down
    seen = {row["event"] for part in ("killed", "faults", "servers", "refusals") for row in summary[part]}
    assert {"a client that raises", "SIGKILL of the SuperLink, started again", "plain HTTP against TLS"} <= seen


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0"])
def test_other_flower_versions_were_tested(version):
    assert version in (ROOT / "docs" / "results" / "deployments.md").read_text(encoding="utf-8")
    assert DEPLOYED("quick")[f"flwr {version}"][0]["max |w - w_sim|"] == 0


def test_hospital_deployment_ends_like_the_simulation():
    runs = read("examples/hospitals/results/deployed.json")["runs"]
    assert len(runs) == 8
    assert max(apart for run in runs for apart in run["apart"].values()) < 1e-6


def test_one_step_size_for_all_partitions_fails_on_others():
    rows = TABLES.rows_of("absolute_step_size/runs.csv")
    # A model that always predicts 0 has a loss of ½.
    failed = [row for row in rows if row["stopped"] != "rounds" or not float(row["avg_loss"]) < 1]
    assert one_paragraph_quotes("docs/tuning.md", str(len(failed)), str(len(rows)))


def test_default_guard_has_its_stated_effect():
    rows = [row for row in TABLES.rows_of("abuse/cells.csv") if row["attack"] == "100 times"]
    default, none = ([row for row in rows if row["defence"] == name] for name in ("default", "none"))
    assert len(default) == 36
    for row, other in zip(default, none, strict=True):
        assert (row["algorithm"], row["liars"], row["seed"]) == (other["algorithm"], other["liars"], other["seed"])
        assert (row["worst"], row["mass"]) == (other["worst"], other["mass"])


def test_only_the_bootstrap_over_few_seeds_finds_false_differences():
    rows = TABLES.rows_of("bootstrap_null/errors.csv")
    assert {row["pairs"] for row in rows} == {"3", "5", "6", "10"}
    for row in rows:
        assert (float(row["low"]) > 0.09) == (row["test"] == "percentile bootstrap")
        assert row["test"] == "percentile bootstrap" or float(row["low"]) <= 0.05
    three, five, _, ten = (
        f"{100 * float(row['share']):.0f} %" for row in rows if row["test"] == "percentile bootstrap"
    )
    assert one_paragraph_quotes("EXPERIMENTS.md", three, five, ten)


def test_report_rule_keeps_its_error_rate():
    rows = TABLES.rows_of("best_by_looking/errors.csv")
    for row in rows:
        few = row["algorithms"] == "2"  # there is one difference, for which both rules agree
        assert (float(row["low"]) > 0.05) == (row["rule"] == "its own differences" and not few)
    assert one_paragraph_quotes("docs/report.md", "5 %", "python evidence/best_by_looking.py")


def test_reproduction_verdicts_match_their_tables():
    for row in TABLES.rows_of("bootstrap_null/tables.csv"):
        seen = [pair["seen"] for pair in TABLES.rows_of(f"{row['result']}/paired.csv")]
        assert (int(row["differences"]), int(row["decided"])) == (len(seen), seen.count("better") + seen.count("worse"))


def places():
    """Return the measured worst accuracy and that expected if equal, as means in percent, of every method and
    setting.
    """
    found = {}
    for path in sorted(RESULTS.glob("*/cells.csv")):
        for row in TABLES.rows_of(f"{path.parent.name}/cells.csv"):
            if row.get("equal_worst"):
                place = found.setdefault((path.parent.name, row["setting"], row["method"]), [])
                place.append((row["algorithm"], row["seed"], row["worst_accuracy"], row["equal_worst"]))
    runs = {place[0]: place for place in reversed(found.values())}.values()  # figures share runs with tables
    return [[round(100 * fmean(float(run[k]) for run in place), 1) for k in (2, 3)] + [len(place)] for place in runs]


def test_worst_accuracies_are_compared_with_expected_if_equal():
    level = [seeds for worst, equal, seeds in places() if worst >= equal]
    assert sorted(level) == [5] * 6 + [6] * 6 + [10] * 9
    assert one_paragraph_quotes("EXPERIMENTS.md", str(len(places())), str(len(level)))


def test_lowered_step_sizes_are_counted():
    runs = {}
    for table in ("drdm-table-1", "drdm-table-2"):
        for row in TABLES.rows_of(f"{table}/cells.csv"):
            runs.setdefault(row["method"], []).append(int(row["halved"]) > 0)
    assert {len(own) for own in runs.values()} == {35}
    lowered = {method: sum(own) for method, own in runs.items()}
    assert (lowered.pop("DRDM"), lowered.pop("DRFA"), max(lowered.values())) == (12, 9, 2)
    assert one_paragraph_quotes("EXPERIMENTS.md", "12", "35", "9")


def test_cnn_values_hold_for_unequal_sizes():
    confirmed = TABLES.rows_of("tuning/kmnist-cnn-sizes/confirmed.csv")
    assert [row["confirmed_ends"] for row in confirmed] == ["rounds rounds"] * 8
    tuned = [
        tomllib.loads((RESULTS / "tuning" / job / f"{job}.toml").read_text(encoding="utf-8"))["algorithms"]
        for job in ("kmnist-cnn", "kmnist-cnn-sizes")
    ]
    assert tuned[0] == tuned[1]


def test_gain_of_a_server_step_decreases_over_rounds():
    def lead(file, metric, first, second):
        runs = {
            (row["method"], row["seed"]): float(row[metric])
            for row in TABLES.rows_of(file)
            if row["setting"] == "α = 0.1"
        }
        assert len(runs) == 110
        return round(100 * fmean(runs[first, str(seed)] - runs[second, str(seed)] for seed in range(10)), 1)

    files = ("drdm-table-5/cells.csv", "drdm_table_5_400_rounds/runs.csv")
    steps = ("SCAFFOLD", "SCAFFOLD (η_g = 1)")
    assert [lead(file, "avg_accuracy", *steps) for file in files] == [1.2, 0.4]
    assert [lead(file, "worst_accuracy", *steps) for file in files] == [0.2, 0.0]
    assert [lead(file, "worst_accuracy", "DRDM", "SCAFFOLD") for file in files] == [3.9, 1.5]
    assert [lead(file, "worst_accuracy", "DRDM", "DRDM (γ = 0)") for file in files] == [2.9, 1.6]
    assert lead(files[1], "worst_accuracy", "dual DRDM", "DRDM") == 3.0


def test_gain_of_a_server_step_matches_the_scaffold_page():
    def worth(table):
        of = {"SCAFFOLD": [], "SCAFFOLD (η_g = 1)": []}
        for row in TABLES.rows_of(f"{table}/cells.csv"):
            of.get(row["method"], []).append(100 * float(row["avg_accuracy"]))
        found, one = of.values()
        return fmean(found) - fmean(one)

    features = [worth(f"drdm-table-{n}") for n in (5, 6)] + [worth(f"scaffpd-table-{n}") for n in (1, 2, 3)]
    linear = f"{worth('drdm-table-3'):.2f}"
    assert one_paragraph_quotes("docs/algorithms/scaffold.md", f"{min(features):.1f}", f"{max(features):.1f}", linear)


def test_hostile_sites_caused_no_damage():
    found = TABLES.behaviours()
    assert len(found) == 2
    assert min(map(len, found.values())) >= 60
    assert all(row["right"] for rows in found.values() for row in rows)


def test_number_of_chosen_trials_that_halve_their_step_size():
    jobs = ("cifar10-entk", "cifar100-entk", "cifar100-entk-50-clients", "tiny-imagenet-entk")
    chosen = [{r["algorithm"]: r for r in reversed(TABLES.rows_of(f"tuning/{job}/confirmed.csv"))} for job in jobs]
    ends = ["diverged" in row["confirmed_ends"] for first in chosen for row in first.values()]
    for page in ("docs/tuning.md", "EXPERIMENTS.md"):
        assert one_paragraph_quotes(page, str(sum(ends)), str(len(ends))), page


def test_number_of_clean_runs_changed_by_the_step_bound():
    cnn = ("drdm-table-1", "drdm-table-2", "drdm-figure-3")
    found = {
        "of SCAFF-PD": "scaffpd", "of DRDM's CNN": cnn, "of DRDM's linear tables": "drdm", "of DRFA's figures": "drfa"
    }  # fmt: skip
    counts = {name: [0, 0] for name in (*found, "of the comparisons")}
    for row in TABLES.rows_of("step_bound_unchanged/jobs.csv"):
        name = next((name for name, start in found.items() if row["job"].startswith(start)), "of the comparisons")
        counts[name] = [n + int(row[column]) for n, column in zip(counts[name], ("runs", "the same"), strict=True)]
    numbers = {str(number) for pair in counts.values() for number in pair}
    assert one_paragraph_quotes(page := "docs/results/resilience.md", *numbers)
    rows = TABLES.rows_of("step_bound_unchanged/differences.csv")
    assert len(rows) == sum(runs - same for runs, same in counts.values())
    leads = sorted(100 * (float(row["avg_accuracy_with"]) - float(row["avg_accuracy_without"])) for row in rows)
    assert one_paragraph_quotes(page, str(len(rows)), f"{-leads[0]:.1f}", f"{leads[-1]:.1f}", f"{median(leads):+.1f}")
    left_out = [row for row in rows if int(row["halved"]) == 0]
    assert [(row["setting"], row["algorithm"]) for row in left_out] == [("σ = 0.3", "SCAFFOLD")]
    ends = {(row["setting"], row["algorithm"]): row for row in rows if row["job"] == "drdm-table-2"}
    for setting in ("σ = 0.3", "σ = 0.7"):
        both = (f"{100 * float(ends[setting, 'DRDM'][f'avg_accuracy_{way}']):.1f}" for way in ("with", "without"))
        assert one_paragraph_quotes(page, *both)


def test_step_bound_changes_nothing_with_a_determined_step_size():
    rows = TABLES.rows_of("step_bound_unchanged/with_and_without.csv")
    ends = {(row["method"], row["factor"], row["step_bound"]): row for row in rows}
    for method, factor in {(row["method"], row["factor"]) for row in rows}:
        without, bounded = ({**ends[method, factor, bound], "step_bound": ""} for bound in ("0", "100"))
        assert factor != "1" or without == bounded, method
    once, back = (
        {m: row["avg_accuracy"] for (m, f, bound), row in ends.items() if (f, bound) == (k, "100")} for k in "14"
    )
    equal = str(sum(once[m] == back[m] for m in once))
    without, bounded = (f"{100 * float(ends['q-FFL', '4', bound]['avg_accuracy']):.1f} %" for bound in ("0", "100"))
    assert one_paragraph_quotes("docs/results/resilience.md", equal, str(len(once)), without, bounded)
    assert ends["q-FFL", "4", "0"]["halved"] == "0"


@pytest.mark.parametrize("name", ["dropout", "abuse", "fuzz", "survival"])
def test_resilience_page_names_the_command(name):
    summary = read(f"evidence/results/{name}/summary.json")
    script = re.findall(r"evidence/\w+\.py", summary["command"])[0]
    assert script in (ROOT / "docs" / "results" / "resilience.md").read_text(encoding="utf-8")
    assert (ROOT / script).exists()


def test_assessment_statements_hold_and_invalid_ones_were_detected():
    ours, wrong = (TABLES.rows_of(f"assessment_coverage/{name}.csv") for name in ("coverage", "wrong_variants"))
    assert not [row for row in ours if row["rejected"] == "True"]
    assert {row["statement"] for row in wrong} == {row["statement"] for row in wrong if row["rejected"] == "True"}
    assert {row["federations"] for row in ours if row["demanded"] == "True"} >= {"10000"}


def test_number_of_runs_whose_step_size_was_too_large():
    tables = [f"scaffpd-{name}" for name in ("table-1", "table-2", "table-3", "table-4", "figure-3", "figure-4")]
    numbers = ("algorithm", "seed", "avg_accuracy", "worst_accuracy", "avg_loss", "bytes_up", "gradient_evaluations")
    # Figures share runs with tables.
    runs = {tuple(row[k] for k in numbers): row for table in tables for row in TABLES.rows_of(f"{table}/cells.csv")}
    assert {row["stopped"] for row in runs.values()} == {"rounds"}
    assert one_paragraph_quotes(
        "EXPERIMENTS.md", f"{len(runs):,}", str(sum(int(row["halved"]) > 0 for row in runs.values()))
    )
