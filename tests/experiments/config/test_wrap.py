"""Test the wrappers around an algorithm that a configuration requests."""

from __future__ import annotations

import json
import math

import pytest
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.config.guards_and_failures import ProbeAudit, failures_of, guards_of
from drfl.resilience import (
    Audit,
    CentredClip,
    Clip,
    CoordinateMedian,
    FailureModel,
    Faulty,
    GeometricMedian,
    Krum,
    MedianClip,
    OverSelection,
    PeerAudit,
    ProbeCosine,
    Protected,
    Quorum,
    RobustClip,
    StepBound,
    Trim,
    TrimmedMean,
)

SMALL = ["--engine", "loop", "--clients", "6", "--rounds", "3", "--steps", "2", "--threads", "1"]


def layers(algorithm):
    found = [algorithm]
    while hasattr(found[-1], "algorithm"):
        found.append(found[-1].algorithm)
    return found


def test_default_is_only_the_robust_guard():
    protected, inner = layers(build(Config(clients=6)).algorithm)
    assert isinstance(protected, Protected)
    assert protected.guards == (RobustClip(),)
    assert protected.bound == StepBound(100.0)
    assert protected.aggregator is None
    assert type(inner).__name__ == "DualDRDM"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Krum:f=1,used=2", Krum(1, 2)), ("trimmed-mean", TrimmedMean(1)), ("median", CoordinateMedian()),
        ("geometric-median", GeometricMedian()), ("median-clip:factor=2", MedianClip(2.0)),
        ("centred-clip:momentum=0.5", CentredClip(1.0, 0.5)),
    ],
)  # fmt: skip
def test_aggregators_are_selected_by_name(text, rule):
    protected, _ = layers(build(Config(clients=6, aggregator=text, step_bound=0)).algorithm)
    assert protected.aggregator == rule
    assert protected.bound is None


def test_probe_has_rows_of_every_client():
    protected, _ = layers(build(Config(clients=6, aggregator="probe:rows=4,cosine=0.5")).algorithm)
    assert isinstance(protected.aggregator, ProbeCosine)
    assert protected.aggregator.cosine == 0.5
    assert protected.aggregator.probe.fed.sizes.tolist() == [4] * 6


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"aggregator": "mean"}, ("unknown-name", "aggregator", "'mean'")),
        ({"aggregator": "krum:f=0"}, ("out-of-range", "f")),
        ({"step_bound": 0.5}, ("out-of-range", "step_bound")),
        ({"step_bound": math.inf}, ("out-of-range", "step_bound", "0", "inf")),
        ({"aggregator": "median:f=1"}, ("invalid-format", "aggregator", "'f'")),
        ({"aggregator": "centred-clip:momentum=1"}, ("out-of-range", "momentum", "[0, 1)")),
    ],
)
def test_invalid_aggregators_and_bounds_are_refused(values, error):
    with refused(*error):
        load_config(None, values)


@pytest.mark.long
def test_run_names_clients_excluded_by_the_rule(tmp_path):
    out = tmp_path / "run"
    small = ["--engine", "loop", "--clients", "10", "--rounds", "3", "--steps", "2", "--threads", "1"]
    assert call(["run", "--algorithm", "FedAvg", *small, "--aggregator", "krum:f=3", "--out", str(out)]) == 0
    left = json.loads((out / "summary.json").read_text())["left_out_rounds"]
    assert sum(left.values()) == 9  # three of ten in each round
    assert set(left) <= {f"client-{i}" for i in range(10)}


def test_wrappers_are_applied_in_order():
    config = load_config(
        None,
        {
            "clients": 6, "cohort": 3, "over_select": 1.5, "min_replies": 2, "repeats": 4, "max_norm": 7.0,
            "faults": {"drop": 0.25, "groups": 2}, "guards": ["clip:bound=3", "probe:rows=4,slack=0.5"],
        },
    )  # fmt: skip
    quorum, faulty, protected, sampled, inner = layers(build(config).algorithm)
    assert isinstance(quorum, Quorum)
    assert (quorum.min_replies, quorum.action, quorum.max_repeats) == (2, "repeat", 4)
    assert isinstance(faulty, Faulty)
    assert faulty.faults == FailureModel(drop=0.25, groups=2)
    assert isinstance(protected, Protected)
    assert protected.norm == 7.0
    clip, audit = protected.guards
    assert clip == Clip(3.0)
    assert isinstance(audit, Audit)
    assert (audit.factor, audit.slack) == (2.0, 0.5)
    assert isinstance(sampled, OverSelection)
    assert (sampled.keep, inner.m) == (3, 5)


