"""Test ``drfl.compare``, the Python version of the command."""

from __future__ import annotations

import json
import signal
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import refused
from tests.support.rollbacks import set_back_once
from torch import nn

import drfl
from drfl import resilience
from drfl.assessment.seeds import UNTRAINED, seed_difference
from drfl.cli.app import call
from drfl.core.errors import Notice, RunWarning
from drfl.core.run_end import DAGGER, DOUBLE_DAGGER, INITIAL, ON_TEST, OWN_MODELS, RESET, SECTION
from drfl.experiments.compare import run_comparison
from drfl.experiments.compare.comparison_results import verdict_lines
from drfl.experiments.compare.outcomes import first_intervals
from drfl.experiments.execution.executor import LocalExecutor
from drfl.experiments.run.runner import StopSignal


@dataclass(frozen=True)
class Mine(drfl.FedAvg):
    """A user's algorithm."""

    note: object = nn.Identity()


@dataclass(frozen=True)
class Halved:
    """A user's guard that halves every report."""

    def start(self, n):
        return torch.zeros(0, dtype=torch.float64)

    def judge(self, reports, request, fed, memory):
        kept = torch.ones(len(reports.values), dtype=torch.bool)
        return resilience.GuardResult(reports.values.double() / 2, kept, memory)


def clients(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = [torch.randn(30, 4, generator=generator) + i / 2 for i in range(4)]
    return drfl.ClientData.from_arrays({f"site {i}": (x[i], (x[i].sum(1) > i).long()) for i in range(4)})


def task(seed=0):
    with drfl.Key(seed).torch_scope():
        return drfl.Task(nn.Linear(4, 2))


DATA, TASK = clients(), task()
PAIR = {"mine": Mine(m=3), "DRFA": drfl.DRFA(m=3)}
QUIET = {"rounds": 3, "seeds": 2, "progress": None}


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a comparison without times, and the report."""
    free = ("timing.csv", "report.html")
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    content = {name: path.read_bytes() for name, path in found.items() if path.name not in free}
    for name in [name for name in content if name.endswith("/summary.json")]:
        summary = json.loads(content[name])
        del summary["wall_seconds"]
        content[name] = json.dumps(summary).encode()
    return content


@pytest.mark.long
def test_each_run_equals_a_single_run(tmp_path):
    found = drfl.compare(PAIR, clients, task, out=tmp_path / "r", **QUIET)
    assert [(o.algorithm, o.seed) for o in found.outcomes] == [("mine", 0), ("DRFA", 0), ("mine", 1), ("DRFA", 1)]
    for outcome in found.outcomes:
        fed = drfl.Simulation(clients(outcome.seed), task(outcome.seed))
        alone = drfl.run(PAIR[outcome.algorithm], fed, rounds=3, seed=outcome.seed)
        assert outcome.metrics == alone.history.last.metrics
    report = (tmp_path / "r" / "report.html").read_text()
    assert "mine" in report
    assert "site 3" in report
    frame = found.to_frame()
    assert frame.shape[0] == 4
    assert frame["worst_accuracy"].tolist() == pytest.approx([o.metrics.worst_score for o in found.outcomes], abs=1e-6)
    assert found.to_markdown() == (tmp_path / "r" / "table.md").read_text()
    assert found.to_latex().count(r"\\") == 3
    assert found._repr_html_().count("<tr>") == 3
    assert len(repr(found)) < 200


FILE = """
dataset = "digits"
partition = "dirichlet-drop"
clients = 6
alpha = 1.0
rounds = 3
guards = ["clip:bound=3", "trim:f=1"]
aggregator = "trimmed-mean:f=1"
faults = {drop = 0.2}
max_norm = 50.0
step_bound = 20.0
min_replies = 2
over_select = 1.5
engine = "stacked"
cohort = 4

[algorithms.FedAvg]
lr = 0.1

[algorithms.DRFA]
gamma = 0.01
ambiguity = "cvar:alpha=0.5"
"""


def named_task(seed):
    """Return the task with the initial model that the command creates for a linear model."""
    with drfl.Key(seed).fold("model").torch_scope():
        return drfl.Task(drfl.models.linear((1, 8, 8), 10))


def test_objects_give_the_same_comparison_as_a_file(tmp_path):
    (tmp_path / "job.toml").write_text(FILE)
    assert call(["compare", str(tmp_path / "job.toml"), "--seeds", "1..1", "--out", str(tmp_path / "file")]) == 0
    drfl.compare(
        {
            "FedAvg": drfl.FedAvg(m=4, local=drfl.LocalSGD(lr=0.1)),
            "DRFA": drfl.DRFA(m=4, gamma=0.01, ambiguity=drfl.CVaR(0.5)),
        },
        drfl.data_spec(dataset="digits", partition="dirichlet-drop", clients=6, alpha=1.0),
        named_task,
        rounds=3,
        seeds=[1],
        out=tmp_path / "objects",
        guards=[resilience.Clip(3.0), "trim:f=1"],
        aggregator=resilience.TrimmedMean(1),
        faults=resilience.FailureModel(drop=0.2),
        max_norm=50.0,
        step_bound=resilience.StepBound(20.0),
        min_replies=2,
        over_select=1.5,
        engine=drfl.Stacked(),
        progress=None,
    )
    for name in ("compare.csv", "DRFA-seed1/history.csv", "DRFA-seed1/lambda.csv", "DRFA-seed1/clients.csv"):
        assert (tmp_path / "objects" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()
    kept, asked = (tomllib.loads((tmp_path / p / "config.toml").read_text()) for p in ("objects", "file"))
    rules = ("guards", "aggregator", "faults", "max_norm", "step_bound", "min_replies", "over_select", "engine")
    assert {name: kept[name] for name in rules} == {name: asked[name] for name in rules}
    assert kept["algorithms"] == asked["algorithms"]
    described = ("dataset", "partition", "clients", "alpha")
    assert {name: kept[name] for name in described} == {name: asked[name] for name in described}


@pytest.mark.long
def test_own_rules_are_identified_by_their_source(tmp_path):
    drfl.compare({"mine": Mine(m=3)}, DATA, TASK, guards=Halved(), out=tmp_path / "a", **QUIET)
    kept = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert kept["guards"] == ["Halved()"]
    assert set(kept["files"]) == {"class Mine", "class Halved"}
    first = json.loads((tmp_path / "a" / "summary.json").read_text())
    plain = drfl.compare({"mine": Mine(m=3)}, DATA, TASK, out=tmp_path / "b", **QUIET)
    assert first["algorithms"]["mine"]["parameters"]["m"] == 3
    with refused("other-run", "guards", "Halved()"):
        drfl.compare({"mine": Mine(m=3)}, DATA, TASK, out=tmp_path / "a", resume=True, **QUIET)
    assert len(plain.outcomes) == 2


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ({"guards": drfl.DRFA()}, ("wrong-type", "guard", "DRFA")),
        ({"guards": ["clip:bound=3", 5]}, ("wrong-type", "guard", "int")),
        ({"guards": resilience.Clip}, ("wrong-type", "guard", "Clip")),
        ({"aggregator": len}, ("wrong-type", "aggregator")),
        ({"aggregator": resilience.Krum}, ("wrong-type", "aggregator", "the class Krum")),
        ({"faults": 0.3}, ("wrong-type", "faults", "float")),
        ({"faults": "drop"}, ("invalid-format", "fault", "'drop'")),
        ({"faults": ["drp=0.3"]}, ("unknown-name", "fault", "drp", "drop")),
        ({"step_bound": "far"}, ("wrong-type", "step_bound", "str")),
        ({"step_bound": 0.5}, ("out-of-range", "step_bound", "0.5")),
        ({"engine": drfl.Loop}, ("wrong-type", "engine")),
        ({"engine": "looop"}, ("unknown-name", "engine", "'loop'")),
        ({"over_select": 0.5}, ("invalid-value", "over_select", "0.5")),
    ],
)
def test_invalid_rules_are_refused(rule, error):
    with refused(*error):
        drfl.compare(PAIR, DATA, TASK, **{**QUIET, **rule})


@pytest.mark.long
def test_names_with_spaces_are_kept_in_folders_tables_and_resumes(tmp_path):
    named = {"DRDM (γ = 0)": drfl.DRDM(m=3, gamma=0.0), "dual DRDM": drfl.DualDRDM(m=3)}
    out = tmp_path / "r"
    first = drfl.compare(named, clients, task, **QUIET, out=out)
    assert (out / "DRDM (γ = 0)-seed1" / "model.safetensors").is_file()
    assert drfl.compare(named, clients, task, **QUIET, out=out, overwrite=True).to_markdown() == first.to_markdown()
    (out / "summary.json").unlink()
    again = drfl.compare(named, clients, task, **QUIET, out=out, resume=True)
    assert again.to_frame().equals(first.to_frame())
    assert "DRDM (γ = 0)" in (out / "report.html").read_text()


@pytest.mark.long
def test_differences_match_the_table_and_state_verdicts():
    three = {**PAIR, "again": PAIR["DRFA"]}
    found = drfl.compare(three, clients, task, **{**QUIET, "seeds": 5})
    wide = found.to_frame().pivot(index="seed", columns="algorithm", values="avg_loss")
    table = found.differences("DRFA", "avg_loss")
    assert table.index.tolist() == ["mine", "again"]
    expected = seed_difference((wide["mine"] - wide["DRFA"]).to_numpy())
    assert table.loc["mine", ["seeds", "difference", "low", "high"]].tolist() == pytest.approx(expected[:4])
    assert table.loc["mine", "p_holm"] == pytest.approx(min(1.0, 2 * expected.p_t))  # Holm, of two
    assert table.loc["again", ["difference", "verdict"]].tolist() == [0, "not significant"]
    sign = "better" if expected.mean < 0 else "worse"
    assert table.loc["mine", "verdict"] == (sign if 2 * expected.p_t < 0.05 else "not significant")
    assert found.differences().index.name == "worst_accuracy less mine's"


@pytest.mark.long
def test_runs_stopped_by_test_rows_are_marked_and_not_compared():
    """Each of five seeds stops before its first round, at a target that every model reaches."""
    five = {**QUIET, "seeds": 5}
    found = drfl.compare(PAIR, clients, task, until="test:avg_loss=100", **five)
    assert set(found.to_frame()["stopped_on"]) == {"test"}
    assert all(outcome.worst_interval is None for outcome in found.outcomes)
    assert set(found.differences()["seeds"]) == {0}
    assert set(found.differences()["verdict"]) == {"stopped on test rows"}
    for text in (found.to_markdown(), found._repr_html_()):
        assert ON_TEST in text
        assert text.count(DAGGER) == 3
    assert found.to_latex().count(r"$\dagger$") == 3
    held = drfl.compare(PAIR, lambda seed: clients(seed).with_validation(0.2), task, until="avg_loss=100", **five)
    assert set(held.to_frame()["stopped_on"]) == {"validation"}
    assert all(outcome.worst_interval is not None for outcome in held.outcomes)
    assert DAGGER not in held.to_markdown()
    assert set(drfl.compare(PAIR, DATA, TASK, **QUIET).to_frame()["stopped_on"]) == {""}


def test_runs_that_returned_the_initial_model_are_named_and_not_ranked(tmp_path):
    """Two rounds of DRFA raise the largest training loss at two of three seeds."""
    data = drfl.data_spec(dataset="digits", clients=5)
    algorithms = {"FedAvg": drfl.FedAvg(m=3), "DRFA": drfl.DRFA(m=3)}
    with pytest.warns(RunWarning) as told:
        found = drfl.compare(algorithms, data, named_task, rounds=2, seeds=3, progress=None, out=tmp_path / "r")
    assert [(w.message.code, w.filename) for w in told] == [("earlier-model", __file__)]
    assert found.untrained == {"DRFA": "2 of 3 runs, seeds 0, 1"}
    assert found.summary()["algorithms"]["DRFA"]["untrained"] == 2
    drfa = next(line for line in found.to_markdown().splitlines() if line.startswith(f"| DRFA {DOUBLE_DAGGER}"))
    assert "**" not in drfa
    assert "±" in drfa
    assert f"{INITIAL}, so it is not ranked: DRFA (2 of 3 runs, seeds 0, 1)" in found.to_markdown()
    assert found.differences()["verdict"].tolist() == [UNTRAINED]
    (line,) = verdict_lines(found)
    assert line.startswith("No comparison: only FedAvg")
    lines = []
    drfl.compare(algorithms, data, named_task, rounds=2, seeds=[0], progress=lines.append)
    assert [line.code for line in lines if isinstance(line, Notice)] == ["earlier-model"]


@pytest.mark.long
def test_other_seeds_of_a_stopped_algorithm_are_not_compared():
    """They are selected by their results: if good luck stops a run, the remaining runs are the unlucky ones."""
    made = drfl.compare(PAIR, clients, task, **{**QUIET, "seeds": 6})
    stop = {"stopped": "target", "stopped_on": "test", "worst_interval": None}
    outcomes = tuple(o._replace(**stop) if (o.algorithm, o.seed) == ("DRFA", 0) else o for o in made.outcomes)
    found = replace(made, outcomes=outcomes)
    assert made.differences()["seeds"].tolist() == [6]
    assert found.differences()["seeds"].tolist() == [0]
    at, intervals = first_intervals(outcomes)
    assert (at, list(intervals)) == (0, ["mine"])
    assert first_intervals([o._replace(**stop) if o.seed == 0 else o for o in outcomes]) is None
    assert first_intervals([]) is None


@pytest.mark.long
def test_few_seeds_give_no_verdict_and_wrong_names_are_refused():
    found = drfl.compare(PAIR, DATA, TASK, **QUIET)
    assert set(found.differences()["verdict"]) == {"not decided"}
    for wrong, field in ((("nobody",), "algorithm"), ((None, "nothing"), "metric")):
        with refused("unknown-name", field):
            found.differences(*wrong)


@pytest.mark.long
def test_function_of_the_seed_is_seeded_by_drfl(tmp_path):
    def unseeded(seed):
        return drfl.Task(nn.Linear(4, 2))

    alike = {"one": drfl.FedAvg(m=3), "two": drfl.FedAvg(m=3)}
    rows = [drfl.compare(alike, clients, unseeded, **QUIET).to_frame().set_index(["seed", "algorithm"]) for _ in "ab"]
    pd.testing.assert_frame_equal(*rows)
    worst = rows[0]["worst_loss"].unstack()
    assert worst["one"].equals(worst["two"])
    assert worst["one"].nunique() == 2


@pytest.mark.long
def test_comparison_without_out_stores_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = drfl.compare(PAIR, DATA, TASK, **QUIET)
    assert (found.directory, len(found.outcomes)) == (None, 4)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    whole = drfl.compare(PAIR, DATA, TASK, out=tmp_path / "whole", **QUIET)
    asked: list[str] = []

    def stop_at_the_second(line):
        asked.append(line)
        if line.startswith("[2/"):
            monkeypatch.setattr(StopSignal, "stop", True)

    part = drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", **QUIET | {"progress": stop_at_the_second})
    assert len(part.outcomes) == 2
    monkeypatch.undo()
    with refused("unfinished-run", str(tmp_path / "r")):
        drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", **QUIET)
    again = drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", resume=True, **QUIET)
    assert again.outcomes == whole.outcomes
    assert content(tmp_path / "r") == content(tmp_path / "whole")
    assert drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", resume=True, **QUIET).outcomes == whole.outcomes


@pytest.mark.long
def test_finished_comparison_can_be_extended(tmp_path):
    more = {**PAIR, "FedAvg": drfl.FedAvg(m=3)}
    first = drfl.compare(PAIR, clients, task, out=tmp_path / "r", **QUIET)
    ended = []
    wide = QUIET | {"seeds": 3, "progress": ended.append}
    extended = drfl.compare(more, clients, task, out=tmp_path / "r", resume=True, **wide)
    assert sum(line.startswith("[") for line in ended) == 9  # nine outcomes in order, five of them new
    assert set(map(repr, first.outcomes)) < set(map(repr, extended.outcomes))
    whole = drfl.compare(more, clients, task, out=tmp_path / "whole", **QUIET | {"seeds": 3})
    assert extended.to_frame().equals(whole.to_frame())
    with refused("other-run", "algorithms", "FedAvg"):
        drfl.compare(PAIR, clients, task, out=tmp_path / "r", resume=True, **QUIET | {"seeds": 3})
    longer = drfl.compare(more, clients, task, out=tmp_path / "r", resume=True, **QUIET | {"seeds": 3, "rounds": 4})
    assert set(longer.to_frame()["rounds"]) == {4}
    before, now = (found.to_histories().drop(columns="seconds") for found in (extended, longer))
    # The last row of a run may describe an earlier model, which the run returns.
    earlier, same = (rows[rows["round"] < 3].reset_index(drop=True) for rows in (before, now))
    assert earlier.equals(same)
    with refused("other-run", "rounds", "3", "4"):
        drfl.compare(more, clients, task, out=tmp_path / "r", resume=True, **QUIET | {"seeds": 3})


@pytest.fixture
def _python_handles_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_python_handles_ctrl_c")
def test_ctrl_c_returns_finished_runs():
    def interrupt(line):
        if line.startswith("[2/"):
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(drfl.RunWarning, match="2 of 4") as caught:
        part = drfl.compare(PAIR, DATA, TASK, **QUIET | {"progress": interrupt})
    assert (len(part.outcomes), part.is_complete) == (2, False)
    assert "interrupted" in [warning.message.code for warning in caught]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.long
def test_missing_values_of_a_frame_are_numbers():
    data = drfl.ClientData.from_arrays([(torch.ones(12, 4), torch.arange(12.0)[:, None])] * 2)
    learned = drfl.Task(nn.Linear(4, 1), nn.MSELoss())
    frame = drfl.compare({"nan": drfl.FedAvg(m=2)}, data, learned, **QUIET).to_frame()
    assert frame["algorithm"].tolist() == ["nan", "nan"]
    for name in ("worst_rmse_low", "worst_rmse_high", "equal_worst_rmse"):
        assert frame[name].isna().all()
        assert frame[name].dtype == float


def test_as_many_processes_start_as_runs_are_left(tmp_path, monkeypatch):
    counts = []

    def here(workers, what, modules):
        counts.append(workers)
        return LocalExecutor(what)

    monkeypatch.setattr(run_comparison, "executor_of", here)
    quick = {**QUIET, "rounds": 0, "seeds": 2}
    drfl.compare(PAIR, DATA, TASK, out=tmp_path / "a", jobs=64, **{**quick, "seeds": 1})
    drfl.compare(PAIR, DATA, TASK, out=tmp_path / "a", jobs=64, resume=True, **quick)
    drfl.compare({"mine": Mine(m=3)}, DATA, TASK, out=tmp_path / "b", jobs=2, **{**quick, "seeds": 3})
    assert counts == [2, 2, 2]


@pytest.mark.long
def test_worker_processes_write_the_same_files(tmp_path):
    one, two = (drfl.compare(PAIR, DATA, TASK, out=tmp_path / str(k), jobs=k, **QUIET) for k in (1, 2))
    assert one.outcomes == two.outcomes
    assert content(tmp_path / "1") == content(tmp_path / "2")


@pytest.mark.long
def test_diverged_run_does_not_stop_the_others(tmp_path):
    wild = drfl.FedAvg(m=3, local=drfl.LocalSGD(lr=3e38))
    with pytest.warns(RunWarning, match="2 of 4 runs failed, the first is wild, seed 0: diverged"):
        found = drfl.compare({"wild": wild, "DRFA": PAIR["DRFA"]}, DATA, TASK, out=tmp_path / "r", **QUIET)
    assert "2 of 4 runs, 2 failed" in repr(found)
    assert [o.stopped for o in found.outcomes] == ["diverged", "rounds"] * 2
    assert "diverged" in found.to_markdown()
    assert found.to_frame()["worst_accuracy"].isna().sum() == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"algorithms": {}}, ("wrong-type", "algorithms")),
        ({"algorithms": [drfl.FedAvg(m=3)]}, ("wrong-type", "algorithms")),
        ({"algorithms": {"a/b": drfl.FedAvg(m=3)}}, ("invalid-name", "a/b")),
        ({"algorithms": {"..": drfl.FedAvg(m=3)}}, ("invalid-name", "..")),
        ({"algorithms": {"a.": drfl.FedAvg(m=3)}}, ("invalid-name", "a.")),
        ({"algorithms": {3: drfl.FedAvg(m=3)}}, ("invalid-name", "3")),
        ({"algorithms": {"a": drfl.FedAvg}}, ("wrong-type", "a", "FedAvg")),
        ({"algorithms": {"a": "FedAvg"}}, ("wrong-type", "a", "str")),
        ({"algorithms": {"a": drfl.FedAvg(m=30)}}, ("out-of-range", "m")),
        ({"data": drfl.Simulation(DATA, TASK)}, ("wrong-type", "data", "Simulation", "drfl.ClientData")),
        ({"data": lambda: DATA}, ("wrong-type", "data", "data(seed)")),
        ({"task": lambda seed, extra: TASK}, ("wrong-type", "task", "task(seed)")),
        ({"data": lambda seed: 3}, ("wrong-type", "data", "data(0)", "int", "drfl.ClientData")),
        ({"task": nn.Linear(4, 2)}, ("wrong-type", "task", "Linear")),
        ({"task": drfl.Task}, ("wrong-type", "task", "Task")),
        ({"rounds": -1}, ("invalid-value", "rounds", "-1")),
        ({"rounds": "many"}, ("invalid-value", "rounds", "'many'")),
        ({"seeds": 0}, ("out-of-range", "seeds")),
        ({"seeds": [1, 1]}, ("given-twice", "seeds")),
        ({"seeds": []}, ("invalid-value", "seeds")),
        ({"seeds": [-1]}, ("out-of-range", "seeds", "-1")),
        ({"seeds": 2.0}, ("wrong-type", "seeds", "2.0")),
        ({"faults": {"drop": "0.2"}}, ("invalid-value", "faults", "drop", "'0.2'")),
        ({"faults": {"drop": ["0.2", 0.1, 0.1]}}, ("invalid-value", "faults", "drop")),
        ({"seeds": True}, ("out-of-range", "seeds")),
        ({"predictions": {"other": np.zeros(3)}}, ("wrong-type", "predictions", "ndarray")),
        ({"predictions": pd.DataFrame({"row": [1]})}, ("wrong-type", "predictions", "DataFrame")),
        ({"predictions": "p.csv"}, ("wrong-type", "predictions", "str")),
        ({"seeds": "0..4"}, ("wrong-type", "seeds", "'0..4'")),
        ({"progress": "foo"}, ("wrong-type", "progress", "'foo'", "'bar'")),
        ({"jobs": 0}, ("out-of-range", "jobs")),
        ({"until": "worst=3"}, ("unknown-name", "metric")),
        ({"until": "worst_accuracy=0.5"}, ("no-validation", "until")),
        ({"until": "worst_accuracy=90"}, ("out-of-range", "until", "0.9")),
        ({"patience": 3}, ("no-validation", "patience")),
        ({"engine": "fast"}, ("unknown-name", "engine", "'fast'")),
        ({"device": "abacus"}, ("device-missing", "device", "'abacus'")),
        ({"guards": ["steel"]}, ("unknown-name", "guard")),
        ({"resume": True}, ("needs-option", "out")),
        ({"returned": "first"}, ("invalid-value", "returned", "'first'")),
    ],
)
def test_mistake_is_one_line_and_leaves_no_files(changes, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"algorithms": PAIR, "data": DATA, "task": TASK, **QUIET, **changes}
    with refused(*error) as caught:
        drfl.compare(**given)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_changed_object_of_the_same_name_is_refused(tmp_path):
    drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", **QUIET)
    others = {**PAIR, "DRFA": replace(PAIR["DRFA"], gamma=0.5)}
    with refused("other-run", "algorithms.DRFA.gamma"):
        drfl.compare(others, DATA, TASK, out=tmp_path / "r", resume=True, **QUIET)
    with refused("other-run", "data"):
        drfl.compare(PAIR, clients(1), TASK, out=tmp_path / "r", resume=True, **QUIET)
    smoothed = drfl.Task(TASK.model, nn.CrossEntropyLoss(label_smoothing=0.1))
    with refused("other-run", "loss", "0.1"):
        drfl.compare(PAIR, DATA, smoothed, out=tmp_path / "r", resume=True, **{**QUIET, "seeds": 3})
    with refused("already-exists", str(tmp_path / "r")):
        drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", **QUIET)
    # The refused calls have changed nothing.
    drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", resume=True, **{**QUIET, "seeds": 3})
    drfl.compare(PAIR, DATA, TASK, out=tmp_path / "r", overwrite=True, **QUIET)


@pytest.mark.long
def test_rolled_back_runs_are_marked_in_every_table(monkeypatch):
    """One of two seeds is rolled back in round 4 of 5; names contain characters that LaTeX interprets."""
    set_back_once(monkeypatch, 1)
    told = []
    found = drfl.compare({"my_own": Mine(m=3)}, clients, task, **{**QUIET, "rounds": 5, "progress": told.append})
    assert found.to_frame()[["rollbacks", "effective_rounds"]].values.tolist() == [[0, 5], [1, 2]]
    assert all(outcome.metrics is not None for outcome in found.outcomes)
    line = f"{DOUBLE_DAGGER} {RESET}: my_own seed 1 (2 of 5 rounds count)"
    for text in (found.to_markdown(), found._repr_html_()):
        assert line in text
        assert text.count(DOUBLE_DAGGER) == 2
    latex = found.to_latex()
    assert latex.count(r"$\ddagger$") == 2
    assert r"my\_own seed 1 (2 of 5 rounds count)" in latex
    (notice,) = [notice for notice in found.notices if notice.code == "late-rollback"]
    assert notice.field == "lr"
    assert told.count(notice) == 1
    plain = drfl.compare({"mine": Mine(m=3)}, clients, task, **QUIET)
    assert DOUBLE_DAGGER not in plain.to_markdown()


@pytest.mark.long
def test_own_models_are_marked_and_compared_with_their_kind(tmp_path, capsys):
    algorithms = {
        "FedAvg": drfl.FedAvg(m=3), "DRFA": drfl.DRFA(m=3), "Ditto": drfl.Ditto(m=3),
        "Closer": drfl.Ditto(m=3, lam=5.0), "LocalOnly": drfl.LocalOnly(),
    }  # fmt: skip
    result = drfl.compare(algorithms, DATA, TASK, rounds=2, seeds=2, out=tmp_path / "runs", progress=None)
    personal = {outcome.algorithm for outcome in result.outcomes if outcome.personal}
    assert personal == {"Ditto", "Closer", "LocalOnly"}
    for text in (result.to_markdown(), (tmp_path / "runs" / "table.md").read_text(), result._repr_html_()):
        assert f"{SECTION} {OWN_MODELS}" in text
        assert {name for name in algorithms if f"{name} {SECTION}" in text} == personal
    assert {name for name in algorithms if f"{name} \\S" in result.to_latex()} == personal
    page = (tmp_path / "runs" / "report.html").read_text()
    assert {name for name in algorithms if f"{name} (own models)" in page} == personal
    summary = result.summary()["algorithms"]
    assert {name for name, row in summary.items() if row["own_models"]} == personal
    models = result.differences("FedAvg")["models"]
    assert models.to_dict() == {name: "own, global" if name in personal else "global, global" for name in models.index}
    # Both kinds have a best algorithm in the column of the worst client.
    rows = [line.split(" | ") for line in result.to_markdown().splitlines() if line.startswith("|")]
    bold = {row[0].split()[1] for row in rows if "**" in row[2]}
    assert {name in personal for name in bold} == {True, False}
    assert "LocalOnly" not in bold
    stored = drfl.load_comparison(tmp_path / "runs")
    assert stored.to_markdown() == result.to_markdown()
    capsys.readouterr()
    assert call(["assess", str(tmp_path / "runs")]) == 0
    names = ", ".join(f"{name} (own models)" for name in ("Ditto", "Closer", "LocalOnly"))
    assert f"{names}: {OWN_MODELS}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_data_specs_are_recorded_in_results_and_folders(tmp_path):
    spec = drfl.data_spec(dataset="digits", partition="zipf-dirichlet", clients=3, alpha=0.5)

    def learned(seed):
        return drfl.Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))

    result = drfl.compare(
        {"FedAvg": drfl.FedAvg()}, spec, learned, rounds=1, seeds=1, out=tmp_path / "r", progress=None
    )
    summary = result.summary()
    partition = {"name": "zipf-dirichlet", "clients": 3, "alpha": 0.5}
    assert (summary["dataset"], summary["clients"]) == ("digits", 3)
    assert partition.items() <= summary["partition"].items()
    config = tomllib.loads((tmp_path / "r" / "FedAvg-seed0" / "config.toml").read_text())
    assert [config[name] for name in ("dataset", "partition", "clients", "alpha")] == [
        "digits", "zipf-dirichlet", 3, 0.5,
    ]  # fmt: skip
    (row,) = drfl.load_runs(tmp_path / "r").to_dict("records")
    assert [row[name] for name in ("dataset", "partition", "clients")] == ["digits", "zipf-dirichlet", 3]
    assert drfl.load_comparison(tmp_path / "r").summary()["dataset"] == "digits"
    own = drfl.compare(PAIR, DATA, TASK, **QUIET).summary()
    assert (own["dataset"], own["partition"], own["clients"]) == ("own data", None, 4)


@pytest.mark.long
def test_summary_is_a_mapping_that_prints_line_by_line():
    summary = drfl.compare(PAIR, DATA, TASK, rounds=1, seeds=1, progress=None).summary()
    assert json.loads(json.dumps(summary))["seeds"] == [0]
    lines = repr(summary).splitlines()
    assert len(lines) > len(summary)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(np.arange(2), marks=pytest.mark.long),
        np.int64(2),
        pytest.param([np.int32(0), 1], marks=pytest.mark.long),
    ],
    ids=repr,
)
def test_seeds_may_be_integers_of_numpy(seeds, tmp_path):
    result = drfl.compare(PAIR, DATA, TASK, **QUIET | {"rounds": 1, "seeds": seeds, "out": tmp_path / "c"})
    assert [outcome.seed for outcome in result.outcomes] == [0, 0, 1, 1]
