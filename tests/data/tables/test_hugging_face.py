"""Test Hugging Face data sets: saved folders, and the hub by a stand-in."""

from __future__ import annotations

import json
import sys
import tomllib
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from tests.support.marks import long_except
from tests.support.refusals import check_refusal, refused

from drfl.cli.app import call
from drfl.data.tables import hugging_face_names
from drfl.data.tables.columns import Columns
from drfl.data.tables.hugging_face import read_saved
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.text_form import ReadOptions
from drfl.experiments.config import own_data
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config

datasets.disable_progress_bars()

ROWS = 60
CLASSES = datasets.ClassLabel(names=["well", "ill"])


def table(n=ROWS, **change):
    """Make numbers, words, classes, labels in a list, and one client per row."""
    columns = {
        "age": [30.0 + i for i in range(n)],
        "sex": ["fm"[i % 2] for i in range(n)],
        "stage": [i % 3 for i in range(n)],
        "ill": [int(i % 5 > 2) for i in range(n)],
        "site": ["AB"[i % 3 > 0] for i in range(n)],
        "signs": [[i % 2, int(i % 4 > 1)] for i in range(n)],
    } | change
    features = {"ill": CLASSES, "stage": datasets.ClassLabel(names=["I", "II", "III"])}
    found = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        found = found.cast_column(name, feature) if name not in change else found
    return found


def pictures(n=ROWS, size=(8, 6), mode="L", name="image"):
    rng = np.random.default_rng(0)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    images = [Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)) for _ in range(n)]
    rows = {name: images, "label": [i % 2 for i in range(n)], "who": [f"w{i % 3}" for i in range(n)]}
    return datasets.Dataset.from_dict(rows).cast_column(name, datasets.Image())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def saved(found, name="saved"):
    found.save_to_disk(name)
    return Path(name)


@pytest.mark.parametrize("by_schema", [False, True])
def test_patients_are_named_by_a_column_or_the_schema(by_schema):
    both = table().select_columns(["age", "ill", "site"]).add_column("pid", [f"P{i // 6}" for i in range(ROWS)])
    columns = Columns(("ill",), "site", patient="pid")
    if by_schema:
        schema = TableSchema(
            (
                Column("age", "number"),
                Column("ill", "yes/no", levels=("well", "ill"), role="target"),
                Column("site", "text", role="client"),
                Column("pid", "id", role="patient"),
            )
        )
        columns = Columns((), schema=schema)
    data = read_saved(saved(both), columns)
    assert (data.columns, data.patients) == (("age",), tuple(both["pid"]))
    twice = saved(datasets.DatasetDict(train=both, test=both), "twice")
    with refused("unsupported-combination", "patient"):
        read_saved(twice, columns)
    with refused("unknown-name", "patient", "'nobody'"):
        read_saved(Path("saved"), Columns(("ill",), "site", patient="nobody"))
    images = read_saved(saved(pictures(), "images"), Columns(("label",), patient="who"))
    assert images.patients == tuple(f"w{i % 3}" for i in range(ROWS))


def test_table_is_read_like_csv():
    data = read_saved(saved(table()), Columns(("ill",), "site", ("signs",)))
    assert (data.name, data.classes, data.is_one_pool, data.standardise) == ("saved", 2, True, True)
    assert data.columns == ("age", "sex_m", "stage_II", "stage_III")
    assert data.inputs[4].tolist() == [34, 0, 1, 0]
    assert data.targets.tolist() == [int(i % 5 > 2) for i in range(ROWS)]
    assert data.groups == tuple("AB"[i % 3 > 0] for i in range(ROWS))
    numbers = read_saved(Path("saved"), Columns(("age",), None, ("signs", "site"), "regression"))
    assert (numbers.targets[:2].tolist(), numbers.groups) == ([30, 31], None)
    labels = read_saved(Path("saved"), Columns(("signs",), "site", (), "multi-label"))
    assert labels.targets[:4].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_condition_and_classes_of_images_are_checked():
    bp = [110.5 + (7 * i) % 40 if i % 5 else 999 for i in range(ROWS)]
    columns = Columns(("bp > 130",), "site", ("signs", "ill"))
    data = read_saved(saved(table(bp=bp)), columns)
    assert [(notice.code, notice.field) for notice in data.notices] == [("missing-code", "bp")]
    images = pictures().remove_columns("label").add_column("label", [["no", "yes", "Yes"][i % 3] for i in range(ROWS)])
    with refused("similar-values", "label", "'Yes'", "'yes'"):
        read_saved(saved(images, "images"), Columns(("label",), "who"))


