"""Whatever a user gets wrong: one line on stderr, exit code 2, no file."""

from __future__ import annotations

import json

import pytest

from drfl.cli.app import call

MISTAKES = [
    (["run", "--algorithm", "DRDN"], "did you mean 'DRDM'?"),
    (["run", "--dataset", "mnits"], "did you mean 'mnist'?"),
    (["run", "--model", "lineer"], "did you mean 'linear'?"),
    (["run", "--partition", "zipf"], "unknown partition 'zipf'"),
    (["run", "--engine", "stakced"], "did you mean 'stacked'?"),
    (["run", "--param", "gama=1"], "did you mean 'gamma'?"),
    (["run", "--param", "averaged=true"], "unknown parameter of DRDM 'averaged'"),
    (["run", "--algorithm", "SCAFFOLD", "--table-dir", "nowhere"], "table_dir 'nowhere' is not a folder"),
    (["run", "--param", "FedSplit.mu=1"], "unknown algorithm 'FedSplit'"),
    (["run", "--param", "mu"], "NAME=VALUE"),
    (["run", "--param", "mu=high"], "DRDM.mu"),
    (["run", "--param", "mu=0"], "mu must be"),
    (["run", "--param", "mu=true"], "DRDM.mu = true: give a number"),
    (["run", "--param", "m=some"], "DRDM.m"),
    (["run", "--param", "gamma=[1]"], "DRDM.gamma = [1] is no single value"),
    (["run", "--param", "DRFA.gamma=1"], "is for DRFA, which does not run"),
    (["compare", "--algorithms", "DRFA,FedAvg", "--param", "drdm.mu=1"], "is for DRDM, which does not run"),
    (["run", "--algorithm", "AFL", "--cohort", "3"], "--cohort has no effect on AFL"),
    (["run", "--cohort", "6", "--param", "m=5"], "--cohort has no effect beside --param m=5: leave one of them out"),
    (["run", "--cohort", "6", "--param", "DRDM.m=5"], "--cohort has no effect beside --param DRDM.m=5"),
    (["run", "--cohort", "5", "--param", "m=5"], "--cohort has no effect beside --param m=5"),
    (["run", "--steps", "6", "--param", "steps=5"], "--steps has no effect beside --param steps=5"),
    (["run", "--lr", "0.1", "--param", "lr=0.2"], "--lr has no effect beside --param lr=0.2"),
    (["run", "--batch", "8", "--param", "batch=full"], "--batch has no effect beside --param batch=full"),
    (["compare", "--cohort", "6", "--param", "m=5"], "--cohort has no effect beside --param m=5"),
    (
        ["compare", "--algorithms", "AFL,DRDM,DRFA", "--cohort", "6", "--param", "DRDM.m=5", "--param", "drfa.m=4"],
        "--cohort has no effect beside --param DRDM.m=5 --param drfa.m=4: leave one of them out",
    ),
    (["run", "--param", "mu=1", "--param", "mu=2"], "--param 'mu=1' and --param 'mu=2' set the same parameter"),
    (["run", "--param", "drdm.mu=1", "--param", "DRDM.mu=2"], "--param 'drdm.mu=1' and --param 'DRDM.mu=2' set"),
    (["run", "--threads", "100000"], "threads = 100000"),
    (["run", "--param", "sampling=all"], "unknown sampling"),
    (["run", "--param", "ambiguity=simplex:floor=1"], "floor=1.0 is too large for 30 clients"),
    (["run", "--param", "ambiguity=simplex:flor=0.1"], "name:option=number"),
    (["run", "--alpha", "0"], "one-class"),
    (["run", "--alpha", "-1"], "alpha"),
    (["run", "--alpha", "nan"], "alpha"),
    (["run", "--zipf", "-1"], "zipf"),
    (["run", "--partition", "iid", "--alpha", "1"], "alpha has no effect"),
    (["run", "--partition", "one-class", "--clients", "3"], "classes"),
    (["run", "--cohort", "31"], "m=31"),
    (["run", "--cohort", "0"], "cohort"),
    (["run", "--clients", "0"], "clients"),
    (["run", "--clients", "5000"], "5000 clients"),
    (["run", "--lr", "0"], "lr must be"),
    (["run", "--lr", "inf"], "lr must be"),
    (["run", "--steps", "0"], "steps"),
    (["run", "--batch", "0"], "batch must be"),
    (["run", "--batch", "some"], "batch"),
    (["run", "--rounds", "-1"], "rounds"),
    (["run", "--rounds", "many"], "--rounds"),
    (["run", "--seed", "-1"], "seed"),
    (["run", "--dtype", "float16"], "float32"),
    (["run", "--device", "gpu"], "device 'gpu'"),
    (["run", "--until", "accuracy=1"], "unknown metric"),
    (["run", "--until", "worst_accuracy"], "metric=value"),
    (["run", "--until", "worst_accuracy=x"], "metric=value"),
    (["run", "--frobnicate"], "--frobnicate"),
    (["run", "--certificate", "--model", "mlp"], "no certificate: the model trains 2 layers on top of each other"),
    (["run", "--certificate", "--dataset", "digits", "--model", "cnn"], "no certificate: the model trains Conv2d"),
    (["compare", "--certificate", "--model", "mlp", "--seeds", "1"], "no certificate: the model trains 2 layers"),
    (["run", "--dataset", "mnist", "--data-dir", "nowhere"], "nowhere"),
    (["run", "none.toml"], "none.toml"),
    (["compare", "--until", "accuracy=1"], "unknown metric"),
    (["compare", "--seeds", "x"], "seeds 'x'"),
    (["compare", "--seeds", "1,1"], "seeds '1,1'"),
    (["compare", "--seeds", "0"], "seeds '0'"),
    (["compare", "--seeds", "1000000000000"], "more than 10000"),
    (["compare", "--seeds", "0..1000000000000"], "more than 10000"),
    (["compare", "--algorithms", "FedAvg,DRFQ"], "did you mean 'DRFA'?"),
    (["compare", "--cohort", "31"], "m=31"),
    (["rum"], "did you mean 'run'?"),
]


