"""Test the user's own algorithms, models and losses, named as FILE.py:NAME."""

from __future__ import annotations

import hashlib
import sys
import tomllib
from textwrap import dedent

import pytest
from tests.support.marks import long_beyond, long_except
from tests.support.refusals import check_refusal, quotes, refusal

import drfl
from drfl.cli.app import call
from drfl.core import user_code

MINE = """
from dataclasses import dataclass, field

import torch
from torch import nn

import scales
from drfl.ambiguity import Constraint, Simplex
from drfl import LocalSGD, sampling
from drfl.federation.algorithm import Info
from drfl.algorithms.fedavg import FedAvgState


@dataclass(frozen=True)
class Halfway:
    m: int
    share: float = scales.SHARE
    local: LocalSGD = field(default_factory=LocalSGD)

    def init(self, fed):
        return FedAvgState(fed.w0.clone())

    def round(self, state, fed, key):
        cohort = sampling.uniform(fed.n, self.m, key.fold("cohort"))
        replies = fed.train(cohort.clients, state.w, self.local, key)
        if not replies.clients.numel():
            return state, Info.without_replies(cohort)
        w = state.w + self.share * (replies.w.mean(0) - state.w)
        return FedAvgState(w), Info(cohort, replies.clients)


@dataclass(frozen=True)
class Needy(Halfway):
    need: float = field(kw_only=True)


class Bare:
    local: LocalSGD = LocalSGD()

    def init(self, fed): ...
    def round(self, state, fed, key): ...


class Plain:
    def init(self, fed): ...
    def round(self, state, fed, key): ...


@dataclass(frozen=True)
class Idle(Plain):
    pass


@dataclass(frozen=True)
class Rowdy(Halfway):
    def __post_init__(self):
        raise ValueError("share is odd")


@dataclass(frozen=True)
class Floor(Constraint):
    share: float = 0.5

    def __post_init__(self):
        if self.share > 1:
            raise ValueError("share is odd")

    def project(self, v):
        return Simplex(self.share / len(v)).project(v)

    def worst_case(self, losses):
        return Simplex(self.share / len(losses)).worst_case(losses)

    def contains(self, lam, tolerance=1e-9):
        return Simplex(self.share / len(lam)).contains(lam, tolerance)


class Undecorated(Floor):
    pass


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))


def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def broken(shape, classes):
    raise RuntimeError("no such layer")


def number(shape, classes):
    return 3


def margin(outputs, targets):
    return nn.functional.multi_margin_loss(outputs, targets, reduction="none")


def whole(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


CONSTANT = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "scales.py").write_text("SHARE = 0.5\n")
    (tmp_path / "slip.py").write_text("def net(:\n")
    (tmp_path / "fails.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "lacks.py").write_text("import no_such_package\n")
    return tmp_path


def forget():
    """Forget imported modules, as in a new process."""
    for name in [name for name in sys.modules if name == "scales" or name.startswith("drfl_user_")]:
        del sys.modules[name]


def said(words, capsys):
    """Return the error of a refused command, which prints one line."""
    error = refusal(words.split())
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return error


SMALL = "--clients 4 --rounds 2 --steps 1"


def test_own_algorithm_next_to_a_built_in_one(folder, capsys):
    words = f"compare --algorithms mine.py:Halfway,FedAvg --param Halfway.share=1 --seeds 1 {SMALL} --out r --json"
    assert call(words.split()) == 0
    ours, theirs = (
        [
            line.split(",")[2:]
            for line in (folder / "r" / "compare.csv").read_text().splitlines()
            if line.startswith(name)
        ]
        for name in ("Halfway", "FedAvg")
    )
    assert len(ours) == len(theirs) == 1
    found = tomllib.loads((folder / "r" / "config.toml").read_text())
    assert found["algorithms"]["mine.py:Halfway"]["share"] == 1
    assert [*found["files"]] == ["mine.py", "scales.py"]
    assert "Halfway" in (folder / "r" / "report.html").read_text()
    assert call(["run", "r/Halfway-seed0/config.toml", "--out", "again"]) == 0  # its configuration repeats the run
    for name in ("history.csv", "lambda.csv", "model.safetensors"):
        assert (folder / "again" / name).read_bytes() == (folder / "r" / "Halfway-seed0" / name).read_bytes()


@pytest.mark.parametrize("model", long_beyond(1, ["net", "fixed"]))
def test_own_model_and_loss(folder, model):
    assert call(f"run --model mine.py:{model} --loss mine.py:margin {SMALL} --out r".split()) == 0


@pytest.mark.parametrize("file", long_except(["scales.py"], ["mine.py", "scales.py"]))
def test_run_with_changed_code_is_not_resumed(folder, file, capsys):
    assert call(f"run --algorithm mine.py:Halfway {SMALL} --out r".split()) == 0
    (folder / file).write_text((folder / file).read_text() + "\n# changed\n")
    forget()
    capsys.readouterr()
    error = said("run --resume --out r", capsys)
    assert error.code == "untrusted-code"
    assert quotes(str(error), file, "another `out`")  # neither --trust nor naming the class again would help
    assert "`trust`" not in str(error)
    assert not [name for name in sys.modules if name == "scales" or name.startswith("drfl_user_")]
    for more in ("--trust", "--algorithm mine.py:Halfway"):
        again = said(f"run --resume --out r {more}", capsys)
        assert (again.code, again.field) == ("other-run", file)
        assert quotes(str(again), file, "another `out`")
    error = said("run r/config.toml --out s", capsys)  # a new run can use the new code
    assert error.code == "untrusted-code"
    assert quotes(str(error), file, "`trust`")


@pytest.mark.parametrize(
    "name",
    long_except(["mine.py:Halfway"], ["Halfway", "halfway", "mine.py:Halfway"]),
)
def test_parameters_are_named_with_or_without_the_file(folder, name):
    (folder / "job.toml").write_text(f'[algorithms."{name}"]\nsteps = 3\n[algorithms.FedAvg]\nsteps = 2\n')
    words = f"compare job.toml --algorithms mine.py:Halfway,FedAvg --param {name}.share=0.25 --clients 4 --rounds 1"
    assert call([*words.split(), "--seeds", "1", "--out", "r"]) == 0
    tables = tomllib.loads((folder / "r" / "config.toml").read_text())["algorithms"]
    assert {key: table["steps"] for key, table in tables.items()} == {"mine.py:Halfway": 3, "FedAvg": 2}
    assert tables["mine.py:Halfway"]["share"] == 0.25
    (folder / "job.toml").write_text('[algorithms.Halfway]\nm = 1\n[algorithms."mine.py:Halfway"]\nm = 2\n')
    check_refusal(words.split(), "given-twice", "algorithms.mine.py:Halfway")
    (folder / "job.toml").write_text("[algorithms.Halfway]\nm = 1\n")
    check_refusal(["run", "job.toml"], "unknown-name", "algorithm", "Halfway", "Ditto", "LocalOnly")
    check_refusal(["run", "--param", "Halfway.m=1"], "unknown-name", "algorithm", "Halfway", "Ditto", "LocalOnly")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--algorithm mine.py:Halfwy", ("unknown-name", "algorithm", "'Halfway'")),
        ("--param ambiguity=mine.py", ("unknown-name", "ambiguity set", "mine.py:NAME")),
        ("--param ambiguity=mine.py:Flor", ("unknown-name", "ambiguity set", "'Floor'")),
        ("--param ambiguity=nine.py:Floor", ("file-not-found", "nine.py")),
        ("--param ambiguity=mine.py:net", ("wrong-type", "ambiguity set", "function")),
        ("--param ambiguity=mine.py:Bare", ("wrong-type", "ambiguity set", "'project'")),
        ("--param ambiguity=mine.py:Floor:shar=1", ("invalid-format", "ambiguity set", "mine.py:Floor:share=number")),
        ("--param ambiguity=mine.py:Floor:share=x", ("invalid-format", "ambiguity set", "'x'")),
        ("--param ambiguity=mine.py:Floor:share=2", ("user-code-failed", "ambiguity set", "share is odd")),
        ("--param ambiguity=os:system", ("standard-library", "ambiguity set")),
        ("--algorithm mine.py", ("unknown-name", "algorithm", "mine.py:NAME")),
        ("--model mine.py", ("unknown-name", "model", "mine.py:NAME")),
        ("--loss mine.py", ("unknown-name", "loss", "mine.py:NAME")),
        ("--score mine.py", ("unknown-name", "metric", "mine.py:NAME")),
        ("--algorithm mine.py:", ("invalid-reference", "algorithm", "FILE.py:NAME")),
        ("--algorithm :Halfway", ("invalid-reference", "algorithm", "FILE.py:NAME")),
        ("--algorithm nine.py:Halfway", ("file-not-found", "nine.py")),
        ("--algorithm nine:Halfway", ("package-missing", "nine", "nine.py")),
        ("--algorithm slip.py:Halfway", ("user-code-failed", "algorithm", "slip.py", "1", "invalid syntax")),
        ("--algorithm fails.py:Halfway", ("user-code-failed", "algorithm", "fails.py", "2", "ZeroDivisionError")),
        ("--algorithm lacks.py:Halfway", ("user-code-failed", "algorithm", "lacks.py", "1", "ModuleNotFoundError")),
        ("--algorithm mine.py:net", ("wrong-type", "algorithm", "function")),
        ("--algorithm mine.py:Bare", ("wrong-type", "algorithm", "is not a dataclass", "@dataclass(frozen=True)")),
        ("--algorithm mine.py:Plain", ("wrong-type", "algorithm", "local: LocalSGD", "@dataclass(frozen=True)")),
        ("--algorithm mine.py:Idle", ("wrong-type", "algorithm", "local: LocalSGD")),
        ("--algorithm mine.py:FedAvgState", ("wrong-type", "algorithm", "'init'")),
        ("--algorithm mine.py:Needy", ("missing-option", "Needy.need", "`param = Needy.need=VALUE`")),
        ("--algorithm mine.py:Rowdy", ("user-code-failed", "Rowdy", "share is odd")),
        ("--algorithm mine.py:Halfway --param shar=1", ("unknown-name", "Halfway.shar", "of Halfway", "'share'")),
        ("--algorithm mine.py:Halfway --param share=x", ("wrong-type", "Halfway.share", "'x'")),
        ("--algorithm mine.py:Halfway --param FedAvg.m=3", ("unused-option", "param", "FedAvg")),
        (
            "--model mine.py:broken",
            ("user-code-failed", "model", "'mine.py:broken'", "((1, 8, 8), 10)", "RuntimeError: no such layer"),
        ),
        ("--model mine.py:number", ("wrong-type", "model", "int")),
        ("--model mine.py:CONSTANT", ("wrong-type", "model", "int")),
        ("--model fails.py:net", ("user-code-failed", "model", "ZeroDivisionError")),
        ("--loss mine.py:CONSTANT", ("wrong-type", "loss", "int")),
        ("--loss mine.py:whole", ("wrong-shape", "the loss")),
        ("--loss mine.py:wole", ("unknown-name", "loss", "'whole'")),
    ],
)
def test_mistakes_are_one_line_errors(words, error, folder, capsys):
    check_refusal(f"run {words} --out r".split(), *error)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not (folder / "r").exists()


@pytest.mark.parametrize("text", long_beyond(1, ["mine.py:Floor:share=0.25", "mine.py:Floor"]))
def test_own_ambiguity_set_is_recorded_and_its_run_repeats(folder, text):
    words = "--algorithm DRFA --clients 4 --rounds 2 --engine loop --lr 0.1"
    assert call(["run", *words.split(), "--param", f"ambiguity={text}", "--out", "a"]) == 0
    config = tomllib.loads((folder / "a" / "config.toml").read_text())
    assert config["algorithms"]["DRFA"]["ambiguity"] == text
    assert config["files"].keys() == {"mine.py", "scales.py"}
    forget()
    assert call(["run", "a/config.toml", "--out", "b"]) == 0
    assert (folder / "b" / "history.csv").read_bytes() == (folder / "a" / "history.csv").read_bytes()
    (folder / "mine.py").write_text(MINE + "# changed")
    forget()
    check_refusal(["run", "a/config.toml", "--out", "c"], "untrusted-code", "DRFA.ambiguity", "mine.py")
    assert call(["run", "a/config.toml", "--param", f"ambiguity={text}", "--out", "c"]) == 0


def test_own_ambiguity_set_limits_the_client_weights(folder):
    (folder / "job.toml").write_text('clients = 4\n[algorithms.DRFA]\nambiguity = "mine.py:Floor:share=1"\n')
    words = "compare job.toml --algorithms DRFA --rounds 2 --seeds 1 --out c"
    assert call(words.split()) == 0
    last = (folder / "c" / "DRFA-seed0" / "lambda.csv").read_text().splitlines()[-1].split(",")[1:]
    assert [float(x) for x in last] == pytest.approx([0.25] * 4, abs=1e-6)


def test_two_classes_of_the_same_name_are_refused(folder, capsys):
    (folder / "other.py").write_text(MINE)
    error = said("compare --algorithms mine.py:Halfway,other.py:Halfway", capsys)
    assert error.code == "duplicate-name"
    assert "Halfway" in str(error)


def test_file_is_executed_once_and_only_its_modules_are_recorded(folder):
    (folder / "once.py").write_text(
        dedent("""
        import math, numpy, scales
        from pathlib import Path
        with Path("ran").open("a") as file: file.write("x")
        VALUE = 1
        """)
    )
    assert [user_code.load("thing", "once.py:VALUE") for _ in range(2)] == [1, 1]
    assert (folder / "ran").read_text() == "x"
    assert [*user_code.digests("once.py:VALUE")] == ["once.py", "scales.py"]
    user_code.load("thing", "numpy:array")
    assert [*user_code.digests("numpy:array")] == ["numpy"]


@pytest.mark.long
def test_worker_processes_load_own_code(folder):
    words = f"compare --algorithms mine.py:Halfway,DRFA --model mine.py:net --seeds 2 {SMALL}"
    assert [call(f"{words} --jobs {k} --out r{k}".split()) for k in (1, 2)] == [0, 0]
    for name in ("compare.csv", "table.md", "config.toml", "Halfway-seed1/history.csv", "DRFA-seed0/model.safetensors"):
        assert (folder / "r1" / name).read_bytes() == (folder / "r2" / name).read_bytes()


def test_error_lists_the_objects_of_the_file(folder, capsys):
    text = "from __future__ import annotations\nimport math\nimport drfl\nLIMIT = 3\n"
    text += "def rate(outputs, targets): ...\ncost = drfl.Metric('cost', rate, more_is_better=False)\n"
    (folder / "scores.py").write_text(text)
    error = said("run --score scores.py:x --out r", capsys)
    assert (error.code, quotes(str(error), "'x'", "rate, cost")) == ("unknown-name", True)


BRANCHING = """
import torch
from torch import nn


class Branching(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        rows = x.flatten(1)
        if WHOLE and rows.max() > 0.99:
            return 2 * self.layer(rows)
        return torch.stack([self.layer(row) * (2 if row[20] > 0.5 else 1) for row in rows])
"""


@pytest.mark.long
def test_branching_model_is_refused_or_saved_loadably(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("whole", "rows"):
        (tmp_path / f"{name}.py").write_text(BRANCHING + f"\n\nWHOLE = {name == 'whole'}\n")
    run = ["run", "--dataset", "digits", "--clients", "3", "--rounds", "1", "--steps", "1", "--lr", "0.1"]
    for model, more in (("whole.py:Branching", []), ("rows.py:Branching", ["--engine", "stacked"])):
        assert call([*run, "--model", model, *more, "--out", "a"]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert call([*run, "--model", "rows.py:Branching", "--out", "a"]) == 0
    found = drfl.load_model(tmp_path / "a/model.safetensors")
    module = found.about["module"]
    assert (module["reference"], module["arguments"]["classes"]) == ("rows.py:Branching", 10)
    assert module["sha256"]["rows.py"] == hashlib.sha256((tmp_path / "rows.py").read_bytes()).hexdigest()
    assert found.weights.keys() == {"layer.weight", "layer.bias"}