@pytest.mark.long
def test_train_and_test_splits_are_kept_with_their_clients():
    test = table(12).select(range(6))
    data = read_saved(saved(datasets.DatasetDict(train=table(), test=test)), Columns(("ill",), "site", ("signs",)))
    assert (len(data.targets), len(data.test_targets), data.is_one_pool) == (ROWS, 6, False)
    job = build(load_config(None, {"data": "saved", "target": "ill", "group": "site", "drop": "signs"}))
    assert job.data.names == ("A", "B")
    assert [len(rows) for rows in job.data.train] == [20, 40]
    assert [rows.tolist() for rows in job.data.test] == [[0, 3], [1, 2, 4, 5]]
    anew = build(load_config(None, {**job.settings.to_plain(), "test_fraction": 0.5}))
    assert [len(rows) for rows in anew.data.test] == [11, 22]
    alone = datasets.DatasetDict(train=table(), test=test.select([0, 3]))
    saved(alone, "alone")
    with refused("no-rows", "B"):
        build(load_config(None, {"data": "alone", "target": "ill", "group": "site", "drop": "signs"}))


def test_images_and_arrays_are_read():
    data = read_saved(saved(pictures()), Columns(("label",), "who"))
    first = np.asarray(pictures()[0]["image"])
    assert data.inputs.shape == (ROWS, 1, 6, 8)
    assert torch.equal(data.inputs[0, 0], torch.tensor(first) / 255)
    assert not data.standardise
    both = datasets.DatasetDict(train=pictures(mode="RGB"), validation=pictures(6))  # grey in only one split
    coloured = read_saved(saved(both, "both"), Columns(("label",), None, ("who",)))
    assert (coloured.inputs.shape[1], coloured.test_inputs.shape) == (3, (6, 3, 6, 8))
    assert torch.equal(coloured.test_inputs[:, 0], coloured.test_inputs[:, 2])
    arrays = datasets.Dataset.from_dict({"x": np.arange(24.0).reshape(4, 2, 3).tolist(), "y": [0, 1, 0, 1]})
    assert read_saved(saved(arrays, "arrays"), Columns(("y",))).inputs[1].tolist() == [[6, 7, 8], [9, 10, 11]]


def test_saved_folder_in_the_command(capsys):
    saved(pictures())
    words = "run --data saved --target label --group who --model cnn --algorithm FedAvg --rounds 1 --steps 1 --lr 0.01"
    assert call(f"{words} --out r".split()) in (0, 1), capsys.readouterr().err
    assert json.loads(Path("r/summary.json").read_text())["clients"] == 3
    assert call(["run", "r/config.toml", "--out", "again"]) in (0, 1)
    assert Path("again/history.csv").read_bytes() == Path("r/history.csv").read_bytes()


@pytest.mark.parametrize(
    "spelling",
    long_except(["hf:saved"], ["hf:saved", "hf:./saved", "hf:{}/saved"]),
)
def test_saved_folder_as_dataset_equals_data(spelling):
    saved(pictures())
    columns = {"target": "label", "group": "who"}
    Path("hf.toml").write_text(f'dataset = "{spelling.format(Path.cwd())}"\ntarget = "label"\n')
    named = load_config(Path("hf.toml"), {"group": "who"})
    assert (named.dataset, named.data_label, named.partition) == ("saved", "saved", "natural")
    data, same = build(named).data, build(load_config(None, {"data": "saved", **columns})).data
    assert data.names == same.names == ("w0", "w1", "w2")
    assert torch.equal(data.inputs, same.inputs)


