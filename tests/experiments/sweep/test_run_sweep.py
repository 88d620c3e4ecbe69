"""Test sweeps: run in a pool, killed, resumed, extended, and read again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tests.support.refusals import check_refusal, refused
from tests.support.run_files import different, results_in

import drfl
from drfl.cli import console
from drfl.cli.app import call
from drfl.cli.compare import comparison_view
from drfl.core.errors import Notice, RunWarning
from drfl.core.screen import Screen
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.run.manifest import interruption, is_finished, runs_in
from drfl.experiments.run.runner import StopSignal
from drfl.experiments.sweep.study import read_study
from drfl.report.groups import group_runs

SMALL = {"clients": 4, "rounds": 3, "steps": 2, "engine": "loop", "cohort": 2}
FIXED = {**SMALL, "lr": 0.1}
STUDY = {**SMALL, "grid": {"algorithm": ["FedAvg", "DRFA"], "alpha": [0.3, 1.0], "seed": [0, 1]}}
QUIET = {"progress": None}
TOML = """clients = 4
rounds = {rounds}
steps = 2
cohort = 2
engine = "loop"

[grid]
algorithm = ["FedAvg", "DRFA"]
alpha = [0.3, 1.0]
seed = "0..1"
"""


def same(a, b):
    return different(results_in(a), results_in(b)) == []


@pytest.mark.long
def test_runs_equal_those_of_comparisons_in_any_pool(tmp_path):
    one = drfl.sweep(STUDY, out=tmp_path / "1" / "s", **QUIET)
    two = drfl.sweep(STUDY, out=tmp_path / "2" / "s", jobs=2, **QUIET)
    assert same(one.directory, two.directory)
    assert list(one.comparisons) == ["alpha = 0.3", "alpha = 1.0"]
    common = ["--clients", "4", "--rounds", "3", "--steps", "2", "--engine", "loop", "--cohort", "2", "--threads", "1"]
    out = str(tmp_path / "c")
    assert (
        call(["compare", *common, "--alpha", "1.0", "--algorithms", "FedAvg,DRFA", "--seeds", "2", "--out", out]) == 0
    )
    compared = json.loads((tmp_path / "c" / "outcomes.json").read_text())["outcomes"]
    own = [{**outcome._asdict(), "run": ""} for outcome in one.comparisons["alpha = 1.0"].outcomes]
    assert [(o["algorithm"], o["seed"], o["worst_interval"]) for o in compared] == [
        (o["algorithm"], o["seed"], list(o["worst_interval"])) for o in own
    ]
    frame = one.to_frame()
    assert frame["alpha"].tolist() == [0.3] * 4 + [1.0] * 4
    assert drfl.load_runs(one.directory)["worst_accuracy"].tolist() == frame["worst_accuracy"].tolist()
    loaded = drfl.load_comparison(tmp_path / "1" / "**", alpha=1.0)
    assert loaded.to_markdown() == one.comparisons["alpha = 1.0"].to_markdown()
    assert loaded.to_markdown() == (tmp_path / "c" / "table.md").read_text()
    assert len(loaded.to_histories()) == 4 * 4


def test_refused_points_are_recorded_and_others_run(tmp_path):
    study = {**FIXED, "algorithm": "FedAvg", "cohort": 3, "grid": {"clients": [2, 4]}}
    found = drfl.sweep(study, out=tmp_path / "s", **QUIET)
    assert [outcome.stopped for outcome in found.outcomes] == ["refused", "rounds"]
    frame = drfl.load_runs(tmp_path / "s")
    assert sorted(frame["stopped"]) == ["refused", "rounds"]
    assert frame.set_index("stopped")["clients"].to_dict() == {"refused": 2, "rounds": 4}
    asked = []
    again = drfl.sweep(study, out=tmp_path / "s", resume=True, progress=asked.append)
    assert (asked, again.outcomes) == ([], found.outcomes)


def test_rows_are_named_only_after_settings_that_vary(tmp_path):
    """A refused run does not have the settings that follow from others, such as alpha of its partition."""
    study = {**FIXED, "grid": {"algorithm": ["FedAvg"], "cohort": [2, 9]}}
    (found,) = drfl.sweep(study, out=tmp_path / "s", **QUIET).comparisons.values()
    assert found.algorithms == ("FedAvg (m=2)", "FedAvg (m=9)")


def test_sweep_without_progress_warns_of_untrained_models(tmp_path):
    study = {"clients": 5, "cohort": 3, "rounds": 2, "grid": {"algorithm": ["FedAvg", "DRFA"]}}
    with pytest.warns(RunWarning) as told:
        found = drfl.sweep(study, out=tmp_path / "s", **QUIET)
    assert [(w.message.code, w.filename) for w in told] == [("earlier-model", __file__)]
    (comparison,) = found.comparisons.values()
    assert comparison.untrained == {"DRFA": "seed 0"}
    lines = []
    drfl.sweep(study, out=tmp_path / "t", progress=lines.append)
    assert "earlier-model" in [line.code for line in lines if isinstance(line, Notice)]


@pytest.mark.long
def test_stopped_resumed_and_extended_sweep_is_complete(tmp_path, monkeypatch):
    whole = drfl.sweep(STUDY, out=tmp_path / "w" / "s", **QUIET)
    ended = []

    def stop_at_the_third(line):
        ended.append(line)
        if line.startswith("[3/"):
            monkeypatch.setattr(StopSignal, "stop", True)

    few = {**STUDY, "grid": {**STUDY["grid"], "algorithm": ["FedAvg"]}}
    part = drfl.sweep(few, out=tmp_path / "s", progress=stop_at_the_third)
    monkeypatch.undo()
    assert (len(part.outcomes), part.is_complete) == (3, False)
    with refused("unfinished-run", str(tmp_path / "s")):
        drfl.sweep(few, out=tmp_path / "s", **QUIET)
    ended.clear()
    drfl.sweep(few, out=tmp_path / "s", resume=True, progress=ended.append)
    assert len(ended) == 1
    ended.clear()
    all_of_it = drfl.sweep(STUDY, out=tmp_path / "s", resume=True, progress=ended.append)
    assert sum(line.startswith("[") for line in ended) == 4
    assert (
        all_of_it.to_frame()
        .drop(columns=["run", "wall_seconds"])
        .equals(whole.to_frame().drop(columns=["run", "wall_seconds"]))
    )
    assert all_of_it.to_markdown() == whole.to_markdown()


@pytest.mark.long
def test_killed_sweep_resumes_with_the_same_bytes(tmp_path):
    (tmp_path / "study.toml").write_text(TOML.format(rounds=40))
    assert call(["sweep", str(tmp_path / "study.toml"), "--out", str(tmp_path / "w" / "s"), "--jobs", "1"]) == 0
    out = tmp_path / "s"
    command = [sys.executable, "-m", "drfl", "sweep", "study.toml", "--out", "s", "--jobs", "2"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not any(out.glob("*-seed*/summary.json")):
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert not is_finished(out)
    done = {path: path.stat().st_mtime_ns for path in out.glob("*-seed*/summary.json")}
    assert call(["sweep", "--resume", "--out", str(out), "--jobs", "1"]) == 0
    assert is_finished(out)
    assert all(path.stat().st_mtime_ns == before for path, before in done.items())
    assert same(out, tmp_path / "w" / "s")


def test_invalid_sweeps_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TOML.format(rounds=1))
    (tmp_path / "plain.toml").write_text("rounds = 2\n")
    check_refusal(["sweep"], "missing-option", "grid")
    check_refusal(["sweep", "plain.toml"], "missing-option", "grid")
    check_refusal(["sweep", "none.toml"], "file-not-found")
    check_refusal(["sweep", "study.toml", "--alpha", "0.2"], "given-twice", "alpha")
    check_refusal(["sweep", "--resume"], "needs-option", "resume")
    check_refusal(["sweep", "--resume", "--out", "nothing"], "nothing-to-resume")
    assert {path.name for path in tmp_path.iterdir()} == {"study.toml", "plain.toml"}


OWN = """from drfl import FedAvg
import pathlib

