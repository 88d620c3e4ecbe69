"""Test `--patient`, `--min-rows` and `--strict`."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import refusal

from drfl.cli.app import call

TRAIN = ["--target", "ill", "--rounds", "1", "--steps", "2", "--engine", "loop"]


@pytest.fixture(autouse=True)
def _tables(tmp_path, monkeypatch):
    """Write nearly equal rows of 24 patients at each of three sites, and a table in which one site has one row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        base, ill = rng.normal(size=(24, 3)), rng.integers(0, 2, 24)
        values = np.repeat(base, 5, axis=0) + rng.normal(0, 0.01, (120, 3))
        table = pd.DataFrame(values.round(3), columns=[*"abc"])
        table = table.assign(pid=[f"P{k:02d}" for k in np.repeat(np.arange(24), 5)], ill=np.repeat(ill, 5))
        table.to_csv(tmp_path / "in" / f"s{seed}.csv", index=False)
    rng = np.random.default_rng(9)
    sizes = {"s0": 1, "s1": 40, "s2": 50}
    sites = [name for name, size in sizes.items() for _ in range(size)]
    x = rng.normal(size=(91, 2))
    pd.DataFrame(x, columns=["a", "b"]).assign(ill=(x.sum(1) > 0) * 1, site=sites).to_csv("t.csv", index=False)


def printed(capsys, words):
    assert call([*words, "--json"]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_patients_stay_on_one_side_of_every_split(tmp_path, capsys):
    options = ["--data", "in", *TRAIN, "--patient", "pid", "--select", "worst"]
    for seed in "01":
        found = printed(capsys, ["run", *options, "--seed", seed, "--out", f"out{seed}"])
        assert not [text for text in found["warnings"] if "`patient" in text]
        assert call(["assess", f"out{seed}"]) == 0
        shown = capsys.readouterr().out
        rows, patients = re.search(r"on (\d+) test rows of (\d+) patients", shown).groups()
        assert int(rows) == 5 * int(patients)
        parts = json.loads((tmp_path / f"out{seed}" / "partition.json").read_text())["clients"]
        # In a site's file the rows of a patient follow each other.
        for start, part in enumerate(parts):
            train, test = ({(row - 120 * start) // 5 for row in part[side]} for side in ("train", "test"))
            assert not train & test
            assert len(train | test) == 24


@pytest.mark.long
def test_dropped_repeated_id_is_a_warning_or_strict_error(tmp_path, capsys):
    found = printed(capsys, ["run", "--data", "in", *TRAIN, "--drop", "pid", "--out", "out"])
    assert any("`patient = 'pid'`" in text for text in found["warnings"])
    for words in (
        ["run", "--data", "in", *TRAIN, "--drop", "pid", "--strict", "--out", "strict"],
        ["compare", "--data", "in", *TRAIN, "--drop", "pid", "--strict", "--out", "strict", "--algorithms", "DRFA"],
    ):
        error = refusal(words)
        assert (error.code, error.field) == ("data-warnings", "strict")
        assert "'pid'" in str(error)
        assert "s0" in str(error)  # the near copies are also reported
    assert not (tmp_path / "strict").exists()


def test_strict_accepts_clients_excluded_by_min_rows(capsys):
    found = printed(capsys, ["run", "--data", "t.csv", "--group", "site", *TRAIN, "--min-rows", "2", "--out", "out"])
    assert found["clients"] == 2
    assert any("s0 (1)" in text for text in found["warnings"])
    error = refusal(["run", "--data", "t.csv", "--group", "site", *TRAIN, "--min-rows", "45", "--out", "few"])
    assert (error.code, error.field) == ("few-clients", "min_rows")
    error = refusal(["run", "--data", "t.csv", "--group", "site", *TRAIN, "--min-rows", "2", "--strict", "--out", "s"])
    assert error.code == "data-warnings"
    assert "s0 (1)" not in str(error)


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        (["--data", "t.csv", "--min-rows", "2", "--target", "ill"], "unused-option", "min_rows"),
        (["--data", "t.csv", "--patient", "site", "--target", "ill"], "unused-option", "patient"),
        (["--data", "t.csv", "--patient", "site", "--group", "site", "--target", "ill"], "conflicting-options", None),
        (["--dataset", "digits", "--patient", "pid"], "unused-option", "patient"),
        (["--data", "in", "--patient", "pud", "--target", "ill"], "unknown-name", "patient"),
    ],
)
def test_options_without_effect_are_refused(options, code, field):
    error = refusal(["run", *options, "--out", "out"])
    assert error.code == code
    assert field is None or error.field == field


def test_description_counts_patients_and_strict_raises_warnings(capsys):
    words = ["data", "describe", "in", "--target", "ill"]
    assert call([*words, "--patient", "pid", "--out", "s.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(site["rows"], site["patients"]) for site in found["clients"]] == [(120, 24)] * 3
    assert not {"repeated-id", "near-copies"} & {notice["code"] for notice in found["warnings"]}
    assert call([*words, "--drop", "pid", "--strict", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert "repeated-id" in [notice["code"] for notice in found["warnings"]]
    assert found["clients"][0]["patients"] is None

    check = ["data", "check", "in", "--schema", "s.toml", "--json"]
    assert call(check) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    table = pd.read_csv("in/s1.csv")
    table.assign(a=1000 * table["a"]).to_csv("in/s1.csv", index=False)
    assert call(check) == 0
    capsys.readouterr()
    assert call([*check, "--strict"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert "unit-mismatch" in [notice["code"] for notice in found["warnings"]]