OLD, NEW = 40 * "a", 40 * "b"


class Hub:
    """A hub that returns its newest commit and records requests."""

    def __init__(self):
        self.commit, self.asked = OLD, []

    def load_dataset(self, *names, revision=None, **options):
        self.asked.append((*names, revision))
        return datasets.DatasetDict(train=table(), test=table())

    def dataset_info(self, name, revision=None, timeout=None):
        if self.commit is None:
            raise ConnectionError("no route to host")
        return SimpleNamespace(sha=OLD if revision == "v1" else self.commit)


@pytest.fixture
def hub(monkeypatch):
    found = Hub()
    monkeypatch.setattr(datasets, "load_dataset", found.load_dataset)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    hugging_face_names.pin_revision.cache_clear()
    yield found
    hugging_face_names.pin_revision.cache_clear()


HUB = ["run", "--target", "ill", "--group", "site", "--drop", "signs", "--rounds", "1", "--lr", "0.1"]


@pytest.mark.long
def test_newest_commit_is_recorded_and_reused(hub, capsys):
    assert call([*HUB, "--dataset", "hf:clinic/heart:small", "--out", "r"]) in (0, 1), capsys.readouterr().err
    pinned = f"hf:clinic/heart:small@{OLD}"
    assert tomllib.loads(Path("r/config.toml").read_text())["dataset"] == pinned
    assert json.loads(Path("r/summary.json").read_text())["dataset"] == pinned
    assert "no fixed revision" not in capsys.readouterr().err
    hugging_face_names.pin_revision.cache_clear()
    hub.commit = NEW
    assert call(["run", "r/config.toml", "--out", "again"]) in (0, 1)
    assert call([*HUB, "--dataset", "hf:clinic/heart:small", "--out", "r", "--resume"]) == 0, "its own commit stays"
    assert call(["run", "--out", "r", "--resume"]) == 0
    assert call(["run", "r/config.toml", "--dataset", "hf:clinic/heart:small", "--out", "third"]) in (0, 1)
    assert {asked[2] for asked in hub.asked} == {OLD}
    assert call([*HUB, "--dataset", "hf:clinic/heart:small", "--out", "new"]) in (0, 1)
    assert hub.asked[-1] == ("clinic/heart", "small", NEW)
    assert Path("again/history.csv").read_bytes() == Path("r/history.csv").read_bytes()
    assert call([*HUB, "--dataset", "hf:clinic/heart@v1", "--out", "tag"]) in (0, 1)
    assert hub.asked[-1] == ("clinic/heart", None, OLD)


def test_unreachable_hub_is_reported_once(hub, capsys):
    hub.commit = None
    assert call([*HUB, "--dataset", "hf:clinic/heart", "--out", "r"]) in (0, 1)
    assert capsys.readouterr().err.count("no fixed revision") == 1
    assert call([*HUB, "--dataset", f"hf:clinic/heart@{NEW}", "--out", "s"]) in (0, 1)
    assert "no fixed revision" not in capsys.readouterr().err
    assert hub.asked == [("clinic/heart", None, None), ("clinic/heart", None, NEW)]


def test_empty_revision_is_refused():
    with refused("invalid-name", "dataset"):
        hugging_face_names.hub_name("hf:clinic/heart@")


def test_hub_data_set_in_the_command(monkeypatch, capsys):
    asked = []

    def load_dataset(*names, revision, **options):
        asked.append(names)
        return datasets.DatasetDict(train=table(), test=table())

    monkeypatch.setattr(own_data, "pin_revision", lambda text: text)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    words = "run --dataset hf:clinic/heart:small --target ill --group site --drop signs --rounds 1 --lr 0.1"
    assert call(words.split()) in (0, 1), capsys.readouterr().err
    assert asked == [("clinic/heart", "small")]
    (made,) = Path("runs").iterdir()
    assert made.name == "dualdrdm-hf-clinic-heart-small-seed0"
    assert call(["run", f"{made}/config.toml", "--out", "again"]) in (0, 1)
    assert json.loads(Path("again/summary.json").read_text())["dataset"] == "hf:clinic/heart:small"


