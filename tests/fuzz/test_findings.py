"""Regression tests for the findings of the fuzzers, with one small input each."""

from __future__ import annotations

import gzip
import json
import pickle
import struct

import pytest
import torch
from safetensors.torch import save
from tests.report.conftest import write_directory
from tests.support.refusals import refused
from tests.support.small_spec import small_spec

from drfl.cli.app import call
from drfl.cli.to_config import overrides
from drfl.core.errors import DrflError, InputError, unknown
from drfl.data.datasets.formats import read_idx
from drfl.data.features.backbone import Backbone, resnet18
from drfl.data.features.weights import read_weights
from drfl.experiments.config.config import load_config
from drfl.experiments.execution import cells
from drfl.experiments.run.manifest import Manifest
from drfl.experiments.tuning.job import changes_of
from drfl.report.read_run import load_run, number
from drfl.task.models import cnn
from drfl_papers.energy.measurements import read_csv
from drfl_papers.execute import check_place
from drfl_papers.plan import Scale, hyperparameters, plan

from .texts import DISTANCE, planned

UNREADABLE = {"digits": "9" * 5000, "nested": "[" * 5000}


@pytest.mark.parametrize(
    "message", ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x1b[2Jb", "a\x00b", "a\u202eb", "a\udcffb"]
)
def test_error_is_one_printable_line(message):
    for error in (DrflError(message), unknown("option", message, ["known"]), InputError(message)):
        assert str(error).isprintable()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)  # a worker process sends the error
    assert str(InputError("α = ½, 'x'")) == "α = ½, 'x'"


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_toml_that_crashes_its_parser(value, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(f"rounds = {value}")
    with pytest.raises(InputError, match="is not valid TOML"):
        load_config(path, {})
    with pytest.raises(InputError, match="is not valid TOML"):
        hyperparameters(tmp_path, "small")
    assert overrides({}, [f"mu={value}"], ["DRDM"])["algorithms"] == {"DRDM": {"mu": value}}
    assert changes_of([f"model={value}"]) == {"model": value}
    directory = write_directory(tmp_path, "run")
    (directory / "config.toml").write_text(f"rounds = {value}")
    with pytest.raises(InputError, match=r"config\.toml is damaged"):
        load_run(directory)


def test_json_that_crashes_its_parser(tmp_path):
    directory = write_directory(tmp_path, "run")
    (directory / "summary.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"summary\.json is damaged"):
        load_run(directory)


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        ("history.csv", "\n0.0,", "\ninf,", "invalid round number"),
        ("history.csv", "\n0.0,", "\n1e300,", "invalid round number"),
        ("lambda.csv", "\n0,", "\nnan,", "invalid round number"),
        ("lambda.csv", "\n0,0.5", "\n0,1e99", "not between 0 and 1"),
        ("lambda.csv", "\n0,0.5", "\n0,1e308", "numbers larger than"),
        ("clients.csv", "loss,", "accuracy,", "column 'accuracy' appears twice"),
    ],
)
def test_run_tables_that_no_report_can_draw(name, old, new, why, tmp_path):
    path = write_directory(tmp_path, "run", clients=2, rounds=2) / name
    text = path.read_text().replace(old, new, 1)
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        load_run(path.parent)


def test_endless_integer_in_a_summary():
    assert str(number({"rounds": 10**400}, "rounds")) == "nan"
    assert number({"rounds": 3}, "rounds") == 3.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[algorithms]\nDRDM = 1\nFedAvg = {}", "algorithms.DRDM must be a table of parameters"),
        ("[algorithms]\nDRDM = {}\nFedAvg = 'x'", "algorithms.FedAvg must be a table of parameters"),
        ("provenance = 1979-05-27\n[algorithms.DRDM]\n[algorithms.FedAvg]", "found a date or a time"),
    ],
)
def test_invalid_hyperparameters(text, why, tmp_path):
    (tmp_path / "mnist-linear.toml").write_text(text)
    with pytest.raises(InputError, match=why):
        plan(small_spec(job="mnist-linear"), Scale(tuned=tmp_path))


@pytest.mark.parametrize("text", ['""', "[]", "[" * 100_000, "1"])
def test_summary_that_is_not_an_object(text, tmp_path):
    (tmp_path / "small-table-1").mkdir()
    (tmp_path / "small-table-1" / "summary.json").write_text(text)
    Manifest.new("reproduction", ("summary.json",)).write(tmp_path / "small-table-1")
    check_place(planned()[0], tmp_path, overwrite=False)


@pytest.mark.parametrize(
    ("row", "why"),
    [("1,0," + "9" * 5000, "rounds must be"), ("1,0," + "x" * 200_000, "field larger"), ('"1\n2",0,1', "tau must be")],
)
def test_measurements_that_crash_the_csv_reader(row, why, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"tau,seed,rounds\n{row}\n")
    with pytest.raises(InputError, match=why) as caught:
        read_csv(path)
    assert len(str(caught.value).splitlines()) == 1