@pytest.mark.parametrize(("arguments", "part"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_one_line_exit_code_2_and_no_file(arguments, part, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1
    assert printed.err.startswith("drfl: ")
    assert part in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_shells_list_of_tables_behind_data_is_told_apart_from_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("age,sick\n3,1\n")
    assert call(["run", "--data", "a.csv", "b.csv", "--target", "sick"]) == 2
    told = "b.csv is a table and no configuration: give each table its own --data, or their folder"
    assert capsys.readouterr().err == f"drfl: {told}\n"


TOML_MISTAKES = [
    ("rounds = ", "not valid TOML"),
    ("round = 3", "did you mean 'rounds'?"),
    ("rounds = 'many'", "rounds = 'many'"),
    ("algorithms = 3", "algorithms"),
    ("[algorithms]\nDRDM = 3", "algorithms"),
    ("[algorithms.DRDM]\nmue = 3", "did you mean 'mu'?"),
    ("[algorithms.DRDMM]\nmu = 3", "did you mean 'DRDM'?"),
    ("[algorithms.DRDM]\nmu = 3\n[algorithms.drdm]\nm = 3", "algorithms.DRDM is given twice"),
    ("[algorithms.DRDM.ambiguity]\nalpha = 0.2", "DRDM.ambiguity = {'alpha': 0.2} is no single value"),
    ("[algorithms.DRDM]\nm = [1, 2]", "DRDM.m = [1, 2] is no single value"),
    ("alpha = -1.0", "alpha"),
    ("certificate = 'poled'", "certificate = 'poled': input should be 'pooled' or 'gradient'"),
    ("certificate = 'gradient'", "'gradient' needs strongly convex losses: set weight_decay above 0"),
    ("certificate = true\nmodel = 'mlp'", "no certificate: the model trains 2 layers"),
]


@pytest.mark.parametrize(("text", "part"), TOML_MISTAKES)
def test_a_mistake_in_the_file_too(text, part, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(text)
    assert call(["run", "job.toml"]) == 2
    printed = capsys.readouterr().err
    assert len(printed.strip().splitlines()) == 1
    assert part in printed
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_an_existing_run_directory_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine.txt").write_text("precious")
    assert call(["run", "--out", str(tmp_path / "a")]) == 2
    assert "holds something else than a run" in capsys.readouterr().err
    assert (tmp_path / "a/mine.txt").read_text() == "precious"


@pytest.mark.parametrize("command", ["run", "compare", "energy"])
def test_a_project_with_a_checkpoint_folder_is_no_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("checkpoint/best.pt", "checkpoint/config.toml", "summary.json", "thesis/thesis.tex"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text("precious")
    for options in ([], ["--overwrite"], *([["--resume"]] if command != "energy" else [])):
        assert call([command, "--out", "project", *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "project holds something else than a" in line
    files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
    assert [path.read_text() for path in files] == 4 * ["precious"]


def test_a_checkpoint_that_is_a_link_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--clients", "5", "--rounds", "1", "--out", "a"]) == 0
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/config.toml").write_text("mine")
    (tmp_path / "a/checkpoint").symlink_to(tmp_path / "precious")
    for how in ("--overwrite", "--resume"):
        capsys.readouterr()
        assert call(["run", "--clients", "5", "--rounds", "1", "--out", "a", how]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "a/checkpoint is a link" in line
    assert (tmp_path / "precious/config.toml").read_text() == "mine"
    assert (tmp_path / "a/history.csv").exists()


def test_overwrite_replaces_runs_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine.txt").write_text("precious")
    assert call(["run", "--overwrite", "--out", str(tmp_path / "a")]) == 2
    assert "something else than a run" in capsys.readouterr().err
    (tmp_path / "a/summary.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "a")
    for out in (".", "..", str(tmp_path / "a")):
        assert call(["run", "--overwrite", "--out", out]) == 2
        assert "the folder you are in" in capsys.readouterr().err
    assert (tmp_path / "a/mine.txt").read_text() == "precious"


def test_an_empty_directory_may_be_filled(tmp_path):
    (tmp_path / "a").mkdir()
    assert call(["run", "--rounds", "0", "--clients", "4", "--out", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a/summary.json").exists()


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "a").write_text("precious")
    assert call(["run", "--out", str(tmp_path / "a")]) == 2
    assert call(["run", "--out", str(tmp_path / "a/b")]) == 2
    assert (tmp_path / "a").read_text() == "precious"


def test_an_unwritable_place_is_told_before_training(capsys):
    # nobody, root included, can create files under /proc
    assert call(["run", "--out", "/proc/drfl/a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot write into /proc" in line


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["run", "--algorithm", "DRDN"], "unknown-name", "algorithm"),
        (["run", "--rounds", "many"], "usage", None),
        (["run", "--rounds", "-1"], "invalid-value", "rounds"),
        (["tun"], "unknown-name", "command"),
    ],
)
def test_with_json_an_error_has_a_code_and_a_field_on_stdout(arguments, code, field, capsys):
    assert call([*arguments, "--json"]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert printed.err == f"drfl: {error['message']}\n"