def check_refused(words, capsys, *error):
    check_refusal(f"run {words} --out r --rounds 1".split(), *error)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--dataset hf: --target y", ("invalid-name", "dataset", "'hf:'")),
        ("--dataset hf:clinic/heart", ("missing-option", "target", "'hf:clinic/heart'")),
        ("--dataset hf:./gone --target y", ("invalid-value", "dataset", "'hf:./gone'")),
        ("--dataset hf:. --target y", ("invalid-value", "dataset", "save_to_disk")),
        ("--dataset hf:saved --data saved --target ill", ("conflicting-options", "data", "'hf:saved'")),
        ("--dataset hf:a --target y --data-dir .", ("unused-option", "data_dir", "'hf:a'")),
        ("--dataset hf:a --target y --target y --task regression", ("given-twice", "target", "'y'")),
        ("--dataset hf:a --target y --features entk --backbone cnn-mnist", ("unsupported-combination", "features")),
        ("--data saved --data saved --target ill", ("conflicting-options", "data")),
        ("--data saved", ("missing-option", "target")),
        ("--data saved --target il", ("unknown-name", "target", "'il'", "'ill'")),
        (
            "--data saved --target ill --group site",
            ("unsupported-data", "signs", "age"),
        ),
        ("--data splits --target ill", ("invalid-splits", "dataset", "a, b", "'train'", "'test'")),
        ("--data blank --target ill --drop signs", ("missing-values", "age", "blank, split 'train', row 4")),
        ("--data unknown --target ill --drop signs", ("missing-values", "ill", "'train'", "2", "-1")),
        (
            "--data dates --target ill --drop signs",
            ("not-a-number", "age", "dates, split 'train', row 1", "'2020-01-01'"),
        ),
        (
            "--data sizes --target label --drop who",
            ("wrong-shape", "image", "4", "5x5", "1", "8x6"),
        ),
        ("--data holes --target label --drop who", ("missing-values", "image", "61")),
        ("--data ragged --target y", ("wrong-shape", "x", "row 2", "(1,)", "row 1", "(2,)")),
        ("--data torn --target ill", ("file-unreadable", "torn")),
    ],
)
def test_mistake_is_a_one_line_error(words, error, capsys):
    saved(table())
    makers = {
        "splits": lambda: datasets.DatasetDict(a=table(), b=table()),
        "blank": lambda: table(age=[None if i == 3 else 1.0 * i for i in range(ROWS)]),
        "unknown": lambda: table(ill=[-1 if i == 1 else i % 2 for i in range(ROWS)]).cast_column("ill", CLASSES),
        "dates": lambda: table(age=[datetime(2020, 1, 1)] * ROWS),
        "sizes": lambda: datasets.concatenate_datasets([pictures(3), pictures(3, (5, 5))]),
        "holes": lambda: datasets.concatenate_datasets(
            [pictures(), pictures(1).map(lambda row: row | {"image": None})]
        ),
        "ragged": lambda: datasets.Dataset.from_dict({"x": [[1, 2], [3]], "y": [0, 1]}),
        "torn": table,
    }
    for name in makers.keys() & set(words.split()):
        path = saved(makers[name](), name)
        if name == "torn":
            next(path.glob("*.arrow")).write_bytes(b"ARROW1 and no more")
    check_refused(words, capsys, *error)


def test_missing_package_names_the_extra(monkeypatch, capsys):
    saved(table())
    monkeypatch.setitem(sys.modules, "datasets", None)
    for words in ("--dataset hf:clinic/heart --target ill", "--data saved --target ill"):
        check_refused(words, capsys, "package-missing", "datasets", "'drfl[hf]'")


def test_unreachable_hub_is_a_one_line_error(monkeypatch, capsys, hub):
    hub.commit = None

    def load_dataset(*names, revision, **options):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    what = ["'hf:clinic/heart'", "ConnectionError: no route to host"]
    check_refused("--dataset hf:clinic/heart --target ill", capsys, "download-failed", None, *what)