def changed(record, *path, value):
    """Return a copy with another value at a place, or without the place."""
    copy = json.loads(json.dumps(record))
    part = copy
    for name in path[:-1]:
        part = part[name]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("stopped",), None),
        (("rounds",), [1]),
        (("rows",), {"a": 1}),
        (("rows", 0, "round"), None),
        (("versions",), "x"),
        (("rows", 1, "worst_accuracy"), [1]),
        (("rows", 1, "bytes_up"), "nan"),
        (("rows", 1, "bytes_up"), 10**400),
        (("rows", 1, "avg_loss"), "x"),
        (("parameters",), None),
        (("parameters", "steps"), "x"),
    ],
)
def test_damaged_training_record_counts_as_missing(path, value, tmp_path):
    cell, record = planned()[0].cells[0].cell, planned()[1][0]
    place = tmp_path / f"{cell.key}.json"
    place.write_text(json.dumps(record))
    assert cells.read(tmp_path, cell) == record
    place.write_text(json.dumps(changed(record, "rows", 1, "avg_loss", value="nan")))
    assert cells.read(tmp_path, cell) is not None
    place.write_text(json.dumps(changed(record, *path, value=value)))
    assert cells.read(tmp_path, cell) is None


@pytest.mark.parametrize(
    ("path", "value"), [(("errors",), "x"), (("errors",), ["a"]), (("chosen",), None), (("versions",), [1])]
)
def test_damaged_distance_record_counts_as_missing(path, value, tmp_path):
    cell = cells.Cell("distance", {"seed": 0}, 1.0)
    record = {"key": cell.key, **DISTANCE}
    place = tmp_path / f"{cell.key}.json"
    place.write_text(json.dumps(record))
    assert cells.read(tmp_path, cell) == record
    place.write_text(json.dumps(changed(record, *path, value=value)))
    assert cells.read(tmp_path, cell) is None
    place.write_text("[" * 100_000)
    assert cells.read(tmp_path, cell) is None


def test_small_file_with_huge_content_or_header(tmp_path, monkeypatch):
    path = tmp_path / "images.gz"
    head = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**20, 32, 32)
    path.write_bytes(gzip.compress(head))
    with refused("damaged-file", str(path), "1073741824"):
        read_idx(path)
    monkeypatch.setenv("DRFL_FILE_LIMIT", "1M")
    path.write_bytes(gzip.compress(head + bytes(2**21)))
    with refused("file-too-large", str(path), "DRFL_FILE_LIMIT"):
        read_idx(path)


@pytest.mark.parametrize(
    ("state", "name", "shape", "why"),
    [
        (cnn((1, 4, 4), 2).state_dict(), "7.weight", (2**40, 0), r"7\.weight is empty"),
        (cnn((1, 4, 4), 2).state_dict(), "7.weight", (2**20, 1), r"size mismatch for 7\.weight"),
        (cnn((1, 4, 4), 2).state_dict(), "7.weight", (), "do not match"),
        (resnet18(2, "batch", 4).state_dict(), "conv1.weight", (2**16, 1), r"size mismatch for conv1\.weight"),
        (resnet18(2, "batch", 4).state_dict(), "fc.weight", (2**20,), r"size mismatch for fc\.weight"),
    ],
)
def test_small_file_that_names_a_huge_network(state, name, shape, why):
    with pytest.raises(InputError, match=why):
        Backbone.of("x", {**state, name: torch.zeros(shape, dtype=torch.uint8)})


def test_huge_network_with_missing_weights():
    state = {"conv1.weight": torch.zeros(2**16, 3, 7, 7, dtype=torch.uint8), "layer1.0.conv1.weight": torch.zeros(1)}
    with pytest.raises(InputError, match=r"layer1\.0\.conv2\.weight"):
        Backbone.of("x", {**state, "fc.weight": torch.zeros(2, 1)})


@pytest.mark.parametrize(
    "words",
    [
        ["run"],
        ["run", "--rounds", "0", "--out"],
        ["compare", "--rounds", "0", "--out"],
        ["run", "--dataset", "mnist", "--data-dir"],
        ["run", "--features", "entk", "--backbone"],
        ["energy", "--runs"],
        ["tune", "mnist-linear", "--out"],
        ["reproduce", "drdm-table-3", "--quick", "--out"],
    ],
    ids=" ".join,
)
def test_overlong_name(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call([*words, "a" * 300 + ".pth"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_weights_with_invalid_names_or_contents(tmp_path):
    with pytest.raises(InputError, match="null byte"):
        read_weights(tmp_path / "a\0.safetensors")
    good = save({"a": torch.zeros(2)})
    for name, content in (("a.pth", good), ("a.safetensors", b"\xff" * 64), ("a.pt", b"PK\x05\x06" + b"\0" * 18)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="file of weights"):
            read_weights(tmp_path / name)
