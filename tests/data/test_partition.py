"""A partition's file gives back the same partition, and nothing else passes for one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.support.refusals import refused

from drfl.data import Partition, ZipfDirichlet
from drfl.errors import InputError
from drfl.key import Key

Y = np.arange(60) % 3


def test_what_is_saved_is_loaded(tmp_path):
    partition = ZipfDirichlet(5, math.inf, 0.5).split(Y, Y, 3, Key(1))
    partition.save(tmp_path / "new" / "partition.json")
    back = Partition.load(tmp_path / "new" / "partition.json")
    assert back == partition
    assert back.recipe["alpha"] == math.inf
    assert len(back) == 5
    assert back.sizes.sum() == 60
    assert "Infinity" not in (tmp_path / "new" / "partition.json").read_text()


def test_a_failed_save_leaves_the_old_file(tmp_path):
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
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not marked as"),
        (content(format="other"), "not marked as"),
        (content(recipe=[]), "table 'recipe'"),
        (content(recipe={"a": None}), "strings or numbers"),
        (content(recipe={"seed": math.nan}), "strings or numbers"),
        (content(recipe={"seed": -math.inf}), "strings or numbers"),
        (content(clients={}), "list 'clients'"),
        (content(clients=[]), "at least one"),
        (content(clients=[3]), "every client needs a 'name'"),
        (content(client={"name": 3}), "every client needs a 'name'"),
        (content(client={"train": "0"}), "list 'train' of integers"),
        (content(client={"test": [0.5]}), "list 'test' of integers"),
        (content(client={"test": [True]}), "list 'test' of integers"),
        (content(client={"test": [10**30]}), "list 'test' of integers"),
        (content(client={"train": []}), "client 'a' has no training samples"),
        (content(client={"train": [1, 0]}), "sorted, different and not negative"),
        (content(client={"train": [1, 1]}), "sorted, different and not negative"),
        (content(client={"test": [-1]}), "sorted, different and not negative"),
        (content(clients=[{"name": "a", "train": [0], "test": [0]}] * 2), "names of clients must differ"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=message) as caught:
        Partition.load(path)
    assert "odd.json" in str(caught.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with refused("file-not-found"):
        Partition.load(tmp_path / "none")


def test_parts_must_fit_together():
    one = (np.array([0]),)
    with pytest.raises(InputError, match="as many training parts"):
        Partition(one, one, ("a", "b"), {})
    with pytest.raises(InputError, match="1-D int64"):
        Partition((np.array([0.0]),), one, ("a",), {})
    assert Partition(one, one, ("a",), {}) != "a"
    assert Partition(one, one, ("a",), {}) != Partition(one * 2, one * 2, ("a", "b"), {})