@pytest.mark.parametrize("role", ["group", "patient"])
def test_unknown_clients_and_patients_of_images_are_refused(role):
    classes = [-1 if i == 4 else i % 2 for i in range(ROWS)]
    images = pictures().remove_columns("who").add_column("who", classes).cast_column("who", CLASSES)
    with refused("missing-values", "who", "row 5"):
        read_saved(saved(images), Columns(("label",), **{role: "who"}))


@pytest.mark.parametrize(
    ("columns", "targets"),
    [
        (Columns(("ill",), "site", ("signs",)), [int(i % 5 <= 2) for i in range(ROWS)]),
        (Columns(("dose",), "site", ("signs", "ill"), "regression"), [i / 4 for i in range(ROWS)]),
        (Columns(("signs",), "site", ("ill",), "multi-label"), [[i % 2, int(i % 4 > 1)] for i in range(ROWS)]),
    ],
)
def test_words_for_missing_values_give_a_schema(columns, targets):
    ages = ["?" if i % 20 == 3 else f"{30 + i},5" for i in range(ROWS)]
    both = table(age=ages, dose=[f"{i / 4}".replace(".", ",") for i in range(ROWS)])
    both = both if "dose" in columns.targets else both.remove_columns("dose")
    data = read_saved(saved(both), columns._replace(reading=ReadOptions(missing=("?",))))
    assert data.columns[:2] == ("age", "age missing")
    assert data.columns == data.schema.features
    assert "stage_II" in data.columns
    assert data.inputs[2:5, 1].tolist() == [0, 1, 0]
    assert data.inputs[0, 0] == 30.5
    assert data.targets.tolist() == targets
    if data.task == "classification":  # the levels of a schema are in alphabetical order
        assert data.class_names == ("ill", "well")


def grey(*arrays):
    images = [Image.fromarray(array) if isinstance(array, np.ndarray) else array for array in arrays]
    found = datasets.Dataset.from_dict({"image": images, "label": [i % 2 for i in range(len(images))]})
    return found.cast_column("image", datasets.Image())


VALUES = np.array([[0, 255, 256], [4000, 40000, 65535]])


@pytest.mark.parametrize("kind", [np.uint16, ">u2", np.int32])
def test_images_of_16_bits_keep_their_values(kind):
    deep = VALUES.astype(kind)
    data = read_saved(saved(grey(deep, deep)), Columns(("label",)))
    expected = torch.tensor(VALUES / 65535, dtype=torch.float32)
    assert torch.equal(data.inputs, expected.expand(2, 1, 2, 3))
    # Images of 8 bits have the same range.
    flat = np.array([[0, 255, 1], [2, 3, 4]], np.uint8)
    both = read_saved(saved(grey(deep, flat), "both"), Columns(("label",)))
    torch.testing.assert_close(both.inputs, torch.stack([expected, torch.tensor(flat / 255).float()])[:, None])
    coloured = read_saved(saved(grey(deep, np.stack([flat] * 3, 2)), "coloured"), Columns(("label",)))
    torch.testing.assert_close(coloured.inputs, both.inputs.expand(2, 3, 2, 3))


def test_integers_of_8_bits_and_transparent_grey_are_images_of_8_bits():
    flat = np.array([[0, 255, 1], [2, 3, 4]], np.uint8)
    transparent = Image.merge("LA", [Image.fromarray(flat), Image.fromarray(flat[::-1].copy())])
    data = read_saved(saved(grey(flat.astype(np.int32), transparent)), Columns(("label",)))
    assert torch.equal(data.inputs, torch.tensor(flat / 255).float().expand(2, 1, 2, 3))


@pytest.mark.parametrize("odd", [VALUES.astype(np.int32) - 1, VALUES.astype(np.int32) + 1, VALUES.astype(np.float32)])
def test_images_beyond_16_bits_are_refused(odd):
    with refused("unsupported-data", "image", "row 2", "65535"):
        read_saved(saved(grey(VALUES.astype(np.int32), odd)), Columns(("label",)))
