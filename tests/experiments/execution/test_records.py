"""Test the store of results."""

from __future__ import annotations

import math

import pytest
from tests.support.refusals import refused

from drfl.experiments.execution import records

KEY = b"k" * 32


def test_returned_record_equals_the_record_read_back(tmp_path):
    written = records.write(tmp_path / "store", "a", {"loss": math.inf, "rows": (1, 2), "none": None})
    assert written == {"key": "a", "loss": "inf", "rows": [1, 2], "none": None}
    assert records.read(tmp_path / "store", "a") == written
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a.json"]


def test_bytes_match_stored_results(tmp_path):
    records.write(tmp_path, "a", {"kind": "training", "job": {"seed": 0}, "rounds": 3})
    assert (tmp_path / "a.json").read_bytes() == b'{"key": "a", "kind": "training", "job": {"seed": 0}, "rounds": 3}'


@pytest.mark.parametrize("content", [b"", b"[]", b'{"key": "b"}', b'{"key": "a"', b"\xff"])
def test_damaged_record_counts_as_missing(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    assert records.read(tmp_path, "a") is None


def test_link_counts_as_missing(tmp_path):
    records.write(tmp_path / "elsewhere", "a", {})
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.json").symlink_to(tmp_path / "elsewhere" / "a.json")
    assert records.read(tmp_path / "store", "a") is None


def test_key_accepts_only_records_signed_with_it(tmp_path):
    signed, unsigned = tmp_path / "signed", tmp_path / "unsigned"
    records.write(signed, "a", {"rounds": 3}, KEY)
    records.write(unsigned, "a", {"rounds": 3})
    assert records.read(signed, "a", KEY) == records.read(signed, "a") == {"key": "a", "rounds": 3}
    assert records.read(signed, "a", b"o" * 32) is None
    assert records.read(unsigned, "a", KEY) is None
    (unsigned / "a.json").write_bytes((signed / "a.json").read_bytes())  # signed for another folder
    assert records.read(unsigned, "a", KEY) is None
    (signed / "b.json").write_bytes((signed / "a.json").read_bytes())
    assert records.read(signed, "b", KEY) is None


def test_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with refused("cannot-write", str(tmp_path / "file")):
        records.write(tmp_path / "file", "a", {})
