"""Test that a partition's file gives back the same partition, and that other files are refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import Partition, ZipfDirichlet

Y = np.arange(60) % 3
FORMAT = "drfl-partition-1"


def test_saved_partition_is_loaded(tmp_path):
    partition = ZipfDirichlet(5, math.inf, 0.5).split(Y, Y, 3, Key(1))
    partition.save(tmp_path / "new" / "partition.json")
    back = Partition.load(tmp_path / "new" / "partition.json")
    assert back == partition
    assert back.recipe["alpha"] == math.inf
    assert len(back) == 5
    assert back.sizes.sum() == 60
    assert "Infinity" not in (tmp_path / "new" / "partition.json").read_text()


def test_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "partition.json"
    partition = ZipfDirichlet(5, 0.5).split(Y, Y, 3, Key(1))
    partition.save(path)
    broken = Partition(partition.train, partition.test, partition.names, {"x": math.nan})
    with pytest.raises(ValueError, match="JSON"):
        broken.save(path)
    assert Partition.load(path) == partition
    assert [file.name for file in tmp_path.iterdir()] == ["partition.json"]


def content(**changes):
    client = {"name": "a", "train": [0, 1], "test": [0], **changes.pop("client", {})}
    return json.dumps({"format": "drfl-partition-1", "recipe": {}, "clients": [client], **changes})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ("damaged-file", None, "JSON")),
        ("\xff", ("damaged-file", None, "JSON")),
        ("[" * 100_000, ("damaged-file", None, "JSON")),
        ("[]", ("damaged-file", None, FORMAT)),
        (content(format="other"), ("damaged-file", None, FORMAT)),
        (content(recipe=[]), ("damaged-file", None, "'recipe'")),
        (content(recipe={"a": None}), ("damaged-file", None, "'recipe'")),
        (content(recipe={"seed": math.nan}), ("damaged-file", None, "'recipe'")),
        (content(recipe={"seed": -math.inf}), ("damaged-file", None, "'recipe'")),
        (content(clients={}), ("damaged-file", None, "'clients'")),
        (content(clients=[]), ("damaged-file", None, "0")),
        (content(clients=[3]), ("damaged-file", None, "'name'")),
        (content(client={"name": 3}), ("damaged-file", None, "'name'")),
        (content(client={"train": "0"}), ("damaged-file", None, "'train'")),
        (content(client={"test": [0.5]}), ("damaged-file", None, "'test'")),
        (content(client={"test": [True]}), ("damaged-file", None, "'test'")),
        (content(client={"test": [10**30]}), ("damaged-file", None, "'test'")),
        (content(client={"train": []}), ("damaged-file", None, "'a'")),
        (content(client={"train": [1, 0]}), ("damaged-file", None, "'a'", "training", "sorted")),
        (content(client={"train": [1, 1]}), ("damaged-file", None, "'a'", "training", "sorted")),
        (content(client={"test": [-1]}), ("damaged-file", None, "'a'", "test", "sorted")),
        (content(clients=[{"name": "a", "train": [0], "test": [0]}] * 2), ("damaged-file", None, "name")),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text, error):
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="latin-1")
    with refused(*error) as caught:
        Partition.load(path)
    assert "odd.json" in str(caught.value)


def test_missing_file_is_reported(tmp_path):
    with refused("file-not-found"):
        Partition.load(tmp_path / "none")


def test_inconsistent_parts_are_refused():
    one = (np.array([0]),)
    with refused("count-mismatch", "names"):
        Partition(one, one, ("a", "b"), {})
    with refused("wrong-type", "a", "1-D int64"):
        Partition((np.array([0.0]),), one, ("a",), {})
    assert Partition(one, one, ("a",), {}) != "a"
    assert Partition(one, one, ("a",), {}) != Partition(one * 2, one * 2, ("a", "b"), {})
