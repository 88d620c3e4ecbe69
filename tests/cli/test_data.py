"""Test ``drfl data describe``, ``drfl data check``, and schemas in runs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.support.refusals import check_refusal, quotes

import drfl
from drfl.cli.app import call
from drfl.core.errors import complete_listings, listing
from drfl.data.tables.schema import Column, TableSchema
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for seed, name in enumerate("abc"):
        rng = np.random.default_rng(seed)
        rows = pd.DataFrame({"age": rng.integers(20, 80, 40), "sex": rng.choice(["f", "m"], 40)})
        rows["dose"] = (rows["age"] / 10 + rng.normal(size=40)).round(1).astype(str)
        rows.loc[:3, "dose"] = ""
        rows["ill"] = np.where(rows["age"] + rng.normal(0, 9, 40) > 50, "yes", "no")
        rows.to_csv(f"in/{name}.csv", index=False)
    return tmp_path


def drfl_(words):
    return call(words.split())


def refused(words, *error):
    check_refusal(words.split(), *error)


def describe(*more):
    return call(["data", "describe", "in", "--target", "ill", *more])


def test_description_and_strict_check_name_all_cases(capsys):
    names = [f"{name}{k}" for name in "abc" for k in range(3)]
    for name in names:
        pd.read_csv(f"in/{name[0]}.csv").assign(dose=1.5).head(30).to_csv(f"in/{name}.csv", index=False)
    assert describe("--out", "s.toml") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "fewer than 20 test rows" in line]
    assert quotes(line, *names)
    assert "more client" not in line
    check = ["data", "check", "in", "--schema", "s.toml", "--strict", "--json"]
    assert call(check) == 2
    (line,) = [
        each["message"] for each in json.loads(capsys.readouterr().out)["warnings"] if each["code"] == "few-test-rows"
    ]
    assert quotes(line, *names)
    assert listing(names, "client") == "a0, a1, a2 and 6 more clients", "other commands count the rest"
    with complete_listings():
        assert listing(names, "level", 3) == "a0, a1, a2 and 6 more levels"


def test_schema_is_described_checked_and_used(capsys):
    assert describe("--out", "s.toml") == 0
    out = capsys.readouterr().out.splitlines()
    assert quotes(out[0], "commas", "decimal points", "utf-8", "a.csv", "b.csv", "c.csv")
    assert quotes(out[1], "blank", "dose")
    assert out[2].startswith("a: 40 rows, ")
    assert any(quotes(line, "dose", "number", "4 missing") for line in out)
    schema = TableSchema.read("s.toml")
    assert (schema.features, schema.classes) == (("age", "sex_m", "dose", "dose missing"), ("no", "yes"))
    assert drfl_("data check in --schema s.toml") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ok       in/{name}.csv: 40 rows, read as commas, decimal points, utf-8" for name in "abc"
    ]
    assert drfl_("run --data in --schema s.toml --rounds 2 --algorithm FedAvg --out r") == 0
    config = tomllib.loads(Path("r/config.toml").read_text())
    assert (config["data_schema"], config["target"], config["partition"]) == ("s.toml", ["ill"], "natural")
    saved = drfl.load_model("r/model.safetensors")
    assert saved.standardisation.mean.shape == (4,)
    assert saved.about["schema"] == schema.digest
    assert call(["run", "r/config.toml", "--out", "again"]) == 0
    assert Path("again/history.csv").read_bytes() == Path("r/history.csv").read_bytes()


def test_few_whole_numbers_are_counted(capsys):
    for path in Path("in").iterdir():
        frame = pd.read_csv(path)
        frame.assign(ward=np.arange(40) % 4 * 10 + 101, visits=np.arange(40) % 11).to_csv(path, index=False)
    assert describe("--json", "--out", "s.toml") == 0
    columns = json.loads(capsys.readouterr().out)["clients"][0]["columns"]
    assert [columns[name]["values"] for name in ("ward", "visits")] == [4, 11]
    assert describe("--out", "t.toml") == 0
    out = capsys.readouterr().out
    assert out.count("101 to 131, 4 values") == 3
    assert "11 values" not in out


def test_folder_without_readable_files_is_an_error(capsys):
    Path("bad").mkdir()
    Path("bad/a.csv").write_bytes(b"age,ill\n\x81\x8d,1\n")
    for name in ("notes.txt", *(f"{k}.docx" for k in range(12))):
        Path("bad", name).write_text("x")
    assert drfl_("data describe bad --target ill --json") == 2
    found = json.loads(capsys.readouterr().out)
    assert [(problem["code"], problem["field"]) for problem in found["problems"]] == [("damaged-file", "bad/a.csv")]
    (notice,) = found["warnings"]
    assert all(name.name in notice["message"] for name in Path("bad").iterdir() if name.name != "a.csv")
    assert "a.csv" not in notice["message"]
    assert (found["files"], found["schema"]) == ([], None)


def test_detected_format_is_stated_and_reused_for_predictions(capsys):
    Path("de").mkdir()
    for name in "abc":
        text = Path("in", f"{name}.csv").read_text().replace(".", "\0").replace(",", ";").replace("\0", ",")
        Path("de", f"{name}.csv").write_text(text.replace("\n", ";1.234\n").replace("1.234", "more", 1))
    words = ["--target", "ill", "--thousands", ".", "--missing", "7,0", "--missing", "-9"]
    assert call(["data", "describe", "de", *words, "--out", "s.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"][0] == {
        "file": "de/a.csv", "delimiter": ";", "decimal": ",", "thousands": ".", "encoding": "utf-8"
    }  # fmt: skip
    assert set(found["missing"]["dose"]) >= {"", "7,0", "-9"}
    schema = TableSchema.read("s.toml")
    assert schema.reading == drfl.ReadOptions(decimal=",", thousands=".", missing=("7,0", "-9"))
    assert drfl_("run --data de --schema s.toml --rounds 1 --algorithm FedAvg --out r") == 0
    assert drfl_("predict r/model.safetensors de/a.csv --out p.csv") == 0
    assert len(Path("p.csv").read_text().splitlines()) == 41
    refused("predict r/model.safetensors de/a.csv --decimal . --out q.csv", "conflicting-options", "decimal")
    assert drfl_("run --data de --target ill --drop more --rounds 1 --missing= --algorithm FedAvg --out r2") == 0
    assert tomllib.loads(Path("r2/config.toml").read_text())["missing"] == [""]
    check_refusal(["predict", "r2/model.safetensors", "de/a.csv", "--decimal", ".", "--out", "q.csv"], "not-a-number")


def test_description_as_json(capsys):
    assert describe("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [client["name"] for client in found["clients"]] == ["a", "b", "c"]
    assert found["clients"][0]["columns"]["dose"]["missing"] == 4
    assert (found["schema"], len(found["digest"]), found["problems"]) == (None, 64, [])


def test_existing_file_is_not_overwritten(capsys):
    Path("s.toml").write_text("mine")
    refused("data describe in --target ill --out s.toml", "already-exists", "s.toml")
    assert Path("s.toml").read_text() == "mine"
    assert describe("--out", "s.toml", "--force") == 0
    assert TableSchema.read("s.toml").classes == ("no", "yes")


def test_every_problem_is_listed_on_its_own_line(capsys):
    describe("--out", "s.toml")
    text = Path("in/b.csv").read_text().splitlines()
    text[2] = text[2].replace(text[2].split(",")[0], "old", 1)
    text[4] = text[4].rpartition(",")[0] + ",maybe"
    Path("in/b.csv").write_text("\n".join(text))
    capsys.readouterr()
    assert drfl_("data check in --schema s.toml") == 2
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["ok", "problem", "problem", "ok"]
    assert quotes(out[1], "in/b.csv, line 3", "'age'", "'old'")
    assert quotes(out[2], "in/b.csv, line 5", "'ill'", "'maybe'")
    assert drfl_("data check in --schema s.toml --json") == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], [len(file["problems"]) for file in found["files"]]) == (False, [0, 2, 0])
    refused("run --data in --schema s.toml --out r", "not-a-number", "age", "in/b.csv, line 3")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("data describe none --target ill", ("file-not-found", "none")),
        ("data describe in --target il", ("unknown-name", "target", "'ill'")),
        ("data describe in --target ill --task regresion", ("unknown-name", "task", "'regression'")),
        ("data check in --schema none.toml", ("file-not-found", "none.toml")),
        ("run --data in --schema s.toml --target age --out r", ("conflicting-options", "target")),
        ("run --data in --schema s.toml --task regression --out r", ("conflicting-options", "task")),
        ("run --data in --schema s.toml --group sex --out r", ("conflicting-options", "group")),
        ("run --data in --schema s.toml --drop age --out r", ("conflicting-options", "drop")),
        ("run --dataset digits --schema s.toml --out r", ("unused-option", "data_schema")),
        ("run --data a.npz --schema s.toml --out r", ("unsupported-file", "a.npz")),
    ],
)
def test_mistake_is_a_one_line_error(words, error, capsys):
    columns = (
        Column("age", "number"), Column("sex", "yes/no", levels=("f", "m")), Column("dose", "number", missing=("",)),
        Column("ill", "yes/no", levels=("no", "yes"), role="target"),
    )  # fmt: skip
    TableSchema(columns).write("s.toml")
    np.savez("a.npz", inputs=np.ones((4, 2)), ill=np.arange(4) % 2)
    refused(words, *error)


def test_client_column_of_the_schema_divides_the_data():
    whole = pd.concat([pd.read_csv(f"in/{name}.csv").assign(site=name) for name in "abc"])
    whole.to_csv("all.csv", index=False)
    assert drfl_("data describe all.csv --target ill --group site --out s.toml") == 0
    job = build(load_config(None, {"data": "all.csv", "data_schema": "s.toml"}))
    assert job.data.names == ("a", "b", "c")
    assert not job.data.inputs.isnan().any()


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        ("--target dose --task regression", "mse"),
        ("--target ill --target old --task multi-label", "binary-cross-entropy"),
        ("--target ill", "cross-entropy"),
    ],
)
def test_loss_follows_from_the_schemas_task(words, loss):
    for path in Path("in").iterdir():
        frame = pd.read_csv(path).dropna().assign(old=lambda rows: rows["age"].gt(50).astype(int))
        frame.assign(ill=frame["ill"].eq("yes").astype(int)).to_csv(path, index=False)
    assert drfl_(f"data describe in {words} --out s.toml") == 0
    assert load_config(None, {"data": "in", "data_schema": "s.toml"}).loss == loss


@pytest.mark.long
def test_tune_accepts_a_schema(capsys):
    describe("--out", "s.toml")
    Path("job.toml").write_text('data = "in"\nmodel = "linear"\nalgorithm = "FedAvg"\n')
    words = "tune job.toml --schema s.toml --algorithms FedAvg --trials 1 --seeds 1 --rounds 1 --jobs 1 --out t"
    assert drfl_(words) == 0
    refused(f"{words} --set data_schema=s.toml", "given-twice", "data_schema")
