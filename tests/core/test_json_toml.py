"""Test the reader of users' TOML files."""

from __future__ import annotations

from drfl.core.json_toml import read_toml


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("rounds = 2\r\n", encoding="utf-8-sig")
    assert read_toml(path) == {"rounds": 2}
