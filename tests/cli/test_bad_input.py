"""Test that every mistake of a user gives one line on stderr, exit code 2, and no file."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace

import pytest
from tests.support.refusals import check_refusal

from drfl.cli import console, run
from drfl.cli.app import call
from drfl.core.errors import InputError
from drfl.training.checkpoint import store

MISTAKES = [
    (["run", "--algorithm", "DRDN"], ("unknown-name", "algorithm", "'DRDM'")),
    (["run", "--dataset", "mnits"], ("unknown-name", "dataset", "'mnist'")),
    (["run", "--model", "lineer"], ("unknown-name", "model", "'linear'")),
    (["run", "--partition", "zipf"], ("unknown-name", "partition", "'zipf'")),
    (["run", "--engine", "stakced"], ("unknown-name", "engine", "'stacked'")),
    (["run", "--param", "gama=1"], ("unknown-name", "DualDRDM.gama", "'gamma'")),
    (["run", "--param", "averaged=true"], ("unknown-name", "DualDRDM.averaged", "'averaged' of DualDRDM")),
    (["run", "--algorithm", "SCAFFOLD", "--table-dir", "nowhere"], ("not-a-folder", "table_dir", "'nowhere'")),
    (["run", "--param", "FedSplit.mu=1"], ("unknown-name", "algorithm", "'FedSplit'")),
    (["run", "--param", "mu"], ("invalid-format", "param", "NAME=VALUE")),
    (["run", "--param", "mu=high"], ("wrong-type", "DualDRDM.mu")),
    (["run", "--param", "mu=0"], ("out-of-range", "mu")),
    (["run", "--param", "mu=true"], ("wrong-type", "DualDRDM.mu")),
    (["run", "--param", "m=some"], ("wrong-type", "DualDRDM.m")),
    (["run", "--param", "gamma=[1]"], ("wrong-type", "DualDRDM.gamma", "DualDRDM.gamma = [1]")),
    (["run", "--param", "DRFA.gamma=1"], ("unused-option", "param", "DRFA")),
    (["compare", "--algorithms", "DRFA,FedAvg", "--param", "drdm.mu=1"], ("unused-option", "param", "DRDM")),
    (["run", "--algorithm", "AFL", "--cohort", "3"], ("unused-option", "cohort", "--cohort", "AFL")),
    (["run", "--cohort", "6", "--param", "m=5"], ("unused-option", "cohort", "--cohort", "--param m=5")),
    (
        ["run", "--cohort", "6", "--param", "DualDRDM.m=5"],
        ("unused-option", "cohort", "--cohort", "--param DualDRDM.m=5"),
    ),
    (["run", "--cohort", "5", "--param", "m=5"], ("unused-option", "cohort", "--cohort", "--param m=5")),
    (["run", "--steps", "6", "--param", "steps=5"], ("unused-option", "steps", "--steps", "--param steps=5")),
    (["run", "--lr", "0.1", "--param", "lr=0.2"], ("unused-option", "lr", "--lr", "--param lr=0.2")),
    (["run", "--batch", "8", "--param", "batch=full"], ("unused-option", "batch", "--batch", "--param batch=full")),
    (["compare", "--cohort", "6", "--param", "m=5"], ("unused-option", "cohort", "--cohort", "--param m=5")),
    (
        ["compare", "--algorithms", "AFL,DRDM,DRFA", "--cohort", "6", "--param", "DRDM.m=5", "--param", "drfa.m=4"],
        ("unused-option", "cohort", "--cohort", "--param DRDM.m=5 --param drfa.m=4"),
    ),
    (["run", "--param", "mu=1", "--param", "mu=2"], ("given-twice", "param", "--param 'mu=1'", "--param 'mu=2'")),
    (
        ["run", "--param", "dualdrdm.mu=1", "--param", "DualDRDM.mu=2"],
        ("given-twice", "param", "--param 'dualdrdm.mu=1'", "--param 'DualDRDM.mu=2'"),
    ),
    (["run", "--threads", "100000"], ("invalid-value", "threads", "100000")),
    (["run", "--param", "sampling=all"], ("unknown-name", "sampling")),
    (["run", "--param", "ambiguity=simplex:floor=1"], ("out-of-range", "floor", "floor=1.0", "30")),
    (["run", "--param", "ambiguity=simplex:flor=0.1"], ("invalid-format", "ambiguity set", "simplex:floor=number")),
    (["run", "--alpha", "0"], ("out-of-range", "alpha", "'one-class'")),
    (["run", "--alpha", "-1"], ("out-of-range", "alpha")),
    (["run", "--alpha", "nan"], ("out-of-range", "alpha")),
    (["run", "--zipf", "-1"], ("out-of-range", "zipf")),
    (["run", "--partition", "iid", "--alpha", "1"], ("unused-option", "alpha")),
    (["run", "--partition", "one-class", "--clients", "3"], ("few-clients", "clients")),
    (["run", "--cohort", "31"], ("out-of-range", "m", "m=31")),
    (["run", "--cohort", "0"], ("invalid-value", "cohort")),
    (["run", "--clients", "0"], ("invalid-value", "clients")),
    (["run", "--clients", "5000"], ("few-rows", "clients", "5000")),
    (["run", "--lr", "0"], ("out-of-range", "lr")),
    (["run", "--lr", "inf"], ("out-of-range", "lr")),
    (["run", "--steps", "0"], ("invalid-value", "steps")),
    (["run", "--batch", "0"], ("out-of-range", "batch")),
    (["run", "--batch", "some"], ("invalid-value", "batch")),
    (["run", "--rounds", "-1"], ("invalid-value", "rounds")),
    (["run", "--rounds", "many"], ("usage", None, "--rounds")),
    (["run", "--seed", "-1"], ("invalid-value", "seed")),
    (["run", "--dtype", "float16"], ("invalid-value", "dtype", "float32")),
    (["run", "--device", "gpu"], ("device-missing", "device", "'gpu'")),
    (["run", "--until", "accuracy=1"], ("unknown-name", "metric")),
    (["run", "--until", "worst_accuracy"], ("invalid-format", "until", "metric=value")),
    (["run", "--until", "worst_accuracy=90"], ("out-of-range", "until", "0.9")),
    (["run", "--until", "worst_accuracy=x"], ("invalid-format", "until", "metric=value")),
    (["run", "--frobnicate"], ("usage", None, "--frobnicate")),
    (["run", "--round", "3"], ("usage", None, "--round", "'--rounds'")),
    (["run", "a.toml", "b.toml"], ("usage", None, "b.toml", "'drfl run --help'")),
    (["run", "--certificate", "--model", "mlp"], ("no-certificate", "certificate", "2")),
    (["run", "--certificate", "--dataset", "digits", "--model", "cnn"], ("no-certificate", "certificate", "Conv2d")),
    (["compare", "--certificate", "--model", "mlp", "--seeds", "1"], ("no-certificate", "certificate", "2")),
    (["run", "--dataset", "mnist", "--data-dir", "nowhere"], ("folder-not-found", "data_dir", "'nowhere'")),
    (["run", "none.toml"], ("file-not-found", "none.toml")),
    (["compare", "--until", "accuracy=1"], ("unknown-name", "metric")),
    (["compare", "--seeds", "x"], ("invalid-format", "seeds", "'x'")),
    (["compare", "--seeds", "3,1,3"], ("given-twice", "seeds", "3")),
    (["compare", "--algorithms", "FedAvg,fedavg"], ("given-twice", "algorithms", "FedAvg")),
    (["compare", "--seeds", "0"], ("invalid-format", "seeds", "'0'")),
    (["compare", "--seeds", "1000000000000"], ("out-of-range", "seeds", "10000")),
    (["compare", "--seeds", "0..1000000000000"], ("out-of-range", "seeds", "10000")),
    (["compare", "--algorithms", "FedAvg,DRFQ"], ("unknown-name", "algorithm", "'DRFA'")),
    (["compare", "--cohort", "31"], ("out-of-range", "m", "m=31")),
    (["rum"], ("unknown-name", "command", "'run'")),
    (["show", "r"], ("unknown-name", "command", "'drfl model show'")),
]


@pytest.mark.parametrize(("arguments", "error"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_mistake_is_one_line_with_exit_code_2_and_no_file(arguments, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_refusal(arguments, *error)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.err.startswith("drfl: ")
    assert list(tmp_path.iterdir()) == []


def test_tables_after_data_are_not_mistaken_for_a_configuration_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("age,sick\n3,1\n")
    check_refusal(["run", "--data", "a.csv", "b.csv", "--target", "sick"], "unsupported-file", "b.csv", "`data`")
    assert capsys.readouterr().err.count("\n") == 1
    check_refusal(["run", str(tmp_path), "--target", "sick"], "not-a-file", str(tmp_path), "`data`")


@pytest.mark.parametrize(
    ("arguments", "file", "quoted"),
    [
        (["--cohort", "0"], "", ["--cohort"]),
        (["--features", "pixels"], "", ["--features"]),
        (["--backbone", "cnn-digits"], "", ["--backbone", "--features entk"]),
        (["--schema", "schema.toml"], "", ["--schema", "--data"]),
        (["--no-safeguard-of-mine"], "", ["'--no-safeguard-of-mine'"]),
        (["--keep-weights"], "", ["--keep-weights", "--init-from"]),
        (["job.toml"], "cohort = 0", ["`cohort`"]),
        (["job.toml", "--cohort", "0"], "rounds = 3", ["--cohort"]),
        (["job.toml", "--cohort=0"], "", ["--cohort"]),
    ],
)
def test_messages_name_options_as_the_user_wrote_them(arguments, file, quoted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(file)
    assert call(["run", *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    for text in (err, json.loads(out)["error"]["message"]):
        assert [name for name in quoted if name not in text] == []


def test_messages_name_only_options_that_the_command_has(capsys):
    assert call(["fit", "--group", "site"]) == 2
    error = capsys.readouterr().err
    assert "--group" in error
    assert "`data`" in error, "drfl fit takes the files without an option"


TOML_MISTAKES = [
    ("rounds = ", ("damaged-file", "job.toml", "TOML")),
    ("round = 3", ("unknown-name", "option", "'rounds'")),
    ("[grid]\nrounds = [1, 2]", ("unsupported-file", "grid", "'drfl sweep'")),
    ("rounds = 'many'", ("invalid-value", "rounds", "'many'")),
    ("algorithms = 3", ("invalid-value", "algorithms")),
    ("[algorithms]\nDRDM = 3", ("invalid-value", "algorithms")),
    ("[algorithms.DRDM]\nmue = 3", ("unknown-name", "DRDM.mue", "'mu'")),
    ("[algorithms.DRDMM]\nmu = 3", ("unknown-name", "algorithm", "'DRDM'")),
    ("[algorithms.DRDM]\nmu = 3\n[algorithms.drdm]\nm = 3", ("given-twice", "algorithms.DRDM")),
    ("[algorithms.DRDM.ambiguity]\nalpha = 0.2", ("wrong-type", "DRDM.ambiguity", "DRDM.ambiguity = {'alpha': 0.2}")),
    ("[algorithms.DRDM]\nm = [1, 2]", ("wrong-type", "DRDM.m", "DRDM.m = [1, 2]")),
    ("alpha = -1.0", ("out-of-range", "alpha")),
    ("certificate = 'poled'", ("invalid-value", "certificate", "'poled'", "'pooled'", "'gradient'")),
    ("certificate = 'gradient'", ("unsupported-combination", "certificate", "'gradient'", "weight_decay")),
    ("certificate = true\nmodel = 'mlp'", ("no-certificate", "certificate", "2")),
]


@pytest.mark.parametrize(("text", "error"), TOML_MISTAKES)
def test_mistake_in_the_file_is_one_line_with_exit_code_2(text, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(text)
    check_refusal(["run", "job.toml"], *error)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize(
    "command",
    [pytest.param(["run", "--algorithm", "FedAvg"], marks=pytest.mark.long), ["compare", "--algorithms", "FedAvg"]],
)
def test_full_disk_has_the_same_exit_code_in_every_command(command, tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "os", SimpleNamespace(**{**vars(os), "fsync": full}))
    job = ["--dataset", "digits", "--clients", "3", "--rounds", "2", "--checkpoint-every", "1"]
    check_refusal([*command, *job, "--out", str(tmp_path / "a")], "cannot-write", None, "No space left")


def test_existing_run_directory_is_unchanged(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine.txt").write_text("precious")
    check_refusal(["run", "--out", str(tmp_path / "a")], "foreign-folder", str(tmp_path / "a"))
    assert (tmp_path / "a/mine.txt").read_text() == "precious"


@pytest.mark.parametrize("command", ["run", "compare", "energy"])
def test_project_with_a_checkpoint_folder_is_not_a_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint/best.pt", "checkpoint/config.toml", "summary.json", "thesis/thesis.tex"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("precious")
    for options in ([], ["--overwrite"], *([["--resume"]] if command != "energy" else [])):
        check_refusal([command, "--out", "project", *options], "foreign-folder", "project")
        assert capsys.readouterr().err.count("\n") == 1
    files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    assert [path.read_text() for path in files] == 4 * ["precious"]


def test_linked_checkpoint_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--clients", "5", "--rounds", "1", "--out", "a"]) == 0
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/config.toml").write_text("mine")
    (tmp_path / "a/checkpoint").symlink_to(tmp_path / "precious")
    for how in ("--overwrite", "--resume"):
        capsys.readouterr()
        check_refusal(["run", "--clients", "5", "--rounds", "1", "--out", "a", how], "link-in-the-way", "a/checkpoint")
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "precious/config.toml").read_text() == "mine"
    assert (tmp_path / "a/history.csv").exists()


def test_overwrite_replaces_only_runs(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine.txt").write_text("precious")
    check_refusal(["run", "--overwrite", "--out", str(tmp_path / "a")], "foreign-folder", str(tmp_path / "a"))
    (tmp_path / "a/summary.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "a")
    for out in (".", "..", str(tmp_path / "a")):
        check_refusal(["run", "--overwrite", "--out", out], "unsafe-folder", None, "`out`")
    assert (tmp_path / "a/mine.txt").read_text() == "precious"


def test_empty_directory_is_used(tmp_path):
    (tmp_path / "a").mkdir()
    assert call(["run", "--rounds", "0", "--clients", "4", "--out", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a/summary.json").exists()


def test_file_in_place_of_the_folder_is_refused(tmp_path, capsys):
    (tmp_path / "a").write_text("precious")
    assert call(["run", "--out", str(tmp_path / "a")]) == 2
    assert call(["run", "--out", str(tmp_path / "a/b")]) == 2
    assert (tmp_path / "a").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "command"), [([], "compare"), (["data"], "describe"), (["model"], "show"), (["deploy"], "init")]
)
def test_group_without_a_command_prints_its_help_and_one_line(arguments, command, capsys):
    check_refusal(arguments, "usage", None, command)
    printed = capsys.readouterr()
    assert command in printed.out
    assert len(printed.err.strip().splitlines()) == 1


def test_unwritable_folder_is_refused_before_training(capsys):
    # no user, including root, can create files under /proc
    check_refusal(["run", "--out", "/proc/drfl/a"], "cannot-write", "/proc")
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["run", "--algorithm", "DRDN"], "unknown-name", "algorithm"),
        (["run", "--rounds", "many"], "usage", None),
        (["run", "--rounds", "-1"], "invalid-value", "rounds"),
        (["tun"], "unknown-name", "command"),
    ],
)
def test_json_error_has_code_and_field_on_stdout(arguments, code, field, capsys):
    assert call([*arguments, "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert json.loads(printed.out)["warnings"] == []
    assert printed.err == f"drfl: {error['message']}\n"


def test_json_error_repeats_earlier_warnings(monkeypatch, capsys):
    def command(*_, **__):
        console.warn("the columns differ")
        raise InputError("no rows", code="no-rows", field="data")

    monkeypatch.setattr(run, "run_command", command)
    assert call(["run", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["warnings"] == ["the columns differ"]
    monkeypatch.undo()
    assert call(["run", "--rounds", "-1", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["warnings"] == []