pathlib.Path("loaded").touch()
Own = FedAvg
"""


@pytest.mark.long
def test_code_named_in_a_folder_is_loaded_only_if_it_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.replace("Own", "Mine"))
    study = TOML.format(rounds=1).replace('["FedAvg", "DRFA"]', '["mine.py:Mine"]')
    (tmp_path / "study.toml").write_text(study)
    assert call(["sweep", "study.toml", "--out", "s", "--jobs", "1"]) == 0
    assert call(["sweep", "--resume", "--out", "s", "--jobs", "1"]) == 0
    (tmp_path / "loaded").unlink()
    (tmp_path / "s" / "other.py").write_text(OWN)
    config = tmp_path / "s" / "config.toml"
    places = {
        "algorithm": ('algorithm = ["s/other.py:Own"]\n', "[[list]]\nalgorithm = 's/other.py:Own'\n"),
        "ambiguity": ("ambiguity = ['s/other.py:Own']\n", "[[list]]\nambiguity = 's/other.py:Own:a=1'\n"),
        "DRFA.ambiguity": ("DRFA.ambiguity = ['s/other.py:Own']\n", "[[list]]\nDRFA.ambiguity = 's/other.py:Own'\n"),
        "s/other.py:Own.m": ("'s/other.py:Own.m' = [1]\n", "[[list]]\n's/other.py:Own'.m = 1\n"),
    }
    for field, own in ((field, own) for field, texts in places.items() for own in texts):
        config.write_text(f"clients = 4\nrounds = 1\n[grid]\nseed = [0]\n{own}")
        check_refusal(["sweep", "--resume", "--out", "s"], "untrusted-code", field, "s/other.py")
        check_refusal(["sweep", str(config), "--out", "t"], "untrusted-code", field, "s/other.py")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("pattern", ["nothing/**", "."])
def test_folders_without_runs_are_refused(pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("not-a-run", pattern):
        drfl.load_runs(pattern)


@pytest.mark.parametrize("patterns", [["a", "b"], 3])
def test_folders_that_are_not_paths_are_refused(patterns):
    with refused("wrong-type", "patterns", type(patterns).__name__):
        drfl.load_runs(patterns)
    with refused("wrong-type", "patterns", type(patterns).__name__):
        drfl.load_comparison(patterns)


@pytest.mark.long
def test_runs_on_different_data_are_not_compared(tmp_path):
    sweep = drfl.sweep({**SMALL, "algorithm": "FedAvg", "grid": {"alpha": [0.3, 1.0]}}, out=tmp_path / "s", **QUIET)
    with refused("runs-differ", "alpha"):
        drfl.load_comparison(sweep.directory)
    with refused("unknown-name", "alpha", "0.2"):
        drfl.load_comparison(sweep.directory, alpha=0.2)
    with refused("unknown-name", "setting", "alhpa", "alpha"):
        drfl.load_comparison(sweep.directory, alhpa=0.3)


@pytest.mark.long
def test_data_frame_has_the_used_step_size_and_no_empty_column(tmp_path):
    for lr in (None, 0.25):
        values = {} if lr is None else {"lr": lr}
        drfl.sweep({**SMALL, **values, "algorithm": "FedAvg", "grid": {"seed": [0]}}, out=tmp_path / f"{lr}", **QUIET)
    frame = drfl.load_runs(tmp_path)  # the parent folder of the sweeps
    assert len(frame) == 2
    given, chosen = frame["eta"]  # sorted by folder name
    assert (chosen > 0, given) == (True, 0.25)
    assert frame.notna().any().all()
    assert "lr" not in drfl.load_runs(tmp_path / "None")
    assert drfl.load_runs(tmp_path / "None")["eta"].tolist() == [chosen]


def test_load_runs_does_not_read_curves(tmp_path):
    sweep = drfl.sweep({**FIXED, "algorithm": "FedAvg", "grid": {"seed": [0]}}, out=tmp_path / "s", **QUIET)
    (folder,) = (tmp_path / "s" / run.name for run in sweep.runs)
    (folder / "history.csv").write_text("")
    (folder / "lambda.csv").write_text("")
    pd.testing.assert_frame_equal(drfl.load_runs(tmp_path / "s"), sweep.to_frame())


@pytest.mark.parametrize(
    ("values", "first"),
    [pytest.param([0.3], r"\begin{tabular}", marks=pytest.mark.long), ([0.3, 1.0], "% alpha = 0.3")],
)
def test_latex_tables_are_named_only_if_there_are_several(values, first, tmp_path):
    name = {"alpha": values} if len(values) > 1 else {"seed": [0]}
    sweep = drfl.sweep({**FIXED, "algorithm": "FedAvg", "grid": name}, out=tmp_path / "s", **QUIET)
    assert sweep.to_latex().startswith(first)
    assert sweep.to_latex().count(r"\begin{tabular}") == len(values)


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory):
    sets = ["chi-square:rho=0.1", "chi-square:rho=1.0"]
    study = {**FIXED, "rounds": 1, "algorithm": "DRFAProx", "grid": {"ambiguity": sets, "seed": [0, 1]}}
    return drfl.sweep(study, out=tmp_path_factory.mktemp("sets") / "s", progress=print)


def test_configurations_whose_names_have_colons_are_compared(two_sets, tmp_path, monkeypatch, capsys):
    for found in (drfl.load_comparison(two_sets.directory), *two_sets.comparisons.values()):
        names = list(found.algorithms)
        assert names == ["DRFAProx (ambiguity=chi-square:rho=0.1)", "DRFAProx (ambiguity=chi-square:rho=1.0)"]
        assert found.to_histories()["algorithm"].unique().tolist() == names
        assert found.costs_to("worst_accuracy=0.01")["seeds"].to_dict() == dict.fromkeys(names, 2)
        assert found.differences().index.tolist() == names[1:]
        parameters = [table["parameters"]["ambiguity"] for table in found.summary()["algorithms"].values()]
        assert parameters == ["chi-square:rho=0.1", "chi-square:rho=1.0"]
        monkeypatch.setattr(console, "out", Screen())
        console.out.print(comparison_view(found))
        assert "mean ± std over 2 seeds" in capsys.readouterr().out
    assert call(["report", str(two_sets.directory), "--figure", str(tmp_path / "f.svg")]) == 0


def test_labels_are_escaped_in_every_kind_of_table(two_sets):
    (found,) = two_sets.comparisons.values()
    name = "<img src=x> a|b & #1 $x$ 5 % y_z"
    odd = replace(found, outcomes=tuple(o._replace(algorithm=name, stopped_on="test") for o in found.outcomes))
    assert odd.legends
    assert "<img" not in odd._repr_html_()
    assert "&lt;img src=x&gt;" in odd._repr_html_()
    row = next(line for line in odd.to_markdown().splitlines() if "img" in line)
    assert r"&lt;img src=x> a\|b" in row
    assert r"$<$img src=x$>$ a|b \& \#1 \$x\$ 5 \% y\_z" in odd.to_latex()
    sweep = replace(two_sets)
    vars(sweep)["comparisons"] = {"model = <img src=x>\nb": odd}
    assert "<img" not in sweep._repr_html_() + sweep.to_markdown()
    assert sweep.to_latex().startswith("% model = <img src=x> b\n")


def test_reports_blame_failed_runs_only_on_their_own_configuration(tmp_path, capsys):
    place = str(tmp_path / "s")
    study = {**FIXED, "algorithm": "FedAvg", "alpha": 1, "grid": {"cohort": [2, 9]}}
    drfl.sweep(study, out=place, **QUIET)
    assert call(["report", place, place, f"{place}/{cells(place)[0]}", "--out", str(tmp_path / "r.html")]) == 0
    for page in (tmp_path / "r.html", tmp_path / "s" / "report.html"):
        text = page.read_text()
        assert "FedAvg (m 9) (its run failed)" in text
        assert "runs failed" not in text


def test_failed_seed_belongs_to_its_configuration(tmp_path):
    """A failed run holds its settings as the folders of finished runs do, with defaults and in their form."""
    study = {
        **FIXED,
        "rounds": 1,
        "algorithm": "DRFAProx",
        "grid": {"ambiguity": ["chi-square:rho=1"], "gamma": [0.1, 0.2]},
    }
    study["grid"]["seed"] = [0, 1]
    del study["cohort"]
    found = drfl.sweep(study, out=tmp_path / "s", **QUIET)
    outcomes = list(found.outcomes)
    outcomes[1] = Outcome(outcomes[1].algorithm, outcomes[1].seed, "diverged", run=outcomes[1].run)
    broken = replace(found, outcomes=tuple(outcomes))
    records = [stored.record for stored in broken.stored if stored.record is not None]
    groups = group_runs(records, [stored.failed for stored in broken.stored if stored.record is None])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("DRFAProx (gamma 0.2)", 2),
        ("DRFAProx (gamma 0.1) (1 of 2 runs failed)", 1),
    ]


def test_assess_compares_configurations(tmp_path, capsys):
    study = {**SMALL, "rounds": 1, "grid": {"algorithm": ["FedAvg", "SCAFFOLD"], "lr": [0.01, 0.05]}}
    drfl.sweep(study, out=tmp_path / "s", **QUIET)
    capsys.readouterr()
    assert call(["assess", str(tmp_path / "s"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    labels = [f"{name} (lr {lr})" for lr in (0.01, 0.05) for name in ("FedAvg", "SCAFFOLD")]
    assert [run["algorithm"] for run in content["runs"]] == labels
    first, *others = cells(tmp_path / "s")
    assert [(pair["first"], pair["second"]) for pair in content["paired"]] == [(first, other) for other in others]


def test_sweep_that_loses_values_is_complete(tmp_path):
    place = tmp_path / "s"
    study = {**SMALL, "rounds": 1, "algorithm": "FedAvg", "grid": {"lr": [0.01, 0.05]}}
    drfl.sweep(study, out=place, **QUIET)
    before = cells(place)
    found = drfl.sweep({**study, "grid": {"lr": [0.05]}}, out=place, resume=True, **QUIET)
    assert is_finished(place)
    assert interruption(place) is None
    assert [folder.name for folder in runs_in(place)] == before[1:]
    for pattern in (place, place.parent, place / "**"):
        assert drfl.load_runs(pattern)["lr"].tolist() == [0.05]
    assert (place / before[0] / "summary.json").exists()
    assert len(drfl.sweep(study, out=place, resume=True, **QUIET).outcomes) == 2
    assert len(drfl.load_runs(found.directory)) == 2


def test_initial_models_are_varied(tmp_path):
    once = drfl.sweep(
        {**FIXED, "rounds": 0, "grid": {"algorithm": ["FedAvg"], "seed": [0, 1]}}, out=tmp_path / "a", **QUIET
    )
    models = [str(once.directory / run.name / "model.safetensors") for run in once.runs]
    assert len(read_study({**SMALL, "grid": {"init_from": models}}, {}).runs) == 2


def cells(folder):
    return json.loads((Path(folder) / "manifest.json").read_text())["cells"]