@pytest.mark.parametrize(
    ("texts", "guards"),
    [
        (None, (RobustClip(),)),
        (("none",), ()),
        (("Robust:k=3,floor=0.1", "trim:f=2"), (RobustClip(3.0, 0.1), Trim(2))),
        (("peers:peers=4", "probe"), (PeerAudit(4), ProbeAudit())),
    ],
)
def test_guards_are_selected_by_name(texts, guards):
    assert guards_of(texts) == guards


@pytest.mark.parametrize("given", [["drop=0.3", "groups=2"], {"drop": 0.3, "groups": 2}])
def test_failures_are_texts_or_numbers(given):
    assert failures_of(given) == FailureModel(drop=0.3, groups=2)
    assert failures_of("drop=0.3") == FailureModel(drop=0.3)


@pytest.mark.parametrize(
    ("options", "code", "field", "quoted"),
    [
        (["--guard", "clap"], "unknown-name", "guard", ("clap", "clip", "none")),
        (["--guard", "clip"], "invalid-format", "guard", ("bound",)),
        (["--guard", "trim:f=1.5"], "invalid-format", "guard", ("1.5",)),
        (["--guard", "robust", "--guard", "none"], "conflicting-options", "guards", ("none",)),
        (["--fault", "drp=0.2"], "unknown-name", "fault", ("drp", "drop")),
        (["--fault", "drop=2"], "invalid-value", "faults", ("drop", "0", "1", "2.0")),
        (["--fault", "drop"], "invalid-format", "fault", ("faults", "drop", "NAME=NUMBER")),
        (["--fault", "groups=1.5"], "invalid-value", "faults", ("groups",)),
        (["--fault", "jitter=1e308"], "invalid-value", "faults", ("jitter", "10", "1e+308", "22026")),
        (["--fault", "slowdown=1e308"], "invalid-value", "faults", ("slowdown", "1,000,000", "1e+308")),
        (["--fault", "deadline=1e308"], "invalid-value", "faults", ("deadline", "1,000,000,000", "1e+308")),
        (["--fault", "outage_rounds=1000001"], "invalid-value", "faults", ("outage_rounds", "1,000,000", "1000001")),
        (["--fault", "outage_rounds=1e30"], "invalid-value", "faults", ("outage_rounds",)),
        (["--fault", "groups=1e30"], "invalid-value", "faults", ("groups",)),
        (["--fault", "groups=9"], "out-of-range", "groups", ("9", "6")),
        (["--repeats", "2"], "unused-option", "repeats", ("min_replies",)),
        (["--min-replies", "9"], "out-of-range", "min_replies", ("9", "6")),
        (["--max-norm", "0"], "invalid-value", "max_norm", ("0.0",)),
        (["--over-select", "0.5"], "invalid-value", "over_select", ("0.5", "1")),
        (["--over-select", "2", "--algorithm", "AFL"], "unsupported-combination", "over_select", ("AFL",)),
    ],
)
def test_mistake_is_a_one_line_error(options, code, field, quoted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_refusal(["run", *SMALL, *options], code, field, *quoted)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_faults_must_be_numbers():
    with refused("invalid-value", "faults", "drop"):
        failures_of({"drop": "often"})


def test_run_with_all_wrappers_reports_rejections_and_repeats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--fault", "drop=0.3", "--fault", "duplicate=0.5", "--guard", "robust:k=3,floor=0.1"]
    options += ["--cohort", "4", "--min-replies", "1", "--over-select", "1.5"]
    assert call(["run", *SMALL, *options, "--out", "a"]) == 0
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["rejected_replies"] > 0
    assert call(["run", "a/config.toml", "--out", "b"]) == 0
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()


@pytest.mark.long
def test_default_guard_does_not_change_a_clean_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(["run", *SMALL, "--cohort", "4", "--out", "a"]) == 0
    assert call(["run", *SMALL, "--cohort", "4", "--guard", "none", "--out", "b"]) == 0
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()
    assert json.loads((tmp_path / "a/summary.json").read_text())["changed_reports"] == 0
